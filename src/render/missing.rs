//! What an answer lacks because there was no time for it, as its first line says it.

use std::fmt;

use super::text::count;
use super::{Renderer, Scope};
use crate::view::VisibleWorkers;

/// What an answer lacks. Without a count, it is only known that something was left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Missing {
    /// Workers that were not read, or not to their end, and how many there are.
    pub workers: (usize, usize),
    /// Outputs that were not looked into.
    pub outputs: u64,
    /// Files that were not searched.
    pub files: u64,
    /// Sessions that were not read yet for the workers inside them.
    pub sessions: usize,
}

impl Missing {
    /// Returns what is missing if anything is, or if the render `ran_out` of time.
    pub(super) fn if_any(self, ran_out: bool) -> Option<Missing> {
        (ran_out || self != Missing { workers: (0, self.workers.1), ..Missing::default() }).then_some(self)
    }
}

impl fmt::Display for Missing {
    /// Writes a part of a line: `incomplete: 3 of 84 workers not read; reading again continues`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if let (some @ 1.., all) = self.workers {
            parts.push(format!("{some} of {} not read", count(all, "worker")));
        }
        if self.outputs > 0 {
            parts.push(format!("{} not read", count(self.outputs, "output")));
        }
        if self.files > 0 {
            parts.push(format!("{} not searched", count(self.files, "file")));
        }
        if self.sessions > 0 {
            parts.push(format!("{} not read yet for workers inside", count(self.sessions, "session")));
        }
        if parts.is_empty() {
            parts.push("not everything was read in time".into());
        }
        write!(f, "incomplete: {}; reading again continues", parts.join(", "))
    }
}

impl Renderer {
    /// Tells whoever controls renders if something is `missing` in an answer.
    pub(super) fn note(&self, missing: Option<&Missing>) {
        if missing.is_some() {
            self.settings.note_incomplete();
        }
    }

    /// Returns how many sessions were not read yet for the workers inside them, of which some may belong to `scope`.
    pub(super) fn undiscovered(visible: &VisibleWorkers, scope: &Scope) -> usize {
        match scope {
            Scope::Swarm | Scope::Selected(_) => visible.unread.len(),
            Scope::Run(name) => visible
                .runs
                .get(name)
                .map_or(0, |run| run.members.iter().filter(|member| visible.unread.contains(&member.name)).count()),
            Scope::Worker(_) | Scope::Workers(_) => 0,
        }
    }
}

/// Puts a line that says what is missing in front of `text`.
pub(super) fn noted(missing: Option<&Missing>, text: String) -> Vec<u8> {
    match missing {
        Some(missing) => format!("{missing}\n{text}").into_bytes(),
        None => text.into_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_and_nothing_is_said_where_nothing_is() {
        let nothing = Missing { workers: (0, 84), ..Missing::default() };
        assert_eq!(nothing.clone().if_any(false), None);
        let told = |missing: Missing| missing.if_any(true).unwrap().to_string();
        assert_eq!(told(nothing), "incomplete: not everything was read in time; reading again continues");
        let some = Missing { workers: (3, 84), outputs: 1, files: 2, sessions: 1 };
        assert_eq!(
            told(some),
            "incomplete: 3 of 84 workers not read, 1 output not read, 2 files not searched, 1 session not read yet for \
             workers inside; reading again continues"
        );
    }
}
