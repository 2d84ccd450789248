//! The formats of Cline. Since version 4, each agent of a session has a document with its messages,
//! and the session has a manifest. Before, and in Roo Code, each task has a bare list of messages.

mod session;
mod task;

use serde_json::Value;

use super::file_tools::{self, FileTool, FileTools};
use super::probe::Probe;
use super::transcript::{
    CallRecord, IndexBuilder, Member, RawRecord, SessionMetadata, Shape, TranscriptFormat,
    TranscriptLocation, Turn,
};
use swarmletfs_base::error::Result;
use swarmletfs_base::model::{FileAccess, FileEdit};
use swarmletfs_base::name::{Name, RelPath};

const SESSION_SUFFIX: &str = ".messages.json";
const MANIFEST_SUFFIX: &str = ".json";
/// The messages of a task, as the model gets them.
const TASK_FILE: &str = "api_conversation_history.json";
/// The messages of a task, as its user sees them.
const TASK_DISPLAY: &str = "ui_messages.json";
const MEMBERS: [Member; 4] = [
    Member::List("messages"),
    Member::Value("sessionId"),
    Member::Value("origin"),
    Member::List(""),
];
const TOOLS: &FileTools = &[
    ("read_files", FileTool::Read),
    ("read_file", FileTool::Read),
    ("editor", FileTool::Replace),
    ("apply_patch", FileTool::Patch),
    ("write_to_file", FileTool::Write),
    ("replace_in_file", FileTool::Replace),
    ("apply_diff", FileTool::Replace),
    ("search_and_replace", FileTool::Replace),
];

pub struct Cline;

impl TranscriptFormat for Cline {
    fn name(&self) -> &'static str {
        "cline"
    }

    fn recognizes(&self, probe: &Probe<'_>) -> bool {
        let begins = |byte| probe.head().trim_ascii_start().first() == Some(&byte);
        let has = |sign: &[u8]| memchr::memmem::find(probe.head(), sign).is_some();
        match probe.name() {
            name if name.ends_with(SESSION_SUFFIX.as_bytes()) => {
                begins(b'{') && has(b"\"sessionId\"")
            }
            name if name == TASK_FILE.as_bytes() => begins(b'[') && has(b"\"role\""),
            _ => false,
        }
    }

    fn locate(&self, path: &RelPath) -> Option<TranscriptLocation> {
        let shape = Shape::Documents(&MEMBERS);
        if let Some(location) = TranscriptLocation::of_file(path, SESSION_SUFFIX, shape) {
            return location.with_metadata(MANIFEST_SUFFIX).above();
        }
        let is_task = path.file_name()?.as_bytes() == TASK_FILE.as_bytes();
        let location = TranscriptLocation::of_file(path, MANIFEST_SUFFIX, shape);
        let location = location.filter(|_| is_task)?;
        let name = location.folder.file_name()?;
        let metadata = Some(RelPath::from(Name::new(TASK_DISPLAY).ok()?));
        TranscriptLocation { name, metadata, ..location }.above()
    }

    fn add_record(&self, index: &mut IndexBuilder<'_>, record: RawRecord<'_>) -> bool {
        match MEMBERS.get(usize::from(record.span.part)) {
            Some(Member::List("messages")) => session::add_message(index, record),
            Some(Member::List(_)) => task::add_message(index, record),
            Some(Member::Value(name)) => session::add_fact(index, name, record.text),
            _ => false,
        }
    }

    fn with_turns(&self, record: RawRecord<'_>, use_turns: &mut dyn FnMut(&[Turn<'_>])) {
        match record.span.part {
            0 => session::with_turns(record, use_turns),
            _ => task::with_turns(record, use_turns),
        }
    }

    fn states_calls_once(&self) -> bool {
        true
    }

    fn accessed_files(&self, tool: &str, arguments: &Value) -> Vec<FileAccess> {
        file_tools::accessed_files(TOOLS, tool, arguments)
    }

    fn asks_person_for(&self, tool: &str) -> Option<&'static str> {
        match tool {
            "ask_question" | "ask_followup_question" => Some("question"),
            "plan_mode_respond" => Some("answer to its plan"),
            _ => None,
        }
    }

    fn read_metadata(&self, metadata: &[u8]) -> SessionMetadata {
        match metadata.trim_ascii_start().first() {
            Some(b'[') => task::read_display(metadata),
            _ => session::read_manifest(metadata),
        }
    }

    fn read_edits(&self, call: &CallRecord<'_>, _result: RawRecord<'_>) -> Result<Vec<FileEdit>> {
        file_tools::read_edits(self, TOOLS, call)
    }
}
