//! The parts that an answer lacks because time ran out.

use std::fmt;

use swarmletfs_base::text::count;

/// The parts missing from an answer. If nothing is counted, the answer lacks an unknown part.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Missing {
    pub unread_workers: usize,
    pub workers: usize,
    pub outputs: u64,
    pub files: u64,
    /// Number of sessions not yet read for the workers inside them.
    pub sessions: usize,
}

impl Missing {
    /// Returns `self` if anything is missing or the render ran out of time.
    pub fn if_any(self, ran_out: bool) -> Option<Missing> {
        let nothing = Missing { workers: self.workers, ..Missing::default() };
        (ran_out || self != nothing).then_some(self)
    }
}

impl fmt::Display for Missing {
    /// Writes one line without its end, such as `incomplete: 3 of 84 workers not read; reading
    /// again continues`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if self.unread_workers > 0 {
            let workers = count(self.workers, "worker");
            parts.push(format!("{} of {workers} not read", self.unread_workers));
        }
        if self.outputs > 0 {
            parts.push(format!("{} not read", count(self.outputs, "output")));
        }
        if self.files > 0 {
            parts.push(format!("{} not searched", count(self.files, "file")));
        }
        if self.sessions > 0 {
            parts.push(format!(
                "{} not read yet for workers inside",
                count(self.sessions, "session")
            ));
        }
        if parts.is_empty() {
            parts.push("not everything was read in time".into());
        }
        write!(f, "incomplete: {}; reading again continues", parts.join(", "))
    }
}

pub fn prepend_notice(missing: Option<&Missing>, text: String) -> Vec<u8> {
    match missing {
        Some(missing) => format!("{missing}\n{text}").into_bytes(),
        None => text.into_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incomplete_line_names_each_missing_part() {
        let nothing = Missing { workers: 84, ..Missing::default() };
        assert_eq!(nothing.clone().if_any(false), None);
        let line = |missing: Missing| missing.if_any(true).unwrap().to_string();
        assert_eq!(
            line(nothing),
            "incomplete: not everything was read in time; reading again continues"
        );
        let some = Missing { unread_workers: 3, workers: 84, outputs: 1, files: 2, sessions: 1 };
        assert_eq!(
            line(some),
            "incomplete: 3 of 84 workers not read, 1 output not read, 2 files not searched, 1 session not read yet for \
             workers inside; reading again continues"
        );
    }
}
