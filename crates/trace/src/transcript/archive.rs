//! Compressed transcripts, decompressed once.
//!
//! A compressed stream can only be read from its beginning, but the parts of a transcript are read
//! in any order and many times. So it is decompressed as far as it is read, into blocks that are
//! kept in memory. Each block is compressed again, alone.

use std::collections::VecDeque;
use std::io::{BufReader, Read, Write};
use std::sync::Arc;

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use parking_lot::Mutex;
use rustix::io::Errno;

use super::cached_transcript::TranscriptVersion;
use super::document;
use super::zstd::Decompressed;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::RelPath;
use swarmletfs_base::split::Split;
use swarmletfs_base::store::{File, Meta, copy_from};

/// Maximum number of decompressed bytes that are kept of a file: one block more than any reader
/// reads.
const DECOMPRESSED_MAX: u64 = document::FILE_MAX + BLOCK as u64;
/// Length of a block before it is compressed again, in bytes.
const BLOCK: usize = 64 << 10;
/// Maximum memory for all blocks, in bytes. The contents that were read last are kept even beyond
/// it.
const CACHE_BYTES: usize = 128 << 20;
/// Weight of a decoder. It lets four decoders stay for transcripts that nobody reads. Most take a
/// few MiB, and none more than its window.
const DECODER_WEIGHT: usize = CACHE_BYTES / 4;
/// Maximum number of transcripts whose blocks are kept.
const CACHED_MAX: usize = 100;
/// A line after the contents of a damaged or torn file. It counts as one that cannot be read.
const DAMAGE: &[u8] = b"\n(the compressed file is damaged)\n";

type Decoder = Decompressed<BufReader<FileReader>>;

/// The decompressed transcripts of one store, the most recently read at the end.
#[derive(Default)]
pub(super) struct Archives(Mutex<VecDeque<(RelPath, TranscriptVersion, Arc<Archive>)>>);

impl Archives {
    fn get(
        &self,
        path: &RelPath,
        version: TranscriptVersion,
        file: &Arc<dyn File>,
    ) -> Arc<Archive> {
        let mut held = self.0.lock();
        let at = held.iter().position(|(known, ..)| known == path);
        let known = at.and_then(|at| held.remove(at)).filter(|(_, at, _)| *at == version);
        let archive = match known {
            Some((.., archive)) => archive,
            None => Arc::new(Archive::new(file.clone())),
        };
        held.push_back((path.clone(), version, archive.clone()));
        let mut weights: Vec<usize> = held.iter().map(|(.., archive)| archive.weight()).collect();
        weights.reverse();
        let mut total = 0;
        let kept = weights.into_iter().take(CACHED_MAX).take_while(|weight| {
            total += weight;
            total <= CACHE_BYTES
        });
        let surplus = held.len() - kept.count().max(1);
        held.drain(..surplus);
        archive
    }
}

/// A compressed file that reads as its contents.
pub(super) struct ArchiveFile {
    file: Arc<dyn File>,
    path: RelPath,
    archives: Arc<Archives>,
    /// The contents that were read last, which stay while the file is open.
    held: Mutex<Option<(TranscriptVersion, Arc<Archive>)>>,
}

impl ArchiveFile {
    pub(super) fn new(file: Box<dyn File>, path: RelPath, archives: Arc<Archives>) -> ArchiveFile {
        ArchiveFile { file: file.into(), path, archives, held: Mutex::new(None) }
    }
}

impl File for ArchiveFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let version = TranscriptVersion::new(self.file.meta()?);
        let held = self.held.lock().clone();
        let archive = match held.filter(|(of, _)| *of == version) {
            Some((_, archive)) => archive,
            None => {
                let archive = self.archives.get(&self.path, version, &self.file);
                *self.held.lock() = Some((version, archive.clone()));
                archive
            }
        };
        archive.read_at(buffer, offset)
    }

    fn meta(&self) -> Result<Meta> {
        self.file.meta()
    }
}

/// The contents of a compressed file, as far as they were read.
struct Archive {
    blocks: Mutex<Blocks>,
}

struct Blocks {
    file: Arc<dyn File>,
    /// `None` after the end of the contents. Damaged or torn contents end before the damage.
    decoder: Option<Decoder>,
    /// The bytes after the decoder's own.
    rest: &'static [u8],
    /// All blocks except the last one are full.
    compressed: Vec<Box<[u8]>>,
    /// Number of bytes in all blocks before they were compressed.
    length: u64,
    /// Memory use of all compressed blocks, in bytes.
    weight: usize,
    /// The block that was read last, by its number.
    last: Option<(usize, Vec<u8>)>,
}

impl Archive {
    fn new(file: Arc<dyn File>) -> Archive {
        Archive { blocks: Mutex::new(Blocks::new(file)) }
    }

    /// Returns the memory use in bytes, or 0 while another thread reads the contents.
    fn weight(&self) -> usize {
        self.blocks.try_lock().map_or(0, |blocks| {
            blocks.weight + if blocks.decoder.is_some() { DECODER_WEIGHT } else { 0 }
        })
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let mut blocks = self.blocks.lock();
        let mut filled = 0;
        while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            let at = offset.saturating_add(filled as u64);
            while at >= blocks.length {
                if !blocks.extend()? {
                    return Ok(filled);
                }
            }
            let (block, skip) = (at / BLOCK as u64, at % BLOCK as u64);
            let block = blocks.block(usize::try_from(block).unwrap_or(usize::MAX))?;
            filled += copy_from(block, skip, rest);
        }
        Ok(filled)
    }
}

impl Blocks {
    fn new(file: Arc<dyn File>) -> Blocks {
        let source = FileReader { file: file.clone(), offset: 0, failure: None };
        let decoder = Some(Decompressed::new(BufReader::new(source)));
        let (compressed, length, weight) = Default::default();
        Blocks { file, decoder, rest: b"", compressed, length, weight, last: None }
    }

    /// Reads the next block. Returns false at the end.
    fn extend(&mut self) -> Result<bool> {
        let mut block = Vec::with_capacity(BLOCK);
        if let Some(decoder) = &mut self.decoder {
            // The bytes before the damage are kept.
            let read = decoder.take(BLOCK as u64).read_to_end(&mut block);
            if read.is_err() {
                if let Some(failure) = decoder.source().get_mut().failure.take() {
                    *self = Blocks::new(self.file.clone());
                    return Err(failure);
                }
                self.rest = DAMAGE;
            }
            if read.is_err() || block.len() < BLOCK {
                self.decoder = None;
            }
        }
        let (bytes, rest) = self.rest.split_at_known(self.rest.len().min(BLOCK - block.len()));
        block.extend_from_slice(bytes);
        self.rest = rest;
        if block.is_empty() {
            return Ok(false);
        }
        let compressed = compress(&block).map_err(|_| Error::Io(Errno::NOMEM))?;
        self.length += block.len() as u64;
        if self.length >= DECOMPRESSED_MAX {
            self.decoder = None;
        }
        self.weight += compressed.len() + size_of::<Box<[u8]>>();
        self.last = Some((self.compressed.len(), block));
        self.compressed.push(compressed.into());
        Ok(true)
    }

    fn block(&mut self, number: usize) -> Result<&[u8]> {
        let held = self.last.take().filter(|(held, _)| *held == number);
        let block = match held {
            Some((_, block)) => block,
            None => {
                let compressed = self.compressed.get(number).ok_or(Error::Io(Errno::IO))?;
                let mut block = Vec::with_capacity(BLOCK);
                let read = DeflateDecoder::new(&**compressed).read_to_end(&mut block);
                read.map_err(|_| Error::Io(Errno::IO))?;
                block
            }
        };
        Ok(&self.last.insert((number, block)).1)
    }
}

struct FileReader {
    file: Arc<dyn File>,
    offset: u64,
    /// Why the file could not be read. Decoders hide it in their own errors.
    failure: Option<Error>,
}

impl Read for FileReader {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let n = self.file.read_at(out, self.offset).map_err(|error| {
            self.failure = Some(error.clone());
            std::io::Error::other(error)
        })?;
        self.offset += n as u64;
        Ok(n)
    }
}

fn compress(block: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(block)?;
    encoder.finish()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::scale::seed;
    use swarmletfs_base::name::Name;
    use swarmletfs_base::store::{Memory, Store, read_range};

    /// A compressed file that counts the bytes that were read of it.
    struct Counted(Vec<u8>, AtomicU64);

    impl File for Counted {
        fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
            let n = copy_from(&self.0, offset, buffer);
            self.1.fetch_add(n as u64, Ordering::Relaxed);
            Ok(n)
        }

        fn meta(&self) -> Result<Meta> {
            unreachable!("an archive has one version")
        }
    }

    fn contents(length: usize) -> Vec<u8> {
        let mut rng = fastrand::Rng::with_seed(seed());
        (0..length).map(|_| rng.u8(b'a'..=b'p')).collect()
    }

    fn archive(compressed: Vec<u8>) -> (Archive, Arc<Counted>) {
        let file = Arc::new(Counted(compressed, AtomicU64::new(0)));
        (Archive::new(file.clone()), file)
    }

    #[test]
    fn any_order_of_reads_decompresses_each_byte_once() {
        for length in [0, 1, BLOCK - 1, BLOCK, 3 * BLOCK + 7] {
            let contents = contents(length);
            let (archive, file) = archive(zstd::bulk::compress(&contents, 3).unwrap());
            let mut rng = fastrand::Rng::with_seed(seed());
            for _ in 0..200 {
                let (from, want) = (rng.usize(..=length + 9), rng.usize(1..2 * BLOCK));
                let mut read = vec![0; want];
                let n = archive.read_at(&mut read, from as u64).unwrap();
                let from = from.min(length);
                assert_eq!(read[..n], contents[from..length.min(from + want)]);
            }
            assert!(file.1.load(Ordering::Relaxed) <= file.0.len() as u64);
        }
    }

    #[test]
    fn damaged_contents_end_where_the_damage_begins_and_say_so() {
        let contents = contents(5 * BLOCK);
        let compressed = zstd::bulk::compress(&contents, 3).unwrap();
        for length in [compressed.len() / 2, compressed.len() / 2 + 77, compressed.len() - 1] {
            let (archive, _) = archive(compressed[..length].to_vec());
            let mut read = vec![0; contents.len() + DAMAGE.len()];
            let n = archive.read_at(&mut read, 0).unwrap();
            let end = n - DAMAGE.len();
            assert!((BLOCK..=contents.len()).contains(&end), "{n}");
            assert_eq!(read[..end], contents[..end]);
            assert_eq!(&read[end..n], DAMAGE);
            assert_eq!(archive.read_at(&mut read, n as u64).unwrap(), 0);
        }
    }

    /// A compressed file of which one read fails.
    struct Failing(Vec<u8>, AtomicU64);

    impl File for Failing {
        fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
            match self.1.fetch_sub(1, Ordering::Relaxed) {
                1 => Err(Error::Stale),
                _ => Ok(copy_from(&self.0, offset, buffer)),
            }
        }

        fn meta(&self) -> Result<Meta> {
            unreachable!("an archive has one version")
        }
    }

    #[test]
    fn failed_read_is_no_end_of_the_contents() {
        let contents = contents(5 * BLOCK);
        let compressed = zstd::bulk::compress(&contents, 3).unwrap();
        for failing in 1.. {
            let file = Failing(compressed.clone(), AtomicU64::new(failing));
            let archive = Archive::new(Arc::new(file));
            let mut read = vec![0; contents.len() + 1];
            let Err(error) = archive.read_at(&mut read, 0) else {
                assert!(failing > 3, "{failing}");
                break;
            };
            assert_eq!(error, Error::Stale, "{failing}");
            assert_eq!(archive.read_at(&mut read, 0).unwrap(), contents.len());
            assert!(read.starts_with(&contents));
        }
    }

    #[test]
    fn no_more_is_decompressed_than_is_ever_read() {
        let endless = zstd::bulk::compress(&vec![b' '; DECOMPRESSED_MAX as usize + BLOCK], 3);
        let (archive, _) = archive(endless.unwrap());
        assert_eq!(archive.read_at(&mut [0; 2], DECOMPRESSED_MAX - 1).unwrap(), 1);
        assert_eq!(archive.read_at(&mut [0], DECOMPRESSED_MAX).unwrap(), 0);
        assert!(archive.weight() < 2 << 20);
    }

    /// A file with metadata.
    struct Fixed(Vec<u8>, Meta);

    impl File for Fixed {
        fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
            Ok(copy_from(&self.0, offset, buffer))
        }

        fn meta(&self) -> Result<Meta> {
            Ok(self.1)
        }
    }

    #[test]
    fn archives_are_bounded_and_the_last_is_kept() {
        let archives = Arc::new(Archives::default());
        let meta = Memory::new().stat(&RelPath::root()).unwrap();
        let compressed = zstd::bulk::compress(&contents(2 * BLOCK), 3).unwrap();
        let path = |number: usize| RelPath::from(Name::new(format!("{number}")).unwrap());
        for number in 0..2 * CACHED_MAX {
            let file = Box::new(Fixed(compressed.clone(), meta));
            let file = ArchiveFile::new(file, path(number), archives.clone());
            read_range(&file, 0, 2 * BLOCK + 1).unwrap();
        }
        let held = archives.0.lock();
        assert_eq!(held.len(), CACHED_MAX);
        assert_eq!(held.back().unwrap().0, path(2 * CACHED_MAX - 1));
    }
}
