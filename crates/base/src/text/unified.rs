//! Diffs in git's format: unified diffs of two texts, exact to the byte, and diffs that are split
//! by file and shown on a terminal. Also git's names of objects, and binary patches.

use std::fmt::Write as _;
use std::io::Write;
use std::ops::Range;

use anstyle::{AnsiColor, Style};
use flate2::Compression;
use flate2::write::ZlibEncoder;
use sha1::{Digest, Sha1};
use similar::{Algorithm, DiffOp, capture_diff_slices, group_diff_ops};

use crate::name::{RelPath, printable};

const CONTEXT: usize = 3;
/// Maximum number of lines between the common beginning and end of two texts that are compared.
/// More are shown as replaced as a whole.
const LINES_MAX: usize = 50_000;
/// Line after a line without an end.
const NO_LINE_END: &str = "\\ No newline at end of file\n";

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hunk {
    /// The whole hunk with its header; ends in a line feed.
    pub text: String,
    pub added: usize,
    pub removed: usize,
}

/// Returns the hunks that turn `old` into `new`.
pub fn hunks(old: &str, new: &str) -> Vec<Hunk> {
    let (old, new) = (lines(old), lines(new));
    group_diff_ops(operations(&old, &new), CONTEXT)
        .iter()
        .map(|group| hunk(group, &old, &new))
        .collect()
}

/// Returns `old` with those hunks of [`hunks`] that are `taken`, by their numbers from 0.
pub fn take_hunks(old: &str, new: &str, taken: impl Fn(usize) -> bool) -> String {
    let (old, new) = (lines(old), lines(new));
    let groups = group_diff_ops(operations(&old, &new), CONTEXT);
    let mut out = String::new();
    let mut at = 0;
    for (number, group) in groups.iter().enumerate() {
        let is_taken = taken(number);
        for op in group {
            let (before, after) = (op.old_range(), op.new_range());
            out.extend(old.get(at..before.start).into_iter().flatten().copied());
            at = before.end;
            let shown = if is_taken { new.get(after) } else { old.get(before) };
            out.extend(shown.into_iter().flatten().copied());
        }
    }
    out.extend(old.get(at..).into_iter().flatten().copied());
    out
}

/// Returns the lines of a text with their ends, as git counts them.
fn lines(text: &str) -> Vec<&str> {
    text.split_inclusive('\n').collect()
}

fn operations(old: &[&str], new: &[&str]) -> Vec<DiffOp> {
    let begin = old.iter().zip(new).take_while(|(old, new)| old == new).count();
    let rest = old.len().min(new.len()) - begin;
    let end = old.iter().rev().zip(new.iter().rev()).take(rest);
    let end = end.take_while(|(old, new)| old == new).count();
    let (old_len, new_len) = (old.len() - begin - end, new.len() - begin - end);
    if old_len <= LINES_MAX && new_len <= LINES_MAX {
        return capture_diff_slices(Algorithm::Myers, old, new);
    }
    let replaced = DiffOp::Replace { old_index: begin, old_len, new_index: begin, new_len };
    let (old_end, new_end) = (old.len() - end, new.len() - end);
    let same = |old_index, new_index, len| DiffOp::Equal { old_index, new_index, len };
    let all = [same(0, 0, begin), replaced, same(old_end, new_end, end)];
    all.into_iter().filter(|op| !op.old_range().is_empty() || !op.new_range().is_empty()).collect()
}

fn hunk(group: &[DiffOp], old: &[&str], new: &[&str]) -> Hunk {
    let whole = |range: fn(&DiffOp) -> Range<usize>| {
        let start = group.first().map_or(0, |op| range(op).start);
        start..group.last().map_or(start, |op| range(op).end)
    };
    let mut hunk = Hunk {
        text: header(&whole(DiffOp::old_range), &whole(DiffOp::new_range)),
        ..Hunk::default()
    };
    for op in group {
        let is_same = matches!(op, DiffOp::Equal { .. });
        let removed = old.get(op.old_range()).filter(|_| !is_same).into_iter().flatten();
        for line in removed {
            push_line(&mut hunk.text, '-', line);
            hunk.removed += 1;
        }
        for line in new.get(op.new_range()).into_iter().flatten() {
            push_line(&mut hunk.text, if is_same { ' ' } else { '+' }, line);
            hunk.added += usize::from(!is_same);
        }
    }
    hunk
}

/// Returns the header of a hunk: `@@ -3,7 +3,9 @@`.
fn header(old: &Range<usize>, new: &Range<usize>) -> String {
    // An empty side names the line before it.
    let start = |range: &Range<usize>| range.start + usize::from(!range.is_empty());
    format!("@@ -{},{} +{},{} @@\n", start(old), old.len(), start(new), new.len())
}

fn push_line(out: &mut String, sign: char, line: &str) {
    out.push(sign);
    out.push_str(line);
    if !line.ends_with('\n') {
        out.push('\n');
        out.push_str(NO_LINE_END);
    }
}

/// Returns the hunk of `lines`, each of which begins with a sign. Its first line has the number
/// `old_start` in the old content, and `shift` more in the new one. Returns `None` if the lines
/// form no hunk.
pub fn hunk_of_lines(old_start: usize, shift: isize, lines: &[String]) -> Option<Hunk> {
    let (mut added, mut removed, mut same) = (0, 0, 0);
    let mut body = String::new();
    for line in lines {
        match line.chars().next().filter(|_| !line.contains('\n'))? {
            '+' => added += 1,
            '-' => removed += 1,
            ' ' => same += 1,
            '\\' if !body.is_empty() => {
                body.push_str(NO_LINE_END);
                continue;
            }
            _ => return None,
        }
        body.push_str(line);
        body.push('\n');
    }
    let begin = if same + removed == 0 { Some(old_start) } else { old_start.checked_sub(1) }?;
    let new_begin = begin.checked_add_signed(shift)?;
    // The number of the first line comes from the record. It is one above `begin`.
    begin.checked_add(lines.len())?.checked_add(1)?;
    new_begin.checked_add(lines.len())?.checked_add(1)?;
    let header = header(&(begin..begin + same + removed), &(new_begin..new_begin + same + added));
    (added + removed > 0).then(|| Hunk { text: header + &body, added, removed })
}

/// Returns `path` as git writes it in a diff, with `prefix`: quoted if it holds a quote, a
/// backslash, a control character or anything that is not ASCII.
pub fn quoted_path(prefix: &str, path: impl AsRef<[u8]>) -> String {
    let path = path.as_ref();
    let is_plain = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\';
    if let Some(text) = std::str::from_utf8(path).ok().filter(|text| text.bytes().all(is_plain)) {
        return format!("{prefix}{text}");
    }
    let mut out = format!("\"{prefix}");
    for &byte in path {
        match byte {
            b'"' | b'\\' => out.extend(['\\', char::from(byte)]),
            b'\n' => out.push_str("\\n"),
            b'\t' => out.push_str("\\t"),
            b'\r' => out.push_str("\\r"),
            _ if is_plain(byte) => out.push(char::from(byte)),
            // Writing into a string cannot fail.
            _ => drop(write!(out, "\\{byte:03o}")),
        }
    }
    out.push('"');
    out
}

/// Returns `path` as git writes it after `---` and `+++`. A tab ends a name with spaces.
pub fn header_path(prefix: &str, path: impl AsRef<[u8]>) -> String {
    let quoted = quoted_path(prefix, path);
    if quoted.contains(' ') && !quoted.starts_with('"') { quoted + "\t" } else { quoted }
}

const FILE: &[u8] = b"diff --git ";

/// The part of a diff that belongs to one file, or the text before the first file.
#[derive(Debug, PartialEq, Eq)]
pub struct Section<'a> {
    /// The file; `None` for the text before the first file, or if the name cannot be read.
    pub path: Option<RelPath>,
    pub text: &'a [u8],
}

pub fn split_diff(diff: &[u8]) -> Vec<Section<'_>> {
    let mut starts: Vec<usize> =
        memchr::memmem::find_iter(diff, FILE).filter(|at| is_line_start(diff, *at)).collect();
    starts.insert(0, 0);
    starts.dedup();
    let ends = starts.iter().skip(1).copied().chain([diff.len()]);
    let sections = starts.iter().zip(ends).filter_map(|(start, end)| {
        let text = diff.get(*start..end).filter(|text| !text.is_empty())?;
        Some(Section { path: section_path(text), text })
    });
    sections.collect()
}

fn is_line_start(text: &[u8], at: usize) -> bool {
    at.checked_sub(1).is_none_or(|before| text.get(before) == Some(&b'\n'))
}

/// Returns the path in the first line of a section: `diff --git a/PATH b/PATH`.
fn section_path(text: &[u8]) -> Option<RelPath> {
    let line = text.split(|byte| *byte == b'\n').next()?.strip_prefix(FILE)?;
    let path = match line.strip_prefix(b"\"a/") {
        Some(quoted) => unquote(quoted)?,
        None => {
            // Both names are equal, since no change is a renaming.
            let length = line.len().checked_sub(b"a/ b/".len())? / 2;
            line.strip_prefix(b"a/")?.get(..length)?.to_vec()
        }
    };
    RelPath::parse(path).ok()
}

/// Decodes a name up to its closing quote: `\n`, `\"`, `\303` and the like.
fn unquote(quoted: &[u8]) -> Option<Vec<u8>> {
    let (mut out, mut rest) = (Vec::new(), quoted.iter().copied());
    loop {
        match rest.next()? {
            b'"' => return Some(out),
            b'\\' => out.push(match rest.next()? {
                b'a' => 7,
                b'b' => 8,
                b't' => b'\t',
                b'n' => b'\n',
                b'v' => 11,
                b'f' => 12,
                b'r' => b'\r',
                digit @ b'0'..=b'3' => {
                    let (second, third) = (rest.next()?, rest.next()?);
                    let octal = [digit, second, third];
                    u8::from_str_radix(std::str::from_utf8(&octal).ok()?, 8).ok()?
                }
                other => other,
            }),
            byte => out.push(byte),
        }
    }
}

/// Returns the numbers of added and removed lines in the hunks of a section.
pub fn line_counts(section: &[u8]) -> (u64, u64) {
    let (mut added, mut removed) = (0, 0);
    let mut left = (0_u64, 0_u64);
    for line in section.split(|byte| *byte == b'\n') {
        if left == (0, 0) {
            left = hunk_counts(line).unwrap_or_default();
            continue;
        }
        match line.first() {
            Some(b'+') => {
                added += 1;
                left.1 = left.1.saturating_sub(1);
            }
            Some(b'-') => {
                removed += 1;
                left.0 = left.0.saturating_sub(1);
            }
            Some(b'\\') => {}
            _ => left = (left.0.saturating_sub(1), left.1.saturating_sub(1)),
        }
    }
    (added, removed)
}

/// Returns a diff for a terminal: without control characters, since a file may hold any, and with
/// colors if `has_colors`.
pub fn paint_diff(diff: &[u8], has_colors: bool) -> String {
    let mut out = String::with_capacity(diff.len());
    let mut left = (0, 0);
    for line in diff.split_inclusive(|byte| *byte == b'\n') {
        let (line, end) = match line.strip_suffix(b"\n") {
            Some(line) => (line, "\n"),
            None => (line, ""),
        };
        let style = style(line, &mut left).filter(|_| has_colors).unwrap_or_default();
        let parts: Vec<String> = line.split(|byte| *byte == b'\t').map(printable).collect();
        let _ = write!(out, "{style}{}{style:#}{end}", parts.join("\t"));
    }
    out
}

/// Returns the text of a comparison with colors for its hunks and for the names of the files above
/// them.
pub fn paint_comparison(text: &str) -> String {
    let mut left = (0, 0);
    let lines = text.split_inclusive('\n').map(|line| {
        let (line, end) = line.strip_suffix('\n').map_or((line, ""), |line| (line, "\n"));
        let is_in_hunk = left != (0, 0) || hunk_counts(line.as_bytes()).is_some();
        let is_head = line.starts_with("--- ") || line.starts_with("+++ ");
        let style = if is_in_hunk || is_head { style(line.as_bytes(), &mut left) } else { None };
        let style = style.unwrap_or_default();
        format!("{style}{line}{style:#}{end}")
    });
    lines.collect()
}

/// Returns the style of a line. `left` counts the old and new lines that remain in the hunk.
fn style(line: &[u8], left: &mut (u64, u64)) -> Option<Style> {
    if *left == (0, 0) {
        if let Some(counts) = hunk_counts(line) {
            *left = counts;
            return Some(AnsiColor::Cyan.on_default());
        }
        // The note on a missing last newline follows a hunk.
        return (!line.starts_with(b"\\")).then(|| Style::new().bold());
    }
    match line.first() {
        Some(b'+') => {
            left.1 = left.1.saturating_sub(1);
            Some(AnsiColor::Green.on_default())
        }
        Some(b'-') => {
            left.0 = left.0.saturating_sub(1);
            Some(AnsiColor::Red.on_default())
        }
        Some(b'\\') => None,
        _ => {
            *left = (left.0.saturating_sub(1), left.1.saturating_sub(1));
            None
        }
    }
}

/// Returns the numbers of old and new lines of a hunk: `@@ -1,3 +1,4 @@`.
fn hunk_counts(line: &[u8]) -> Option<(u64, u64)> {
    let text = std::str::from_utf8(line.strip_prefix(b"@@ -")?.split(|byte| *byte == b'@').next()?);
    let (old, new) = text.ok()?.trim_end().split_once(" +")?;
    let count = |range: &str| match range.split_once(',') {
        Some((_, count)) => count.parse().ok(),
        None => Some(1),
    };
    Some((count(old)?, count(new)?))
}

/// Number of bytes in a line of a binary patch.
const LINE_BYTES: usize = 52;
/// Number of bytes that the first letter of the alphabet stands for, up to the last one.
const UPPER_MAX: usize = 26;
/// The digits of base 85 in the order that git uses.
const GIT_DIGITS: &[u8; 85] =
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";
/// The digits of base 85 in the order of Z85.
const Z85_DIGITS: &[u8; 85] =
    b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";

pub fn blob_id(content: &[u8]) -> String {
    let mut hash = Sha1::new();
    hash.update(format!("blob {}\0", content.len()));
    hash.update(content);
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the lines of a binary patch that writes `new`. With `old`, the patch can be reversed.
pub fn binary_patch(old: Option<&[u8]>, new: &[u8]) -> String {
    let reverse = old.map(literal).unwrap_or_default();
    format!("GIT binary patch\n{}{reverse}", literal(new))
}

fn literal(content: &[u8]) -> String {
    let mut out = format!("literal {}\n", content.len());
    for line in deflated(content).chunks(LINE_BYTES) {
        out.push(length_digit(line.len()));
        let mut padded = line.to_vec();
        padded.resize(line.len().next_multiple_of(4), 0);
        out.extend(z85::encode(&padded).bytes().map(git_digit));
        out.push('\n');
    }
    out.push('\n');
    out
}

fn deflated(content: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    // Writing to memory cannot fail.
    let _ = encoder.write_all(content);
    encoder.finish().unwrap_or_default()
}

/// Returns the letter that states the number of bytes of a line: A to Z for 1 to 26, then a to z.
fn length_digit(bytes: usize) -> char {
    let (first, offset) = if bytes <= UPPER_MAX { (b'A', 1) } else { (b'a', UPPER_MAX + 1) };
    let offset = u8::try_from(bytes.saturating_sub(offset)).unwrap_or_default();
    char::from(first.saturating_add(offset))
}

fn git_digit(digit: u8) -> char {
    let value = Z85_DIGITS.iter().position(|other| *other == digit);
    value.and_then(|value| GIT_DIGITS.get(value)).copied().map_or('0', char::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(old: &str, new: &str) -> String {
        hunks(old, new).into_iter().map(|hunk| hunk.text).collect()
    }

    #[test]
    fn hunks_are_those_of_git() {
        assert_eq!(text("a\n", "a\n"), "");
        assert_eq!(text("", "a\nb\n"), "@@ -0,0 +1,2 @@\n+a\n+b\n");
        assert_eq!(text("a\nb\n", ""), "@@ -1,2 +0,0 @@\n-a\n-b\n");
        assert_eq!(text("a\nb\nc\n", "a\nx\nc\n"), "@@ -1,3 +1,3 @@\n a\n-b\n+x\n c\n");
        assert_eq!(
            text("a\r\nb", "a\r\nc\n"),
            "@@ -1,2 +1,2 @@\n a\r\n-b\n\\ No newline at end of file\n+c\n"
        );
        let (old, new) = ("1\n2\n3\n4\n5\n6\n7\n8\n9\n", "x\n2\n3\n4\n5\n6\n7\n8\ny\n");
        assert_eq!(hunks(old, new).len(), 2);
        // A lone carriage return ends no line.
        assert_eq!(text("a\rb\n", "a\rc\n"), "@@ -1,1 +1,1 @@\n-a\rb\n+a\rc\n");
    }

    #[test]
    fn hunks_are_taken_one_by_one() {
        let old = "1\n2\n3\n4\n5\n6\n7\n8\n9";
        let new = "x\n1\n2\n3\n4\n5\n6\n7\n8\n9\ny\n";
        assert_eq!(take_hunks(old, new, |_| true), new);
        assert_eq!(take_hunks(old, new, |_| false), old);
        assert_eq!(take_hunks(old, new, |number| number == 0), format!("x\n{old}"));
        assert_eq!(take_hunks(old, new, |number| number == 1), format!("{old}\ny\n"));
        assert_eq!(take_hunks("", "a\n", |_| true), "a\n");
        assert_eq!(take_hunks("a\n", "", |_| true), "");
    }

    #[test]
    fn texts_with_nothing_in_common_are_compared_in_bounded_time() {
        let begun = std::time::Instant::now();
        let many = |sign: &str| (0..400_000).map(|at| format!("{sign}{at}\n")).collect::<String>();
        let (old, new) = (format!("begin\n{}", many("a")), format!("begin\n{}", many("b")));
        let all = hunks(&old, &new);
        assert_eq!(
            all.iter().map(|hunk| (hunk.added, hunk.removed)).collect::<Vec<_>>(),
            [(400_000, 400_000)]
        );
        assert!(begun.elapsed().as_secs() < 20);
    }

    #[test]
    fn recorded_lines_become_a_hunk_with_counts_of_its_own() {
        let lines = [" a", "-b", "+c", "+d"].map(str::to_owned);
        let hunk = hunk_of_lines(7, 2, &lines).unwrap();
        assert_eq!(hunk.text, "@@ -7,2 +9,3 @@\n a\n-b\n+c\n+d\n");
        for odd in [&["x"][..], &["+a\n-b"], &[" a"], &["\\ No"], &[""]] {
            let odd: Vec<String> = odd.iter().map(|line| (*line).to_owned()).collect();
            assert_eq!(hunk_of_lines(1, 0, &odd), None, "{odd:?}");
        }
        for (old_start, shift) in [(usize::MAX, 0), (usize::MAX - 1, 0), (usize::MAX - 9, 8)] {
            assert_eq!(hunk_of_lines(old_start, shift, &lines), None, "{old_start} {shift}");
        }
    }

    #[test]
    fn paths_are_quoted_as_git_does() {
        assert_eq!(quoted_path("a/", "src/x.rs"), "a/src/x.rs");
        assert_eq!(header_path("a/", "my file"), "a/my file\t");
        assert_eq!(header_path("a/", "é\n\"\\"), "\"a/\\303\\251\\n\\\"\\\\\"");
        assert_eq!(quoted_path("b/", b"\xff\x1b"), "\"b/\\377\\033\"");
    }

    const DIFF: &[u8] = b"a note\n\
        diff --git a/src/a b.rs b/src/a b.rs\n--- a/src/a b.rs\n+++ b/src/a b.rs\n\
        @@ -1,2 +1,2 @@\n same\n--- x\n+++ y\n\
        diff --git \"a/\\303\\244\\n\\\"\" \"b/\\303\\244\\n\\\"\"\nnew file mode 100644\n";

    #[test]
    fn lines_of_hunks_are_counted_whatever_they_look_like() {
        let counts: Vec<(u64, u64)> =
            split_diff(DIFF).iter().map(|section| line_counts(section.text)).collect();
        assert_eq!(counts, [(0, 0), (1, 1), (0, 0)]);
    }

    #[test]
    fn sections_have_the_paths_of_their_files() {
        let sections = split_diff(DIFF);
        let paths: Vec<Option<&[u8]>> =
            sections.iter().map(|section| section.path.as_ref().map(RelPath::as_bytes)).collect();
        assert_eq!(paths, [None, Some(&b"src/a b.rs"[..]), Some("ä\n\"".as_bytes())]);
        let joined: Vec<u8> = sections.iter().flat_map(|section| section.text.to_vec()).collect();
        assert_eq!(joined, DIFF);
        assert_eq!(split_diff(b""), []);
    }

    #[test]
    fn changed_lines_that_look_like_headers_have_the_colors_of_changes() {
        let painted = paint_diff(DIFF, true);
        assert!(painted.contains("\x1b[31m--- x\x1b[0m\n\x1b[32m+++ y\x1b[0m\n"), "{painted:?}");
        assert!(painted.contains("\x1b[1m--- a/src/a b.rs\x1b[0m\n"), "{painted:?}");
        assert_eq!(paint_diff(DIFF, false).as_bytes(), DIFF);
    }

    #[test]
    fn content_cannot_control_the_terminal() {
        let painted = paint_diff(b"@@ -0,0 +1,1 @@\n+a\tb\x1b[2K\rx\xff\n", true);
        assert!(painted.contains("+a\tb\\u{1b}[2K\\u{d}x\\xff"), "{painted:?}");
    }

    #[test]
    fn ids_are_those_of_git() {
        assert_eq!(blob_id(b""), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
        assert_eq!(blob_id(b"hello\n"), "ce013625030ba8dba906f756967f9e9ca394464a");
    }

    #[test]
    fn lengths_and_digits_are_those_of_git() {
        assert_eq!([1, 26, 27, 52].map(length_digit), ['A', 'Z', 'a', 'z']);
        // Five digits stand for four bytes.
        let bytes = deflated(b"").len();
        let literal = literal(b"");
        let line = literal.strip_prefix("literal 0\n").and_then(|rest| rest.strip_suffix("\n\n"));
        assert_eq!(line.unwrap().len(), 1 + bytes.div_ceil(4) * 5, "{literal}");
        assert!(line.unwrap().starts_with(length_digit(bytes)), "{literal}");
        let digits: String = Z85_DIGITS.iter().map(|digit| git_digit(*digit)).collect();
        assert_eq!(digits.as_bytes(), GIT_DIGITS);
    }
}
