//! The format of Claude Code transcripts. Each session is a file of JSON lines. A subagent has a
//! file of its own, or lines in its session's file.

mod decode;
mod edits;
mod layout;
mod schema;
mod texts;
mod workflow;

use serde::Deserialize;
use serde_json::Value;

use self::texts::Notification;
use super::Candidates;
use super::lenient::{MaybeBool, MaybeStr};
use super::probe::Probe;
use super::transcript::{
    CallRecord, IndexBuilder, RawRecord, ReportedEnd, Session, TranscriptFormat,
    TranscriptLocation, Transcripts, Turn,
};
use super::value::{shorten, truncate};
use swarmletfs_base::error::Result;
use swarmletfs_base::model::{FileAccess, FileEdit, SharedStr, Status, TASK_MAX, Worker};
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{Store, read_range};

const WORD_MAX: usize = 200;
/// Maximum size of the state of a session in the background, in bytes.
const JOB_STATE_MAX: usize = 1 << 20;

/// The version of Claude Code that tests/clients runs.
pub(crate) const TESTED_VERSION: &str = "2.1.332";

pub struct ClaudeCode;

impl ClaudeCode {
    pub fn transcripts() -> Transcripts {
        Transcripts::new(&ClaudeCode)
    }
}

/// Returns the ID of the task whose end a message of the program reports, and the end. The end is
/// `None` if the task's own record states it.
pub fn ended_task(message: &str) -> Option<(&str, Option<ReportedEnd>)> {
    let report = Notification::parse_all(message).next()?;
    Some((report.task, decode::reported_end(&report)))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
struct AgentMetadata<'a> {
    /// The type of a line; a file has none.
    #[serde(rename = "type")]
    line: MaybeStr<'a>,
    agent_type: MaybeStr<'a>,
    description: MaybeStr<'a>,
    /// The subagent that started this one. If there is none, the session did.
    #[serde(rename = "parentAgentId")]
    parent: MaybeStr<'a>,
    /// The phase of the workflow that started the subagent.
    #[serde(rename = "workflowPhase")]
    phase: MaybeStr<'a>,
    /// True if the subagent began with the history of its session.
    is_fork: MaybeBool,
}

/// The state of a session in the background, which its process keeps in a file.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct JobState<'a> {
    #[serde(borrow)]
    state: MaybeStr<'a>,
}

fn agent_metadata(bytes: &[u8]) -> Option<AgentMetadata<'_>> {
    serde_json::from_slice(bytes).ok()
}

impl TranscriptFormat for ClaudeCode {
    fn name(&self) -> &'static str {
        "claude-code"
    }

    fn find_transcripts(&self, store: &dyn Store) -> Result<Candidates> {
        layout::find_transcripts(store)
    }

    fn recognizes(&self, probe: &Probe<'_>) -> bool {
        layout::recognizes(probe)
    }

    fn must_be_recognized(&self, _path: &RelPath) -> bool {
        false
    }

    fn is_prepared(&self, store: &dyn Store) -> bool {
        layout::is_prepared(store)
    }

    fn locate(&self, path: &RelPath) -> Option<TranscriptLocation> {
        layout::locate(path)
    }

    fn add_record(&self, index: &mut IndexBuilder<'_>, record: RawRecord<'_>) -> bool {
        if index.may_be_worker() {
            decode::add_record(index, record)
        } else {
            workflow::add_record(index, record)
        }
    }

    fn with_turns(&self, record: RawRecord<'_>, use_turns: &mut dyn FnMut(&[Turn<'_>])) {
        decode::with_turns(record, use_turns)
    }

    fn accessed_files(&self, _tool: &str, arguments: &Value) -> Vec<FileAccess> {
        decode::accessed_file(arguments).into_iter().collect()
    }

    fn spilled_result(
        &self,
        location: &TranscriptLocation,
        session: Option<&str>,
        call: &str,
        name: Option<&str>,
    ) -> Option<RelPath> {
        layout::spilled_result(location, session, call, name)
    }

    fn reporters(
        &self,
        location: &TranscriptLocation,
        metadata: &dyn Fn() -> Option<Vec<u8>>,
    ) -> Vec<RelPath> {
        let Some(session) = layout::starter(location, None) else { return Vec::new() };
        let metadata = metadata();
        let metadata = metadata.as_deref().and_then(agent_metadata);
        let agent = metadata.and_then(|metadata| metadata.parent.non_empty());
        let starter = match agent {
            Some(agent) => layout::starter(location, Some(&agent)),
            None => Some(session),
        };
        let run = layout::run_records(location);
        starter.into_iter().chain(run.into_iter().flatten()).collect()
    }

    fn work_folder(&self, location: &TranscriptLocation) -> Option<RelPath> {
        layout::states_folder(location)
    }

    fn copied_from(
        &self,
        location: &TranscriptLocation,
        metadata: &dyn Fn() -> Option<Vec<u8>>,
    ) -> Option<RelPath> {
        let session = layout::starter(location, None)?;
        let metadata = metadata()?;
        let is_fork = agent_metadata(&metadata)?.is_fork.is_set();
        is_fork.then_some(session)
    }

    fn is_metadata(&self, record: &[u8]) -> bool {
        agent_metadata(record)
            .is_some_and(|metadata| metadata.line.as_str() == decode::AGENT_METADATA)
    }

    fn job_folder(&self, location: &TranscriptLocation) -> Option<RelPath> {
        layout::job_folder(location)
    }

    fn read_job(&self, job: &dyn Store) -> Option<ReportedEnd> {
        let file = job.open(&RelPath::constant(layout::JOB_STATE)).ok()?;
        let state = read_range(&*file, 0, JOB_STATE_MAX).ok()?;
        let state: JobState<'_> = serde_json::from_slice(&state).ok()?;
        // The other states say nothing that the transcript does not: one that is `working` may be
        // idle, and one that is `blocked` may have answered.
        (state.state.as_str() == "stopped").then(|| ReportedEnd {
            status: Status::Abandoned,
            word: "stopped".into(),
            message: String::new(),
            result: None,
        })
    }

    fn asks_person_for(&self, tool: &str) -> Option<&'static str> {
        match tool {
            "AskUserQuestion" => Some("question"),
            "ExitPlanMode" => Some("approval of its plan"),
            _ => None,
        }
    }

    fn may_begin_with_copies(&self) -> bool {
        true
    }

    fn describe(&self, worker: &mut Worker, session: &Session<'_>) {
        let location = session.location;
        let [index, _] = session.indexes;
        let named = location.session.as_ref().map(|session| session.to_text().into_owned());
        let is_session = layout::is_session(location);
        if is_session {
            worker.run = Some(worker.id.to_text().into());
        } else {
            worker.run = named.or_else(|| index.facts.id.clone()).map(SharedStr::from);
            worker.parent.clone_from(&worker.run);
        }
        let metadata = session.metadata.and_then(agent_metadata).unwrap_or_default();
        if let Some(parent) = metadata.parent.non_empty().filter(|_| !is_session) {
            worker.parent = Some(shorten(&parent, WORD_MAX).into());
        }
        let phase = metadata.phase.non_empty().filter(|_| !is_session);
        worker.tags.extend(phase.map(|phase| shorten(&phase, WORD_MAX).into()));
        let agent_type = metadata.agent_type.non_empty().map(|text| shorten(&text, WORD_MAX));
        let default_type = if is_session { "session" } else { "agent" };
        worker.task_type = Some(agent_type.map_or_else(|| default_type.into(), SharedStr::from));
        worker.summary = if is_session {
            index.facts.title.as_ref().map(|title| title.text.clone())
        } else {
            metadata.description.non_empty().map(|text| truncate(text, TASK_MAX))
        };
    }

    fn read_edits(&self, call: &CallRecord<'_>, result: RawRecord<'_>) -> Result<Vec<FileEdit>> {
        edits::read_edit(call, result).map(|edit| vec![edit])
    }
}
