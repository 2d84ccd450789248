//! A second way to a folder on disk, on which nothing that is read leaves a time of access.
//!
//! What this program reads it opens with O_NOATIME. A file that the kernel reads in its stead is opened by the kernel
//! with the flags of whoever reads, and so leaves a time of access, unless the mount it lies on keeps none. Such a mount
//! is made here, for this process alone: a copy of the one that the folder lies on, which is in no namespace.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;

use nix::sched::CloneFlags;
use rustix::fs::{CWD, StatVfsMountFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags};

/// Where the copy is put for a moment, in a namespace of its own: a folder that is everywhere.
const MOMENTARILY: &str = "/proc";

/// The folder that `root` stands for, on a mount without times of access. Errors: those of the system, as for who is not
/// root.
pub(super) fn unstamped(root: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let flags = rustix::fs::fstatvfs(root)?.f_flag;
    if flags.intersects(StatVfsMountFlags::NOATIME | StatVfsMountFlags::RDONLY) {
        return rustix::io::fcntl_dupfd_cloexec(root, 0);
    }
    let copy = rustix::mount::open_tree(
        root,
        "",
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH,
    )?;
    // A namespace is a thread's; it ends with it, and the mount lives on for the descriptor.
    let set = thread::scope(|scope| scope.spawn(|| set_unstamped(copy.as_fd())).join());
    set.unwrap_or(Err(Errno::IO))?;
    Ok(copy)
}

/// A mount has its flags changed where it is mounted, so this mounts it out of everybody's sight.
fn set_unstamped(copy: BorrowedFd<'_>) -> Result<(), Errno> {
    nix::sched::unshare(CloneFlags::CLONE_NEWNS).map_err(|errno| Errno::from_raw_os_error(errno as i32))?;
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    rustix::mount::move_mount(copy, "", CWD, MOMENTARILY, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOATIME | MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount_remount(MOMENTARILY, flags, "")
}
