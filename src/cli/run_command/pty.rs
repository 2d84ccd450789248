//! A terminal for the command, connected to ours.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::unistd::getpgrp;
use rustix::event::PollFlags;
use rustix::fs::OFlags;
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Pid, Signal as RawSignal, kill_current_process_group, kill_process_group};
use rustix::pty::OpenptFlags;
use rustix::stdio::{stderr, stdin, stdout};
use rustix::termios::{
    LocalModes, OptionalActions, OutputModes, SpecialCodeIndex, Termios, Winsize, isatty,
    tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr, tcsetwinsize,
};

use super::StreamMode;
use super::streams::is_ready;

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
