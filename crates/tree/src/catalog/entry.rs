//! A worker in the catalog: its parsed metadata, and the times of the last checks.
//!
//! The fields that are rarely read are packed, to save memory with very many workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::fingerprint::{CachedFingerprint, Fingerprint};
use swarmletfs_base::digest::Key;
use swarmletfs_base::model::{
    Flaw, Interner, Owner, ReviewState, SharedStr, Status, TraceTime, WaitReason, Worker, WorkerId,
    is_torn,
};
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
    pub(super) packed: PackedFields,
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

#[derive(Clone, Serialize, Deserialize)]
pub(super) struct PackedFields(Box<[u8]>);

#[derive(Serialize, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct Fields<'a> {
    job: Option<&'a str>,
    continues: Option<&'a str>,
    /// Nanoseconds since 1970, and the request.
    waiting: Option<(Option<i128>, &'a str)>,
    status_source: Option<&'a str>,
    task: &'a str,
    task_type: Option<&'a str>,
    tags: Vec<&'a str>,
    branch: Option<&'a str>,
    model: Option<&'a str>,
    cwd: Option<&'a str>,
    times: [PackedTime<'a>; 3],
    /// Nanoseconds since 1970.
    last_message: Option<i128>,
    duration_ms: Option<u64>,
    error: Option<&'a str>,
    summary: Option<&'a str>,
    draft: Option<ReviewState>,
}

/// A time: nanoseconds since 1970, or the source text if it is not a valid time.
#[derive(Serialize, Deserialize)]
enum PackedTime<'a> {
    Absent,
    At(i128),
    Odd(&'a str),
}

impl PackedFields {
    pub(super) fn pack(worker: &Worker) -> PackedFields {
        let fields = Fields {
            job: worker.job.as_deref(),
            continues: worker.continues.as_deref(),
            waiting: worker.waiting.as_ref().map(|waiting| {
                (waiting.since.map(Timestamp::as_nanosecond), waiting.request.as_str())
            }),
            status_source: worker.status_source.as_deref(),
            task: &worker.task,
            task_type: worker.task_type.as_deref(),
            tags: worker.tags.iter().map(|tag| &**tag).collect(),
            branch: worker.branch.as_deref(),
            model: worker.model.as_deref(),
            cwd: worker.cwd.as_deref(),
            times: [&worker.created_at, &worker.started_at, &worker.finished_at]
                .map(PackedTime::from_time),
            last_message: worker.last_message.map(Timestamp::as_nanosecond),
            duration_ms: worker.duration_ms,
            error: worker.error.as_deref(),
            summary: worker.summary.as_deref(),
            draft: worker.draft,
        };
        let packed = postcard::to_stdvec(&fields);
        debug_assert!(packed.is_ok(), "encoding strings and numbers cannot fail");
        PackedFields(packed.unwrap_or_default().into())
    }

    /// Copies the fields into `worker`. Returns `None` and leaves `worker` unchanged if the bytes
    /// are invalid.
    pub(super) fn unpack(&self, worker: &mut Worker) -> Option<()> {
        let fields: Fields<'_> = postcard::from_bytes(&self.0).ok()?;
        let [created_at, started_at, finished_at] = fields.times.map(PackedTime::into_time);
        let (created_at, started_at, finished_at) = (created_at?, started_at?, finished_at?);
        let (word, text) = (
            |text: Option<&str>| text.map(SharedStr::from),
            |text: Option<&str>| text.map(str::to_owned),
        );
        (worker.created_at, worker.started_at, worker.finished_at) =
            (created_at, started_at, finished_at);
        (worker.job, worker.status_source, worker.task_type) =
            (word(fields.job), word(fields.status_source), word(fields.task_type));
        (worker.branch, worker.model, worker.cwd) =
            (word(fields.branch), word(fields.model), word(fields.cwd));
        worker.continues = word(fields.continues);
        worker.waiting = fields.waiting.map(|(since, request)| WaitReason {
            since: since.and_then(|nanos| Timestamp::from_nanosecond(nanos).ok()),
            request: request.to_owned(),
        });
        worker.tags = fields.tags.into_iter().map(SharedStr::from).collect();
        worker.last_message =
            fields.last_message.and_then(|nanos| Timestamp::from_nanosecond(nanos).ok());
        (worker.duration_ms, worker.draft) = (fields.duration_ms, fields.draft);
        worker.task = fields.task.to_owned();
        (worker.error, worker.summary) = (text(fields.error), text(fields.summary));
        Some(())
    }
}

/// Returns an encoding of the whole worker; only equal workers have equal encodings.
pub(super) fn encode(worker: &Worker) -> Vec<u8> {
    let words = (worker.owner.as_ref().map(|owner| &owner.0), &worker.run, &worker.parent);
    let encoded = postcard::to_stdvec(&(
        worker.id.0.as_bytes(),
        worker.root.as_bytes(),
        words,
        worker.status,
        &worker.flaws,
        worker.is_complete,
        PackedFields::pack(worker),
    ));
    debug_assert!(encoded.is_ok(), "encoding strings and numbers cannot fail");
    encoded.unwrap_or_default()
}

impl PackedTime<'_> {
    fn from_time(time: &TraceTime) -> PackedTime<'_> {
        match time {
            TraceTime::Absent => PackedTime::Absent,
            TraceTime::At(time) => PackedTime::At(time.as_nanosecond()),
            TraceTime::Unparsed(text) => PackedTime::Odd(text),
        }
    }

    /// Returns `None` if the time is out of range.
    fn into_time(self) -> Option<TraceTime> {
        match self {
            PackedTime::Absent => Some(TraceTime::Absent),
            PackedTime::At(nanos) => Timestamp::from_nanosecond(nanos).ok().map(TraceTime::At),
            PackedTime::Odd(text) => Some(TraceTime::Unparsed(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use swarmletfs_base::name::{Name, RelPath};

    #[test]
    fn unpack_returns_every_packed_field() {
        let bare = || Worker::new(Name::new("w").unwrap(), RelPath::parse("workers/w").unwrap());
        let full = Worker {
            job: Some("7".into()),
            continues: Some("v".into()),
            waiting: Some(WaitReason { since: Some(Timestamp::MIN), request: "Which?".into() }),
            status_source: Some("success".into()),
            task: "look\nat é".into(),
            task_type: Some("check".into()),
            tags: vec!["night".into(), "".into()],
            branch: Some("fix/é".into()),
            model: Some("large".into()),
            cwd: Some("/srv".into()),
            created_at: TraceTime::At(Timestamp::MIN),
            started_at: TraceTime::At(Timestamp::MAX),
            finished_at: TraceTime::Unparsed("yesterday".into()),
            last_message: Some(Timestamp::MAX),
            duration_ms: Some(u64::MAX),
            error: Some("none".into()),
            summary: Some(String::new()),
            draft: Some(ReviewState::TakenBack),
            ..bare()
        };
        for worker in [bare(), full] {
            let mut unpacked = bare();
            PackedFields::pack(&worker).unpack(&mut unpacked).unwrap();
            assert_eq!(unpacked, worker);
        }
    }

    #[test]
    fn unpack_of_invalid_bytes_changes_nothing() {
        let worker =
            Worker { task: "a".into(), ..Worker::new(Name::new("w").unwrap(), RelPath::root()) };
        let packed = PackedFields::pack(&worker);
        let torn = packed.0.get(..packed.0.len() - 1).unwrap();
        for bytes in [&[][..], &[0xff; 9], torn] {
            let mut unpacked = worker.clone();
            assert_eq!(PackedFields(bytes.into()).unpack(&mut unpacked), None);
            assert_eq!(unpacked, worker);
        }
    }
}
