//! Decides which workers are removed, from facts that were read before.

use std::collections::{BTreeSet, HashMap};
use std::time::SystemTime;

use super::candidates::{Candidate, HAS_CHILDREN, Rules};
use crate::name::Name;
use crate::store::Time;

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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::Status;
    use crate::retention::{AgeLimit, SizeLimit};

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
