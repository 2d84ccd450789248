//! Opens the transcript at a location as one file, in whatever form it is stored.

use std::io::{BufReader, Read};

use parking_lot::Mutex;
use rustix::io::Errno;

use super::location::{Container, TranscriptLocation};
use crate::error::{Error, Result};
use crate::name::{Name, RelPath};
use crate::store::{File, Kind, Meta, Store, read_range};

/// Maximum number of records in a directory; further ones are not read.
const RECORDS_MAX: usize = 200_000;
/// Binary logarithm of the largest zstd window that is accepted, in bytes.
const WINDOW_LOG_MAX: u32 = 27;

/// Opens the transcript at `location` in the entered directory `folder`.
///
/// # Errors
///
/// Fails if the transcript cannot be opened.
pub(super) fn open(folder: &dyn Store, location: &TranscriptLocation) -> Result<Box<dyn File>> {
    match location.container {
        Container::File => folder.open(&location.transcript),
        Container::Zstd => ZstdFile::new(folder.open(&location.transcript)?).map(boxed),
        Container::Folder => FolderFile::new(folder, &location.transcript).map(boxed),
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
pub(super) fn meta(folder: &dyn Store, location: &TranscriptLocation) -> Result<Meta> {
    match location.container {
        Container::File | Container::Zstd => folder.stat(&location.transcript),
        Container::Folder => FolderFile::new(folder, &location.transcript)?.meta(),
    }
}

/// The decompressed contents of a file. Reading forwards is fast; reading backwards starts over.
struct ZstdFile {
    source: Mutex<ZstdSource>,
}

struct ZstdSource {
    file: std::sync::Arc<dyn File>,
    decoder: Option<Decoder>,
    /// Offset of the next decompressed byte.
    offset: u64,
}

type Decoder = zstd::stream::read::Decoder<'static, BufReader<FileReader>>;

/// Reads a file from its beginning.
struct FileReader {
    file: std::sync::Arc<dyn File>,
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

/// A directory of records as one file: a line for each file in it, in the order of their numbers.
struct FolderFile {
    folder: Box<dyn Store>,
    listing: Mutex<RecordListing>,
}

/// The record files of a directory.
#[derive(Default)]
struct RecordListing {
    files: Vec<RecordFile>,
    /// Length of all lines, in bytes.
    size: u64,
}

/// A file with one record.
struct RecordFile {
    path: RelPath,
    /// Length of the file, in bytes.
    len: u64,
    /// Offset at which its line begins.
    begin: u64,
    /// Offset at which its line ends.
    end: u64,
}

impl FolderFile {
    fn new(folder: &dyn Store, path: &RelPath) -> Result<FolderFile> {
        let file = FolderFile { folder: folder.enter(path)?, listing: Mutex::default() };
        file.meta()?;
        Ok(file)
    }

    /// Reads the listing again. Files are written once, so only new ones and the last are statted.
    fn refresh(&self, listing: &mut RecordListing) -> Result<Option<Meta>> {
        let mut numbered: Vec<(u64, Name)> = self
            .folder
            .list(&RelPath::root())?
            .into_iter()
            .filter(|entry| entry.kind == Kind::File)
            .filter_map(|entry| Some((record_number(&entry.name)?, entry.name)))
            .collect();
        numbered.sort_unstable();
        numbered.truncate(RECORDS_MAX);
        let known = std::mem::take(&mut listing.files);
        let settled = known.len().saturating_sub(1);
        listing.size = 0;
        let mut last = None;
        for (at, (_, name)) in numbered.into_iter().enumerate() {
            let path = RelPath::from(name);
            let len = match known.get(at).filter(|known| at < settled && known.path == path) {
                Some(known) => known.len,
                None => match self.folder.stat(&path) {
                    Ok(meta) => {
                        last = Some(meta);
                        meta.size
                    }
                    Err(error) if error.is_not_found() => continue,
                    Err(error) => return Err(error),
                },
            };
            let begin = listing.size;
            listing.size += len + 1;
            listing.files.push(RecordFile { path, len, begin, end: listing.size });
        }
        // The line of a record that is being written has no end yet.
        if let Some(file) = listing.files.last_mut()
            && !self.is_whole(file)?
        {
            file.end -= 1;
            listing.size -= 1;
        }
        Ok(last)
    }

    /// Returns true if the last byte of a record closes an object.
    fn is_whole(&self, record: &RecordFile) -> Result<bool> {
        let tail = read_range(&*self.folder.open(&record.path)?, record.len.saturating_sub(8), 8)?;
        Ok(tail.trim_ascii_end().ends_with(b"}"))
    }
}

impl File for FolderFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let listing = self.listing.lock();
        let first = listing.files.partition_point(|file| file.end <= offset);
        let (mut at, mut filled) = (offset, 0);
        for record in listing.files.iter().skip(first) {
            let (_, rest) = buffer.split_at_mut(filled);
            let want = rest.len().min(usize::try_from(record.end - at).unwrap_or(usize::MAX));
            let (line, _) = rest.split_at_mut(want);
            let inside = at - record.begin;
            let bytes = read_range(&*self.folder.open(&record.path)?, inside, line.len())?;
            // A short file is filled up, so that the offsets of later records stay.
            line.fill(b' ');
            line.iter_mut().zip(&bytes).for_each(|(byte, read)| {
                *byte = if matches!(read, b'\n' | b'\r') { b' ' } else { *read };
            });
            at += line.len() as u64;
            if at == record.end && record.end - record.begin > record.len {
                line.last_mut().into_iter().for_each(|byte| *byte = b'\n');
            }
            filled += line.len();
            if filled == buffer.len() {
                break;
            }
        }
        Ok(filled)
    }

    fn meta(&self) -> Result<Meta> {
        let mut listing = self.listing.lock();
        let last = self.refresh(&mut listing)?;
        let folder = self.folder.stat(&RelPath::root())?;
        let newest = last.unwrap_or(folder);
        Ok(Meta {
            kind: Kind::File,
            size: listing.size,
            nlink: 1,
            mode: folder.mode & !0o111,
            mtime: folder.mtime.max(newest.mtime),
            ctime: folder.ctime.max(newest.ctime),
            ..folder
        })
    }
}

/// Returns the first number in the name of a record file.
fn record_number(name: &Name) -> Option<u64> {
    let stem = name.as_bytes().strip_suffix(b".json")?;
    let digits: String = stem
        .iter()
        .map(|byte| char::from(*byte))
        .skip_while(|c| !c.is_ascii_digit())
        .take_while(char::is_ascii_digit)
        .collect();
    digits.parse().ok()
}
