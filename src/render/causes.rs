//! The workers that failed, by why they did, and those whose claims are doubtful, by why: those of one cause together.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashMap;

use super::clean::one_line;
use super::evidence::{NO_MESSAGE, is_unexplained};
use super::times::without_times;
use crate::view::Member;

/// The longest name of a worker in a list, in bytes.
const NAME_MAX: usize = 120;
/// The longest cause, and the shortest that a cause is cut to while there are names that can be counted instead, in bytes.
const CAUSE_MAX: usize = 320;
const CAUSE_LEAST: usize = 60;
/// A cause of so many bytes most often says what happened; for more, excerpts do not give way.
const CAUSE_GOOD: usize = 120;
/// Causes are cut in steps of so many bytes until all fit.
const STEP: usize = 20;
/// How many bytes of names a group shows where not all fit, and where not even that does.
const NAMES_SOME: usize = 200;
const NAMES_FEW: usize = 60;

/// What is kind of workers.
#[derive(Clone, Copy)]
pub(super) enum CauseKind {
    /// They failed.
    Failed,
    /// They claim success, and their record does not bear that out.
    Doubtful,
}

impl CauseKind {
    /// How a line begins that tells it.
    fn mark(self) -> &'static str {
        match self {
            CauseKind::Failed => "[FAILED]",
            CauseKind::Doubtful => "[DOUBTFUL]",
        }
    }

    /// What such workers are called.
    fn word(self) -> &'static str {
        match self {
            CauseKind::Failed => "failing",
            CauseKind::Doubtful => "doubtful",
        }
    }
}

/// A worker that failed, or is doubtful.
#[derive(Clone, Copy)]
pub(super) struct WorkerCause<'a> {
    /// The worker.
    pub(super) member: &'a Member,
    /// One line that says why.
    pub(super) cause: &'a str,
}

/// Workers that failed for one cause, in the order of their names.
pub(super) struct CauseGroup<'a> {
    /// Them.
    pub(super) members: Vec<&'a Member>,
    /// The cause of the first of them.
    pub(super) cause: &'a str,
}

/// Rule by which causes are grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CauseGrouping {
    /// Two causes are one if they are the same but for times. Other numbers often are the whole difference: a host, a
    /// port, an answer.
    Text,
    /// In addition, workers without an error message are one group, and their last outputs are left out.
    Unexplained,
}

/// Returns the groups of `failing`: the largest first, and those without an error message behind the others.
pub(super) fn groups<'a>(failing: &[WorkerCause<'a>], grouping: CauseGrouping) -> Vec<CauseGroup<'a>> {
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
    /// Who they are: a name, or how many and as many names as `max` bytes hold.
    pub(super) fn who(&self, max: usize) -> String {
        let name = |member: &Member| one_line(&member.name.display(), NAME_MAX);
        if let [one] = self.members.as_slice() {
            return name(one);
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

/// Returns a line for each cause, with the workers that failed for it, in at most `room` bytes: in two thirds of that while
/// causes can be kind well, so that there is something left for excerpts. Where not all fit, the last outputs of workers
/// without an error message are left out, then causes are cut, then names are counted, then the rarest causes are.
pub(super) fn lines(kind: CauseKind, failing: &[WorkerCause<'_>], room: usize) -> String {
    let fit = |groups: &[CauseGroup<'_>], names, least, room| fitting(kind, groups, &whos(groups, names), least, room);
    let all = groups(failing, CauseGrouping::Text);
    fit(&all, usize::MAX, CAUSE_MAX, room * 2 / 3).unwrap_or_else(|| {
        let groups = groups(failing, CauseGrouping::Unexplained);
        let good = fit(&groups, usize::MAX, CAUSE_GOOD, room * 2 / 3);
        let cut = good.or_else(|| fit(&groups, usize::MAX, CAUSE_LEAST, room));
        let counted = cut.or_else(|| fit(&groups, NAMES_SOME, CAUSE_LEAST, room));
        counted.unwrap_or_else(|| most_frequent(kind, &groups, room))
    })
}

fn whos(groups: &[CauseGroup<'_>], names_max: usize) -> Vec<String> {
    groups.iter().map(|group| group.who(names_max)).collect()
}

fn line(kind: CauseKind, who: &str, cause: &str, cause_max: usize) -> String {
    format!("{} {who}: {}\n", kind.mark(), one_line(cause, cause_max))
}

/// All groups, their causes cut as little as `room` allows, but not below `least` bytes.
fn fitting(kind: CauseKind, groups: &[CauseGroup<'_>], whos: &[String], least: usize, room: usize) -> Option<String> {
    let frame = line(kind, "", "", 0).len();
    let fits = |cause_max: &usize| {
        let lengths = groups.iter().zip(whos).map(|(group, who)| frame + who.len() + group.cause.len().min(*cause_max));
        lengths.sum::<usize>() <= room
    };
    let cause_max = (least..=CAUSE_MAX).rev().step_by(STEP).find(fits)?;
    Some(groups.iter().zip(whos).map(|(group, who)| line(kind, who, group.cause, cause_max)).collect())
}

/// The largest groups, as many as fit, and how many workers there are beside them.
fn most_frequent(kind: CauseKind, groups: &[CauseGroup<'_>], room: usize) -> String {
    let more = |groups: &[CauseGroup<'_>]| {
        let workers: usize = groups.iter().map(|group| group.members.len()).sum();
        let text = format!(
            "and {workers} more {} workers, of {} more causes: index.json names them, workers/<id>/evidence.txt shows \
             each\n",
            kind.word(),
            groups.len()
        );
        if workers == 0 { String::new() } else { text }
    };
    let mut text = String::new();
    let mut rest = groups;
    while let [group, others @ ..] = rest {
        let line = line(kind, &group.who(NAMES_FEW), group.cause, CAUSE_LEAST);
        if text.len() + line.len() + more(others).len() > room {
            break;
        }
        text.push_str(&line);
        rest = others;
    }
    text.push_str(&more(rest));
    if text.len() <= room { text } else { String::new() }
}
