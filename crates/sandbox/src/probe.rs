//! A trial of the whole sandbox on the real file systems. Settings of the kernel alone do not show
//! whether it works.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use rustix::fs::{AtFlags, CWD, Mode, chmod, mkdir, rename, unlinkat};
use tempfile::TempDir;
use thiserror::Error;

use super::files;
use super::processes::{LimitMethod, probe_limits};
use super::rights::{self, LandlockLevel};
use super::stage::{
    FailedStep, OverlayDirs, PROGRAM, SandboxSpec, Stage, StageFailure, WorkspaceView,
};

const FOLDER: &str = "folder";

const FILE: &str = "file";

/// The parts of the isolation that can be missing on a machine. All others always hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Protections {
    /// The second layer, and the only one around abstract sockets.
    pub landlock: LandlockLevel,
    pub limits: LimitMethod,
}

/// The reason why the sandbox does not work: the failed step, its error, the known cause and a
/// remedy.
#[derive(Debug, Clone, Error)]
#[error("{0}")]
pub struct Refusal(String);

impl From<StageFailure> for Refusal {
    fn from(failure: StageFailure) -> Refusal {
        Refusal(failure.to_string())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrialView {
    /// An overlay of the real workspace, in which nothing is changed, and of a small directory in
    /// which a file and a directory are replaced.
    Overlay,
    /// A small directory in place of the workspace.
    Copy,
}

/// Runs a trial in the sandbox.
///
/// `draft_parent` is a directory for drafts. The trial uses a new directory in it, which is removed
/// afterwards.
///
/// # Errors
///
/// Fails with the first step that does not work.
pub fn probe(
    view: TrialView,
    workspace: &Path,
    draft_parent: &Path,
) -> Result<Protections, Refusal> {
    let trial = Trial::new(view, workspace, draft_parent)?;
    let words = [PROGRAM.into()].into_iter().chain(Stage::Check.arguments(0, None));
    let output = run_trial(&trial.spec, &words.collect::<Vec<_>>())?;
    trial.check_outside()?;
    let landlock = LandlockLevel::from_name(&output)
        .ok_or_else(|| Refusal("cannot understand the answer of a trial".to_owned()))?;
    Ok(Protections { landlock, limits: probe_limits() })
}

/// Runs a command in a sandbox and returns its output.
///
/// # Errors
///
/// Fails with the first step that does not work, or if the command fails.
fn run_trial(spec: &SandboxSpec, command: &[OsString]) -> Result<Vec<u8>, Refusal> {
    let wrapped = spec.wrap(command).step("start a trial of the sandbox")?;
    let (program, arguments) =
        wrapped.command.split_first().ok_or_else(|| Refusal("cannot start a trial".to_owned()))?;
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .step("start a trial of the sandbox")?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let text = text.trim();
    let text = text.strip_prefix("swarmletfs: ").unwrap_or(text);
    Err(Refusal(match text {
        "" => format!("cannot run in the sandbox: the trial ended with {}", output.status),
        text => text.to_owned(),
    }))
}

struct Trial {
    spec: SandboxSpec,
    folder: TempDir,
}

impl Trial {
    fn new(view: TrialView, workspace: &Path, draft_parent: &Path) -> Result<Trial, StageFailure> {
        let make = || -> io::Result<Trial> {
            let folder = tempfile::Builder::new().prefix(".trial-").tempdir_in(draft_parent)?;
            let path = |name: &str| folder.path().join(name);
            let names = ["upper", "work", "upper2", "work2", "lower", "store", "store/worker"];
            for name in names {
                mkdir(path(name), Mode::RWXU)?;
            }
            let lower = path("lower");
            mkdir(lower.join(FOLDER), Mode::RWXU)?;
            files::make_file(&lower.join(FOLDER).join(FILE))?;
            let layers = |upper: &str, work: &str| OverlayDirs {
                upper: path(upper),
                work: path(work),
                is_durable: false,
            };
            let (store, worker) = (path("store"), path("store/worker"));
            let sandbox = |view| SandboxSpec::new(workspace.to_path_buf(), view, store, worker);
            let spec = match view {
                TrialView::Overlay => SandboxSpec {
                    directory: lower.clone(),
                    git_common: Some((lower, layers("upper2", "work2"))),
                    ..sandbox(WorkspaceView::Overlay(layers("upper", "work")))
                },
                TrialView::Copy => sandbox(WorkspaceView::Copy(lower)),
            };
            Ok(Trial { spec, folder })
        };
        make().step("make the files of a trial")
    }

    /// Checks that the directory beneath an overlay has not changed.
    fn check_outside(&self) -> Result<(), StageFailure> {
        if self.spec.git_common.is_none() {
            return Ok(());
        }
        let file: PathBuf = [self.folder.path(), "lower".as_ref(), FOLDER.as_ref(), FILE.as_ref()]
            .into_iter()
            .collect();
        let size = rustix::fs::stat(file).step("find the real file after a trial")?.st_size;
        if size == 0 {
            return Ok(());
        }
        Err(StageFailure::new("cannot keep the workspace unchanged: a trial changed the real file"))
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        // The kernel makes these directories without any rights, so their content could not be
        // removed.
        for layer in ["work", "work2"] {
            for inner in ["work", "work/incompat", "work/incompat/volatile"] {
                let _ = chmod(self.folder.path().join(layer).join(inner), Mode::RWXU);
            }
        }
    }
}

/// Serves the trial inside of the sandbox, in a directory that may change.
pub(super) fn serve_check() -> Result<ExitCode, StageFailure> {
    let folder = Path::new(FOLDER);
    let file = folder.join(FILE);
    unlinkat(CWD, &file, AtFlags::empty()).step("remove a file in the view")?;
    unlinkat(CWD, folder, AtFlags::REMOVEDIR).step("remove a directory in the view")?;
    mkdir(folder, Mode::RWXU).step("make a removed directory anew in the view")?;
    if !files::list(folder).step("list a directory in the view")?.is_empty() {
        return Err(StageFailure::new(
            "cannot use the view: a directory that was made anew shows old files",
        ));
    }
    files::make_file(&file).step("make a file in the view")?;
    files::write(&file, b"changed").step("write a file in the view")?;
    rename(&file, folder.join("renamed")).step("rename a file in the view")?;
    let level = rights::landlock_level().as_str();
    files::write_all(rustix::stdio::stdout(), level.as_bytes()).step("answer")?;
    Ok(ExitCode::SUCCESS)
}
