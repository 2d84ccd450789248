//! Removes the bits with which a program runs with the rights of its owner.

use std::os::fd::AsFd;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::{DEPTH_MAX, Dir, set_mode, stat};
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{Kind, kind_of};

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

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::write::Durability;

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
