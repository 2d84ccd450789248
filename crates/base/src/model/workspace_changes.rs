//! Changes of files: changes of a workspace by a worker that ran in its own view of it, which is
//! the content of changes.json, and changes in the record of a worker's calls.

use std::fmt;

use jiff::Timestamp;
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, percent_encode};
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::error::Error;
use crate::name::RelPath;

/// The version of changes.json that this program writes, and the only one that it reads.
pub const CHANGES_VERSION: u32 = 1;
pub const CHANGES_FILES_MAX: usize = 200_000;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WorkspaceChanges {
    pub version: u32,
    /// Absolute path of the workspace, for people. Commands that change the workspace take its path
    /// from the draft, which no worker can write.
    pub workspace: String,
    /// The way in which the view was made: `overlay` or `copy`.
    pub engine: String,
    /// Start of the view: everything that it shows existed before this time.
    pub started_at: Timestamp,
    pub scanned_at: Timestamp,
    /// True if the worker had ended, so that nothing changes any more.
    pub is_final: bool,
    /// Number of changed paths that are left out because `.gitignore` ignores them, or because they
    /// belong to git. An ignored folder counts once.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ignored: u64,
    /// Facts that a reader must know, such as an end that may have torn files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The end of the worker's own command; absent while it runs, or if no program recorded the
    /// end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<CommandExit>,
    /// The commits that the worker made in its view of a repository; absent if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commits: Option<KeptCommits>,
    /// The changes, sorted by path; at most [`CHANGES_FILES_MAX`].
    #[serde(deserialize_with = "bounded")]
    pub files: Vec<ChangedFile>,
}

/// New commits of a worker, which are in its commits.bundle.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KeptCommits {
    /// SHA-256 of the bundle, as hexadecimal digits.
    pub sha256: String,
    /// The commit of HEAD when the worker began; absent if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// The commit of HEAD at the end; absent if only other branches have new commits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<String>,
    /// Number of new commits of HEAD.
    pub count: u64,
    /// The new commits of HEAD, newest first; the first hundred.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub commits: Vec<CommitLine>,
    /// Other branches with new commits, which are in the bundle, too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub branches: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CommitLine {
    pub id: String,
    /// The first line of its message.
    pub subject: String,
}

/// The decision about the changes in a draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReviewState {
    /// Nobody applied or discarded them.
    Waiting,
    /// Some were applied, and the others wait.
    PartlyApplied,
    Running,
    Applied,
    /// Another worker goes on with them.
    Continued,
    /// All that were applied were taken back, so they wait again.
    TakenBack,
    Discarded,
    /// There are none that could be applied.
    Empty,
    /// They were not found: its workspace was gone when it ended.
    Unknown,
}

impl ReviewState {
    /// Returns true if changes wait for a decision.
    pub fn is_open(self) -> bool {
        use ReviewState::{PartlyApplied, TakenBack, Unknown, Waiting};
        matches!(self, Waiting | PartlyApplied | TakenBack | Unknown)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            ReviewState::Waiting => "waiting",
            ReviewState::PartlyApplied => "partly applied",
            ReviewState::Running => "running",
            ReviewState::Applied => "applied",
            ReviewState::Continued => "continued",
            ReviewState::TakenBack => "taken back",
            ReviewState::Discarded => "discarded",
            ReviewState::Empty => "no changes",
            ReviewState::Unknown => "unknown",
        }
    }
}

/// The end of a command, recorded by the program that ran it. The command cannot write it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CommandExit {
    /// The exit code. A command that a signal ended or that did not run has the code that a shell
    /// reports.
    pub exit_code: i64,
    /// Why it failed, such as `exit code 1` or `timed out after 5s`; absent if it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ChangedFile {
    /// The path from the root of the workspace.
    #[serde(flatten)]
    pub path: ChangedPath,
    pub kind: ChangeKind,
    /// The entry before; absent if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old: Option<EntryState>,
    /// The entry after; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new: Option<EntryState>,
    /// Number of added lines; 0 for a binary file.
    #[serde(default)]
    pub added: u64,
    #[serde(default)]
    pub removed: u64,
    /// True if the content before or after is not text.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_binary: bool,
    pub base: Base,
    /// Why the change cannot be applied; absent if it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// The path of a change: text for people, and exact bytes if the text cannot hold them.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct ChangedPath {
    path: String,
    /// The path with every byte outside of printable ASCII percent-encoded; only if it is not
    /// UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    path_encoded: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    Added,
    /// The content differs: of the file, or of the link.
    Modified,
    Deleted,
    Mode,
    /// Another kind of entry has the name, such as a folder in place of a file.
    Replaced,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EntryState {
    #[serde(rename = "type")]
    pub kind: EntryKind,
    /// The permissions, such as 0o755, as octal digits.
    #[serde(with = "octal")]
    pub mode: u32,
    /// The size of a file, in bytes; 0 for everything else.
    #[serde(default)]
    pub size: u64,
    /// SHA-256 of the content of a file, as hexadecimal digits; empty for everything else.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub sha256: String,
    /// Target of a link, percent-encoded as [`ChangedPath`] is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    File,
    Link,
    /// A folder. Git does not track folders, so no diff shows them.
    Folder,
    /// A device, FIFO or socket, which is never applied.
    Special,
}

/// The place of the content before a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Base {
    /// There was none: a new path, or an entry without content.
    None,
    /// It is in `base/`, and is proved to be the content that the worker saw.
    Saved,
    /// The workspace changed before the content could be saved. The one in `base/` is of the commit
    /// with which the worker began.
    Commit,
    /// The workspace changed before the content could be saved.
    Unknown,
}

impl Base {
    /// Returns true if the content is in `base/`.
    pub fn is_stored(self) -> bool {
        matches!(self, Base::Saved | Base::Commit)
    }
}

/// Bytes that stand for themselves are printable ASCII without `%`.
const ENCODED: &AsciiSet = &CONTROLS.add(b'%');

impl WorkspaceChanges {
    /// Returns the number of changed files. Every place that states a number of files uses it, or
    /// [`ChangedFile::is_folder`].
    pub fn file_count(&self) -> u64 {
        self.files.iter().filter(|file| !file.is_folder()).count() as u64
    }
}

impl ChangedPath {
    pub fn new(path: &RelPath) -> ChangedPath {
        let bytes = path.as_bytes();
        let is_text = std::str::from_utf8(bytes).is_ok();
        ChangedPath {
            path: path.to_text().into_owned(),
            path_encoded: (!is_text).then(|| encode(bytes)),
        }
    }

    /// Returns the path.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`] if it is empty, absolute, or has a component such as `..`.
    pub fn parse(&self) -> Result<RelPath, Error> {
        let path = match &self.path_encoded {
            Some(encoded) => RelPath::parse(decode(encoded))?,
            None => RelPath::parse(self.path.as_bytes())?,
        };
        if path.is_root() { Err(Error::InvalidName) } else { Ok(path) }
    }

    pub fn as_text(&self) -> &str {
        &self.path
    }
}

impl EntryState {
    pub fn target_bytes(&self) -> Option<Vec<u8>> {
        self.target.as_deref().map(decode)
    }
}

impl ChangedFile {
    /// Returns true for a change of a folder, which does not count as a file. A refused change
    /// counts like any other.
    pub fn is_folder(&self) -> bool {
        let mut states = [&self.old, &self.new].into_iter().flatten().peekable();
        states.peek().is_some() && states.all(|state| state.kind == EntryKind::Folder)
    }

    /// Returns true if the entry before or after is a regular file.
    pub fn has_content(&self) -> bool {
        [&self.old, &self.new].into_iter().flatten().any(|entry| entry.kind == EntryKind::File)
    }
}

pub fn encode(bytes: &[u8]) -> String {
    percent_encode(bytes, ENCODED).to_string()
}

/// Reverses [`encode`].
pub fn decode(text: &str) -> Vec<u8> {
    percent_decode_str(text).collect()
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn is_false(flag: &bool) -> bool {
    !*flag
}

/// Reads a list of changes, and fails beyond [`CHANGES_FILES_MAX`] of them.
fn bounded<'de, D: Deserializer<'de>>(input: D) -> Result<Vec<ChangedFile>, D::Error> {
    struct FilesVisitor;
    impl<'de> Visitor<'de> for FilesVisitor {
        type Value = Vec<ChangedFile>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of changes")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut files = Vec::new();
            while let Some(file) = list.next_element()? {
                if files.len() == CHANGES_FILES_MAX {
                    let text = format!("more than {CHANGES_FILES_MAX} changes");
                    return Err(A::Error::custom(text));
                }
                files.push(file);
            }
            Ok(files)
        }
    }
    input.deserialize_seq(FilesVisitor)
}

/// Permissions as octal digits, such as "0644".
mod octal {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(mode: &u32, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(&format!("{mode:04o}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<u32, D::Error> {
        let digits = String::deserialize(input)?;
        let mode = u32::from_str_radix(&digits, 8).ok().filter(|mode| *mode <= 0o7777);
        mode.ok_or_else(|| D::Error::custom("a mode has at most four octal digits"))
    }
}

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

    #[test]
    fn every_path_and_target_survives_json() {
        for bytes in [&b"src/a b.rs"[..], b"\xff/100%", b"a%ffb\n\"", "é/\u{202e}".as_bytes()] {
            let path = RelPath::parse(bytes).unwrap();
            let json = serde_json::to_string(&ChangedPath::new(&path)).unwrap();
            let read: ChangedPath = serde_json::from_str(&json).unwrap();
            assert_eq!(read.parse().unwrap(), path, "{json}");
            assert_eq!(decode(&encode(bytes)), bytes);
        }
    }

    #[test]
    fn paths_that_lead_elsewhere_are_refused() {
        for bad in ["", "/etc/passwd", "../x", "a/../b", "a//b", "./a"] {
            let path = ChangedPath { path: bad.into(), path_encoded: None };
            assert!(path.parse().is_err(), "{bad}");
            let path = ChangedPath { path: "x".into(), path_encoded: Some(bad.into()) };
            assert!(path.parse().is_err(), "{bad}");
        }
    }

    #[test]
    fn modes_are_octal() {
        let json = r#"{"type": "file", "mode": "0755"}"#;
        let entry: EntryState = serde_json::from_str(json).unwrap();
        assert_eq!((entry.mode, entry.kind), (0o755, EntryKind::File));
        assert!(serde_json::from_str::<EntryState>(r#"{"type":"file","mode":"10000"}"#).is_err());
    }

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
