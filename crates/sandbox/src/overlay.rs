//! Overlays: a directory with a layer on it that receives the writes.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, OpenTreeFlags, UnmountFlags,
    fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount, open_tree,
    unmount,
};

use super::cause::{FailedStep, StageFailure};
use super::files;
use super::spec::OverlayDirs;

/// Name of the mounted device in the table of mounts.
const SOURCE: &str = "swarmletfs";

/// Set-user-id bits and devices have no effect in the view.
const ATTRIBUTES: MountAttrFlags =
    MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NODEV);

/// The directories of an overlay, by paths of descriptors, which need no escapes in options.
struct Layers {
    lower: PathBuf,
    /// The layer that receives the writes, its working directory, and true if writes wait for the
    /// disk. `None` for a view that cannot be changed.
    upper: Option<(PathBuf, PathBuf, bool)>,
}

/// Makes a detached mount of an overlay on `lower`, which can be changed. `empty` is an empty
/// directory.
pub(super) fn open_overlay(
    lower: &Path,
    dirs: &OverlayDirs,
    empty: &Path,
) -> Result<OwnedFd, StageFailure> {
    let new = || {
        let opened = [lower, &dirs.upper, &dirs.work].map(files::open_real);
        let [lower, upper, work] = opened;
        let (lower, upper, work) = (lower?, upper?, work?);
        let path = |file: &OwnedFd| files::own_descriptor(file.as_raw_fd());
        let upper = Some((path(&upper), path(&work), dirs.is_durable));
        open(&Layers { lower: path(&lower), upper }, empty, MountFlags::empty())
    };
    new().step_with("mount an overlay on the workspace", overlay_cause)
}

/// Makes a detached, read-only mount that shows the directory open as `lower`, with the flags
/// `more`. `empty` is an empty directory.
///
/// No socket, FIFO or device of `lower` works in it: the overlay has entries of its own for them.
pub(super) fn open_read_only(
    lower: &OwnedFd,
    empty: &Path,
    more: MountFlags,
) -> rustix::io::Result<OwnedFd> {
    let lower = files::own_descriptor(lower.as_raw_fd());
    open(&Layers { lower, upper: None }, empty, MountFlags::RDONLY | more)
}

/// `userxattr` must never be left out: without it, a removed directory of the lower layer cannot be
/// made anew by an ordinary user.
fn open(layers: &Layers, empty: &Path, more: MountFlags) -> rustix::io::Result<OwnedFd> {
    let new = || {
        let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
        let context = context.as_fd();
        fsconfig_set_string(context, "source", SOURCE)?;
        fsconfig_set_string(context, "lowerdir+", &layers.lower)?;
        match &layers.upper {
            Some((upper, work, is_durable)) => {
                fsconfig_set_string(context, "upperdir", upper)?;
                fsconfig_set_string(context, "workdir", work)?;
                if !is_durable {
                    fsconfig_set_flag(context, "volatile")?;
                }
            }
            // The kernel requires two layers.
            None => fsconfig_set_string(context, "lowerdir+", empty)?,
        }
        fsconfig_set_flag(context, "userxattr")?;
        fsconfig_create(context)?;
        let attributes = ATTRIBUTES | attributes_of(more);
        fsmount(context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
    };
    new().or_else(|error| match error {
        // Kernels before 6.7 have no `lowerdir+`, and containers may forbid the new calls. A
        // refusal has the same errors, and then mount(2) fails, too.
        Errno::NOSYS | Errno::INVAL | Errno::PERM => mount_and_detach(layers, empty, more),
        error => Err(error),
    })
}

fn attributes_of(flags: MountFlags) -> MountAttrFlags {
    let pairs = [
        (MountFlags::RDONLY, MountAttrFlags::MOUNT_ATTR_RDONLY),
        (MountFlags::NOEXEC, MountAttrFlags::MOUNT_ATTR_NOEXEC),
    ];
    pairs.into_iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, own)| own).collect()
}

/// Makes a detached mount of an overlay with mount(2), which old kernels have.
fn mount_and_detach(
    layers: &Layers,
    empty: &Path,
    more: MountFlags,
) -> rustix::io::Result<OwnedFd> {
    let options = CString::new(mount_options(layers, empty)).map_err(|_| Errno::INVAL)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | more;
    // It is there for a moment. A path of a descriptor would lead beneath it.
    mount(SOURCE, empty, "overlay", flags, options.as_c_str())?;
    let clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = open_tree(CWD, empty, clone)?;
    unmount(empty, UnmountFlags::DETACH)?;
    Ok(tree)
}

fn mount_options(layers: &Layers, empty: &Path) -> String {
    let lower = layers.lower.display();
    match &layers.upper {
        Some((upper, work, is_durable)) => format!(
            "userxattr,lowerdir={lower},upperdir={},workdir={}{}",
            upper.display(),
            work.display(),
            if *is_durable { "" } else { ",volatile" }
        ),
        None => format!("userxattr,lowerdir={lower}:{}", empty.display()),
    }
}

fn overlay_cause(errno: Option<Errno>) -> Option<&'static str> {
    match errno {
        Some(Errno::NODEV) => Some("this kernel has no overlayfs; try `--engine copy`"),
        Some(Errno::INVAL) => Some(
            "a file system is mounted inside the workspace, or the store is on a file system that \
             cannot hold a layer, such as another overlay or NFS; try `--engine copy`",
        ),
        Some(Errno::PERM | Errno::ACCESS) => Some(
            "mounts are forbidden here, as in containers and by AppArmor on Ubuntu; try \
             `--engine copy`",
        ),
        Some(Errno::BUSY) => Some("the draft is in use by another mount"),
        Some(Errno::STALE | Errno::OPNOTSUPP) => {
            Some("the file system of the store cannot hold a layer; try `--engine copy`")
        }
        _ => None,
    }
}
