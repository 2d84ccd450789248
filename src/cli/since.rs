//! `swarmletfs since`: prints the changes since a cursor, as `since/CURSOR` in a mounted tree.

use clap::Args;
use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;

use super::exit;
use super::read_session::{ReadSession, TimeArgs};
use super::store_selection::StoreSelection;
use super::view_args::ViewArgs;
use crate::query::since::ViewSnapshot;
use crate::render::Renderer;
use crate::route::cursor::Cursor;

pub(super) const HELP: &str = "\
Prints one line per worker, oldest change first: new, changed or finished (now or earlier), its \
status and name, the time of its last write, and its new or changed files. The last line is the \
next cursor: CURSOR=$(swarmletfs since now), and later `swarmletfs since $CURSOR`.

The answer has at most 16000 bytes. Omitted changes are counted, and the next cursor covers \
them. A change may be reported twice, but is never lost. No mount is needed; in a mounted tree, \
since/CURSOR has the same content.

Examples:
  swarmletfs since 0                               everything so far
  CURSOR=$(swarmletfs since now)
  swarmletfs since $CURSOR                         changes from then on

Exit code: 0 if everything was read, 1 if a store cannot be read, 2 for a usage error, 3 if \
--max-time ended before all sessions were searched for workers, as the first line then says.";

/// Arguments of `since`.
#[derive(Debug, Args)]
pub(super) struct SinceArgs {
    /// The last line of an earlier answer; `now` for a cursor only, `0` for everything
    #[arg(value_parser = Cursor::parse)]
    cursor: Cursor,

    #[command(flatten)]
    view: ViewArgs,

    #[command(flatten)]
    time: TimeArgs,
}

pub(super) fn run(arguments: &SinceArgs) -> anyhow::Result<ExitCode> {
    let mut session = ReadSession::start(&arguments.time);
    let view = session.view(&StoreSelection::from_args(&arguments.view)?)?;
    let renderer = Renderer::new(view, session.settings(None));
    let answer = renderer
        .since(&ViewSnapshot::take(renderer.view()), arguments.cursor)
        .context("cannot read the store")?;
    drop(session.take_progress());
    Ok(session.exit_code(print(&answer)))
}

pub(super) fn print(answer: &[u8]) -> ExitCode {
    let mut out = io::stdout().lock();
    exit::from_write(out.write_all(answer).and_then(|()| out.flush()))
}
