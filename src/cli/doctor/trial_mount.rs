//! A short trial mount on a private directory.
//!
//! One subprocess mounts and serves, and another one reads, so that neither a hang nor a signal
//! blocks this process. The server holds only a pipe from this process. When the pipe closes, it
//! unmounts and removes its directory.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::catalog::{Freshness, Source};
use crate::cli::background::{FAILED, READY, report};
use crate::cli::diagnosis::{self, Diagnosis};
use crate::cli::probe;
use crate::cli::teardown::{UnmountMode, unmount};
use crate::cli::terminal::{display_path, escape_controls};
use crate::fuse::{self, MountAccess, PROBE_FILE};
use crate::store::Memory;
use crate::tree::{Settings, Tree};
use crate::view::{Filter, View};

/// Time limit for the server to start, and to end.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Content of a trial mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TrialKind {
    /// The tree of a swarm without workers.
    Tree,
    /// A file that can be read only through passthrough.
    Passthrough,
}

impl TrialKind {
    fn file(self) -> &'static str {
        match self {
            TrialKind::Tree => "README.md",
            TrialKind::Passthrough => PROBE_FILE,
        }
    }
}

#[derive(Debug)]
pub(super) enum Failure {
    Untried(String),
    Refused(Diagnosis),
    Unreadable(io::Error),
}

#[derive(Serialize, Deserialize)]
enum TrialError {
    NoFolder(String),
    NoMount(Diagnosis),
}

pub(super) fn run_trial(kind: TrialKind) -> Result<(), Failure> {
    let untried = |error: io::Error| Failure::Untried(error.to_string());
    let mut child = Command::new(std::env::current_exe().map_err(untried)?)
        .args(["__trial", &probe::value_name(kind)])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .current_dir("/")
        .spawn()
        .map_err(untried)?;
    let report_bytes = probe::read_stdout(&mut child, TIMEOUT);
    let report_bytes = report_bytes.inspect_err(|_| end(&mut child, None)).map_err(untried)?;
    match report_bytes.split_first() {
        Some((&READY, folder)) => {
            let folder = PathBuf::from(OsString::from_vec(folder.to_vec()));
            let read = probe::check_readable(&folder.join(kind.file()));
            end(&mut child, Some(&folder));
            read.map_err(Failure::Unreadable)
        }
        Some((&FAILED, report)) => {
            end(&mut child, None);
            Err(match serde_json::from_slice(report).map_err(io::Error::from).map_err(untried)? {
                TrialError::NoFolder(why) => Failure::Untried(why),
                TrialError::NoMount(diagnosis) => Failure::Refused(diagnosis),
            })
        }
        _ => {
            end(&mut child, None);
            Err(Failure::Untried("the mounting process ended without a report".into()))
        }
    }
}

/// Lets the server end. If it does not end by itself, kills it and removes its mount on `folder`.
fn end(child: &mut Child, folder: Option<&Path>) {
    drop(child.stdin.take());
    let begun = Instant::now();
    let ended = loop {
        match child.try_wait() {
            Ok(None) if begun.elapsed() < TIMEOUT => std::thread::sleep(Duration::from_millis(2)),
            Ok(ended) => break ended,
            Err(_) => break None,
        }
    };
    if !ended.is_some_and(|status| status.success()) {
        let _ = child.kill();
        folder.into_iter().for_each(clear);
    }
}

/// Unmounts and removes the directory, without access to the mount.
fn clear(folder: &Path) {
    let _ = unmount(folder, UnmountMode::Detached);
    let _ = std::fs::remove_dir(folder);
}

/// Runs the server: mounts, reports the directory, and waits for its stdin to close.
pub(crate) fn serve(kind: TrialKind) -> ExitCode {
    // Ctrl-C goes to the parent only; the server then sees its stdin close.
    let _ = rustix::process::setsid();
    match set_up(kind) {
        Ok(folder) => {
            let reported =
                report(READY, folder.as_os_str().as_bytes()).and_then(|()| no_more_output());
            if reported.is_ok() {
                let _ = io::stdin().read_to_end(&mut Vec::new());
            }
            clear(&folder);
            ExitCode::SUCCESS
        }
        Err(why) => {
            let _ = report(FAILED, &serde_json::to_vec(&why).unwrap_or_default());
            ExitCode::FAILURE
        }
    }
}

/// Mounts on a new directory, which is served until this process ends.
fn set_up(kind: TrialKind) -> Result<PathBuf, TrialError> {
    let temporary = std::env::temp_dir();
    let folder = temporary
        .canonicalize()
        .and_then(|temporary| {
            let private = std::fs::Permissions::from_mode(0o700);
            tempfile::Builder::new()
                .prefix("swarmletfs-doctor-")
                .permissions(private)
                .tempdir_in(temporary)
        })
        .map_err(|error| {
            let why = escape_controls(&error.to_string());
            TrialError::NoFolder(format!(
                "cannot create a folder in {}: {why}",
                display_path(&temporary)
            ))
        })?;
    // From here on the directory is removed manually: `TempDir` would read the mount.
    let folder = folder.keep();
    let mounted = match kind {
        TrialKind::Tree => {
            empty_tree().and_then(|tree| fuse::mount(tree, &folder, MountAccess::Mounter).map(drop))
        }
        TrialKind::Passthrough => fuse::mount_passthrough_probe(&folder),
    };
    match mounted {
        Ok(()) => Ok(folder),
        Err(error) => {
            clear(&folder);
            Err(TrialError::NoMount(diagnosis::diagnose_mount(&error)))
        }
    }
}

fn empty_tree() -> io::Result<Tree> {
    let source = Source::from_store(Arc::new(Memory::new()), None);
    let view = View::new(vec![source], Freshness::default(), Filter::default())
        .map_err(io::Error::other)?;
    Ok(Tree::new(view, Settings::default()))
}

fn no_more_output() -> io::Result<()> {
    let null = OpenOptions::new().write(true).open("/dev/null")?;
    Ok(rustix::stdio::dup2_stdout(&null)?)
}
