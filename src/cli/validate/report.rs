//! The contents of a store, and the remarks on it.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use serde::Serialize;

use crate::analysis::settings::Control;
use crate::cli::terminal::escape_controls;
use crate::deadline::Deadline;
use crate::model::{Outcome, Record, Remark, RemarkLevel, RemarkSubject, Remarks, WorkerCheck};
use crate::name::RelPath;
use crate::parallel::parallel_map;
use crate::text::clean::escape_markers;
use crate::text::clip_chars;
use crate::view::{Member, View};

const REMARK_MAX: usize = 1_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum TargetKind {
    Store,
    Worker,
    Transcript,
}

#[derive(Debug, Serialize)]
pub(super) struct Target {
    /// The path as given, safe to print.
    pub(super) path: String,
    pub(super) kind: TargetKind,
    pub(super) format: &'static str,
}

/// The report on a path. All its texts are safe to print.
#[derive(Debug, Serialize)]
pub(super) struct ValidationReport {
    version: u32,
    #[serde(flatten)]
    pub(super) target: Target,
    /// True if everything was read.
    pub(super) complete: bool,
    /// Number of remarks on something that was not understood.
    pub(super) not_understood: u64,
    pub(super) notes: u64,
    pub(super) contents: Contents,
    pub(super) store: Vec<ReportedGroup>,
    pub(super) workers: Vec<WorkerRemarks>,
    /// Number of workers with remarks that are not in `workers`.
    pub(super) more_workers: u64,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct Contents {
    pub(super) workers: u64,
    pub(super) status: BTreeMap<&'static str, u64>,
    pub(super) calls: u64,
    pub(super) outcomes: BTreeMap<&'static str, u64>,
    pub(super) messages: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct WorkerRemarks {
    /// Name of the worker in the tree.
    pub(super) name: String,
    /// Path of its folder or transcript from the store's root.
    pub(super) path: String,
    pub(super) remarks: Vec<ReportedGroup>,
}

#[derive(Debug, Serialize)]
pub(super) struct ReportedGroup {
    pub(super) level: ReportedLevel,
    kind: &'static str,
    pub(super) count: u64,
    pub(super) first: Vec<RemarkText>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ReportedLevel {
    NotUnderstood,
    Note,
}

#[derive(Debug, Serialize)]
pub(super) struct RemarkText {
    file: Option<String>,
    line: Option<u64>,
    /// The remark as a sentence, with the file and line.
    pub(super) says: String,
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
    pub(super) fn new(
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

    pub(super) fn to_json(&self) -> String {
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
        level: match level {
            RemarkLevel::NotUnderstood => ReportedLevel::NotUnderstood,
            RemarkLevel::Note => ReportedLevel::Note,
        },
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

pub(super) fn path(path: &RelPath) -> String {
    escape_markers(&path.display())
}

pub(super) fn sentence(remark: &Remark) -> String {
    let text = clip_chars(&escape_controls(&remark.text), REMARK_MAX);
    match (remark.path.is_root(), remark.subject) {
        (true, _) => text,
        (false, RemarkSubject::Entry) => format!("{} {text}", path(&remark.path)),
        (false, RemarkSubject::Content) => format!("{}: {text}", path(&remark.path)),
        (false, RemarkSubject::Line(line)) => format!("{}:{line}: {text}", path(&remark.path)),
    }
}
