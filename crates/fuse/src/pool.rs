//! Threads for requests that take longer than a stat: a pool, and a thread for each search.
//!
//! A slow request does not block the others: while jobs wait, another thread of the pool takes the
//! place of a thread that has been busy for long. A search has a thread of its own, so that no
//! other request waits for it and idle mounts have none.
//!
//! Panics are contained: the request gets EIO, the mount continues, and the log gets one line.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::process::setpriority_process;
use rustix::thread::gettid;
use tracing::error;

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
    use std::sync::mpsc;

    use super::*;

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
