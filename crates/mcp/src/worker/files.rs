//! The tools that list, read and change files: ls, read_file, write_file, edit_file, delete_file.
//!
//! Paths in the arguments of tools are relative to the workspace, or absolute ones within it.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use memchr::memmem;
use rmcp::schemars::{self, JsonSchema};
use serde::{Deserialize, Serialize};

use super::session::WorkerSession;
use super::{ToolRun, WorkerTool};
use crate::slice::{NotedText, echo, joined_note};
use crate::tools::{ToolError, ToolResult, json};
use swarmletfs_base::error::Error;
use swarmletfs_base::model::EntryKind;
use swarmletfs_base::name::RelPath;
use swarmletfs_base::split::Split;
use swarmletfs_base::text::count;
use swarmletfs_record::write::{File, ViewEntry, from_io};

const LINES_DEFAULT: u64 = 2_000;
/// Largest part of a file that is returned, in bytes.
const READ_MAX: usize = 64 << 10;
/// Number of leading bytes that decide whether a file is binary.
const HEAD: usize = 8 << 10;
/// Largest file that is edited, in bytes.
const EDIT_MAX: u64 = 16 << 20;
/// Largest list of a folder, in bytes.
const LIST_MAX: usize = 64 << 10;

pub(super) fn tools() -> Vec<WorkerTool> {
    vec![
        WorkerTool::recorded(
            "ls",
            "Lists files and folders, as a JSON array of objects with name, is_dir and size.",
            true,
            ls,
        ),
        WorkerTool::recorded(
            "read_file",
            "Reads a file, or the lines of it from offset on.",
            true,
            read_file,
        ),
        WorkerTool::recorded(
            "write_file",
            "Writes a file: a new one, or the whole content of an existing one. Missing folders \
             are made.",
            false,
            write_file,
        ),
        WorkerTool::recorded(
            "edit_file",
            "Replaces an exact text in a file. Without replace_all, the text must occur once.",
            false,
            edit_file,
        ),
        WorkerTool::recorded("delete_file", "Deletes a file or link.", false, delete_file),
    ]
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LsInput {
    /// The folder
    path: String,
}

#[derive(Serialize)]
struct LsEntry {
    name: String,
    is_dir: bool,
    size: Option<u64>,
}

fn ls(run: &ToolRun<'_>, input: LsInput) -> ToolResult {
    let path = run.session.parse_path(&input.path)?;
    let view = &run.session.view;
    let listed = view.view_folder(&path).and_then(|folder| folder.view_entries());
    let listed = listed.map_err(failed("list", &path))?;
    let to_entry = |entry: &ViewEntry| {
        // A link counts as its target, if the target is in the workspace.
        let own = (entry.kind, entry.size);
        let (kind, size) = match entry.kind {
            EntryKind::Link => view.view_kind(&path.join(&entry.name)).unwrap_or(own),
            _ => own,
        };
        LsEntry {
            name: entry.name.to_text().into_owned(),
            is_dir: kind == EntryKind::Folder,
            size: (kind == EntryKind::File).then_some(size),
        }
    };
    let (mut text, mut shown) = (String::from("["), 0);
    for entry in &listed {
        let line = json(&to_entry(entry))?;
        if text.len() + line.len() > LIST_MAX {
            break;
        }
        text.push_str(if shown == 0 { "\n" } else { ",\n" });
        text.push_str(&line);
        shown += 1;
    }
    text.push_str(if shown == 0 { "]" } else { "\n]" });
    let more = listed.len() - shown;
    let note = (more > 0).then(|| {
        format!("[... {} more; try glob with a pattern ...]", count(more as u64, "entry"))
    });
    Ok(NotedText { text, note })
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReadInput {
    /// The file
    path: String,
    /// Number of lines to skip [default: 0]
    #[serde(default)]
    offset: u64,
    /// Most lines to return [default: 2000]
    limit: Option<u64>,
}

fn read_file(run: &ToolRun<'_>, input: ReadInput) -> ToolResult {
    let path = run.session.parse_path(&input.path)?;
    let file = run.session.view.view_file(&path).map_err(failed("read", &path))?;
    let size = file.metadata().map_err(from_io).map_err(failed("read", &path))?.len();
    let mut reader = BufReader::with_capacity(HEAD, file);
    let head = reader.fill_buf().map_err(from_io).map_err(failed("read", &path))?;
    if memchr::memchr(0, head).is_some() {
        let text = format!(
            "cannot show {}: it is binary and has {size} B; try execute with `xxd`",
            path.display()
        );
        return Err(ToolError::new(text));
    }
    let limit = input.limit.unwrap_or(LINES_DEFAULT);
    if limit == 0 {
        return Err(ToolError::new("cannot read 0 lines; try a limit of 1 or more"));
    }
    let slice = read_lines(&mut reader, input.offset, limit, run.is_canceled);
    let slice = slice.map_err(failed("read", &path))?;
    let mut notes = Vec::new();
    if slice.bytes.is_empty() && slice.skipped < input.offset {
        let lines = count(slice.skipped, "line");
        notes.push(format!("nothing at line {}: the file has {lines}", input.offset));
    }
    if slice.is_cut {
        let next = input.offset + slice.lines;
        notes.push(match slice.bytes.ends_with(b"\n") {
            true => format!("the file has {size} B; continue with offset={next}"),
            false => format!("line {next} is too long; try execute with `cut` for the rest of it"),
        });
    }
    let text = String::from_utf8_lossy(&slice.bytes);
    if matches!(text, std::borrow::Cow::Owned(_)) {
        notes.push("the file is not valid UTF-8; U+FFFD replaces invalid bytes".to_owned());
    }
    Ok(NotedText { note: joined_note(&notes), text: text.into_owned() })
}

struct LineSlice {
    bytes: Vec<u8>,
    /// Number of lines before it.
    skipped: u64,
    lines: u64,
    /// True if the file goes on.
    is_cut: bool,
}

/// Reads up to `limit` lines after the first `offset` ones, and at most [`READ_MAX`] bytes.
fn read_lines(
    reader: &mut BufReader<File>,
    offset: u64,
    limit: u64,
    is_canceled: &dyn Fn() -> bool,
) -> Result<LineSlice, swarmletfs_base::error::Error> {
    let mut slice = LineSlice { bytes: Vec::new(), skipped: 0, lines: 0, is_cut: false };
    let mut is_in_line = false;
    loop {
        let chunk = reader.fill_buf().map_err(from_io)?;
        if chunk.is_empty() {
            // The last line may lack its end.
            slice.skipped += u64::from(is_in_line && slice.skipped < offset);
            return Ok(slice);
        }
        if is_canceled() {
            return Err(swarmletfs_base::error::Error::Late);
        }
        let is_skipping = slice.skipped < offset;
        if !is_skipping && slice.lines >= limit {
            slice.is_cut = true;
            return Ok(slice);
        }
        let end = memchr::memchr(b'\n', chunk);
        let used = end.map_or(chunk.len(), |end| end + 1);
        let (line, _) = chunk.split_at_known(used);
        if is_skipping {
            slice.skipped += u64::from(end.is_some());
        } else {
            let room = READ_MAX - slice.bytes.len();
            if line.len() > room {
                slice.is_cut = true;
                // Whole lines are returned, unless the first one is too long.
                match memchr::memrchr(b'\n', &slice.bytes) {
                    Some(last) => slice.bytes.truncate(last + 1),
                    None => slice.bytes.extend_from_slice(line.split_at_known(room).0),
                }
                return Ok(slice);
            }
            slice.bytes.extend_from_slice(line);
            slice.lines += u64::from(end.is_some());
        }
        is_in_line = end.is_none();
        reader.consume(used);
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct WriteInput {
    /// The file
    path: String,
    /// The whole content of the file
    content: String,
}

fn write_file(run: &ToolRun<'_>, input: WriteInput) -> ToolResult {
    let path = file_path(run, &input.path)?;
    let _guard = run.session.lock_files();
    let written = run.session.view.write_view_file(&path, input.content.as_bytes());
    written.map_err(failed("write", &path))?;
    Ok(NotedText::new(format!("wrote {}", path.display())))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct EditInput {
    /// The file
    path: String,
    /// The exact text to replace
    old_string: String,
    /// The text to put in its place
    new_string: String,
    /// Replace all occurrences [default: false]
    #[serde(default)]
    replace_all: bool,
}

fn edit_file(run: &ToolRun<'_>, input: EditInput) -> ToolResult {
    let path = file_path(run, &input.path)?;
    let cannot =
        |reason: String| ToolError::new(format!("cannot edit {}: {reason}", path.display()));
    if input.old_string.is_empty() {
        return Err(cannot("old_string is empty; try write_file for a new file".to_owned()));
    }
    if input.old_string == input.new_string {
        return Err(cannot(
            "old_string and new_string are equal; try another new_string".to_owned(),
        ));
    }
    let (view, _guard) = (&run.session.view, run.session.lock_files());
    let file = view.view_file(&path).map_err(failed("edit", &path))?;
    let mut content = Vec::new();
    let read = file.take(EDIT_MAX + 1).read_to_end(&mut content).map_err(from_io);
    read.map_err(failed("edit", &path))?;
    if content.len() as u64 > EDIT_MAX {
        return Err(cannot("it has more than 16 MiB; try execute with `sed`".to_owned()));
    }
    let (old, new) = (input.old_string.as_bytes(), input.new_string.as_bytes());
    let found: Vec<usize> = memmem::find_iter(&content, old).collect();
    match found.len() {
        0 => {
            let reason = "old_string is not in it; try read_file for the exact text";
            return Err(cannot(reason.to_owned()));
        }
        1 => {}
        times if !input.replace_all => {
            let reason = format!(
                "old_string occurs {times} times; try it with more of the text around it, or \
                 replace_all"
            );
            return Err(cannot(reason));
        }
        _ => {}
    }
    let kept = content.len().saturating_sub(found.len() * old.len());
    let size = new.len().checked_mul(found.len()).and_then(|added| added.checked_add(kept));
    if size.is_none_or(|size| size as u64 > EDIT_MAX) {
        return Err(cannot("it would have more than 16 MiB; try execute with `sed`".to_owned()));
    }
    let edited = replaced(&content, old, new);
    view.write_view_file(&path, &edited).map_err(failed("edit", &path))?;
    let replacements = count(found.len() as u64, "replacement");
    Ok(NotedText::new(format!("edited {}: {replacements}", path.display())))
}

fn replaced(content: &[u8], old: &[u8], new: &[u8]) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::with_capacity(content.len()), content);
    while let Some(at) = memmem::find(rest, old) {
        let (before, from) = rest.split_at_known(at);
        out.extend_from_slice(before);
        out.extend_from_slice(new);
        rest = from.split_at_known(old.len()).1;
    }
    out.extend_from_slice(rest);
    out
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct DeleteInput {
    /// The file or link
    path: String,
}

fn delete_file(run: &ToolRun<'_>, input: DeleteInput) -> ToolResult {
    let path = file_path(run, &input.path)?;
    let _guard = run.session.lock_files();
    run.session.view.remove_view_file(&path).map_err(failed("delete", &path))?;
    Ok(NotedText::new(format!("deleted {}", path.display())))
}

fn file_path(run: &ToolRun<'_>, typed: &str) -> Result<RelPath, ToolError> {
    let path = run.session.parse_path(typed)?;
    match path.is_root() || typed.ends_with('/') {
        true => Err(ToolError::new("cannot use a folder as a file; try a file in it")),
        false => Ok(path),
    }
}

impl WorkerSession {
    /// Parses a path. `..` is resolved by the names alone.
    ///
    /// # Errors
    ///
    /// The path leads out of the workspace.
    pub(super) fn parse_path(&self, typed: &str) -> Result<RelPath, ToolError> {
        let path = Path::new(typed);
        let inner = match path.is_absolute() {
            true => path.strip_prefix(&self.workspace).ok(),
            false => Some(path),
        };
        let outside = || {
            let text = format!(
                "cannot use {}: it is outside of the workspace; try a path from its root",
                echo(typed)
            );
            ToolError::new(text)
        };
        let mut names: Vec<&OsStr> = Vec::new();
        for part in inner.ok_or_else(outside)?.components() {
            match part {
                Component::Normal(name) => names.push(name),
                Component::ParentDir => drop(names.pop().ok_or_else(outside)?),
                Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
            }
        }
        let names: Vec<&[u8]> = names.into_iter().map(OsStrExt::as_bytes).collect();
        RelPath::parse(names.join(&b'/')).map_err(|error| {
            ToolError::new(format!("cannot use {}: {error}; try another path", echo(typed)))
        })
    }
}

/// Returns a function that converts errors of `action` on a path. `action` is a verb for messages,
/// such as `read`.
pub(super) fn failed(action: &'static str, path: &RelPath) -> impl Fn(Error) -> ToolError {
    let path = if path.is_root() { "the workspace".to_owned() } else { path.display() };
    move |error| {
        let (reason, cure) = match &error {
            Error::NotFound => ("there is no such file".to_owned(), "; try ls or glob"),
            Error::Escape => {
                ("a link on the way leads out of the workspace".to_owned(), "; try another path")
            }
            Error::IsADirectory => ("it is a folder".to_owned(), "; try a file in it"),
            Error::NotADirectory => {
                ("it is a file, not a folder".to_owned(), "; try the folder that it is in")
            }
            error => (error.to_string(), "; try another path, or execute to see more"),
        };
        ToolError::new(format!("cannot {action} {path}: {reason}{cure}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_occurrences_are_replaced_once() {
        assert_eq!(replaced(b"aXbXXc", b"X", b"XX"), b"aXXbXXXXc");
        assert_eq!(replaced(b"aaa", b"aa", b"b"), b"ba");
        assert_eq!(replaced(b"\xffX", b"X", b""), b"\xff");
    }
}
