//! A part of an object store as a [`Store`], and its objects as [`File`]s.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use object_store::path::Path;
use parking_lot::Mutex;
use rustix::process::{getegid, geteuid};
use swarmletfs_base::digest::{Key, digest};
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{DirEntry, File, Identity, Kind, Meta, Store, Time, copy_from};
use tracing::{debug, warn};

use crate::ObjectSettings;
use crate::ahead::Ahead;
use crate::blocks::{BLOCK, BlockCache, CachedVersion};
use crate::bucket_url::BucketUrl;
use crate::catalog::CatalogFacts;
use crate::connection::{Connection, ObjectVersion};
use crate::current::CurrentListing;
use crate::failure::{FailureKind, RequestFailure};
use crate::key_tree::{FoundKey, KeyTree, ListedObject};
use crate::traffic::RequestCounts;

const FILE_MODE: u32 = 0o444;
const FOLDER_MODE: u32 = 0o555;
/// Number of all stores that are no file systems.
const DEVICE: u64 = 1;
/// Maximum number of blocks in a request: 8 MiB.
const WINDOW_MAX: u64 = 32;
/// Maximum number of sources of a file that are read ahead.
const SOURCES_MAX: usize = 64;
/// Longest step backwards of a reader that goes on so, in blocks.
const BACK_STEP_MAX: u64 = 8;
/// Maximum size of the objects that one guess reads ahead, in bytes.
const AHEAD_MAX: u64 = 8 << 20;
/// Number of versions that an open tries. The second one is of a new listing.
const OPENS_MAX: usize = 2;

/// A directory of an object store.
#[derive(Clone)]
pub struct Bucket {
    shared: Arc<Shared>,
    /// Path of the directory from the prefix.
    base: RelPath,
}

struct Shared {
    url: BucketUrl,
    connection: Connection,
    listing: Arc<CurrentListing>,
    blocks: Arc<BlockCache>,
    ahead: Ahead,
    /// User and group of this process, to whom everything belongs.
    owner: (u32, u32),
    /// True if the last read failed.
    is_failing: AtomicBool,
}

impl Bucket {
    /// Connects to the bucket of `url` and lists the keys beneath its prefix.
    pub(crate) fn open(
        url: BucketUrl,
        settings: &ObjectSettings,
    ) -> std::result::Result<Bucket, RequestFailure> {
        let connection = Connection::new(&url, settings)?;
        let listing = CurrentListing::read(connection.clone(), url.clone(), settings)?;
        Ok(Bucket::new(connection, url, settings, listing))
    }

    /// Makes a store of some objects of another one. They stay the versions that they are.
    pub(crate) fn of_objects(
        connection: Connection,
        url: BucketUrl,
        settings: &ObjectSettings,
        objects: Vec<ListedObject>,
    ) -> Bucket {
        let listing = CurrentListing::fixed(connection.clone(), url.clone(), objects);
        Bucket::new(connection, url, settings, listing)
    }

    fn new(
        connection: Connection,
        url: BucketUrl,
        settings: &ObjectSettings,
        listing: CurrentListing,
    ) -> Bucket {
        let blocks = Arc::new(BlockCache::new(connection.clone(), settings));
        let shared = Shared {
            url,
            connection,
            listing: Arc::new(listing),
            blocks,
            ahead: Ahead::default(),
            owner: (geteuid().as_raw(), getegid().as_raw()),
            is_failing: AtomicBool::new(false),
        };
        Bucket { shared: Arc::new(shared), base: RelPath::root() }
    }

    /// Returns facts about the catalog, if it is used.
    pub fn catalog(&self) -> Option<CatalogFacts> {
        self.shared.listing.catalog()
    }

    /// Returns the number of requests of a listing, and the time after which it is read again if
    /// someone reads.
    pub fn listing_cost(&self) -> (usize, Duration) {
        self.shared.listing.cost()
    }

    /// Returns the requests that were sent so far.
    pub fn requests(&self) -> RequestCounts {
        self.shared.connection.traffic.requests()
    }
}

impl Shared {
    fn hash(&self, kind: &[u8], path: &[u8], version: &[u8]) -> Key {
        let mut hash = blake3::Hasher::new();
        let (scope, bucket) = (self.connection.scope.as_bytes(), self.url.bucket.as_bytes());
        for part in [kind, scope, bucket, self.url.prefix.as_bytes(), path, version] {
            hash.update(&(part.len() as u64).to_le_bytes()).update(part);
        }
        digest(&hash)
    }

    /// Returns the name of the version of an object that is listed.
    fn version_id(&self, object: &ListedObject) -> Key {
        let path = object.path.as_bytes();
        match &object.etag {
            Some(etag) => self.hash(b"object", path, etag.as_bytes()),
            None => {
                let (size, secs) = (object.size.to_le_bytes(), object.modified.secs.to_le_bytes());
                self.hash(b"object", path, &[size, secs].concat())
            }
        }
    }

    fn object_meta(&self, object: &ListedObject) -> Meta {
        // A further part makes the file of the parts longer. It stays the same file, so that
        // readers go on where they were.
        let id = match object.parts.first() {
            Some(first) => self.hash(b"parts", object.path.as_bytes(), &self.version_id(first)),
            None => self.version_id(object),
        };
        self.make_meta(Kind::File, object.size, id, object.modified)
    }

    fn make_meta(&self, kind: Kind, size: u64, id: Key, time: Time) -> Meta {
        let [a, b, c, d, e, f, g, h, ..] = id;
        let (uid, gid) = self.owner;
        Meta {
            kind,
            size,
            mode: if kind == Kind::Folder { FOLDER_MODE } else { FILE_MODE },
            uid,
            gid,
            nlink: 1,
            identity: Identity {
                dev: DEVICE,
                ino: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
                born: Time::default(),
            },
            mtime: time,
            ctime: time,
        }
    }

    fn meta(&self, tree: &KeyTree, path: &RelPath) -> Result<Meta> {
        Ok(match tree.find(path)? {
            FoundKey::Object(object) => self.object_meta(object),
            FoundKey::Folder => {
                let id = self.hash(b"folder", path.as_bytes(), b"");
                self.make_meta(Kind::Folder, 0, id, tree.folder_time(path))
            }
        })
    }

    fn cached_version(&self, object: &ListedObject) -> Result<CachedVersion> {
        let key = format!("{}{}", self.url.prefix, object.path);
        let version = ObjectVersion {
            key: Path::parse(key).map_err(|_| Error::InvalidName)?,
            size: object.size,
            etag: object.etag.as_deref().map(str::to_owned),
            modified: object.modified,
        };
        let cached = CachedVersion { id: self.version_id(object), version: Arc::new(version) };
        if let Some(content) = self.listing.take_content(object) {
            self.blocks.add_whole(&cached, content);
        }
        Ok(cached)
    }

    /// Starts to read the objects that are likely to be opened after the one at `path`.
    fn read_ahead(&self, tree: &KeyTree, path: &RelPath) {
        let mut left = AHEAD_MAX;
        for object in self.ahead.next(tree, path).into_iter().filter_map(|at| tree.at(at)) {
            let Some(object) = object.sources().first() else { continue };
            let Some(rest) = left.checked_sub(object.size.min(BLOCK)) else { break };
            left = rest;
            if let Ok(object) = self.cached_version(object) {
                self.blocks.prefetch(object);
            }
        }
    }

    /// Converts a failure to read, and logs the first one in a row.
    fn failed(&self, key: &Path, failure: &RequestFailure) -> Error {
        let url = &self.url.text;
        if failure.kind == FailureKind::Gone {
            self.listing.outdate(key.as_ref());
            debug!("cannot read {key} of {url}: {failure}");
        } else if !self.is_failing.swap(true, Ordering::Relaxed) {
            warn!("cannot read {key} of {url}: {failure}");
        }
        Error::from(failure)
    }
}

impl Store for Bucket {
    fn describe(&self) -> String {
        let slash = if self.base.is_root() { "" } else { "/" };
        format!("{}{slash}{}", self.shared.url.text, self.base.display())
    }

    fn root(&self) -> Option<BorrowedFd<'_>> {
        self.shared.blocks.cache_root()
    }

    fn is_replaced(&self) -> bool {
        false
    }

    fn outage(&self) -> Option<String> {
        self.shared.listing.outage()
    }

    fn stat(&self, path: &RelPath) -> Result<Meta> {
        self.shared.meta(&self.shared.listing.tree(), &self.base.join_path(path))
    }

    fn list(&self, path: &RelPath) -> Result<Vec<DirEntry>> {
        self.shared.listing.tree().list(&self.base.join_path(path))
    }

    fn open(&self, path: &RelPath) -> Result<Box<dyn File>> {
        let (shared, path) = (&self.shared, self.base.join_path(path));
        let mut failed = Error::Stale;
        for _ in 0..OPENS_MAX {
            let tree = shared.listing.tree();
            let object = match tree.find(&path)? {
                FoundKey::Object(object) => object,
                FoundKey::Folder => return Err(Error::IsADirectory),
            };
            let file = ObjectFile::new(shared, object)?;
            shared.read_ahead(&tree, &path);
            // The first block is read now, so that an outdated listing is noticed.
            match file.read_at(&mut [0], 0) {
                Ok(_) => return Ok(Box::new(file)),
                Err(error) => failed = error,
            }
            if failed != Error::Stale {
                break;
            }
        }
        Err(failed)
    }

    fn enter(&self, path: &RelPath) -> Result<Box<dyn Store>> {
        self.stat(path)?.kind.must_be(Kind::Folder)?;
        Ok(Box::new(Bucket { shared: self.shared.clone(), base: self.base.join_path(path) }))
    }
}

struct ObjectFile {
    shared: Arc<Shared>,
    meta: Meta,
    /// The objects that hold the bytes, each with its offset in the file.
    sources: Vec<(u64, CachedVersion)>,
    window: Mutex<ReadWindow>,
}

/// The order of the reads of a file. It decides the size of the next requests.
#[derive(Default)]
struct ReadWindow {
    /// Source and block with which the reads in order began.
    first: (usize, u64),
    /// Source and block after the last ones that were read.
    next: (usize, u64),
    /// Number of blocks of the next request.
    blocks: u64,
    /// Number of sources that are read ahead.
    sources: usize,
    /// Source up to which was read ahead.
    end: usize,
}

impl ReadWindow {
    /// Adds a read of `count` blocks from `block` on. Returns the blocks to request, and the
    /// sources to read ahead. A reader that steps backwards gets the blocks before, too.
    fn advance(&mut self, source: usize, block: u64, count: u64) -> (Range<u64>, Range<usize>) {
        let (follows, is_next_source) = ((source, block) == self.next, source == self.next.0 + 1);
        let is_repeated = (source, block + 1) == self.next;
        let (first_source, first) = self.first;
        let steps_back = source == first_source && block < first && first <= block + BACK_STEP_MAX;
        if follows || steps_back {
            self.blocks = (self.blocks * 2).clamp(1, WINDOW_MAX);
        } else if !is_repeated {
            self.blocks = 1;
        }
        if !follows && !is_repeated {
            self.first = (source, block);
        }
        self.next = (source, block + 1);
        let wanted = self.blocks.max(count).min(WINDOW_MAX);
        // Up to the blocks that were read before.
        let start = if steps_back { first.saturating_sub(wanted).min(block) } else { block };
        let blocks = start..start.saturating_add(wanted);
        if !is_next_source || self.end > source + self.sources / 2 {
            return (blocks, 0..0);
        }
        self.sources = (self.sources * 2).clamp(1, SOURCES_MAX);
        let start = self.end.max(source + 1);
        self.end = source + 1 + self.sources;
        (blocks, start..self.end)
    }
}

impl ReadWindow {
    /// Makes the next request smaller than the last one.
    fn shrink(&mut self) {
        // It is doubled before the next request.
        self.blocks /= 4;
    }
}

impl ObjectFile {
    fn new(shared: &Arc<Shared>, object: &ListedObject) -> Result<ObjectFile> {
        let mut offset = 0;
        let sources = object.sources().iter().map(|source| {
            let start: u64 = offset;
            offset = start.saturating_add(source.size);
            Ok((start, shared.cached_version(source)?))
        });
        Ok(ObjectFile {
            shared: shared.clone(),
            meta: shared.object_meta(object),
            sources: sources.collect::<Result<_>>()?,
            window: Mutex::default(),
        })
    }

    /// Returns the block `index`, and reads the others of `blocks` with it. A slow network gets
    /// smaller requests, so that each is answered before its deadline.
    fn read_block(
        &self,
        source: &CachedVersion,
        index: u64,
        blocks: Range<u64>,
    ) -> std::result::Result<Bytes, RequestFailure> {
        let (cache, is_single, begun) =
            (&self.shared.blocks, blocks.end <= blocks.start.saturating_add(1), Instant::now());
        let mut read = cache.get_within(source, index, blocks);
        if begun.elapsed() > self.shared.connection.slow() {
            self.window.lock().shrink();
        }
        if read.as_ref().is_err_and(|failure| failure.kind == FailureKind::TimedOut && !is_single) {
            read = cache.get_within(source, index, index..index.saturating_add(1));
        }
        read
    }

    /// Copies bytes at `offset` of the source `number` to `buffer`, as many as a block has. Reads
    /// further blocks if `buffer` needs them, or if the file is read in order.
    fn copy(&self, number: usize, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let Some((_, source)) = self.sources.get(number) else { return Ok(0) };
        let (index, within) = (offset / BLOCK, offset % BLOCK);
        let count = within.saturating_add(buffer.len() as u64).div_ceil(BLOCK);
        let (blocks, ahead) = self.window.lock().advance(number, index, count);
        for (_, source) in ahead.filter_map(|number| self.sources.get(number)) {
            self.shared.blocks.prefetch(source.clone());
        }
        let bytes = self.read_block(source, index, blocks);
        let bytes = bytes.map_err(|failure| self.shared.failed(&source.version.key, &failure))?;
        self.shared.is_failing.store(false, Ordering::Relaxed);
        Ok(copy_from(&bytes, within, buffer))
    }
}

impl File for ObjectFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let mut filled = 0;
        while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            let at = offset.saturating_add(filled as u64);
            let number = self.sources.partition_point(|(start, _)| *start <= at);
            let source = number.checked_sub(1).filter(|_| at < self.meta.size);
            let Some((start, _)) = source.and_then(|number| self.sources.get(number)) else {
                break;
            };
            let copied = self.copy(number - 1, at - start, rest)?;
            if copied == 0 {
                break;
            }
            filled += copied;
        }
        Ok(filled)
    }

    fn size_at_open(&self) -> Option<u64> {
        Some(self.meta.size)
    }

    fn meta(&self) -> Result<Meta> {
        Ok(self.meta)
    }
}
