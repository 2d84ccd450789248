//! The directory of a draft.

use std::path::PathBuf;
use std::sync::Arc;

use super::record::DraftRecord;
use crate::error::Error as PathError;
use crate::name::{Name, RelPath};
use crate::store::{Kind, is_temporary};
use crate::trace::swarmlet::DRAFTS;
use crate::write::{Dir, During, Error, Lock, Result, Store};

/// The record of a draft.
const RECORD: &str = "draft.json";
/// Maximum size of the record, in bytes. It may hold many hidden paths.
const RECORD_MAX: u64 = 8 << 20;
/// Permissions of the directory.
const PRIVATE: u32 = 0o700;

/// A draft of a worker.
#[derive(Debug, Clone)]
pub(crate) struct Draft {
    folder: Arc<Dir>,
    worker: Name,
    record: DraftRecord,
}

impl Draft {
    /// Makes the draft of the worker `id`. Returns it with its lock, which must be held while the
    /// worker runs.
    ///
    /// # Errors
    ///
    /// The worker has a draft, or the store cannot be written.
    pub(crate) fn create(store: &Store, id: &Name, record: DraftRecord) -> Result<(Draft, Lock)> {
        let path = store.root().path().to_path_buf();
        let create = || {
            let name = Name::new(DRAFTS)?;
            if store.root().kind(&RelPath::constant(DRAFTS))?.is_none() {
                // Everyone who records workers may make drafts.
                store.root().create_dir_alike(&name)?;
            }
            let drafts = store.root().enter(&RelPath::from(name))?;
            let folder = drafts.create_dir(id)?;
            // A draft holds files that other users of the store may not be allowed to read.
            folder.set_own_mode(PRIVATE)?;
            drafts.sync()?;
            let lock = folder.lock()?;
            Ok((folder, lock))
        };
        let (folder, lock) = create().during("make a draft in", &path, b"")?;
        let draft = Draft { folder: Arc::new(folder), worker: id.clone(), record };
        draft.save()?;
        Ok((draft, lock))
    }

    /// Opens the draft of the worker `id`; `None` if it has none.
    ///
    /// # Errors
    ///
    /// The draft cannot be read.
    pub(crate) fn open(store: &Store, id: &Name) -> Result<Option<Draft>> {
        let path = RelPath::constant(DRAFTS).join(id);
        let folder = match store.root().enter(&path) {
            Ok(folder) => folder,
            Err(PathError::NotFound | PathError::NotADirectory) => return Ok(None),
            Err(error) => return Err(error).during("open", store.root().path(), path.as_bytes()),
        };
        let read = || folder.read(&Name::new(RECORD)?, RECORD_MAX);
        // A crash may have left a draft without a record, which nobody has used.
        let Some(json) = read().during("read", folder.path(), RECORD.as_bytes())? else {
            return Ok(None);
        };
        let record = serde_json::from_slice(&json).ok().filter(DraftRecord::is_known);
        let record = record.ok_or_else(|| {
            let reason = "it is not the record of a draft that this version knows".to_owned();
            Error::invalid(RECORD.as_bytes(), "a draft", reason)
        })?;
        Ok(Some(Draft { folder: Arc::new(folder), worker: id.clone(), record }))
    }

    /// Lists the workers that have a draft.
    ///
    /// # Errors
    ///
    /// The drafts cannot be listed.
    pub(crate) fn list(store: &Store) -> Result<Vec<Name>> {
        let path = RelPath::constant(DRAFTS);
        let list = || match store.root().kind(&path)? {
            Some(Kind::Folder) => store.root().enter(&path)?.list(),
            _ => Ok(Vec::new()),
        };
        let names = list().during("list", store.root().path(), DRAFTS.as_bytes())?;
        Ok(names.into_iter().filter(|name| !is_temporary(name)).collect())
    }

    /// Returns the id of the worker.
    pub(crate) fn worker(&self) -> &Name {
        &self.worker
    }

    /// Returns the record.
    pub(crate) fn record(&self) -> &DraftRecord {
        &self.record
    }

    /// Returns the directory.
    pub(crate) fn folder(&self) -> &Dir {
        &self.folder
    }

    /// Returns the directory, to be kept apart from the draft.
    pub(super) fn shared_folder(&self) -> Arc<Dir> {
        Arc::clone(&self.folder)
    }

    /// Returns the absolute path of the entry `name` of the draft.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Takes the lock that is held while the worker runs. Returns `None` if it runs.
    ///
    /// # Errors
    ///
    /// The draft cannot be read.
    pub(crate) fn try_lock(&self) -> Result<Option<Lock>> {
        self.folder.try_lock().during("lock", self.folder.path(), b"")
    }

    /// Changes the record.
    ///
    /// # Errors
    ///
    /// The draft cannot be written.
    pub(crate) fn update(&mut self, change: impl FnOnce(&mut DraftRecord)) -> Result<()> {
        change(&mut self.record);
        self.save()
    }

    fn save(&self) -> Result<()> {
        let save = || {
            let json = serde_json::to_vec_pretty(&self.record)
                .map_err(|_| PathError::Io(rustix::io::Errno::INVAL))?;
            let temporary = self.folder.write_temporary(&mut json.as_slice())?;
            temporary.replace(&self.folder, &Name::new(RECORD)?)
        };
        save().during("write", self.folder.path(), RECORD.as_bytes())
    }
}
