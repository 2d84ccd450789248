//! The stages of the sandbox, and the order that they share.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use nix::sys::signal::{SigSet, Signal};
use serde::{Deserialize, Serialize};

use super::cause::{FailedStep, StageFailure};
use super::files;
use super::spec::SandboxSpec;

/// This program, whatever is mounted over its path.
pub(super) const PROGRAM: &str = "/proc/self/exe";

/// Maximum size of an order, in bytes. Arguments of a command have at most 6 MiB.
const ORDER_MAX: u64 = 64 << 20;

/// A process of the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Enters the namespaces and builds the tree of mounts.
    Outer,
    /// Writes the id maps of its parent, after a byte on stdin.
    Maps,
    /// Is process 1 of the process namespace.
    Init,
    /// Becomes the command.
    Inner,
    /// Is the command of a trial: checks the view from inside.
    Check,
}

/// The task of all stages.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StageOrder {
    pub(super) spec: SandboxSpec,
    pub(super) command: Vec<OsString>,
    /// Process id of the caller.
    pub(super) parent: i32,
    /// Numbers of the signals that the command blocks, as the caller does.
    pub(super) blocked_signals: Vec<i32>,
    /// True if a control group enforces the limits.
    pub(super) has_group: bool,
}

impl Stage {
    const NAMES: [(&str, Stage); 5] = [
        ("outer", Stage::Outer),
        ("maps", Stage::Maps),
        ("init", Stage::Init),
        ("inner", Stage::Inner),
        ("check", Stage::Check),
    ];

    /// Returns the stage that an argument names, or `None` if none has the name.
    pub fn by_name(name: &str) -> Option<Stage> {
        Stage::NAMES.iter().find(|(known, _)| *known == name).map(|(_, stage)| *stage)
    }

    /// Returns the arguments that make the program serve the stage.
    pub(super) fn arguments(self, descriptor: i32, status: Option<i32>) -> Vec<OsString> {
        let name = Stage::NAMES.iter().find(|(_, stage)| *stage == self).map(|(name, _)| *name);
        let mut arguments = vec![
            "__sandbox".into(),
            name.unwrap_or_default().into(),
            descriptor.to_string().into(),
        ];
        arguments.extend(status.map(|status| status.to_string().into()));
        arguments
    }

    /// Starts the stage. It inherits the descriptors of these numbers.
    pub(super) fn spawn(self, descriptor: i32, status: Option<i32>) -> Result<Child, StageFailure> {
        let mut command = self.command(descriptor, status);
        command.spawn().step("start a process of the sandbox")
    }

    /// Returns the command that serves the stage.
    pub(super) fn command(self, descriptor: i32, status: Option<i32>) -> Command {
        let mut command = Command::new(PROGRAM);
        command.arg0("swarmletfs");
        command.args(self.arguments(descriptor, status));
        command
    }
}

impl StageOrder {
    /// Reads the order from the inherited descriptor.
    pub(super) fn read(descriptor: i32) -> Result<StageOrder, StageFailure> {
        let bytes = files::read(&files::own_descriptor(descriptor), ORDER_MAX)
            .step("read the order of the sandbox")?;
        postcard::from_bytes(&bytes).map_err(|error| {
            StageFailure::new(format!("cannot read the order of the sandbox: {error}"))
        })
    }

    /// Writes the order into the inherited descriptor.
    pub(super) fn write(&self, descriptor: i32) -> Result<(), StageFailure> {
        let bytes = postcard::to_stdvec(self)
            .map_err(|error| StageFailure::new(format!("cannot pass the order on: {error}")))?;
        files::write(&files::own_descriptor(descriptor), &bytes)
            .step("pass the order of the sandbox on")
    }

    /// Returns the signal mask of the caller.
    pub(super) fn signal_mask(&self) -> SigSet {
        self.blocked_signals.iter().filter_map(|number| Signal::try_from(*number).ok()).collect()
    }
}
