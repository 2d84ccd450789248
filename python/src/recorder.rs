//! Recording: a worker of a store, and its calls.

use std::io::Cursor;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use serde_json::Value;
use swarmletfs::cli::in_process::{open_to_write, worker_of_environment};
use swarmletfs_record::write::{self, CallEnd, CallReceipt, Durability, Finish, NewWorker, Store};

use crate::failure::{Failure, detached};

/// Makes a store.
#[pyfunction]
pub(crate) fn init(py: Python<'_>, path: PathBuf) -> PyResult<()> {
    detached(py, || {
        Store::init(path)?;
        Ok(())
    })
}

/// A worker that is being recorded.
#[pyclass(frozen, module = "swarmletfs._native")]
pub(crate) struct Recorder {
    store: Store,
    worker: write::Worker,
}

#[pymethods]
impl Recorder {
    /// Creates a worker.
    #[staticmethod]
    #[expect(clippy::too_many_arguments, reason = "each is a keyword argument in Python")]
    fn create(
        py: Python<'_>,
        store: Option<PathBuf>,
        sync: bool,
        task: String,
        id: Option<String>,
        words: Vec<(String, String)>,
        tags: Vec<String>,
        cwd: Option<String>,
        context: Vec<(String, Vec<u8>)>,
    ) -> PyResult<Recorder> {
        detached(py, || {
            let store = open_to_write(store, durability(sync))?;
            let mut new = NewWorker::new(task);
            if let Some(id) = id {
                new = new.id(id);
            }
            if let Some(cwd) = cwd {
                new = new.cwd(cwd);
            }
            for (key, word) in words {
                new = match key.as_str() {
                    "run" => new.run(word),
                    "job" => new.job(word),
                    "owner" => new.owner(word),
                    "parent" => new.parent(word),
                    "type" => new.task_type(word),
                    "model" => new.model(word),
                    _ => return Err(Failure::invalid(format!("a worker has no {key:?}"))),
                };
            }
            let new = tags.into_iter().fold(new, NewWorker::tag);
            let new = context
                .into_iter()
                .fold(new, |new, (key, content)| new.context(key, Cursor::new(content)));
            let worker = store.create_worker(new)?;
            Ok(Recorder { store, worker })
        })
    }

    /// Opens the worker `id`, or the one that `$SWARMLET_WORKER` names.
    #[staticmethod]
    fn open(
        py: Python<'_>,
        store: Option<PathBuf>,
        sync: bool,
        id: Option<String>,
    ) -> PyResult<Recorder> {
        detached(py, || {
            let id = id.map_or_else(worker_of_environment, Ok)?;
            let store = open_to_write(store, durability(sync))?;
            let worker = store.worker(id)?;
            Ok(Recorder { store, worker })
        })
    }

    /// Returns the id.
    fn id(&self) -> String {
        self.worker.id().to_text().into_owned()
    }

    /// Begins a call. `input` is JSON.
    fn begin_call(&self, py: Python<'_>, tool: &str, input: Option<String>) -> PyResult<Call> {
        let call = detached(py, || {
            let input: Option<Value> =
                input.map(|text| serde_json::from_str(&text)).transpose().map_err(|error| {
                    Failure::invalid(format!("cannot use the input of a call: {error}"))
                })?;
            Ok(self.worker.begin_call(tool, input)?)
        })?;
        let (seq, path) = (call.seq(), call.path().to_text().into_owned());
        Ok(Call { seq, path, call: Mutex::new(Some(call)) })
    }

    /// Adds a message, as a JSON object.
    fn message(&self, py: Python<'_>, message: &str) -> PyResult<()> {
        detached(py, || Ok(self.worker.message_lines(message.as_bytes())?))
    }

    /// Writes a file and returns its size.
    fn put(&self, py: Python<'_>, path: Vec<u8>, content: Vec<u8>) -> PyResult<u64> {
        detached(py, || Ok(self.worker.put(path, &mut &*content)?))
    }

    /// Sets the supervisor's notes.
    fn annotate(&self, py: Python<'_>, notes: &str) -> PyResult<()> {
        detached(py, || Ok(self.worker.annotate(notes)?))
    }

    /// Finishes the worker.
    fn finish(
        &self,
        py: Python<'_>,
        status: &str,
        result: Option<String>,
        summary: String,
        error: String,
        exit_code: Option<i64>,
    ) -> PyResult<()> {
        let mut end = match status {
            "completed" => Finish::completed(),
            "failed" => Finish::failed(error),
            "abandoned" => Finish::abandoned(error),
            other => {
                let message =
                    format!("unknown status {other:?}; try completed, failed or abandoned");
                return Err(Failure::invalid(message).into());
            }
        };
        end = end.summary(summary);
        if let Some(code) = exit_code {
            end = end.exit_code(code);
        }
        if let Some(words) = result {
            end = end.result(words);
        }
        detached(py, || Ok(self.worker.finish(end)?))
    }

    /// Returns the problems since the last call that did not prevent a change.
    fn take_warnings(&self) -> Vec<String> {
        self.store.take_warnings()
    }
}

/// A call that is being recorded.
#[pyclass(frozen, module = "swarmletfs._native")]
pub(crate) struct Call {
    seq: u64,
    path: String,
    /// `None` once the call has ended.
    call: Mutex<Option<write::Call>>,
}

#[pymethods]
impl Call {
    /// Returns the number of the call.
    fn seq(&self) -> u64 {
        self.seq
    }

    /// Returns the path of the output in the worker's folder.
    fn path(&self) -> &str {
        &self.path
    }

    /// Adds to the output.
    fn write(&self, py: Python<'_>, bytes: Vec<u8>) -> PyResult<()> {
        detached(py, || {
            let mut call = self.call.lock().unwrap_or_else(PoisonError::into_inner);
            let call = call.as_mut().ok_or_else(|| self.ended())?;
            Ok(call.write_from(&mut &*bytes)?)
        })
    }

    /// Ends the call and returns the size of its output.
    fn end(
        &self,
        py: Python<'_>,
        success: Option<bool>,
        exit_code: Option<i64>,
        error: String,
        truncated: bool,
        duration: Option<f64>,
    ) -> PyResult<u64> {
        let end = match (exit_code, success) {
            (Some(code), _) => CallEnd::exit_code(code),
            (None, Some(success)) => CallEnd::success(success),
            (None, None) => CallEnd::unknown(),
        };
        let mut end = end.error(error);
        if truncated {
            end = end.truncated();
        }
        if let Some(seconds) = duration {
            end = end.duration(Duration::try_from_secs_f64(seconds).map_err(|error| {
                Failure::invalid(format!("cannot use {seconds} as a duration: {error}"))
            })?);
        }
        detached(py, || {
            let call = self.call.lock().unwrap_or_else(PoisonError::into_inner).take();
            let call = call.ok_or_else(|| self.ended())?;
            let CallReceipt { bytes, .. } = call.end(end)?;
            Ok(bytes)
        })
    }
}

impl Call {
    fn ended(&self) -> Failure {
        Failure::invalid(format!("cannot change call {}: it has ended", self.seq))
    }
}

fn durability(sync: bool) -> Durability {
    if sync { Durability::Full } else { Durability::None }
}
