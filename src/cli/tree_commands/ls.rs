//! `swarmletfs ls`: lists directories like ls(1).

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use super::entry::{EntryDetails, EntryWorker, TreeEntry};
use super::json::{self, Object};
use super::{CommandOutput, LongHelp, ReaderArgs, TreeReader, format, join, paths};
use crate::cli::colors::ColorArgs;
use crate::cli::pager::AnswerKind;
use crate::error::{Error, Result};
use crate::model::Outcome;
use crate::name::printable;
use crate::render::list::WorkerQuery;
use crate::text::one_line;
use crate::tree::{Ino, NodeKind, Symlinks};

pub(crate) const HELP: &str = concat!(
    "\
No mount is needed. Paths start at the root of the tree, as in a mount; the root itself is `.`, \
the default PATH. The output is one name per line, in byte order; -l prints mode, uid, gid, size, \
last change (UTC; on a terminal also its age) and name, and the outcome and title of each worker. A link to a folder lists that folder; with -l, -d or -F it lists the \
link, unless a `/` follows it. On a terminal, control characters in names are escaped.

",
    json::fields!(),
    " With -R, it contains the entries of all folders.

Examples:
  swarmletfs ls workers                            all workers
  swarmletfs ls -t workers | head                  workers with the latest writes
  swarmletfs ls --sort outcome workers             failed workers first
  swarmletfs ls -lhS workers/ID/tool_calls         a worker's outputs, largest first
  swarmletfs ls -R --json runs/latest/workers/ID/ | jq -r '.[] | select(.size > 100000) | .path'

Exit code: 0 if everything was listed, 1 if something could not be listed, 2 for a usage error, 3 \
if --max-time ended before everything was read."
);

/// Arguments of `ls`.
#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// Paths from the root of the tree [default: the root]
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,

    /// Also print mode, owner, group, size, time of the last change, and link targets
    #[arg(short = 'l')]
    long: bool,

    /// With -l, print sizes as 4.0K or 1.2M
    #[arg(short = 'h', long)]
    human_readable: bool,

    /// List subfolders recursively
    #[arg(short = 'R', long)]
    recursive: bool,

    /// Sort by name, time of the last change (newest first), size (largest first), or outcome of
    /// workers (failed, unknown, ok, then others)
    #[arg(long, value_enum, value_name = "KEY", default_value = "name", overrides_with_all = ["by_time", "by_size"])]
    sort: SortKey,

    /// Sort by time of the last change, newest first
    #[arg(short = 't', overrides_with_all = ["by_size", "sort"])]
    by_time: bool,

    /// Sort by size, largest first
    #[arg(short = 'S', overrides_with_all = ["by_time", "sort"])]
    by_size: bool,

    /// Reverse the order
    #[arg(short, long)]
    reverse: bool,

    /// List folders themselves, not their contents
    #[arg(short, long)]
    directory: bool,

    /// Append `/` to folders and `@` to links
    #[arg(short = 'F', long)]
    classify: bool,

    /// No effect: there is always one name per line
    #[arg(short = '1')]
    one: bool,

    /// No effect: no name is hidden
    #[arg(short, long)]
    all: bool,

    /// Print JSON: an array of objects
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    color: ColorArgs,

    #[command(flatten)]
    reader: ReaderArgs,

    #[command(flatten)]
    help: LongHelp,
}

/// The outcomes of workers as text, in the order of `--sort outcome`.
const OUTCOMES: [&str; 3] =
    [Outcome::Failed.as_str(), Outcome::Unknown.as_str(), Outcome::Ok.as_str()];

/// Maximum width of a name in front of the outcome of a worker, in characters.
const NAME_MAX: usize = 60;
/// Maximum length of the title of a worker, in bytes.
const TITLE_MAX: usize = 80;

const FAILED: &[u8] = b"by/status/failed";
/// End of the path of a directory of workers.
const WORKERS: &[u8] = b"workers/";
/// Beginning of the paths of the other directories of workers.
const FACETS: &[u8] = b"by/";

/// The key that entries are sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SortKey {
    Name,
    Time,
    Size,
    Outcome,
}

impl LsArgs {
    fn sort_key(&self) -> SortKey {
        match self {
            LsArgs { by_time: true, .. } => SortKey::Time,
            LsArgs { by_size: true, .. } => SortKey::Size,
            _ => self.sort,
        }
    }
}

trait EntrySink {
    fn folder(&mut self, label: &[u8]) -> io::Result<()>;

    /// Adds entries, in their order.
    fn entries(&mut self, entries: &[TreeEntry]) -> io::Result<()>;
}

pub(crate) fn run(arguments: &LsArgs) -> anyhow::Result<ExitCode> {
    let reader = TreeReader::open(&arguments.reader)?;
    reader.note_unread();
    let ls = Ls { reader: &reader, arguments };
    let has_colors = !arguments.json && arguments.color.are_on();
    let mut out = reader.out(arguments.reader.pager, AnswerKind::Text, has_colors);
    let written = if arguments.json {
        json::array(&mut out.stdout, |add| ls.list(&mut JsonSink { add }))
    } else {
        let has_heads = arguments.recursive || arguments.paths.len() > 1;
        let failed = if has_colors { ls.failed_workers() } else { HashSet::new() };
        ls.list(&mut TextSink { out: &mut out, arguments, has_heads, is_first: true, failed })
    };
    reader.end(out.close(written))
}

struct Ls<'a> {
    reader: &'a TreeReader,
    arguments: &'a LsArgs,
}

impl<'a> Ls<'a> {
    fn list(&self, to: &mut dyn EntrySink) -> io::Result<()> {
        let (mut folders, mut others) = (Vec::new(), Vec::new());
        for path in paths(&self.arguments.paths) {
            match self.operand(path) {
                Ok(entry) if entry.kind == NodeKind::Folder && !self.arguments.directory => {
                    folders.push(entry)
                }
                Ok(entry) => others.push(entry),
                Err(error) => self.reader.fail(path, &error),
            }
        }
        self.sort(&mut folders);
        self.sort(&mut others);
        if !others.is_empty() {
            to.entries(&others)?;
        }
        for folder in &folders {
            let path = &folder.label;
            let listed = self.reader.tree.with_path(path, Symlinks::Follow, |place| {
                Ok((self.inside(place.leaf().ino, &place.path(), path)?, place))
            });
            match listed {
                Ok((entries, place)) => self.folder(to, place.leaf().ino, path, &entries)?,
                Err(error) => self.reader.fail(path, &error),
            }
        }
        Ok(())
    }

    /// Returns the entry for a path that was typed. A link to a directory is followed unless the
    /// options show links themselves.
    fn operand(&self, path: &[u8]) -> Result<TreeEntry> {
        let entry = |links| {
            self.reader.tree.with_path(path, links, |place| TreeEntry::from_path(&place, path))
        };
        let found = entry(Symlinks::NoFollow)?;
        let shows_links =
            self.arguments.long || self.arguments.directory || self.arguments.classify;
        if found.kind != NodeKind::Link || shows_links {
            return Ok(found);
        }
        let target_folder = entry(Symlinks::Follow)
            .ok()
            .filter(|target_folder| target_folder.kind == NodeKind::Folder);
        Ok(target_folder.unwrap_or(found))
    }

    /// Writes the entries of a directory, and of its subdirectories if `--recursive` is given.
    fn folder(
        &self,
        to: &mut dyn EntrySink,
        ino: Ino,
        label: &[u8],
        entries: &[TreeEntry],
    ) -> io::Result<()> {
        to.folder(label)?;
        to.entries(entries)?;
        if !self.arguments.recursive {
            return Ok(());
        }
        for entry in entries.iter().filter(|entry| entry.kind == NodeKind::Folder) {
            let label = join_label(label, entry.name());
            let inner = self.reader.tree.with_entry(ino, entry.name(), |held| {
                let entries = self.inside(held.ino, &entry.path, &label)?;
                Ok((entries, held))
            });
            match inner {
                Ok((entries, held)) => self.folder(to, held.ino, &label, &entries)?,
                Err(error) => self.reader.fail(&label, &error),
            }
        }
        Ok(())
    }

    /// Returns the names of the workers whose status is failed, which needs no outputs to be read.
    fn failed_workers(&self) -> HashSet<Vec<u8>> {
        let tree = &self.reader.tree;
        let listed = tree
            .with_path(FAILED, Symlinks::Follow, |place| tree.list_folder(place.leaf().ino))
            .unwrap_or_default();
        listed.iter().map(|entry| entry.name.as_bytes().to_vec()).collect()
    }

    /// Returns the sorted entries of the directory at `path`.
    fn inside(&self, ino: Ino, path: &[u8], label: &[u8]) -> Result<Vec<TreeEntry>> {
        let arguments = self.arguments;
        let needs_look = arguments.long
            || arguments.json
            || matches!(arguments.sort_key(), SortKey::Time | SortKey::Size);
        let items = self.reader.tree.list_folder(ino)?;
        let mut entries = Vec::with_capacity(items.len());
        for item in items.iter() {
            let name = item.name.as_bytes();
            if !needs_look {
                entries.push(TreeEntry::without_details(path, name, item.kind));
                continue;
            }
            match self
                .reader
                .tree
                .with_entry(ino, name, |held| TreeEntry::from_node(&held, path, name))
            {
                Ok(entry) => entries.push(entry),
                Err(error) => self.reader.fail(&join_label(label, name), &error),
            }
        }
        if arguments.sort_key() == SortKey::Outcome || arguments.long && !arguments.json {
            let workers = self.workers(ino)?;
            for entry in &mut entries {
                entry.worker = workers.get(entry.name()).cloned();
            }
        }
        self.sort(&mut entries);
        Ok(entries)
    }

    /// Returns the workers in a directory, by their names in it. They are empty for a directory
    /// that is no list of workers.
    fn workers(&self, ino: Ino) -> Result<HashMap<Vec<u8>, EntryWorker>> {
        let list = match self.reader.tree.list_workers(ino, &WorkerQuery::default()) {
            Ok(list) => list.unwrap_or_default(),
            Err(Error::NotFound) => return Ok(HashMap::new()),
            Err(error) => return Err(error),
        };
        let named = list.workers.into_iter().map(|row| {
            let name = row.path.rsplit('/').next().unwrap_or(&row.path).as_bytes().to_vec();
            (name, EntryWorker { outcome: row.outcome, title: row.title })
        });
        Ok(named.collect())
    }

    /// Sorts entries by the requested key.
    fn sort(&self, entries: &mut [TreeEntry]) {
        let rank = |entry: &TreeEntry| {
            let outcome = entry.worker.as_ref().and_then(|worker| worker.outcome);
            OUTCOMES.iter().position(|known| Some(*known) == outcome).unwrap_or(OUTCOMES.len())
        };
        let order = |a: &TreeEntry, b: &TreeEntry| {
            let first = match self.arguments.sort_key() {
                SortKey::Name => Ordering::Equal,
                SortKey::Time => a.by_time(b),
                SortKey::Size => a.by_size(b),
                SortKey::Outcome => rank(a).cmp(&rank(b)),
            };
            first.then_with(|| a.label.cmp(&b.label))
        };
        entries.sort_by(|a, b| if self.arguments.reverse { order(b, a) } else { order(a, b) });
    }
}

/// Joins `name` to a directory's label; `.` is kept as a prefix, as in ls(1).
fn join_label(label: &[u8], name: &[u8]) -> Vec<u8> {
    if label == b"." { [b"./", name].concat() } else { join(label, name) }
}

struct JsonSink<'a> {
    add: &'a mut dyn FnMut(&Object) -> io::Result<()>,
}

impl EntrySink for JsonSink<'_> {
    fn folder(&mut self, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn entries(&mut self, entries: &[TreeEntry]) -> io::Result<()> {
        entries.iter().try_for_each(|entry| (self.add)(&Object::new(entry)))
    }
}

struct TextSink<'a> {
    out: &'a mut CommandOutput,
    arguments: &'a LsArgs,
    has_heads: bool,
    /// True until something is printed.
    is_first: bool,
    failed: HashSet<Vec<u8>>,
}

impl EntrySink for TextSink<'_> {
    fn folder(&mut self, label: &[u8]) -> io::Result<()> {
        if self.has_heads {
            if !self.is_first {
                self.out.text("\n")?;
            }
            self.out.name(label)?;
            self.out.text(":\n")?;
        }
        self.is_first = false;
        Ok(())
    }

    fn entries(&mut self, entries: &[TreeEntry]) -> io::Result<()> {
        self.is_first = false;
        let widths =
            entries.iter().filter_map(|entry| Some(self.columns(entry, entry.details.as_ref()?)));
        let widths = widths.fold([0; 3], |most, columns| {
            let [a, b, c] = columns.map(|column| column.len());
            let [x, y, z] = most;
            [a.max(x), b.max(y), c.max(z)]
        });
        let workers = entries.iter().filter(|entry| entry.worker.is_some());
        let names = workers.map(|entry| printable(&entry.label).chars().count());
        let name = names.max().unwrap_or_default().min(NAME_MAX);
        entries.iter().try_for_each(|entry| self.entry(entry, widths, name))
    }
}

impl TextSink<'_> {
    fn has_failed(&self, entry: &TreeEntry) -> bool {
        let parent = entry.path.strip_suffix(entry.name()).unwrap_or_default();
        let is_worker = parent.ends_with(WORKERS) || parent.starts_with(FACETS);
        is_worker && self.failed.contains(entry.name())
    }

    /// Returns the aligned columns: owner, group and size.
    fn columns(&self, entry: &TreeEntry, details: &EntryDetails) -> [String; 3] {
        let size = match details.attr.size {
            // The folder of a worker has no size of its own.
            _ if entry.worker.is_some() && entry.kind == NodeKind::Folder => "-".to_owned(),
            size if self.arguments.human_readable => format::human_size(size),
            size => size.to_string(),
        };
        [details.attr.uid.to_string(), details.attr.gid.to_string(), size]
    }

    /// Writes an entry. `widths` has the widths of the columns, and `name` the width of
    /// the names of workers.
    fn entry(&mut self, entry: &TreeEntry, widths: [usize; 3], name: usize) -> io::Result<()> {
        let details = entry.details.as_ref().filter(|_| self.arguments.long);
        if let Some(details) = details {
            let ([uid, gid, size], [a, b, c]) = (self.columns(entry, details), widths);
            let (mode, time) = (
                format::mode_string(entry.kind, details.attr.mode),
                self.out.time(details.attr.mtime),
            );
            self.out.text(&format!("{mode} {uid:>a$} {gid:>b$} {size:>c$} {time} "))?;
        }
        self.out.entry_name(entry, self.has_failed(entry))?;
        let target = details.and_then(|details| details.target.as_ref());
        if let Some(target) = target {
            self.out.text(" -> ")?;
            self.out.name(target)?;
        }
        let mark = match entry.kind {
            NodeKind::Folder => "/",
            NodeKind::Link if target.is_none() => "@",
            _ => "",
        };
        self.out.text(if self.arguments.classify { mark } else { "" })?;
        if let Some(EntryWorker { outcome, title }) =
            entry.worker.as_ref().filter(|_| self.arguments.long)
        {
            let pad = name.saturating_sub(printable(&entry.label).chars().count());
            let outcome = outcome.unwrap_or("not read");
            self.out.text(&format!("{:pad$}  {outcome:<8} {}", "", one_line(title, TITLE_MAX)))?;
        }
        self.out.text("\n")
    }
}
