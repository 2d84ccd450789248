//! The embeddings of a segment's passages.

use super::conversation::{CONVERSATION, FILLER, PassageKind};
use super::segment::{SegmentPart, each_passage};
use crate::search::is_raw_record;
use swarmletfs_base::name::RelPath;
use swarmletfs_meaning::{DIMENSIONS, Embedder};

/// The embeddings of the passages of a segment.
pub(super) struct SegmentMeaning {
    /// The embedded passages, in order.
    pub(super) passages: Vec<u32>,
    /// Their embeddings, one after the other.
    pub(super) embeddings: Vec<u8>,
}

impl SegmentMeaning {
    /// Embeds the passages of a segment, whose files and their texts are `texts`. Leaves out calls
    /// and records, which repeat other text as JSON.
    pub(super) fn new<'a>(
        texts: impl Iterator<Item = (&'a RelPath, &'a [u8])>,
        embedder: &mut Embedder,
    ) -> SegmentMeaning {
        let mut meaning = SegmentMeaning { passages: Vec::new(), embeddings: Vec::new() };
        let mut numbers = 0..;
        for (path, bytes) in texts {
            let is_told = path.as_bytes() == CONVERSATION || !is_raw_record(path);
            // The first passage stands for the name.
            numbers.next();
            each_passage(path, bytes, |passage, kind| {
                let number = numbers.next();
                let embedding = Some(passage)
                    .filter(|_| is_told && kind != PassageKind::Call)
                    .and_then(|passage| embedder.embed(&passage.replace(char::from(FILLER), " ")));
                if let (Some(number), Some(embedding)) = (number, embedding) {
                    meaning.passages.push(number);
                    meaning.embeddings.extend(embedding.map(i8::cast_unsigned));
                }
            });
        }
        meaning
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = postcard::to_stdvec(&self.passages).unwrap_or_default();
        bytes.extend(&self.embeddings);
        bytes
    }
}

impl SegmentPart for SegmentMeaning {
    fn size(&self) -> usize {
        4 * self.passages.len() + self.embeddings.len()
    }

    fn from_bytes(bytes: &[u8]) -> Option<SegmentMeaning> {
        let (passages, embeddings) = postcard::take_from_bytes::<Vec<u32>>(bytes).ok()?;
        let fits = embeddings.len() == passages.len().checked_mul(DIMENSIONS)?;
        fits.then(|| SegmentMeaning { passages, embeddings: embeddings.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embeddings_survive_serialization() {
        let meaning = SegmentMeaning { passages: vec![1, 4], embeddings: vec![7; 2 * DIMENSIONS] };
        let bytes = meaning.to_bytes();
        let read = SegmentMeaning::from_bytes(&bytes).unwrap();
        assert_eq!((read.passages, read.embeddings), (meaning.passages, meaning.embeddings));
        for length in 0..bytes.len() {
            assert!(SegmentMeaning::from_bytes(&bytes[..length]).is_none_or(|it| it.size() == 0));
        }
    }
}
