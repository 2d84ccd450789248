//! Locks of directories and files, which the system releases when their process ends.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use swarmletfs_base::error::{Error, Result};

/// Time to wait for a lock. A longer wait means that its holder hangs.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest pause between two attempts to take a lock.
const LOCK_PAUSE_MAX: Duration = Duration::from_millis(10);

/// An exclusive lock of a directory or a file, released when dropped or when the process ends.
#[derive(Debug)]
#[must_use = "dropping a lock releases it"]
pub struct Lock {
    _fd: OwnedFd,
}

impl Lock {
    /// Takes the lock of an open file or directory. Returns `None` if it is taken.
    pub fn try_new(fd: OwnedFd) -> Result<Option<Lock>> {
        Ok(try_lock(fd.as_fd())?.then_some(Lock { _fd: fd }))
    }
}

fn try_lock(fd: BorrowedFd<'_>) -> Result<bool> {
    match rustix::fs::flock(fd, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

pub(super) fn is_locked(fd: BorrowedFd<'_>) -> Result<bool> {
    // Shared, so that two searches do not take each other for a writer.
    match rustix::fs::flock(fd, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(false),
        Err(Errno::WOULDBLOCK) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Waits for the lock of an open file.
///
/// # Errors
///
/// `EBUSY` if another process holds the lock for more than [`LOCK_TIMEOUT`].
pub(super) fn lock_file(file: impl AsFd) -> Result<()> {
    wait_for_lock(|| Ok(try_lock(file.as_fd())?.then_some(())))
}

/// Calls `try_lock` until it returns a lock.
///
/// # Errors
///
/// `EBUSY` if that takes more than [`LOCK_TIMEOUT`].
pub(super) fn wait_for_lock<T>(mut try_lock: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    // flock has no timeout, and a holder that hangs must not hang every other writer.
    let (start, mut pause) = (Instant::now(), Duration::from_micros(100));
    loop {
        if let Some(lock) = try_lock()? {
            return Ok(lock);
        }
        if start.elapsed() > LOCK_TIMEOUT {
            return Err(Error::Io(Errno::BUSY));
        }
        thread::sleep(pause);
        pause = (pause * 2).min(LOCK_PAUSE_MAX);
    }
}
