//! The tools for the supervisor's notes: files in the folder `supervisor` of the store.

use rmcp::model::{JsonObject, ToolAnnotations};
use rmcp::schemars::JsonSchema;
use serde::Deserialize;

use super::{Supervisor, SupervisorTool, with_warnings};
use crate::slice::{LINES, OpenFile, SliceRequest};
use crate::tools::{ToolError, ToolResult, definition, parse_arguments};
use swarmletfs_record::write::NotePlace;
use swarmletfs_trace::swarmlet::SUPERVISOR as FOLDER;
use swarmletfs_tree::tree::Tree;

const WRITE: &str = "write_note";
const READ: &str = "read_note";

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(crate = "rmcp::schemars")]
struct WriteNoteInput {
    /// The file, from the folder of the notes: strategy.md
    path: String,
    /// The whole content of the file
    content: String,
}

pub(super) fn write_tool() -> SupervisorTool {
    SupervisorTool {
        definition: definition::<WriteNoteInput>(
            WRITE,
            "Writes a file of the supervisor's notes, such as strategy.md or synthesis.md: a new \
             one, or the whole content of an existing one. The tree has it as supervisor/PATH.",
            ToolAnnotations::new().destructive(true).idempotent(true).open_world(false),
        ),
        call: Box::new(write),
    }
}

fn write(supervisor: &Supervisor, _: &Tree, arguments: JsonObject) -> ToolResult {
    let input: WriteNoteInput = parse_arguments(WRITE, arguments)?;
    supervisor.must_see_notes()?;
    let store = supervisor.open()?;
    let path = input.path.strip_prefix("supervisor/").unwrap_or(&input.path);
    let written = store.write_note(path.as_bytes(), input.content.as_bytes(), NotePlace::Whole);
    let path = written.map_err(|error| ToolError::new(error.to_string()))?;
    Ok(with_warnings(format!("wrote {FOLDER}/{}", path.display()), &store))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(crate = "rmcp::schemars")]
struct ReadNoteInput {
    /// The file, from the folder of the notes: strategy.md
    path: String,
    /// Number of lines to skip [default: 0]
    #[serde(default)]
    offset: u64,
    /// Most lines to return [default: 2000 lines or 16000 bytes, whichever comes first]
    limit: Option<u64>,
}

pub(super) fn read_tool() -> SupervisorTool {
    SupervisorTool {
        definition: definition::<ReadNoteInput>(
            READ,
            "Reads a file of the supervisor's notes. list_dir supervisor lists them.",
            ToolAnnotations::new().read_only(true).idempotent(true).open_world(false),
        ),
        call: Box::new(read),
    }
}

fn read(supervisor: &Supervisor, tree: &Tree, arguments: JsonObject) -> ToolResult {
    let input: ReadNoteInput = parse_arguments(READ, arguments)?;
    supervisor.must_see_notes()?;
    let path = input.path.strip_prefix("supervisor/").unwrap_or(&input.path);
    if path.split('/').any(|name| matches!(name, "" | "." | "..")) {
        return Err(ToolError::new("cannot read this path: it leads elsewhere; try strategy.md"));
    }
    let path = format!("{FOLDER}/{path}");
    let request = SliceRequest::Lines(input.offset, input.limit.unwrap_or(LINES));
    let read = OpenFile::at_path(tree, path.as_bytes()).and_then(|file| file.slice(request));
    read.map_err(ToolError::at(&path))
}
