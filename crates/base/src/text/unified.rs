//! Unified diffs of two texts in git's format, exact to the byte.

use std::fmt::Write;
use std::ops::Range;

use similar::{Algorithm, DiffOp, capture_diff_slices, group_diff_ops};

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
}
