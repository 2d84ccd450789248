//! `swarmletfs ls`: what is in folders, as ls(1) tells it.

use std::cmp::Ordering;
use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

use clap::Args;

use super::entry::{Entry, Known};
use super::json::{self, Object};
use super::{LongHelp, Look, LookArgs, Out, join, paths, shown};
use crate::error::Result;
use crate::tree::{Ino, NodeKind, ResolvedPath, Symlinks};

/// What is said below the options.
pub(in crate::cli) const HELP: &str = concat!(
    "\
Needs no mount. Paths begin at the root of the tree, as in a mount; the root itself is `.`, or no PATH. One name a line, in the \
order of their bytes; -l tells mode, uid, gid, size, last change (UTC) and name. A link to a folder lists that folder, but with \
-l, -d or -F the link is shown, unless a `/` is behind it. On a terminal control characters in names are escaped.

",
    json::fields!(),
    " With -R it holds all that is listed.

Examples:
  swarmletfs ls workers                            all workers
  swarmletfs ls -t workers | head                  those that wrote last
  swarmletfs ls -lhS workers/ID/tool_calls         a worker's outputs, the largest first
  swarmletfs ls -R --json runs/latest/workers/ID/ | jq -r '.[] | select(.size > 100000) | .path'

Exit code: 0 if all was listed, 1 if something could not be, 2 if it was typed wrongly, 3 if not all was read before \
--max-time was over."
);

/// What can be said to `ls`.
#[derive(Debug, Args)]
pub(in crate::cli) struct LsArgs {
    /// Paths from the root of the tree [default: the root]
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,

    /// Also tell mode, owner, group, size, time of the last change, and where links lead
    #[arg(short = 'l')]
    long: bool,

    /// With -l, tell sizes as 4.0K or 1.2M
    #[arg(short = 'h', long)]
    human_readable: bool,

    /// Also list what is in folders of folders
    #[arg(short = 'R', long)]
    recursive: bool,

    /// The newest change first
    #[arg(short = 't', overrides_with = "by_size")]
    by_time: bool,

    /// The largest first
    #[arg(short = 'S', overrides_with = "by_time")]
    by_size: bool,

    /// The other way round
    #[arg(short, long)]
    reverse: bool,

    /// Folders themselves, not what is in them
    #[arg(short, long)]
    directory: bool,

    /// Put `/` behind folders and `@` behind links
    #[arg(short = 'F', long)]
    classify: bool,

    /// Nothing: one name a line is how it is
    #[arg(short = '1')]
    one: bool,

    /// Nothing: no name is hidden
    #[arg(short, long)]
    all: bool,

    /// Print JSON: an array of objects
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    look: LookArgs,

    #[command(flatten)]
    help: LongHelp,
}

/// Takes what is listed.
trait Listing {
    /// What follows is in the folder that is called so.
    fn folder(&mut self, called: &[u8]) -> io::Result<()>;

    /// Several entries in their order.
    fn entries(&mut self, entries: &[Entry]) -> io::Result<()>;
}

/// Lists. Errors: a store that cannot be found or read, and a stdout that cannot be written.
pub(in crate::cli) fn run(arguments: &LsArgs) -> anyhow::Result<ExitCode> {
    let look = Look::open(&arguments.look)?;
    look.note_unread();
    let ls = Ls { look: &look, arguments };
    let mut out = look.out();
    let written = if arguments.json {
        json::array(&mut out.stdout, |add| ls.list(&mut AsJson { add }))
    } else {
        let has_heads = arguments.recursive || arguments.paths.len() > 1;
        ls.list(&mut AsText { out: &mut out, arguments, has_heads, is_first: true })
    };
    look.end(written.and_then(|()| out.flush()))
}

struct Ls<'a> {
    look: &'a Look,
    arguments: &'a LsArgs,
}

impl<'a> Ls<'a> {
    fn list(&self, to: &mut dyn Listing) -> io::Result<()> {
        let (mut folders, mut others) = (Vec::new(), Vec::new());
        for path in paths(&self.arguments.paths) {
            match self.operand(path) {
                Ok(entry) if entry.kind == NodeKind::Folder && !self.arguments.directory => folders.push(entry),
                Ok(entry) => others.push(entry),
                Err(error) => self.look.fail(path, &error),
            }
        }
        self.sort(&mut folders);
        self.sort(&mut others);
        if !others.is_empty() {
            to.entries(&others)?;
        }
        for folder in &folders {
            let path = &folder.called;
            let listed = |place: ResolvedPath<'a>| Ok((self.inside(place.leaf().ino, &place.path(), path)?, place));
            match self.look.tree.with_path(path, Symlinks::Follow, listed) {
                Ok((entries, place)) => self.folder(to, place.leaf().ino, path, &entries)?,
                Err(error) => self.look.fail(path, &error),
            }
        }
        Ok(())
    }

    /// What was typed. A link to a folder is that folder, where not the link itself was asked for.
    fn operand(&self, path: &[u8]) -> Result<Entry> {
        let entry = |links| self.look.tree.with_path(path, links, |place| Entry::at(&place, path));
        let found = entry(Symlinks::NoFollow)?;
        let asked = self.arguments.long || self.arguments.directory || self.arguments.classify;
        if found.kind != NodeKind::Link || asked {
            return Ok(found);
        }
        let behind = entry(Symlinks::Follow).ok().filter(|behind| behind.kind == NodeKind::Folder);
        Ok(behind.unwrap_or(found))
    }

    /// Tells what is in a folder, and, where that is asked for, in those in it.
    fn folder(&self, to: &mut dyn Listing, ino: Ino, called: &[u8], entries: &[Entry]) -> io::Result<()> {
        to.folder(called)?;
        to.entries(entries)?;
        let is_folder = |entry: &&Entry| entry.kind == NodeKind::Folder && self.arguments.recursive;
        for entry in entries.iter().filter(is_folder) {
            let called = join_called(called, entry.name());
            let inner = self.look.tree.with_entry(ino, entry.name(), |held| {
                let entries = self.inside(held.ino, &entry.path, &called)?;
                Ok((entries, held))
            });
            match inner {
                Ok((entries, held)) => self.folder(to, held.ino, &called, &entries)?,
                Err(error) => self.look.fail(&called, &error),
            }
        }
        Ok(())
    }

    /// The entries of the folder at `path`, which is called so, in their order.
    fn inside(&self, ino: Ino, path: &[u8], called: &[u8]) -> Result<Vec<Entry>> {
        let arguments = self.arguments;
        let needs_look = arguments.long || arguments.json || arguments.by_time || arguments.by_size;
        let items = self.look.tree.list_folder(ino)?;
        let mut entries = Vec::with_capacity(items.len());
        for item in items.iter() {
            let name = item.name.as_bytes();
            if !needs_look {
                entries.push(Entry::unknown(path, name, item.kind));
                continue;
            }
            match self.look.tree.with_entry(ino, name, |held| Entry::of(&held, path, name)) {
                Ok(entry) => entries.push(entry),
                Err(error) => self.look.fail(&join_called(called, name), &error),
            }
        }
        self.sort(&mut entries);
        Ok(entries)
    }

    fn sort(&self, entries: &mut [Entry]) {
        let order = |a: &Entry, b: &Entry| {
            let first = match self.arguments {
                LsArgs { by_time: true, .. } => a.by_time(b),
                LsArgs { by_size: true, .. } => a.by_size(b),
                _ => Ordering::Equal,
            };
            first.then_with(|| a.called.cmp(&b.called))
        };
        entries.sort_by(|a, b| if self.arguments.reverse { order(b, a) } else { order(a, b) });
    }
}

/// How `name` in a folder that is called so is called: the root by its `.` too, as in ls(1).
fn join_called(called: &[u8], name: &[u8]) -> Vec<u8> {
    if called == b"." { [b"./", name].concat() } else { join(called, name) }
}

struct AsJson<'a> {
    add: &'a mut dyn FnMut(&Object) -> io::Result<()>,
}

impl Listing for AsJson<'_> {
    fn folder(&mut self, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn entries(&mut self, entries: &[Entry]) -> io::Result<()> {
        entries.iter().try_for_each(|entry| (self.add)(&Object::of(entry)))
    }
}

struct AsText<'a> {
    out: &'a mut Out,
    arguments: &'a LsArgs,
    has_heads: bool,
    /// Nothing was printed before.
    is_first: bool,
}

impl Listing for AsText<'_> {
    fn folder(&mut self, called: &[u8]) -> io::Result<()> {
        if self.has_heads {
            if !self.is_first {
                self.out.text("\n")?;
            }
            self.out.name(called)?;
            self.out.text(":\n")?;
        }
        self.is_first = false;
        Ok(())
    }

    fn entries(&mut self, entries: &[Entry]) -> io::Result<()> {
        self.is_first = false;
        let widths = entries.iter().filter_map(|entry| entry.known.as_ref()).map(|known| self.columns(known));
        let widths = widths.fold([0; 3], |most, columns| {
            let [a, b, c] = columns.map(|column| column.len());
            let [x, y, z] = most;
            [a.max(x), b.max(y), c.max(z)]
        });
        entries.iter().try_for_each(|entry| self.entry(entry, widths))
    }
}

impl AsText<'_> {
    /// What stands in columns: owner, group and size.
    fn columns(&self, known: &Known) -> [String; 3] {
        let size = known.attr.size;
        let size = if self.arguments.human_readable { shown::human(size) } else { size.to_string() };
        [known.attr.uid.to_string(), known.attr.gid.to_string(), size]
    }

    fn entry(&mut self, entry: &Entry, widths: [usize; 3]) -> io::Result<()> {
        let known = entry.known.as_ref().filter(|_| self.arguments.long);
        if let Some(known) = known {
            let ([uid, gid, size], [a, b, c]) = (self.columns(known), widths);
            let (mode, time) = (shown::mode(entry.kind, known.attr.mode), shown::seconds(known.attr.mtime));
            self.out.text(&format!("{mode} {uid:>a$} {gid:>b$} {size:>c$} {time} "))?;
        }
        self.out.name(&entry.called)?;
        let target = known.and_then(|known| known.target.as_ref());
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
        self.out.text("\n")
    }
}
