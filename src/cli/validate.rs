//! `swarmletfs validate`: reports the contents of a store, a worker's folder or a transcript, and
//! the parts that were not understood.
//!
//! It reads as a mount does, through a view of the whole store, and gets remarks from the format.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use parking_lot::Mutex;
use serde::Serialize;

use super::object_args::ObjectArgs;
use super::object_stores;
use super::read_session::{ReadSession, TimeArgs};
use super::terminal::{display_path, escape_controls, print_message};
use crate::analysis::settings::Control;
use crate::catalog::{Source, SourceError};
use crate::deadline::Deadline;
use crate::model::{Outcome, Record, Remark, RemarkLevel, RemarkSubject, Remarks, WorkerCheck};
use crate::name::RelPath;
use crate::parallel::parallel_map;
use crate::store::{Disk, is_object_url};
use crate::text::clean::escape_markers;
use crate::text::clip_chars;
use crate::view::{Member, View};

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
    let (kind, source) = if is_object_url(&arguments.path) {
        (
            TargetKind::Store,
            object_stores::open(&arguments.path, None, &ObjectArgs::default(), None)?,
        )
    } else {
        let path =
            fs::canonicalize(&arguments.path).with_context(|| format!("cannot open {shown}"))?;
        open(&path).inspect_err(|error| print_misspelled(&path, error))?
    };
    let mut session = ReadSession::start(&arguments.time);
    let format = source.format().name();
    let view = session.view_of(source)?;
    session.note_unread(view.visible().unread.len());
    let (kept, workers) =
        if arguments.all { (ALL_KEPT, ALL_SHOWN_WORKERS) } else { (KEPT, SHOWN_WORKERS) };
    let target = Target { path: shown, kind, format };
    let report = ValidationReport::new(target, &view, &session.control, kept, workers);
    drop(session.take_progress());
    if !report.complete {
        session.control.note_incomplete();
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
    Ok(misspelled.flat_map(|(.., group)| &group.first).map(sentence).collect())
}

const REMARK_MAX: usize = 1_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum TargetKind {
    Store,
    Worker,
    Transcript,
}

#[derive(Debug, Serialize)]
struct Target {
    /// The path as given, safe to print.
    path: String,
    kind: TargetKind,
    format: &'static str,
}

/// The report on a path. All its texts are safe to print.
#[derive(Debug, Serialize)]
struct ValidationReport {
    version: u32,
    #[serde(flatten)]
    target: Target,
    /// True if everything was read.
    complete: bool,
    /// Number of remarks on something that was not understood.
    not_understood: u64,
    notes: u64,
    contents: Contents,
    store: Vec<ReportedGroup>,
    workers: Vec<WorkerRemarks>,
    /// Number of workers with remarks that are not in `workers`.
    more_workers: u64,
}

#[derive(Debug, Default, Serialize)]
struct Contents {
    workers: u64,
    status: BTreeMap<&'static str, u64>,
    calls: u64,
    outcomes: BTreeMap<&'static str, u64>,
    messages: u64,
}

#[derive(Debug, Serialize)]
struct WorkerRemarks {
    /// Name of the worker in the tree.
    name: String,
    /// Path of its folder or transcript from the store's root.
    path: String,
    remarks: Vec<ReportedGroup>,
}

#[derive(Debug, Serialize)]
struct ReportedGroup {
    level: RemarkLevel,
    kind: &'static str,
    count: u64,
    first: Vec<RemarkText>,
}

#[derive(Debug, Serialize)]
struct RemarkText {
    file: Option<String>,
    line: Option<u64>,
    /// The remark as a sentence, with the file and line.
    says: String,
}

#[derive(Default)]
struct ReportedTotals {
    contents: Contents,
    not_understood: u64,
    notes: u64,
    is_incomplete: bool,
    /// Remarks of the first workers: those with something that was not understood come first.
    workers: BTreeMap<(bool, RelPath), (String, Remarks)>,
    more_workers: u64,
}

impl ReportedTotals {
    fn add_remarks(&mut self, remarks: &Remarks) {
        self.not_understood += remarks.count(RemarkLevel::NotUnderstood);
        self.notes += remarks.count(RemarkLevel::Note);
    }

    fn add_worker(&mut self, member: &Member, check: WorkerCheck, max_workers: usize) {
        let WorkerCheck { messages, remarks, is_complete } = check;
        self.contents.messages += messages.unwrap_or_default();
        self.is_incomplete |= !is_complete;
        self.add_remarks(&remarks);
        if remarks.is_empty() {
            return;
        }
        let is_understood = remarks.count(RemarkLevel::NotUnderstood) == 0;
        let key = (is_understood, member.entry.root.clone());
        self.workers.insert(key, (member.name.display(), remarks));
        if self.workers.len() > max_workers {
            self.workers.pop_last();
            self.more_workers += 1;
        }
    }
}

impl Contents {
    fn add_worker(&mut self, member: &Member) {
        self.workers += 1;
        *self.status.entry(member.entry.status.as_str()).or_default() += 1;
    }

    fn add_record(&mut self, record: &Record) {
        self.calls += record.trace.calls.len() as u64;
        for outcome in [Outcome::Ok, Outcome::Failed, Outcome::Unknown, Outcome::NotRun] {
            let calls = record.trace.count(outcome) as u64;
            if calls > 0 {
                *self.outcomes.entry(outcome.as_str()).or_default() += calls;
            }
        }
    }
}

impl ValidationReport {
    /// Checks all workers of a view of one store, until `control` stops it. Keeps `limit` remarks
    /// of each kind and worker, and the remarks on up to `max_workers` workers.
    fn new(
        target: Target,
        view: &View,
        control: &Control,
        limit: usize,
        max_workers: usize,
    ) -> ValidationReport {
        let may_continue = || control.may_continue();
        let deadline = Deadline::new(&may_continue);
        let visible = view.visible();
        let totals = Mutex::new(ReportedTotals::default());
        totals.lock().is_incomplete = !visible.unread.is_empty();
        control.start_stage(visible.members.len() as u64);
        parallel_map(&visible.members, |member| {
            totals.lock().contents.add_worker(member);
            if deadline.has_time() {
                let check = check_worker(view, member, limit, deadline, &totals);
                totals.lock().add_worker(member, check, max_workers);
            } else {
                totals.lock().is_incomplete = true;
            }
            control.count_one();
        });
        let mut totals = totals.into_inner();
        let mut store = Remarks::new(limit);
        match view.check_store(0, limit, deadline) {
            Ok(remarks) => store = remarks.unwrap_or(store),
            Err(error) => add_unreadable(&mut store, &error.to_string()),
        }
        for error in &visible.list_errors {
            add_unreadable(&mut store, error);
        }
        totals.add_remarks(&store);
        let workers = totals.workers.into_iter().map(|((_, root), (name, remarks))| {
            WorkerRemarks { name, path: path(&root), remarks: groups(&remarks) }
        });
        ValidationReport {
            version: 1,
            target,
            complete: !totals.is_incomplete && deadline.has_time(),
            not_understood: totals.not_understood,
            notes: totals.notes,
            store: groups(&store),
            workers: workers.collect(),
            more_workers: totals.more_workers,
            contents: totals.contents,
        }
    }

    fn to_json(&self) -> String {
        // Serializing values of these types cannot fail.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }
}

/// Reads a worker and checks it. Adds its calls to `totals`.
fn check_worker(
    view: &View,
    member: &Member,
    limit: usize,
    deadline: Deadline<'_>,
    totals: &Mutex<ReportedTotals>,
) -> WorkerCheck {
    let read = view.fingerprint(member, false).and_then(|fingerprint| {
        let record = view.record(member, &fingerprint, deadline)?;
        let check = view.check_worker(member, &record, limit, deadline)?;
        Ok((record, check))
    });
    match read {
        Ok((record, mut check)) => {
            check.is_complete &= !record.timed_out();
            totals.lock().contents.add_record(&record);
            check
        }
        Err(error) => {
            let mut check = WorkerCheck::new(limit);
            add_unreadable(&mut check.remarks, &format!("cannot be read: {error}"));
            check
        }
    }
}

fn add_unreadable(remarks: &mut Remarks, text: &str) {
    let kind = (RemarkLevel::NotUnderstood, "unreadable");
    remarks.add(kind, &RelPath::root(), RemarkSubject::Content, || text.to_owned());
}

/// Returns the remarks of a worker or store: first those on something that was not understood, each
/// level in the order of the files.
fn groups(remarks: &Remarks) -> Vec<ReportedGroup> {
    let mut groups: Vec<_> = remarks.groups().collect();
    groups.sort_by_key(|(level, _, group)| {
        (*level, group.first.first().map(|remark| (remark.path.clone(), remark.subject)))
    });
    let groups = groups.into_iter().map(|(level, kind, group)| ReportedGroup {
        level,
        kind,
        count: group.count,
        first: group
            .first
            .iter()
            .map(|remark| RemarkText {
                file: (!remark.path.is_root()).then(|| path(&remark.path)),
                line: match remark.subject {
                    RemarkSubject::Line(line) => Some(line),
                    RemarkSubject::Entry | RemarkSubject::Content => None,
                },
                says: sentence(remark),
            })
            .collect(),
    });
    groups.collect()
}

fn path(path: &RelPath) -> String {
    escape_markers(&path.display())
}

fn sentence(remark: &Remark) -> String {
    let text = clip_chars(&escape_controls(&remark.text), REMARK_MAX);
    match (remark.path.is_root(), remark.subject) {
        (true, _) => text,
        (false, RemarkSubject::Entry) => format!("{} {text}", path(&remark.path)),
        (false, RemarkSubject::Content) => format!("{}: {text}", path(&remark.path)),
        (false, RemarkSubject::Line(line)) => format!("{}:{line}: {text}", path(&remark.path)),
    }
}

impl ValidationReport {
    fn to_text(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_text(&mut out);
        out
    }

    fn write_text(&self, out: &mut String) -> std::fmt::Result {
        let kind = match self.target.kind {
            TargetKind::Store => "store",
            TargetKind::Worker => "worker",
            TargetKind::Transcript => "transcript",
        };
        let contents = &self.contents;
        writeln!(out, "{}: {kind} of format {}", self.target.path, self.target.format)?;
        writeln!(out, "workers: {}{}", contents.workers, parts(&contents.status))?;
        writeln!(out, "calls: {}{}", contents.calls, parts(&contents.outcomes))?;
        writeln!(out, "messages: {}", contents.messages)?;
        writeln!(out, "not understood: {}", self.not_understood)?;
        writeln!(out, "notes: {}", self.notes)?;
        if !self.store.is_empty() {
            writeln!(out, "\nstore")?;
            write_groups(out, &self.store)?;
        }
        for worker in &self.workers {
            writeln!(out, "\nworker {} ({})", escape_markers(&worker.name), worker.path)?;
            write_groups(out, &worker.remarks)?;
        }
        if self.more_workers > 0 {
            writeln!(out, "\n{} more workers with remarks; try --all", self.more_workers)?;
        }
        Ok(())
    }
}

fn write_groups(out: &mut String, groups: &[ReportedGroup]) -> std::fmt::Result {
    for group in groups {
        let prefix = if group.level == RemarkLevel::Note { "note: " } else { "" };
        for remark in &group.first {
            writeln!(out, "  {prefix}{}", remark.says)?;
        }
        let more = group.count.saturating_sub(group.first.len() as u64);
        if more > 0 {
            writeln!(out, "  {prefix}and {more} more of this kind")?;
        }
    }
    Ok(())
}

/// Returns counts in parentheses, or nothing.
fn parts(counts: &BTreeMap<&'static str, u64>) -> String {
    let parts: Vec<String> = counts.iter().map(|(name, count)| format!("{count} {name}")).collect();
    if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) }
}
