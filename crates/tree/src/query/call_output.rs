//! Finds and opens the output of a tool call, in the worker's directory or stored elsewhere.

use super::grep::{GrepOptions, GrepQuery};
use super::run;
use crate::analysis::analyzer::Analyzer;
use crate::analysis::{NO_RESULT, UNRECORDED};
use crate::route::Scope;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::model::{Output, ToolCall};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::File;
use swarmletfs_base::watchdog::OVERDUE;

#[derive(Debug, Clone, Copy)]
pub enum CallSelector<'a> {
    /// A worker and the call's number in index.json.
    Number(&'a Name, u64),
    /// A worker and the call's output file: its name, or its path in the worker's directory.
    File(&'a Name, &'a str),
    /// The id under which the output was stored.
    Artifact(&'a str),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputLocation {
    pub worker: Name,
    /// The call's file, relative to the worker's directory.
    pub path: RelPath,
    /// Reason why the output cannot be read; `None` if it can.
    pub missing: Option<String>,
}

/// Finds the output of a call and opens it if it can be read.
///
/// # Errors
/// [`Error::NotFound`] if there is no such call in the view, or the error of reading the worker.
pub fn open(
    analyzer: &Analyzer,
    call: &CallSelector<'_>,
) -> Result<(OutputLocation, Option<Box<dyn File>>)> {
    match call {
        CallSelector::Number(worker, number) => {
            open_matching(analyzer, worker, |call| call.seq == *number)
        }
        CallSelector::File(worker, file) => open_matching(analyzer, worker, |call| {
            is_named(&call.path, file) || call.path.as_bytes() == file.as_bytes()
        }),
        CallSelector::Artifact(id) => open_artifact(analyzer, id),
    }
}

fn open_matching(
    analyzer: &Analyzer,
    worker: &Name,
    matches: impl Fn(&ToolCall) -> bool,
) -> Result<(OutputLocation, Option<Box<dyn File>>)> {
    let clock = analyzer.settings.clock(10);
    let member = analyzer.view.find_worker(worker)?;
    let fingerprint = analyzer.view.fingerprint(&member, true)?;
    let record = analyzer.record(&member, &fingerprint, OVERDUE, clock.deadline())?;
    let call = record.trace.calls.iter().find(|call| matches(call)).ok_or(Error::NotFound)?;
    let file = analyzer.view.open_output(&member, call)?;
    let missing = match &call.output {
        Output::Unreadable(reason) => Some(reason.clone()),
        Output::Pending => Some(NO_RESULT.into()),
        Output::Unrecorded => Some(UNRECORDED.into()),
        Output::InPlace | Output::OutOfBand(_) => {
            file.is_none().then(|| "stored out of band".into())
        }
    };
    Ok((OutputLocation { worker: member.name.clone(), path: call.path.clone(), missing }, file))
}

/// Finds an output by its artifact id. Searches only stubs in the view: a caller that cannot
/// see the stub must not read the output.
fn open_artifact(analyzer: &Analyzer, id: &str) -> Result<(OutputLocation, Option<Box<dyn File>>)> {
    if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(Error::NotFound);
    }
    let options = GrepOptions {
        ignore_case: true,
        glob: Some("tool_calls/*".into()),
        ..GrepOptions::default()
    };
    let regex = format!(r"^\s*\[TOOL_OUTPUT:artifact_id={id},");
    let answer = run(analyzer, &Scope::Swarm, &GrepQuery { options, regex, under: None })?;
    let Some(stub) = answer.found.shown.first() else {
        return Err(if answer.page.missing.is_some() { Error::Late } else { Error::NotFound });
    };
    let file = stub.path.rsplit('/').next().unwrap_or(&stub.path);
    open_matching(analyzer, &stub.worker, |call| is_named(&call.path, file))
}

fn is_named(path: &RelPath, name: &str) -> bool {
    path.file_name().is_some_and(|file_name| file_name.as_bytes() == name.as_bytes())
}
