//! Signals of the stages that outlive the command.
//!
//! They are blocked and received through a descriptor, so that none can end a stage before it has
//! passed on the end of the command.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::cause::{FailedStep, StageFailure};

/// Signals that are not blocked: the kernel sends them for an error of the process itself, and the
/// last two cannot be blocked.
const NOT_BLOCKED: [Signal; 8] = [
    Signal::SIGILL,
    Signal::SIGTRAP,
    Signal::SIGABRT,
    Signal::SIGBUS,
    Signal::SIGFPE,
    Signal::SIGSEGV,
    Signal::SIGKILL,
    Signal::SIGSTOP,
];

pub(super) struct StageSignals {
    descriptor: SignalFd,
}

impl StageSignals {
    /// Blocks all signals that can be received. Returns the mask before, too.
    pub(super) fn new() -> Result<(StageSignals, SigSet), StageFailure> {
        let mut mask = SigSet::all();
        NOT_BLOCKED.into_iter().for_each(|signal| mask.remove(signal));
        // While SIGCHLD is ignored, which a process can inherit, the exit status of a child is
        // lost. A handler ends that. It never runs, because the signal is blocked.
        signal_hook::flag::register(Signal::SIGCHLD as i32, Arc::new(AtomicBool::new(false)))
            .step("handle SIGCHLD")?;
        let before = SigSet::thread_get_mask().step("read the signal mask")?;
        mask.thread_block().step("block signals")?;
        let descriptor =
            SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC).step("receive signals")?;
        Ok((StageSignals { descriptor }, before))
    }

    pub(super) fn number(&self) -> i32 {
        self.descriptor.as_raw_fd()
    }

    /// Waits for SIGCHLD or for an exceptional condition of `watched`, and passes other signals to
    /// `child`.
    ///
    /// The kernel sends signals of the terminal to the whole process group, so the child has
    /// received them, too. Such signals are not passed on.
    pub(super) fn wait_for_event(
        &self,
        child: i32,
        watched: Option<BorrowedFd<'_>>,
    ) -> Result<StageEvent, StageFailure> {
        loop {
            let own = PollFd::new(&self.descriptor, PollFlags::IN);
            let mut polled = vec![own];
            polled.extend(watched.as_ref().map(|fd| PollFd::new(fd, PollFlags::PRI)));
            match poll(&mut polled, None) {
                Err(Errno::INTR) => continue,
                ready => ready.step("wait for the command")?,
            };
            if polled.get(1).is_some_and(|watched| !watched.revents().is_empty()) {
                return Ok(StageEvent::Watched);
            }
            let Some(info) = self.descriptor.read_signal().step("receive signals")? else {
                continue;
            };
            let number = i32::try_from(info.ssi_signo).ok();
            let Some(signal) = number.and_then(|number| Signal::try_from(number).ok()) else {
                continue;
            };
            if signal == Signal::SIGCHLD {
                return Ok(StageEvent::Child);
            }
            // SI_USER, SI_QUEUE and SI_TKILL, by which processes send signals, are at most 0.
            if info.ssi_code <= 0 {
                // The child may have ended already.
                let _ = kill(Pid::from_raw(child), signal);
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StageEvent {
    Child,
    Watched,
}
