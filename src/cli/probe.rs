//! Accesses paths that may hang, and makes calls that may kill the caller, in a subprocess.
//!
//! A call into a mount whose process hangs cannot be interrupted, not even by SIGKILL, and a
//! process with such a call cannot exit. So each probe runs in a subprocess, which is abandoned
//! after a timeout. Calls for which a container may kill the caller are made in a subprocess too.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use clap::ValueEnum;
use landlock::{LandlockStatus, RestrictSelf};
use rustix::fs::{CWD, Dir, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

pub(super) const TIMEOUT: Duration = Duration::from_secs(5);

pub(super) const MOUNT_TIMEOUT: Duration = Duration::from_secs(10);

/// Exit code of a probe whose stdout holds an errno.
const ERRNO_EXIT_CODE: u8 = 3;

/// Maximum number of links to follow on the way to a mountpoint.
const MAX_LINKS: usize = 40;

/// An access to a path. Its name is passed to the subprocess.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Probe {
    /// Resolves links and `..`.
    Resolve,
    /// Prints the device and inode numbers of a directory and of its ancestors.
    AncestorIds,
    /// Prints the name of any one entry.
    FirstEntry,
    /// Calls statfs.
    Alive,
    /// Reads the first byte.
    Read,
    /// Lists a directory as the store does.
    Openat2,
    /// Prints the landlock ABI version; the path is not used.
    Landlock,
}

/// Resolves links and `..` in `path`. The last component may be a dead mount, for which
/// `canonicalize` fails.
pub(super) fn resolve(path: &Path) -> io::Result<PathBuf> {
    Ok(PathBuf::from(OsString::from_vec(run_probe(Probe::Resolve, path, TIMEOUT)?)))
}

/// Checks that the kernel supports `openat2` as the store uses it.
///
/// # Errors
///
/// Fails with `NOSYS` if the kernel lacks the call, or with another errno.
pub(super) fn openat2() -> io::Result<()> {
    run_probe(Probe::Openat2, Path::new("/"), TIMEOUT).map(drop)
}

/// Returns the kernel's landlock ABI version; 0 if it has none.
pub(super) fn landlock() -> io::Result<i32> {
    let answer = run_probe(Probe::Landlock, Path::new("/"), TIMEOUT)?;
    String::from_utf8_lossy(&answer).parse().map_err(io::Error::other)
}

/// Returns the device and inode numbers of the directory and of its ancestors, innermost first.
pub(super) fn ancestor_ids(path: &Path) -> io::Result<Vec<(u64, u64)>> {
    let answer = run_probe(Probe::AncestorIds, path, TIMEOUT)?;
    let text = String::from_utf8_lossy(&answer);
    let pairs = text.lines().filter_map(|line| line.split_once(' '));
    Ok(pairs.filter_map(|(dev, ino)| Some((dev.parse().ok()?, ino.parse().ok()?))).collect())
}

/// Returns the name of any one entry of the directory, or `None` if it is empty.
///
/// # Errors
///
/// Fails with `NotADirectory` if `path` is no directory, `TimedOut` if it hangs, or another I/O
/// error.
pub(super) fn first_entry(path: &Path) -> io::Result<Option<OsString>> {
    let answer = run_probe(Probe::FirstEntry, path, TIMEOUT)?;
    Ok(if answer.is_empty() { None } else { Some(OsString::from_vec(answer)) })
}

/// Checks that the file system at `path` answers.
///
/// # Errors
///
/// Fails with `TimedOut` if it hangs, `NotConnected` if its process is gone, or another I/O error.
pub(super) fn check_alive(path: &Path) -> io::Result<()> {
    run_probe(Probe::Alive, path, TIMEOUT).map(drop)
}

/// Checks that the file at `path` can be read.
///
/// # Errors
///
/// Fails with `TimedOut` if it hangs, or with another I/O error.
pub(super) fn check_readable(path: &Path) -> io::Result<()> {
    run_probe(Probe::Read, path, MOUNT_TIMEOUT).map(drop)
}

fn run_probe(probe: Probe, path: &Path, limit: Duration) -> io::Result<Vec<u8>> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["__probe", &value_name(probe), "--"]).arg(path).current_dir("/");
    run_with_timeout(command, limit)
}

/// Runs a process of this program that answers through [`reply`].
///
/// # Errors
///
/// Fails with `TimedOut` after `limit`, or with the errno that the process reports.
pub(super) fn run_with_timeout(mut command: Command, limit: Duration) -> io::Result<Vec<u8>> {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let answer = read_stdout(&mut child, limit).inspect_err(|_| {
        // Not waited for: the process may be unable to exit.
        let _ = child.kill();
    })?;
    let status = child.wait()?;
    if status.success() {
        return Ok(answer);
    }
    match (status.code(), String::from_utf8_lossy(&answer).parse()) {
        (Some(code), Ok(errno)) if code == i32::from(ERRNO_EXIT_CODE) => {
            Err(io::Error::from_raw_os_error(errno))
        }
        _ => Err(io::Error::other("the probe process failed")),
    }
}

/// Reads the stdout of `child` until it is closed.
///
/// # Errors
///
/// Fails with `TimedOut` after `limit`, or with another I/O error.
pub(super) fn read_stdout(child: &mut Child, limit: Duration) -> io::Result<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    if let Some(mut stdout) = child.stdout.take() {
        std::thread::Builder::new().name("probe".into()).spawn(move || {
            let mut answer = Vec::new();
            let read = stdout.read_to_end(&mut answer);
            let _ = sender.send(read.map(|_| answer));
        })?;
    }
    receiver.recv_timeout(limit).unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

pub(super) fn serve(probe: Probe, path: &Path) -> ExitCode {
    reply(match probe {
        Probe::Resolve => resolve_here(path).map(|path| path.into_os_string().into_vec()),
        Probe::AncestorIds => ancestor_ids_here(path),
        Probe::FirstEntry => entry_here(path),
        Probe::Alive => rustix::fs::statfs(path).map(|_| Vec::new()).map_err(io::Error::from),
        Probe::Read => read_here(path),
        Probe::Openat2 => openat2_here(path),
        Probe::Landlock => landlock_here(),
    })
}

/// Returns the name of a value on the command line.
pub(super) fn value_name(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Writes an answer to stdout for [`run_with_timeout`].
pub(super) fn reply(answer: io::Result<Vec<u8>>) -> ExitCode {
    let (bytes, code) = match answer {
        Ok(bytes) => (bytes, ExitCode::SUCCESS),
        Err(error) => (
            error.raw_os_error().unwrap_or(Errno::IO.raw_os_error()).to_string().into(),
            ERRNO_EXIT_CODE.into(),
        ),
    };
    match io::stdout().write_all(&bytes).and_then(|()| io::stdout().flush()) {
        Ok(()) => code,
        Err(_) => ExitCode::FAILURE,
    }
}

fn resolve_here(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_path_buf();
    for _ in 0..MAX_LINKS {
        let error = match path.canonicalize() {
            Ok(path) => return Ok(path),
            Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => {
                return Err(error);
            }
            Err(error) => error,
        };
        // The last component cannot be entered: it is a dead mount or another user's. Its parent
        // must resolve.
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(error);
        };
        let parent = parent.canonicalize()?;
        let full_path = parent.join(name);
        match std::fs::read_link(&full_path) {
            Ok(target) => path = parent.join(target),
            Err(_) => return Ok(full_path),
        }
    }
    Err(Errno::LOOP.into())
}

fn ancestor_ids_here(path: &Path) -> io::Result<Vec<u8>> {
    let mut answer = String::new();
    for folder in path.ancestors() {
        let stat = rustix::fs::stat(folder)?;
        answer.push_str(&format!("{} {}\n", stat.st_dev, stat.st_ino));
    }
    Ok(answer.into())
}

fn entry_here(path: &Path) -> io::Result<Vec<u8>> {
    // The kernel may list a directory from its cache, although the process of the mount hangs.
    rustix::fs::statfs(path)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // A probe must not change access times in a store. Only a directory's owner may set NOATIME.
    let folder = match rustix::fs::open(path, flags | OFlags::NOATIME, Mode::empty()) {
        Err(Errno::PERM) => rustix::fs::open(path, flags, Mode::empty())?,
        other => other?,
    };
    for entry in Dir::new(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            return Ok(name.to_vec());
        }
    }
    Ok(Vec::new())
}

fn read_here(path: &Path) -> io::Result<Vec<u8>> {
    std::fs::File::open(path)?.read_exact(&mut [0])?;
    Ok(Vec::new())
}

/// Checks that the kernel can resolve paths beneath a directory.
fn openat2_here(path: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS)?;
    Ok(Vec::new())
}

fn landlock_here() -> io::Result<Vec<u8>> {
    // Without rules nothing is restricted; this only queries the version.
    let status = RestrictSelf::default().no_new_privs(false).apply().map_err(io::Error::other)?;
    let version = match status.landlock {
        LandlockStatus::Available { kernel_abi: Some(newer), .. } => newer,
        LandlockStatus::Available { effective_abi, .. } => effective_abi as i32,
        _ => 0,
    };
    Ok(version.to_string().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolve_follows_links_and_fails_for_missing_names() {
        let folder = tempfile::tempdir().unwrap();
        let real = folder.path().canonicalize().unwrap();
        std::fs::create_dir(real.join("point")).unwrap();
        std::os::unix::fs::symlink("point", real.join("link")).unwrap();
        std::os::unix::fs::symlink("nowhere", real.join("broken")).unwrap();
        assert_eq!(resolve_here(&real.join("point/../link")).unwrap(), real.join("point"));
        assert_eq!(resolve_here(&real.join("broken")).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(entry_here(&real.join("point")).unwrap(), b"");
        assert_ne!(entry_here(&real).unwrap(), b"");
    }
}
