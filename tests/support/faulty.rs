//! A store that fails its k-th call: once, or from then on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;
use swarmletfs::error::{Error, Result};
use swarmletfs::name::RelPath;
use swarmletfs::store::{DirEntry, File, Meta, Store};

use super::through::Between;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The call fails with this.
    Errno(Errno),
    /// A read gives one byte; calls that are no reads go well.
    ShortRead,
    /// The call panics, in words that hold [`PRIVATE`].
    Panic,
}

/// What a panic may say and a log may not.
pub const PRIVATE: &str = "/data/of-another-owner";

/// When and how it goes wrong; shared by a store and all that was opened through it.
pub struct Plan {
    calls: AtomicU64,
    fail_at: AtomicU64,
    sticky: AtomicBool,
    met: AtomicBool,
    fault: Mutex<Fault>,
    event: Mutex<Option<Event>>,
}

/// What happens, and just before which call.
type Event = (u64, Box<dyn FnOnce() + Send>);

impl Plan {
    /// Nothing goes wrong.
    pub fn quiet() -> Arc<Plan> {
        Arc::new(Plan {
            calls: AtomicU64::new(0),
            fail_at: AtomicU64::new(u64::MAX),
            sticky: AtomicBool::new(false),
            met: AtomicBool::new(false),
            fault: Mutex::new(Fault::ShortRead),
            event: Mutex::new(None),
        })
    }

    /// From now on the `k`-th call fails, and if `sticky` all that follow.
    pub fn fail(&self, k: u64, fault: Fault, sticky: bool) {
        *self.fault.lock() = fault;
        self.calls.store(0, Ordering::SeqCst);
        self.sticky.store(sticky, Ordering::SeqCst);
        self.met.store(false, Ordering::SeqCst);
        self.fail_at.store(k, Ordering::SeqCst);
    }

    /// From now on nothing fails. Whether a call was met by the fault since it was planned.
    pub fn heal(&self) -> bool {
        self.fail_at.store(u64::MAX, Ordering::SeqCst);
        self.met.swap(false, Ordering::SeqCst)
    }

    /// From now on nothing goes wrong, and just before the `k`-th call `event` happens.
    pub fn at(&self, k: u64, event: impl FnOnce() + Send + 'static) {
        self.calls.store(0, Ordering::SeqCst);
        *self.event.lock() = Some((k, Box::new(event)));
    }

    /// Whether what was to happen has happened; if not, it never will.
    pub fn has_happened(&self) -> bool {
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
        self.met.store(true, Ordering::SeqCst);
        let fault = *self.fault.lock();
        assert!(fault != Fault::Panic, "on purpose, at {PRIVATE}");
        Some(fault)
    }

    fn check(&self) -> Result<()> {
        match self.fault() {
            Some(Fault::Errno(errno)) => Err(Error::from(errno)),
            Some(Fault::ShortRead | Fault::Panic) | None => Ok(()),
        }
    }
}

/// Makes calls of a store go wrong by plan.
#[derive(Clone)]
pub struct Faulty(pub Arc<Plan>);

impl Between for Faulty {
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

    fn enter(&self, _path: &RelPath) -> Result<Faulty> {
        self.0.check()?;
        Ok(self.clone())
    }
}

struct FaultyFile {
    file: Box<dyn File>,
    plan: Arc<Plan>,
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
