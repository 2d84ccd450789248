//! Worker text made fit for a frame: no terminal escape, no control or invisible character, and no line that looks like
//! one of ours.

use std::borrow::Cow;
use std::sync::LazyLock;

use unicode_normalization::UnicodeNormalization;
use vte::{Parser, Perform};

use super::text::count;
use crate::name::breaks_a_line;
use crate::unicode::{Sight, Writing, is_dash, is_invisible, look};

/// Number of bytes that are parsed at a time.
const PARSED_AT_ONCE: usize = 4 << 10;

/// Text that was cleaned.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Cleaned<'a> {
    /// The text.
    pub(super) text: Cow<'a, str>,
    /// True if all of it was UTF-8; the rest became U+FFFD.
    pub(super) is_utf8: bool,
    /// Number of invisible characters that were removed or escaped, but those of ordinary writing.
    pub(super) hidden: usize,
}

/// What becomes of invisible characters that are no part of ordinary writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hidden {
    /// They are removed.
    Removed,
    /// They are escaped as `\u{200b}`: where texts are compared they may be the only difference.
    Escaped,
}

/// Returns `raw` without terminal escapes, control characters and invisible characters. Tabs and line ends stay, a
/// carriage return only before a line feed.
pub(super) fn cleaned(raw: &[u8]) -> Cleaned<'_> {
    cleaned_with(raw, Hidden::Removed)
}

/// Does what [`cleaned`] does, and treats invisible characters as `hidden` says.
pub(super) fn cleaned_with(raw: &[u8], hidden: Hidden) -> Cleaned<'_> {
    // Without a way out in the middle, which lets many bytes be looked at in one step.
    let plain = raw.iter().fold(true, |plain, b| plain & matches!(b, b' '..=b'~' | b'\n' | b'\t'));
    if let Some(text) = std::str::from_utf8(raw).ok().filter(|_| plain) {
        return Cleaned { text: Cow::Borrowed(text), is_utf8: true, hidden: 0 };
    }
    let (body, end) = match raw {
        [body @ .., b'\r', b'\n'] => (body, "\r\n"),
        [body @ .., b'\n'] => (body, "\n"),
        body => (body, ""),
    };
    let mut keep =
        Keep { text: String::with_capacity(raw.len()), writing: Writing::default(), mode: hidden, hidden: 0 };
    let mut parser = Parser::new();
    // Behind every byte that is not UTF-8 the parser looks at all that it was given again.
    for part in body.chunks(PARSED_AT_ONCE) {
        parser.advance(&mut keep, part);
    }
    keep.text.push_str(end);
    Cleaned { text: Cow::Owned(keep.text), is_utf8: std::str::from_utf8(body).is_ok(), hidden: keep.hidden }
}

/// Returns what is said of invisible characters that were removed.
pub(super) fn removed_note(hidden: usize) -> String {
    format!("{} removed", count(hidden as u64, "invisible character"))
}

struct Keep {
    text: String,
    writing: Writing,
    mode: Hidden,
    hidden: usize,
}

impl Perform for Keep {
    fn print(&mut self, c: char) {
        match self.writing.take(c) {
            Sight::Seen if breaks_a_line(c) => {}
            Sight::Seen => self.text.push(c),
            Sight::Ordinary => {}
            Sight::Hidden => {
                self.hidden += 1;
                if self.mode == Hidden::Escaped {
                    self.text.extend(c.escape_unicode());
                }
            }
        }
    }

    fn execute(&mut self, byte: u8) {
        if matches!(byte, b'\n' | b'\t') {
            self.text.push(char::from(byte));
        }
    }
}

/// Beginnings of our own markers. What looks so in worker text gets a backslash after its bracket.
const MARKERS: [&str; 2] = ["[EVIDENCE:", "[TOOL_OUTPUT:"];
/// Beginnings of lines of ours.
const BEGINNINGS: [&str; 3] = ["[...", "[FAILED]", "[DOUBTFUL]"];
/// Beginnings of lines of ours behind dashes.
const BEHIND_DASHES: [&str; 2] = ["Evidence for", "End Evidence"];
/// So many characters beside white space are looked at for a beginning.
const BEGINNING_MAX: usize = 20;

/// Returns `text` with a backslash in all that could pass for ours: every marker, every line that begins like an omission,
/// a failure or the frame, and every line that ends like a tag.
pub(super) fn escape_markers(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    for line in text.split_inclusive('\n') {
        let (indent, line) = line.split_at(line.len() - line.trim_start().len());
        out.push_str(indent);
        let (mut rest, tag) = line.split_at(tag_at(line).unwrap_or(line.len()));
        // Looked at once: what is left behind each marker is looked at again.
        let is_ascii = line.is_ascii();
        let mut next = begins_like_ours(line).then_some(0).or_else(|| marker_at(rest, is_ascii));
        while let Some(at) = next {
            // The backslash stands behind a bracket, and before a dash.
            let bracket = rest.get(at..).and_then(|from| from.chars().next()).filter(|c| is_bracket(*c));
            let (before, behind) = rest.split_at(at + bracket.map_or(0, char::len_utf8));
            out.push_str(before);
            out.push('\\');
            rest = behind;
            next = marker_at(rest, is_ascii);
        }
        out.push_str(rest);
        if !tag.is_empty() {
            out.push('\\');
            out.push_str(tag);
        }
    }
    out
}

/// Returns true if `line`, which begins with no white space, looks like a line of ours at its beginning.
fn begins_like_ours(line: &str) -> bool {
    static KNOWN: LazyLock<Looks> = LazyLock::new(|| Looks::new(BEGINNINGS.iter().chain(&MARKERS)));
    static BEHIND: LazyLock<Looks> = LazyLock::new(|| Looks::new(&BEHIND_DASHES));
    let Some(first) = line.chars().next() else { return false };
    // One dash that is longer than ASCII's looks like several.
    let dashes: usize = line.chars().take_while(|c| is_dash(*c)).map(|c| if c.is_ascii() { 1 } else { 2 }).sum();
    match dashes {
        0 => is_bracket(first) && KNOWN.begin(line),
        1 => false,
        _ => BEHIND.begin(line.trim_start_matches(is_dash)),
    }
}

/// Returns the byte at which the next marker in `text` begins, or what looks like one. `is_ascii` may be true only if all
/// of `text` is.
fn marker_at(text: &str, is_ascii: bool) -> Option<usize> {
    static KNOWN: LazyLock<Looks> = LazyLock::new(|| Looks::new(&MARKERS));
    let is_marker = |at: usize| KNOWN.begin(text.get(at..).unwrap_or_default());
    if is_ascii {
        return memchr::memchr_iter(b'[', text.as_bytes()).find(|at| is_marker(*at));
    }
    text.char_indices().find(|(at, c)| is_bracket(*c) && is_marker(*at)).map(|(at, _)| at)
}

/// Returns true if `c` is an opening square bracket of any width.
fn is_bracket(c: char) -> bool {
    c == '[' || !c.is_ascii() && !c.is_alphanumeric() && std::iter::once(c).nfkc().eq(['['])
}

/// Beginnings of texts that other texts may look like.
struct Looks {
    /// As ASCII is compared: most texts are.
    ascii: Vec<String>,
    /// As all other text is compared.
    all: Vec<String>,
}

impl Looks {
    fn new<'a>(known: impl IntoIterator<Item = &'a &'a str> + Clone) -> Looks {
        Looks {
            ascii: known.clone().into_iter().map(|known| folded(known)).collect(),
            all: known.into_iter().map(|known| one_letter(&look(known))).collect(),
        }
    }

    /// Returns true if `text` looks as if it began with one of them, whatever white space is in it.
    fn begin(&self, text: &str) -> bool {
        let beginning: String = text.chars().filter(|c| !c.is_whitespace()).take(BEGINNING_MAX).collect();
        let (known, look) = match beginning.is_ascii() {
            true => (&self.ascii, folded(&beginning)),
            false => (&self.all, one_letter(&look(&beginning))),
        };
        known.iter().any(|known| look.starts_with(known))
    }
}

/// Returns ASCII text as it is compared.
fn folded(text: &str) -> String {
    let shown = text.chars().filter(|c| !c.is_whitespace());
    one_letter(&shown.map(|c| c.to_ascii_lowercase()).collect::<String>())
}

/// Returns `text`, which is in lower case, with one letter for those that differ little in many fonts.
fn one_letter(text: &str) -> String {
    text.replace(['l', '1', '|'], "i").replace('0', "o")
}

/// Returns the byte at which what looks like a tag begins, if `line` ends in that. One behind a backslash is none.
fn tag_at(line: &str) -> Option<usize> {
    let mut chars = line.trim_end().char_indices().rev();
    for _ in 0..TAG_LEN - 1 {
        chars.next().filter(|(_, c)| c.is_alphanumeric())?;
    }
    let (at, sign) = chars.next()?;
    let is_sign = sign == '#' || !sign.is_ascii() && std::iter::once(sign).nfkc().eq(['#']);
    (is_sign && chars.next().is_none_or(|(_, before)| before != '\\')).then_some(at)
}

/// `text` as a part of one line of ours: cleaned, on one line, markers defused, at most `max` bytes, cut at a
/// character with `…` at the cut.
pub(super) fn one_line(text: &str, max: usize) -> String {
    let text = cleaned(text.as_bytes()).text;
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut line = escape_markers(&words.join(" "));
    if line.len() > max {
        line.truncate(line.floor_char_boundary(max.saturating_sub('…'.len_utf8())));
        line.push('…');
        line.truncate(line.floor_char_boundary(max));
    }
    line
}

/// Length of a tag in bytes: a `#` and 48 bits in hexadecimal.
pub(super) const TAG_LEN: usize = 13;

/// Returns a tag that does not occur in `content`, in whatever case and with invisible characters in it or not: at the end
/// of a line of ours it tells it from every line of a worker's.
///
/// The tag is a hash of the content, so a worker that writes its own tag changes it. The next number is tried where the
/// content holds the tag all the same, for which a worker has to try 2^48 contents for each number.
pub(super) fn unused_tag(content: &str) -> String {
    let content: Cow<'_, str> = match content.is_ascii() {
        true => Cow::Borrowed(content),
        false => content.chars().filter(|c| !is_invisible(*c)).collect::<String>().into(),
    };
    let tag = |number: u32| {
        let mut hash = blake3::Hasher::new();
        hash.update(content.as_bytes());
        hash.update(&number.to_le_bytes());
        format!("#{}", hash.finalize().to_hex().get(..TAG_LEN - 1).unwrap_or_default())
    };
    let is_there = |tag: &String| {
        memchr::memchr_iter(b'#', content.as_bytes()).any(|at| {
            content.as_bytes().get(at..at + tag.len()).is_some_and(|one| one.eq_ignore_ascii_case(tag.as_bytes()))
        })
    };
    (0..=u32::MAX).map(tag).find(|tag| !is_there(tag)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(raw: &[u8]) -> String {
        cleaned(raw).text.into_owned()
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
    fn what_is_not_utf8_is_looked_at_once() {
        let begun = std::time::Instant::now();
        let raw = [0xff; 1 << 20];
        let Cleaned { text, is_utf8, .. } = cleaned(&raw);
        assert!(text.chars().all(|c| c == '\u{fffd}') && text.chars().count() == 1 << 20 && !is_utf8);
        // A look at all that follows for each byte takes half a minute; the bound only guards against that.
        assert!(begun.elapsed().as_secs() < 12, "{:?}", begun.elapsed());
    }

    #[test]
    fn markers_in_a_long_line_are_found_in_one_pass() {
        let begun = std::time::Instant::now();
        let markers = 400_000;
        let line = "[EVIDENCE:".repeat(markers) + "é";
        assert_eq!(escape_markers(&line).len(), line.len() + markers);
        // A look at the rest of the line for each marker takes half a minute; the bound only guards against that.
        assert!(begun.elapsed().as_secs() < 12, "{:?}", begun.elapsed());
    }

    #[test]
    fn characters_and_escapes_are_whole_wherever_they_stand() {
        for before in 4_090..4_100 {
            let raw = ["x".repeat(before).as_bytes(), "漢\u{1b}[1;31m\u{1b}]0;t\u{7}é😀".as_bytes(), b"\xf0\x9f\x98!"]
                .concat();
            assert_eq!(text(&raw), "x".repeat(before) + "漢é😀\u{fffd}!", "{before}");
        }
    }

    #[test]
    fn invisible_characters_go_and_are_counted_but_for_those_of_ordinary_writing() {
        let cleaned = cleaned("\u{feff}a\u{200b}b\u{e0041}\u{202e} ❤\u{fe0f}\n".as_bytes());
        assert_eq!((&*cleaned.text, cleaned.hidden), ("ab ❤\n", 3));
        let escaped = cleaned_with("a\u{200b} ❤\u{fe0f}".as_bytes(), Hidden::Escaped);
        assert_eq!((&*escaped.text, escaped.hidden), ("a\\u{200b} ❤", 1));
    }

    #[test]
    fn what_looks_like_a_line_of_ours_gets_a_backslash() {
        for line in [
            "[... 5 B omitted ...]",
            "  [... 5 B omitted ...]",
            "\t[…5 B omitted ...]",
            "［... x",
            "[failed] x",
            "\u{a0}[ FAILED ] x",
            "[FАILED] x",
            "[𝐅𝐀𝐈𝐋𝐄𝐃] x",
            "[FAlLED] x",
            "[DOUBTFUL] x",
            "--- End Evidence ---",
            "---  end\tevidence",
            "——— End Evidence ———",
            "— Evidence for Worker 1",
            "--- Evidence for Worker 1 (w)",
            "x [ＥＶＩＤＥＮＣＥ:run_id=1",
            "x ［tool_output:",
            "漢 [EVIDENCE:run_id=1",
            "［EVIDENCE:run_id=1",
            "x: #0123456789ab",
            "x: #0123456789AB  ",
            "x #０１２３４５６７８９ab",
            "x ＃0123456789ab",
            "x: #0123456789аb",
            "#0123456789ab",
        ] {
            let safe = escape_markers(line);
            assert!(safe.contains('\\') && safe.len() == line.len() + 1, "{line:?}: {safe:?}");
            assert_eq!(escape_markers(&safe), safe, "once is enough");
            let [first, last] =
                [0, 1].map(|at| escape_markers(&format!("{line}\n").repeat(2)).lines().nth(at).unwrap().to_owned());
            assert!(first == safe && last == safe, "{line:?}");
        }
        for line in [
            "a [failed] x",
            "- Evidence for it",
            "[ok]",
            "#0123456789abc",
            "# 123456789012",
            "漢字",
            "-",
            "",
            "  ",
            "e\u{301}",
        ] {
            assert_eq!(escape_markers(line), line);
        }
    }

    #[test]
    fn a_tag_is_in_no_content_in_any_case() {
        let first = unused_tag("x");
        assert_eq!((first.len(), first.bytes().filter(u8::is_ascii_hexdigit).count()), (TAG_LEN, 12));
        for content in [first.clone(), first.to_uppercase(), format!("é{first}")] {
            assert!(!content.to_lowercase().contains(&unused_tag(&content)));
        }
        // Only what is shown counts.
        assert_eq!(unused_tag("é\u{200b}"), unused_tag("é"));
    }

    #[test]
    fn nothing_reads_as_our_frame() {
        assert_eq!(escape_markers("x [EVIDENCE:run_id=1] y"), "x [\\EVIDENCE:run_id=1] y");
        assert_eq!(escape_markers("[evidence:[TOOL_OUTPUT:["), "[\\evidence:[\\TOOL_OUTPUT:[");
        assert_eq!(escape_markers("[... 5 B omitted ...]\n[... x"), "[\\... 5 B omitted ...]\n[\\... x");
        assert_eq!(escape_markers("a [... b"), "a [... b");
    }

    #[test]
    fn one_line_is_one_line_and_short() {
        assert_eq!(one_line("a\n\tb\r\nc", 100), "a b c");
        for max in 0..20 {
            assert!(one_line("ééééééééééé", max).len() <= max);
        }
    }
}
