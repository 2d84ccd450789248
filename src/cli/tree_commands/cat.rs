//! `swarmletfs cat`: prints the raw bytes of files.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;

use super::{CommandOutput, ReaderArgs, TreeReader, is_absence};
use crate::cli::pager::AnswerKind;
use crate::cli::read_session::TimeArgs;
use crate::cli::store_selection::StoreSelection;
use crate::cli::view_args;
use crate::error::Result;
use crate::name::printable;
use crate::tree::{Fh, Symlinks, Tree};

pub(crate) const HELP: &str = "\
No mount is needed. Paths start at the root of the tree, as in a mount. Unlisted names such as \
queries work, and links are followed. The output is the raw bytes that a mount returns, even on \
a terminal; less, the default pager there, shows escapes and does not obey them. The shell does not expand `*` in paths of the tree: `swarmletfs ls --json` lists \
what exists.

Examples:
  swarmletfs cat summary                           the swarm on one screen
  swarmletfs cat workers/ID/evidence.4k.txt        the evidence of a worker, in 4096 bytes
  swarmletfs cat runs/latest/evidence.2000tok.txt  why workers of the latest run failed, in 2000 \
tokens
  swarmletfs cat workers/ID/tool_calls/001_sh.txt  one output in full

Exit code: 0 if everything was read, 1 if a path could not be read, 2 for a usage error, 3 if \
--max-time ended before everything was read.";

/// Arguments of `cat`.
#[derive(Debug, Args)]
pub(crate) struct CatArgs {
    /// The files, by their paths from the root of the tree
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<OsString>,

    #[command(flatten)]
    reader: ReaderArgs,
}

const READ_SIZE: usize = 1 << 20;

pub(crate) fn run(arguments: &CatArgs) -> anyhow::Result<ExitCode> {
    let paths: Vec<&[u8]> = arguments.paths.iter().map(|path| path.as_bytes()).collect();
    print(&arguments.reader, &paths)
}

/// Prints the files at `paths`, from the root of the tree.
///
/// # Errors
///
/// Fails if a store cannot be found or read, or stdout cannot be written.
pub(crate) fn print(
    arguments: &ReaderArgs,
    paths: &[impl AsRef<[u8]>],
) -> anyhow::Result<ExitCode> {
    view_args::prepare_names(paths);
    let reader = TreeReader::open(arguments)?;
    let mut out = reader.out(arguments.pager, AnswerKind::Raw, false);
    let written = paths.iter().try_for_each(|path| file(&reader, &mut out, path.as_ref()));
    reader.end(out.close(written))
}

/// Returns the bytes of the file at `path`, from the root of the tree of one store; none if it does
/// not exist.
///
/// # Errors
///
/// Fails if the store cannot be read.
pub(crate) fn read(store: &Path, path: &[u8]) -> anyhow::Result<Vec<u8>> {
    let selection = StoreSelection::only(store.to_path_buf());
    let reader = TreeReader::open_selection(selection, &TimeArgs::default(), None)?;
    match read_whole(&reader, path) {
        Err(error) if is_absence(&error) => Ok(Vec::new()),
        read => read.with_context(|| format!("cannot read {}", printable(path))),
    }
}

/// Reads an open file from `offset` on, at most `size` bytes, and closes it.
///
/// # Errors
///
/// Any error of [`Tree::read`].
pub fn read_file(tree: &Tree, fh: Fh, offset: u64, size: Option<u64>) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let end = loop {
        let done = bytes.len() as u64;
        let left = size.map_or(u64::MAX, |size| size.saturating_sub(done));
        let want = usize::try_from(left).unwrap_or(usize::MAX).min(READ_SIZE);
        if want == 0 {
            break Ok(0);
        }
        let read = tree.read(fh, offset.saturating_add(done), want, |part| {
            bytes.extend_from_slice(part);
            part.len()
        });
        match read {
            Ok(read) if read > 0 => {}
            end => break end,
        }
    };
    tree.release(fh);
    end.map(|_| bytes)
}

/// Returns the bytes of the file at `path`, from the root of the tree.
///
/// # Errors
///
/// The file cannot be read.
pub(super) fn read_whole(reader: &TreeReader, path: &[u8]) -> Result<Vec<u8>> {
    let opened = reader.tree.with_path(path, Symlinks::Follow, |place| place.leaf().open());
    read_file(&reader.tree, opened?.fh, 0, None)
}

fn file(reader: &TreeReader, out: &mut CommandOutput, path: &[u8]) -> io::Result<()> {
    // An open file keeps its version to the end, even after the lookup is released.
    let opened = reader.tree.with_path(path, Symlinks::Follow, |place| place.leaf().open());
    match opened {
        Ok(opened) => {
            let copied = copy(reader, out, opened.fh);
            reader.tree.release(opened.fh);
            copied?.unwrap_or_else(|error| reader.fail(path, &error));
            Ok(())
        }
        Err(error) => {
            reader.fail(path, &error);
            Ok(())
        }
    }
}

/// Copies an open file to its end.
///
/// # Errors
///
/// The outer error is a write error; the inner one is a read error.
fn copy(reader: &TreeReader, out: &mut CommandOutput, fh: Fh) -> io::Result<Result<()>> {
    let mut offset = 0;
    loop {
        let written = reader
            .tree
            .read(fh, offset, READ_SIZE, |bytes| out.stdout.write_all(bytes).map(|()| bytes.len()));
        match written {
            Ok(written) => match written? {
                0 => return Ok(Ok(())),
                length => offset += length as u64,
            },
            Err(error) => return Ok(Err(error)),
        }
    }
}
