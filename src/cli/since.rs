//! `swarmletfs since`: what changed since a cursor, the bytes of `since/CURSOR` in the mounted tree.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;

use super::open::Wanted;
use super::{SinceArgs, exit};
use crate::catalog::Freshness;
use crate::render::since::Look;
use crate::render::{Renderer, Settings};

/// Prints what changed. Errors: a store that cannot be found or read.
pub(super) fn run(arguments: &SinceArgs) -> anyhow::Result<ExitCode> {
    let view = Wanted::choose(&arguments.view)?.view(Freshness::default())?;
    let renderer = Renderer::new(view, Settings::default());
    let answer = renderer.since(&Look::at(renderer.view()), arguments.cursor).context("cannot read the store")?;
    Ok(print(&answer))
}

/// Prints an answer on stdout. The exit code for it.
pub(super) fn print(answer: &[u8]) -> ExitCode {
    let mut out = io::stdout().lock();
    exit::printed(out.write_all(answer).and_then(|()| out.flush()))
}
