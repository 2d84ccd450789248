//! A folder on disk as a store.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{Dir, FileType, Mode, OFlags, Statx, StatxTimestamp};

use super::acl::Held;
use super::unstamped::unstamped;
use super::{Entry, File, Identity, Kind, Meta, Store, Time, acl, beneath};
use crate::error::{Error, Result};
use crate::name::{Name, RelPath, printable};

/// The file system type of a mount of this program.
pub const MOUNT_TYPE: &str = "fuse.swarmletfs";

/// A folder on disk. Its root is opened once; what later takes the folder's place under the same path is not seen.
#[derive(Debug)]
pub struct Disk {
    root: OwnedFd,
    path: PathBuf,
    /// Which folder it is. Asked for only once: a disk that is broken by now would not say.
    identity: Identity,
    /// On which mount it lies, where the system tells.
    mount: Option<u64>,
    /// What was said when it was opened, beside that it is a folder.
    flags: OFlags,
    /// The same folder on a mount without times of access.
    unstamped: OnceLock<OwnedFd>,
}

impl Disk {
    /// Opens the folder `path` as a root. Links on the way to it are followed: the person who names it trusts them.
    pub fn open(path: &Path) -> Result<Disk> {
        Disk::open_with(path, OFlags::empty())
    }

    /// The same for a folder that nobody named, but that was looked for: a link in its place is not followed.
    pub fn open_found(path: &Path) -> Result<Disk> {
        Disk::open_with(path, OFlags::NOFOLLOW)
    }

    fn open_with(path: &Path, more: OFlags) -> Result<Disk> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | more;
        let root = rustix::fs::open(path, OFlags::RDONLY | flags, Mode::empty())?;
        let stat = beneath::statx(root.as_fd())?;
        Ok(Disk::over(root, &stat, path.to_path_buf(), flags))
    }

    /// Returns true if the folder lies in a mount of this program. Without /proc that is not known, and false.
    pub fn is_in_own_mount(&self) -> bool {
        let device = self.identity.dev;
        let device = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
        let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
        mounts.split(|byte| *byte == b'\n').any(|mount| is_own_mount(mount, device.as_bytes()))
    }

    fn over(root: OwnedFd, stat: &Statx, path: PathBuf, flags: OFlags) -> Disk {
        let (identity, mount) = (identity(stat), beneath::mount_of(stat));
        Disk { root, path, identity, mount, flags, unstamped: OnceLock::new() }
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
        let Ok(now) = rustix::fs::open(&self.path, OFlags::PATH | self.flags, Mode::empty()) else { return false };
        // The root is held open, so its number is given to no other folder meanwhile.
        identity_of(now.as_fd()).is_ok_and(|now| now != self.identity)
    }

    fn stat(&self, path: &RelPath) -> Result<Meta> {
        // It is held: there is no path to be resolved.
        if path.is_root() {
            return meta(self.root.as_fd(), Held::Place);
        }
        meta(beneath::locate(self.root.as_fd(), path)?.as_fd(), Held::Place)
    }

    fn glimpse(&self, path: &RelPath) -> Result<Meta> {
        let root = self.root.as_fd();
        let stat = if path.is_root() { beneath::statx(root) } else { beneath::stat_on(root, self.mount, path) };
        stat.map(|stat| told(&stat))
    }

    fn identity(&self) -> Result<Identity> {
        Ok(self.identity)
    }

    fn list(&self, path: &RelPath) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for entry in Dir::new(beneath::open_folder(self.root.as_fd(), path)?)? {
            let entry = entry?;
            // `.` and `..` are no valid names and fall out here, as would anything else a file system made up.
            let Ok(name) = Name::new(entry.file_name().to_bytes()) else { continue };
            let kind = match entry.file_type() {
                FileType::Unknown => match self.glimpse(&path.join(&name)) {
                    Ok(meta) => meta.kind,
                    Err(_) => continue,
                },
                known => beneath::kind(known),
            };
            entries.push(Entry { name, kind });
        }
        Ok(entries)
    }

    fn open(&self, path: &RelPath) -> Result<Box<dyn File>> {
        Ok(Box::new(OpenFile(beneath::open_file(self.root.as_fd(), path)?)))
    }

    fn place(&self, path: &RelPath) -> Result<Option<OwnedFd>> {
        beneath::locate(self.root.as_fd(), path).map(Some)
    }

    fn enter(&self, path: &RelPath) -> Result<Box<dyn Store>> {
        let root = beneath::locate(self.root.as_fd(), path)?;
        let stat = beneath::statx(root.as_fd())?;
        beneath::kind_of(&stat).must_be(Kind::Folder)?;
        let flags = OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::DIRECTORY;
        Ok(Box::new(Disk::over(root, &stat, self.path.join(path.as_os_str()), flags)))
    }

    fn pass_through(&self) -> Result<()> {
        if self.unstamped.get().is_none() {
            let root = unstamped(self.root.as_fd())?;
            let _ = self.unstamped.set(root);
        }
        Ok(())
    }

    fn backing(&self, path: &RelPath) -> Result<Option<OwnedFd>> {
        self.unstamped.get().map(|root| beneath::open_file(root.as_fd(), path)).transpose()
    }
}

struct OpenFile(OwnedFd);

impl File for OpenFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        rustix::io::pread(&self.0, buffer, offset).map_err(Error::Io)
    }

    fn meta(&self) -> Result<Meta> {
        meta(self.0.as_fd(), Held::Open)
    }

    fn glimpse(&self) -> Result<Meta> {
        beneath::statx(self.0.as_fd()).map(|stat| told(&stat))
    }
}

/// Returns true if a line of the kernel's table of mounts is about `device` and its type is [`MOUNT_TYPE`]. A line is
/// `id parent device root point options optional… - type source superoptions`.
fn is_own_mount(mount: &[u8], device: &[u8]) -> bool {
    let mut fields = mount.split(|byte| *byte == b' ');
    let is_of_device = fields.nth(2) == Some(device);
    is_of_device && fields.skip_while(|field| *field != b"-").nth(1) == Some(MOUNT_TYPE.as_bytes())
}

fn meta(fd: BorrowedFd<'_>, held: Held) -> Result<Meta> {
    let meta = told(&beneath::statx(fd)?);
    Ok(Meta { mode: acl::narrowed(fd, held, meta.mode), ..meta })
}

/// What stat tells, lists of access left aside.
fn told(stat: &Statx) -> Meta {
    Meta {
        kind: beneath::kind_of(stat),
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

/// What is open behind a descriptor.
pub fn identity_of(fd: BorrowedFd<'_>) -> Result<Identity> {
    beneath::statx(fd).map(|stat| identity(&stat))
}

fn identity(stat: &Statx) -> Identity {
    Identity {
        dev: rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor),
        ino: stat.stx_ino,
        // Zero where the file system keeps none.
        born: time(&stat.stx_btime),
    }
}

fn time(time: &StatxTimestamp) -> Time {
    Time { secs: time.tv_sec, nanos: time.tv_nsec.min(999_999_999) }
}
