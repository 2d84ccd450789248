//! Conditions that a caller can wait for, and reports on the progress of the workers.

use std::sync::Arc;
use std::time::SystemTime;

use super::since::{ViewSnapshot, display_name};
use crate::route::cursor::Cursor;
use crate::view::{Member, View, VisibleWorkers};
use swarmletfs_base::model::Status;
use swarmletfs_base::text::clean::one_line;
use swarmletfs_base::text::{age, count, utc};

/// Maximum size of a report in bytes, without the cursor at its end.
const REPORT_MAX: usize = 16_000;
/// Maximum number of failed, and of abandoned, workers named in a line.
const NAMES_MAX: usize = 10;
const FINISHED_FIRST: [Status; 7] = [
    Status::Waiting,
    Status::Completed,
    Status::Failed,
    Status::Abandoned,
    Status::Running,
    Status::Created,
    Status::Unknown,
];
/// Maximum length of a worker's name in a line, in bytes.
const NAME_MAX: usize = 120;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitCondition {
    /// All workers have finished, and there is at least one.
    Finished,
    Failed,
    /// A worker waits for a person.
    Waiting,
    /// A worker needs a person for any reason: its attention is high.
    Attention,
    Any,
}

impl WaitCondition {
    /// Returns false if the workers' statuses rule the condition out.
    pub fn may_hold(self, visible: &VisibleWorkers) -> bool {
        self.is_met_by(visible.members.iter())
    }

    /// Returns true if the condition is met. `given` is the caller's cursor, if any. `start` is
    /// that cursor, or the cursor of the moment the wait began. `needs_person` returns true if the
    /// attention of one of the workers is high.
    pub fn is_met(
        self,
        snapshot: &ViewSnapshot,
        given: Option<Cursor>,
        start: Cursor,
        needs_person: impl Fn(&[Arc<Member>]) -> bool,
    ) -> bool {
        match (self, given) {
            (WaitCondition::Attention, Some(cursor)) => {
                needs_person(&snapshot.changed(cursor).cloned().collect::<Vec<_>>())
            }
            (WaitCondition::Attention, None) => {
                needs_person(&snapshot.workers().cloned().collect::<Vec<_>>())
            }
            (WaitCondition::Any, _) => snapshot.has_changes(start),
            (WaitCondition::Failed | WaitCondition::Waiting, Some(cursor)) => {
                self.is_met_by(snapshot.changed(cursor))
            }
            (WaitCondition::Failed | WaitCondition::Waiting | WaitCondition::Finished, _) => {
                self.is_met_by(snapshot.workers())
            }
        }
    }

    fn is_met_by<'a>(self, mut workers: impl Iterator<Item = &'a Arc<Member>>) -> bool {
        match self {
            WaitCondition::Any | WaitCondition::Attention => true,
            WaitCondition::Failed => workers.any(|member| status(member) == Status::Failed),
            WaitCondition::Waiting => workers.any(|member| status(member) == Status::Waiting),
            WaitCondition::Finished => {
                let mut workers = workers.peekable();
                workers.peek().is_some() && workers.all(|member| status(member).is_finished())
            }
        }
    }

    pub fn progress_line(self, visible: &VisibleWorkers) -> String {
        let condition = match self {
            WaitCondition::Finished => "waiting until all workers have finished",
            WaitCondition::Failed => "waiting until a worker fails",
            WaitCondition::Waiting => "waiting until a worker waits for a person",
            WaitCondition::Attention => "waiting until a worker needs a person",
            WaitCondition::Any => "waiting until something changes",
        };
        let finished = visible.members.iter().filter(|member| status(member).is_finished()).count();
        match visible.members.len() {
            0 => format!("{condition}; there are no workers yet"),
            all => format!("{condition}; {finished} of {} finished so far", count(all, "worker")),
        }
    }
}

/// Returns a line with the number of workers of each status and the names of failed and abandoned
/// workers. It precedes the changes.
pub fn status_line(snapshot: &ViewSnapshot) -> String {
    let with_status =
        |wanted: Status| snapshot.workers().filter(move |member| status(member) == wanted);
    let counts = FINISHED_FIRST
        .map(|status| (with_status(status).count(), status))
        .into_iter()
        .filter(|(some, _)| *some > 0)
        .map(|(some, status)| format!("{some} {status}"))
        .collect::<Vec<_>>()
        .join(", ");
    let waiting = names_with_label("Waiting", with_status(Status::Waiting));
    let failed = names_with_label("Failed", with_status(Status::Failed));
    let abandoned = names_with_label("Abandoned", with_status(Status::Abandoned));
    format!(
        "Of {}: {counts}{waiting}{failed}{abandoned}\n",
        count(snapshot.workers().count(), "worker")
    )
}

fn names_with_label<'a>(label: &str, workers: impl Iterator<Item = &'a Arc<Member>>) -> String {
    let mut workers = workers.map(|member| one_line(&display_name(member), NAME_MAX));
    let names = workers.by_ref().take(NAMES_MAX).collect::<Vec<_>>().join(", ");
    match (names, workers.count()) {
        (names, _) if names.is_empty() => names,
        (names, 0) => format!(". {label}: {names}"),
        (names, more) => format!(". {label}: {names} and {more} more"),
    }
}

/// Returns the unfinished workers, a line each, for a wait that timed out at `now`. The last line
/// is `cursor`, so that the next wait misses nothing.
pub fn timeout_report(
    view: &View,
    visible: &VisibleWorkers,
    cursor: Cursor,
    now: SystemTime,
) -> String {
    let open: Vec<&Arc<Member>> =
        visible.members.iter().filter(|member| !status(member).is_finished()).collect();
    let mut out = match (visible.members.len(), open.len()) {
        (0, _) => "There are no workers.\n".into(),
        (all, 0) => format!("All workers ({all}) have finished.\n"),
        (all, some) => format!(
            "{some} of {} not finished. The last line is the next cursor.\n",
            count(all, "worker")
        ),
    };
    for (at, member) in open.iter().enumerate() {
        let newest = view
            .fingerprint(member, false)
            .map_or(member.entry.last_write(), |fingerprint| fingerprint.newest_mtime);
        let age = age(newest, now).map(|age| format!(" ({age})")).unwrap_or_default();
        let line = format!(
            "{:<9} {}: last write {}{age}\n",
            status(member).as_str(),
            display_name(member),
            utc(newest)
        );
        if out.len() + line.len() > REPORT_MAX - 200 {
            out.push_str(&format!("and {} more\n", open.len() - at));
            break;
        }
        out.push_str(&line);
    }
    out + &format!("{cursor}\n")
}

fn status(member: &Member) -> Status {
    member.entry.status
}
