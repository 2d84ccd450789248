//! Open directories of trees that others own, such as a workspace: every kind of entry, read-only.
//!
//! A [`super::Store`] shows the files of a swarm; this shows a tree as it is, with its links and
//! special files. A path is resolved one name at a time beneath an open directory, and no link is
//! followed, so a tree that changes meanwhile cannot lead elsewhere.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

pub use std::fs::File;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Statx, StatxFlags};
use rustix::io::Errno;

use super::openat2::{kind_of, mount_id, open_beneath};
use super::{Kind, Time};
use crate::error::{Error, Result};
use crate::name::{Name, RelPath};

const WANTED: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::MNT_ID);
/// Restrictions on the resolution of a name. Other mounts are entered.
const RESOLVE: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
const PATH: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Flags of an open for reading. NONBLOCK makes it return at once if a FIFO has taken the place of
/// a file.
const READ: OFlags =
    OFlags::CLOEXEC.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);
/// Maximum number of attempts of an interrupted or raced call.
const ATTEMPTS: usize = 16;

/// An open directory. Opening needs no permission to list it.
#[derive(Debug)]
pub struct OpenFolder(OwnedFd);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryStat {
    pub kind: Kind,
    /// True for the character device 0:0, by which an overlay marks a deleted name.
    pub is_whiteout: bool,
    /// The 12 permission bits.
    pub mode: u32,
    pub size: u64,
    pub mtime: Time,
    pub ctime: Time,
    pub uid: u32,
    pub gid: u32,
    pub dev: (u32, u32),
    pub ino: u64,
    /// Mount, if the kernel reports it.
    pub mount: Option<u64>,
}

impl EntryStat {
    fn new(stat: &Statx) -> EntryStat {
        let time =
            |time: rustix::fs::StatxTimestamp| Time { secs: time.tv_sec, nanos: time.tv_nsec };
        let is_device = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::CharacterDevice;
        EntryStat {
            kind: kind_of(stat),
            is_whiteout: is_device && (stat.stx_rdev_major, stat.stx_rdev_minor) == (0, 0),
            mode: u32::from(stat.stx_mode) & 0o7777,
            size: stat.stx_size,
            mtime: time(stat.stx_mtime),
            ctime: time(stat.stx_ctime),
            uid: stat.stx_uid,
            gid: stat.stx_gid,
            dev: (stat.stx_dev_major, stat.stx_dev_minor),
            ino: stat.stx_ino,
            mount: mount_id(stat),
        }
    }

    pub fn of_open(fd: impl AsFd) -> Result<EntryStat> {
        Ok(EntryStat::new(&rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, WANTED)?))
    }
}

impl OpenFolder {
    /// Opens the directory at `path`, which the user named: links are followed.
    pub fn open(path: &Path) -> Result<OpenFolder> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(OpenFolder(rustix::fs::openat(CWD, path, flags, Mode::empty())?))
    }

    pub fn enter(&self, name: &Name) -> Result<OpenFolder> {
        self.openat2(name, PATH | OFlags::DIRECTORY).map(OpenFolder)
    }

    /// Opens the entry `name` of any kind, without a right to read it.
    pub fn open_entry(&self, name: &Name) -> Result<OwnedFd> {
        self.openat2(name, PATH)
    }

    /// Lists the names, sorted.
    pub fn list(&self) -> Result<Vec<Name>> {
        let mut names = Vec::new();
        for entry in Dir::new(self.open_to_read()?)? {
            // Skips `.` and `..`, which are not valid names.
            names.extend(Name::new(entry?.file_name().to_bytes()).ok());
        }
        names.sort_unstable();
        Ok(names)
    }

    pub fn stat(&self, name: &Name) -> Result<Option<EntryStat>> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        match rustix::fs::statx(&self.0, name.as_os_str(), flags, WANTED) {
            Ok(stat) => Ok(Some(EntryStat::new(&stat))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub fn stat_self(&self) -> Result<EntryStat> {
        EntryStat::of_open(&self.0)
    }

    pub fn open_file(&self, name: &Name) -> Result<(File, EntryStat)> {
        // A device could do something at its open.
        let before = self.stat(name)?.ok_or(Error::NotFound)?;
        before.kind.must_be(Kind::File)?;
        let fd = match self.openat2(name, READ | OFlags::NOATIME) {
            Err(Error::Io(Errno::PERM)) => self.openat2(name, READ)?,
            opened => opened?,
        };
        let stat = EntryStat::of_open(&fd)?;
        stat.kind.must_be(Kind::File)?;
        Ok((File::from(fd), stat))
    }

    pub fn read_link(&self, name: &Name) -> Result<Vec<u8>> {
        let target = rustix::fs::readlinkat(&self.0, name.as_os_str(), Vec::new())?;
        Ok(target.into_bytes())
    }

    /// Returns true if this directory has the extended attribute `name` with the value `value`.
    pub fn has_attribute(&self, name: &str, value: &[u8]) -> Result<bool> {
        let mut buffer = [0; 64];
        match rustix::fs::fgetxattr(self.open_to_read()?, name, &mut buffer) {
            Ok(length) => Ok(buffer.get(..length) == Some(value)),
            // Absent, too long, or unknown to this file system.
            Err(Errno::NODATA | Errno::RANGE | Errno::NOTSUP) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn open_to_read(&self) -> Result<OwnedFd> {
        let flags = READ | OFlags::DIRECTORY;
        match rustix::fs::openat(&self.0, ".", flags | OFlags::NOATIME, Mode::empty()) {
            Err(Errno::PERM) => Ok(rustix::fs::openat(&self.0, ".", flags, Mode::empty())?),
            opened => Ok(opened?),
        }
    }

    fn openat2(&self, name: &Name, flags: OFlags) -> Result<OwnedFd> {
        let path = RelPath::from(name.clone());
        let mut last = Errno::AGAIN;
        for _ in 0..ATTEMPTS {
            match open_beneath(self.as_fd(), &path, flags, Mode::empty(), RESOLVE) {
                Ok(fd) => return Ok(fd),
                Err(errno @ (Errno::INTR | Errno::AGAIN)) => last = errno,
                // A FIFO or socket has taken the place of the file.
                Err(Errno::NXIO) => return Err(Error::Special),
                Err(errno) => return Err(errno.into()),
            }
        }
        Err(last.into())
    }
}

impl AsFd for OpenFolder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    #[test]
    fn links_are_read_and_not_followed() {
        let tree = tempfile::tempdir().unwrap();
        fs::create_dir(tree.path().join("folder")).unwrap();
        fs::write(tree.path().join("file"), "text").unwrap();
        symlink("folder", tree.path().join("to-folder")).unwrap();
        symlink("file", tree.path().join("to-file")).unwrap();
        let folder = OpenFolder::open(tree.path()).unwrap();
        assert_eq!(
            folder.list().unwrap(),
            ["file", "folder", "to-file", "to-folder"].map(name).to_vec()
        );
        assert_eq!(folder.read_link(&name("to-file")).unwrap(), b"file");
        assert!(folder.enter(&name("to-folder")).is_err());
        assert_eq!(folder.open_file(&name("to-file")).err(), Some(Error::Escape));
        assert_eq!(folder.open_file(&name("folder")).err(), Some(Error::IsADirectory));
        assert_eq!(folder.stat(&name("none")).unwrap(), None);
        let (_, stat) = folder.open_file(&name("file")).unwrap();
        assert_eq!((stat.kind, stat.size), (Kind::File, 4));
    }

    #[test]
    fn a_fifo_is_not_opened() {
        let tree = tempfile::tempdir().unwrap();
        rustix::fs::mknodat(CWD, tree.path().join("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        let folder = OpenFolder::open(tree.path()).unwrap();
        assert_eq!(folder.open_file(&name("pipe")).err(), Some(Error::Special));
    }

    #[test]
    fn whiteouts_are_recognized() {
        let tree = tempfile::tempdir().unwrap();
        let path = tree.path().join("gone");
        rustix::fs::mknodat(CWD, path, FileType::CharacterDevice, Mode::empty(), 0).unwrap();
        fs::write(tree.path().join("file"), "").unwrap();
        fs::set_permissions(tree.path().join("file"), fs::Permissions::from_mode(0o4711)).unwrap();
        let folder = OpenFolder::open(tree.path()).unwrap();
        assert!(folder.stat(&name("gone")).unwrap().unwrap().is_whiteout);
        let file = folder.stat(&name("file")).unwrap().unwrap();
        assert_eq!((file.is_whiteout, file.mode), (false, 0o4711));
    }
}
