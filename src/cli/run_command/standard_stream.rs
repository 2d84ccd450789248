//! Our stdout and stderr, written without ever blocking.
//!
//! A reader that pauses, such as a pager, must hold up the command but neither a signal nor the
//! timeout. The descriptions are shared with other processes, so `O_NONBLOCK` cannot be set on
//! them.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags, retry_on_intr};

/// Bytes to write at once to a file that can only be polled, which promises room for a few bytes.
const POLLED_CHUNK: usize = 256;

enum Method {
    /// Writes block, but only for the disk.
    Blocking,
    /// Each write carries `RWF_NOWAIT`: pipes and sockets.
    NoWait,
    /// Writes go through a description of our own with `O_NONBLOCK`: terminals.
    NonBlocking(OwnedFd),
    /// A small write follows a successful poll: files that support nothing else.
    Polled,
}

pub(super) struct StandardStream {
    fd: BorrowedFd<'static>,
    method: Method,
    pending: Vec<u8>,
    is_closed: bool,
}

impl StandardStream {
    pub(super) fn new(fd: BorrowedFd<'static>) -> StandardStream {
        let stat = rustix::fs::fstat(fd);
        let method = match stat.map(|stat| FileType::from_raw_mode(stat.st_mode)) {
            Ok(FileType::RegularFile) => Method::Blocking,
            Ok(FileType::CharacterDevice) if rustix::termios::isatty(fd) => {
                reopen(fd).map_or(Method::Polled, Method::NonBlocking)
            }
            _ => Method::NoWait,
        };
        StandardStream { fd, method, pending: Vec::new(), is_closed: false }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'static> {
        self.fd
    }

    pub(super) fn is_stalled(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Writes `bytes` after those that wait, and keeps the bytes that find no room.
    ///
    /// # Errors
    ///
    /// Fails with `BrokenPipe` whenever nobody reads the stream. Fails once with any other error;
    /// from then on, all bytes are dropped.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.is_closed {
            return Ok(());
        }
        if self.is_stalled() {
            self.pending.extend_from_slice(bytes);
            return Ok(());
        }
        let rest = self.write_available(bytes)?;
        self.pending.extend_from_slice(rest);
        Ok(())
    }

    /// Writes the bytes that wait, as far as there is room.
    ///
    /// # Errors
    ///
    /// Fails with `BrokenPipe` whenever nobody reads the stream. Fails once with any other error;
    /// from then on, all bytes are dropped.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        let pending = std::mem::take(&mut self.pending);
        let rest = self.write_available(&pending)?;
        self.pending = rest.to_vec();
        Ok(())
    }

    /// Drops the bytes that wait and all later ones.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
        self.pending = Vec::new();
    }

    /// Makes writes block, for a file that cannot be polled.
    pub(super) fn set_blocking(&mut self) {
        self.method = Method::Blocking;
    }

    /// Writes as much as there is room for, and returns the rest.
    fn write_available<'a>(&mut self, bytes: &'a [u8]) -> io::Result<&'a [u8]> {
        let mut rest = bytes;
        while !rest.is_empty() {
            match self.write_once(rest) {
                Ok(0) | Err(Errno::AGAIN) => break,
                Ok(count) => rest = rest.get(count..).ok_or(Errno::INVAL)?,
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL)
                    if matches!(self.method, Method::NoWait) =>
                {
                    self.method = Method::Polled;
                }
                Err(error) => {
                    // A closed pipe reports every write, so that each source of it ends.
                    if error != Errno::PIPE {
                        self.close();
                    }
                    return Err(error.into());
                }
            }
        }
        Ok(rest)
    }

    fn write_once(&self, bytes: &[u8]) -> rustix::io::Result<usize> {
        match &self.method {
            Method::Blocking => retry_on_intr(|| rustix::io::write(self.fd, bytes)),
            Method::NonBlocking(own) => retry_on_intr(|| rustix::io::write(own, bytes)),
            Method::NoWait => retry_on_intr(|| {
                let bytes = [IoSlice::new(bytes)];
                rustix::io::pwritev2(self.fd, &bytes, u64::MAX, ReadWriteFlags::NOWAIT)
            }),
            Method::Polled => {
                if !is_ready(self.fd, PollFlags::OUT)? {
                    return Err(Errno::AGAIN);
                }
                let chunk = bytes.get(..POLLED_CHUNK).unwrap_or(bytes);
                retry_on_intr(|| rustix::io::write(self.fd, chunk))
            }
        }
    }
}

/// Returns true if `fd` is ready now for one of `flags`, or has an error.
pub(super) fn is_ready(fd: impl AsFd, flags: PollFlags) -> rustix::io::Result<bool> {
    let mut fds = [PollFd::from_borrowed_fd(fd.as_fd(), flags)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    Ok(retry_on_intr(|| poll(&mut fds, Some(&now)))? > 0)
}

/// Opens the terminal behind `fd` again, so that `O_NONBLOCK` is not shared with its other users.
fn reopen(fd: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
}
