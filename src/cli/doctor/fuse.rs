//! Inspects FUSE: the device, the right to mount, a trial mount, and the swarmletfs mounts, which
//! are alive, dead, or hung.
//!
//! The trial is a short mount on a private directory. One subprocess mounts and serves, and another
//! one reads, so that neither a hang nor a signal blocks this process. The server holds only a pipe
//! from this process. When the pipe closes, it unmounts and removes its directory.
//!
//! Mounts are read from the kernel's table and accessed by parallel probes, so several hung ones
//! take no longer than one.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::Finding;
use crate::MountAccess;
use crate::catalog::{Freshness, Source};
use crate::cli::diagnosis::{self, Diagnosis, check_fuse};
use crate::cli::mountinfo::{Mount, MountTable};
use crate::cli::mountpoint::is_dead;
use crate::cli::probe;
use crate::cli::serve::{FAILED, READY, report};
use crate::cli::teardown::{self, UnmountMode, unmount};
use crate::cli::terminal::{display_path, escape_controls, shell_quote};
use crate::fuse::{self, PROBE_FILE};
use crate::store::Memory;
use crate::tree::{Settings, Tree};
use crate::view::{Filter, View};

/// Facts about FUSE. A null was not tried.
#[derive(Debug, Serialize)]
pub(super) struct Fuse {
    device: bool,
    /// True for root, which mounts without fusermount3.
    root: bool,
    fusermount: Option<&'static str>,
    /// True if /etc/fuse.conf permits --allow-other to other users than root.
    user_allow_other: bool,
    /// True if a trial mount succeeded and was readable.
    mount: Option<bool>,
    /// True if passthrough works: the kernel reads backing files itself.
    passthrough: Option<bool>,
}

pub(super) fn inspect_fuse() -> (Fuse, Vec<Finding>) {
    let (root, fusermount) = (rustix::process::geteuid().is_root(), teardown::find_fusermount());
    let conf = std::fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
    let user_allow_other = has_user_allow_other(&conf);
    let mut fuse =
        Fuse { device: true, root, fusermount, user_allow_other, mount: None, passthrough: None };
    let mut findings = Vec::new();
    if let Err(diagnosis) = check_fuse() {
        fuse.device = false;
        findings.push(Finding::diagnosed("fuse", "device", diagnosis));
        return (fuse, findings);
    }
    findings.push(Finding::ok("fuse", "device", "/dev/fuse exists and can be opened"));
    let trial = run_trial(TrialKind::Tree);
    fuse.mount = works(&trial);
    findings.push(mounting(trial, root, fusermount));
    if !root {
        findings.push(if user_allow_other {
            Finding::ok("fuse", "allow_other", "/etc/fuse.conf permits --allow-other")
        } else {
            Finding::note("fuse", "allow_other", "this user may not use --allow-other").with_remedy(
                "add the line `user_allow_other` to /etc/fuse.conf as root, or mount as root",
            )
        });
    }
    if fuse.mount == Some(true) {
        let trial = run_trial(TrialKind::Passthrough);
        fuse.passthrough = works(&trial);
        findings.push(passthrough(trial));
    }
    (fuse, findings)
}

fn works(trial: &Result<(), Failure>) -> Option<bool> {
    match trial {
        Ok(()) => Some(true),
        Err(Failure::Untried(_)) => None,
        Err(Failure::Refused(_) | Failure::Unreadable(_)) => Some(false),
    }
}

fn mounting(trial: Result<(), Failure>, root: bool, fusermount: Option<&str>) -> Finding {
    match trial {
        Ok(()) => {
            let by = match fusermount {
                Some(program) if !root => format!(" through {program}"),
                _ => String::new(),
            };
            let message = format!("mounting works: an empty tree was mounted{by} and read");
            Finding::ok("fuse", "mount", message)
        }
        Err(Failure::Refused(diagnosis)) => Finding::diagnosed("fuse", "mount", diagnosis),
        Err(Failure::Unreadable(error)) => {
            let why = match error.kind() {
                io::ErrorKind::TimedOut => {
                    format!("did not answer within {} seconds", probe::MOUNT_TIMEOUT.as_secs())
                }
                _ => format!("could not be read: {error}"),
            };
            Finding::problem("fuse", "mount", format!("a trial mount {why}")).with_remedy(
                "`SWARMLETFS_LOG=debug swarmletfs mount --foreground STORE MOUNTPOINT` shows what \
                 happens",
            )
        }
        Err(Failure::Untried(why)) => {
            Finding::note("fuse", "mount", format!("mounting was not tried: {why}"))
                .with_remedy("choose a folder with `TMPDIR=FOLDER swarmletfs doctor`")
        }
    }
}

fn passthrough(trial: Result<(), Failure>) -> Finding {
    let unavailable = |why: String| {
        Finding::note("fuse", "passthrough", format!("passthrough is not available: {why}"))
    };
    match trial {
        Ok(()) => Finding::ok(
            "fuse",
            "passthrough",
            "passthrough is available: the kernel reads large files directly",
        ),
        Err(Failure::Unreadable(error)) => match error.raw_os_error().map(Errno::from_raw_os_error)
        {
            Some(Errno::OPNOTSUPP) => unavailable("it needs Linux 6.9 or later".into()),
            Some(Errno::PERM) => unavailable("only root outside of containers may use it".into()),
            _ => unavailable(error.to_string()),
        },
        Err(Failure::Refused(diagnosis)) => unavailable(diagnosis.message),
        Err(Failure::Untried(why)) => unavailable(why),
    }
}

/// Returns true if fuse.conf has the option; parses it as fusermount3 does.
fn has_user_allow_other(conf: &str) -> bool {
    conf.lines().any(|line| line.split('#').next().unwrap_or_default().trim() == "user_allow_other")
}

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

fn run_trial(kind: TrialKind) -> Result<(), Failure> {
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
pub(crate) fn serve_trial(kind: TrialKind) -> ExitCode {
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum MountState {
    Alive,
    /// Its process is gone.
    Dead,
    Hung,
    /// Readable only by another user.
    Private,
    /// Another file system is mounted over it.
    Covered,
    Broken,
}

#[derive(Debug, Serialize)]
pub(super) struct MountFacts {
    point: String,
    state: MountState,
}

pub(super) fn inspect_mounts(table: io::Result<MountTable>) -> (Vec<MountFacts>, Vec<Finding>) {
    let table = match table {
        Ok(table) => table,
        Err(error) => {
            let message = format!("cannot read the mount table: {error}");
            let problem = Finding::problem("mounts", "table", message).with_remedy("mount /proc");
            return (Vec::new(), vec![problem]);
        }
    };
    let probes: Vec<(&Mount, io::Result<()>)> = thread::scope(|scope| {
        let probes: Vec<_> = table
            .ours()
            .map(|mount| {
                let inspect = || probe::first_entry(&mount.point).map(drop);
                let start = || thread::Builder::new().spawn_scoped(scope, inspect);
                (mount, is_seen(mount, &table).then(start))
            })
            .collect();
        let finished = probes.into_iter().map(|(mount, probe)| {
            let result = probe.map_or(Ok(()), |thread| {
                thread?.join().unwrap_or_else(|_| Err(io::Error::other("the inspection panicked")))
            });
            (mount, result)
        });
        finished.collect()
    });
    // A mount that was unmounted meanwhile is skipped.
    let now = MountTable::read().unwrap_or_default();
    let still =
        probes.into_iter().filter(|(mount, _)| now.is_mounted_at(&mount.point, &mount.device));
    let (mounts, mut findings): (Vec<_>, Vec<_>) = still
        .map(|(mount, probe)| {
            let state = if is_seen(mount, &table) { state(&probe) } else { MountState::Covered };
            let finding = mount_finding(&mount.point, state, probe.err());
            let point = display_path(&mount.point);
            (MountFacts { point: point.clone(), state }, finding.about(&point))
        })
        .unzip();
    if mounts.is_empty() {
        findings.push(Finding::ok("mounts", "none", "no swarmletfs is mounted"));
    }
    (mounts, findings)
}

/// Returns true if `mount` is the topmost one at its mountpoint.
fn is_seen(mount: &Mount, table: &MountTable) -> bool {
    table.at(&mount.point).is_some_and(|top| top.device == mount.device)
}

fn state(probe: &io::Result<()>) -> MountState {
    match probe {
        Ok(()) => MountState::Alive,
        Err(error) if is_dead(error) => MountState::Dead,
        Err(error) => match error.kind() {
            ErrorKind::TimedOut => MountState::Hung,
            ErrorKind::PermissionDenied => MountState::Private,
            _ => MountState::Broken,
        },
    }
}

fn mount_finding(point: &Path, state: MountState, error: Option<io::Error>) -> Finding {
    let (here, quoted) = (display_path(point), shell_quote(point));
    let lazy = format!("`swarmletfs umount --lazy {quoted}` detaches it");
    match state {
        MountState::Alive => Finding::ok("mounts", "alive", format!("the mount on {here} answers")),
        MountState::Dead => {
            let message = format!("the mount on {here} is dead: its process is gone");
            Finding::problem("mounts", "dead", message)
                .with_remedy(format!("`swarmletfs umount {quoted}` removes it"))
        }
        MountState::Hung => {
            let message = format!(
                "the mount on {here} did not answer within {} seconds",
                probe::TIMEOUT.as_secs()
            );
            Finding::problem("mounts", "hung", message).with_remedy(lazy)
        }
        MountState::Private => {
            let message = format!("the mount on {here} can be read only by another user");
            Finding::note("mounts", "private", message)
        }
        MountState::Covered => {
            let message = format!("the mount on {here} is covered by another mount");
            Finding::note("mounts", "covered", message)
        }
        MountState::Broken => {
            let why = error.map(|error| format!(": {error}")).unwrap_or_default();
            let message = format!("the mount on {here} cannot be accessed{why}");
            Finding::problem("mounts", "broken", message).with_remedy(lazy)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn fuse_conf_is_parsed_like_fusermount() {
        for (conf, allows) in [
            ("user_allow_other", true),
            ("# comment\n  user_allow_other # yes\nmount_max = 5\n", true),
            ("#user_allow_other\n", false),
            ("user_allow_others\nuser_allow_other = 1\n", false),
            ("", false),
        ] {
            assert_eq!(has_user_allow_other(conf), allows, "{conf:?}");
        }
    }

    #[test]
    fn failed_trial_gives_its_reason() {
        let diagnosis = Diagnosis::new("no", "yes");
        let not_mounted = mounting(Err(Failure::Refused(diagnosis)), true, None);
        assert_eq!(
            (not_mounted.level, not_mounted.remedy.as_deref()),
            (Level::Problem, Some("yes"))
        );
        let hung = mounting(Err(Failure::Unreadable(io::ErrorKind::TimedOut.into())), true, None);
        assert!(hung.level == Level::Problem && hung.message.contains("10 seconds"), "{hung:?}");
        let untried = mounting(Err(Failure::Untried("no folder".into())), true, None);
        assert!(
            untried.level == Level::Note && untried.message.contains("no folder"),
            "{untried:?}"
        );
        for (errno, why) in
            [(Errno::OPNOTSUPP, "6.9"), (Errno::PERM, "root"), (Errno::LOOP, "symbolic")]
        {
            let unavailable = passthrough(Err(Failure::Unreadable(errno.into())));
            assert!(
                unavailable.level == Level::Note && unavailable.message.contains(why),
                "{unavailable:?}"
            );
        }
    }
}
