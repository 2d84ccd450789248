//! A file system with one file, mounted only to find out if passthrough works.
//!
//! Passthrough needs support in the kernel and permission for the process, and only its use shows
//! the latter. This file system has no fallback: if the kernel cannot read the file directly,
//! opening it fails.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use fuser::{
    BackingId, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    KernelConfig, OpenFlags, ReplyAttr, ReplyEntry, ReplyOpen, Request,
};
use parking_lot::Mutex;
use rustix::fs::MemfdFlags;

use super::passthrough_files::request_passthrough;
use super::session::{self, MountAccess, MountListing};

pub const PROBE_FILE: &str = "file";
const CONTENT: &[u8] = b"read by the kernel\n";
const FILE: INodeNo = INodeNo(2);
const TTL: Duration = Duration::ZERO;

/// Mounts the file at `mountpoint` and serves it until this process ends.
///
/// # Errors
///
/// The system refuses the mount.
pub fn mount_passthrough_probe(mountpoint: &Path) -> io::Result<()> {
    let listing = MountListing::default();
    let config = session::config(MountAccess::Mounter, 1, listing);
    let session = fuser::Session::new(ProbeFs::new()?, mountpoint, &config)?;
    // Dropping the session would unmount any file system that is mounted there by then.
    std::mem::forget(session.spawn()?);
    Ok(())
}

struct ProbeFs {
    backing: OwnedFd,
    is_supported: bool,
    /// Never dropped: the kernel reads through it.
    id: Mutex<Option<BackingId>>,
}

impl ProbeFs {
    fn new() -> io::Result<ProbeFs> {
        let backing = rustix::fs::memfd_create("swarmletfs", MemfdFlags::CLOEXEC)?;
        rustix::io::write(&backing, CONTENT)?;
        Ok(ProbeFs { backing, is_supported: false, id: Mutex::new(None) })
    }
}

fn attr(ino: INodeNo) -> FileAttr {
    let is_root = ino == INodeNo::ROOT;
    FileAttr {
        ino,
        size: if is_root { 0 } else { CONTENT.len() as u64 },
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

impl Filesystem for ProbeFs {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        self.is_supported = request_passthrough(config);
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
        if !self.is_supported {
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
