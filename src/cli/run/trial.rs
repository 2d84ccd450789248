//! Tries out the sandbox of the copy engine, which needs no overlay.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use anyhow::Context;

use crate::sandbox::{SandboxSpec, WorkspaceView, run_trial};

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
    let view = WorkspaceView::Copy(path("copy"));
    let (store, worker) = (path("store"), path("store/worker"));
    let spec = SandboxSpec::new(workspace.to_path_buf(), view, store, worker);
    run_trial(&spec, &PROGRAM.map(OsString::from))?;
    Ok(())
}
