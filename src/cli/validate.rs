//! `swarmletfs validate`: reports the contents of a store, a worker's folder or a transcript, and
//! the parts that were not understood.
//!
//! It reads as a mount does, through a view of the whole store, and gets remarks from the format.

mod report;
mod text;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::Args;

use self::report::{Target, TargetKind, ValidationReport};
use super::read_session::{ReadSession, TimeArgs};
use super::terminal::{display_path, print_message};
use crate::catalog::{Source, SourceError};
use crate::deadline::Deadline;
use crate::model::Remarks;
use crate::store::Disk;

/// Remarks of each kind and worker that are printed by default.
const KEPT: usize = 3;
/// Workers with remarks that are printed by default.
const SHOWN_WORKERS: usize = 20;
const ALL_KEPT: usize = 10_000;
const ALL_SHOWN_WORKERS: usize = 100_000;
/// Kind of the remarks on names that were probably meant to be others.
const MISSPELLED_ENTRY: &str = "unread_entry";

pub(super) const HELP: &str = "\
Examples:
  swarmletfs validate /data/swarmlet                 check a whole store
  swarmletfs validate /data/swarmlet/workers/w1      check one worker
  swarmletfs validate ~/.claude/projects/p/ID.jsonl  check one transcript
  swarmletfs validate --json . | jq .not_understood  for programs

A remark names the file, and the line if the file has several. A note is on something that was \
understood: a spelling that is accepted, keys that are not read, calls whose outcome nothing \
states. Every other remark is on something that was not understood and counts for nothing. Of \
each kind, 3 remarks per worker are printed, and 20 workers; --all prints up to 10000 of each kind \
and 100000 workers. docs/FORMATS.md describes what is understood. Nothing is changed.

Exit code: 0 if everything was understood, 1 if something was not, 2 if PATH cannot be read and \
for a usage error, 3 if --max-time ended before everything was read.

--json prints one object; its schema is docs/schema/validate.schema.json.";

/// Arguments of `validate`.
#[derive(Debug, Args)]
pub(super) struct ValidateArgs {
    /// A folder of traces, the folder of one worker, or a transcript
    path: PathBuf,

    /// Print all remarks
    #[arg(long)]
    all: bool,

    /// Print the report as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    time: TimeArgs,
}

/// Checks a path and prints the report.
///
/// # Errors
///
/// Fails if the path cannot be read or holds no traces.
pub(super) fn run(arguments: &ValidateArgs) -> anyhow::Result<ExitCode> {
    let shown = display_path(&arguments.path);
    let path = fs::canonicalize(&arguments.path).with_context(|| format!("cannot open {shown}"))?;
    let (kind, source) = match open(&path) {
        Ok(opened) => opened,
        Err(error) => {
            print_misspelled(&path, &error);
            return Err(error.into());
        }
    };
    let mut session = ReadSession::start(&arguments.time);
    let format = source.format().name();
    let view = session.view_of(source)?;
    session.note_unread(view.visible().unread.len());
    let (kept, workers) =
        if arguments.all { (ALL_KEPT, ALL_SHOWN_WORKERS) } else { (KEPT, SHOWN_WORKERS) };
    let target = Target { path: shown, kind, format };
    let report = ValidationReport::new(target, &view, session.control(), kept, workers);
    drop(session.take_progress());
    if !report.complete {
        session.control().note_incomplete();
        print_message("not everything was read; try a longer --max-time");
    }
    let printed = if arguments.json { report.to_json() } else { report.to_text() };
    let mut out = io::stdout().lock();
    match out.write_all(printed.as_bytes()).and_then(|()| out.flush()) {
        // A reader that has seen enough closes the pipe.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            return Err(error).context("cannot write to stdout");
        }
        _ => {}
    }
    let code = if report.not_understood > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    Ok(session.exit_code(code))
}

/// Opens an absolute path: a store, the folder of one worker, or a transcript.
fn open(path: &Path) -> Result<(TargetKind, Source), SourceError> {
    if !path.is_dir() {
        return Source::open(path).map(|source| (TargetKind::Transcript, source));
    }
    match Source::open(path) {
        Err(SourceError::OneWorker(path)) => {
            Source::open_worker(&path).map(|source| (TargetKind::Worker, source))
        }
        opened => opened.map(|source| (TargetKind::Store, source)),
    }
}

/// Prints the entries of a folder without workers that have almost the name of a worker's file.
fn print_misspelled(path: &Path, error: &SourceError) {
    if !matches!(error, SourceError::NoWorkers { .. }) {
        return;
    }
    for says in misspelled(path).unwrap_or_default() {
        print_message(&says);
    }
}

fn misspelled(path: &Path) -> anyhow::Result<Vec<String>> {
    let source = Source::from_store(Arc::new(Disk::open(path)?), None);
    let view = ReadSession::start(&TimeArgs::default()).view_of(source)?;
    let remarks = view.check_store(0, KEPT, Deadline::never())?;
    let groups = remarks.iter().flat_map(Remarks::groups);
    let misspelled = groups.filter(|(_, kind, _)| *kind == MISSPELLED_ENTRY);
    Ok(misspelled.flat_map(|(.., group)| &group.first).map(report::sentence).collect())
}
