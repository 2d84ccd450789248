//! A part of a file, as exact as text can be, and what is said of the rest.

use crate::error::{Error, Result};
use crate::name::printable;
use crate::tree::{Fh, Symlinks, Tree};

/// The most that an answer shows of a file where nothing is said, in bytes.
pub(super) const DEFAULT: usize = 16_000;
/// The most that can be asked for, in bytes.
pub(super) const MAX: usize = 1 << 20;
/// The most lines that are shown where nothing is said.
pub(super) const LINES: u64 = 2_000;
/// The longest character, in bytes.
const CHARACTER: usize = 4;
/// The most that is repeated of a path, in bytes.
const SHOWN: usize = 200;
/// How much is read at once, in bytes.
const PIECE: usize = 256 << 10;
/// So much of a file tells whether it is text, in bytes.
const HEAD: usize = 8 << 10;
/// So much is read over to come to a line, in bytes.
const SKIPPED_MAX: u64 = 256 << 20;

/// What is wanted of a file.
#[derive(Debug, Clone, Copy)]
pub(super) enum Wanted {
    /// So many bytes from an offset.
    Bytes(u64, usize),
    /// So many lines behind others.
    Lines(u64, u64),
}

/// A part of a file.
#[derive(Debug)]
pub(super) struct Slice {
    /// The text, exactly as it is in the file where that is UTF-8.
    pub(super) text: String,
    /// What is to be said of it: that it is not all, or not text.
    pub(super) note: Option<String>,
}

/// A file that is open; closed when this is dropped.
pub(super) struct Open<'t> {
    tree: &'t Tree,
    fh: Fh,
    /// What is said of it.
    name: String,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.tree.release(self.fh);
    }
}

impl<'t> Open<'t> {
    /// Opens what is at `path`.
    pub(super) fn at(tree: &'t Tree, path: &[u8]) -> Result<Open<'t>> {
        let opened = tree.with_path(path, Symlinks::Follow, |place| Ok((place.leaf().open()?, place.path())));
        opened.map(|(opened, path)| Open::of(tree, opened.fh, printable(&path)))
    }

    /// What was opened as `fh`.
    pub(super) fn of(tree: &'t Tree, fh: Fh, name: String) -> Open<'t> {
        Open { tree, fh, name }
    }

    /// All of it, up to `most` bytes; none if it is larger.
    pub(super) fn all(&self, most: usize) -> Result<Option<Vec<u8>>> {
        let bytes = self.read(0, most + 1)?;
        Ok((bytes.len() <= most).then_some(bytes))
    }

    /// What is wanted of it.
    pub(super) fn slice(&self, wanted: Wanted) -> Result<Slice> {
        let head = self.read(0, HEAD)?;
        if memchr::memchr(0, &head).is_some() {
            let begins: String = head.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
            let note = format!("[{}: binary, {} B, begins with {begins}: not shown]", self.name, self.size()?);
            return Ok(Slice { text: String::new(), note: Some(note) });
        }
        match wanted {
            Wanted::Bytes(offset, limit) => self.bytes(offset, limit.min(MAX)),
            Wanted::Lines(skipped, limit) => self.lines(skipped, limit),
        }
    }

    fn bytes(&self, mut offset: u64, limit: usize) -> Result<Slice> {
        // A character more, so that one at the border is seen whole; and at least one is shown.
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
            // An empty file is no part of one.
        } else if bytes.is_empty() {
            notes.push(format!("nothing at byte {offset}: {} has {} B", self.name, self.size()?));
        } else if !is_end {
            notes.push(format!("{}; go on with unit=bytes, offset={end}", self.omitted(end)?));
        }
        Ok(self.told(&bytes, notes))
    }

    fn lines(&self, skipped: u64, limit: u64) -> Result<Slice> {
        let (mut at, mut left) = (0, skipped);
        while left > 0 {
            let piece = self.read(at, PIECE)?;
            if piece.is_empty() {
                let note = format!("nothing at line {skipped}: {} has {} lines", self.name, skipped - left);
                return Ok(Slice { text: String::new(), note: Some(format!("[{note}]")) });
            }
            let mut ends = memchr::memchr_iter(b'\n', &piece);
            let used = match ends.nth(usize::try_from(left - 1).unwrap_or(usize::MAX)) {
                Some(end) => {
                    left = 0;
                    end + 1
                }
                None => {
                    left -= memchr::memchr_iter(b'\n', &piece).count() as u64;
                    piece.len()
                }
            };
            at += used as u64;
            if at > SKIPPED_MAX {
                let note = format!("[line {skipped} of {} is too far from its beginning: use unit=bytes]", self.name);
                return Ok(Slice { text: String::new(), note: Some(note) });
            }
        }
        let mut bytes = self.read(at, DEFAULT + 1)?;
        let is_end = bytes.len() <= DEFAULT;
        bytes.truncate(DEFAULT);
        let wanted = usize::try_from(limit.max(1) - 1).ok().and_then(|nth| memchr::memchr_iter(b'\n', &bytes).nth(nth));
        let end = match wanted {
            Some(end) => end + 1,
            None if is_end => bytes.len(),
            None => memchr::memrchr(b'\n', &bytes).map_or_else(|| whole_characters(&bytes), |end| end + 1),
        };
        let is_all = is_end && end == bytes.len();
        bytes.truncate(end);
        let mut notes = Vec::new();
        if bytes.is_empty() && skipped > 0 {
            notes.push(format!("nothing at line {skipped}: {} ends before it", self.name));
        } else if !is_all {
            let next = skipped + memchr::memchr_iter(b'\n', &bytes).count() as u64;
            let from = at + end as u64;
            let go_on = match bytes.ends_with(b"\n") {
                true => format!("go on with offset={next}"),
                false => format!("line {next} is longer than fits: go on with unit=bytes, offset={from}"),
            };
            notes.push(format!("{}; {go_on}", self.omitted(from)?));
        }
        Ok(self.told(&bytes, notes))
    }

    /// What is said of the bytes that are not shown, which begin at `from`.
    fn omitted(&self, from: u64) -> Result<String> {
        let size = self.size()?;
        let (left, last) = (size.saturating_sub(from), size.saturating_sub(1));
        Ok(format!("{left} B omitted: bytes {from}-{last} of {}", self.name))
    }

    fn told(&self, bytes: &[u8], mut notes: Vec<String>) -> Slice {
        let text = String::from_utf8_lossy(bytes);
        if matches!(text, std::borrow::Cow::Owned(_)) {
            notes.push(format!("{} is not all UTF-8: U+FFFD stands for what is not", self.name));
        }
        let note = (!notes.is_empty()).then(|| format!("[... {} ...]", notes.join("; ")));
        Slice { text: text.into_owned(), note }
    }

    fn read(&self, offset: u64, size: usize) -> Result<Vec<u8>> {
        self.tree.read(self.fh, offset, size, <[u8]>::to_vec)
    }

    /// How large it is in bytes: it may grow.
    fn size(&self) -> Result<u64> {
        self.tree.size(self.fh)
    }
}

/// How much of `bytes` is whole characters, as far as it is UTF-8 at its end.
fn whole_characters(bytes: &[u8]) -> usize {
    let start = bytes.len().saturating_sub(4);
    let tail = bytes.get(start..).unwrap_or_default();
    match std::str::from_utf8(tail) {
        Err(error) if error.error_len().is_none() => start + error.valid_up_to(),
        // The tail may begin within a character.
        Err(_) => (1..=tail.len())
            .find_map(|skip| match std::str::from_utf8(tail.get(skip..)?) {
                Ok(_) => Some(bytes.len()),
                Err(error) if error.error_len().is_none() => Some(start + skip + error.valid_up_to()),
                Err(_) => None,
            })
            .unwrap_or(bytes.len()),
        Ok(_) => bytes.len(),
    }
}

/// A text of a client's, as it is repeated: safe to show, and not all of a long one.
pub(super) fn cut(text: &str) -> String {
    let mut shown = printable(text.as_bytes());
    if shown.len() > SHOWN {
        shown.truncate(shown.floor_char_boundary(SHOWN));
        shown.push('…');
    }
    shown
}

/// What is said of an error at a path, and what helps.
pub(super) fn sentence(path: &str, error: &Error) -> String {
    let shown = if path.is_empty() { "''".to_owned() } else { cut(path) };
    let (text, cure) = match error {
        _ if error.is_not_a_file() && !matches!(error, Error::IsADirectory | Error::NotADirectory) => {
            (Error::NotFound.to_string(), ": paths begin at the root of the tree; list_dir shows what there is")
        }
        Error::InvalidName => (Error::NotFound.to_string(), ": a path holds no NUL"),
        Error::IsADirectory => (error.to_string(), ": list_dir lists it"),
        Error::NotADirectory => (error.to_string(), ": read_file reads it"),
        error => (error.to_string(), ""),
    };
    format!("{shown}: {text}{cure}")
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
