//! Indexes transcripts on a background thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::virtual_dir::VirtualDir;
use swarmletfs_base::deadline::Deadline;

/// Indexes transcripts on a background thread, which ends when the queue is empty. A serving thread
/// starts it, never the thread that opened the store, so it inherits the restrictions of the
/// former.
#[derive(Default)]
pub(super) struct Background {
    /// Transcripts to read; the last one is next.
    queue: Mutex<Vec<VirtualDir>>,
    running: AtomicBool,
}

impl Background {
    pub(super) fn read(self: &Arc<Background>, folders: Vec<VirtualDir>) {
        *self.queue.lock() = folders;
        if self.running.swap(true, Ordering::AcqRel) {
            return;
        }
        let running = BackgroundGuard(Arc::downgrade(self));
        if let Err(error) =
            std::thread::Builder::new().name("transcripts".into()).spawn(|| index_queue(running))
        {
            tracing::warn!("cannot read transcripts in the background: {error}");
        }
    }
}

/// Indexes the queued transcripts until none is left or the format is dropped.
fn index_queue(running: BackgroundGuard) {
    while let Some(folder) =
        running.0.upgrade().and_then(|background| background.queue.lock().pop())
    {
        let _ = folder.index(Deadline::never());
    }
}

/// Clears [`Background::running`] when the thread ends for any reason, so that another can start.
struct BackgroundGuard(Weak<Background>);

impl Drop for BackgroundGuard {
    fn drop(&mut self) {
        if let Some(background) = self.0.upgrade() {
            background.running.store(false, Ordering::Release);
        }
    }
}
