//! `swarmletfs doctor`: finds problems with mounting and reading, and suggests fixes.
//!
//! Each inspection returns facts as plain values and findings derived from them. `text` prints the
//! findings; serde writes both as JSON. Without `--repair`, nothing is changed. Calls that may hang
//! or kill the caller run in a subprocess with a time limit. The inspections run in parallel, so
//! the slowest one sets the total time.

mod change_detection;
mod finding;
mod fuse;
mod kernel;
mod limits;
mod lost_runners;
mod mounts;
mod places;
mod recording;
mod stores;
mod text;
mod trial_mount;
mod walls;
mod workers;

use std::io::{self, Write};
use std::process::ExitCode;
use std::thread::{self, ScopedJoinHandle};

use anyhow::anyhow;
use serde::Serialize;

pub(super) use stores::answer as answer_stores;
pub(super) use trial_mount::{TrialKind, serve as serve_trial};

use super::mountinfo::MountTable;
use super::progress::ProgressLine;
use super::quiet::QuietArg;
use super::{DoctorArgs, exit};
use finding::{Finding, Level};

/// Version of the JSON schema; additions do not change it.
const SCHEMA_VERSION: u32 = 2;

#[derive(Serialize)]
struct DoctorReport {
    version: u32,
    problems: usize,
    notes: usize,
    findings: Vec<Finding>,
    /// Version of this program.
    program: &'static str,
    kernel: kernel::Kernel,
    fuse: fuse::Fuse,
    run: walls::RunFacts,
    stores: Vec<stores::StoreFacts>,
    /// Places where programs leave sessions; empty if the stores were named.
    places: Vec<places::PlaceFacts>,
    /// Content of a mount with the same options; null if no store can be read.
    view: Option<stores::ViewFacts>,
    limits: limits::Limits,
    mounts: Vec<mounts::MountFacts>,
}

/// Inspects the machine and the stores, prints the report, and returns the exit code.
///
/// # Errors
///
/// Fails if an inspection panicked.
pub(super) fn run(arguments: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let progress = ProgressLine::without_counts("inspecting", QuietArg::default());
    let report = inspect(arguments);
    drop(progress);
    let report = report?;
    let text = if arguments.json {
        serde_json::to_string_pretty(&report)? + "\n"
    } else {
        text::render(&report)
    };
    let mut out = io::stdout().lock();
    let printed = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    Ok(if report.problems == 0 { exit::from_write(printed) } else { ExitCode::FAILURE })
}

fn inspect(arguments: &DoctorArgs) -> anyhow::Result<DoctorReport> {
    // Read before the trial mount appears in it.
    let table = MountTable::read();
    let (kernel, fuse, run, stores, mounts) = thread::scope(|scope| {
        let kernel = scope.spawn(kernel::inspect);
        let fuse = scope.spawn(fuse::inspect);
        let run = scope.spawn(walls::inspect);
        let stores = scope.spawn(|| stores::inspect_in_subprocess(arguments));
        let mounts = scope.spawn(|| mounts::inspect(table));
        anyhow::Ok((joined(kernel)?, joined(fuse)?, joined(run)?, joined(stores)?, joined(mounts)?))
    })?;
    let (kernel, of_kernel) = kernel;
    let (fuse, of_fuse) = fuse;
    let (run, of_run) = run;
    let (limits, of_limits) = limits::inspect();
    let (mounts, of_mounts) = mounts;
    let findings = [of_fuse, of_kernel, of_run, stores.findings, of_limits, of_mounts].concat();
    let count = |level| findings.iter().filter(|finding| finding.level == level).count();
    Ok(DoctorReport {
        version: SCHEMA_VERSION,
        problems: count(Level::Problem),
        notes: count(Level::Note),
        findings,
        program: env!("CARGO_PKG_VERSION"),
        kernel,
        fuse,
        run,
        stores: stores.stores,
        places: stores.places,
        view: stores.view,
        limits,
        mounts,
    })
}

fn joined<T>(inspection: ScopedJoinHandle<'_, T>) -> anyhow::Result<T> {
    inspection.join().map_err(|_| anyhow!("an inspection ended unexpectedly"))
}
