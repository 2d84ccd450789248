//! Raw output as pieces that can be shown or left out: a line each, long lines in several, each with its place in the
//! file. A state of a progress bar that the next one wrote over is a piece that shows nothing.

use std::borrow::Cow;

use super::signs::is_red;
use crate::render::clean::{Cleaned, cleaned};

/// A longer line is taken in pieces of at most this many bytes.
const PIECE_MAX: usize = 480;
/// Where there would be more than about this many pieces, short lines are taken together: an output of nothing but line
/// ends must not cost a piece a byte.
const PIECES_MAX: usize = 200_000;
/// How far back from a cut an unfinished terminal escape is looked for, in bytes.
pub(super) const ESCAPE_MAX: usize = 32;

/// A part of an output.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Piece<'a> {
    /// Its first byte in the file.
    pub(super) start: u64,
    /// Behind its last byte.
    pub(super) end: u64,
    /// What is shown of it.
    pub(super) text: Cow<'a, str>,
    /// Whether it is in a colour of errors.
    pub(super) red: bool,
    /// How often more its line follows, within the same bytes.
    pub(super) again: usize,
    /// Number of invisible characters that were removed from it.
    pub(super) hidden: usize,
}

impl Piece<'_> {
    /// What is said of how often its line follows; empty if it does not.
    pub(super) fn repeats(&self) -> String {
        if self.again == 0 { String::new() } else { format!("[... the line above {} times more ...]\n", self.again) }
    }
}

/// Cuts `raw`, which lies at `offset` bytes in its file, into pieces that cover it without a gap. The second value
/// says whether all of it is UTF-8.
pub(super) fn pieces(raw: &[u8], offset: u64) -> (Vec<Piece<'_>>, bool) {
    let mut pieces: Vec<Piece<'_>> = Vec::with_capacity(raw.len() / 40 + 1);
    let least = (raw.len() / PIECES_MAX) as u64;
    let mut utf8 = true;
    let mut at = 0;
    while let Some(rest) = raw.get(at..).filter(|rest| !rest.is_empty()) {
        let (len, overwritten) = next(rest);
        let shown = rest.get(..len).filter(|_| !overwritten).unwrap_or_default();
        let Cleaned { text, is_utf8, hidden } = cleaned(shown);
        utf8 &= is_utf8;
        let red = is_red(shown);
        let start = offset + at as u64;
        let end = start + len as u64;
        match pieces.last_mut() {
            Some(last) if last.end - last.start < least => {
                last.end = end;
                last.text.to_mut().push_str(&text);
                last.red |= red;
                last.hidden += hidden;
            }
            _ => pieces.push(Piece { start, end, text, red, again: 0, hidden }),
        }
        at += len;
    }
    (pieces, utf8)
}

/// Shorter repetitions are shown as they are, in bytes.
const REPEATED_LEAST: u64 = 120;

/// The same pieces, but a line that follows itself again and again is one of them.
pub(super) fn once(pieces: Vec<Piece<'_>>) -> Vec<Piece<'_>> {
    let mut kept: Vec<Piece<'_>> = Vec::with_capacity(pieces.len());
    let mut begins_a_line = pieces.first().is_some_and(|first| first.start == 0);
    let mut pieces = pieces.into_iter().peekable();
    while let Some(mut piece) = pieces.next() {
        let mut again = Vec::new();
        let mut end = piece.end;
        // The end of a long line is a piece, and is no line.
        let is_line = begins_a_line && piece.text.ends_with('\n');
        begins_a_line = if piece.text.is_empty() { begins_a_line } else { piece.text.ends_with('\n') };
        while let Some(next) =
            pieces.next_if(|next| is_line && next.start == end && next.text == piece.text && next.red == piece.red)
        {
            end = next.end;
            again.push(next);
        }
        if end - piece.end >= REPEATED_LEAST {
            (piece.end, piece.again) = (end, again.len());
            piece.hidden += again.iter().map(|next| next.hidden).sum::<usize>();
            again.clear();
        }
        kept.push(piece);
        kept.append(&mut again);
    }
    kept
}

/// How long the next piece of `rest` is (at least 1), and whether what follows on the same line writes over it.
fn next(rest: &[u8]) -> (usize, bool) {
    let window = rest.get(..PIECE_MAX).unwrap_or(rest);
    match memchr::memchr2(b'\n', b'\r', window) {
        Some(at) if window.get(at) == Some(&b'\n') => (at + 1, false),
        Some(at) => {
            // A carriage return: part of a line end, or the return of a progress bar to its start.
            let returns = rest.get(at..).unwrap_or_default().iter().take_while(|b| **b == b'\r').count();
            match rest.get(at + returns) {
                Some(b'\n') if returns == 1 => (at + 2, false),
                Some(b'\n') => (at + returns - 1, false),
                Some(_) => (at + returns, true),
                None => (at + returns, false),
            }
        }
        None if window.len() == rest.len() => (rest.len(), false),
        None => (cut(window), false),
    }
}

/// Where to cut a line longer than `window`: behind the first line end that is written out as `\n` (output wrapped
/// in JSON), else at a character, and not inside a terminal escape.
fn cut(window: &[u8]) -> usize {
    if let Some(at) = memchr::memmem::find(window, b"\\n") {
        return at + 2;
    }
    let boundary = (1..=4)
        .map(|back| window.len() - back)
        .find(|at| window.get(*at).is_some_and(|b| b & 0xc0 != 0x80))
        .unwrap_or(window.len());
    let tail = window.get(boundary.saturating_sub(ESCAPE_MAX)..boundary).unwrap_or_default();
    match memchr::memrchr(0x1b, tail) {
        Some(at) if boundary > ESCAPE_MAX => boundary - tail.len() + at,
        _ => boundary,
    }
    .max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn texts(raw: &[u8]) -> Vec<String> {
        pieces(raw, 0).0.into_iter().map(|piece| piece.text.into_owned()).collect()
    }

    #[test]
    fn lines_keep_their_ends_and_progress_keeps_its_last_state() {
        assert_eq!(texts(b"a\nb\r\nc"), ["a\n", "b\r\n", "c"]);
        assert_eq!(texts(b"10%\r50%\r100%\ndone"), ["", "", "100%\n", "done"]);
        assert_eq!(texts(b"10%\r"), ["10%"]);
        assert_eq!(texts(b"a\r\r\nb").concat(), "a\r\nb");
    }

    #[test]
    fn a_line_that_follows_itself_is_shown_once_with_a_count() {
        let log = format!("a\n{}b\nb\n", "waiting for it\n".repeat(100));
        let shown = once(pieces(log.as_bytes(), 0).0);
        let texts: Vec<String> = shown.iter().map(|piece| piece.repeats() + &piece.text).collect();
        assert_eq!(texts, ["a\n", "[... the line above 99 times more ...]\nwaiting for it\n", "b\n", "b\n"]);
        let covered: Vec<(u64, u64)> = shown.iter().map(|piece| (piece.start, piece.end)).collect();
        assert!(covered.windows(2).all(|two| two[0].1 == two[1].0) && covered[3].1 == log.len() as u64, "{covered:?}");
        // The end of a long line is no line: what is as it follows a line that is shown.
        let long = format!("{}{}", "x".repeat(PIECE_MAX - 1), "b\n".repeat(100));
        let shown = once(pieces(long.as_bytes(), 0).0);
        let told: Vec<(&str, usize)> = shown.iter().skip(1).map(|piece| (&*piece.text, piece.again)).collect();
        assert_eq!(told, [("b\n", 0), ("b\n", 98)]);
        let long = "x".repeat(5_000);
        assert_eq!(once(pieces(long.as_bytes(), 0).0), pieces(long.as_bytes(), 0).0);
    }

    #[test]
    fn a_piece_a_byte_is_never_made_of_a_large_output() {
        for line in ["\n", "a\n", "\r", "a\r\n"] {
            let raw = line.repeat((4 << 20) / line.len());
            let (pieces, _) = pieces(raw.as_bytes(), 0);
            assert!(pieces.len() <= 2 * PIECES_MAX, "{} pieces of {line:?}", pieces.len());
            assert_eq!(pieces.iter().map(|piece| piece.end - piece.start).sum::<u64>(), raw.len() as u64);
        }
    }

    #[test]
    fn long_lines_are_cut_at_written_out_line_ends() {
        let long = format!("{{\"stdout\": \"one\\ntwo\\n{}\"}}", "x".repeat(600));
        assert_eq!(texts(long.as_bytes())[..2], ["{\"stdout\": \"one\\n", "two\\n"]);
    }

    proptest! {
        #[test]
        fn pieces_cover_everything_once(raw in proptest::collection::vec(prop_oneof![Just(b'\n'), Just(b'\r'), Just(0x1b), any::<u8>()], 0..2_000)) {
            let (pieces, _) = pieces(&raw, 7);
            let mut at = 7;
            for piece in &pieces {
                prop_assert_eq!(piece.start, at);
                prop_assert!(piece.end > piece.start);
                at = piece.end;
            }
            prop_assert_eq!(at, 7 + raw.len() as u64);
        }

        #[test]
        fn valid_text_is_never_cut_inside_a_character(text in "[a-zé漢😀]{0,900}") {
            let (pieces, utf8) = pieces(text.as_bytes(), 0);
            prop_assert!(utf8);
            prop_assert_eq!(pieces.into_iter().map(|piece| piece.text).collect::<String>(), text);
        }
    }
}
