//! Checks before a run whether an overlay of the workspace can work.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, lstat, statfs, statvfs};
use rustix::process::{getegid, geteuid};

use super::files;
use super::mount_table::AttachedMounts;

/// Maximum number of entries of the workspace to inspect, which takes about a second.
const ENTRIES_MAX: usize = 300_000;

/// Maximum size of the files that name a .git directory, in bytes.
const GIT_FILE_MAX: u64 = 64 << 10;

const OVERLAY: rustix::fs::FsWord = 0x794c_7630;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Preflight {
    /// A file system that is mounted inside the workspace: an overlay is refused.
    pub mount_beneath: Option<PathBuf>,
    /// An entry of another user or group, which an ordinary user could read but not change in an
    /// overlay. `None` for root.
    pub foreign_owner: Option<PathBuf>,
    /// True if the workspace is in the upper layer of another overlay: the result is undefined.
    pub is_upper_layer: bool,
    /// True if the store is on an overlay, which cannot hold the layers of another.
    pub store_on_overlay: bool,
    /// True if the store is in the workspace. It is hidden there, too.
    pub store_in_workspace: bool,
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
        if let Some(path) = &self.foreign_owner {
            return Some(format!(
                "{} belongs to another user or group, so it could not be changed",
                show(path)
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
        foreign_owner: if owner.0 == 0 { None } else { find_foreign(workspace, owner) },
        is_upper_layer: table.is_some_and(|table| table.is_in_upper_layer(workspace)),
        store_on_overlay: statfs(store).is_ok_and(|stat| stat.f_type == OVERLAY),
        store_in_workspace: store.starts_with(workspace),
        workspace_in_store: workspace.starts_with(store),
        git_common: git_common(workspace).filter(|path| !path.starts_with(workspace)),
        free_space: space.map(|space| space.f_bavail.saturating_mul(space.f_frsize)),
    }
}

fn find_foreign(workspace: &Path, owner: (u32, u32)) -> Option<PathBuf> {
    let mut left = ENTRIES_MAX;
    let mut folders = vec![workspace.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let mut entries = vec![folder.clone()];
        let names = files::list(&folder).unwrap_or_default();
        entries.extend(names.iter().map(|name| folder.join(OsStr::from_bytes(name))));
        for (index, path) in entries.into_iter().enumerate() {
            let Ok(stat) = lstat(&path) else { continue };
            if (stat.st_uid, stat.st_gid) != owner {
                return Some(path);
            }
            // The first is the folder itself.
            if index > 0 && FileType::from_raw_mode(stat.st_mode).is_dir() {
                folders.push(path);
            }
            left = left.checked_sub(1)?;
        }
    }
    None
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
        assert_eq!(find_foreign(folder.path(), (stat.st_uid, stat.st_gid)), None);
        let other = (stat.st_uid, stat.st_gid + 1);
        assert_eq!(find_foreign(folder.path(), other), Some(folder.path().to_path_buf()));
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
