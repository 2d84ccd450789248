//! Read-only access to the bytes under one root.
//!
//! A store lists directories, stats entries and reads ranges. Its root is opened once, and nothing
//! outside the root can be reached. A store does not interpret the bytes that it reads; `trace`
//! does. Symlinks, special files and foreign mounts are not followed, but a listing includes them
//! so that they can be counted.
//!
//! [`FileOpener`] opens the files of a directory through the subdirectory that was entered last. A
//! path of several names takes a system call more for each check than a single name, and the same
//! directories are resolved for each file. So the subdirectory of the latest file stays open. It
//! stays the same directory even if its path is replaced meanwhile.
//!
//! [`SingleLinkStore`] wraps a store and treats a regular file with several hard links as a
//! symlink. Such a file may also be in another owner's directory, and the file system does not
//! record which owner wrote it. A view of one owner therefore reads through this wrapper. It relies
//! only on the link count from stat. Directories are unaffected: their link count reflects their
//! subdirectories.

mod disk;
mod memory;
mod object_url;
mod open_folder;
mod openat2;

use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::model::EntryKind;
use crate::name::{Name, RelPath};
use crate::split::Split;
pub use disk::{Disk, Inotify, MOUNT_TYPE, WatchEvent, WatchId, WatchScope, identity_of, is_local};
use jiff::Timestamp;
pub use memory::Memory;
pub use object_url::is_object_url;
pub use open_folder::{EntryStat, File as OpenFile, OpenFolder};
pub use openat2::{BENEATH, kind_of, open_beneath};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::io::{self, Read};
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Prefix of the names of temporary entries: of a write in progress, or left behind by a crash. No
/// listing includes such an entry.
pub const TEMPORARY_PREFIX: &str = ".swarmletfs-";

pub fn is_temporary(name: &Name) -> bool {
    name.as_bytes().starts_with(TEMPORARY_PREFIX.as_bytes())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    File,
    Folder,
    /// A symlink, never followed. In a [`SingleLinkStore`] also a regular file with several hard
    /// links, never opened.
    Link,
    /// A FIFO, socket or device, never opened.
    Special,
}

impl From<Kind> for EntryKind {
    fn from(kind: Kind) -> EntryKind {
        match kind {
            Kind::File => EntryKind::File,
            Kind::Folder => EntryKind::Folder,
            Kind::Link => EntryKind::Link,
            Kind::Special => EntryKind::Special,
        }
    }
}

impl Kind {
    /// Returns an error that names the actual kind unless it is `wanted`, which is a file or a
    /// directory.
    pub fn must_be(self, wanted: Kind) -> Result<()> {
        match self {
            found if found == wanted => Ok(()),
            Kind::Link => Err(Error::Escape),
            Kind::Folder => Err(Error::IsADirectory),
            Kind::File => Err(Error::NotADirectory),
            Kind::Special => Err(Error::Special),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meta {
    pub kind: Kind,
    pub size: u64,
    /// The 12 permission bits at the source, without the bits that an ACL denies to some users.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    /// Identity of the inode; it differs between a replaced file and a changed one.
    pub identity: Identity,
    pub mtime: Time,
    pub ctime: Time,
}

impl Meta {
    /// Returns the time of the last write, never later than ctime.
    ///
    /// Any program may set an mtime, even to a future time; only the kernel sets ctime. Without the
    /// limit, a worker could make itself the newest. An mtime before ctime is trusted, because
    /// copies keep it. A file system without ctime reports 1970 for all files.
    pub fn last_write(&self) -> Time {
        earlier(self.mtime, self.ctime)
    }
}

/// Returns the earlier of an mtime and a ctime, or the mtime if the file system has no ctime.
pub fn earlier(mtime: Time, ctime: Time) -> Time {
    if ctime == Time::default() { mtime } else { mtime.min(ctime) }
}

/// Identity of an inode at the source.
///
/// A file system reuses an inode number after its file is removed. The birth time distinguishes the
/// new file from the old one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Identity {
    pub dev: u64,
    pub ino: u64,
    /// Birth time, or zero if the file system keeps none.
    pub born: Time,
}

/// A timestamp as returned by stat, relative to 1970; earlier times are negative.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
pub struct Time {
    pub secs: i64,
    /// Additional nanoseconds, 0 to 999,999,999.
    pub nanos: u32,
}

/// Longest clock tick of any file system whose timestamps are relied on: a second, and the delay of
/// the kernel's clock for timestamps.
pub const TICK_MAX: Duration = Duration::from_millis(1_100);
/// Longest tick of this machine's clock if its timestamps have fractions of a second.
const LOCAL_TICK_MAX: Duration = Duration::from_millis(100);

impl From<Timestamp> for Time {
    fn from(time: Timestamp) -> Time {
        let nanos = time.as_nanosecond();
        Time {
            secs: i64::try_from(nanos.div_euclid(1_000_000_000)).unwrap_or_default(),
            nanos: u32::try_from(nanos.rem_euclid(1_000_000_000)).unwrap_or_default(),
        }
    }
}

impl Time {
    /// Returns true if this ctime is older than a clock tick, so no later change can have the same
    /// ctime.
    pub fn is_past_tick(self) -> bool {
        self.was_past_tick(SystemTime::now())
    }

    /// Returns true if this ctime was older than a clock tick at the time `then`.
    pub fn was_past_tick(self, then: SystemTime) -> bool {
        then.duration_since(self.to_system()).is_ok_and(|age| age >= TICK_MAX)
    }

    /// Returns true if this ctime, set by this machine's clock, was more than a clock tick away
    /// from `then`.
    ///
    /// A future ctime counts as past: a change made now gets a different one.
    pub fn was_past_local_tick(self, then: SystemTime) -> bool {
        let tick = if self.nanos == 0 { TICK_MAX } else { LOCAL_TICK_MAX };
        let distance =
            then.duration_since(self.to_system()).unwrap_or_else(|ahead| ahead.duration());
        distance >= tick
    }

    /// Returns the time that is `nanos` nanoseconds later, at most a second.
    pub fn plus_nanos(self, nanos: u32) -> Time {
        let nanos = self.nanos + nanos.min(1_000_000_000);
        Time {
            secs: self.secs.saturating_add((nanos / 1_000_000_000).into()),
            nanos: nanos % 1_000_000_000,
        }
    }

    /// Converts to a [`SystemTime`]; a time out of its range becomes 1970.
    pub fn to_system(self) -> SystemTime {
        let whole = Duration::from_secs(self.secs.unsigned_abs());
        let time = if self.secs >= 0 {
            SystemTime::UNIX_EPOCH.checked_add(whole)
        } else {
            SystemTime::UNIX_EPOCH.checked_sub(whole)
        };
        time.and_then(|time| time.checked_add(Duration::from_nanos(self.nanos.into())))
            .unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    pub name: Name,
    /// Type of the entry, as recorded in the directory.
    pub kind: Kind,
}

pub trait File: Send + Sync {
    /// Reads at most `buffer.len()` bytes at `offset` bytes; returns 0 at the end. A read may be
    /// short.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize>;

    /// Returns the size when the file was opened, in bytes; `None` if it is not known.
    fn size_at_open(&self) -> Option<u64> {
        None
    }

    fn meta(&self) -> Result<Meta>;

    /// Returns the current metadata without reading the ACL; `mode` may be too permissive.
    fn stat_without_acl(&self) -> Result<Meta> {
        self.meta()
    }
}

pub trait Store: Any + Send + Sync {
    /// Returns the location of the store for messages: a path or a description.
    fn describe(&self) -> String;

    /// Returns the directory on disk that reading needs, for a sandbox: the one that contains the
    /// whole store, or a cache. `None` if the store needs no directory.
    fn root(&self) -> Option<BorrowedFd<'_>>;

    /// Returns true if the path of the store now leads to another directory. A removed directory is
    /// not replaced.
    fn is_replaced(&self) -> bool;

    /// Returns why an old state of the store is shown, with its time. `None` if it is the newest.
    fn outage(&self) -> Option<String> {
        None
    }

    /// Stats `path` without following a final symlink.
    ///
    /// # Errors
    ///
    /// [`Error::Escape`] if a parent component is a symlink or a foreign mount.
    fn stat(&self, path: &RelPath) -> Result<Meta>;

    /// Stats `path` like [`Store::stat`], but skips the ACL; `mode` may be too permissive.
    fn stat_without_acl(&self, path: &RelPath) -> Result<Meta> {
        self.stat(path)
    }

    fn identity(&self) -> Result<Identity> {
        self.stat_without_acl(&RelPath::root()).map(|root| root.identity)
    }

    /// Lists the directory `path` in no particular order, without temporary entries; see
    /// [`TEMPORARY_PREFIX`].
    fn list(&self, path: &RelPath) -> Result<Vec<DirEntry>>;

    /// Returns true if a listing depends only on the directory itself, not on the inodes of its
    /// entries.
    fn listing_depends_on_dir_only(&self) -> bool {
        true
    }

    /// Opens the regular file `path` for reading. Any other kind is an error and is never opened.
    fn open(&self, path: &RelPath) -> Result<Box<dyn File>>;

    /// Opens the directory `path` as a store of its own.
    ///
    /// The new store stays that directory, even if another one later takes its name. A reader that
    /// was admitted by the contents of a directory can therefore not be redirected to another one.
    fn enter(&self, path: &RelPath) -> Result<Box<dyn Store>>;

    /// Returns an `O_PATH` descriptor of the directory `path`, or `None` if the store is not on
    /// disk.
    fn path_fd(&self, _path: &RelPath) -> Result<Option<OwnedFd>> {
        Ok(None)
    }

    /// Enables [`Store::backing`] if the store supports it.
    ///
    /// # Errors
    ///
    /// The system refuses the private mount that passthrough needs.
    fn pass_through(&self) -> Result<()> {
        Ok(())
    }

    /// Opens the regular file `path` for FUSE passthrough: the kernel reads the descriptor without
    /// updating atime.
    ///
    /// Returns `None` if passthrough is not enabled. The caller must already have the file open,
    /// because this call does not detect foreign mounts.
    fn backing(&self, _path: &RelPath) -> Result<Option<OwnedFd>> {
        Ok(None)
    }

    /// Reads the sources that every file of a generated directory needs, until `deadline` passes.
    /// Without this call, the first use of a file reads them, however long it takes.
    ///
    /// # Errors
    ///
    /// [`Error::Late`] if the deadline passes first. The next call goes on from there.
    fn prepare(&self, _deadline: Deadline<'_>) -> Result<()> {
        Ok(())
    }

    /// Returns the metadata of the files that this directory is generated from. Its contents change
    /// only with them. `None` for a directory on disk.
    fn source_files(&self) -> Option<Result<Vec<Meta>>> {
        None
    }
}

/// Buffers above this size use [`LARGE_CAPACITY`], in bytes.
const LARGE: usize = 2 << 20;
/// Capacity of a large buffer, in bytes. The glibc allocator keeps freed blocks of up to 32 MiB for
/// the thread that freed them. It maps larger blocks separately and unmaps them at once. Unused
/// capacity costs nothing.
const LARGE_CAPACITY: usize = (32 << 20) + (1 << 12);

/// Returns the capacity to allocate for a short-lived buffer of `size` bytes.
pub fn capacity_for(size: usize) -> usize {
    if size > LARGE { size.max(LARGE_CAPACITY) } else { size }
}

const INTERRUPTED_MAX: usize = 16;

/// Size of the first read, in bytes. Most files are small, and touching memory costs more than a
/// second read.
const FIRST_READ: usize = 16 << 10;
const GROWTH: usize = 4;

/// Reads up to `limit` bytes from `offset` on; the result is shorter if the file ends.
pub fn read_range(file: &dyn File, offset: u64, limit: usize) -> Result<Vec<u8>> {
    let mut buffer = Vec::new();
    let mut size = limit.min(FIRST_READ);
    loop {
        let before = buffer.len();
        // Reserved memory that is never touched costs nothing.
        let capacity = if before == 0 { size } else { capacity_for(limit) };
        buffer
            .try_reserve_exact(capacity - before)
            .map_err(|_| Error::Io(rustix::io::Errno::NOMEM))?;
        buffer.resize(size, 0);
        let rest = buffer.get_mut(before..).ok_or(Error::Io(rustix::io::Errno::INVAL))?;
        let filled = before + read_into(file, offset.saturating_add(before as u64), rest)?;
        buffer.truncate(filled);
        if filled < size || size == limit {
            return Ok(buffer);
        }
        size = size.saturating_mul(GROWTH).min(limit);
    }
}

/// Fills `buffer` from `offset` on, up to the end of the file. Returns the number of bytes read.
pub fn read_into(file: &dyn File, offset: u64, buffer: &mut [u8]) -> Result<usize> {
    read_until(file, offset, buffer, None)
}

/// Fills `buffer` from the start of the file on, up to the end that it had when it was opened, or
/// up to its end if that has become smaller. Returns the number of bytes read.
///
/// The known end saves a read, which is noticeable in a search through thousands of files.
pub fn read_beginning(file: &dyn File, buffer: &mut [u8]) -> Result<usize> {
    let end = file.size_at_open().and_then(|size| usize::try_from(size).ok());
    read_until(file, 0, buffer, end)
}

/// Fills `buffer` as [`read_into`] does. Stops early if exactly `enough` bytes are read.
fn read_until(
    file: &dyn File,
    offset: u64,
    buffer: &mut [u8],
    enough: Option<usize>,
) -> Result<usize> {
    let (mut filled, mut interrupted) = (0, 0);
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        if filled > 0 && Some(filled) == enough {
            break;
        }
        match file.read_at(rest, offset.saturating_add(filled as u64)) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(Error::Io(rustix::io::Errno::INTR)) if interrupted < INTERRUPTED_MAX => {
                interrupted += 1
            }
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Fills `buffer` with `bytes` from `offset` on, up to their end. Returns the copied length.
pub fn copy_from(bytes: &[u8], offset: u64, buffer: &mut [u8]) -> usize {
    let offset = usize::try_from(offset).unwrap_or(usize::MAX);
    let (_, mut rest) = bytes.split_at_most(offset);
    rest.read(buffer).unwrap_or_default()
}

pub struct Stream<'a> {
    file: &'a dyn File,
    offset: u64,
    /// End of the stream, which the file must have.
    end: Option<u64>,
}

impl Stream<'_> {
    pub fn new(file: &dyn File) -> Stream<'_> {
        Stream { file, offset: 0, end: None }
    }

    /// Streams the bytes `range` of a file. A read fails if the file is shorter by now.
    pub fn of_range(file: &dyn File, range: Range<u64>) -> Stream<'_> {
        Stream { file, offset: range.start, end: Some(range.end) }
    }
}

impl Read for Stream<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.end.map_or(u64::MAX, |end| end.saturating_sub(self.offset));
        let size = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let buffer = buffer.get_mut(..size).ok_or(io::ErrorKind::InvalidInput)?;
        // `Other`, because callers of `Read` retry `Interrupted` without a limit.
        let read = read_into(self.file, self.offset, buffer).map_err(io::Error::other)?;
        if self.end.is_some() && read < size {
            let reason = "it became shorter while it was read";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, reason));
        }
        self.offset += read as u64;
        Ok(read)
    }
}

/// Reads the whole file at `path`; returns `None` if it is larger than `limit` bytes.
pub fn read_whole(store: &dyn Store, path: &RelPath, limit: u64) -> Result<Option<Vec<u8>>> {
    let file = store.open(path)?;
    let size = file.stat_without_acl()?.size;
    if size > limit {
        return Ok(None);
    }
    // One byte more than the size: a full buffer means that the file has grown.
    let expected = usize::try_from(size).unwrap_or(usize::MAX).saturating_add(1);
    let mut bytes = read_range(&*file, 0, expected)?;
    if bytes.len() == expected {
        let rest = usize::try_from(limit)
            .unwrap_or(usize::MAX)
            .saturating_sub(bytes.len())
            .saturating_add(1);
        bytes.extend(read_range(&*file, bytes.len() as u64, rest)?);
    }
    Ok(if bytes.len() as u64 > limit { None } else { Some(bytes) })
}

/// Opens and stats files of one directory, each subdirectory in turn.
#[derive(Default)]
pub struct FileOpener {
    /// The subdirectory of the latest file.
    entered: Mutex<Option<(RelPath, Arc<dyn Store>)>>,
}

impl FileOpener {
    /// Opens the file `path` of `folder`, the same directory at each call.
    ///
    /// # Errors
    ///
    /// The errors of [`Store::open`].
    pub fn open(&self, folder: &dyn Store, path: &RelPath) -> Result<Box<dyn File>> {
        match self.enter_parent(folder, path) {
            Some((parent, name)) => parent.open(&name.into()),
            None => folder.open(path),
        }
    }

    /// Returns the metadata of `path` in `folder` without the ACL.
    ///
    /// # Errors
    ///
    /// The errors of [`Store::stat_without_acl`].
    pub fn stat_without_acl(&self, folder: &dyn Store, path: &RelPath) -> Result<Meta> {
        match self.enter_parent(folder, path) {
            Some((parent, name)) => parent.stat_without_acl(&name.into()),
            None => folder.stat_without_acl(path),
        }
    }

    /// Returns the subdirectory that holds `path`, and the name in it.
    ///
    /// Returns `None` if `folder` itself holds it, or if the subdirectory cannot be entered.
    /// Opening the whole path then reports the reason, or succeeds in a directory that exists only
    /// as a part of its store.
    fn enter_parent(&self, folder: &dyn Store, path: &RelPath) -> Option<(Arc<dyn Store>, Name)> {
        let (parent, name) = (path.parent(), path.file_name()?);
        if parent.is_root() {
            return None;
        }
        let mut entered = self.entered.lock();
        let found = match &*entered {
            Some((known, found)) if *known == parent => found.clone(),
            _ => {
                let found: Arc<dyn Store> = folder.enter(&parent).ok()?.into();
                entered.insert((parent, found)).1.clone()
            }
        };
        Some((found, name))
    }
}

pub struct SingleLinkStore(Arc<dyn Store>);

impl SingleLinkStore {
    pub fn new(store: Arc<dyn Store>) -> SingleLinkStore {
        SingleLinkStore(store)
    }
}

fn hide_hard_link(meta: Meta) -> Meta {
    let shared = meta.kind == Kind::File && meta.nlink > 1;
    Meta { kind: if shared { Kind::Link } else { meta.kind }, ..meta }
}

impl Store for SingleLinkStore {
    fn describe(&self) -> String {
        self.0.describe()
    }

    fn root(&self) -> Option<BorrowedFd<'_>> {
        self.0.root()
    }

    fn is_replaced(&self) -> bool {
        self.0.is_replaced()
    }

    fn outage(&self) -> Option<String> {
        self.0.outage()
    }

    fn stat(&self, path: &RelPath) -> Result<Meta> {
        self.0.stat(path).map(hide_hard_link)
    }

    fn stat_without_acl(&self, path: &RelPath) -> Result<Meta> {
        self.0.stat_without_acl(path).map(hide_hard_link)
    }

    fn identity(&self) -> Result<Identity> {
        self.0.identity()
    }

    fn list(&self, path: &RelPath) -> Result<Vec<DirEntry>> {
        // Entered once, so that the listing and the stats are of one directory.
        let folder = self.0.enter(path)?;
        let entries = folder.list(&RelPath::root())?.into_iter().filter_map(|entry| {
            if entry.kind != Kind::File {
                return Some(entry);
            }
            match folder.stat_without_acl(&entry.name.clone().into()).map(hide_hard_link) {
                Ok(meta) => Some(DirEntry { kind: meta.kind, ..entry }),
                Err(Error::NotFound) => None,
                // A later stat or open returns this error.
                Err(_) => Some(entry),
            }
        });
        Ok(entries.collect())
    }

    fn open(&self, path: &RelPath) -> Result<Box<dyn File>> {
        self.stat(path)?.kind.must_be(Kind::File)?;
        let file = self.0.open(path)?;
        // Checked on the open file: it may have been replaced or linked since the stat.
        hide_hard_link(file.stat_without_acl()?).kind.must_be(Kind::File)?;
        Ok(file)
    }

    fn listing_depends_on_dir_only(&self) -> bool {
        false
    }

    fn path_fd(&self, path: &RelPath) -> Result<Option<OwnedFd>> {
        self.0.path_fd(path)
    }

    fn pass_through(&self) -> Result<()> {
        self.0.pass_through()
    }

    fn backing(&self, path: &RelPath) -> Result<Option<OwnedFd>> {
        self.0.backing(path)
    }

    fn enter(&self, path: &RelPath) -> Result<Box<dyn Store>> {
        Ok(Box::new(SingleLinkStore(self.0.enter(path)?.into())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_stream_of_a_range_ends_there_or_fails() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("f"), "0123456789").unwrap();
        let disk = Disk::open(folder.path()).unwrap();
        let file = disk.open(&RelPath::parse("f").unwrap()).unwrap();
        for (range, expected) in [(0..10, Some("0123456789")), (3..5, Some("34")), (9..11, None)] {
            let mut bytes = Vec::new();
            let read = Stream::of_range(&*file, range.clone()).read_to_end(&mut bytes);
            match expected {
                Some(text) => assert_eq!(bytes, text.as_bytes(), "{range:?}"),
                None => assert_eq!(read.unwrap_err().kind(), io::ErrorKind::UnexpectedEof),
            }
        }
    }

    #[test]
    fn past_tick_means_the_next_change_gets_another_ctime() {
        let now = SystemTime::UNIX_EPOCH + Duration::new(1_000, 500_000_000);
        let at = |secs, nanos| Time { secs, nanos };
        for (ctime, local, any_clock) in [
            (at(1_000, 500_000_000), false, false),
            (at(1_000, 400_000_001), false, false),
            (at(1_000, 400_000_000), true, false),
            (at(999, 500_000_000), true, false),
            (at(999, 400_000_001), true, false),
            (at(999, 400_000_000), true, true),
            // A clock that reports whole seconds.
            (at(1_000, 0), false, false),
            (at(999, 0), true, true),
            // Future times: a change made now gets an earlier ctime.
            (at(1_000, 599_999_999), false, false),
            (at(1_000, 600_000_000), true, false),
            (at(1_001, 0), false, false),
            (at(1_002, 0), true, false),
        ] {
            let past = (ctime.was_past_local_tick(now), ctime.was_past_tick(now));
            assert_eq!(past, (local, any_clock), "{ctime:?}");
        }
        // Just after the next second began, a change may still get the time before it.
        let next = SystemTime::UNIX_EPOCH + Duration::new(1_000, 9_000_000);
        assert!(!at(999, 0).was_past_local_tick(next) && !at(999, 0).was_past_tick(next));
    }

    #[test]
    fn read_range_larger_than_memory_returns_enomem() {
        let (store, path) = (Memory::new(), RelPath::parse("file").unwrap());
        store.write(&path, vec![b'x'; FIRST_READ]);
        let file = store.open(&path).unwrap();
        for limit in [1 << 60, usize::MAX] {
            assert_eq!(read_range(&*file, 0, limit), Err(Error::Io(rustix::io::Errno::NOMEM)));
        }
        assert_eq!(
            read_range(&*file, FIRST_READ as u64 - 3, usize::MAX).as_deref(),
            Ok(&b"xxx"[..])
        );
    }

    /// Counts the reads of a file and states a size.
    struct CountedReads {
        file: Box<dyn File>,
        size: Option<u64>,
        reads: std::sync::atomic::AtomicUsize,
    }

    impl File for CountedReads {
        fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
            self.reads.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            self.file.read_at(buffer, offset)
        }

        fn size_at_open(&self) -> Option<u64> {
            self.size
        }

        fn meta(&self) -> Result<Meta> {
            self.file.meta()
        }
    }

    #[test]
    fn read_beginning_takes_one_read_if_the_size_is_right() {
        let (store, path) = (Memory::new(), RelPath::parse("file").unwrap());
        store.write(&path, "bytes");
        for (size, reads) in [(Some(5), 1), (Some(0), 2), (Some(9), 2), (None, 2)] {
            let file = CountedReads {
                file: store.open(&path).unwrap(),
                size,
                reads: std::sync::atomic::AtomicUsize::new(0),
            };
            let mut buffer = [0; 20];
            assert_eq!(read_beginning(&file, &mut buffer), Ok(5), "{size:?}");
            assert_eq!(&buffer[..5], b"bytes");
            assert_eq!(file.reads.into_inner(), reads, "{size:?}");
        }
    }

    #[test]
    fn read_range_returns_every_byte_at_any_length() {
        let (store, path) = (Memory::new(), RelPath::parse("file").unwrap());
        let bytes: Vec<u8> = (0..5 * FIRST_READ).map(|at| (at % 251) as u8).collect();
        store.write(&path, bytes.clone());
        let file = store.open(&path).unwrap();
        let lengths = [
            0,
            1,
            FIRST_READ - 1,
            FIRST_READ,
            FIRST_READ + 1,
            4 * FIRST_READ,
            4 * FIRST_READ + 1,
            5 * FIRST_READ,
            6 * FIRST_READ,
            1 << 20,
        ];
        for (start, length) in [0, 1, FIRST_READ, 5 * FIRST_READ]
            .into_iter()
            .flat_map(|start| lengths.map(|length| (start, length)))
        {
            let wanted = &bytes[start..bytes.len().min(start + length)];
            let read = read_range(&*file, start as u64, length).unwrap();
            assert!(read == wanted, "{length} from {start}: {} bytes", read.len());
            assert!(read.capacity() <= length);
        }
    }

    #[test]
    fn small_file_is_read_into_a_small_buffer() {
        let (store, path) = (Memory::new(), RelPath::parse("file").unwrap());
        store.write(&path, "bytes");
        let read = read_range(&*store.open(&path).unwrap(), 0, 1 << 30).unwrap();
        assert_eq!((read.as_slice(), read.capacity() <= FIRST_READ), (&b"bytes"[..], true));
    }

    fn path(text: &str) -> RelPath {
        RelPath::parse(text).unwrap()
    }

    #[test]
    fn files_have_the_bytes_and_the_errors_of_their_paths() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a/b")).unwrap();
        for (file, text) in [("1", "1"), ("a/2", "22"), ("a/b/3", "333"), ("a/4", "4444")] {
            fs::write(dir.path().join(file), text).unwrap();
        }
        symlink("a", dir.path().join("link")).unwrap();
        symlink("2", dir.path().join("a/link")).unwrap();
        let (disk, opener) = (Disk::open(dir.path()).unwrap(), FileOpener::default());
        for (file, size) in [("1", 1), ("a/2", 2), ("a/b/3", 3), ("a/4", 4), ("a/2", 2)] {
            let opened = opener.open(&disk, &path(file)).unwrap();
            assert_eq!(opened.stat_without_acl().unwrap().size, size, "{file}");
            assert_eq!(opener.stat_without_acl(&disk, &path(file)).unwrap().size, size, "{file}");
        }
        for file in ["a/none", "none/1", "1/2", "link/2", "a/link", "a/b"] {
            let error = opener.open(&disk, &path(file)).err();
            assert!(error.is_some(), "{file}");
            assert_eq!(error, disk.open(&path(file)).err(), "{file}");
        }
    }

    #[test]
    fn an_entered_directory_stays_the_same_when_it_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("a")).unwrap();
        fs::write(dir.path().join("a/1"), "of the worker").unwrap();
        let (disk, opener) = (Disk::open(dir.path()).unwrap(), FileOpener::default());
        opener.open(&disk, &path("a/1")).unwrap();
        fs::rename(dir.path().join("a"), dir.path().join("b")).unwrap();
        fs::create_dir(dir.path().join("a")).unwrap();
        fs::write(dir.path().join("a/2"), "of another").unwrap();
        assert!(opener.open(&disk, &path("a/1")).is_ok());
        assert_eq!(opener.open(&disk, &path("a/2")).err(), Some(Error::NotFound));
    }

    /// Returns a store with two files, one of which has a second link in another directory.
    fn linked() -> (Arc<Memory>, SingleLinkStore) {
        let inner = Arc::new(Memory::new());
        inner.write(&path("a/alone"), "1");
        inner.write(&path("a/shared"), "2");
        inner.link(&path("a/shared"), &path("b/inner/again"));
        (inner.clone(), SingleLinkStore::new(inner))
    }

    fn kinds(store: &dyn Store, folder: &str) -> Vec<(String, Kind)> {
        store
            .list(&path(folder))
            .unwrap()
            .into_iter()
            .map(|entry| (entry.name.display(), entry.kind))
            .collect()
    }

    #[test]
    fn file_with_two_links_is_hidden_under_both_names() {
        let (_, store) = linked();
        assert_eq!(
            kinds(&store, "a"),
            [("alone".into(), Kind::File), ("shared".into(), Kind::Link)]
        );
        assert_eq!(kinds(&store, "b"), [("inner".into(), Kind::Folder)]);
        for shared in ["a/shared", "b/inner/again"] {
            assert_eq!(store.stat(&path(shared)).unwrap().kind, Kind::Link);
            assert_eq!(store.open(&path(shared)).err(), Some(Error::Escape));
        }
        assert!(store.open(&path("a/alone")).is_ok());
    }

    #[test]
    fn entered_directory_hides_hard_links_too() {
        let (_, store) = linked();
        let inner = store.enter(&path("b")).unwrap().enter(&path("inner")).unwrap();
        assert_eq!(kinds(&*inner, ""), [("again".into(), Kind::Link)]);
        assert_eq!(inner.open(&path("again")).err(), Some(Error::Escape));
    }

    #[test]
    fn file_is_shown_again_after_its_other_link_is_removed() {
        let (inner, store) = linked();
        inner.remove(&path("b"));
        assert_eq!(
            kinds(&store, "a"),
            [("alone".into(), Kind::File), ("shared".into(), Kind::File)]
        );
        assert!(store.open(&path("a/shared")).is_ok());
    }

    /// Adds a hard link just before each open.
    struct LinksBeforeOpen(Arc<Memory>);

    impl Store for LinksBeforeOpen {
        fn describe(&self) -> String {
            self.0.describe()
        }

        fn root(&self) -> Option<BorrowedFd<'_>> {
            None
        }

        fn is_replaced(&self) -> bool {
            false
        }

        fn stat(&self, path: &RelPath) -> Result<Meta> {
            self.0.stat(path)
        }

        fn list(&self, path: &RelPath) -> Result<Vec<DirEntry>> {
            self.0.list(path)
        }

        fn open(&self, at: &RelPath) -> Result<Box<dyn File>> {
            self.0.link(at, &path("late"));
            self.0.open(at)
        }

        fn enter(&self, path: &RelPath) -> Result<Box<dyn Store>> {
            self.0.enter(path)
        }
    }

    #[test]
    fn link_added_between_stat_and_open_is_detected() {
        let (inner, _) = linked();
        let store = SingleLinkStore::new(Arc::new(LinksBeforeOpen(inner)));
        assert_eq!(store.stat(&path("a/alone")).unwrap().kind, Kind::File);
        assert_eq!(store.open(&path("a/alone")).err(), Some(Error::Escape));
    }
}
