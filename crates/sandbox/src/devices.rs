//! The devices of a command, and /proc: file modes do not keep root from changing settings of the
//! kernel.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, lstat, symlink};
use rustix::mount::{MountFlags, mount, mount_bind};
use rustix::termios::{isatty, ttyname};

use super::cause::{FailedStep, StageFailure};
use super::files;
use super::mount_table::remount_read_only;

const DEVICES: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

/// The terminal of a session. A command without a terminal could take the caller's by this name.
const TERMINAL: &str = "/dev/tty";

/// Links in /dev that programs expect.
const LINKS: [(&str, &str); 5] = [
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
    ("/dev/stderr", "/proc/self/fd/2"),
    ("/dev/ptmx", "pts/ptmx"),
];

/// Path of the terminal of the caller, which is not in the new /dev/pts.
pub(super) const CONSOLE: &str = "/dev/console";

pub(super) fn devices() -> impl Iterator<Item = PathBuf> {
    let has_terminal = isatty(rustix::stdio::stdin())
        || isatty(rustix::stdio::stdout())
        || isatty(rustix::stdio::stderr());
    let terminal = has_terminal.then_some(TERMINAL);
    let devices = DEVICES.into_iter().chain(terminal);
    devices.map(PathBuf::from).filter(|path| lstat(path).is_ok())
}

pub(super) fn terminal() -> Option<PathBuf> {
    let name = ttyname(rustix::stdio::stdin(), Vec::new()).ok()?;
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}

const TERMINALS: &str = "/dev/pts";

/// Adds new terminals and links to a new /dev. Programs outside own the terminals of the caller.
pub(super) fn complete() -> Result<(), StageFailure> {
    files::make_dirs(Path::new(TERMINALS)).step("make /dev/pts")?;
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    mount("devpts", TERMINALS, "devpts", flags, c"newinstance,ptmxmode=0666,mode=620")
        .step("mount /dev/pts")?;
    for (link, target) in LINKS {
        symlink(target, link).step("make links in /dev")?;
    }
    Ok(())
}

/// Makes everything in /proc read-only that is not about a process of the sandbox.
pub(super) fn protect_proc() -> Result<(), StageFailure> {
    for name in files::list(Path::new("/proc")).step("list /proc")? {
        let path = Path::new("/proc").join(OsStr::from_bytes(&name));
        if name.first().is_some_and(u8::is_ascii_digit) {
            continue;
        }
        let mode = lstat(&path).step("look at /proc")?.st_mode;
        let kind = FileType::from_raw_mode(mode);
        let is_writable = kind.is_dir() || (kind.is_file() && mode & 0o222 != 0);
        if is_writable {
            mount_bind(&path, &path).step("protect /proc")?;
            let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
            remount_read_only(&path, flags | MountFlags::RELATIME).step("protect /proc")?;
        }
    }
    Ok(())
}
