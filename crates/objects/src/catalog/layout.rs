//! The keys of the catalog, from the prefix of the store.
//!
//! ```text
//! catalog/v1/manifest.json             the files that make up the catalog
//! catalog/v1/workers/DAY/ID.parquet    a row for each worker; DAY is when the file was written
//! catalog/v1/new/ID-KIND-WORKER.json   a worker that changed, with its name in percent-encoding
//! catalog/v1/probe/ID                  finds out whether the store honors conditions
//! catalog/v1/turn                      the process that compacts, see `turn`
//! ```

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use swarmletfs_base::name::Name;
use swarmletfs_base::store::Time;
use uuid::Uuid;

use crate::key_tree::ListedObject;
use crate::parts::WORKERS;

/// Directory that may hold catalogs of several versions.
pub(crate) const CATALOG: &str = "catalog/";
/// Directory of the catalog.
pub(crate) const ROOT: &str = "catalog/v1/";
/// Key of the object that names the files of the catalog.
pub const MANIFEST: &str = "catalog/v1/manifest.json";
pub(super) const FILES: &str = "catalog/v1/workers/";
pub(super) const PROBES: &str = "catalog/v1/probe/";
/// Key of the object of the process that brings the catalog up to date.
pub(super) const TURN: &str = "catalog/v1/turn";
pub(super) const NEWS: &str = "catalog/v1/new/";
const JSON: &str = ".json";
pub(super) const PARQUET: &str = ".parquet";
/// Number of directories that are always listed one by one.
const LOOKS_MIN: usize = 32;
/// Number of objects for each of which one more directory is listed by itself. A listing of
/// everything is cheaper if there are more.
const OBJECTS_PER_LOOK: usize = 250;
/// Characters that the name of a worker keeps in a key.
const KEPT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.');

/// An event in the life of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerNews {
    /// It changes from now on.
    Opened,
    /// It does not change any more, or changed once.
    Closed,
    Removed,
}

impl WorkerNews {
    const ALL: [(WorkerNews, &str); 3] = [
        (WorkerNews::Opened, "opened"),
        (WorkerNews::Closed, "closed"),
        (WorkerNews::Removed, "removed"),
    ];

    pub(super) fn name(self) -> &'static str {
        WorkerNews::ALL.iter().find(|(news, _)| *news == self).map_or("", |(_, name)| name)
    }
}

/// An announcement that a worker changed, so that its row is outdated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Announcement {
    /// Key from the prefix of the store.
    pub(crate) key: String,
    pub(crate) worker: String,
    pub(crate) news: WorkerNews,
    /// Time of the store at which it was made.
    pub(crate) at: Time,
}

impl Announcement {
    /// Returns the key of a new announcement.
    pub(super) fn new_key(news: WorkerNews, worker: &str) -> String {
        let worker = utf8_percent_encode(worker, KEPT);
        format!("{NEWS}{}-{}-{worker}{JSON}", new_id(), news.name())
    }

    /// Parses the key of an announcement. Returns `None` for other keys.
    pub(crate) fn parse(key: &str, at: Time) -> Option<Announcement> {
        let name = key.strip_prefix(NEWS)?.strip_suffix(JSON)?;
        let mut parts = name.splitn(3, '-');
        let (_, news, worker) = (parts.next()?, parts.next()?, parts.next()?);
        let (news, _) = WorkerNews::ALL.into_iter().find(|(_, name)| *name == news)?;
        let worker = percent_decode_str(worker).decode_utf8().ok()?;
        Name::new(worker.as_bytes()).ok()?;
        Some(Announcement { key: key.to_owned(), worker: worker.into_owned(), news, at })
    }
}

/// Returns a name that no other process makes. Names sort by the time when they were made.
pub(super) fn new_id() -> String {
    Uuid::now_v7().simple().to_string()
}

/// Returns the announcements of each worker.
pub(crate) fn news_by_worker(news: &[Announcement]) -> BTreeMap<&str, Vec<&Announcement>> {
    let mut by_worker: BTreeMap<&str, Vec<&Announcement>> = BTreeMap::new();
    for announcement in news {
        by_worker.entry(&announcement.worker).or_default().push(announcement);
    }
    by_worker
}

/// Returns true if a worker changes by the last of its announcements; `None` if it has none. Of an
/// end and a beginning at the same time, the beginning counts.
pub(crate) fn is_announced_open(announced: &[&Announcement]) -> Option<bool> {
    let last = |wanted: bool| {
        let matching = announced.iter().filter(|it| (it.news == WorkerNews::Opened) == wanted);
        matching.map(|it| it.at).max()
    };
    match (last(true), last(false)) {
        (None, None) => None,
        // An end without a beginning is later than none.
        (opened, closed) => Some(opened >= closed),
    }
}

/// Returns the number of directories up to which each is listed by itself, rather than everything,
/// in a store with `objects` in its catalog. It bounds the cost of any number of announcements.
pub(crate) fn looks_max(objects: usize) -> usize {
    LOOKS_MIN.max(objects / OBJECTS_PER_LOOK)
}

pub(crate) type ObjectsByWorker = HashMap<Arc<str>, Vec<ListedObject>>;

/// Returns the objects of each worker, sorted by path, and those that are neither of a worker nor
/// of the catalog.
pub(crate) fn split_by_worker(
    objects: impl IntoIterator<Item = ListedObject>,
) -> (ObjectsByWorker, Vec<ListedObject>) {
    let (mut workers, mut others) = (ObjectsByWorker::new(), Vec::new());
    for object in objects {
        match split_worker(&object.path) {
            Some((worker, _)) => match workers.get_mut(worker) {
                Some(objects) => objects.push(object),
                None => {
                    workers.insert(worker.into(), vec![object]);
                }
            },
            None if !object.path.starts_with(ROOT) => others.push(object),
            None => {}
        }
    }
    workers.values_mut().for_each(|objects| objects.sort_unstable_by(|a, b| a.path.cmp(&b.path)));
    (workers, others)
}

/// Returns the name of the worker to which the object at `path` belongs, and its path from the
/// directory of that worker.
pub(crate) fn split_worker(path: &str) -> Option<(&str, &str)> {
    path.strip_prefix(WORKERS)?.split_once('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn announcements_name_their_worker() {
        for worker in ["a", "a-b_c.d", "ü / %2F", "..a", &"x".repeat(200)] {
            let name = worker.replace('/', "|");
            for (news, _) in WorkerNews::ALL {
                let key = Announcement::new_key(news, &name);
                let parsed = Announcement::parse(&key, Time::default()).unwrap();
                assert_eq!((parsed.news, &parsed.worker, &parsed.key), (news, &name, &key));
            }
        }
    }

    #[test]
    fn other_keys_are_no_announcements() {
        for key in [
            "catalog/v1/new/1-opened.json",
            "catalog/v1/new/1-lost-a.json",
            "catalog/v1/new/1-opened-..%2Fa.json",
            "catalog/v1/new/1-opened-..json",
            "catalog/v1/new/1-opened-.json",
            "catalog/v1/new/1-opened-%FF.json",
            "catalog/v1/manifest.json",
            "workers/1-opened-a.json",
        ] {
            assert_eq!(Announcement::parse(key, Time::default()), None, "{key}");
        }
    }
}
