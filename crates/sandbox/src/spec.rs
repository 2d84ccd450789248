//! The description of a sandbox.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

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
