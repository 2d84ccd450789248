//! Object stores as stores that are read, and writing their objects: S3 and its relatives, Google
//! Cloud Storage, Azure.
//!
//! ```text
//! bucket_url       the URL: a provider, a bucket, and the prefix of the keys
//! failure          why a request failed, and the remedy
//! traffic          counts requests, and removes keys from listings that are no paths
//! profile          the profiles of the AWS CLI
//! provider         the client of a provider, from the environment and a profile
//! connection       one thread with a runtime, and requests with a deadline
//! key_tree         a tree of directories from the sorted keys of a listing
//! parts            growing files and transcripts that are stored in parts
//! catalog          rows of all workers, which replace most of a listing
//! seeds            contents of small objects, from the catalog
//! listing          lists a store, by its catalog where it has one
//! current          the newest listing, refreshed in the background
//! blocks           parts of objects, cached in memory and on disk by ETag
//! ahead            guesses which objects are opened next
//! bucket           implements `Store` and `File`
//! writer           puts, uploads and deletes objects
//! ```
//!
//! The keys beneath a prefix are listed as a whole. A directory is a prefix of keys, so it exists
//! as long as one key begins with it. An object is one version, named by its ETag: a file stays the
//! version that was opened, and reading it after the object was replaced is an error.
//!
//! All sockets belong to one thread, which starts with the first store. The threads that serve a
//! mount may open none; they wait for that thread instead.

mod ahead;
mod blocks;
mod bucket;
mod bucket_url;
mod catalog;
mod connection;
mod current;
mod failure;
mod key_tree;
mod listing;
mod parts;
mod profile;
mod provider;
mod seeds;
mod traffic;
mod writer;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use swarmletfs_base::cache::DiskCache;
use swarmletfs_base::name::printable_path;

pub use bucket::Bucket;
pub use bytes::Bytes;
pub use catalog::{
    CATALOG_MANIFEST, CatalogError, CatalogFacts, CatalogReport, Compaction, CompactionTurn,
    ConditionSupport, DescribeWorkers, WholeSearch, WorkerNews, announce, find_conditions,
    have_many_announced,
};
pub use failure::RequestFailure;
pub use parts::{file_of_part, part_key, parts_prefix};
pub use traffic::{RequestCounts, all_requests};
pub use writer::{
    BucketWriter, KeyEntry, PutCondition, PutError, StoredVersion, UPLOAD_PART, content_etag,
};

use bucket_url::BucketUrl;
use failure::FailureKind;

/// The bounds of an object store.
#[derive(Clone)]
pub struct ObjectSettings {
    /// Options of the provider, such as `aws_endpoint`, that precede the environment.
    pub options: Vec<(String, String)>,
    /// Minimum age of a listing that is read again.
    pub refresh: Duration,
    /// True if the catalog of the store is used.
    pub catalog: bool,
    /// Minimum age of a listing of all workers beside a catalog that is read again.
    pub whole_refresh: Duration,
    /// Maximum duration of a request with all its repetitions.
    pub deadline: Duration,
    /// Maximum number of keys beneath the prefix.
    pub keys_max: usize,
    /// Maximum size of the blocks that are cached in memory, in bytes.
    pub memory: u64,
    /// Cache of blocks that later processes read.
    pub cache: Option<Arc<DiskCache>>,
}

impl Default for ObjectSettings {
    fn default() -> ObjectSettings {
        ObjectSettings {
            options: Vec::new(),
            refresh: Duration::from_secs(5),
            catalog: true,
            whole_refresh: Duration::from_secs(10 * 60),
            deadline: Duration::from_secs(10),
            keys_max: 1_000_000,
            memory: 64 << 20,
            cache: None,
        }
    }
}

/// An object store that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {url}: {reason}; {cure}")]
pub struct OpenError {
    pub url: String,
    pub reason: String,
    /// The remedy, as an imperative.
    pub cure: String,
}

impl OpenError {
    fn new(url: &Path, failure: &RequestFailure) -> OpenError {
        OpenError { url: printable_path(url), reason: failure.to_string(), cure: failure.cure() }
    }
}

/// Opens the part of an object store that `url` names, and lists its keys.
///
/// # Errors
///
/// The URL is wrong, the store cannot be reached or refuses the keys, there is no object beneath
/// the prefix, or there are too many.
pub fn open(url: &Path, settings: &ObjectSettings) -> Result<Bucket, OpenError> {
    try_open(url, settings).map_err(|failure| OpenError::new(url, &failure))
}

/// Opens the part of an object store that `url` names as [`open`] does. Returns `None` if there is
/// no object beneath the prefix.
///
/// # Errors
///
/// The other errors of [`open`].
pub fn open_if_any(url: &Path, settings: &ObjectSettings) -> Result<Option<Bucket>, OpenError> {
    match try_open(url, settings) {
        Err(failure) if failure.kind == FailureKind::Empty => Ok(None),
        opened => opened.map(Some).map_err(|failure| OpenError::new(url, &failure)),
    }
}

fn try_open(url: &Path, settings: &ObjectSettings) -> Result<Bucket, RequestFailure> {
    Bucket::open(BucketUrl::parse(url)?, settings)
}
