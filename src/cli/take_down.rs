//! Takes a mount down: the system call, and fusermount3 where that is not permitted.
//!
//! fuser's own way is not used: after EBUSY its second attempt says that all is well while the mount is still there.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use super::mountinfo::Mounts;
use super::say::without_controls;

/// How a mount is taken down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// Only if nobody uses it.
    Idle,
    /// At once for new callers; those who have it open keep it until they close.
    Detached,
}

/// Takes down what is mounted at `point`, which is absolute and without links. Errors: ResourceBusy for
/// [`How::Idle`] on a mount in use; what the system or fusermount3 says.
pub(super) fn take_down(point: &Path, how: How) -> io::Result<()> {
    let flags = match how {
        How::Idle => UnmountFlags::NOFOLLOW,
        How::Detached => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
    };
    match rustix::mount::unmount(point, flags) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => by_fusermount(point, how),
        Err(errno) => Err(errno.into()),
    }
}

/// Takes down what is mounted at `point` if it is idle, else detaches it.
pub(super) fn take_down_anyhow(point: &Path) -> io::Result<()> {
    match take_down(point, How::Idle) {
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => take_down(point, How::Detached),
        other => other,
    }
}

/// Waits until the mount of `device` is at `point` no more; false if it still is when `limit` is over.
pub(super) fn is_gone(point: &Path, device: &str, limit: Duration) -> io::Result<bool> {
    let end = Instant::now() + limit;
    while Mounts::read()?.has(point, device) {
        if Instant::now() >= end {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(true)
}

/// The program that mounts and unmounts for users without root, if this machine has it. A daemon's PATH may lack the
/// folder it is in.
pub(super) fn fusermount() -> Option<&'static str> {
    ["fusermount3", "fusermount", "/usr/bin/fusermount3", "/bin/fusermount3"].into_iter().find(|program| {
        let mut command = Command::new(program);
        command.arg("-V").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
    })
}

fn by_fusermount(point: &Path, how: How) -> io::Result<()> {
    let Some(program) = fusermount() else {
        return Err(io::Error::other(
            "only root may unmount it here, because fusermount3 is missing: install the package fuse3",
        ));
    };
    let mut command = Command::new(program);
    command.arg("-u");
    if how == How::Detached {
        command.arg("-z");
    }
    let output = command.arg("--").arg(point).stdin(Stdio::null()).env("LC_ALL", "C").output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("busy") {
        return Err(Errno::BUSY.into());
    }
    Err(io::Error::other(without_controls(said.trim())))
}
