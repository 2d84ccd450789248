//! Decodes the changes of files from the lines of calls and of their results.

use serde::Deserialize;

use super::super::lenient::{MaybeBool, MaybeList, MaybeObject, MaybeStr, object};
use super::super::transcript::{CallRecord, RawRecord, shorten_id};
use super::schema::{Message, PatchHunk, decode};
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::model::{FileEdit, RecordedHunk, TextReplacement};

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct EditArguments<'a> {
    file_path: MaybeStr<'a>,
    notebook_path: MaybeStr<'a>,
    old_string: MaybeStr<'a>,
    new_string: MaybeStr<'a>,
    replace_all: MaybeBool,
    content: MaybeStr<'a>,
    edits: MaybeList<MaybeObject<EditStep<'a>>>,
    new_source: MaybeStr<'a>,
    cell_id: MaybeStr<'a>,
    edit_mode: MaybeStr<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct EditStep<'a> {
    old_string: MaybeStr<'a>,
    new_string: MaybeStr<'a>,
    replace_all: MaybeBool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct EditResultLine<'a> {
    #[serde(rename = "type")]
    kind: MaybeStr<'a>,
    message: MaybeObject<Message<'a>>,
    #[serde(rename = "toolUseResult")]
    details: MaybeObject<EditResult<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
struct EditResult<'a> {
    /// `create` if the file did not exist.
    #[serde(rename = "type")]
    kind: MaybeStr<'a>,
    file_path: MaybeStr<'a>,
    content: MaybeStr<'a>,
    old_string: MaybeStr<'a>,
    new_string: MaybeStr<'a>,
    replace_all: MaybeBool,
    #[serde(rename = "originalFile")]
    original: MaybeStr<'a>,
    #[serde(rename = "originalFileContents")]
    original_contents: MaybeStr<'a>,
    #[serde(rename = "original_file")]
    original_notebook: MaybeStr<'a>,
    #[serde(rename = "updated_file")]
    updated_notebook: MaybeStr<'a>,
    #[serde(rename = "structuredPatch")]
    patch: MaybeList<MaybeObject<PatchHunk<'a>>>,
}

/// Reads the change that a call made, without its number.
///
/// # Errors
///
/// Fails with [`Error::Stale`] if the records do not hold the call any more.
pub(super) fn read_edit(call: &CallRecord<'_>, result: RawRecord<'_>) -> Result<FileEdit> {
    let result: MaybeObject<EditResultLine<'_>> =
        serde_json::from_str(result.text).map_err(|_| Error::Stale)?;
    let details = result.0.and_then(own_details).unwrap_or_default();
    let mut edit = None;
    decode(call.record.text, |line| {
        let Some(message) = line.line_message() else { return };
        let mut blocks = message.message.content.blocks().iter();
        let block = blocks.find(|block| {
            block.kind.as_str() == "tool_use" && shorten_id(block.id.as_str()) == call.id
        });
        let arguments = block.and_then(|block| object::<EditArguments<'_>>(block.input?.get()));
        edit = arguments.map(|arguments| file_edit(&arguments, &details));
    });
    edit.ok_or(Error::Stale)
}

/// Returns the details of the line's only result. The details of a progress report, or of a line
/// with several results, belong to no single call.
fn own_details(line: EditResultLine<'_>) -> Option<EditResult<'_>> {
    let message = line.message.0.filter(|_| line.kind.as_str() == "user")?;
    let blocks = message.content.blocks();
    let results = blocks.iter().filter(|block| block.kind.as_str() == "tool_result").count();
    line.details.0.filter(|_| results == 1)
}

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
    // The details hold the actual change; the arguments hold the requested one.
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

/// Returns true if the recorded diff of a removal of `old` removes more lines than `old` has line
/// feeds.
fn removes_line_end(old: &str, hunks: &[RecordedHunk]) -> bool {
    let lines = |sign: char| {
        let all = hunks.iter().flat_map(|hunk| &hunk.lines);
        all.filter(|line| line.starts_with(sign)).count()
    };
    lines('-').saturating_sub(lines('+')) > old.matches('\n').count()
}

fn hunk(hunk: &PatchHunk<'_>) -> RecordedHunk {
    RecordedHunk {
        old_start: hunk.old_start.0.unwrap_or_default(),
        lines: hunk.lines.0.iter().map(|line| line.as_str().to_owned()).collect(),
    }
}
