//! Creates workers.

use std::io::Read;
use std::sync::Arc;

use jiff::Timestamp;
use rustix::io::Errno;
use serde_json::Value;

use super::dir::{Dir, Lock};
use super::error::{During, Error, Result};
use super::folder::{IfMissing, StoreFolder};
use super::lines::{self, HashingReader, MetadataMap, TEXT_MAX, entry_of};
use super::worker::Worker;
use super::{names, registry};
use crate::audit::AuditPath;
use swarmletfs_base::error::Error as PathError;
use swarmletfs_base::name::Name;
use swarmletfs_trace::swarmlet::{CALLS, METADATA, METRICS};

/// Maximum length of an id of a run, a job, an owner or a parent, and of other short values, in
/// bytes.
const WORD_MAX: usize = 200;
/// Maximum number of tags that readers read.
const TAGS_MAX: usize = 32;
const CONTEXT: &str = "context";
const PARENT: &str = "parent_id";
const ID_ATTEMPTS: usize = 8;

/// A worker to create, with the facts that are known at its start.
///
/// # Examples
///
/// ```
/// use swarmletfs_record::write::{NewWorker, Store};
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
#[must_use = "`Store::create_worker` creates it"]
pub struct NewWorker {
    task: String,
    id: Option<String>,
    /// Texts of metadata.json: the key, its name in errors, and the text.
    words: Vec<(&'static str, &'static str, String)>,
    tags: Vec<String>,
    cwd: Option<String>,
    context: Vec<(String, Box<dyn Read + Send>)>,
    starts_index: bool,
}

impl NewWorker {
    /// Describes a worker whose task is `task`.
    pub fn new(task: impl Into<String>) -> NewWorker {
        NewWorker { task: task.into(), ..NewWorker::default() }
    }

    /// Sets the id, which must not be taken. Without it, the worker gets an id that is made from
    /// the time and the task.
    pub fn id(mut self, id: impl Into<String>) -> NewWorker {
        self.id = Some(id.into());
        self
    }

    pub fn run(self, run: impl Into<String>) -> NewWorker {
        self.word("run_id", "the id of a run", run)
    }

    pub fn job(self, job: impl Into<String>) -> NewWorker {
        self.word("job_id", "the id of a job", job)
    }

    /// Sets the owner, for views that show one owner's workers.
    pub fn owner(self, owner: impl Into<String>) -> NewWorker {
        self.word("owner_id", "the id of an owner", owner)
    }

    /// Sets the id of the worker that started this one.
    pub fn parent(self, parent: impl Into<String>) -> NewWorker {
        self.word(PARENT, "the id of a parent", parent)
    }

    pub fn task_type(self, task_type: impl Into<String>) -> NewWorker {
        self.word("task_type", "a type", task_type)
    }

    pub fn model(self, model: impl Into<String>) -> NewWorker {
        self.word("model", "the name of a model", model)
    }

    /// Adds a tag. A worker has at most 32.
    pub fn tag(mut self, tag: impl Into<String>) -> NewWorker {
        self.tags.push(tag.into());
        self
    }

    pub fn cwd(mut self, cwd: impl Into<String>) -> NewWorker {
        self.cwd = Some(cwd.into());
        self
    }

    /// Adds the file `context/<key>`, an input of the worker.
    pub fn context(
        mut self,
        key: impl Into<String>,
        content: impl Read + Send + 'static,
    ) -> NewWorker {
        self.context.push((key.into(), Box::new(content)));
        self
    }

    /// Starts an index.json in the store, if it has none. An existing index is always updated.
    pub fn starting_index(mut self) -> NewWorker {
        self.starts_index = true;
        self
    }

    fn word(
        mut self,
        key: &'static str,
        role: &'static str,
        value: impl Into<String>,
    ) -> NewWorker {
        self.words.push((key, role, value.into()));
        self
    }

    fn metadata(&self, id: &Name, now: Timestamp) -> Result<MetadataMap> {
        check_text(&self.task, "a task", TEXT_MAX)?;
        let mut fields = MetadataMap::new();
        fields.insert("worker_id".into(), id.to_text().into());
        for (key, role, value) in &self.words {
            check_word(value, role)?;
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
        fields.insert("status".into(), lines::running());
        if let Some(cwd) = &self.cwd {
            check_text(cwd, "a working directory", TEXT_MAX)?;
            fields.insert("cwd".into(), cwd.as_str().into());
        }
        let now: Value = lines::time(now).into();
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
    if value.chars().any(|c| c.is_control() || swarmletfs_base::unicode::is_invisible(c)) {
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

pub(super) fn create(store: &Arc<StoreFolder>, new: NewWorker) -> Result<Worker> {
    let mut id = new.id.clone().unwrap_or_default();
    let mut paths = Vec::new();
    let created = create_unlogged(store, new, &mut paths);
    if let Ok(worker) = &created {
        id = worker.id().to_text().into_owned();
    }
    store.log("create", &id, paths, &created);
    created
}

/// Creates a worker, and adds the files that it wrote to `paths`.
fn create_unlogged(
    store: &Arc<StoreFolder>,
    new: NewWorker,
    paths: &mut Vec<AuditPath>,
) -> Result<Worker> {
    let now = Timestamp::now();
    // Checked first, so that a taken id costs nothing.
    let id = match &new.id {
        Some(id) => {
            let id = names::parse_id(id)?;
            if is_taken(store, &id)? {
                return Err(Error::Taken(id.display()));
            }
            registry::must_be_new(&store.root, &id)?;
            id
        }
        None => free_id(store, &new.task, now)?,
    };
    let metadata = lines::to_bytes(&new.metadata(&id, now)?)?;
    let _parent = lock_parent(store, &new)?;
    let worker = publish(store, &id, &metadata, new.context, paths)?;
    store.update_index(&id, if new.starts_index { IfMissing::Create } else { IfMissing::Leave });
    Ok(worker)
}

/// Takes the lock of the parent, so that a removal decides about it before or after the child is
/// created. Returns `None` if the parent cannot be locked: it may be in another store, or belong to
/// a user who alone can read it.
///
/// # Errors
///
/// The parent was removed, or another process holds its lock for long.
fn lock_parent(store: &StoreFolder, new: &NewWorker) -> Result<Option<Lock>> {
    let parent = new.words.iter().find(|(key, ..)| *key == PARENT);
    let id = parent.and_then(|(.., id)| Name::new(id.as_bytes()).ok());
    let Some(id) = id else { return Ok(None) };
    let locked = store.workers.enter(&id.clone().into()).and_then(|folder| folder.lock());
    let lock = match locked {
        Err(PathError::Io(Errno::BUSY)) => {
            return locked.map(Some).during("lock", store.workers.path(), id.as_bytes());
        }
        locked => locked.ok(),
    };
    // It may have been removed while this waited.
    if !is_taken(store, &id)? && registry::tombstone_exists(&store.root, &id)? {
        return Err(Error::invalid(id.as_bytes(), "the id of a parent", "this worker was removed"));
    }
    Ok(lock)
}

fn is_taken(store: &StoreFolder, id: &Name) -> Result<bool> {
    let existing = store.workers.kind(&id.clone().into());
    Ok(existing.during("find", store.workers.path(), id.as_bytes())?.is_some())
}

fn free_id(store: &StoreFolder, task: &str, now: Timestamp) -> Result<Name> {
    let mut id = names::generate_id(task, now)?;
    for _ in 1..ID_ATTEMPTS {
        if !is_taken(store, &id)? && !registry::tombstone_exists(&store.root, &id)? {
            break;
        }
        id = names::generate_id(task, now)?;
    }
    registry::must_be_new(&store.root, &id)?;
    Ok(id)
}

/// Creates the directory of a worker under a temporary name, fills it, and gives it its name, so
/// that no reader sees a part of it.
fn publish(
    store: &Arc<StoreFolder>,
    id: &Name,
    metadata: &[u8],
    context: Vec<(String, Box<dyn Read + Send>)>,
    paths: &mut Vec<AuditPath>,
) -> Result<Worker> {
    let published = publish_folder(store, id, |folder| fill(folder, metadata, context, paths));
    if published.is_err() {
        paths.clear();
    }
    published
}

/// Creates the directory of the worker `id`, which `fill` fills. Readers see all of it at once.
pub(super) fn publish_folder(
    store: &Arc<StoreFolder>,
    id: &Name,
    fill: impl FnOnce(&Dir) -> Result<()>,
) -> Result<Worker> {
    let workers = &store.workers;
    let created = names::worker_name().and_then(|name| Ok((workers.create_dir(&name)?, name)));
    let (folder, name) = created.during("create a folder in", workers.path(), b"")?;
    // The lock tells a worker that is being created from one that a crash interrupted.
    let locked = folder.lock().during("lock", folder.path(), b"");
    let published = locked.and_then(|_lock| {
        fill(&folder)?;
        match workers.rename_new(&name, id) {
            Err(PathError::Io(Errno::EXIST)) => Err(Error::Taken(id.display())),
            renamed => renamed.during("create", workers.path(), id.as_bytes()),
        }
    });
    if let Err(error) = published {
        // The first error counts; `doctor` finds the directory.
        let _ = workers.remove_all(&name);
        return Err(error);
    }
    Worker::open(Arc::clone(store), id)
}

fn fill(
    folder: &Dir,
    metadata: &[u8],
    context: Vec<(String, Box<dyn Read + Send>)>,
    paths: &mut Vec<AuditPath>,
) -> Result<()> {
    if !context.is_empty() {
        let created = Name::new(CONTEXT).and_then(|name| folder.create_dir(&name));
        let created = created.during("create", folder.path(), CONTEXT.as_bytes())?;
        for (key, content) in context {
            let path = names::parse_put_path(format!("{CONTEXT}/{key}").as_bytes())?;
            let (2, Some(file)) = (path.depth(), path.file_name()) else {
                let reason = "a key is the name of one file";
                return Err(Error::invalid(key.as_bytes(), "a key of the context", reason));
            };
            let mut content = HashingReader::new(content);
            let written = created
                .write_temporary(&mut content)
                .and_then(|temporary| temporary.replace(&created, &file));
            let written = written.during("write", created.path(), file.as_bytes());
            content.or_input_error(written, "a file of the context")?;
            paths.push(content.into_entry(&path.to_text()));
        }
    }
    let filled = || {
        folder.create_dir(&Name::new(CALLS)?)?;
        folder.create_file(&Name::new(METRICS)?)?;
        Ok(())
    };
    filled().during("fill", folder.path(), b"")?;
    // The file makes the directory a worker. Its rename also waits for the names above.
    lines::write(folder, metadata)?;
    paths.push(entry_of(METADATA, metadata));
    Ok(())
}
