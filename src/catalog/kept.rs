//! What listing and metadata told of workers, kept for the next start: of a worker that has not changed since, its metadata
//! is not read again.
//!
//! The workers of a store lie in several entries of the cache folder, each under a key of the program's source, of all
//! that decides what is read of the store ([`ReadScope`]) and of its number. Each worker is used only for the very glance
//! that it was read under. What is in flux or flawed is not kept.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::packed::Packed;
use super::source::ReadScope;
use super::{Entry, Source};
use crate::cache::{DiskCache, Key, key};
use crate::model::{Owner, SharedStr, Status, Worker};
use crate::name::{Name, RelPath};

/// For fewer that are new nothing is written.
const FEW: u64 = 256;
/// So many workers are in one entry.
const PART: usize = 16_384;
/// The most entries of a store.
const PARTS_MAX: u32 = 64;

/// What is kept of a store, by the worker's path. Each worker is taken out once: there may be many.
#[derive(Default)]
pub(super) struct Kept(HashMap<RelPath, (Key, Mutex<Option<Written<'static>>>)>);

/// A worker as it is written.
#[derive(Serialize, Deserialize)]
struct Written<'a> {
    key: Key,
    root: Cow<'a, [u8]>,
    /// Its id where that is not the name of its folder: formats name workers by their own rules.
    id: Option<Cow<'a, [u8]>>,
    owner: Option<SharedStr>,
    run: Option<SharedStr>,
    parent: Option<SharedStr>,
    status: u8,
    rest: Cow<'a, Packed>,
}

/// In the order of their numbers.
const STATUS: [Status; 5] = [Status::Created, Status::Running, Status::Completed, Status::Failed, Status::Unknown];

impl Kept {
    /// What is kept of a store.
    pub(super) fn of(source: &Source) -> Kept {
        let Some(cache) = source.cache() else { return Kept::default() };
        let (scope, mut kept) = (source.scope(), HashMap::new());
        for part in 0..PARTS_MAX {
            let body = cache.get(part_key(&scope, part)).and_then(|part| part.body());
            let part: Vec<Written<'static>> =
                body.and_then(|body| postcard::from_bytes(&body).ok()).unwrap_or_default();
            // What lies behind a part that is not full is of a time when there were more.
            let last = part.len() < PART;
            let of = |one: Written<'static>| Some((RelPath::parse(&one.root).ok()?, (one.key, Mutex::new(Some(one)))));
            kept.extend(part.into_iter().filter_map(of));
            if last {
                break;
            }
        }
        Kept(kept)
    }

    /// The worker at `root`, if it was read under this glance.
    pub(super) fn take(&self, root: &RelPath, glance: Key) -> Option<Worker> {
        let (_, written) = self.0.get(root).filter(|(key, _)| *key == glance)?;
        written.lock().take()?.read(root)
    }

    /// Whether the worker at `root` was kept as it was read under this glance.
    fn knows(&self, root: &RelPath, glance: Key) -> bool {
        self.0.get(root).is_some_and(|(key, _)| *key == glance)
    }

    /// Keeps the workers of the store `number` for the next start, unless nearly all are kept.
    pub(super) fn renew(&self, source: &Source, number: usize, entries: &[Arc<Entry>]) {
        let Some(cache) = source.cache() else { return };
        let own = || entries.iter().filter(|entry| entry.source == number && is_worth(entry));
        if own().filter(|entry| !self.knows(&entry.root, entry.glanced.key)).count() as u64 >= cache.worth(FEW) {
            keep(cache, &source.scope(), own());
        }
    }
}

/// Whether a worker is read the same the next time.
fn is_worth(entry: &Entry) -> bool {
    entry.whole && entry.flaws.is_empty() && entry.is_at_rest()
}

fn keep<'a>(cache: &DiskCache, scope: &ReadScope, mut all: impl Iterator<Item = &'a Arc<Entry>>) {
    for number in 0..PARTS_MAX {
        let part: Vec<Written<'_>> = all.by_ref().take(PART).map(|entry| Written::of(entry)).collect();
        let last = part.len() < PART;
        if let Ok(body) = postcard::to_stdvec(&part) {
            cache.put(part_key(scope, number), Vec::new(), body);
        }
        if last {
            break;
        }
    }
}

fn part_key(scope: &ReadScope, part: u32) -> Key {
    key("workers", &[&scope.key(), &part.to_le_bytes()])
}

impl<'a> Written<'a> {
    fn of(entry: &'a Entry) -> Written<'a> {
        let status = STATUS.iter().position(|status| *status == entry.status);
        let is_folder_name = entry.root.file_name().as_ref() == Some(&entry.id.0);
        Written {
            key: entry.glanced.key,
            root: entry.root.as_bytes().into(),
            id: (!is_folder_name).then(|| entry.id.0.as_bytes().into()),
            owner: entry.owner.clone().map(|owner| owner.0),
            run: entry.run.clone(),
            parent: entry.parent.clone(),
            status: status.and_then(|status| u8::try_from(status).ok()).unwrap_or(u8::MAX),
            rest: Cow::Borrowed(entry.rest()),
        }
    }

    /// The worker, which lies at `root`. `None` where it cannot have been written so.
    fn read(self, root: &RelPath) -> Option<Worker> {
        let name = match self.id {
            Some(id) => Name::new(id).ok()?,
            None => root.file_name()?,
        };
        let mut worker = Worker {
            owner: self.owner.map(Owner),
            run: self.run,
            parent: self.parent,
            status: *STATUS.get(usize::from(self.status))?,
            ..Worker::new(name, root.clone())
        };
        self.rest.unpack(&mut worker)?;
        Some(worker)
    }
}
