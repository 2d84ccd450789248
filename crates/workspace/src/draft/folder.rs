//! The directory of a draft, and its draft.json: the workspace of the draft, and the progress of
//! its worker.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::git::StartedRepository;
use swarmletfs_base::error::{Error as PathError, Result as PathResult};
use swarmletfs_base::model::{decode, encode};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{Kind, is_temporary};
use swarmletfs_record::write::{
    Dir, Durability, During, EntryIdentity, Error, Lock, Result, Store,
};
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
        let mode = || store.root().enter(&RelPath::constant(WORKERS).join(id))?.own_mode();
        record.folder_mode = mode().ok();
        record.identify_workspace();
        Draft::make(store, id, record)
    }

    /// Copies the record of this draft, which has ended, into the store of a copy of its worker.
    ///
    /// # Errors
    ///
    /// The store cannot be written.
    pub fn copy_to(&self, store: &Store) -> Result<()> {
        if Draft::open(store, &self.worker)?.is_some() {
            return Ok(());
        }
        let left = || match store.root().enter(&RelPath::constant(DRAFTS)) {
            // A crash may have left one without a record.
            Ok(drafts) => drafts.remove_all(&self.worker),
            Err(_) => Ok(()),
        };
        left().during("make the draft", store.root().path(), DRAFTS.as_bytes())?;
        Draft::make(store, &self.worker, self.record.clone()).map(drop)
    }

    fn make(store: &Store, id: &Name, record: DraftRecord) -> Result<(Draft, Lock)> {
        let path = store.root().path().to_path_buf();
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

const VERSION: u32 = 1;

/// The content of draft.json. Workers cannot write it, so it can be trusted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DraftRecord {
    version: u32,
    /// Absolute path of the workspace, percent-encoded.
    workspace: String,
    pub engine: Engine,
    /// Time before which every entry of the view existed.
    pub started_at: Timestamp,
    /// True if ignored paths count as changes.
    #[serde(default)]
    pub all_changes: bool,
    /// True if each write waited for the disk, so that a crash of the machine tears nothing.
    #[serde(default)]
    pub is_durable: bool,
    /// Paths that the worker could not see, relative to the workspace and percent-encoded. Their
    /// absence is no change.
    #[serde(default)]
    hidden: Vec<String>,
    /// The directory that was the workspace when the worker began.
    #[serde(default)]
    workspace_entry: Option<EntryIdentity>,
    /// The repository whose top is the workspace.
    #[serde(default)]
    pub repository: Option<StartedRepository>,
    /// Time after which the worker wrote: files of other users were copied into its layer before.
    #[serde(default)]
    pub(super) copied_at: Option<Timestamp>,
    /// The command and its arguments, percent-encoded.
    #[serde(default)]
    command: Vec<String>,
    /// The program whose needs were met.
    #[serde(default)]
    pub preset: Option<String>,
    /// The worker whose changes this one began with.
    #[serde(default)]
    pub continues: Option<String>,
    /// The worker that goes on with these changes. Its draft counts unless it is discarded.
    #[serde(default)]
    pub continued_by: Option<String>,
    #[serde(default)]
    pub(super) folder_mode: Option<u32>,
    pub state: DraftState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// An overlay of the kernel: nothing is copied at the start.
    Overlay,
    Copy,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DraftState {
    /// The worker runs, or its end is not recorded.
    Running,
    Ended,
    /// The changes were discarded. They cannot be applied any more.
    Discarded,
}

impl Engine {
    pub fn as_str(self) -> &'static str {
        match self {
            Engine::Overlay => "overlay",
            Engine::Copy => "copy",
        }
    }
}

/// Longest wait for a tick of the kernel's clock, in milliseconds.
const TICK_MS: usize = 50;

/// Returns the time of the clock that the kernel stamps files with. A file whose ctime is earlier
/// did not change since, without an allowance for the tick of that clock.
pub(super) fn kernel_time() -> Timestamp {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    let nanos = i32::try_from(now.tv_nsec).unwrap_or_default();
    Timestamp::new(now.tv_sec, nanos).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Waits for a time after all stamps that files have now, and returns it: a later stamp means a
/// change.
pub(super) fn next_tick() -> Timestamp {
    // Some stamps are of the exact clock, which is ahead of the one that ticks.
    let latest = Timestamp::now();
    // At least 100 ticks a second. A clock that is set back gives more to compare, and no error.
    for _ in 0..TICK_MS {
        if kernel_time() > latest {
            break;
        }
        thread::sleep(Duration::from_millis(1));
    }
    kernel_time()
}

impl DraftRecord {
    /// Returns the record of a draft that begins now. Waits for the next tick of the clock of
    /// files, so that all earlier changes have earlier stamps.
    pub fn new(workspace: &Path, engine: Engine) -> DraftRecord {
        DraftRecord {
            version: VERSION,
            workspace: encode(workspace.as_os_str().as_bytes()),
            engine,
            started_at: next_tick(),
            all_changes: false,
            is_durable: false,
            hidden: Vec::new(),
            workspace_entry: None,
            repository: None,
            copied_at: None,
            command: Vec::new(),
            preset: None,
            continues: None,
            continued_by: None,
            folder_mode: None,
            state: DraftState::Running,
        }
    }

    /// Returns true if this program knows the meaning of every field.
    fn is_known(&self) -> bool {
        self.version == VERSION
    }

    pub fn workspace(&self) -> PathBuf {
        PathBuf::from(OsString::from_vec(decode(&self.workspace)))
    }

    /// Notes which directory and repository the workspace is now. Another one may get its path
    /// later.
    fn identify_workspace(&mut self) {
        let workspace = Dir::open(&self.workspace(), Durability::None);
        // A workspace that cannot be opened gets no changes applied.
        self.workspace_entry = workspace.and_then(|workspace| workspace.identity()).ok();
        self.repository = StartedRepository::find(&self.workspace());
    }

    /// Returns true if `folder` is the workspace with which the worker began.
    pub fn is_workspace(&self, folder: &Dir) -> PathResult<bool> {
        let Some(entry) = self.workspace_entry else { return Ok(true) };
        Ok(folder.identity()? == entry)
    }

    pub fn hidden(&self) -> Vec<PathBuf> {
        let paths = self.hidden.iter().map(|path| decode(path));
        paths.map(|path| PathBuf::from(OsString::from_vec(path))).collect()
    }

    pub fn command(&self) -> Vec<OsString> {
        self.command.iter().map(|word| OsString::from_vec(decode(word))).collect()
    }

    pub fn set_command(&mut self, command: &[OsString]) {
        self.command = command.iter().map(|word| encode(word.as_bytes())).collect();
    }

    pub fn hide(&mut self, path: &OsStr) {
        self.hidden.push(encode(path.as_bytes()));
    }
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

    #[test]
    fn another_directory_at_the_path_is_not_the_workspace() {
        let folder = tempfile::tempdir().unwrap();
        let (path, moved) = (folder.path().join("w"), folder.path().join("moved"));
        std::fs::create_dir(&path).unwrap();
        let mut record = DraftRecord::new(&path, Engine::Overlay);
        record.identify_workspace();
        let json = serde_json::to_string(&record).unwrap();
        let record: DraftRecord = serde_json::from_str(&json).unwrap();
        let is_same =
            |path: &Path| record.is_workspace(&Dir::open(path, Durability::None).unwrap()).unwrap();
        assert!(is_same(&path));
        std::fs::rename(&path, &moved).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(is_same(&moved) && !is_same(&path));
        std::fs::remove_dir(&path).unwrap();
        std::os::unix::fs::symlink(folder.path(), &path).unwrap();
        assert!(!is_same(&path));
    }

    #[test]
    fn every_path_survives_json() {
        let workspace = OsStr::from_bytes(b"/w/\xff, a:b\\%41");
        let mut record = DraftRecord::new(Path::new(workspace), Engine::Overlay);
        record.hide(OsStr::from_bytes(b".env\xfe"));
        let json = serde_json::to_string(&record).unwrap();
        let read: DraftRecord = serde_json::from_str(&json).unwrap();
        assert_eq!(read, record);
        assert_eq!(read.workspace(), Path::new(workspace));
        assert_eq!(read.hidden(), [PathBuf::from(OsStr::from_bytes(b".env\xfe"))]);
        assert!(read.is_known());
    }
}
