//! The workers of a live view, in groups: those that need a person, those that work, and those that
//! ended.

use std::sync::Arc;

use jiff::Timestamp;
use serde::Serialize;

use super::json::{IndexRow, TokenCounts};
use super::summary::table::end;
use crate::analysis::attention::{Attention, AttentionLevel, ReasonKind};
use crate::analysis::worker_digest::WorkerRow;
use crate::view::Member;
use swarmletfs_base::model::{ReviewState, Status, Tokens};
use swarmletfs_base::store::Time;

/// Group of a worker in a live view. A view shows the groups in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BoardGroup {
    /// It waits for a person, needs one by its record, or has a draft that waits for a decision.
    NeedsYou,
    Running,
    Ended,
}

/// A worker of a live view: its entry of index.json, and facts that only a live view shows.
#[derive(Serialize)]
pub struct BoardRow {
    #[serde(flatten)]
    pub index: IndexRow,
    #[serde(skip)]
    pub member: Arc<Member>,
    #[serde(skip)]
    pub group: BoardGroup,
    /// The state in a word or two, as in the table of `list`.
    pub state: String,
    /// The time since when it needs a person, or else the time of its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    #[serde(skip)]
    pub written: Option<Time>,
    /// The first call that began and has not ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_call: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<TokenCounts>,
    #[serde(skip)]
    pub total_tokens: u64,
    /// True if its draft waits for a decision; else absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draft_waits: Option<bool>,
}

impl BoardRow {
    /// Creates the row of a worker. `index` is its entry among others, with the same attention.
    pub fn new(row: &WorkerRow, attention: &Attention, index: IndexRow) -> BoardRow {
        let worker = row.worker();
        let draft_waits = worker.draft.is_some_and(ReviewState::is_open);
        let group = group(row.status(), worker.draft, attention);
        let reason = attention.reasons.first();
        let since = match group {
            BoardGroup::NeedsYou => reason.and_then(|reason| reason.since),
            BoardGroup::Running | BoardGroup::Ended => None,
        };
        let ended = worker.finished_at.timestamp().or(worker.last_message);
        let digest = row.digest.as_deref();
        let tokens: Option<Tokens> = digest.and_then(|digest| digest.tokens);
        let open_call = digest.map(|digest| digest.open_call.clone());
        BoardRow {
            member: row.member.clone(),
            group,
            state: match reason {
                None if draft_waits && group == BoardGroup::NeedsYou => "draft".into(),
                _ => end(row, attention),
            },
            since: since.or(ended.filter(|_| group != BoardGroup::Running)),
            written: row.fingerprint.as_ref().map(|fingerprint| fingerprint.newest_mtime),
            open_call: open_call.filter(|call| !call.is_empty()),
            total_tokens: tokens.map_or(0, Tokens::total),
            tokens: tokens.map(Into::into),
            draft_waits: draft_waits.then_some(true),
            index,
        }
    }

    /// Returns the line that says why the worker needs a person, or the beginning of its failure.
    pub fn reason(&self) -> Option<&str> {
        let attention = self.index.attention.as_ref()?;
        Some(&attention.reasons.first()?.line)
    }

    /// Returns the line about calls that the worker repeats.
    pub fn repeats(&self) -> Option<&str> {
        let mut reasons = self.index.attention.as_ref()?.reasons.iter();
        Some(&reasons.find(|reason| reason.kind == ReasonKind::Loop)?.line)
    }
}

fn group(status: Status, draft: Option<ReviewState>, attention: &Attention) -> BoardGroup {
    use ReviewState::{Applied, Continued, Discarded};
    // A person who decided about the changes has seen the worker.
    let is_decided = matches!(draft, Some(Applied | Continued | Discarded));
    let asks = attention.reasons.iter().any(|reason| reason.kind == ReasonKind::Waits);
    let needs_person = attention.level() == AttentionLevel::High && (asks || !is_decided);
    match status {
        _ if needs_person || draft.is_some_and(ReviewState::is_open) => BoardGroup::NeedsYou,
        Status::Waiting => BoardGroup::NeedsYou,
        Status::Created | Status::Running => BoardGroup::Running,
        _ => BoardGroup::Ended,
    }
}
