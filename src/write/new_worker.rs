//! Creates workers.

use std::io::Read;
use std::sync::Arc;

use jiff::Timestamp;
use rustix::io::Errno;
use serde_json::Value;

use super::dir::Dir;
use super::error::{During, Error, Result};
use super::folder::StoreFolder;
use super::hashing::{HashingReader, sha256};
use super::index::{self, IfMissing};
use super::metadata::{self, MetadataMap, TEXT_MAX};
use super::put_path;
use super::worker::Worker;
use super::{id, temporary};
use crate::audit::AuditPath;
use crate::error::Error as PathError;
use crate::name::Name;
use crate::trace::swarmlet::{CALLS, METADATA, METRICS};

/// Maximum length of an id of a run, a job, an owner or a parent, and of other short values, in
/// bytes.
const WORD_MAX: usize = 200;
/// Maximum number of tags that readers read.
const TAGS_MAX: usize = 32;
/// The directory of the files that a worker is given.
const CONTEXT: &str = "context";
/// Attempts to find an id that is not taken.
const ID_ATTEMPTS: usize = 8;

/// A worker to create, with what is known about it at its start.
///
/// # Examples
///
/// ```
/// use swarmletfs::write::{NewWorker, Store};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// let store = Store::init(folder.path().join("swarm"))?;
/// let worker = store.create_worker(
///     NewWorker::new("Check the backups").run("48").task_type("ops").tag("nightly"),
/// )?;
/// assert!(worker.id().to_text().contains("_check-the-backups_"));
/// # Ok(())
/// # }
/// ```
#[derive(Default)]
pub struct NewWorker {
    task: String,
    id: Option<String>,
    /// Texts of metadata.json, by their keys.
    words: Vec<(&'static str, String)>,
    tags: Vec<String>,
    cwd: Option<String>,
    context: Vec<(String, Box<dyn Read>)>,
    starts_index: bool,
}

impl NewWorker {
    /// Describes a worker that is told to do `task`.
    pub fn new(task: impl Into<String>) -> NewWorker {
        NewWorker { task: task.into(), ..NewWorker::default() }
    }

    /// Sets the id, which must not be taken. Without it, the worker gets an id that is made from
    /// the time and the task.
    #[must_use]
    pub fn id(mut self, id: impl Into<String>) -> NewWorker {
        self.id = Some(id.into());
        self
    }

    /// Sets the run that the worker belongs to.
    #[must_use]
    pub fn run(self, run: impl Into<String>) -> NewWorker {
        self.word("run_id", run)
    }

    /// Sets the worker's job in its run.
    #[must_use]
    pub fn job(self, job: impl Into<String>) -> NewWorker {
        self.word("job_id", job)
    }

    /// Sets the owner, for views that show one owner's workers.
    #[must_use]
    pub fn owner(self, owner: impl Into<String>) -> NewWorker {
        self.word("owner_id", owner)
    }

    /// Sets the id of the worker that started this one.
    #[must_use]
    pub fn parent(self, parent: impl Into<String>) -> NewWorker {
        self.word("parent_id", parent)
    }

    /// Sets the kind of task.
    #[must_use]
    pub fn task_type(self, task_type: impl Into<String>) -> NewWorker {
        self.word("task_type", task_type)
    }

    /// Sets the language model.
    #[must_use]
    pub fn model(self, model: impl Into<String>) -> NewWorker {
        self.word("model", model)
    }

    /// Adds a tag. A worker has at most 32.
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>) -> NewWorker {
        self.tags.push(tag.into());
        self
    }

    /// Sets the working directory.
    #[must_use]
    pub fn cwd(mut self, cwd: impl Into<String>) -> NewWorker {
        self.cwd = Some(cwd.into());
        self
    }

    /// Adds the file `context/<key>`, something that the worker is given.
    #[must_use]
    pub fn context(mut self, key: impl Into<String>, content: impl Read + 'static) -> NewWorker {
        self.context.push((key.into(), Box::new(content)));
        self
    }

    /// Starts an index.json in the store, if it has none. An existing index is always updated.
    #[must_use]
    pub fn starting_index(mut self) -> NewWorker {
        self.starts_index = true;
        self
    }

    fn word(mut self, key: &'static str, value: impl Into<String>) -> NewWorker {
        self.words.push((key, value.into()));
        self
    }

    /// Returns the first metadata of the worker.
    fn metadata(&self, id: &Name, now: Timestamp) -> Result<MetadataMap> {
        check_text(&self.task, "a task", TEXT_MAX)?;
        let mut fields = MetadataMap::new();
        fields.insert("worker_id".into(), id.to_text().into());
        for (key, value) in &self.words {
            check_word(value, key)?;
            fields.insert((*key).into(), value.as_str().into());
        }
        fields.insert("task".into(), self.task.as_str().into());
        if self.tags.len() > TAGS_MAX {
            let reason = format!("a worker has at most {TAGS_MAX} tags");
            return Err(Error::invalid(self.tags.join(", ").as_bytes(), "tags", reason));
        }
        self.tags.iter().try_for_each(|tag| check_word(tag, "a tag"))?;
        if !self.tags.is_empty() {
            fields.insert("tags".into(), self.tags.clone().into());
        }
        fields.insert("status".into(), metadata::running());
        if let Some(cwd) = &self.cwd {
            check_text(cwd, "a working directory", TEXT_MAX)?;
            fields.insert("cwd".into(), cwd.as_str().into());
        }
        let now: Value = metadata::time(now).into();
        fields.insert("created_at".into(), now.clone());
        fields.insert("started_at".into(), now);
        Ok(fields)
    }
}

/// Checks an id or another short value, which is shown in names and markers.
fn check_word(value: &str, role: &'static str) -> Result<()> {
    if value.trim().is_empty() {
        return Err(Error::invalid(value.as_bytes(), role, "it is empty"));
    }
    if value.len() > WORD_MAX {
        return Err(Error::invalid(value.as_bytes(), role, "it has more than 200 bytes"));
    }
    if value.chars().any(|c| c.is_control() || crate::unicode::is_invisible(c)) {
        let reason = "it has a control character or an invisible character";
        return Err(Error::invalid(value.as_bytes(), role, reason));
    }
    Ok(())
}

fn check_text(value: &str, role: &'static str, limit: usize) -> Result<()> {
    if value.len() <= limit {
        return Ok(());
    }
    let reason = format!("it has {} bytes, and readers read {limit}", value.len());
    Err(Error::invalid(value.as_bytes(), role, reason))
}

/// Creates `new` in `store`.
pub(super) fn create(store: &Arc<StoreFolder>, mut new: NewWorker) -> Result<Worker> {
    let now = Timestamp::now();
    let given = new.id.as_deref().map(id::parse).transpose()?;
    for attempt in 1.. {
        let id = match &given {
            Some(id) => id.clone(),
            None => id::generate(&new.task, now)?,
        };
        let fields = new.metadata(&id, now)?;
        // Checked first, so that a taken id costs nothing.
        let path = store.workers.path();
        let is_taken =
            store.workers.kind(&id.clone().into()).during("find", path, id.as_bytes())?;
        let created = match is_taken {
            Some(_) => Err(Error::Taken(id.display())),
            None => publish(store, &id, &fields, &mut new.context),
        };
        match created {
            // The context was read, so there is no second attempt with it.
            Err(Error::Taken(_))
                if given.is_none() && attempt < ID_ATTEMPTS && new.context.is_empty() => {}
            created => {
                let (worker, paths) = match created {
                    Ok((worker, paths)) => (Ok(worker), paths),
                    Err(error) => (Err(error), Vec::new()),
                };
                store.log("create", &id, paths, &worker);
                let worker = worker?;
                let missing = if new.starts_index { IfMissing::Create } else { IfMissing::Leave };
                update_index(store, &id, missing);
                return Ok(worker);
            }
        }
    }
    Err(Error::Taken(String::new()))
}

/// Writes the entry of a worker into the index of the store. The worker's own metadata counts, so
/// an error is a warning.
fn update_index(store: &StoreFolder, id: &Name, missing: IfMissing) {
    let updated = index::update(&store.workers, store.prefix, id, missing);
    if let Err(error) = updated {
        store.warn(error.to_string());
    }
}

/// Creates the directory of a worker under a temporary name, fills it, and gives it its name, so
/// that no reader sees a part of it.
fn publish(
    store: &Arc<StoreFolder>,
    id: &Name,
    fields: &MetadataMap,
    context: &mut Vec<(String, Box<dyn Read>)>,
) -> Result<(Worker, Vec<AuditPath>)> {
    let workers = &store.workers;
    let created = temporary::worker_name().and_then(|name| Ok((workers.create_dir(&name)?, name)));
    let (folder, name) = created.during("create a folder in", workers.path(), b"")?;
    let published = fill(&folder, fields, context).and_then(|paths| {
        let renamed = workers.rename_new(&name, id);
        match renamed {
            Err(PathError::Io(Errno::EXIST)) => Err(Error::Taken(id.display())),
            renamed => renamed.during("create", workers.path(), id.as_bytes()).map(|()| paths),
        }
    });
    match published {
        Ok(paths) => Ok((Worker::open(Arc::clone(store), id)?, paths)),
        Err(error) => {
            // The first error counts; what is left behind, `doctor` finds.
            let _ = workers.remove_tree(&name);
            Err(error)
        }
    }
}

/// Fills the directory of a new worker.
fn fill(
    folder: &Dir,
    fields: &MetadataMap,
    context: &mut Vec<(String, Box<dyn Read>)>,
) -> Result<Vec<AuditPath>> {
    let mut paths = Vec::new();
    // The lock tells a worker that is being created from one that a crash interrupted.
    let _lock = folder.lock().during("lock", folder.path(), b"")?;
    if !context.is_empty() {
        let created = Name::new(CONTEXT).and_then(|name| folder.create_dir(&name));
        let created = created.during("create", folder.path(), CONTEXT.as_bytes())?;
        for (key, content) in context.drain(..) {
            let path = put_path::parse(format!("{CONTEXT}/{key}").as_bytes())?;
            let (2, Some(file)) = (path.depth(), path.file_name()) else {
                let reason = "a key is the name of one file";
                return Err(Error::invalid(key.as_bytes(), "a key of the context", reason));
            };
            let mut content = HashingReader::new(content);
            let written = created
                .write_temporary(&mut content)
                .and_then(|temporary| temporary.replace(&created, &file));
            written.during("write", created.path(), file.as_bytes())?;
            let (bytes, sha256) = content.finish();
            let path = path.to_text().into_owned();
            paths.push(AuditPath { path, bytes, sha256: Some(sha256) });
        }
    }
    let filled = || {
        folder.create_dir(&Name::new(CALLS)?)?;
        folder.create_file(&Name::new(METRICS)?)?;
        Ok(())
    };
    filled().during("fill", folder.path(), b"")?;
    // The file makes the directory a worker. Its rename also waits for the names above.
    let bytes = metadata::write(folder, fields)?;
    let sha256 = Some(sha256(&bytes));
    paths.push(AuditPath { path: METADATA.into(), bytes: bytes.len() as u64, sha256 });
    Ok(paths)
}
