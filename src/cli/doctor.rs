//! `swarmletfs doctor`: finds problems with mounting and reading, and suggests fixes.
//!
//! Each inspection returns facts as plain values and findings derived from them. `text` prints the
//! findings; serde writes both as JSON. Without `--repair`, nothing is changed. Calls that may hang
//! or kill the caller run in a subprocess with a time limit. The inspections run in parallel, so
//! the slowest one sets the total time.

mod change_detection;
mod finding;
mod fuse;
mod isolation;
mod kernel;
mod limits;
mod lost_runners;
mod mounts;
mod places;
mod recording;
mod stores;
mod text;
mod trial_mount;
mod workers;

use clap::Args;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::{self, Scope, ScopedJoinHandle};

use anyhow::{Context, anyhow};
use serde::Serialize;

pub(super) use stores::answer as answer_stores;
pub(super) use trial_mount::{TrialKind, serve as serve_trial};

use super::mountinfo::MountTable;
use super::progress::ProgressLine;
use super::quiet::QuietArg;
use super::{exit, mount_options};
use finding::{Finding, Level};

pub(super) const HELP: &str = "\
Checks FUSE, the kernel, isolation by `run`, the stores, limits and mounts. Each finding is ok, a \
note (worth knowing) or a problem (prevents mounting or reading), with a remedy where one is \
known. The stores are those that `mount` would use. If none is named, the places of all known \
programs are checked, too, also of programs that cannot be read yet.

Without --repair, nothing is changed. As a test, an empty tree is mounted on a new folder in \
$TMPDIR, and `run` isolates a command in another one. Both are removed afterwards.

--repair mends what recorders left that ended early, as by a crash: it removes workers that were \
not created wholly and temporary files, and ends calls whose recorder is gone, with an unknown \
outcome. Each repair is printed and is in the log of changes. What is being recorded is left alone.

Examples:
  swarmletfs doctor
  swarmletfs doctor --repair /data/swarmlet

Exit code: 0 if nothing prevents mounting and reading, 1 if something does.

--json prints one object: version (2), problems and notes (their numbers), findings (each with \
topic, check, level, about, says, cure), and the facts: program, kernel, fuse, run, stores, \
places, view, limits, mounts. The schema is docs/doctor.schema.json.";

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// The folders of traces to check
    #[arg(value_name = "STORE")]
    paths: Vec<PathBuf>,

    /// A folder of traces to check, or a single transcript; can be given several times
    #[arg(long = "store", value_name = "PATH")]
    stores: Vec<PathBuf>,

    /// The format of the stores [default: detected]
    #[arg(long, value_name = "NAME", value_parser = mount_options::format_names())]
    format: Option<String>,

    /// Count only what a mount with this owner would show
    #[arg(long, value_name = "ID", value_parser = mount_options::parse_id)]
    owner: Option<String>,

    /// Also count what a mount with this run would show
    #[arg(long, value_name = "ID", value_parser = mount_options::parse_id)]
    run: Option<String>,

    /// Repair what recorders that ended early left in the stores
    #[arg(long, conflicts_with = "owner")]
    repair: bool,

    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

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
    run: isolation::RunFacts,
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
/// Fails if the system refuses a thread, or if an inspection panicked.
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
        let kernel = start(scope, kernel::inspect)?;
        let fuse = start(scope, fuse::inspect)?;
        let run = start(scope, isolation::inspect)?;
        let stores = start(scope, || stores::inspect_in_subprocess(arguments))?;
        let mounts = start(scope, || mounts::inspect(table))?;
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

fn start<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    inspect: impl FnOnce() -> T + Send + 'scope,
) -> anyhow::Result<ScopedJoinHandle<'scope, T>> {
    thread::Builder::new().spawn_scoped(scope, inspect).context("cannot start a thread")
}

fn joined<T>(inspection: ScopedJoinHandle<'_, T>) -> anyhow::Result<T> {
    inspection.join().map_err(|_| anyhow!("an inspection ended unexpectedly"))
}
