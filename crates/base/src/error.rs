//! The error type of the library and its translation to errno.
//!
//! An attempted escape and an absent file are different errors, so that tests and logs can
//! distinguish an attack from a miss. Clients of the mount receive ENOENT for both. The match in
//! [`Error::errno`] has no catch-all arm on purpose: every new error must choose its errno.

use rustix::io::Errno;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The view has no such name: it is absent or belongs to another owner.
    #[error("no such file or folder in this view")]
    NotFound,
    /// The beginning of an id that several workers share; holds their ids.
    #[error("the id is ambiguous: {0}; give more of it")]
    AmbiguousId(String),
    /// A symlink, or a path that leads out of the store by `..` or a foreign mount.
    #[error("a link or a path out of the store")]
    Escape,
    /// The name is empty, `.` or `..`, or contains `/` or NUL.
    #[error("not a valid name")]
    InvalidName,
    /// The name is longer than [`crate::name::NAME_MAX`] bytes.
    #[error("the name is too long")]
    NameTooLong,
    #[error("not a folder")]
    NotADirectory,
    #[error("a folder, not a file")]
    IsADirectory,
    /// The path is a FIFO, socket or device; only regular files are read.
    #[error("not a regular file")]
    Special,
    /// The version that was looked up is gone. A new lookup returns the current one.
    #[error("this version is gone")]
    Stale,
    #[error("no such inode or handle")]
    UnknownHandle,
    #[error("not read in time")]
    Late,
    /// Reading did not return after its deadline. A thread still runs, and no caller waits for it.
    #[error("reading did not finish in time and was abandoned")]
    Abandoned,
    #[error("read-only file system")]
    ReadOnly,
    /// A file that breaks the rules of its format, with the broken rule in words.
    #[error("{0}")]
    Malformed(&'static str),
    /// Any other error of the store's file system.
    #[error("{}", io_text(.0))]
    Io(Errno),
}

impl Error {
    /// Returns the errno that a client of the mount receives.
    pub fn errno(&self) -> Errno {
        match self {
            Error::NotFound | Error::AmbiguousId(_) | Error::Escape | Error::Special => {
                Errno::NOENT
            }
            Error::InvalidName => Errno::INVAL,
            Error::NameTooLong => Errno::NAMETOOLONG,
            Error::NotADirectory => Errno::NOTDIR,
            Error::IsADirectory => Errno::ISDIR,
            Error::Stale => Errno::STALE,
            Error::UnknownHandle => Errno::BADF,
            Error::Late | Error::Abandoned => Errno::TIMEDOUT,
            Error::ReadOnly => Errno::ROFS,
            Error::Malformed(_) => Errno::IO,
            // For ENOSYS the kernel would never send this operation again.
            Error::Io(Errno::NOSYS) => Errno::IO,
            Error::Io(errno) => *errno,
        }
    }

    pub fn is_timeout(&self) -> bool {
        matches!(self, Error::Late | Error::Abandoned)
    }

    /// Returns true if a stat found no path that may be followed: it is absent, behind a symlink or
    /// a foreign mount, or below a file.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Error::NotFound | Error::Escape | Error::NotADirectory)
    }

    /// Returns true if an open found no file that may be read: no path, or something other than a
    /// regular file. This result holds until stat reports a change.
    pub fn is_not_a_file(&self) -> bool {
        self.is_not_found() || matches!(self, Error::Special | Error::IsADirectory)
    }

    /// Returns true for an ordinary miss, which is not worth a warning.
    pub fn is_miss(&self) -> bool {
        matches!(self, Error::NotFound | Error::Stale | Error::InvalidName | Error::NameTooLong)
    }
}

impl From<Errno> for Error {
    /// Converts an error of a system call beneath a root (openat2 with BENEATH, NO_SYMLINKS,
    /// NO_XDEV). EXDEV and ELOOP are attempts to leave the root.
    fn from(errno: Errno) -> Error {
        match errno {
            Errno::NOENT => Error::NotFound,
            Errno::XDEV | Errno::LOOP => Error::Escape,
            Errno::NOTDIR => Error::NotADirectory,
            Errno::ISDIR => Error::IsADirectory,
            Errno::NAMETOOLONG => Error::NameTooLong,
            Errno::STALE => Error::Stale,
            other => Error::Io(other),
        }
    }
}

/// Returns the system's message for `errno`, without the number that the standard library appends.
fn io_text(errno: &Errno) -> String {
    let text = std::io::Error::from_raw_os_error(errno.raw_os_error()).to_string();
    match text.rfind(" (os error") {
        Some(end) => text.get(..end).unwrap_or(&text).to_lowercase(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_forbidden_and_escaping_look_the_same_outside() {
        assert_eq!(Error::NotFound.errno(), Error::Escape.errno());
        assert_eq!(Error::NotFound.errno(), Error::Special.errno());
    }

    #[test]
    fn escapes_are_distinct_inside() {
        assert_eq!(Error::from(Errno::XDEV), Error::Escape);
        assert_eq!(Error::from(Errno::LOOP), Error::Escape);
        assert_eq!(Error::from(Errno::NOENT), Error::NotFound);
        assert_eq!(Error::from(Errno::IO).errno(), Errno::IO);
    }

    #[test]
    fn every_error_has_an_errno_and_a_class() {
        // Error, errno, and the results of is_not_found, is_not_a_file and is_miss.
        for (error, errno, nowhere, absence, miss) in [
            (Error::NotFound, Errno::NOENT, true, true, true),
            (Error::Escape, Errno::NOENT, true, true, false),
            (Error::Special, Errno::NOENT, false, true, false),
            (Error::AmbiguousId("a, b".into()), Errno::NOENT, false, false, false),
            (Error::InvalidName, Errno::INVAL, false, false, true),
            (Error::NameTooLong, Errno::NAMETOOLONG, false, false, true),
            (Error::NotADirectory, Errno::NOTDIR, true, true, false),
            (Error::IsADirectory, Errno::ISDIR, false, true, false),
            (Error::Stale, Errno::STALE, false, false, true),
            (Error::UnknownHandle, Errno::BADF, false, false, false),
            (Error::Late, Errno::TIMEDOUT, false, false, false),
            (Error::ReadOnly, Errno::ROFS, false, false, false),
            (Error::Malformed("torn"), Errno::IO, false, false, false),
            (Error::Io(Errno::NOSYS), Errno::IO, false, false, false),
            (Error::Io(Errno::ACCESS), Errno::ACCESS, false, false, false),
        ] {
            assert_eq!(error.errno(), errno, "{error:?}");
            assert_eq!(
                (error.is_not_found(), error.is_not_a_file(), error.is_miss()),
                (nowhere, absence, miss),
                "{error:?}"
            );
        }
    }

    #[test]
    fn path_errors_of_the_system_keep_their_errno() {
        for errno in [
            Errno::NOENT,
            Errno::NOTDIR,
            Errno::ISDIR,
            Errno::NAMETOOLONG,
            Errno::STALE,
            Errno::MFILE,
        ] {
            assert_eq!(Error::from(errno).errno(), errno);
        }
        assert!(!matches!(Error::from(Errno::STALE), Error::Io(_)), "a new lookup finds it");
    }

    #[test]
    fn io_errors_are_sentences() {
        assert_eq!(Error::Io(Errno::ACCESS).to_string(), "permission denied");
    }
}
