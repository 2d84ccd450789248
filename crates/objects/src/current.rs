//! The newest listing of an object store.
//!
//! A listing that is old enough is read again in the background when someone asks for it. The
//! caller waits a moment for the new one and then takes the old one, so a store that does not
//! answer slows nothing down. After a failure the old listing stays, and nobody waits for the next.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use jiff::{Timestamp, Unit};
use parking_lot::{Condvar, Mutex};
use tracing::{info, warn};

use crate::ObjectSettings;
use crate::bucket_url::BucketUrl;
use crate::catalog::{CatalogFacts, CatalogReader, split_worker};
use crate::connection::Connection;
use crate::failure::{FailureKind, RequestFailure};
use crate::key_tree::{KeyTree, ListedObject};
use crate::listing::{Lister, ListingMemory, NewListing, WholeListing};

/// Longest time to wait for a new listing.
const WAIT_MAX: Duration = Duration::from_secs(2);
/// Longest time for the first listing. Each of its requests has its own deadline.
const FIRST_MAX: Duration = Duration::from_secs(60 * 60);
/// Minimum age of a listing that is found to be outdated.
const OUTDATED_MIN: Duration = Duration::from_secs(1);
/// Time for which a request of a listing is not sent again. It bounds them to 120 a minute.
const REQUEST_COST: Duration = Duration::from_millis(500);
/// Time for which a page of a whole listing is not read again. It bounds them to 30 a minute.
const WHOLE_PAGE_COST: Duration = Duration::from_secs(2);
/// Minimum ratio of the age of a listing to the time that it took to make its tree.
const TREE_COST_FACTOR: u32 = 10;

pub(crate) struct CurrentListing {
    lister: Arc<Lister>,
    refresh: Duration,
    whole_refresh: Duration,
    state: Mutex<ListingState>,
    /// Notified when a listing ends.
    ended: Condvar,
}

struct ListingState {
    tree: Arc<KeyTree>,
    memory: ListingMemory,
    /// Number of requests of the last listing.
    requests: usize,
    listed_at: Instant,
    /// The time of `listed_at` for the user.
    listed_time: Timestamp,
    /// Failure of the last listing.
    failure: Option<RequestFailure>,
    /// Time from which on the listing is read again; `None` if it never changes.
    due: Option<Instant>,
    /// Start of the listing in progress.
    started: Option<Instant>,
    /// Time from which on the whole store is listed beside its catalog; `None` while it is.
    whole_due: Option<Instant>,
    /// A whole listing that the next listing adds.
    whole: Option<WholeListing>,
    /// Workers of which an object differs from the listing.
    suspects: HashSet<String>,
}

impl CurrentListing {
    /// Lists the keys beneath the prefix of `url`.
    ///
    /// # Errors
    ///
    /// They cannot be listed, or there are none.
    pub(crate) fn read(
        connection: Connection,
        url: BucketUrl,
        settings: &ObjectSettings,
    ) -> Result<CurrentListing, RequestFailure> {
        let reader = settings.catalog.then(|| CatalogReader {
            connection: connection.clone(),
            prefix: url.prefix.clone(),
            rows_max: settings.keys_max,
            cache: settings.cache.clone(),
        });
        let lister = Lister { keys_max: settings.keys_max, ..Lister::new(connection, url, reader) };
        let lister = Arc::new(lister);
        let first = lister.clone();
        let listed = lister.connection.wait(FIRST_MAX, async move {
            first.list(&ListingMemory::default(), &HashSet::new()).await
        })?;
        let begun = Instant::now();
        let tree = make_tree(listed.objects.unwrap_or_default(), listed.removed, &lister.url, 0);
        if tree.is_empty() {
            return Err(RequestFailure::new(FailureKind::Empty, "there is no object beneath it"));
        }
        let refreshes = (settings.refresh, settings.whole_refresh);
        let current = CurrentListing::new(lister, tree, refreshes);
        {
            let mut state = current.state.lock();
            state.requests = listed.requests;
            state.memory = listed.memory;
            state.due = Some(begun + interval(settings.refresh, listed.requests, begun.elapsed()));
        }
        Ok(current)
    }

    /// Makes a listing of `objects` that never changes.
    pub(crate) fn fixed(
        connection: Connection,
        url: BucketUrl,
        objects: Vec<ListedObject>,
    ) -> CurrentListing {
        let lister = Arc::new(Lister::new(connection, url, None));
        CurrentListing::new(lister, KeyTree::new(objects, 0), (Duration::MAX, Duration::MAX))
    }

    fn new(
        lister: Arc<Lister>,
        tree: KeyTree,
        (refresh, whole_refresh): (Duration, Duration),
    ) -> CurrentListing {
        let state = ListingState {
            tree: Arc::new(tree),
            memory: ListingMemory::default(),
            requests: 0,
            listed_at: Instant::now(),
            listed_time: Timestamp::now(),
            failure: None,
            due: None,
            started: None,
            whole_due: Instant::now().checked_add(whole_refresh),
            whole: None,
            suspects: HashSet::new(),
        };
        let (state, ended) = (Mutex::new(state), Condvar::new());
        CurrentListing { lister, refresh, whole_refresh, state, ended }
    }

    /// Returns facts about the catalog, if it is used.
    pub(crate) fn catalog(&self) -> Option<CatalogFacts> {
        self.state.lock().memory.facts()
    }

    /// Returns the number of requests of a listing, and the time after which it is read again.
    pub(crate) fn cost(&self) -> (usize, Duration) {
        let requests = self.state.lock().requests;
        (requests, interval(self.refresh, requests, Duration::ZERO))
    }

    /// Takes the content of an object that the catalog holds.
    pub(crate) fn take_content(&self, object: &ListedObject) -> Option<Bytes> {
        self.lister.seeds.take(object)
    }

    /// Returns the newest listing. Reads it again if it is due.
    pub(crate) fn tree(self: &Arc<Self>) -> Arc<KeyTree> {
        let mut state = self.state.lock();
        let now = Instant::now();
        if state.started.is_none() && state.due.is_some_and(|due| now >= due) {
            state.started = Some(now);
            if let Some(whole) = state.whole.take() {
                state.memory.add_whole(whole);
            }
            let (memory, suspects) = (state.memory.clone(), std::mem::take(&mut state.suspects));
            let current = self.clone();
            self.lister.connection.start(async move {
                let listed = current.lister.list(&memory, &suspects).await;
                current.finish(listed, suspects);
            });
        }
        if state.due.is_some() && state.whole_due.is_some_and(|due| now >= due) {
            self.start_whole(&mut state);
        }
        if let Some(started) = state.started.filter(|_| state.failure.is_none()) {
            while state.started == Some(started) {
                if self.ended.wait_until(&mut state, started + WAIT_MAX).timed_out() {
                    break;
                }
            }
        }
        state.tree.clone()
    }

    /// Returns why an old listing is shown, and its time.
    pub(crate) fn outage(&self) -> Option<String> {
        let state = self.state.lock();
        let failure = state.failure.as_ref()?;
        let time = state.listed_time.round(Unit::Second).unwrap_or(state.listed_time);
        let (url, cure) = (&self.lister.url.text, failure.cure());
        Some(format!("cannot list {url}: {failure}; its listing of {time} is shown; {cure}"))
    }

    /// Starts to list the whole store, to find changes that nobody announced.
    fn start_whole(self: &Arc<Self>, state: &mut ListingState) {
        let Some(workers) = state.memory.workers() else { return };
        state.whole_due = None;
        let current = self.clone();
        self.lister.connection.start(async move {
            let listed = current.lister.list_whole(&workers).await;
            let mut state = current.state.lock();
            let pages = listed.as_ref().map_or(0, |whole| whole.pages);
            let cost = WHOLE_PAGE_COST.saturating_mul(u32::try_from(pages).unwrap_or(u32::MAX));
            state.whole_due = Instant::now().checked_add(current.whole_refresh.max(cost));
            match listed {
                Ok(whole) => state.whole = Some(whole),
                Err(failure) => {
                    warn!("cannot list all of {}: {failure}", current.lister.url.text);
                }
            }
        });
    }

    /// Makes the listing due, since the object `key` differs from it.
    pub(crate) fn outdate(&self, key: &str) {
        let mut state = self.state.lock();
        let path = key.strip_prefix(&*self.lister.url.prefix).unwrap_or(key);
        if let Some((worker, _)) = split_worker(path) {
            state.suspects.insert(worker.to_owned());
        }
        let soon = state.listed_at + OUTDATED_MIN;
        state.due = state.due.map(|due| due.min(soon));
    }

    fn finish(&self, listed: Result<NewListing, RequestFailure>, suspects: HashSet<String>) {
        // Making a tree of many keys takes time, which nobody waits for.
        let (before, left_out) = {
            let state = self.state.lock();
            (state.tree.clone(), state.tree.left_out)
        };
        let (url, begun) = (&self.lister.url, Instant::now());
        let listed = listed.map(|mut listed| {
            let objects = listed.objects.take();
            let tree = objects.map(|objects| make_tree(objects, listed.removed, url, left_out));
            (listed, tree.filter(|tree| !before.has_same_objects(tree)))
        });
        let mut state = self.state.lock();
        let now = Instant::now();
        match listed {
            Ok((listed, tree)) => {
                // An equal tree has the times of directories already.
                if let Some(tree) = tree {
                    state.tree = Arc::new(tree);
                }
                if state.failure.take().is_some() {
                    info!("{} can be listed again", url.text);
                }
                (state.memory, state.requests) = (listed.memory, listed.requests);
                (state.listed_at, state.listed_time) = (now, Timestamp::now());
                state.due = Some(now + interval(self.refresh, listed.requests, begun.elapsed()));
            }
            Err(failure) => {
                if state.failure.is_none() {
                    let (age, url) = (now.duration_since(state.listed_at).as_secs(), &url.text);
                    warn!("cannot list {url}: {failure}; its listing of {age} s ago is shown");
                }
                state.failure = Some(failure);
                state.due = Some(now + self.refresh);
                state.suspects.extend(suspects);
            }
        }
        state.started = None;
        self.ended.notify_all();
    }
}

fn interval(refresh: Duration, requests: usize, tree_cost: Duration) -> Duration {
    let requests = u32::try_from(requests).unwrap_or(u32::MAX);
    refresh
        .max(REQUEST_COST.saturating_mul(requests))
        .max(tree_cost.saturating_mul(TREE_COST_FACTOR))
}

fn make_tree(
    objects: Vec<ListedObject>,
    removed: u64,
    url: &BucketUrl,
    left_out_before: u64,
) -> KeyTree {
    let tree = KeyTree::new(objects, removed);
    if tree.left_out > left_out_before {
        let (count, url) = (tree.left_out, &url.text);
        warn!("{count} keys beneath {url} are left out: they are no paths, or names of folders");
    }
    tree
}
