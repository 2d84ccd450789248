//! The kernel's table of mounts, read from `/proc/self/mountinfo`.
//!
//! Reading it accesses no mount, so it never blocks on a dead or hung one. Paths are bytes, with
//! the table's octal escapes decoded.

use std::io;
use std::path::{Path, PathBuf};

use crate::sandbox::unescape;

pub(super) const FS_TYPE: &str = crate::store::MOUNT_TYPE;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mount {
    /// Device number as `major:minor`; unique for each swarmletfs mount.
    pub(super) device: String,
    /// Directory of the mounted file system that appears at the mountpoint; not `/` for some bind
    /// mounts.
    pub(super) root: PathBuf,
    /// Mountpoint: absolute and resolved.
    pub(super) point: PathBuf,
    pub(super) fs_type: String,
    pub(super) source: PathBuf,
}

impl Mount {
    pub(super) fn is_ours(&self) -> bool {
        self.fs_type == FS_TYPE
    }
}

/// A directory's path on its underlying file system, equal through every bind mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FsPath {
    pub(super) device: String,
    pub(super) path: PathBuf,
}

impl FsPath {
    /// Returns true if this directory is `other` or lies inside it.
    pub(super) fn is_within(&self, other: &FsPath) -> bool {
        self.device == other.device && self.path.starts_with(&other.path)
    }
}

/// All mounts in the order of the table. Of two at one mountpoint, the later one is visible.
#[derive(Debug, Default)]
pub(super) struct MountTable(Vec<Mount>);

impl MountTable {
    /// Reads the table.
    ///
    /// # Errors
    ///
    /// Fails if /proc is not mounted.
    pub(super) fn read() -> io::Result<MountTable> {
        Ok(MountTable::parse(&std::fs::read("/proc/self/mountinfo")?))
    }

    /// Parses a table; invalid lines are skipped.
    fn parse(table: &[u8]) -> MountTable {
        MountTable(table.split(|byte| *byte == b'\n').filter_map(parse_line).collect())
    }

    /// Returns the topmost mount at exactly `point`.
    pub(super) fn topmost_at(&self, point: &Path) -> Option<&Mount> {
        self.0.iter().rev().find(|mount| mount.point == point)
    }

    pub(super) fn ours(&self) -> impl Iterator<Item = &Mount> {
        self.0.iter().filter(|mount| mount.is_ours())
    }

    /// Iterates over the mounts of a device, latest first: its own mountpoint and bind mounts.
    pub(super) fn with_device(&self, device: &str) -> impl Iterator<Item = &Mount> {
        self.0.iter().rev().filter(move |mount| mount.device == device)
    }

    /// Returns true if `device` is mounted at exactly `point`, even beneath another mount.
    pub(super) fn is_mounted_at(&self, point: &Path, device: &str) -> bool {
        self.0.iter().any(|mount| mount.point == point && mount.device == device)
    }

    /// Returns the mount that contains `path`, which must be absolute and resolved.
    pub(super) fn containing(&self, path: &Path) -> Option<&Mount> {
        // `max_by_key` returns the last of several equal ones, which is the topmost.
        self.0
            .iter()
            .filter(|mount| path.starts_with(&mount.point))
            .max_by_key(|mount| mount.point.components().count())
    }

    /// Returns the path on its file system of `path`, which must be absolute and resolved.
    pub(super) fn fs_path(&self, path: &Path) -> Option<FsPath> {
        let mount = self.containing(path)?;
        let rest = path.strip_prefix(&mount.point).ok()?;
        Some(FsPath { device: mount.device.clone(), path: mount.root.join(rest) })
    }
}

/// Parses `id parent device root point options optional… - type source superoptions`.
fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ').skip(2);
    let device = text(fields.next()?);
    let root = unescape(fields.next()?);
    let point = unescape(fields.next()?);
    let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
    let fs_type = text(fields.next()?);
    let source = unescape(fields.next()?);
    Some(Mount { device, root, point, fs_type, source })
}

fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(field).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = r"
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 8:2 /sub /mnt rw shared:2 master:3 - ext4 /dev/sdb rw
31 22 0:50 / /mnt/a\040b\011\012\134,c ro,nosuid,nodev - fuse.swarmletfs swarmletfs ro,user_id=0
32 22 0:51 / /twice ro - fuse.sshfs host:/x\040y rw
33 32 0:52 / /twice ro - fuse.swarmletfs swarmletfs ro
not a line
";

    #[test]
    fn octal_escapes_are_decoded() {
        let mounts = MountTable::parse(TABLE.as_bytes());
        let mount = mounts.topmost_at(Path::new("/mnt/a b\t\n\\,c")).unwrap();
        assert!(mount.is_ours());
        assert_eq!(unescape(br"\134040\8\"), Path::new(r"\040\8\"));
        assert_eq!(unescape(br"\400\777"), Path::new(r"\400\777"));
    }

    #[test]
    fn topmost_at_returns_the_latest_mount() {
        let mounts = MountTable::parse(TABLE.as_bytes());
        assert_eq!(mounts.topmost_at(Path::new("/twice")).unwrap().device, "0:52");
        assert_eq!(mounts.with_device("0:51").next().unwrap().source, Path::new("host:/x y"));
        assert_eq!(mounts.topmost_at(Path::new("/mnt/a")), None);
    }

    #[test]
    fn fs_path_resolves_bind_mounts() {
        let mounts = MountTable::parse(TABLE.as_bytes());
        let place = mounts.fs_path(Path::new("/mnt/x/y")).unwrap();
        assert_eq!(place, FsPath { device: "8:2".into(), path: "/sub/x/y".into() });
        assert!(place.is_within(&FsPath { device: "8:2".into(), path: "/sub".into() }));
        assert!(!place.is_within(&FsPath { device: "8:1".into(), path: "/sub".into() }));
        assert_eq!(mounts.fs_path(Path::new("/mntx")).unwrap().device, "8:1");
    }
}
