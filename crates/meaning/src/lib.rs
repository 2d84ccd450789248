//! Compares texts by their meaning.
//!
//! A text is embedded as the mean of its tokens' vectors, which were distilled from a sentence
//! transformer (see NOTICE). There is no network to evaluate, so an embedding takes microseconds.
//! All arithmetic is in integers: each machine gets the same bytes.
//!
//! `model.bin` holds two little-endian u32, the number of tokens and the length of their texts in
//! bytes; the texts, each ended by a line feed; a u16 for each token, the scale of its vector; and
//! 128 bytes for each token, with the first half of its numbers in the low four bits.

mod word_piece;

use std::collections::HashMap;
use std::sync::LazyLock;

use foldhash::fast::RandomState;

use word_piece::TokenTable;

/// Numbers in an embedding.
pub const DIMENSIONS: usize = 256;
/// Half of the numbers of a vector; each byte of the model has one of either half.
const HALF: usize = DIMENSIONS / 2;
/// Length of an embedding. Its numbers then hardly ever exceed an i8.
const LENGTH: i64 = 360;
/// Tokens of a text that count. More would overflow the sum.
const TOKENS_MAX: usize = 2_048;
/// Number of distinct words an [`Embedder`] remembers.
const WORDS_MAX: usize = 100_000;

static MODEL: LazyLock<Option<Model>> = LazyLock::new(|| Model::parse(include_bytes!("model.bin")));

struct Model {
    tokens: TokenTable,
    scales: &'static [[u8; 2]],
    vectors: &'static [[u8; HALF]],
}

impl Model {
    fn parse(bytes: &'static [u8]) -> Option<Model> {
        let (count, rest) = bytes.split_first_chunk()?;
        let (texts, rest) = rest.split_first_chunk()?;
        let count = u32::from_le_bytes(*count) as usize;
        let (texts, rest) = rest.split_at_checked(u32::from_le_bytes(*texts) as usize)?;
        let (scales, vectors) = rest.split_at_checked(2 * count)?;
        let tokens = TokenTable::new(std::str::from_utf8(texts).ok()?.lines())?;
        Some(Model { tokens, scales: scales.as_chunks().0, vectors: vectors.as_chunks().0 })
    }

    /// Adds the vector of a token.
    fn add(&self, token: u32, sum: &mut [i32; DIMENSIONS]) {
        let at = token as usize;
        let (Some(scale), Some(vector)) = (self.scales.get(at), self.vectors.get(at)) else {
            return;
        };
        let scale = i32::from(u16::from_le_bytes(*scale));
        let Some((low, high)) = sum.split_at_mut_checked(HALF) else { return };
        for ((low, high), pair) in low.iter_mut().zip(high).zip(vector) {
            let pair = pair.cast_signed();
            // Shifts extend the sign.
            *low += scale * i32::from((pair << 4) >> 4);
            *high += scale * i32::from(pair >> 4);
        }
    }
}

/// Embeds texts. Remembers the tokens of words between them.
#[derive(Default)]
pub struct Embedder {
    words: HashMap<Box<str>, Box<[u32]>, RandomState>,
}

impl Embedder {
    /// Returns the embedding of `text`, or `None` if it has no token.
    pub fn embed(&mut self, text: &str) -> Option<[i8; DIMENSIONS]> {
        let model = MODEL.as_ref()?;
        let mut sum = [0_i32; DIMENSIONS];
        let mut left = TOKENS_MAX;
        word_piece::words(text, |word| {
            if left == 0 {
                return;
            }
            if self.words.len() >= WORDS_MAX {
                self.words.clear();
            }
            if !self.words.contains_key(word) {
                self.words.insert(word.into(), model.tokens.of_word(word).into());
            }
            for token in self.words.get(word).into_iter().flatten().take(left) {
                model.add(*token, &mut sum);
                left -= 1;
            }
        });
        let squares: u64 = sum.iter().map(|one| i64::from(*one).pow(2).unsigned_abs()).sum();
        let length = i64::try_from(squares.isqrt()).ok().filter(|length| *length > 0)?;
        Some(sum.map(|one| {
            let scaled = (i64::from(one) * LENGTH + one.signum() as i64 * length / 2) / length;
            scaled.clamp(i8::MIN.into(), i8::MAX.into()) as i8
        }))
    }
}

/// Returns how close the meanings of two embedded texts are: about 1 for the same, 0 for unrelated
/// texts. `other` holds the bytes of an embedding.
pub fn similarity(one: &[i8; DIMENSIONS], other: &[u8]) -> f64 {
    let products = one.iter().zip(other).map(|(a, b)| i32::from(*a) * i32::from(b.cast_signed()));
    f64::from(products.sum::<i32>()) / (LENGTH * LENGTH) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alike(one: &str, other: &str) -> f64 {
        let mut embedder = Embedder::default();
        let other = embedder.embed(other).unwrap().map(i8::cast_unsigned);
        similarity(&embedder.embed(one).unwrap(), &other)
    }

    #[test]
    fn texts_of_one_meaning_are_closer_than_others() {
        let full = "Filesystem /dev/sdb1 500G 492G 8G 99% /data. The backup volume is nearly full.";
        let refused = "ssh: connect to host clifford port 22: Connection refused";
        for (query, right, wrong) in [
            ("running out of disk space", full, refused),
            ("remote machine could not be reached", refused, full),
            ("the tests do not pass", "3 failed, 12 passed in 0.4 s", "Updated the README."),
        ] {
            assert!(alike(query, right) > alike(query, wrong) + 0.05, "{query}");
        }
        assert!((alike(full, full) - 1.0).abs() < 0.01);
    }

    #[test]
    fn embedding_is_the_same_on_each_machine() {
        let mut embedder = Embedder::default();
        let embedding = embedder.embed("The quick brown fox: 42 naïve 東京").unwrap();
        assert_eq!(embedding.get(..8).unwrap(), [65, -36, 3, -24, 4, 42, 19, 53]);
        let long = "x1y2z3 ".repeat(TOKENS_MAX);
        assert_eq!(embedder.embed(&long), embedder.embed(&(long.clone() + "fox")));
        assert_eq!(embedder.embed(""), None);
        assert_eq!(embedder.embed(" \u{0}\n"), None);
    }
}
