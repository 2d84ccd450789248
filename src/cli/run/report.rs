//! Reports of a run: to a person on stderr, or to the process of `--each`.

use std::fs::File;
use std::io::Write;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::analysis::worker_digest::WorkerDigest;
use crate::cli::store_selection::StoreSelection;
use crate::cli::terminal::{escape_controls, print_message};
use crate::model::{Outcome, Status};
use crate::name::Name;
use crate::text::count;
use swarmletfs_record::write::{Store, Worker};

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RunEvent {
    Started {
        /// Its id.
        worker: String,
    },
    /// A fact that the user must know, such as the reason for a copy; the run goes on.
    Notice(String),
    Ended(Box<RunEnd>),
    /// There was no run, or its record is not complete.
    Failed(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RunEnd {
    pub(super) worker: String,
    /// Its status in the store, such as `completed`.
    pub(super) status: String,
    /// Reason for the failure; empty if the worker did not fail.
    pub(super) error: String,
    /// Its outcome by the record: `ok`, `failed` or `unknown`.
    pub(super) outcome: String,
    /// The cause of a failure that its record shows; empty without one.
    pub(super) cause: String,
    /// Time from the start of the command to its end.
    pub(super) duration: Duration,
    /// Numbers of its changes; `None` if they are unknown.
    pub(super) changes: Option<ChangeCounts>,
    pub(super) notes: Vec<String>,
    /// The files that it wrote where they vanish.
    pub(super) vanished: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ChangeCounts {
    pub(super) files: u64,
    pub(super) added: u64,
    pub(super) removed: u64,
    /// Number of changes that cannot be applied.
    pub(super) refused: u64,
    /// Number of changed paths that are left out because git ignores them.
    pub(super) ignored: u64,
    /// Number of new commits in the view.
    #[serde(default)]
    pub(super) commits: u64,
}

impl RunEnd {
    /// Returns the end of a worker of this status, of which nothing more is known.
    pub(super) fn new(worker: &Worker, status: Status, error: &str) -> RunEnd {
        RunEnd {
            worker: worker.id().display(),
            status: status.to_string(),
            error: error.to_owned(),
            outcome: Outcome::Unknown.as_str().to_owned(),
            cause: String::new(),
            duration: Duration::ZERO,
            changes: None,
            notes: Vec::new(),
            vanished: None,
        }
    }

    /// Reads the outcome from the record of the worker. It stays unknown if it cannot be read.
    pub(super) fn read_outcome(&mut self, store: &Store, worker: &Worker) {
        let selection = StoreSelection::only(store.root().path().to_path_buf());
        if let Some(digest) = read_digest(&selection, worker.id()) {
            self.outcome = digest.outcome.as_str().to_owned();
            self.cause = digest.cause;
        }
    }

    /// Returns how the worker ended, such as `failed (exit code 3)`.
    pub(super) fn outcome(&self) -> String {
        let reason = [&self.error, &self.cause].into_iter().find(|reason| !reason.is_empty());
        let reason = reason.map(|reason| escape_controls(reason));
        let reason = reason.or_else(|| {
            let is_plain = self.outcome != "unknown" || self.status == "completed";
            (!is_plain).then(|| self.status.clone())
        });
        match reason {
            Some(reason) => format!("{} ({reason})", self.outcome),
            None => self.outcome.clone(),
        }
    }

    /// Returns the numbers of the changes, such as `3 files changed (+40 -12)`.
    pub(super) fn describe_changes(&self) -> String {
        let Some(ChangeCounts { files, added, removed, refused, ignored, commits }) = self.changes
        else {
            return "its changes are unknown".to_owned();
        };
        let mut text = match files {
            0 => "no files changed".to_owned(),
            files => format!("{} changed (+{added} -{removed})", count(files, "file")),
        };
        if commits > 0 {
            text.push_str(&format!(", {}", count(commits, "commit")));
        }
        if refused > 0 {
            text.push_str(&format!(", {} cannot be applied", count(refused, "change")));
        }
        if ignored > 0 {
            text.push_str(&format!(", {} left out", count(ignored, "ignored path")));
        }
        text
    }

    fn to_line(&self) -> String {
        let changes = self.describe_changes();
        let line = format!("worker {}: {}, {changes}", self.worker, self.outcome());
        if self.changes.is_some_and(|changes| changes.files + changes.commits > 0) {
            format!("{line}; see `swarmletfs changes {}`", self.worker)
        } else {
            line
        }
    }
}

fn read_digest(selection: &StoreSelection, id: &Name) -> Option<WorkerDigest> {
    let view = selection.open_without_writing(id.as_bytes()).ok()?;
    let visible = view.visible();
    let member = visible.members.iter().find(|member| member.entry.id.0 == *id)?;
    WorkerDigest::read(&view, member).ok()
}

#[derive(Debug)]
pub(super) enum Reporter {
    Person {
        /// Prints only errors, and what the user must know of how the command runs or ran.
        quiet: bool,
    },
    /// A process reads one JSON object per line.
    Process(File),
}

impl Reporter {
    pub(super) fn person(quiet: bool) -> Reporter {
        Reporter::Person { quiet }
    }

    pub(super) fn report(&self, event: &RunEvent) {
        match self {
            Reporter::Process(pipe) => {
                let mut pipe = pipe;
                let mut line = serde_json::to_vec(event).unwrap_or_default();
                line.push(b'\n');
                // Without a reader, nobody receives the event.
                let _ = pipe.write_all(&line);
            }
            Reporter::Person { quiet } => match event {
                RunEvent::Failed(error) => print_message(error),
                RunEvent::Notice(text) => print_message(text),
                RunEvent::Started { worker } if !quiet => {
                    print_message(&format!("worker {worker}"))
                }
                RunEvent::Started { .. } => {}
                RunEvent::Ended(end) => {
                    end.notes.iter().for_each(|note| print_message(&escape_controls(note)));
                    if !quiet {
                        end.vanished.iter().for_each(|text| print_message(text));
                        print_message(&end.to_line());
                    }
                }
            },
        }
    }

    pub(super) fn notice(&self, text: impl Into<String>) {
        self.report(&RunEvent::Notice(text.into()));
    }

    /// Reports an error after which the run goes on.
    pub(super) fn failure(&self, error: &anyhow::Error) {
        self.report(&RunEvent::Failed(format!("{error:#}")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_is_one_line() {
        let counts = ChangeCounts { files: 3, added: 40, removed: 12, ..ChangeCounts::default() };
        let mut end = RunEnd {
            worker: "w1".into(),
            status: "completed".into(),
            error: String::new(),
            outcome: "ok".into(),
            cause: String::new(),
            duration: Duration::ZERO,
            changes: Some(counts),
            notes: Vec::new(),
            vanished: None,
        };
        assert_eq!(
            end.to_line(),
            "worker w1: ok, 3 files changed (+40 -12); see `swarmletfs changes w1`"
        );
        end.outcome = "failed".into();
        end.cause = "red at the end: 1 test failed".into();
        assert!(end.to_line().starts_with("worker w1: failed (red at the end: 1 test failed), "));
        end.status = "failed".into();
        end.error = "exit code 3".into();
        end.changes = Some(ChangeCounts::default());
        assert_eq!(end.to_line(), "worker w1: failed (exit code 3), no files changed");
        end.changes = Some(ChangeCounts { ignored: 1, ..ChangeCounts::default() });
        let expected = "worker w1: failed (exit code 3), no files changed, 1 ignored path left out";
        assert_eq!(end.to_line(), expected);
        end.changes = Some(ChangeCounts { files: 1, refused: 1, ignored: 2, ..counts });
        assert_eq!(
            end.to_line(),
            "worker w1: failed (exit code 3), 1 file changed (+40 -12), 1 change cannot be \
             applied, 2 ignored paths left out; see `swarmletfs changes w1`"
        );
    }
}
