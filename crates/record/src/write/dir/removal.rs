//! Removes directories that others have filled: of any depth and with any permissions.

use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::super::temporary;
use super::{Dir, Durability, stat};
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
            Err(Errno::ISDIR | Errno::PERM) => {}
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
        let (from, to) = (name.as_os_str(), temporary::file_name()?);
        let to = to.as_os_str();
        Ok(rustix::fs::renameat_with(&self.fd, from, &top.fd, to, RenameFlags::NOREPLACE)?)
    }

    fn is_folder(&self, name: &Name) -> Result<bool> {
        Ok(self.kind(&RelPath::from(name.clone()))? == Some(Kind::Folder))
    }

    /// Lets the owner of the directory `name` list and change it.
    pub(super) fn make_accessible(&self, name: &Name) -> Result<()> {
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

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
}
