//! The progress of uploads of the workers of a spool.
//!
//! Each worker has a file. It is replaced as a whole, only by the holder of the lock of uploads.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::digest::{digest, to_hex};
use crate::error::Result as PathResult;
use crate::name::{Name, RelPath};
use crate::store::{Kind, Meta, Time};
use swarmletfs_record::write::{Dir, EntryIdentity};

/// The file by which readers know the end of a worker.
pub(crate) const METADATA: &str = "metadata.json";
pub(crate) const FILES: &str = "files";
pub(crate) const SIZE_MAX: u64 = 256 << 20;

/// The directory with the progress of each worker.
#[derive(Debug)]
pub(crate) struct UploadProgress(pub(crate) Dir);

/// A file of a worker, or of anything else in a spool.
#[derive(Debug)]
pub(crate) struct SpoolFile {
    /// Path from the directory that was walked.
    pub(crate) path: RelPath,
    pub(crate) meta: Meta,
}

impl SpoolFile {
    pub(crate) fn is_metadata(&self) -> bool {
        self.path.as_bytes() == METADATA.as_bytes()
    }

    /// Returns the path as a key; `None` if it cannot be one.
    pub(crate) fn key(&self) -> Option<&str> {
        let key = std::str::from_utf8(self.path.as_os_str().as_bytes()).ok()?;
        (!key.chars().any(|c| c.is_ascii_control())).then_some(key)
    }
}

/// A version of a file on this machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileVersion {
    pub(crate) inode: u64,
    pub(crate) born: Time,
    /// Size in bytes.
    pub(crate) size: u64,
    pub(crate) written: Time,
}

impl FileVersion {
    pub(crate) fn from_meta(meta: &Meta) -> FileVersion {
        FileVersion {
            inode: meta.identity.ino,
            born: meta.identity.born,
            size: meta.size,
            written: meta.mtime.max(meta.ctime),
        }
    }

    /// Returns true if this is the same file as `other`, and can only have grown since.
    pub(crate) fn continues(&self, other: &FileVersion) -> bool {
        (self.inode, self.born) == (other.inode, other.born) && self.size >= other.size
    }
}

/// The part of a file that lies in the object store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UploadedFile {
    /// The version whose first `size` bytes were uploaded.
    pub(crate) version: FileVersion,
    /// Offset of the last part, and its size; parts follow the object of the file.
    #[serde(default)]
    pub(crate) last_part: Option<(u64, u64)>,
    /// True if there may be parts.
    #[serde(default)]
    pub(crate) has_parts: bool,
    pub(crate) etag: String,
    /// Hash of the last uploaded bytes. A file that was shortened and grew again has others.
    #[serde(default)]
    pub(crate) tail: String,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct WorkerProgress {
    /// The directory that this is about; another one of the same name is another worker.
    pub(crate) identity: Option<EntryIdentity>,
    /// True if the worker has its id in the object store.
    pub(crate) is_claimed: bool,
    /// True if all of it was there when it had ended.
    pub(crate) is_closed: bool,
    /// Hash of its metadata there.
    pub(crate) metadata: Option<String>,
    pub(crate) metadata_etag: String,
    pub(crate) metadata_size: u64,
    pub(crate) files: BTreeMap<String, UploadedFile>,
}

impl WorkerProgress {
    /// Returns true if `file` is uploaded as it is.
    pub(crate) fn has(&self, file: &SpoolFile) -> bool {
        let uploaded = file.key().and_then(|key| self.files.get(key));
        uploaded.is_some_and(|uploaded| uploaded.version == FileVersion::from_meta(&file.meta))
    }

    /// Returns the number of bytes of `file` that are not uploaded.
    pub(crate) fn missing_bytes(&self, file: &SpoolFile) -> u64 {
        let version = FileVersion::from_meta(&file.meta);
        match file.key().and_then(|key| self.files.get(key)) {
            Some(uploaded) if version.continues(&uploaded.version) => {
                version.size.saturating_sub(uploaded.version.size)
            }
            _ => version.size,
        }
    }

    pub(crate) fn has_metadata(&self, bytes: &[u8]) -> bool {
        self.metadata.as_deref() == Some(&*hash(bytes))
    }
}

/// Returns the hash of bytes, as a text.
pub(crate) fn hash(bytes: &[u8]) -> String {
    let mut hash = blake3::Hasher::new();
    to_hex(&digest::<16>(hash.update(bytes)))
}

impl UploadProgress {
    /// Reads the progress of the worker `id`, whose directory has the `identity`.
    ///
    /// # Errors
    ///
    /// The spool cannot be read.
    pub(crate) fn read(
        &self,
        id: &Name,
        identity: EntryIdentity,
    ) -> anyhow::Result<Option<WorkerProgress>> {
        let read = || -> PathResult<Option<Vec<u8>>> {
            match self.0.kind(&RelPath::parse(FILES)?)? {
                Some(Kind::Folder) => self.0.enter(&RelPath::parse(FILES)?)?.read(id, SIZE_MAX),
                _ => Ok(None),
            }
        };
        let bytes = read().with_context(|| self.cannot("read", id))?;
        // A file that a crash damaged is one that says nothing: all is uploaded again.
        let progress: Option<WorkerProgress> =
            bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        Ok(progress.filter(|progress| progress.identity == Some(identity)))
    }

    pub(crate) fn cannot(&self, action: &str, id: &Name) -> String {
        format!("cannot {action} what was uploaded of worker {}", id.display())
    }
}
