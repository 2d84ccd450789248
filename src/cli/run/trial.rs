//! Tries out the sandbox of the copy engine, which needs no overlay.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::sandbox::{SandboxSpec, WorkspaceView};

/// The program, which prints its version as the command of a trial.
const PROGRAM: [&str; 2] = ["/proc/self/exe", "--version"];

/// Runs a command in a sandbox over `workspace`. Files are made in the directory `parent`, and
/// removed afterwards.
///
/// # Errors
///
/// A step of the sandbox does not work.
pub(in crate::cli) fn try_copy(workspace: &Path, parent: &Path) -> anyhow::Result<()> {
    let folder = tempfile::Builder::new().prefix(".trial-").tempdir_in(parent);
    let folder = folder.context("cannot make a folder for a trial of the sandbox")?;
    let path = |name: &str| folder.path().join(name);
    for name in ["copy", "store/worker"] {
        fs::create_dir_all(path(name)).context("cannot make a folder for a trial")?;
    }
    let spec = SandboxSpec {
        workspace: workspace.to_path_buf(),
        directory: workspace.to_path_buf(),
        view: WorkspaceView::Copy(path("copy")),
        git_common: None,
        store: path("store"),
        worker_folder: path("store/worker"),
        write: Vec::new(),
        sockets: Vec::new(),
        nested: false,
        network: true,
        as_user: None,
        max_memory: None,
        max_processes: None,
    };
    let wrapped = spec.wrap(&PROGRAM.map(OsString::from)).context("cannot start a trial")?;
    let Some((program, arguments)) = wrapped.command.split_first() else {
        bail!("cannot start a trial: there is no command");
    };
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.context("cannot start a trial")?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    match text.trim() {
        "" => bail!("a trial of the sandbox ended with {}", output.status),
        text => bail!("{}", text.strip_prefix("swarmletfs: ").unwrap_or(text)),
    }
}
