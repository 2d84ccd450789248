//! Store interceptor that makes the k-th call fail, once or from then on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{DirEntry, File, Meta, Store};

use super::intercept::Interceptor;

/// Kind of an injected fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The call fails with this error.
    Errno(Errno),
    /// A read returns one byte. Other calls succeed.
    ShortRead,
    /// The call panics with a message that contains [`PRIVATE`].
    Panic,
}

/// Path in the panic message that must not appear in a log.
pub const PRIVATE: &str = "/data/of-another-owner";

/// Schedule of faults, shared by a store and everything opened through it.
pub struct FaultPlan {
    calls: AtomicU64,
    fail_at: AtomicU64,
    sticky: AtomicBool,
    triggered: AtomicBool,
    fault: Mutex<Fault>,
    event: Mutex<Option<Event>>,
}

/// Number of a call, and an action to run just before it.
type Event = (u64, Box<dyn FnOnce() + Send>);

impl FaultPlan {
    /// Creates a plan without faults.
    pub fn none() -> Arc<FaultPlan> {
        Arc::new(FaultPlan {
            calls: AtomicU64::new(0),
            fail_at: AtomicU64::new(u64::MAX),
            sticky: AtomicBool::new(false),
            triggered: AtomicBool::new(false),
            fault: Mutex::new(Fault::ShortRead),
            event: Mutex::new(None),
        })
    }

    /// Makes the `k`-th call from now on fail, and all later calls if `sticky`.
    pub fn fail(&self, k: u64, fault: Fault, sticky: bool) {
        *self.fault.lock() = fault;
        self.calls.store(0, Ordering::SeqCst);
        self.sticky.store(sticky, Ordering::SeqCst);
        self.triggered.store(false, Ordering::SeqCst);
        self.fail_at.store(k, Ordering::SeqCst);
    }

    /// Removes the fault. Returns true if it was triggered.
    pub fn heal(&self) -> bool {
        self.fail_at.store(u64::MAX, Ordering::SeqCst);
        self.triggered.swap(false, Ordering::SeqCst)
    }

    /// Runs `event` just before the `k`-th call from now on.
    pub fn run_before(&self, k: u64, event: impl FnOnce() + Send + 'static) {
        self.calls.store(0, Ordering::SeqCst);
        *self.event.lock() = Some((k, Box::new(event)));
    }

    /// Returns true if the event has run. Otherwise cancels it.
    pub fn has_run(&self) -> bool {
        self.event.lock().take().is_none()
    }

    fn fault(&self) -> Option<Fault> {
        let call = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        let event = self.event.lock().take_if(|(k, _)| *k == call);
        if let Some((_, event)) = event {
            event();
        }
        let at = self.fail_at.load(Ordering::SeqCst);
        let due = call == at || (call > at && self.sticky.load(Ordering::SeqCst));
        if !due {
            return None;
        }
        self.triggered.store(true, Ordering::SeqCst);
        let fault = *self.fault.lock();
        assert!(fault != Fault::Panic, "injected panic at {PRIVATE}");
        Some(fault)
    }

    fn check(&self) -> Result<()> {
        match self.fault() {
            Some(Fault::Errno(errno)) => Err(Error::from(errno)),
            Some(Fault::ShortRead | Fault::Panic) | None => Ok(()),
        }
    }
}

/// Injects the faults of a plan into a store.
#[derive(Clone)]
pub struct FaultInjector(pub Arc<FaultPlan>);

impl Interceptor for FaultInjector {
    fn stat(&self, store: &dyn Store, path: &RelPath) -> Result<Meta> {
        self.0.check()?;
        store.stat(path)
    }

    fn list(&self, store: &dyn Store, path: &RelPath) -> Result<Vec<DirEntry>> {
        self.0.check()?;
        store.list(path)
    }

    fn open(&self, store: &dyn Store, path: &RelPath) -> Result<Box<dyn File>> {
        self.0.check()?;
        Ok(Box::new(FaultyFile { file: store.open(path)?, plan: self.0.clone() }))
    }

    fn enter(&self, _path: &RelPath) -> Result<FaultInjector> {
        self.0.check()?;
        Ok(self.clone())
    }
}

struct FaultyFile {
    file: Box<dyn File>,
    plan: Arc<FaultPlan>,
}

impl File for FaultyFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        match self.plan.fault() {
            Some(Fault::Errno(errno)) => Err(Error::from(errno)),
            Some(Fault::ShortRead) => {
                let few = buffer.len().min(1);
                self.file.read_at(&mut buffer[..few], offset)
            }
            Some(Fault::Panic) | None => self.file.read_at(buffer, offset),
        }
    }

    fn meta(&self) -> Result<Meta> {
        self.plan.check()?;
        self.file.meta()
    }
}
