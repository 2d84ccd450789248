//! Invalidates attributes in the kernel's cache when a worker changes that it may cache for long.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use fuser::Notifier;
use tracing::{debug, info, warn};

use super::guard::catch_panic;
use super::service::Trees;
use swarmletfs_tree::tree::{Ino, Tree, WorkerLocation};

/// Ends the thread of [`start`] when dropped.
pub(super) struct WatchGuard {
    _end: OwnedFd,
}

/// Starts to watch the directories of workers. Returns true if that is possible; otherwise workers
/// are polled for changes, and the log says so. This reads the limit on watches from a file that a
/// confined thread cannot read.
pub(super) fn enable(tree: &Tree) -> bool {
    match tree.watch() {
        Ok(limit) => info!("watching up to {limit} folders for changes"),
        Err(error) => {
            info!("polling finished workers for changes, since they cannot be watched: {error}");
            return false;
        }
    }
    true
}

/// Starts a thread that waits for changes. It answers no requests and holds no lock while it
/// notifies the kernel.
///
/// # Errors
///
/// The system refuses the thread or the pipe.
pub(super) fn start(trees: Trees, notifier: Notifier) -> io::Result<WatchGuard> {
    let (read_end, write_end) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    thread::Builder::new()
        .name("watch".into())
        .spawn(move || catch_panic(|| forward_changes(&trees, &notifier, &read_end)))?;
    Ok(WatchGuard { _end: write_end })
}

/// Delay after which each invalidation is repeated: a reply that was under way may have arrived
/// after the first one.
pub(super) const REPEAT_DELAY: Duration = Duration::from_secs(1);

fn forward_changes(trees: &Trees, notifier: &Notifier, end: &OwnedFd) {
    let Some(first) = trees.first() else { return };
    // `due` is invalidated again once `REPEAT_DELAY` has passed since `at`, and `next` the time
    // after.
    let (mut at, mut due, mut next) = (Instant::now(), HashSet::new(), HashSet::new());
    loop {
        let is_idle = due.is_empty() && next.is_empty();
        let limit = if is_idle { None } else { Some(REPEAT_DELAY.saturating_sub(at.elapsed())) };
        let changed = match first.wait_for_changes(end.as_fd(), limit) {
            Ok(Some(changed)) => changed,
            Ok(None) => return,
            Err(error) => return warn!("no longer watching finished workers for changes: {error}"),
        };
        invalidate_workers(trees, notifier, &changed);
        next.extend(changed);
        if is_idle {
            at = Instant::now();
        } else if at.elapsed() >= REPEAT_DELAY {
            invalidate_workers(trees, notifier, &due);
            due = std::mem::take(&mut next);
            at = Instant::now();
        }
    }
}

fn invalidate_workers(trees: &Trees, notifier: &Notifier, workers: &HashSet<WorkerLocation>) {
    if !workers.is_empty() {
        let inodes = trees.all().iter().flat_map(|tree| tree.worker_inodes(workers));
        invalidate_attrs(notifier, inodes);
    }
}

pub(super) fn invalidate_attrs(notifier: &Notifier, inodes: impl Iterator<Item = Ino>) {
    for ino in inodes {
        // Only attributes: the kernel drops pages at the next open or when the attributes differ.
        if let Err(error) = notifier.inval_inode(fuser::INodeNo(ino), -1, 0) {
            debug!("cannot invalidate an inode: {error}");
        }
    }
}
