//! `swarmletfs since`: prints the changes since a cursor, as `since/CURSOR` in a mounted tree.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;

use super::read_session::ReadSession;
use super::store_selection::StoreSelection;
use super::{SinceArgs, exit};
use crate::query::since::ViewSnapshot;
use crate::render::Renderer;

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
