//! Makes the layers of overlays: entries with exact permissions, and marks of deleted names.

use rustix::fs::{FileType, Mode};

use super::{Dir, set_mode};
use crate::error::Result;
use crate::name::Name;

impl Dir {
    /// Sets the permissions of this directory, whatever the umask is.
    pub(crate) fn set_own_mode(&self, mode: u32) -> Result<()> {
        set_mode(&self.fd, mode)
    }

    /// Marks the name `name` as deleted in the upper layer of an overlay.
    pub(crate) fn create_whiteout(&self, name: &Name) -> Result<()> {
        let kind = FileType::CharacterDevice;
        Ok(rustix::fs::mknodat(&self.fd, name.as_os_str(), kind, Mode::empty(), 0)?)
    }
}
