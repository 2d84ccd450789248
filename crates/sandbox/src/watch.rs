//! Follows the mounts outside, so that a sandbox does not keep a file system in use that was
//! unmounted there.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::mount::{UnmountFlags, unmount};

use super::files;
use super::mount_table::{AttachedMounts, TABLE_MAX};
use super::mounts::ShownPart;

/// The table of the namespace outside.
pub(super) struct OutsideMounts {
    /// Shows that namespace for as long as it is open, and polls as ready when a mount changed.
    table: OwnedFd,
    at_start: AttachedMounts,
}

impl OutsideMounts {
    /// Opens the table of the present namespace, before another one is entered.
    ///
    /// # Errors
    ///
    /// The table cannot be read.
    pub(super) fn open() -> io::Result<OutsideMounts> {
        let table = files::open(Path::new("/proc/self/mountinfo"))?;
        let at_start = AttachedMounts::parse(&files::read_again(&table, TABLE_MAX)?);
        Ok(OutsideMounts { table, at_start })
    }

    /// Unmounts the parts of the sandbox whose file systems are not mounted outside anymore. A
    /// process that has a file open there keeps it.
    pub(super) fn release(&self, shown: &[ShownPart]) {
        // Without a table, all parts stay.
        let Ok(bytes) = files::read_again(&self.table, TABLE_MAX) else { return };
        let now = AttachedMounts::parse(&bytes);
        for part in shown.iter().filter(|part| !now.agrees(&self.at_start, &part.mountpoint)) {
            // It may be gone already.
            let _ = unmount(&part.path, UnmountFlags::DETACH);
        }
    }
}

impl AsFd for OutsideMounts {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.table.as_fd()
    }
}
