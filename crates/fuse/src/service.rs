//! The trees of a mount and the threads that answer requests about them, replaced as a whole when
//! the stores of the mount change.
//!
//! Attributes in the kernel's cache are invalidated when a worker changes that it may cache for
//! long.
//!
//! Requests that take longer than a stat have threads of their own: a pool, and a thread for each
//! search. A slow request does not block the others: while jobs wait, another thread of the pool
//! takes the place of a thread that has been busy for long. A search has a thread of its own, so
//! that no other request waits for it and idle mounts have none.
//!
//! Panics are contained: the request gets EIO, the mount continues, and the log gets one line.

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{io, thread};

use fuser::Notifier;
use parking_lot::{Condvar, Mutex};
use rustix::process::setpriority_process;
use rustix::thread::gettid;
use tracing::{debug, error, info, warn};

use swarmletfs_tree::tree::{Ino, InoRange, RequestClass, Tree, WorkerLocation};

pub(super) struct Service {
    pub(super) trees: Trees,
    pub(super) pool: Pool,
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
    match tree.view().watch() {
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
        let changed = match first.view().wait_for_changes(end.as_fd(), limit) {
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

pub(super) type Job = Box<dyn FnOnce() + Send>;

/// Time after which a busy thread gets a substitute while jobs wait.
const LONG_JOB: Duration = Duration::from_millis(500);
/// Most threads at a time, substitutes included.
const THREADS_MAX: usize = 64;

/// Queue of jobs. Its threads, once started, end when the last clone is dropped.
#[derive(Clone)]
pub(super) struct Pool {
    queue: Arc<Queue>,
}

/// Closes the queue when the last clone of its pool is dropped.
struct Queue(Arc<PoolShared>);

impl Drop for Queue {
    fn drop(&mut self) {
        self.0.state.lock().is_closed = true;
        self.0.job_added.notify_all();
        self.0.all_busy.notify_all();
    }
}

struct PoolShared {
    state: Mutex<PoolState>,
    job_added: Condvar,
    all_busy: Condvar,
}

#[derive(Default)]
struct PoolState {
    jobs: VecDeque<Job>,
    idle: usize,
    /// Start of the current job of each busy thread, by the thread's number.
    busy: HashMap<u64, Instant>,
    threads: usize,
    /// Number of threads to keep, without the threads that have been busy for long.
    target_threads: usize,
    next_thread: u64,
    is_closed: bool,
}

impl PoolState {
    /// Returns the number of threads that have been busy for long, and the time at which the next
    /// one will have been.
    fn long_busy(&self, now: Instant) -> (usize, Option<Instant>) {
        let due = self.busy.values().map(|began| *began + LONG_JOB);
        let (long_busy, others): (Vec<Instant>, Vec<Instant>) = due.partition(|due| *due <= now);
        (long_busy.len(), others.into_iter().min())
    }
}

impl Pool {
    pub(super) fn new() -> Pool {
        let (job_added, all_busy) = (Condvar::new(), Condvar::new());
        let shared = PoolShared { state: Mutex::default(), job_added, all_busy };
        Pool { queue: Arc::new(Queue(Arc::new(shared))) }
    }

    pub(super) fn run(&self, job: Job) {
        let shared = &self.queue.0;
        let mut state = shared.state.lock();
        state.jobs.push_back(job);
        if state.jobs.len() <= state.idle {
            shared.job_added.notify_one()
        } else {
            shared.all_busy.notify_one()
        };
    }

    /// Starts `threads` threads.
    ///
    /// # Errors
    ///
    /// The system gives no more threads.
    pub(super) fn start(&self, threads: usize) -> io::Result<()> {
        let shared = &self.queue.0;
        shared.state.lock().target_threads = threads;
        (0..threads).try_for_each(|_| start_thread(shared))?;
        let shared_by_thread = shared.clone();
        thread::Builder::new()
            .name("replace".into())
            .spawn(move || start_substitutes(&shared_by_thread))?;
        Ok(())
    }
}

fn start_thread(shared: &Arc<PoolShared>) -> io::Result<()> {
    let number = {
        let mut state = shared.state.lock();
        state.threads += 1;
        state.next_thread += 1;
        state.next_thread
    };
    let shared_by_thread = shared.clone();
    let started = thread::Builder::new().name(format!("render-{number}")).spawn(move || {
        while let Some(job) = next_job(&shared_by_thread, number) {
            catch_panic(job);
        }
    });
    started.map(drop).inspect_err(|_| shared.state.lock().threads -= 1)
}

/// Waits for a job for the thread with number `thread`. Returns `None` if the pool is closed or has
/// more threads than wanted.
fn next_job(shared: &PoolShared, thread: u64) -> Option<Job> {
    let mut state = shared.state.lock();
    state.busy.remove(&thread);
    loop {
        let (long, _) = state.long_busy(Instant::now());
        if state.threads - long > state.target_threads {
            break;
        }
        if let Some(job) = state.jobs.pop_front() {
            state.busy.insert(thread, Instant::now());
            return Some(job);
        }
        if state.is_closed {
            break;
        }
        state.idle += 1;
        shared.job_added.wait(&mut state);
        state.idle -= 1;
    }
    state.threads -= 1;
    // This thread may have been woken for a job, so wake another one in its place.
    shared.job_added.notify_one();
    None
}

/// Starts a substitute for each thread that has been busy for long, as long as jobs wait.
fn start_substitutes(shared: &Arc<PoolShared>) {
    let mut state = shared.state.lock();
    while !state.is_closed {
        let (long, next) = state.long_busy(Instant::now());
        if state.jobs.is_empty() {
            shared.all_busy.wait(&mut state);
        } else if state.threads - long < state.target_threads && state.threads < THREADS_MAX {
            drop(state);
            if let Err(error) = start_thread(shared) {
                error!("cannot start a substitute for a busy thread: {error}");
                thread::sleep(LONG_JOB);
            }
            state = shared.state.lock();
        } else {
            shared.all_busy.wait_for(
                &mut state,
                next.map_or(LONG_JOB, |next| next.duration_since(Instant::now())),
            );
        }
    }
}

/// Most concurrent search threads. Further searches run in the pool.
const SEARCHES_MAX: usize = 32;
/// Nice value of a search thread, below the priority of the threads that read from the kernel.
const NICE: i32 = 5;

pub(super) struct SearchThreads {
    running: Arc<AtomicUsize>,
    pool: Pool,
}

struct RunningGuard(Arc<AtomicUsize>);

impl Drop for RunningGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl SearchThreads {
    /// Creates no thread yet. `pool` runs the searches beyond [`SEARCHES_MAX`].
    pub(super) fn new(pool: Pool) -> SearchThreads {
        SearchThreads { running: Arc::default(), pool }
    }

    /// Runs `job` on a new thread. A confined thread must call this, so that the new thread is
    /// confined too.
    pub(super) fn run(&self, job: Job) {
        let before = self.running.fetch_add(1, Ordering::AcqRel);
        let running = RunningGuard(self.running.clone());
        if before >= SEARCHES_MAX {
            return self.pool.run(job);
        }
        // If no thread can be started, the job is still here.
        let job = Arc::new(Mutex::new(Some(job)));
        let job_of_thread = job.clone();
        let started = thread::Builder::new()
            .name("search".into())
            .spawn(move || run_search(&job_of_thread, running));
        if started.is_err()
            && let Some(job) = job.lock().take()
        {
            self.pool.run(job);
        }
    }
}

/// Runs `job` on this thread, which is counted as running until it ends.
fn run_search(job: &Mutex<Option<Job>>, _running: RunningGuard) {
    // All other requests come first. If the priority cannot be lowered, the search competes with
    // them.
    let _ = setpriority_process(Some(gettid()), NICE);
    if let Some(job) = job.lock().take() {
        catch_panic(job);
    }
}

/// Calls `work`. Returns `None` if it panics; dropping a reply that `work` held sends EIO. The
/// locks of the tree are not poisoned by a panic, and no data behind them changes in more than one
/// step.
pub fn catch_panic<T>(work: impl FnOnce() -> T) -> Option<T> {
    // The panic hook of the program has logged the panic.
    catch_unwind(AssertUnwindSafe(work)).ok()
}

/// Logs every panic of this process in one line instead of printing it to standard error. Programs
/// call this once.
pub fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let at = panic.location().map(ToString::to_string).unwrap_or_default();
        // A message built at run time may quote a worker that the reader of the log may not see.
        match panic.payload().downcast_ref::<&'static str>() {
            Some(message) => error!("panicked at {at}: {message}"),
            None => error!("panicked at {at}"),
        }
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// Queues a job. The returned channel receives a message when the job is done.
    fn job(pool: &Pool) -> mpsc::Receiver<()> {
        let (done, finished) = mpsc::channel();
        pool.run(Box::new(move || done.send(()).unwrap()));
        finished
    }

    #[test]
    fn jobs_run_despite_panics() {
        let pool = Pool::new();
        let early = job(&pool);
        pool.start(2).unwrap();
        early.recv().unwrap();
        for _ in 0..10 {
            pool.run(Box::new(|| panic!("on purpose")));
        }
        job(&pool).recv().unwrap();
    }

    #[test]
    fn slow_jobs_block_no_others_and_substitute_threads_end() {
        let pool = Pool::new();
        pool.start(2).unwrap();
        let gate = Arc::new((Mutex::new(false), Condvar::new()));
        let stuck: Vec<_> = (0..6)
            .map(|_| {
                let (done, finished) = mpsc::channel();
                let gate = gate.clone();
                pool.run(Box::new(move || {
                    gate.1.wait_while(&mut gate.0.lock(), |is_open| !*is_open);
                    done.send(()).unwrap();
                }));
                finished
            })
            .collect();
        job(&pool).recv().unwrap();
        *gate.0.lock() = true;
        gate.1.notify_all();
        stuck.iter().for_each(|finished| finished.recv().unwrap());
        let shared = pool.queue.0.clone();
        while shared.state.lock().threads > 2 {
            thread::yield_now();
        }
        drop(pool);
        while shared.state.lock().threads > 0 {
            thread::yield_now();
        }
    }

    #[test]
    fn a_panic_is_caught() {
        assert_eq!(catch_panic(|| panic!("on purpose")), None::<()>);
        assert_eq!(catch_panic(|| 7), Some(7));
    }
}
