//! Bounds the requests of an upload: how many are in progress, and when none is begun any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// Maximum number of requests that are in progress.
const REQUESTS_MAX: usize = 8;

pub(super) struct RequestGate {
    /// Time at which no request is begun any more.
    end: Arc<Mutex<Option<Instant>>>,
    is_closed: AtomicBool,
    free: Mutex<usize>,
    was_freed: Condvar,
}

/// A request in progress, or several of one thread in turn.
pub(super) struct RequestTurn<'a>(&'a RequestGate);

impl RequestGate {
    pub(super) fn new(end: Arc<Mutex<Option<Instant>>>) -> RequestGate {
        let (free, was_freed) = (Mutex::new(REQUESTS_MAX), Condvar::new());
        RequestGate { end, is_closed: false.into(), free, was_freed }
    }

    /// Waits until a request may begin. Returns `None` if none may begin any more. A thread that
    /// has a turn must not wait for another one.
    pub(super) fn enter(&self) -> Option<RequestTurn<'_>> {
        let mut free = self.free.lock();
        while *free == 0 {
            self.was_freed.wait(&mut free);
        }
        if !self.is_open() {
            // A turn that ends wakes one thread, which passes that on if it has no use for it.
            self.was_freed.notify_one();
            return None;
        }
        *free -= 1;
        Some(RequestTurn(self))
    }

    pub(super) fn is_open(&self) -> bool {
        let is_late = || self.end.lock().is_some_and(|end| Instant::now() >= end);
        !self.is_closed.load(Ordering::Relaxed) && !is_late()
    }

    /// Lets no request begin until [`RequestGate::open`], as after a failure.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }

    pub(super) fn open(&self) {
        self.is_closed.store(false, Ordering::Relaxed);
    }
}

impl Drop for RequestTurn<'_> {
    fn drop(&mut self) {
        *self.0.free.lock() += 1;
        self.0.was_freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_closed_gate_lets_every_waiting_thread_go() {
        let gate = Arc::new(RequestGate::new(Arc::default()));
        let turns: Vec<RequestTurn<'_>> = (0..REQUESTS_MAX).filter_map(|_| gate.enter()).collect();
        let (sender, gone) = channel();
        let waiting = 3 * REQUESTS_MAX;
        for _ in 0..waiting {
            let (gate, sender) = (Arc::clone(&gate), sender.clone());
            let wait = move || sender.send(gate.enter().is_none());
            thread::Builder::new().spawn(wait).unwrap();
        }
        gate.close();
        drop(turns);
        for _ in 0..waiting {
            assert_eq!(gone.recv_timeout(Duration::from_secs(30)), Ok(true));
        }
        gate.open();
        assert!(gate.enter().is_some());
    }
}
