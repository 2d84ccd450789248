//! The signals that the event loop receives through a descriptor.
//!
//! They are blocked, so that they cannot end us before the command has ended. They stay blocked
//! after that, so that the caller can complete the record.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

const PASSED: [Signal; 6] = [
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGINT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

#[derive(Debug, Clone, Copy)]
pub(super) struct ReceivedSignal {
    pub(super) signal: Signal,
    /// True if the kernel sent it, for a key or a hangup of the terminal. The kernel sends these
    /// to the whole foreground process group, so the command has received it, too.
    pub(super) is_from_kernel: bool,
}

pub(super) struct SignalQueue {
    fd: SignalFd,
    /// The mask before, which the command gets.
    original_mask: SigSet,
}

impl SignalQueue {
    /// Blocks the signals that are passed on, SIGCHLD, and for a session of the command SIGWINCH
    /// and SIGCONT.
    ///
    /// # Errors
    ///
    /// Fails if no descriptor is left.
    pub(super) fn new(has_session: bool) -> anyhow::Result<SignalQueue> {
        let mut mask = SigSet::from_iter(PASSED);
        mask.add(Signal::SIGCHLD);
        if has_session {
            mask.extend([Signal::SIGWINCH, Signal::SIGCONT]);
        }
        // While SIGCHLD is ignored, which a process can inherit, the exit status of a child is
        // lost. A handler ends that. It never runs, because the signal is blocked.
        signal_hook::flag::register(Signal::SIGCHLD as i32, Arc::new(AtomicBool::new(false)))
            .context("cannot handle SIGCHLD")?;
        let original_mask = SigSet::thread_get_mask().context("cannot read the signal mask")?;
        mask.thread_block().context("cannot block signals")?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        let fd = SignalFd::with_flags(&mask, flags).context("cannot receive signals")?;
        Ok(SignalQueue { fd, original_mask })
    }

    pub(super) fn original_mask(&self) -> &SigSet {
        &self.original_mask
    }

    pub(super) fn next(&self) -> Option<ReceivedSignal> {
        let info = self.fd.read_signal().ok()??;
        let number = i32::try_from(info.ssi_signo).ok()?;
        let signal = Signal::try_from(number).ok()?;
        // SI_USER, SI_QUEUE and SI_TKILL, by which processes send signals, are at most 0.
        Some(ReceivedSignal { signal, is_from_kernel: info.ssi_code > 0 })
    }
}

impl AsFd for SignalQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
