//! Files that the kernel reads directly (FUSE passthrough), where that is allowed and faster.
//!
//! All handles of an inode that are open at one time must use passthrough with one backing file, or
//! none may. The first open therefore decides, and its decision holds until the last handle is
//! closed.
//!
//! Passthrough needs support in the kernel and permission for the process, and only its use shows
//! the latter. So a file system with one file is mounted to find out if it works. This file system
//! has no fallback: if the kernel cannot read the file directly, opening it fails.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use fuser::{
    BackingId, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, OpenFlags, ReplyAttr, ReplyEntry, ReplyOpen, Request,
};
use parking_lot::Mutex;
use rustix::fs::MemfdFlags;
use tracing::info;

use super::session::{self, MountAccess, MountListing};
use swarmletfs_tree::tree::Ino;

/// Smallest file for passthrough, in bytes. Smaller files are faster through the page cache, which
/// takes fewer calls per open. Measured; see docs/PERFORMANCE.md.
const SIZE_MIN: u64 = 128 << 10;

#[derive(Default)]
pub(super) struct PassthroughFiles {
    enabled: AtomicBool,
    open: Mutex<HashMap<Ino, OpenInode>>,
}

struct OpenInode {
    /// `None` if this program reads the file.
    backing: Option<Arc<BackingId>>,
    handles: usize,
}

impl PassthroughFiles {
    /// Requests passthrough from the kernel. Only its first use shows whether the process may use
    /// it.
    pub(super) fn negotiate(&self, config: &mut KernelConfig) {
        self.enabled.store(request_passthrough(config), Ordering::Relaxed);
    }

    /// Counts one more handle of an inode. `size` is the size of the file, or `None` if passthrough
    /// is impossible, and `file` opens the file again. Returns the backing file if the kernel is to
    /// read the inode directly.
    pub(super) fn open(
        &self,
        ino: Ino,
        size: Option<u64>,
        reply: &ReplyOpen,
        file: impl FnOnce() -> Option<OwnedFd>,
    ) -> Option<Arc<BackingId>> {
        if let Some(open) = self.open.lock().get_mut(&ino) {
            open.handles += 1;
            return open.backing.clone();
        }
        let is_worthwhile =
            size.is_some_and(|size| size >= SIZE_MIN) && self.enabled.load(Ordering::Relaxed);
        let backing =
            if is_worthwhile { file().and_then(|file| self.register(reply, &file)) } else { None };
        // A concurrent open may have decided first.
        let mut all = self.open.lock();
        let open = all.entry(ino).or_insert(OpenInode { backing: backing.clone(), handles: 0 });
        open.handles += 1;
        let chosen = open.backing.clone();
        drop(all);
        // Dropped after the lock is released, since this calls into the kernel.
        drop(backing);
        chosen
    }

    fn register(&self, reply: &ReplyOpen, file: &OwnedFd) -> Option<Arc<BackingId>> {
        match reply.open_backing(file) {
            Ok(id) => Some(Arc::new(id)),
            Err(error) => {
                if self.enabled.swap(false, Ordering::Relaxed) {
                    info!("no FUSE passthrough: {error}");
                }
                None
            }
        }
    }

    pub(super) fn release(&self, ino: Ino) {
        let mut all = self.open.lock();
        let Some(open) = all.get_mut(&ino) else { return };
        open.handles -= 1;
        let last = if open.handles == 0 { all.remove(&ino) } else { None };
        drop(all);
        drop(last);
    }
}

/// Requests passthrough from the kernel. Returns true if the kernel supports it.
fn request_passthrough(config: &mut KernelConfig) -> bool {
    config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok()
        && config.set_max_stack_depth(1).is_ok()
}

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

fn probe_attr(ino: INodeNo) -> FileAttr {
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
            reply.entry(&TTL, &probe_attr(FILE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &probe_attr(ino));
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
