//! The changes of files in a worker's record. The edits of a file are combined into one diff. An
//! edit whose place in the file is unknown stands by itself. The changes of a workspace are exact.

mod workspace;

use std::collections::{HashMap, HashSet};

use super::file_uses::{absolute, relative};
use crate::view::{Member, View};
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::error::Result;
use swarmletfs_base::model::{
    CONTENT_MAX, FileEdit, RecordedChanges, RecordedEdits, TextReplacement,
};
use swarmletfs_base::text::unified::{Hunk, hunk_of_lines, hunks};

/// Maximum number of bytes of contents that are read or rebuilt for one worker, over all
/// replacements of all edits.
const WORK_MAX: usize = 2 << 30;
/// Size of all contents that are held for one worker from which on further edits are left out, in
/// bytes. The last content may exceed it.
const HELD_MAX: usize = 128 << 20;

#[derive(Debug, Default)]
pub struct FileChanges {
    /// The changed files, by their first edit.
    pub files: Vec<FileChange>,
    pub source: ChangeSource,
    pub edits: usize,
    /// Number of edits that are not shown because they exceed a limit.
    pub excess: u64,
    /// Number of edits that were not read or used in time.
    pub unread: u64,
}

#[derive(Debug, Default)]
pub enum ChangeSource {
    #[default]
    Record,
    Workspace(WorkspaceFacts),
}

/// Facts about the changes of a workspace. Nothing here is cleaned.
#[derive(Debug, Default)]
pub struct WorkspaceFacts {
    pub workspace: Option<String>,
    /// True if the worker had ended when the changes were found.
    pub is_final: bool,
    /// Number of changed paths that are left out because git ignores them.
    pub ignored: u64,
    pub notes: Vec<String>,
}

#[derive(Debug, Default)]
pub struct FileChange {
    /// The path, relative to the worker's directory if the file lies in it, else from the root of
    /// the file system. It does not begin with a slash. It may be invalid UTF-8.
    pub path: Vec<u8>,
    pub is_outside: bool,
    /// True if this is a folder before and after, so that git does not record it.
    pub is_folder: bool,
    /// True if a file or link was deleted and no other one has its path.
    pub is_gone: bool,
    /// Indexes of the files that have to be deleted before this one can be created.
    pub needs: Vec<usize>,
    /// The reason why the diff is written as a comment, which git skips.
    pub skipped_because: Option<&'static str>,
    pub parts: Vec<Part>,
}

#[derive(Debug)]
pub enum Part {
    /// Changes between two contents that are known, at least around the changes.
    Diff {
        start: Start,
        /// The changes, in order. Empty if an empty file was created.
        hunks: Vec<Hunk>,
        is_deleted: bool,
    },
    /// The exact change of a file or link; two diffs if one took the place of the other.
    Entry(Vec<EntryDiff>),
    /// A fact about the file, as the end of a sentence that begins with its path.
    Note(String),
    /// A change whose place in the file is unknown.
    Unplaced {
        seq: u64,
        /// The place as the record names it.
        place: Option<String>,
        replacements: Vec<TextReplacement>,
    },
    /// A deletion or a move of a file whose content is unknown.
    Event {
        seq: u64,
        /// The event, as the end of a sentence that begins with the call.
        event: String,
    },
}

#[derive(Debug)]
pub struct EntryDiff {
    pub old: Option<BlobName>,
    pub new: Option<BlobName>,
    pub body: DiffBody,
}

/// A content as git names it.
#[derive(Debug)]
pub struct BlobName {
    /// The mode, such as `100644`.
    pub mode: &'static str,
    /// The name of the content: 40 hexadecimal digits, or empty if only the mode changed.
    pub id: String,
}

#[derive(Debug)]
pub enum DiffBody {
    /// No difference of content: only the mode changed.
    Mode,
    /// The hunks of two texts. Empty if an empty file was created or deleted.
    Text(Vec<Hunk>),
    Binary(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    Recorded,
    Absent,
    /// Nothing is recorded. The file counts as absent because it was written whole.
    Unknown,
    /// Only the record's own diff is known.
    Displayed,
    /// The content is recorded, and differs from the content after the previous part.
    ChangedBetween,
    /// The file existed after the previous part, and did not exist before this one.
    GoneBetween,
}

impl Start {
    pub fn is_absent(self) -> bool {
        matches!(self, Start::Absent | Start::Unknown | Start::GoneBetween)
    }
}

impl FileChanges {
    /// Returns the numbers of added and removed lines of all files.
    pub fn counts(&self) -> (usize, usize) {
        let counts = self.files.iter().map(FileChange::counts);
        counts.fold((0, 0), |all, more| (all.0 + more.0, all.1 + more.1))
    }

    /// Returns the number of changed files and links, without folders.
    pub fn file_count(&self) -> usize {
        self.files.iter().filter(|file| !file.is_folder).count()
    }
}

impl FileChange {
    /// Returns the path with the slash of the root if the file lies outside.
    pub fn full_path(&self) -> String {
        let has_drive = self.path.get(1..).is_some_and(|rest| rest.starts_with(b":/"));
        let root = if self.is_outside && !has_drive { "/" } else { "" };
        format!("{root}{}", String::from_utf8_lossy(&self.path))
    }

    pub fn counts(&self) -> (usize, usize) {
        self.parts
            .iter()
            .map(Part::counts)
            .fold((0, 0), |all, more| (all.0 + more.0, all.1 + more.1))
    }
}

impl Part {
    pub fn counts(&self) -> (usize, usize) {
        match self {
            Part::Diff { hunks, .. } => (
                hunks.iter().map(|hunk| hunk.added).sum(),
                hunks.iter().map(|hunk| hunk.removed).sum(),
            ),
            Part::Entry(diffs) => {
                let hunks = || diffs.iter().flat_map(EntryDiff::hunks);
                (hunks().map(|hunk| hunk.added).sum(), hunks().map(|hunk| hunk.removed).sum())
            }
            Part::Unplaced { replacements, .. } => (
                replacements.iter().map(|text| text.new.lines().count()).sum(),
                replacements.iter().map(|text| text.old.lines().count()).sum(),
            ),
            Part::Event { .. } | Part::Note(_) => (0, 0),
        }
    }

    fn creates(&self) -> bool {
        matches!(self, Part::Entry(diffs) if diffs.iter().all(|diff| diff.old.is_none()))
    }

    fn deletes(&self) -> bool {
        matches!(self, Part::Entry(diffs) if diffs.iter().all(|diff| diff.new.is_none()))
    }

    /// Returns the size of the diffs of a workspace that the part holds, in bytes.
    fn held(&self) -> usize {
        let Part::Entry(diffs) = self else { return 0 };
        let sizes = diffs.iter().map(|diff| match &diff.body {
            DiffBody::Mode => 0,
            DiffBody::Text(hunks) => hunks.iter().map(|hunk| hunk.text.len()).sum(),
            DiffBody::Binary(text) => text.len(),
        });
        sizes.sum()
    }
}

impl EntryDiff {
    pub fn hunks(&self) -> &[Hunk] {
        match &self.body {
            DiffBody::Text(hunks) => hunks,
            DiffBody::Mode | DiffBody::Binary(_) => &[],
        }
    }
}

/// Reads the changes of a worker; `None` if its record holds no edits. Leaves out the rest when
/// `deadline` passes.
pub fn read_changes(
    view: &View,
    member: &Member,
    deadline: Deadline<'_>,
) -> Result<Option<FileChanges>> {
    let recorded = match view.changes(member, deadline)? {
        RecordedChanges::Edits(recorded) => recorded,
        RecordedChanges::Workspace(read) => {
            return Ok(Some(workspace::changes(*read, &view.folder(member)?, deadline)));
        }
    };
    let has_edits = recorded != RecordedEdits::default();
    Ok(has_edits.then(|| changes(recorded, member.entry.worker().cwd.as_deref(), deadline)))
}

/// Combines the edits of each file. `cwd` is the worker's directory. Counts the edits for which
/// there was no time before `deadline`.
fn changes(recorded: RecordedEdits, cwd: Option<&str>, deadline: Deadline<'_>) -> FileChanges {
    let mut all =
        FileChanges { excess: recorded.excess, unread: recorded.unread, ..FileChanges::default() };
    let mut files = RebuiltFiles::default();
    let mut work = WorkBudget { room: WORK_MAX, deadline };
    let mut held = 0;
    for edit in recorded.edits {
        let path = absolute(&edit.path, cwd);
        let Some(file) = files.at(path) else { continue };
        if !deadline.has_time() {
            all.unread += 1;
            continue;
        }
        let size = file.size() + edit.before.as_ref().map_or(0, String::len) + 1;
        if held > HELD_MAX || !work.take(size) {
            all.excess += 1;
            continue;
        }
        let moved_to = edit.moved_to.as_deref().map(|path| absolute(path, cwd));
        let (seq, from) = (edit.seq, edit.path.clone());
        held -= file.held;
        file.add(edit, &mut work);
        let moved = moved_to.map(|path| (path, file.take_moved(seq)));
        held += file.held;
        if let Some((path, content)) = moved
            && let Some(file) = files.at(path)
        {
            held -= file.held;
            file.add_moved(seq, &from, content, &mut work);
            held += file.held;
        }
        all.edits += 1;
    }
    let cwd = cwd.map(|cwd| absolute(cwd, None));
    for (path, file) in files.files {
        if !deadline.has_time() {
            all.unread += file.edits;
            continue;
        }
        let parts = file.parts();
        if !parts.is_empty() {
            all.files.push(file_change(&path, cwd.as_deref(), parts));
        }
    }
    skip_duplicates(&mut all.files);
    all
}

/// Marks files whose path another file has, so that their diffs become comments. A file in the
/// worker's directory keeps its diff.
fn skip_duplicates(files: &mut [FileChange]) {
    let mut paths: HashSet<Vec<u8>> = HashSet::new();
    for is_outside in [false, true] {
        for file in files.iter_mut().filter(|file| file.is_outside == is_outside) {
            if !paths.insert(file.path.clone()) {
                file.skipped_because = Some("another file has the same path here");
            }
        }
    }
}

fn file_change(path: &str, cwd: Option<&str>, parts: Vec<Part>) -> FileChange {
    let inside = relative(path, cwd);
    let is_outside = cwd.is_some() && inside == path;
    let path = inside.trim_start_matches('/').to_owned();
    let skipped_because = (!is_git_path(path.as_bytes())).then_some("git accepts no such path");
    let path = path.into_bytes();
    FileChange { path, is_outside, skipped_because, parts, ..FileChange::default() }
}

fn is_git_path(path: &[u8]) -> bool {
    let mut names = path.split(|byte| *byte == b'/');
    !path.is_empty() && !path.contains(&0) && !names.any(is_git_directory)
}

/// Returns true if git takes `name` for its own directory on any system.
fn is_git_directory(name: &[u8]) -> bool {
    let mut name = name.split(|byte| matches!(byte, b':' | b'\\')).next().unwrap_or_default();
    while let [before @ .., b' ' | b'.'] = name {
        name = before;
    }
    name.eq_ignore_ascii_case(b".git") || name.eq_ignore_ascii_case(b"git~1")
}

/// The work that is left for rebuilding the contents of one worker's files, in bytes and time.
struct WorkBudget<'a> {
    room: usize,
    deadline: Deadline<'a>,
}

impl WorkBudget<'_> {
    /// Takes `bytes` of work. Returns false if there is no room or no time for it.
    fn take(&mut self, bytes: usize) -> bool {
        let left = self.room.checked_sub(bytes).filter(|_| self.deadline.has_time());
        self.room = left.unwrap_or(self.room);
        left.is_some()
    }
}

/// The files whose contents are rebuilt, in the order of their first edits.
#[derive(Default)]
struct RebuiltFiles {
    files: Vec<(String, RebuiltFile)>,
    numbers: HashMap<String, usize>,
}

impl RebuiltFiles {
    /// Returns the file at `path`, which is added if it is new.
    fn at(&mut self, path: String) -> Option<&mut RebuiltFile> {
        let files = &mut self.files;
        let number = *self.numbers.entry(path).or_insert_with_key(|path| {
            files.push((path.clone(), RebuiltFile::default()));
            files.len() - 1
        });
        files.get_mut(number).map(|(_, file)| file)
    }
}

#[derive(Default)]
struct RebuiltFile {
    parts: Vec<UnfinishedPart>,
    /// Size of the contents in `parts`, in bytes.
    held: usize,
    edits: u64,
}

/// A part of a file's changes, before it is compared.
enum UnfinishedPart {
    Contents { start: Start, original: String, current: String, is_deleted: bool },
    Done(Part),
}

impl RebuiltFile {
    /// Returns the size of the current content, in bytes; 0 if it is unknown.
    fn size(&self) -> usize {
        match self.parts.last() {
            Some(UnfinishedPart::Contents { current, .. }) => current.len(),
            _ => 0,
        }
    }

    /// Applies the next edit. Without enough `work` for its replacements, their place is unknown.
    fn add(&mut self, edit: FileEdit, work: &mut WorkBudget<'_>) {
        self.edits += 1;
        if edit.deleted {
            return self.delete(edit.seq, edit.before, "deleted it");
        }
        let known = match self.parts.last_mut() {
            Some(UnfinishedPart::Contents { current, is_deleted: false, .. }) => Some(current),
            _ => None,
        };
        let base = match (&edit.before, known.as_deref()) {
            _ if edit.created => None,
            (Some(before), _) => Some(before.as_str()),
            (None, Some(current)) => Some(current.as_str()),
            // A file that is written whole counts as absent.
            (None, None) if edit.after.is_some() => None,
            (None, None) => return self.add_unknown(edit),
        };
        let after = edit.apply(base.unwrap_or_default(), |size| work.take(size));
        let Some(after) = after.filter(|after| after.len() <= CONTENT_MAX) else {
            return self.add_unknown(edit);
        };
        let is_first = known.is_none();
        match known {
            // Nothing else changed the file since the edit before.
            Some(current) if base.is_some_and(|base| base == current) => {
                self.held = self.held - current.len() + after.len();
                *current = after;
            }
            _ => {
                let start = match base {
                    Some(_) if is_first => Start::Recorded,
                    Some(_) => Start::ChangedBetween,
                    None if !edit.created => Start::Unknown,
                    None if is_first => Start::Absent,
                    None => Start::GoneBetween,
                };
                let original = base.unwrap_or_default().to_owned();
                self.held += original.len() + after.len();
                let (current, is_deleted) = (after, false);
                let part = UnfinishedPart::Contents { start, original, current, is_deleted };
                self.parts.push(part);
            }
        }
    }

    /// Deletes the file. `before` is its recorded content, if any; `event` describes the deletion.
    fn delete(&mut self, seq: u64, before: Option<String>, event: &str) {
        match (self.parts.last_mut(), before) {
            (Some(UnfinishedPart::Contents { current, is_deleted, .. }), before)
                if !*is_deleted && before.as_ref().is_none_or(|before| before == current) =>
            {
                self.held -= current.len();
                current.clear();
                *is_deleted = true;
            }
            (last, Some(original)) => {
                let start = match last {
                    None => Start::Recorded,
                    Some(_) => Start::ChangedBetween,
                };
                self.held += original.len();
                let (current, is_deleted) = (String::new(), true);
                let part = UnfinishedPart::Contents { start, original, current, is_deleted };
                self.parts.push(part);
            }
            (_, None) => {
                let part = Part::Event { seq, event: event.into() };
                self.parts.push(UnfinishedPart::Done(part));
            }
        }
    }

    /// Returns the content that is moved to another path, if it is known, and deletes the file.
    fn take_moved(&mut self, seq: u64) -> Option<String> {
        let content = match self.parts.last() {
            Some(UnfinishedPart::Contents { current, is_deleted: false, .. }) => {
                Some(current.clone())
            }
            _ => None,
        };
        self.delete(seq, content.clone(), "moved it away");
        content
    }

    fn add_moved(
        &mut self,
        seq: u64,
        from: &str,
        content: Option<String>,
        work: &mut WorkBudget<'_>,
    ) {
        match content {
            Some(content) if work.take(content.len()) => {
                let edit = FileEdit { seq, after: Some(content), ..FileEdit::default() };
                self.add(FileEdit { created: true, ..edit }, work);
            }
            Some(_) | None => {
                let event = format!("moved it here from {from}");
                self.parts.push(UnfinishedPart::Done(Part::Event { seq, event }));
            }
        }
    }

    /// Adds an edit of an unknown content, or one that does not fit the known one.
    fn add_unknown(&mut self, edit: FileEdit) {
        let mut shift = 0;
        let displayed: Option<Vec<Hunk>> = edit
            .hunks
            .iter()
            .map(|hunk| {
                let start = usize::try_from(hunk.old_start).ok()?;
                let hunk = hunk_of_lines(start, shift, &hunk.lines)?;
                shift += hunk.added.checked_signed_diff(hunk.removed)?;
                Some(hunk)
            })
            .collect();
        let part = match displayed.filter(|hunks| !hunks.is_empty()) {
            Some(hunks) => Part::Diff { start: Start::Displayed, hunks, is_deleted: false },
            None => {
                Part::Unplaced { seq: edit.seq, place: edit.place, replacements: edit.replacements }
            }
        };
        self.parts.push(UnfinishedPart::Done(part));
    }

    /// Returns the parts, except those that change nothing.
    fn parts(self) -> Vec<Part> {
        let parts = self.parts.into_iter().filter_map(|part| match part {
            UnfinishedPart::Done(part) => Some(part),
            // A file that came and went changes nothing.
            UnfinishedPart::Contents { start, is_deleted: true, .. } if start.is_absent() => None,
            UnfinishedPart::Contents { start, original, current, is_deleted } => {
                let hunks = hunks(&original, &current);
                let is_change = start.is_absent() || is_deleted || !hunks.is_empty();
                is_change.then_some(Part::Diff { start, hunks, is_deleted })
            }
        });
        parts.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edit(path: &str, before: Option<&str>, old: &str, new: &str) -> FileEdit {
        let replacement =
            TextReplacement { old: old.into(), new: new.into(), ..TextReplacement::default() };
        FileEdit {
            path: path.into(),
            before: before.map(str::to_owned),
            replacements: vec![replacement],
            ..FileEdit::default()
        }
    }

    fn of(edits: Vec<FileEdit>, has_time: bool) -> FileChanges {
        let recorded = RecordedEdits { edits, ..RecordedEdits::default() };
        changes(recorded, Some("/app"), Deadline::new(&|| has_time))
    }

    fn counts(changes: &FileChanges) -> Vec<(&str, (usize, usize), usize)> {
        let files = changes.files.iter();
        let named = files.map(|file| (std::str::from_utf8(&file.path).unwrap(), file));
        named.map(|(path, file)| (path, file.counts(), file.parts.len())).collect()
    }

    #[test]
    fn edits_of_one_file_are_one_diff_under_any_spelling_of_its_path() {
        let all = of(
            vec![
                edit("/app/a", Some("1\n2\n"), "1", "x"),
                edit("a", None, "2", "y"),
                edit("/app/./b/../a", Some("x\ny\n"), "x", "1"),
            ],
            true,
        );
        assert_eq!((counts(&all), all.edits), (vec![("a", (1, 1), 1)], 3));
    }

    #[test]
    fn edits_that_undo_each_other_change_nothing() {
        let all = of(vec![edit("a", Some("1"), "1", "2"), edit("a", Some("2"), "2", "1")], true);
        assert!(all.files.is_empty() && all.edits == 2);
    }

    #[test]
    fn an_edit_that_does_not_fit_is_unplaced_and_later_ones_start_anew() {
        let all = of(
            vec![
                edit("a", Some("1\n"), "1", "2"),
                edit("a", None, "gone", "here"),
                edit("a", Some("5\n"), "5", "6"),
            ],
            true,
        );
        assert_eq!(counts(&all), [("a", (3, 3), 3)]);
        let parts = &all.files[0].parts;
        assert!(matches!(parts[1], Part::Unplaced { .. }), "{parts:?}");
        assert!(matches!(parts[2], Part::Diff { start: Start::Recorded, .. }), "{parts:?}");
    }

    #[test]
    fn a_deleted_or_moved_file_is_gone_from_its_path() {
        let delete = |path: &str, before: Option<&str>| FileEdit {
            path: path.into(),
            before: before.map(str::to_owned),
            deleted: true,
            ..FileEdit::default()
        };
        let all = of(vec![delete("a", Some("1\n")), delete("b", None)], true);
        assert_eq!(counts(&all), [("a", (0, 1), 1), ("b", (0, 0), 1)]);
        assert!(matches!(all.files[0].parts[0], Part::Diff { is_deleted: true, .. }));
        assert!(matches!(all.files[1].parts[0], Part::Event { .. }));
        let moved = FileEdit { moved_to: Some("b".into()), ..edit("a", Some("1\n"), "1", "2") };
        let all = of(vec![moved.clone(), delete("b", None)], true);
        assert_eq!(counts(&all), [("a", (0, 1), 1)], "moved and deleted");
        let all = of(vec![FileEdit { before: None, ..moved.clone() }], true);
        assert_eq!(counts(&all), [("a", (1, 1), 2), ("b", (0, 0), 1)], "unknown content");
        let all = of(vec![moved, edit("b", None, "2", "3")], true);
        assert_eq!(counts(&all), [("a", (0, 1), 1), ("b", (1, 0), 1)], "edited after the move");
    }

    #[test]
    fn edits_without_time_are_counted() {
        let all = of(vec![edit("a", Some("1"), "1", "2")], false);
        assert_eq!((all.files.len(), all.unread), (0, 1));
    }

    #[test]
    fn contents_that_would_fill_the_memory_are_counted() {
        // Each pair of edits grows a file of 4 KiB to nearly 16 MiB.
        let edits = (0..20).flat_map(|number| {
            let path = number.to_string();
            let (old, new) = ("a", "b".repeat(4000));
            let replacement =
                TextReplacement { old: old.into(), new, all: true, takes_line_end: false };
            let edit = FileEdit { path, ..FileEdit::default() };
            let write = FileEdit { after: Some(old.repeat(4096)), created: true, ..edit.clone() };
            [write, FileEdit { replacements: vec![replacement], ..edit }]
        });
        let all = of(edits.collect(), true);
        assert!(all.files.len() <= HELD_MAX / CONTENT_MAX + 1, "{}", all.files.len());
        assert_eq!(all.excess + all.edits as u64, 40);
    }

    #[test]
    fn paths_lie_in_the_worker_s_directory_or_begin_at_the_root() {
        for (path, cwd, shown) in [
            ("a", "/app", ("a", false)),
            ("/app/a", "/app/", ("a", false)),
            ("/application/a", "/app", ("application/a", true)),
            ("../../../x", "/app", ("x", true)),
            ("/app", "/app", ("app", true)),
            ("C:\\app\\d\\x", "C:\\app", ("d/x", false)),
        ] {
            let cwd = absolute(cwd, None);
            let file = file_change(&absolute(path, Some(&cwd)), Some(&cwd), Vec::new());
            let found = (file.path.as_slice(), file.is_outside);
            assert_eq!(found, (shown.0.as_bytes(), shown.1), "{path}");
        }
    }
}
