//! Decodes the changes of files from the records of calls.

use serde_json::Value;

use super::super::bounded;
use super::super::codex::diff_edit;
use super::super::lenient::MaybeStr;
use super::super::transcript::{CallRecord, RawRecord, shorten_id};
use super::calls::{changes, path_argument};
use super::decode::with_blocks;
use super::schema::{CallMetadata, OpencodeBlock, OpencodeEditedFile};
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::model::{FileEdit, TextReplacement};

/// Reads the changes that a call made, without their numbers. The record of its result is its own.
///
/// # Errors
///
/// Fails with [`Error::Stale`] if the record does not hold the call any more.
pub(super) fn read_edits(call: &CallRecord<'_>, _result: RawRecord<'_>) -> Result<Vec<FileEdit>> {
    let mut edits = None;
    with_blocks(call.record.text, &mut |blocks| {
        let own = blocks.iter().find(|block| shorten_id(block.id()) == call.id);
        edits = own.map(|block| edits_of(block));
    });
    edits.ok_or(Error::Stale)
}

fn edits_of(block: &OpencodeBlock<'_>) -> Vec<FileEdit> {
    let Some(state) = &block.state.0 else { return Vec::new() };
    let no_metadata = CallMetadata::default();
    let metadata = state.metadata.0.as_ref().unwrap_or(&no_metadata);
    let arguments = state.input.and_then(|input| bounded::parse_any(input.get()));
    let stated: Vec<FileEdit> = changes(metadata).map(stated_edit).collect();
    if !stated.is_empty() {
        return stated;
    }
    arguments.and_then(|arguments| asked_edit(&arguments, metadata)).into_iter().collect()
}

fn stated_edit(change: &OpencodeEditedFile<'_>) -> FileEdit {
    let text = |text: &MaybeStr<'_>| text.0.as_deref().map(str::to_owned);
    let (before, after) = (text(&change.before), text(&change.after));
    let created = change.is_created();
    let edit = match change.diff() {
        Some(patch) => diff_edit(&patch),
        None => FileEdit { before: before.filter(|_| !created), after, ..FileEdit::default() },
    };
    FileEdit {
        path: change.path().unwrap_or_default(),
        created,
        deleted: change.is_deleted(),
        moved_to: change.move_path.non_empty(),
        ..edit
    }
}

/// Returns the edit that the arguments of a call ask for.
fn asked_edit(arguments: &Value, metadata: &CallMetadata<'_>) -> Option<FileEdit> {
    let text = |name: &str| arguments.get(name).and_then(Value::as_str).map(str::to_owned);
    let path = path_argument(arguments)?.to_owned();
    if let Some(content) = text("content") {
        let created = metadata.exists.0 == Some(false);
        return Some(FileEdit { path, after: Some(content), created, ..FileEdit::default() });
    }
    let replacement = TextReplacement {
        old: text("oldString")?,
        new: text("newString")?,
        all: arguments.get("replaceAll").and_then(Value::as_bool) == Some(true),
        ..TextReplacement::default()
    };
    Some(FileEdit { path, replacements: vec![replacement], ..FileEdit::default() })
}
