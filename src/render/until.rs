//! How far the workers of a view are: whether what somebody waits for has come about, and what to say of it.

use std::sync::Arc;

use super::since::{Cursor, Look, shown};
use super::text::{count, one_line, utc};
use crate::model::Status;
use crate::view::{Member, View, Visible};

/// The whole text is never larger, in bytes, but for the cursor at its end.
const BYTES: usize = 16_000;
/// How many failed workers are named in a line.
const NAMES: usize = 10;
/// The longest name there, in bytes.
const NAME_MAX: usize = 120;

/// What can be waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// All workers have finished, and there is one.
    Finished,
    /// A worker has failed.
    Failed,
    /// Something changed.
    Any,
}

impl Until {
    /// Whether it can have come about, as far as the statuses tell.
    pub fn may_be(self, visible: &Visible) -> bool {
        self.holds(visible.members.iter())
    }

    /// Whether it has come about. `given` is the cursor that somebody came with, and `begun` that, or the one of the
    /// moment the waiting began.
    pub fn is(self, look: &Look, given: Option<Cursor>, begun: Cursor) -> bool {
        match (self, given) {
            (Until::Any, _) => look.tells(begun),
            (Until::Failed, Some(cursor)) => self.holds(look.changed(cursor)),
            (Until::Failed | Until::Finished, _) => self.holds(look.workers()),
        }
    }

    fn holds<'a>(self, mut workers: impl Iterator<Item = &'a Arc<Member>>) -> bool {
        match self {
            Until::Any => true,
            Until::Failed => workers.any(|member| status(member) == Status::Failed),
            Until::Finished => {
                let mut workers = workers.peekable();
                workers.peek().is_some() && workers.all(|member| status(member).is_finished())
            }
        }
    }

    /// What is waited for, and how far it is.
    pub fn awaited(self, visible: &Visible) -> String {
        let what = match self {
            Until::Finished => "waiting until all workers have finished",
            Until::Failed => "waiting until a worker fails",
            Until::Any => "waiting until something changes",
        };
        let finished = visible.members.iter().filter(|member| status(member).is_finished()).count();
        match visible.members.len() {
            0 => format!("{what}; there is none yet"),
            all => format!("{what}; {finished} of {} finished so far", count(all, "worker")),
        }
    }
}

/// A line that says how the workers stand: what comes before the changes.
pub fn standing(look: &Look) -> String {
    let of = |wanted: Status| look.workers().filter(move |member| status(member) == wanted);
    let words = [Status::Completed, Status::Failed, Status::Running, Status::Created, Status::Unknown]
        .map(|word| (of(word).count(), word))
        .into_iter()
        .filter(|(some, _)| *some > 0)
        .map(|(some, word)| format!("{some} {word}"));
    let words = words.collect::<Vec<_>>().join(", ");
    let (names, more) = (
        of(Status::Failed).take(NAMES).map(|member| one_line(&shown(member), NAME_MAX)),
        of(Status::Failed).skip(NAMES),
    );
    let names = match (names.collect::<Vec<_>>().join(", "), more.count()) {
        (names, _) if names.is_empty() => names,
        (names, 0) => format!(". Failed: {names}"),
        (names, more) => format!(". Failed: {names} and {more} more"),
    };
    format!("Of {}: {words}{names}\n", count(look.workers().count(), "worker"))
}

/// What is still to be expected, when the time is over: a line each, and as the last line `cursor`, so that nothing is
/// lost until the next wait.
pub fn missed(view: &View, visible: &Visible, cursor: Cursor) -> String {
    let open: Vec<&Arc<Member>> = visible.members.iter().filter(|member| !status(member).is_finished()).collect();
    let head = match (visible.members.len(), open.len()) {
        (0, _) => "There is no worker.\n".into(),
        (all, 0) => format!("All of {} have finished.\n", count(all, "worker")),
        (all, some) => format!("{some} of {} not finished. The last line is the next cursor.\n", count(all, "worker")),
    };
    let mut out = head;
    for (at, member) in open.iter().enumerate() {
        let newest = view.fingerprint(member, false).map_or(member.entry.last_write(), |stamp| stamp.newest_mtime);
        let line = format!("{:<9} {}: last write {}\n", status(member).as_str(), shown(member), utc(newest));
        if out.len() + line.len() > BYTES - 200 {
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
