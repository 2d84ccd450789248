//! The stages of the sandbox, and the request that they share.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use nix::sys::signal::{SigSet, Signal};
use serde::{Deserialize, Serialize};

use super::cause::{FailedStep, StageFailure};
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
