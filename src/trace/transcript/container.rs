//! Opens the transcript at a location as one file, in whatever form it is stored.

use std::io::{BufReader, Read};

use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;

use super::folder_file::{FolderFile, FolderListings};
use super::location::{Container, TranscriptLocation};
use crate::error::{Error, Result};
use crate::store::{File, Meta, Store};

/// Binary logarithm of the largest zstd window that is accepted, in bytes.
const WINDOW_LOG_MAX: u32 = 27;

/// Opens the transcript at `location` in the entered directory `folder`.
///
/// # Errors
///
/// Fails if the transcript cannot be opened.
pub(super) fn open(
    folder: &dyn Store,
    location: &TranscriptLocation,
    listings: &Arc<FolderListings>,
) -> Result<Box<dyn File>> {
    match location.container {
        Container::File => folder.open(&location.transcript),
        Container::Zstd => ZstdFile::new(folder.open(&location.transcript)?).map(boxed),
        Container::Folder => FolderFile::new(folder, location, listings).map(boxed),
    }
}

fn boxed(file: impl File + 'static) -> Box<dyn File> {
    Box::new(file)
}

/// Returns the metadata of the transcript at `location`: that of a regular file. Its size is 0 if
/// only reading tells it.
///
/// # Errors
///
/// Fails if the metadata cannot be read.
pub(super) fn meta(
    folder: &dyn Store,
    location: &TranscriptLocation,
    listings: &Arc<FolderListings>,
) -> Result<Meta> {
    match location.container {
        Container::File | Container::Zstd => folder.stat(&location.transcript),
        Container::Folder => FolderFile::new(folder, location, listings)?.meta(),
    }
}

/// The decompressed contents of a file. Reading forwards is fast; reading backwards starts over.
struct ZstdFile {
    source: Mutex<ZstdSource>,
}

struct ZstdSource {
    file: Arc<dyn File>,
    decoder: Option<Decoder>,
    /// Offset of the next decompressed byte.
    offset: u64,
}

type Decoder = zstd::stream::read::Decoder<'static, BufReader<FileReader>>;

/// Reads a file from its beginning.
struct FileReader {
    file: Arc<dyn File>,
    offset: u64,
}

impl Read for FileReader {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let n = self.file.read_at(out, self.offset).map_err(std::io::Error::other)?;
        self.offset += n as u64;
        Ok(n)
    }
}

impl ZstdFile {
    fn new(file: Box<dyn File>) -> Result<ZstdFile> {
        let source = ZstdSource { file: file.into(), decoder: None, offset: 0 };
        Ok(ZstdFile { source: Mutex::new(source) })
    }
}

impl ZstdSource {
    fn new_decoder(&self) -> std::io::Result<Decoder> {
        let reader = BufReader::new(FileReader { file: self.file.clone(), offset: 0 });
        let mut decoder = Decoder::with_buffer(reader)?;
        decoder.window_log_max(WINDOW_LOG_MAX)?;
        Ok(decoder)
    }

    /// Reads decompressed bytes at `offset`. Damaged or torn contents end the file.
    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let mut decoder = match self.decoder.take().filter(|_| offset >= self.offset) {
            Some(decoder) => decoder,
            None => {
                self.offset = 0;
                self.new_decoder().map_err(|_| Error::Io(Errno::IO))?
            }
        };
        let skipped =
            std::io::copy(&mut decoder.by_ref().take(offset - self.offset), &mut std::io::sink());
        let Ok(skipped) = skipped else { return Ok(0) };
        self.offset += skipped;
        let mut filled = 0;
        while self.offset == offset + filled as u64 && filled < buffer.len() {
            let (_, rest) = buffer.split_at_mut(filled);
            match decoder.read(rest) {
                Ok(0) | Err(_) => break,
                Ok(n) => {
                    filled += n;
                    self.offset += n as u64;
                }
            }
        }
        self.decoder = Some(decoder);
        Ok(filled)
    }
}

impl File for ZstdFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.source.lock().read_at(buffer, offset)
    }

    fn meta(&self) -> Result<Meta> {
        self.source.lock().file.meta()
    }
}
