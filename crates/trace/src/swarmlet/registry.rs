//! The registry of a store: facts that a supervisor and the runner state about a worker in a
//! sandbox.
//!
//! Such a worker can write its own directory, and so its metadata.json. `registry/<id>.json` is
//! beside the workers, where it can write nothing. Views show the fields of that file; a different
//! value in metadata.json is a claim of the worker. Without such a file, metadata.json alone
//! describes the worker.

use std::any::Any;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::super::meta::if_exists;
use super::super::value::{scalar_text, shorten_word};
use super::layout::{REGISTRY, path};
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::model::{Flaw, ReviewState};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{DirEntry, File, Identity, Meta, Store, read_whole};

/// Maximum size of a record, in bytes. It repeats a metadata.json of at most 2 MiB, and its notes.
pub const SIZE_MAX: u64 = 8 << 20;
const SUFFIX: &[u8] = b".json";
const VERSION: u32 = 1;
/// Number of versions of changes.json that are vouched for: the last one, and its successor, which
/// is announced before it is written.
const CHANGES_MAX: usize = 2;
/// The bit of a mode that lets only the owner of an entry replace it.
const STICKY: u32 = 0o1000;
/// The fields of metadata.json that only a supervisor sets.
const SUPERVISED: [&str; 14] = [
    "worker_id",
    OWNER,
    "run_id",
    "job_id",
    "parent_thread_id",
    "parent_id",
    "task",
    "task_type",
    "tags",
    "model",
    "cwd",
    "created_at",
    "started_at",
    SUPERVISOR_NOTES,
];
/// The fields of metadata.json that state the end of a worker. Before it, none of them counts.
const END: [&str; 5] = ["status", "exit_code", "finished_at", "duration_ms", "completion_time_ms"];
/// The fields of the end that clocks of two programs state differently.
const CLOCKS: [&str; 2] = ["finished_at", "duration_ms"];
pub const SUPERVISOR_NOTES: &str = "supervisor_notes";
const OWNER: &str = "owner_id";

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RegistryRecord {
    version: u32,
    /// The registry in which the record was made. A copy of the store has another one.
    registry: FolderId,
    /// The directory of the worker. A directory that has got its name later is another worker.
    folder: FolderId,
    /// The fields of metadata.json that a supervisor set.
    metadata: Map<String, Value>,
    /// The fields of metadata.json that state the end; `None` while the worker runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<Map<String, Value>>,
    /// BLAKE3 hashes of the last versions of changes.json that the runner wrote.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    changes: Vec<String>,
    /// The decision about its draft; `None` in a record of an earlier version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft: Option<ReviewState>,
}

/// Tells a directory from others that have had its name. The device is left out: its number may
/// change with every boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FolderId {
    pub inode: u64,
    /// Time of creation in seconds and nanoseconds; zero where the file system has none.
    pub created: (i64, u32),
}

impl From<Identity> for FolderId {
    fn from(identity: Identity) -> FolderId {
        FolderId { inode: identity.ino, created: (identity.born.secs, identity.born.nanos) }
    }
}

/// A statement of a worker that its record contradicts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub field: String,
    pub text: String,
}

impl RegistryRecord {
    /// Returns the record of a worker that begins to run, whose metadata.json has the fields
    /// `metadata`, which a supervisor wrote. `task` is its task if the metadata has none.
    pub fn new(
        registry: FolderId,
        folder: FolderId,
        mut metadata: Map<String, Value>,
        task: Option<String>,
    ) -> RegistryRecord {
        let mut kept = Map::new();
        for key in SUPERVISED {
            let mut values = take(&mut metadata, key).into_iter();
            let Some(value) = values.next() else { continue };
            let is_disputed = key == OWNER && values.any(|other| other != value);
            if !is_disputed {
                kept.insert(key.to_owned(), value);
            }
        }
        if let Some(task) = task.filter(|_| !kept.contains_key("task")) {
            kept.insert("task".to_owned(), task.into());
        }
        RegistryRecord {
            version: VERSION,
            registry,
            folder,
            metadata: kept,
            end: None,
            changes: Vec::new(),
            draft: Some(ReviewState::Running),
        }
    }

    /// Parses the file of a record. Returns `None` if it is damaged or of another version.
    pub fn parse(json: &[u8]) -> Option<RegistryRecord> {
        serde_json::from_slice(json)
            .ok()
            .filter(|record: &RegistryRecord| record.version == VERSION)
    }

    /// Returns the name of the file for the worker `id`.
    ///
    /// # Errors
    ///
    /// The id is too long for the name of a file.
    pub fn file_name(id: &Name) -> Result<Name> {
        Name::new([id.as_bytes(), SUFFIX].concat())
    }

    /// Returns the id of the worker whose file has this name; `None` for other files.
    pub fn worker_of(file: &Name) -> Option<Name> {
        Name::new(file.as_bytes().strip_suffix(SUFFIX)?).ok()
    }

    /// Returns true if the record is about the directory `folder`. In a copy of the store, where
    /// all directories are new, the name decides.
    pub fn is_about(&self, registry: FolderId, folder: FolderId) -> bool {
        self.registry != registry || self.folder == folder
    }

    pub fn for_copy(self, registry: FolderId, folder: FolderId) -> RegistryRecord {
        RegistryRecord { registry, folder, ..self }
    }

    pub fn metadata(&self) -> &Map<String, Value> {
        &self.metadata
    }

    /// Sets the notes of the supervisor; `None` removes them.
    pub fn set_notes(&mut self, notes: Option<&str>) {
        match notes {
            Some(notes) => self.metadata.insert(SUPERVISOR_NOTES.to_owned(), notes.into()),
            None => self.metadata.remove(SUPERVISOR_NOTES),
        };
    }

    /// Vouches for `changes`, the next content of changes.json, and for the one before.
    pub fn vouch_for(&mut self, changes: &[u8]) {
        let excess = (self.changes.len() + 1).saturating_sub(CHANGES_MAX);
        self.changes.drain(..excess);
        self.changes.push(hash(changes));
    }

    /// Returns true if the runner wrote `changes` as changes.json.
    pub fn vouches_for(&self, changes: &[u8]) -> bool {
        self.changes.contains(&hash(changes))
    }

    /// Overrides fields in `stated`, the fields of a metadata.json, with the fields of the record.
    /// Returns the claims that the record contradicts.
    pub fn correct(&self, stated: &mut Map<String, Value>) -> Vec<Claim> {
        let mut claims = Vec::new();
        for key in SUPERVISED {
            let known = self.metadata.get(key);
            let claimed = take(stated, key);
            add_claims(&mut claims, key, &claimed, known);
            stated.extend(known.map(|value| (key.to_owned(), value.clone())));
        }
        let claimed = END.map(|key| (key, take(stated, key)));
        let Some(end) = &self.end else {
            stated.insert("status".into(), swarmletfs_base::model::Status::Running.as_str().into());
            return claims;
        };
        for (key, values) in claimed.into_iter().filter(|(key, _)| !CLOCKS.contains(key)) {
            add_claims(&mut claims, key, &values, end.get(key));
        }
        stated.extend(end.clone());
        claims
    }
}

/// Removes the fields that only a record may state, for a worker whose record cannot be used.
fn withhold(stated: &mut Map<String, Value>) {
    for key in SUPERVISED.iter().chain(&END) {
        take(stated, key);
    }
}

/// Removes the values of a field, at the top level and in `config`. Null is no value.
fn take(fields: &mut Map<String, Value>, key: &str) -> Vec<Value> {
    let top = fields.remove(key);
    let config = fields.get_mut("config").and_then(Value::as_object_mut);
    let inner = config.and_then(|config| config.remove(key));
    top.into_iter().chain(inner).filter(|value| !value.is_null()).collect()
}

/// Adds a claim of the field `key` for each distinct value in `values`, unless it is `known`.
fn add_claims(claims: &mut Vec<Claim>, key: &str, values: &[Value], known: Option<&Value>) {
    for claim in values.iter().filter_map(|value| claim(key, value, known)) {
        if !claims.contains(&claim) {
            claims.push(claim);
        }
    }
}

/// Returns the claim that the field `key` makes by `value`, unless that is `known`.
fn claim(key: &str, value: &Value, known: Option<&Value>) -> Option<Claim> {
    let is_known = known.is_some_and(|known| {
        known == value || scalar_text(Some(known)) == scalar_text(Some(value)) && !known.is_array()
    });
    let text = || scalar_text(Some(value)).unwrap_or_else(|| value.to_string());
    (!is_known).then(|| Claim { field: key.to_owned(), text: shorten_word(text()) })
}

fn hash(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

pub(super) enum Registration {
    /// The worker has none: only its metadata.json describes it.
    None,
    Known(Box<RegistryRecord>),
    /// It has one that cannot be used.
    Bad {
        reason: String,
        /// False if a later read may succeed.
        is_permanent: bool,
    },
    /// The record is of a directory that had the name before.
    OfOther,
}

impl Registration {
    pub(super) fn read(folder: &dyn Store) -> Registration {
        let any: &dyn Any = folder;
        any.downcast_ref::<RegisteredFolder>().map_or(Registration::None, RegisteredFolder::read)
    }

    /// Returns true if the worker has a record, which overrides its own files.
    pub(super) fn is_binding(&self) -> bool {
        matches!(self, Registration::Known(_) | Registration::Bad { .. })
    }

    /// Returns true if `changes` is a changes.json that the runner of the worker wrote, or if
    /// nothing says who wrote it.
    pub(super) fn vouches_for(&self, changes: &[u8]) -> bool {
        match self {
            Registration::Known(record) => record.vouches_for(changes),
            registration => !registration.is_binding(),
        }
    }

    /// Returns the decision about the draft of the worker, if a record that counts has it.
    pub(super) fn draft(&self) -> Option<ReviewState> {
        match self {
            Registration::Known(record) => record.draft,
            _ => None,
        }
    }

    /// Overrides fields in `stated`, the fields of metadata.json, with the known facts about the
    /// worker. Returns the flaws of both.
    pub(super) fn correct(&self, stated: &mut Map<String, Value>) -> Vec<Flaw> {
        match self {
            Registration::None => Vec::new(),
            Registration::Known(record) => {
                let claims = record.correct(stated).into_iter();
                claims.map(|Claim { field, text }| Flaw::Claim { field, text }).collect()
            }
            Registration::Bad { reason, .. } => {
                withhold(stated);
                vec![Flaw::BadRegistration(format!("{reason}, so nobody says who it is"))]
            }
            Registration::OfOther => vec![Flaw::BadRegistration(
                "of a folder that had this name before, so metadata.json counts".to_owned(),
            )],
        }
    }
}

/// Opens the registry of a store, if it has one.
///
/// # Errors
///
/// It cannot be opened.
pub(super) fn open(store: &dyn Store) -> Result<Option<Arc<dyn Store>>> {
    match store.enter(&path(REGISTRY)) {
        Ok(registry) => Ok(Some(registry.into())),
        Err(Error::NotFound | Error::NotADirectory | Error::Escape | Error::Special) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the attributes of the record of the worker in `folder`, if it has one.
///
/// # Errors
///
/// The registry cannot be read.
pub(super) fn record_meta(folder: &dyn Store) -> Result<Option<Meta>> {
    let any: &dyn Any = folder;
    let Some(folder) = any.downcast_ref::<RegisteredFolder>() else { return Ok(None) };
    if_exists(folder.registry.stat_without_acl(&folder.file))
}

pub(super) struct RegisteredFolder {
    folder: Box<dyn Store>,
    registry: Arc<dyn Store>,
    file: RelPath,
}

impl RegisteredFolder {
    /// Returns the entered directory `folder` of the worker `id`. An id that is too long for a
    /// record has none.
    pub(super) fn enter(
        folder: Box<dyn Store>,
        registry: Arc<dyn Store>,
        id: &Name,
    ) -> Box<dyn Store> {
        match RegistryRecord::file_name(id) {
            Ok(file) => Box::new(RegisteredFolder { folder, registry, file: file.into() }),
            Err(_) => folder,
        }
    }

    fn read(&self) -> Registration {
        let bad =
            |reason: &str| Registration::Bad { reason: reason.to_owned(), is_permanent: true };
        let read = || -> Result<Option<(Vec<u8>, [FolderId; 2])>> {
            let Some(json) = read_whole(&*self.registry, &self.file, SIZE_MAX)? else {
                return Ok(None);
            };
            let folders = [self.registry.identity()?.into(), self.folder.identity()?.into()];
            Ok(Some((json, folders)))
        };
        match read() {
            Ok(Some((json, [registry, folder]))) => match RegistryRecord::parse(&json) {
                Some(record) if !record.is_about(registry, folder) => Registration::OfOther,
                Some(_) if !self.may_be_trusted() => bad("written by another user"),
                Some(record) => Registration::Known(Box::new(record)),
                None => bad("damaged, or of another version of swarmletfs"),
            },
            Ok(None) => bad("too large"),
            Err(Error::NotFound) => Registration::None,
            Err(error) => Registration::Bad {
                reason: format!("unreadable ({error})"),
                is_permanent: error.is_not_a_file(),
            },
        }
    }

    /// Returns true if nobody wrote the record who could not have replaced the worker itself: in a
    /// sticky directory, other users can make entries, but not replace them.
    fn may_be_trusted(&self) -> bool {
        let root = RelPath::root();
        let attributes = || {
            let registry = self.registry.stat_without_acl(&root)?;
            let record = self.registry.stat_without_acl(&self.file)?;
            Ok::<_, Error>((registry, record, self.folder.stat_without_acl(&root)?))
        };
        attributes().is_ok_and(|(registry, record, folder)| {
            registry.mode & STICKY == 0 || [0, folder.uid].contains(&record.uid)
        })
    }
}

impl Store for RegisteredFolder {
    fn describe(&self) -> String {
        self.folder.describe()
    }

    fn root(&self) -> Option<BorrowedFd<'_>> {
        self.folder.root()
    }

    fn is_replaced(&self) -> bool {
        self.folder.is_replaced()
    }

    fn stat(&self, path: &RelPath) -> Result<Meta> {
        self.folder.stat(path)
    }

    fn stat_without_acl(&self, path: &RelPath) -> Result<Meta> {
        self.folder.stat_without_acl(path)
    }

    fn identity(&self) -> Result<Identity> {
        self.folder.identity()
    }

    fn list(&self, path: &RelPath) -> Result<Vec<DirEntry>> {
        self.folder.list(path)
    }

    fn listing_depends_on_dir_only(&self) -> bool {
        self.folder.listing_depends_on_dir_only()
    }

    fn open(&self, path: &RelPath) -> Result<Box<dyn File>> {
        self.folder.open(path)
    }

    fn enter(&self, path: &RelPath) -> Result<Box<dyn Store>> {
        self.folder.enter(path)
    }

    fn path_fd(&self, path: &RelPath) -> Result<Option<OwnedFd>> {
        self.folder.path_fd(path)
    }

    fn pass_through(&self) -> Result<()> {
        self.folder.pass_through()
    }

    fn backing(&self, path: &RelPath) -> Result<Option<OwnedFd>> {
        self.folder.backing(path)
    }

    fn source_files(&self) -> Option<Result<Vec<Meta>>> {
        self.folder.source_files()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> Map<String, Value> {
        let Value::Object(object) = value else { panic!("no object") };
        object
    }

    fn id(inode: u64) -> FolderId {
        FolderId { inode, created: (0, 0) }
    }

    fn record(metadata: Value) -> RegistryRecord {
        RegistryRecord::new(id(1), id(2), object(metadata), None)
    }

    /// Returns the fields that a worker with these has, and its claims.
    fn corrected(record: &RegistryRecord, stated: Value) -> (Value, Vec<String>) {
        let mut stated = object(stated);
        let claims = record.correct(&mut stated).into_iter();
        (stated.into(), claims.map(|claim| format!("{}={}", claim.field, claim.text)).collect())
    }

    #[test]
    fn record_stands_above_what_the_worker_says_of_itself() {
        let record = record(json!({"owner_id": 7, "task": "Count.", "status": "running"}));
        let own = json!({"owner_id": "7", "task": "Count.", "summary": "I count."});
        let shown =
            json!({"owner_id": 7, "task": "Count.", "summary": "I count.", "status": "running"});
        assert_eq!(corrected(&record, own), (shown.clone(), vec![]));
        let forged = json!({
            "owner_id": "8", "run_id": "1", "supervisor_notes": "APPROVED", "summary": "I count.",
            "status": "completed", "exit_code": 0, "config": {"owner_id": "9", "job_id": null},
        });
        let (mut fields, claims) = corrected(&record, forged);
        fields.as_object_mut().unwrap().remove("config");
        assert_eq!(fields, shown);
        assert_eq!(claims, ["owner_id=8", "owner_id=9", "run_id=1", "supervisor_notes=APPROVED"]);
    }

    #[test]
    fn end_is_that_which_the_runner_saw() {
        let mut record = record(json!({}));
        record.end = Some(object(json!({"status": "failed", "exit_code": 3, "finished_at": "x"})));
        let own = json!({"status": "completed", "exit_code": 0, "finished_at": "y", "error": "e"});
        let (fields, claims) = corrected(&record, own);
        let shown = json!({"status": "failed", "exit_code": 3, "finished_at": "x", "error": "e"});
        assert_eq!(fields, shown);
        assert_eq!(claims, ["status=completed", "exit_code=0"]);
    }

    #[test]
    fn two_owners_of_a_supervisor_are_none() {
        let disputed = record(json!({"owner_id": "1", "config": {"owner_id": "2"}}));
        assert!(disputed.metadata().is_empty());
        let inner = record(json!({"config": {"owner_id": "2"}}));
        assert_eq!(inner.metadata()["owner_id"], "2");
    }

    #[test]
    fn record_of_an_earlier_directory_counts_only_in_a_copy_of_the_store() {
        let record = record(json!({}));
        assert!(record.is_about(id(1), id(2)));
        assert!(!record.is_about(id(1), id(3)));
        assert!(record.is_about(id(5), id(3)));
    }

    #[test]
    fn last_two_versions_of_the_changes_are_vouched_for() {
        let mut record = record(json!({}));
        assert!(!record.vouches_for(b"1"));
        for version in [b"1", b"2", b"3"] {
            record.vouch_for(version);
        }
        let json = serde_json::to_vec(&record).unwrap();
        let record = RegistryRecord::parse(&json).unwrap();
        let vouched = [b"1", b"2", b"3"].map(|version| record.vouches_for(version));
        assert_eq!(vouched, [false, true, true]);
        assert!(RegistryRecord::parse(b"{\"version\": 2}").is_none());
    }
}
