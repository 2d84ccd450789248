//! metadata.json: who a worker is and how far it is. Rewritten in place by its writer, so it can be met half-written.

use serde_json::{Map, Value};

use super::super::known::{self, Owned};
use super::super::value::{cut, short_word, status_of, string, strings, when};
use super::index::IndexEntry;
use super::layout::{METADATA, TASK, path};
use crate::error::{Error, Result};
use crate::model::{Flaw, Owner, Status, TASK_MAX, Word, Worker, WorkerId};
use crate::name::{Name, RelPath};
use crate::store::{Store, read_range, read_whole};

/// A larger one is not read, in bytes.
pub(super) const SIZE_MAX: u64 = 2 << 20;

/// Reads the worker whose folder, entered, is `folder` and lies at `root` in its store, and gives the metadata as read
/// with it; empty where it is absent or torn. What the worker's own files do not say is taken from the store's index,
/// but never the owner: only a worker's own metadata says whose it is. Where the metadata is torn, the last good record
/// stays as it was read.
pub(super) fn worker(
    folder: &dyn Store,
    root: &RelPath,
    index: &[IndexEntry],
    last_good: Option<&Worker>,
) -> (Worker, Map<String, Value>) {
    let mut whole = true;
    let (object, mut flaws) = match read(folder) {
        Ok(Owned { object, has_two_owners: true }) => (object, vec![Flaw::TwoOwners]),
        Ok(Owned { object, .. }) => (object, Vec::new()),
        Err(Failure::Absent) => (Map::new(), vec![Flaw::NoMetadata]),
        Err(Failure::Bad { reason, read }) => {
            if let Some(last_good) = last_good.filter(|worker| worker.has_record()) {
                let mut worker = Worker { whole: read, ..last_good.clone() };
                worker.flaws.retain(|flaw| !matches!(flaw, Flaw::BadMetadata { .. }));
                worker.flaws.push(Flaw::BadMetadata { reason, kept: true });
                return (worker, Map::new());
            }
            whole = read;
            (Map::new(), vec![Flaw::BadMetadata { reason, kept: false }])
        }
    };
    let fields = Fields(&object);
    let id = root.file_name().map_or_else(|| WorkerId(placeholder()), WorkerId);
    if let Some(claimed) = fields.text("worker_id").filter(|claimed| claimed.as_bytes() != id.0.as_bytes()) {
        flaws.push(Flaw::OtherId(short_word(claimed)));
    }
    let owner = match fields.both("owner_id") {
        (Some(a), Some(b)) if a != b => {
            flaws.push(Flaw::TwoOwners);
            None
        }
        (a, b) => a.or(b).map(short_word).map(|id| Owner(id.into())),
    };
    let index = index.iter().find(|entry| entry.is_about(owner.as_ref()));
    let (status, status_source) = status(&fields, index, &mut flaws);
    let task = fields.text("task").or_else(|| {
        task_file(folder, TASK_MAX).unwrap_or_else(|error| {
            whole &= error.is_not_a_file();
            None
        })
    });
    let task = task.or_else(|| index.and_then(|entry| entry.task.clone())).unwrap_or_default();
    let worker = Worker {
        task: cut(task, TASK_MAX),
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
            .or_else(|| index.and_then(|entry| entry.task_type.as_deref().map(Word::from))),
        tags: Some(fields.list("tags"))
            .filter(|tags| !tags.is_empty())
            .unwrap_or_else(|| index.map(|entry| entry.tags.clone()).unwrap_or_default())
            .into_iter()
            .map(Word::from)
            .collect(),
        model: fields.word("model"),
        cwd: fields.word("cwd"),
        created_at: when(fields.text("created_at").or_else(|| index.and_then(|entry| entry.created_at.clone()))),
        started_at: when(fields.text("started_at")),
        finished_at: when(fields.text("finished_at")),
        duration_ms: fields.number("duration_ms").or_else(|| fields.number("completion_time_ms")),
        error: fields.text("error").map(|text| cut(text, TASK_MAX)),
        summary: fields
            .text("summary")
            .or_else(|| index.and_then(|entry| entry.summary.clone()))
            .map(|text| cut(text, TASK_MAX)),
        flaws,
        whole,
    };
    (worker, object)
}

fn status(fields: &Fields<'_>, index: Option<&IndexEntry>, flaws: &mut Vec<Flaw>) -> (Status, Option<Word>) {
    let indexed = index.and_then(|entry| entry.status.clone()).map(|word| (status_of(&word), word));
    match (fields.word("status"), indexed) {
        (Some(word), indexed) => {
            let status = status_of(&word);
            if let Some((other, other_word)) = indexed.filter(|(other, _)| *other != status) {
                // An index lags behind while a worker goes on; only two different ends contradict each other.
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

enum Failure {
    Absent,
    /// `read`: it is bad for all that can be read; else another time it perhaps is not.
    Bad {
        reason: String,
        read: bool,
    },
}

/// The whole object, or why there is none.
fn read(folder: &dyn Store) -> Result<Owned, Failure> {
    let bad = |reason: String| Failure::Bad { reason, read: true };
    let bytes = match read_whole(folder, &path(METADATA), SIZE_MAX) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Err(bad(format!("larger than {SIZE_MAX} bytes"))),
        Err(Error::NotFound) => return Err(Failure::Absent),
        Err(error) => return Err(Failure::Bad { reason: error.to_string(), read: error.is_not_a_file() }),
    };
    if bytes.trim_ascii().is_empty() {
        return Err(bad("empty".into()));
    }
    known::owned(&bytes).map_err(|fault| bad(fault.to_string()))
}

/// The task as metadata has it.
pub(super) fn task(metadata: &Map<String, Value>) -> Option<String> {
    Fields(metadata).text("task")
}

/// The task in a file of its own, at least `most` bytes of it if it has them.
pub(super) fn task_file(folder: &dyn Store, most: usize) -> Result<Option<String>> {
    let file = folder.open(&path(TASK))?;
    let bytes = read_range(&*file, 0, most + 4)?;
    Ok(Some(String::from_utf8_lossy(&bytes).trim_end().to_owned()).filter(|task| !task.is_empty()))
}

/// Fields at the top level, else inside `config`.
struct Fields<'a>(&'a Map<String, Value>);

impl Fields<'_> {
    fn both(&self, key: &str) -> (Option<String>, Option<String>) {
        let config = self.0.get("config");
        (string(self.0.get(key)), string(config.and_then(|config| config.get(key))))
    }

    fn text(&self, key: &str) -> Option<String> {
        let (top, config) = self.both(key);
        top.or(config)
    }

    /// An id or a word: short, whatever the source made of it.
    fn word(&self, key: &str) -> Option<Word> {
        self.text(key).map(|text| short_word(text).into())
    }

    fn list(&self, key: &str) -> Vec<String> {
        strings(self.0.get(key))
    }

    fn number(&self, key: &str) -> Option<u64> {
        let value = self.0.get(key)?;
        value.as_u64().or_else(|| value.as_f64().filter(|n| *n >= 0.0).map(|n| n as u64))
    }
}

fn placeholder() -> Name {
    crate::name::to_file_name("worker", &[])
}
