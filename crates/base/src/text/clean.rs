//! Sanitizes worker text for generated files: removes terminal escapes, control characters and
//! invisible characters, and escapes lines that look like generated ones. Also cuts a long
//! line to the part around a position.

use std::borrow::Cow;
use std::fmt::Write;
use std::sync::LazyLock;

use unicode_normalization::UnicodeNormalization;
use vte::{Parser, Perform};

use super::count;
use crate::name::breaks_a_line;
use crate::split::Split;
use crate::unicode::{Visibility, WritingScanner, confusable_form, is_dash, is_invisible};

/// Number of bytes per call of the escape parser.
const PARSE_CHUNK: usize = 4 << 10;

#[derive(Debug, PartialEq, Eq)]
pub struct Cleaned<'a> {
    pub text: Cow<'a, str>,
    /// True if the input was UTF-8; invalid bytes became U+FFFD.
    pub is_utf8: bool,
    /// Number of removed or escaped invisible characters. Ordinary writing contains some, which do
    /// not count.
    pub hidden: usize,
}

/// Treatment of invisible characters that are not part of ordinary writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InvisibleChars {
    Remove,
    /// Escape the characters as `\u{200b}`, since they may be the only difference between two
    /// texts.
    Escape,
}

/// Returns `raw` without terminal escapes, control characters and invisible characters.
///
/// Tabs and line feeds stay; a carriage return stays only before the final line feed.
pub fn cleaned(raw: &[u8]) -> Cleaned<'_> {
    cleaned_with(raw, InvisibleChars::Remove)
}

/// Returns `raw` without terminal escapes and control characters, with invisible characters treated
/// according to `mode`.
pub fn cleaned_with(raw: &[u8], mode: InvisibleChars) -> Cleaned<'_> {
    // A fold without an early exit can be vectorized.
    let plain = raw.iter().fold(true, |plain, b| plain & matches!(b, b' '..=b'~' | b'\n' | b'\t'));
    if let Some(text) = std::str::from_utf8(raw).ok().filter(|_| plain) {
        return Cleaned { text: Cow::Borrowed(text), is_utf8: true, hidden: 0 };
    }
    let (body, end) = match raw {
        [body @ .., b'\r', b'\n'] => (body, "\r\n"),
        [body @ .., b'\n'] => (body, "\n"),
        body => (body, ""),
    };
    let mut collector = TextCollector {
        text: String::with_capacity(raw.len()),
        writing: WritingScanner::default(),
        mode,
        hidden: 0,
    };
    let mut parser = Parser::new();
    // After each invalid byte the parser scans all of its input again, so the input is kept short.
    for part in body.chunks(PARSE_CHUNK) {
        parser.advance(&mut collector, part);
    }
    collector.text.push_str(end);
    Cleaned {
        text: Cow::Owned(collector.text),
        is_utf8: std::str::from_utf8(body).is_ok(),
        hidden: collector.hidden,
    }
}

pub fn removed_note(hidden: usize) -> String {
    format!("{} removed", count(hidden as u64, "invisible character"))
}

struct TextCollector {
    text: String,
    writing: WritingScanner,
    mode: InvisibleChars,
    hidden: usize,
}

impl Perform for TextCollector {
    fn print(&mut self, c: char) {
        match self.writing.classify(c) {
            Visibility::Visible if breaks_a_line(c) => {}
            Visibility::Visible => self.text.push(c),
            Visibility::Ordinary => {}
            Visibility::Hidden => {
                self.hidden += 1;
                if self.mode == InvisibleChars::Escape {
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

const MARKERS: [&str; 2] = ["[EVIDENCE:", "[TOOL_OUTPUT:"];
/// Prefixes of generated lines.
const LINE_PREFIXES: [&str; 4] = ["[...", "[FAILED]", "[SUSPECT]", "[DOUBTFUL]"];
/// Prefixes of generated lines after their dashes.
const AFTER_DASHES: [&str; 2] = ["Evidence for", "End Evidence"];
/// Prefixes of lines of a conversation, which name who speaks.
const SPEAKERS: [&str; 6] =
    ["user:", "assistant:", "system:", "thinks:", "user thinks:", "assistant thinks:"];
/// Number of characters other than white space that are compared with a prefix.
const PREFIX_MAX: usize = 20;

/// Returns `text` with a backslash in everything that could pass for generated text.
///
/// This covers every evidence marker, every line that starts like an omission, a failure or the
/// frame, and every line that ends like a tag. Look-alike characters count as the originals.
pub fn escape_markers(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    for line in text.split_inclusive('\n') {
        let (indent, line) = line.split_at_known(line.len() - line.trim_start().len());
        out.push_str(indent);
        let (mut rest, tag) = line.split_at_known(tag_at(line).unwrap_or(line.len()));
        // Computed once per line, since each marker restarts the search.
        let is_ascii = line.is_ascii();
        let mut next =
            starts_like_generated(line).then_some(0).or_else(|| marker_at(rest, is_ascii));
        while let Some(at) = next {
            // The backslash goes after a bracket, and before a dash.
            let bracket =
                rest.get(at..).and_then(|from| from.chars().next()).filter(|c| is_bracket(*c));
            let (before, after) = rest.split_at_known(at + bracket.map_or(0, char::len_utf8));
            out.push_str(before);
            out.push('\\');
            rest = after;
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

/// Returns true if `line` starts like a generated line. It must not start with white space.
fn starts_like_generated(line: &str) -> bool {
    static KNOWN: LazyLock<LookAlikes> =
        LazyLock::new(|| LookAlikes::new(LINE_PREFIXES.iter().chain(&MARKERS)));
    static AFTER: LazyLock<LookAlikes> = LazyLock::new(|| LookAlikes::new(&AFTER_DASHES));
    let Some(first) = line.chars().next() else { return false };
    // A dash longer than the ASCII one looks like several.
    let dashes: usize =
        line.chars().take_while(|c| is_dash(*c)).map(|c| if c.is_ascii() { 1 } else { 2 }).sum();
    match dashes {
        0 => is_bracket(first) && KNOWN.matches_start(line),
        1 => false,
        _ => AFTER.matches_start(line.trim_start_matches(is_dash)),
    }
}

/// Returns the offset of the next marker in `text`, or of text that looks like one. `is_ascii` may
/// be true only if `text` is ASCII.
fn marker_at(text: &str, is_ascii: bool) -> Option<usize> {
    static KNOWN: LazyLock<LookAlikes> = LazyLock::new(|| LookAlikes::new(&MARKERS));
    let is_marker = |at: usize| text.get(at..).is_some_and(|from| KNOWN.matches_start(from));
    if is_ascii {
        return memchr::memchr_iter(b'[', text.as_bytes()).find(|at| is_marker(*at));
    }
    text.char_indices().find(|(at, c)| is_bracket(*c) && is_marker(*at)).map(|(at, _)| at)
}

/// Returns true if `c` is an opening square bracket of any width.
fn is_bracket(c: char) -> bool {
    c == '[' || !c.is_ascii() && !c.is_alphanumeric() && std::iter::once(c).nfkc().eq(['['])
}

/// Prefixes, folded so that look-alike text compares equal.
struct LookAlikes {
    /// Prefixes folded for ASCII text, the common case.
    ascii: Vec<String>,
    unicode: Vec<String>,
}

/// Returns true if a line of worker text could pass for the beginning of a message.
pub fn names_a_speaker(line: &str) -> bool {
    static LOOK_ALIKES: LazyLock<LookAlikes> = LazyLock::new(|| LookAlikes::new(&SPEAKERS));
    LOOK_ALIKES.matches_start(&cleaned(line.as_bytes()).text)
}

impl LookAlikes {
    fn new<'a>(prefixes: impl IntoIterator<Item = &'a &'a str> + Clone) -> LookAlikes {
        LookAlikes {
            ascii: prefixes.clone().into_iter().map(|prefix| fold_ascii(prefix)).collect(),
            unicode: prefixes
                .into_iter()
                .map(|prefix| fold_similar(&confusable_form(prefix)))
                .collect(),
        }
    }

    /// Returns true if `text` looks as if it starts with one of the prefixes, ignoring white space.
    fn matches_start(&self, text: &str) -> bool {
        let start: String = text.chars().filter(|c| !c.is_whitespace()).take(PREFIX_MAX).collect();
        let (prefixes, folded) = match start.is_ascii() {
            true => (&self.ascii, fold_ascii(&start)),
            false => (&self.unicode, fold_similar(&confusable_form(&start))),
        };
        prefixes.iter().any(|prefix| folded.starts_with(prefix))
    }
}

/// Folds ASCII text for comparison: no white space, lower case, similar letters merged.
fn fold_ascii(text: &str) -> String {
    let shown = text.chars().filter(|c| !c.is_whitespace());
    fold_similar(&shown.map(|c| c.to_ascii_lowercase()).collect::<String>())
}

/// Merges lower-case letters and digits that look similar in many fonts.
fn fold_similar(text: &str) -> String {
    text.replace(['l', '1', '|'], "i").replace('0', "o")
}

/// Returns the offset of a tag or look-alike at the end of `line`, unless a backslash precedes it.
fn tag_at(line: &str) -> Option<usize> {
    let mut chars = line.trim_end().char_indices().rev();
    for _ in 0..TAG_LEN - 1 {
        chars.next().filter(|(_, c)| c.is_alphanumeric())?;
    }
    let (at, sign) = chars.next()?;
    let is_sign = sign == '#' || !sign.is_ascii() && std::iter::once(sign).nfkc().eq(['#']);
    (is_sign && chars.next().is_none_or(|(_, before)| before != '\\')).then_some(at)
}

/// Sanitizes `text` for use within one generated line of at most `max` bytes.
///
/// White space is collapsed and markers are escaped. A longer text is cut at a character and ends
/// in `…`.
pub fn one_line(text: &str, max: usize) -> String {
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

/// Length of a tag, in bytes: a `#` and 48 bits in hexadecimal.
pub const TAG_LEN: usize = 13;

/// Returns a tag that does not occur in `content`, in any case or with invisible characters in
/// between.
///
/// At the end of a generated line the tag distinguishes it from every worker line. The tag is a
/// hash of the content, so a worker that writes its own tag changes it. If the content holds the
/// tag anyway, the next number is tried; for each number a worker has to try about 2^48 contents.
pub fn unused_tag(content: &str) -> String {
    let content: Cow<'_, str> = match content.is_ascii() {
        true => Cow::Borrowed(content),
        false => content.chars().filter(|c| !is_invisible(*c)).collect::<String>().into(),
    };
    let mut tags = (0..=u32::MAX).map(|number| {
        let mut hash = blake3::Hasher::new();
        hash.update(content.as_bytes());
        hash.update(&number.to_le_bytes());
        format!("#{:.1$}", hash.finalize().to_hex(), TAG_LEN - 1)
    });
    tags.find(|tag| !contains_tag(content.as_bytes(), tag)).unwrap_or_default()
}

fn contains_tag(content: &[u8], tag: &str) -> bool {
    memchr::memchr_iter(b'#', content).any(|at| {
        let part = content.get(at..at + tag.len());
        part.is_some_and(|part| part.eq_ignore_ascii_case(tag.as_bytes()))
    })
}

/// Text that is shown before the match of a long line, in bytes.
const BEFORE: usize = 100;

/// Sanitizes a line, with invisible characters treated according to `hidden`. A line longer than
/// `max` bytes is cut to the part around byte `place`, with markers for the omitted bytes. Also
/// returns the number of invisible characters in it.
pub fn clip(line: &[u8], place: usize, max: usize, hidden: InvisibleChars) -> (String, usize) {
    let clean = |part: &[u8]| {
        let part = cleaned_with(part, hidden);
        (escape_markers(&part.text), part.hidden)
    };
    if line.len() <= max {
        return clean(line);
    }
    let start = char_start(line, place.saturating_sub(BEFORE).min(line.len() - max));
    let end = char_start(line, start + max);
    let (mut text, hidden) = clean(line.split_at_known(end).0.split_at_known(start).1);
    if start > 0 {
        text.insert_str(0, &format!("[... {start} B ...]"));
    }
    if end < line.len() {
        let _ = write!(text, "[... {} B ...]", line.len() - end);
    }
    (text, hidden)
}

fn char_start(line: &[u8], at: usize) -> usize {
    let mut before = (at.saturating_sub(3)..=at).rev();
    before.find(|at| line.get(*at).is_none_or(|byte| byte & 0xc0 != 0x80)).unwrap_or(at)
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
    fn invalid_utf8_is_scanned_once() {
        let begun = std::time::Instant::now();
        let raw = [0xff; 1 << 20];
        let Cleaned { text, is_utf8, .. } = cleaned(&raw);
        assert!(
            text.chars().all(|c| c == '\u{fffd}') && text.chars().count() == 1 << 20 && !is_utf8
        );
        // A scan of the rest of the text for each byte takes half a minute; the bound only guards
        // against that.
        assert!(begun.elapsed().as_secs() < 12, "{:?}", begun.elapsed());
    }

    #[test]
    fn markers_in_a_long_line_are_found_in_one_pass() {
        let begun = std::time::Instant::now();
        let markers = 400_000;
        let line = "[EVIDENCE:".repeat(markers) + "é";
        assert_eq!(escape_markers(&line).len(), line.len() + markers);
        // A scan of the rest of the line for each marker takes half a minute; the bound only guards
        // against that.
        assert!(begun.elapsed().as_secs() < 12, "{:?}", begun.elapsed());
    }

    #[test]
    fn characters_and_escapes_are_whole_wherever_they_stand() {
        for before in 4_090..4_100 {
            let raw = [
                "x".repeat(before).as_bytes(),
                "漢\u{1b}[1;31m\u{1b}]0;t\u{7}é😀".as_bytes(),
                b"\xf0\x9f\x98!",
            ]
            .concat();
            assert_eq!(text(&raw), "x".repeat(before) + "漢é😀\u{fffd}!", "{before}");
        }
    }

    #[test]
    fn invisible_characters_go_and_are_counted_but_for_those_of_ordinary_writing() {
        let cleaned = cleaned("\u{feff}a\u{200b}b\u{e0041}\u{202e} ❤\u{fe0f}\n".as_bytes());
        assert_eq!((&*cleaned.text, cleaned.hidden), ("ab ❤\n", 3));
        let escaped = cleaned_with("a\u{200b} ❤\u{fe0f}".as_bytes(), InvisibleChars::Escape);
        assert_eq!((&*escaped.text, escaped.hidden), ("a\\u{200b} ❤", 1));
    }

    #[test]
    fn text_that_looks_like_a_generated_line_gets_a_backslash() {
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
            "[SUSPECT] x",
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
            let [first, last] = [0, 1].map(|at| {
                escape_markers(&format!("{line}\n").repeat(2)).lines().nth(at).unwrap().to_owned()
            });
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
        assert_eq!(
            (first.len(), first.bytes().filter(u8::is_ascii_hexdigit).count()),
            (TAG_LEN, 12)
        );
        for content in [first.clone(), first.to_uppercase(), format!("é{first}")] {
            assert!(!content.to_lowercase().contains(&unused_tag(&content)));
        }
        // Only the shown text counts.
        assert_eq!(unused_tag("é\u{200b}"), unused_tag("é"));
    }

    #[test]
    fn markers_and_omissions_are_escaped() {
        assert_eq!(escape_markers("x [EVIDENCE:run_id=1] y"), "x [\\EVIDENCE:run_id=1] y");
        assert_eq!(escape_markers("[evidence:[TOOL_OUTPUT:["), "[\\evidence:[\\TOOL_OUTPUT:[");
        assert_eq!(
            escape_markers("[... 5 B omitted ...]\n[... x"),
            "[\\... 5 B omitted ...]\n[\\... x"
        );
        assert_eq!(escape_markers("a [... b"), "a [... b");
    }

    #[test]
    fn one_line_is_one_line_and_short() {
        assert_eq!(one_line("a\n\tb\r\nc", 100), "a b c");
        for max in 0..20 {
            assert!(one_line("ééééééééééé", max).len() <= max);
        }
    }

    fn clip(line: &[u8], place: usize, max: usize) -> String {
        super::clip(line, place, max, InvisibleChars::Remove).0
    }

    #[test]
    fn long_lines_are_cut_around_the_match() {
        let line = format!("{}needle{}", "a".repeat(1_000), "é".repeat(1_000));
        let text = clip(line.as_bytes(), 1_000, 400);
        assert!(
            text.starts_with("[... 900 B ...]aaa")
                && text.contains("needle\u{e9}")
                && text.ends_with(" B ...]"),
            "{text}"
        );
        assert!(!text.contains('\u{fffd}'));
        assert_eq!(clip(b"short \x1b[31mred [EVIDENCE:x]", 0, 400), "short red [\\EVIDENCE:x]");
        // A match at the end of the line is shown with as much text as any other.
        let text = clip(&[&[b'a'; 1_000][..], b"needle"].concat(), 1_000, 400);
        assert!(text.starts_with("[... 606 B ...]") && text.ends_with("needle"), "{text}");
    }
}
