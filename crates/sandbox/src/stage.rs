//! The stages of the sandbox: the request that they share, their failures with the known causes,
//! and the signals of the stages that outlive the command.
//!
//! Those signals are blocked and received through a descriptor, so that none can end a stage before
//! it has passed on the end of the command.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::NOT_RUN;
use super::files;
use super::spec::SandboxSpec;

/// This program, even if its path is covered by a mount.
pub(super) const PROGRAM: &str = "/proc/self/exe";

/// Maximum size of a request, in bytes. Arguments of a command have at most 6 MiB.
const REQUEST_MAX: u64 = 64 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Outer,
    /// Writes the id maps of its parent, after a byte on stdin.
    Maps,
    Init,
    Inner,
    /// Is the command of a trial: checks the view from inside.
    Check,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StageRequest {
    pub(super) spec: SandboxSpec,
    pub(super) command: Vec<OsString>,
    pub(super) parent: i32,
    /// Numbers of the signals that the command blocks, as the caller does.
    pub(super) blocked_signals: Vec<i32>,
    /// True if a control group enforces the limits.
    pub(super) has_group: bool,
}

impl Stage {
    const ALL: [Stage; 5] = [Stage::Outer, Stage::Maps, Stage::Init, Stage::Inner, Stage::Check];

    fn name(self) -> &'static str {
        match self {
            Stage::Outer => "outer",
            Stage::Maps => "maps",
            Stage::Init => "init",
            Stage::Inner => "inner",
            Stage::Check => "check",
        }
    }

    /// Returns the stage that an argument names, or `None` if none has the name.
    pub fn by_name(name: &str) -> Option<Stage> {
        Stage::ALL.into_iter().find(|stage| stage.name() == name)
    }

    pub(super) fn arguments(self, descriptor: i32, status: Option<i32>) -> Vec<OsString> {
        let mut arguments =
            vec!["__sandbox".into(), self.name().into(), descriptor.to_string().into()];
        arguments.extend(status.map(|status| status.to_string().into()));
        arguments
    }

    /// Starts the stage. It inherits the descriptors `descriptor` and `status`.
    pub(super) fn spawn(self, descriptor: i32, status: Option<i32>) -> Result<Child, StageFailure> {
        let mut command = self.command(descriptor, status);
        command.spawn().step("start a process of the sandbox")
    }

    pub(super) fn command(self, descriptor: i32, status: Option<i32>) -> Command {
        let mut command = Command::new(PROGRAM);
        command.arg0("swarmletfs");
        command.args(self.arguments(descriptor, status));
        command
    }
}

impl StageRequest {
    pub(super) fn read(descriptor: i32) -> Result<StageRequest, StageFailure> {
        let bytes = files::read(&files::own_descriptor(descriptor), REQUEST_MAX)
            .step("read the request of the sandbox")?;
        postcard::from_bytes(&bytes).map_err(|error| {
            StageFailure::new(format!("cannot read the request of the sandbox: {error}"))
        })
    }

    pub(super) fn write(&self, descriptor: i32) -> Result<(), StageFailure> {
        let bytes = postcard::to_stdvec(self)
            .map_err(|error| StageFailure::new(format!("cannot pass the request on: {error}")))?;
        files::write(&files::own_descriptor(descriptor), &bytes)
            .step("pass the request of the sandbox on")
    }

    pub(super) fn signal_mask(&self) -> SigSet {
        self.blocked_signals.iter().filter_map(|number| Signal::try_from(*number).ok()).collect()
    }
}

/// A failure before the command ran. Its text is a message for the user.
#[derive(Debug, Clone)]
pub struct StageFailure {
    text: String,
    exit_code: u8,
}

impl StageFailure {
    pub(super) fn new(text: impl Into<String>) -> StageFailure {
        StageFailure { text: text.into(), exit_code: NOT_RUN }
    }

    pub(super) fn of_command(text: impl Into<String>, exit_code: u8) -> StageFailure {
        StageFailure { text: text.into(), exit_code }
    }

    pub(super) fn exit_code(&self) -> u8 {
        self.exit_code
    }
}

impl fmt::Display for StageFailure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl std::error::Error for StageFailure {}

pub(super) trait FailedStep<T> {
    /// Names the step that failed: `cannot STEP: …`.
    fn step(self, step: &str) -> Result<T, StageFailure>;

    /// Names the step that failed, its known cause and the remedy.
    fn step_with(
        self,
        step: &str,
        cause: impl FnOnce(Option<Errno>) -> Option<&'static str>,
    ) -> Result<T, StageFailure>;
}

impl<T, E: Into<io::Error>> FailedStep<T> for Result<T, E> {
    fn step(self, step: &str) -> Result<T, StageFailure> {
        self.step_with(step, |_| None)
    }

    fn step_with(
        self,
        step: &str,
        cause: impl FnOnce(Option<Errno>) -> Option<&'static str>,
    ) -> Result<T, StageFailure> {
        self.map_err(|error| {
            let error = error.into();
            let errno = error.raw_os_error().map(Errno::from_raw_os_error);
            StageFailure::new(match cause(errno) {
                Some(cause) => format!("cannot {step}: {error}: {cause}"),
                None => format!("cannot {step}: {error}"),
            })
        })
    }
}

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
