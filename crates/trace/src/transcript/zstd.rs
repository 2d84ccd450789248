//! Reads files compressed by zstd.

use std::io::{Error, Read, Result};

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// Maximum window of a frame, in bytes: a decoder keeps that many of its last ones. RFC 8878 asks
/// for this much, and a compressor takes more only with `--ultra` or `--long`.
const WINDOW_MAX: u64 = 8 << 20;
/// A last block without content, and a checksum, which is not verified.
const LAST_BLOCK: [u8; 7] = [1, 0, 0, 0, 0, 0, 0];

/// A reader that decompresses another reader, frame after frame.
///
/// If the compressed bytes end early or are damaged, it returns the contents before the damage, and
/// then the error.
pub(super) struct Decompressed<R> {
    source: R,
    decoder: FrameDecoder,
    error: Option<Error>,
}

impl<R: Read> Decompressed<R> {
    pub(super) fn new(source: R) -> Decompressed<R> {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(WINDOW_MAX);
        Decompressed { source, decoder, error: None }
    }

    pub(super) fn source(&mut self) -> &mut R {
        &mut self.source
    }

    /// Begins the next frame. Returns false at the end of the source.
    fn next_frame(&mut self) -> Result<bool> {
        loop {
            let mut first = [0];
            if self.source.by_ref().take(1).read(&mut first)? == 0 {
                return Ok(false);
            }
            match self.decoder.init(first.chain(&mut self.source)) {
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    std::io::copy(
                        &mut self.source.by_ref().take(length.into()),
                        &mut std::io::sink(),
                    )?;
                }
                done => return done.map(|()| true).map_err(Error::other),
            }
        }
    }

    /// Ends the frame, so that the decoder gives out its window.
    fn end_frame(&mut self) -> Result<bool> {
        let one = BlockDecodingStrategy::UptoBlocks(1);
        self.decoder.decode_blocks(LAST_BLOCK.as_slice(), one).map_err(Error::other)
    }

    /// Decodes until there is something to collect. Returns false at the end of the contents.
    fn fill(&mut self) -> Result<bool> {
        while self.decoder.can_collect() == 0 {
            if let Some(error) = self.error.take() {
                return Err(error);
            }
            if self.decoder.is_finished() {
                if !self.next_frame()? {
                    return Ok(false);
                }
                continue;
            }
            let one = BlockDecodingStrategy::UptoBlocks(1);
            if let Err(error) = self.decoder.decode_blocks(&mut self.source, one) {
                self.end_frame()?;
                self.error = Some(Error::other(error));
            }
        }
        Ok(true)
    }
}

/// Returns the beginning of the decompressed contents of `compressed`, which may end anywhere: at
/// most `limit` bytes. Decodes little more than that, whatever the window.
pub(crate) fn beginning(compressed: &[u8], limit: usize) -> Vec<u8> {
    let mut reader = Decompressed::new(compressed);
    let mut out = Vec::new();
    while out.len() < limit && matches!(reader.next_frame(), Ok(true)) {
        let room = limit - out.len();
        let decoded = reader
            .decoder
            .decode_blocks(&mut reader.source, BlockDecodingStrategy::UptoBytes(room));
        let is_whole = matches!(decoded, Ok(true));
        if !is_whole && reader.end_frame().is_err() {
            break;
        }
        // Reading from memory does not fail.
        let _ = reader.decoder.by_ref().take(room as u64).read_to_end(&mut out);
        if !is_whole {
            break;
        }
    }
    out
}

impl<R: Read> Read for Decompressed<R> {
    fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        if out.is_empty() || !self.fill()? {
            return Ok(0);
        }
        self.decoder.read(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scale::{scale, seed};

    /// A frame that readers skip.
    const SKIPPABLE: &[u8] = b"\x50\x2a\x4d\x18\x03\0\0\0abc";

    fn contents(length: usize) -> Vec<u8> {
        let mut rng = fastrand::Rng::with_seed(seed());
        (0..length).map(|_| rng.u8(b'a'..=b'd')).collect()
    }

    fn compress(bytes: &[u8]) -> Vec<u8> {
        zstd::bulk::compress(bytes, 3).unwrap()
    }

    /// Returns the contents, and true if an error follows them.
    fn read(compressed: &[u8]) -> (Vec<u8>, bool) {
        let mut out = Vec::new();
        let read = Decompressed::new(compressed).read_to_end(&mut out);
        (out, read.is_err())
    }

    #[test]
    fn contents_of_all_frames_are_read() {
        let parts = [contents(0), contents(1), contents(5 << 20), contents(300_000)];
        let frames: Vec<Vec<u8>> = parts.iter().map(|part| compress(part)).collect();
        let source = [SKIPPABLE, &frames.concat(), SKIPPABLE].concat();
        assert_eq!(read(&source), (parts.concat(), false));
        assert_eq!(read(b""), (Vec::new(), false));
    }

    #[test]
    fn contents_before_a_torn_end_are_read() {
        let contents = contents(1 << 20);
        let compressed = compress(&contents);
        let (mut longest, step) = (0, compressed.len() / 97);
        for length in (1..compressed.len()).step_by(step) {
            let (read, is_torn) = read(&compressed[..length]);
            assert!(is_torn && contents.starts_with(&read), "{length}");
            assert!(read.len() >= longest, "{length}");
            longest = read.len();
        }
        assert!(longest > contents.len() / 2, "{longest}");
        let followed = [&compressed, &b"no frame"[..]].concat();
        assert_eq!(read(&followed), (contents, true));
    }

    #[test]
    fn beginning_is_read_without_the_window() {
        let contents = contents(3 << 20);
        let compressed = [SKIPPABLE, &compress(&contents)].concat();
        for length in [compressed.len(), compressed.len() / 3] {
            assert_eq!(beginning(&compressed[..length], 1_000), contents[..1_000]);
        }
        assert_eq!(beginning(&compress(b"short"), 1_000), b"short");
        let frames = [compress(b""), compress(b"in "), compress(b"frames")].concat();
        assert_eq!(beginning(&frames, 7), b"in fram");
        assert_eq!(beginning(b"no frame", 1_000), b"");
        // Blocks of 128 KiB of zeros.
        let block = [0x02, 0x00, 0x10, 0];
        let bomb = [&[0x28, 0xb5, 0x2f, 0xfd, 0x00, (23 - 10) << 3][..], &block.repeat(9_000)];
        assert_eq!(beginning(&bomb.concat(), 1_000), [0; 1_000]);
    }

    #[test]
    fn damage_ends_the_contents() {
        let compressed = compress(&contents(400_000));
        let mut rng = fastrand::Rng::with_seed(seed());
        for _ in 0..scale(500) {
            let mut damaged = compressed.clone();
            for _ in 0..rng.usize(1..4) {
                let at = rng.usize(..damaged.len());
                damaged[at] = rng.u8(..);
            }
            let mut out = Vec::new();
            let _ = Decompressed::new(&*damaged).take(1 << 20).read_to_end(&mut out);
        }
    }

    #[test]
    fn large_windows_are_refused() {
        // A window of 2^24 bytes, and a block of one.
        let frame = [0x28, 0xb5, 0x2f, 0xfd, 0x00, (24 - 10) << 3, 0x09, 0, 0, b'a'];
        assert_eq!(read(&frame), (Vec::new(), true));
        let small = [&frame[..5], &[(23 - 10) << 3], &frame[6..]].concat();
        assert_eq!(read(&small), (b"a".to_vec(), false));
    }
}
