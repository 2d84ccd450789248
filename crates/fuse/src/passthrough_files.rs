//! Files that the kernel reads directly (FUSE passthrough), where that is allowed and faster.
//!
//! All handles of an inode that are open at one time must use passthrough with one backing file, or
//! none may. The first open therefore decides, and its decision holds until the last handle is
//! closed.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fuser::{BackingId, InitFlags, KernelConfig, ReplyOpen};
use parking_lot::Mutex;
use tracing::info;

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
pub(super) fn request_passthrough(config: &mut KernelConfig) -> bool {
    config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok()
        && config.set_max_stack_depth(1).is_ok()
}
