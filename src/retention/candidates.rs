//! The facts about workers on which a removal depends, and the rules that choose the workers to
//! remove.

use std::time::Duration;

use crate::approval::Approval;
use crate::deadline::Deadline;
use crate::draft::{Draft, DraftState};
use crate::error::Result;
use crate::model::{Outcome, Status};
use crate::name::Name;
use crate::store::Time;
use crate::view::{Member, View};
use swarmletfs_record::write::Store;

/// The reason to keep a parent.
pub(super) const HAS_CHILDREN: &str = "a worker that is kept names it as its parent";

/// A worker, as it was before the decision.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    pub(crate) id: Name,
    pub(super) parent: Option<String>,
    pub(crate) status: Status,
    /// The time of its end, else of its newest write.
    pub(crate) ended: Time,
    /// Size of its files and of its draft, in bytes.
    pub(crate) bytes: u64,
    /// Reason why it cannot be removed; `None` if it can.
    pub(super) obstacle: Option<String>,
}

impl Candidate {
    /// Reads all workers of `store`, which `view` shows whole. A worker whose removal was
    /// interrupted while it was whole is a worker like others: its tombstone decides nothing.
    pub(crate) fn read_all(store: &Store, view: &View, rules: &Rules) -> Vec<Candidate> {
        let visible = view.visible_now();
        let members = visible.members.iter();
        members.map(|member| Candidate::read(store, view, rules, member)).collect()
    }

    fn read(store: &Store, view: &View, rules: &Rules, member: &Member) -> Candidate {
        let entry = &member.entry;
        let mut candidate = Candidate {
            id: entry.id.0.clone(),
            parent: entry.parent.as_deref().map(str::to_owned),
            status: entry.status,
            ended: entry.last_write(),
            bytes: 0,
            obstacle: None,
        };
        if store.worker_path(&candidate.id) != entry.root {
            candidate.obstacle = Some("it is outside of the folder of the workers".to_owned());
            return candidate;
        }
        match view.fingerprint_now(member) {
            Ok(fingerprint) => {
                let finished = entry.worker().finished_at.timestamp();
                candidate.ended = finished.map_or_else(|| fingerprint.last_write(), Time::from);
                candidate.bytes = fingerprint.bytes;
            }
            Err(error) => candidate.obstacle = Some(format!("it cannot be read: {error}")),
        }
        if candidate.obstacle.is_none() {
            candidate.obstacle = obstacle(store, view, rules, member);
        }
        if let Ok(Some(draft)) = Draft::open(store, &candidate.id) {
            candidate.bytes = candidate.bytes.saturating_add(draft.bytes());
        }
        candidate
    }
}

/// Returns the reason why a worker must not be removed; `None` if it may.
fn obstacle(store: &Store, view: &View, rules: &Rules, member: &Member) -> Option<String> {
    let status = member.entry.status;
    if let Some(obstacle) = unfinished(status, rules.status) {
        return Some(obstacle);
    }
    if member.entry.is_torn() {
        return Some("its metadata is damaged".to_owned());
    }
    if rules.status.is_some_and(|wanted| wanted != status) {
        return Some(format!("its status is {status}"));
    }
    if rules.keep_failed {
        match has_failed(view, member) {
            Ok(false) => {}
            Ok(true) => return Some("it failed".to_owned()),
            Err(error) => return Some(format!("it cannot be read: {error}")),
        }
    }
    draft_obstacle(store, &member.entry.id.0)
}

/// Returns the reason why a worker of this status must not be removed. One of an unknown status may
/// run, so it is removed only if the user named that status.
pub(super) fn unfinished(status: Status, wanted: Option<Status>) -> Option<String> {
    match status {
        Status::Running => Some("it is running".to_owned()),
        Status::Waiting => Some("it waits for a person".to_owned()),
        Status::Created => Some("it has not started".to_owned()),
        Status::Unknown if wanted != Some(Status::Unknown) => {
            Some("its status is unknown, so it may be running".to_owned())
        }
        Status::Unknown | Status::Completed | Status::Failed | Status::Abandoned => None,
    }
}

fn has_failed(view: &View, member: &Member) -> Result<bool> {
    Ok(member.entry.status == Status::Failed || outcome(view, member)? == Outcome::Failed)
}

pub(super) fn outcome(view: &View, member: &Member) -> Result<Outcome> {
    let fingerprint = view.fingerprint(member, false)?;
    Ok(view.record(member, &fingerprint, Deadline::never())?.outcome())
}

/// Returns the reason why the draft of the worker `id` must not be removed; `None` if it may.
pub(super) fn draft_obstacle(store: &Store, id: &Name) -> Option<String> {
    let draft = match Draft::open(store, id) {
        Ok(Some(draft)) => draft,
        Ok(None) => return None,
        Err(error) => return Some(error.to_string()),
    };
    if draft.record().state == DraftState::Running {
        let cure = "`swarmletfs run --recover` ends it";
        return Some(format!("the end of its draft is not recorded; {cure}"));
    }
    match Approval::open(store, id.as_bytes()).and_then(|approval| approval.is_half_applied()) {
        Ok(false) => None,
        Ok(true) => Some("its changes are applied half; `swarmletfs apply` completes them".into()),
        Err(error) => Some(error.to_string()),
    }
}

#[derive(Debug, Clone)]
pub(crate) struct AgeLimit {
    pub(crate) text: String,
    pub(crate) age: Duration,
}

#[derive(Debug, Clone)]
pub(crate) struct SizeLimit {
    pub(crate) text: String,
    pub(crate) bytes: u64,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Rules {
    /// Removes workers that ended longer ago.
    pub(crate) older_than: Option<AgeLimit>,
    /// Removes the oldest workers until the size of the rest is within this limit.
    pub(crate) max_size: Option<SizeLimit>,
    /// Removes the oldest workers until at most so many are left.
    pub(crate) max_workers: Option<u64>,
    pub(crate) status: Option<Status>,
    pub(crate) keep_failed: bool,
}
