//! What files about many workers need of one: made once for each state of the worker, then kept.

use super::checks::{self, Check};
use super::evidence;
use crate::catalog::Stamp;
use crate::error::Error;
use crate::model::{Outcome, Trace};
use crate::view::{Member, View};

/// What is kept of a worker.
#[derive(Debug)]
pub(super) struct Fragment {
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
    /// One line that says why it failed; empty if it did not.
    pub(super) cause: String,
    /// What its claims do not bear out.
    pub(super) checks: Vec<Check>,
}

impl Fragment {
    pub(super) fn of(view: &View, member: &Member, stamp: &Stamp, trace: &Trace) -> Fragment {
        let worker = &member.entry.worker;
        let outcome = trace.outcome(worker.status);
        Fragment {
            outcome,
            calls: trace.calls.len(),
            failed: trace.count(Outcome::Failed),
            unknown: trace.count(Outcome::Unknown),
            output_bytes: trace.calls.iter().map(|call| call.bytes).fold(0, u64::saturating_add),
            cause: if outcome == Outcome::Failed { evidence::cause(view, member, trace) } else { String::new() },
            checks: checks::of(worker, trace, stamp),
        }
    }

    /// A worker whose record cannot be read at all.
    pub(super) fn unreadable(error: &Error) -> Fragment {
        Fragment {
            outcome: Outcome::Unknown,
            calls: 0,
            failed: 0,
            unknown: 0,
            output_bytes: 0,
            cause: String::new(),
            checks: vec![Check::new("unreadable", format!("its record cannot be read: {error}"), "tool_calls")],
        }
    }
}
