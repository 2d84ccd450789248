//! Overlays: a directory with a layer on it that receives the writes, and the checks before a run
//! whether an overlay of the workspace can work.

use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, lstat, statfs, statvfs};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, OpenTreeFlags, UnmountFlags,
    fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount, open_tree,
    unmount,
};
use rustix::process::{getegid, geteuid};

use super::files;
use super::mount_table::AttachedMounts;
use super::stage::{FailedStep, OverlayDirs, StageFailure};

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

/// Maximum number of entries of the workspace to inspect, which takes about a second.
const ENTRIES_MAX: usize = 300_000;
/// Most entries of other users that are copied into an overlay.
const FOREIGN_MAX: usize = 50_000;

/// Maximum size of the files that name a .git directory, in bytes.
const GIT_FILE_MAX: u64 = 64 << 10;

const OVERLAY: rustix::fs::FsWord = 0x794c_7630;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Preflight {
    /// A file system that is mounted inside the workspace: an overlay is refused.
    mount_beneath: Option<PathBuf>,
    /// Entries of other users and groups, parents first, from the root of the workspace. An
    /// ordinary user could read but not change them in an overlay, so they are copied into it.
    /// Empty for root.
    pub foreign: Vec<PathBuf>,
    /// True if the workspace is in the upper layer of another overlay: the result is undefined.
    is_upper_layer: bool,
    /// True if the store is on an overlay, which cannot hold the layers of another.
    store_on_overlay: bool,
    /// True if the store is in the workspace. It is hidden there, too.
    store_in_workspace: bool,
    /// True if the workspace is in the store, which is hidden: a run is refused.
    pub workspace_in_store: bool,
    /// The common .git directory of a linked worktree, if that is outside of the workspace.
    pub git_common: Option<PathBuf>,
    /// Free space of the file system of the store for ordinary users, in bytes.
    pub free_space: Option<u64>,
}

impl Preflight {
    /// Returns the reason why an overlay cannot be used; `None` if it can. A copy can be used
    /// instead, unless the workspace is in the store.
    pub fn overlay_refusal(&self) -> Option<String> {
        let show = |path: &Path| swarmletfs_base::name::printable(path.as_os_str().as_bytes());
        if self.workspace_in_store {
            return Some("the workspace is in the store, which workers cannot see".to_owned());
        }
        if let Some(path) = &self.mount_beneath {
            return Some(format!(
                "a file system is mounted inside the workspace at {}",
                show(path)
            ));
        }
        if self.foreign.len() > FOREIGN_MAX {
            return Some(format!(
                "more than {FOREIGN_MAX} files belong to other users or groups, so they could not \
                 be changed"
            ));
        }
        if self.is_upper_layer {
            return Some("the workspace is a layer of another overlay".to_owned());
        }
        self.store_on_overlay.then(|| {
            "the store is on an overlay, as in most containers, which cannot hold the layers of \
             another one"
                .to_owned()
        })
    }
}

/// Inspects a workspace and a store, both absolute and without links. Entries that cannot be read
/// are left out: the trial of the sandbox and the run itself report them.
pub fn preflight(workspace: &Path, store: &Path) -> Preflight {
    let table = AttachedMounts::read().ok();
    let beneath = table
        .as_ref()
        .and_then(|table| table.points_beneath(workspace).next().map(Path::to_path_buf));
    let owner = (geteuid().as_raw(), getegid().as_raw());
    let space = statvfs(store).ok();
    Preflight {
        mount_beneath: beneath,
        foreign: if owner.0 == 0 { Vec::new() } else { find_foreign(workspace, owner) },
        is_upper_layer: table.is_some_and(|table| table.is_in_upper_layer(workspace)),
        store_on_overlay: statfs(store).is_ok_and(|stat| stat.f_type == OVERLAY),
        store_in_workspace: store.starts_with(workspace),
        workspace_in_store: workspace.starts_with(store),
        git_common: git_common(workspace).filter(|path| !path.starts_with(workspace)),
        free_space: space.map(|space| space.f_bavail.saturating_mul(space.f_frsize)),
    }
}

fn find_foreign(workspace: &Path, owner: (u32, u32)) -> Vec<PathBuf> {
    let (mut left, mut found) = (ENTRIES_MAX, Vec::new());
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for name in files::list(&workspace.join(&folder)).unwrap_or_default() {
            let path = folder.join(OsStr::from_bytes(&name));
            let Ok(stat) = lstat(workspace.join(&path)) else { continue };
            if FileType::from_raw_mode(stat.st_mode).is_dir() {
                folders.push(path.clone());
            }
            if (stat.st_uid, stat.st_gid) != owner {
                found.push(path);
            }
            left -= 1;
            if left == 0 || found.len() > FOREIGN_MAX {
                return found;
            }
        }
    }
    found.sort_unstable();
    found
}

/// Returns the common .git directory of a linked worktree: its file `.git` names a directory, and
/// that has a file `commondir`.
fn git_common(workspace: &Path) -> Option<PathBuf> {
    let is_file =
        |path: &Path| lstat(path).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_file());
    let read = |path: PathBuf| {
        // Opening a FIFO would wait for its writer.
        let path = Some(path).filter(|path| is_file(path))?;
        let text = files::read(&path, GIT_FILE_MAX).ok()?;
        Some(text.trim_ascii_end().to_vec())
    };
    let text = read(workspace.join(".git"))?;
    let own = workspace.join(OsStr::from_bytes(text.strip_prefix(b"gitdir: ")?));
    let common = own.join(OsStr::from_bytes(&read(own.join("commondir"))?));
    files::resolve(&common).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_in_the_workspace_are_found() {
        let found = preflight(Path::new("/dev"), Path::new("/tmp"));
        assert!(found.mount_beneath.as_ref().is_some_and(|path| path.starts_with("/dev")));
        let refusal = found.overlay_refusal().unwrap();
        assert!(refusal.starts_with("a file system is mounted inside the workspace at /dev/"));
    }

    #[test]
    fn entries_of_other_users_are_found() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("inner")).unwrap();
        std::fs::write(folder.path().join("inner/file"), "").unwrap();
        let stat = lstat(folder.path()).unwrap();
        let found = |gid| find_foreign(folder.path(), (stat.st_uid, gid));
        assert_eq!(found(stat.st_gid), Vec::<PathBuf>::new());
        assert_eq!(found(stat.st_gid + 1), ["inner", "inner/file"].map(PathBuf::from));
    }

    #[test]
    fn stores_in_the_workspace_and_the_reverse_are_found() {
        let found = preflight(Path::new("/tmp"), Path::new("/tmp/store"));
        assert!(found.store_in_workspace && !found.workspace_in_store);
        let found = preflight(Path::new("/tmp/store/work"), Path::new("/tmp/store"));
        assert!(found.workspace_in_store && found.overlay_refusal().is_some());
    }

    #[test]
    fn git_directory_of_a_linked_worktree_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        for path in ["main/.git/worktrees/linked", "linked"] {
            std::fs::create_dir_all(root.join(path)).unwrap();
        }
        let own = root.join("main/.git/worktrees/linked");
        std::fs::write(own.join("commondir"), "../..\n").unwrap();
        std::fs::write(root.join("linked/.git"), format!("gitdir: {}\n", own.display())).unwrap();
        assert_eq!(git_common(&root.join("linked")), Some(root.join("main/.git")));
        assert_eq!(git_common(&root.join("main")), None);
    }
}
