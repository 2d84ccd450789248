//! Reads the facts about all workers on which a removal depends, and decides from them, without
//! I/O, which workers are removed.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, SystemTime};

use crate::analysis::attention::AttentionLevel;
use crate::analysis::worker_digest::WorkerDigest;
use crate::approval::Approval;
use crate::deadline::Deadline;
use crate::draft::{Draft, DraftState};
use crate::error::Result;
use crate::model::{Outcome, Status};
use crate::name::Name;
use crate::store::Time;
use crate::view::{Member, View};
use swarmletfs_record::write::Store;

/// A worker that is kept although a rule would choose it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) id: Name,
    pub(crate) reason: String,
}

#[derive(Debug)]
pub(crate) struct Plan {
    /// The workers, each with the rule that chose it. Children are before their parents.
    pub(crate) removals: Vec<(Candidate, String)>,
    /// The workers that are kept although a rule would choose them, the oldest first.
    pub(crate) kept: Vec<Kept>,
    pub(crate) left: u64,
    pub(crate) left_bytes: u64,
    /// True if more workers are left than the rules allow.
    pub(crate) is_over_limit: bool,
}

/// Workers that can be removed now, the oldest first.
type Ready = BTreeSet<(Time, usize)>;

impl Plan {
    pub(crate) fn new(candidates: Vec<Candidate>, rules: &Rules, now: SystemTime) -> Plan {
        let parents = parents(&candidates);
        let mut children = vec![0_u64; candidates.len()];
        for parent in parents.iter().flatten() {
            children.get_mut(*parent).into_iter().for_each(|count| *count += 1);
        }
        let is_old = |candidate: &Candidate| {
            let age = now.duration_since(candidate.ended.to_system()).unwrap_or_default();
            rules.older_than.as_ref().is_some_and(|limit| age > limit.age)
        };
        let is_free = |at: usize, children: &[u64]| children.get(at) == Some(&0);
        let mut ready: Ready = candidates
            .iter()
            .enumerate()
            .filter(|(at, candidate)| candidate.obstacle.is_none() && is_free(*at, &children))
            .map(|(at, candidate)| (candidate.ended, at))
            .collect();
        let mut left = candidates.len() as u64;
        let mut left_bytes: u64 = candidates.iter().map(|candidate| candidate.bytes).sum();
        let exceeded = |left: u64, left_bytes: u64| {
            let size = rules.max_size.as_ref().filter(|limit| left_bytes > limit.bytes);
            let workers = rules.max_workers.filter(|limit| left > *limit);
            size.map(|limit| format!("--max-size {}", limit.text))
                .or_else(|| workers.map(|limit| format!("--max-workers {limit}")))
        };
        let mut rule_of = HashMap::new();
        let mut order = Vec::new();
        while let Some((_, at)) = ready.pop_first() {
            let Some(candidate) = candidates.get(at) else { continue };
            let rule = if is_old(candidate) {
                rules.older_than.as_ref().map(|limit| format!("--older-than {}", limit.text))
            } else {
                exceeded(left, left_bytes)
            };
            let Some(rule) = rule else { continue };
            left -= 1;
            left_bytes = left_bytes.saturating_sub(candidate.bytes);
            rule_of.insert(at, rule);
            order.push(at);
            // A parent goes only after all its children.
            let Some(parent) = parents.get(at).copied().flatten() else { continue };
            children.get_mut(parent).into_iter().for_each(|count| *count -= 1);
            if let Some(candidate) = candidates.get(parent)
                && candidate.obstacle.is_none()
                && is_free(parent, &children)
            {
                ready.insert((candidate.ended, parent));
            }
        }
        let is_over_limit = exceeded(left, left_bytes).is_some();
        let mut kept: Vec<(Time, Kept)> = Vec::new();
        let mut taken: Vec<Option<Candidate>> = Vec::new();
        for (at, candidate) in candidates.into_iter().enumerate() {
            let is_chosen = rule_of.contains_key(&at);
            if !is_chosen && (is_over_limit || is_old(&candidate)) {
                let reason = candidate.obstacle.clone();
                let reason = reason.unwrap_or_else(|| HAS_CHILDREN.to_owned());
                kept.push((candidate.ended, Kept { id: candidate.id.clone(), reason }));
            }
            taken.push(is_chosen.then_some(candidate));
        }
        kept.sort_by(|a, b| (a.0, &a.1.id).cmp(&(b.0, &b.1.id)));
        let removals = order
            .into_iter()
            .filter_map(|at| Some((taken.get_mut(at)?.take()?, rule_of.remove(&at)?)))
            .collect();
        let kept = kept.into_iter().map(|(_, kept)| kept).collect();
        Plan { removals, kept, left, left_bytes, is_over_limit }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.removals.iter().map(|(candidate, _)| candidate.bytes).sum()
    }
}

/// Returns the position of each worker's parent. A worker that names itself has none.
fn parents(candidates: &[Candidate]) -> Vec<Option<usize>> {
    let positions: HashMap<String, usize> = candidates
        .iter()
        .enumerate()
        .map(|(at, candidate)| (candidate.id.to_text().into_owned(), at))
        .collect();
    let parent_of = |(at, candidate): (usize, &Candidate)| {
        let parent = positions.get(candidate.parent.as_deref()?).copied()?;
        (parent != at).then_some(parent)
    };
    candidates.iter().enumerate().map(parent_of).collect()
}

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
    obstacle: Option<String>,
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
    if !rules.attention {
        match needs_person(view, member) {
            Ok(false) => {}
            Ok(true) => return Some("it needs a person; --attention removes it, too".to_owned()),
            Err(error) => return Some(format!("it cannot be read: {error}")),
        }
    }
    draft_obstacle(store, &member.entry.id.0, rules)
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

fn needs_person(view: &View, member: &Member) -> Result<bool> {
    Ok(WorkerDigest::read(view, member)?.attention.level() == AttentionLevel::High)
}

/// Returns the reason why the draft of the worker `id` must not be removed; `None` if it may.
pub(super) fn draft_obstacle(store: &Store, id: &Name, rules: &Rules) -> Option<String> {
    let draft = match Draft::open(store, id) {
        Ok(Some(draft)) => draft,
        Ok(None) => return None,
        Err(error) => return Some(error.to_string()),
    };
    if draft.record().state == DraftState::Running {
        let cure = "`swarmletfs run --recover` ends it";
        return Some(format!("the end of its draft is not recorded; {cure}"));
    }
    let approval = Approval::open(store, id.as_bytes());
    match approval.and_then(|it| Ok((it.is_half_applied()?, it.review_state()?))) {
        Ok((true, _)) => {
            Some("its changes are applied half; `swarmletfs apply` completes them".into())
        }
        Ok((false, state)) if state.is_open() && !rules.unreviewed => {
            let cure = "`swarmletfs review` shows them, --unreviewed removes it, too";
            Some(format!("nobody applied or discarded its changes; {cure}"))
        }
        Ok(_) => None,
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
    /// Removes workers whose changes nobody applied or discarded, too.
    pub(crate) unreviewed: bool,
    /// Removes workers that need a person, too.
    pub(crate) attention: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 86_400;

    /// Returns a worker that ended at this day and has 10 bytes.
    fn candidate(id: &str, day: i64, parent: Option<&str>) -> Candidate {
        Candidate {
            id: Name::new(id).unwrap(),
            parent: parent.map(str::to_owned),
            status: Status::Completed,
            ended: Time { secs: day * DAY, nanos: 0 },
            bytes: 10,
            obstacle: None,
        }
    }

    fn plan(candidates: Vec<Candidate>, rules: &Rules) -> Plan {
        let now = Time { secs: 100 * DAY, nanos: 0 }.to_system();
        Plan::new(candidates, rules, now)
    }

    fn removed(plan: &Plan) -> Vec<String> {
        plan.removals.iter().map(|(candidate, _)| candidate.id.display()).collect()
    }

    fn older_than(days: u64) -> Rules {
        let age = Duration::from_secs(days * DAY as u64);
        let limit = AgeLimit { text: format!("{days}d"), age };
        Rules { older_than: Some(limit), ..Rules::default() }
    }

    /// Promise: A parent is removed only after all its children.
    #[test]
    fn parent_is_removed_only_after_all_its_children() {
        let family = |child: i64| {
            vec![
                candidate("root", 1, Some("root")),
                candidate("middle", 2, Some("root")),
                candidate("child", child, Some("middle")),
                candidate("other", 3, Some("missing")),
            ]
        };
        let all = plan(family(4), &older_than(30));
        assert_eq!(removed(&all), ["other", "child", "middle", "root"]);
        assert_eq!((all.left, all.left_bytes, all.kept.len()), (0, 0, 0));

        let some = plan(family(90), &older_than(30));
        assert_eq!(removed(&some), ["other"]);
        let kept: Vec<_> = some.kept.iter().map(|kept| kept.id.display()).collect();
        assert_eq!(kept, ["root", "middle"]);
        assert!(some.kept.iter().all(|kept| kept.reason.contains("names it as its parent")));
    }

    /// Promise: `--max-size` and `--max-workers` remove the oldest workers until the rest fits.
    #[test]
    fn limits_remove_the_oldest_until_the_rest_fits() {
        let workers = || (0..5).map(|day| candidate(&format!("w{day}"), day, None)).collect();
        let most = Rules { max_workers: Some(3), ..Rules::default() };
        assert_eq!(removed(&plan(workers(), &most)), ["w0", "w1"]);
        let limit = SizeLimit { text: "15".into(), bytes: 15 };
        let size = Rules { max_size: Some(limit), ..Rules::default() };
        let planned = plan(workers(), &size);
        assert_eq!(removed(&planned), ["w0", "w1", "w2", "w3"]);
        assert_eq!(planned.removals[0].1, "--max-size 15");
        assert!(!planned.is_over_limit && planned.kept.is_empty());

        let mut blocked: Vec<Candidate> = workers();
        for candidate in &mut blocked[1..] {
            candidate.obstacle = Some("it is running".into());
        }
        let planned = plan(blocked, &most);
        assert_eq!(removed(&planned), ["w0"]);
        assert!(planned.is_over_limit && planned.kept.len() == 4);
    }

    #[test]
    fn parents_that_name_each_other_are_kept() {
        let pair = vec![candidate("a", 1, Some("b")), candidate("b", 2, Some("a"))];
        let planned = plan(pair, &older_than(30));
        assert_eq!((removed(&planned).len(), planned.kept.len()), (0, 2));
    }
}
