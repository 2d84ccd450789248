//! Reads files with holes, within bounds of time and of holes.
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
use swarmletfs_base::store::OpenFile;
use swarmletfs_record::write::from_io;

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
    pub(super) fn admit(self, file: &OpenFile) -> Result<()> {
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
struct Extent {
    /// Start of the data; at the end of a file, its size.
    start: u64,
    end: u64,
}

impl Extent {
    /// Returns the first data from `at` on; `None` at the end of the file.
    fn find(file: &OpenFile, at: u64) -> Result<Option<Extent>> {
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

#[cfg(test)]
mod tests {
    use std::io::{Seek, Write};

    use super::*;

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
