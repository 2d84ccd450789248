//! Entries as JSON: an array with one object per line, written as they come.
//!
//! Control characters are escaped even where JSON does not require it, so that no name can control
//! a terminal.

use std::io::{self, Write};

use serde::Serialize;
use serde::ser::{SerializeSeq, Serializer as _};
use serde_json::Serializer;
use serde_json::ser::Formatter;

use super::entry::{EntryDetails, TreeEntry};
use super::format;
use crate::name::is_unprintable;
use crate::text::json::hex;

/// Description of the objects for the help of each command that prints them.
macro_rules! fields {
    () => {
        "--json prints an array with one object per line: path (from the root of the tree, with \
         links in the middle resolved), name, kind (file, folder or link), size (bytes), mode \
         (octal), uid, gid, mtime, ctime (UTC), and the target of a link. If a path, name or \
         target is not UTF-8, it is approximate, and path_bytes, name_bytes or target_bytes has \
         the exact bytes in hexadecimal."
    };
}
pub(super) use fields;

/// One entry. A name that is not UTF-8 appears twice: as approximate text and in hexadecimal.
#[derive(Debug, Serialize)]
pub(super) struct Object {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_bytes: Option<String>,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    name_bytes: Option<String>,
    kind: &'static str,
    #[serde(flatten)]
    attributes: Option<Attributes>,
}

#[derive(Debug, Serialize)]
struct Attributes {
    size: u64,
    mode: String,
    uid: u32,
    gid: u32,
    mtime: String,
    ctime: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target_bytes: Option<String>,
}

impl Object {
    pub(super) fn new(entry: &TreeEntry) -> Object {
        let ((path, path_bytes), (name, name_bytes)) = (text(&entry.path), text(entry.name()));
        let attributes = entry.details.as_ref().map(Attributes::new);
        Object { path, path_bytes, name, name_bytes, kind: entry.kind.as_str(), attributes }
    }
}

impl Attributes {
    fn new(details: &EntryDetails) -> Attributes {
        let attr = &details.attr;
        let (target, target_bytes) = details.target.as_deref().map(text).unzip();
        Attributes {
            size: attr.size,
            mode: format!("{:04o}", attr.mode),
            uid: attr.uid,
            gid: attr.gid,
            mtime: format::utc_shortest(attr.mtime),
            ctime: format::utc_shortest(attr.ctime),
            target,
            target_bytes: target_bytes.flatten(),
        }
    }
}

/// Returns bytes as text, and in hexadecimal if the text is not exact.
fn text(bytes: &[u8]) -> (String, Option<String>) {
    (String::from_utf8_lossy(bytes).into_owned(), hex(bytes))
}

/// Writes an array. `fill` receives a function that adds an element.
pub(crate) fn array<W: Write, T: Serialize>(
    out: &mut W,
    fill: impl FnOnce(&mut dyn FnMut(&T) -> io::Result<()>) -> io::Result<()>,
) -> io::Result<()> {
    let mut serializer = Serializer::with_formatter(&mut *out, LinePerElement);
    let mut array = serializer.serialize_seq(None)?;
    fill(&mut |element| Ok(array.serialize_element(element)?))?;
    array.end()?;
    out.write_all(b"\n")
}

/// Formatter that puts each element of an array on its own line, so that `grep` finds whole ones.
struct LinePerElement;

impl Formatter for LinePerElement {
    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        out.write_all(if first { b"\n" } else { b",\n" })
    }

    fn end_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b"\n]")
    }

    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        out: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        for part in fragment.split_inclusive(is_unprintable) {
            out.write_all(part.trim_end_matches(is_unprintable).as_bytes())?;
            for unit in part.matches(is_unprintable).flat_map(str::encode_utf16) {
                write!(out, "\\u{unit:04x}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn array_escapes_control_characters_and_round_trips() {
        let words = ["plain", "a\x1b[31m\n\"\\\u{7f}\u{9b}2J\u{202e}\u{feff}ü", "", "\u{1f600}"];
        let mut out = Vec::new();
        array(&mut out, |add| words.iter().try_for_each(|word| add(&(*word).to_owned()))).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(!text.contains(|c| c != '\n' && is_unprintable(c)), "{text:?}");
        assert_eq!(serde_json::from_str::<Vec<String>>(&text).unwrap(), words);
        assert_eq!(text.lines().count(), words.len() + 2);
    }
}
