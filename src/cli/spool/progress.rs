//! Writes the progress of uploads, and the marks by which the objects of a worker are known.
//!
//! The mark of a worker has a file of its own. It is a random text that the first object of the
//! worker in the object store gets, so that this spool knows it again. It is made before the first
//! request, so that a crash after it does not make the worker look like one of another machine.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::cli::spools::progress::{
    FILES, FileVersion, SIZE_MAX, UploadProgress, WorkerProgress, hash,
};
use crate::digest::to_hex;
use crate::error::Result as PathResult;
use crate::name::{Name, RelPath};
use swarmletfs_record::write::EntryIdentity;

/// Directory of the marks.
const MARKS: &str = "marks";

impl FileVersion {
    pub(super) fn with_size(self, size: u64) -> FileVersion {
        FileVersion { size, ..self }
    }

    /// Returns true if the file did not change for `time`.
    pub(super) fn rests(&self, time: Duration) -> bool {
        SystemTime::now().duration_since(self.written.to_system()).is_ok_and(|age| age >= time)
    }
}

impl WorkerProgress {
    pub(super) fn set_metadata(&mut self, bytes: &[u8], etag: String) {
        self.metadata = Some(hash(bytes));
        self.metadata_etag = etag;
        self.metadata_size = bytes.len() as u64;
    }
}

#[derive(Serialize, Deserialize)]
struct WorkerMark {
    identity: EntryIdentity,
    mark: String,
}

/// The worker that a mark or a progress belongs to. Another one may have got its id since.
#[derive(Deserialize)]
struct ProgressOwner {
    identity: EntryIdentity,
}

impl UploadProgress {
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

    /// Removes the progress of the worker `id`, whose directory had the `identity`.
    ///
    /// # Errors
    ///
    /// The spool cannot be written.
    pub(super) fn forget(&self, id: &Name, identity: EntryIdentity) -> anyhow::Result<()> {
        let forget = |name: &str| -> PathResult<()> {
            let folder = self.0.enter(&RelPath::parse(name)?)?;
            let _lock = folder.lock()?;
            let bytes = folder.read(id, SIZE_MAX)?.unwrap_or_default();
            match serde_json::from_slice::<ProgressOwner>(&bytes) {
                Ok(owner) if owner.identity != identity => Ok(()),
                _ => folder.remove_all(id),
            }
        };
        // A worker that was uploaded has both.
        let forgotten = [MARKS, FILES].iter().try_for_each(|name| forget(name));
        forgotten.with_context(|| self.cannot("forget", id))
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
}

/// Returns a text that no other spool has.
fn random_mark() -> anyhow::Result<String> {
    let mut bytes = [0; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(format!("{:x}-{}", now.as_secs(), to_hex(&bytes)))
}
