//! The machine as the command sees it: everything can be read, and nothing answers.
//!
//! Read-only mounts do not keep a process from connecting to a socket, nor from writing into a FIFO
//! or a device. So the real directories are not shown, but read-only overlays of them, in which
//! sockets, FIFOs and devices are entries of their own that nobody serves. It does not matter under
//! which name or in which namespace the real entries were made.
//!
//! The kernel makes no overlay of a directory in which something is mounted. Such a directory is
//! made anew, with an overlay for each of its directories.
//!
//! Other processes may move directories meanwhile, and put links to hidden ones in their places. So
//! each entry is opened once, without following links, and shown through its descriptor.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, fstat, readlinkat};
use rustix::io::Errno;
use rustix::mount::{MountFlags, OpenTreeFlags, open_tree};

use super::cause::{FailedStep, StageFailure};
use super::files;
use super::mount_table::{AttachedMount, AttachedMounts};
use super::overlay::open_read_only;
use swarmletfs_base::store::MOUNT_TYPE;

/// Directories of the kernel, of devices, of temporary files and of user sessions. They are not
/// shown as they are.
const LEFT_OUT: [&str; 5] = ["/proc", "/sys", "/dev", "/tmp", "/run/user"];

/// Directories of name services, which are shown as they are: without their sockets, users, groups
/// and hosts could not be looked up.
const NAME_SERVICES: [&str; 5] = [
    "/run/nscd",
    "/run/systemd/resolve",
    "/run/systemd/userdb",
    "/var/lib/sss/pipes",
    "/run/avahi-daemon",
];

/// Types of file systems that hold neither sockets nor FIFOs, or are read-only images. The kernel
/// makes no overlays of most of them.
const PLAIN: [&str; 11] = [
    "vfat", "msdos", "exfat", "ntfs", "ntfs3", "iso9660", "udf", "squashfs", "erofs", "cramfs",
    "nsfs",
];

/// Maximum number of entries of directories that are made anew.
const ENTRIES_MAX: usize = 20_000;

pub(super) struct MachinePart {
    pub(super) path: PathBuf,
    pub(super) shown: Shown,
    /// The mountpoint of the file system that it belongs to.
    pub(super) mountpoint: PathBuf,
}

pub(super) enum Shown {
    Folder(u32),
    Link(PathBuf),
    /// A detached overlay of a directory.
    Overlay(OwnedFd),
    /// A detached mount of the real file or directory.
    Real(OwnedFd),
}

/// Returns all parts of the machine. `empty` is an empty directory in [`LEFT_OUT`], `silent` are
/// the mountpoints at which nothing answers.
///
/// # Errors
///
/// The root file system cannot be shown. On any other file system, a directory that cannot be shown
/// is replaced by one that cannot be entered.
pub(super) fn parts(
    table: &AttachedMounts,
    empty: &Path,
    silent: &BTreeSet<PathBuf>,
) -> Result<Vec<MachinePart>, StageFailure> {
    let root = table.at(Path::new("/")).ok_or_else(|| {
        StageFailure::new("cannot find the root file system in the table of mounts")
    })?;
    let mut machine = Machine { table, empty, silent, root: root.id, parts: Vec::new() };
    let folder = files::open_entry(CWD, OsStr::new("/")).step("open the root directory")?;
    machine.add_folder(Path::new("/"), &folder, root)?;
    for path in NAME_SERVICES.map(Path::new) {
        if files::is_dir(path)
            && let Ok(tree) = clone_tree(path)
        {
            machine.add(path, root, Shown::Real(tree));
        }
    }
    Ok(machine.parts)
}

/// Returns a detached copy of the mounts at and beneath a path.
pub(super) fn clone_tree(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE;
    open_tree(CWD, path, flags)
}

struct Machine<'a> {
    table: &'a AttachedMounts,
    empty: &'a Path,
    silent: &'a BTreeSet<PathBuf>,
    root: u64,
    parts: Vec<MachinePart>,
}

impl Machine<'_> {
    fn add(&mut self, path: &Path, mount: &AttachedMount, shown: Shown) {
        let (path, mountpoint) = (path.to_path_buf(), mount.point.clone());
        self.parts.push(MachinePart { path, shown, mountpoint });
    }

    /// Adds the directory at `path` of a mount. `folder` is the open directory.
    fn add_folder(
        &mut self,
        path: &Path,
        folder: &OwnedFd,
        mount: &AttachedMount,
    ) -> Result<(), StageFailure> {
        if self.table.points_beneath(path).next().is_some() {
            return self.add_entries(path, folder, mount);
        }
        let tree = if mount.is_of(&PLAIN) {
            clone_tree(&files::own_descriptor(folder.as_raw_fd())).map(Shown::Real)
        } else {
            let no_programs = mount.flags & MountFlags::NOEXEC;
            open_read_only(folder, self.empty, no_programs).map(Shown::Overlay)
        };
        let shown = match tree {
            Err(error) if mount.id == self.root => {
                let path = swarmletfs_base::name::printable(path.as_os_str().as_bytes());
                return Err(error).step_with(&format!("show {path} to the command"), cause);
            }
            shown => shown.unwrap_or(Shown::Folder(0)),
        };
        self.add(path, mount, shown);
        Ok(())
    }

    /// Makes the directory at `path` anew, with its entries.
    fn add_entries(
        &mut self,
        path: &Path,
        folder: &OwnedFd,
        mount: &AttachedMount,
    ) -> Result<(), StageFailure> {
        let mode = fstat(folder).map_or(0, |stat| stat.st_mode);
        self.add(path, mount, Shown::Folder(mode & 0o777));
        // A directory that cannot be listed shows only the paths to the mounts in it.
        let listed = files::list(&files::own_descriptor(folder.as_raw_fd())).unwrap_or_default();
        let listed = listed.into_iter().map(OsString::from_vec);
        let on_the_way = self.table.points_beneath(path).filter_map(|point| {
            let rest = point.strip_prefix(path).ok()?;
            rest.components().next().map(|name| name.as_os_str().to_owned())
        });
        let names: BTreeSet<OsString> = listed.chain(on_the_way).collect();
        for name in names {
            self.add_entry(&path.join(name), folder, mount)?;
        }
        Ok(())
    }

    /// Adds the entry at `path` of a directory. `folder` is the open directory.
    fn add_entry(
        &mut self,
        path: &Path,
        folder: &OwnedFd,
        holder: &AttachedMount,
    ) -> Result<(), StageFailure> {
        if LEFT_OUT.iter().any(|left_out| path == Path::new(left_out)) {
            return Ok(());
        }
        if self.parts.len() > ENTRIES_MAX {
            return Err(StageFailure::new(format!(
                "cannot show the machine to the command: directories with other file systems in \
                 them have more than {ENTRIES_MAX} entries; try to unmount these file systems"
            )));
        }
        let mount = self.table.at(path).unwrap_or(holder);
        if mount.is_of(&[MOUNT_TYPE]) || self.silent.contains(&mount.point) {
            self.add(path, mount, Shown::Folder(0));
            return Ok(());
        }
        // An entry that is gone or cannot be seen is left out.
        let Ok(entry) = files::open_entry(folder, path.file_name().unwrap_or_default()) else {
            return Ok(());
        };
        let Ok(stat) = fstat(&entry) else { return Ok(()) };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => self.add_folder(path, &entry, mount)?,
            FileType::Symlink => {
                if let Ok(target) = readlinkat(&entry, "", Vec::new()) {
                    let target = OsStr::from_bytes(target.to_bytes()).into();
                    self.add(path, mount, Shown::Link(target));
                }
            }
            FileType::RegularFile => {
                if let Ok(tree) = clone_tree(&files::own_descriptor(entry.as_raw_fd())) {
                    self.add(path, mount, Shown::Real(tree));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

fn cause(errno: Option<Errno>) -> Option<&'static str> {
    match errno {
        Some(Errno::NODEV) => Some("this kernel has no overlayfs; try `modprobe overlay` as root"),
        Some(Errno::PERM | Errno::ACCESS) => Some(
            "mounts are forbidden here, as in containers and by AppArmor on Ubuntu; try to start \
             the container with a seccomp profile that allows them",
        ),
        Some(Errno::INVAL) => Some(
            "the kernel makes no overlay of this file system; overlays in two layers of \
             containers, and directories that ignore case, are such ones",
        ),
        _ => None,
    }
}
