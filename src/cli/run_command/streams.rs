//! Where the output of the command comes from, pipes or the master of a terminal, and where it
//! goes: a recording, and our stdout and stderr, written without ever blocking.
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

use std::collections::VecDeque;
use std::ffi::CString;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::unistd::getpgrp;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags, retry_on_intr};
use rustix::param::page_size;
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use rustix::process::{Pid, Signal as RawSignal, kill_current_process_group, kill_process_group};
use rustix::pty::OpenptFlags;
use rustix::stdio::{stderr, stdin, stdout};
use rustix::termios::{
    LocalModes, OptionalActions, OutputModes, SpecialCodeIndex, Termios, Winsize, isatty,
    tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr, tcsetwinsize,
};

use super::{Sink, StreamMode};
use swarmletfs_base::split::Split;

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
    pub(super) fd: BorrowedFd<'static>,
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

/// Maximum size of the tail that is kept in memory, in bytes.
const TAIL_MAX: u64 = 16 << 20;

/// Passes output to a sink, except for the middle of an output that exceeds the limit.
///
/// After the first error of the sink nothing more is written to it.
pub(super) struct Recording<'a> {
    sink: &'a mut dyn Sink,
    error: Option<anyhow::Error>,
    /// Bytes received, including omitted ones.
    seen: u64,
    /// Bytes of output that were passed on before the tail.
    head: u64,
    limits: Option<SizeLimits>,
    tail: VecDeque<u8>,
    /// True if the last byte received ends a line, and at the start.
    ends_line: bool,
}

#[derive(Debug, Clone, Copy)]
struct SizeLimits {
    head: u64,
    tail: usize,
}

impl SizeLimits {
    fn new(max_bytes: u64) -> SizeLimits {
        let tail = (max_bytes / 2).min(TAIL_MAX);
        // At most TAIL_MAX, which fits any usize.
        SizeLimits { head: max_bytes - tail, tail: usize::try_from(tail).unwrap_or(0) }
    }
}

impl<'a> Recording<'a> {
    pub(super) fn new(sink: &'a mut dyn Sink, max_bytes: Option<u64>) -> Recording<'a> {
        Recording {
            sink,
            error: None,
            seen: 0,
            head: 0,
            limits: max_bytes.map(SizeLimits::new),
            tail: VecDeque::new(),
            ends_line: true,
        }
    }

    pub(super) fn write(&mut self, bytes: &[u8]) {
        let Some(last) = bytes.last() else { return };
        self.ends_line = *last == b'\n';
        self.seen += bytes.len() as u64;
        let Some(limits) = self.limits else {
            self.pass_on(bytes);
            self.head = self.seen;
            return;
        };
        let room = usize::try_from(limits.head - self.head).unwrap_or(usize::MAX);
        let (head, rest) = bytes.split_at_most(room);
        self.pass_on(head);
        self.head += head.len() as u64;
        let (_, rest) = rest.split_at_known(rest.len().saturating_sub(limits.tail));
        let excess = (self.tail.len() + rest.len()).saturating_sub(limits.tail);
        self.tail.drain(..excess);
        self.tail.extend(rest);
    }

    /// Writes the tail, with a line before it that counts the omitted bytes.
    ///
    /// The line has the form of the omissions in evidence.
    pub(super) fn write_tail(&mut self) {
        let tail = std::mem::take(&mut self.tail);
        let omitted = self.seen - self.head - tail.len() as u64;
        if omitted > 0 {
            let (first, last) = (self.head, self.head + omitted - 1);
            let marker = format!("\n[... {omitted} B omitted: bytes {first}-{last} ...]\n");
            self.pass_on(marker.as_bytes());
        }
        let (front, back) = tail.as_slices();
        self.pass_on(front);
        self.pass_on(back);
        self.head = self.seen - omitted;
    }

    /// Records a line of our own after the tail.
    pub(super) fn write_line(&mut self, line: &str) {
        let separator = if self.ends_line { "" } else { "\n" };
        self.pass_on(format!("{separator}{line}\n").as_bytes());
        self.ends_line = true;
    }

    pub(super) fn into_error(self) -> Option<anyhow::Error> {
        self.error
    }

    fn pass_on(&mut self, bytes: &[u8]) {
        if self.error.is_none() && !bytes.is_empty() {
            self.error = self.sink.write(bytes).err();
        }
    }
}

/// Size of a terminal if ours is none.
const DEFAULT_SIZE: Winsize = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };

const INPUT_CHUNK: usize = 4_096;

pub(super) struct Pty {
    pub(super) master: OwnedFd,
    /// Keeps the terminal open until the command has it.
    pub(super) slave: OwnedFd,
    pub(super) slave_path: CString,
    /// The streams that the terminal takes the place of.
    pub(super) replaced: Vec<BorrowedFd<'static>>,
    pub(super) input: TerminalInput,
}

impl Pty {
    /// Opens a terminal with the settings and the size of ours, and makes ours raw. Returns `None`
    /// if it would take the place of none.
    ///
    /// # Errors
    ///
    /// Fails if the system has no terminal left, or without /dev/pts.
    pub(super) fn open(mode: StreamMode) -> io::Result<Option<Pty>> {
        let mut replaced = vec![stdin(), stdout(), stderr()];
        if mode == StreamMode::Apart {
            replaced.retain(|fd| isatty(fd));
        }
        let Some(first) = replaced.first() else { return Ok(None) };
        let master =
            rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        rustix::pty::grantpt(&master)?;
        rustix::pty::unlockpt(&master)?;
        let slave_path = rustix::pty::ptsname(&master, Vec::new())?;
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let slave = rustix::fs::open(&slave_path, flags, rustix::fs::Mode::empty())?;
        // Other output on our terminal, such as the output of the next program of a pipeline, needs
        // its processing. The output of the command is then processed there.
        let is_shared = mode == StreamMode::Apart && !(isatty(stdin()) && isatty(stdout()));
        if let Ok(mut settings) = tcgetattr(first) {
            if is_shared {
                settings.output_modes.remove(OutputModes::OPOST);
            }
            tcsetattr(&slave, OptionalActions::Now, &settings)?;
        }
        let raw_mode = if isatty(stdin()) { Some(RawMode::new(stdin(), is_shared)?) } else { None };
        let end_of_file = tcgetattr(&slave)?.special_codes[SpecialCodeIndex::VEOF];
        let input = TerminalInput {
            master: rustix::io::fcntl_dupfd_cloexec(&master, 3)?,
            end_of_file,
            pending: Vec::new(),
            ends_line: true,
            is_open: raw_mode.is_some() || mode == StreamMode::Terminal,
            raw_mode,
        };
        input.copy_size();
        Ok(Some(Pty { master, slave, slave_path, replaced, input }))
    }
}

pub(super) struct TerminalInput {
    master: OwnedFd,
    raw_mode: Option<RawMode>,
    /// The character that means the end of the input.
    end_of_file: u8,
    /// Bytes that the terminal had no room for.
    pending: Vec<u8>,
    /// True if the last byte passed ends a line, and at the start.
    ends_line: bool,
    is_open: bool,
}

impl TerminalInput {
    /// Returns true if stdin is to be read next.
    pub(super) fn wants_input(&self) -> bool {
        // In the background, a read would stop us.
        let may_read = self.raw_mode.as_ref().is_none_or(RawMode::is_in_foreground);
        self.is_open && self.pending.is_empty() && may_read
    }

    /// Reads stdin once, which must be ready, and passes it on. Stops the session of `command` and
    /// us if the key for that was typed.
    pub(super) fn read(&mut self, command: Pid) {
        let mut buffer = [0; INPUT_CHUNK];
        let count = match rustix::io::read(stdin(), &mut buffer) {
            Ok(count) => count,
            Err(Errno::AGAIN | Errno::INTR) => return,
            Err(_) => 0,
        };
        let Some(bytes) = buffer.get(..count) else { return };
        let stops = self.has_stop_key(bytes, command);
        if let Some(last) = bytes.last() {
            self.ends_line = *last == b'\n';
            self.pending.extend_from_slice(bytes);
        } else {
            self.is_open = false;
            // Ours has no end but a hangup, which SIGHUP reports.
            if self.raw_mode.is_none() {
                // Within a line, the first one only passes that line on.
                let repeat = if self.ends_line { 1 } else { 2 };
                self.pending.extend(std::iter::repeat_n(self.end_of_file, repeat));
            }
        }
        self.flush();
        if stops {
            self.stop(command);
        }
    }

    /// Returns true if `bytes` have the key that stops a job, and the terminal of the command
    /// treats it as such, for no job but `command` itself.
    fn has_stop_key(&self, bytes: &[u8], command: Pid) -> bool {
        self.raw_mode.is_some()
            && tcgetpgrp(&self.master).is_ok_and(|group| group == command)
            && tcgetattr(&self.master).is_ok_and(|settings| {
                settings.local_modes.contains(LocalModes::ISIG)
                    && bytes.contains(&settings.special_codes[SpecialCodeIndex::VSUSP])
            })
    }

    /// Stops the command and us until a shell continues us. The kernel does not stop the command,
    /// because no shell is in its session.
    fn stop(&mut self, command: Pid) {
        // It may have ended.
        let _ = kill_process_group(command, RawSignal::STOP);
        if let Some(raw_mode) = &self.raw_mode {
            raw_mode.restore();
        }
        // Has no effect without a shell that could continue us.
        let _ = kill_current_process_group(RawSignal::TSTP);
        self.resume();
        let _ = kill_process_group(command, RawSignal::CONT);
    }

    /// Passes on the bytes that wait, as far as there is room.
    pub(super) fn flush(&mut self) {
        while !self.pending.is_empty() {
            match retry_on_intr(|| rustix::io::write(&self.master, &self.pending)) {
                Ok(0) | Err(Errno::AGAIN) => return,
                Ok(count) => drop(self.pending.drain(..count)),
                Err(_) => {
                    self.is_open = false;
                    self.pending.clear();
                }
            }
        }
    }

    pub(super) fn copy_size(&self) {
        let sizes =
            [stdin(), stdout(), stderr()].into_iter().filter_map(|fd| tcgetwinsize(fd).ok());
        let size = sizes.into_iter().next().unwrap_or(DEFAULT_SIZE);
        // Only fails if the command has closed it.
        let _ = tcsetwinsize(&self.master, size);
    }

    /// Makes our terminal raw again after a shell has stopped and continued us.
    pub(super) fn resume(&self) {
        if let Some(raw_mode) = &self.raw_mode {
            raw_mode.set();
        }
        self.copy_size();
    }
}

impl AsFd for TerminalInput {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.master.as_fd()
    }
}

/// Keeps a terminal raw until it is dropped.
struct RawMode {
    fd: BorrowedFd<'static>,
    original: Termios,
    raw: Termios,
}

impl RawMode {
    /// Makes a terminal raw if we are in the foreground, except for its output if that is shared.
    fn new(fd: BorrowedFd<'static>, is_shared: bool) -> io::Result<RawMode> {
        let original = tcgetattr(fd)?;
        let mut raw = original.clone();
        raw.make_raw();
        if is_shared {
            raw.output_modes = original.output_modes;
        }
        let raw_mode = RawMode { fd, original, raw };
        raw_mode.set();
        Ok(raw_mode)
    }

    fn is_in_foreground(&self) -> bool {
        // Fails for a terminal of another session, which stops nobody.
        tcgetpgrp(self.fd).map_or(true, |group| group.as_raw_pid() == getpgrp().as_raw())
    }

    /// Makes the terminal raw if we are in the foreground.
    fn set(&self) {
        self.apply(&self.raw);
    }

    /// Gives the terminal its settings back if we are in the foreground. Otherwise, the shell has
    /// done so.
    fn restore(&self) {
        self.apply(&self.original);
    }

    fn apply(&self, settings: &Termios) {
        if self.is_in_foreground() {
            let _ = tcsetattr(self.fd, OptionalActions::Now, settings);
        }
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        self.restore();
    }
}

pub(super) fn is_input_ready() -> bool {
    is_ready(stdin().as_fd(), PollFlags::IN).unwrap_or(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Sink for Vec<u8> {
        fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
            self.extend_from_slice(bytes);
            Ok(())
        }
    }

    fn recorded(output: &[u8], max_bytes: u64, chunk: usize) -> String {
        let mut sink = Vec::new();
        let mut recording = Recording::new(&mut sink, Some(max_bytes));
        output.chunks(chunk).for_each(|chunk| recording.write(chunk));
        recording.write_tail();
        String::from_utf8(sink).unwrap()
    }

    #[test]
    fn middle_is_omitted_for_any_size_of_the_writes() {
        for chunk in 1..=12 {
            let expected = "01234\n[... 2 B omitted: bytes 5-6 ...]\n789ab".to_owned();
            assert_eq!(recorded(b"0123456789ab", 10, chunk), expected, "{chunk}");
            assert_eq!(recorded(b"0123456789", 10, chunk), "0123456789");
            assert_eq!(recorded(b"012345", 10, chunk), "012345");
            let nothing = "\n[... 6 B omitted: bytes 0-5 ...]\n".to_owned();
            assert_eq!(recorded(b"012345", 0, chunk), nothing);
            let first = "0\n[... 5 B omitted: bytes 1-5 ...]\n".to_owned();
            assert_eq!(recorded(b"012345", 1, chunk), first);
        }
    }

    #[test]
    fn line_starts_on_a_line_of_its_own() {
        let mut sink = Vec::new();
        let mut recording = Recording::new(&mut sink, None);
        recording.write(b"half");
        recording.write_line("[a]");
        recording.write_line("[b]");
        assert_eq!(sink, b"half\n[a]\n[b]\n");
    }

    #[test]
    fn nothing_is_written_after_an_error_of_the_sink() {
        struct FullSink(usize);
        impl Sink for FullSink {
            fn write(&mut self, _: &[u8]) -> anyhow::Result<()> {
                self.0 += 1;
                anyhow::bail!("full")
            }
        }
        let mut sink = FullSink(0);
        let mut recording = Recording::new(&mut sink, None);
        recording.write(b"a");
        recording.write(b"b");
        assert_eq!(recording.into_error().unwrap().to_string(), "full");
        assert_eq!(sink.0, 1);
    }
}
