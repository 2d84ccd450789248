//! Errors of changes to a store.

use std::path::Path;

use rustix::io::Errno;
use swarmletfs_base::error::Error as PathError;
use swarmletfs_base::name::printable;

/// Result of a change to a store.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Reason why a change to a store was not acknowledged.
///
/// Unless the text says otherwise, the store is as it was. If the disk failed while the change was
/// made durable, the change may be there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The store cannot be opened for writing.
    #[error("cannot open the store {store}: {reason}; {cure}")]
    Store {
        /// Path of the store.
        store: String,
        /// The problem.
        reason: String,
        /// The remedy.
        cure: String,
    },
    /// A value of a request cannot be written.
    #[error("cannot use {value} as {role}: {reason}")]
    Invalid {
        /// The value, escaped and quoted.
        value: String,
        /// The meaning of the value, with its article.
        role: &'static str,
        /// The problem, and the rule.
        reason: String,
    },
    /// The id belongs to another worker.
    #[error("cannot create worker {0}: the id is taken; try another id, or none to get a new one")]
    Taken(String),
    /// The id belonged to a worker that was removed.
    #[error(
        "cannot create worker {worker}: a worker of this id was removed {when}; try another id"
    )]
    Removed {
        /// The id, escaped.
        worker: String,
        /// The day, as `on 2026-01-20`, or `earlier`.
        when: String,
    },
    /// The store has no worker with this id.
    #[error("cannot find worker {worker} in {store}; try `swarmletfs ls workers`")]
    NoWorker {
        /// The id, escaped.
        worker: String,
        /// Path of the store.
        store: String,
    },
    /// The worker has finished, so its files do not change any more.
    #[error("cannot change worker {worker}: it has finished ({status}); try a new worker")]
    Finished {
        /// The id of the worker.
        worker: String,
        /// Its status.
        status: String,
    },
    /// A call of the worker is being recorded.
    #[error(
        "cannot finish worker {worker}: {call} is still being recorded; try again when it has ended"
    )]
    OpenCall {
        /// The id of the worker.
        worker: String,
        /// The file of the call.
        call: String,
    },
    /// Messages are not lines of JSON objects with a role.
    #[error("cannot record messages: line {line}: {reason}; nothing was recorded")]
    Message {
        /// Number of the line, from 1.
        line: usize,
        /// The problem, and the rule.
        reason: String,
    },
    /// A content that was given to be written cannot be read.
    #[error("cannot read {role}: {message}")]
    Input {
        /// The meaning of the content, with its article.
        role: &'static str,
        /// The error of the reader.
        message: String,
    },
    /// A file of the store has a content that cannot be changed without losing some of it.
    #[error("cannot change {path}: {reason}, so it was left as it is; try `swarmletfs validate`")]
    Content {
        /// The file.
        path: String,
        /// The problem.
        reason: &'static str,
    },
    /// Changes of a workspace cannot be applied or taken back.
    #[error("cannot {action}: {reason}; {cure}")]
    Approval {
        /// The operation, with the worker: `apply the changes of w1`.
        action: String,
        /// The problem.
        reason: String,
        /// The remedy.
        cure: String,
    },
    /// A file of the store or of a workspace cannot be read or written.
    #[error("cannot {action}: {}{}", reason(.error), cure(.error))]
    Path {
        /// The operation, with the path: `write /s/workers/w1/metrics.jsonl`.
        action: String,
        /// The error of the system.
        error: PathError,
    },
}

impl Error {
    /// Returns an error about a value that was given as `role`.
    pub fn invalid(value: &[u8], role: &'static str, reason: impl Into<String>) -> Error {
        let mut shown = printable(value);
        if let Some((end, _)) = shown.char_indices().nth(SHOWN_MAX) {
            shown.truncate(end);
            shown.push('…');
        }
        Error::Invalid { value: format!("`{shown}`"), role, reason: reason.into() }
    }

    /// Returns the errno, if the system reported one.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Error::Path { error, .. } => Some(error.errno()),
            _ => None,
        }
    }
}

/// Longest part of a value that an error repeats, in characters.
const SHOWN_MAX: usize = 100;

/// Describes an error of the system. A real folder is no view of one.
fn reason(error: &PathError) -> String {
    match error {
        PathError::NotFound => "no such file or folder".to_owned(),
        error => error.to_string(),
    }
}

/// Returns the remedy for an error of the system, or nothing.
fn cure(error: &PathError) -> &'static str {
    match error {
        PathError::Io(Errno::NOSPC | Errno::DQUOT) => "; try again with more space",
        PathError::Io(Errno::ACCESS | Errno::PERM) => {
            "; try as a user who may write there, or change its permissions"
        }
        PathError::Io(Errno::ROFS) => "; try a store on a file system that can be written",
        PathError::Io(Errno::BUSY) => {
            "; another process has held its lock for 30 s: try again when that has ended"
        }
        _ => "",
    }
}

/// Returns the error about the content of the file `name` in the directory `path`.
pub(super) fn bad_content(path: &Path, name: &str, reason: &'static str) -> Error {
    let path = path.join(name);
    Error::Content { path: printable(path.as_os_str().as_encoded_bytes()), reason }
}

/// Names the path in the error of an operation.
pub trait During<T> {
    /// Adds what was tried, as a verb, and where.
    fn during(self, verb: &str, path: &Path, name: &[u8]) -> Result<T>;
}

impl<T> During<T> for std::result::Result<T, PathError> {
    fn during(self, verb: &str, path: &Path, name: &[u8]) -> Result<T> {
        self.map_err(|error| {
            let mut place = printable(path.as_os_str().as_encoded_bytes());
            if !name.is_empty() {
                place.push('/');
                place.push_str(&printable(name));
            }
            Error::Path { action: format!("{verb} {place}"), error }
        })
    }
}
