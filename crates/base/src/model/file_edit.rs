//! Changes of files in the record of a worker's calls.

use super::WorkspaceChanges;

/// Maximum size of a file's content that is read or rebuilt from a record, in bytes.
pub const CONTENT_MAX: usize = 16 << 20;

/// A change of one file by one call.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FileEdit {
    pub seq: u64,
    pub path: String,
    /// The whole content before the call, if it is recorded.
    pub before: Option<String>,
    /// The whole content after the call, if it is recorded.
    pub after: Option<String>,
    /// The replacements that the call made, in order; empty if the call wrote the whole file.
    pub replacements: Vec<TextReplacement>,
    /// The record's own diff. It is made for display, so its white space may differ.
    pub hunks: Vec<RecordedHunk>,
    /// The place of the change in a file that is not edited as text, such as a cell.
    pub place: Option<String>,
    pub created: bool,
    pub deleted: bool,
    pub moved_to: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TextReplacement {
    /// The replaced text; empty for the content of a new file.
    pub old: String,
    pub new: String,
    /// True if every occurrence was replaced.
    pub all: bool,
    /// True if a line feed after the replaced text was removed with it.
    pub takes_line_end: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RecordedHunk {
    /// The number of its first line in the content before the call, from 1.
    pub old_start: u64,
    /// The lines of the hunk. Each begins with a sign and has no line end.
    pub lines: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RecordedChanges {
    Edits(RecordedEdits),
    /// The changes of the worker's own view of a workspace, or the reason why they are not
    /// understood.
    Workspace(Box<Result<WorkspaceChanges, String>>),
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RecordedEdits {
    pub edits: Vec<FileEdit>,
    /// Number of changes that are not read because the record exceeds a limit.
    pub excess: u64,
    pub unread: u64,
    /// True if time ran out before all changes were found.
    pub timed_out: bool,
}

impl FileEdit {
    /// Returns the content after the call, if `content` is the content before it. Returns `None` if
    /// the replacements do not fit, if the result exceeds [`CONTENT_MAX`], or if `may_replace`
    /// returns false for the size of the content before one of several replacements.
    pub fn apply(
        &self,
        content: &str,
        mut may_replace: impl FnMut(usize) -> bool,
    ) -> Option<String> {
        if let Some(after) = &self.after {
            return Some(after.clone());
        }
        let (first, rest) = self.replacements.split_first()?;
        rest.iter().try_fold(first.apply(content)?, |content, next| {
            may_replace(content.len().saturating_add(1)).then(|| next.apply(&content))?
        })
    }
}

impl TextReplacement {
    /// Returns `content` after the replacement. Returns `None` if the replaced text does not occur,
    /// or occurs several times although one occurrence was replaced.
    fn apply(&self, content: &str) -> Option<String> {
        if self.old.is_empty() {
            return content.is_empty().then(|| self.new.clone());
        }
        let with_line_end = format!("{}\n", self.old);
        let old = match self.takes_line_end && content.contains(&with_line_end) {
            true => with_line_end.as_str(),
            false => self.old.as_str(),
        };
        let count = content.matches(old).count();
        let size = count.checked_mul(self.new.len())?.checked_add(content.len())?;
        let fits = (count == 1 || count > 1 && self.all) && size <= CONTENT_MAX;
        fits.then(|| content.replace(old, &self.new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replaced(content: &str, old: &str, new: &str, all: bool, line_end: bool) -> Option<String> {
        let replacement =
            TextReplacement { old: old.into(), new: new.into(), all, takes_line_end: line_end };
        FileEdit { replacements: vec![replacement], ..FileEdit::default() }.apply(content, |_| true)
    }

    #[test]
    fn a_replacement_fits_only_where_its_text_is() {
        assert_eq!(replaced("a b", "b", "c", false, false).as_deref(), Some("a c"));
        assert_eq!(replaced("a b", "x", "c", false, false), None);
        assert_eq!(replaced("b b", "b", "c", false, false), None);
        assert_eq!(replaced("b b", "b", "c", true, false).as_deref(), Some("c c"));
        assert_eq!(replaced("", "", "c", false, false).as_deref(), Some("c"));
        assert_eq!(replaced("a", "", "c", false, false), None);
        assert_eq!(replaced("a\nb\nc", "b", "", false, true).as_deref(), Some("a\nc"));
        assert_eq!(replaced("a\nb", "b", "", false, true).as_deref(), Some("a\n"));
    }

    #[test]
    fn further_replacements_need_permission() {
        let step = |old: &str, new: &str| TextReplacement {
            old: old.into(),
            new: new.into(),
            ..TextReplacement::default()
        };
        let replacements = vec![step("a", "bb"), step("bb", "c"), step("c", "d")];
        let edit = FileEdit { replacements, ..FileEdit::default() };
        let mut sizes = Vec::new();
        let all = edit.apply("a", |size| {
            sizes.push(size);
            true
        });
        assert_eq!((all.as_deref(), sizes), (Some("d"), vec![3, 2]));
        assert_eq!(edit.apply("a", |_| false), None);
    }

    #[test]
    fn a_replacement_that_would_fill_the_memory_does_not_fit() {
        let (many, long) = ("a".repeat(1 << 20), "b".repeat(1 << 20));
        assert_eq!(replaced(&many, "a", &long, true, false), None);
    }
}
