//! Files that the kernel reads by itself (FUSE passthrough), where it may and where that is faster.
//!
//! All who have an inode open at one time must have it in the same way and through the same backing file. So the way is
//! chosen when it is opened first, and holds until it was closed last.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fuser::{BackingId, InitFlags, KernelConfig, ReplyOpen};
use parking_lot::Mutex;
use tracing::info;

use crate::tree::Ino;

/// Smaller files are read through the page cache, which costs fewer calls for each open; in bytes. Measured, see
/// docs/PERFORMANCE.md.
const LEAST: u64 = 128 << 10;

/// The way in which each inode is open.
#[derive(Default)]
pub(super) struct PassthroughFiles {
    possible: AtomicBool,
    open: Mutex<HashMap<Ino, Open>>,
}

struct Open {
    /// Nothing where this program reads it.
    backing: Option<Arc<BackingId>>,
    handles: usize,
}

impl PassthroughFiles {
    /// Asks the kernel for it. Whether it may be used too, the first use tells.
    pub(super) fn negotiate(&self, config: &mut KernelConfig) {
        self.possible.store(request_passthrough(config), Ordering::Relaxed);
    }

    /// Opens an inode once more, of `size` bytes if it may be passed through: what the kernel reads it through, if it does.
    /// `file` opens it anew.
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
        let wanted = size.is_some_and(|size| size >= LEAST) && self.possible.load(Ordering::Relaxed);
        let backing = if wanted { file().and_then(|file| self.register(reply, &file)) } else { None };
        // Whoever was faster has chosen.
        let mut all = self.open.lock();
        let open = all.entry(ino).or_insert(Open { backing: backing.clone(), handles: 0 });
        open.handles += 1;
        let chosen = open.backing.clone();
        drop(all);
        // Dropped only now: that is a call into the kernel.
        drop(backing);
        chosen
    }

    fn register(&self, reply: &ReplyOpen, file: &OwnedFd) -> Option<Arc<BackingId>> {
        match reply.open_backing(file) {
            Ok(id) => Some(Arc::new(id)),
            Err(error) => {
                if self.possible.swap(false, Ordering::Relaxed) {
                    info!("files are read by this program, since the kernel may not by itself: {error}");
                }
                None
            }
        }
    }

    /// Closes an inode once.
    pub(super) fn release(&self, ino: Ino) {
        let mut all = self.open.lock();
        let Some(open) = all.get_mut(&ino) else { return };
        open.handles -= 1;
        let last = if open.handles == 0 { all.remove(&ino) } else { None };
        drop(all);
        drop(last);
    }
}

/// Asks the kernel to read files by itself. Whether it offers to.
pub(super) fn request_passthrough(config: &mut KernelConfig) -> bool {
    config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok() && config.set_max_stack_depth(1).is_ok()
}
