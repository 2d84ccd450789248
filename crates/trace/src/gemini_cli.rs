//! The format of Gemini CLI's sessions. Each session is a log of JSON lines, and in older versions
//! one document. A subagent has a log of its own.

mod decode;
mod edits;
mod layout;
mod schema;

use serde_json::Value;

use super::Candidates;
use super::probe::Probe;
use super::transcript::{
    CallRecord, IndexBuilder, RawRecord, Session, TranscriptFormat, TranscriptLocation,
    Transcripts, Turn,
};
use swarmletfs_base::error::Result;
use swarmletfs_base::model::{FileAccess, FileEdit, Worker};
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::Store;

/// Maximum length of the path of a project, in bytes.
const PATH_MAX: usize = 4_096;

pub struct GeminiCli;

impl GeminiCli {
    pub fn transcripts() -> Transcripts {
        Transcripts::new(&GeminiCli)
    }
}

impl TranscriptFormat for GeminiCli {
    fn name(&self) -> &'static str {
        "gemini-cli"
    }

    fn find_transcripts(&self, store: &dyn Store) -> Result<Candidates> {
        layout::find_transcripts(store)
    }

    fn recognizes(&self, probe: &Probe<'_>) -> bool {
        layout::recognizes(probe)
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
        decode::accessed_files(tool, arguments)
    }

    fn spilled_result(
        &self,
        location: &TranscriptLocation,
        session: Option<&str>,
        call: &str,
        _name: Option<&str>,
    ) -> Option<RelPath> {
        layout::spilled_result(location, session, call)
    }

    fn describe(&self, worker: &mut Worker, session: &Session<'_>) {
        let parent = session.location.session.as_ref().map(|parent| parent.to_text());
        session.describe(worker, parent.as_deref());
        let project = session.metadata.and_then(|bytes| std::str::from_utf8(bytes).ok());
        let project = project.map(str::trim).filter(|path| path.starts_with('/'));
        if let Some(path) = project.filter(|path| path.len() <= PATH_MAX && !path.contains('\n')) {
            worker.cwd = Some(path.into());
        }
    }

    fn read_edits(&self, call: &CallRecord<'_>, result: RawRecord<'_>) -> Result<Vec<FileEdit>> {
        edits::read_edit(call, result).map(|edit| vec![edit])
    }
}
