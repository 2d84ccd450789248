//! Names and paths as bytes, validated once on entry.
//!
//! A raw name from the kernel, the command line or a trace becomes a [`Name`] or a [`RelPath`] here
//! and nowhere else; lower layers take no raw names. Names are bytes. They become UTF-8 only in
//! JSON and on a terminal, through [`Name::display`] or [`to_file_name`]. This module does not
//! depend on workers, views or the disk.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::unicode::is_invisible;

/// Longest name in a lookup, in bytes. Names on disk have at most 255; query names may be longer.
pub const NAME_MAX: usize = 2_000;

/// Longest file name made from a string in a trace, in bytes.
const MADE_NAME_MAX: usize = 200;
/// Number of hash digits after the `~` at the end of a shortened name.
const HASH_DIGITS: usize = 16;

/// One component of a path: not empty, not `.` or `..`, without `/` and NUL, at most [`NAME_MAX`]
/// bytes.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Arc<[u8]>);

impl Name {
    /// Validates `raw`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`] or [`Error::NameTooLong`].
    pub fn new(raw: impl AsRef<[u8]>) -> Result<Name> {
        let raw = raw.as_ref();
        check(raw)?;
        Ok(Name(raw.into()))
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn as_os_str(&self) -> &OsStr {
        OsStr::from_bytes(&self.0)
    }

    pub fn to_text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }

    /// Returns the name for a log, a terminal or a generated file. Different names have different
    /// texts.
    pub fn display(&self) -> String {
        escaped(&self.0, is_like_an_escape)
    }
}

fn check(raw: &[u8]) -> Result<()> {
    if raw.len() > NAME_MAX {
        return Err(Error::NameTooLong);
    }
    if raw.is_empty() || raw == b"." || raw == b".." || memchr::memchr2(b'/', 0, raw).is_some() {
        return Err(Error::InvalidName);
    }
    Ok(())
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Name({})", self.display())
    }
}

/// A path beneath a root: zero or more [`Name`]s. The empty path is the root itself.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct RelPath(Arc<[u8]>);

impl RelPath {
    pub fn root() -> RelPath {
        RelPath::default()
    }

    /// Splits `raw` at `/` and validates every component. `..`, `//` and a leading `/` are invalid.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`] or [`Error::NameTooLong`].
    pub fn parse(raw: impl AsRef<[u8]>) -> Result<RelPath> {
        let raw = raw.as_ref();
        if raw.is_empty() {
            return Ok(RelPath::root());
        }
        raw.split(|b| *b == b'/').try_for_each(check)?;
        Ok(RelPath(raw.into()))
    }

    /// Returns a path that the program itself spells, which must be valid.
    pub fn constant(text: &str) -> RelPath {
        debug_assert!(RelPath::parse(text).is_ok(), "{text:?} is not a path");
        RelPath(text.as_bytes().into())
    }

    pub fn join(&self, name: &Name) -> RelPath {
        self.join_path(&RelPath(name.0.clone()))
    }

    pub fn join_path(&self, other: &RelPath) -> RelPath {
        match (self.is_root(), other.is_root()) {
            (true, _) => other.clone(),
            (_, true) => self.clone(),
            _ => RelPath([&self.0, &b"/"[..], &other.0].concat().into()),
        }
    }

    /// Returns true if this path equals `dir` or is below it.
    pub fn is_within(&self, dir: &RelPath) -> bool {
        let rest = self.0.strip_prefix(&*dir.0);
        rest.is_some_and(|rest| dir.is_root() || rest.is_empty() || rest.starts_with(b"/"))
    }

    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the bytes, components separated by `/`; empty for the root.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the path in the form that system calls take; `.` for the root.
    pub fn as_os_str(&self) -> &OsStr {
        if self.is_root() { OsStr::new(".") } else { OsStr::from_bytes(&self.0) }
    }

    pub fn names(&self) -> impl Iterator<Item = Name> + '_ {
        self.0.split(|b| *b == b'/').filter(|part| !part.is_empty()).map(|part| Name(part.into()))
    }

    /// Returns the last component, `None` for the root.
    pub fn file_name(&self) -> Option<Name> {
        self.names().last()
    }

    /// Returns the parent directory; the root's parent is the root.
    pub fn parent(&self) -> RelPath {
        let parent = memchr::memrchr(b'/', &self.0).and_then(|end| self.0.get(..end));
        parent.map_or_else(RelPath::root, |parent| RelPath(parent.into()))
    }

    pub fn depth(&self) -> usize {
        if self.is_root() { 0 } else { memchr::memchr_iter(b'/', &self.0).count() + 1 }
    }

    pub fn to_text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }

    /// Returns the path for a log, a terminal or a generated file. Different paths have different
    /// texts.
    pub fn display(&self) -> String {
        escaped(&self.0, is_like_an_escape)
    }
}

impl From<Name> for RelPath {
    fn from(name: Name) -> RelPath {
        RelPath(name.0)
    }
}

impl fmt::Debug for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RelPath({})", self.display())
    }
}

/// Escapes `bytes` for a terminal, a log or one line of a generated file. Control and invisible
/// characters and invalid UTF-8 become `\u{..}` and `\x..`. So no name can move a cursor, break a
/// line, reverse one or hide text.
pub fn printable(bytes: &[u8]) -> String {
    escaped(bytes, |_| false)
}

pub fn printable_path(path: &Path) -> String {
    printable(path.as_os_str().as_encoded_bytes())
}

/// Returns true if `text`, which begins with a backslash, looks like an escape sequence of this
/// module.
fn is_like_an_escape(text: &str) -> bool {
    text.starts_with("\\u{") || text.starts_with("\\x")
}

/// Escapes unprintable characters and invalid UTF-8. Also escapes a backslash if `is_escape`
/// returns true for the text that begins with it.
fn escaped(bytes: &[u8], is_escape: fn(&str) -> bool) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for (at, c) in chunk.valid().char_indices() {
            let is_escape = || c == '\\' && chunk.valid().get(at..).is_some_and(is_escape);
            if is_unprintable(c) || is_escape() {
                out.extend(c.escape_unicode());
            } else {
                out.push(c);
            }
        }
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
    out
}

/// Returns true if `c` is a control character (C0, C1, DEL), a line or paragraph separator, or
/// invisible.
pub fn is_unprintable(c: char) -> bool {
    breaks_a_line(c) || is_invisible(c)
}

/// Returns true if `c` is a control character (C0, C1, DEL), or a line or paragraph separator.
pub fn breaks_a_line(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}')
}

/// Makes a file name from a string in a trace, such as a run id or the name of a tool. The string
/// is hostile input.
///
/// `/`, `%`, control and invisible characters, a leading `.` and every name in `reserved` are
/// written as `%XX`. A result longer than 200 bytes is cut and ends in `~` and a hash of the whole
/// string. If a string itself ends like that, its `~` is written as `%7E`. Different strings get
/// different names.
pub fn to_file_name(text: &str, reserved: &[&str]) -> Name {
    let mut out = String::with_capacity(text.len());
    for (i, c) in text.chars().enumerate() {
        if c == '/'
            || c == '%'
            || is_unprintable(c)
            || (i == 0 && (c == '.' || reserved.contains(&text)))
        {
            let mut buffer = [0; 4];
            for byte in c.encode_utf8(&mut buffer).bytes() {
                out.push_str(&format!("%{byte:02X}"));
            }
        } else {
            out.push(c);
        }
    }
    if out.is_empty() {
        // No other string results in a bare `%`.
        out.push('%');
    }
    if let Some(tilde) = hash_suffix(&out) {
        out.replace_range(tilde..=tilde, "%7E");
    }
    if out.len() > MADE_NAME_MAX {
        let hash = blake3::hash(text.as_bytes()).to_hex();
        out.truncate(out.floor_char_boundary(MADE_NAME_MAX - 1 - HASH_DIGITS));
        out.push('~');
        out.extend(hash.chars().take(HASH_DIGITS));
    }
    Name(out.into_bytes().into())
}

/// Returns the position of the `~` if `name` ends like a shortened name.
fn hash_suffix(name: &str) -> Option<usize> {
    let (tilde, digits) = (name.rfind('~')?, name.rsplit('~').next()?);
    let is_hash = digits.len() == HASH_DIGITS
        && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    is_hash.then_some(tilde)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn refuses_what_is_not_one_component() {
        for bad in ["", ".", "..", "a/b", "/", "a\0b"] {
            assert!(matches!(Name::new(bad), Err(Error::InvalidName)), "{bad:?}");
        }
        assert!(matches!(Name::new([b'a'; NAME_MAX + 1]), Err(Error::NameTooLong)));
        for good in [&b"a..b.txt"[..], b"...", b"\xff\xfe", b"-rf", b" ", b"\n"] {
            assert_eq!(Name::new(good).unwrap().as_bytes(), good);
        }
    }

    #[test]
    fn paths_have_only_valid_parts() {
        for bad in ["/a", "a//b", "a/", "../a", "a/../b", "./a", "a\0"] {
            assert!(RelPath::parse(bad).is_err(), "{bad:?}");
        }
        let path = RelPath::parse("a/b").unwrap();
        assert_eq!(path.join(&Name::new("c").unwrap()).as_bytes(), b"a/b/c");
        assert_eq!(path.depth(), 2);
        assert_eq!(RelPath::root().join_path(&path), path);
        assert_eq!(path.file_name().unwrap().as_bytes(), b"b");
        assert_eq!(path.parent().as_bytes(), b"a");
        assert_eq!(path.parent().parent(), RelPath::root());
    }

    #[test]
    fn a_name_may_be_as_long_as_the_longest() {
        assert!(Name::new([b'a'; NAME_MAX]).is_ok());
    }

    #[test]
    fn a_path_consists_of_its_components() {
        for (path, parts) in [("", vec![]), ("a", vec!["a"]), ("a/b c/d", vec!["a", "b c", "d"])] {
            let path = RelPath::parse(path).unwrap();
            let parts: Vec<Name> = parts.into_iter().map(|part| Name::new(part).unwrap()).collect();
            assert_eq!(path.names().collect::<Vec<_>>(), parts);
            assert_eq!(path.depth(), parts.len());
            assert_eq!(path.file_name().as_ref(), parts.last());
            assert_eq!(path.is_root(), parts.is_empty());
            assert_eq!(parts.iter().fold(RelPath::root(), |path, part| path.join(part)), path);
            assert_eq!(path.join_path(&RelPath::root()), path);
            assert_eq!(RelPath::root().join_path(&path), path);
        }
        assert_eq!(RelPath::from(Name::new("a").unwrap()).as_bytes(), b"a");
        assert_eq!(RelPath::root().as_os_str(), ".");
        assert_eq!(RelPath::parse("a/b").unwrap().as_os_str(), "a/b");
        assert_eq!(Name::new("a").unwrap().as_os_str(), "a");
    }

    #[test]
    fn names_and_paths_have_a_text_and_a_printable_form() {
        let (name, path) = (Name::new(b"b\n\xff").unwrap(), RelPath::parse(b"a/b\n\xff").unwrap());
        assert_eq!(
            (name.to_text(), path.to_text()),
            ("b\n\u{fffd}".into(), "a/b\n\u{fffd}".into())
        );
        assert_eq!(
            (name.display(), path.display()),
            (r"b\u{a}\xff".into(), r"a/b\u{a}\xff".into())
        );
        assert_eq!(format!("{name:?} {path:?}"), r"Name(b\u{a}\xff) RelPath(a/b\u{a}\xff)");
    }

    #[test]
    fn printable_leaves_no_control_character() {
        assert_eq!(printable(b"a\x1b[31m\n\xffb"), "a\\u{1b}[31m\\u{a}\\xffb");
        assert_eq!(printable("\u{202e}gnp\u{200b}".as_bytes()), "\\u{202e}gnp\\u{200b}");
    }

    /// Promise: Two different names are never displayed alike.
    #[test]
    fn different_names_are_never_displayed_alike() {
        let names = [
            "a\u{200b}",
            "a",
            r"a\u{200b}",
            r"a\u{5c}u{200b}",
            r"a\\u{200b}",
            "a\u{e0041}",
            r"a\xff",
            r"a\n",
            r"a\",
        ];
        let mut seen = std::collections::HashSet::from([Name::new(b"a\xff").unwrap().display()]);
        for name in names {
            assert!(seen.insert(Name::new(name).unwrap().display()), "{name:?}: {seen:?}");
        }
        assert_eq!(Name::new(r"a\n").unwrap().display(), r"a\n");
    }

    #[test]
    fn made_names_are_valid_short_and_different() {
        let long = "x".repeat(1_500);
        let inputs = [
            "",
            "a/b",
            "a%2Fb",
            "..",
            ".",
            ".git",
            "\u{0}",
            "%00",
            "latest",
            "%6Catest",
            "\u{202e}",
            "run",
            "run\u{200b}",
            "run\u{e0041}",
            &long,
            &format!("{long}y"),
        ];
        let mut seen = std::collections::HashSet::new();
        for input in inputs {
            let name = to_file_name(input, &["latest"]);
            assert!(Name::new(name.as_bytes()).is_ok(), "{input:?}");
            assert!(name.as_bytes().len() <= MADE_NAME_MAX);
            assert!(!name.as_bytes().starts_with(b".") && name.as_bytes() != b"latest");
            assert!(seen.insert(name), "{input:?} is not unique");
        }
    }

    /// Texts that resemble the parts of made names.
    fn texts() -> impl Strategy<Value = String> {
        let long = (0..3_usize, 170..210_usize)
            .prop_map(|(kind, length)| ["x", "é", "/"][kind].repeat(length));
        let end = proptest::string::string_regex("[%/~.a-f0-9\u{202e}é]{0,4}(~[0-9a-f]{15,17})?")
            .unwrap();
        let start = prop_oneof![Just(String::new()), Just("latest".to_owned()), long];
        (start, end).prop_map(|(start, end)| start + &end)
    }

    proptest! {
        #![proptest_config(crate::scale::cases(256))]

        #[test]
        fn different_texts_have_different_names(texts in proptest::collection::vec(texts(), 1..8)) {
            let (mut seen, mut texts) = (std::collections::HashMap::new(), texts);
            for _ in 0..3 {
                let names: Vec<Name> = texts.iter().map(|text| to_file_name(text, &["latest"])).collect();
                for (text, name) in texts.iter().zip(&names) {
                    prop_assert!(Name::new(name.as_bytes()).is_ok() && name.as_bytes().len() <= MADE_NAME_MAX);
                    let other = seen.insert(name.clone(), text.clone());
                    prop_assert!(other.as_ref().is_none_or(|other| other == text), "{name:?}: {text:?} and {other:?}");
                }
                // The name of one value, or a part of it, may be another value.
                texts.extend(names.iter().map(|name| name.to_text().into_owned()));
                texts.extend(names.iter().map(|name| name.to_text().chars().skip(1).collect()));
            }
        }
    }

    #[test]
    fn made_names_are_escaped_only_where_necessary() {
        let longest = "x".repeat(MADE_NAME_MAX);
        for (text, made) in [
            ("", "%"),
            ("a b.c", "a b.c"),
            ("..", "%2E."),
            ("a/b%", "a%2Fb%25"),
            ("a\n", "a%0A"),
            ("a\u{202e}", "a%E2%80%AE"),
            ("a\u{200b}", "a%E2%80%8B"),
            ("latest", "%6Catest"),
            ("later", "later"),
            (&longest, &longest),
            ("run~0123456789abcdef", "run%7E0123456789abcdef"),
            ("run~0123456789abcde", "run~0123456789abcde"),
            ("run~0123456789ABCDEF", "run~0123456789ABCDEF"),
        ] {
            assert_eq!(to_file_name(text, &["latest"]).to_text(), made);
        }
        let cut = to_file_name(&format!("{longest}y"), &[]);
        assert_eq!(cut.as_bytes().len(), MADE_NAME_MAX);
        assert!(
            cut.to_text().starts_with(&format!("{}~", "x".repeat(MADE_NAME_MAX - 17))),
            "{cut:?}"
        );
    }
}
