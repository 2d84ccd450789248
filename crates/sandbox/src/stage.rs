//! The stages of the sandbox: the request that they share, which describes the sandbox, their
//! failures with the known causes, and the signals of the stages that outlive the command.
//!
//! Those signals are blocked and received through a descriptor, so that none can end a stage before
//! it has passed on the end of the command.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::process::getpid;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::NOT_RUN;
use super::files::{self, LeftFiles, write_all};
use swarmletfs_base::path_bytes;

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
#[derive(Debug, Clone, Error)]
#[error("{text}")]
pub struct StageFailure {
    text: String,
    pub(super) exit_code: u8,
}

impl StageFailure {
    pub(super) fn new(text: impl Into<String>) -> StageFailure {
        StageFailure { text: text.into(), exit_code: NOT_RUN }
    }

    pub(super) fn of_command(text: impl Into<String>, exit_code: u8) -> StageFailure {
        StageFailure { text: text.into(), exit_code }
    }
}

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

/// The view of a worker, and its other rights.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SandboxSpec {
    /// The workspace: absolute, without links.
    #[serde(with = "path_bytes")]
    pub workspace: PathBuf,
    /// The directory in which the command starts: the workspace or one beneath it.
    #[serde(with = "path_bytes")]
    pub directory: PathBuf,
    pub view: WorkspaceView,
    /// The common .git directory of a linked worktree, with the layers of its overlay.
    #[serde(with = "path_bytes::with_value")]
    pub git_common: Option<(PathBuf, OverlayDirs)>,
    /// The store, which is hidden except for the folder of the worker.
    #[serde(with = "path_bytes")]
    pub store: PathBuf,
    /// Further directories that are hidden, under every path.
    #[serde(with = "path_bytes::list")]
    pub hidden: Vec<PathBuf>,
    /// The folder of the worker in the store, which is writable.
    #[serde(with = "path_bytes")]
    pub worker_folder: PathBuf,
    /// Further files and directories that the command may write.
    #[serde(with = "path_bytes::list")]
    pub write: Vec<PathBuf>,
    /// Sockets that the command may connect to. All others are hidden.
    #[serde(with = "path_bytes::list")]
    pub sockets: Vec<PathBuf>,
    /// True if the command may build a sandbox of its own, which Landlock's rules for files forbid.
    pub nested: bool,
    /// False for a network with nothing but the loopback device.
    pub network: bool,
    /// Maximum memory, in bytes.
    pub max_memory: Option<u64>,
    pub max_processes: Option<u64>,
}

impl SandboxSpec {
    /// Returns a sandbox with a network and without limits. The command can write only the view and
    /// the folder of the worker. It starts in the workspace.
    pub fn new(
        workspace: PathBuf,
        view: WorkspaceView,
        store: PathBuf,
        worker_folder: PathBuf,
    ) -> SandboxSpec {
        SandboxSpec {
            directory: workspace.clone(),
            workspace,
            view,
            git_common: None,
            store,
            hidden: Vec::new(),
            worker_folder,
            write: Vec::new(),
            sockets: Vec::new(),
            nested: false,
            network: true,
            max_memory: None,
            max_processes: None,
        }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum WorkspaceView {
    Overlay(OverlayDirs),
    /// A copy, bound over the workspace.
    Copy(#[serde(with = "path_bytes")] PathBuf),
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OverlayDirs {
    /// The layer that receives the writes of the worker.
    #[serde(with = "path_bytes")]
    pub upper: PathBuf,
    /// An empty directory on the file system of `upper`.
    #[serde(with = "path_bytes")]
    pub work: PathBuf,
    /// True if a write waits for the disk where a program requests it.
    pub is_durable: bool,
}

/// A command line that runs a command in a sandbox. It must live until the program runs.
#[derive(Debug)]
pub struct WrappedCommand {
    pub command: Vec<OsString>,
    /// The request, in whose place the first process of the sandbox leaves its report.
    request: OwnedFd,
}

/// Beginning of a report. A request begins with the length of an absolute path, and `/`.
const REPORT: &[u8] = b"LEFT";

/// Reports the files that vanish with the sandbox in the place of the request, which is done with.
pub(super) fn report_left(descriptor: i32, left: &LeftFiles) -> io::Result<()> {
    let bytes = postcard::to_extend(left, REPORT.to_vec()).map_err(io::Error::other)?;
    files::write(&files::own_descriptor(descriptor), &bytes)
}

impl WrappedCommand {
    /// Returns the files that vanished with the sandbox. Returns `None` if its first process was
    /// killed before it could count them.
    pub fn left_files(&self) -> Option<LeftFiles> {
        let path = files::own_descriptor(self.request.as_raw_fd());
        let bytes = files::read(&path, REQUEST_MAX).ok()?;
        postcard::from_bytes(bytes.strip_prefix(REPORT)?).ok()
    }
}

impl SandboxSpec {
    /// Returns the command line that runs `command` in the sandbox.
    ///
    /// The started process ends with the exit code or the signal of the command; with 125 if the
    /// sandbox failed, 126 if the command cannot be executed, and 127 if it was not found. It is
    /// killed if the thread that started it ends.
    ///
    /// # Errors
    ///
    /// Fails with `InvalidInput` for a path that the command must not be able to write, or if no
    /// descriptor is left.
    pub fn wrap(&self, command: &[OsString]) -> io::Result<WrappedCommand> {
        self.check()?;
        let request = StageRequest {
            spec: self.clone(),
            command: command.to_vec(),
            parent: getpid().as_raw_pid(),
            blocked_signals: Vec::new(),
            has_group: false,
        };
        let bytes = postcard::to_stdvec(&request).map_err(io::Error::other)?;
        // Without CLOEXEC, so that the stages inherit it.
        let file = memfd_create("swarmletfs-sandbox", MemfdFlags::empty())?;
        write_all(&file, &bytes)?;
        let stage = Stage::Outer.arguments(file.as_raw_fd(), None);
        let command = [OsString::from(PROGRAM)].into_iter().chain(stage).collect();
        Ok(WrappedCommand { command, request: file })
    }

    /// Checks that no writable path shows anything that must stay hidden or unchanged.
    fn check(&self) -> io::Result<()> {
        let refuse = |path: &PathBuf, why: &str| {
            let path = swarmletfs_base::name::printable(path.as_os_str().as_encoded_bytes());
            let text = format!("cannot make {path} writable: {why}");
            Err(io::Error::new(io::ErrorKind::InvalidInput, text))
        };
        for path in &self.write {
            if !path.is_absolute() {
                return refuse(path, "it is not an absolute path");
            }
            if let Some(reason) = writable_refusal(path, &self.store) {
                return refuse(path, reason);
            }
        }
        Ok(())
    }
}

/// Returns the reason why no command may write the absolute path `path`; `None` if one may.
pub fn writable_refusal(path: &Path, store: &Path) -> Option<&'static str> {
    if path.parent().is_none() {
        return Some("all files would be writable; try a directory beneath it");
    }
    if path.starts_with(store) {
        return Some("it is in the store, which workers cannot see");
    }
    let reason = "the store is in it, and could be replaced; try a directory beneath it";
    store.starts_with(path).then_some(reason)
}
