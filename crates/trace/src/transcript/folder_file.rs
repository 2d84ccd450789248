//! A directory with a file for each record, read as one file of lines.
//!
//! Record files are written once and in order. Only new ones and the last are statted again, so a
//! refresh costs two stats, and a listing if the directory changed.

use std::sync::Arc;

use parking_lot::Mutex;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use super::location::TranscriptLocation;
use swarmletfs_base::cache::single_shard;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{File, Identity, Kind, Meta, Store, read_range};

/// Maximum number of records in a directory; further ones are not read.
const RECORDS_MAX: usize = 200_000;
const LISTINGS_BYTES: u64 = 64 << 20;
const EXPECTED_LISTINGS: usize = 1_000;
const RECORD_WEIGHT: u64 = 120;
/// Number of bytes at the end of a record that show whether it is whole.
const TAIL_BYTES: u64 = 8;

pub(super) struct FolderListings(Cache<RelPath, Arc<RecordListing>, ListingWeighter>);

impl Default for FolderListings {
    fn default() -> FolderListings {
        FolderListings(single_shard(EXPECTED_LISTINGS, LISTINGS_BYTES, ListingWeighter))
    }
}

#[derive(Clone)]
struct ListingWeighter;

impl Weighter<RelPath, Arc<RecordListing>> for ListingWeighter {
    fn weight(&self, _: &RelPath, listing: &Arc<RecordListing>) -> u64 {
        1_000 + listing.files.len() as u64 * RECORD_WEIGHT
    }
}

/// A directory of records as one file: a line for each file in it, in the order of their numbers.
/// Line feeds in a file become spaces.
pub(super) struct FolderFile {
    folder: Box<dyn Store>,
    path: RelPath,
    listings: Arc<FolderListings>,
    listing: Mutex<Arc<RecordListing>>,
}

struct RecordListing {
    /// Metadata of the directory before it was listed.
    folder: Meta,
    /// True if every later change of the directory changes its metadata.
    is_settled: bool,
    files: Vec<RecordFile>,
    last: Option<Meta>,
    size: u64,
}

#[derive(Clone)]
struct RecordFile {
    path: RelPath,
    len: u64,
    begin: u64,
    end: u64,
    /// The read permissions of the file, for the owner and group of the directory and for others.
    readers: u32,
}

impl FolderFile {
    /// Opens the transcript at `location` in the entered directory `folder`.
    ///
    /// # Errors
    ///
    /// Fails if the directory of records cannot be listed.
    pub(super) fn new(
        folder: &dyn Store,
        location: &TranscriptLocation,
        listings: &Arc<FolderListings>,
    ) -> Result<FolderFile> {
        let (folder, path) = (folder.enter(&location.transcript)?, location.path());
        let listing = refresh(&*folder, listings.0.get(&path))?;
        listings.0.insert(path.clone(), listing.clone());
        Ok(FolderFile { folder, path, listings: listings.clone(), listing: Mutex::new(listing) })
    }

    fn current(&self) -> Result<Arc<RecordListing>> {
        let known = self.listing.lock().clone();
        // Another reader may have listed the directory meanwhile.
        let known = self.listings.0.get(&self.path).unwrap_or(known);
        let listing = refresh(&*self.folder, Some(known.clone()))?;
        if !Arc::ptr_eq(&listing, &known) {
            self.listings.0.insert(self.path.clone(), listing.clone());
        }
        *self.listing.lock() = listing.clone();
        Ok(listing)
    }

    fn read_lines(&self, listing: &RecordListing, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let first = listing.files.partition_point(|file| file.end <= offset);
        let (mut at, mut filled) = (offset, 0_usize);
        for record in listing.files.iter().skip(first) {
            let left = usize::try_from(record.end - at).unwrap_or(usize::MAX);
            let end = filled.saturating_add(left).min(buffer.len());
            let Some(line) = buffer.get_mut(filled..end) else { break };
            let bytes = match self.folder.open(&record.path) {
                Ok(file) => read_range(&*file, at - record.begin, line.len())?,
                // The next listing misses it too.
                Err(error) if error.is_not_found() => Vec::new(),
                Err(error) => return Err(error),
            };
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
}

impl File for FolderFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let listing = self.listing.lock().clone();
        let filled = self.read_lines(&listing, buffer, offset)?;
        if filled > 0 || buffer.is_empty() {
            return Ok(filled);
        }
        // Records may have been added.
        self.read_lines(&*self.current()?, buffer, offset)
    }

    fn meta(&self) -> Result<Meta> {
        let listing = self.current()?;
        let folder = listing.folder;
        let newest = listing.last.unwrap_or(folder);
        Ok(Meta {
            kind: Kind::File,
            size: listing.size,
            nlink: 1,
            mode: listing.mode(),
            mtime: folder.mtime.max(newest.mtime),
            ctime: folder.ctime.max(newest.ctime),
            ..folder
        })
    }
}

impl RecordListing {
    /// Returns the permission bits of the file: only those may read it who may read every record.
    fn mode(&self) -> u32 {
        // Listing and opening need both permissions on the directory.
        let folder = self.folder.mode & (self.folder.mode << 2) & 0o444;
        let readers = self.files.iter().fold(folder, |all, file| all & file.readers);
        readers | self.folder.mode & 0o222
    }
}

fn readers(folder: &Meta, file: &Meta) -> u32 {
    let others = file.mode & 0o004;
    let owner = if file.uid == folder.uid { file.mode & 0o400 } else { others << 6 };
    let group = if file.gid == folder.gid { file.mode & 0o040 } else { others << 3 };
    owner | group | others
}

/// Returns the current listing of `folder`. Takes unchanged parts from `known`.
///
/// # Errors
///
/// Fails if the directory cannot be listed, or a record cannot be statted.
fn refresh(folder: &dyn Store, known: Option<Arc<RecordListing>>) -> Result<Arc<RecordListing>> {
    let meta = folder.stat(&RelPath::root())?;
    let same = |identity: Identity| identity == meta.identity;
    let known = known.filter(|known| same(known.folder.identity));
    if let Some(known) = known.as_ref().filter(|known| known.is_settled && known.folder == meta) {
        let last = known.files.last().map(|last| folder.stat(&last.path));
        match last.transpose() {
            Ok(last) if last == known.last => return Ok(known.clone()),
            Ok(_) => {}
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    let is_settled = folder.listing_depends_on_dir_only()
        && meta.ctime.is_past_tick()
        && meta.mtime.is_past_tick();
    let known = known.as_ref().map(|known| &*known.files).unwrap_or_default();
    list(folder, meta, is_settled, known).map(Arc::new)
}

/// Lists `folder`, which has the metadata `meta`. All records in `known` but the last are settled.
fn list(
    folder: &dyn Store,
    meta: Meta,
    is_settled: bool,
    known: &[RecordFile],
) -> Result<RecordListing> {
    let mut numbered: Vec<(u64, Name)> = folder
        .list(&RelPath::root())?
        .into_iter()
        .filter(|entry| entry.kind == Kind::File)
        .filter_map(|entry| Some((record_number(&entry.name)?, entry.name)))
        .collect();
    numbered.sort_unstable();
    numbered.truncate(RECORDS_MAX);
    let settled = known.len().saturating_sub(1);
    let mut known = known.iter().take(settled).peekable();
    let mut listing =
        RecordListing { folder: meta, is_settled, files: Vec::new(), last: None, size: 0 };
    for (number, name) in numbered {
        let path = RelPath::from(name);
        // Records that are gone.
        while known.next_if(|file| is_before(file, number, &path)).is_some() {}
        let (len, readers) = match known.next_if(|file| file.path == path) {
            Some(file) => {
                listing.last = None;
                (file.len, file.readers)
            }
            None => match folder.stat(&path) {
                Ok(file) => {
                    listing.last = Some(file);
                    (file.size, readers(&meta, &file))
                }
                Err(error) if error.is_not_found() => continue,
                Err(error) => return Err(error),
            },
        };
        let begin = listing.size;
        listing.size = begin.saturating_add(len).saturating_add(1);
        listing.files.push(RecordFile { path, len, begin, end: listing.size, readers });
    }
    // The line of a record that is being written has no end yet.
    let Some(file) = listing.files.last_mut() else { return Ok(listing) };
    if listing.last.is_none() {
        listing.last = Some(folder.stat(&file.path)?);
    }
    if !is_whole(folder, file)? {
        file.end -= 1;
        listing.size -= 1;
    }
    Ok(listing)
}

fn is_before(file: &RecordFile, number: u64, path: &RelPath) -> bool {
    let name = file.path.file_name();
    let before = name.as_ref().and_then(record_number).map(|before| (before, &file.path));
    before < Some((number, path))
}

/// Returns true if the last byte of a record closes an object.
fn is_whole(folder: &dyn Store, record: &RecordFile) -> Result<bool> {
    let file = match folder.open(&record.path) {
        Ok(file) => file,
        Err(Error::NotFound) => return Ok(false),
        Err(error) => return Err(error),
    };
    let tail = read_range(
        &*file,
        record.len.saturating_sub(TAIL_BYTES),
        usize::try_from(TAIL_BYTES).unwrap_or_default(),
    )?;
    Ok(tail.trim_ascii_end().ends_with(b"}"))
}

/// Returns the first number in the name of a record file.
pub(crate) fn record_number(name: &Name) -> Option<u64> {
    let stem = name.as_bytes().strip_suffix(b".json")?;
    let digits: String = stem
        .iter()
        .map(|byte| char::from(*byte))
        .skip_while(|c| !c.is_ascii_digit())
        .take_while(char::is_ascii_digit)
        .collect();
    digits.parse().ok()
}
