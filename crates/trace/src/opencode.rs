//! The format of opencode's sessions, which are rows of one database: of versions 2, and of 1.2 and
//! later. Each session and each subagent is a conversation of its own.
//!
//! A database that version 2 took over still holds the tables of version 1. A session in both is
//! read from the newer ones.

mod calls;
mod decode;
mod edits;
mod layout;
mod schema;
#[cfg(test)]
mod tests;

use serde_json::Value;

use super::Candidates;
use super::database_files::is_database;
use super::probe::Probe;
use super::transcript::{
    CallRecord, IndexBuilder, RawRecord, Session, TranscriptFormat, TranscriptLocation,
    Transcripts, Turn,
};
use super::value::truncate;
use swarmletfs_base::error::Result;
use swarmletfs_base::model::{FileAccess, FileEdit, SharedStr, TASK_MAX, Worker};
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::Store;

pub struct OpenCode;

impl OpenCode {
    pub fn transcripts() -> Transcripts {
        Transcripts::new(&OpenCode)
    }
}

impl TranscriptFormat for OpenCode {
    fn name(&self) -> &'static str {
        "opencode"
    }

    fn find_transcripts(&self, store: &dyn Store) -> Result<Candidates> {
        layout::FILES.find_transcripts(store)
    }

    fn recognizes(&self, probe: &Probe<'_>) -> bool {
        layout::FILES.recognizes(probe)
    }

    fn must_be_recognized(&self, path: &RelPath) -> bool {
        is_database(path)
    }

    fn locate(&self, path: &RelPath) -> Option<TranscriptLocation> {
        layout::FILES.locate(path)
    }

    fn add_record(&self, index: &mut IndexBuilder<'_>, record: RawRecord<'_>) -> bool {
        decode::add_record(index, record)
    }

    fn with_turns(&self, record: RawRecord<'_>, use_turns: &mut dyn FnMut(&[Turn<'_>])) {
        decode::with_turns(record, use_turns)
    }

    fn accessed_files(&self, tool: &str, arguments: &Value) -> Vec<FileAccess> {
        calls::accessed_file(tool, arguments).into_iter().collect()
    }

    fn asks_person_for(&self, tool: &str) -> Option<&'static str> {
        (tool == "question").then_some("an answer")
    }

    fn describe(&self, worker: &mut Worker, session: &Session<'_>) {
        let [index, _] = session.indexes;
        let facts = &index.facts;
        worker.parent = facts.parent.as_deref().map(SharedStr::from);
        let own_id = || SharedStr::from(&*worker.id.to_text());
        worker.run = Some(worker.parent.clone().unwrap_or_else(own_id));
        let is_agent = worker.parent.is_some();
        worker.task_type = Some(if is_agent { "agent" } else { "session" }.into());
        let title = facts.title.as_ref();
        worker.summary = title.map(|title| truncate(title.text.clone(), TASK_MAX));
    }

    fn read_edits(&self, call: &CallRecord<'_>, result: RawRecord<'_>) -> Result<Vec<FileEdit>> {
        edits::read_edits(call, result)
    }
}
