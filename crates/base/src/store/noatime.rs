//! Private mount of a directory that does not update atime.
//!
//! This program opens files with O_NOATIME. In FUSE passthrough the kernel reopens a file with the
//! flags of the reader, which updates atime unless the mount has the noatime flag. This module
//! clones the mount of the directory, sets the flag on the clone, and keeps the clone out of every
//! namespace.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;

use nix::sched::CloneFlags;
use rustix::fs::{CWD, StatVfsMountFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags};

/// Temporary mount point of the clone, inside a private namespace; it exists on every system.
const MOUNT_POINT: &str = "/proc";

/// Opens the directory `root` on a mount that does not update atime.
///
/// # Errors
///
/// Fails if the system refuses, for example because the process is not root.
pub(super) fn clone_mount(root: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let flags = rustix::fs::fstatvfs(root)?.f_flag;
    if flags.intersects(StatVfsMountFlags::NOATIME | StatVfsMountFlags::RDONLY) {
        return rustix::io::fcntl_dupfd_cloexec(root, 0);
    }
    let copy = rustix::mount::open_tree(
        root,
        "",
        OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_EMPTY_PATH,
    )?;
    // The private namespace ends with its thread; the descriptor keeps the mount.
    let result = thread::scope(|scope| {
        let thread = thread::Builder::new().spawn_scoped(scope, || set_noatime(copy.as_fd()));
        thread.ok()?.join().ok()
    });
    result.unwrap_or(Err(Errno::IO))?;
    Ok(copy)
}

/// Sets noatime on a detached mount. Flags can only be changed on an attached mount, so this
/// attaches it in a new namespace.
fn set_noatime(copy: BorrowedFd<'_>) -> Result<(), Errno> {
    nix::sched::unshare(CloneFlags::CLONE_NEWNS)
        .map_err(|errno| Errno::from_raw_os_error(errno as i32))?;
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    rustix::mount::move_mount(copy, "", CWD, MOUNT_POINT, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    let flags = MountFlags::BIND
        | MountFlags::RDONLY
        | MountFlags::NOATIME
        | MountFlags::NOSUID
        | MountFlags::NODEV;
    rustix::mount::mount_remount(MOUNT_POINT, flags, "")
}
