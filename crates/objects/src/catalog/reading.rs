//! Reads the catalog: the manifest, the files that it names, and the announcements since.
//!
//! The announcements are listed before the manifest is read. A compaction deletes an announcement
//! only when a manifest covers it, so a reader sees the announcement, or the manifest, or both.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use object_store::path::Path;
use swarmletfs_base::cache::{DiskCache, key};
use swarmletfs_base::store::Time;
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, spawn_blocking};

use super::layout::{Announcement, CATALOG, MANIFEST, ROOT};
use super::manifest::{self, CatalogManifest, RowFile};
use super::problem::CatalogProblem;
use super::rows::{self, CatalogedWorker, ParsedRows};
use crate::connection::{Connection, FetchedObject, ListedKeys, ObjectVersion};
use crate::failure::{FailureKind, RequestFailure};
use crate::key_tree::ListedObject;

/// Number of files that are read at the same time.
const FILES_AT_ONCE: usize = 4;
/// Size of a request for a part of a file, in bytes.
const RANGE: u64 = 8 << 20;
/// Number of manifests that are tried: their files may be replaced meanwhile.
const MANIFESTS_MAX: usize = 3;

/// Reads the catalog of a store.
#[derive(Clone)]
pub(crate) struct CatalogReader {
    pub(crate) connection: Connection,
    /// Beginning of all keys.
    pub(crate) prefix: String,
    /// Maximum number of rows.
    pub(crate) rows_max: usize,
    pub(crate) cache: Option<Arc<DiskCache>>,
}

type SharedWorkers = Arc<[(Arc<str>, CatalogedWorker)]>;

/// The catalog as it was last read.
#[derive(Clone)]
pub(crate) struct CatalogState {
    manifest: Arc<CatalogManifest>,
    etag: Option<String>,
    /// The rows of each file, by the hash of its bytes.
    files: HashMap<String, SharedWorkers>,
    pub(crate) workers: Arc<HashMap<Arc<str>, CatalogedWorker>>,
    pub(crate) news: Vec<Announcement>,
    /// Objects in the directory of the catalog that do not belong to it.
    pub(crate) foreign: Vec<ListedObject>,
}

/// Facts about a catalog for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CatalogFacts {
    pub workers: usize,
    pub files: usize,
    /// Number of changes that wait for a compaction.
    pub news: usize,
    /// Time of the last listing of all workers, in RFC 3339.
    pub listed_at: String,
}

/// Contents of objects, each a version.
pub(crate) type KnownContents = Vec<(ListedObject, Bytes)>;

impl CatalogState {
    pub(crate) fn facts(&self) -> CatalogFacts {
        CatalogFacts {
            workers: self.workers.len(),
            files: self.manifest.files.len(),
            news: self.news.len(),
            listed_at: self.manifest.listed_at.to_string(),
        }
    }

    /// Returns the number of objects that the rows name.
    pub(crate) fn object_count(&self) -> usize {
        self.workers.values().map(|worker| worker.objects.len()).sum()
    }

    /// Returns true if both have the same rows, announcements and other objects.
    pub(crate) fn is_same(&self, other: &CatalogState) -> bool {
        Arc::ptr_eq(&self.workers, &other.workers)
            && self.news == other.news
            && self.foreign == other.foreign
    }
}

impl CatalogReader {
    /// Lists the objects of the catalog.
    ///
    /// # Errors
    ///
    /// A request fails, or there are too many.
    pub(crate) async fn list(&self) -> Result<ListedKeys, RequestFailure> {
        self.connection.list_beneath(&self.prefix, CATALOG, self.rows_max).await
    }

    /// Reads the catalog whose objects were `listed`; `previous` is the last state. Also returns
    /// the contents of objects in files that were not read before. Returns `None` if there is no
    /// catalog.
    ///
    /// # Errors
    ///
    /// It is damaged or of another version, or a request fails.
    pub(crate) async fn read(
        &self,
        listed: ListedKeys,
        previous: Option<&CatalogState>,
    ) -> Result<Option<(CatalogState, KnownContents)>, CatalogProblem> {
        if !listed.objects.iter().any(|object| *object.path == *MANIFEST) {
            return Ok(None);
        }
        let news = listed
            .objects
            .iter()
            .filter_map(|object| Announcement::parse(&object.path, object.modified));
        let news = news.collect();
        let mut foreign = listed.objects;
        foreign.retain(|object| !object.path.starts_with(ROOT));
        let known = previous.and_then(|state| state.etag.as_deref());
        let found = self.connection.fetch(&self.key(MANIFEST), known, manifest::SIZE_MAX).await?;
        let (mut json, mut etag) = match (found, previous) {
            (FetchedObject::NotModified, Some(previous)) => {
                return Ok(Some((CatalogState { news, foreign, ..previous.clone() }, Vec::new())));
            }
            (FetchedObject::Found(json, etag), _) => (json, etag),
            _ => return Ok(None),
        };
        let empty = HashMap::new();
        let known_files = previous.map_or(&empty, |state| &state.files);
        for tried in 1.. {
            let manifest = CatalogManifest::parse(&json, self.rows_max)?;
            match self.read_files(&manifest, known_files).await {
                Ok((files, contents)) => {
                    let workers = files.values().flat_map(|rows| rows.iter().cloned()).collect();
                    let state = CatalogState {
                        manifest: Arc::new(manifest),
                        etag,
                        files,
                        workers: Arc::new(workers),
                        news,
                        foreign,
                    };
                    return Ok(Some((state, contents)));
                }
                Err(CatalogProblem::Request(failure))
                    if failure.kind == FailureKind::Gone && tried < MANIFESTS_MAX => {}
                Err(problem) => return Err(problem),
            }
            let key = self.key(MANIFEST);
            match self.connection.fetch(&key, None, manifest::SIZE_MAX).await? {
                FetchedObject::Found(newer, newer_etag) => (json, etag) = (newer, newer_etag),
                FetchedObject::NotModified | FetchedObject::Absent => return Ok(None),
            }
        }
        Ok(None)
    }

    /// Reads the files of `manifest` that are not `known`.
    async fn read_files(
        &self,
        manifest: &CatalogManifest,
        known: &HashMap<String, SharedWorkers>,
    ) -> Result<(HashMap<String, SharedWorkers>, KnownContents), CatalogProblem> {
        let (mut files, mut contents) = (HashMap::new(), Vec::new());
        let (turns, mut reads) = (Arc::new(Semaphore::new(FILES_AT_ONCE)), JoinSet::new());
        for file in &manifest.files {
            if let Some(rows) = known.get(&file.blake3) {
                files.insert(file.blake3.clone(), rows.clone());
                continue;
            }
            let (reader, file, turns) = (self.clone(), file.clone(), turns.clone());
            reads.spawn(async move {
                let _turn = turns.acquire_owned().await;
                let bytes = reader.read_file(&file).await?;
                let (count, rows_max) = (file.rows, reader.rows_max);
                let parsed = spawn_blocking(move || rows::parse(bytes, rows_max)).await;
                let parsed = parsed.map_err(|error| {
                    RequestFailure::new(FailureKind::Other, error.to_string())
                })??;
                if parsed.workers.len() != count {
                    return Err(CatalogProblem::Damaged("a file has other rows".into()));
                }
                Ok::<_, CatalogProblem>((file.blake3, parsed))
            });
        }
        while let Some(read) = reads.join_next().await {
            let (hash, parsed) =
                read.map_err(|error| RequestFailure::new(FailureKind::Other, error.to_string()))??;
            let ParsedRows { workers, contents: more } = parsed;
            contents.extend(more);
            files.insert(hash, workers.into());
        }
        Ok((files, contents))
    }

    /// Returns the bytes of a file of rows, from the cache if they are there.
    ///
    /// # Errors
    ///
    /// It is another file, or a request fails.
    pub(super) async fn read_file(&self, file: &RowFile) -> Result<Bytes, CatalogProblem> {
        let cache_key = key("catalog", &[file.blake3.as_bytes()]);
        let cached = self.cache.as_ref().and_then(|cache| cache.get(cache_key)?.body());
        if let Some(bytes) = cached {
            return Ok(bytes.into());
        }
        let object = Path::parse(self.key(&file.key))
            .map_err(|error| CatalogProblem::Damaged(error.to_string()))?;
        let version = Arc::new(ObjectVersion {
            key: object,
            size: file.bytes,
            etag: Some(file.etag.clone()),
            modified: Time::default(),
        });
        let mut bytes = BytesMut::new();
        for range in ranges(file.bytes) {
            bytes.extend_from_slice(&self.connection.read(&version, range).await?);
        }
        let bytes = bytes.freeze();
        if blake3::hash(&bytes).to_hex().as_str() != file.blake3 {
            return Err(CatalogProblem::Damaged("a file has another hash".into()));
        }
        if let Some(cache) = &self.cache {
            cache.put(cache_key, Vec::new(), bytes.to_vec());
        }
        Ok(bytes)
    }

    fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }
}

fn ranges(size: u64) -> impl Iterator<Item = Range<u64>> {
    (0..size.div_ceil(RANGE)).map(move |at| at * RANGE..((at + 1) * RANGE).min(size))
}
