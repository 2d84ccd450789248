//! A worker in the catalog: its parsed metadata, and the times of the last checks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use parking_lot::Mutex;

use super::fingerprint::Fingerprint;
use super::fingerprint_cache::CachedFingerprint;
use super::packed::PackedFields;
use swarmletfs_base::digest::Key;
use swarmletfs_base::model::{Flaw, Interner, Owner, SharedStr, Status, Worker, WorkerId, is_torn};
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{Identity, Time};

/// A worker in the catalog. Fields that queries read of every worker are unpacked; the rest is
/// unpacked on demand.
pub struct Entry {
    pub id: WorkerId,
    /// Path of the worker's directory, relative to the store's root.
    pub root: RelPath,
    pub owner: Option<Owner>,
    pub run: Option<SharedStr>,
    /// Thread or worker that started this one, if recorded.
    pub parent: Option<SharedStr>,
    /// Creation time, if recorded in a valid form.
    pub created_at: Option<Timestamp>,
    /// Time of its last message, if its messages have times.
    pub last_message: Option<Timestamp>,
    pub status: Status,
    /// True if all sources of the record were read; see [`Worker::is_complete`].
    pub whole: bool,
    pub flaws: Box<[Flaw]>,
    packed: PackedFields,
    format: &'static str,
    pub(super) source: usize,
    pub(super) key: Key,
    pub(super) metadata: MetadataFingerprint,
    /// True if no later change can leave `metadata` the same.
    pub(super) past_tick: AtomicBool,
    /// True if a watch on the worker's directory was requested since its last change.
    pub(super) watch_requested: AtomicBool,
    pub(super) check_state: Mutex<CheckState>,
}

pub(super) struct MetadataFingerprint {
    pub(super) identity: Identity,
    pub(super) key: Key,
    pub(super) last_write: Time,
    /// True if nothing was written for long; see [`super::Source::is_stale`].
    pub(super) is_stale: bool,
    pub(super) first_seen: Instant,
}

#[derive(Default)]
pub(super) struct CheckState {
    /// Time of the last check that found the metadata unchanged, or `None` if a change was reported
    /// since.
    pub(super) checked_at: Option<Instant>,
    /// Time of the last reported change of a finished worker.
    pub(super) changed_at: Option<Instant>,
    /// Last fingerprint of all files, unless a change was reported since. Most workers of a large
    /// swarm have none.
    pub(super) fingerprint: Option<Box<CachedFingerprint>>,
}

impl Entry {
    /// Creates the entry of a worker in the store `source`, whose traces have the format called
    /// `format`. The worker was parsed from files in the state `metadata`. `past_tick` is true if
    /// no later change can leave that state the same. `key` is a hash of everything parsed.
    pub(super) fn new(
        worker: Worker,
        source: usize,
        format: &'static str,
        key: Key,
        metadata: MetadataFingerprint,
        past_tick: bool,
        check_state: CheckState,
    ) -> Entry {
        let packed = PackedFields::pack(&worker);
        Entry {
            id: worker.id,
            root: worker.root,
            owner: worker.owner,
            run: worker.run,
            parent: worker.parent,
            created_at: worker.created_at.timestamp(),
            last_message: worker.last_message,
            status: worker.status,
            whole: worker.is_complete,
            flaws: worker.flaws.into(),
            packed,
            format,
            source,
            key,
            metadata,
            past_tick: AtomicBool::new(past_tick),
            watch_requested: AtomicBool::new(false),
            check_state: Mutex::new(check_state),
        }
    }

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
        let unpacked = self.packed.unpack(&mut worker);
        debug_assert!(unpacked.is_some(), "packed fields must unpack");
        worker
    }

    pub(super) fn packed(&self) -> &PackedFields {
        &self.packed
    }

    /// Returns a hash of everything parsed from listing and metadata. Caches on disk depend on it.
    pub fn key(&self) -> Key {
        self.key
    }

    /// Returns the time of the last write to the directory or its metadata files.
    pub fn last_write(&self) -> Time {
        self.metadata.last_write
    }

    /// Returns the time of the last activity of a worker whose files were last written at
    /// `written`. This is the time of its last message if that is earlier, since a transcript that
    /// was copied is written later.
    pub fn last_activity(&self, written: Time) -> Time {
        self.last_message.map_or(written, |at| written.min(at.into()))
    }

    pub fn source(&self) -> usize {
        self.source
    }

    pub fn format(&self) -> &'static str {
        self.format
    }

    /// Returns true if the metadata could not be read or is not JSON.
    pub fn is_torn(&self) -> bool {
        is_torn(&self.flaws)
    }

    /// Returns the last fingerprint of all files, unless a change was reported since.
    pub fn last_fingerprint(&self) -> Option<Arc<Fingerprint>> {
        self.check_state.lock().fingerprint.as_ref().map(|cached| cached.fingerprint.clone())
    }

    /// Returns true if every change of the worker's files and directories is reported.
    pub(super) fn is_watched(&self) -> bool {
        self.check_state.lock().fingerprint.as_ref().is_some_and(|cached| cached.is_watched)
    }

    pub(super) fn intern_into(&self, words: &mut Interner) {
        let fields =
            [self.owner.as_ref().map(|owner| &owner.0), self.run.as_ref(), self.parent.as_ref()];
        fields.into_iter().flatten().for_each(|word| drop(words.intern(word.clone())));
    }

    /// Returns true if the worker is unfinished or its record is torn or incomplete.
    pub(super) fn is_unfinished(&self) -> bool {
        !self.status.is_finished() || self.is_torn() || !self.whole
    }

    /// Returns true if every change since the last check alters the metadata fingerprint.
    pub(super) fn is_past_tick(&self) -> bool {
        self.past_tick.load(Ordering::Relaxed)
    }

    pub(super) fn mark_checked(&self, now: Instant) {
        self.check_state.lock().checked_at = Some(now);
    }

    pub(super) fn was_checked(&self, within: Duration) -> bool {
        self.check_state.lock().checked_at.is_some_and(|at| at.elapsed() < within)
    }

    /// Returns true if a change of the finished worker was reported within this time.
    pub(super) fn has_changed(&self, within: Duration) -> bool {
        self.check_state.lock().changed_at.is_some_and(|at| at.elapsed() < within)
    }

    /// Records a reported change. If the files are `cached_until_change`, discards the earlier
    /// checks; otherwise polling finds the change soon enough.
    pub(super) fn mark_changed(&self, cached_until_change: bool) {
        self.watch_requested.store(false, Ordering::Relaxed);
        if cached_until_change {
            *self.check_state.lock() =
                CheckState { changed_at: Some(Instant::now()), ..CheckState::default() };
        }
    }
}
