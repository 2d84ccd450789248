//! The words of a few files of a worker, or of a part of a large one: which passage holds which, and how often.
//!
//! A part is made of text alone, so the same text gives the same part. It is written down as it is held: a head, the
//! terms as a finite state transducer that leads to their postings, and the postings, each a list of passages.

use std::borrow::Cow;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::{Arc, LazyLock};

use foldhash::fast::FixedState;
use fst::{Map, MapBuilder};
use regex::bytes::Regex;
use serde::{Deserialize, Serialize};
use unsigned_varint::{decode, encode};

use super::passages::passages;
use super::words::{Vocabulary, words};
use crate::name::RelPath;

/// The neighbourhoods of a passage in which words are counted, too: so many passages before and behind it.
pub(super) const NEAR: [usize; 2] = [1, 2];

/// A terminal escape: in a text they stand for no word.
static ESCAPE: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let escape = r"(?-u)\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])";
    Regex::new(escape).ok()
});

/// A file, or a part of one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Piece {
    /// The file, from the worker's folder.
    #[serde(with = "path")]
    pub(super) path: RelPath,
    /// Where in the file it begins, in bytes.
    pub(super) start: u64,
    /// How many passages it has; the first one is its name.
    pub(super) passages: u32,
    /// How many words they have, together; and their neighbourhoods.
    pub(super) words: u64,
    pub(super) near: [u64; NEAR.len()],
}

/// How a path is written down.
mod path {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::name::RelPath;

    pub(super) fn serialize<S: Serializer>(path: &RelPath, to: S) -> Result<S::Ok, S::Error> {
        path.as_bytes().serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<RelPath, D::Error> {
        RelPath::parse(Vec::deserialize(from)?).map_err(D::Error::custom)
    }
}

/// What a part is of: its files, and their passages. It is written in front of the terms.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Text {
    pub(super) pieces: Vec<Piece>,
    /// How long each passage is, in bytes; a name is none of the text's.
    pub(super) lengths: Vec<u16>,
    /// How many words each has.
    pub(super) words: Vec<u16>,
    /// A hash of these: two passages of one hash say the same.
    pub(super) said: Vec<u64>,
    /// How long the terms are, in bytes.
    terms: u32,
}

/// The words of some text.
pub(super) struct Part {
    text: Arc<Text>,
    terms: Map<Vec<u8>>,
    postings: Vec<u8>,
}

impl Part {
    /// What it is of, which is a small part of it.
    pub(super) fn text(&self) -> &Arc<Text> {
        &self.text
    }

    /// The passages that hold `term`, with how often.
    pub(super) fn postings(&self, term: &str) -> Postings<'_> {
        let at = self.terms.get(term).and_then(|at| usize::try_from(at).ok());
        let rest = at.and_then(|at| self.postings.get(at..)).unwrap_or_default();
        let (left, rest) = decode::u32(rest).unwrap_or_default();
        Postings { left, rest, passage: 0 }
    }

    /// How much memory it takes, about, in bytes.
    pub(super) fn size(&self) -> usize {
        let names: usize = self.text.pieces.iter().map(|piece| piece.path.as_bytes().len() + size_of::<Piece>()).sum();
        names + 12 * self.text.lengths.len() + self.terms.as_fst().as_bytes().len() + self.postings.len()
    }

    /// As it is written down; none if that cannot be.
    pub(super) fn to_bytes(&self) -> Option<Vec<u8>> {
        let mut bytes = postcard::to_stdvec(&*self.text).ok()?;
        bytes.extend(self.terms.as_fst().as_bytes());
        bytes.extend(&self.postings);
        Some(bytes)
    }

    /// As it was written down; none of what is something else.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Part> {
        let (text, rest) = postcard::take_from_bytes::<Text>(bytes).ok()?;
        let (terms, postings) = rest.split_at_checked(usize::try_from(text.terms).ok()?)?;
        let terms = Map::new(terms.to_vec()).ok()?;
        Some(Part { text: Arc::new(text), terms, postings: postings.to_vec() })
    }
}

/// Passages, from the first on, with how often each holds a word.
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
        // Most often a passage holds a word once, which takes no number of its own.
        let (often, rest) = if step & 1 == 1 { decode::u32(rest).ok()? } else { (1, rest) };
        self.rest = rest;
        self.passage = self.passage.checked_add(step >> 1)?;
        Some((self.passage, often))
    }
}

/// Makes parts out of text, one after the other.
#[derive(Default)]
pub(super) struct Maker {
    vocabulary: Vocabulary,
    text: Text,
    /// The terms of the part, each by its number in the vocabulary; and of each number the place here, with the part for
    /// which it is meant.
    terms: Vec<u32>,
    places: Vec<(u32, u32)>,
    turn: u32,
    /// Which term is in which passage how often, in the order of the text.
    found: Vec<Posting>,
    /// The last of them of each term.
    last: Vec<u32>,
}

#[derive(Debug, Clone, Copy)]
struct Posting {
    term: u32,
    passage: u32,
    often: u32,
}

impl Maker {
    /// Begins a part.
    pub(super) fn begin(&mut self) {
        if self.turn == u32::MAX || self.vocabulary.is_full() {
            *self = Maker::default();
        }
        self.turn += 1;
        self.text = Text::default();
        self.terms.clear();
        self.found.clear();
        self.last.clear();
    }

    /// Adds what a file holds from `start` on; `name` are the words that it is known by.
    pub(super) fn add(&mut self, path: &RelPath, name: &str, start: u64, text: &[u8]) {
        let text = searchable(path, text);
        let first = self.text.lengths.len();
        self.passage(name, 0);
        let mut rest = &*text;
        for length in passages(&text) {
            let (passage, behind) = rest.split_at_checked(length as usize).unwrap_or((rest, ""));
            self.passage(passage, length);
            rest = behind;
        }
        let counts = self.text.words.get(first..).unwrap_or_default();
        let sum = |counts: &[u16]| counts.iter().map(|count| u64::from(*count)).sum::<u64>();
        let near = NEAR.map(|near| {
            let around = |at: usize| counts.get(at.saturating_sub(near)..(at + near + 1).min(counts.len()));
            (0..counts.len()).filter_map(around).map(sum).sum()
        });
        let passages = u32::try_from(counts.len()).unwrap_or(u32::MAX);
        let words = sum(counts);
        self.text.pieces.push(Piece { path: path.clone(), start, passages, words, near });
    }

    fn passage(&mut self, text: &str, length: u32) {
        let passage = u32::try_from(self.text.lengths.len()).unwrap_or(u32::MAX);
        let mut count = 0_u16;
        let mut said = FixedState::default().build_hasher();
        let Maker { vocabulary, terms, places, turn, found, last, .. } = self;
        words(text, |word| {
            count = count.saturating_add(1);
            word.hash(&mut said);
            let number = vocabulary.number(word);
            let at = number as usize;
            if places.len() <= at {
                places.resize(at + 1, (0, 0));
            }
            let Some(place) = places.get_mut(at) else { return };
            if place.0 != *turn {
                *place = (*turn, u32::try_from(terms.len()).unwrap_or(u32::MAX));
                terms.push(number);
                last.push(u32::MAX);
            }
            let term = place.1;
            let Some(last) = last.get_mut(term as usize) else { return };
            match found.get_mut(*last as usize).filter(|posting| posting.passage == passage) {
                Some(posting) => posting.often += 1,
                None => {
                    *last = u32::try_from(found.len()).unwrap_or(u32::MAX);
                    found.push(Posting { term, passage, often: 1 });
                }
            }
        });
        self.text.lengths.push(u16::try_from(length).unwrap_or(u16::MAX));
        self.text.words.push(count);
        self.text.said.push(said.finish());
    }

    /// The part that was begun; none if it cannot be written down.
    pub(super) fn finish(&mut self) -> Option<Part> {
        let mut text = std::mem::take(&mut self.text);
        // Stable: of each term they stay in the order of passages.
        let mut order: Vec<u32> = (0..u32::try_from(self.terms.len()).ok()?).collect();
        let name =
            |term: &u32| self.terms.get(*term as usize).map(|number| self.vocabulary.term(*number)).unwrap_or_default();
        order.sort_unstable_by_key(name);
        let mut ends = vec![0_u32; self.terms.len() + 1];
        for posting in &self.found {
            *ends.get_mut(posting.term as usize + 1)? += 1;
        }
        let mut sum = 0;
        ends.iter_mut().for_each(|end| {
            sum += *end;
            *end = sum;
        });
        let mut next = ends.clone();
        let mut sorted = vec![(0_u32, 0_u32); self.found.len()];
        for posting in &self.found {
            let next = next.get_mut(posting.term as usize)?;
            *sorted.get_mut(*next as usize)? = (posting.passage, posting.often);
            *next += 1;
        }
        let mut built = MapBuilder::memory();
        let (mut postings, mut room) = (Vec::with_capacity(3 * sorted.len()), encode::u32_buffer());
        for term in &order {
            built.insert(name(term), postings.len() as u64).ok()?;
            let (from, to) = (*ends.get(*term as usize)?, *ends.get(*term as usize + 1)?);
            postings.extend(encode::u32(to - from, &mut room));
            let mut before = 0;
            for (passage, often) in sorted.get(from as usize..to as usize)? {
                let step = passage.checked_sub(before)?.checked_mul(2)?;
                before = *passage;
                postings.extend(encode::u32(step | u32::from(*often > 1), &mut room));
                if *often > 1 {
                    postings.extend(encode::u32(*often, &mut room));
                }
            }
        }
        postings.shrink_to_fit();
        let terms = built.into_map();
        text.terms = u32::try_from(terms.as_fst().as_bytes().len()).ok()?;
        Some(Part { text: Arc::new(text), terms, postings })
    }
}

/// The text of a file with as many bytes as it has, of which those that stand for no words are spaces: terminal escapes,
/// what is no UTF-8, and in JSON what is escaped with a backslash.
fn searchable<'a>(path: &RelPath, text: &'a [u8]) -> Cow<'a, str> {
    let name = path.as_bytes();
    let is_json = name.ends_with(b".json") || name.ends_with(b".jsonl");
    let is_plain = !is_json && memchr::memchr(0x1b, text).is_none();
    if let Some(text) = std::str::from_utf8(text).ok().filter(|_| is_plain) {
        return Cow::Borrowed(text);
    }
    let mut text = text.to_vec();
    if memchr::memchr(0x1b, &text).is_some() {
        let found: Vec<_> =
            ESCAPE.iter().flat_map(|escape| escape.find_iter(&text)).map(|found| found.range()).collect();
        found.into_iter().for_each(|range| text.get_mut(range).unwrap_or_default().fill(b' '));
    }
    if is_json {
        let mut at = 0;
        while let Some(next) = text.get(at..).and_then(|rest| memchr::memchr(b'\\', rest)) {
            let escaped = text.get_mut(at + next..).unwrap_or_default();
            let length = escaped.len().min(2);
            if escaped.get(1).is_some_and(u8::is_ascii) {
                escaped.get_mut(..length).unwrap_or_default().fill(b' ');
            }
            at += next + length.max(1);
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

    fn part(files: &[(&str, &str)]) -> Part {
        let mut maker = Maker::default();
        // What was made before leaves nothing behind.
        for _ in 0..2 {
            maker.begin();
            maker.add(&RelPath::parse("before").unwrap(), "before", 0, b"connections timeout of others");
            maker.begin();
            for (path, text) in files {
                maker.add(&RelPath::parse(path).unwrap(), "the name", 0, text.as_bytes());
            }
        }
        maker.finish().unwrap()
    }

    fn postings(part: &Part, term: &str) -> Vec<(u32, u32)> {
        part.postings(term).collect()
    }

    #[test]
    fn a_part_tells_which_passage_holds_which_word() {
        let long = "x ".repeat(124) + "\n";
        let text = format!("{long}timeout, timeouts\n{long}a timeout");
        let part = part(&[("a.txt", &text), ("b.txt", "timeout")]);
        assert_eq!(postings(&part, "timeout"), [(2, 2), (4, 1), (6, 1)]);
        assert_eq!(postings(&part, "name"), [(0, 1), (5, 1)]);
        assert_eq!(postings(&part, "none"), []);
        assert_eq!(part.text.lengths, [0, 249, 18, 249, 9, 0, 7]);
        assert_eq!(part.text.words, [2, 124, 2, 124, 2, 2, 1]);
        // Each passage is counted once for every passage that it is near to.
        let near = [2 * 2 + 124 * 3 + 2 * 3 + 124 * 3 + 2 * 2, 2 * 3 + 124 * 4 + 2 * 5 + 124 * 4 + 2 * 3];
        assert_eq!(part.text.pieces.iter().map(|piece| piece.near).collect::<Vec<_>>(), [near, [6, 6]]);
        let pieces: Vec<_> = part.text.pieces.iter().map(|piece| (piece.path.display(), piece.passages)).collect();
        assert_eq!(pieces, [("a.txt".into(), 5), ("b.txt".into(), 2)]);
    }

    #[test]
    fn a_part_comes_back_as_it_was_written_down() {
        let made = part(&[("a.txt", "one two two\nthree"), ("b.json", "{}")]);
        let bytes = made.to_bytes().unwrap();
        let read = Part::from_bytes(&bytes).unwrap();
        assert_eq!(read.text, made.text);
        assert_eq!(postings(&read, "two"), [(1, 2)]);
        for length in 0..bytes.len() {
            // Whatever comes of it, nothing breaks.
            let _ = Part::from_bytes(&bytes[..length]).map(|part| postings(&part, "two"));
        }
    }

    #[test]
    fn what_stands_for_no_word_is_no_word_and_every_byte_keeps_its_place() {
        let json = RelPath::parse("a.json").unwrap();
        let text = RelPath::parse("a.txt").unwrap();
        for (path, raw, seen) in [
            (&text, &b"\x1b[1;31merror\x1b[0m x"[..], "       error     x"),
            (&text, b"a\\nb", "a\\nb"),
            (&json, b"a\\nb\\", "a  b\\"),
            (&text, b"a\xffb\xc3", "a b "),
            (&json, "\\\u{e9}".as_bytes(), "\\\u{e9}"),
        ] {
            assert_eq!(searchable(path, raw), seen);
        }
    }
}
