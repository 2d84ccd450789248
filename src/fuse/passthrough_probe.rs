//! One file that the kernel reads by itself or not at all: mounted only to find out whether it does.
//!
//! Passthrough needs a kernel that offers it and a process that may use it, and only the use tells. There is no way
//! round it here: what the kernel does not read by itself is not read.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use fuser::{
    BackingId, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, KernelConfig,
    OpenFlags, ReplyAttr, ReplyEntry, ReplyOpen, Request,
};
use parking_lot::Mutex;
use rustix::fs::MemfdFlags;

use super::passthrough_files::request_passthrough;
use super::session::{self, MountAccess};

/// The name of the file.
pub const PROBE_FILE: &str = "file";
/// What is in it.
const BYTES: &[u8] = b"read by the kernel\n";
const FILE: INodeNo = INodeNo(2);
const TTL: Duration = Duration::ZERO;

/// Mounts the file at `mountpoint` and serves it until this process ends. Errors: those of the system.
pub fn mount_passthrough_probe(mountpoint: &Path) -> io::Result<()> {
    let session = session::create(OneFile::new()?, mountpoint, MountAccess::Mounter, 1)?;
    // Dropped, it would unmount whatever is mounted there by then.
    std::mem::forget(session.spawn()?);
    Ok(())
}

/// The file system of one file.
struct OneFile {
    backing: OwnedFd,
    /// Whether the kernel offers passthrough.
    offered: bool,
    /// Kept until the end: the kernel reads through it.
    id: Mutex<Option<BackingId>>,
}

impl OneFile {
    fn new() -> io::Result<OneFile> {
        let backing = rustix::fs::memfd_create("swarmletfs", MemfdFlags::CLOEXEC)?;
        rustix::io::write(&backing, BYTES)?;
        Ok(OneFile { backing, offered: false, id: Mutex::new(None) })
    }
}

fn attr(ino: INodeNo) -> FileAttr {
    let is_root = ino == INodeNo::ROOT;
    FileAttr {
        ino,
        size: if is_root { 0 } else { BYTES.len() as u64 },
        blocks: 0,
        atime: SystemTime::UNIX_EPOCH,
        mtime: SystemTime::UNIX_EPOCH,
        ctime: SystemTime::UNIX_EPOCH,
        crtime: SystemTime::UNIX_EPOCH,
        kind: if is_root { FileType::Directory } else { FileType::RegularFile },
        perm: if is_root { 0o555 } else { 0o444 },
        nlink: 1,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        rdev: 0,
        blksize: super::BLOCK,
        flags: 0,
    }
}

impl Filesystem for OneFile {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        self.offered = request_passthrough(config);
        Ok(())
    }

    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name.as_bytes() == PROBE_FILE.as_bytes() {
            reply.entry(&TTL, &attr(FILE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &attr(ino));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        if !self.offered {
            return reply.error(Errno::EOPNOTSUPP);
        }
        match reply.open_backing(&self.backing) {
            Ok(id) => {
                reply.opened_passthrough(FileHandle(0), FopenFlags::empty(), &id);
                *self.id.lock() = Some(id);
            }
            Err(error) => reply.error(error.raw_os_error().map_or(Errno::EIO, Errno::from_i32)),
        }
    }
}
