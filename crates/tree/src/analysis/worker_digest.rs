//! The facts about a worker that files about many workers show, computed once per state of its
//! files.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::attention::Attention;
use super::checks::{self, CheckKind, ClaimedFiles, FailedCheck};
use super::file_uses::{FileUse, file_uses};
use super::{claims, root_cause};
use crate::catalog::Fingerprint;
use crate::view::{Member, View, WorkerFiles};
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::model::{
    Outcome, Output, Record, StatedCost, Status, Tokens, ToolCall, Worker,
};
use swarmletfs_base::store::{Time, read_range};
use swarmletfs_base::text::clean::one_line;
use swarmletfs_base::text::utc;

const MODELS_MAX: usize = 20;
/// Maximum length of the end of an output that is searched for a mention of a check, in bytes.
const OUTPUT_MAX: u64 = 64 << 10;
/// Maximum length of the line about an open call, in bytes.
const OPEN_CALL_MAX: usize = 120;
const UNREADABLE: &str = "unreadable";

pub struct WorkerRow {
    pub member: Arc<Member>,
    /// `None` if there was no time to read the worker or it vanished.
    pub digest: Option<Arc<WorkerDigest>>,
    /// The state of its files; `None` if it vanished.
    pub fingerprint: Option<Arc<Fingerprint>>,
}

impl WorkerRow {
    pub fn worker(&self) -> Cow<'_, Worker> {
        self.newer_metadata().map_or_else(|| Cow::Owned(self.member.entry.worker()), Cow::Borrowed)
    }

    pub fn status(&self) -> Status {
        self.newer_metadata().map_or(self.member.entry.status, |worker| worker.status)
    }

    /// Returns the worker's outcome, or `None` if it was not read in time.
    pub fn outcome(&self) -> Option<Outcome> {
        self.digest.as_ref().map(|digest| digest.outcome)
    }

    fn newer_metadata(&self) -> Option<&Worker> {
        self.digest.as_ref()?.worker.as_deref()
    }

    /// Returns the cause of the worker's failure in one line, or `None` if it is not known to have
    /// failed.
    pub fn failure_cause(&self) -> Option<&str> {
        let digest = self.digest.as_ref().filter(|digest| digest.outcome == Outcome::Failed)?;
        Some(&digest.cause)
    }

    /// Returns the number of failed calls and the number of suspect calls; 0 if the worker was not
    /// read in time.
    pub fn failure_counts(&self) -> (usize, usize) {
        self.digest.as_ref().map_or((0, 0), |digest| (digest.failed, digest.suspect))
    }

    /// Returns the reason why the worker's record could not be read at all, if there is one.
    pub fn unreadable(&self) -> Option<&str> {
        let checks = &self.digest.as_ref()?.checks;
        checks.iter().find(|check| check.name == UNREADABLE).map(|check| check.message.as_str())
    }

    /// Returns true if there was no time to read the whole record. `ran_out` is true if the render
    /// ran out of time; otherwise a worker without a digest could not be read.
    pub fn is_late(&self, ran_out: bool) -> bool {
        self.digest.as_ref().map_or(ran_out, |digest| digest.late)
    }

    /// Returns the duration of the worker's silence, or `None` if it is not silent. `latest` is the
    /// result of [`latest_write`].
    pub fn silent(&self, latest: Time) -> Option<Duration> {
        checks::silent(self.status(), self.fingerprint.as_ref()?.last_write(), latest)
    }

    /// Returns the names of the checks that contradict a claim of success, or `None` without any.
    pub fn doubt(&self) -> Option<String> {
        let names = self.checks(CheckKind::Doubt).map(|check| &*check.name);
        let names: BTreeSet<&str> = names.collect();
        (!names.is_empty()).then(|| names.into_iter().collect::<Vec<_>>().join(", "))
    }

    pub fn checks(&self, kind: CheckKind) -> impl Iterator<Item = &FailedCheck> {
        let checks = self.digest.iter().flat_map(|digest| &digest.checks);
        checks.filter(move |check| check.kind == kind)
    }
}

/// Returns the position of the parent of each worker, if it is among `rows`. The parent is in the
/// same store, or else in another one.
pub(super) fn parents(rows: &[WorkerRow]) -> Vec<Option<usize>> {
    let mut by_id: HashMap<(Option<usize>, &[u8]), usize> = HashMap::new();
    for (at, WorkerRow { member, .. }) in rows.iter().enumerate() {
        for store in [Some(member.entry.source()), None] {
            let known = by_id.entry((store, member.entry.id.0.as_bytes())).or_insert(at);
            // Among workers with one ID, the smallest name is the plain one.
            if rows.get(*known).is_some_and(|row| member.name < row.member.name) {
                *known = at;
            }
        }
    }
    let parents = rows.iter().map(|row| {
        let parent = row.worker().parent.clone()?;
        let stores = [Some(row.member.entry.source()), None];
        stores.into_iter().find_map(|store| by_id.get(&(store, parent.as_bytes())).copied())
    });
    parents.collect()
}

/// Returns the last write of any worker. Silence is measured against it.
pub fn latest_write(rows: &[WorkerRow]) -> Time {
    rows.iter()
        .filter_map(|row| Some(row.fingerprint.as_ref()?.last_write()))
        .max()
        .unwrap_or_default()
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct WorkerDigest {
    /// The worker's metadata, if it differs from the catalog's.
    #[serde(skip)]
    pub worker: Option<Box<Worker>>,
    pub outcome: Outcome,
    pub calls: usize,
    pub failed: usize,
    pub unknown: usize,
    /// Number of calls that are ok by the record but look like failures.
    pub suspect: usize,
    pub not_run: usize,
    /// Number of calls that began and whose end is not recorded.
    pub open: usize,
    /// The first of the open calls: its file, its start and its input, in one line; empty without
    /// one.
    pub open_call: String,
    pub files: Vec<FileUse>,
    pub output_bytes: u64,
    /// The tools that the worker called or lists as used, sorted and without duplicates.
    pub tools: Vec<String>,
    pub tokens: Option<Tokens>,
    pub tokens_by_model: BTreeMap<String, Tokens>,
    /// True if the record counts far fewer tokens than the worker wrote.
    pub tokens_are_partial: bool,
    /// The cost that the record states.
    pub cost: Option<StatedCost>,
    /// The largest number of tokens that a request gave to the model.
    pub peak_context: Option<u64>,
    pub compactions: u64,
    /// The cause of the failure in one line; empty if the worker did not fail.
    pub cause: String,
    pub checks: Vec<FailedCheck>,
    /// The reasons in its own record. A file about many workers may have more.
    pub attention: Attention,
    /// Time of the last check that was green.
    pub last_green: Option<Timestamp>,
    /// True if the whole record was read; otherwise a later read may find more.
    pub whole: bool,
    pub late: bool,
    /// True if the digest depends on the worker's own directory only, whose state is its key.
    pub(super) is_self_contained: bool,
}

impl WorkerDigest {
    /// Reads the digest of one worker to its end, as its files are now.
    ///
    /// # Errors
    /// The worker cannot be read.
    pub fn read(view: &View, member: &Member) -> Result<WorkerDigest> {
        let fingerprint = view.fingerprint(member, true)?;
        let record = view.record(member, &fingerprint, Deadline::never())?;
        Ok(WorkerDigest::new(view, member, &fingerprint, &record))
    }

    pub fn new(
        view: &View,
        member: &Member,
        fingerprint: &Fingerprint,
        record: &Record,
    ) -> WorkerDigest {
        let trace = &record.trace;
        let mut outcome = record.outcome();
        let files = WorkerFiles::new(view, member);
        let failed = (outcome == Outcome::Failed).then(|| root_cause::cause(&files, record));
        let open = trace.calls.iter().filter(|call| call.is_open);
        let open_call = open.clone().next().map(describe_open).unwrap_or_default();
        let (cause, read) = failed.unwrap_or_else(|| (String::new(), true));
        let checks = checks::run(record, fingerprint, &OwnFiles { files: &files, record });
        if outcome == Outcome::Ok && checks.iter().any(|check| check.kind == CheckKind::Doubt) {
            // Its claim is the only thing that is contradicted.
            outcome = Outcome::Unknown;
        }
        let failure = (outcome == Outcome::Failed).then_some(cause.as_str());
        let attention = Attention::find(&files, record, &checks, failure);
        WorkerDigest {
            worker: (record.worker != member.entry.worker())
                .then(|| Box::new(record.worker.clone())),
            outcome,
            calls: trace.calls.len(),
            failed: trace.count(Outcome::Failed),
            unknown: trace.count(Outcome::Unknown),
            suspect: trace.suspects(),
            not_run: trace.count(Outcome::NotRun),
            open: open.count(),
            open_call,
            files: file_uses(record),
            output_bytes: trace.calls.iter().map(|call| call.bytes).fold(0, u64::saturating_add),
            tools: tools(record),
            tokens: trace.tokens,
            tokens_by_model: trace
                .tokens_by_model
                .iter()
                .take(MODELS_MAX)
                .map(|(model, tokens)| (model.clone(), *tokens))
                .collect(),
            tokens_are_partial: trace.tokens_are_partial,
            cost: trace.cost.clone(),
            peak_context: Some(trace.context.peak).filter(|peak| *peak > 0),
            compactions: trace.context.compactions,
            cause,
            checks,
            attention,
            last_green: trace
                .calls
                .iter()
                .filter(|call| call.is_green_check())
                .filter_map(|call| call.at)
                .max(),
            late: record.timed_out(),
            whole: read && record.is_complete() && fingerprint.skipped.unreadable == 0,
            is_self_contained: trace
                .calls
                .iter()
                .all(|call| !matches!(call.output, Output::OutOfBand(_) | Output::Unreadable(_))),
        }
    }

    /// Returns false for a digest that depends on more than the state of the worker's files: on an
    /// unfinished read, on newer metadata than the catalog's, or on files elsewhere.
    pub(super) fn may_outlive_process(&self) -> bool {
        self.whole && self.is_self_contained && self.worker.is_none()
    }

    pub fn files_changed(&self) -> usize {
        self.files.iter().filter(|file| file.edits > 0).count()
    }

    /// Returns the number of changed files, and the numbers of added and removed lines.
    pub fn changed_lines(&self) -> (usize, u64, u64) {
        let sum =
            |lines: fn(&FileUse) -> u64| self.files.iter().map(lines).fold(0, u64::saturating_add);
        (self.files_changed(), sum(|file| file.added), sum(|file| file.removed))
    }

    pub fn unreadable(error: &Error) -> WorkerDigest {
        WorkerDigest {
            checks: vec![FailedCheck::new(
                UNREADABLE,
                format!("its record cannot be read: {error}"),
                "tool_calls",
            )],
            late: error.is_timeout(),
            ..WorkerDigest::default()
        }
    }
}

struct OwnFiles<'a> {
    files: &'a WorkerFiles<'a>,
    record: &'a Record,
}

impl ClaimedFiles for OwnFiles<'_> {
    fn missing(&self) -> Vec<FailedCheck> {
        claims::missing_files(self.files, self.record)
    }

    fn output(&self, call: &ToolCall) -> Option<String> {
        let file = root_cause::open_call(self.files, call).ok()?;
        let size = file.stat_without_acl().ok()?.size;
        let length = size.min(OUTPUT_MAX);
        let bytes = read_range(&*file, size - length, usize::try_from(length).ok()?).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

fn describe_open(call: &ToolCall) -> String {
    let file = call.path.file_name().map(|name| name.display()).unwrap_or_default();
    let start = call.at.map(|start| format!(" since {}", utc(start.into()))).unwrap_or_default();
    let input = call.input.as_deref().map(|input| format!(" $ {input}")).unwrap_or_default();
    one_line(&[file, start, input].concat(), OPEN_CALL_MAX)
}

fn tools(record: &Record) -> Vec<String> {
    let called = record.trace.calls.iter().map(|call| &call.tool);
    let tools: BTreeSet<&String> = called.chain(&record.trace.tools_used).collect();
    tools.into_iter().cloned().collect()
}
