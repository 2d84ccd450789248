//! What files about many workers need of one: made once for each state of the worker, then kept.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::checks::{self, Check, INVISIBLE_CHARACTERS, NO_FINAL_WORDS};
use super::claims;
use super::evidence::{self, Account};
use crate::catalog::Fingerprint;
use crate::error::Error;
use crate::model::{Outcome, Output, Record, Status, Tokens, Worker};
use crate::store::Time;
use crate::view::{Member, View};

/// Name of the check of a worker whose record cannot be read at all.
const UNREADABLE: &str = "unreadable";

/// A worker among many.
pub(super) struct Row<'a> {
    /// The worker.
    pub(super) member: &'a Member,
    /// What is known of it; `None` where there was no time to look into it, or it vanished.
    pub(super) fragment: Option<Arc<Fragment>>,
    /// The state of its files; `None` if it vanished.
    pub(super) stamp: Option<Arc<Fingerprint>>,
}

impl Row<'_> {
    /// What its metadata tells, of the same moment as the rest.
    pub(super) fn worker(&self) -> Cow<'_, Worker> {
        self.later().map_or_else(|| Cow::Owned(self.member.entry.worker()), Cow::Borrowed)
    }

    /// How far it is, likewise.
    pub(super) fn status(&self) -> Status {
        self.later().map_or(self.member.entry.status, |worker| worker.status)
    }

    fn later(&self) -> Option<&Worker> {
        self.fragment.as_ref()?.worker.as_deref()
    }

    /// What the evidence of many workers needs of this one.
    pub(super) fn account(&self) -> Account<'_> {
        let end = self.fragment.as_deref().map(|fragment| (fragment.outcome, fragment.cause.as_str()));
        Account { member: self.member, end, doubt: self.doubt() }
    }

    /// Returns why the worker's record could not be read at all, if it could not.
    pub(super) fn unreadable(&self) -> Option<&str> {
        let checks = &self.fragment.as_ref()?.checks;
        checks.iter().find(|check| check.name == UNREADABLE).map(|check| check.says.as_str())
    }

    /// Returns true if there was no time to read all that is known of it. `ran_out` tells whether any time ran out, since a
    /// worker can also be unread because it cannot be read.
    pub(super) fn is_late(&self, ran_out: bool) -> bool {
        self.fragment.as_ref().map_or(ran_out, |fragment| fragment.late)
    }

    /// Returns for how long the worker has been silent, or `None` if it is not. `latest` is what [`latest_write`] returned.
    pub(super) fn silent(&self, latest: Time) -> Option<Duration> {
        checks::silent(self.status(), self.stamp.as_ref()?.last_write(), latest)
    }

    /// The names of the checks that a worker which claims success does not pass.
    pub(super) fn doubt(&self) -> Option<String> {
        // Saying nothing at the end is no claim, and invisible characters say nothing of one; in a list of many these
        // would bury those who claim too much. What was not read in time is no fault of the worker's.
        let checks = self.fragment.as_ref()?.checks.iter().map(|check| &*check.name);
        let is_doubt = |name: &&str| ![NO_FINAL_WORDS, INVISIBLE_CHARACTERS, checks::LATE_NAME].contains(name);
        let names: BTreeSet<&str> = checks.filter(is_doubt).collect();
        let claims = self.status() == Status::Completed && !names.is_empty();
        claims.then(|| names.into_iter().collect::<Vec<_>>().join(", "))
    }
}

/// Returns the last write of any of the workers, which silence is measured against.
pub(super) fn latest_write(rows: &[Row<'_>]) -> Time {
    rows.iter().filter_map(|row| Some(row.stamp.as_ref()?.last_write())).max().unwrap_or_default()
}

/// What is kept of a worker.
#[derive(Debug)]
pub(super) struct Fragment {
    /// What its metadata tells, where that is not what the catalog knew of it.
    pub(super) worker: Option<Box<Worker>>,
    /// How it ended.
    pub(super) outcome: Outcome,
    /// How many calls it made.
    pub(super) calls: usize,
    /// How many of them failed.
    pub(super) failed: usize,
    /// How many of them do not say.
    pub(super) unknown: usize,
    /// Size of all outputs in bytes.
    pub(super) output_bytes: u64,
    /// The tools that it called, or says it used; sorted, each once.
    pub(super) tools: Vec<String>,
    /// The tokens that it took, where its record tells.
    pub(super) tokens: Option<Tokens>,
    /// One line that says why it failed; empty if it did not.
    pub(super) cause: String,
    /// What its claims do not bear out.
    pub(super) checks: Vec<Check>,
    /// Whether all was read that there is; else another look may tell more.
    pub(super) whole: bool,
    /// True if there was no time to read all of it.
    pub(super) late: bool,
    /// Whether it was made of nothing but the worker's folder, whose state it is kept under.
    pub(super) is_of_its_folder: bool,
}

impl Fragment {
    pub(super) fn of(view: &View, member: &Member, stamp: &Fingerprint, record: &Record) -> Fragment {
        let trace = &record.trace;
        let outcome = record.outcome();
        let failed = (outcome == Outcome::Failed).then(|| evidence::cause(view, member, record));
        let (cause, read) = failed.unwrap_or_else(|| (String::new(), true));
        Fragment {
            worker: (record.worker != member.entry.worker()).then(|| Box::new(record.worker.clone())),
            outcome,
            calls: trace.calls.len(),
            failed: trace.count(Outcome::Failed),
            unknown: trace.count(Outcome::Unknown),
            output_bytes: trace.calls.iter().map(|call| call.bytes).fold(0, u64::saturating_add),
            tools: tools(record),
            tokens: trace.tokens,
            cause,
            checks: checks::of(record, stamp, &|words| claims::missing(view, member, trace.own_folders, words)),
            late: record.is_late(),
            whole: read && record.is_whole() && stamp.skipped.unreadable == 0,
            is_of_its_folder: trace.calls.iter().all(|call| matches!(call.output, Output::InPlace | Output::Pending)),
        }
    }

    /// A worker whose record cannot be read at all.
    pub(super) fn unreadable(error: &Error) -> Fragment {
        Fragment {
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
            late: error.is_late(),
            is_of_its_folder: false,
        }
    }
}

fn tools(record: &Record) -> Vec<String> {
    let called = record.trace.calls.iter().map(|call| &call.tool);
    let tools: BTreeSet<&String> = called.chain(&record.trace.tools_used).collect();
    tools.into_iter().cloned().collect()
}
