//! Errors of changes to a store.

use std::path::Path;

use rustix::io::Errno;
use swarmletfs_base::error::Error as PathError;
use swarmletfs_base::name::printable;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Reason why a change to a store was not acknowledged.
///
/// Unless the text says otherwise, the store is as it was. If the disk failed while the change was
/// made durable, the change may be there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("cannot open the store {store}: {reason}; {cure}")]
    Store {
        store: String,
        reason: String,
        /// The remedy, as an imperative that ends the message.
        cure: String,
    },
    /// A value of a request cannot be written.
    #[error("cannot use {value} as {role}: {reason}")]
    Invalid {
        /// The value, escaped and quoted.
        value: String,
        /// The meaning of the value, with its article.
        role: &'static str,
        reason: String,
    },
    #[error("cannot create worker {0}: the id is taken; try another id, or none to get a new one")]
    Taken(String),
    /// The id belonged to a worker that was removed.
    #[error(
        "cannot create worker {worker}: a worker of this id was removed {when}; try another id"
    )]
    Removed {
        worker: String,
        /// The day, as `on 2026-01-20`, or `earlier`.
        when: String,
    },
    /// The worker was removed.
    #[error("cannot find worker {worker}: `swarmletfs gc` removed it {when}; {rest}")]
    Gone {
        /// The id, escaped.
        worker: String,
        /// The day and the rule, as `on 2026-01-20 (--older-than 30d)`, or `earlier`.
        when: String,
        /// The place of its copy, or that there is none.
        rest: String,
    },
    #[error("cannot find worker {worker} in {store}; try `swarmletfs ls workers`")]
    NoWorker {
        /// The id, escaped.
        worker: String,
        store: String,
    },
    /// The worker has finished, so its files do not change any more.
    #[error("cannot change worker {worker}: it has finished ({status}); try a new worker")]
    Finished {
        /// The id of the worker, escaped.
        worker: String,
        status: String,
    },
    /// A call of the worker is being recorded.
    #[error(
        "cannot finish worker {worker}: {call} is still being recorded; try again when it has ended"
    )]
    OpenCall {
        worker: String,
        /// Path of the call's output, escaped.
        call: String,
    },
    /// Messages are not lines of JSON objects with a role.
    #[error("cannot record messages: line {line}: {reason}; nothing was recorded")]
    Message {
        /// Number of the line, from 1.
        line: usize,
        reason: String,
    },
    /// A content that was given to be written cannot be read.
    #[error("cannot read {role}: {message}")]
    Input {
        /// The meaning of the content, with its article.
        role: &'static str,
        message: String,
    },
    /// A file of the store has a content that cannot be changed without losing some of it.
    #[error("cannot change {path}: {reason}, so it was left as it is; try `swarmletfs validate`")]
    Content {
        /// Path of the file, escaped.
        path: String,
        reason: &'static str,
    },
    /// Changes of a workspace cannot be applied or taken back.
    #[error("cannot {action}: {reason}; {cure}")]
    Approval {
        /// The operation, with the worker: `apply the changes of w1`.
        action: String,
        reason: String,
        cure: String,
    },
    #[error("cannot {action}: {}{}", reason(.error), cure(.error))]
    Path {
        /// The operation, with the path: `write /s/workers/w1/metrics.jsonl`.
        action: String,
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

pub(super) fn bad_content(path: &Path, name: &str, reason: &'static str) -> Error {
    let path = path.join(name);
    Error::Content { path: printable(path.as_os_str().as_encoded_bytes()), reason }
}

pub trait During<T> {
    /// Adds the attempted operation, as a verb, and its path.
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
