//! A file system whose directory `supervisor/` can be written. Requests about the notes go to
//! [`crate::notes`], all others to the read-only file system.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileAttr, FileHandle, FileType,
    Filesystem, FopenFlags, Generation, INodeNo, IoctlFlags, KernelConfig, LockOwner, OpenAccMode,
    OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyPoll,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use tracing::{debug, warn};

use super::{BLOCK, FuseAdapter, empty_attr};
use crate::error::{Error, Result};
use crate::notes::{NewAttr, NewTime, NoteAttr, Notes, OpenMode, Time, is_note};
use crate::trace::swarmlet::SUPERVISOR;
use crate::tree::ROOT;

/// Time for which the kernel may cache names and attributes. Other programs may change the notes
/// in the store.
const TTL: Duration = Duration::from_secs(1);
/// Entries of a directory before its first own one: `.` and `..`.
const DOTS: [&str; 2] = [".", ".."];

/// Adapts notes to [`Filesystem`], beside a read-only tree.
pub(super) struct NotesAdapter {
    pub(super) reader: FuseAdapter,
    pub(super) notes: Arc<Notes>,
}

impl NotesAdapter {
    /// Runs `work` in the pool, since the disk may be slow.
    fn run(&self, work: impl FnOnce(&Notes) + Send + 'static) {
        let notes = self.notes.clone();
        self.reader.service.load().pool().run(Box::new(move || work(&notes)));
    }
}

/// Converts `error` to an errno. Only an error of the disk is worth a warning: the others are
/// answers to what a program asked for.
fn errno(operation: &str, error: &Error) -> Errno {
    if *error == Error::Io(rustix::io::Errno::IO) {
        warn!("{operation} of a note: {error}");
    } else {
        debug!("{operation} of a note: {error}");
    }
    Errno::from_i32(error.errno().raw_os_error())
}

fn file_attr(attr: &NoteAttr) -> FileAttr {
    FileAttr {
        size: attr.size,
        blocks: attr.size.div_ceil(512),
        atime: attr.atime.to_system(),
        mtime: attr.mtime.to_system(),
        ctime: attr.ctime.to_system(),
        uid: attr.uid,
        gid: attr.gid,
        ..empty_attr(attr.ino, file_type(attr.is_folder), attr.mode)
    }
}

fn file_type(is_folder: bool) -> FileType {
    if is_folder { FileType::Directory } else { FileType::RegularFile }
}

fn access(flags: OpenFlags) -> OpenMode {
    let mode = flags.acc_mode();
    const APPEND: i32 = rustix::fs::OFlags::APPEND.bits() as i32;
    OpenMode {
        read: mode != OpenAccMode::O_WRONLY,
        write: mode != OpenAccMode::O_RDONLY,
        append: flags.0 & APPEND != 0,
    }
}

fn new_time(time: Option<TimeOrNow>) -> NewTime {
    match time {
        None => NewTime::Kept,
        Some(TimeOrNow::Now) => NewTime::Now,
        Some(TimeOrNow::SpecificTime(time)) => NewTime::At(sent_time(time)),
    }
}

/// Returns the time that the kernel sent. Before 1970, fuser subtracts the nanoseconds, which the
/// kernel adds.
fn sent_time(time: SystemTime) -> Time {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => Time {
            secs: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
            nanos: since.subsec_nanos(),
        },
        Err(before) => {
            let before = before.duration();
            let secs = i64::try_from(before.as_secs()).map_or(i64::MIN, |secs| -secs);
            Time { secs, nanos: before.subsec_nanos() }
        }
    }
}

fn reply_entry(reply: ReplyEntry, operation: &str, found: Result<NoteAttr>) {
    match found {
        Ok(attr) => reply.entry(&TTL, &file_attr(&attr), Generation(0)),
        Err(error) => reply.error(errno(operation, &error)),
    }
}

fn reply_empty(reply: ReplyEmpty, operation: &str, result: Result<()>) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(operation, &error)),
    }
}

impl Filesystem for NotesAdapter {
    fn init(&mut self, request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        self.reader.init(request, config)
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let is_notes = parent.0 == ROOT && name == SUPERVISOR;
        if !is_notes && !is_note(parent.0) {
            return self.reader.lookup(request, parent, name, reply);
        }
        let name = (!is_notes).then(|| name.as_bytes().to_vec());
        self.run(move |notes| {
            reply_entry(reply, "lookup", notes.look_up(parent.0, name.as_deref()));
        });
    }

    fn forget(&self, request: &Request, ino: INodeNo, nlookup: u64) {
        if is_note(ino.0) {
            self.notes.forget(ino.0, nlookup);
        } else {
            self.reader.forget(request, ino, nlookup);
        }
    }

    fn getattr(&self, request: &Request, ino: INodeNo, fh: Option<FileHandle>, reply: ReplyAttr) {
        if !is_note(ino.0) {
            return self.reader.getattr(request, ino, fh, reply);
        }
        self.run(move |notes| match notes.attr(ino.0) {
            Ok(attr) => reply.attr(&TTL, &file_attr(&attr)),
            Err(error) => reply.error(errno("getattr", &error)),
        });
    }

    fn readlink(&self, request: &Request, ino: INodeNo, reply: ReplyData) {
        self.reader.readlink(request, ino, reply);
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if !is_note(ino.0) {
            return self.reader.open(request, ino, flags, reply);
        }
        self.run(move |notes| match notes.open_note(ino.0, access(flags)) {
            Ok(fh) => reply.opened(FileHandle(fh), FopenFlags::empty()),
            Err(error) => reply.error(errno("open", &error)),
        });
    }

    fn read(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if !is_note(ino.0) {
            return self.reader.read(request, ino, fh, offset, size, flags, owner, reply);
        }
        self.run(move |notes| match notes.read(fh.0, offset, size as usize) {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(errno("read", &error)),
        });
    }

    fn flush(&self, _: &Request, ino: INodeNo, fh: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        if !is_note(ino.0) {
            // After ENOSYS the kernel would send no flush of a note, either.
            return reply.ok();
        }
        self.run(move |notes| reply_empty(reply, "flush", notes.sync(ino.0, fh.0)));
    }

    fn release(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        flags: OpenFlags,
        owner: Option<LockOwner>,
        flush: bool,
        reply: ReplyEmpty,
    ) {
        if !is_note(ino.0) {
            return self.reader.release(request, ino, fh, flags, owner, flush, reply);
        }
        self.run(move |notes| {
            // What was written through a memory map after the last close.
            let synced = notes.sync(ino.0, fh.0);
            notes.release(fh.0);
            reply_empty(reply, "release", synced);
        });
    }

    fn fsync(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        if !is_note(ino.0) {
            return self.reader.fsync(request, ino, fh, data_only, reply);
        }
        self.run(move |notes| reply_empty(reply, "fsync", notes.sync(ino.0, fh.0)));
    }

    fn opendir(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if !is_note(ino.0) {
            return self.reader.opendir(request, ino, flags, reply);
        }
        self.run(move |notes| match notes.open_folder(ino.0) {
            Ok(fh) => reply.opened(FileHandle(fh), FopenFlags::empty()),
            Err(error) => reply.error(errno("opendir", &error)),
        });
    }

    fn readdir(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        if !is_note(ino.0) {
            return self.reader.readdir(request, ino, fh, offset, reply);
        }
        self.run(move |notes| {
            let listed = match notes.entries(ino.0, fh.0, offset == 0) {
                Ok(listed) => listed,
                Err(error) => return reply.error(errno("readdir", &error)),
            };
            let dots = DOTS.map(|name| (ino, FileType::Directory, OsStr::new(name)));
            let entries = listed
                .iter()
                .map(|note| (INodeNo(note.ino), file_type(note.is_folder), note.name.as_os_str()));
            let skipped = usize::try_from(offset).unwrap_or(usize::MAX);
            let all = dots.into_iter().chain(entries);
            for (next, (ino, kind, name)) in (1..).zip(all).skip(skipped) {
                if reply.add(ino, next, kind, name) {
                    break;
                }
            }
            reply.ok();
        });
    }

    fn releasedir(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        if !is_note(ino.0) {
            return self.reader.releasedir(request, ino, fh, flags, reply);
        }
        self.notes.release(fh.0);
        reply.ok();
    }

    fn fsyncdir(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        if !is_note(ino.0) {
            return self.reader.fsyncdir(request, ino, fh, data_only, reply);
        }
        self.run(move |notes| reply_empty(reply, "fsyncdir", notes.sync_folder(ino.0)));
    }

    fn statfs(&self, request: &Request, ino: INodeNo, reply: ReplyStatfs) {
        if !is_note(ino.0) {
            return self.reader.statfs(request, ino, reply);
        }
        self.run(move |notes| match notes.space() {
            Ok(space) => reply.statfs(
                space.f_blocks,
                space.f_bfree,
                space.f_bavail,
                space.f_files,
                space.f_ffree,
                u32::try_from(space.f_bsize).unwrap_or(BLOCK),
                u32::try_from(space.f_namemax).unwrap_or(255),
                u32::try_from(space.f_frsize).unwrap_or(BLOCK),
            ),
            Err(error) => reply.error(errno("statfs", &error)),
        });
    }

    fn access(&self, request: &Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        if is_note(ino.0) {
            // The kernel checks permissions by the attributes.
            reply.ok();
        } else {
            self.reader.access(request, ino, mask, reply);
        }
    }

    fn getxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        self.reader.getxattr(request, ino, name, size, reply);
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.reader.listxattr(request, ino, size, reply);
    }

    fn lseek(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        self.reader.lseek(request, ino, fh, offset, whence, reply);
    }

    fn poll(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        notifier: PollNotifier,
        events: PollEvents,
        flags: PollFlags,
        reply: ReplyPoll,
    ) {
        self.reader.poll(request, ino, fh, notifier, events, flags, reply);
    }

    fn ioctl(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        flags: IoctlFlags,
        command: u32,
        input: &[u8],
        output_size: u32,
        reply: ReplyIoctl,
    ) {
        if is_note(ino.0) {
            reply.error(Errno::ENOTTY);
        } else {
            self.reader.ioctl(request, ino, fh, flags, command, input, output_size, reply);
        }
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        fh: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if !is_note(ino.0) {
            return reply.error(Errno::EROFS);
        }
        let (atime, mtime) = (new_time(atime), new_time(mtime));
        let new = NewAttr { mode, uid, gid, size, atime, mtime };
        self.run(move |notes| match notes.set_attr(ino.0, fh.map(|fh| fh.0), new) {
            Ok(attr) => reply.attr(&TTL, &file_attr(&attr)),
            Err(error) => reply.error(errno("setattr", &error)),
        });
    }

    fn mknod(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        _: u32,
        reply: ReplyEntry,
    ) {
        if !is_note(parent.0) {
            return reply.error(Errno::EROFS);
        }
        let kind = rustix::fs::FileType::from_raw_mode(mode);
        if kind != rustix::fs::FileType::RegularFile {
            return reply.error(Errno::EPERM);
        }
        let name = name.as_bytes().to_vec();
        self.run(move |notes| reply_entry(reply, "mknod", notes.make_file(parent.0, &name, mode)));
    }

    fn mkdir(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        reply: ReplyEntry,
    ) {
        if !is_note(parent.0) {
            return reply.error(Errno::EROFS);
        }
        let name = name.as_bytes().to_vec();
        self.run(move |notes| {
            reply_entry(reply, "mkdir", notes.make_folder(parent.0, &name, mode));
        });
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        if !is_note(parent.0) {
            return reply.error(Errno::EROFS);
        }
        let name = name.as_bytes().to_vec();
        self.run(move |notes| reply_empty(reply, "unlink", notes.remove_file(parent.0, &name)));
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        if !is_note(parent.0) {
            return reply.error(Errno::EROFS);
        }
        let name = name.as_bytes().to_vec();
        self.run(move |notes| reply_empty(reply, "rmdir", notes.remove_folder(parent.0, &name)));
    }

    fn symlink(&self, _: &Request, parent: INodeNo, _: &OsStr, _: &Path, reply: ReplyEntry) {
        // Nobody who reads a store follows a link.
        reply.error(if is_note(parent.0) { Errno::EPERM } else { Errno::EROFS });
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if !is_note(parent.0) || !is_note(new_parent.0) {
            return reply.error(Errno::EROFS);
        }
        let (name, new_name) = (name.as_bytes().to_vec(), new_name.as_bytes().to_vec());
        let flags = rustix::fs::RenameFlags::from_bits_retain(flags.bits());
        self.run(move |notes| {
            let renamed = notes.rename(parent.0, &name, new_parent.0, &new_name, flags);
            reply_empty(reply, "rename", renamed);
        });
    }

    fn link(&self, _: &Request, _: INodeNo, new_parent: INodeNo, _: &OsStr, reply: ReplyEntry) {
        // A file with several names is not written, since one may be outside of the notes.
        reply.error(if is_note(new_parent.0) { Errno::EPERM } else { Errno::EROFS });
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if !is_note(ino.0) {
            return reply.error(Errno::EROFS);
        }
        let data = data.to_vec();
        self.run(move |notes| match notes.write(fh.0, offset, &data) {
            // The kernel sends far less than 4 GiB at a time.
            Ok(written) => reply.written(u32::try_from(written).unwrap_or(u32::MAX)),
            Err(error) => reply.error(errno("write", &error)),
        });
    }

    fn setxattr(
        &self,
        _: &Request,
        ino: INodeNo,
        _: &OsStr,
        _: &[u8],
        _: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        reply.error(if is_note(ino.0) { Errno::ENOTSUP } else { Errno::EROFS });
    }

    fn removexattr(&self, _: &Request, ino: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(if is_note(ino.0) { Errno::ENOTSUP } else { Errno::EROFS });
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        const EXCLUSIVE: i32 = rustix::fs::OFlags::EXCL.bits() as i32;
        if !is_note(parent.0) {
            return reply.error(Errno::EROFS);
        }
        let name = name.as_bytes().to_vec();
        let (access, is_exclusive) = (access(OpenFlags(flags)), flags & EXCLUSIVE != 0);
        self.run(move |notes| match notes.create(parent.0, &name, mode, access, is_exclusive) {
            Ok((attr, fh)) => {
                let (attr, fh) = (file_attr(&attr), FileHandle(fh));
                reply.created(&TTL, &attr, Generation(0), fh, FopenFlags::empty());
            }
            Err(error) => reply.error(errno("create", &error)),
        });
    }

    fn fallocate(
        &self,
        _: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        if !is_note(ino.0) {
            return reply.error(Errno::EROFS);
        }
        self.run(move |notes| {
            reply_empty(
                reply,
                "fallocate",
                notes.allocate(fh.0, mode.cast_unsigned(), offset, length),
            );
        });
    }

    fn copy_file_range(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        ino: INodeNo,
        _: FileHandle,
        _: u64,
        _: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        // After ENOSYS the kernel copies by reads and writes.
        reply.error(if is_note(ino.0) { Errno::ENOSYS } else { Errno::EROFS });
    }
}
