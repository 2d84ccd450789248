//! Splits raw output into chunks that are shown or omitted: one per line, several per long line,
//! each with its offsets in the file. An overwritten state of a progress bar is a chunk without
//! text.

use std::borrow::Cow;

use swarmletfs_base::failure_signs::is_red;
use swarmletfs_base::split::Split;
use swarmletfs_base::text::clean::{Cleaned, cleaned};

/// Maximum size of a chunk, in bytes; a longer line is split.
const CHUNK_MAX: usize = 480;
/// Approximate maximum number of chunks. Beyond it short lines share a chunk, so that an output of
/// only line ends does not take one chunk per byte.
const CHUNKS_MAX: usize = 200_000;
/// Distance before a cut in which an unfinished terminal escape is searched for, in bytes.
pub(super) const ESCAPE_MAX: usize = 32;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct LineChunk<'a> {
    pub start: u64,
    /// Offset after the last byte in the file.
    pub end: u64,
    pub text: Cow<'a, str>,
    pub red: bool,
    /// Number of times that the line repeats within the bytes of this chunk.
    pub repeats: usize,
    /// Number of invisible characters that were removed from the text.
    pub hidden: usize,
}

impl LineChunk<'_> {
    /// Returns the line that states the number of repeats; empty if there are none.
    pub(super) fn repeats_note(&self) -> String {
        if self.repeats == 0 {
            String::new()
        } else {
            format!("[... the line above {} times more ...]\n", self.repeats)
        }
    }
}

/// Splits `raw`, which starts at `offset` in its file, into chunks that cover it without a gap. The
/// second value is true if all of it is UTF-8.
pub(super) fn split_chunks(raw: &[u8], offset: u64) -> (Vec<LineChunk<'_>>, bool) {
    let mut chunks: Vec<LineChunk<'_>> = Vec::with_capacity(raw.len() / 40 + 1);
    let chunk_min = (raw.len() / CHUNKS_MAX) as u64;
    let mut utf8 = true;
    let (mut rest, mut start) = (raw, offset);
    while !rest.is_empty() {
        let (len, overwritten) = next_chunk(rest);
        let (chunk, after) = rest.split_at_known(len);
        let shown = if overwritten { &[] } else { chunk };
        let Cleaned { text, is_utf8, hidden } = cleaned(shown);
        utf8 &= is_utf8;
        let red = is_red(shown);
        let end = start + len as u64;
        match chunks.last_mut() {
            Some(last) if last.end - last.start < chunk_min => {
                last.end = end;
                last.text.to_mut().push_str(&text);
                last.red |= red;
                last.hidden += hidden;
            }
            _ => chunks.push(LineChunk { start, end, text, red, repeats: 0, hidden }),
        }
        (rest, start) = (after, end);
    }
    (chunks, utf8)
}

/// Minimum size of repeats that are merged, in bytes.
const MERGED_MIN: u64 = 120;

pub(super) fn merge_repeats(chunks: Vec<LineChunk<'_>>) -> Vec<LineChunk<'_>> {
    let mut kept: Vec<LineChunk<'_>> = Vec::with_capacity(chunks.len());
    let mut at_line_start = chunks.first().is_some_and(|first| first.start == 0);
    let mut chunks = chunks.into_iter().peekable();
    while let Some(mut chunk) = chunks.next() {
        let mut repeated = Vec::new();
        let mut end = chunk.end;
        // The last chunk of a long line is not a line.
        let is_line = at_line_start && chunk.text.ends_with('\n');
        at_line_start =
            if chunk.text.is_empty() { at_line_start } else { chunk.text.ends_with('\n') };
        while let Some(next) = chunks.next_if(|next| {
            is_line && next.start == end && next.text == chunk.text && next.red == chunk.red
        }) {
            end = next.end;
            repeated.push(next);
        }
        if end - chunk.end >= MERGED_MIN {
            (chunk.end, chunk.repeats) = (end, repeated.len());
            chunk.hidden += repeated.iter().map(|next| next.hidden).sum::<usize>();
            repeated.clear();
        }
        kept.push(chunk);
        kept.append(&mut repeated);
    }
    kept
}

/// Returns the length of the next chunk of `rest` (at least 1), and true if the rest of its line
/// overwrites it.
fn next_chunk(rest: &[u8]) -> (usize, bool) {
    let window = rest.get(..CHUNK_MAX).unwrap_or(rest);
    match memchr::memchr2(b'\n', b'\r', window) {
        Some(at) if window.get(at) == Some(&b'\n') => (at + 1, false),
        Some(at) => {
            // A carriage return is part of a line end or returns a progress bar to its start.
            let returns = rest.iter().skip(at).take_while(|b| **b == b'\r').count();
            match rest.get(at + returns) {
                Some(b'\n') if returns == 1 => (at + 2, false),
                Some(b'\n') => (at + returns - 1, false),
                Some(_) => (at + returns, true),
                None => (at + returns, false),
            }
        }
        None if window.len() == rest.len() => (rest.len(), false),
        None => (split_position(window), false),
    }
}

/// Returns the position at which to split a line that is longer than `window`.
///
/// This is after the first escaped line end (output wrapped in JSON), else at a character boundary
/// outside any terminal escape.
fn split_position(window: &[u8]) -> usize {
    if let Some(at) = memchr::memmem::find(window, b"\\n") {
        return at + 2;
    }
    let boundary = (1..=4)
        .map(|back| window.len() - back)
        .find(|at| window.get(*at).is_some_and(|b| b & 0xc0 != 0x80))
        .unwrap_or(window.len());
    let (tail, _) = window.split_at_known(boundary);
    let (_, tail) = tail.split_at_known(boundary.saturating_sub(ESCAPE_MAX));
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
        split_chunks(raw, 0).0.into_iter().map(|chunk| chunk.text.into_owned()).collect()
    }

    #[test]
    fn lines_keep_their_ends_and_progress_keeps_its_last_state() {
        assert_eq!(texts(b"a\nb\r\nc"), ["a\n", "b\r\n", "c"]);
        assert_eq!(texts(b"10%\r50%\r100%\ndone"), ["", "", "100%\n", "done"]);
        assert_eq!(texts(b"10%\r"), ["10%"]);
        assert_eq!(texts(b"a\r\r\nb").concat(), "a\r\nb");
    }

    #[test]
    fn consecutive_equal_lines_are_shown_once_with_a_count() {
        let log = format!("a\n{}b\nb\n", "waiting for it\n".repeat(100));
        let shown = merge_repeats(split_chunks(log.as_bytes(), 0).0);
        let texts: Vec<String> =
            shown.iter().map(|chunk| chunk.repeats_note() + &chunk.text).collect();
        assert_eq!(
            texts,
            ["a\n", "[... the line above 99 times more ...]\nwaiting for it\n", "b\n", "b\n"]
        );
        let covered: Vec<(u64, u64)> = shown.iter().map(|chunk| (chunk.start, chunk.end)).collect();
        assert!(
            covered.windows(2).all(|two| two[0].1 == two[1].0) && covered[3].1 == log.len() as u64,
            "{covered:?}"
        );
        // The end of a long line is not a line, so equal lines after it are not its repeats.
        let long = format!("{}{}", "x".repeat(CHUNK_MAX - 1), "b\n".repeat(100));
        let shown = merge_repeats(split_chunks(long.as_bytes(), 0).0);
        let told: Vec<(&str, usize)> =
            shown.iter().skip(1).map(|chunk| (&*chunk.text, chunk.repeats)).collect();
        assert_eq!(told, [("b\n", 0), ("b\n", 98)]);
        let long = "x".repeat(5_000);
        assert_eq!(
            merge_repeats(split_chunks(long.as_bytes(), 0).0),
            split_chunks(long.as_bytes(), 0).0
        );
    }

    #[test]
    fn a_piece_a_byte_is_never_made_of_a_large_output() {
        for line in ["\n", "a\n", "\r", "a\r\n"] {
            let raw = line.repeat((4 << 20) / line.len());
            let (chunks, _) = split_chunks(raw.as_bytes(), 0);
            assert!(chunks.len() <= 2 * CHUNKS_MAX, "{} chunks of {line:?}", chunks.len());
            assert_eq!(
                chunks.iter().map(|chunk| chunk.end - chunk.start).sum::<u64>(),
                raw.len() as u64
            );
        }
    }

    #[test]
    fn long_lines_are_cut_at_written_out_line_ends() {
        let long = format!("{{\"stdout\": \"one\\ntwo\\n{}\"}}", "x".repeat(600));
        assert_eq!(texts(long.as_bytes())[..2], ["{\"stdout\": \"one\\n", "two\\n"]);
    }

    proptest! {
        #![proptest_config(crate::scale::cases(256))]

        #[test]
        fn pieces_cover_everything_once(raw in proptest::collection::vec(prop_oneof![Just(b'\n'), Just(b'\r'), Just(0x1b), any::<u8>()], 0..2_000)) {
            let (chunks, _) = split_chunks(&raw, 7);
            let mut at = 7;
            for chunk in &chunks {
                prop_assert_eq!(chunk.start, at);
                prop_assert!(chunk.end > chunk.start);
                at = chunk.end;
            }
            prop_assert_eq!(at, 7 + raw.len() as u64);
        }

        #[test]
        fn valid_text_is_never_cut_inside_a_character(text in "[a-zé漢😀]{0,900}") {
            let (chunks, utf8) = split_chunks(text.as_bytes(), 0);
            prop_assert!(utf8);
            prop_assert_eq!(chunks.into_iter().map(|chunk| chunk.text).collect::<String>(), text);
        }
    }
}
