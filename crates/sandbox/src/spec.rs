//! The description of a sandbox, and the command line that enters it.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::getpid;
use serde::{Deserialize, Serialize};

use super::files::write_all;
use super::stage::{PROGRAM, Stage, StageRequest};
use swarmletfs_base::path_bytes;

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
    _request: OwnedFd,
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
        Ok(WrappedCommand { command, _request: file })
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
