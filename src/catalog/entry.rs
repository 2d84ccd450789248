//! One worker in the catalog: what listing and metadata told of it, and when that was last found to hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::state::Surveyed;
use super::survey::Stamp;
use crate::model::Worker;
use crate::trace::Glance;

/// One worker in the catalog.
pub struct Entry {
    /// What listing and metadata tell.
    pub worker: Worker,
    /// Which of the stores it lies in.
    pub(super) source: usize,
    pub(super) key: [u8; 16],
    pub(super) glance: Glance,
    /// When the glance was first seen.
    pub(super) seen: Instant,
    /// Whether nothing that changed since it was last found to hold could leave the same glance.
    pub(super) at_rest: AtomicBool,
    /// When the glance was last found to hold, if nothing has changed since.
    pub(super) checked: Mutex<Option<Instant>>,
    /// The last survey of all its files, if nothing has changed since. Of most in a large swarm there is none.
    pub(super) stamp: Mutex<Option<Box<Surveyed>>>,
    /// When it was last found to change though it has finished.
    pub(super) stirred: Mutex<Option<Instant>>,
    /// Whether it has been tried to have it looked at soon after a change of what listing and metadata tell.
    pub(super) awaited: AtomicBool,
}

impl Entry {
    /// Changes with everything that listing and metadata tell of the worker.
    pub fn key(&self) -> [u8; 16] {
        self.key
    }

    /// The newest change among the things listing and metadata come from.
    pub fn newest(&self) -> crate::store::Time {
        self.glance.newest
    }

    /// Which of the stores it lies in, by number.
    pub fn source(&self) -> usize {
        self.source
    }

    /// The state in which all its files were seen last, unless they are known to have changed.
    pub fn last_stamp(&self) -> Option<Arc<Stamp>> {
        self.stamp.lock().as_ref().map(|held| held.stamp.clone())
    }

    /// Whether more is to be expected of it.
    pub(super) fn is_moving(&self) -> bool {
        !self.worker.status.is_finished() || self.worker.is_torn() || !self.worker.whole
    }

    /// Whether nothing could have changed since it was looked at last that would not show.
    pub(super) fn is_at_rest(&self) -> bool {
        self.at_rest.load(Ordering::Relaxed)
    }

    /// Whether it was looked at within this time, and nothing has changed since.
    pub(super) fn is_checked(&self, within: Duration) -> bool {
        self.checked.lock().is_some_and(|at| at.elapsed() < within)
    }

    /// Whether it has changed within this time though it has finished.
    pub(super) fn is_stirred(&self, within: Duration) -> bool {
        self.stirred.lock().is_some_and(|at| at.elapsed() < within)
    }

    /// Notes that something of it has changed. Where what was seen of it is `believed`, it is to be looked at again, and
    /// may go on to change; else that is done soon enough.
    pub(super) fn stir(&self, believed: bool) {
        self.awaited.store(false, Ordering::Relaxed);
        if believed {
            *self.stirred.lock() = Some(Instant::now());
            *self.checked.lock() = None;
            *self.stamp.lock() = None;
        }
    }
}
