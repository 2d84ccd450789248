//! The write-ahead log of a database: the pages of transactions that are not in the database yet.
//!
//! Frames count up to the end of the last transaction whose checksums are right. Checksums are
//! cumulative, so the rest of a log that grew is read without the part before it.

use std::collections::HashMap;

use super::u32_at;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::RelPath;
use swarmletfs_base::split::Split;
use swarmletfs_base::store::{File, Meta, Store, read_range};

const HEADER: usize = 32;
const FRAME_HEADER: usize = 24;
/// The first four bytes of a log, except the last bit, which states the order of bytes in its
/// checksums.
const MAGIC: u32 = 0x377f_0682;
const VERSION: u32 = 3_007_000;
/// Maximum size of a log, in bytes.
const SIZE_MAX: u64 = 1 << 30;

pub(super) struct Wal {
    file: Box<dyn File>,
    /// Metadata of the log before it was read.
    pub(super) meta: Meta,
    /// The header, which is written again whenever the log begins anew.
    header: [u8; HEADER],
    checksum: Checksum,
    /// Number of frames up to the end of the last whole transaction.
    pub(super) frames: u64,
    /// The number of the last frame that holds a page.
    latest: HashMap<u32, u64>,
    pub(super) page_size: usize,
    /// Number of pages of the database after the last transaction.
    pub(super) pages: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Checksum {
    is_big_endian: bool,
    sums: [u32; 2],
}

impl Checksum {
    /// Adds `bytes`, whose number is a multiple of eight.
    fn add(&mut self, bytes: &[u8]) {
        let [mut first, mut second] = self.sums;
        let (pairs, _) = bytes.as_chunks::<8>();
        for [a, b, c, d, e, f, g, h] in pairs {
            let word = if self.is_big_endian { u32::from_be_bytes } else { u32::from_le_bytes };
            first = first.wrapping_add(word([*a, *b, *c, *d])).wrapping_add(second);
            second = second.wrapping_add(word([*e, *f, *g, *h])).wrapping_add(first);
        }
        self.sums = [first, second];
    }

    fn equals(self, bytes: &[u8], at: usize) -> bool {
        let [first, second] = self.sums;
        u32_at(bytes, at) == Some(first) && u32_at(bytes, at + 4) == Some(second)
    }
}

impl Wal {
    /// Reads the log at `path`. Takes the part that was read before from `known`. Returns `None` if
    /// there is no log, or none with a valid header: then the database is whole without it.
    ///
    /// # Errors
    ///
    /// Fails if the log cannot be read, or is too large.
    pub(super) fn read(
        store: &dyn Store,
        path: &RelPath,
        known: Option<&Wal>,
    ) -> Result<Option<Wal>> {
        let file = match store.open(path) {
            Err(error) if error.is_not_found() => return Ok(None),
            file => file?,
        };
        let meta = file.meta()?;
        if meta.size > SIZE_MAX {
            return Err(Error::Malformed("the write-ahead log of the database is too large"));
        }
        let header = read_header(&*file)?;
        let Some((page_size, checksum)) = header.as_ref().and_then(parse_header) else {
            return Ok(None);
        };
        let header = header.unwrap_or_default();
        let known = known.filter(|known| known.header == header);
        let mut wal = Wal {
            file,
            meta,
            header,
            checksum: known.map_or(checksum, |known| known.checksum),
            frames: known.map_or(0, |known| known.frames),
            latest: known.map(|known| known.latest.clone()).unwrap_or_default(),
            page_size,
            pages: known.map_or(0, |known| known.pages),
        };
        wal.read_frames()?;
        Ok(Some(wal))
    }

    fn read_frames(&mut self) -> Result<()> {
        let salts = self.header.split_at_known(16).1.split_at_known(8).0.to_vec();
        let (mut checksum, mut next, mut pending) = (self.checksum, self.frames, Vec::new());
        let length = FRAME_HEADER + self.page_size;
        loop {
            let frame = read_range(&*self.file, self.offset(next), length)?;
            if frame.len() < length {
                return Ok(());
            }
            let (head, page) = frame.split_at_known(FRAME_HEADER);
            let (number, pages) = (u32_at(head, 0), u32_at(head, 4));
            checksum.add(head.split_at_known(8).0);
            checksum.add(page);
            let is_valid = head.get(8..16) == Some(&*salts) && checksum.equals(head, 16);
            let (Some(number @ 1..), Some(pages), true) = (number, pages, is_valid) else {
                return Ok(());
            };
            pending.push((number, next));
            next += 1;
            if pages > 0 {
                self.latest.extend(pending.drain(..));
                (self.frames, self.pages, self.checksum) = (next, pages, checksum);
            }
        }
    }

    fn offset(&self, frame: u64) -> u64 {
        HEADER as u64 + frame.saturating_mul((FRAME_HEADER + self.page_size) as u64)
    }

    /// Returns the number of the last frame that holds the page.
    pub(super) fn frame_of(&self, page: u32) -> Option<u64> {
        self.latest.get(&page).copied()
    }

    pub(super) fn read_page(&self, frame: u64) -> Result<Vec<u8>> {
        read_range(&*self.file, self.offset(frame) + FRAME_HEADER as u64, self.page_size)
    }

    /// Returns true if the log did not begin anew, so that its frames are still there.
    pub(super) fn is_same(&self) -> Result<bool> {
        Ok(read_header(&*self.file)? == Some(self.header))
    }

    pub(super) fn continues(&self, header: &[u8; HEADER]) -> bool {
        self.header == *header
    }

    pub(super) fn header(&self) -> [u8; HEADER] {
        self.header
    }
}

fn read_header(file: &dyn File) -> Result<Option<[u8; HEADER]>> {
    Ok(read_range(file, 0, HEADER)?.first_chunk().copied())
}

/// Returns the size of a page, and the checksum with which frames begin. Returns `None` if the
/// header is invalid.
fn parse_header(header: &[u8; HEADER]) -> Option<(usize, Checksum)> {
    let magic = u32_at(header, 0)?;
    let mut checksum = Checksum { is_big_endian: magic & 1 == 1, sums: [0, 0] };
    checksum.add(header.get(..24)?);
    let size = match u32_at(header, 8)? {
        size @ 512..=65_536 if size.is_power_of_two() => usize::try_from(size).ok()?,
        _ => return None,
    };
    let is_known = magic & !1 == MAGIC && u32_at(header, 4)? == VERSION;
    (is_known && checksum.equals(header, 24)).then_some((size, checksum))
}
