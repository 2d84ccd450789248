//! The description of a sandbox, and the command line that enters it.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::getpid;
use serde::{Deserialize, Serialize};

use super::files::write_all;
use super::path_bytes;
use super::stage::{Order, PROGRAM, Stage};

/// The view of a worker, and what it may do beside.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SandboxSpec {
    /// The workspace: absolute, without links.
    #[serde(with = "path_bytes")]
    pub(crate) workspace: PathBuf,
    /// The directory in which the command starts: the workspace or one beneath it.
    #[serde(with = "path_bytes")]
    pub(crate) directory: PathBuf,
    /// How the worker sees the workspace.
    pub(crate) view: WorkspaceView,
    /// The common .git directory of a linked worktree, with the layers of its overlay.
    #[serde(with = "path_bytes::with_layers")]
    pub(crate) git_common: Option<(PathBuf, OverlayDirs)>,
    /// The store, which is hidden except for the folder of the worker.
    #[serde(with = "path_bytes")]
    pub(crate) store: PathBuf,
    /// The folder of the worker in the store, which is writable.
    #[serde(with = "path_bytes")]
    pub(crate) worker_folder: PathBuf,
    /// More files and directories that the command may write.
    #[serde(with = "path_bytes::list")]
    pub(crate) write: Vec<PathBuf>,
    /// Sockets that the command may connect to. All others are hidden.
    #[serde(with = "path_bytes::list")]
    pub(crate) sockets: Vec<PathBuf>,
    /// True if the command may build a sandbox of its own, which Landlock forbids.
    pub(crate) nested: bool,
    /// False for a network with nothing but the loopback device.
    pub(crate) network: bool,
    /// The user and group id to run as, for root.
    pub(crate) as_user: Option<(u32, u32)>,
    /// Maximum memory, in bytes.
    pub(crate) max_memory: Option<u64>,
    /// Maximum number of processes.
    pub(crate) max_processes: Option<u64>,
}

/// How the worker sees the workspace.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum WorkspaceView {
    /// An overlay, whose lower layer is the workspace.
    Overlay(OverlayDirs),
    /// A copy, bound over the workspace.
    Copy(#[serde(with = "path_bytes")] PathBuf),
}

/// The directories of an overlay.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct OverlayDirs {
    /// The layer that receives what the worker writes.
    #[serde(with = "path_bytes")]
    pub(crate) upper: PathBuf,
    /// An empty directory on the file system of `upper`.
    #[serde(with = "path_bytes")]
    pub(crate) work: PathBuf,
    /// True if each write waits for the disk where a program asks for it.
    pub(crate) is_durable: bool,
}

/// A command line that runs a command in a sandbox.
#[derive(Debug)]
pub(crate) struct WrappedCommand {
    /// The program and its arguments.
    pub(crate) command: Vec<OsString>,
    /// The descriptor that the program inherits. It must stay open until the program runs.
    pub(crate) order: OwnedFd,
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
    pub(crate) fn wrap(&self, command: &[OsString]) -> io::Result<WrappedCommand> {
        self.check()?;
        let order = Order {
            spec: self.clone(),
            command: command.to_vec(),
            parent: getpid().as_raw_pid(),
            blocked_signals: Vec::new(),
        };
        let bytes = postcard::to_stdvec(&order).map_err(io::Error::other)?;
        // Without CLOEXEC, so that the stages inherit it.
        let file = memfd_create("swarmletfs-sandbox", MemfdFlags::empty())?;
        write_all(&file, &bytes)?;
        let stage = Stage::Outer.arguments(file.as_raw_fd(), None);
        let command = [OsString::from(PROGRAM)].into_iter().chain(stage).collect();
        Ok(WrappedCommand { command, order: file })
    }

    /// Checks that no writable path shows what must stay hidden or unchanged.
    fn check(&self) -> io::Result<()> {
        let refuse = |path: &PathBuf, why: &str| {
            let path = crate::name::printable(path.as_os_str().as_encoded_bytes());
            let text = format!("cannot make {path} writable: {why}");
            Err(io::Error::new(io::ErrorKind::InvalidInput, text))
        };
        for path in &self.write {
            if !path.is_absolute() {
                return refuse(path, "it is not an absolute path");
            }
            if path.parent().is_none() {
                return refuse(path, "all files would be writable; try a directory beneath it");
            }
            if path.starts_with(&self.store) {
                return refuse(path, "it is in the store, which workers cannot see");
            }
        }
        Ok(())
    }
}
