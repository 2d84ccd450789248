//! The format of Codex rollouts. Each session is a file of JSON lines, compressed after a time. A
//! subagent has a file of its own.

mod decode;
mod edits;
mod layout;
mod operation;
mod outcome;
pub(crate) mod patch;
mod schema;
mod subagents;

pub(crate) use patch::diff_edit;
pub use subagents::{UnreportedSubagent, unreported_subagents};

use serde_json::Value;

use super::Candidates;
use super::probe::Probe;
use super::transcript::{
    CallRecord, IndexBuilder, RawRecord, Session, TranscriptFormat, TranscriptLocation,
    Transcripts, Turn,
};
use swarmletfs_base::error::Result;
use swarmletfs_base::model::{FileAccess, FileEdit, SharedStr, Worker, WorkerId};
use swarmletfs_base::name::{RelPath, to_file_name};
use swarmletfs_base::store::Store;

/// The version of Codex CLI that tests/clients runs.
pub(crate) const TESTED_VERSION: &str = "0.171.0";

pub struct Codex;

impl Codex {
    pub fn transcripts() -> Transcripts {
        Transcripts::new(&Codex)
    }
}

impl TranscriptFormat for Codex {
    fn name(&self) -> &'static str {
        "codex"
    }

    fn find_transcripts(&self, store: &dyn Store) -> Result<Candidates> {
        layout::find_transcripts(store)
    }

    fn recognizes(&self, probe: &Probe<'_>) -> bool {
        layout::recognizes(probe)
    }

    fn must_be_recognized(&self, path: &RelPath) -> bool {
        !layout::is_rollout_name(path)
    }

    fn is_prepared(&self, store: &dyn Store) -> bool {
        layout::is_prepared(store)
    }

    fn locate(&self, path: &RelPath) -> Option<TranscriptLocation> {
        layout::locate(path)
    }

    fn sibling(&self, location: &TranscriptLocation) -> Option<TranscriptLocation> {
        layout::sibling(location)
    }

    fn states_status(&self) -> bool {
        true
    }

    fn add_record(&self, index: &mut IndexBuilder<'_>, record: RawRecord<'_>) -> bool {
        decode::add_record(index, record)
    }

    fn with_turns(&self, record: RawRecord<'_>, use_turns: &mut dyn FnMut(&[Turn<'_>])) {
        decode::with_turns(record, use_turns)
    }

    fn accessed_files(&self, tool: &str, arguments: &Value) -> Vec<FileAccess> {
        decode::accessed_files(tool, arguments)
    }

    fn asks_person_for(&self, tool: &str) -> Option<&'static str> {
        match tool {
            "request_user_input" => Some("question"),
            "request_permissions" => Some("permission"),
            _ => None,
        }
    }

    fn may_begin_with_copies(&self) -> bool {
        true
    }

    fn describe(&self, worker: &mut Worker, session: &Session<'_>) {
        let facts = &session.indexes[0].facts;
        if let Some(id) = &facts.id {
            worker.id = WorkerId(to_file_name(id, &[]));
        }
        worker.parent = facts.parent.as_deref().map(SharedStr::from);
        let root = facts.root.as_deref().filter(|_| facts.parent.is_some());
        let own = worker.id.to_text();
        worker.run = Some(root.or(facts.parent.as_deref()).unwrap_or(&own).into());
        worker.task_type = Some(facts.agent_type.as_deref().unwrap_or("session").into());
        worker.summary = facts.title.as_ref().map(|title| title.text.clone());
    }

    fn read_edits(&self, call: &CallRecord<'_>, result: RawRecord<'_>) -> Result<Vec<FileEdit>> {
        edits::read_edits(call, result)
    }
}
