//! Has the kernel ask again about what has changed in workers that it was told to believe for long.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;

use fuser::Notifier;
use tracing::{debug, info, warn};

use super::guard::contained;
use crate::tree::Tree;

/// Drop it to end what [`start`] started.
pub(super) struct Watching {
    _end: OwnedFd,
}

/// Starts a thread that waits for changes: no request is answered by it, and it holds no lock when it tells the kernel.
/// Where nothing can be watched, changes are looked for from time to time, and the log says so. Errors: the system gives
/// no thread or pipe.
pub(super) fn start(tree: Arc<Tree>, notifier: Notifier) -> io::Result<Option<Watching>> {
    if let Err(error) = tree.watch() {
        info!("changes of finished workers are looked for from time to time, since they cannot be watched: {error}");
        return Ok(None);
    }
    let (end, held) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    thread::Builder::new().name("watch".into()).spawn(move || contained(|| tell(&tree, &notifier, &end)))?;
    Ok(Some(Watching { _end: held }))
}

fn tell(tree: &Tree, notifier: &Notifier, end: &OwnedFd) {
    loop {
        match tree.changes(end.as_fd()) {
            Ok(Some(changed)) => {
                for ino in changed {
                    // Its attributes alone: pages are dropped when it is opened, or found to be of another state.
                    if let Err(error) = notifier.inval_inode(fuser::INodeNo(ino), -1, 0) {
                        debug!("the kernel was not told of a change: {error}");
                    }
                }
            }
            Ok(None) => return,
            Err(error) => return warn!("changes of finished workers are not watched any more: {error}"),
        }
    }
}
