//! The facts about a worker that files about many workers show, computed once per state of its
//! files.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::checks::{self, Check, INVISIBLE_CHARACTERS, NO_FINAL_WORDS};
use super::claims;
use super::evidence::{self, WorkerOutcome};
use crate::catalog::Fingerprint;
use crate::error::Error;
use crate::model::{Outcome, Output, Record, Status, Tokens, Worker};
use crate::store::Time;
use crate::view::{Member, View};

/// Name of the check that reports an unreadable record.
const UNREADABLE: &str = "unreadable";

/// A worker in a file about many workers.
pub(super) struct WorkerRow {
    pub(super) member: Arc<Member>,
    /// `None` if there was no time to read the worker or it vanished.
    pub(super) digest: Option<Arc<WorkerDigest>>,
    /// The state of its files; `None` if it vanished.
    pub(super) stamp: Option<Arc<Fingerprint>>,
}

impl WorkerRow {
    /// Returns the worker's metadata as of the digest.
    pub(super) fn worker(&self) -> Cow<'_, Worker> {
        self.newer_metadata().map_or_else(|| Cow::Owned(self.member.entry.worker()), Cow::Borrowed)
    }

    /// Returns the worker's status as of the digest.
    pub(super) fn status(&self) -> Status {
        self.newer_metadata().map_or(self.member.entry.status, |worker| worker.status)
    }

    /// Returns the metadata read with the digest, if it differs from the catalog's.
    fn newer_metadata(&self) -> Option<&Worker> {
        self.digest.as_ref()?.worker.as_deref()
    }

    /// Returns the outcome of this worker for the evidence of many workers.
    pub(super) fn worker_outcome(&self) -> WorkerOutcome<'_> {
        let outcome = self.digest.as_deref().map(|digest| (digest.outcome, digest.cause.as_str()));
        WorkerOutcome { member: &self.member, stamp: self.stamp.as_ref(), outcome, doubt: self.doubt() }
    }

    /// Returns why the worker's record could not be read at all, if it could not.
    pub(super) fn unreadable(&self) -> Option<&str> {
        let checks = &self.digest.as_ref()?.checks;
        checks.iter().find(|check| check.name == UNREADABLE).map(|check| check.message.as_str())
    }

    /// Returns true if there was no time to read the whole record. `ran_out` is true if the render
    /// ran out of time; otherwise a worker without a digest could not be read.
    pub(super) fn is_late(&self, ran_out: bool) -> bool {
        self.digest.as_ref().map_or(ran_out, |digest| digest.late)
    }

    /// Returns the duration of the worker's silence, or `None` if it is not silent. `latest` is the
    /// result of [`latest_write`].
    pub(super) fn silent(&self, latest: Time) -> Option<Duration> {
        checks::silent(self.status(), self.stamp.as_ref()?.last_write(), latest)
    }

    /// Returns the names of the checks that cast doubt on a claim of success, or `None` if the
    /// worker claims none or no check does.
    pub(super) fn doubt(&self) -> Option<String> {
        // These three do not contradict a claim of success, and would bury the workers that
        // overclaim. An unfinished read is no fault of the worker.
        let checks = self.digest.as_ref()?.checks.iter().map(|check| &*check.name);
        let is_doubt = |name: &&str| ![NO_FINAL_WORDS, INVISIBLE_CHARACTERS, checks::LATE_NAME].contains(name);
        let names: BTreeSet<&str> = checks.filter(is_doubt).collect();
        let claims = self.status() == Status::Completed && !names.is_empty();
        claims.then(|| names.into_iter().collect::<Vec<_>>().join(", "))
    }
}

/// Returns the last write of any worker. Silence is measured against it.
pub(super) fn latest_write(rows: &[WorkerRow]) -> Time {
    rows.iter().filter_map(|row| Some(row.stamp.as_ref()?.last_write())).max().unwrap_or_default()
}

/// The cached facts about a worker.
#[derive(Debug)]
pub(super) struct WorkerDigest {
    /// The worker's metadata, if it differs from the catalog's.
    pub(super) worker: Option<Box<Worker>>,
    pub(super) outcome: Outcome,
    /// Number of tool calls.
    pub(super) calls: usize,
    /// Number of failed calls.
    pub(super) failed: usize,
    /// Number of calls with an unknown outcome.
    pub(super) unknown: usize,
    /// Size of all outputs in bytes.
    pub(super) output_bytes: u64,
    /// The tools that the worker called or lists as used, sorted and without duplicates.
    pub(super) tools: Vec<String>,
    /// The tokens used, if the record has them.
    pub(super) tokens: Option<Tokens>,
    /// The cause of the failure in one line; empty if the worker did not fail.
    pub(super) cause: String,
    pub(super) checks: Vec<Check>,
    /// True if the whole record was read; otherwise a later read may find more.
    pub(super) whole: bool,
    /// True if there was no time to read the whole record.
    pub(super) late: bool,
    /// True if the digest depends on the worker's own directory only, whose state is its key.
    pub(super) is_self_contained: bool,
}

impl WorkerDigest {
    /// Computes the digest of a worker from its record.
    pub(super) fn new(view: &View, member: &Member, stamp: &Fingerprint, record: &Record) -> WorkerDigest {
        let trace = &record.trace;
        let outcome = record.outcome();
        let failed = (outcome == Outcome::Failed).then(|| evidence::cause(view, member, record));
        let (cause, read) = failed.unwrap_or_else(|| (String::new(), true));
        WorkerDigest {
            worker: (record.worker != member.entry.worker()).then(|| Box::new(record.worker.clone())),
            outcome,
            calls: trace.calls.len(),
            failed: trace.count(Outcome::Failed),
            unknown: trace.count(Outcome::Unknown),
            output_bytes: trace.calls.iter().map(|call| call.bytes).fold(0, u64::saturating_add),
            tools: tools(record),
            tokens: trace.tokens,
            cause,
            checks: checks::run(record, stamp, &|words| claims::missing_files(view, member, trace.own_folders, words)),
            late: record.timed_out(),
            whole: read && record.is_complete() && stamp.skipped.unreadable == 0,
            is_self_contained: trace.calls.iter().all(|call| matches!(call.output, Output::InPlace | Output::Pending)),
        }
    }

    /// Returns the digest of a worker whose record cannot be read because of `error`.
    pub(super) fn unreadable(error: &Error) -> WorkerDigest {
        WorkerDigest {
            worker: None,
            outcome: Outcome::Unknown,
            calls: 0,
            failed: 0,
            unknown: 0,
            output_bytes: 0,
            tools: Vec::new(),
            tokens: None,
            cause: String::new(),
            checks: vec![Check::new(UNREADABLE, format!("its record cannot be read: {error}"), "tool_calls")],
            whole: false,
            late: error.is_timeout(),
            is_self_contained: false,
        }
    }
}

fn tools(record: &Record) -> Vec<String> {
    let called = record.trace.calls.iter().map(|call| &call.tool);
    let tools: BTreeSet<&String> = called.chain(&record.trace.tools_used).collect();
    tools.into_iter().cloned().collect()
}
