//! Cuts the line that tells most of a failure to a share that is too small for all of it.

use super::lines::{ESCAPE_MAX, Piece};
use super::signs;
use super::weigh::Weighed;
use crate::render::clean::{Cleaned, cleaned, defuse};

/// What a part of a line weighs beside the part that tells of the failure.
const BESIDE: f64 = 0.9;
/// What stands before the text of a line that is written out in JSON.
const WRITTEN_OUT: [&[u8]; 2] = [b"\\n", b"\": \""];
/// How much of a sign is looked for in the bytes of its line, in bytes.
const SIGN: usize = 8;

/// Returns the heaviest piece that tells of a failure, else the heaviest of all; of equals the latest.
fn most_telling(pieces: &[Piece<'_>], weighed: &Weighed) -> Option<usize> {
    let weight = |at: &usize| weighed.weights.get(*at).copied().unwrap_or_default();
    let says = |at: &usize| pieces.get(*at).is_some_and(|piece| !piece.text.trim().is_empty());
    let heaviest = || (0..pieces.len()).filter(says).max_by(|a, b| weight(a).total_cmp(&weight(b)));
    weighed.failure.or_else(heaviest)
}

/// Splits the most telling piece if it takes more than `room` bytes, so that a part which fits bears what the piece
/// tells. `raw` returns the bytes of the output between two offsets.
pub(super) fn cut_most_telling<'a>(
    pieces: &mut Vec<Piece<'a>>,
    weighed: &mut Weighed,
    room: usize,
    raw: &dyn Fn(u64, u64) -> Option<&'a [u8]>,
) {
    let Some(at) = most_telling(pieces, weighed) else { return };
    let Some(piece) = pieces.get(at).filter(|piece| piece.text.len() + piece.repeats().len() > room) else { return };
    let Some(raw) = raw(piece.start, piece.end) else { return };
    // Behind the first line of a piece there are only repetitions of it.
    let line_end = memchr::memchr(b'\n', raw).filter(|_| piece.again > 0).map_or(raw.len(), |end| end + 1);
    let line = raw.get(..line_end).unwrap_or(raw);
    let Some((from, to)) = telling_part(line, &piece.text, room) else { return };
    let part = |from: usize, to: usize| {
        let shown = line.get(from..to).filter(|part| !part.is_empty())?;
        let (start, end) = (piece.start + from as u64, piece.start + to as u64);
        let Cleaned { text, hidden, .. } = cleaned(shown);
        Some(Piece { start, end, text, red: piece.red, again: 0, hidden })
    };
    let repeated = (piece.again > 0).then(|| Piece {
        start: piece.start + line_end as u64,
        end: piece.end,
        text: piece.text.clone(),
        red: piece.red,
        again: piece.again - 1,
        hidden: piece.hidden.saturating_sub(cleaned(line).hidden),
    });
    let before = part(0, from);
    let told = at + usize::from(before.is_some());
    let parts: Vec<Piece<'a>> = [before, part(from, to), part(to, line_end), repeated].into_iter().flatten().collect();
    let weight = weighed.weights.get(at).copied().unwrap_or_default();
    let weights = (at..at + parts.len()).map(|part| if part == told { weight } else { weight * BESIDE });
    weighed.weights.splice(at..=at, weights);
    weighed.failure = weighed.failure.map(|_| told);
    pieces.splice(at..=at, parts);
}

/// Returns which bytes of a `line`, shown as `text`, to show in `room` bytes: from where the line begins that tells of a
/// failure, which may be inside a string of JSON, or from shortly before that.
fn telling_part(line: &[u8], text: &str, room: usize) -> Option<(usize, usize)> {
    let sign = signs::failures(text.as_bytes()).next().unwrap_or_default();
    let word = text.as_bytes().get(sign..).map(|rest| rest.get(..SIGN).unwrap_or(rest)).unwrap_or_default();
    let sign = memchr::memmem::find(line, word).unwrap_or_default();
    let before = line.get(..sign).unwrap_or_default();
    let begins = WRITTEN_OUT.iter().filter_map(|end| Some(memchr::memmem::rfind(before, end)? + end.len()));
    let begins = begins.max().unwrap_or_default();
    let from = if sign - begins > room / 2 { sign - room / 4 } else { begins };
    let boundary = |at: usize| (0..=at.min(line.len())).rev().find(|at| is_boundary(line, *at)).unwrap_or_default();
    let from = boundary(from);
    let mut to = boundary(from + room);
    // Characters that are not UTF-8 and markers take more room than they do on disk.
    while line.get(from..to).is_some_and(|part| defuse(&cleaned(part).text).len() > room) {
        to = boundary(from + (to - from) / 2).max(from);
    }
    (to > from).then_some((from, to))
}

/// Returns true if no character and no terminal escape is torn at `at`, as far as a few bytes tell.
fn is_boundary(line: &[u8], at: usize) -> bool {
    let is_character = line.get(at).is_none_or(|byte| byte & 0xc0 != 0x80);
    let before = line.get(at.saturating_sub(ESCAPE_MAX)..at).unwrap_or_default();
    let escape = memchr::memrchr(0x1b, before).and_then(|escape| before.get(escape + 1..));
    is_character && escape.is_none_or(|escape| escape.iter().skip(1).any(u8::is_ascii_alphabetic))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(line: &[u8], room: usize) -> String {
        let text = cleaned(line).text;
        let (from, to) = telling_part(line, &text, room).unwrap();
        String::from_utf8_lossy(&line[from..to]).into_owned()
    }

    #[test]
    fn a_line_is_cut_to_the_part_that_tells_of_the_failure() {
        let json =
            br#"{"ok": true, "data": {"stdout": "fine\nfine\n", "stderr": "error: no space left on device\nmore"}}"#;
        assert_eq!(cut(json, 24), "error: no space left on ");
        let late = format!("{}error: it broke{}", "word ".repeat(50), " word".repeat(50));
        assert_eq!(cut(late.as_bytes(), 40), "word word error: it broke word word word");
        assert_eq!(cut(b"Error: it broke here", 9), "Error: it");
        assert_eq!(cut(b"nothing of that kind", 7), "nothing");
    }

    #[test]
    fn neither_a_character_nor_an_escape_is_torn() {
        assert_eq!(cut("Error: 漢字".as_bytes(), 11), "Error: 漢");
        assert_eq!(cut(b"\x1b[1;31mError: it broke\x1b[0m", 24).as_bytes(), b"\x1b[1;31mError: it broke");
        assert!(cleaned(cut(&b"\xff".repeat(90), 30).as_bytes()).text.len() <= 30);
    }
}
