//! Threads for searches: each has one of its own, so that nothing else waits for it, and none while nobody searches.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use parking_lot::Mutex;
use rustix::process::setpriority_process;
use rustix::thread::gettid;

use super::guard::catch_panic;
use super::pool::{Job, Pool};

/// So many at once share the processors; others wait among what else takes long.
const SEARCHES_MAX: usize = 32;
/// How nice they are to the threads that read from the kernel.
const NICE: i32 = 5;

/// Where searches are done.
pub(super) struct SearchThreads {
    running: Arc<AtomicUsize>,
    pool: Pool,
}

/// Counts one search as long as it lives.
struct RunningGuard(Arc<AtomicUsize>);

impl Drop for RunningGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl SearchThreads {
    /// None yet; `pool` does those that are too many.
    pub(super) fn new(pool: Pool) -> SearchThreads {
        SearchThreads { running: Arc::default(), pool }
    }

    /// Has `job` done by a thread of its own. Called by a confined thread, so that the new one is, too.
    pub(super) fn run(&self, job: Job) {
        let before = self.running.fetch_add(1, Ordering::AcqRel);
        let running = RunningGuard(self.running.clone());
        if before >= SEARCHES_MAX {
            return self.pool.run(job);
        }
        // Where the system gives no thread, the job is still here.
        let job = Arc::new(Mutex::new(Some(job)));
        let taken = job.clone();
        let work = move || {
            let _running = running;
            // Everything else that is asked comes first; where that cannot be had, it has to share.
            let _ = setpriority_process(Some(gettid()), NICE);
            if let Some(job) = taken.lock().take() {
                catch_panic(job);
            }
        };
        if thread::Builder::new().name("search".into()).spawn(work).is_err()
            && let Some(job) = job.lock().take()
        {
            self.pool.run(job);
        }
    }
}
