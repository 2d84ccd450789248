//! `swarmletfs doctor`: what stands in the way of mounting and reading, and what helps.
//!
//! Every look gives facts as plain values and findings made from them; one renderer writes the findings as lines, and
//! serde writes both as JSON. Nothing is changed. What may never answer, or may not be survived, is left to another
//! process with a limit, and the looks are made side by side, so that the whole takes no longer than the slowest.

mod changes;
mod finding;
mod fuse;
mod kernel;
mod limits;
mod mounts;
mod stores;
mod text;
mod transcripts;
mod trial;
mod workers;

use std::io::{self, Write};
use std::process::ExitCode;
use std::thread::{self, ScopedJoinHandle};

use anyhow::anyhow;
use serde::Serialize;

pub(super) use stores::answer as answer_stores;
pub(super) use trial::{What as Trial, serve as serve_trial};

use super::DoctorArgs;
use super::exit;
use super::mountinfo::Mounts;
use finding::{Finding, Level};

/// The version of the JSON's shape. What is added to it does not change it.
const VERSION: u32 = 1;

/// Everything that was found out.
#[derive(Serialize)]
struct Report {
    version: u32,
    problems: usize,
    notes: usize,
    findings: Vec<Finding>,
    /// The version of this program.
    program: &'static str,
    kernel: kernel::Kernel,
    fuse: fuse::Fuse,
    stores: Vec<stores::StoreFacts>,
    /// What a mount with the same options would show; null where no store can be read.
    view: Option<stores::Shown>,
    limits: limits::Limits,
    mounts: Vec<mounts::Mounted>,
}

/// Looks, prints what was found, and gives the exit code for it. Errors: a look ended unexpectedly.
pub(super) fn run(arguments: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let report = look(arguments)?;
    let text = if arguments.json { serde_json::to_string_pretty(&report)? + "\n" } else { text::of(&report) };
    let mut out = io::stdout().lock();
    let printed = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    Ok(if report.problems == 0 { exit::printed(printed) } else { ExitCode::FAILURE })
}

fn look(arguments: &DoctorArgs) -> anyhow::Result<Report> {
    // Read before anything is mounted for trial.
    let table = Mounts::read();
    let (kernel, fuse, stores, mounts) = thread::scope(|scope| {
        let kernel = scope.spawn(kernel::look);
        let fuse = scope.spawn(fuse::look);
        let stores = scope.spawn(|| stores::ask(arguments));
        let mounts = scope.spawn(|| mounts::look(table));
        anyhow::Ok((joined(kernel)?, joined(fuse)?, joined(stores)?, joined(mounts)?))
    })?;
    let (kernel, of_kernel) = kernel;
    let (fuse, of_fuse) = fuse;
    let (limits, of_limits) = limits::look();
    let (mounts, of_mounts) = mounts;
    let findings = [of_fuse, of_kernel, stores.findings, of_limits, of_mounts].concat();
    let count = |level| findings.iter().filter(|finding| finding.level == level).count();
    Ok(Report {
        version: VERSION,
        problems: count(Level::Problem),
        notes: count(Level::Note),
        findings,
        program: env!("CARGO_PKG_VERSION"),
        kernel,
        fuse,
        stores: stores.stores,
        view: stores.view,
        limits,
        mounts,
    })
}

fn joined<T>(look: ScopedJoinHandle<'_, T>) -> anyhow::Result<T> {
    look.join().map_err(|_| anyhow!("a look ended unexpectedly"))
}
