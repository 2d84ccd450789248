//! `swarmletfs doctor`: finds problems with mounting and reading, and suggests fixes.
//!
//! Each inspection returns facts as plain values and findings derived from them. The report is a
//! line per finding, with its remedy below, or facts and findings as JSON. Without `--repair`,
//! nothing is changed. Calls that may hang or kill the caller run in a subprocess with a time
//! limit. The inspections run in parallel, so the slowest one sets the total time.

mod fuse;
mod listing;
mod machine;
mod recording;
mod spools;
mod stores;
mod workers;

pub(super) use fuse::{TrialKind, serve_trial};
pub(super) use stores::answer as answer_stores;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::{self, Scope, ScopedJoinHandle};

use anyhow::{Context, anyhow};
use clap::Args;
use serde::{Deserialize, Serialize};

use super::mountinfo::MountTable;
use super::terminal::{ProgressLine, QuietArg};
use super::{exit, mount_options};
use crate::cli::diagnosis::Diagnosis;
use crate::text::count;

pub(super) const HELP: &str = "\
Checks FUSE, the kernel, isolation by `run`, the stores, limits and mounts. Each finding is ok, a \
note (worth knowing) or a problem (prevents mounting or reading), with a remedy where one is \
known. The stores are those that `mount` would use. If none is named, the places of all known \
programs are checked, too, also of programs that cannot be read yet.

Without --repair, nothing is changed. As a test, an empty tree is mounted on a new folder in \
$TMPDIR, and `run` isolates a command in another one. In an object store, a small object that no \
reader sees is written. All are removed afterwards.

--repair mends what recorders left that ended early, as by a crash: it removes workers that were \
not created wholly and temporary files, and ends calls whose recorder is gone, with an unknown \
outcome. Each repair is printed and is in the log of changes. What is being recorded is left alone.

Examples:
  swarmletfs doctor
  swarmletfs doctor --repair /data/swarmlet

Exit code: 0 if nothing prevents mounting and reading, 1 if something does.

--json prints one object: version (2), problems and notes (their numbers), findings (each with \
topic, check, level, about, says, cure), and the facts: program, kernel, fuse, run, stores, \
places, spools, view, limits, mounts. The schema is docs/doctor.schema.json.";

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
    kernel: machine::Kernel,
    fuse: fuse::Fuse,
    run: machine::RunFacts,
    stores: Vec<stores::StoreFacts>,
    /// Places where programs leave sessions; empty if the stores were named.
    places: Vec<stores::PlaceFacts>,
    /// Spools of this user in which something waits to be uploaded; empty with `--owner`.
    spools: Vec<spools::SpoolFacts>,
    /// Content of a mount with the same options; null if no store can be read.
    view: Option<stores::ViewFacts>,
    limits: machine::Limits,
    mounts: Vec<fuse::MountFacts>,
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
        render_report(&report)
    };
    let mut out = io::stdout().lock();
    let printed = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    Ok(if report.problems == 0 { exit::from_write(printed) } else { ExitCode::FAILURE })
}

fn inspect(arguments: &DoctorArgs) -> anyhow::Result<DoctorReport> {
    // Read before the trial mount appears in it.
    let table = MountTable::read();
    let (kernel, fuse, run, stores, mounts) = thread::scope(|scope| {
        let kernel = start(scope, machine::inspect_kernel)?;
        let fuse = start(scope, fuse::inspect_fuse)?;
        let run = start(scope, machine::inspect_isolation)?;
        let stores = start(scope, || stores::inspect_in_subprocess(arguments))?;
        let mounts = start(scope, || fuse::inspect_mounts(table))?;
        anyhow::Ok((joined(kernel)?, joined(fuse)?, joined(run)?, joined(stores)?, joined(mounts)?))
    })?;
    let (kernel, of_kernel) = kernel;
    let (fuse, of_fuse) = fuse;
    let (run, of_run) = run;
    let (limits, of_limits) = machine::inspect_limits();
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
        spools: stores.spools,
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    Ok,
    /// Worth knowing, but not in the way.
    Note,
    /// Prevents mounting or reading.
    Problem,
}

impl Level {
    /// Returns the marker at the start of a line.
    fn as_str(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Note => "note",
            Level::Problem => "problem",
        }
    }
}

/// One finding. All its texts are safe to print.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Finding {
    /// Topic: `fuse`, `kernel`, `store`, `recording`, `run`, `places`, `view`,
    /// `limits`, `mounts`.
    topic: String,
    /// Name of the check, stable between versions.
    check: String,
    level: Level,
    /// The store or mountpoint concerned, if there can be several.
    about: Option<String>,
    #[serde(rename = "says")]
    message: String,
    /// The remedy, with commands in backticks.
    #[serde(rename = "cure")]
    remedy: Option<String>,
}

impl Finding {
    fn new(level: Level, topic: &str, check: &str, message: impl Into<String>) -> Finding {
        let (topic, check, message) = (topic.into(), check.into(), message.into());
        Finding { topic, check, level, about: None, message, remedy: None }
    }

    fn ok(topic: &str, check: &str, message: impl Into<String>) -> Finding {
        Finding::new(Level::Ok, topic, check, message)
    }

    fn note(topic: &str, check: &str, message: impl Into<String>) -> Finding {
        Finding::new(Level::Note, topic, check, message)
    }

    fn problem(topic: &str, check: &str, message: impl Into<String>) -> Finding {
        Finding::new(Level::Problem, topic, check, message)
    }

    fn diagnosed(topic: &str, check: &str, diagnosis: Diagnosis) -> Finding {
        let problem = Finding::problem(topic, check, diagnosis.message);
        Finding { remedy: diagnosis.remedy, ..problem }
    }

    fn with_remedy(self, remedy: impl Into<String>) -> Finding {
        Finding { remedy: Some(remedy.into()), ..self }
    }

    fn about(self, what: &str) -> Finding {
        Finding { about: Some(what.into()), ..self }
    }
}

/// Joins examples of `total` entries, and counts those that are not among them.
fn with_more(examples: impl Iterator<Item = String>, total: u64) -> String {
    let mut examples: Vec<String> = examples.collect();
    if let more @ 1.. = total.saturating_sub(examples.len() as u64) {
        examples.push(format!("and {more} more"));
    }
    examples.join(", ")
}

/// Widths of the columns for level and topic, in characters.
const LEVEL_WIDTH: usize = 8;
const TOPIC_WIDTH: usize = 10;

fn render_report(report: &DoctorReport) -> String {
    let mut out = format!("swarmletfs {} on Linux {}\n\n", report.program, report.kernel.release);
    for finding in &report.findings {
        out.push_str(&format!(
            "{:LEVEL_WIDTH$}{:TOPIC_WIDTH$}{}\n",
            finding.level.as_str(),
            finding.topic,
            finding.message,
        ));
        if let Some(remedy) = &finding.remedy {
            out.push_str(&format!("{:1$}→ {remedy}\n", "", LEVEL_WIDTH + TOPIC_WIDTH));
        }
    }
    out.push_str(&format!("\n{}\n", summary(report.problems, report.notes)));
    out
}

fn summary(problems: usize, notes: usize) -> String {
    match (problems, notes) {
        (0, 0) => "nothing stands in the way of mounting and reading".into(),
        (0, notes) => {
            format!("nothing stands in the way of mounting and reading; {}", count(notes, "note"))
        }
        (problems, 0) => count(problems, "problem"),
        (problems, notes) => format!("{}, {}", count(problems, "problem"), count(notes, "note")),
    }
}
