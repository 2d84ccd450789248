//! A thread for each search, so that no other request waits for it and idle mounts have none.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use parking_lot::Mutex;
use rustix::process::setpriority_process;
use rustix::thread::gettid;

use super::guard::catch_panic;
use super::pool::{Job, Pool};

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
