//! `swarmletfs stat`: prints the attributes of paths.
//!
//! Inode numbers are omitted: they differ between mounts and processes.

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

use clap::Args;

use super::entry::{EntryDetails, TreeEntry};
use super::json::{self, Object};
use super::{CommandOutput, ReaderArgs, TreeReader, format, paths};
use crate::cli::pager::AnswerKind;
use crate::tree::Symlinks;

pub(crate) const HELP: &str = concat!(
    "\
No mount is needed. Paths start at the root of the tree, as in a mount; the root itself is `.`, \
the default PATH. Links in the middle of a path are followed; a link at its end is followed only \
with -L. The size of a generated file is the number of bytes that `cat` prints. Times are UTC.

",
    json::fields!(),
    "

Examples:
  swarmletfs stat workers/ID/evidence.4k.txt       its size, and when its worker last wrote
  swarmletfs stat -L runs/latest                   the latest run, not the link to it
  swarmletfs stat --json workers/ID | jq -r '.[].mtime'

Exit code: 0 if every path was found, 1 if one was not, 2 for a usage error, 3 if --max-time ended \
before everything was read."
);

/// Arguments of `stat`.
#[derive(Debug, Args)]
pub(crate) struct StatArgs {
    /// Paths from the root of the tree [default: the root]
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,

    /// Follow links and describe their targets
    #[arg(short = 'L', long)]
    dereference: bool,

    /// Print JSON: an array of objects
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    reader: ReaderArgs,
}

pub(crate) fn run(arguments: &StatArgs) -> anyhow::Result<ExitCode> {
    let reader = TreeReader::open(&arguments.reader)?;
    reader.note_unread();
    let links = if arguments.dereference { Symlinks::Follow } else { Symlinks::NoFollow };
    let entries = paths(&arguments.paths).into_iter().filter_map(|path| {
        let found = reader.tree.with_path(path, links, |place| TreeEntry::from_path(&place, path));
        found.inspect_err(|error| reader.fail(path, error)).ok()
    });
    let mut out = reader.out(arguments.reader.pager, AnswerKind::Text, false);
    let written =
        if arguments.json { as_json(&mut out, entries) } else { as_text(&mut out, entries) };
    reader.end(out.close(written))
}

fn as_json(out: &mut CommandOutput, entries: impl Iterator<Item = TreeEntry>) -> io::Result<()> {
    json::array(&mut out.stdout, |add| {
        for entry in entries {
            add(&Object::new(&entry))?;
        }
        Ok(())
    })
}

fn as_text(out: &mut CommandOutput, entries: impl Iterator<Item = TreeEntry>) -> io::Result<()> {
    let mut is_first = true;
    for entry in entries {
        let Some(EntryDetails { attr, target }) = &entry.details else { continue };
        out.text(if is_first { "path      " } else { "\npath      " })?;
        is_first = false;
        out.name(&entry.label)?;
        out.text(&format!("\nkind      {}\nsize      {}\n", attr.kind.as_str(), attr.size))?;
        out.text(&format!(
            "mode      {:04o} {}\n",
            attr.mode,
            format::mode_string(attr.kind, attr.mode)
        ))?;
        out.text(&format!("uid       {}\ngid       {}\n", attr.uid, attr.gid))?;
        out.text(&format!(
            "modified  {}\nchanged   {}\n",
            format::utc_nanoseconds(attr.mtime),
            format::utc_nanoseconds(attr.ctime)
        ))?;
        if let Some(target) = target {
            out.text("target    ")?;
            out.name(target)?;
            out.text("\n")?;
        }
    }
    Ok(())
}
