//! Reads metadata.json. Its writer rewrites it in place, so it can be torn.

use serde_json::{Map, Value};

use super::super::bounded::{self, MetadataObject};
use super::super::value::{parse_time, scalar_text, shorten_word, text_list, truncate};
use super::index::IndexEntry;
use super::layout::{METADATA, TASK, path};
use super::registry::{Registration, SUPERVISOR_NOTES};
use super::status;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::model::{Flaw, Owner, SharedStr, Status, TASK_MAX, Worker, WorkerId};
use swarmletfs_base::name::{RelPath, to_file_name};
use swarmletfs_base::store::{Store, read_range, read_whole};

/// Maximum size of a metadata file that is read, in bytes.
pub const SIZE_MAX: u64 = 2 << 20;

pub(super) struct ReadWorker {
    pub(super) worker: Worker,
    /// Its metadata, as far as it counts; empty if absent or torn.
    pub(super) metadata: Map<String, Value>,
    pub(super) registration: Registration,
}

/// Reads the worker in `folder`, which lies at `root` in its store. Its record in the registry
/// overrides its metadata. The store's index supplies missing values, but never the owner. If the
/// metadata is torn, the last good record stays unchanged, unless the registry has one.
pub(super) fn read_worker(
    folder: &dyn Store,
    root: &RelPath,
    index: &[IndexEntry],
    last_good: Option<&Worker>,
) -> ReadWorker {
    let registration = Registration::read(folder);
    let mut is_complete = !matches!(registration, Registration::Bad { is_permanent: false, .. });
    let (mut object, mut flaws) = match read_metadata(folder) {
        Ok(MetadataObject { object, has_conflicting_owners: true }) => {
            let flaw = match registration.is_binding() {
                true => Flaw::Claim { field: "owner_id".into(), text: "two different ids".into() },
                false => Flaw::ConflictingOwners,
            };
            (object, vec![flaw])
        }
        Ok(MetadataObject { object, .. }) => (object, Vec::new()),
        Err(MetadataError::Absent) => (Map::new(), vec![Flaw::NoMetadata]),
        Err(MetadataError::Bad { reason, is_permanent }) => {
            let last_good = last_good.filter(|worker| worker.has_record());
            if let Some(last_good) = last_good.filter(|_| !registration.is_binding()) {
                let mut worker = Worker { is_complete: is_permanent, ..last_good.clone() };
                worker.flaws.retain(|flaw| !matches!(flaw, Flaw::BadMetadata { .. }));
                worker.flaws.push(Flaw::BadMetadata { reason, last_good_shown: true });
                return ReadWorker { worker, metadata: Map::new(), registration };
            }
            is_complete &= is_permanent;
            (Map::new(), vec![Flaw::BadMetadata { reason, last_good_shown: false }])
        }
    };
    flaws.extend(registration.correct(&mut object));
    let fields = MetadataFields(&object);
    let id = WorkerId(root.file_name().unwrap_or_else(|| to_file_name("worker", &[])));
    if let Some(claimed) =
        fields.text("worker_id").filter(|claimed| claimed.as_bytes() != id.0.as_bytes())
    {
        flaws.push(Flaw::IdMismatch(shorten_word(claimed)));
    }
    let owner = match fields.both("owner_id") {
        (Some(a), Some(b)) if a != b => {
            flaws.push(Flaw::ConflictingOwners);
            None
        }
        (a, b) => a.or(b).map(shorten_word).map(|id| Owner(id.into())),
    };
    let index = index.iter().find(|entry| entry.is_about(owner.as_ref()));
    let (status, status_source) = stated_status(&fields, index, &mut flaws);
    let has_own_task = !registration.is_binding();
    let task = fields.text("task").or_else(|| {
        if !has_own_task {
            return None;
        }
        task_file(folder, TASK_MAX).unwrap_or_else(|error| {
            is_complete &= error.is_not_a_file();
            None
        })
    });
    let task = task.or_else(|| index.and_then(|entry| entry.task.clone())).unwrap_or_default();
    let worker = Worker {
        waiting: None,
        continues: None,
        branch: None,
        last_message: None,
        task: truncate(task, TASK_MAX),
        id,
        root: root.clone(),
        owner,
        run: fields.word("run_id"),
        job: fields.word("job_id"),
        parent: fields.word("parent_thread_id").or_else(|| fields.word("parent_id")),
        status,
        status_source,
        task_type: fields
            .word("task_type")
            .or_else(|| index.and_then(|entry| entry.task_type.as_deref().map(SharedStr::from))),
        tags: Some(text_list(object.get("tags")))
            .filter(|tags| !tags.is_empty())
            .unwrap_or_else(|| index.map(|entry| entry.tags.clone()).unwrap_or_default())
            .into_iter()
            .map(SharedStr::from)
            .collect(),
        model: fields.word("model"),
        cwd: fields.word("cwd"),
        created_at: parse_time(
            fields.text("created_at").or_else(|| index.and_then(|entry| entry.created_at.clone())),
        ),
        started_at: parse_time(fields.text("started_at")),
        finished_at: parse_time(fields.text("finished_at")),
        duration_ms: fields.number("duration_ms").or_else(|| fields.number("completion_time_ms")),
        error: fields.text("error").map(|text| truncate(text, TASK_MAX)),
        summary: fields
            .text("summary")
            .or_else(|| fields.text("title"))
            .or_else(|| index.and_then(|entry| entry.summary.clone()))
            .map(|text| truncate(text, TASK_MAX)),
        supervisor_notes: fields
            .text(SUPERVISOR_NOTES)
            .filter(|text| !text.trim().is_empty())
            .map(|text| truncate(text, TASK_MAX)),
        draft: registration.draft(),
        flaws,
        is_complete,
    };
    ReadWorker { worker, metadata: object, registration }
}

/// Returns the status, and the text that states it: a word, or an exit code if there is no word.
/// Adds a flaw if the index disagrees.
fn stated_status(
    fields: &MetadataFields<'_>,
    index: Option<&IndexEntry>,
    flaws: &mut Vec<Flaw>,
) -> (Status, Option<SharedStr>) {
    let indexed =
        index.and_then(|entry| entry.status.clone()).map(|word| (status::parse(&word), word));
    let code = fields.exit_code();
    let own = match (fields.word("status"), code) {
        (Some(word), code) => Some((status::with_exit_code(&word, code), word)),
        (None, Some(code)) => {
            Some((status::from_exit_code(code), format!("exit_code {code}").into()))
        }
        (None, None) => None,
    };
    match (own, indexed) {
        (Some((status, word)), indexed) => {
            if let Some((other, other_word)) = indexed.filter(|(other, _)| *other != status) {
                // An index lags behind a running worker; only two different final statuses
                // contradict each other.
                if other.is_finished() {
                    flaws.push(Flaw::IndexDisagrees(other_word));
                }
            }
            (status, Some(word))
        }
        (None, Some((status, word))) => (status, Some(word.into())),
        (None, None) => (Status::Unknown, None),
    }
}

/// Returns the status that metadata states itself; unknown if it states none.
pub fn own_status(metadata: &Map<String, Value>) -> Status {
    stated_status(&MetadataFields(metadata), None, &mut Vec::new()).0
}

enum MetadataError {
    Absent,
    /// `is_permanent` is true if the content is bad, and false if a later read may succeed.
    Bad {
        reason: String,
        is_permanent: bool,
    },
}

/// Reads the metadata object.
///
/// # Errors
///
/// Fails if the file is missing, unreadable, too large or not a JSON object.
fn read_metadata(folder: &dyn Store) -> Result<MetadataObject, MetadataError> {
    let bad = |reason: String| MetadataError::Bad { reason, is_permanent: true };
    let bytes = match read_whole(folder, &path(METADATA), SIZE_MAX) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Err(bad(format!("larger than {SIZE_MAX} bytes"))),
        Err(Error::NotFound) => return Err(MetadataError::Absent),
        Err(error) => {
            return Err(MetadataError::Bad {
                reason: error.to_string(),
                is_permanent: error.is_not_a_file(),
            });
        }
    };
    if bytes.trim_ascii().is_empty() {
        return Err(bad("empty".into()));
    }
    bounded::parse_metadata(&bytes).map_err(|error| bad(error.to_string()))
}

pub(super) fn task(metadata: &Map<String, Value>) -> Option<String> {
    MetadataFields(metadata).text("task")
}

/// Reads the task file, at least `min_bytes` bytes of it if it is that long.
///
/// # Errors
///
/// Fails if the file cannot be read.
pub(super) fn task_file(folder: &dyn Store, min_bytes: usize) -> Result<Option<String>> {
    let file = folder.open(&path(TASK))?;
    let bytes = read_range(&*file, 0, min_bytes + 4)?;
    Ok(Some(String::from_utf8_lossy(&bytes).trim_end().to_owned()).filter(|task| !task.is_empty()))
}

/// Access to metadata fields at the top level, else inside `config`.
struct MetadataFields<'a>(&'a Map<String, Value>);

impl MetadataFields<'_> {
    fn both(&self, key: &str) -> (Option<String>, Option<String>) {
        let config = self.0.get("config");
        (scalar_text(self.0.get(key)), scalar_text(config.and_then(|config| config.get(key))))
    }

    fn text(&self, key: &str) -> Option<String> {
        let (top, config) = self.both(key);
        top.or(config)
    }

    fn word(&self, key: &str) -> Option<SharedStr> {
        self.text(key).map(|text| shorten_word(text).into())
    }

    /// Returns the exit code of the worker's process: a whole number, or its digits as a string.
    fn exit_code(&self) -> Option<i64> {
        self.text("exit_code")?.parse().ok()
    }

    fn number(&self, key: &str) -> Option<u64> {
        let value = self.0.get(key)?;
        value.as_u64().or_else(|| value.as_f64().filter(|n| *n >= 0.0).map(|n| n as u64))
    }
}
