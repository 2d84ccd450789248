//! Tells a directory that only one user can have filled from one that others can write.

use std::io::Read;
use std::os::fd::AsFd;

use rustix::fs::Mode;
use rustix::io::Errno;

use super::{Dir, from_io, stat};
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::{Name, RelPath};

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
        let mut bytes = Vec::new();
        file.take(limit + 1).read_to_end(&mut bytes).map_err(from_io)?;
        if bytes.len() as u64 > limit { Err(Error::Io(Errno::FBIG)) } else { Ok(Some(bytes)) }
    }
}
