//! The files that calls read and change, and the changes themselves.

use serde::Deserialize;
use serde_json::Value;

use super::super::lenient::{MaybeBool, MaybeStr, MaybeU64, object};
use super::super::transcript::{CallRecord, RawRecord, shorten_id};
use super::arguments::OPERATION;
use super::schema::{Event, Observation, PatchedFile, decode};
use super::version_0::ERROR_PREFIX;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::model::{AccessKind, FileAccess, FileEdit, TextReplacement};

/// Tools and actions whose path names a file.
const FILE_TOOLS: [&str; 9] = [
    "str_replace_editor",
    "file_editor",
    "planning_file_editor",
    "edit_file",
    "read_file",
    "write_file",
    "read",
    "write",
    "edit",
];
const PATH_ARGUMENTS: [&str; 2] = ["path", "file_path"];
const NEW_ARGUMENTS: [&str; 4] = ["file_text", "new_str", "new_string", "content"];
const OLD_ARGUMENTS: [&str; 2] = ["old_str", "old_string"];

/// The arguments of a call that changes a file, of all tools and both versions.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct EditorArguments<'a> {
    command: MaybeStr<'a>,
    path: MaybeStr<'a>,
    file_path: MaybeStr<'a>,
    file_text: MaybeStr<'a>,
    content: MaybeStr<'a>,
    old_str: MaybeStr<'a>,
    new_str: MaybeStr<'a>,
    old_string: MaybeStr<'a>,
    new_string: MaybeStr<'a>,
    insert_line: MaybeU64,
}

/// Returns the file that the arguments of a call name, with the lines that they add and remove.
pub(super) fn accessed_file(tool: &str, arguments: &Value) -> Option<FileAccess> {
    if !FILE_TOOLS.contains(&tool) {
        return None;
    }
    let text = |name: &&str| arguments.get(*name).and_then(Value::as_str);
    let path = PATH_ARGUMENTS.iter().find_map(text)?;
    let lines = |names: &[&str]| {
        names.iter().filter_map(text).map(|text| text.lines().count() as u64).sum()
    };
    let has_new = NEW_ARGUMENTS.iter().chain(&OLD_ARGUMENTS).any(|name| text(name).is_some());
    let kind = match text(&OPERATION) {
        Some("view") => AccessKind::Read,
        Some("create") => AccessKind::Created,
        Some("undo_edit") => AccessKind::Edited,
        _ if has_new => AccessKind::Edited,
        _ => AccessKind::Read,
    };
    let (added, removed) = match kind {
        AccessKind::Read => (0, 0),
        _ => (lines(&NEW_ARGUMENTS), lines(&OLD_ARGUMENTS)),
    };
    Some(FileAccess { path: path.to_owned(), kind, added, removed })
}

pub(super) fn patched_files(observation: &Observation<'_>) -> Vec<FileAccess> {
    let changes = observation.commit.0.iter().flat_map(|commit| &commit.changes.0);
    let lines = |text: &MaybeStr<'_>| text.as_str().lines().count() as u64;
    changes
        .filter_map(|(path, change)| Some((path, change.0.as_ref()?)))
        .map(|(path, change)| FileAccess {
            path: changed_path(path, change),
            kind: match change.old_content.0 {
                Some(_) => AccessKind::Edited,
                None => AccessKind::Created,
            },
            added: lines(&change.new_content).saturating_sub(lines(&change.old_content)),
            removed: lines(&change.old_content).saturating_sub(lines(&change.new_content)),
        })
        .collect()
}

fn changed_path(path: &str, change: &PatchedFile<'_>) -> String {
    change.move_path.non_empty().unwrap_or_else(|| path.to_owned())
}

/// Reads the changes that a call made, without its number.
///
/// # Errors
///
/// Fails with [`Error::Stale`] if the records do not hold the call any more.
pub(super) fn read_edits(call: &CallRecord<'_>, result: RawRecord<'_>) -> Result<Vec<FileEdit>> {
    let edits = decode(call.record.text, |actions| {
        let action = actions.iter().find(|action| is_call(action, call))?;
        decode(result.text, |results| {
            let of_call = |event: &&Event<'_>| is_result_of(event, action);
            let Some(event) = results.iter().find(of_call) else { return Vec::new() };
            match event.observation.object() {
                Some(observation) => version_1_edits(action, observation),
                None => version_0_edit(action, event).into_iter().collect(),
            }
        })
    });
    edits.flatten().ok_or(Error::Stale)
}

fn is_call(event: &Event<'_>, call: &CallRecord<'_>) -> bool {
    let ids = [event.tool_call_id.as_str(), event.id.as_str()];
    ids.iter().any(|id| shorten_id(id) == call.id)
}

fn is_result_of(event: &Event<'_>, action: &Event<'_>) -> bool {
    let same = |a: &str, b: &str| !a.is_empty() && a == b;
    same(event.cause.as_str(), action.id.as_str())
        || same(event.action_id.as_str(), action.id.as_str())
        || same(event.tool_call_id.as_str(), action.tool_call_id.as_str())
        || action.id.0.is_none() && !event.observation.word().is_empty()
}

/// Returns the changes of a version 1 call. Its result holds the contents before and after.
fn version_1_edits(action: &Event<'_>, observation: &Observation<'_>) -> Vec<FileEdit> {
    let owned = |text: &MaybeStr<'_>| text.0.as_deref().map(str::to_owned);
    if let Some(commit) = &observation.commit.0 {
        let changes = commit.changes.0.iter();
        let changes = changes.filter_map(|(path, change)| Some((path, change.0.as_ref()?)));
        return changes
            .map(|(path, change)| FileEdit {
                path: changed_path(path, change),
                before: owned(&change.old_content),
                after: Some(owned(&change.new_content).unwrap_or_default()),
                created: change.old_content.0.is_none(),
                ..FileEdit::default()
            })
            .collect();
    }
    let text = action.tool_call.0.as_ref().map_or("", |call| call.arguments.as_str());
    let arguments: EditorArguments<'_> = object(text).unwrap_or_default();
    let paths = [&observation.path, &observation.file_path, &arguments.path, &arguments.file_path];
    let path = paths.into_iter().find_map(MaybeStr::non_empty).unwrap_or_default();
    if observation.new_content.0.is_none() {
        return argument_edit(&arguments, path).into_iter().collect();
    }
    let is_new = |exists: MaybeBool| exists.0 == Some(false);
    let created = observation.old_content.0.is_none()
        && (is_new(observation.prev_exist) || observation.is_new_file.is_set());
    vec![FileEdit {
        path,
        before: owned(&observation.old_content),
        after: owned(&observation.new_content),
        created,
        ..FileEdit::default()
    }]
}

/// Returns the change of a version 0 call, or `None` if its result states an error.
fn version_0_edit(action: &Event<'_>, event: &Event<'_>) -> Option<FileEdit> {
    if event.content.as_str().starts_with(ERROR_PREFIX) {
        return None;
    }
    let arguments: EditorArguments<'_> = object(action.args?.get())?;
    let extras = event.extras.0.as_ref();
    let paths = [extras.map(|extras| &extras.path), Some(&arguments.path)];
    let path = paths.into_iter().flatten().find_map(MaybeStr::non_empty)?;
    let named = arguments.command.non_empty().is_some();
    // Of a tool with commands, the result repeats the arguments.
    let contents = extras.filter(|extras| !named && extras.new_content.0.is_some());
    let Some(extras) = contents else { return argument_edit(&arguments, path) };
    let owned = |text: &MaybeStr<'_>| text.0.as_deref().map(str::to_owned);
    Some(FileEdit {
        path,
        before: owned(&extras.old_content),
        after: owned(&extras.new_content),
        created: extras.prev_exist.0 == Some(false) && extras.old_content.0.is_none(),
        ..FileEdit::default()
    })
}

fn argument_edit(arguments: &EditorArguments<'_>, path: String) -> Option<FileEdit> {
    let edit = FileEdit { path, ..FileEdit::default() };
    let texts = [&arguments.file_text, &arguments.content];
    let whole = texts.into_iter().find_map(|text| text.0.as_deref());
    let old = arguments.old_str.0.as_deref().or(arguments.old_string.0.as_deref());
    let new = arguments.new_str.0.as_deref().or(arguments.new_string.0.as_deref());
    let replacement = |old: &str| TextReplacement {
        old: old.to_owned(),
        new: new.unwrap_or_default().to_owned(),
        ..TextReplacement::default()
    };
    match (arguments.command.as_str(), old, arguments.insert_line.0) {
        ("create", ..) => Some(FileEdit { after: Some(whole?.to_owned()), created: true, ..edit }),
        ("insert", _, Some(line)) => Some(FileEdit {
            replacements: vec![replacement("")],
            place: Some(format!("line {}", line.saturating_add(1))),
            ..edit
        }),
        ("undo_edit", ..) => {
            Some(FileEdit { place: Some("its last edit, which it undid".into()), ..edit })
        }
        (_, Some(old), _) => Some(FileEdit { replacements: vec![replacement(old)], ..edit }),
        ("", None, _) => Some(FileEdit { after: Some(whole?.to_owned()), ..edit }),
        _ => None,
    }
}
