//! Reads the changes of files that a conversation records, from the lines of its calls.

use serde::Deserialize;

use super::super::lenient::{MaybeBool, MaybeList, MaybeObject, MaybeStr, MaybeU64};
use super::index::{CallEntry, CallResult, Conversation};
use super::open_file::with_turn_at;
use super::parser::shorten_id;
use super::schema::{Message, Span, json_text};
use super::virtual_dir::VirtualDir;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::model::{AccessKind, FileEdit, RecordedEdits, RecordedHunk, TextReplacement};
use crate::store::{File, read_range};

/// Maximum number of bytes of lines that are read for the changes of one conversation. If the
/// values made from a line are larger than the line, they count instead.
const BYTES_MAX: usize = 64 << 20;

/// The arguments of a call that changes a file.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct EditArguments<'a> {
    #[serde(borrow)]
    file_path: MaybeStr<'a>,
    #[serde(borrow)]
    notebook_path: MaybeStr<'a>,
    #[serde(borrow)]
    old_string: MaybeStr<'a>,
    #[serde(borrow)]
    new_string: MaybeStr<'a>,
    replace_all: MaybeBool,
    #[serde(borrow)]
    content: MaybeStr<'a>,
    #[serde(borrow)]
    edits: MaybeList<MaybeObject<EditStep<'a>>>,
    #[serde(borrow)]
    new_source: MaybeStr<'a>,
    #[serde(borrow)]
    cell_id: MaybeStr<'a>,
    #[serde(borrow)]
    edit_mode: MaybeStr<'a>,
}

/// One of several replacements of a call.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct EditStep<'a> {
    #[serde(borrow)]
    old_string: MaybeStr<'a>,
    #[serde(borrow)]
    new_string: MaybeStr<'a>,
    replace_all: MaybeBool,
}

/// A line with a result.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct EditResultLine<'a> {
    #[serde(borrow, rename = "type")]
    kind: MaybeStr<'a>,
    #[serde(borrow)]
    message: MaybeObject<Message<'a>>,
    #[serde(borrow, rename = "toolUseResult")]
    details: MaybeObject<EditResult<'a>>,
}

/// Details of the result of a call that changed a file.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct EditResult<'a> {
    /// `create` if the file did not exist.
    #[serde(borrow, rename = "type")]
    kind: MaybeStr<'a>,
    #[serde(borrow, rename = "filePath")]
    file_path: MaybeStr<'a>,
    #[serde(borrow)]
    content: MaybeStr<'a>,
    #[serde(borrow, rename = "oldString")]
    old_string: MaybeStr<'a>,
    #[serde(borrow, rename = "newString")]
    new_string: MaybeStr<'a>,
    #[serde(rename = "replaceAll")]
    replace_all: MaybeBool,
    #[serde(borrow, rename = "originalFile")]
    original: MaybeStr<'a>,
    #[serde(borrow, rename = "originalFileContents")]
    original_contents: MaybeStr<'a>,
    #[serde(borrow, rename = "original_file")]
    original_notebook: MaybeStr<'a>,
    #[serde(borrow, rename = "updated_file")]
    updated_notebook: MaybeStr<'a>,
    #[serde(borrow, rename = "structuredPatch")]
    patch: MaybeList<MaybeObject<PatchLines<'a>>>,
}

/// A hunk of a recorded diff.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PatchLines<'a> {
    #[serde(rename = "oldStart")]
    old_start: MaybeU64,
    #[serde(borrow)]
    lines: MaybeList<MaybeStr<'a>>,
}

/// Returns true if the conversation of `folder` changed a file, as far as it can be read until
/// `deadline` passes, or if it cannot be read whole.
pub(super) fn has_edits(folder: &VirtualDir, deadline: Deadline<'_>) -> Result<bool> {
    let (index, is_complete) = folder.index(deadline)?;
    let conversation =
        index.conversation(folder.location().agent.as_ref()).ok_or(Error::NotFound)?;
    Ok(!is_complete || edit_calls(conversation).next().is_some())
}

/// Reads the changes of the conversation of `folder`.
pub(super) fn read_edits(folder: &VirtualDir, deadline: Deadline<'_>) -> Result<RecordedEdits> {
    let (index, is_complete) = folder.index(deadline)?;
    let conversation =
        index.conversation(folder.location().agent.as_ref()).ok_or(Error::NotFound)?;
    let file = folder.open_transcript()?;
    let mut recorded = RecordedEdits { timed_out: !is_complete, ..RecordedEdits::default() };
    let mut room = BYTES_MAX;
    for (seq, call, result) in edit_calls(conversation) {
        if recorded.unread > 0 || !deadline.has_time() {
            recorded.unread += 1;
            continue;
        }
        let line = call_line(conversation, call).ok_or(Error::Stale)?;
        let lines_len = line.len.saturating_add(result.span.len);
        match room.checked_sub(lines_len) {
            Some(left) => room = left,
            None => {
                recorded.excess += 1;
                continue;
            }
        }
        let edit = FileEdit { seq, ..read_edit(&*file, line, call, result)? };
        room = room.saturating_sub(list_sizes(&edit).saturating_sub(lines_len));
        recorded.edits.push(edit);
    }
    Ok(recorded)
}

/// Returns the sizes of the lists of a change without their texts, in bytes. The texts are no
/// larger than the lines that hold them, but a list of short texts can be.
fn list_sizes(edit: &FileEdit) -> usize {
    let lines: usize = edit.hunks.iter().map(|hunk| hunk.lines.len()).sum();
    edit.replacements.len() * size_of::<TextReplacement>()
        + edit.hunks.len() * size_of::<RecordedHunk>()
        + lines * size_of::<String>()
}

/// Returns the calls that changed a file, with their numbers and results.
fn edit_calls(conversation: &Conversation) -> impl Iterator<Item = (u64, &CallEntry, &CallResult)> {
    conversation.calls.iter().zip(1..).filter_map(|(call, seq)| {
        let is_edit = call.file.as_ref().is_some_and(|file| file.kind != AccessKind::Read);
        let result = call.result.as_ref().filter(|result| is_edit && !result.failed)?;
        Some((seq, call, result))
    })
}

/// Returns the position of the line that made `call`.
fn call_line(conversation: &Conversation, call: &CallEntry) -> Option<Span> {
    let lines = &conversation.lines;
    let at = lines.binary_search_by_key(&call.line_offset, |line| line.span.offset).ok()?;
    lines.get(at).map(|line| line.span)
}

/// Reads one change, without its number.
fn read_edit(
    file: &dyn File,
    line: Span,
    call: &CallEntry,
    result: &CallResult,
) -> Result<FileEdit> {
    let bytes = read_range(file, result.span.offset, result.span.len)?;
    let text = json_text(&bytes);
    let result: MaybeObject<EditResultLine<'_>> =
        serde_json::from_str(&text).map_err(|_| Error::Stale)?;
    let details = result.0.and_then(own_details).unwrap_or_default();
    with_turn_at(file, line, |turn| {
        let mut blocks = turn.message.content.blocks().iter();
        let block = blocks.find(|block| {
            block.kind.as_str() == "tool_use" && shorten_id(block.id.as_str()) == call.id
        })?;
        let arguments: MaybeObject<EditArguments<'_>> =
            serde_json::from_str(block.input?.get()).ok()?;
        Some(file_edit(&arguments.0?, &details))
    })?
    .ok_or(Error::Stale)
}

/// Returns the details of the line's result. Those of a progress report, or of a line with several
/// results, belong to no single call.
fn own_details(line: EditResultLine<'_>) -> Option<EditResult<'_>> {
    let message = line.message.0.filter(|_| line.kind.as_str() == "user")?;
    let blocks = message.content.blocks();
    let results = blocks.iter().filter(|block| block.kind.as_str() == "tool_result").count();
    line.details.0.filter(|_| results == 1)
}

/// Returns the change that the arguments of a call and the details of its result describe.
fn file_edit(arguments: &EditArguments<'_>, details: &EditResult<'_>) -> FileEdit {
    let path = [&details.file_path, &arguments.file_path, &arguments.notebook_path]
        .into_iter()
        .find_map(MaybeStr::non_empty)
        .unwrap_or_default();
    let before =
        [&details.original, &details.original_contents, &details.original_notebook].into_iter();
    let edit = FileEdit {
        path,
        before: before.cloned().find_map(|text| text.0).map(Into::into),
        hunks: details.patch.0.iter().filter_map(|hunk| hunk.0.as_ref()).map(hunk).collect(),
        ..FileEdit::default()
    };
    if arguments.new_source.0.is_some() || arguments.notebook_path.0.is_some() {
        return notebook_edit(arguments, details, edit);
    }
    // The details hold what was done; the arguments hold what the assistant asked for.
    let content = details.content.0.as_ref().or(arguments.content.0.as_ref());
    if let Some(content) = content {
        let created = details.kind.as_str() == "create";
        let before = edit.before.filter(|_| !created);
        return FileEdit { after: Some(content.as_ref().to_owned()), created, before, ..edit };
    }
    let steps = arguments.edits.0.iter().filter_map(|step| step.0.as_ref());
    let mut replacements: Vec<TextReplacement> = steps
        .map(|step| {
            replacement(step.old_string.as_str(), step.new_string.as_str(), step.replace_all)
        })
        .collect();
    if replacements.is_empty() {
        let done = details.old_string.0.as_deref().zip(details.new_string.0.as_deref());
        replacements.push(match done {
            Some((old, new)) => replacement(old, new, details.replace_all),
            None => replacement(
                arguments.old_string.as_str(),
                arguments.new_string.as_str(),
                arguments.replace_all,
            ),
        });
    }
    if let ([only], false) = (replacements.as_mut_slice(), edit.hunks.is_empty()) {
        only.takes_line_end &= only.all || removes_line_end(&only.old, &edit.hunks);
    }
    // A call that replaces nothing writes a new file.
    let creates = replacements.first().is_some_and(|first| first.old.is_empty());
    let created = creates && edit.before.as_ref().is_none_or(String::is_empty);
    FileEdit { created, before: edit.before.filter(|_| !created), replacements, ..edit }
}

/// Returns a change of a notebook. Without its whole content, only the new text of a cell is known.
fn notebook_edit(
    arguments: &EditArguments<'_>,
    details: &EditResult<'_>,
    edit: FileEdit,
) -> FileEdit {
    let after = details.updated_notebook.0.as_deref().map(str::to_owned);
    let known = edit.before.is_some() && after.is_some();
    let new = arguments.new_source.as_str().to_owned();
    let words = [
        arguments.edit_mode.non_empty().unwrap_or_else(|| "replace".into()),
        "cell".into(),
        arguments.cell_id.non_empty().unwrap_or_default(),
    ];
    FileEdit {
        before: edit.before.filter(|_| known),
        after: after.filter(|_| known),
        replacements: vec![TextReplacement { new, ..TextReplacement::default() }],
        place: (!known).then(|| words.join(" ").trim_end().to_owned()),
        ..edit
    }
}

/// Returns a replacement as the program makes it: it removes a line's end with its text.
fn replacement(old: &str, new: &str, all: MaybeBool) -> TextReplacement {
    TextReplacement {
        old: old.to_owned(),
        new: new.to_owned(),
        all: all.is_set(),
        takes_line_end: new.is_empty() && !old.ends_with('\n'),
    }
}

/// Returns true if the recorded diff of a removal of `old` has one line less than `old` accounts
/// for.
fn removes_line_end(old: &str, hunks: &[RecordedHunk]) -> bool {
    let lines = |sign: char| {
        let all = hunks.iter().flat_map(|hunk| &hunk.lines);
        all.filter(|line| line.starts_with(sign)).count()
    };
    lines('-').saturating_sub(lines('+')) > old.matches('\n').count()
}

fn hunk(hunk: &PatchLines<'_>) -> RecordedHunk {
    RecordedHunk {
        old_start: hunk.old_start.0.unwrap_or_default(),
        lines: hunk.lines.0.iter().map(|line| line.as_str().to_owned()).collect(),
    }
}
