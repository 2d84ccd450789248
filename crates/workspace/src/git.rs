//! Runs git on a repository.
//!
//! Git runs programs that a repository names: hooks, a monitor of files, filters. So it is run on
//! two kinds of repositories only: on the user's own, without hooks and other programs, and on ones
//! that were made here, to which files of a worker were copied that name no program. Each call has
//! limits of time, memory and output, since a worker made the objects.

use std::ffi::OsString;
use std::io::{self, Read, Seek, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, kill_process, prlimit, waitid,
};
use serde::{Deserialize, Serialize};
use swarmletfs_base::model::{decode, encode};
use swarmletfs_record::write::File;

/// Time after which git is ended.
const TIME_MAX: Duration = Duration::from_secs(120);
/// Maximum address space of git, in bytes.
const MEMORY_MAX: u64 = 4 << 30;
/// Maximum size of the output that is read, in bytes.
const OUTPUT_MAX: u64 = 64 << 20;
/// Variables of the user that git receives. Others could lead it to another repository or program.
const VARIABLES: [&str; 5] = ["PATH", "HOME", "XDG_CONFIG_HOME", "USER", "TMPDIR"];
/// Settings that keep git from running programs, and that bound its memory.
const SETTINGS: [&str; 10] = [
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.packedGitLimit=256m",
    "core.packedGitWindowSize=32m",
    "fetch.fsckObjects=true",
    "gc.auto=0",
    "log.showSignature=false",
    "maintenance.auto=false",
    "pack.threads=1",
    "pack.windowMemory=64m",
];

/// A repository that git is run on.
#[derive(Debug, Clone)]
pub(crate) struct GitRepository {
    git_dir: PathBuf,
    work_tree: Option<PathBuf>,
    /// Another file than the index of the repository.
    index: Option<PathBuf>,
}

/// The result of a command of git that was run.
#[derive(Debug)]
pub(crate) struct GitOutput {
    /// The exit code; `None` if a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) out: Vec<u8>,
    /// The last line of stderr.
    pub(crate) error: String,
}

impl GitOutput {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.out).trim_end().to_owned()
    }
}

impl GitRepository {
    /// Returns the repository with the folder or the file `git_dir`.
    pub(crate) fn new(git_dir: impl Into<PathBuf>) -> GitRepository {
        GitRepository { git_dir: git_dir.into(), work_tree: None, index: None }
    }

    /// Returns the repository of the workspace `folder`, if that is the top of one.
    pub(crate) fn of_workspace(folder: &Path) -> Option<GitRepository> {
        let git_dir = folder.join(".git");
        git_dir.symlink_metadata().ok()?;
        Some(GitRepository { git_dir, work_tree: Some(folder.to_owned()), index: None })
    }

    pub(crate) fn with_index(&self, index: &Path) -> GitRepository {
        GitRepository { index: Some(index.to_owned()), ..self.clone() }
    }

    /// Runs git, and returns its result, whatever its exit code is.
    ///
    /// # Errors
    ///
    /// Git cannot be run, or exceeded a limit.
    pub(crate) fn output(&self, arguments: &[&str], input: &[u8]) -> io::Result<GitOutput> {
        let mut git = Command::new("git");
        git.env_clear().env("LC_ALL", "C").env("GIT_TERMINAL_PROMPT", "0");
        for variable in VARIABLES {
            git.envs(std::env::var_os(variable).map(|value| (variable, value)));
        }
        // With an explicit folder, git does not ask who owns it.
        git.env("GIT_DIR", &self.git_dir);
        git.envs(self.work_tree.as_ref().map(|folder| ("GIT_WORK_TREE", folder)));
        git.envs(self.index.as_ref().map(|index| ("GIT_INDEX_FILE", index)));
        git.current_dir(self.work_tree.as_deref().unwrap_or(Path::new("/")));
        if let Some((uid, gid)) = self.other_owner() {
            // The owner cannot read root's settings.
            git.uid(uid).gid(gid).env_remove("HOME").env_remove("XDG_CONFIG_HOME");
        }
        for setting in SETTINGS {
            git.args(["-c", setting]);
        }
        git.args(arguments);
        let mut given = tempfile::tempfile()?;
        given.write_all(input)?;
        given.rewind()?;
        let mut errors = tempfile::tempfile()?;
        git.stdin(given).stdout(Stdio::piped()).stderr(errors.try_clone()?);
        run(git, &mut errors, TIME_MAX)
    }

    /// Runs git, and returns its output as text.
    ///
    /// # Errors
    ///
    /// Git cannot be run, or fails.
    pub(crate) fn text(&self, arguments: &[&str], input: &[u8]) -> io::Result<String> {
        let output = self.output(arguments, input)?;
        match output.code {
            Some(0) => Ok(output.text()),
            _ => Err(failure(arguments, &output.error)),
        }
    }

    /// Runs git on short text.
    ///
    /// # Errors
    ///
    /// Git cannot be run, or fails.
    pub(crate) fn ask(&self, arguments: &[&str]) -> io::Result<String> {
        self.text(arguments, b"")
    }

    /// Returns the owner of the repository that root works for: new objects are the owner's.
    pub(crate) fn other_owner(&self) -> Option<(u32, u32)> {
        let stat = rustix::fs::stat(&self.git_dir).ok()?;
        let is_root = rustix::process::geteuid().is_root();
        (is_root && stat.st_uid != 0).then_some((stat.st_uid, stat.st_gid))
    }
}

/// The repository of a workspace, as it was when a worker began.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartedRepository {
    /// The folder of HEAD and the index, percent-encoded.
    git_dir: String,
    /// The folder of the objects and the branches, percent-encoded.
    common_dir: String,
    /// The hash of its objects: `sha1` or `sha256`.
    pub(crate) format: String,
    /// The commit of HEAD; absent if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<String>,
}

impl StartedRepository {
    /// Returns the repository whose top is the folder `workspace`; `None` if there is none, or if
    /// git does not know it.
    pub(crate) fn find(workspace: &Path) -> Option<StartedRepository> {
        let absolute = "--path-format=absolute";
        let asked = GitRepository::of_workspace(workspace)?.output(
            &[
                "rev-parse",
                "--show-object-format",
                absolute,
                "--git-dir",
                "--git-common-dir",
                "-q",
                "--verify",
                "HEAD",
            ],
            b"",
        );
        let out = asked.ok()?.out;
        let mut lines = out.split(|byte| *byte == b'\n');
        let format = String::from_utf8(lines.next()?.to_owned()).ok()?;
        let (git_dir, common_dir) = (encode(lines.next()?), encode(lines.next()?));
        let head = lines.next().and_then(|head| String::from_utf8(head.to_owned()).ok());
        let head = head.filter(|head| !head.is_empty());
        Some(StartedRepository { git_dir, common_dir, format, head })
    }

    pub(crate) fn git_dir(&self) -> PathBuf {
        to_path(&self.git_dir)
    }

    pub(crate) fn common_dir(&self) -> PathBuf {
        to_path(&self.common_dir)
    }
}

fn to_path(encoded: &str) -> PathBuf {
    PathBuf::from(OsString::from_vec(decode(encoded)))
}

/// Returns the error of a command of git that failed.
pub(crate) fn failure(arguments: &[&str], error: &str) -> io::Error {
    let command = arguments.first().unwrap_or(&"");
    io::Error::other(format!("git {command}: {error}"))
}

fn run(mut git: Command, errors: &mut File, time_max: Duration) -> io::Result<GitOutput> {
    let mut child = git.spawn()?;
    let pid = Pid::from_child(&child);
    let limit = Rlimit { current: Some(MEMORY_MAX), maximum: Some(MEMORY_MAX) };
    // It may have ended already.
    let _ = prlimit(Some(pid), Resource::As, limit);
    let mut out = Vec::new();
    let (done, ended) = mpsc::channel::<()>();
    let watched = thread::scope(|scope| {
        let watch = thread::Builder::new().spawn_scoped(scope, move || {
            let is_late = ended.recv_timeout(time_max) == Err(mpsc::RecvTimeoutError::Timeout);
            if is_late {
                let _ = kill_process(pid, Signal::KILL);
            }
            is_late
        })?;
        let read = child.stdout.take().map(|pipe| pipe.take(OUTPUT_MAX + 1).read_to_end(&mut out));
        let read = read.transpose();
        if read.is_err() || out.len() as u64 > OUTPUT_MAX {
            let _ = child.kill();
        }
        // Its ID is not given to another process before it is reaped, below.
        let ended = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        drop(done);
        let is_late = watch.join().unwrap_or_default();
        read.and(ended.map_err(io::Error::from)).map(|_| is_late)
    });
    if watched.is_err() {
        let _ = child.kill();
    }
    let status = child.wait()?;
    if watched? || out.len() as u64 > OUTPUT_MAX {
        return Err(io::Error::other("git took too long or wrote too much"));
    }
    let mut error = Vec::new();
    errors.rewind()?;
    errors.take(OUTPUT_MAX).read_to_end(&mut error)?;
    let error = String::from_utf8_lossy(&error);
    let error = error.trim_end().lines().last().unwrap_or_default().to_owned();
    Ok(GitOutput { code: status.code(), out, error })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that closed its output, but runs on, is ended in time.
    #[test]
    fn program_without_output_is_ended() {
        let mut errors = tempfile::tempfile().unwrap();
        let mut program = Command::new("sh");
        program.args(["-c", "exec >&-; exec sleep 600"]).stdout(Stdio::piped());
        let error = run(program, &mut errors, Duration::from_millis(100)).unwrap_err();
        assert_eq!(error.to_string(), "git took too long or wrote too much");
    }
}
