//! `swarmletfs since`: what changed since a cursor, the bytes of `since/CURSOR` in the mounted tree.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;

use super::open::Wanted;
use super::reading::Reading;
use super::{SinceArgs, exit};
use crate::render::Renderer;
use crate::render::since::ViewSnapshot;

/// Prints what changed. Errors: a store that cannot be found or read.
pub(super) fn run(arguments: &SinceArgs) -> anyhow::Result<ExitCode> {
    let mut reading = Reading::begin(&arguments.time);
    let view = reading.view(&Wanted::choose(&arguments.view)?)?;
    let renderer = Renderer::new(view, reading.settings(None));
    let answer =
        renderer.since(&ViewSnapshot::take(renderer.view()), arguments.cursor).context("cannot read the store")?;
    drop(reading.take_progress());
    Ok(reading.end(print(&answer)))
}

/// Prints an answer on stdout. The exit code for it.
pub(super) fn print(answer: &[u8]) -> ExitCode {
    let mut out = io::stdout().lock();
    exit::printed(out.write_all(answer).and_then(|()| out.flush()))
}
