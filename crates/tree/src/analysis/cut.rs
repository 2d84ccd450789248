//! Cuts the most relevant line of an output to a share that is too small for all of it.

use super::line_scores::LineScores;
use super::lines::{ESCAPE_MAX, LineChunk};
use swarmletfs_base::failure_signs;
use swarmletfs_base::text::clean::{Cleaned, cleaned, escape_markers};

/// Factor for the score of a part next to the part with the sign of failure.
const NEIGHBOR_FACTOR: f64 = 0.9;
/// Bytes that precede a line inside a JSON string.
const JSON_LINE_STARTS: [&[u8]; 2] = [b"\\n", b"\": \""];
/// Length of the sign of failure that is searched for in the raw line, in bytes.
const SIGN_MAX: usize = 8;

/// Returns the index of the highest-scoring chunk with a sign of failure, else of the
/// highest-scoring chunk. Among equals the latest wins.
fn most_relevant(chunks: &[LineChunk<'_>], scored: &LineScores) -> Option<usize> {
    scored.failure.or_else(|| {
        let with_scores = chunks.iter().zip(&scored.scores).enumerate();
        let with_text = with_scores.filter(|(_, (chunk, _))| !chunk.text.trim().is_empty());
        with_text.max_by(|(_, (_, a)), (_, (_, b))| a.total_cmp(b)).map(|(at, _)| at)
    })
}

/// Splits the most relevant chunk if it takes more than `room` bytes, so that the part with the
/// sign of failure fits. `raw` returns the bytes of the output between two offsets.
pub(super) fn cut_most_relevant<'a>(
    chunks: &mut Vec<LineChunk<'a>>,
    scored: &mut LineScores,
    room: usize,
    raw: &dyn Fn(u64, u64) -> Option<&'a [u8]>,
) {
    let Some(at) = most_relevant(chunks, scored) else { return };
    let (Some(chunk), Some(score)) = (chunks.get(at), scored.scores.get(at).copied()) else {
        return;
    };
    if chunk.text.len() + chunk.repeats_note().len() <= room {
        return;
    }
    let Some(raw) = raw(chunk.start, chunk.end) else { return };
    // A chunk with repeats holds one line several times.
    let line_end =
        memchr::memchr(b'\n', raw).filter(|_| chunk.repeats > 0).map_or(raw.len(), |end| end + 1);
    let line = raw.get(..line_end).unwrap_or(raw);
    let Some((from, to)) = relevant_part(line, &chunk.text, room) else { return };
    let part = |from: usize, to: usize| {
        let shown = line.get(from..to).filter(|part| !part.is_empty())?;
        let (start, end) = (chunk.start + from as u64, chunk.start + to as u64);
        let Cleaned { text, hidden, .. } = cleaned(shown);
        Some(LineChunk { start, end, text, red: chunk.red, repeats: 0, hidden })
    };
    let repeated = (chunk.repeats > 0).then(|| LineChunk {
        start: chunk.start + line_end as u64,
        end: chunk.end,
        text: chunk.text.clone(),
        red: chunk.red,
        repeats: chunk.repeats - 1,
        hidden: chunk.hidden.saturating_sub(cleaned(line).hidden),
    });
    let before = part(0, from);
    let relevant = at + usize::from(before.is_some());
    let parts: Vec<LineChunk<'a>> =
        [before, part(from, to), part(to, line_end), repeated].into_iter().flatten().collect();
    let scores = (at..at + parts.len())
        .map(|part| if part == relevant { score } else { score * NEIGHBOR_FACTOR });
    scored.scores.splice(at..=at, scores);
    scored.failure = scored.failure.map(|_| relevant);
    chunks.splice(at..=at, parts);
}

/// Returns the range of bytes of `line`, shown as `text`, to show in `room` bytes.
///
/// The range starts at the line with the sign of failure, which may be inside a JSON string, or
/// shortly before the sign if that line is long.
fn relevant_part(line: &[u8], text: &str, room: usize) -> Option<(usize, usize)> {
    let sign = failure_signs::failures(text.as_bytes()).next().unwrap_or(0);
    let word = text.as_bytes().get(sign..)?;
    let sign = memchr::memmem::find(line, word.get(..SIGN_MAX).unwrap_or(word)).unwrap_or(0);
    let before = line.get(..sign)?;
    let starts = JSON_LINE_STARTS
        .iter()
        .filter_map(|start| Some(memchr::memmem::rfind(before, start)? + start.len()));
    let line_start = starts.max().unwrap_or(0);
    let from = if sign - line_start > room / 2 { sign - room / 4 } else { line_start };
    let boundary =
        |at: usize| (0..=at.min(line.len())).rev().find(|at| is_boundary(line, *at)).unwrap_or(0);
    let from = boundary(from);
    let mut to = boundary(from + room);
    // Invalid UTF-8 and escaped markers take more room than on disk.
    while line.get(from..to).is_some_and(|part| escape_markers(&cleaned(part).text).len() > room) {
        to = boundary(from + (to - from) / 2).max(from);
    }
    (to > from).then_some((from, to))
}

/// Returns true if a cut at `at` splits neither a character nor a terminal escape. Only the
/// preceding [`ESCAPE_MAX`] bytes are searched for an escape.
fn is_boundary(line: &[u8], at: usize) -> bool {
    let is_character = line.get(at).is_none_or(|byte| byte & 0xc0 != 0x80);
    let Some(before) = line.get(at.saturating_sub(ESCAPE_MAX)..at) else { return false };
    let escape = memchr::memrchr(0x1b, before).and_then(|escape| before.get(escape + 1..));
    is_character && escape.is_none_or(|escape| escape.iter().skip(1).any(u8::is_ascii_alphabetic))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(line: &[u8], room: usize) -> String {
        let text = cleaned(line).text;
        let (from, to) = relevant_part(line, &text, room).unwrap();
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
        assert_eq!(
            cut(b"\x1b[1;31mError: it broke\x1b[0m", 24).as_bytes(),
            b"\x1b[1;31mError: it broke"
        );
        assert!(cleaned(cut(&b"\xff".repeat(90), 30).as_bytes()).text.len() <= 30);
    }
}
