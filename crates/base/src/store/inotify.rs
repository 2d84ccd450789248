//! Directories watched for changes through inotify.
//!
//! inotify reports changes made by system calls on this machine. File systems that other machines
//! write to are therefore not watched. It does not report writes through a memory mapping, so
//! callers must still poll from time to time.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::name::Name;

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
