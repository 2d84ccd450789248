//! The one error type of the library, and its one translation to errno.
//!
//! Inside, an attempted escape and an absent file are different errors, so that tests and logs can tell an attack
//! from a miss; at the door both are ENOENT. The match in [`Error::errno`] has no catch-all arm on purpose: a new
//! error has to choose its number.

use rustix::io::Errno;

/// What the library returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong between a name and its bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no such name in this view. Said of what is absent and of what is not yours alike.
    #[error("no such file or folder in this view")]
    NotFound,
    /// A link, or a path that leads out of the store: `..`, or a foreign mount.
    #[error("a link or a way out of the store")]
    Escape,
    /// The name is empty, `.`, `..`, or holds `/` or NUL.
    #[error("not a valid name")]
    InvalidName,
    /// The name is longer than [`crate::name::NAME_MAX`] bytes.
    #[error("the name is too long")]
    NameTooLong,
    /// A folder was expected.
    #[error("not a folder")]
    NotADirectory,
    /// A file was expected.
    #[error("a folder, not a file")]
    IsADirectory,
    /// A FIFO, socket or device where only regular files are read.
    #[error("not a regular file")]
    Special,
    /// The version that was looked up is gone; looking up again gives the current one.
    #[error("this version is gone")]
    Stale,
    /// An inode or handle number that was never given out.
    #[error("no such inode or handle")]
    UnknownHandle,
    /// There was no time to look at it.
    #[error("not looked at in time")]
    Late,
    /// Reading it did not end: a thread is still at it, and nobody waits for that any longer.
    #[error("reading it did not end in time and was given up")]
    GivenUp,
    /// Changes are refused: this side only reads.
    #[error("read-only file system")]
    ReadOnly,
    /// The store's file system said so.
    #[error("{}", io_text(.0))]
    Io(Errno),
}

impl Error {
    /// The errno that a client of the mount is given.
    pub fn errno(&self) -> Errno {
        match self {
            Error::NotFound | Error::Escape | Error::Special => Errno::NOENT,
            Error::InvalidName => Errno::INVAL,
            Error::NameTooLong => Errno::NAMETOOLONG,
            Error::NotADirectory => Errno::NOTDIR,
            Error::IsADirectory => Errno::ISDIR,
            Error::Stale => Errno::STALE,
            Error::UnknownHandle => Errno::BADF,
            Error::Late | Error::GivenUp => Errno::TIMEDOUT,
            Error::ReadOnly => Errno::ROFS,
            // To the kernel this means that the program never knows the operation, and it does not ask for it again.
            Error::Io(Errno::NOSYS) => Errno::IO,
            Error::Io(errno) => *errno,
        }
    }

    /// Returns true if there was no time for it.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Error::Late | Error::GivenUp)
    }

    /// Whether a stat that ended so found no name that may be followed: absent, behind a link or a foreign mount, or
    /// below what is no folder.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Error::NotFound | Error::Escape | Error::NotADirectory)
    }

    /// Whether an open that ended so found no file that may be read: nowhere, or something else in its place. It stays
    /// so until something changes that stat tells of.
    pub fn is_not_a_file(&self) -> bool {
        self.is_not_found() || matches!(self, Error::Special | Error::IsADirectory)
    }

    /// Whether this is an ordinary miss, which is not worth a warning.
    pub fn is_miss(&self) -> bool {
        matches!(self, Error::NotFound | Error::Stale | Error::InvalidName | Error::NameTooLong)
    }
}

impl From<Errno> for Error {
    /// Errors of system calls beneath a root (openat2 with BENEATH, NO_SYMLINKS, NO_XDEV): EXDEV and ELOOP are
    /// attempts to leave it.
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

/// The system's sentence for `errno`, without the number that the standard library adds.
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
    fn escapes_are_told_apart_inside() {
        assert_eq!(Error::from(Errno::XDEV), Error::Escape);
        assert_eq!(Error::from(Errno::LOOP), Error::Escape);
        assert_eq!(Error::from(Errno::NOENT), Error::NotFound);
        assert_eq!(Error::from(Errno::IO).errno(), Errno::IO);
    }

    #[test]
    fn every_error_has_its_number_and_its_kind() {
        // The error, its number, whether it found nothing to follow, nothing to read, and is an ordinary miss.
        for (error, errno, nowhere, absence, miss) in [
            (Error::NotFound, Errno::NOENT, true, true, true),
            (Error::Escape, Errno::NOENT, true, true, false),
            (Error::Special, Errno::NOENT, false, true, false),
            (Error::InvalidName, Errno::INVAL, false, false, true),
            (Error::NameTooLong, Errno::NAMETOOLONG, false, false, true),
            (Error::NotADirectory, Errno::NOTDIR, true, true, false),
            (Error::IsADirectory, Errno::ISDIR, false, true, false),
            (Error::Stale, Errno::STALE, false, false, true),
            (Error::UnknownHandle, Errno::BADF, false, false, false),
            (Error::Late, Errno::TIMEDOUT, false, false, false),
            (Error::ReadOnly, Errno::ROFS, false, false, false),
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
    fn what_the_system_says_of_a_path_keeps_its_number() {
        for errno in [Errno::NOENT, Errno::NOTDIR, Errno::ISDIR, Errno::NAMETOOLONG, Errno::STALE, Errno::MFILE] {
            assert_eq!(Error::from(errno).errno(), errno);
        }
        assert!(!matches!(Error::from(Errno::STALE), Error::Io(_)), "looked up again, it is found");
    }

    #[test]
    fn io_errors_are_sentences() {
        assert_eq!(Error::Io(Errno::ACCESS).to_string(), "permission denied");
    }
}
