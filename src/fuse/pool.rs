//! A few threads for requests that take longer than a stat.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::thread;

use parking_lot::Mutex;

/// One request.
type Job = Box<dyn FnOnce() + Send>;

/// Threads that work off one queue. They end when the pool is dropped.
pub(super) struct Pool {
    queue: mpsc::Sender<Job>,
}

impl Pool {
    /// Starts `threads` threads. Errors: the system gives none.
    pub(super) fn new(threads: usize) -> io::Result<Pool> {
        let (queue, jobs) = mpsc::channel::<Job>();
        let jobs = Arc::new(Mutex::new(jobs));
        for number in 0..threads {
            let jobs = Arc::clone(&jobs);
            thread::Builder::new().name(format!("render-{number}")).spawn(move || {
                loop {
                    // The lock is held while waiting: one thread waits for a job, the others for their turn to wait.
                    let job = jobs.lock().recv();
                    let Ok(job) = job else { return };
                    // A reply that a panic drops is answered with EIO by its own drop.
                    let _ = catch_unwind(AssertUnwindSafe(job));
                }
            })?;
        }
        Ok(Pool { queue })
    }

    /// Has `job` done by one of the threads.
    pub(super) fn run(&self, job: Job) {
        // Fails only where all threads are gone; the dropped reply then answers EIO.
        let _ = self.queue.send(job);
    }
}
