//! Slices of files as text, with notes on omissions, and resources: files of the tree by URIs such
//! as `swarm:///workers/<id>/summary`.

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use rmcp::ErrorData;
use rmcp::model::{
    ListResourcesResult, ReadResourceResult, Resource, ResourceContents, ResourceTemplate,
};

use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::printable;
use swarmletfs_base::text::count;
use swarmletfs_tree::tree::{Fh, NodeKind, Symlinks, Tree};

/// Default size of a slice, in bytes.
pub(super) const DEFAULT: usize = 16_000;
/// Largest size of a slice, in bytes.
pub(super) const MAX: usize = 1 << 20;
/// Default number of lines of a slice.
pub(super) const LINES: u64 = 2_000;
/// Longest UTF-8 character, in bytes.
const CHARACTER: usize = 4;
/// Longest text of a client that is repeated in a message, in bytes.
const ECHO_MAX: usize = 200;
const CHUNK: usize = 256 << 10;
/// Number of leading bytes that decide whether a file is binary.
const HEAD: usize = 8 << 10;
/// Most data read to reach a line, in bytes.
const SKIPPED_MAX: u64 = 256 << 20;

#[derive(Debug, Clone, Copy)]
pub(super) enum SliceRequest {
    /// Offset and size in bytes.
    Bytes(u64, usize),
    /// Number of lines to skip and to return.
    Lines(u64, u64),
}

/// A text for a client, such as a slice of a file, with a note on its omissions.
#[derive(Debug)]
pub(super) struct NotedText {
    /// The text, exact where the file is UTF-8.
    pub(super) text: String,
    /// Set if the text is incomplete, or differs from the file.
    pub(super) note: Option<String>,
}

impl NotedText {
    pub(super) fn new(text: impl Into<String>) -> NotedText {
        NotedText { text: text.into(), note: None }
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> NotedText {
        NotedText::new(String::from_utf8_lossy(bytes))
    }

    fn only_note(note: String) -> NotedText {
        NotedText { text: String::new(), note: Some(note) }
    }

    /// Returns the exact text and the note, for clients to receive in blocks of their own. An empty
    /// text is left out if there is a note.
    pub(super) fn blocks(self) -> impl Iterator<Item = String> {
        let text = (!self.text.is_empty() || self.note.is_none()).then_some(self.text);
        text.into_iter().chain(self.note)
    }
}

/// An open file. Dropping it releases the handle.
pub(super) struct OpenFile<'t> {
    tree: &'t Tree,
    fh: Fh,
    name: String,
}

impl Drop for OpenFile<'_> {
    fn drop(&mut self) {
        self.tree.release(self.fh);
    }
}

impl<'t> OpenFile<'t> {
    pub(super) fn at_path(tree: &'t Tree, path: &[u8]) -> Result<OpenFile<'t>> {
        let opened = tree
            .with_path(path, Symlinks::Follow, |place| Ok((place.leaf().open()?, place.path())));
        opened.map(|(opened, path)| OpenFile::from_handle(tree, opened.fh, printable(&path)))
    }

    pub(super) fn from_handle(tree: &'t Tree, fh: Fh, name: String) -> OpenFile<'t> {
        OpenFile { tree, fh, name }
    }

    /// Reads the whole file. Returns `None` if it is larger than `most` bytes.
    pub(super) fn read_all(&self, most: usize) -> Result<Option<Vec<u8>>> {
        let bytes = self.read(0, most + 1)?;
        Ok((bytes.len() <= most).then_some(bytes))
    }

    pub(super) fn slice(&self, request: SliceRequest) -> Result<NotedText> {
        let head = self.read(0, HEAD)?;
        if memchr::memchr(0, &head).is_some() {
            let begins: String = head.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
            let note = format!(
                "[{}: binary, {} B, begins with {begins}: not shown]",
                self.name,
                self.size()?
            );
            return Ok(NotedText::only_note(note));
        }
        match request {
            SliceRequest::Bytes(offset, limit) => self.bytes(offset, limit.min(MAX)),
            SliceRequest::Lines(skipped, limit) => self.lines(skipped, limit),
        }
    }

    /// Reads up to `limit` bytes from `offset`, in whole characters.
    fn bytes(&self, mut offset: u64, limit: usize) -> Result<NotedText> {
        // Show at least one character. The extra byte detects the end of the file.
        let limit = limit.max(CHARACTER);
        let mut bytes = self.read(offset, limit.saturating_add(1))?;
        let is_end = bytes.len() <= limit;
        bytes.truncate(limit);
        let mut notes = Vec::new();
        let within = bytes.iter().take(CHARACTER).take_while(|byte| **byte & 0xc0 == 0x80).count();
        if offset > 0 && within > 0 && within < CHARACTER {
            bytes.drain(..within);
            offset += within as u64;
            notes.push(format!("begins with the next whole character, at byte {offset}"));
        }
        if !is_end {
            bytes.truncate(whole_characters(&bytes));
        }
        let end = offset + bytes.len() as u64;
        if bytes.is_empty() && self.size()? == 0 {
            // An empty file needs no note.
        } else if bytes.is_empty() {
            notes.push(format!("nothing at byte {offset}: {} has {} B", self.name, self.size()?));
        } else if !is_end {
            notes.push(format!("{}; continue with unit=bytes, offset={end}", self.omission(end)?));
        }
        Ok(self.slice_with_notes(&bytes, notes))
    }

    /// Reads up to `limit` lines after the first `skipped` lines.
    fn lines(&self, skipped: u64, limit: u64) -> Result<NotedText> {
        let (mut at, mut left) = (0, skipped);
        while left > 0 {
            let chunk = self.read(at, CHUNK)?;
            if chunk.is_empty() {
                // The last line may have no end.
                let last = self.read(at.saturating_sub(1), 1)?;
                let open = u64::from(at > 0 && last != b"\n");
                return Ok(NotedText::only_note(format!(
                    "[nothing at line {skipped}: {} has {}]",
                    self.name,
                    count(skipped - left + open, "line")
                )));
            }
            let mut ends = memchr::memchr_iter(b'\n', &chunk);
            let used = match ends.nth(usize::try_from(left - 1).unwrap_or(usize::MAX)) {
                Some(end) => {
                    left = 0;
                    end + 1
                }
                None => {
                    left -= memchr::memchr_iter(b'\n', &chunk).count() as u64;
                    chunk.len()
                }
            };
            at += used as u64;
            if at > SKIPPED_MAX {
                return Ok(NotedText::only_note(format!(
                    "[line {skipped} of {} is too far from the start of the file; use unit=bytes]",
                    self.name
                )));
            }
        }
        let mut bytes = self.read(at, DEFAULT + 1)?;
        let is_end = bytes.len() <= DEFAULT;
        bytes.truncate(DEFAULT);
        let wanted = usize::try_from(limit.max(1) - 1)
            .ok()
            .and_then(|nth| memchr::memchr_iter(b'\n', &bytes).nth(nth));
        let end = match wanted {
            Some(end) => end + 1,
            None if is_end => bytes.len(),
            None => memchr::memrchr(b'\n', &bytes)
                .map_or_else(|| whole_characters(&bytes), |end| end + 1),
        };
        let is_all = is_end && end == bytes.len();
        bytes.truncate(end);
        let mut notes = Vec::new();
        if bytes.is_empty() && skipped > 0 {
            notes.push(format!("nothing at line {skipped}: {} ends before it", self.name));
        } else if !is_all {
            let next = skipped + memchr::memchr_iter(b'\n', &bytes).count() as u64;
            let from = at + end as u64;
            let hint = match bytes.ends_with(b"\n") {
                true => format!("continue with offset={next}"),
                false => {
                    format!("line {next} does not fit; continue with unit=bytes, offset={from}")
                }
            };
            notes.push(format!("{}; {hint}", self.omission(from)?));
        }
        Ok(self.slice_with_notes(&bytes, notes))
    }

    fn omission(&self, from: u64) -> Result<String> {
        let size = self.size()?;
        let (left, last) = (size.saturating_sub(from), size.saturating_sub(1));
        Ok(format!("{left} B omitted: bytes {from}-{last} of {}", self.name))
    }

    fn slice_with_notes(&self, bytes: &[u8], mut notes: Vec<String>) -> NotedText {
        let text = String::from_utf8_lossy(bytes);
        if matches!(text, std::borrow::Cow::Owned(_)) {
            notes.push(format!("{} is not valid UTF-8; U+FFFD replaces invalid bytes", self.name));
        }
        NotedText { text: text.into_owned(), note: joined_note(&notes) }
    }

    fn read(&self, offset: u64, size: usize) -> Result<Vec<u8>> {
        self.tree.read(self.fh, offset, size, <[u8]>::to_vec)
    }

    fn size(&self) -> Result<u64> {
        self.tree.size(self.fh)
    }
}

pub(super) fn joined_note(notes: &[String]) -> Option<String> {
    (!notes.is_empty()).then(|| format!("[... {} ...]", notes.join("; ")))
}

/// Returns the length of `bytes` without an incomplete UTF-8 character at the end.
fn whole_characters(bytes: &[u8]) -> usize {
    let tail = bytes.last_chunk::<4>().map_or(bytes, |tail| tail.as_slice());
    let start = bytes.len() - tail.len();
    match std::str::from_utf8(tail) {
        Err(error) if error.error_len().is_none() => start + error.valid_up_to(),
        // The tail may begin inside a character.
        Err(_) => (1..=tail.len())
            .find_map(|skip| match std::str::from_utf8(tail.get(skip..)?) {
                Ok(_) => Some(bytes.len()),
                Err(error) if error.error_len().is_none() => {
                    Some(start + skip + error.valid_up_to())
                }
                Err(_) => None,
            })
            .unwrap_or(bytes.len()),
        Ok(_) => bytes.len(),
    }
}

/// Makes a client's text safe to repeat in a message, and shortens a long one.
pub(super) fn echo(text: &str) -> String {
    let mut shown = printable(text.as_bytes());
    if shown.len() > ECHO_MAX {
        shown.truncate(shown.floor_char_boundary(ECHO_MAX));
        shown.push('…');
    }
    shown
}

pub(super) fn error_message(path: &str, error: &Error) -> String {
    let shown = if path.is_empty() { "''".to_owned() } else { echo(path) };
    let (text, hint) = match error {
        _ if error.is_not_a_file()
            && !matches!(error, Error::IsADirectory | Error::NotADirectory) =>
        {
            (Error::NotFound.to_string(), "; paths begin at the root of the tree; try list_dir")
        }
        Error::InvalidName => (Error::NotFound.to_string(), "; a path cannot contain NUL"),
        Error::IsADirectory => (error.to_string(), "; try list_dir"),
        Error::NotADirectory => (error.to_string(), "; try read_file"),
        error => (error.to_string(), ""),
    };
    format!("{shown}: {text}{hint}")
}

const SCHEME: &str = "swarm:///";
/// ASCII characters that are percent-encoded in URIs.
const ESCAPED: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'`')
    .add(b'{')
    .add(b'}')
    .add(b'[')
    .add(b'\\')
    .add(b']')
    .add(b'^')
    .add(b'|');
const ROOT_FILES: [(&str, &str); 4] = [
    ("README.md", "how to read this tree"),
    ("summary", "the swarm on one screen"),
    ("evidence.txt", "why workers failed"),
    ("index.json", "every worker, one entry each"),
];
const RESOURCES_PAGE: usize = 200;

fn uri_of(path: &str) -> String {
    format!("{SCHEME}{}", utf8_percent_encode(path, ESCAPED))
}

fn resource(path: &str, description: impl Into<String>) -> Resource {
    Resource::new(uri_of(path), printable(path.as_bytes()))
        .with_description(description)
        .with_mime_type(mime_type(path))
}

fn mime_type(path: &str) -> &'static str {
    if path.ends_with(".json") { "application/json" } else { "text/plain" }
}

/// Lists the files of the root and each worker's summary. A cursor is the number of workers listed
/// so far.
pub(super) fn list_resources(
    tree: &Tree,
    cursor: Option<&str>,
) -> Result<ListResourcesResult, ErrorData> {
    let skip: usize = match cursor {
        None => 0,
        Some(cursor) => cursor.parse().map_err(|_| {
            ErrorData::invalid_params("invalid cursor; list again without it", None)
        })?,
    };
    let workers = tree.with_path(b"workers", Symlinks::Follow, |place| place.leaf().list_folder());
    let workers = workers
        .map_err(|error| ErrorData::internal_error(error_message("workers", &error), None))?;
    let mut resources = Vec::new();
    if cursor.is_none() {
        resources.extend(ROOT_FILES.iter().map(|(path, description)| resource(path, *description)));
    }
    let folders = workers.iter().filter(|item| item.kind == NodeKind::Folder);
    let mut names =
        folders.filter_map(|item| std::str::from_utf8(item.name.as_bytes()).ok()).skip(skip);
    for name in names.by_ref().take(RESOURCES_PAGE) {
        resources.push(resource(
            &format!("workers/{name}/summary"),
            "a worker on one screen, its claims checked",
        ));
    }
    let mut listed = ListResourcesResult::with_all_items(resources);
    listed.next_cursor = names.next().map(|_| (skip + RESOURCES_PAGE).to_string());
    Ok(listed)
}

pub(super) fn resource_template() -> ResourceTemplate {
    ResourceTemplate::new(format!("{SCHEME}{{+path}}"), "file").with_description(
        "any file of the tree by its path, also by query paths such as search/<words> and \
         evidence.4k.txt",
    )
}

pub(super) fn read_resource(tree: &Tree, uri: &str) -> Result<ReadResourceResult, ErrorData> {
    let Some(path) = uri.strip_prefix(SCHEME) else {
        return Err(ErrorData::resource_not_found(
            format!("cannot read this URI: it must begin with {SCHEME}"),
            None,
        ));
    };
    let path: Vec<u8> = percent_decode_str(path).collect();
    let path_text = String::from_utf8_lossy(&path).into_owned();
    let slice =
        OpenFile::at_path(tree, &path).and_then(|file| file.slice(SliceRequest::Bytes(0, MAX)));
    let slice = slice
        .map_err(|error| ErrorData::resource_not_found(error_message(&path_text, &error), None))?;
    let contents = slice
        .blocks()
        .map(|text| ResourceContents::text(text, uri).with_mime_type(mime_type(&path_text)))
        .collect();
    Ok(ReadResourceResult::new(contents))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_not_cut() {
        for (bytes, whole) in [("abc", 3), ("aü", 3), ("", 0), ("日本", 6)] {
            assert_eq!(whole_characters(bytes.as_bytes()), whole, "{bytes}");
        }
        assert_eq!(whole_characters(&"日本".as_bytes()[..5]), 3);
        assert_eq!(whole_characters(&"日本".as_bytes()[..4]), 3);
        assert_eq!(whole_characters(&"\u{1f600}\u{1f600}".as_bytes()[..7]), 4);
        assert_eq!(whole_characters(b"abc\xff\xff\xff\xff"), 7);
    }
}
