//! The format of OpenHands: a directory of events per conversation, exports of all events in one
//! file, and files with the results of an evaluation, a conversation per line.
//!
//! Version 0 events have an action or an observation with a number as ID. Version 1 events have a
//! kind.

mod arguments;
mod decode;
mod edits;
mod layout;
mod metadata;
mod recognize;
mod schema;
mod version_0;
mod version_1;

use serde_json::Value;

use super::Candidates;
use super::probe::Probe;
use super::transcript::{
    CallRecord, IndexBuilder, RawRecord, Session, SessionMetadata, TranscriptFormat,
    TranscriptLocation, Transcripts, Turn,
};
use swarmletfs_base::error::Result;
use swarmletfs_base::model::{FileAccess, FileEdit, SharedStr, Status, Worker};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::Store;

pub struct OpenHands;

impl OpenHands {
    pub fn transcripts() -> Transcripts {
        Transcripts::new(&OpenHands)
    }
}

impl TranscriptFormat for OpenHands {
    fn name(&self) -> &'static str {
        "openhands"
    }

    fn find_transcripts(&self, store: &dyn Store) -> Result<Candidates> {
        layout::find_transcripts(store)
    }

    fn recognizes(&self, probe: &Probe<'_>) -> bool {
        recognize::recognizes(probe)
    }

    fn is_prepared(&self, store: &dyn Store) -> bool {
        layout::is_prepared(store)
    }

    fn locate(&self, path: &RelPath) -> Option<TranscriptLocation> {
        layout::locate(path)
    }

    fn add_record(&self, index: &mut IndexBuilder<'_>, record: RawRecord<'_>) -> bool {
        decode::add_record(index, record)
    }

    fn with_turns(&self, record: RawRecord<'_>, use_turns: &mut dyn FnMut(&[Turn<'_>])) {
        decode::with_turns(record, use_turns)
    }

    fn accessed_files(&self, tool: &str, arguments: &Value) -> Vec<FileAccess> {
        edits::accessed_file(tool, arguments).into_iter().collect()
    }

    fn read_metadata(&self, metadata: &[u8]) -> SessionMetadata {
        metadata::read(metadata)
    }

    fn describe(&self, worker: &mut Worker, session: &Session<'_>) {
        let location = session.location;
        let text = |name: &Name| SharedStr::from(name.to_text());
        worker.summary.clone_from(&session.stated.title);
        if location.agent.is_some() {
            worker.task_type = Some("instance".into());
            worker.run = Some(text(&layout::run_of_instances(location)));
            // A line is written when its instance is over.
            if matches!(worker.status, Status::Running | Status::Waiting | Status::Created) {
                (worker.status, worker.status_source) =
                    (Status::Unknown, Some("no end recorded".into()));
            }
            return;
        }
        let parent = layout::parent(location);
        worker.task_type = Some(if parent.is_some() { "agent" } else { "session" }.into());
        worker.run = Some(text(location.session.as_ref().unwrap_or(&location.name)));
        worker.parent = parent.as_ref().map(text);
    }

    fn read_edits(&self, call: &CallRecord<'_>, result: RawRecord<'_>) -> Result<Vec<FileEdit>> {
        edits::read_edits(call, result)
    }
}
