//! Translates FUSE requests into calls of [`swarmletfs_tree::tree`] and sends the replies.
//!
//! Every method calls the tree, matches the result and replies. Requests that may take longer than
//! a stat run in a bounded pool, so that a render never blocks the threads that read from the
//! kernel. A panic in a request drops its reply, which the kernel receives as EIO. Requests that
//! would change something fail with EROFS. They arrive only if root remounted the mount read-write;
//! otherwise the kernel refuses them.
//!
//! # Modules
//!
//! Translates kernel requests into calls of `tree`. `service` holds the trees of a mount and the
//! threads that answer about them, and contains their panics; it is replaced as a whole when stores
//! are attached or detached, so every request sees the old stores or the new ones. `owner_dirs` has
//! the directories around the trees of a mount for several owners. They hold nothing of the stores,
//! so the kernel's caches have nothing to give away. `session` mounts and drops privileges.
//! `passthrough` lets the kernel read large files directly, and `service` invalidates the kernel's
//! caches.
//!
//! # Kernel caches
//!
//! The kernel trusts the names and attributes of a worker's own files and directories for a second,
//! or for the TTL if the worker has finished. It still sends a request at every open of a file, so
//! bytes are always current, and keeps its pages only if size and times are unchanged. An open of a
//! file whose size was reported wrongly returns ESTALE, and the kernel looks the name up again.
//!
//! The kernel opens no directories (opendir answers ENOSYS), so a listing that it has costs no
//! request. It keeps the entries as long as the directory's mtime is the same, and requests the
//! mtime when the attributes have expired. Since other entries can come with the same mtime, within
//! one tick of the clock or in a generated directory, `ListingTimes` remembers which mtimes the
//! kernel may have, and reports one that is some nanoseconds later. The attributes of a finished
//! worker's directories expire after a second, too, unless the kernel reports its changes. A
//! position in a listing carries the version of that listing. A reader continues in that listing as
//! long as `DirCache` has it, and otherwise in the current one, after the last entry that it
//! received and that is still there: a hash of each name of older listings is kept. With `--audit`
//! the kernel sends a request at every open of a directory; everything else is the same.
//!
//! The kernel requests attributes with each listing (READDIRPLUS). It receives them for the
//! directories in a worker's own, for the first 2,000 workers of a list and groups of `by/` if the
//! fingerprints of their workers are known, and, if the program that lists has looked up a file or
//! a link before (`AttrReaders`), also for its files, and for workers and links to workers whose
//! fingerprints are known. All other entries come without, so that a listing renders and reads
//! nothing beyond the request. The kernel counts a lookup of each entry all the same and gives it
//! back later (FORGET), so the inode table counts it too.
//!
//! A program that goes through the workers in the order of their names, forward or backward, waits
//! for one report after the other. `ReadAhead` follows such readers by their lookups. From the
//! third worker in a row on, it has other threads prepare the next ones: their fingerprints, and
//! the reports that the reader requested of the worker before.
//!
//! The first fingerprint of a finished worker adds an inotify watch to each directory before
//! reading it. A change wakes a dedicated thread, which invalidates the kernel's caches for that
//! worker, outside every lock and request. For one TTL after that, the worker is treated like an
//! unfinished one and not watched. Where watching is impossible, everything holds except "at once".
//!
//! The metadata directory of an unfinished worker is watched too, with up to half of the available
//! watches. Such a watch only makes the next check of that worker come sooner; nothing is trusted
//! for longer because of it. Workers that existed before watching began are checked once more by
//! the same thread, a few at a time, so that none has to wait for the next full scan. Between two
//! full scans, that thread also lists the directory to find workers that came or went.
//!
//! # Passthrough
//!
//! The kernel reads files of 128 KiB and more by itself, without this process, if it supports FUSE
//! passthrough. If not, the log says so once. The kernel opens the backing file with the reader's
//! flags, without O_NOATIME. So it receives a descriptor of the file on a copy of the store's mount
//! that keeps no access times, created in a namespace that ends at once. The first open of an inode
//! chooses between pages and passthrough, and the choice holds until the last close.
//!
//! # Privileges
//!
//! After mounting, the serving threads give up everything except reading beneath the stores' roots
//! and the cache directory (Landlock, where the kernel has it). A thread started earlier writes the
//! cache; it receives only a key and bytes. The main thread keeps its privileges, because it must
//! unmount. It reads nothing that a worker wrote.

mod owner_dirs;
mod passthrough;
mod readers;
mod service;
mod session;

pub use owner_dirs::{OwnerDir, OwnerDirs};
pub use passthrough::{PROBE_FILE, mount_passthrough_probe};
pub use service::{Trees, catch_panic, log_panics};
pub use session::{MountAccess, MountExtras, MountListing, Session, mount, mount_with};

use std::ffi::OsStr;
use std::num::NonZeroU32;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileAttr, FileHandle, FileType,
    Filesystem, FopenFlags, Generation, INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner,
    OpenAccMode, OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl,
    ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow,
    WriteFlags,
};
use tracing::{debug, info, warn};

use passthrough::PassthroughFiles;
use readers::{AttrReaders, ListedLookups, OpenTrail, Reader};
use service::Service;
use swarmletfs_base::error::Error;
use swarmletfs_tree::route::ContentKind;
use swarmletfs_tree::tree::{
    Attr, DirPosition, ListedEntry, Lookup, NodeKind, PageCache, RequestClass, Tree,
};

const BLOCK: u32 = 4_096;
/// ioctl commands that set flags of a file: FS_IOC_SETFLAGS and FS_IOC_FSSETXATTR.
const CHANGING_IOCTLS: [u32; 2] = [0x4008_6602, 0x401c_5820];

struct FuseAdapter {
    service: Arc<ArcSwap<Service>>,
    owner_dirs: Option<OwnerDirs>,
    passthrough: Arc<PassthroughFiles>,
    /// True if a file may bypass the page cache and yet be mapped.
    may_bypass_cache: bool,
    /// Set if opens are recorded.
    trail: Option<Arc<OpenTrail>>,
    /// True if the kernel sends a request to open a directory. Otherwise it reads directories
    /// without, and sends no request while its entries and attributes of them are valid.
    opens_directories: bool,
    /// Set if listings may come with attributes.
    attr_readers: Option<Arc<AttrReaders>>,
    /// Dropped with the adapter when the session ends.
    _ended: mpsc::Sender<()>,
}

impl FuseAdapter {
    /// Runs `work` with the tree that has the inode `ino`; see [`Service::run`].
    fn run(
        &self,
        ino: INodeNo,
        class: impl FnOnce(&Tree) -> RequestClass + Send + 'static,
        work: impl FnOnce(&Tree) + Send + 'static,
    ) {
        self.service.load_full().run(ino.0, class, work);
    }

    /// Runs `work`, which opens nothing, with the tree that has the inode `ino`.
    fn run_here(&self, ino: INodeNo, work: impl FnOnce(&Tree)) {
        self.service.load().run_here(ino.0, work);
    }

    fn owner_dirs(&self, ino: INodeNo) -> Option<&OwnerDirs> {
        self.owner_dirs.as_ref().filter(|dirs| dirs.contains(ino.0))
    }
}

fn render_class(_: &Tree) -> RequestClass {
    RequestClass::Render
}

fn stat_class(_: &Tree) -> RequestClass {
    RequestClass::Stat
}

/// Converts `error` to an errno and logs it at the level that fits it.
fn errno(operation: &str, error: &Error) -> Errno {
    if error.is_miss() || *error == Error::ReadOnly {
        debug!("{operation}: {error}");
    } else if matches!(error, Error::Escape | Error::Special) {
        // A worker planted this in its directory. At a higher level, lookups could fill the log.
        info!("{operation}: {error}");
    } else {
        warn!("{operation}: {error}");
    }
    Errno::from_i32(error.errno().raw_os_error())
}

fn file_type(kind: NodeKind) -> FileType {
    match kind {
        NodeKind::File => FileType::RegularFile,
        NodeKind::Folder => FileType::Directory,
        NodeKind::Link => FileType::Symlink,
    }
}

fn file_attr(ino: u64, attr: &Attr) -> FileAttr {
    let mtime = attr.mtime.to_system();
    FileAttr {
        size: attr.size,
        blocks: attr.size.div_ceil(512),
        atime: mtime,
        mtime,
        ctime: attr.ctime.to_system(),
        uid: attr.uid,
        gid: attr.gid,
        ..empty_attr(ino, file_type(attr.kind), attr.mode)
    }
}

fn empty_attr(ino: u64, kind: FileType, mode: u32) -> FileAttr {
    FileAttr {
        ino: INodeNo(ino),
        size: 0,
        blocks: 0,
        atime: SystemTime::UNIX_EPOCH,
        mtime: SystemTime::UNIX_EPOCH,
        ctime: SystemTime::UNIX_EPOCH,
        crtime: SystemTime::UNIX_EPOCH,
        kind,
        perm: (mode & 0o777) as u16,
        // Not counted. With 1, tools such as find derive nothing from the link count of a
        // directory.
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: BLOCK,
        flags: 0,
    }
}

fn cache_flag(cache: PageCache, may_bypass: bool) -> FopenFlags {
    match cache {
        PageCache::Keep => FopenFlags::FOPEN_KEEP_CACHE,
        PageCache::Bypass if may_bypass => FopenFlags::FOPEN_DIRECT_IO,
        PageCache::Bypass | PageCache::Refill => FopenFlags::empty(),
    }
}

/// The offset after the last entry of any listing: a reader there needs no listing to continue.
const END_OFFSET: u64 = i64::MAX as u64;

/// Returns the offset of the first entry in a listing: the version in the upper 32 bits. The lower
/// 32 bits count entries.
fn first_offset(version: NonZeroU32) -> u64 {
    u64::from(version.get()) << 32
}

const DOTS: usize = 2;

/// Splits the offset of a readdir request into the number of [`DOTS`] to skip and the position
/// after them.
fn split_offset(offset: u64) -> (usize, DirPosition) {
    let skipped = (offset & u64::from(u32::MAX)) as usize;
    let version = NonZeroU32::new((offset >> 32) as u32);
    let after = |version| DirPosition::After(version, skipped.saturating_sub(DOTS));
    (skipped.min(DOTS), version.map_or(DirPosition::Start, after))
}

fn listing_class(tree: &Tree, ino: INodeNo, offset: u64) -> RequestClass {
    tree.classify_listing(ino.0, split_offset(offset).1)
}

/// Calls `add` with the number, the offset of the next entry, the kind and the name of each entry
/// of a directory after `offset`, until it returns true. The entries `.` and `..` come first.
fn list(
    tree: &Tree,
    ino: u64,
    offset: u64,
    mut add: impl FnMut(u64, u64, FileType, &OsStr, Option<(usize, &ListedEntry)>) -> bool,
) -> Result<(), Error> {
    let (dots_before, position) = split_offset(offset);
    let (listing, before) = tree.entries(ino, position)?;
    let dots = [".", ".."].map(|name| (ino, FileType::Directory, OsStr::new(name), None));
    let items = (before..).zip(listing.items.iter().skip(before)).map(|(at, item)| {
        (item.ino, file_type(item.kind), item.name.as_os_str(), Some((at, item)))
    });
    let last = (DOTS + listing.items.len()) as u64;
    let entries = dots.into_iter().skip(dots_before).chain(items);
    for (at, (ino, kind, name, entry)) in ((dots_before + before) as u64 + 1..).zip(entries) {
        let next = if at == last { END_OFFSET } else { first_offset(listing.version) + at };
        if add(ino, next, kind, name, entry) {
            break;
        }
    }
    Ok(())
}

impl Filesystem for FuseAdapter {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Without PARALLEL_DIROPS, lookups in one directory are serialized. Without
        // AUTO_INVAL_DATA, the kernel serves stale pages of a file that grew or was rewritten in
        // place.
        for capability in [InitFlags::FUSE_PARALLEL_DIROPS, InitFlags::FUSE_AUTO_INVAL_DATA] {
            if config.add_capabilities(capability).is_err() {
                warn!("this kernel does not support {capability:?}");
            }
        }
        if self.attr_readers.is_some() {
            // A kernel without it sends a request for each file. With READDIRPLUS_AUTO, the kernel
            // would request attributes of the first part of a long listing only.
            let _ = config.add_capabilities(InitFlags::FUSE_DO_READDIRPLUS);
        }
        // From Linux 6.6. Without it, a file that bypasses the page cache cannot be mapped shared.
        self.may_bypass_cache =
            config.add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP).is_ok();
        self.passthrough.negotiate(config);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if let Some(dirs) = self.owner_dirs(parent) {
            return dirs.look_up(parent.0, name, reply);
        }
        let owned_name = name.as_bytes().to_vec();
        let classified_name = owned_name.clone();
        let (trail, reader) = (self.trail.clone(), Reader::from(request));
        let (attr_readers, thread) = (self.attr_readers.clone(), request.pid());
        self.run(
            parent,
            move |tree| tree.classify_lookup(parent.0, &classified_name),
            move |tree| {
                let found = tree.lookup_for_reader(parent.0, &owned_name);
                if let Some(trail) = trail {
                    let ino = found.as_ref().map(|found| found.ino).map_err(Error::clone);
                    trail.looked_up(reader, parent.0, &owned_name, ino);
                }
                match found {
                    Ok(Lookup { ino, attr, name_ttl, attr_ttl }) => {
                        if attr.kind != NodeKind::Folder
                            && let Some(attr_readers) = attr_readers
                        {
                            attr_readers.note(thread);
                        }
                        let attr = file_attr(ino, &attr);
                        reply.entry_with_ttls(&attr_ttl, &name_ttl, &attr, Generation(0));
                    }
                    Err(error) => reply.error(errno("lookup", &error)),
                }
            },
        );
    }

    fn forget(&self, _: &Request, ino: INodeNo, nlookup: u64) {
        self.run_here(ino, |tree| {
            tree.forget(ino.0, nlookup);
            if let Some(trail) = &self.trail {
                trail.forget(ino.0, || tree.is_known(ino.0));
            }
        });
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        if let Some(attr) = self.owner_dirs.as_ref().and_then(|dirs| dirs.attr(ino.0)) {
            return reply.attr(&owner_dirs::TTL, &attr);
        }
        self.run(
            ino,
            move |tree| tree.classify(ino.0),
            move |tree| match tree.attr(ino.0) {
                Ok((attr, ttl)) => reply.attr(&ttl, &file_attr(ino.0, &attr)),
                Err(error) => reply.error(errno("getattr", &error)),
            },
        );
    }

    fn readlink(&self, request: &Request, ino: INodeNo, reply: ReplyData) {
        if let Some(dirs) = self.owner_dirs(ino) {
            return dirs.read_link(request.uid(), reply);
        }
        self.run(ino, render_class, move |tree| match tree.read_link(ino.0) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(errno("readlink", &error)),
        });
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        const TRUNC: i32 = rustix::fs::OFlags::TRUNC.bits() as i32;
        if flags.acc_mode() != OpenAccMode::O_RDONLY || flags.0 & TRUNC != 0 {
            if let Some(trail) = &self.trail {
                trail.opened(request.into(), ino.0, Err(&Error::ReadOnly));
            }
            return reply.error(Errno::EROFS);
        }
        if self.owner_dirs(ino).is_some() {
            return reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
        }
        let (passthrough, may_bypass) = (self.passthrough.clone(), self.may_bypass_cache);
        let (trail, reader) = (self.trail.clone(), Reader::from(request));
        self.run(
            ino,
            move |tree| tree.classify_open(ino.0),
            move |tree| {
                let opened = tree.open(ino.0);
                if let Some(trail) = trail {
                    let kind = tree.content_kind(ino.0).unwrap_or(ContentKind::Raw);
                    let size = |fh| tree.size(fh).ok();
                    let result = opened.as_ref().map(|opened| (kind, size(opened.fh)));
                    trail.opened(reader, ino.0, result);
                }
                let opened = match opened {
                    Ok(opened) => opened,
                    Err(error) => return reply.error(errno("open", &error)),
                };
                let (fh, size) = (FileHandle(opened.fh), opened.passthrough_size);
                match passthrough.open(ino.0, size, &reply, || tree.backing(opened.fh)) {
                    Some(backing) => reply.opened_passthrough(fh, FopenFlags::empty(), &backing),
                    None => reply.opened(fh, cache_flag(opened.cache, may_bypass)),
                }
            },
        );
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if let Some(dirs) = self.owner_dirs(ino) {
            return dirs.read(offset, size as usize, reply);
        }
        self.run(ino, stat_class, move |tree| {
            let mut reply = Some(reply);
            // A reader sees no more than stat reports, whether or not there are cached pages.
            let room = tree.reported_size(fh.0).map_or(u64::MAX, |end| end.saturating_sub(offset));
            let size = (size as usize).min(usize::try_from(room).unwrap_or(usize::MAX));
            let result = tree.read(fh.0, offset, size, |data| {
                if let Some(reply) = reply.take() {
                    reply.data(data);
                }
            });
            if let (Err(error), Some(reply)) = (result, reply) {
                reply.error(errno("read", &error));
            }
        });
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // After one ENOSYS the kernel sends no further flush requests.
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        _: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.run_here(ino, |tree| {
            self.passthrough.release(ino.0);
            tree.release(fh.0);
        });
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn opendir(&self, request: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        if !self.opens_directories {
            // After one ENOSYS the kernel sends no further opendir and releasedir requests, and
            // keeps the entries of all directories. A change gives a directory another mtime.
            return reply.error(Errno::ENOSYS);
        }
        if let Some(trail) = &self.trail
            && self.owner_dirs(ino).is_none()
        {
            trail.opened(request.into(), ino.0, Ok((ContentKind::Folder, None)));
        }
        // The kernel keeps its caches, as it does without this request.
        let flags = FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_CACHE_DIR;
        reply.opened(FileHandle(0), flags);
    }

    fn readdir(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        if let Some(dirs) = self.owner_dirs(ino) {
            return dirs.read_dir(ino.0, offset, reply);
        }
        if offset == END_OFFSET {
            return reply.ok();
        }
        let class = move |tree: &Tree| listing_class(tree, ino, offset);
        self.run(ino, class, move |tree| {
            let add = |ino, next, kind, name: &OsStr, _: Option<(usize, &ListedEntry)>| {
                reply.add(INodeNo(ino), next, kind, name)
            };
            match list(tree, ino.0, offset, add) {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(errno("readdir", &error)),
            }
        });
    }

    fn readdirplus(
        &self,
        request: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        if offset == END_OFFSET {
            return reply.ok();
        }
        let reads_attrs =
            self.attr_readers.as_ref().is_some_and(|readers| readers.contains(request.pid()));
        let class = move |tree: &Tree| listing_class(tree, ino, offset);
        self.run(ino, class, move |tree| {
            let mut lookups = ListedLookups::new(tree);
            let add = |number, next, kind, name: &OsStr, entry: Option<(usize, &ListedEntry)>| {
                let found = entry
                    .and_then(|(at, entry)| tree.look_up_listed(ino.0, entry, at, reads_attrs));
                let (attr, ttl) = match found {
                    Some(Lookup { ino, attr, attr_ttl, .. }) => {
                        lookups.push(ino);
                        (file_attr(ino, &attr), attr_ttl)
                    }
                    None => {
                        // The kernel looks the entry up whenever it is used. The library sends the
                        // number all the same, so the kernel counts a lookup, but of `.` and `..`.
                        entry.inspect(|_| lookups.count(number));
                        (empty_attr(number, kind, 0), Duration::ZERO)
                    }
                };
                let is_full = reply.add(attr.ino, next, name, &ttl, &attr, Generation(0));
                if is_full && entry.is_some() {
                    lookups.pop();
                }
                is_full
            };
            match list(tree, ino.0, offset, add) {
                Ok(()) => {
                    lookups.leave_to_kernel();
                    reply.ok();
                }
                Err(error) => reply.error(errno("readdirplus", &error)),
            }
        });
    }

    fn releasedir(&self, _: &Request, _: INodeNo, _: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        reply.statfs(0, 0, 0, 0, 0, BLOCK, 255, BLOCK);
    }

    fn access(&self, _: &Request, _: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        if mask.contains(AccessFlags::W_OK) { reply.error(Errno::EROFS) } else { reply.ok() }
    }

    fn getxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, reply: ReplyXattr) {
        // No file has extended attributes. After one ENOSYS the kernel sends no further requests.
        reply.error(Errno::ENOSYS);
    }

    fn listxattr(&self, _: &Request, _: INodeNo, _: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    fn lseek(&self, _: &Request, _: INodeNo, _: FileHandle, _: i64, _: i32, reply: ReplyLseek) {
        // The kernel answers from the size by itself; no file has holes.
        reply.error(Errno::ENOSYS);
    }

    fn poll(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: PollNotifier,
        _: PollEvents,
        _: PollFlags,
        reply: ReplyPoll,
    ) {
        // After one ENOSYS the kernel treats every file as always ready.
        reply.error(Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        command: u32,
        _: &[u8],
        _: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(if CHANGING_IOCTLS.contains(&command) { Errno::EROFS } else { Errno::ENOTTY });
    }

    // Requests that would change something.

    fn setattr(
        &self,
        _: &Request,
        _: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        reply.error(Errno::EROFS);
    }

    fn mknod(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(Errno::EROFS);
    }

    fn mkdir(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(Errno::EROFS);
    }

    fn unlink(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EROFS);
    }

    fn rmdir(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EROFS);
    }

    fn symlink(&self, _: &Request, _: INodeNo, _: &OsStr, _: &Path, reply: ReplyEntry) {
        reply.error(Errno::EROFS);
    }

    fn rename(
        &self,
        _: &Request,
        _: INodeNo,
        _: &OsStr,
        _: INodeNo,
        _: &OsStr,
        _: RenameFlags,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::EROFS);
    }

    fn link(&self, _: &Request, _: INodeNo, _: INodeNo, _: &OsStr, reply: ReplyEntry) {
        reply.error(Errno::EROFS);
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        _: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        reply.error(Errno::EROFS);
    }

    fn setxattr(
        &self,
        _: &Request,
        _: INodeNo,
        _: &OsStr,
        _: &[u8],
        _: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::EROFS);
    }

    fn removexattr(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EROFS);
    }

    fn create(
        &self,
        _: &Request,
        _: INodeNo,
        _: &OsStr,
        _: u32,
        _: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        reply.error(Errno::EROFS);
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        _: u64,
        _: i32,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::EROFS);
    }

    fn copy_file_range(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        _: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        reply.error(Errno::EROFS);
    }
}
