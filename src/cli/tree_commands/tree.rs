//! `swarmletfs tree`: draws directories and their contents like tree(1).
//!
//! The output is written during the walk. Links are printed but not followed, so the walk ends.

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use serde::Serialize;

use super::entry::TreeEntry;
use super::json::{self, Object};
use super::{CommandOutput, LongHelp, ReaderArgs, TreeReader, format, paths, sentence};
use crate::cli::colors::ColorArgs;
use crate::cli::pager::AnswerKind;
use crate::error::{Error, Result};
use crate::text::count;
use crate::tree::{Ino, ListedEntry, LookupGuard, NodeKind, ResolvedPath, Symlinks};

pub(crate) const HELP: &str = concat!(
    "\
No mount is needed. Paths start at the root of the tree, as in a mount; the root itself is `.`, \
the default PATH. Links are printed with their target; only a PATH that is a link is followed. The \
last line counts the entries: a link counts as a file. A folder that cannot be read is marked with \
the reason after its name.

",
    json::fields!(),
    " A folder also has children, an array of such objects, unless -L excludes them; or error, the \
     reason why it cannot be read.

Examples:
  swarmletfs tree -L 2                             the swarm, its workers and runs
  swarmletfs tree -h workers/ID                    a worker's files with their sizes
  swarmletfs tree -d -D workers                    when each folder was last written to

Exit code: 0 if everything was shown, 1 if something could not be read, 2 for a usage error, 3 if \
--max-time ended before everything was read."
);

/// Arguments of `tree`.
#[derive(Debug, Args)]
pub(crate) struct TreeCommandArgs {
    /// Paths from the root of the tree [default: the root]
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,

    /// Descend at most this many levels
    #[arg(short = 'L', value_name = "DEPTH", value_parser = clap::value_parser!(u32).range(1..))]
    depth: Option<u32>,

    /// Show only folders
    #[arg(short = 'd')]
    folders: bool,

    /// Also print sizes in bytes
    #[arg(short = 's')]
    sizes: bool,

    /// Also print sizes as 4.0K or 1.2M
    #[arg(short = 'h', long)]
    human_readable: bool,

    /// Also print the time of the last change, in UTC, and on a terminal its age
    #[arg(short = 'D')]
    dates: bool,

    /// Print JSON: an array of objects with their children
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    color: ColorArgs,

    #[command(flatten)]
    reader: ReaderArgs,

    #[command(flatten)]
    help: LongHelp,
}

/// Receives the nodes of the walk in drawing order.
trait TreeVisitor {
    /// Enters a node; `is_last` is true for the last one in its directory.
    fn enter(&mut self, entry: &TreeEntry, is_last: bool, children: &Children) -> io::Result<()>;

    fn leave(&mut self) -> io::Result<()>;
}

pub(crate) fn run(arguments: &TreeCommandArgs) -> anyhow::Result<ExitCode> {
    let reader = TreeReader::open(&arguments.reader)?;
    reader.note_unread();
    let walk = TreeWalk { reader: &reader, arguments };
    let has_colors = !arguments.json && arguments.color.are_on();
    let mut out = reader.out(arguments.reader.pager, AnswerKind::Text, has_colors);
    let written = if arguments.json {
        json::array(&mut out.stdout, |add| {
            for path in paths(&arguments.paths) {
                let mut branches = JsonTree { open: Vec::new(), whole: None };
                walk.root(path, &mut branches)?;
                branches.whole.iter().try_for_each(&mut *add)?;
            }
            Ok(())
        })
    } else {
        draw(&walk, &mut out)
    };
    reader.end(out.close(written))
}

fn draw(walk: &TreeWalk<'_>, out: &mut CommandOutput) -> io::Result<()> {
    let mut lines = LineDrawer {
        out,
        arguments: walk.arguments,
        ancestors_last: Vec::new(),
        folders: 0,
        files: 0,
        unreadable: 0,
    };
    for path in paths(&walk.arguments.paths) {
        walk.root(path, &mut lines)?;
    }
    let LineDrawer { folders, files, unreadable, .. } = lines;
    let files =
        if walk.arguments.folders { String::new() } else { format!(", {}", count(files, "file")) };
    let unreadable =
        if unreadable == 0 { String::new() } else { format!(", {unreadable} not readable") };
    out.text(&format!("\n{}{files}{unreadable}\n", count(folders, "folder")))
}

struct TreeWalk<'a> {
    reader: &'a TreeReader,
    arguments: &'a TreeCommandArgs,
}

enum Children {
    /// Not read: no directory, or beyond the depth limit.
    Closed,
    Open(Arc<[ListedEntry]>),
    Unreadable(Error),
}

impl<'a> TreeWalk<'a> {
    fn root(&self, path: &[u8], to: &mut dyn TreeVisitor) -> io::Result<()> {
        let found =
            self.reader.tree.with_path(path, Symlinks::Follow, |place: ResolvedPath<'a>| {
                let children = self.entries(place.leaf(), 0)?;
                Ok((TreeEntry::from_path(&place, path)?, children, place))
            });
        match found {
            Ok((entry, children, place)) => {
                self.visit(to, entry, children, true, place.leaf().ino, 1)
            }
            Err(error) => {
                self.reader.fail(path, &error);
                Ok(())
            }
        }
    }

    /// Returns true if directories at this depth are not entered.
    fn is_depth_limit(&self, depth: u32) -> bool {
        self.arguments.depth.is_some_and(|most| depth >= most)
    }

    /// Returns the contents of a node.
    ///
    /// # Errors
    ///
    /// Fails with [`Error::Stale`] if the node was replaced; the caller then looks it up again.
    fn entries(&self, held: &LookupGuard<'_>, depth: u32) -> Result<Children> {
        if held.attr.kind != NodeKind::Folder || self.is_depth_limit(depth) {
            return Ok(Children::Closed);
        }
        match self.reader.tree.list_folder(held.ino) {
            Ok(items) => Ok(Children::Open(items)),
            Err(Error::Stale) => Err(Error::Stale),
            Err(error) => Ok(Children::Unreadable(error)),
        }
    }

    /// Visits a node and its children. `is_last` is true for the last node in its directory, `ino`
    /// is the node's number if its children are open, and `depth` is the depth of the children.
    fn visit(
        &self,
        to: &mut dyn TreeVisitor,
        entry: TreeEntry,
        children: Children,
        is_last: bool,
        ino: Ino,
        depth: u32,
    ) -> io::Result<()> {
        if let Children::Unreadable(error) = &children {
            self.reader.note_failure();
            if self.arguments.json {
                self.reader.fail(&entry.path, error);
            }
        }
        to.enter(&entry, is_last, &children)?;
        if let Children::Open(items) = children {
            self.visit_children(to, &entry.path, &items, ino, depth)?;
        }
        to.leave()
    }

    fn visit_children(
        &self,
        to: &mut dyn TreeVisitor,
        path: &[u8],
        items: &[ListedEntry],
        ino: Ino,
        depth: u32,
    ) -> io::Result<()> {
        let arguments = self.arguments;
        let needs_look =
            arguments.sizes || arguments.human_readable || arguments.dates || arguments.json;
        let shown = items.iter().filter(|item| item.kind == NodeKind::Folder || !arguments.folders);
        let mut items = shown.peekable();
        while let Some(item) = items.next() {
            let (name, is_last) = (item.name.as_bytes(), items.peek().is_none());
            let is_known = match item.kind {
                NodeKind::File => true,
                NodeKind::Folder => self.is_depth_limit(depth),
                NodeKind::Link => false,
            };
            if is_known && !needs_look {
                let entry = TreeEntry::without_details(path, name, item.kind);
                self.visit(to, entry, Children::Closed, is_last, ino, depth)?;
                continue;
            }
            let found = self.reader.tree.with_entry(ino, name, |held: LookupGuard<'a>| {
                let children = self.entries(&held, depth)?;
                Ok((TreeEntry::from_node(&held, path, name)?, children, held))
            });
            match found {
                Ok((entry, children, held)) => {
                    self.visit(to, entry, children, is_last, held.ino, depth + 1)?
                }
                Err(error) => {
                    let entry = TreeEntry::without_details(path, name, item.kind);
                    self.visit(to, entry, Children::Unreadable(error), is_last, ino, depth)?;
                }
            }
        }
        Ok(())
    }
}

struct LineDrawer<'a> {
    out: &'a mut CommandOutput,
    arguments: &'a TreeCommandArgs,
    /// One flag for each open directory: true if it is the last in its parent.
    ancestors_last: Vec<bool>,
    folders: u64,
    files: u64,
    unreadable: u64,
}

impl TreeVisitor for LineDrawer<'_> {
    fn enter(&mut self, entry: &TreeEntry, is_last: bool, children: &Children) -> io::Result<()> {
        // The root's own line has no branch.
        for was_last in self.ancestors_last.iter().skip(1) {
            self.out.text(if *was_last { "    " } else { "│   " })?;
        }
        if !self.ancestors_last.is_empty() {
            self.out.text(if is_last { "└── " } else { "├── " })?;
        }
        self.facts(entry)?;
        self.out.entry_name(entry, false)?;
        let target = entry.details.as_ref().and_then(|details| details.target.as_ref());
        if let Some(target) = target {
            self.out.text(" -> ")?;
            self.out.name(target)?;
        }
        if let Children::Unreadable(why) = children {
            self.unreadable += 1;
            self.out.text(&format!("  [{}]", sentence(why)))?;
        }
        match entry.kind {
            NodeKind::Folder if self.ancestors_last.is_empty() => {}
            NodeKind::Folder => self.folders += 1,
            _ => self.files += 1,
        }
        self.ancestors_last.push(is_last);
        self.out.text("\n")
    }

    fn leave(&mut self) -> io::Result<()> {
        self.ancestors_last.pop();
        Ok(())
    }
}

impl LineDrawer<'_> {
    fn facts(&mut self, entry: &TreeEntry) -> io::Result<()> {
        let Some(details) = &entry.details else { return Ok(()) };
        let mut facts = Vec::new();
        if self.arguments.human_readable {
            facts.push(format!("{:>5}", format::human_size(details.attr.size)));
        } else if self.arguments.sizes {
            facts.push(format!("{:>11}", details.attr.size));
        }
        if self.arguments.dates {
            facts.push(self.out.time(details.attr.mtime));
        }
        if facts.is_empty() { Ok(()) } else { self.out.text(&format!("[{}]  ", facts.join(" "))) }
    }
}

#[derive(Serialize)]
struct JsonNode {
    #[serde(flatten)]
    object: Object,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    children: Option<Vec<JsonNode>>,
}

struct JsonTree {
    open: Vec<JsonNode>,
    whole: Option<JsonNode>,
}

impl TreeVisitor for JsonTree {
    fn enter(&mut self, entry: &TreeEntry, _: bool, children: &Children) -> io::Result<()> {
        let (error, children) = match children {
            Children::Closed => (None, None),
            Children::Open(items) => (None, Some(Vec::with_capacity(items.len()))),
            Children::Unreadable(error) => (Some(sentence(error)), None),
        };
        self.open.push(JsonNode { object: Object::new(entry), error, children });
        Ok(())
    }

    fn leave(&mut self) -> io::Result<()> {
        let Some(branch) = self.open.pop() else { return Ok(()) };
        match self.open.last_mut() {
            Some(parent) => parent.children.get_or_insert_default().push(branch),
            None => self.whole = Some(branch),
        }
        Ok(())
    }
}
