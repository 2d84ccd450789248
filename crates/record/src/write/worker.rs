//! Changes of one worker: messages, files, and its end.

use std::fmt;
use std::io::{self, Cursor, Read};
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::call::{self, Call, ExecutionLog};
use super::dir::Dir;
use super::error::{During, Error, Result};
use super::folder::{IfMissing, StoreFolder, WorkerFolder};
use super::lines::{self, HashingReader, MetadataMap, TEXT_MAX, entry_of};
use super::{names, registry};
use crate::audit::AuditPath;
use swarmletfs_base::error::Error as PathError;
use swarmletfs_base::model::{ReviewState, Status};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_trace::swarmlet::{
    CALLS, METADATA, METADATA_MAX, RESULT, RegistryRecord, SUPERVISOR_NOTES, THREAD,
};

const STATUS: &str = "status";
const EXIT_CODE: &str = "exit_code";

/// A worker that is being recorded.
///
/// Several processes and threads may record one worker at once. A worker that has finished does
/// not change any more: each method fails with [`Error::Finished`].
///
/// # Examples
///
/// ```
/// use std::io::Write;
///
/// use swarmletfs_record::write::{CallEnd, Finish, NewWorker, Store};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let store = Store::init(folder.path().join("swarm"))?;
/// let worker = store.create_worker(NewWorker::new("Check the backups"))?;
/// worker.message("assistant", "I restore the newest dump.")?;
///
/// // The output can be followed while the call runs.
/// let mut call = worker.begin_call("ssh_exec", Some(serde_json::json!({"host": "heron"})))?;
/// call.write_all(b"pg_restore: error: No space left on device\n")?;
/// call.end(CallEnd::exit_code(1))?;
///
/// worker.put("outputs/report.md", &mut "The restore failed.\n".as_bytes())?;
/// worker.finish(Finish::failed("restore test failed").result("The backups cannot be restored."))?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Worker(Arc<WorkerFolder>);

#[must_use = "`Worker::finish` writes it"]
pub struct Finish {
    status: Status,
    result: Option<Box<dyn Read + Send>>,
    fields: MetadataMap,
}

impl Finish {
    pub fn completed() -> Finish {
        Finish { status: Status::Completed, result: None, fields: MetadataMap::new() }
    }

    /// Returns the end of a worker that reports a failure. An empty `error` is none.
    pub fn failed(error: impl Into<String>) -> Finish {
        let finish = Finish { status: Status::Failed, ..Finish::completed() };
        finish.text("error", error.into())
    }

    /// Returns the end of a worker that reports neither success nor failure, because of `reason`.
    pub fn abandoned(reason: impl Into<String>) -> Finish {
        let finish = Finish { status: Status::Abandoned, ..Finish::completed() };
        finish.text("error", reason.into())
    }

    /// Sets the final words, which become `result.txt`.
    pub fn result(self, words: impl Into<String>) -> Finish {
        self.result_from(Cursor::new(words.into()))
    }

    /// Sets the reader of the final words, which become `result.txt`.
    pub fn result_from(mut self, words: impl Read + Send + 'static) -> Finish {
        self.result = Some(Box::new(words));
        self
    }

    /// Sets one line that serves as the worker's title.
    pub fn summary(self, summary: impl Into<String>) -> Finish {
        self.text("summary", summary.into())
    }

    pub fn exit_code(mut self, code: i64) -> Finish {
        self.fields.insert(EXIT_CODE.into(), code.into());
        self
    }

    fn text(mut self, key: &'static str, text: String) -> Finish {
        if !text.is_empty() {
            self.fields.insert(key.into(), text.into());
        }
        self
    }
}

impl fmt::Debug for Finish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Finish").field("status", &self.status).finish_non_exhaustive()
    }
}

impl Worker {
    pub(super) fn open(store: Arc<StoreFolder>, id: &Name) -> Result<Worker> {
        Ok(Worker(Arc::new(WorkerFolder::open(store, id)?)))
    }

    pub fn id(&self) -> &Name {
        self.0.id()
    }

    pub fn folder(&self) -> &Dir {
        self.0.folder()
    }

    /// Returns the path of the worker's directory, from the root of the store.
    pub fn path(&self) -> String {
        self.0.store().worker_path(self.id()).to_text().into_owned()
    }

    /// Begins a call of `tool` with its input: arguments as an object, or a text. Readers see the
    /// output while it is written to the call.
    ///
    /// # Errors
    ///
    /// The tool has no name, the input is too large, or the store cannot be written.
    pub fn begin_call(&self, tool: &str, input: Option<Value>) -> Result<Call> {
        let begun = call::begin(&self.0, tool, input);
        if begun.is_err() {
            self.log("record", Vec::new(), &begun);
        }
        begun
    }

    /// Opens `logs/execution.log` to append the output of the command that is the worker itself.
    /// Readers see it while it is written.
    ///
    /// # Errors
    ///
    /// The worker has finished, or the store cannot be written.
    pub fn execution_log(&self) -> Result<ExecutionLog> {
        let opened = self.0.lock_unfinished().and_then(|_lock| ExecutionLog::open(&self.0));
        if opened.is_err() {
            self.log("execution_log", Vec::new(), &opened);
        }
        opened
    }

    /// Updates the entry of the worker in the index.json of the store, if there is one. A worker in
    /// a sandbox cannot do that when it finishes.
    pub fn update_index(&self) {
        self.0.store().update_index(self.id(), IfMissing::Leave);
    }

    /// Copies the facts of metadata.json to a place that the worker cannot write. From now on, its
    /// own metadata.json only makes claims.
    ///
    /// # Errors
    ///
    /// The metadata cannot be read, or the store cannot be written.
    pub fn register(&self) -> Result<()> {
        registry::register(&self.0.store().root, self.id(), self.folder())
    }

    pub fn registry_record(&self) -> Result<Option<RegistryRecord>> {
        registry::find(&self.0.store().root, self.id(), self.folder())
    }

    /// Vouches for `changes`, the next content of changes.json, if the worker could write that
    /// file, too. With a `folder` that does not wait for the disk, this does not either.
    ///
    /// # Errors
    ///
    /// The store cannot be written.
    pub fn vouch_for(&self, changes: &[u8], folder: &Dir) -> Result<()> {
        let vouch = |record: &mut RegistryRecord| record.vouch_for(changes);
        registry::update(&self.0.store().root, self.id(), folder, vouch).map(drop)
    }

    /// Returns true if the runner of the worker wrote `changes` as changes.json, or if the worker
    /// is not in the registry.
    ///
    /// # Errors
    ///
    /// The registry cannot be read.
    pub fn vouches_for(&self, changes: &[u8]) -> Result<bool> {
        Ok(self.registry_record()?.is_none_or(|record| record.vouches_for(changes)))
    }

    /// Returns the decision about the worker's draft, which `find` finds, and keeps it in the
    /// record of the worker, if it has one. That it cannot be kept is only logged.
    ///
    /// # Errors
    ///
    /// The errors of `find`.
    pub fn keep_review_state(&self, find: impl Fn() -> Result<ReviewState>) -> Result<ReviewState> {
        let state = find()?;
        let kept = self.registry_record().and_then(|record| {
            if record.is_none_or(|record| record.draft == Some(state)) {
                return Ok(());
            }
            let folder = self.folder();
            registry::update(&self.0.store().root, self.id(), folder, |record| {
                // Found again under the lock: the last of several commands knows all decisions.
                record.draft = find().ok().or(record.draft);
            })?;
            // Readers watch the directory of the worker, and not the registry.
            let touched = folder.own_mode().and_then(|mode| folder.set_own_mode(mode));
            touched.during("change", folder.path(), b"")
        });
        if let Err(error) = kept {
            let worker = self.id().display();
            tracing::debug!("cannot keep the state of the draft of {worker}: {error}");
        }
        Ok(state)
    }

    /// Returns the fields of metadata.json.
    ///
    /// # Errors
    ///
    /// The worker has finished, or the file cannot be read.
    pub fn metadata(&self) -> Result<Map<String, Value>> {
        self.0.lock_unfinished().map(|(_lock, fields)| fields)
    }

    /// Puts back the fields `saved` that metadata.json has lost, or the whole file if it cannot be
    /// read. Returns true if something was lost. The worker may have finished.
    ///
    /// # Errors
    ///
    /// The store cannot be written.
    pub fn restore_metadata(&self, saved: &Map<String, Value>) -> Result<bool> {
        let folder = self.0.folder();
        let _lock = folder.lock().during("lock", folder.path(), b"")?;
        let (mut fields, is_readable) = match lines::read(folder) {
            Ok(fields) => (fields, true),
            Err(_) => (MetadataMap::new(), false),
        };
        let lost: Vec<_> = saved.iter().filter(|(key, _)| !fields.contains_key(*key)).collect();
        if lost.is_empty() && is_readable {
            return Ok(false);
        }
        fields.extend(lost.into_iter().map(|(key, value)| (key.clone(), value.clone())));
        let clear = || folder.remove_all(&Name::new(METADATA)?);
        if !is_readable {
            clear().during("replace", folder.path(), METADATA.as_bytes())?;
        }
        lines::write(folder, &lines::to_bytes(&fields)?)?;
        Ok(true)
    }

    /// Adds a message of `role` (`user`, `assistant`, `system` or `tool`) to the conversation.
    ///
    /// # Errors
    ///
    /// The role is another word, or the store cannot be written.
    pub fn message(&self, role: &str, content: &str) -> Result<()> {
        let mut message = Map::new();
        message.insert("role".into(), role.into());
        message.insert("content".into(), content.into());
        self.message_object(&message)
    }

    /// Adds a message with the fields of docs/FORMATS.md to the conversation. A message without a
    /// `timestamp` gets the time.
    ///
    /// # Errors
    ///
    /// The object is no message, or the store cannot be written.
    fn message_object(&self, message: &Map<String, Value>) -> Result<()> {
        let line = lines::message_line(message, Timestamp::now());
        self.append_messages(line.map_err(|reason| Error::Message { line: 1, reason }))
    }

    /// Adds the messages in `lines`, one JSON object per line. Either all are added or none.
    ///
    /// # Errors
    ///
    /// A line is no message, or the store cannot be written.
    pub fn message_lines(&self, lines: &[u8]) -> Result<()> {
        self.append_messages(lines::parse_messages(lines, Timestamp::now()))
    }

    fn append_messages(&self, lines: Result<Vec<u8>>) -> Result<()> {
        let mut paths = Vec::new();
        let appended = lines.and_then(|lines| {
            let (lock, _) = self.0.lock_unfinished()?;
            paths.push(entry_of(THREAD, &lines));
            self.0.append(&lock, THREAD, &lines)
        });
        self.log("message", paths, &appended);
        appended
    }

    /// Adds a change of the worker, or an attempt at one, to the log of changes. `paths` are
    /// relative to the worker's directory.
    pub fn log<T>(&self, action: &str, paths: Vec<AuditPath>, result: &Result<T>) {
        self.0.store().log(action, &self.id().to_text(), paths, result);
    }

    /// Writes the file `path`, relative to the worker's directory, such as `outputs/report.md`. An
    /// existing file is replaced. Returns the number of bytes.
    ///
    /// # Errors
    ///
    /// The path leads elsewhere or to a file with a meaning of its own, or the store cannot be
    /// written.
    pub fn put(&self, path: impl AsRef<[u8]>, content: &mut dyn Read) -> Result<u64> {
        let path = path.as_ref();
        let limited = LimitedReader { inner: content, store: self.0.store() };
        let mut content = HashingReader::new(limited);
        let put =
            names::parse_put_path(path).and_then(|path| self.put_checked(&path, &mut content));
        let put = content.or_input_error(put, "the content of the file");
        let written = content.into_entry(&String::from_utf8_lossy(path));
        let bytes = written.bytes;
        self.log("put", vec![written], &put);
        put.map(|()| bytes)
    }

    fn put_checked(&self, path: &RelPath, content: &mut dyn Read) -> Result<()> {
        // Also checked before, so that a worker that has finished costs no copy.
        drop(self.0.lock_unfinished()?);
        let folder = self.0.folder().path();
        let temporary =
            self.0.folder().write_temporary(content).during("write", folder, path.as_bytes())?;
        let (_lock, _) = self.0.lock_unfinished()?;
        let create_parents = || {
            let mut parent: Option<Dir> = None;
            for name in path.parent().names() {
                parent = Some(match &parent {
                    Some(parent) => parent.enter_or_create(&name)?,
                    None => self.0.folder().enter_or_create(&name)?,
                });
            }
            let name = path.file_name().ok_or(PathError::InvalidName)?;
            temporary.replace(parent.as_ref().unwrap_or(self.0.folder()), &name)
        };
        create_parents().during("write", folder, path.as_bytes())
    }

    /// Sets the notes of the supervisor on the worker, which replace earlier ones. An empty text
    /// removes them. The worker may have finished.
    ///
    /// # Errors
    ///
    /// The text has more than 1 MiB, or the store cannot be written.
    pub fn annotate(&self, notes: &str) -> Result<()> {
        let mut paths = Vec::new();
        let annotated = self.annotate_checked(notes, &mut paths);
        self.log("annotate", paths, &annotated);
        annotated
    }

    fn annotate_checked(&self, notes: &str, paths: &mut Vec<AuditPath>) -> Result<()> {
        if notes.len() > TEXT_MAX {
            let reason = format!("it has more than {TEXT_MAX} bytes");
            return Err(Error::invalid(notes.as_bytes(), "a note", reason));
        }
        let notes = Some(notes).filter(|notes| !notes.trim().is_empty());
        let set = |record: &mut RegistryRecord| record.set_notes(notes);
        let is_kept = registry::update(&self.0.store().root, self.id(), self.folder(), set)?;
        match self.write_notes(notes, paths) {
            // The worker may be in the way.
            Err(error) if is_kept => {
                self.0.store().warn(format!("the notes are kept, but not in {METADATA}: {error}"));
                Ok(())
            }
            written => written,
        }
    }

    fn write_notes(&self, notes: Option<&str>, paths: &mut Vec<AuditPath>) -> Result<()> {
        let folder = self.0.folder();
        let _lock = folder.lock().during("lock", folder.path(), b"")?;
        let mut fields = lines::read(folder)?;
        match notes {
            None => fields.remove(SUPERVISOR_NOTES),
            Some(notes) => fields.insert(SUPERVISOR_NOTES.into(), notes.into()),
        };
        let bytes = lines::to_bytes(&fields)?;
        lines::write(folder, &bytes)?;
        paths.push(entry_of(METADATA, &bytes));
        Ok(())
    }

    /// Returns true if a call of the worker is recorded, or being recorded.
    ///
    /// # Errors
    ///
    /// The directory of the calls cannot be read.
    pub fn has_calls(&self) -> Result<bool> {
        let calls = self.folder().enter(&RelPath::constant(CALLS)).and_then(|calls| calls.list());
        match calls {
            Err(error) if error.is_not_found() => Ok(false),
            calls => Ok(!calls.during("read", self.folder().path(), CALLS.as_bytes())?.is_empty()),
        }
    }

    /// Returns the fields that readers show: metadata.json, corrected by the record of a worker in
    /// a sandbox. Also returns their bytes, and true if the worker has finished.
    ///
    /// # Errors
    ///
    /// The metadata cannot be read.
    pub fn shown_metadata(&self) -> Result<(Map<String, Value>, Vec<u8>, bool)> {
        let folder = self.folder();
        let fields = registry::metadata(&self.0.store().root, self.id(), folder)?;
        let bytes = match self.registry_record()? {
            Some(_) => lines::to_bytes(&fields)?,
            // The file as it is, which another program may have written.
            None => {
                let read = || folder.read(&Name::new(METADATA)?, METADATA_MAX);
                let bytes = read().during("read", folder.path(), METADATA.as_bytes())?;
                match bytes {
                    Some(bytes) => bytes,
                    None => lines::to_bytes(&fields)?,
                }
            }
        };
        let has_finished = lines::must_be_unfinished(&fields, self.id()).is_err();
        Ok((fields, bytes, has_finished))
    }

    pub fn has_finished(&self) -> Result<bool> {
        let fields = registry::metadata(&self.0.store().root, self.id(), self.folder())?;
        Ok(lines::must_be_unfinished(&fields, self.id()).is_err())
    }

    /// Finishes the worker: writes its final words, and then its metadata. Its files do not change
    /// any more.
    ///
    /// # Errors
    ///
    /// A call is still being recorded, or the store cannot be written. The worker has not finished
    /// then.
    pub fn finish(&self, end: Finish) -> Result<()> {
        let mut paths = Vec::new();
        let finished = self.finish_checked(end, &mut paths);
        self.log("finish", paths, &finished);
        // After an error of the system, too: only the disk may have failed.
        if matches!(finished, Ok(()) | Err(Error::Path { .. })) {
            self.0.store().update_index(self.id(), IfMissing::Leave);
        }
        finished
    }

    /// Finishes the worker unless it has finished by itself. Returns the status that it has then.
    /// The log of changes gets an entry for that end, unless `is_logged`, and the registry its
    /// status with the exit code of `end`.
    ///
    /// # Errors
    ///
    /// See [`Worker::finish`].
    pub fn ensure_finished(&self, end: Finish, is_logged: bool) -> Result<Option<String>> {
        let fields = lines::read(self.folder())?;
        let unfinished = lines::must_be_unfinished(&fields, self.id());
        let exit_code = end.fields.get(EXIT_CODE).cloned();
        // It may still finish itself after this look.
        let finished = unfinished.and_then(|()| self.finish(end));
        let Err(Error::Finished { status, .. }) = finished else {
            return finished.map(|()| None);
        };
        let status_word = fields.get(STATUS).cloned();
        let seen = [(STATUS, status_word), (EXIT_CODE, exit_code)].into_iter();
        let seen = seen.filter_map(|(key, value)| Some((key.to_owned(), value?))).collect();
        if self.record_end(&seen, Timestamp::now())? {
            // A reader that waits for changes of the worker's files sees its end.
            lines::write(self.folder(), &lines::to_bytes(&fields)?)?;
        }
        if !is_logged {
            self.log("finish", Vec::new(), &Ok(()));
        }
        self.update_index();
        Ok(Some(status))
    }

    /// Records the end of the worker, which the fields `end` of metadata.json state, in the
    /// registry. Returns false if the worker is not in it.
    fn record_end(&self, end: &MetadataMap, now: Timestamp) -> Result<bool> {
        let record_end = |record: &mut RegistryRecord| {
            let mut end = end.clone();
            end.extend(times(record.metadata(), now));
            record.end = Some(end);
        };
        registry::update(&self.0.store().root, self.id(), self.folder(), record_end)
    }

    fn finish_checked(&self, end: Finish, paths: &mut Vec<AuditPath>) -> Result<()> {
        if let Some(text) =
            end.fields.values().find(|text| text.as_str().is_some_and(|text| text.len() > TEXT_MAX))
        {
            let reason = format!("it has more than {TEXT_MAX} bytes");
            let text = text.as_str().unwrap_or_default();
            return Err(Error::invalid(text.as_bytes(), "an error or a summary", reason));
        }
        drop(self.0.lock_unfinished()?);
        let folder = self.0.folder().path();
        let result = match end.result {
            None => None,
            Some(words) => {
                let mut words = HashingReader::new(words);
                let temporary = self.0.folder().write_temporary(&mut words);
                let temporary = temporary.during("write", folder, RESULT.as_bytes());
                let temporary = words.or_input_error(temporary, "the result")?;
                paths.push(words.into_entry(RESULT));
                Some(temporary)
            }
        };
        let (_lock, mut fields) = self.0.lock_unfinished()?;
        if let Some(call) = call::find_recorded_now(self.0.folder())? {
            return Err(Error::OpenCall { worker: self.id().display(), call: call.display() });
        }
        let now = Timestamp::now();
        let mut stated = end.fields;
        stated.insert(STATUS.into(), end.status.as_str().into());
        fields.extend(stated.clone());
        let times = times(&fields, now);
        fields.extend(times);
        let bytes = lines::to_bytes(&fields)?;
        if let Some(temporary) = result {
            let replaced =
                Name::new(RESULT).and_then(|name| temporary.replace(self.0.folder(), &name));
            replaced.during("write", folder, RESULT.as_bytes())?;
        }
        self.record_end(&stated, now)?;
        // Written last: a reader that sees the status finds everything else.
        lines::write(self.0.folder(), &bytes)?;
        paths.push(entry_of(METADATA, &bytes));
        Ok(())
    }
}

/// Takes space of the store for all that is read.
struct LimitedReader<'a> {
    inner: &'a mut dyn Read,
    store: &'a StoreFolder,
}

impl Read for LimitedReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.store.take_space(count)?;
        Ok(count)
    }
}

/// Returns the fields of metadata.json for the end of a worker: the time `now`, and the duration
/// since the start in `fields`.
fn times(fields: &MetadataMap, now: Timestamp) -> MetadataMap {
    let mut times = MetadataMap::new();
    times.insert("finished_at".into(), lines::time(now).into());
    let started = fields.get("started_at").or_else(|| fields.get("created_at"));
    let started = started.and_then(Value::as_str).and_then(|time| time.parse().ok());
    if let Some(took) = started.map(|started: Timestamp| now.duration_since(started)) {
        let ms = u64::try_from(took.as_millis()).unwrap_or_default();
        times.insert("duration_ms".into(), ms.into());
    }
    times
}
