//! The files that a call reads or changes, by the arguments of its tool.
//!
//! The tools of most programs take a path and one of a few shapes of change. Only the names differ,
//! so a format lists its tools and their effects.

use serde_json::Value;

use super::codex::patch;
use super::transcript::{CallRecord, TranscriptFormat, parse_arguments, shorten_id};
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::model::{AccessKind, FileAccess, FileEdit, TextReplacement};

/// The effect of a tool on the file that its arguments name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileTool {
    Read,
    /// Makes a new file.
    Create,
    /// Writes the whole content of a new or existing file.
    Write,
    /// Replaces texts, or inserts one at a line. Without a text to replace, it is as `Create`.
    Replace,
    /// Applies a patch in the envelope of `apply_patch`.
    Patch,
    Delete,
}

/// The tools of a program that read or change files.
pub(super) type FileTools = [(&'static str, FileTool)];

const PATHS: [&str; 6] =
    ["file_path", "path", "filePath", "absolute_path", "target_file", "filename"];
const OLD_TEXTS: [&str; 6] =
    ["old_string", "old_str", "old_text", "oldText", "oldString", "before"];
const NEW_TEXTS: [&str; 6] = ["new_string", "new_str", "new_text", "newText", "newString", "after"];
const CONTENTS: [&str; 4] = ["content", "contents", "file_text", "text"];
const ALL_FLAGS: [&str; 4] = ["replace_all", "replaceAll", "allow_multiple", "change_all"];
const PATCHES: [&str; 3] = ["patch", "input", "patchText"];
/// Maximum number of files or replacements of a call that are read.
const ITEMS_MAX: usize = 1_000;

pub(super) fn accessed_files(tools: &FileTools, tool: &str, arguments: &Value) -> Vec<FileAccess> {
    let lines = |text: &str| text.lines().count() as u64;
    match action(tools, tool) {
        None => Vec::new(),
        Some(FileTool::Patch) => {
            patch_text(arguments).map(patch::accessed_files).unwrap_or_default()
        }
        Some(FileTool::Read) => {
            let access = |path: &str| FileAccess {
                path: path.to_owned(),
                kind: AccessKind::Read,
                added: 0,
                removed: 0,
            };
            read_paths(arguments).take(ITEMS_MAX).map(access).collect()
        }
        Some(_) => edits(tools, tool, arguments)
            .into_iter()
            .map(|edit| FileAccess {
                kind: if edit.created { AccessKind::Created } else { AccessKind::Edited },
                added: edit.after.as_deref().map_or(0, lines)
                    + edit.replacements.iter().map(|part| lines(&part.new)).sum::<u64>(),
                removed: edit.replacements.iter().map(|part| lines(&part.old)).sum(),
                path: edit.path,
            })
            .collect(),
    }
}

/// Returns the changes that the arguments ask for.
pub(super) fn edits(tools: &FileTools, tool: &str, arguments: &Value) -> Vec<FileEdit> {
    let Some(action) = action(tools, tool) else { return Vec::new() };
    if action == FileTool::Patch {
        return patch_text(arguments).map(patch::edits).unwrap_or_default();
    }
    let Some(path) = text(arguments, &PATHS) else { return Vec::new() };
    let edit = FileEdit { path: path.to_owned(), ..FileEdit::default() };
    let written = || text(arguments, &CONTENTS).or_else(|| text(arguments, &NEW_TEXTS));
    let edit = match action {
        FileTool::Read | FileTool::Patch => return Vec::new(),
        FileTool::Delete => FileEdit { deleted: true, ..edit },
        FileTool::Create | FileTool::Write => FileEdit {
            after: Some(written().unwrap_or_default().to_owned()),
            created: action == FileTool::Create,
            ..edit
        },
        FileTool::Replace => {
            let replacements = replacements(arguments);
            let line = arguments.get("insert_line").and_then(Value::as_u64);
            let is_new = line.is_none()
                && replacements.iter().all(|part| part.old.is_empty())
                && written().is_some();
            match is_new {
                true => FileEdit { after: written().map(str::to_owned), created: true, ..edit },
                false => FileEdit {
                    place: line.map(|line| format!("line {line}")),
                    replacements,
                    ..edit
                },
            }
        }
    };
    vec![edit]
}

/// Reads the changes that a call asked for, without their numbers.
///
/// # Errors
///
/// Fails with [`Error::Stale`] if the record does not hold the call any more.
pub(super) fn read_edits(
    format: &dyn TranscriptFormat,
    tools: &FileTools,
    call: &CallRecord<'_>,
) -> Result<Vec<FileEdit>> {
    asked_edits(format, call, &|tool, arguments| edits(tools, tool, arguments))
}

/// Reads the changes that a call asked for, as `edits` returns them for its tool and arguments.
///
/// # Errors
///
/// Fails with [`Error::Stale`] if the record does not hold the call any more.
pub(super) fn asked_edits(
    format: &dyn TranscriptFormat,
    call: &CallRecord<'_>,
    edits: &dyn Fn(&str, &Value) -> Vec<FileEdit>,
) -> Result<Vec<FileEdit>> {
    let mut asked = None;
    format.with_turns(call.record, &mut |turns| {
        let mut calls = turns.iter().flat_map(|turn| &turn.calls);
        asked = calls.find(|part| shorten_id(&part.id) == call.id).map(|part| {
            let arguments = parse_arguments(&part.arguments).unwrap_or_default();
            edits(&part.name, &arguments)
        });
    });
    asked.ok_or(Error::Stale)
}

fn action(tools: &FileTools, tool: &str) -> Option<FileTool> {
    tools.iter().find(|(name, _)| *name == tool).map(|(_, action)| *action)
}

fn text<'a>(arguments: &'a Value, names: &[&str]) -> Option<&'a str> {
    names.iter().find_map(|name| arguments.get(*name)?.as_str())
}

/// Returns the paths that a tool reads: one, or a list under `files` or `paths`.
fn read_paths(arguments: &Value) -> impl Iterator<Item = &str> {
    let lists = ["files", "paths", "file_paths"].into_iter();
    let items = lists.filter_map(|name| arguments.get(name)?.as_array()).flatten();
    let items = items.filter_map(|item| item.as_str().or_else(|| text(item, &PATHS)));
    text(arguments, &PATHS).into_iter().chain(items)
}

fn replacements(arguments: &Value) -> Vec<TextReplacement> {
    let all =
        ALL_FLAGS.iter().any(|name| arguments.get(*name).and_then(Value::as_bool) == Some(true));
    let replacement = |fields: &Value| {
        Some(TextReplacement {
            old: text(fields, &OLD_TEXTS).unwrap_or_default().to_owned(),
            new: text(fields, &NEW_TEXTS)?.to_owned(),
            all,
            takes_line_end: false,
        })
    };
    match arguments.get("edits").and_then(Value::as_array) {
        Some(list) => list.iter().take(ITEMS_MAX).filter_map(replacement).collect(),
        None => replacement(arguments).into_iter().collect(),
    }
}

fn patch_text(arguments: &Value) -> Option<&str> {
    arguments.as_str().or_else(|| text(arguments, &PATCHES))
}
