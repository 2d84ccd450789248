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
//!
//! A directory that the command may write is shown as it is. A socket in it could act outside of
//! the sandbox: an agent for keys, a connection of ssh, an editor. So each one is covered when the
//! command starts, except for the admitted ones.
//!
//! The command gets few devices. In /proc, file modes do not keep root from changing settings of
//! the kernel, so mounts do.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, fstat, lstat, openat, readlinkat, symlink};
use rustix::io::Errno;
use rustix::mount::{MountFlags, OpenTreeFlags, mount, mount_bind, open_tree};
use rustix::termios::{isatty, ttyname};

use super::files;
use super::mount_table::{AttachedMount, AttachedMounts, remount_read_only};
use super::overlay::open_read_only;
use super::stage::{FailedStep, StageFailure};
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

/// Devices of the machine that the command can use.
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
pub(super) fn complete_devices() -> Result<(), StageFailure> {
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

/// Maximum number of entries to inspect in one directory that may be written.
const INSPECTED_MAX: usize = 2_000_000;

/// Returns the sockets at and beneath `path`. Links are not followed, and directories that cannot
/// be listed are left out.
///
/// # Errors
///
/// There are too many entries to look at.
pub(super) fn sockets_beneath(path: &Path) -> Result<Vec<PathBuf>, StageFailure> {
    let (mut found, mut seen) = (Vec::new(), 0);
    let mut folders = vec![path.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let listed = openat(CWD, &folder, flags, Mode::empty()).and_then(Dir::new);
        for entry in listed.into_iter().flatten().map_while(Result::ok) {
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let kind = match entry.file_type() {
                // Some file systems do not report the type.
                FileType::Unknown => rustix::fs::lstat(folder.join(name))
                    .map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode)),
                kind => kind,
            };
            match kind {
                FileType::Directory => folders.push(folder.join(name)),
                FileType::Socket => found.push(folder.join(name)),
                _ => {}
            }
            seen += 1;
        }
        if seen > INSPECTED_MAX {
            let path = swarmletfs_base::name::printable(path.as_os_str().as_bytes());
            return Err(StageFailure::new(format!(
                "cannot look for sockets in {path}: it has more than {INSPECTED_MAX} entries; try to \
                 make a smaller directory writable"
            )));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn sockets_are_found_under_every_name_and_links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("shown/inner")).unwrap();
        let _socket = UnixListener::bind(at("bound")).unwrap();
        std::fs::hard_link(at("bound"), at("shown/inner/other-name")).unwrap();
        std::fs::rename(at("bound"), at("shown/renamed")).unwrap();
        std::os::unix::fs::symlink(folder.path(), at("shown/link")).unwrap();
        std::fs::write(at("shown/file"), "").unwrap();
        let mut found = sockets_beneath(&at("shown")).unwrap();
        found.sort();
        assert_eq!(found, [at("shown/inner/other-name"), at("shown/renamed")]);
        assert_eq!(sockets_beneath(&at("none")).unwrap(), [] as [PathBuf; 0]);
    }
}
