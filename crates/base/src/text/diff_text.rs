//! Diffs in git's format: split by file, and shown on a terminal.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};

use crate::name::{RelPath, printable};

const FILE: &[u8] = b"diff --git ";

/// The part of a diff that belongs to one file, or the text before the first file.
#[derive(Debug, PartialEq, Eq)]
pub struct Section<'a> {
    /// The file; `None` for the text before the first file, or if the name cannot be read.
    pub path: Option<RelPath>,
    pub text: &'a [u8],
}

pub fn split(diff: &[u8]) -> Vec<Section<'_>> {
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
pub fn paint(diff: &[u8], has_colors: bool) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    const DIFF: &[u8] = b"a note\n\
        diff --git a/src/a b.rs b/src/a b.rs\n--- a/src/a b.rs\n+++ b/src/a b.rs\n\
        @@ -1,2 +1,2 @@\n same\n--- x\n+++ y\n\
        diff --git \"a/\\303\\244\\n\\\"\" \"b/\\303\\244\\n\\\"\"\nnew file mode 100644\n";

    #[test]
    fn lines_of_hunks_are_counted_whatever_they_look_like() {
        let counts: Vec<(u64, u64)> =
            split(DIFF).iter().map(|section| line_counts(section.text)).collect();
        assert_eq!(counts, [(0, 0), (1, 1), (0, 0)]);
    }

    #[test]
    fn sections_have_the_paths_of_their_files() {
        let sections = split(DIFF);
        let paths: Vec<Option<&[u8]>> =
            sections.iter().map(|section| section.path.as_ref().map(RelPath::as_bytes)).collect();
        assert_eq!(paths, [None, Some(&b"src/a b.rs"[..]), Some("ä\n\"".as_bytes())]);
        let joined: Vec<u8> = sections.iter().flat_map(|section| section.text.to_vec()).collect();
        assert_eq!(joined, DIFF);
        assert_eq!(split(b""), []);
    }

    #[test]
    fn changed_lines_that_look_like_headers_have_the_colors_of_changes() {
        let painted = paint(DIFF, true);
        assert!(painted.contains("\x1b[31m--- x\x1b[0m\n\x1b[32m+++ y\x1b[0m\n"), "{painted:?}");
        assert!(painted.contains("\x1b[1m--- a/src/a b.rs\x1b[0m\n"), "{painted:?}");
        assert_eq!(paint(DIFF, false).as_bytes(), DIFF);
    }

    #[test]
    fn content_cannot_control_the_terminal() {
        let painted = paint(b"@@ -0,0 +1,1 @@\n+a\tb\x1b[2K\rx\xff\n", true);
        assert!(painted.contains("+a\tb\\u{1b}[2K\\u{d}x\\xff"), "{painted:?}");
    }
}
