//! Bytes under a root, opened once at the start, and never anything outside it.
//!
//! A store lists, stats and reads ranges. It knows nothing of agents: what the bytes mean is the business of
//! [`crate::trace`]. Links, special files and foreign mounts are not followed; a listing names them so that they
//! can be counted. There is no way to write.

mod acl;
mod beneath;
mod disk;
mod memory;
mod unshared;
mod unstamped;
mod watch;

use std::any::Any;
use std::io::{self, Read};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, SystemTime};

pub use disk::{Disk, MOUNT_TYPE, identity_of};
pub use memory::Memory;
pub use unshared::Unshared;
pub use watch::{Event, Told, Watch, WatchId, is_local};

use crate::error::{Error, Result};
use crate::name::{Name, RelPath};

/// What an entry of a store is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// A symbolic link, never followed; to [`Unshared`] also a regular file with several hard links, never opened.
    Link,
    /// A FIFO, socket or device, never opened.
    Special,
}

impl Kind {
    /// Refuses what is not of the `wanted` kind, a file or a folder, with the error that says what it is instead.
    fn must_be(self, wanted: Kind) -> Result<()> {
        match self {
            found if found == wanted => Ok(()),
            Kind::Link => Err(Error::Escape),
            Kind::Folder => Err(Error::IsADirectory),
            Kind::File => Err(Error::NotADirectory),
            Kind::Special => Err(Error::Special),
        }
    }
}

/// What stat tells of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meta {
    /// What it is.
    pub kind: Kind,
    /// Size in bytes.
    pub size: u64,
    /// Permission bits, 12 of them, as at the source: less what a list of access denies there to some.
    pub mode: u32,
    /// Owner at the source.
    pub uid: u32,
    /// Group at the source.
    pub gid: u32,
    /// Hard links at the source.
    pub nlink: u32,
    /// What is behind the name: what tells a replaced file from a changed one.
    pub identity: Identity,
    /// Last change of the bytes.
    pub mtime: Time,
    /// Last change of the inode.
    pub ctime: Time,
}

impl Meta {
    /// Returns when the bytes were last written. Anybody may set an mtime, also to a time to come; only the kernel sets
    /// ctime. So an mtime that is later than ctime counts as ctime, and no worker is the newest by its own word. An
    /// earlier mtime is believed: copies keep it. A file system without ctime gives 1970 for all files.
    pub fn last_write(&self) -> Time {
        earlier(self.mtime, self.ctime)
    }
}

/// Returns the earlier of an mtime and a ctime, or the mtime where the file system has no ctime.
pub(crate) fn earlier(mtime: Time, ctime: Time) -> Time {
    if ctime == Time::default() { mtime } else { mtime.min(ctime) }
}

/// Device, inode number and time of birth at the source. A file system gives an inode number again once its file is
/// gone; the time of birth tells the new file from the old one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Device number.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
    /// When it was created, where that is known.
    pub born: Time,
}

/// A time as stat gives it: seconds and nanoseconds since 1970, before it negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Time {
    /// Whole seconds.
    pub secs: i64,
    /// Nanoseconds on top, 0 to 999,999,999.
    pub nanos: u32,
}

/// No file system's clock ticks slower than this, but for a few whose times nobody relies on.
pub const TICK_MAX: Duration = Duration::from_secs(1);
/// Nor does this machine's, where it gives parts of a second.
const TICK_HERE: Duration = Duration::from_millis(100);

impl Time {
    /// Whether this, the time of a last change, is past: a change within the same tick of the clock could not be told from
    /// that one.
    pub fn is_at_rest(self) -> bool {
        self.was_at_rest(SystemTime::now())
    }

    /// Whether it was past at that time.
    pub fn was_at_rest(self, then: SystemTime) -> bool {
        then.duration_since(self.to_system()).is_ok_and(|age| age >= TICK_MAX)
    }

    /// The same of a time that this machine's clock gave. One to come is as good as one that is past: whatever changes now
    /// is given another.
    pub fn was_at_rest_here(self, then: SystemTime) -> bool {
        let tick = if self.nanos == 0 { TICK_MAX } else { TICK_HERE };
        let away = then.duration_since(self.to_system()).unwrap_or_else(|ahead| ahead.duration());
        away >= tick
    }

    /// As the standard library has it; what it cannot hold becomes 1970.
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

/// One entry of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: Name,
    /// What the folder says it is.
    pub kind: Kind,
}

/// An open regular file.
pub trait File: Send + Sync {
    /// Reads at most `buffer.len()` bytes at `offset` bytes; 0 at the end. May be short.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize>;

    /// What it is now.
    fn meta(&self) -> Result<Meta>;

    /// The same for who asks whether something changed: the mode may give more than a list of access leaves of it.
    fn glimpse(&self) -> Result<Meta> {
        self.meta()
    }
}

/// Bytes under one root.
pub trait Store: Any + Send + Sync {
    /// Where the bytes are, for people: a path or an address.
    fn describe(&self) -> String;

    /// The folder on disk beneath which all of it lies, for a process that confines itself to it; `None` where no
    /// folder is needed.
    fn root(&self) -> Option<BorrowedFd<'_>>;

    /// Whether by now another folder stands where this one was opened. One that is merely gone is not replaced.
    fn is_replaced(&self) -> bool;

    /// What `path` is, links themselves not followed. [`Error::Escape`] where a part on the way is a link or a
    /// foreign mount.
    fn stat(&self, path: &RelPath) -> Result<Meta>;

    /// The same for who asks whether something changed: the mode may give more than a list of access leaves of it.
    fn glimpse(&self, path: &RelPath) -> Result<Meta> {
        self.stat(path)
    }

    /// Which folder its root is.
    fn identity(&self) -> Result<Identity> {
        self.glimpse(&RelPath::root()).map(|root| root.identity)
    }

    /// The entries of the folder `path`, in no order.
    fn list(&self, path: &RelPath) -> Result<Vec<Entry>>;

    /// Whether what a folder lists follows from the folder alone, and not also from what is in it.
    fn lists_by_folder(&self) -> bool {
        true
    }

    /// Opens the regular file `path`. Anything else is an error, and never opened.
    fn open(&self, path: &RelPath) -> Result<Box<dyn File>>;

    /// The folder `path` as a store of its own: it stays that folder, whatever takes its name's place later. Who was
    /// let into a folder by what is in it can so not be led into another.
    fn enter(&self, path: &RelPath) -> Result<Box<dyn Store>>;

    /// A descriptor that stands for the folder `path` and has not opened it; `None` where that is no folder on disk.
    fn place(&self, _path: &RelPath) -> Result<Option<OwnedFd>> {
        Ok(None)
    }

    /// From now on, [`Store::backing`] opens files, where that can be done. Errors: those of the system.
    fn pass_through(&self) -> Result<()> {
        Ok(())
    }

    /// Opens the regular file `path` so that the kernel may read it by itself and leaves no time of access. `None` where
    /// that cannot be done. It is for who has the same file open already: foreign mounts are not seen here.
    fn backing(&self, _path: &RelPath) -> Result<Option<OwnedFd>> {
        Ok(None)
    }

    /// Of a folder whose files are made of a few others: what stat tells of those. Nothing in it changes unless they
    /// do. `None` for a folder whose files stand for themselves.
    fn made_of(&self) -> Option<Result<Vec<Meta>>> {
        None
    }
}

/// A larger buffer is large, in bytes.
const LARGE: usize = 2 << 20;
/// The capacity of a large one, in bytes. The allocator of glibc keeps what was freed of up to 32 MiB for the thread that
/// freed it; larger ones it takes from the system for themselves and gives back at once. What is not used of it costs
/// nothing.
const LARGE_CAPACITY: usize = (32 << 20) + (1 << 12);

/// The capacity to ask for, for a buffer of `size` bytes that is soon dropped.
pub fn capacity_for(size: usize) -> usize {
    if size > LARGE { size.max(LARGE_CAPACITY) } else { size }
}

/// How often an interrupted read is made again before that is its error.
const INTERRUPTED_MAX: usize = 16;

/// Room for so many bytes is made at first, and then for so many times as many, until the file ends or all is read that
/// was asked for. Most files are small, and to touch memory takes longer than to ask once more.
const FIRST: usize = 16 << 10;
const TIMES: usize = 4;

/// Reads up to `limit` bytes from `offset` on, as one buffer; shorter where the file ends.
pub fn read_range(file: &dyn File, offset: u64, limit: usize) -> Result<Vec<u8>> {
    let mut buffer = Vec::new();
    let mut room = limit.min(FIRST);
    loop {
        let before = buffer.len();
        // What is reserved and not touched costs nothing.
        let capacity = if before == 0 { room } else { capacity_for(limit) };
        buffer.try_reserve_exact(capacity - before).map_err(|_| Error::Io(rustix::io::Errno::NOMEM))?;
        buffer.resize(room, 0);
        let (_, rest) = buffer.split_at_mut(before);
        let filled = before + read_into(file, offset.saturating_add(before as u64), rest)?;
        buffer.truncate(filled);
        if filled < room || room == limit {
            return Ok(buffer);
        }
        room = room.saturating_mul(TIMES).min(limit);
    }
}

/// Fills `buffer` from `offset` on, as far as the file goes. Returns how much that is.
pub fn read_into(file: &dyn File, offset: u64, buffer: &mut [u8]) -> Result<usize> {
    let (mut filled, mut interrupted) = (0, 0);
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset.saturating_add(filled as u64)) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(Error::Io(rustix::io::Errno::INTR)) if interrupted < INTERRUPTED_MAX => interrupted += 1,
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// A file as a stream of bytes, from its start.
pub struct Stream<'a> {
    file: &'a dyn File,
    offset: u64,
}

impl Stream<'_> {
    /// The stream of `file`.
    pub fn new(file: &dyn File) -> Stream<'_> {
        Stream { file, offset: 0 }
    }
}

impl Read for Stream<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // An interruption that does not end is an error like any other, which nobody tries again.
        let read = read_into(self.file, self.offset, buffer).map_err(io::Error::other)?;
        self.offset += read as u64;
        Ok(read)
    }
}

/// Reads the whole file at `path` if it has at most `limit` bytes; `None` if it is larger.
pub fn read_whole(store: &dyn Store, path: &RelPath, limit: u64) -> Result<Option<Vec<u8>>> {
    let file = store.open(path)?;
    let size = file.glimpse()?.size;
    if size > limit {
        return Ok(None);
    }
    // One byte more than stat told: a file that grows meanwhile is read to its end or found to be too large.
    let room = usize::try_from(size).unwrap_or(usize::MAX).saturating_add(1);
    let mut bytes = read_range(&*file, 0, room)?;
    if bytes.len() == room {
        let rest = usize::try_from(limit).unwrap_or(usize::MAX).saturating_sub(bytes.len()).saturating_add(1);
        bytes.extend(read_range(&*file, bytes.len() as u64, rest)?);
    }
    Ok(if bytes.len() as u64 > limit { None } else { Some(bytes) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_past_when_the_next_one_has_another_time() {
        let now = SystemTime::UNIX_EPOCH + Duration::new(1_000, 500_000_000);
        let at = |secs, nanos| Time { secs, nanos };
        for (change, here, anywhere) in [
            (at(1_000, 500_000_000), false, false),
            (at(1_000, 400_000_001), false, false),
            (at(1_000, 400_000_000), true, false),
            (at(999, 500_000_001), true, false),
            (at(999, 500_000_000), true, true),
            // Of a clock that gives whole seconds.
            (at(1_000, 0), false, false),
            (at(999, 0), true, true),
            // To come: what changes now is given a time before.
            (at(1_000, 599_999_999), false, false),
            (at(1_000, 600_000_000), true, false),
            (at(1_001, 0), false, false),
            (at(1_002, 0), true, false),
        ] {
            assert_eq!((change.was_at_rest_here(now), change.was_at_rest(now)), (here, anywhere), "{change:?}");
        }
    }

    #[test]
    fn more_than_memory_holds_is_an_error() {
        let (store, path) = (Memory::new(), RelPath::parse("file").unwrap());
        store.write(&path, vec![b'x'; FIRST]);
        let file = store.open(&path).unwrap();
        for limit in [1 << 60, usize::MAX] {
            assert_eq!(read_range(&*file, 0, limit), Err(Error::Io(rustix::io::Errno::NOMEM)));
        }
        assert_eq!(read_range(&*file, FIRST as u64 - 3, usize::MAX).as_deref(), Ok(&b"xxx"[..]));
    }

    #[test]
    fn a_range_is_read_whole_whatever_its_length() {
        let (store, path) = (Memory::new(), RelPath::parse("file").unwrap());
        let bytes: Vec<u8> = (0..5 * FIRST).map(|at| (at % 251) as u8).collect();
        store.write(&path, bytes.clone());
        let file = store.open(&path).unwrap();
        let lengths = [0, 1, FIRST - 1, FIRST, FIRST + 1, 4 * FIRST, 4 * FIRST + 1, 5 * FIRST, 6 * FIRST, 1 << 20];
        for (start, length) in
            [0, 1, FIRST, 5 * FIRST].into_iter().flat_map(|start| lengths.map(|length| (start, length)))
        {
            let wanted = &bytes[start..bytes.len().min(start + length)];
            let read = read_range(&*file, start as u64, length).unwrap();
            assert!(read == wanted, "{length} from {start}: {} bytes", read.len());
            assert!(read.capacity() <= length);
        }
    }

    /// Of a small file, however much of it is asked for: that is done for each file of every worker.
    #[test]
    fn little_room_is_made_for_a_small_file() {
        let (store, path) = (Memory::new(), RelPath::parse("file").unwrap());
        store.write(&path, "bytes");
        let read = read_range(&*store.open(&path).unwrap(), 0, 1 << 30).unwrap();
        assert_eq!((read.as_slice(), read.capacity() <= FIRST), (&b"bytes"[..], true));
    }
}
