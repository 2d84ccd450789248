//! Errors of the library as exceptions, and calls that run without the interpreter.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyType;
use swarmletfs::cli::in_process::{WriteFailure, path_message};
use swarmletfs_base::error::Error;
use swarmletfs_base::text::budget::Budget;
use swarmletfs_record::write;

/// A failure to report as an exception.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An exception of the package: the name of its class, and its text.
    Raised(&'static str, String),
    /// An exception that Python code raised, as by a signal.
    Python(PyErr),
}

/// The class of all exceptions of the package.
const ERROR: &str = "Error";
const NOT_FOUND: &str = "NotFound";
const INVALID: &str = "Invalid";
const FINISHED: &str = "Finished";

impl Failure {
    /// Returns the failure for an argument that cannot be used.
    pub(crate) fn invalid(text: impl Into<String>) -> Failure {
        Failure::Raised(INVALID, text.into())
    }

    /// Returns the failure for a path of the tree that cannot be read.
    pub(crate) fn at_path(path: &[u8], error: &Error) -> Failure {
        let class = if error.is_miss() || error.is_not_found() { NOT_FOUND } else { ERROR };
        Failure::Raised(class, path_message(path, error))
    }

    fn of_panic(payload: &(dyn Any + Send)) -> Failure {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no message");
        Failure::Raised(ERROR, format!("internal error: {text}"))
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        Failure::Raised(ERROR, format!("{error:#}"))
    }
}

impl From<write::Error> for Failure {
    fn from(error: write::Error) -> Failure {
        let class = match error {
            write::Error::NoWorker { .. } | write::Error::Gone { .. } => NOT_FOUND,
            write::Error::Invalid { .. } | write::Error::Message { .. } => INVALID,
            write::Error::Finished { .. } => FINISHED,
            _ => ERROR,
        };
        Failure::Raised(class, error.to_string())
    }
}

impl From<WriteFailure> for Failure {
    fn from(failure: WriteFailure) -> Failure {
        match failure {
            WriteFailure::Store(error) => error.into(),
            WriteFailure::NoStore(_) => Failure::Raised(ERROR, failure.to_string()),
        }
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> PyErr {
        let (class, text) = match failure {
            Failure::Raised(class, text) => (class, text),
            Failure::Python(error) => return error,
        };
        Python::attach(|py| {
            let found = py.import("swarmletfs._errors").and_then(|module| module.getattr(class));
            match found.and_then(|class| Ok(class.cast_into::<PyType>()?)) {
                Ok(class) => PyErr::from_type(class, text),
                Err(_) => PyRuntimeError::new_err(text),
            }
        })
    }
}

/// Parses the size of an answer.
pub(crate) fn parse_budget(size: &str) -> Result<Budget, Failure> {
    Budget::parse(size)
        .map_err(|why| Failure::invalid(format!("cannot use {size:?} as a budget: {why}")))
}

/// Runs `work` without the interpreter, so that other threads of Python go on. A panic becomes an
/// exception.
pub(crate) fn detached<T: Send>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, Failure> + Send,
) -> PyResult<T> {
    let done = py.detach(|| {
        catch_unwind(AssertUnwindSafe(work))
            .unwrap_or_else(|payload| Err(Failure::of_panic(&*payload)))
    });
    Ok(done?)
}
