//! The directory of a draft.

use std::path::PathBuf;
use std::sync::Arc;

use super::record::DraftRecord;
use swarmletfs_base::error::Error as PathError;
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{Kind, is_temporary};
use swarmletfs_record::write::{Dir, During, Error, Lock, Result, Store};
use swarmletfs_trace::swarmlet::{DRAFTS, WORKERS};

const RECORD: &str = "draft.json";
/// Maximum size of the record, in bytes. It may hold many hidden paths.
const RECORD_MAX: u64 = 8 << 20;
/// Deepest directory whose files are counted.
const DEPTH_MAX: usize = 256;

#[derive(Debug, Clone)]
pub struct Draft {
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
    pub fn create(store: &Store, id: &Name, mut record: DraftRecord) -> Result<(Draft, Lock)> {
        let path = store.root().path().to_path_buf();
        let mode = || store.root().enter(&RelPath::constant(WORKERS).join(id))?.own_mode();
        record.folder_mode = mode().ok();
        record.identify_workspace();
        let create = || {
            let name = Name::new(DRAFTS)?;
            if store.root().kind(&RelPath::constant(DRAFTS))?.is_none() {
                // Everyone who records workers may make drafts.
                store.root().create_dir_alike(&name)?;
            }
            let drafts = store.root().enter(&RelPath::from(name))?;
            // A draft holds files that other users of the store may not be allowed to read. It is
            // trusted, so root gives it to nobody, not even to the owner of the store.
            let folder = drafts.create_private_dir(id)?;
            drafts.sync()?;
            let lock = folder.lock()?;
            Ok((folder, lock))
        };
        let place = RelPath::constant(DRAFTS).join(id);
        let (folder, lock) = create().during("make the draft", &path, place.as_bytes())?;
        let draft = Draft { folder: Arc::new(folder), worker: id.clone(), record };
        draft.save()?;
        Ok((draft, lock))
    }

    /// Opens the draft of the worker `id`; `None` if it has none.
    ///
    /// # Errors
    ///
    /// The draft cannot be read, or may have been written by another user: then it could make this
    /// user move and remove files.
    pub fn open(store: &Store, id: &Name) -> Result<Option<Draft>> {
        let path = RelPath::constant(DRAFTS).join(id);
        let folder = match store.root().enter(&path) {
            Ok(folder) => folder,
            Err(PathError::NotFound | PathError::NotADirectory) => return Ok(None),
            Err(error) => return Err(error).during("open", store.root().path(), path.as_bytes()),
        };
        must_be_trusted(store, &folder, id)?;
        let read = || folder.read_own(&Name::new(RECORD)?, RECORD_MAX);
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

    pub fn list(store: &Store) -> Result<Vec<Name>> {
        let path = RelPath::constant(DRAFTS);
        let list = || match store.root().kind(&path)? {
            Some(Kind::Folder) => store.root().enter(&path)?.list(),
            _ => Ok(Vec::new()),
        };
        let names = list().during("list", store.root().path(), DRAFTS.as_bytes())?;
        Ok(names.into_iter().filter(|name| !is_temporary(name)).collect())
    }

    pub fn worker(&self) -> &Name {
        &self.worker
    }

    pub fn record(&self) -> &DraftRecord {
        &self.record
    }

    pub fn folder(&self) -> &Dir {
        &self.folder
    }

    /// Returns the size of all files of the draft, in bytes. Unreadable files do not count.
    pub fn bytes(&self) -> u64 {
        bytes_in(&self.folder, DEPTH_MAX)
    }

    pub(super) fn shared_folder(&self) -> Arc<Dir> {
        Arc::clone(&self.folder)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Takes the lock that is held while the worker runs. Returns `None` if it runs.
    pub fn try_lock(&self) -> Result<Option<Lock>> {
        self.folder.try_lock().during("lock", self.folder.path(), b"")
    }

    pub fn update(&mut self, change: impl FnOnce(&mut DraftRecord)) -> Result<()> {
        change(&mut self.record);
        self.save()
    }

    /// Removes the draft with its record, as if it had never been made.
    pub fn remove_whole(&self, store: &Store) -> Result<()> {
        let remove = || store.root().enter(&RelPath::constant(DRAFTS))?.remove_all(&self.worker);
        remove().during("remove", self.folder.path(), b"")
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

/// Fails unless nobody but this user can have written the draft `folder`. Root trusts the owner of
/// the store, too.
fn must_be_trusted(store: &Store, folder: &Dir, id: &Name) -> Result<()> {
    let user = rustix::process::geteuid();
    let check = || {
        let owner = folder.owner()?;
        let is_of_store = user.is_root() && store.root().owner()? == owner;
        let is_trusted = owner == user.as_raw() || is_of_store;
        Ok((owner, is_trusted, folder.is_shared()?))
    };
    let refuse = |reason: String, cure: &str| {
        let action = format!("use the draft of {}", id.display());
        Err(Error::Approval { action, reason, cure: cure.to_owned() })
    };
    match check().during("read", folder.path(), b"")? {
        (owner, false, _) => {
            refuse(format!("it belongs to the user with the id {owner}"), "run this as that user")
        }
        (_, true, true) => refuse(
            "other users can write it".to_owned(),
            "look at what is in it, and remove it if you do not know it",
        ),
        (_, true, false) => Ok(()),
    }
}

fn bytes_in(folder: &Dir, depth: usize) -> u64 {
    let Some(depth) = depth.checked_sub(1) else { return 0 };
    let sizes = folder.list().unwrap_or_else(|_| Vec::new()).into_iter().map(|name| {
        let path = RelPath::from(name);
        match folder.entry(&path) {
            Ok(Some(entry)) if entry.kind == Kind::Folder => {
                folder.enter(&path).map_or(0, |inner| bytes_in(&inner, depth))
            }
            Ok(Some(entry)) => entry.size,
            Ok(None) | Err(_) => 0,
        }
    });
    sizes.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
    use std::path::Path;

    use super::*;
    use crate::draft::Engine;

    const OTHER: u32 = 65_534;

    fn create(store: &Store, id: &str) -> PathBuf {
        let record = DraftRecord::new(Path::new("/workspace"), Engine::Overlay);
        let (draft, _lock) = Draft::create(store, &Name::new(id).unwrap(), record).unwrap();
        draft.folder.path().to_path_buf()
    }

    /// Returns the error of opening a draft; empty if there is none.
    fn refusal(store: &Store, id: &str) -> String {
        let opened = Draft::open(store, &Name::new(id).unwrap());
        opened.map_or_else(|error| error.to_string(), |draft| draft.map(|_| String::new()).unwrap())
    }

    #[test]
    fn a_draft_that_others_can_have_written_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::init(folder.path().join("store")).unwrap();
        let draft = create(&store, "w1");
        assert_eq!(refusal(&store, "w1"), "");
        fs::set_permissions(&draft, Permissions::from_mode(0o720)).unwrap();
        assert!(refusal(&store, "w1").contains("other users can write it"));
        fs::set_permissions(&draft, Permissions::from_mode(0o755)).unwrap();
        assert_eq!(refusal(&store, "w1"), "");
        if rustix::process::geteuid().is_root() {
            chown(draft.join(RECORD), Some(OTHER), None).unwrap();
            assert_ne!(refusal(&store, "w1"), "");
            chown(&draft, Some(OTHER), None).unwrap();
            assert!(refusal(&store, "w1").contains("run this as that user"));
            // Root serves the owner of the store.
            chown(store.root().path(), Some(OTHER), None).unwrap();
            assert_eq!(refusal(&store, "w1"), "");
        }
        std::os::unix::fs::symlink(&draft, draft.with_file_name("w2")).unwrap();
        let linked = Draft::open(&store, &Name::new("w2").unwrap());
        assert!(!matches!(linked, Ok(Some(_))), "a link is followed");
    }

    #[test]
    fn a_draft_of_root_stays_that_of_root() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let store = Store::init(folder.path().join("store")).unwrap();
        chown(store.root().path(), Some(OTHER), None).unwrap();
        let draft = create(&store, "w1");
        let owner = |path: &Path| fs::metadata(path).unwrap().uid();
        assert_eq!(owner(draft.parent().unwrap()), OTHER);
        assert_eq!((owner(&draft), owner(&draft.join(RECORD))), (0, 0));
        assert_eq!(refusal(&store, "w1"), "");
    }
}
