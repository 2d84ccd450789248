//! What listing and metadata told of workers, kept for the next start: of a worker that has not changed since, its metadata
//! is not read again.
//!
//! The workers of a store lie in several entries of the cache folder, each under a key of the program's source, of the
//! store and of its number. Each worker is used only for the very glance that it was read under. What is in flux or
//! flawed is not kept.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{Entry, Source};
use crate::cache::{DiskCache, Key, key};
use crate::model::{Owner, Status, When, Word, Worker, WorkerId};
use crate::name::{Name, RelPath};

/// For fewer that are new nothing is written.
const FEW: usize = 256;
/// So many workers are in one entry.
const PART: usize = 16_384;
/// The most entries of a store.
const PARTS_MAX: u32 = 64;

/// What is kept of a store, by the worker's path. Each worker is taken out once: there may be many.
#[derive(Default)]
pub(super) struct Kept(HashMap<RelPath, (Key, Mutex<Option<Worker>>)>);

/// A worker as it is written.
#[derive(Serialize, Deserialize)]
struct Written {
    key: Key,
    root: Vec<u8>,
    owner: Option<Word>,
    run: Option<Word>,
    job: Option<Word>,
    parent: Option<Word>,
    status: u8,
    status_source: Option<Word>,
    task: String,
    task_type: Option<Word>,
    tags: Vec<Word>,
    model: Option<Word>,
    cwd: Option<Word>,
    times: [Time; 3],
    duration_ms: Option<u64>,
    error: Option<String>,
    summary: Option<String>,
}

/// A time as it is written: one in nanoseconds since 1970, or the source's own words.
#[derive(Serialize, Deserialize)]
enum Time {
    Absent,
    At(i128),
    Odd(String),
}

/// In the order of their numbers.
const STATUS: [Status; 5] = [Status::Created, Status::Running, Status::Completed, Status::Failed, Status::Unknown];

impl Kept {
    /// What is kept of a store.
    pub(super) fn of(source: &Source) -> Kept {
        let Some(cache) = source.cache() else { return Kept::default() };
        let mut kept = HashMap::new();
        for part in 0..PARTS_MAX {
            let body = cache.get(part_key(source, part)).and_then(|part| part.body());
            let part: Vec<Written> = body.and_then(|body| postcard::from_bytes(&body).ok()).unwrap_or_default();
            // What lies behind a part that is not full is of a time when there were more.
            let last = part.len() < PART;
            let read = part.into_iter().filter_map(Written::read);
            kept.extend(read.map(|(key, worker)| (worker.root.clone(), (key, Mutex::new(Some(worker))))));
            if last {
                break;
            }
        }
        Kept(kept)
    }

    /// The worker at `root`, if it was read under this glance.
    pub(super) fn take(&self, root: &RelPath, glance: Key) -> Option<Worker> {
        self.0.get(root).filter(|(key, _)| *key == glance).and_then(|(_, worker)| worker.lock().take())
    }

    /// Whether the worker at `root` was kept as it was read under this glance.
    fn knows(&self, root: &RelPath, glance: Key) -> bool {
        self.0.get(root).is_some_and(|(key, _)| *key == glance)
    }

    /// Keeps the workers of the store `number` for the next start, unless nearly all are kept.
    pub(super) fn renew(&self, source: &Source, number: usize, entries: &[Arc<Entry>]) {
        let Some(cache) = source.cache() else { return };
        let own = || entries.iter().filter(|entry| entry.source == number && Written::is_worth(entry));
        if own().filter(|entry| !self.knows(&entry.worker.root, entry.glance.key)).count() >= FEW {
            keep(cache, source, own().map(|entry| Written::of(entry)));
        }
    }
}

fn keep(cache: &DiskCache, source: &Source, mut all: impl Iterator<Item = Written>) {
    for number in 0..PARTS_MAX {
        let part: Vec<Written> = all.by_ref().take(PART).collect();
        let last = part.len() < PART;
        if let Ok(body) = postcard::to_stdvec(&part) {
            cache.put(part_key(source, number), Vec::new(), body);
        }
        if last {
            break;
        }
    }
}

fn part_key(source: &Source, part: u32) -> Key {
    key("workers", &[source.format().name().as_bytes(), source.describe().as_bytes(), &part.to_le_bytes()])
}

impl Written {
    /// Whether a worker is read the same the next time.
    fn is_worth(entry: &Entry) -> bool {
        entry.worker.whole && entry.worker.flaws.is_empty() && entry.is_at_rest()
    }

    fn of(entry: &Entry) -> Written {
        let worker = entry.worker.clone();
        let time = |when: When| match when {
            When::Absent => Time::Absent,
            When::At(time) => Time::At(time.as_nanosecond()),
            When::Odd(words) => Time::Odd(words),
        };
        let status = STATUS.iter().position(|status| *status == worker.status);
        Written {
            key: entry.glance.key,
            root: worker.root.as_bytes().to_vec(),
            owner: worker.owner.map(|owner| owner.0),
            run: worker.run,
            job: worker.job,
            parent: worker.parent,
            status: status.and_then(|status| u8::try_from(status).ok()).unwrap_or(u8::MAX),
            status_source: worker.status_source,
            task: worker.task,
            task_type: worker.task_type,
            tags: worker.tags,
            model: worker.model,
            cwd: worker.cwd,
            times: [worker.created_at, worker.started_at, worker.finished_at].map(time),
            duration_ms: worker.duration_ms,
            error: worker.error,
            summary: worker.summary,
        }
    }

    /// `None` where it cannot have been written so.
    fn read(self) -> Option<(Key, Worker)> {
        let root = RelPath::parse(self.root).ok()?;
        let name: Name = root.file_name()?;
        let time = |time: Time| match time {
            Time::Absent => Some(When::Absent),
            Time::At(nanos) => Timestamp::from_nanosecond(nanos).ok().map(When::At),
            Time::Odd(words) => Some(When::Odd(words)),
        };
        let [created_at, started_at, finished_at] = self.times.map(time);
        let worker = Worker {
            id: WorkerId(name),
            root,
            owner: self.owner.map(Owner),
            run: self.run,
            job: self.job,
            parent: self.parent,
            status: *STATUS.get(usize::from(self.status))?,
            status_source: self.status_source,
            task: self.task,
            task_type: self.task_type,
            tags: self.tags,
            model: self.model,
            cwd: self.cwd,
            created_at: created_at?,
            started_at: started_at?,
            finished_at: finished_at?,
            duration_ms: self.duration_ms,
            error: self.error,
            summary: self.summary,
            flaws: Vec::new(),
            whole: true,
        };
        Some((self.key, worker))
    }
}
