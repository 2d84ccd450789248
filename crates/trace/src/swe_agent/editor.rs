//! Commands of the tool `str_replace_editor`, and their effects on files.
//!
//! A command counts only if its effect is certain: its words are as the program quotes them, so
//! that the shell changed none, and the tool reported that it was done.

use swarmletfs_base::model::{AccessKind, FileAccess, FileEdit, TextReplacement};

const TOOL: &str = "str_replace_editor";
/// Characters with a meaning for the shell.
const SPECIAL: [char; 21] = [
    '$', '`', '&', ';', '|', '<', '>', '(', ')', '{', '}', '[', ']', '*', '?', '~', '!', '#', '\\',
    '"', '\n',
];
const QUOTED_QUOTE: &str = "'\"'\"'";

#[derive(Debug, PartialEq, Eq)]
pub(super) struct EditorCommand {
    path: String,
    action: EditorAction,
}

#[derive(Debug, PartialEq, Eq)]
enum EditorAction {
    View,
    Create { text: String },
    Replace { old: String, new: String },
    Insert { line: String, text: String },
    Undo,
}

impl EditorCommand {
    /// Parses an action of the agent with its observation. Returns `None` if it is another command,
    /// or if its effect is not certain.
    pub(super) fn parse(action: &str, observation: &str) -> Option<EditorCommand> {
        let action = action.trim();
        if !action.starts_with(TOOL) || !is_literal(action) {
            return None;
        }
        let words = shlex::split(action)?;
        let (command, path, options) = match words.as_slice() {
            [tool, command, path, options @ ..] if tool == TOOL => (command, path, options),
            _ => return None,
        };
        let is_done = |report: &str| observation.starts_with(report);
        let option = |name: &str| {
            let at = options.iter().step_by(2).position(|option| option == name)?;
            options.get(2 * at + 1).cloned()
        };
        let action = match command.as_str() {
            "view" if is_done("Here's the ") => EditorAction::View,
            "create" if is_done("File created successfully at: ") => {
                EditorAction::Create { text: option("--file_text")? }
            }
            "str_replace" if is_done("The file ") => EditorAction::Replace {
                old: option("--old_str")?,
                new: option("--new_str").unwrap_or_default(),
            },
            "insert" if is_done("The file ") => {
                EditorAction::Insert { line: option("--insert_line")?, text: option("--new_str")? }
            }
            "undo_edit" if is_done("Last edit to ") => EditorAction::Undo,
            _ => return None,
        };
        Some(EditorCommand { path: path.clone(), action })
    }

    pub(super) fn accessed_file(&self) -> FileAccess {
        let lines = |text: &str| text.lines().count() as u64;
        let (kind, added, removed) = match &self.action {
            EditorAction::View => (AccessKind::Read, 0, 0),
            EditorAction::Create { text } => (AccessKind::Created, lines(text), 0),
            EditorAction::Replace { old, new } => (AccessKind::Edited, lines(new), lines(old)),
            EditorAction::Insert { text, .. } => (AccessKind::Edited, lines(text), 0),
            EditorAction::Undo => (AccessKind::Edited, 0, 0),
        };
        FileAccess { path: self.path.clone(), kind, added, removed }
    }

    pub(super) fn into_edit(self) -> FileEdit {
        let edit = FileEdit { path: self.path, ..FileEdit::default() };
        let replacement =
            |old, new| vec![TextReplacement { old, new, ..TextReplacement::default() }];
        match self.action {
            EditorAction::View => edit,
            EditorAction::Create { text } => FileEdit { after: Some(text), created: true, ..edit },
            EditorAction::Replace { old, new } => {
                FileEdit { replacements: replacement(old, new), ..edit }
            }
            EditorAction::Insert { line, text } => FileEdit {
                place: Some(format!("line {line}")),
                replacements: replacement(String::new(), text),
                ..edit
            },
            // The content that it restored is not recorded.
            EditorAction::Undo => FileEdit { place: Some("undo_edit".into()), ..edit },
        }
    }
}

/// Returns true if the shell changes no word of the action but removes quotes.
fn is_literal(action: &str) -> bool {
    let words = action.replace(QUOTED_QUOTE, "");
    // Every other part is in single quotes.
    !words.split('\'').step_by(2).any(|part| part.contains(SPECIAL))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edit(action: &str, observation: &str) -> Option<FileEdit> {
        EditorCommand::parse(action, observation).map(EditorCommand::into_edit)
    }

    #[test]
    fn commands_that_were_done_are_edits() {
        let created = "File created successfully at: /a/b.py";
        let create = edit(
            "str_replace_editor create /a/b.py --file_text 'x = '\"'\"'$y'\"'\"'\n' ",
            created,
        );
        let create = create.unwrap();
        assert_eq!(
            (create.path.as_str(), create.after.as_deref()),
            ("/a/b.py", Some("x = '$y'\n"))
        );
        assert!(create.created);
        let edited = "The file /a/b.py has been edited. Here's";
        let replace =
            edit("str_replace_editor str_replace /a/b.py   --old_str 'a\nb' --new_str 'c'", edited);
        let replace = replace.unwrap();
        assert_eq!(replace.apply("1\na\nb\n", |_| true).as_deref(), Some("1\nc\n"));
        let removal = edit("str_replace_editor str_replace /a/b.py --old_str a", edited).unwrap();
        assert_eq!(removal.apply("ab", |_| true).as_deref(), Some("b"));
        let insert =
            edit("str_replace_editor insert /a --insert_line 3 --new_str x", edited).unwrap();
        assert_eq!(insert.place.as_deref(), Some("line 3"));
        let undo = edit("str_replace_editor undo_edit /a", "Last edit to /a undone successfully.");
        assert_eq!(undo.unwrap().place.as_deref(), Some("undo_edit"));
    }

    #[test]
    fn commands_whose_effect_is_not_certain_are_none() {
        let created = "File created successfully at: /a";
        for (action, observation) in [
            ("str_replace_editor create /a --file_text \"$x\"", created),
            ("str_replace_editor create /a --file_text 'x' > /dev/null", created),
            ("str_replace_editor create /a --file_text 'x' && rm /a", created),
            ("str_replace_editor create ~/a --file_text 'x'", created),
            ("str_replace_editor create /a --file_text 'x'\nrm /a", created),
            ("str_replace_editor create /a --file_text 'x", created),
            ("str_replace_editor create /a", created),
            ("str_replace_editor create", created),
            ("str_replace_editor2 create /a --file_text 'x'", created),
            ("str_replace_editor create /a --file_text 'x'", "Invalid `path` parameter"),
            (
                "str_replace_editor str_replace /a --old_str x --new_str y",
                "No replacement was performed",
            ),
            ("str_replace_editor rename /a --file_text 'x'", created),
            ("", created),
        ] {
            assert_eq!(edit(action, observation), None, "{action}");
        }
    }
}
