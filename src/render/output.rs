//! The output of one call, wherever it lies: in its file, or stored outside of the worker's folder.

use super::grep::{self, Options};
use super::{Renderer, Scope};
use crate::error::{Error, Result};
use crate::model::{Output, ToolCall};
use crate::name::{Name, RelPath};
use crate::store::File;
use crate::watchdog::OVERDUE;

/// Which call is meant.
#[derive(Debug, Clone, Copy)]
pub enum Asked<'a> {
    /// The one of this number, as index.json tells it.
    Number(&'a Name, u64),
    /// The one whose output is this file: its name, or its path in the worker's folder.
    File(&'a Name, &'a str),
    /// The one whose output was stored under this id.
    Artifact(&'a str),
}

/// Where an output is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The worker.
    pub worker: Name,
    /// The call's file, in the worker's folder.
    pub path: RelPath,
    /// Why it cannot be read, if it cannot.
    pub missing: Option<String>,
}

impl Renderer {
    /// The output of a call, opened where it can be read. [`Error::NotFound`] if there is no such call in the view.
    pub fn output(&self, call: &Asked<'_>) -> Result<(Place, Option<Box<dyn File>>)> {
        match call {
            Asked::Number(worker, number) => self.output_of(worker, |call| call.seq == *number),
            Asked::File(worker, file) => {
                let is_named = |path: &RelPath| path.file_name().is_some_and(|name| name.as_bytes() == file.as_bytes());
                self.output_of(worker, |call| is_named(&call.path) || call.path.as_bytes() == file.as_bytes())
            }
            Asked::Artifact(id) => self.artifact(id),
        }
    }

    fn output_of(&self, worker: &Name, is_meant: impl Fn(&ToolCall) -> bool) -> Result<(Place, Option<Box<dyn File>>)> {
        let clock = self.settings.clock(10);
        let member = self.view.worker(worker)?;
        let stamp = self.view.fingerprint(&member, true)?;
        let record = self.record(&member, &stamp, OVERDUE, &|| clock.may_go_on())?;
        let call = record.trace.calls.iter().find(|call| is_meant(call)).ok_or(Error::NotFound)?;
        let file = self.view.open_output(&member, call)?;
        let missing = match &call.output {
            Output::Unreadable(reason) => Some(reason.clone()),
            Output::Pending => Some(super::index::NO_RESULT.into()),
            Output::InPlace | Output::StoredOut(_) => file.is_none().then(|| "stored out of band".into()),
        };
        Ok((Place { worker: worker.clone(), path: call.path.clone(), missing }, file))
    }

    /// The output that a stub in the view stands for: who cannot see the stub cannot read it.
    fn artifact(&self, id: &str) -> Result<(Place, Option<Box<dyn File>>)> {
        if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(Error::NotFound);
        }
        let options = Options { ignore_case: true, glob: Some("tool_calls/*".into()), ..Options::default() };
        let regex = format!(r"^\s*\[TOOL_OUTPUT:artifact_id={id},");
        let answer = self.grep(&Scope::Swarm, &grep::Query { options, regex, under: None })?;
        let stub = answer.shown.first().ok_or(Error::NotFound)?;
        let file = stub.path.rsplit('/').next().unwrap_or_default();
        self.output_of(&stub.worker, |call| {
            call.path.file_name().is_some_and(|name| name.as_bytes() == file.as_bytes())
        })
    }
}
