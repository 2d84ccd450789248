//! Cuts a long line to the part around a position.

use std::fmt::Write;

use super::clean::{InvisibleChars, cleaned_with, escape_markers};
use crate::split::Split;

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
