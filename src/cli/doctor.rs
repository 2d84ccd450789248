//! `swarmletfs doctor`: what stands in the way of mounting and reading, and what helps.
//!
//! Every look gives facts as plain values and findings made from them; one renderer writes the findings as lines, and
//! serde writes both as JSON. Nothing is changed. What may never answer, or may not be survived, is left to another
//! process with a limit, and the looks are made side by side, so that the whole takes no longer than the slowest.

mod change_detection;
mod finding;
mod fuse;
mod kernel;
mod limits;
mod mounts;
mod stores;
mod text;
mod transcripts;
mod trial_mount;
mod workers;

use std::io::{self, Write};
use std::process::ExitCode;
use std::thread::{self, ScopedJoinHandle};

use anyhow::anyhow;
use serde::Serialize;

pub(super) use stores::answer as answer_stores;
pub(super) use trial_mount::{TrialKind, serve as serve_trial};

use super::DoctorArgs;
use super::exit;
use super::mountinfo::MountTable;
use finding::{Finding, Level};

/// The version of the JSON's shape. What is added to it does not change it.
const SCHEMA_VERSION: u32 = 1;

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
    view: Option<stores::ViewFacts>,
    limits: limits::Limits,
    mounts: Vec<mounts::MountFacts>,
}

/// Looks, prints what was found, and gives the exit code for it. Errors: a look ended unexpectedly.
pub(super) fn run(arguments: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let report = inspect(arguments)?;
    let text = if arguments.json { serde_json::to_string_pretty(&report)? + "\n" } else { text::render(&report) };
    let mut out = io::stdout().lock();
    let printed = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    Ok(if report.problems == 0 { exit::from_write(printed) } else { ExitCode::FAILURE })
}

fn inspect(arguments: &DoctorArgs) -> anyhow::Result<Report> {
    // Read before anything is mounted for trial.
    let table = MountTable::read();
    let (kernel, fuse, stores, mounts) = thread::scope(|scope| {
        let kernel = scope.spawn(kernel::inspect);
        let fuse = scope.spawn(fuse::inspect);
        let stores = scope.spawn(|| stores::inspect_in_subprocess(arguments));
        let mounts = scope.spawn(|| mounts::inspect(table));
        anyhow::Ok((joined(kernel)?, joined(fuse)?, joined(stores)?, joined(mounts)?))
    })?;
    let (kernel, of_kernel) = kernel;
    let (fuse, of_fuse) = fuse;
    let (limits, of_limits) = limits::inspect();
    let (mounts, of_mounts) = mounts;
    let findings = [of_fuse, of_kernel, stores.findings, of_limits, of_mounts].concat();
    let count = |level| findings.iter().filter(|finding| finding.level == level).count();
    Ok(Report {
        version: SCHEMA_VERSION,
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
