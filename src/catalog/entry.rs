//! One worker in the catalog: what listing and metadata told of it, and when that was last found to hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use parking_lot::Mutex;

use super::packed::Packed;
use super::state::Surveyed;
use super::survey::Stamp;
use crate::model::{Flaw, Interner, Owner, SharedStr, Status, Worker, WorkerId, is_torn};
use crate::name::RelPath;
use crate::store::{Identity, Time};

/// One worker in the catalog. What is asked of all workers at once is at hand; the rest is unpacked when it is read.
pub struct Entry {
    /// The folder's name in the store.
    pub id: WorkerId,
    /// The folder, from its store's root.
    pub root: RelPath,
    /// Whose it is, if it says.
    pub owner: Option<Owner>,
    /// The run it belongs to, if it says.
    pub run: Option<SharedStr>,
    /// The thread or worker that started it.
    pub parent: Option<SharedStr>,
    /// When it was set up, if it says so that it is understood.
    pub created_at: Option<Timestamp>,
    /// How far it is.
    pub status: Status,
    /// Whether all was read that this is made of; see [`Worker::is_complete`].
    pub whole: bool,
    /// What is wrong with its record.
    pub flaws: Box<[Flaw]>,
    rest: Packed,
    /// Which of the stores it lies in.
    pub(super) source: usize,
    pub(super) key: [u8; 16],
    pub(super) glanced: Glanced,
    /// Whether nothing that changed since it was last found to hold could leave the same glance.
    pub(super) at_rest: AtomicBool,
    /// Whether it has been tried to have it looked at soon after a change of what listing and metadata tell.
    pub(super) awaited: AtomicBool,
    pub(super) looked: Mutex<Looked>,
}

/// The glance that it was read under.
pub(super) struct Glanced {
    pub(super) identity: Identity,
    pub(super) key: [u8; 16],
    pub(super) newest: Time,
    /// When it was first seen.
    pub(super) seen: Instant,
}

/// What came of looking at it later.
#[derive(Default)]
pub(super) struct Looked {
    /// When the glance was last found to hold, if nothing has changed since.
    pub(super) checked: Option<Instant>,
    /// When it was last found to change though it has finished.
    pub(super) stirred: Option<Instant>,
    /// The last survey of all its files, if nothing has changed since. Of most in a large swarm there is none.
    pub(super) surveyed: Option<Box<Surveyed>>,
}

impl Entry {
    /// A worker that lies at `root` in the store `source`, as it was read at this glance.
    pub(super) fn new(
        worker: Worker,
        (source, root): (usize, &RelPath),
        (key, glanced, at_rest): ([u8; 16], Glanced, bool),
        looked: Looked,
    ) -> Entry {
        let rest = Packed::of(&worker);
        Entry {
            id: worker.id,
            root: root.clone(),
            owner: worker.owner,
            run: worker.run,
            parent: worker.parent,
            created_at: worker.created_at.timestamp(),
            status: worker.status,
            whole: worker.is_complete,
            flaws: worker.flaws.into(),
            rest,
            source,
            key,
            glanced,
            at_rest: AtomicBool::new(at_rest),
            awaited: AtomicBool::new(false),
            looked: Mutex::new(looked),
        }
    }

    /// What listing and metadata tell.
    pub fn worker(&self) -> Worker {
        let mut worker = Worker {
            owner: self.owner.clone(),
            run: self.run.clone(),
            parent: self.parent.clone(),
            status: self.status,
            flaws: self.flaws.to_vec(),
            is_complete: self.whole,
            ..Worker::new(self.id.0.clone(), self.root.clone())
        };
        let told = self.rest.unpack(&mut worker);
        debug_assert!(told.is_some(), "what was packed here is unpacked");
        worker
    }

    /// What is kept of it for the next start beside what is at hand.
    pub(super) fn rest(&self) -> &Packed {
        &self.rest
    }

    /// Changes with everything that listing and metadata tell of the worker.
    pub fn key(&self) -> [u8; 16] {
        self.key
    }

    /// The newest change among the things listing and metadata come from.
    pub fn newest(&self) -> Time {
        self.glanced.newest
    }

    /// Which of the stores it lies in, by number.
    pub fn source(&self) -> usize {
        self.source
    }

    /// Whether its metadata could not be read, or not as JSON.
    pub fn is_torn(&self) -> bool {
        is_torn(&self.flaws)
    }

    /// The state in which all its files were seen last, unless they are known to have changed.
    pub fn last_stamp(&self) -> Option<Arc<Stamp>> {
        self.looked.lock().surveyed.as_ref().map(|held| held.stamp.clone())
    }

    /// Has `words` hold what this one says.
    pub(super) fn teach(&self, words: &mut Interner) {
        let said = [self.owner.as_ref().map(|owner| &owner.0), self.run.as_ref(), self.parent.as_ref()];
        said.into_iter().flatten().for_each(|word| drop(words.intern(word.clone())));
    }

    /// Whether more is to be expected of it.
    pub(super) fn is_moving(&self) -> bool {
        !self.status.is_finished() || self.is_torn() || !self.whole
    }

    /// Whether nothing could have changed since it was looked at last that would not show.
    pub(super) fn is_at_rest(&self) -> bool {
        self.at_rest.load(Ordering::Relaxed)
    }

    /// Notes that the glance was found to hold.
    pub(super) fn check(&self, now: Instant) {
        self.looked.lock().checked = Some(now);
    }

    /// Whether it was looked at within this time, and nothing has changed since.
    pub(super) fn is_checked(&self, within: Duration) -> bool {
        self.looked.lock().checked.is_some_and(|at| at.elapsed() < within)
    }

    /// Whether it has changed within this time though it has finished.
    pub(super) fn is_stirred(&self, within: Duration) -> bool {
        self.looked.lock().stirred.is_some_and(|at| at.elapsed() < within)
    }

    /// Notes that something of it has changed. Where what was seen of it is `believed`, it is to be looked at again, and
    /// may go on to change; else that is done soon enough.
    pub(super) fn stir(&self, believed: bool) {
        self.awaited.store(false, Ordering::Relaxed);
        if believed {
            *self.looked.lock() = Looked { stirred: Some(Instant::now()), ..Looked::default() };
        }
    }
}
