//! Writes objects: puts with a condition, uploads in parts, and deletions.
//!
//! A repeated request may find its own effect: the answer of the first one was lost. A put with a
//! condition that fails is therefore compared with the object that is there. The same bytes count
//! as success, if the object has the mark of this writer, too. A mark tells the objects of two
//! writers apart that write the same bytes.

use std::borrow::Cow;
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use md5::{Digest, Md5};
use object_store::path::Path as Key;
use object_store::{
    Attribute, Attributes, Error as RequestError, GetOptions, MultipartUpload, ObjectMeta,
    ObjectStoreExt, PutMode, PutOptions, PutPayload, UpdateVersion,
};
use swarmletfs_base::digest::to_hex;
use swarmletfs_base::store::Time;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::bucket_url::BucketUrl;
use crate::connection::Connection;
use crate::failure::{FailureKind, Purpose, RequestFailure};
use crate::traffic::RequestCounts;
use crate::{ObjectSettings, OpenError};

/// Size of a part of an upload, in bytes. A smaller file is one request.
pub const UPLOAD_PART: usize = 8 << 20;
/// Name of the mark in the metadata of an object.
const MARK: Attribute = Attribute::Metadata(Cow::Borrowed("swarmletfs-writer"));
/// Maximum number of objects that are deleted at the same time.
const DELETIONS_MAX: usize = 16;
const HASHED_AT_ONCE: usize = 64 << 10;
/// Longest time for a listing. Each of its requests has its own deadline.
const LISTING_MAX: Duration = Duration::from_secs(60 * 60);

/// The state of an object that a put expects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PutCondition {
    Always,
    /// There is no object with the key.
    IfAbsent,
    /// The object is this version.
    IfMatch(StoredVersion),
}

/// A version of an object, as the store names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredVersion {
    pub etag: String,
    /// The generation of an object of Google, whose conditions know no ETags.
    pub generation: Option<String>,
}

impl StoredVersion {
    /// Returns the version that the answer of a store names.
    ///
    /// # Errors
    ///
    /// It has no ETag.
    fn new(
        etag: Option<String>,
        generation: Option<String>,
    ) -> Result<StoredVersion, RequestFailure> {
        let etag = etag.filter(|etag| !etag.is_empty()).ok_or_else(|| {
            RequestFailure::new(FailureKind::Other, "the store names no versions of its objects")
        })?;
        Ok(StoredVersion { etag, generation })
    }
}

/// Why an object was not written.
#[derive(Debug, thiserror::Error)]
pub enum PutError {
    /// There is an object with the key and other bytes.
    #[error("there is another object with this key")]
    Taken,
    /// The object is another version, or is absent.
    #[error("the object was changed")]
    Changed,
    /// The bytes to write could not be read.
    #[error("cannot read the bytes to write: {0}")]
    Source(io::Error),
    #[error(transparent)]
    Failed(#[from] RequestFailure),
}

impl PutError {
    /// Returns the failure of a put that has no condition, or whose condition must hold.
    pub(crate) fn into_failure(self) -> RequestFailure {
        match self {
            PutError::Failed(failure) => failure,
            error => RequestFailure::new(FailureKind::Other, error.to_string()),
        }
    }
}

/// An object in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyEntry {
    /// Key from the prefix of the URL.
    pub key: String,
    /// Size in bytes.
    pub size: u64,
    /// Name of the version by the provider; `None` if it has none.
    pub etag: Option<String>,
    pub modified: Time,
}

/// A part of an object store that is written. Keys are relative to the prefix of its URL.
#[derive(Clone)]
pub struct BucketWriter {
    connection: Connection,
    url: BucketUrl,
    keys_max: usize,
    /// Metadata of each object that is written by [`BucketWriter::put`].
    mark: Option<String>,
}

/// An object that was read.
struct FoundObject {
    meta: ObjectMeta,
    mark: Option<String>,
    bytes: Bytes,
}

impl BucketWriter {
    /// Prepares requests to the part of an object store that `url` names. Sends none, so there may
    /// be no object beneath the prefix.
    ///
    /// # Errors
    ///
    /// The URL is wrong, or the environment has no usable settings.
    pub fn open(url: &Path, settings: &ObjectSettings) -> Result<BucketWriter, OpenError> {
        let open = || {
            let url = BucketUrl::parse(url)?;
            let connection = Connection::new(&url, settings)?;
            Ok(BucketWriter { connection, url, keys_max: settings.keys_max, mark: None })
        };
        open().map_err(|failure| OpenError::new(url, &failure))
    }

    /// Returns this writer, which gives `mark` to the objects that it writes.
    pub fn with_mark(&self, mark: impl Into<String>) -> BucketWriter {
        BucketWriter { mark: Some(mark.into()), ..self.clone() }
    }

    /// Returns the URL in one spelling.
    pub fn url(&self) -> &str {
        &self.url.text
    }

    /// Returns the connection, and the URL of which the keys are relative to the prefix.
    pub(crate) fn shared_parts(&self) -> (&Connection, &BucketUrl) {
        (&self.connection, &self.url)
    }

    /// Returns the provider, its endpoint and its account as a text. The same URL names another
    /// object store elsewhere.
    pub fn scope(&self) -> &str {
        &self.connection.scope
    }

    /// Returns the requests that were sent so far.
    pub fn requests(&self) -> RequestCounts {
        self.connection.traffic.requests()
    }

    /// Writes an object as a whole, if `condition` holds. Returns its version.
    ///
    /// # Errors
    ///
    /// The condition does not hold and the object has other bytes, or the request fails. After a
    /// failure, the object may have been written.
    pub fn put(
        &self,
        key: &str,
        bytes: Bytes,
        condition: &PutCondition,
    ) -> Result<StoredVersion, PutError> {
        let mode = match condition {
            PutCondition::Always => PutMode::Overwrite,
            PutCondition::IfAbsent => PutMode::Create,
            PutCondition::IfMatch(StoredVersion { etag, generation }) => {
                let (e_tag, version) = (Some(etag.clone()), generation.clone());
                PutMode::Update(UpdateVersion { e_tag, version })
            }
        };
        let (remote, object) = (self.connection.remote.clone(), self.object(key)?);
        let (payload, limit) = (PutPayload::from(bytes.clone()), self.connection.deadline);
        let mut options = PutOptions::from(mode);
        if let Some(mark) = self.mark.clone() {
            options.attributes = Attributes::from_iter([(MARK, mark)]);
        }
        let put = self.connection.wait(self.patience(), async move {
            let put = remote.put_opts(&object, payload, options);
            let put = timeout(limit, put).await.map_err(|_| RequestFailure::timed_out())?;
            match put {
                Ok(put) => StoredVersion::new(put.e_tag, put.version).map(Some),
                Err(RequestError::AlreadyExists { .. } | RequestError::Precondition { .. }) => {
                    Ok(None)
                }
                Err(error) => Err(RequestFailure::explain(&error, Purpose::Write)),
            }
        })?;
        if let Some(version) = put {
            return Ok(version);
        }
        match self.find(key, Some(bytes.len() as u64))? {
            Some(found)
                if found.bytes == bytes && (self.mark.is_none() || found.mark == self.mark) =>
            {
                Ok(StoredVersion::new(found.meta.e_tag, found.meta.version)?)
            }
            Some(_) if *condition == PutCondition::IfAbsent => Err(PutError::Taken),
            _ => Err(PutError::Changed),
        }
    }

    /// Writes an object from all bytes of `source`, of which at most [`UPLOAD_PART`] are in memory.
    /// Readers see the object when all of it is there. Returns its ETag and its size.
    ///
    /// # Errors
    ///
    /// `source` or a request fails; then the object is as it was before.
    pub fn put_from(&self, key: &str, source: &mut dyn Read) -> Result<(String, u64), PutError> {
        let first = read_part(source)?;
        let mut size = first.len() as u64;
        if first.len() < UPLOAD_PART {
            return Ok((self.put(key, first, &PutCondition::Always)?.etag, size));
        }
        let (remote, object) = (self.connection.remote.clone(), self.object(key)?);
        let limit = self.connection.deadline;
        let mut upload = self.connection.wait(self.patience(), async move {
            within(limit, remote.put_multipart(&object)).await
        })?;
        let mut part = first;
        loop {
            let is_last = part.len() < UPLOAD_PART;
            let uploaded = match part.is_empty() {
                true => Ok(upload),
                false => self.upload_part(upload, part),
            };
            upload = uploaded?;
            if is_last {
                break;
            }
            match read_part(source) {
                Ok(next) => part = next,
                Err(error) => {
                    self.abort(upload);
                    return Err(error);
                }
            }
            size += part.len() as u64;
        }
        let etag = self.connection.wait(self.patience(), async move {
            let completed = within(limit, upload.complete()).await;
            let put = abort_failed(completed, limit, &mut upload).await?;
            StoredVersion::new(put.e_tag, put.version).map(|version| version.etag)
        })?;
        Ok((etag, size))
    }

    /// Uploads one part. Aborts the upload if that fails.
    fn upload_part(
        &self,
        mut upload: Box<dyn MultipartUpload>,
        part: Bytes,
    ) -> Result<Box<dyn MultipartUpload>, RequestFailure> {
        let limit = self.connection.deadline;
        self.connection.wait(self.patience(), async move {
            let put = within(limit, upload.put_part(part.into())).await;
            abort_failed(put, limit, &mut upload).await.map(|()| upload)
        })
    }

    fn abort(&self, mut upload: Box<dyn MultipartUpload>) {
        let limit = self.connection.deadline;
        self.connection.start(async move {
            let _ = timeout(limit, upload.abort()).await;
        });
    }

    /// Deletes objects. An absent one counts as deleted.
    ///
    /// # Errors
    ///
    /// A request fails; other objects may have been deleted.
    pub fn delete(&self, keys: impl IntoIterator<Item = String>) -> Result<(), RequestFailure> {
        let objects: Vec<Key> =
            keys.into_iter().map(|key| self.object(&key)).collect::<Result<_, _>>()?;
        for batch in objects.chunks(DELETIONS_MAX) {
            let (batch, remote) = (batch.to_vec(), self.connection.remote.clone());
            let limit = self.connection.deadline;
            self.connection.wait(self.patience(), async move {
                let mut deletions = JoinSet::new();
                for object in batch {
                    let remote = remote.clone();
                    deletions.spawn(async move { timeout(limit, remote.delete(&object)).await });
                }
                while let Some(deleted) = deletions.join_next().await {
                    match deleted {
                        Ok(Ok(Ok(()) | Err(RequestError::NotFound { .. }))) => {}
                        Ok(Ok(Err(error))) => {
                            return Err(RequestFailure::explain(&error, Purpose::Write));
                        }
                        Ok(Err(_)) => return Err(RequestFailure::timed_out()),
                        Err(error) => {
                            return Err(RequestFailure::new(FailureKind::Other, error.to_string()));
                        }
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Returns the bytes of an object and its version; `None` if it is absent.
    ///
    /// # Errors
    ///
    /// The request fails, or the object has more than `size_max` bytes.
    pub fn get(
        &self,
        key: &str,
        size_max: u64,
    ) -> Result<Option<(Bytes, StoredVersion)>, RequestFailure> {
        let Some(found) = self.find(key, Some(size_max))? else { return Ok(None) };
        if found.meta.size > size_max {
            let reason = format!("the object has more than {size_max} bytes");
            return Err(RequestFailure::new(FailureKind::Other, reason));
        }
        let version = StoredVersion::new(found.meta.e_tag, found.meta.version)?;
        Ok(Some((found.bytes, version)))
    }

    /// Returns true if this writer, by its mark, wrote the object; `None` if it is absent.
    ///
    /// # Errors
    ///
    /// The request fails.
    pub fn is_own(&self, key: &str) -> Result<Option<bool>, RequestFailure> {
        Ok(self.find(key, None)?.map(|found| self.mark.is_some() && found.mark == self.mark))
    }

    /// Finds an object, with its bytes if there are at most `size_max`.
    fn find(
        &self,
        key: &str,
        size_max: Option<u64>,
    ) -> Result<Option<FoundObject>, RequestFailure> {
        let (remote, object) = (self.connection.remote.clone(), self.object(key)?);
        let limit = self.connection.deadline;
        let options = GetOptions { head: size_max.is_none(), ..GetOptions::default() };
        self.connection.wait(self.patience(), async move {
            let read = async {
                let found = match remote.get_opts(&object, options).await {
                    Err(RequestError::NotFound { .. }) => return Ok(None),
                    found => found?,
                };
                let meta = found.meta.clone();
                let mark = found.attributes.get(&MARK).map(|mark| mark.as_ref().to_owned());
                let is_read = size_max.is_some_and(|size_max| meta.size <= size_max);
                let bytes = if is_read { found.bytes().await? } else { Bytes::new() };
                Ok::<_, RequestError>(Some((FoundObject { meta, mark, bytes }, is_read)))
            };
            let read = timeout(limit, read).await.map_err(|_| RequestFailure::timed_out())?;
            let read = read.map_err(|error| RequestFailure::explain(&error, Purpose::Read))?;
            let Some((found, is_read)) = read else { return Ok(None) };
            if is_read && found.bytes.len() as u64 != found.meta.size {
                let reason = "the answer has another length";
                return Err(RequestFailure::new(FailureKind::Other, reason));
            }
            Ok(Some(found))
        })
    }

    /// Lists the objects whose keys begin with `prefix`, as they are: parts are not joined.
    ///
    /// # Errors
    ///
    /// A request fails, or there are too many.
    pub fn list(&self, prefix: &str) -> Result<Vec<KeyEntry>, RequestFailure> {
        let (connection, keys_max) = (self.connection.clone(), self.keys_max);
        let beneath = format!("{}{prefix}", self.url.prefix);
        let listed = self
            .connection
            .wait(LISTING_MAX, async move { connection.list(&beneath, keys_max).await })?;
        let entries = listed.objects.into_iter().map(|object| KeyEntry {
            key: format!("{prefix}{}", object.path),
            size: object.size,
            etag: object.etag.as_deref().map(str::to_owned),
            modified: object.modified,
        });
        Ok(entries.collect())
    }

    /// Returns true if `count` keys begin with `prefix`, or more than one page of a listing has.
    pub(crate) fn has_many(&self, prefix: &str, count: usize) -> Result<bool, RequestFailure> {
        let connection = self.connection.clone();
        let beneath = format!("{}{prefix}", self.url.prefix);
        self.connection
            .wait(self.patience(), async move { connection.has_many(&beneath, count).await })
    }

    fn object(&self, key: &str) -> Result<Key, RequestFailure> {
        let key = format!("{}{key}", self.url.prefix);
        Key::parse(&key)
            .map_err(|_| RequestFailure::new(FailureKind::Url, "the name of the object is no path"))
    }

    /// Returns the longest time to wait for the thread of the requests, which end by themselves.
    fn patience(&self) -> Duration {
        self.connection.deadline.saturating_mul(2)
    }
}

/// Awaits a request that writes.
async fn within<T>(
    limit: Duration,
    request: impl Future<Output = object_store::Result<T>>,
) -> Result<T, RequestFailure> {
    let done = timeout(limit, request).await.map_err(|_| RequestFailure::timed_out())?;
    done.map_err(|error| RequestFailure::explain(&error, Purpose::Write))
}

/// Aborts an upload of which a step failed: stores keep and charge for its parts until then.
async fn abort_failed<T>(
    step: Result<T, RequestFailure>,
    limit: Duration,
    upload: &mut Box<dyn MultipartUpload>,
) -> Result<T, RequestFailure> {
    if step.is_err() {
        // The failure of the step is the one to report.
        let _ = timeout(limit, upload.abort()).await;
    }
    step
}

/// Returns the ETag that an object with the bytes of `source` has in most stores, if it was put as
/// a whole: a hash, with quotes.
///
/// # Errors
///
/// `source` cannot be read.
pub fn content_etag(source: &mut dyn Read) -> io::Result<String> {
    let mut hash = Md5::new();
    let mut buffer = vec![0; HASHED_AT_ONCE];
    loop {
        let count = match source.read(&mut buffer) {
            Ok(0) => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            count => count?,
        };
        hash.update(buffer.get(..count).ok_or(io::ErrorKind::InvalidData)?);
    }
    Ok(format!("\"{}\"", to_hex(hash.finalize().as_slice())))
}

/// Returns the next [`UPLOAD_PART`] bytes of `source`, or fewer at its end.
fn read_part(source: &mut dyn Read) -> Result<Bytes, PutError> {
    let mut part = Vec::new();
    source.take(UPLOAD_PART as u64).read_to_end(&mut part).map_err(PutError::Source)?;
    Ok(part.into())
}
