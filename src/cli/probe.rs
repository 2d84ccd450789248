//! Looks at paths that may never answer, and at calls that may not be survived.
//!
//! A call into a mount whose process hangs cannot be interrupted once it is under way, not even by SIGKILL, and a
//! process with a thread in such a call cannot end. So every look is made by a process of its own, which is given a
//! few seconds and then left behind. So are calls that a container may answer by killing who makes them.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use landlock::{LandlockStatus, RestrictSelf};
use rustix::fs::{Dir, Mode, OFlags};
use rustix::io::Errno;

use crate::error::Error;
use crate::name::RelPath;
use crate::store::{Disk, Store};

/// How long a look may take.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);

/// How long a fresh mount may take to answer.
pub(super) const MOUNT_TIMEOUT: Duration = Duration::from_secs(10);

/// The exit code that says that stdout holds an errno.
const ERRNO_EXIT_CODE: u8 = 3;

/// How many links are followed on the way to a mountpoint.
const MAX_LINKS: usize = 40;

/// The path without links and `..`. The last part may be a dead mount, which the system's own way cannot resolve.
pub(super) fn resolve(path: &Path) -> io::Result<PathBuf> {
    Ok(PathBuf::from(OsString::from_vec(run_probe("resolve", path, TIMEOUT)?)))
}

/// Whether the kernel keeps paths beneath a folder, as a store needs it. Errors: NOSYS among others.
pub(super) fn openat2() -> io::Result<()> {
    run_probe("openat2", Path::new("/"), TIMEOUT).map(drop)
}

/// The version of the kernel's landlock interface; 0 if it has none.
pub(super) fn landlock() -> io::Result<i32> {
    let answer = run_probe("landlock", Path::new("/"), TIMEOUT)?;
    String::from_utf8_lossy(&answer).parse().map_err(io::Error::other)
}

/// Device and inode number of the folder and of each folder above it, from it upwards.
pub(super) fn ancestor_ids(path: &Path) -> io::Result<Vec<(u64, u64)>> {
    let answer = run_probe("chain", path, TIMEOUT)?;
    let pair = |line: &str| line.split_once(' ').and_then(|(dev, ino)| Some((dev.parse().ok()?, ino.parse().ok()?)));
    Ok(String::from_utf8_lossy(&answer).lines().filter_map(pair).collect())
}

/// The name of some entry of the folder, if it has any. Errors: NotADirectory among others.
pub(super) fn first_entry(path: &Path) -> io::Result<Option<OsString>> {
    let answer = run_probe("entry", path, TIMEOUT)?;
    Ok(if answer.is_empty() { None } else { Some(OsString::from_vec(answer)) })
}

/// Whether the file system at `path` answers. Errors: TimedOut if it hangs, NotConnected if its process is gone.
pub(super) fn check_alive(path: &Path) -> io::Result<()> {
    run_probe("alive", path, TIMEOUT).map(drop)
}

/// Whether the file at `path` can be read. Errors: TimedOut among others.
pub(super) fn check_readable(path: &Path) -> io::Result<()> {
    run_probe("read", path, MOUNT_TIMEOUT).map(drop)
}

/// Makes a look in another process.
fn run_probe(look: &str, path: &Path, limit: Duration) -> io::Result<Vec<u8>> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["__probe", look, "--"]).arg(path).current_dir("/");
    run_with_timeout(command, limit)
}

/// Runs a process of this program that answers as [`answer`] does. Errors: TimedOut, and what it answered.
pub(super) fn run_with_timeout(mut command: Command, limit: Duration) -> io::Result<Vec<u8>> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let answer = read_stdout(&mut child, limit).inspect_err(|_| {
        // Not waited for: it may not be able to end.
        let _ = child.kill();
    })?;
    let status = child.wait()?;
    if status.success() {
        return Ok(answer);
    }
    match (status.code(), String::from_utf8_lossy(&answer).parse()) {
        (Some(code), Ok(errno)) if code == i32::from(ERRNO_EXIT_CODE) => Err(io::Error::from_raw_os_error(errno)),
        _ => Err(io::Error::other("the process that looked at it failed")),
    }
}

/// What a process writes to its stdout until it closes that. Errors: TimedOut among others.
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

/// The other process: makes the look and writes the answer to stdout.
pub(super) fn serve(look: &str, path: &Path) -> ExitCode {
    reply(match look {
        "resolve" => resolve_here(path).map(|path| path.into_os_string().into_vec()),
        "chain" => ancestor_ids_here(path),
        "entry" => entry_here(path),
        "alive" => rustix::fs::statfs(path).map(|_| Vec::new()).map_err(io::Error::from),
        "read" => read_here(path),
        "openat2" => openat2_here(path),
        "landlock" => landlock_here(),
        _ => Err(Errno::NOSYS.into()),
    })
}

/// Writes an answer to stdout, as [`run_with_timeout`] reads it.
pub(super) fn reply(answer: io::Result<Vec<u8>>) -> ExitCode {
    let (bytes, code) = match answer {
        Ok(bytes) => (bytes, ExitCode::SUCCESS),
        Err(error) => {
            (error.raw_os_error().unwrap_or(Errno::IO.raw_os_error()).to_string().into(), ERRNO_EXIT_CODE.into())
        }
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
        // The last part cannot be entered: a dead mount, or one of another user. All before it must be sound.
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(error);
        };
        let parent = parent.canonicalize()?;
        let whole = parent.join(name);
        match std::fs::read_link(&whole) {
            Ok(target) => path = parent.join(target),
            Err(_) => return Ok(whole),
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
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // A look leaves no trace in a store; only the owner of a folder may ask for that.
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

/// Whether paths can be resolved as the store resolves them.
fn openat2_here(path: &Path) -> io::Result<Vec<u8>> {
    let looked = Disk::open(path).and_then(|root| root.list(&RelPath::root()));
    looked.map(|_| Vec::new()).map_err(|error| match error {
        // As the system said it, not as a client of a mount is told.
        Error::Io(errno) => errno.into(),
        other => other.errno().into(),
    })
}

/// The version of landlock's interface, 0 where there is none.
fn landlock_here() -> io::Result<Vec<u8>> {
    // Nothing is restricted: there is no rule to apply, so only the version is asked for.
    let asked = RestrictSelf::default().no_new_privs(false).apply().map_err(io::Error::other)?;
    let version = match asked.landlock {
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
    fn links_are_resolved_and_missing_names_are_not() {
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
