//! Makes entries with exact attributes: the layers of overlays, and copies of trees.

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, Uid};

use super::{Dir, File, set_mode};
use swarmletfs_base::error::Result;
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{EntryStat, Time};

impl Dir {
    /// Sets the permissions of this directory, regardless of the umask.
    pub fn set_own_mode(&self, mode: u32) -> Result<()> {
        set_mode(&self.fd, mode)
    }

    /// Marks the name `name` as deleted in the upper layer of an overlay.
    pub fn create_whiteout(&self, name: &Name) -> Result<()> {
        let kind = FileType::CharacterDevice;
        Ok(rustix::fs::mknodat(&self.fd, name.as_os_str(), kind, Mode::empty(), 0)?)
    }

    /// Creates the link `name` to `target`, with the time and the owner of `like`.
    pub fn create_link(&self, name: &Name, target: &[u8], like: &EntryStat) -> Result<()> {
        let name = name.as_os_str();
        rustix::fs::symlinkat(target, &self.fd, name)?;
        if let Some((uid, gid)) = owner(like) {
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            rustix::fs::chownat(&self.fd, name, Some(uid), Some(gid), flags)?;
        }
        let times = times(like.mtime);
        Ok(rustix::fs::utimensat(&self.fd, name, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    pub fn entry_stat(&self, name: &Name) -> Result<EntryStat> {
        EntryStat::of_open(self.openat2(
            &RelPath::from(name.clone()),
            OFlags::PATH,
            Mode::empty(),
        )?)
    }

    /// Gives this directory the mode `mode`, and the time and the owner of `like`. Only root can
    /// set an owner.
    pub fn set_attributes(&self, mode: u32, like: &EntryStat) -> Result<()> {
        if let Some((uid, gid)) = owner(like) {
            rustix::fs::fchown(&self.fd, Some(uid), Some(gid))?;
        }
        set_mode(&self.fd, mode)?;
        Ok(rustix::fs::futimens(&self.fd, &times(like.mtime))?)
    }
}

pub fn set_file_attributes(file: &File, mode: u32, like: &EntryStat) -> Result<()> {
    if let Some((uid, gid)) = owner(like) {
        rustix::fs::fchown(file, Some(uid), Some(gid))?;
    }
    rustix::fs::fchmod(file, Mode::from_raw_mode(mode))?;
    Ok(rustix::fs::futimens(file, &times(like.mtime))?)
}

fn owner(like: &EntryStat) -> Option<(Uid, Gid)> {
    let is_root = rustix::process::geteuid().is_root();
    is_root.then(|| (Uid::from_raw(like.uid), Gid::from_raw(like.gid)))
}

fn times(mtime: Time) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: mtime.secs, tv_nsec: mtime.nanos.into() },
    }
}
