//! Folders on disk of which the kernel tells when something in them changes (inotify).
//!
//! It tells of what is changed by calls on this machine. A file system that other machines write to is therefore not
//! watched, and what is written through a mapping of memory is not told of: who watches looks from time to time even so.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::name::Name;

/// What is told of a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// Every change of anything in it.
    Everything,
    /// That a file in it has been written or put there, and that it was moved or removed itself.
    Written,
}

const EVERYTHING: WatchFlags = WatchFlags::ATTRIB
    .union(WatchFlags::CREATE)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::ONLYDIR);

const WRITTEN: WatchFlags = WatchFlags::CLOSE_WRITE
    .union(WatchFlags::CREATE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::ONLYDIR);

/// File systems that nobody else writes to, by the numbers of statfs(2): bcachefs, btrfs, ext2 to ext4, f2fs, overlayfs,
/// ramfs, tmpfs, XFS, ZFS.
const LOCAL: [u32; 9] =
    [0xca45_1a4e, 0x9123_683e, 0xef53, 0xf2f5_2010, 0x794c_7630, 0x8584_58f6, 0x0102_1994, 0x5846_5342, 0x2fc1_2fc1];

/// How many folders a user may watch with all programs together.
const LIMIT: &str = "/proc/sys/fs/inotify/max_user_watches";
/// At most so many are watched: each costs the kernel about a kilobyte, and holds the folder in its memory. Half of them
/// are enough for the unfinished among 100,000 workers; where memory is short, the limit is less.
const MOST: usize = 131_072;
/// Room for some hundred changes, in bytes.
const BUFFER: usize = 16 << 10;

/// The number of a folder that is watched.
pub type WatchId = i32;

/// What came about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Something in this folder changed, under this name where it has one, or the folder was moved or removed.
    Changed(WatchId, Option<Name>),
    /// This folder is not watched any more, and its number may be given to another.
    Gone(WatchId),
    /// More changed than could be told.
    Lost,
}

/// Folders that are watched.
pub struct Watch {
    inotify: OwnedFd,
    most: usize,
    /// How many more folders may be.
    left: AtomicUsize,
}

impl Watch {
    /// Watches nothing yet. Errors: those of the system, as where too many programs do.
    pub fn new() -> Result<Watch> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        // The rest is for others.
        let limit = std::fs::read_to_string(LIMIT).ok().and_then(|limit| limit.trim().parse::<usize>().ok());
        let most = limit.map_or(MOST, |limit| (limit / 2).min(MOST));
        Ok(Watch { inotify, most, left: AtomicUsize::new(most) })
    }

    /// How many folders may be watched.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Watches the folder that `folder` stands for, on a file system that [`is_local`]; the same folder is the same
    /// number, and of it more is told, not less. `None` where no more can be watched. Reads nothing from disk.
    pub fn add(&self, folder: BorrowedFd<'_>, told: Told) -> Option<WatchId> {
        if self.left.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let events = WatchFlags::MASK_ADD | if told == Told::Everything { EVERYTHING } else { WRITTEN };
        // By its descriptor: no name is resolved.
        match inotify::add_watch(&self.inotify, format!("/proc/self/fd/{}", folder.as_raw_fd()), events) {
            Ok(id) => Some(id),
            Err(errno) => {
                if matches!(errno, Errno::NOSPC | Errno::NOMEM) {
                    self.left.store(0, Ordering::Relaxed);
                }
                None
            }
        }
    }

    /// Notes that so many folders are watched by now.
    pub fn counted(&self, folders: usize) {
        self.left.store(self.most.saturating_sub(folders), Ordering::Relaxed);
    }

    /// Watches a folder no longer; [`Event::Gone`] follows.
    pub fn remove(&self, id: WatchId) {
        // It may be gone already.
        let _ = inotify::remove_watch(&self.inotify, id);
    }

    /// Waits for changes, no longer than `limit`. `None` once `end` is readable or was closed at its other end.
    pub fn wait(&self, end: BorrowedFd<'_>, limit: Option<Duration>) -> Result<Option<Vec<Event>>> {
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let mut ready = [PollFd::new(&self.inotify, PollFlags::IN), PollFd::new(&end, PollFlags::IN)];
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
        let mut buffer = [MaybeUninit::uninit(); BUFFER];
        let mut reader = Reader::new(self.inotify.as_fd(), &mut buffer);
        let mut events = Vec::new();
        while events.is_empty() || !reader.is_buffer_empty() {
            match reader.next() {
                Ok(event) if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => events.push(Event::Lost),
                Ok(event) if event.events().contains(ReadFlags::IGNORED) => events.push(Event::Gone(event.wd())),
                Ok(event) => {
                    let name = event.file_name().and_then(|name| Name::new(name.to_bytes()).ok());
                    events.push(Event::Changed(event.wd(), name));
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Error::Io(errno)),
            }
        }
        Ok(Some(events))
    }
}

/// Whether nobody but this machine changes what a folder holds.
pub fn is_local(folder: BorrowedFd<'_>) -> bool {
    rustix::fs::fstatfs(folder)
        .is_ok_and(|stat| LOCAL.iter().any(|local| i128::from(*local) == i128::from(stat.f_type)))
}
