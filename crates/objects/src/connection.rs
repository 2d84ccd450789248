//! Requests to an object store, each with a deadline.
//!
//! One thread has the runtime of all stores. It starts with the first one, before the threads that
//! serve a mount are confined, and opens every socket. Other threads wait for its answers.

use std::collections::HashSet;
use std::future::{Future, pending};
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use object_store::list::PaginatedListOptions;
use object_store::path::Path;
use object_store::{Error as RequestError, GetOptions, GetRange, ObjectMeta};
use parking_lot::Mutex;
use swarmletfs_base::store::Time;
use tokio::runtime::{Builder, Handle};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::ObjectSettings;
use crate::bucket_url::BucketUrl;
use crate::failure::{FailureKind, Purpose, RequestFailure};
use crate::key_tree::ListedObject;
use crate::provider::{Remote, connect};
use crate::traffic::Traffic;

/// Maximum number of objects that are read at the same time.
const READS_MAX: usize = 64;
/// Maximum number of directories that are listed at the same time.
const LISTINGS_MAX: usize = 16;
/// Maximum number of threads that resolve names and parse catalogs.
const RESOLVERS_MAX: usize = 4;
/// Beginning of an ETag that names no bytes.
const WEAK: &str = "W/";
/// Maximum number of pages of a listing. Stores may answer with short pages.
const PAGES_MAX: usize = 20_000;

/// One version of an object.
#[derive(Debug)]
pub(crate) struct ObjectVersion {
    pub(crate) key: Path,
    /// Size in bytes.
    pub(crate) size: u64,
    /// Name of the version by the provider; `None` if it has none.
    pub(crate) etag: Option<String>,
    /// Time of the last write, which decides without an ETag.
    pub(crate) modified: Time,
}

/// The answer to a request for the newest version of an object.
#[derive(Debug)]
pub(crate) enum FetchedObject {
    Absent,
    NotModified,
    /// Its bytes and its ETag.
    Found(Bytes, Option<String>),
}

#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) remote: Arc<dyn Remote>,
    runtime: Handle,
    reads: Arc<Semaphore>,
    pub(crate) deadline: Duration,
    /// The provider and its endpoint. Different ones may use the same names for other contents.
    pub(crate) scope: Arc<str>,
    pub(crate) traffic: Arc<Traffic>,
}

/// The keys beneath a prefix.
#[derive(Default)]
pub(crate) struct ListedKeys {
    pub(crate) objects: Vec<ListedObject>,
    /// Directories with further keys, without a `/` at their ends; empty unless one level is
    /// listed.
    pub(crate) folders: Vec<String>,
    /// Keys that were left out, since they are no paths.
    pub(crate) removed: u64,
    pub(crate) pages: usize,
}

impl Connection {
    /// Prepares requests to the bucket of `url`. Sends none.
    pub(crate) fn new(
        url: &BucketUrl,
        settings: &ObjectSettings,
    ) -> Result<Connection, RequestFailure> {
        let traffic: Arc<Traffic> = Arc::default();
        let (remote, scope) = connect(url, settings, &traffic)
            .map_err(|error| RequestFailure::explain(&error, Purpose::List))?;
        let runtime = runtime().map_err(|error| {
            RequestFailure::new(FailureKind::Other, format!("no thread can be started: {error}"))
        })?;
        let reads = Arc::new(Semaphore::new(READS_MAX));
        Ok(Connection {
            remote,
            runtime,
            reads,
            deadline: settings.deadline,
            scope: scope.into(),
            traffic,
        })
    }

    /// Returns the duration of a request that is close to its deadline if it asks for a few times
    /// the bytes.
    pub(crate) fn slow(&self) -> Duration {
        self.deadline / 4
    }

    /// Starts `work` on the thread of the runtime.
    pub(crate) fn start(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(work);
    }

    /// Does `work` on the thread of the runtime and waits for its end, at most `limit`.
    pub(crate) fn wait<T: Send + 'static>(
        &self,
        limit: Duration,
        work: impl Future<Output = Result<T, RequestFailure>> + Send + 'static,
    ) -> Result<T, RequestFailure> {
        let (sender, receiver) = sync_channel(1);
        self.runtime.spawn(async move {
            // The waiting thread may have given up.
            let _ = sender.send(work.await);
        });
        receiver.recv_timeout(limit).unwrap_or_else(|error| {
            Err(match error {
                RecvTimeoutError::Timeout => RequestFailure::timed_out(),
                RecvTimeoutError::Disconnected => {
                    RequestFailure::new(FailureKind::Other, "the thread of its requests ended")
                }
            })
        })
    }

    /// Waits for a read of `version`; see [`Connection::read`].
    pub(crate) fn wait_for_read(
        &self,
        version: Arc<ObjectVersion>,
        range: Range<u64>,
    ) -> Result<Bytes, RequestFailure> {
        let connection = self.clone();
        // The request ends by itself; waiting in the queue of reads takes time, too.
        let limit = self.deadline.saturating_mul(2);
        self.wait(limit, async move { connection.read(&version, range).await })
    }

    /// Reads the bytes `range` of `version`.
    ///
    /// # Errors
    ///
    /// The object is another version now, or the answer has another length.
    pub(crate) async fn read(
        &self,
        version: &ObjectVersion,
        range: Range<u64>,
    ) -> Result<Bytes, RequestFailure> {
        let _turn = self.reads.acquire().await;
        let mut options =
            GetOptions { range: Some(GetRange::Bounded(range.clone())), ..GetOptions::default() };
        // A weak ETag matches nothing; the answer is compared in any case.
        options.if_match =
            version.etag.as_deref().filter(|etag| !etag.starts_with(WEAK)).map(quoted);
        let read = async {
            let found = self.remote.get_opts(&version.key, options).await?;
            let is_same = is_same_version(version, &found.meta);
            Ok::<_, object_store::Error>((is_same, found.bytes().await?))
        };
        let (is_same, bytes) = self.within_deadline(read, Purpose::Read).await?;
        if !is_same {
            return Err(RequestFailure::new(FailureKind::Gone, "the object was replaced"));
        }
        if bytes.len() as u64 != range.end.saturating_sub(range.start) {
            return Err(RequestFailure::new(FailureKind::Other, "the answer has another length"));
        }
        Ok(bytes)
    }

    async fn within_deadline<T>(
        &self,
        request: impl Future<Output = object_store::Result<T>>,
        purpose: Purpose,
    ) -> Result<T, RequestFailure> {
        let throttled = self.traffic.throttled();
        match timeout(self.deadline, request).await {
            Ok(answered) => answered.map_err(|error| RequestFailure::explain(&error, purpose)),
            Err(_) if self.traffic.throttled() > throttled => Err(RequestFailure::throttled()),
            Err(_) => Err(RequestFailure::timed_out()),
        }
    }

    /// Reads the newest version of a small object, unless it is still the version `known`.
    ///
    /// # Errors
    ///
    /// The request fails, or the object has more than `size_max` bytes.
    pub(crate) async fn fetch(
        &self,
        key: &str,
        known: Option<&str>,
        size_max: u64,
    ) -> Result<FetchedObject, RequestFailure> {
        let key = Path::parse(key).map_err(|error| {
            RequestFailure::new(FailureKind::Url, format!("a key is no path: {error}"))
        })?;
        let options = GetOptions { if_none_match: known.map(quoted), ..GetOptions::default() };
        let read = async {
            let found = match self.remote.get_opts(&key, options).await {
                Err(RequestError::NotModified { .. }) => return Ok(FetchedObject::NotModified),
                Err(RequestError::NotFound { .. }) => return Ok(FetchedObject::Absent),
                found => found.map_err(|error| RequestFailure::explain(&error, Purpose::Read))?,
            };
            let (size, etag) = (found.meta.size, found.meta.e_tag.clone());
            if size > size_max {
                return Err(RequestFailure::new(FailureKind::TooMany, "an object is too large"));
            }
            let bytes = found.bytes().await;
            let bytes = bytes.map_err(|error| RequestFailure::explain(&error, Purpose::Read))?;
            if bytes.len() as u64 != size {
                return Err(RequestFailure::new(
                    FailureKind::Other,
                    "the answer has another length",
                ));
            }
            Ok(FetchedObject::Found(bytes, etag))
        };
        timeout(self.deadline, read).await.map_err(|_| RequestFailure::timed_out())?
    }

    /// Lists the objects whose keys begin with `prefix`, at most `keys_max`.
    pub(crate) async fn list(
        &self,
        prefix: &str,
        keys_max: usize,
    ) -> Result<ListedKeys, RequestFailure> {
        self.list_pages(prefix, "", None, keys_max).await
    }

    /// Returns true if `count` keys begin with `prefix`, or more than one page of a listing has,
    /// which is 1,000 unless the store sends shorter ones.
    pub(crate) async fn has_many(
        &self,
        prefix: &str,
        count: usize,
    ) -> Result<bool, RequestFailure> {
        let page = self.remote.list_paginated(Some(prefix), PaginatedListOptions::default());
        let page = self.within_deadline(page, Purpose::List).await?;
        Ok(page.page_token.is_some() || page.result.objects.len() >= count)
    }

    /// Lists the objects whose keys begin with `prefix` and `beneath`, with their paths from
    /// `prefix`.
    pub(crate) async fn list_beneath(
        &self,
        prefix: &str,
        beneath: &str,
        keys_max: usize,
    ) -> Result<ListedKeys, RequestFailure> {
        self.list_pages(prefix, beneath, None, keys_max).await
    }

    /// Lists the objects whose keys begin with `prefix` and have no further `/`, and the
    /// directories beside them.
    pub(crate) async fn list_level(
        &self,
        prefix: &str,
        keys_max: usize,
    ) -> Result<ListedKeys, RequestFailure> {
        self.list_pages(prefix, "", Some("/"), keys_max).await
    }

    /// Lists several directories beneath `prefix` at the same time, at most `keys_max` keys in
    /// each. Returns each with its listing, in no order.
    pub(crate) async fn list_folders(
        &self,
        prefix: &str,
        folders: impl Iterator<Item = String>,
        keys_max: usize,
    ) -> Result<Vec<(String, ListedKeys)>, RequestFailure> {
        let (turns, mut listings) = (Arc::new(Semaphore::new(LISTINGS_MAX)), JoinSet::new());
        for folder in folders {
            let (connection, turns) = (self.clone(), turns.clone());
            let prefix = prefix.to_owned();
            listings.spawn(async move {
                let _turn = turns.acquire_owned().await;
                let listed = connection.list_beneath(&prefix, &folder, keys_max).await?;
                Ok::<_, RequestFailure>((folder, listed))
            });
        }
        let mut all = Vec::new();
        while let Some(listed) = listings.join_next().await {
            let listed = listed
                .map_err(|error| RequestFailure::new(FailureKind::Other, error.to_string()))?;
            all.push(listed?);
        }
        Ok(all)
    }

    async fn list_pages(
        &self,
        prefix: &str,
        beneath: &str,
        delimiter: Option<&'static str>,
        keys_max: usize,
    ) -> Result<ListedKeys, RequestFailure> {
        self.traffic.take_removed();
        let whole = format!("{prefix}{beneath}");
        let (mut listed, mut token) = (ListedKeys::default(), None);
        let mut tokens = HashSet::new();
        for page in 1..=PAGES_MAX {
            let options = PaginatedListOptions {
                page_token: token,
                delimiter: delimiter.map(Into::into),
                ..Default::default()
            };
            let wanted = (!whole.is_empty()).then_some(&*whole);
            let page_of_keys = self.remote.list_paginated(wanted, options);
            let answer = self.within_deadline(page_of_keys, Purpose::List).await?;
            let objects = answer.result.objects.into_iter();
            listed.objects.extend(objects.filter_map(|meta| object(meta, prefix)));
            let folders = answer.result.common_prefixes.iter();
            listed.folders.extend(
                folders
                    .filter_map(|folder| folder.as_ref().strip_prefix(prefix).map(str::to_owned)),
            );
            if listed.objects.len() + listed.folders.len() > keys_max {
                let reason = format!("more than {keys_max} objects lie beneath it");
                return Err(RequestFailure::new(FailureKind::TooMany, reason));
            }
            token = answer.page_token;
            let Some(next) = &token else {
                listed.removed = self.traffic.take_removed();
                listed.pages = page;
                return Ok(listed);
            };
            if !tokens.insert(blake3::hash(next.as_bytes())) {
                let reason = "its listing begins again instead of ending";
                return Err(RequestFailure::new(FailureKind::Other, reason));
            }
        }
        Err(RequestFailure::new(FailureKind::TooMany, "its listing has too many pages"))
    }
}

/// Returns the listed object with its path from the prefix.
fn object(meta: ObjectMeta, prefix: &str) -> Option<ListedObject> {
    let path = meta.location.as_ref().strip_prefix(prefix)?;
    let modified = Timestamp::new(
        meta.last_modified.timestamp(),
        i32::try_from(meta.last_modified.timestamp_subsec_nanos()).unwrap_or_default(),
    );
    Some(ListedObject {
        path: path.into(),
        size: meta.size,
        modified: modified.map(Time::from).unwrap_or_default(),
        // It becomes a header of a request.
        etag: meta.e_tag.filter(|etag| etag.bytes().all(is_visible)).map(Into::into),
        parts: Box::default(),
    })
}

fn is_visible(byte: u8) -> bool {
    byte.is_ascii_graphic()
}

/// Returns the ETag as a header has it. Azure lists it without quotes.
fn quoted(etag: &str) -> String {
    if etag.ends_with('"') { etag.to_owned() } else { format!("\"{etag}\"") }
}

/// Returns true if the answer is of `version`. A store may ignore the condition of a request.
fn is_same_version(version: &ObjectVersion, found: &ObjectMeta) -> bool {
    let is_same = match (&version.etag, &found.e_tag) {
        (Some(expected), Some(found)) => quoted(expected) == quoted(found),
        _ => version.modified.secs == found.last_modified.timestamp(),
    };
    is_same && found.size == version.size
}

/// Returns the runtime of all stores, and starts its thread at the first call.
fn runtime() -> std::io::Result<Handle> {
    static RUNTIME: Mutex<Option<Handle>> = Mutex::new(None);
    let mut running = RUNTIME.lock();
    if let Some(handle) = &*running {
        return Ok(handle.clone());
    }
    let runtime = Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(RESOLVERS_MAX)
        .thread_name("objects")
        .build()?;
    let handle = runtime.handle().clone();
    thread::Builder::new()
        .name("objects".into())
        .spawn(move || runtime.block_on(pending::<()>()))?;
    *running = Some(handle.clone());
    Ok(handle)
}
