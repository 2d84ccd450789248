//! Overlays: a directory with a layer on it that receives what is written.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, OpenTreeFlags, UnmountFlags,
    fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount, open_tree,
    unmount,
};

use super::cause::{FailedStep, StageFailure};
use super::spec::OverlayDirs;

/// Name of the mounted device in the table of mounts.
const SOURCE: &str = "swarmletfs";

/// Set-user-id bits and devices have no effect in the view.
const ATTRIBUTES: MountAttrFlags =
    MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NODEV);

/// The directories of an overlay on a directory.
#[derive(Clone, Copy)]
enum Layers<'a> {
    /// A view that can be changed.
    Changing(&'a OverlayDirs),
    /// A view that cannot, with the path of an empty directory, because the kernel wants two
    /// layers.
    Fixed(&'a Path),
}

/// Makes a detached mount of an overlay on `lower`, which can be changed.
pub(super) fn open_overlay(lower: &Path, dirs: &OverlayDirs) -> Result<OwnedFd, StageFailure> {
    open(lower, Layers::Changing(dirs), MountFlags::empty())
        .step_with("mount an overlay on the workspace", overlay_cause)
}

/// Makes a detached, read-only mount that shows `lower`, with the flags `more`. `empty` is an empty
/// directory.
///
/// No socket, FIFO or device of `lower` works in it: the overlay has entries of its own for them.
pub(super) fn open_read_only(
    lower: &Path,
    empty: &Path,
    more: MountFlags,
) -> rustix::io::Result<OwnedFd> {
    open(lower, Layers::Fixed(empty), MountFlags::RDONLY | more)
}

/// `userxattr` must never be left out: without it, a removed directory of the lower layer cannot be
/// made anew by an ordinary user.
fn open(lower: &Path, layers: Layers<'_>, more: MountFlags) -> rustix::io::Result<OwnedFd> {
    let new = || {
        let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
        let context = context.as_fd();
        fsconfig_set_string(context, "source", SOURCE)?;
        fsconfig_set_string(context, "lowerdir+", lower)?;
        match layers {
            // Unlike the lower layer, these are taken to have escapes.
            Layers::Changing(dirs) => {
                fsconfig_set_string(context, "upperdir", escape(&dirs.upper, b"\\"))?;
                fsconfig_set_string(context, "workdir", escape(&dirs.work, b"\\"))?;
                if !dirs.is_durable {
                    fsconfig_set_flag(context, "volatile")?;
                }
            }
            Layers::Fixed(empty) => fsconfig_set_string(context, "lowerdir+", empty)?,
        }
        fsconfig_set_flag(context, "userxattr")?;
        fsconfig_create(context)?;
        let attributes = ATTRIBUTES | attributes_of(more);
        fsmount(context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
    };
    new().or_else(|error| match error {
        // Kernels before 6.7 have no `lowerdir+`, and containers may forbid the new calls. A
        // refusal has the same errors, and then mount(2) fails, too.
        Errno::NOSYS | Errno::INVAL | Errno::PERM => mount_and_detach(lower, layers, more),
        error => Err(error),
    })
}

/// Returns the attributes of a new mount that stand for these flags.
fn attributes_of(flags: MountFlags) -> MountAttrFlags {
    let pairs = [
        (MountFlags::RDONLY, MountAttrFlags::MOUNT_ATTR_RDONLY),
        (MountFlags::NOEXEC, MountAttrFlags::MOUNT_ATTR_NOEXEC),
    ];
    pairs.into_iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, own)| own).collect()
}

/// Makes a detached mount of an overlay on `lower` with mount(2), which old kernels have.
fn mount_and_detach(
    lower: &Path,
    layers: Layers<'_>,
    more: MountFlags,
) -> rustix::io::Result<OwnedFd> {
    let options = CString::new(mount_options(lower, layers)).map_err(|_| Errno::INVAL)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | more;
    // It is here for a moment. A path of a descriptor would lead beneath it.
    let place = match layers {
        Layers::Changing(_) => lower,
        Layers::Fixed(empty) => empty,
    };
    mount(SOURCE, place, "overlay", flags, options.as_c_str())?;
    let clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = open_tree(CWD, place, clone)?;
    unmount(place, UnmountFlags::DETACH)?;
    Ok(tree)
}

/// Returns the options of mount(2).
fn mount_options(lower: &Path, layers: Layers<'_>) -> Vec<u8> {
    let mut options = b"userxattr,lowerdir=".to_vec();
    options.extend(escape(lower, b",:\\"));
    match layers {
        Layers::Changing(dirs) => {
            for (name, path) in
                [(b",upperdir=".as_slice(), &dirs.upper), (b",workdir=", &dirs.work)]
            {
                options.extend(name);
                options.extend(escape(path, b",\\"));
            }
            if !dirs.is_durable {
                options.extend(b",volatile");
            }
        }
        Layers::Fixed(empty) => {
            options.push(b':');
            options.extend(escape(empty, b",:\\"));
        }
    }
    options
}

/// Puts a backslash before each of `special`.
fn escape(path: &Path, special: &[u8]) -> Vec<u8> {
    let bytes = path.as_os_str().as_bytes().iter();
    bytes
        .flat_map(|byte| {
            special.contains(byte).then_some(b'\\').into_iter().chain(std::iter::once(*byte))
        })
        .collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separators_of_options_are_escaped() {
        assert_eq!(escape(Path::new(r"/a,b:c\d"), b",:\\"), br"/a\,b\:c\\d");
        assert_eq!(escape(Path::new(r"/a,b:c\d"), b",\\"), br"/a\,b:c\\d");
    }
}
