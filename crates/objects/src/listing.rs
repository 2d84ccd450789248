//! Lists a store, by its catalog where it has one.
//!
//! With a catalog, a listing consists of the rows of finished workers, a listing of each worker
//! that may change, and a listing of each directory beside the workers. If these are more than a
//! listing of everything is worth, everything is listed. Other programs announce nothing, so the
//! whole store is listed now and then. The difference to the rows is kept until the rows change: a
//! look at a worker counts only against the row that it was compared with.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use tracing::warn;

use crate::bucket_url::BucketUrl;
use crate::catalog::{
    Announcement, CATALOG, CatalogFacts, CatalogProblem, CatalogReader, CatalogState,
    CatalogedWorker, ObjectsByWorker, ROOT, is_announced_open, looks_max, news_by_worker,
    split_by_worker, split_worker,
};
use crate::connection::{Connection, ListedKeys};
use crate::failure::RequestFailure;
use crate::key_tree::ListedObject;
use crate::parts::WORKERS;
use crate::seeds::Seeds;

/// The only object in the directory of workers that belongs to no worker and that readers use.
const INDEX: &str = "workers/index.json";
/// Number of failures after which the store is listed without its catalog.
const FAILURES_MAX: u32 = 3;

type CatalogedWorkers = Arc<HashMap<Arc<str>, CatalogedWorker>>;

/// Lists the store of one URL.
pub(crate) struct Lister {
    pub(crate) connection: Connection,
    pub(crate) url: BucketUrl,
    pub(crate) keys_max: usize,
    /// `None` if the catalog is not used.
    pub(crate) catalog: Option<CatalogReader>,
    pub(crate) seeds: Arc<Seeds>,
    /// Number of times in a row that the catalog could not be read.
    pub(crate) failures: AtomicU32,
}

/// The state that a listing leaves for the next one.
#[derive(Clone, Default)]
pub(crate) struct ListingMemory {
    catalog: Option<CatalogState>,
    /// Workers that differ from their rows, by name.
    looks: HashMap<Arc<str>, WorkerLook>,
    /// The objects beside the workers.
    beside: Vec<ListedObject>,
    /// True if the looks changed since the last listing.
    has_new_looks: bool,
    /// True if the user knows that the catalog is not used.
    is_warned: bool,
    /// True if all was listed, since too much may have changed.
    is_flooded: bool,
}

/// The objects of a worker at the time when they were listed.
#[derive(Clone, PartialEq)]
struct WorkerLook {
    /// The objects in its row then; `None` without a row.
    base: Option<Arc<[ListedObject]>>,
    /// Keys of the announcements that were known then.
    seen: Vec<String>,
    objects: Arc<[ListedObject]>,
    at: Instant,
}

/// A listing of the store.
pub(crate) struct NewListing {
    /// `None` if it equals the one before.
    pub(crate) objects: Option<Vec<ListedObject>>,
    /// Number of keys that were left out, since they are no paths.
    pub(crate) removed: u64,
    pub(crate) requests: usize,
    pub(crate) memory: ListingMemory,
}

/// A whole listing that was compared with the rows of the catalog.
pub(crate) struct WholeListing {
    begun: Instant,
    pub(crate) pages: usize,
    looks: HashMap<Arc<str>, WorkerLook>,
}

impl ListingMemory {
    pub(crate) fn facts(&self) -> Option<CatalogFacts> {
        self.catalog.as_ref().map(CatalogState::facts)
    }

    /// Returns the rows to compare a whole listing with.
    pub(crate) fn workers(&self) -> Option<CatalogedWorkers> {
        self.catalog.as_ref().map(|state| state.workers.clone())
    }

    /// Adds the findings of a whole listing. A look that is newer stays.
    pub(crate) fn add_whole(&mut self, whole: WholeListing) {
        self.looks.retain(|_, look| look.at > whole.begun);
        for (worker, look) in whole.looks {
            self.looks.entry(worker).or_insert(look);
        }
        self.has_new_looks = true;
    }
}

impl Lister {
    pub(crate) fn new(
        connection: Connection,
        url: BucketUrl,
        catalog: Option<CatalogReader>,
    ) -> Lister {
        Lister {
            connection,
            url,
            keys_max: usize::MAX,
            catalog,
            seeds: Arc::default(),
            failures: AtomicU32::new(0),
        }
    }

    /// Lists the store. `suspects` are workers of which an object differs from the last listing.
    ///
    /// # Errors
    ///
    /// A request fails.
    pub(crate) async fn list(
        &self,
        memory: &ListingMemory,
        suspects: &HashSet<String>,
    ) -> Result<NewListing, RequestFailure> {
        let Some(reader) = &self.catalog else { return self.list_without_catalog(memory).await };
        let found = reader.list().await;
        // The manifest is one more.
        let requests = found.as_ref().map_or(1, |found| found.pages) + 1;
        let read = match found {
            Ok(found) => reader.read(found, memory.catalog.as_ref()).await,
            Err(failure) => Err(failure.into()),
        };
        let listed = match read {
            Ok(Some((state, contents))) => {
                self.failures.store(0, Ordering::Relaxed);
                self.seeds.add(contents);
                let memory = ListingMemory { is_warned: false, ..memory.clone() };
                self.list_with_catalog(state, memory, suspects).await?
            }
            Ok(None) => {
                let memory = ListingMemory { is_warned: memory.is_warned, ..Default::default() };
                self.list_without_catalog(&memory).await?
            }
            Err(CatalogProblem::Request(failure))
                if memory.catalog.is_some()
                    && self.failures.fetch_add(1, Ordering::Relaxed) < FAILURES_MAX =>
            {
                return Err(failure);
            }
            Err(problem) => {
                let listed = self.list_without_catalog(memory).await?;
                if !memory.is_warned {
                    let url = &self.url.text;
                    warn!("cannot use the catalog of {url}: {problem}; all objects are listed");
                }
                let memory = ListingMemory { is_warned: true, ..Default::default() };
                NewListing { memory, ..listed }
            }
        };
        Ok(NewListing { requests: requests + listed.requests, ..listed })
    }

    async fn list_without_catalog(
        &self,
        memory: &ListingMemory,
    ) -> Result<NewListing, RequestFailure> {
        let listed = self.connection.list(&self.url.prefix, self.keys_max).await?;
        let mut objects = listed.objects;
        objects.retain(|object| !object.path.starts_with(ROOT));
        let memory = ListingMemory { catalog: None, ..memory.clone() };
        let (removed, requests) = (listed.removed, listed.pages);
        Ok(NewListing { objects: Some(objects), removed, requests, memory })
    }

    async fn list_with_catalog(
        &self,
        state: CatalogState,
        mut memory: ListingMemory,
        suspects: &HashSet<String>,
    ) -> Result<NewListing, RequestFailure> {
        let base = |worker: &str| state.workers.get(worker).map(|row| &row.objects);
        let news = news_by_worker(&state.news);
        memory.looks.retain(|worker, look| {
            // A worker without objects is known by its announcements only.
            let is_known = look.base.is_some() || !look.objects.is_empty();
            look.base.as_ref() == base(worker) && (is_known || news.contains_key(&**worker))
        });
        let is_due = |worker: &str| {
            let announced = news.get(worker).map(Vec::as_slice).unwrap_or_default();
            let look = memory.looks.get(worker);
            let is_open_row = || state.workers.get(worker).is_some_and(|row| row.is_open);
            // It may change without a further announcement.
            is_announced_open(announced).unwrap_or_else(is_open_row)
                || suspects.contains(worker)
                || look.is_none_or(|look| !look.seen.iter().eq(announced.iter().map(|it| &it.key)))
        };
        let open = state.workers.iter().filter(|(_, row)| row.is_open).map(|(name, _)| &**name);
        let known = news.keys().copied().chain(open).chain(suspects.iter().map(String::as_str));
        let due: HashSet<&str> = known.filter(|worker| is_due(worker)).collect();
        let (at, level) = (Instant::now(), self.list_level().await?);
        let (mut requests, mut removed) = (level.pages, level.removed);
        let count = due.len() + level.folders.len();
        let beside;
        if count > looks_max(state.object_count()) {
            if !std::mem::replace(&mut memory.is_flooded, true) {
                let url = &self.url.text;
                warn!(
                    "{count} directories of {url} may have changed: all objects are listed \
                     instead of each; try `swarmletfs catalog {url}`, which takes in the workers \
                     that have ended"
                );
            }
            let listed = self.connection.list(&self.url.prefix, self.keys_max).await?;
            requests += listed.pages;
            removed = listed.removed;
            let (workers, others) = split_by_worker(listed.objects);
            memory.looks = compare(workers, &state.workers, at);
            for worker in news.keys().copied() {
                let seen = keys(&news, worker);
                let base = base(worker).cloned();
                let objects = base.clone().unwrap_or_default();
                let unchanged = WorkerLook { base, seen: Vec::new(), objects, at };
                memory.looks.entry(worker.into()).or_insert(unchanged).seen = seen;
            }
            beside = others;
        } else {
            memory.is_flooded = false;
            let workers = due.iter().map(|worker| format!("{WORKERS}{worker}/"));
            let folders = workers.chain(level.folders);
            let prefix = &self.url.prefix;
            let listed = self.connection.list_folders(prefix, folders, self.keys_max).await?;
            let mut others = level.objects;
            for (folder, mut listed) in listed {
                requests += listed.pages;
                removed += listed.removed;
                let worker = split_worker(&folder).map(|(worker, _)| worker);
                let Some(worker) = worker else {
                    // The key of the index begins other keys, too.
                    listed.objects.retain(|object| split_worker(&object.path).is_none());
                    others.extend(listed.objects);
                    continue;
                };
                let (base, seen) = (base(worker).cloned(), keys(&news, worker));
                let mut objects = listed.objects;
                objects.sort_unstable_by(|a, b| a.path.cmp(&b.path));
                let look = WorkerLook { base, seen, objects: objects.into(), at };
                memory.looks.insert(worker.into(), look);
            }
            others.sort_unstable_by(|a, b| a.path.cmp(&b.path));
            beside = [others, state.foreign.clone()].concat();
        }
        let previous = memory.catalog.replace(state.clone());
        // A worker that was listed by itself may have changed.
        let is_changed = std::mem::take(&mut memory.has_new_looks)
            || !due.is_empty()
            || memory.beside != beside
            || previous.is_none_or(|previous| !previous.is_same(&state));
        memory.beside = beside;
        let objects = is_changed.then(|| all_objects(&state, &memory));
        Ok(NewListing { objects, removed, requests, memory })
    }

    /// Lists the objects and the directories of the first level, each directory with a `/` at its
    /// end. Those of the workers and of the catalog are left out, but for the index of workers.
    async fn list_level(&self) -> Result<ListedKeys, RequestFailure> {
        let mut level = self.connection.list_level(&self.url.prefix, self.keys_max).await?;
        level.folders.iter_mut().for_each(|folder| folder.push('/'));
        level.folders.retain(|folder| folder != WORKERS && folder != CATALOG);
        level.folders.push(INDEX.to_owned());
        Ok(level)
    }

    /// Lists the whole store and compares it with the rows `workers`.
    ///
    /// # Errors
    ///
    /// A request fails.
    pub(crate) async fn list_whole(
        &self,
        workers: &CatalogedWorkers,
    ) -> Result<WholeListing, RequestFailure> {
        let begun = Instant::now();
        let listed = self.connection.list_beneath(&self.url.prefix, WORKERS, self.keys_max).await?;
        let (found, _) = split_by_worker(listed.objects);
        Ok(WholeListing { begun, pages: listed.pages, looks: compare(found, workers, begun) })
    }
}

fn keys(news: &BTreeMap<&str, Vec<&Announcement>>, worker: &str) -> Vec<String> {
    let announced = news.get(worker).map(Vec::as_slice).unwrap_or_default();
    announced.iter().map(|announcement| announcement.key.clone()).collect()
}

/// Returns the workers whose objects differ from their rows.
fn compare(
    mut found: ObjectsByWorker,
    rows: &HashMap<Arc<str>, CatalogedWorker>,
    at: Instant,
) -> HashMap<Arc<str>, WorkerLook> {
    let mut looks = HashMap::new();
    for (worker, row) in rows {
        let objects = found.remove(worker).unwrap_or_default();
        if *objects != *row.objects {
            let base = Some(row.objects.clone());
            let look = WorkerLook { base, seen: Vec::new(), objects: objects.into(), at };
            looks.insert(worker.clone(), look);
        }
    }
    let new = found.into_iter().map(|(worker, objects)| {
        (worker, WorkerLook { base: None, seen: Vec::new(), objects: objects.into(), at })
    });
    looks.extend(new);
    looks
}

fn all_objects(state: &CatalogState, memory: &ListingMemory) -> Vec<ListedObject> {
    let looks = memory.looks.values().map(|look| &look.objects);
    let rows = state.workers.iter().filter(|(name, _)| !memory.looks.contains_key(*name));
    let rows = rows.map(|(_, row)| &row.objects);
    let workers = looks.chain(rows).flat_map(|objects| objects.iter().cloned());
    workers.chain(memory.beside.iter().cloned()).collect()
}
