//! Where the output of the command comes from, pipes or the master of a terminal, and where it
//! goes: our stdout and stderr, written without ever blocking.
//!
//! A reader of our stdout that pauses, such as a pager, must hold up the command but neither a
//! signal nor the timeout. The descriptions are shared with other processes, so `O_NONBLOCK` cannot
//! be set on them.
//!
//! # The order of two pipes
//!
//! If our stdout and stderr are the same file, one pipe serves both, and its order is the order of
//! the writes. Otherwise there are two pipes, and the order comes from three facts:
//!
//! - A pipe of one page, in packet mode, holds the bytes of one `write`, up to a page, and no more:
//!   a second write to it waits until the first was read. Without packet mode (`O_DIRECT`), the
//!   kernel would append a small write to the page of the one before, even if others came between.
//! - A write makes the pipe ready before `write` returns. epoll appends it to its ready list then,
//!   and returns that list in order.
//! - Edge-triggered, each write makes the pipe ready once. So it is read once for each event, and
//!   never ahead of its turn.
//!
//! Hence the order of the events is the order of the writes. A process that opens `/dev/stdout`
//! anew gets a description without packet mode. Two of its writes can be read as one if they come
//! faster than we read.
//!
//! # Bulk
//!
//! One page at a time is slow. A program that writes much does so in whole pages, and has buffered
//! them, so their order against the other stream is lost before we see it. After
//! [`BULK_THRESHOLD`] whole pages in a row without a packet of the other stream, the pipe is
//! enlarged to [`BULK_SIZE`]. It shrinks when a page is not full or the other stream is ready.
//! The bytes in the pipe then are recorded before the other stream, also the ones that were written
//! after it.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags, retry_on_intr};
use rustix::param::page_size;
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

/// Size of a pipe for bulk, in bytes, if the system permits.
const BULK_SIZE: usize = 1 << 20;

/// Whole pages in a row after which a stream counts as bulk.
const BULK_THRESHOLD: u32 = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OutputTarget {
    Stdout,
    Stderr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReadMode {
    /// As a stream of bytes, until nothing is left.
    Stream,
    /// One packet for each event. Holds the number of whole pages in a row.
    Packets(u32),
    /// A large pipe of packets.
    Bulk,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadProgress {
    /// This many bytes were read, and the next event says when to read again.
    Read(usize),
    /// This many bytes were read, and there may be more.
    MayHaveMore(usize),
    /// This many bytes were read, and others must be read before the other stream.
    MustReadOn(usize),
    /// All writers have closed it.
    End,
}

pub(super) struct OutputSource {
    fd: OwnedFd,
    mode: ReadMode,
    pub(super) target: OutputTarget,
    /// Bytes in a large pipe that are to be read before the other stream.
    owed: usize,
    /// True after an event that reported the end: read until then, without further events.
    pub(super) is_hung_up: bool,
}

impl OutputSource {
    /// Creates a pipe that carries stdout and stderr, and returns it with its write end.
    ///
    /// # Errors
    ///
    /// Fails if no descriptor is left.
    pub(super) fn shared_pipe() -> io::Result<(OutputSource, OwnedFd)> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        // Without a large pipe it is slower.
        let _ = fcntl_setpipe_size(&read, BULK_SIZE);
        Ok((OutputSource::new(read, ReadMode::Stream, OutputTarget::Stdout)?, write))
    }

    /// Creates a pipe that carries one of two streams, and returns it with its write end.
    ///
    /// # Errors
    ///
    /// Fails if no descriptor is left.
    pub(super) fn packet_pipe(target: OutputTarget) -> io::Result<(OutputSource, OwnedFd)> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::DIRECT)?;
        fcntl_setpipe_size(&read, page_size())?;
        Ok((OutputSource::new(read, ReadMode::Packets(0), target)?, write))
    }

    /// Reads from the master of a terminal.
    ///
    /// # Errors
    ///
    /// Fails if the master cannot be made non-blocking.
    pub(super) fn terminal(master: OwnedFd) -> io::Result<OutputSource> {
        OutputSource::new(master, ReadMode::Stream, OutputTarget::Stdout)
    }

    fn new(fd: OwnedFd, mode: ReadMode, target: OutputTarget) -> io::Result<OutputSource> {
        let flags = rustix::fs::fcntl_getfl(&fd)?;
        rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
        Ok(OutputSource { fd, mode, target, owed: 0, is_hung_up: false })
    }

    pub(super) fn is_bulk(&self) -> bool {
        self.mode == ReadMode::Bulk
    }

    pub(super) fn available(&self) -> usize {
        let size = rustix::io::ioctl_fionread(&self.fd).unwrap_or(0);
        usize::try_from(size).unwrap_or(usize::MAX)
    }

    /// Reads in the way that keeps the order. For bulk, `available` is the number of bytes to read,
    /// taken before `is_other_ready` was determined. The latter is true if the other stream has
    /// something to read.
    pub(super) fn read(
        &mut self,
        buffer: &mut [u8],
        available: usize,
        is_other_ready: bool,
    ) -> ReadProgress {
        match self.mode {
            ReadMode::Stream => match self.read_once(buffer) {
                Ok(0) => ReadProgress::End,
                Ok(count) => ReadProgress::MayHaveMore(count),
                Err(_) => ReadProgress::Read(0),
            },
            ReadMode::Packets(_) => match self.read_once(buffer) {
                Ok(0) => ReadProgress::End,
                Ok(count) if self.count_page(count) || self.is_hung_up => {
                    ReadProgress::MayHaveMore(count)
                }
                Ok(count) => ReadProgress::Read(count),
                Err(_) => ReadProgress::Read(0),
            },
            ReadMode::Bulk => self.read_bulk(buffer, available, is_other_ready),
        }
    }

    pub(super) fn interrupt(&mut self) {
        if let ReadMode::Packets(pages) = &mut self.mode {
            *pages = 0;
        }
    }

    /// Counts a packet, and enlarges the pipe for bulk. Returns true if it did.
    fn count_page(&mut self, size: usize) -> bool {
        let ReadMode::Packets(pages) = &mut self.mode else { return false };
        *pages = if size == page_size() { *pages + 1 } else { 0 };
        if *pages < BULK_THRESHOLD {
            return false;
        }
        *pages = 0;
        // A user has a limited number of pages in pipes. Without them it is slower.
        if fcntl_setpipe_size(&self.fd, BULK_SIZE).is_err() {
            return false;
        }
        self.mode = ReadMode::Bulk;
        true
    }

    /// Reads the present bytes of a pipe, up to the size of the buffer.
    fn read_bulk(
        &mut self,
        buffer: &mut [u8],
        available: usize,
        is_other_ready: bool,
    ) -> ReadProgress {
        // If the other stream has nothing to read, all these bytes were written before its next
        // packet. Otherwise nearly all of them were.
        if is_other_ready && self.owed == 0 {
            self.owed = available;
        }
        let limit = if self.owed > 0 { self.owed } else { available }.min(buffer.len());
        let mut has_short_page = false;
        let mut filled = 0;
        while filled < limit {
            let Some(rest) = buffer.get_mut(filled..) else { break };
            // A packet that does not fit would be cut.
            if rest.len() < page_size() {
                break;
            }
            match self.read_once(rest) {
                Ok(0) | Err(_) => break,
                Ok(count) => {
                    filled += count;
                    has_short_page |= count < page_size();
                }
            }
        }
        if filled == 0 {
            // Nothing was there. Only now a read distinguishes the end from a pause.
            match self.read_once(buffer) {
                Ok(0) => return ReadProgress::End,
                Ok(count) => filled = count,
                Err(_) => {
                    self.owed = 0;
                    return ReadProgress::Read(0);
                }
            }
            has_short_page = filled < page_size();
        }
        self.owed = self.owed.saturating_sub(filled);
        if self.owed > 0 {
            return ReadProgress::MustReadOn(filled);
        }
        // Fails while more than a page is left. Then the next read tries again.
        if (has_short_page || is_other_ready) && fcntl_setpipe_size(&self.fd, page_size()).is_ok() {
            self.mode = ReadMode::Packets(0);
        }
        ReadProgress::MayHaveMore(filled)
    }

    /// Reads once. Returns 0 at the end, also for a terminal, where the kernel reports `EIO`.
    ///
    /// # Errors
    ///
    /// Fails with `AGAIN` if there is nothing to read. No other error is expected; each one counts
    /// as the end, because it would come again.
    fn read_once(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        match retry_on_intr(|| rustix::io::read(&self.fd, &mut *buffer)) {
            Err(error) if error != Errno::AGAIN => Ok(0),
            result => result,
        }
    }
}

impl OutputSource {
    /// Returns the target of links to a pipe in /proc/PID/fd.
    ///
    /// # Errors
    ///
    /// Fails for no pipe that is open.
    pub(super) fn link(&self) -> io::Result<String> {
        Ok(format!("pipe:[{}]", rustix::fs::fstat(&self.fd)?.st_ino))
    }
}

impl AsFd for OutputSource {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

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
