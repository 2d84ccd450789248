//! `swarmletfs tree`: folders and what is in them, drawn as tree(1) draws them.
//!
//! It is printed while it is walked. Links are told and not followed, so it ends.

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use serde::Serialize;

use super::entry::Entry;
use super::json::{self, Object};
use super::{LongHelp, Output, ReaderArgs, TreeReader, format, paths, sentence};
use crate::error::{Error, Result};
use crate::render::count;
use crate::tree::{Held, Ino, Item, Links, NodeKind, Place};

/// What is said below the options.
pub(in crate::cli) const HELP: &str = concat!(
    "\
Needs no mount. Paths begin at the root of the tree, as in a mount; the root itself is `.`, or no PATH. Links are told with \
their target and not gone into, but for one that is a PATH. The last line counts what is below: a link counts as a file. A folder \
that cannot be read says so behind its name.

",
    json::fields!(),
    " A folder also has children, an array of the same, if -L lets it be gone into, or error, why it cannot be read.

Examples:
  swarmletfs tree -L 2                             the swarm, its workers and runs
  swarmletfs tree -h workers/ID                    a worker's files with their sizes
  swarmletfs tree -d -D workers                    which folder was written to when

Exit code: 0 if all was shown, 1 if something could not be, 2 if it was typed wrongly, 3 if not all was read before \
--max-time was over."
);

/// What can be said to `tree`.
#[derive(Debug, Args)]
pub(in crate::cli) struct TreeCommandArgs {
    /// Paths from the root of the tree [default: the root]
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,

    /// Go so many folders deep at most
    #[arg(short = 'L', value_name = "DEPTH", value_parser = clap::value_parser!(u32).range(1..))]
    depth: Option<u32>,

    /// Folders alone
    #[arg(short = 'd')]
    folders: bool,

    /// Also tell sizes in bytes
    #[arg(short = 's')]
    sizes: bool,

    /// Also tell sizes, as 4.0K or 1.2M
    #[arg(short = 'h', long)]
    human_readable: bool,

    /// Also tell the time of the last change, in UTC
    #[arg(short = 'D')]
    dates: bool,

    /// Print JSON: an array of objects with their children
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    reader: ReaderArgs,

    #[command(flatten)]
    help: LongHelp,
}

/// Takes what is node, in the order in which it is drawn.
trait TreeVisitor {
    /// Something is node: the last of its folder or not.
    fn enter(&mut self, entry: &Entry, is_last: bool, inside: &Children) -> io::Result<()>;

    /// All that is in it was node.
    fn leave(&mut self) -> io::Result<()>;
}

/// Draws. Errors: a store that cannot be found or read, and a stdout that cannot be written.
pub(in crate::cli) fn run(arguments: &TreeCommandArgs) -> anyhow::Result<ExitCode> {
    let reader = TreeReader::open(&arguments.reader)?;
    reader.note_unread();
    let walk = Walk { reader: &reader, arguments };
    let mut out = reader.out();
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
    reader.end(written.and_then(|()| out.flush()))
}

fn draw(walk: &Walk<'_>, out: &mut Output) -> io::Result<()> {
    let mut lines =
        LineDrawer { out, arguments: walk.arguments, inside: Vec::new(), folders: 0, files: 0, unreadable: 0 };
    for path in paths(&walk.arguments.paths) {
        walk.root(path, &mut lines)?;
    }
    let LineDrawer { folders, files, unreadable, .. } = lines;
    let files = if walk.arguments.folders { String::new() } else { format!(", {}", count(files, "file")) };
    let unreadable = if unreadable == 0 { String::new() } else { format!(", {unreadable} not readable") };
    out.text(&format!("\n{}{files}{unreadable}\n", count(folders, "folder")))
}

struct Walk<'a> {
    reader: &'a TreeReader,
    arguments: &'a TreeCommandArgs,
}

/// What is in something that is node.
enum Children {
    /// Nothing that is asked for.
    Closed,
    /// These.
    Open(Arc<[Item]>),
    /// Something that cannot be read.
    Unreadable(Error),
}

impl<'a> Walk<'a> {
    fn root(&self, path: &[u8], to: &mut dyn TreeVisitor) -> io::Result<()> {
        let found = self.reader.tree.at(path, Links::Followed, |place: Place<'a>| {
            let inside = self.entries(place.last(), 0)?;
            Ok((Entry::at(&place, path)?, inside, place))
        });
        match found {
            Ok((entry, inside, place)) => self.visit(to, (entry, inside), true, place.last().ino, 1),
            Err(error) => {
                self.reader.fail(path, &error);
                Ok(())
            }
        }
    }

    /// Whether a folder at this depth is not gone into.
    fn is_depth_limit(&self, depth: u32) -> bool {
        self.arguments.depth.is_some_and(|most| depth >= most)
    }

    /// What is in what is held. Errors: it is another by now, which is looked up again.
    fn entries(&self, held: &Held<'_>, depth: u32) -> Result<Children> {
        if held.attr.kind != NodeKind::Folder || self.is_depth_limit(depth) {
            return Ok(Children::Closed);
        }
        match self.reader.tree.listed(held.ino) {
            Ok(items) => Ok(Children::Open(items)),
            Err(Error::Stale) => Err(Error::Stale),
            Err(error) => Ok(Children::Unreadable(error)),
        }
    }

    /// What is node is drawn, and what is in it.
    fn visit(
        &self,
        to: &mut dyn TreeVisitor,
        node: (Entry, Children),
        is_last: bool,
        ino: Ino,
        depth: u32,
    ) -> io::Result<()> {
        let (entry, inside) = node;
        if let Children::Unreadable(error) = &inside {
            self.reader.note_failure();
            if self.arguments.json {
                self.reader.fail(&entry.path, error);
            }
        }
        to.enter(&entry, is_last, &inside)?;
        if let Children::Open(items) = inside {
            self.visit_children(to, &entry.path, &items, ino, depth)?;
        }
        to.leave()
    }

    fn visit_children(
        &self,
        to: &mut dyn TreeVisitor,
        path: &[u8],
        items: &[Item],
        ino: Ino,
        depth: u32,
    ) -> io::Result<()> {
        let arguments = self.arguments;
        let needs_look = arguments.sizes || arguments.human_readable || arguments.dates || arguments.json;
        let is_shown = |item: &&Item| item.kind == NodeKind::Folder || !arguments.folders;
        let mut items = items.iter().filter(is_shown).peekable();
        while let Some(item) = items.next() {
            let (name, is_last) = (item.name.as_bytes(), items.peek().is_none());
            let is_known = match item.kind {
                NodeKind::File => true,
                NodeKind::Folder => self.is_depth_limit(depth),
                NodeKind::Link => false,
            };
            if is_known && !needs_look {
                let entry = Entry::without_details(path, name, item.kind);
                self.visit(to, (entry, Children::Closed), is_last, ino, depth)?;
                continue;
            }
            let found = self.reader.tree.inside(ino, name, |held: Held<'a>| {
                let inside = self.entries(&held, depth)?;
                Ok((Entry::from_node(&held, path, name)?, inside, held))
            });
            match found {
                Ok((entry, inside, held)) => self.visit(to, (entry, inside), is_last, held.ino, depth + 1)?,
                Err(error) => {
                    let entry = Entry::without_details(path, name, item.kind);
                    self.visit(to, (entry, Children::Unreadable(error)), is_last, ino, depth)?;
                }
            }
        }
        Ok(())
    }
}

/// Draws lines.
struct LineDrawer<'a> {
    out: &'a mut Output,
    arguments: &'a TreeCommandArgs,
    /// Of every folder that this is in, whether it was the last in its own.
    inside: Vec<bool>,
    folders: u64,
    files: u64,
    unreadable: u64,
}

impl TreeVisitor for LineDrawer<'_> {
    fn enter(&mut self, entry: &Entry, is_last: bool, inside: &Children) -> io::Result<()> {
        // The root's own line hangs on nothing.
        for was_last in self.inside.iter().skip(1) {
            self.out.text(if *was_last { "    " } else { "│   " })?;
        }
        if !self.inside.is_empty() {
            self.out.text(if is_last { "└── " } else { "├── " })?;
        }
        self.facts(entry)?;
        self.out.name(&entry.label)?;
        let target = entry.details.as_ref().and_then(|details| details.target.as_ref());
        if let Some(target) = target {
            self.out.text(" -> ")?;
            self.out.name(target)?;
        }
        if let Children::Unreadable(why) = inside {
            self.unreadable += 1;
            self.out.text(&format!("  [{}]", sentence(why)))?;
        }
        match entry.kind {
            NodeKind::Folder if self.inside.is_empty() => {}
            NodeKind::Folder => self.folders += 1,
            _ => self.files += 1,
        }
        self.inside.push(is_last);
        self.out.text("\n")
    }

    fn leave(&mut self) -> io::Result<()> {
        self.inside.pop();
        Ok(())
    }
}

impl LineDrawer<'_> {
    /// What is told in front of a name, in brackets.
    fn facts(&mut self, entry: &Entry) -> io::Result<()> {
        let Some(details) = &entry.details else { return Ok(()) };
        let mut facts = Vec::new();
        if self.arguments.human_readable {
            facts.push(format!("{:>5}", format::human_size(details.attr.size)));
        } else if self.arguments.sizes {
            facts.push(format!("{:>11}", details.attr.size));
        }
        if self.arguments.dates {
            facts.push(format::utc_seconds(details.attr.mtime));
        }
        if facts.is_empty() { Ok(()) } else { self.out.text(&format!("[{}]  ", facts.join(" "))) }
    }
}

/// An object and those in it.
#[derive(Serialize)]
struct JsonNode {
    #[serde(flatten)]
    object: Object,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    children: Option<Vec<JsonNode>>,
}

/// Gathers one tree of objects.
struct JsonTree {
    open: Vec<JsonNode>,
    whole: Option<JsonNode>,
}

impl TreeVisitor for JsonTree {
    fn enter(&mut self, entry: &Entry, _: bool, inside: &Children) -> io::Result<()> {
        let (error, children) = match inside {
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
