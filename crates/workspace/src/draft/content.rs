//! Contents of files: compared, hashed and counted without holding large ones in memory, and stored
//! in trees, under the paths that they have in the workspace.
//!
//! A worker makes a file of many gigabytes in no time if it has holes, or as another name of one
//! that is there. So holes are counted, and each read polls a deadline.

use std::cell::Cell;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{Kind, OpenFile};
use swarmletfs_base::text::unified;
use swarmletfs_record::write::{Dir, HashingReader, from_io};

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

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct LineCounts {
    pub(super) added: u64,
    pub(super) removed: u64,
    pub(super) is_binary: bool,
}

impl LineCounts {
    /// Counts the lines that differ between two contents. The outer `None` is no content, and the
    /// inner one a binary content.
    pub(super) fn between(old: Option<Option<&str>>, new: Option<Option<&str>>) -> LineCounts {
        let (old, new) = (old.unwrap_or(Some("")), new.unwrap_or(Some("")));
        let (Some(old), Some(new)) = (old, new) else {
            return LineCounts { is_binary: true, ..LineCounts::default() };
        };
        let (added, removed) = if old.is_empty() || new.is_empty() {
            (new.split_inclusive('\n').count(), old.split_inclusive('\n').count())
        } else {
            let hunks = unified::hunks(old, new);
            let sum = |count: fn(&unified::Hunk) -> usize| hunks.iter().map(count).sum::<usize>();
            (sum(|hunk| hunk.added), sum(|hunk| hunk.removed))
        };
        LineCounts { added: added as u64, removed: removed as u64, is_binary: false }
    }

    /// Returns the counts of a path whose entry of one kind gave way to one of another kind.
    pub(super) fn replaced(old: LineCounts, new: LineCounts) -> LineCounts {
        let is_binary = old.is_binary || new.is_binary;
        LineCounts { added: new.added, removed: old.removed, is_binary }
    }
}

/// Error of a read after its deadline.
const LATE: Errno = Errno::TIME;
/// Error of a file with more holes than are read.
const HOLES: Errno = Errno::FBIG;
/// Maximum size of all holes that one search reads, in bytes.
pub(super) const HOLES_MAX: u64 = 1 << 30;

#[derive(Clone, Copy)]
pub(super) struct ReadLimits<'a> {
    pub(super) deadline: Deadline<'a>,
    /// Size of the holes that may still be read, in bytes.
    pub(super) holes: &'a Cell<u64>,
}

impl ReadLimits<'_> {
    /// Subtracts the holes of `file` from the holes that may still be read.
    ///
    /// # Errors
    ///
    /// The holes are too large, or the deadline has passed.
    fn admit(self, file: &OpenFile) -> Result<()> {
        let left = self.holes.get();
        let (mut at, mut holes) = (0, 0);
        while let Some(extent) = Extent::find(file, at)? {
            if !self.deadline.has_time() {
                return Err(Error::Io(LATE));
            }
            holes += extent.start - at;
            at = extent.end;
            if holes > left {
                return Err(Error::Io(HOLES));
            }
        }
        self.holes.set(left - holes);
        Ok(())
    }
}

/// Returns why a file was not read because of the limits; `None` for another error.
pub(super) fn describe_limit(error: &Error) -> Option<String> {
    match error {
        Error::Io(LATE) => Some("there was no time left to read it".to_owned()),
        Error::Io(HOLES) => {
            let most = HOLES_MAX >> 30;
            Some(format!("its holes were not read: all changed files may have {most} GiB of them"))
        }
        _ => None,
    }
}

/// A part of a file after a hole, which may be empty.
pub(super) struct Extent {
    /// Start of the data; at the end of a file, its size.
    pub(super) start: u64,
    pub(super) end: u64,
}

impl Extent {
    /// Returns the first data from `at` on; `None` at the end of the file.
    pub(super) fn find(file: &OpenFile, at: u64) -> Result<Option<Extent>> {
        let size = file.metadata().map_err(from_io)?.len();
        if at >= size {
            return Ok(None);
        }
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => return Ok(Some(Extent { start: size, end: size })),
            // The file system knows no holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => {
                return Ok(Some(Extent { start: at, end: size }));
            }
            start => start?.clamp(at, size),
        };
        let end = rustix::fs::seek(file, SeekFrom::Hole(start))?;
        Ok(Some(Extent { start, end: end.clamp(start, size) }))
    }
}

/// Reads a file from its beginning. The zeros of its holes do not come from the disk.
pub(super) struct SparseReader<'a> {
    file: &'a OpenFile,
    deadline: Deadline<'a>,
    at: u64,
    extent: Extent,
}

impl<'a> SparseReader<'a> {
    pub(super) fn new(file: &'a OpenFile, limits: ReadLimits<'a>) -> SparseReader<'a> {
        let extent = Extent { start: 0, end: 0 };
        SparseReader { file, deadline: limits.deadline, at: 0, extent }
    }
}

impl Read for SparseReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if !self.deadline.has_time() {
            return Err(LATE.into());
        }
        if self.at >= self.extent.end {
            let found = Extent::find(self.file, self.at).map_err(|error| error.errno())?;
            let Some(extent) = found else { return Ok(0) };
            self.extent = extent;
        }
        let hole = self.extent.start.saturating_sub(self.at);
        let read = if hole == 0 {
            self.file.read_at(buffer, self.at)?
        } else {
            io::repeat(0).take(hole).read(buffer)?
        };
        self.at += read as u64;
        Ok(read)
    }
}

/// Writes the file `path` beneath `root`. Removes any other entry that has its name or the name of
/// a parent, since a worker may have put it there.
pub(super) fn store_content(root: &Dir, path: &RelPath, content: &mut dyn Read) -> Result<()> {
    let name = path.file_name().ok_or(Error::InvalidName)?;
    let parent = path.parent().names().try_fold(None, |parent: Option<Dir>, name| {
        enter_or_replace(parent.as_ref().unwrap_or(root), &name).map(Some)
    })?;
    let parent = parent.as_ref().unwrap_or(root);
    let temporary = parent.write_temporary(content)?;
    if parent.kind(&RelPath::from(name.clone()))?.is_some_and(|kind| kind != Kind::File) {
        parent.remove_all(&name)?;
    }
    temporary.replace(parent, &name)
}

/// Opens the directory `name`. Creates it in place of any other entry with this name.
pub(super) fn enter_or_replace(parent: &Dir, name: &Name) -> Result<Dir> {
    let kind = parent.kind(&RelPath::from(name.clone()))?;
    if kind.is_some_and(|kind| kind != Kind::Folder) {
        parent.remove_all(name)?;
    }
    parent.enter_or_create(name)
}

pub(super) fn open_stored(root: &Dir, path: &RelPath) -> Result<Option<OpenFile>> {
    let name = path.file_name().ok_or(Error::InvalidName)?;
    match root.enter(&path.parent()) {
        Ok(parent) => parent.open_to_read(&name),
        Err(Error::NotFound | Error::NotADirectory) => Ok(None),
        Err(error) => Err(error),
    }
}

pub(super) fn remove_content(root: &Dir, path: &RelPath) -> Result<()> {
    let name = path.file_name().ok_or(Error::InvalidName)?;
    match root.enter(&path.parent()) {
        Ok(parent) => parent.remove_all(&name),
        Err(Error::NotFound | Error::NotADirectory) => Ok(()),
        Err(error) => Err(error),
    }
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

    #[test]
    fn counts_are_those_of_the_diff() {
        let between = |old, new| {
            let counts = LineCounts::between(old, new);
            (counts.added, counts.removed, counts.is_binary)
        };
        assert_eq!(between(None, Some(Some("a\nb"))), (2, 0, false));
        assert_eq!(between(Some(Some("a\nb\n")), None), (0, 2, false));
        assert_eq!(between(Some(Some("a\nb\nc\n")), Some(Some("a\nx\ny\nc\n"))), (2, 1, false));
        assert_eq!(between(Some(None), Some(Some("a"))), (0, 0, true));
        assert_eq!(between(None, Some(Some(""))), (0, 0, false));
    }

    const MIB: u64 = 1 << 20;

    /// Returns a file with a hole before, between and after two texts.
    fn sparse() -> OpenFile {
        let mut file = tempfile::tempfile_in("/dev/shm").unwrap();
        for (at, text) in [(3 * MIB, "one"), (9 * MIB, "two")] {
            file.seek(io::SeekFrom::Start(at)).unwrap();
            file.write_all(text.as_bytes()).unwrap();
        }
        file.set_len(20 * MIB).unwrap();
        file
    }

    #[test]
    fn holes_are_read_as_zeros() {
        let (file, holes) = (sparse(), Cell::new(u64::MAX));
        let limits = ReadLimits { deadline: Deadline::never(), holes: &holes };
        let mut read = Vec::new();
        SparseReader::new(&file, limits).read_to_end(&mut read).unwrap();
        let mut plain = Vec::new();
        (&file).rewind().unwrap();
        (&file).read_to_end(&mut plain).unwrap();
        assert!(read == plain && read.len() as u64 == 20 * MIB);
    }

    #[test]
    fn holes_and_time_are_bounded() {
        let (file, holes) = (sparse(), Cell::new(30 * MIB));
        let limits = ReadLimits { deadline: Deadline::never(), holes: &holes };
        limits.admit(&file).unwrap();
        let left = holes.get();
        assert!((10 * MIB..11 * MIB).contains(&left), "{left}");
        assert!(describe_limit(&limits.admit(&file).unwrap_err()).is_some());
        assert_eq!(holes.get(), left);
        let late = ReadLimits { deadline: Deadline::passed(), holes: &holes };
        let error = SparseReader::new(&file, late).read(&mut [0; 8]).unwrap_err();
        assert!(describe_limit(&from_io(error)).is_some());
    }
}
