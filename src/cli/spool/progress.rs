//! The progress of uploads of the workers of a spool.
//!
//! Each worker has a file. It is replaced as a whole, only by the holder of the lock of uploads.
//! The mark of a worker has a file of its own. It is a random text that the first object of the
//! worker in the object store gets, so that this spool knows it again. It is made before the first
//! request, so that a crash after it does not make the worker look like one of another machine.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::digest::{digest, to_hex};
use crate::error::Result as PathResult;
use crate::name::{Name, RelPath};
use crate::store::{Kind, Meta, Time};
use swarmletfs_record::write::{Dir, EntryIdentity};

/// The file by which readers know the end of a worker.
pub(super) const METADATA: &str = "metadata.json";
/// Directory of the marks.
const MARKS: &str = "marks";
const FILES: &str = "files";
const SIZE_MAX: u64 = 256 << 20;

/// The directory with the progress of each worker.
#[derive(Debug)]
pub(super) struct UploadProgress(Dir);

/// A file of a worker, or of anything else in a spool.
#[derive(Debug)]
pub(super) struct SpoolFile {
    /// Path from the directory that was walked.
    pub(super) path: RelPath,
    pub(super) meta: Meta,
}

impl SpoolFile {
    pub(super) fn is_metadata(&self) -> bool {
        self.path.as_bytes() == METADATA.as_bytes()
    }

    /// Returns the path as a key; `None` if it cannot be one.
    pub(super) fn key(&self) -> Option<&str> {
        let key = std::str::from_utf8(self.path.as_os_str().as_bytes()).ok()?;
        (!key.chars().any(|c| c.is_ascii_control())).then_some(key)
    }
}

/// A version of a file on this machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileVersion {
    inode: u64,
    born: Time,
    /// Size in bytes.
    pub(super) size: u64,
    written: Time,
}

impl FileVersion {
    pub(super) fn from_meta(meta: &Meta) -> FileVersion {
        FileVersion {
            inode: meta.identity.ino,
            born: meta.identity.born,
            size: meta.size,
            written: meta.mtime.max(meta.ctime),
        }
    }

    pub(super) fn with_size(self, size: u64) -> FileVersion {
        FileVersion { size, ..self }
    }

    /// Returns true if this is the same file as `other`, and can only have grown since.
    pub(super) fn continues(&self, other: &FileVersion) -> bool {
        (self.inode, self.born) == (other.inode, other.born) && self.size >= other.size
    }

    /// Returns true if the file did not change for `time`.
    pub(super) fn rests(&self, time: Duration) -> bool {
        SystemTime::now().duration_since(self.written.to_system()).is_ok_and(|age| age >= time)
    }
}

/// The part of a file that lies in the object store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct UploadedFile {
    /// The version whose first `size` bytes were uploaded.
    pub(super) version: FileVersion,
    /// Offset of the last part, and its size; parts follow the object of the file.
    #[serde(default)]
    pub(super) last_part: Option<(u64, u64)>,
    /// True if there may be parts.
    #[serde(default)]
    pub(super) has_parts: bool,
    pub(super) etag: String,
    /// Hash of the last uploaded bytes. A file that was shortened and grew again has others.
    #[serde(default)]
    pub(super) tail: String,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct WorkerProgress {
    /// The directory that this is about; another one of the same name is another worker.
    identity: Option<EntryIdentity>,
    /// True if the worker has its id in the object store.
    pub(super) is_claimed: bool,
    /// True if all of it was there when it had ended.
    pub(super) is_closed: bool,
    /// Hash of its metadata there.
    metadata: Option<String>,
    pub(super) metadata_etag: String,
    pub(super) metadata_size: u64,
    pub(super) files: BTreeMap<String, UploadedFile>,
}

impl WorkerProgress {
    /// Returns true if `file` is uploaded as it is.
    pub(super) fn has(&self, file: &SpoolFile) -> bool {
        let uploaded = file.key().and_then(|key| self.files.get(key));
        uploaded.is_some_and(|uploaded| uploaded.version == FileVersion::from_meta(&file.meta))
    }

    /// Returns the number of bytes of `file` that are not uploaded.
    pub(super) fn missing_bytes(&self, file: &SpoolFile) -> u64 {
        let version = FileVersion::from_meta(&file.meta);
        match file.key().and_then(|key| self.files.get(key)) {
            Some(uploaded) if version.continues(&uploaded.version) => {
                version.size.saturating_sub(uploaded.version.size)
            }
            _ => version.size,
        }
    }

    pub(super) fn has_metadata(&self, bytes: &[u8]) -> bool {
        self.metadata.as_deref() == Some(&*hash(bytes))
    }

    pub(super) fn set_metadata(&mut self, bytes: &[u8], etag: String) {
        self.metadata = Some(hash(bytes));
        self.metadata_etag = etag;
        self.metadata_size = bytes.len() as u64;
    }
}

/// Returns the hash of bytes, as a text.
pub(super) fn hash(bytes: &[u8]) -> String {
    let mut hash = blake3::Hasher::new();
    to_hex(&digest::<16>(hash.update(bytes)))
}

#[derive(Serialize, Deserialize)]
struct WorkerMark {
    identity: EntryIdentity,
    mark: String,
}

impl UploadProgress {
    pub(super) fn new(folder: Dir) -> UploadProgress {
        UploadProgress(folder)
    }

    /// Reads the progress of the worker `id`, whose directory has the `identity`.
    ///
    /// # Errors
    ///
    /// The spool cannot be read.
    pub(super) fn read(
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

    /// Replaces the progress of the worker `id`.
    ///
    /// # Errors
    ///
    /// The spool cannot be written.
    pub(super) fn write(
        &self,
        id: &Name,
        identity: EntryIdentity,
        progress: &mut WorkerProgress,
    ) -> anyhow::Result<()> {
        progress.identity = Some(identity);
        let bytes = serde_json::to_vec(progress)?;
        let write = || -> PathResult<()> {
            let folder = self.0.enter_or_create(&Name::new(FILES)?)?;
            folder.write_temporary(&mut bytes.as_slice())?.replace(&folder, id)
        };
        write().with_context(|| self.cannot("write", id))
    }

    /// Returns the mark of the worker `id`, whose directory has the `identity`. Makes it first, if
    /// it has none.
    ///
    /// # Errors
    ///
    /// The spool cannot be written.
    pub(super) fn mark(&self, id: &Name, identity: EntryIdentity) -> anyhow::Result<String> {
        let mark = || -> anyhow::Result<String> {
            let folder = self.0.enter_or_create(&Name::new(MARKS)?)?;
            let _lock = folder.lock()?;
            let existing = folder.read(id, SIZE_MAX)?;
            let existing = existing.and_then(|it| serde_json::from_slice::<WorkerMark>(&it).ok());
            if let Some(existing) = existing.filter(|existing| existing.identity == identity) {
                return Ok(existing.mark);
            }
            let new = WorkerMark { identity, mark: random_mark()? };
            let bytes = serde_json::to_vec(&new)?;
            folder.write_temporary(&mut bytes.as_slice())?.replace(&folder, id)?;
            Ok(new.mark)
        };
        mark().with_context(|| self.cannot("write", id))
    }

    /// Removes the progress of workers that `exists` does not find.
    ///
    /// # Errors
    ///
    /// The spool cannot be written.
    pub(super) fn clean(&self, exists: impl Fn(&Name) -> bool) -> anyhow::Result<()> {
        for name in [MARKS, FILES] {
            let clean = || -> PathResult<()> {
                if self.0.kind(&RelPath::parse(name)?)?.is_none() {
                    return Ok(());
                }
                let folder = self.0.enter(&RelPath::parse(name)?)?;
                let _lock = folder.lock()?;
                for id in folder.list()?.iter().filter(|id| !exists(id)) {
                    folder.remove_entry(id)?;
                }
                Ok(())
            };
            clean().with_context(|| format!("cannot write {}", self.0.path().display()))?;
        }
        Ok(())
    }

    fn cannot(&self, action: &str, id: &Name) -> String {
        format!("cannot {action} what was uploaded of worker {}", id.display())
    }
}

/// Returns a text that no other spool has.
fn random_mark() -> anyhow::Result<String> {
    let mut bytes = [0; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(format!("{:x}-{}", now.as_secs(), to_hex(&bytes)))
}
