//! Index segments: the words of a few files of a worker, or of a section of a large file.
//!
//! A segment depends on its text alone, so equal text gives an equal segment. Its serialized form
//! is a header, a finite state transducer that maps terms to postings, and the postings lists.

use std::borrow::Cow;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::{Arc, LazyLock};

use foldhash::fast::FixedState;
use fst::{Map, MapBuilder};
use regex::bytes::{Captures, Regex};
use serde::{Deserialize, Serialize};
use unsigned_varint::{decode, encode};

use super::conversation::{CONVERSATION, PassageKind, Piece, pieces};
use super::words::{Vocabulary, passages, words};
use swarmletfs_base::name::RelPath;
use swarmletfs_base::split::Split;

/// Neighborhood sizes in which words are counted: passages before and after each passage.
pub(super) const NEAR: [usize; 2] = [1, 2];

/// Matches terminal escape sequences, which are not words.
static ESCAPE: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let escape = r"(?-u)\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])";
    Regex::new(escape).ok()
});

/// A file, or a section of one, that a segment indexes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileChunk {
    #[serde(with = "path")]
    pub(super) path: RelPath,
    /// Offset of the chunk in the file, in bytes.
    pub(super) start: u64,
    /// Number of the first passage, which stands for the file's name.
    pub(super) first: u32,
    pub(super) passages: u32,
    pub(super) words: u64,
    /// Sum of the words of every passage's neighborhood, for each size in [`NEAR`].
    pub(super) near: [u64; NEAR.len()],
}

mod path {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use swarmletfs_base::name::RelPath;

    pub(super) fn serialize<S: Serializer>(path: &RelPath, to: S) -> Result<S::Ok, S::Error> {
        path.as_bytes().serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<RelPath, D::Error> {
        RelPath::parse(Vec::deserialize(from)?).map_err(D::Error::custom)
    }
}

/// Header of a segment: its file chunks and their passages. It precedes the terms.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SegmentHeader {
    pub(super) chunks: Vec<FileChunk>,
    /// Length of each passage in bytes; 0 for the name of a file.
    pub(super) lengths: Vec<u16>,
    pub(super) words: Vec<u16>,
    /// Hash of the words of each passage, which finds duplicates.
    pub(super) word_hashes: Vec<u64>,
    /// The kind of each passage.
    pub(super) kinds: Vec<PassageKind>,
    /// Length of the serialized terms, in bytes.
    terms: u32,
}

pub(super) struct Segment {
    pub(super) header: Arc<SegmentHeader>,
    terms: Map<Vec<u8>>,
    postings: Vec<u8>,
}

/// A part of the index of a segment, which is cached in memory and on disk.
pub(super) trait SegmentPart: Sized {
    /// Returns the memory that it takes, in bytes.
    fn size(&self) -> usize;

    /// Reads it from the disk. Returns `None` if it is damaged.
    fn from_bytes(bytes: &[u8]) -> Option<Self>;
}

impl Segment {
    /// Returns the passages that contain `term`, with its frequency in each.
    pub(super) fn postings(&self, term: &str) -> Postings<'_> {
        let found = self.terms.get(term).and_then(|offset| self.postings_at(offset));
        found.unwrap_or(Postings { left: 0, rest: &[], passage: 0 })
    }

    /// Returns the postings list at `offset`, which begins with its length.
    fn postings_at(&self, offset: u64) -> Option<Postings<'_>> {
        let list = self.postings.get(usize::try_from(offset).ok()?..)?;
        let (left, rest) = decode::u32(list).ok()?;
        Some(Postings { left, rest, passage: 0 })
    }

    pub(super) fn to_bytes(&self) -> Option<Vec<u8>> {
        let mut bytes = postcard::to_stdvec(&*self.header).ok()?;
        bytes.extend(self.terms.as_fst().as_bytes());
        bytes.extend(&self.postings);
        Some(bytes)
    }
}

impl SegmentPart for Segment {
    fn size(&self) -> usize {
        let names: usize = self
            .header
            .chunks
            .iter()
            .map(|chunk| chunk.path.as_bytes().len() + size_of::<FileChunk>())
            .sum();
        names
            + 12 * self.header.lengths.len()
            + self.terms.as_fst().as_bytes().len()
            + self.postings.len()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Segment> {
        let (header, rest) = postcard::take_from_bytes::<SegmentHeader>(bytes).ok()?;
        let passages: u64 = header.chunks.iter().map(|chunk| u64::from(chunk.passages)).sum();
        let lengths = [
            header.lengths.len(),
            header.words.len(),
            header.word_hashes.len(),
            header.kinds.len(),
        ];
        if lengths.iter().any(|length| *length as u64 != passages) {
            return None;
        }
        let (terms, postings) = rest.split_at_checked(usize::try_from(header.terms).ok()?)?;
        let terms = Map::new(terms.to_vec()).ok()?;
        Some(Segment { header: Arc::new(header), terms, postings: postings.to_vec() })
    }
}

/// Iterates over the passages with a term, in order, with the frequency of the term.
pub(super) struct Postings<'a> {
    left: u32,
    rest: &'a [u8],
    passage: u32,
}

impl Iterator for Postings<'_> {
    type Item = (u32, u32);

    fn next(&mut self) -> Option<(u32, u32)> {
        self.left = self.left.checked_sub(1)?;
        let (step, rest) = decode::u32(self.rest).ok()?;
        // The low bit is set if the frequency is not 1; only then does the frequency follow.
        let (term_freq, rest) = if step & 1 == 1 { decode::u32(rest).ok()? } else { (1, rest) };
        self.rest = rest;
        self.passage = self.passage.checked_add(step >> 1)?;
        Some((self.passage, term_freq))
    }
}

/// Builds segments, one after the other. Keeps its vocabulary between them.
#[derive(Default)]
pub(super) struct SegmentWriter {
    vocabulary: Vocabulary,
    header: SegmentHeader,
    /// Vocabulary numbers of this segment's terms.
    terms: Vec<u32>,
    /// The last use of each term of the vocabulary.
    places: Vec<TermPlace>,
    /// Number of the segment under construction, from 1.
    generation: u32,
    /// Postings in the order of the text.
    postings: Vec<Posting>,
    /// Index in `postings` of the last posting of each term.
    last: Vec<u32>,
}

#[derive(Debug, Clone, Copy, Default)]
struct TermPlace {
    /// Number of the segment; 0 if no segment has the term.
    generation: u32,
    /// Index of the term in the segment's list of terms.
    index: u32,
}

#[derive(Debug, Clone, Copy)]
struct Posting {
    term: u32,
    passage: u32,
    term_freq: u32,
}

impl SegmentWriter {
    pub(super) fn begin(&mut self) {
        self.generation = match self.generation.checked_add(1) {
            Some(next) if !self.vocabulary.is_full() => next,
            _ => {
                *self = SegmentWriter::default();
                1
            }
        };
        self.header = SegmentHeader::default();
        self.terms.clear();
        self.postings.clear();
        self.last.clear();
    }

    /// Adds the text of a file from offset `start` on. `name` holds words that describe the file.
    pub(super) fn add(&mut self, path: &RelPath, name: &str, start: u64, text: &[u8]) {
        let first = self.header.lengths.len();
        self.add_passage(name, 0, PassageKind::File);
        each_passage(path, text, |passage, kind| self.add_passage(passage, passage.len(), kind));
        let (_, counts) = self.header.words.split_at_known(first);
        let sum = |counts: &[u16]| counts.iter().map(|count| u64::from(*count)).sum::<u64>();
        let near = NEAR.map(|near| {
            (0..counts.len())
                .filter_map(|at| {
                    counts.get(at.saturating_sub(near)..(at + near + 1).min(counts.len()))
                })
                .map(sum)
                .sum()
        });
        let passages = to_u32(counts.len());
        let words = sum(counts);
        let first = self.header.chunks.last().map_or(0, |last| last.first + last.passages);
        self.header.chunks.push(FileChunk {
            path: path.clone(),
            start,
            first,
            passages,
            words,
            near,
        });
    }

    fn add_passage(&mut self, text: &str, length: usize, kind: PassageKind) {
        let passage = to_u32(self.header.lengths.len());
        let mut count = 0_u16;
        let mut word_hash = FixedState::default().build_hasher();
        let SegmentWriter { vocabulary, terms, places, generation, postings, last, .. } = self;
        words(text, |word| {
            count = count.saturating_add(1);
            word.hash(&mut word_hash);
            let number = vocabulary.term_id(word);
            let at = number as usize;
            if places.len() <= at {
                places.resize(at + 1, TermPlace::default());
            }
            let Some(place) = places.get_mut(at) else { return };
            let next = to_u32(postings.len());
            if place.generation != *generation {
                *place = TermPlace { generation: *generation, index: to_u32(terms.len()) };
                terms.push(number);
                last.push(next);
            } else {
                let Some(last) = last.get_mut(place.index as usize) else { return };
                let posting = postings.get_mut(*last as usize);
                if let Some(posting) = posting.filter(|posting| posting.passage == passage) {
                    posting.term_freq += 1;
                    return;
                }
                *last = next;
            }
            postings.push(Posting { term: place.index, passage, term_freq: 1 });
        });
        self.header.lengths.push(u16::try_from(length).unwrap_or(u16::MAX));
        self.header.words.push(count);
        self.header.kinds.push(kind);
        self.header.word_hashes.push(word_hash.finish());
    }

    pub(super) fn finish(&mut self) -> Option<Segment> {
        let mut header = std::mem::take(&mut self.header);
        let names = self.terms.iter().map(|number| self.vocabulary.term(*number));
        let mut order: Vec<(&str, usize)> =
            names.zip(0..).map(|(name, term)| Some((name?, term))).collect::<Option<_>>()?;
        order.sort_unstable();
        // A counting sort by term keeps the postings of each term in the order of passages.
        let mut ends = vec![0_u32; self.terms.len() + 1];
        for posting in &self.postings {
            *ends.get_mut(posting.term as usize + 1)? += 1;
        }
        let mut sum = 0;
        ends.iter_mut().for_each(|end| {
            sum += *end;
            *end = sum;
        });
        let mut next = ends.clone();
        let mut sorted = vec![(0_u32, 0_u32); self.postings.len()];
        for posting in &self.postings {
            let next = next.get_mut(posting.term as usize)?;
            *sorted.get_mut(*next as usize)? = (posting.passage, posting.term_freq);
            *next += 1;
        }
        let mut built = MapBuilder::memory();
        let (mut postings, mut buffer) =
            (Vec::with_capacity(3 * sorted.len()), encode::u32_buffer());
        for (name, term) in order {
            built.insert(name, postings.len() as u64).ok()?;
            let (from, to) = (*ends.get(term)?, *ends.get(term + 1)?);
            postings.extend(encode::u32(to - from, &mut buffer));
            let mut before = 0;
            for (passage, term_freq) in sorted.get(from as usize..to as usize)? {
                let step = passage.checked_sub(before)?.checked_mul(2)?;
                before = *passage;
                postings.extend(encode::u32(step | u32::from(*term_freq > 1), &mut buffer));
                if *term_freq > 1 {
                    postings.extend(encode::u32(*term_freq, &mut buffer));
                }
            }
        }
        postings.shrink_to_fit();
        let terms = built.into_map();
        header.terms = u32::try_from(terms.as_fst().as_bytes().len()).ok()?;
        Some(Segment { header: Arc::new(header), terms, postings })
    }
}

/// Calls `take` with each passage of a file's text, in order, after the one for its name.
pub(super) fn each_passage(path: &RelPath, text: &[u8], mut take: impl FnMut(&str, PassageKind)) {
    let pieces = match path.as_bytes() {
        CONVERSATION => pieces(text),
        _ => vec![Piece::file(text)],
    };
    let text = searchable(path, text, &pieces);
    let mut rest = &*text;
    for Piece { range, kind, .. } in pieces {
        let (piece, after) = rest.split_at_known(range.len());
        rest = after;
        passages(piece).into_iter().for_each(|passage| take(passage, kind));
    }
}

/// Converts a count within a segment, which fits: a segment has a few megabytes of text.
pub(super) fn to_u32(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Returns the text of a file with equal length in bytes, for tokenizing.
///
/// Replaces bytes that belong to no word by spaces: terminal escapes, invalid UTF-8, and
/// backslash escapes in JSON. Messages of a conversation become readable.
fn searchable<'a>(path: &RelPath, text: &'a [u8], pieces: &[Piece]) -> Cow<'a, str> {
    let name = path.as_bytes();
    let is_json = name.ends_with(b".json") || name.ends_with(b".jsonl");
    let is_plain = !is_json && memchr::memchr(0x1b, text).is_none();
    if let Some(text) = std::str::from_utf8(text).ok().filter(|_| is_plain) {
        return Cow::Borrowed(text);
    }
    let mut text = match ESCAPE.as_ref() {
        Some(escape) => escape
            .replace_all(text, |found: &Captures<'_>| vec![b' '; found.get_match().len()])
            .into_owned(),
        None => text.to_vec(),
    };
    for piece in pieces {
        piece.make_readable(&mut text);
    }
    for Piece { range, .. } in pieces.iter().filter(|piece| is_json && !piece.is_text()) {
        let mut rest = text.get_mut(range.clone()).unwrap_or_default();
        while let Some(next) = memchr::memchr(b'\\', rest)
            && let Some([slash, escaped, after @ ..]) = rest.get_mut(next..)
        {
            if escaped.is_ascii() {
                (*slash, *escaped) = (b' ', b' ');
            }
            rest = after;
        }
    }
    let text = match String::from_utf8(text) {
        Ok(text) => text,
        Err(error) => {
            let mut text = String::with_capacity(error.as_bytes().len());
            for chunk in error.as_bytes().utf8_chunks() {
                text.push_str(chunk.valid());
                text.extend(std::iter::repeat_n(' ', chunk.invalid().len()));
            }
            text
        }
    };
    Cow::Owned(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(files: &[(&str, &str)]) -> Segment {
        let mut writer = SegmentWriter::default();
        // Repeat to show that an earlier segment leaves nothing behind.
        for _ in 0..2 {
            writer.begin();
            writer.add(
                &RelPath::parse("before").unwrap(),
                "before",
                0,
                b"connections timeout of others",
            );
            writer.begin();
            for (path, text) in files {
                writer.add(&RelPath::parse(path).unwrap(), "the name", 0, text.as_bytes());
            }
        }
        writer.finish().unwrap()
    }

    fn postings(segment: &Segment, term: &str) -> Vec<(u32, u32)> {
        segment.postings(term).collect()
    }

    #[test]
    fn postings_name_the_passages_of_each_term() {
        let long = "x ".repeat(124) + "\n";
        let text = format!("{long}timeout, timeouts\n{long}a timeout");
        let segment = build(&[("a.txt", &text), ("b.txt", "timeout")]);
        assert_eq!(postings(&segment, "timeout"), [(2, 2), (4, 1), (6, 1)]);
        assert_eq!(postings(&segment, "name"), [(0, 1), (5, 1)]);
        assert_eq!(postings(&segment, "none"), []);
        assert_eq!(segment.header.lengths, [0, 249, 18, 249, 9, 0, 7]);
        assert_eq!(segment.header.words, [2, 124, 2, 124, 2, 2, 1]);
        // Each passage counts once in every neighborhood that contains it.
        let near =
            [2 * 2 + 124 * 3 + 2 * 3 + 124 * 3 + 2 * 2, 2 * 3 + 124 * 4 + 2 * 5 + 124 * 4 + 2 * 3];
        assert_eq!(
            segment.header.chunks.iter().map(|chunk| chunk.near).collect::<Vec<_>>(),
            [near, [6, 6]]
        );
        let chunks: Vec<_> = segment
            .header
            .chunks
            .iter()
            .map(|chunk| (chunk.path.display(), chunk.passages))
            .collect();
        assert_eq!(chunks, [("a.txt".into(), 5), ("b.txt".into(), 2)]);
    }

    #[test]
    fn segment_survives_serialization() {
        let built = build(&[("a.txt", "one two two\nthree"), ("b.json", "{}")]);
        let bytes = built.to_bytes().unwrap();
        let read = Segment::from_bytes(&bytes).unwrap();
        assert_eq!(read.header, built.header);
        assert_eq!(postings(&read, "two"), [(1, 2)]);
        for length in 0..bytes.len() {
            // Parsing a truncated segment must not panic.
            let _ = Segment::from_bytes(&bytes[..length]).map(|segment| postings(&segment, "two"));
        }
    }

    #[test]
    fn bytes_outside_words_become_spaces_and_keep_offsets() {
        let json = RelPath::parse("a.json").unwrap();
        let text = RelPath::parse("a.txt").unwrap();
        for (path, raw, seen) in [
            (&text, &b"\x1b[1;31merror\x1b[0m x"[..], "       error     x"),
            (&text, b"a\\nb", "a\\nb"),
            (&json, b"a\\nb\\", "a  b\\"),
            (&text, b"a\xffb\xc3", "a b "),
            (&json, "\\\u{e9}".as_bytes(), "\\\u{e9}"),
        ] {
            let whole = [Piece::file(raw)];
            assert_eq!(searchable(path, raw, &whole), seen);
        }
    }
}
