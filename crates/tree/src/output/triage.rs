//! The parts into which workers are sorted for a person: at work, in need of somebody, failed.

use serde::Serialize;

use crate::analysis::attention::{Attention, ReasonKind};
use crate::analysis::worker_digest::WorkerRow;
use swarmletfs_base::model::{Outcome, Status};

/// A list of a summary. A worker is in the first one that holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TriagePart {
    AtWork,
    NeedsYou,
    Failed,
    Contradicted,
    ChildFailed,
    Stopped,
    Other,
}

impl TriagePart {
    pub fn find(row: &WorkerRow, attention: &Attention) -> Option<TriagePart> {
        let has = |kinds: &[ReasonKind]| reason(attention, kinds).is_some();
        let status = row.status();
        if is_at_work(status) {
            Some(TriagePart::AtWork)
        } else if has(&[ReasonKind::Waits]) {
            Some(TriagePart::NeedsYou)
        } else if row.outcome() == Some(Outcome::Failed) {
            Some(TriagePart::Failed)
        } else if has(&[ReasonKind::Contradicted]) {
            Some(TriagePart::Contradicted)
        } else if has(&[ReasonKind::ChildFailed]) {
            Some(TriagePart::ChildFailed)
        } else if has(&[ReasonKind::Cut, ReasonKind::Interrupted]) || status == Status::Abandoned {
            Some(TriagePart::Stopped)
        } else if has(&[
            ReasonKind::RedAtEnd,
            ReasonKind::Denied,
            ReasonKind::Loop,
            ReasonKind::Waste,
        ]) {
            Some(TriagePart::Other)
        } else {
            None
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            TriagePart::AtWork => "at work",
            TriagePart::NeedsYou => "needs you",
            TriagePart::Failed => "failed or red at the end",
            TriagePart::Contradicted => "said done, but",
            TriagePart::ChildFailed => "started workers that failed",
            TriagePart::Stopped => "stopped, cut or abandoned",
            TriagePart::Other => "also",
        }
    }
}

/// Returns the line of the first reason of one of `kinds`.
pub(super) fn reason<'a>(attention: &'a Attention, kinds: &[ReasonKind]) -> Option<&'a str> {
    let mut reasons = attention.reasons.iter();
    Some(&reasons.find(|found| kinds.contains(&found.kind))?.line)
}

/// Returns true if a worker has not finished and needs nobody.
pub(super) fn is_at_work(status: Status) -> bool {
    !status.is_finished() && status != Status::Waiting && status != Status::Unknown
}
