//! Directories that a worker left, opened in spite of their permissions.

use swarmletfs_base::error::Result;
use swarmletfs_base::name::Name;
use swarmletfs_base::store::{EntryStat, OpenFolder};
use swarmletfs_record::write::set_mode;

/// Permissions that the owner of a directory needs to read all that it holds.
const READABLE: u32 = 0o500;

pub(super) struct OpenedFolder {
    pub(super) folder: OpenFolder,
    pub(super) names: Vec<Name>,
    /// The permissions, if they were changed.
    mode: Option<u32>,
}

impl OpenedFolder {
    /// Opens the directory `name`, and lists it. `may_change_modes` lets its owner read it.
    pub(super) fn open(
        parent: &OpenFolder,
        name: &Name,
        stat: &EntryStat,
        may_change_modes: bool,
    ) -> Result<OpenedFolder> {
        let folder = parent.enter(name)?;
        let is_closed = stat.mode & READABLE != READABLE;
        let mode = (is_closed && may_change_modes).then_some(stat.mode);
        if let Some(mode) = mode {
            set_mode(&folder, mode | READABLE)?;
        }
        let names = folder.list()?;
        Ok(OpenedFolder { folder, names, mode })
    }

    /// Restores the permissions. Otherwise another search would find other ones.
    pub(super) fn close(self) -> Result<()> {
        self.mode.map_or(Ok(()), |mode| set_mode(&self.folder, mode))
    }
}
