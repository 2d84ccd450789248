//! changes.diff: the changes of a worker, as one diff in git's format within a budget.
//!
//! Lines that are not part of a diff begin with `#`. Inside a hunk every line begins with a sign,
//! so no worker can forge a line of another file.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashSet;

use crate::analysis::changes::{
    BlobName, ChangeSource, DiffBody, EntryDiff, FileChange, FileChanges, Part, Start,
    WorkspaceFacts,
};
use swarmletfs_base::model::TextReplacement;
use swarmletfs_base::text::budget::{Budget, BudgetUnit, count_fitting_with_rest};
use swarmletfs_base::text::clean::{InvisibleChars, cleaned_with, escape_markers, one_line};
use swarmletfs_base::text::unified::{blob_id, header_path, quoted_path};
use swarmletfs_base::text::{count, left_out_as_ignored};
use swarmletfs_base::unicode::count_hidden;

/// Maximum length of a worker's name or a path in a generated line, in bytes.
const NAME_MAX: usize = 300;
const NOTES_MAX: usize = 10;
/// Number of digits of a content's name, unless a binary patch needs all.
const ID_DIGITS: usize = 7;
/// Maximum number of attempts to stay within a budget of tokens.
const ATTEMPTS: usize = 8;

/// A part of a file's diff that is shown whole or not at all.
struct DiffUnit<'a> {
    file: usize,
    part: usize,
    /// Position among the units of its file.
    order: usize,
    text: Cow<'a, str>,
    added: usize,
    removed: usize,
}

/// A file with the text that comes before each of its parts.
struct FileText<'a> {
    change: &'a FileChange,
    headers: Vec<String>,
    units: usize,
    counts: (usize, usize),
}

/// Renders changes.diff of the worker `name` in at most `budget`. `notice` names the parts that are
/// missing for lack of time.
pub fn text(name: &str, changes: &FileChanges, notice: Option<&str>, budget: Budget) -> String {
    let files: Vec<FileText<'_>> = changes.files.iter().map(file_text).collect();
    let units = units(changes);
    let head = head(name, changes, &files, &units, notice);
    let within = |limit: usize| text_within(&head, &files, &units, limit);
    if budget.unit() == BudgetUnit::Bytes {
        return within(budget.size());
    }
    let mut limit = budget.approx_bytes();
    for _ in 0..ATTEMPTS {
        let text = within(limit);
        let used = budget.used(&text);
        if used <= budget.size() {
            return text;
        }
        limit = (limit.min(text.len()) as u128 * budget.size() as u128 / used as u128) as usize;
        limit -= limit / 20;
    }
    String::new()
}

fn head(
    name: &str,
    changes: &FileChanges,
    files: &[FileText<'_>],
    units: &[DiffUnit<'_>],
    notice: Option<&str>,
) -> String {
    let mut out = notice.map(|notice| format!("# {notice}\n")).unwrap_or_default();
    let (added, removed) = changes.counts();
    let files_count = count(changes.file_count(), "file");
    let (by, noun) = match &changes.source {
        ChangeSource::Record => (format!("by {} of", count(changes.edits, "edit")), "edit"),
        ChangeSource::Workspace(_) => ("by".to_owned(), "change"),
    };
    let name = one_line(name, NAME_MAX);
    out.push_str(&format!("# {files_count}, +{added} -{removed}, {by} worker {name}\n"));
    match &changes.source {
        ChangeSource::Record => out.push_str("# from its record, not from a workspace\n"),
        ChangeSource::Workspace(facts) => out.push_str(&workspace_facts(facts)),
    }
    let unplaced = files.iter().flat_map(|file| &file.change.parts);
    let unplaced = unplaced.filter(|part| matches!(part, Part::Unplaced { .. })).count();
    if unplaced > 0 {
        out.push_str(&format!(
            "# {} cannot be placed, because the record does not hold the content before\n",
            count(unplaced, "edit")
        ));
    }
    if changes.excess > 0 {
        let edits = count(changes.excess, noun);
        out.push_str(&format!("# {edits} not shown: the record exceeds a limit\n"));
    }
    if changes.unread > 0 {
        let edits = count(changes.unread, noun);
        out.push_str(&format!("# {edits} not read in time\n"));
    }
    let hidden: usize = units.iter().map(|unit| hidden_characters(&unit.text)).sum();
    if hidden > 0 {
        let characters = count(hidden, "invisible or control character");
        out.push_str(&format!("# holds {characters}, unchanged so that the diff stays exact\n"));
    }
    out
}

fn workspace_facts(facts: &WorkspaceFacts) -> String {
    let mut out = String::new();
    if let Some(workspace) = &facts.workspace {
        let workspace = one_line(workspace, NAME_MAX);
        let taken = if facts.is_final { "when the worker ended" } else { "while it runs" };
        out.push_str(&format!("# from its workspace {workspace}, taken {taken}\n"));
    }
    out.extend(left_out_as_ignored(facts.ignored).map(|text| format!("# {text}\n")));
    for note in facts.notes.iter().take(NOTES_MAX) {
        out.push_str(&format!("# {}\n", one_line(note, NAME_MAX)));
    }
    if facts.notes.len() > NOTES_MAX {
        let more = count(facts.notes.len() - NOTES_MAX, "more note");
        out.push_str(&format!("# and {more} in changes.json\n"));
    }
    out
}

fn hidden_characters(text: &str) -> usize {
    let control = |c: &char| c.is_control() && !matches!(c, '\n' | '\t' | '\r');
    count_hidden(text) + text.chars().filter(control).count()
}

/// Returns the file in at most `limit` bytes: the head, a row for each file, and whole hunks. The
/// first hunks of all files take precedence over any second one.
fn text_within(head: &str, files: &[FileText<'_>], units: &[DiffUnit<'_>], limit: usize) -> String {
    if head.len() > limit {
        // Half a line of the head is still a comment.
        let end = head.floor_char_boundary(limit);
        return head.get(..end).unwrap_or(head).to_owned();
    }
    let mut ranks: Vec<usize> = (0..files.len()).collect();
    let lines = |at: &usize| files.get(*at).map_or(0, |file| file.counts.0 + file.counts.1);
    ranks.sort_by_key(|at| Reverse(lines(at)));
    let ranked = |at: &usize| files.get(*at).map(|file| (*at, file));
    // A row is longest if all hunks of its file are left out.
    let all = vec![false; units.len()];
    let room = (limit - head.len()).saturating_sub(left_out(units, &all).len());
    let rows_room = if units_len(files, units) <= room / 2 { room } else { room / 2 };
    let rest_len = rest_row(files.len()).len();
    let row_lens: Vec<usize> =
        ranks.iter().filter_map(ranked).map(|(_, file)| row(file, file.units).len()).collect();
    let rest = |left| if left == 0 { 0 } else { rest_len };
    let rows = count_fitting_with_rest(row_lens.iter().copied(), rows_room, rest);
    let rows_len = row_lens.iter().take(rows).sum::<usize>() + rest(files.len() - rows);
    let room = room.saturating_sub(rows_len);
    if rows == 0 && rows_len > rows_room {
        return head.to_owned();
    }
    let shown = shown_units(files, units, &ranks, room);
    let mut out = head.to_owned();
    let mut left_out_of: Vec<usize> = files.iter().map(|file| file.units).collect();
    for (unit, _) in units.iter().zip(&shown).filter(|(_, shown)| **shown) {
        if let Some(left) = left_out_of.get_mut(unit.file) {
            *left = left.saturating_sub(1);
        }
    }
    for (at, file) in ranks.iter().filter_map(ranked).take(rows) {
        out.push_str(&row(file, left_out_of.get(at).copied().unwrap_or(file.units)));
    }
    if rows < files.len() {
        out.push_str(&rest_row(files.len() - rows));
    }
    out.push_str(&left_out(units, &shown));
    let mut part = None;
    for (unit, _) in units.iter().zip(&shown).filter(|(_, shown)| **shown) {
        if part != Some((unit.file, unit.part)) {
            part = Some((unit.file, unit.part));
            out.push_str(header_of(files, unit));
        }
        out.push_str(&unit.text);
    }
    out
}

fn units_len(files: &[FileText<'_>], units: &[DiffUnit<'_>]) -> usize {
    let headers = files.iter().flat_map(|file| &file.headers).map(String::len);
    headers.sum::<usize>() + units.iter().map(|unit| unit.text.len()).sum::<usize>()
}

/// Returns true for each unit that fits into `room` bytes.
fn shown_units(
    files: &[FileText<'_>],
    units: &[DiffUnit<'_>],
    ranks: &[usize],
    mut room: usize,
) -> Vec<bool> {
    let mut rank_of = vec![0; files.len()];
    for (rank, file) in ranks.iter().enumerate() {
        if let Some(slot) = rank_of.get_mut(*file) {
            *slot = rank;
        }
    }
    let mut order: Vec<(usize, &DiffUnit<'_>)> = units.iter().enumerate().collect();
    order.sort_by_key(|(_, unit)| (unit.order, rank_of.get(unit.file)));
    let mut shown = vec![false; units.len()];
    let mut parts = HashSet::new();
    for (at, unit) in order {
        let is_new = !parts.contains(&(unit.file, unit.part));
        let len = unit.text.len() + if is_new { header_of(files, unit).len() } else { 0 };
        let (Some(left), Some(slot)) = (room.checked_sub(len), shown.get_mut(at)) else { continue };
        room = left;
        *slot = true;
        parts.insert((unit.file, unit.part));
    }
    hide_unfitting(files, units, &mut shown);
    shown
}

/// Hides the files that git cannot create because the diff does not delete the entries that they
/// replace.
fn hide_unfitting(files: &[FileText<'_>], units: &[DiffUnit<'_>], shown: &mut [bool]) {
    let hidden = units.iter().zip(&*shown).filter(|(_, shown)| !**shown);
    let hidden: HashSet<usize> = hidden.map(|(unit, _)| unit.file).collect();
    for (unit, slot) in units.iter().zip(shown) {
        let needs = files.get(unit.file).map_or(&[][..], |file| &file.change.needs);
        *slot &= !needs.iter().any(|file| hidden.contains(file));
    }
}

fn header_of<'a>(files: &'a [FileText<'_>], unit: &DiffUnit<'_>) -> &'a str {
    let headers = files.get(unit.file).map(|file| &file.headers);
    headers.and_then(|headers| headers.get(unit.part)).map_or("", String::as_str)
}

/// Returns the line about a file. `left_out` of its hunks are not shown.
fn row(file: &FileText<'_>, left_out: usize) -> String {
    let (added, removed) = file.counts;
    let note = match left_out {
        0 => String::new(),
        left_out => format!(" ({left_out} of {} left out)", count(file.units, "hunk")),
    };
    let path = shortened(&quoted_path("", &file.change.path));
    format!("# +{added} -{removed} {path}{note}\n")
}

/// Returns the line about `files` files that have no line of their own.
fn rest_row(files: usize) -> String {
    format!("# and {} more\n", count(files, "file"))
}

/// Returns the line that counts the hunks that are not `shown`; empty if all are.
fn left_out(units: &[DiffUnit<'_>], shown: &[bool]) -> String {
    let hidden = units.iter().zip(shown).filter(|(_, shown)| !**shown).map(|(unit, _)| unit);
    let (hunks, added, removed) = hidden.fold((0, 0, 0), |(hunks, added, removed), unit| {
        (hunks + 1, added + unit.added, removed + unit.removed)
    });
    match hunks {
        0 => String::new(),
        hunks => {
            format!("# left out for lack of room: {}, +{added} -{removed}\n", count(hunks, "hunk"))
        }
    }
}

fn shortened(path: &str) -> String {
    one_line(path, NAME_MAX)
}

fn file_text(change: &FileChange) -> FileText<'_> {
    let headers: Vec<String> = change.parts.iter().map(|part| part_header(change, part)).collect();
    let units = change.parts.iter().map(unit_count).sum();
    FileText { change, headers, units, counts: change.counts() }
}

fn unit_count(part: &Part) -> usize {
    match part {
        Part::Diff { hunks, .. } => hunks.len().max(1),
        Part::Entry(diffs) => match diffs.as_slice() {
            [diff] => diff.hunks().len().max(1),
            _ => 1,
        },
        Part::Unplaced { .. } | Part::Event { .. } | Part::Note(_) => 1,
    }
}

fn part_header(change: &FileChange, part: &Part) -> String {
    let path = shortened(&quoted_path("", &change.path));
    let mut out = String::new();
    if change.is_outside {
        let note = "outside of the worker's directory; its path begins at the root";
        out.push_str(&format!("# {path}: {note}\n"));
    }
    if let Some(reason) = change.skipped_because {
        out.push_str(&format!("# {path}: its diff is a comment, because {reason}\n"));
    }
    let (start, hunks, is_deleted) = match part {
        Part::Diff { start, hunks, is_deleted } => (*start, hunks, *is_deleted),
        Part::Entry(diffs) => {
            if let [diff] = diffs.as_slice() {
                out.push_str(&diff_text(change, entry_header(change, diff).into()));
            }
            return out;
        }
        Part::Note(note) => {
            out.push_str(&format!("# {path}: {}\n", one_line(note, NAME_MAX)));
            return out;
        }
        Part::Event { seq, event } => {
            out.push_str(&format!("# {path}: call {seq} {}\n", one_line(event, NAME_MAX)));
            return out;
        }
        Part::Unplaced { seq, place, .. } => {
            let place = match place {
                Some(place) => format!("at {}", one_line(place, NAME_MAX)),
                None => "at an unknown place".into(),
            };
            out.push_str(&format!("# {path}: call {seq} changed it {place}:\n"));
            return out;
        }
    };
    let note = match start {
        Start::Recorded | Start::Absent => None,
        Start::Unknown => Some(
            "written whole; the record does not hold what was there before, so it is shown as new",
        ),
        Start::Displayed => {
            Some("as the record's own diff shows it, without the whole content; tabs may be spaces")
        }
        Start::ChangedBetween => {
            Some("changed in between by something that the record does not hold")
        }
        Start::GoneBetween => Some("removed in between by something that the record does not hold"),
    };
    out.extend(note.map(|note| format!("# {path}: {note}\n")));
    let comment = if change.skipped_because.is_some() { "# " } else { "" };
    let (old, new) = (quoted_path("a/", &change.path), quoted_path("b/", &change.path));
    out.push_str(&format!("{comment}diff --git {old} {new}\n"));
    if start.is_absent() {
        out.push_str(&format!("{comment}new file mode 100644\n"));
    }
    if is_deleted {
        out.push_str(&format!("{comment}deleted file mode 100644\n"));
    }
    if hunks.is_empty() {
        // The names of missing content and of empty content.
        let names = if is_deleted { "e69de29..0000000" } else { "0000000..e69de29" };
        out.push_str(&format!("{comment}index {names}\n"));
        return out;
    }
    let old = match start.is_absent() {
        true => "/dev/null".into(),
        false => header_path("a/", &change.path),
    };
    out.push_str(&format!("{comment}--- {old}\n"));
    let new = match is_deleted {
        true => "/dev/null".into(),
        false => header_path("b/", &change.path),
    };
    out.push_str(&format!("{comment}+++ {new}\n"));
    out
}

/// Returns the header of the diff of a file or link in a workspace, as git writes it.
fn entry_header(change: &FileChange, diff: &EntryDiff) -> String {
    let (old, new) = (quoted_path("a/", &change.path), quoted_path("b/", &change.path));
    let mut out = format!("diff --git {old} {new}\n");
    let mut same_mode = String::new();
    match (&diff.old, &diff.new) {
        (Some(old), Some(new)) if old.mode != new.mode => {
            out.push_str(&format!("old mode {}\nnew mode {}\n", old.mode, new.mode));
        }
        (Some(old), Some(_)) => same_mode = format!(" {}", old.mode),
        (None, Some(new)) => out.push_str(&format!("new file mode {}\n", new.mode)),
        (Some(old), None) => out.push_str(&format!("deleted file mode {}\n", old.mode)),
        (None, None) => {}
    }
    let digits = match &diff.body {
        DiffBody::Mode => return out,
        DiffBody::Text(_) => ID_DIGITS,
        DiffBody::Binary(_) => usize::MAX,
    };
    let (old, new) = (short_id(diff.old.as_ref(), digits), short_id(diff.new.as_ref(), digits));
    out.push_str(&format!("index {old}..{new}{same_mode}\n"));
    if !diff.hunks().is_empty() {
        let side = |blob: &Option<BlobName>, prefix| match blob {
            Some(_) => header_path(prefix, &change.path),
            None => "/dev/null".to_owned(),
        };
        let (old, new) = (side(&diff.old, "a/"), side(&diff.new, "b/"));
        out.push_str(&format!("--- {old}\n+++ {new}\n"));
    }
    out
}

/// Returns the first digits of a content's name, and zeros for no content.
fn short_id(blob: Option<&BlobName>, digits: usize) -> String {
    let all = blob.map_or_else(|| "0".repeat(blob_id(b"").len()), |blob| blob.id.clone());
    all.get(..digits.min(all.len())).unwrap_or(&all).to_owned()
}

/// Returns the text of a diff that is shown whole, without its header.
fn entry_body(diff: &EntryDiff) -> String {
    match &diff.body {
        DiffBody::Mode => String::new(),
        DiffBody::Text(hunks) => hunks.iter().map(|hunk| hunk.text.as_str()).collect(),
        DiffBody::Binary(text) => text.clone(),
    }
}

fn units(changes: &FileChanges) -> Vec<DiffUnit<'_>> {
    let mut units = Vec::new();
    for (file, change) in changes.files.iter().enumerate() {
        let mut order = 0;
        for (part, content) in change.parts.iter().enumerate() {
            let unit =
                |text, added, removed| DiffUnit { file, part, order: 0, text, added, removed };
            let begin = units.len();
            match content {
                Part::Unplaced { replacements, .. } => {
                    let (added, removed) = content.counts();
                    units.push(unit(unplaced(replacements).into(), added, removed));
                }
                Part::Event { .. } | Part::Note(_) => units.push(unit("".into(), 0, 0)),
                Part::Diff { hunks, .. } if hunks.is_empty() => units.push(unit("".into(), 0, 0)),
                Part::Diff { hunks, .. } => units.extend(hunks.iter().map(|hunk| {
                    unit(diff_text(change, (&*hunk.text).into()), hunk.added, hunk.removed)
                })),
                Part::Entry(diffs) => match diffs.as_slice() {
                    [diff] if !diff.hunks().is_empty() => {
                        units.extend(diff.hunks().iter().map(|hunk| {
                            let text = diff_text(change, (&*hunk.text).into());
                            unit(text, hunk.added, hunk.removed)
                        }));
                    }
                    [diff] => {
                        units.push(unit(diff_text(change, entry_body(diff).into()), 0, 0));
                    }
                    diffs => {
                        let whole = |diff| entry_header(change, diff) + &entry_body(diff);
                        let text: String = diffs.iter().map(whole).collect();
                        let (added, removed) = content.counts();
                        units.push(unit(diff_text(change, text.into()), added, removed));
                    }
                },
            }
            for unit in units.iter_mut().skip(begin) {
                unit.order = order;
                order += 1;
            }
        }
    }
    units
}

/// Returns a part of a diff, as comments if git has to skip it.
fn diff_text<'a>(change: &FileChange, text: Cow<'a, str>) -> Cow<'a, str> {
    if change.skipped_because.is_some() { commented(&text, "# ").into() } else { text }
}

/// Returns the texts of a change whose place is unknown, as comments.
fn unplaced(replacements: &[TextReplacement]) -> String {
    let texts = replacements.iter().map(|replacement| {
        let all = if replacement.all { "#  everywhere:\n" } else { "" };
        all.to_owned() + &commented(&replacement.old, "#-") + &commented(&replacement.new, "#+")
    });
    texts.collect()
}

/// Returns `text` with `prefix` before each line, cleaned since it need not be exact.
fn commented(text: &str, prefix: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        out.push_str(prefix);
        out.push_str(&escape_markers(&cleaned_with(line.as_bytes(), InvisibleChars::Escape).text));
        out.push('\n');
    }
    out
}
