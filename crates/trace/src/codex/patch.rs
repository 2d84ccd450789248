//! Reads the envelope of patches that the model writes: the files, and the lines of each change.
//!
//! The grammar is in codex-rs/apply-patch of <https://github.com/openai/codex>. Hunks have no line
//! numbers; a hunk's place is where its context is.

use std::borrow::Cow;

use serde_json::Value;

use swarmletfs_base::model::{AccessKind, FileAccess, FileEdit, RecordedHunk, TextReplacement};

use super::schema::{StatedChange, StatedChanges};

pub(super) const SCRIPT_TOOL: &str = "exec";
const BEGIN: &str = "*** Begin Patch";
const END: &str = "*** End Patch";
const END_OF_FILE: &str = "*** End of File";
const ADD: &str = "*** Add File: ";
const DELETE: &str = "*** Delete File: ";
const UPDATE: &str = "*** Update File: ";
const MOVE: &str = "*** Move to: ";
/// The beginning of a line that separates hunks. The line that contains the hunk may follow on it.
const HUNK: &str = "@@";
/// Words by which a command in a shell applies a patch.
const COMMANDS: [&str; 2] = ["apply_patch", "applypatch"];
/// The arguments that hold a patch, or a command that applies one.
const PATCH_ARGUMENTS: [&str; 4] = ["input", "patch", "cmd", "command"];
const FILES_MAX: usize = 1_000;

#[derive(Debug, PartialEq, Eq)]
struct FilePatch<'a> {
    path: &'a str,
    kind: PatchKind,
    moved_to: Option<&'a str>,
    /// The lines of each hunk, with their signs.
    hunks: Vec<Vec<&'a str>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PatchKind {
    Add,
    Delete,
    Update,
}

/// Returns the patch in the arguments of a call, if it applies one.
pub(super) fn patch_text(arguments: &Value) -> Option<&str> {
    let value = match arguments {
        Value::Object(fields) => PATCH_ARGUMENTS.iter().find_map(|name| fields.get(*name))?,
        value => value,
    };
    let is_applying = |word: &str| COMMANDS.contains(&word);
    match value {
        Value::String(text) if text.trim_start().starts_with(BEGIN) => Some(text),
        // A here document of a shell.
        Value::String(text) => {
            let is_command = text.split_whitespace().next().is_some_and(is_applying);
            Some(text.as_str()).filter(|_| is_command)
        }
        Value::Array(words) => {
            let words: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
            let script = match words.as_slice() {
                [command, patch] if is_applying(command) => patch,
                [_shell, "-c" | "-lc", script] => script,
                _ => return None,
            };
            let first = script.split_whitespace().next();
            let is_patch = script.trim_start().starts_with(BEGIN);
            (is_patch || first.is_some_and(is_applying)).then_some(*script)
        }
        _ => None,
    }
}

/// Returns the patch that a script applies, decoded from the string that holds it.
pub(super) fn patch_of_script(script: &str) -> Option<Cow<'_, str>> {
    let at = script.find(BEGIN).filter(|_| script.contains(COMMANDS[0]))?;
    let (before, patch) = script.split_at_checked(at)?;
    match before.chars().next_back()? {
        '"' => {
            let string = script.get(at - 1..)?;
            let mut strings = serde_json::Deserializer::from_str(string).into_iter::<String>();
            strings.next()?.ok().map(Cow::Owned)
        }
        '`' => patch.split('`').next().map(Cow::Borrowed),
        _ => None,
    }
}

fn files(text: &str) -> Vec<FilePatch<'_>> {
    let mut files: Vec<FilePatch<'_>> = Vec::new();
    let lines = text.lines().skip_while(|line| line.trim() != BEGIN).skip(1);
    for line in lines.take_while(|line| line.trim() != END) {
        let header =
            [(ADD, PatchKind::Add), (DELETE, PatchKind::Delete), (UPDATE, PatchKind::Update)]
                .into_iter()
                .find_map(|(prefix, kind)| Some((line.strip_prefix(prefix)?.trim(), kind)));
        if let Some((path, kind)) = header {
            if files.len() >= FILES_MAX {
                break;
            }
            files.push(FilePatch { path, kind, moved_to: None, hunks: Vec::new() });
            continue;
        }
        let Some(file) = files.last_mut() else { continue };
        if let Some(path) = line.strip_prefix(MOVE) {
            file.moved_to = Some(path.trim());
        } else if line.starts_with(HUNK) {
            file.hunks.push(Vec::new());
        } else if line != END_OF_FILE && (line.is_empty() || line.starts_with([' ', '+', '-'])) {
            if file.hunks.is_empty() {
                file.hunks.push(Vec::new());
            }
            file.hunks.last_mut().into_iter().for_each(|hunk| hunk.push(line));
        }
    }
    files
}

pub(crate) fn accessed_files(patch: &str) -> Vec<FileAccess> {
    let files = files(patch);
    let access = |file: &FilePatch<'_>| {
        let count = |sign: char| {
            let lines = file.hunks.iter().flatten().filter(|line| line.starts_with(sign));
            lines.count() as u64
        };
        FileAccess {
            path: file.moved_to.unwrap_or(file.path).to_owned(),
            kind: match file.kind {
                PatchKind::Add => AccessKind::Created,
                PatchKind::Delete | PatchKind::Update => AccessKind::Edited,
            },
            added: count('+'),
            removed: count('-'),
        }
    };
    files.iter().map(access).collect()
}

pub(crate) fn edits(patch: &str) -> Vec<FileEdit> {
    files(patch).iter().flat_map(file_edits).collect()
}

fn file_edits(file: &FilePatch<'_>) -> Vec<FileEdit> {
    let path = file.path.to_owned();
    match file.kind {
        PatchKind::Add => {
            let lines = file.hunks.iter().flatten().filter_map(|line| line.strip_prefix('+'));
            vec![FileEdit {
                path,
                after: Some(lines.map(|line| format!("{line}\n")).collect()),
                created: true,
                ..FileEdit::default()
            }]
        }
        PatchKind::Delete => vec![FileEdit { path, deleted: true, ..FileEdit::default() }],
        PatchKind::Update => {
            let replacements = file.hunks.iter().map(|hunk| replacement(hunk)).collect();
            let edit = FileEdit { path, replacements, ..FileEdit::default() };
            vec![FileEdit { moved_to: file.moved_to.map(str::to_owned), ..edit }]
        }
    }
}

/// Returns the replacement that a hunk makes. An empty line counts as context.
fn replacement(lines: &[&str]) -> TextReplacement {
    let side = |sign: char| {
        let lines = lines.iter().filter_map(|line| match line.chars().next() {
            None => Some(""),
            Some(' ') => line.get(1..),
            Some(first) if first == sign => line.get(1..),
            Some(_) => None,
        });
        lines.map(|line| format!("{line}\n")).collect()
    };
    TextReplacement { old: side('-'), new: side('+'), ..TextReplacement::default() }
}

pub(super) fn stated_edits(changes: &StatedChanges<'_>) -> Vec<FileEdit> {
    changes.0.iter().map(|(path, change)| stated_edit(path, change)).collect()
}

fn stated_edit(path: &str, change: &StatedChange<'_>) -> FileEdit {
    let path = path.to_owned();
    let content = change.content.0.as_deref().map(str::to_owned);
    match change.kind.as_str() {
        "add" => FileEdit {
            path,
            after: Some(content.unwrap_or_default()),
            created: true,
            ..FileEdit::default()
        },
        "delete" => FileEdit { path, before: content, deleted: true, ..FileEdit::default() },
        _ => {
            let moved_to = change.move_path.non_empty();
            FileEdit { path, moved_to, ..diff_edit(change.unified_diff.as_str()) }
        }
    }
}

/// Reads the change of a file without a path from a unified diff.
pub(crate) fn diff_edit(diff: &str) -> FileEdit {
    let diff = diffy::Patch::from_str(diff);
    let hunks = diff.as_ref().map(diffy::Patch::hunks).unwrap_or_default();
    FileEdit {
        replacements: hunks.iter().map(hunk_replacement).collect(),
        hunks: hunks.iter().map(recorded_hunk).collect(),
        ..FileEdit::default()
    }
}

fn hunk_replacement(hunk: &diffy::Hunk<'_, str>) -> TextReplacement {
    let mut replacement = TextReplacement::default();
    for line in hunk.lines() {
        match line {
            diffy::Line::Context(line) => {
                replacement.old.push_str(line);
                replacement.new.push_str(line);
            }
            diffy::Line::Delete(line) => replacement.old.push_str(line),
            diffy::Line::Insert(line) => replacement.new.push_str(line),
        }
    }
    replacement
}

fn recorded_hunk(hunk: &diffy::Hunk<'_, str>) -> RecordedHunk {
    let mut lines = Vec::new();
    for line in hunk.lines() {
        let (sign, line) = match line {
            diffy::Line::Context(line) => (' ', line),
            diffy::Line::Delete(line) => ('-', line),
            diffy::Line::Insert(line) => ('+', line),
        };
        let text = line.strip_suffix('\n');
        lines.push(format!("{sign}{}", text.unwrap_or(line)));
        if text.is_none() {
            lines.push("\\ No newline at end of file".into());
        }
    }
    RecordedHunk { old_start: hunk.old_range().start() as u64, lines }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const PATCH: &str = "*** Begin Patch\n*** Add File: a/new.txt\n+one\n+\n*** Update File: old.rs\n\
        *** Move to: moved.rs\n@@ fn main() {\n context\n-before\n+after\n\n@@\n-x\n*** End of File\n\
        *** Delete File: gone.txt\n*** End Patch\nEOF\n";

    #[test]
    fn a_patch_changes_several_files() {
        let paths = accessed_files(PATCH);
        let paths: Vec<_> = paths.iter().map(|f| (&*f.path, f.kind, f.added, f.removed)).collect();
        assert_eq!(
            paths,
            [
                ("a/new.txt", AccessKind::Created, 2, 0),
                ("moved.rs", AccessKind::Edited, 1, 2),
                ("gone.txt", AccessKind::Edited, 0, 0),
            ]
        );
        let edits = edits(PATCH);
        assert_eq!(edits[0].after.as_deref(), Some("one\n\n"));
        assert_eq!(edits[1].moved_to.as_deref(), Some("moved.rs"));
        let replaced: Vec<_> = edits[1].replacements.iter().map(|r| (&*r.old, &*r.new)).collect();
        assert_eq!(replaced, [("context\nbefore\n\n", "context\nafter\n\n"), ("x\n", "")]);
        assert!(edits[2].deleted);
    }

    #[test]
    fn a_patch_is_found_in_every_form_of_call() {
        let here = format!("apply_patch <<'EOF'\n{PATCH}");
        for arguments in [
            json!(PATCH),
            json!({"input": PATCH}),
            json!({"cmd": here}),
            json!({"command": ["apply_patch", PATCH]}),
            json!({"command": ["bash", "-lc", here]}),
        ] {
            assert_eq!(files(patch_text(&arguments).unwrap()).len(), 3, "{arguments}");
        }
        for other in [json!({"cmd": "cat patch"}), json!(7), json!({"command": ["ls"]}), json!("x")]
        {
            assert_eq!(patch_text(&other), None, "{other}");
        }
    }

    #[test]
    fn text_without_an_envelope_changes_nothing() {
        for text in ["", "nonsense", "*** Begin Patch\n+x\n", "*** Update File: a\n-x\n"] {
            assert!(edits(text).is_empty(), "{text}");
        }
    }
}
