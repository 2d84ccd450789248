//! Store over a directory on disk.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{Dir, FileType, Mode, OFlags, Statx, StatxTimestamp};
use rustix::io::Errno;

use super::acl::{self, AclSource};
use super::{DirEntry, File, Identity, Kind, Meta, Store, Time, is_temporary, noatime, openat2};
use crate::error::{Error, Result};
use crate::name::{Name, RelPath, printable};

pub const MOUNT_TYPE: &str = "fuse.swarmletfs";

/// A directory on disk. The root is opened once, so a directory that later replaces it is not read.
#[derive(Debug)]
pub struct Disk {
    root: OwnedFd,
    path: PathBuf,
    /// Identity of the root, read once: a disk that fails later could not return it.
    identity: Identity,
    /// Mount id of the root, if the kernel reports it.
    mount: Option<u64>,
    flags: OFlags,
    /// The root on a private mount that does not update atime.
    noatime_root: OnceLock<OwnedFd>,
}

impl Disk {
    /// Opens the directory `path` as a root. Symlinks are followed, because the user named the
    /// path.
    pub fn open(path: &Path) -> Result<Disk> {
        Disk::open_with(path, OFlags::empty())
    }

    /// Opens the directory `path` that the user did not name. A symlink in its place is not
    /// followed.
    pub fn open_nofollow(path: &Path) -> Result<Disk> {
        Disk::open_with(path, OFlags::NOFOLLOW)
    }

    /// Opens the directory that holds the file `path` as a root. Returns it with the file's path
    /// from there. Symlinks are followed, because the user named the path.
    pub fn open_parent(path: &Path) -> Result<(Disk, RelPath)> {
        let path = path.canonicalize().map_err(|error| match Errno::from_io_error(&error) {
            Some(errno) => errno.into(),
            None => Error::Io(Errno::IO),
        })?;
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Error::IsADirectory);
        };
        Ok((Disk::open(parent)?, RelPath::parse(name.as_encoded_bytes())?))
    }

    fn open_with(path: &Path, more: OFlags) -> Result<Disk> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | more;
        let root = rustix::fs::open(path, OFlags::RDONLY | flags, Mode::empty())?;
        let stat = openat2::statx(root.as_fd())?;
        Ok(Disk::new(root, &stat, path.to_path_buf(), flags))
    }

    /// Returns true if the directory is on a swarmletfs mount. Returns false if /proc is not
    /// readable.
    pub fn is_in_own_mount(&self) -> bool {
        let device = self.identity.dev;
        let device = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
        let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
        mounts.split(|byte| *byte == b'\n').any(|mount| is_own_mount(mount, device.as_bytes()))
    }

    fn new(root: OwnedFd, stat: &Statx, path: PathBuf, flags: OFlags) -> Disk {
        let (identity, mount) = (identity(stat), openat2::mount_id(stat));
        Disk { root, path, identity, mount, flags, noatime_root: OnceLock::new() }
    }
}

impl Store for Disk {
    fn describe(&self) -> String {
        printable(self.path.as_os_str().as_encoded_bytes())
    }

    fn root(&self) -> Option<BorrowedFd<'_>> {
        Some(self.root.as_fd())
    }

    fn is_replaced(&self) -> bool {
        let Ok(now) = rustix::fs::open(&self.path, OFlags::PATH | self.flags, Mode::empty()) else {
            return false;
        };
        // The root is open, so no other directory can get its inode number.
        identity_of(now.as_fd()).is_ok_and(|now| now != self.identity)
    }

    fn stat(&self, path: &RelPath) -> Result<Meta> {
        let root = self.root.as_fd();
        if path.is_root() {
            return Ok(meta(&openat2::statx(root)?, AclSource::Path(root)));
        }
        if let Some(stat) = openat2::stat_entry(root, self.mount, path)? {
            return Ok(meta(&stat, AclSource::Entry(root, path.as_os_str())));
        }
        let fd = openat2::open_path(root, path)?;
        Ok(meta(&openat2::statx(fd.as_fd())?, AclSource::Path(fd.as_fd())))
    }

    fn stat_without_acl(&self, path: &RelPath) -> Result<Meta> {
        let root = self.root.as_fd();
        let stat = if path.is_root() {
            openat2::statx(root)
        } else {
            openat2::stat_on_mount(root, self.mount, path)
        };
        stat.map(|stat| meta_without_acl(&stat))
    }

    fn identity(&self) -> Result<Identity> {
        Ok(self.identity)
    }

    fn list(&self, path: &RelPath) -> Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        for entry in Dir::new(openat2::open_folder(self.root.as_fd(), path)?)? {
            let entry = entry?;
            // Skips `.` and `..`, which are not valid names.
            let Ok(name) = Name::new(entry.file_name().to_bytes()) else { continue };
            if is_temporary(&name) {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => match self.stat_without_acl(&path.join(&name)) {
                    Ok(meta) => meta.kind,
                    Err(_) => continue,
                },
                known => openat2::kind_of_type(known),
            };
            entries.push(DirEntry { name, kind });
        }
        Ok(entries)
    }

    fn open(&self, path: &RelPath) -> Result<Box<dyn File>> {
        let (fd, size) = openat2::open_file(self.root.as_fd(), self.mount, path)?;
        Ok(Box::new(DiskFile { fd, size }))
    }

    fn path_fd(&self, path: &RelPath) -> Result<Option<OwnedFd>> {
        openat2::open_path(self.root.as_fd(), path).map(Some)
    }

    fn enter(&self, path: &RelPath) -> Result<Box<dyn Store>> {
        let root = openat2::open_path(self.root.as_fd(), path)?;
        let stat = openat2::statx(root.as_fd())?;
        openat2::kind_of(&stat).must_be(Kind::Folder)?;
        let flags = OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::DIRECTORY;
        Ok(Box::new(Disk::new(root, &stat, self.path.join(path.as_os_str()), flags)))
    }

    fn pass_through(&self) -> Result<()> {
        if self.noatime_root.get().is_none() {
            let root = noatime::clone_mount(self.root.as_fd())?;
            let _ = self.noatime_root.set(root);
        }
        Ok(())
    }

    fn backing(&self, path: &RelPath) -> Result<Option<OwnedFd>> {
        let Some(root) = self.noatime_root.get() else { return Ok(None) };
        openat2::open_file(root.as_fd(), None, path).map(|(fd, _)| Some(fd))
    }
}

struct DiskFile {
    fd: OwnedFd,
    size: u64,
}

impl File for DiskFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        rustix::io::pread(&self.fd, buffer, offset).map_err(Error::Io)
    }

    fn size_at_open(&self) -> Option<u64> {
        Some(self.size)
    }

    fn meta(&self) -> Result<Meta> {
        let fd = self.fd.as_fd();
        Ok(meta(&openat2::statx(fd)?, AclSource::Open(fd)))
    }

    fn stat_without_acl(&self) -> Result<Meta> {
        openat2::statx(self.fd.as_fd()).map(|stat| meta_without_acl(&stat))
    }
}

/// Returns true if a line of /proc/self/mountinfo describes `device` with the type [`MOUNT_TYPE`].
/// The fields of a line are `id parent device root point options optional… - type source
/// superoptions`.
fn is_own_mount(mount: &[u8], device: &[u8]) -> bool {
    let mut fields = mount.split(|byte| *byte == b' ');
    let is_of_device = fields.nth(2) == Some(device);
    is_of_device && fields.skip_while(|field| *field != b"-").nth(1) == Some(MOUNT_TYPE.as_bytes())
}

fn meta(stat: &Statx, acl: AclSource<'_>) -> Meta {
    let meta = meta_without_acl(stat);
    Meta { mode: acl::narrow_mode(acl, meta.mode), ..meta }
}

fn meta_without_acl(stat: &Statx) -> Meta {
    Meta {
        kind: openat2::kind_of(stat),
        size: stat.stx_size,
        mode: u32::from(stat.stx_mode) & 0o7777,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        nlink: stat.stx_nlink,
        identity: identity(stat),
        mtime: time(&stat.stx_mtime),
        ctime: time(&stat.stx_ctime),
    }
}

pub fn identity_of(fd: BorrowedFd<'_>) -> Result<Identity> {
    openat2::statx(fd).map(|stat| identity(&stat))
}

fn identity(stat: &Statx) -> Identity {
    Identity {
        dev: rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor),
        ino: stat.stx_ino,
        // Zero if the file system keeps no birth time.
        born: time(&stat.stx_btime),
    }
}

fn time(time: &StatxTimestamp) -> Time {
    Time { secs: time.tv_sec, nanos: time.tv_nsec.min(999_999_999) }
}
