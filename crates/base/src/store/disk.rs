//! Store over a directory on disk, and its changes as inotify reports them.
//!
//! A mount does not pass POSIX ACLs on. It narrows the mode instead, so that nobody gains access
//! through the mount that the source denies. If a file has an ACL, the group bits of its mode are
//! the ACL's mask: an upper bound for every named user and group. Used alone, they would admit the
//! whole owning group. A named user with fewer rights than "other" also falls into the mode's
//! "other" class. Rights that an ACL grants beyond the mode's classes are dropped.
//!
//! This program opens files with O_NOATIME. In FUSE passthrough the kernel reopens a file with the
//! flags of the reader, which updates atime unless the mount has the noatime flag. So the mount of
//! the directory is cloned, and the clone has the flag and is kept out of every namespace.
//!
//! inotify reports changes made by system calls on this machine. File systems that other machines
//! write to are therefore not watched. It does not report writes through a memory mapping, so
//! callers must still poll from time to time.

use std::ffi::{OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use nix::sched::CloneFlags;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, StatVfsMountFlags, Statx, StatxTimestamp};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags};

use super::{DirEntry, File, Identity, Kind, Meta, Store, Time, is_temporary, openat2};
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
            let root = clone_mount(self.root.as_fd())?;
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
    Meta { mode: narrow_mode(acl, meta.mode), ..meta }
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

const ACL_ATTRIBUTE: &str = "system.posix_acl_access";
/// Maximum size of an ACL, in bytes. A file with a longer one is readable only by its owner.
const ACL_SIZE_MAX: usize = 1_024;

const USER: u16 = 0x02;
const OWNING_GROUP: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;

#[derive(Clone, Copy)]
pub(super) enum AclSource<'a> {
    Open(BorrowedFd<'a>),
    /// The inode of an `O_PATH` descriptor. Such a descriptor does not support `fgetxattr`; the
    /// path under /proc/self/fd does.
    Path(BorrowedFd<'a>),
    /// The entry with this name in an open directory. A symlink is not followed.
    Entry(BorrowedFd<'a>, &'a OsStr),
}

impl AclSource<'_> {
    fn read(self, list: &mut [u8]) -> Result<usize, Errno> {
        match self {
            AclSource::Open(fd) => rustix::fs::fgetxattr(fd, ACL_ATTRIBUTE, list),
            AclSource::Path(fd) => rustix::fs::getxattr(
                format!("/proc/self/fd/{}", fd.as_raw_fd()),
                ACL_ATTRIBUTE,
                list,
            ),
            AclSource::Entry(folder, name) => {
                let mut path = OsString::from(format!("/proc/self/fd/{}/", folder.as_raw_fd()));
                path.push(name);
                rustix::fs::lgetxattr(path, ACL_ATTRIBUTE, list)
            }
        }
    }
}

/// Returns `mode`, the permission bits of the inode `source`, without the bits that its ACL denies.
fn narrow_mode(source: AclSource<'_>, mode: u32) -> u32 {
    if mode & 0o077 == 0 {
        return mode;
    }
    let mut list = [0; ACL_SIZE_MAX];
    let bits = match source.read(&mut list) {
        Ok(length) => list.get(..length).and_then(mode_bits).unwrap_or(0),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => return mode,
        Err(_) => 0,
    };
    mode & (!0o077 | bits)
}

/// Returns the largest group and other bits that grant nobody more than `list`; `None` if `list` is
/// not an ACL.
fn mode_bits(list: &[u8]) -> Option<u32> {
    let (version, entries) = list.split_first_chunk()?;
    if u32::from_le_bytes(*version) != 2 {
        return None;
    }
    let (entries, []) = entries.as_chunks::<8>() else { return None };
    let entry = |[a, b, c, d, ..]: &[u8; 8]| {
        (u16::from_le_bytes([*a, *b]), u32::from(u16::from_le_bytes([*c, *d])))
    };
    // Rights that every entry of a kind grants; all rights if there is no such entry.
    let granted = |kind: u16| {
        let of_kind = entries.iter().map(entry).filter(|(found, _)| *found == kind);
        of_kind.fold(0o7, |common, (_, rights)| common & rights)
    };
    let mask = granted(MASK);
    let named = |kind: u16| {
        if entries.iter().any(|bytes| entry(bytes).0 == kind) { granted(kind) & mask } else { 0o7 }
    };
    let group = granted(OWNING_GROUP) & mask & named(USER);
    let others = granted(OTHERS) & named(USER) & named(GROUP);
    Some(group << 3 | others)
}

/// Temporary mount point of the clone, inside a private namespace; it exists on every system.
const MOUNT_POINT: &str = "/proc";

/// Opens the directory `root` on a mount that does not update atime.
///
/// # Errors
///
/// Fails if the system refuses, for example because the process is not root.
fn clone_mount(root: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let flags = rustix::fs::fstatvfs(root)?.f_flag;
    if flags.intersects(StatVfsMountFlags::NOATIME | StatVfsMountFlags::RDONLY) {
        return rustix::io::fcntl_dupfd_cloexec(root, 0);
    }
    let copy = rustix::mount::open_tree(
        root,
        "",
        OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_EMPTY_PATH,
    )?;
    // The private namespace ends with its thread; the descriptor keeps the mount.
    let result = thread::scope(|scope| {
        let thread = thread::Builder::new().spawn_scoped(scope, || set_noatime(copy.as_fd()));
        thread.ok()?.join().ok()
    });
    result.unwrap_or(Err(Errno::IO))?;
    Ok(copy)
}

/// Sets noatime on a detached mount. Flags can only be changed on an attached mount, so this
/// attaches it in a new namespace.
fn set_noatime(copy: BorrowedFd<'_>) -> Result<(), Errno> {
    nix::sched::unshare(CloneFlags::CLONE_NEWNS)
        .map_err(|errno| Errno::from_raw_os_error(errno as i32))?;
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    rustix::mount::move_mount(copy, "", CWD, MOUNT_POINT, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    let flags = MountFlags::BIND
        | MountFlags::RDONLY
        | MountFlags::NOATIME
        | MountFlags::NOSUID
        | MountFlags::NODEV;
    rustix::mount::mount_remount(MOUNT_POINT, flags, "")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchScope {
    AllChanges,
    /// A file was written or added, or the directory itself was moved or removed.
    FileWrites,
}

const ALL_CHANGES: WatchFlags = WatchFlags::ATTRIB
    .union(WatchFlags::CREATE)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::ONLYDIR);

const FILE_WRITES: WatchFlags = WatchFlags::CLOSE_WRITE
    .union(WatchFlags::CREATE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::ONLYDIR);

/// Magic numbers from statfs(2) of file systems that no other machine writes to: bcachefs, btrfs,
/// ext2 to ext4, f2fs, overlayfs, ramfs, tmpfs, XFS, ZFS.
const LOCAL: [u32; 9] = [
    0xca45_1a4e,
    0x9123_683e,
    0xef53,
    0xf2f5_2010,
    0x794c_7630,
    0x8584_58f6,
    0x0102_1994,
    0x5846_5342,
    0x2fc1_2fc1,
];

/// File with the maximum number of watches of a user over all programs.
const USER_LIMIT: &str = "/proc/sys/fs/inotify/max_user_watches";
/// Maximum number of watches. Each costs about a kilobyte of kernel memory and pins the directory's
/// inode. Half of them suffice for the unfinished workers among 100,000.
const WATCHES_MAX: usize = 131_072;
/// Size of the event buffer, in bytes; it fits a few hundred events.
const BUFFER_SIZE: usize = 16 << 10;

pub type WatchId = i32;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchEvent {
    /// An entry of the directory changed, with its name if known, or the directory was moved or
    /// removed.
    Changed(WatchId, Option<Name>),
    /// The directory is no longer watched, and the kernel may reuse its watch descriptor.
    Removed(WatchId),
    /// The kernel dropped events because its queue was full.
    Overflow,
}

pub struct Inotify {
    fd: OwnedFd,
    max_watches: usize,
    remaining: AtomicUsize,
}

impl Inotify {
    /// Creates an instance without watches.
    ///
    /// # Errors
    ///
    /// Fails if the system refuses, for example because the user has too many instances.
    pub fn new() -> Result<Inotify> {
        let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        // Leaves half of the user's watches to other programs.
        let limit = std::fs::read_to_string(USER_LIMIT)
            .ok()
            .and_then(|limit| limit.trim().parse::<usize>().ok());
        let max_watches = limit.map_or(WATCHES_MAX, |limit| (limit / 2).min(WATCHES_MAX));
        Ok(Inotify { fd, max_watches, remaining: AtomicUsize::new(max_watches) })
    }

    pub fn max_watches(&self) -> usize {
        self.max_watches
    }

    /// Watches the directory `folder`, which must be on a file system that [`is_local`].
    ///
    /// Adding a directory again returns the same id and extends its events to `scope`. Returns
    /// `None` if no more directories can be watched. Reads nothing from disk.
    pub fn add(&self, folder: BorrowedFd<'_>, scope: WatchScope) -> Option<WatchId> {
        if self.remaining.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let events = WatchFlags::MASK_ADD
            | if scope == WatchScope::AllChanges { ALL_CHANGES } else { FILE_WRITES };
        // The path under /proc names the descriptor, so no user path is resolved.
        match inotify::add_watch(&self.fd, format!("/proc/self/fd/{}", folder.as_raw_fd()), events)
        {
            Ok(id) => Some(id),
            Err(errno) => {
                if matches!(errno, Errno::NOSPC | Errno::NOMEM) {
                    self.remaining.store(0, Ordering::Relaxed);
                }
                None
            }
        }
    }

    pub fn set_watched(&self, folders: usize) {
        self.remaining.store(self.max_watches.saturating_sub(folders), Ordering::Relaxed);
    }

    /// Removes a watch; [`WatchEvent::Removed`] follows.
    pub fn remove(&self, id: WatchId) {
        // The kernel may have removed the watch already.
        let _ = inotify::remove_watch(&self.fd, id);
    }

    /// Waits for events, no longer than `limit`. Returns `None` when `end` becomes readable or its
    /// other end closes.
    pub fn wait(
        &self,
        end: BorrowedFd<'_>,
        limit: Option<Duration>,
    ) -> Result<Option<Vec<WatchEvent>>> {
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let mut ready = [PollFd::new(&self.fd, PollFlags::IN), PollFd::new(&end, PollFlags::IN)];
        loop {
            match poll(&mut ready, limit.as_ref()) {
                Ok(_) => break,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Error::Io(errno)),
            }
        }
        if !ready.iter().skip(1).all(|end| end.revents().is_empty()) {
            return Ok(None);
        }
        let mut buffer = [MaybeUninit::uninit(); BUFFER_SIZE];
        let mut reader = Reader::new(self.fd.as_fd(), &mut buffer);
        let mut events = Vec::new();
        while events.is_empty() || !reader.is_buffer_empty() {
            match reader.next() {
                Ok(event) if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => {
                    events.push(WatchEvent::Overflow)
                }
                Ok(event) if event.events().contains(ReadFlags::IGNORED) => {
                    events.push(WatchEvent::Removed(event.wd()))
                }
                Ok(event) => {
                    let name = event.file_name().and_then(|name| Name::new(name.to_bytes()).ok());
                    events.push(WatchEvent::Changed(event.wd(), name));
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Error::Io(errno)),
            }
        }
        Ok(Some(events))
    }
}

/// Returns true if the file system of `folder` is written only by this machine.
pub fn is_local(folder: BorrowedFd<'_>) -> bool {
    rustix::fs::fstatfs(folder)
        .is_ok_and(|stat| LOCAL.iter().any(|local| i128::from(*local) == i128::from(stat.f_type)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Mode, OFlags, XattrFlags};
    use std::os::fd::AsFd;
    use std::path::Path;

    fn list(entries: &[(u16, u16)]) -> Vec<u8> {
        let bytes = |(kind, rights): &(u16, u16)| {
            [kind.to_le_bytes(), rights.to_le_bytes(), [9; 2], [9; 2]].concat()
        };
        [2_u32.to_le_bytes().to_vec(), entries.iter().flat_map(bytes).collect()].concat()
    }

    #[test]
    fn mode_bits_grant_no_more_than_the_acl() {
        for (entries, wanted) in [
            (&[(OWNING_GROUP, 5), (OTHERS, 4)][..], 0o54),
            (&[(OWNING_GROUP, 0), (MASK, 6), (USER, 6), (OTHERS, 4)], 0o04),
            (&[(OWNING_GROUP, 6), (MASK, 4), (USER, 4), (OTHERS, 4)], 0o44),
            (&[(OWNING_GROUP, 6), (MASK, 6), (USER, 0), (OTHERS, 4)], 0o00),
            (&[(OWNING_GROUP, 6), (MASK, 6), (GROUP, 0), (OTHERS, 4)], 0o60),
            (&[(OWNING_GROUP, 6), (MASK, 0), (GROUP, 4), (OTHERS, 4)], 0o00),
        ] {
            assert_eq!(mode_bits(&list(entries)), Some(wanted), "{entries:?}");
        }
    }

    #[test]
    fn each_source_has_the_acl_of_its_inode() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "x").unwrap();
        std::os::unix::fs::symlink("file", dir.path().join("link")).unwrap();
        let open = |path: &Path, flags| {
            rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).unwrap()
        };
        let folder = open(dir.path(), OFlags::PATH | OFlags::DIRECTORY);
        let bits = |name: &str, mode| {
            narrow_mode(AclSource::Entry(folder.as_fd(), OsStr::new(name)), mode)
        };
        assert_eq!(bits("file", 0o644), 0o644, "without an ACL");
        // The user 1 has no rights, and the mask is the group's.
        let owner = 0x01;
        let entries = [(owner, 6), (USER, 0), (OWNING_GROUP, 4), (MASK, 4), (OTHERS, 4)];
        let ids = |mut list: Vec<u8>| {
            for (number, entry) in (0_u32..).zip(list[4..].chunks_mut(8)) {
                let id = if number == 1 { 1 } else { u32::MAX };
                entry[4..].copy_from_slice(&id.to_le_bytes());
            }
            list
        };
        let set =
            rustix::fs::setxattr(&file, ACL_ATTRIBUTE, &ids(list(&entries)), XattrFlags::empty());
        if set == Err(Errno::OPNOTSUPP) {
            return;
        }
        set.unwrap();
        let (opened, path) = (open(&file, OFlags::RDONLY), open(&file, OFlags::PATH));
        for source in [AclSource::Open(opened.as_fd()), AclSource::Path(path.as_fd())] {
            assert_eq!(narrow_mode(source, 0o644), 0o600);
        }
        assert_eq!(bits("file", 0o644), 0o600);
        assert_eq!(bits("none", 0o644), 0o600, "what cannot be read grants nothing");
        assert_eq!(bits("link", 0o777), 0o777, "a link has no ACL and is not followed");
    }

    #[test]
    fn malformed_acl_is_rejected() {
        for bytes in [&b""[..], b"\x02\0\0", b"\x03\0\0\0", b"\x02\0\0\0\x04\0\x07\0\0\0\0"] {
            assert_eq!(mode_bits(bytes), None);
        }
    }
}
