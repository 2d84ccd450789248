//! The newest listing of an object store.
//!
//! A listing that is old enough is read again in the background when someone asks for it. The
//! caller waits a moment for the new one and then takes the old one, so a store that does not
//! answer slows nothing down. After a failure the old listing stays, and nobody waits for the next.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::{Timestamp, Unit};
use parking_lot::{Condvar, Mutex};
use tracing::{info, warn};

use crate::ObjectSettings;
use crate::bucket_url::BucketUrl;
use crate::connection::{Connection, ListedKeys};
use crate::failure::{FailureKind, RequestFailure};
use crate::key_tree::KeyTree;

/// Longest time to wait for a new listing.
const WAIT_MAX: Duration = Duration::from_secs(2);
/// Longest time for the first listing. Each of its requests has its own deadline.
const FIRST_MAX: Duration = Duration::from_secs(60 * 60);
/// Minimum age of a listing that is found to be outdated.
const OUTDATED_MIN: Duration = Duration::from_secs(1);
/// Time for which a page of a listing is not read again. It bounds the requests to 120 a minute.
const PAGE_COST: Duration = Duration::from_millis(500);

pub(crate) struct CurrentListing {
    connection: Connection,
    url: BucketUrl,
    refresh: Duration,
    keys_max: usize,
    state: Mutex<ListingState>,
    /// Notified when a listing ends.
    ended: Condvar,
}

struct ListingState {
    tree: Arc<KeyTree>,
    listed_at: Instant,
    /// The time of `listed_at` for the user.
    listed_time: Timestamp,
    /// Time from which on the listing is read again.
    due: Instant,
    /// Start of the listing in progress.
    started: Option<Instant>,
    /// Failure of the last listing.
    failure: Option<RequestFailure>,
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
        let (lister, prefix, keys_max) =
            (connection.clone(), url.prefix.clone(), settings.keys_max);
        let listed =
            connection.wait(FIRST_MAX, async move { lister.list(&prefix, keys_max).await })?;
        let pages = listed.pages;
        let tree = make_tree(listed, &url, 0);
        if tree.is_empty() {
            return Err(RequestFailure::new(FailureKind::Empty, "there is no object beneath it"));
        }
        let now = Instant::now();
        let refresh = settings.refresh;
        let state = ListingState {
            tree: Arc::new(tree),
            listed_at: now,
            listed_time: Timestamp::now(),
            due: now + interval(refresh, pages),
            started: None,
            failure: None,
        };
        let (state, ended) = (Mutex::new(state), Condvar::new());
        Ok(CurrentListing { connection, url, refresh, keys_max, state, ended })
    }

    /// Returns the newest listing. Reads it again if it is due.
    pub(crate) fn tree(self: &Arc<Self>) -> Arc<KeyTree> {
        let mut state = self.state.lock();
        let now = Instant::now();
        if state.started.is_none() && now >= state.due {
            state.started = Some(now);
            let current = self.clone();
            self.connection.start(async move {
                let listed = current.connection.list(&current.url.prefix, current.keys_max).await;
                current.finish(listed);
            });
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
        let (url, cure) = (&self.url.text, failure.cure());
        Some(format!("cannot list {url}: {failure}; its listing of {time} is shown; {cure}"))
    }

    /// Makes the listing due, since an object differs from it.
    pub(crate) fn outdate(&self) {
        let mut state = self.state.lock();
        state.due = state.due.min(state.listed_at + OUTDATED_MIN);
    }

    fn finish(&self, listed: Result<ListedKeys, RequestFailure>) {
        let mut state = self.state.lock();
        let now = Instant::now();
        match listed {
            Ok(listed) => {
                let pages = listed.pages;
                let tree = make_tree(listed, &self.url, state.tree.left_out);
                // An equal tree has the times of directories already.
                if !state.tree.has_same_objects(&tree) {
                    state.tree = Arc::new(tree);
                }
                if state.failure.take().is_some() {
                    info!("{} can be listed again", self.url.text);
                }
                (state.listed_at, state.listed_time) = (now, Timestamp::now());
                state.due = now + interval(self.refresh, pages);
            }
            Err(failure) => {
                if state.failure.is_none() {
                    let age = now.duration_since(state.listed_at).as_secs();
                    let url = &self.url.text;
                    warn!("cannot list {url}: {failure}; its listing of {age} s ago is shown");
                }
                state.failure = Some(failure);
                state.due = now + self.refresh;
            }
        }
        state.started = None;
        self.ended.notify_all();
    }
}

fn interval(refresh: Duration, pages: usize) -> Duration {
    refresh.max(PAGE_COST.saturating_mul(u32::try_from(pages).unwrap_or(u32::MAX)))
}

fn make_tree(listed: ListedKeys, url: &BucketUrl, left_out_before: u64) -> KeyTree {
    let tree = KeyTree::new(listed.objects, listed.removed);
    if tree.left_out > left_out_before {
        let (count, url) = (tree.left_out, &url.text);
        warn!("{count} keys beneath {url} are left out: they are no paths, or names of folders");
    }
    tree
}
