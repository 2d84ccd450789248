//! The trees of a mount and the threads that answer requests about them, replaced as a whole when
//! the stores of the mount change.
//!
//! Attributes in the kernel's cache are invalidated when a worker changes that it may cache for
//! long.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use fuser::Notifier;
use tracing::{debug, info, warn};

use super::pool::{Pool, SearchThreads, catch_panic};
use swarmletfs_tree::tree::{Ino, InoRange, RequestClass, Tree, WorkerLocation};

pub(super) struct Service {
    trees: Trees,
    pool: Pool,
    search_threads: SearchThreads,
    /// Runs requests that are as cheap as a stat. `None` if the threads that read from the kernel
    /// run them: their Landlock rules allow no store that was attached later.
    stat_pool: Option<Pool>,
}

#[derive(Clone)]
pub enum Trees {
    One(Arc<Tree>),
    /// The mount has a tree for each owner, with the inode numbers of [`InoRange::split`] in this
    /// order. All show the same stores.
    Owners(Vec<Arc<Tree>>),
}

impl Trees {
    fn of_inode(&self, ino: Ino) -> Option<&Arc<Tree>> {
        match self {
            Trees::One(tree) => Some(tree),
            Trees::Owners(trees) => trees.get(InoRange::index_of(ino, trees.len())?),
        }
    }

    /// Returns the trees with each one replaced by the result of `replace`, if that is not `None`.
    pub(super) fn replaced(&self, mut replace: impl FnMut(&Tree) -> Option<Tree>) -> Trees {
        let mut replaced = |tree: &Arc<Tree>| replace(tree).map_or_else(|| tree.clone(), Arc::new);
        match self {
            Trees::One(tree) => Trees::One(replaced(tree)),
            Trees::Owners(trees) => Trees::Owners(trees.iter().map(replaced).collect()),
        }
    }

    pub(super) fn all(&self) -> &[Arc<Tree>] {
        match self {
            Trees::One(tree) => std::slice::from_ref(tree),
            Trees::Owners(trees) => trees,
        }
    }

    /// Returns the first tree, to reach the stores that all trees show.
    pub(super) fn first(&self) -> Option<&Arc<Tree>> {
        self.all().first()
    }
}

impl Service {
    /// Creates the threads' queues; [`Service::start`] starts the threads. With `opens_here`, the
    /// threads that read from the kernel may open the files that the trees show.
    pub(super) fn new(trees: Trees, opens_here: bool) -> Service {
        let pool = Pool::new();
        let search_threads = SearchThreads::new(pool.clone());
        let stat_pool = (!opens_here).then(Pool::new);
        Service { trees, pool, search_threads, stat_pool }
    }

    /// Starts `threads` threads for each kind of request.
    ///
    /// # Errors
    ///
    /// The system gives no more threads.
    pub(super) fn start(&self, threads: usize) -> io::Result<()> {
        self.pool.start(threads)?;
        self.stat_pool.iter().try_for_each(|pool| pool.start(threads))
    }

    pub(super) fn trees(&self) -> &Trees {
        &self.trees
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Runs `work` with the tree that has the inode `ino`, on a thread that suits the class of the
    /// request. Contains panics. Drops `work` if no tree has the inode.
    pub(super) fn run(
        self: Arc<Self>,
        ino: Ino,
        class: impl FnOnce(&Tree) -> RequestClass + Send + 'static,
        work: impl FnOnce(&Tree) + Send + 'static,
    ) {
        let Some(tree) = self.trees.of_inode(ino).cloned() else { return };
        match &self.stat_pool {
            None => {
                catch_panic(|| self.run_classified(class(&tree), tree, work));
            }
            Some(stat_pool) => {
                let service = self.clone();
                let classify = move || service.run_classified(class(&tree), tree, work);
                stat_pool.run(Box::new(classify));
            }
        }
    }

    /// Runs `work` on this thread if it is as cheap as a stat, and otherwise on another one.
    fn run_classified(
        &self,
        class: RequestClass,
        tree: Arc<Tree>,
        work: impl FnOnce(&Tree) + Send + 'static,
    ) {
        if class == RequestClass::Stat {
            work(&tree);
            return read_ahead(&tree, &self.pool);
        }
        let pool = self.pool.clone();
        let job = Box::new(move || {
            work(&tree);
            read_ahead(&tree, &pool);
            if tree.claim_backfill() {
                backfill(tree, pool);
            }
        });
        if class == RequestClass::Search {
            self.search_threads.run(job)
        } else {
            self.pool.run(job)
        }
    }

    /// Runs `work`, which opens nothing, with the tree that has the inode `ino`, on this thread.
    pub(super) fn run_here(&self, ino: Ino, work: impl FnOnce(&Tree)) {
        if let Some(tree) = self.trees.of_inode(ino) {
            catch_panic(|| work(tree));
        }
    }
}

/// Starts to prepare the next answers for a reader that goes through the workers in order.
fn read_ahead(tree: &Arc<Tree>, pool: &Pool) {
    if tree.claim_read_ahead() {
        prepare_next(tree.clone(), pool.clone());
    }
}

/// Prepares one worker after the other, each queued behind the waiting requests.
fn prepare_next(tree: Arc<Tree>, pool: Pool) {
    let next_step = pool.clone();
    pool.run(Box::new(move || {
        if tree.prepare_next() {
            prepare_next(tree, next_step);
        }
    }));
}

/// Does pending work in short slices, each queued behind the waiting requests.
fn backfill(tree: Arc<Tree>, pool: Pool) {
    let next_slice = pool.clone();
    pool.run(Box::new(move || {
        if tree.backfill() {
            backfill(tree, next_slice);
        }
    }));
}

/// Ends the thread of [`start_watching`] when dropped.
pub(super) struct WatchGuard {
    _end: OwnedFd,
}

/// Starts to watch the directories of workers. Returns true if that is possible; otherwise workers
/// are polled for changes, and the log says so. This reads the limit on watches from a file that a
/// confined thread cannot read.
pub(super) fn enable_watches(tree: &Tree) -> bool {
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
pub(super) fn start_watching(trees: Trees, notifier: Notifier) -> io::Result<WatchGuard> {
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
