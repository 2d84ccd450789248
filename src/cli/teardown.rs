//! Unmounts with the system call, or with fusermount3 if that is not permitted.
//!
//! fuser's own unmount is not used: after EBUSY, its second attempt reports success while the mount
//! still exists.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use super::mountinfo::MountTable;
use super::terminal::escape_controls;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UnmountMode {
    /// Fail if the mount is in use.
    Idle,
    /// Hide the mount from new callers; open files stay usable until they are closed.
    Detached,
}

/// Unmounts `point`, which must be absolute and resolved.
///
/// # Errors
///
/// Fails with `ResourceBusy` for [`UnmountMode::Idle`] on a mount in use, or with the error of the
/// system or fusermount3.
pub(super) fn unmount(point: &Path, mode: UnmountMode) -> io::Result<()> {
    let flags = match mode {
        UnmountMode::Idle => UnmountFlags::NOFOLLOW,
        UnmountMode::Detached => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
    };
    match rustix::mount::unmount(point, flags) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => unmount_with_fusermount(point, mode),
        Err(errno) => Err(errno.into()),
    }
}

/// A pinned mount. Detaching it never affects a mount that has replaced it.
#[derive(Debug)]
pub(super) struct HeldMount {
    root: OwnedFd,
    point: PathBuf,
}

impl HeldMount {
    /// Pins the mount at `point` if its device is `device`. Does not wait for the mount's process.
    pub(super) fn pin(point: &Path, device: &str) -> io::Result<Option<HeldMount>> {
        let root = rustix::fs::open(
            point,
            OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let stat = rustix::fs::statx(
            &root,
            "",
            AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC,
            StatxFlags::empty(),
        )?;
        let found_device = format!("{}:{}", stat.stx_dev_major, stat.stx_dev_minor);
        Ok((found_device == device).then(|| HeldMount { root, point: point.to_path_buf() }))
    }

    /// Detaches the mount. Returns false if it was unmounted already.
    pub(super) fn detach(&self) -> io::Result<bool> {
        // Another mount may have replaced it under its own path.
        let root = format!("/proc/self/fd/{}", self.root.as_raw_fd());
        match rustix::mount::unmount(root, UnmountFlags::DETACH) {
            Ok(()) => Ok(true),
            Err(Errno::INVAL) => Ok(false),
            Err(Errno::PERM) => {
                unmount_with_fusermount(&self.point, UnmountMode::Detached).map(|()| true)
            }
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Unmounts `point` if it is idle; otherwise detaches it.
pub(super) fn unmount_or_detach(point: &Path) -> io::Result<()> {
    match unmount(point, UnmountMode::Idle) {
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
            unmount(point, UnmountMode::Detached)
        }
        other => other,
    }
}

/// Waits until the mount of `device` has left `point`. Returns false if it is still there after
/// `limit`.
pub(super) fn wait_until_unmounted(
    point: &Path,
    device: &str,
    limit: Duration,
) -> io::Result<bool> {
    let end = Instant::now() + limit;
    while MountTable::read()?.is_mounted_at(point, device) {
        if Instant::now() >= end {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(true)
}

/// Returns the program that unprivileged users mount with, if it is installed. A daemon's PATH may
/// lack its directory.
pub(super) fn find_fusermount() -> Option<&'static str> {
    ["fusermount3", "fusermount", "/usr/bin/fusermount3", "/bin/fusermount3"].into_iter().find(
        |program| {
            let mut command = Command::new(program);
            command
                .arg("-V")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .is_ok()
        },
    )
}

fn unmount_with_fusermount(point: &Path, mode: UnmountMode) -> io::Result<()> {
    let Some(program) = find_fusermount() else {
        return Err(io::Error::other(
            "only root may unmount it without fusermount3: install the package fuse3",
        ));
    };
    let mut command = Command::new(program);
    command.arg("-u");
    if mode == UnmountMode::Detached {
        command.arg("-z");
    }
    let output = command.arg("--").arg(point).stdin(Stdio::null()).env("LC_ALL", "C").output()?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    if message.contains("busy") {
        return Err(Errno::BUSY.into());
    }
    Err(io::Error::other(escape_controls(message.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detach_spares_a_later_mount() {
        let folder = tempfile::tempdir().unwrap();
        let point = folder.path().canonicalize().unwrap();
        let tmpfs = || {
            rustix::mount::mount("none", &point, "tmpfs", rustix::mount::MountFlags::empty(), None)
        };
        let device = || MountTable::read().unwrap().at(&point).map(|mount| mount.device.clone());
        if let Err(errno) = tmpfs() {
            eprintln!("SKIP: mounting a tmpfs is not permitted here: {errno}");
            return;
        }
        let first = device().unwrap();
        assert!(HeldMount::pin(&point, "0:0").unwrap().is_none(), "it is of another device");
        let held = HeldMount::pin(&point, &first).unwrap().unwrap();
        rustix::mount::unmount(&point, UnmountFlags::DETACH).unwrap();
        tmpfs().unwrap();
        let second = device().unwrap();
        assert_ne!(first, second, "a pinned mount keeps its device number");
        let done = held.detach();
        let left = device();
        let again = HeldMount::pin(&point, &second).unwrap().map(|held| held.detach());
        assert_eq!((done.unwrap(), left), (false, Some(second)));
        assert!(again.unwrap().unwrap());
        assert_eq!(device(), None);
    }
}
