//! `--tty`: a terminal for the command, connected to ours.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use rustix::event::PollFlags;
use rustix::fs::OFlags;
use rustix::io::{Errno, retry_on_intr};
use rustix::pty::OpenptFlags;
use rustix::stdio::{stderr, stdin, stdout};
use rustix::termios::{
    OptionalActions, SpecialCodeIndex, Termios, Winsize, isatty, tcgetattr, tcgetpgrp,
    tcgetwinsize, tcsetattr, tcsetwinsize,
};

use super::standard_stream::is_ready;

/// Size of a terminal if ours is none.
const DEFAULT_SIZE: Winsize = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };

/// Bytes of input to read at once.
const INPUT_CHUNK: usize = 4_096;

/// A terminal for a command.
pub(super) struct Pty {
    /// Reads the output of the command.
    pub(super) master: OwnedFd,
    /// Keeps the terminal open until the command has it.
    pub(super) slave: OwnedFd,
    pub(super) slave_path: CString,
    pub(super) input: TerminalInput,
}

impl Pty {
    /// Opens a terminal with the settings and the size of ours, and makes ours raw.
    ///
    /// # Errors
    ///
    /// Fails if the system has no terminal left, or without /dev/pts.
    pub(super) fn open() -> io::Result<Pty> {
        let master =
            rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        rustix::pty::grantpt(&master)?;
        rustix::pty::unlockpt(&master)?;
        let slave_path = rustix::pty::ptsname(&master, Vec::new())?;
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let slave = rustix::fs::open(&slave_path, flags, rustix::fs::Mode::empty())?;
        let raw_mode = if isatty(stdin()) { Some(RawMode::new(stdin())?) } else { None };
        if let Some(raw_mode) = &raw_mode {
            tcsetattr(&slave, OptionalActions::Now, &raw_mode.original)?;
        }
        let end_of_file = tcgetattr(&slave)?.special_codes[SpecialCodeIndex::VEOF];
        let input = TerminalInput {
            master: rustix::io::fcntl_dupfd_cloexec(&master, 3)?,
            raw_mode,
            end_of_file,
            pending: Vec::new(),
            ends_line: true,
            is_open: true,
        };
        input.copy_size();
        Ok(Pty { master, slave, slave_path, input })
    }
}

/// Passes our stdin to the terminal of the command.
pub(super) struct TerminalInput {
    master: OwnedFd,
    /// Set if stdin is a terminal.
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
    /// Returns true if the next thing to do is to read stdin.
    pub(super) fn wants_input(&self) -> bool {
        self.is_open && self.pending.is_empty()
    }

    /// Reads stdin once, which must be ready, and passes it on.
    pub(super) fn read(&mut self) {
        let mut buffer = [0; INPUT_CHUNK];
        let count = match rustix::io::read(stdin(), &mut buffer) {
            Ok(count) => count,
            Err(Errno::AGAIN | Errno::INTR) => return,
            Err(_) => 0,
        };
        let (bytes, _) = buffer.split_at(count);
        if let Some(last) = bytes.last() {
            self.ends_line = *last == b'\n';
            self.pending.extend_from_slice(bytes);
        } else {
            self.is_open = false;
            // Ours has no end but a hangup, of which SIGHUP tells.
            if self.raw_mode.is_none() {
                // Within a line, the first one only passes that line on.
                let repeat = if self.ends_line { 1 } else { 2 };
                self.pending.extend(std::iter::repeat_n(self.end_of_file, repeat));
            }
        }
        self.flush();
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

    /// Gives the terminal of the command the size of ours.
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
    fn new(fd: BorrowedFd<'static>) -> io::Result<RawMode> {
        let original = tcgetattr(fd)?;
        let mut raw = original.clone();
        raw.make_raw();
        tcsetattr(fd, OptionalActions::Now, &raw)?;
        Ok(RawMode { fd, original, raw })
    }

    /// Makes the terminal raw if we are in the foreground.
    fn set(&self) {
        let is_foreground =
            tcgetpgrp(self.fd).is_ok_and(|group| group == rustix::process::getpgrp());
        if is_foreground {
            let _ = tcsetattr(self.fd, OptionalActions::Now, &self.raw);
        }
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // In the background, SIGTTOU would stop us here.
        let mask = SigSet::from(Signal::SIGTTOU).thread_swap_mask(SigmaskHow::SIG_BLOCK);
        let _ = tcsetattr(self.fd, OptionalActions::Now, &self.original);
        if let Ok(mask) = mask {
            let _ = mask.thread_set_mask();
        }
    }
}

/// Returns true if a read of stdin would not block.
pub(super) fn is_input_ready() -> bool {
    is_ready(stdin().as_fd(), PollFlags::IN).unwrap_or(true)
}
