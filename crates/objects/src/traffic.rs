//! Watches the requests to an object store: counts them, and repairs listings.
//!
//! The client refuses a whole listing if one key in it is no path, such as `a//b`. It also cannot
//! tell the marker `a/` of a directory from the object `a`. Both are changed in the answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::BodyExt;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
    ReqwestConnector,
};
use object_store::path::Path;
use quick_xml::escape::unescape;
use swarmletfs_base::store::TEMPORARY_PREFIX;
use tokio::time::sleep;

/// Longest pause before a request is repeated.
pub(crate) const PAUSE_MAX: Duration = Duration::from_secs(2);
/// The statuses of credentials that are wrong or have expired.
const REFUSALS: [u16; 3] = [400, 401, 403];
/// The statuses of too many requests: 503 is the one of S3, and of Azure.
const TOO_MANY: [u16; 2] = [429, 503];
/// The header by which a server asks for a pause, in seconds.
const RETRY_AFTER: &str = "retry-after";
/// The name of an entry that stands for the marker of its directory. No listing shows it.
const MARKER: &str = "marker";
/// The elements of a listing that hold an object and its key: of S3 and Google, and of Azure.
const ELEMENTS: [(&str, &str, &str, &str); 2] =
    [("<Contents>", "</Contents>", "<Key>", "</Key>"), ("<Blob>", "</Blob>", "<Name>", "</Name>")];

/// Requests that were sent to an object store so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestCounts {
    /// Pages of a listing, of at most 1,000 keys each.
    pub lists: u64,
    /// Reads of objects, and everything else.
    pub reads: u64,
    /// Size of the answers, in bytes.
    pub bytes: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Traffic {
    lists: AtomicU64,
    reads: AtomicU64,
    bytes: AtomicU64,
    /// Keys that were removed from listings since [`Traffic::take_removed`].
    removed: AtomicU64,
    /// True if credentials were refused since [`Traffic::take_refused`].
    was_refused: AtomicBool,
    /// Answers that refuse a request since there are too many.
    throttled: AtomicU64,
}

/// Requests to all object stores.
static ALL: Traffic = Traffic {
    lists: AtomicU64::new(0),
    reads: AtomicU64::new(0),
    bytes: AtomicU64::new(0),
    removed: AtomicU64::new(0),
    was_refused: AtomicBool::new(false),
    throttled: AtomicU64::new(0),
};

/// Returns the requests that this process has sent to all object stores.
pub fn all_requests() -> RequestCounts {
    ALL.requests()
}

impl Traffic {
    fn add_request(&self, is_list: bool) {
        let count = if is_list { &self.lists } else { &self.reads };
        count.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn requests(&self) -> RequestCounts {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        RequestCounts { lists: get(&self.lists), reads: get(&self.reads), bytes: get(&self.bytes) }
    }

    pub(crate) fn take_removed(&self) -> u64 {
        self.removed.swap(0, Ordering::Relaxed)
    }

    /// Returns the number of answers that refuse a request since there are too many.
    pub(crate) fn throttled(&self) -> u64 {
        self.throttled.load(Ordering::Relaxed)
    }

    /// Adds an answer that refuses the credentials.
    pub(crate) fn refuse(&self) {
        self.was_refused.store(true, Ordering::Relaxed);
    }

    /// Returns true if an answer since the last call may mean that credentials are not valid any
    /// more.
    pub(crate) fn take_refused(&self) -> bool {
        self.was_refused.swap(false, Ordering::Relaxed)
    }

    fn add_bytes(&self, count: usize) {
        self.bytes.fetch_add(count as u64, Ordering::Relaxed);
    }
}

/// Connects clients whose requests are watched.
#[derive(Debug)]
pub(crate) struct WatchedConnector(pub(crate) Arc<Traffic>);

impl HttpConnector for WatchedConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(WatchedClient { client, traffic: self.0.clone() }))
    }
}

#[derive(Debug)]
struct WatchedClient {
    client: HttpClient,
    traffic: Arc<Traffic>,
}

#[async_trait]
impl HttpService for WatchedClient {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let query = request.uri().query().unwrap_or_default();
        let is_list = query.contains("list-type=2") || query.contains("comp=list");
        [&*self.traffic, &ALL].iter().for_each(|traffic| traffic.add_request(is_list));
        let (parts, body) = self.client.execute(request).await?.into_parts();
        if REFUSALS.contains(&parts.status.as_u16()) {
            self.traffic.refuse();
        }
        if TOO_MANY.contains(&parts.status.as_u16()) {
            self.traffic.throttled.fetch_add(1, Ordering::Relaxed);
        }
        // The client repeats the request; it does not know the header.
        let pause =
            parts.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        if let Some(seconds) = pause.filter(|_| !parts.status.is_success()) {
            sleep(Duration::from_secs(seconds).min(PAUSE_MAX)).await;
        }
        if !is_list || !parts.status.is_success() {
            let traffic = self.traffic.clone();
            let counted = body.map_frame(move |frame| {
                let size = frame.data_ref().map_or(0, Bytes::len);
                [&*traffic, &ALL].iter().for_each(|traffic| traffic.add_bytes(size));
                frame
            });
            return Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(counted)));
        }
        let listing = body.bytes().await?;
        [&*self.traffic, &ALL].iter().for_each(|traffic| traffic.add_bytes(listing.len()));
        let body = match std::str::from_utf8(&listing) {
            Ok(text) => {
                let (repaired, removed) = repair(text);
                self.traffic.removed.fetch_add(removed, Ordering::Relaxed);
                HttpResponseBody::from(repaired)
            }
            Err(_) => listing.into(),
        };
        Ok(HttpResponse::from_parts(parts, body))
    }
}

/// Removes the objects of the listing `text` whose keys are no paths, and names the markers of
/// directories. Returns the listing with the number of removed objects.
fn repair(text: &str) -> (String, u64) {
    let (mut repaired, mut removed) = (String::with_capacity(text.len()), 0);
    let Some((open, close, key_open, key_close)) =
        ELEMENTS.into_iter().find(|(open, ..)| text.contains(open))
    else {
        return (text.to_owned(), 0);
    };
    let mut parts = text.split(open);
    repaired.extend(parts.next());
    for part in parts {
        let (object, after) = part.split_once(close).unwrap_or((part, ""));
        let key = object.split_once(key_open).and_then(|(before, rest)| {
            let (key, after) = rest.split_once(key_close)?;
            Some((before, key, after))
        });
        let state = key.and_then(|(_, key, _)| unescape(key).ok()).map(|key| KeyForm::find(&key));
        match (key, state) {
            (Some((before, key, rest)), Some(KeyForm::Marker)) => {
                let name = [TEMPORARY_PREFIX, MARKER].concat();
                let object = [before, key_open, key, &name, key_close, rest].concat();
                repaired.extend([open, &object, close]);
            }
            (Some(_), Some(KeyForm::Path)) => repaired.extend([open, object, close]),
            _ => removed += 1,
        }
        repaired.push_str(after);
    }
    (repaired, removed)
}

enum KeyForm {
    Path,
    /// The key of a directory, with a `/` at its end.
    Marker,
    Other,
}

impl KeyForm {
    fn find(key: &str) -> KeyForm {
        let (path, form) = match key.strip_suffix('/') {
            Some(path) => (path, KeyForm::Marker),
            None => (key, KeyForm::Path),
        };
        let is_path = !path.starts_with('/') && !path.ends_with('/') && !path.is_empty();
        if is_path && Path::parse(path).is_ok() { form } else { KeyForm::Other }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(keys: &[&str]) -> String {
        let objects: String = keys
            .iter()
            .map(|key| format!("<Contents><Key>{key}</Key><Size>1</Size></Contents>"))
            .collect();
        format!(
            "<ListBucketResult><Name>b</Name>{objects}<KeyCount>1</KeyCount></ListBucketResult>"
        )
    }

    #[test]
    fn keys_that_are_no_paths_are_removed_and_counted() {
        let keys = ["a/b", "a//b", "/a", "a/../b", ".", "c&amp;d", "x&#1;y", "/", "", "e f%"];
        assert_eq!(repair(&listed(&keys)), (listed(&["a/b", "c&amp;d", "e f%"]), 7));
    }

    #[test]
    fn markers_of_directories_get_a_name() {
        let named = listed(&["a/.swarmletfs-marker", "b"]);
        assert_eq!(repair(&listed(&["a/", "b"])), (named, 0));
    }

    #[test]
    fn listings_of_azure_and_texts_without_objects_are_understood() {
        let blob = |key| format!("<Blobs><Blob><Name>{key}</Name></Blob></Blobs>");
        assert_eq!(repair(&blob("a")), (blob("a"), 0));
        assert_eq!(repair(&blob("a//b")), ("<Blobs></Blobs>".to_owned(), 1));
        for text in ["", "<Error/>", "<Contents>"] {
            assert!(repair(text).0.len() <= text.len());
        }
    }
}
