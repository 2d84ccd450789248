//! Directories that others have filled: their removal, of any depth and with any permissions, and
//! the removal of the bits with which a program runs with the rights of its owner.
//!
//! [`Dir`] tells them from a directory that only one user can have filled.

use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::super::names;
use super::{DEPTH_MAX, Dir, Durability, read_whole, stat};
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{Kind, kind_of};

/// Permissions of a directory that let its owner remove its entries.
const OWNER_ONLY: u32 = 0o700;
const OWNER_FILE: u32 = 0o600;

impl Dir {
    /// Removes the entry `name`, if there is one: a file, a link, or a directory with all its
    /// entries, of any depth and with any permissions. Links are removed, not followed. Does not
    /// wait for the disk.
    ///
    /// # Errors
    ///
    /// The system refuses. A part may be removed then.
    pub fn remove_all(&self, name: &Name) -> Result<()> {
        match rustix::fs::unlinkat(&self.fd, name.as_os_str(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::ISDIR) => {}
            Err(error) => return Err(error.into()),
        }
        self.make_accessible(name)?;
        let top = self.enter(&RelPath::from(name.clone()))?;
        // A directory in the directory is first moved up here, so that no path gets long and few
        // descriptors are open.
        while top.remove_level()? {}
        Ok(rustix::fs::unlinkat(&self.fd, name.as_os_str(), AtFlags::REMOVEDIR)?)
    }

    /// Removes the entries of this directory, and moves the directories in them up. Returns true if
    /// there were any entries.
    fn remove_level(&self) -> Result<bool> {
        let names = self.list()?;
        for name in &names {
            if self.is_folder(name)? {
                self.make_accessible(name)?;
                let folder = self.enter(&RelPath::from(name.clone()))?;
                for inner in folder.list()? {
                    folder.move_up_or_remove(&inner, self)?;
                }
                rustix::fs::unlinkat(&self.fd, name.as_os_str(), AtFlags::REMOVEDIR)?;
            } else {
                rustix::fs::unlinkat(&self.fd, name.as_os_str(), AtFlags::empty())?;
            }
        }
        Ok(!names.is_empty())
    }

    fn move_up_or_remove(&self, name: &Name, top: &Dir) -> Result<()> {
        if !self.is_folder(name)? {
            return Ok(rustix::fs::unlinkat(&self.fd, name.as_os_str(), AtFlags::empty())?);
        }
        // A directory gets a new parent only if it can be written.
        self.make_accessible(name)?;
        let (from, to) = (name.as_os_str(), names::temporary_name()?);
        let to = to.as_os_str();
        Ok(rustix::fs::renameat_with(&self.fd, from, &top.fd, to, RenameFlags::NOREPLACE)?)
    }

    fn is_folder(&self, name: &Name) -> Result<bool> {
        Ok(self.kind(&RelPath::from(name.clone()))? == Some(Kind::Folder))
    }

    /// Lets the owner of the directory `name` list and change it.
    fn make_accessible(&self, name: &Name) -> Result<()> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let folder = self.openat2(&RelPath::from(name.clone()), flags, Mode::empty())?;
        make_accessible(folder.as_fd())
    }

    pub fn make_self_accessible(&self) -> Result<()> {
        make_accessible(self.fd.as_fd())
    }

    /// Lets the owner of the file `name` read and write it. Does nothing to anything else.
    pub fn make_file_accessible(&self, name: &Name) -> Result<()> {
        let file = match self.openat2(&RelPath::from(name.clone()), OFlags::PATH, Mode::empty()) {
            Err(Error::NotFound | Error::Escape | Error::Special) => return Ok(()),
            file => file?,
        };
        let stat = stat(file.as_fd())?;
        let mode = u32::from(stat.stx_mode) & 0o7777;
        if kind_of(&stat) != Kind::File || mode & OWNER_FILE == OWNER_FILE {
            return Ok(());
        }
        set_mode(file, mode | OWNER_FILE)
    }

    /// Opens this directory for changes that do not wait for the disk. See
    /// [`Dir::sync_file_system`].
    pub fn without_sync(&self) -> Result<Dir> {
        Ok(Dir { durability: Durability::None, ..self.enter(&RelPath::root())? })
    }

    pub fn sync_file_system(&self) -> Result<()> {
        match self.durability {
            Durability::Full => Ok(rustix::fs::syncfs(&self.fd)?),
            Durability::None => Ok(()),
        }
    }
}

fn make_accessible(folder: impl AsFd) -> Result<()> {
    let stat = stat(folder.as_fd())?;
    kind_of(&stat).must_be(Kind::Folder)?;
    let mode = u32::from(stat.stx_mode) & 0o7777;
    if mode & OWNER_ONLY == OWNER_ONLY {
        return Ok(());
    }
    set_mode(folder, mode | OWNER_ONLY)
}

/// Sets the permissions of an open entry, which need not be open for reading.
pub fn set_mode(entry: impl AsFd, mode: u32) -> Result<()> {
    // fchmod refuses descriptors of O_PATH. This path names the entry itself.
    let path = format!("/proc/self/fd/{}", entry.as_fd().as_raw_fd());
    let mode = Mode::from_raw_mode(mode);
    rustix::fs::chmodat(CWD, path, mode, AtFlags::empty()).map_err(Error::from)
}

const SET_ID: u32 = 0o6000;

#[derive(Debug, Default, PartialEq, Eq)]
pub struct SetIdReport {
    pub cleared: Vec<RelPath>,
    /// Files and directories of other users that keep them.
    pub kept: Vec<RelPath>,
    /// Directories that were too deep to be read, and were removed.
    pub removed: Vec<RelPath>,
}

impl Dir {
    /// Removes the setuid and setgid bits of all files beneath this directory. Its directories
    /// become accessible to their owner, and those beneath the deepest that is read are removed.
    ///
    /// # Errors
    ///
    /// A directory cannot be read or changed.
    pub fn clear_set_id(&self) -> Result<SetIdReport> {
        let mut report = SetIdReport::default();
        self.clear_level(&RelPath::root(), 0, &mut report)?;
        Ok(report)
    }

    fn clear_level(&self, path: &RelPath, depth: usize, report: &mut SetIdReport) -> Result<()> {
        for name in self.list()? {
            let at = path.join(&name);
            let entry = match self.openat2(&name.clone().into(), OFlags::PATH, Mode::empty()) {
                Ok(entry) => entry,
                // It is gone, or the administrator has mounted something on it.
                Err(Error::NotFound | Error::Escape) => continue,
                Err(error) => return Err(error),
            };
            let stat = stat(entry.as_fd())?;
            let mode = u32::from(stat.stx_mode) & 0o7777;
            match kind_of(&stat) {
                Kind::Folder if depth == DEPTH_MAX => {
                    self.remove_all(&name)?;
                    report.removed.push(at);
                }
                Kind::Folder if !is_allowed(self.make_accessible(&name))? => report.kept.push(at),
                Kind::Folder => {
                    self.enter(&name.into())?.clear_level(&at, depth + 1, report)?;
                }
                Kind::File if mode & SET_ID != 0 => {
                    let is_cleared = is_allowed(set_mode(entry, mode & !SET_ID))?;
                    if is_cleared { &mut report.cleared } else { &mut report.kept }.push(at);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Returns false if the system allows a change to the owner only.
fn is_allowed(changed: Result<()>) -> Result<bool> {
    match changed {
        Ok(()) => Ok(true),
        Err(Error::Io(Errno::PERM)) => Ok(false),
        Err(error) => Err(error),
    }
}

const PRIVATE: u32 = 0o700;
/// Permissions that let others than the owner write.
const WRITABLE: u32 = 0o022;

impl Dir {
    pub fn owner(&self) -> Result<u32> {
        Ok(stat(self.fd.as_fd())?.stx_uid)
    }

    pub fn own_mode(&self) -> Result<u32> {
        Ok(u32::from(stat(self.fd.as_fd())?.stx_mode) & 0o7777)
    }

    /// Returns true if others than the owner may add and remove entries.
    pub fn is_shared(&self) -> Result<bool> {
        Ok(self.own_mode()? & WRITABLE != 0)
    }

    /// Creates the directory `name` and opens it. Nobody but the user of this process may use it,
    /// regardless of the umask. Root gives it to nobody.
    ///
    /// # Errors
    ///
    /// `EEXIST` if the name is taken, and `EPERM` if another user put a directory in its place.
    pub fn create_private_dir(&self, name: &Name) -> Result<Dir> {
        rustix::fs::mkdirat(&self.fd, name.as_os_str(), Mode::from_raw_mode(PRIVATE))?;
        let created = self.enter(&RelPath::from(name.clone()))?;
        if created.owner()? != rustix::process::geteuid().as_raw() {
            return Err(Error::Io(Errno::PERM));
        }
        created.set_own_mode(PRIVATE)?;
        Ok(created)
    }

    /// Opens the directory `name`, creates it if it is missing, and lets nobody but its owner use
    /// it, regardless of the umask.
    pub fn enter_or_create_private(&self, name: &Name) -> Result<Dir> {
        let folder = self.enter_or_create(name)?;
        if folder.own_mode()? & 0o777 != PRIVATE {
            folder.set_own_mode(PRIVATE)?;
        }
        Ok(folder)
    }

    /// Like [`Dir::read`], for a file that must belong to the owner of this directory.
    ///
    /// # Errors
    ///
    /// `EPERM` if it belongs to another user, and `EFBIG` if it has more than `limit` bytes.
    pub fn read_own(&self, name: &Name, limit: u64) -> Result<Option<Vec<u8>>> {
        let Some(file) = self.open_to_read(name)? else { return Ok(None) };
        if stat(file.as_fd())?.stx_uid != self.owner()? {
            return Err(Error::Io(Errno::PERM));
        }
        read_whole(file, limit).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::write::Durability;

    #[test]
    fn directories_of_any_depth_and_mode_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("kept"), "").unwrap();
        let dir = Dir::open(folder.path(), Durability::None).unwrap();
        let name = Name::new("tree").unwrap();
        let mut level = dir.create_dir(&name).unwrap();
        for depth in 0..300 {
            let name = Name::new(format!("{}{depth}", "d".repeat(200))).unwrap();
            level = level.create_dir(&name).unwrap();
        }
        let closed = folder.path().join("tree/closed");
        fs::create_dir_all(closed.join("inner/x")).unwrap();
        fs::write(closed.join("inner/file"), "").unwrap();
        symlink(outside.path(), closed.join("link")).unwrap();
        fs::set_permissions(closed.join("inner"), fs::Permissions::from_mode(0o500)).unwrap();
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
        dir.remove_all(&name).unwrap();
        dir.remove_all(&name).unwrap();
        assert_eq!(dir.list().unwrap(), []);
        assert!(outside.path().join("kept").exists());
    }

    #[test]
    fn a_link_is_removed_and_not_followed() {
        let (folder, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(outside.path().join("kept"), "").unwrap();
        symlink(outside.path(), folder.path().join("link")).unwrap();
        let dir = Dir::open(folder.path(), Durability::None).unwrap();
        dir.remove_all(&Name::new("link").unwrap()).unwrap();
        assert_eq!(dir.list().unwrap(), []);
        assert!(outside.path().join("kept").exists());
    }

    #[test]
    fn bits_of_files_are_removed_and_links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let chmod = |name: &str, mode| {
            fs::set_permissions(at(name), Permissions::from_mode(mode)).unwrap();
        };
        let mode = |name: &str| fs::metadata(at(name)).unwrap().permissions().mode() & 0o7777;
        fs::create_dir_all(at("own/closed/inner")).unwrap();
        for (name, mode) in [
            ("outside", 0o4755),
            ("own/plain", 0o750),
            ("own/both", 0o6711),
            ("own/closed/inner/group", 0o2555),
        ] {
            fs::write(at(name), "").unwrap();
            chmod(name, mode);
        }
        symlink(at("outside"), at("own/link")).unwrap();
        chmod("own/closed/inner", 0o2000);
        let own = Dir::open(&at("own"), Durability::None).unwrap();
        let mut report = own.clear_set_id().unwrap();
        report.cleared.sort();
        let path = |text: &str| RelPath::parse(text.as_bytes()).unwrap();
        assert_eq!(report.cleared, [path("both"), path("closed/inner/group")]);
        assert_eq!((report.kept, report.removed), (vec![], vec![]));
        assert_eq!(mode("outside"), 0o4755);
        assert_eq!(mode("own/plain"), 0o750);
        assert_eq!(mode("own/both"), 0o711);
        assert_eq!(mode("own/closed/inner/group"), 0o555);
        assert_eq!(own.clear_set_id().unwrap(), SetIdReport::default());
    }

    #[test]
    fn directories_too_deep_to_be_read_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join(["d"; DEPTH_MAX].join("/"));
        fs::create_dir_all(deep.join("too/deep")).unwrap();
        fs::write(deep.join("file"), "").unwrap();
        let report = Dir::open(folder.path(), Durability::None).unwrap().clear_set_id().unwrap();
        assert_eq!(report.removed.len(), 1);
        assert!(!deep.join("too").exists() && deep.join("file").exists());
    }
}
