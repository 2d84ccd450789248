//! A few threads for requests that take longer than a stat.

use std::io;
use std::sync::{Arc, mpsc};
use std::thread;

use parking_lot::Mutex;

use super::guard::contained;

/// One request.
pub(super) type Job = Box<dyn FnOnce() + Send>;

/// A queue, and the threads that work it off once they are started. They end when the last of the pool is dropped.
#[derive(Clone)]
pub(super) struct Pool {
    queue: mpsc::Sender<Job>,
}

/// The other end of a pool's queue.
pub(super) struct Workers {
    jobs: Arc<Mutex<mpsc::Receiver<Job>>>,
}

impl Pool {
    /// A pool whose threads are not started yet.
    pub(super) fn new() -> (Pool, Workers) {
        let (queue, jobs) = mpsc::channel();
        (Pool { queue }, Workers { jobs: Arc::new(Mutex::new(jobs)) })
    }

    /// Has `job` done by one of the threads.
    pub(super) fn run(&self, job: Job) {
        // Fails only where all threads are gone; the dropped reply then answers EIO.
        let _ = self.queue.send(job);
    }
}

impl Workers {
    /// Starts `threads` threads. Errors: the system gives none.
    pub(super) fn start(self, threads: usize) -> io::Result<()> {
        for number in 0..threads {
            let jobs = Arc::clone(&self.jobs);
            thread::Builder::new().name(format!("render-{number}")).spawn(move || {
                loop {
                    // The lock is held while waiting: one thread waits for a job, the others for their turn to wait.
                    let job = jobs.lock().recv();
                    let Ok(job) = job else { return };
                    contained(job);
                }
            })?;
        }
        Ok(())
    }
}
