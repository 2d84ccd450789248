//! Contents of files: compared, hashed and counted without holding large ones in memory.

use std::io::{self, Read};

use super::lines::LineCounts;
use super::sparse::{ReadLimits, SparseReader};
use swarmletfs_base::error::Result;
use swarmletfs_base::store::OpenFile;
use swarmletfs_record::write::{HashingReader, from_io};

/// Largest content that is held in memory, in bytes. Larger ones count as binary.
pub(super) const MEMORY_MAX: u64 = 16 << 20;
/// Number of bytes at the beginning in which git searches for a NUL.
const BINARY_SEARCH: usize = 8_000;
const BUFFER: usize = 256 << 10;

pub(super) enum FileContent {
    Small(Vec<u8>),
    Large(OpenFile),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ContentHash {
    pub(super) size: u64,
    pub(super) sha256: String,
}

impl ContentHash {
    /// Reads the whole of `file`, without limits.
    pub(super) fn of(file: OpenFile) -> Result<ContentHash> {
        let mut reader = HashingReader::new(file);
        io::copy(&mut reader, &mut io::sink()).map_err(from_io)?;
        let (size, sha256) = reader.into_hash();
        Ok(ContentHash { size, sha256 })
    }
}

impl FileContent {
    /// Reads `file` from its beginning.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or not within `limits`.
    pub(super) fn read(file: OpenFile, limits: ReadLimits<'_>) -> Result<FileContent> {
        limits.admit(&file)?;
        let mut bytes = Vec::new();
        let reader = SparseReader::new(&file, limits);
        reader.take(MEMORY_MAX + 1).read_to_end(&mut bytes).map_err(from_io)?;
        if bytes.len() as u64 <= MEMORY_MAX {
            Ok(FileContent::Small(bytes))
        } else {
            Ok(FileContent::Large(file))
        }
    }

    /// Calls `work` with a reader of the content. Returns its result, and the size and the hash of
    /// the bytes that it read.
    pub(super) fn hashed<T>(
        &self,
        limits: ReadLimits<'_>,
        work: impl FnOnce(&mut dyn Read) -> Result<T>,
    ) -> Result<(T, ContentHash)> {
        let mut reader = HashingReader::new(self.reader(limits));
        let done = work(&mut reader)?;
        let (size, sha256) = reader.into_hash();
        Ok((done, ContentHash { size, sha256 }))
    }

    pub(super) fn id(&self, limits: ReadLimits<'_>) -> Result<ContentHash> {
        let read = |reader: &mut dyn Read| io::copy(reader, &mut io::sink()).map_err(from_io);
        self.hashed(limits, read).map(|(_, id)| id)
    }

    pub(super) fn equals(&self, other: &FileContent, limits: ReadLimits<'_>) -> Result<bool> {
        match (self, other) {
            (FileContent::Small(one), FileContent::Small(other)) => return Ok(one == other),
            (FileContent::Large(one), FileContent::Large(other)) => {
                let size = |file: &OpenFile| file.metadata().map(|meta| meta.len());
                if size(one).map_err(from_io)? != size(other).map_err(from_io)? {
                    return Ok(false);
                }
            }
            _ => return Ok(false),
        }
        let (mut one, mut other) = (self.reader(limits), other.reader(limits));
        let (mut left, mut right) = (vec![0; BUFFER], vec![0; BUFFER]);
        loop {
            let n = fill(&mut one, &mut left).map_err(from_io)?;
            let m = fill(&mut other, &mut right).map_err(from_io)?;
            if left.get(..n) != right.get(..m) {
                return Ok(false);
            }
            if n == 0 {
                return Ok(true);
            }
        }
    }

    /// Returns the text, or `None` if the content is binary.
    pub(super) fn text(&self) -> Option<&str> {
        let FileContent::Small(bytes) = self else { return None };
        let begin = bytes.get(..BINARY_SEARCH).unwrap_or(bytes);
        if memchr::memchr(0, begin).is_some() {
            return None;
        }
        std::str::from_utf8(bytes).ok()
    }

    fn reader<'a>(&'a self, limits: ReadLimits<'a>) -> Box<dyn Read + 'a> {
        match self {
            FileContent::Small(bytes) => Box::new(bytes.as_slice()),
            FileContent::Large(file) => Box::new(SparseReader::new(file, limits)),
        }
    }
}

/// Counts the lines that differ between two contents. `None` stands for a missing content.
pub(super) fn count_lines(old: Option<&FileContent>, new: Option<&FileContent>) -> LineCounts {
    LineCounts::between(old.map(FileContent::text), new.map(FileContent::text))
}

/// Fills `buffer` as far as the reader has bytes. Returns their number.
fn fill(reader: &mut dyn Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match reader.read(rest) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io::{Seek, Write};

    use super::*;

    use swarmletfs_base::deadline::Deadline;

    fn within<T>(work: impl FnOnce(ReadLimits<'_>) -> T) -> T {
        let holes = Cell::new(u64::MAX);
        work(ReadLimits { deadline: Deadline::never(), holes: &holes })
    }

    fn content(parts: &[&[u8]]) -> FileContent {
        let mut file = tempfile::tempfile().unwrap();
        parts.iter().for_each(|part| file.write_all(part).unwrap());
        file.rewind().unwrap();
        within(|limits| FileContent::read(file, limits)).unwrap()
    }

    #[test]
    fn large_contents_are_compared_and_hashed_as_small_ones_are() {
        let zeros = vec![0; usize::try_from(MEMORY_MAX).unwrap()];
        let [one, other, third] = [b"ab", b"ab", b"ac"].map(|end| content(&[&zeros, end]));
        assert!(matches!(one, FileContent::Large(_)) && one.text().is_none());
        within(|limits| {
            assert!(one.equals(&other, limits).unwrap());
            assert!(!one.equals(&third, limits).unwrap());
            let all = [&zeros[..], b"ab"].concat();
            let id = one.id(limits).unwrap();
            assert_eq!(id, FileContent::Small(all).id(limits).unwrap());
            assert_eq!(id.size, MEMORY_MAX + 2);
            assert_ne!(id, third.id(limits).unwrap());
            assert!(!one.equals(&content(&[b"ab"]), limits).unwrap());
        });
    }

    #[test]
    fn binary_contents_are_told_as_git_does() {
        assert_eq!(content(&[b"a\n"]).text(), Some("a\n"));
        assert_eq!(content(&[b"a\0"]).text(), None);
        assert_eq!(content(&[b"\xff"]).text(), None);
        let late = [vec![b'a'; BINARY_SEARCH], vec![0]].concat();
        assert!(content(&[&late]).text().is_some());
    }
}
