//! Worker text made fit for a frame: no terminal escape, no control character, nothing that reads as our own frame.

use std::borrow::Cow;

use vte::{Parser, Perform};

use crate::name::is_unprintable;

/// `raw` without terminal escapes and control characters, and whether all of it is UTF-8; what is not becomes U+FFFD.
/// Tabs and line ends stay, a carriage return only before a line feed.
pub(super) fn cleaned(raw: &[u8]) -> (Cow<'_, str>, bool) {
    // Without a way out in the middle, which lets many bytes be looked at in one step.
    let plain = raw.iter().fold(true, |plain, b| plain & matches!(b, b' '..=b'~' | b'\n' | b'\t'));
    if let Some(text) = std::str::from_utf8(raw).ok().filter(|_| plain) {
        return (Cow::Borrowed(text), true);
    }
    let (body, end) = match raw {
        [body @ .., b'\r', b'\n'] => (body, "\r\n"),
        [body @ .., b'\n'] => (body, "\n"),
        body => (body, ""),
    };
    let mut text = String::with_capacity(raw.len());
    Parser::new().advance(&mut Keep(&mut text), body);
    text.push_str(end);
    (Cow::Owned(text), std::str::from_utf8(body).is_ok())
}

struct Keep<'a>(&'a mut String);

impl Perform for Keep<'_> {
    fn print(&mut self, c: char) {
        if !is_unprintable(c) {
            self.0.push(c);
        }
    }

    fn execute(&mut self, byte: u8) {
        if matches!(byte, b'\n' | b'\t') {
            self.0.push(char::from(byte));
        }
    }
}

/// Beginnings of our own markers, and of the lines that say what was omitted. What reads so in worker text gets a
/// backslash after its bracket.
const MARKERS: [&str; 2] = ["[EVIDENCE:", "[TOOL_OUTPUT:"];
const OMISSION: &str = "[...";

/// `text` with every marker in it, and every line that begins like an omission, marked as not ours.
pub(super) fn defuse(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    for line in text.split_inclusive('\n') {
        let mut rest = line;
        if let Some(after) = rest.strip_prefix(OMISSION) {
            out.push_str("[\\...");
            rest = after;
        }
        while let Some(at) = memchr::memchr(b'[', rest.as_bytes()) {
            let (before, from) = rest.split_at(at);
            out.push_str(before);
            out.push('[');
            let is_marker = |marker: &&str| {
                from.as_bytes().get(..marker.len()).is_some_and(|start| start.eq_ignore_ascii_case(marker.as_bytes()))
            };
            if MARKERS.iter().any(is_marker) {
                out.push('\\');
            }
            rest = from.get(1..).unwrap_or_default();
        }
        out.push_str(rest);
    }
    out
}

/// `text` as a part of one line of ours: cleaned, on one line, markers defused, at most `max` bytes, cut at a
/// character with `…` at the cut.
pub(super) fn one_line(text: &str, max: usize) -> String {
    let (text, _) = cleaned(text.as_bytes());
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut line = defuse(&words.join(" "));
    if line.len() > max {
        line.truncate(line.floor_char_boundary(max.saturating_sub('…'.len_utf8())));
        line.push('…');
        line.truncate(line.floor_char_boundary(max));
    }
    line
}

/// How long a tag is, in bytes.
pub(super) const TAG: usize = 7;

/// A tag that does not occur in `content`: at the end of a line of ours it tells it from every line of a worker's.
pub(super) fn tag_of(content: &str) -> String {
    let mut number = 0_u32;
    loop {
        let mut hash = blake3::Hasher::new();
        hash.update(content.as_bytes());
        hash.update(&number.to_le_bytes());
        let hex = hash.finalize().to_hex();
        let tag = format!("#{}", hex.get(..TAG - 1).unwrap_or_default());
        if !content.contains(&tag) {
            return tag;
        }
        number += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(raw: &[u8]) -> String {
        cleaned(raw).0.into_owned()
    }

    #[test]
    fn escapes_and_controls_go_and_text_stays() {
        assert_eq!(text(b"\x1b[1;31mred\x1b[0m\tx\n"), "red\tx\n");
        assert_eq!(text(b"a\x07\x00b\x1b]0;title\x07c"), "abc");
        assert_eq!(text("caf\u{e9} \u{202e}x\u{9b}y".as_bytes()), "caf\u{e9} xy");
        assert_eq!(text(b"line\x01\r\n"), "line\r\n");
        assert_eq!(text(b"a\xffb"), "a\u{fffd}b");
    }

    #[test]
    fn nothing_reads_as_our_frame() {
        assert_eq!(defuse("x [EVIDENCE:run_id=1] y"), "x [\\EVIDENCE:run_id=1] y");
        assert_eq!(defuse("[evidence:[TOOL_OUTPUT:["), "[\\evidence:[\\TOOL_OUTPUT:[");
        assert_eq!(defuse("[... 5 B omitted ...]\n[... x"), "[\\... 5 B omitted ...]\n[\\... x");
        assert_eq!(defuse("a [... b"), "a [... b");
    }

    #[test]
    fn one_line_is_one_line_and_short() {
        assert_eq!(one_line("a\n\tb\r\nc", 100), "a b c");
        for max in 0..20 {
            assert!(one_line("ééééééééééé", max).len() <= max);
        }
    }
}
