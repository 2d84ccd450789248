//! `swarmletfs cat`: the bytes of files, as they are.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use clap::Args;

use super::{Look, LookArgs, Out};
use crate::error::Result;
use crate::tree::{Fh, Symlinks};

/// What is said below the options.
pub(in crate::cli) const HELP: &str = "\
Needs no mount. Paths begin at the root of the tree, as in a mount: names that are asked and not listed answer, and links are \
followed. The bytes are those that a mount gives, raw, also on a terminal. A shell expands no `*` in paths of the tree: \
`swarmletfs ls --json` lists what there is.

Examples:
  swarmletfs cat summary                           the swarm on one screen
  swarmletfs cat workers/ID/evidence.4k.txt        what a worker's outputs show, in 4096 bytes
  swarmletfs cat runs/latest/evidence.2000tok.txt  why workers of the latest run failed, in 2000 tokens
  swarmletfs cat workers/ID/tool_calls/001_sh.txt  one output in full

Exit code: 0 if all was read, 1 if a path could not be, 2 if it was typed wrongly, 3 if not all was read before \
--max-time was over.";

/// What can be said to `cat`.
#[derive(Debug, Args)]
pub(in crate::cli) struct CatArgs {
    /// The files, by their paths from the root of the tree
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<OsString>,

    #[command(flatten)]
    look: LookArgs,
}

/// How much is read at once, in bytes.
const PIECE: usize = 1 << 20;

/// Prints the files. Errors: a store that cannot be found or read, and a stdout that cannot be written.
pub(in crate::cli) fn run(arguments: &CatArgs) -> anyhow::Result<ExitCode> {
    let look = Look::open(&arguments.look)?;
    let mut out = look.out();
    let mut print = || {
        for path in &arguments.paths {
            file(&look, &mut out, path.as_bytes())?;
        }
        out.flush()
    };
    look.end(print())
}

fn file(look: &Look, out: &mut Out, path: &[u8]) -> io::Result<()> {
    // What is open is one version to its end, though the lookup is given back.
    let opened = look.tree.with_path(path, Symlinks::Follow, |place| place.leaf().open());
    match opened {
        Ok(opened) => {
            let copied = copy(look, out, opened.fh);
            look.tree.release(opened.fh);
            copied?.unwrap_or_else(|error| look.fail(path, &error));
            Ok(())
        }
        Err(error) => {
            look.fail(path, &error);
            Ok(())
        }
    }
}

/// Copies an open file to its end. The outer error is that of writing, the inner one that of reading.
fn copy(look: &Look, out: &mut Out, fh: Fh) -> io::Result<Result<()>> {
    let mut at = 0;
    loop {
        let written = look.tree.read(fh, at, PIECE, |bytes| out.stdout.write_all(bytes).map(|()| bytes.len()));
        match written {
            Ok(written) => match written? {
                0 => return Ok(Ok(())),
                length => at += length as u64,
            },
            Err(error) => return Ok(Err(error)),
        }
    }
}
