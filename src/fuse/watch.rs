//! Has the kernel ask again about what has changed in workers that it was told to believe for long.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use fuser::Notifier;
use tracing::{debug, info, warn};

use super::guard::catch_panic;
use crate::name::Name;
use crate::tree::Tree;

/// Drop it to end what [`start`] started.
pub(super) struct WatchGuard {
    _end: OwnedFd,
}

/// From now on the folders of workers are watched. Whether that can be done; where not, changes are looked for from time to
/// time, and the log says so. How many may be watched is read from a file that a confined thread may not read.
pub(super) fn enable(tree: &Tree) -> bool {
    match tree.watch() {
        Ok(most) => info!("changes of up to {most} folders are told by the system"),
        Err(error) => {
            info!(
                "changes of finished workers are looked for from time to time, since they cannot be watched: {error}"
            );
            return false;
        }
    }
    true
}

/// Starts a thread that waits for changes: no request is answered by it, and it holds no lock when it tells the kernel.
/// Errors: the system gives no thread or pipe.
pub(super) fn start(tree: Arc<Tree>, notifier: Notifier) -> io::Result<WatchGuard> {
    let (end, held) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    thread::Builder::new()
        .name("watch".into())
        .spawn(move || catch_panic(|| forward_changes(&tree, &notifier, &end)))?;
    Ok(WatchGuard { _end: held })
}

/// At least so long after it was told, the kernel is told again: an answer that was under way may have come later.
const AGAIN: Duration = Duration::from_secs(1);

fn forward_changes(tree: &Tree, notifier: &Notifier, end: &OwnedFd) {
    // Those that are told again when this is `AGAIN` ago, and those that are the next time.
    let (mut at, mut due, mut next) = (Instant::now(), HashSet::new(), HashSet::new());
    loop {
        let none = due.is_empty() && next.is_empty();
        let limit = if none { None } else { Some(AGAIN.saturating_sub(at.elapsed())) };
        let changed = match tree.wait_for_changes(end.as_fd(), limit) {
            Ok(Some(changed)) => changed,
            Ok(None) => return,
            Err(error) => return warn!("changes of finished workers are not watched any more: {error}"),
        };
        invalidate_attrs(tree, notifier, &changed);
        next.extend(changed);
        if none {
            at = Instant::now();
        } else if at.elapsed() >= AGAIN {
            invalidate_attrs(tree, notifier, &due);
            due = std::mem::take(&mut next);
            at = Instant::now();
        }
    }
}

/// Has the kernel ask again about all that it knows of these workers.
fn invalidate_attrs(tree: &Tree, notifier: &Notifier, workers: &HashSet<Name>) {
    if workers.is_empty() {
        return;
    }
    for ino in tree.worker_inodes(workers) {
        // Its attributes alone: pages are dropped when it is opened, or found to be of another state.
        if let Err(error) = notifier.inval_inode(fuser::INodeNo(ino), -1, 0) {
            debug!("the kernel was not told of a change: {error}");
        }
    }
}
