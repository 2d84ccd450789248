//! Groups workers that failed, claim what is doubtful or wait for a person, by cause.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashMap;

use crate::analysis::root_cause::{NO_MESSAGE, is_unexplained};
use crate::analysis::worker_digest::WorkerRow;
use crate::view::Member;
use swarmletfs_base::text::budget::count_fitting_with_rest;
use swarmletfs_base::text::clean::one_line;
use swarmletfs_base::text::without_times;

/// Maximum length of a worker's name in a list, in bytes.
const NAME_MAX: usize = 120;
/// Maximum length of a cause, in bytes.
const CAUSE_MAX: usize = 320;
/// Minimum length to which a cause is cut while names can be counted instead, in bytes.
const CAUSE_MIN: usize = 60;
/// Length of a cause that is usually enough, in bytes. Longer causes do not displace excerpts.
const CAUSE_GOOD: usize = 120;
/// Step by which causes are shortened until all fit, in bytes.
const STEP: usize = 20;
/// Maximum length of the names in a group if not all fit, in bytes.
const NAMES_MAX: usize = 200;
/// Maximum length of the names in a group if [`NAMES_MAX`] does not fit, in bytes.
const NAMES_MIN: usize = 60;

#[derive(Clone, Copy)]
pub(super) enum CauseKind {
    Failed,
    /// The worker claims success, but its record does not support the claim.
    Doubtful,
    /// The worker waits for a person.
    Waiting,
}

impl CauseKind {
    fn marker(self) -> &'static str {
        match self {
            CauseKind::Failed => "[FAILED]",
            CauseKind::Doubtful => "[DOUBTFUL]",
            CauseKind::Waiting => "[WAITS]",
        }
    }

    fn adjective(self) -> &'static str {
        match self {
            CauseKind::Failed => "failing",
            CauseKind::Doubtful => "doubtful",
            CauseKind::Waiting => "waiting",
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct WorkerCause<'a> {
    pub member: &'a Member,
    pub cause: &'a str,
}

impl<'a> WorkerCause<'a> {
    /// Returns the worker in `row` with the cause of its failure, or `None` if it did not fail.
    pub(super) fn from_failure(row: &'a WorkerRow) -> Option<WorkerCause<'a>> {
        Some(WorkerCause { member: &row.member, cause: row.failure_cause()? })
    }
}

pub(super) struct CauseGroup<'a> {
    /// The workers, sorted by name.
    pub members: Vec<&'a Member>,
    pub cause: &'a str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CauseGrouping {
    /// Causes are equal if their texts differ only in times. Other numbers, such as a host or a
    /// port, are often the essential difference.
    Text,
    /// Like `Text`, but workers without an error message form one group, without their last
    /// outputs.
    Unexplained,
}

/// Returns the groups of `failing`, largest first; groups without an error message come last.
pub(super) fn groups<'a>(
    failing: &[WorkerCause<'a>],
    grouping: CauseGrouping,
) -> Vec<CauseGroup<'a>> {
    let mut groups: Vec<CauseGroup<'a>> = Vec::new();
    let mut known: HashMap<Cow<'a, str>, usize> = HashMap::new();
    for WorkerCause { member, cause } in failing {
        let is_merged = grouping == CauseGrouping::Unexplained && is_unexplained(cause);
        let cause = if is_merged { NO_MESSAGE } else { *cause };
        let at = *known.entry(without_times(cause)).or_insert(groups.len());
        match groups.get_mut(at) {
            Some(group) => group.members.push(*member),
            None => groups.push(CauseGroup { members: vec![*member], cause }),
        }
    }
    groups.sort_by_key(|group| (is_unexplained(group.cause), Reverse(group.members.len())));
    groups
}

impl CauseGroup<'_> {
    /// Returns the name of the only worker, or the number of workers with names in about `max`
    /// bytes.
    pub(super) fn describe(&self, max: usize) -> String {
        let name = |member: &Member| one_line(&member.name.display(), NAME_MAX);
        if let [only] = self.members.as_slice() {
            return name(only);
        }
        let mut names = String::new();
        let mut left = self.members.len();
        for name in self.members.iter().map(|member| name(member)) {
            if !names.is_empty() && names.len() + name.len() > max {
                break;
            }
            names = if names.is_empty() { name } else { names + ", " + &name };
            left -= 1;
        }
        let more = if left == 0 { String::new() } else { format!(" and {left} more") };
        format!("{} workers ({names}{more})", self.members.len())
    }
}

/// Returns one line per cause with its workers, in at most `room` bytes.
///
/// The lines take at most two thirds of `room` while causes keep a good length, to leave room for
/// excerpts. If not all fit, these steps follow in order:
///
/// 1. The last outputs of workers without an error message are omitted.
/// 2. Causes are cut.
/// 3. Names are counted instead of listed.
/// 4. The rarest causes are counted instead of listed.
pub(super) fn lines(kind: CauseKind, failing: &[WorkerCause<'_>], room: usize) -> String {
    let all = groups(failing, CauseGrouping::Text);
    if let Some(lines) = fitting(kind, &all, usize::MAX, CAUSE_MAX, room * 2 / 3) {
        return lines;
    }
    let groups = groups(failing, CauseGrouping::Unexplained);
    fitting(kind, &groups, usize::MAX, CAUSE_GOOD, room * 2 / 3)
        .or_else(|| fitting(kind, &groups, usize::MAX, CAUSE_MIN, room))
        .or_else(|| fitting(kind, &groups, NAMES_MAX, CAUSE_MIN, room))
        .unwrap_or_else(|| most_frequent(kind, &groups, room))
}

fn line(kind: CauseKind, workers: &str, cause: &str, cause_max: usize) -> String {
    format!("{} {workers}: {}\n", kind.marker(), one_line(cause, cause_max))
}

/// Returns a line for each group with its cause cut as little as possible. Returns `None` if `room`
/// is too small for names of `names_max` bytes and causes of `cause_min` bytes.
fn fitting(
    kind: CauseKind,
    groups: &[CauseGroup<'_>],
    names_max: usize,
    cause_min: usize,
    room: usize,
) -> Option<String> {
    let frame = line(kind, "", "", 0).len();
    let workers: Vec<String> = groups.iter().map(|group| group.describe(names_max)).collect();
    let lines = groups.iter().zip(&workers);
    let cause_max = (cause_min..=CAUSE_MAX).rev().step_by(STEP).find(|cause_max| {
        let lengths = lines
            .clone()
            .map(|(group, workers)| frame + workers.len() + group.cause.len().min(*cause_max));
        lengths.sum::<usize>() <= room
    })?;
    Some(lines.map(|(group, workers)| line(kind, workers, group.cause, cause_max)).collect())
}

/// Returns lines for the largest groups that fit in `room` bytes, and a count of the other workers.
fn most_frequent(kind: CauseKind, groups: &[CauseGroup<'_>], room: usize) -> String {
    let more = |left: usize| {
        let workers: usize = groups.iter().rev().take(left).map(|group| group.members.len()).sum();
        let text = format!(
            "and {workers} more {} workers, of {} more causes: index.json names them, workers/<id>/evidence.txt shows \
             each\n",
            kind.adjective(),
            left
        );
        if workers == 0 { String::new() } else { text }
    };
    let lines =
        groups.iter().map(|group| line(kind, &group.describe(NAMES_MIN), group.cause, CAUSE_MIN));
    let listed = count_fitting_with_rest(lines.clone().map(|line| line.len()), room, |left| {
        more(left).len()
    });
    let text = lines.take(listed).collect::<String>() + &more(groups.len() - listed);
    if text.len() <= room { text } else { String::new() }
}
