//! One state of a database: its pages, with the newer ones of its write-ahead log on top.

use std::sync::Arc;
use std::time::SystemTime;

use quick_cache::sync::Cache;

use super::wal::Wal;
use super::{MAGIC, u16_at, u32_at};
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{File, Meta, Store, read_range};

const HEADER: usize = 100;
/// Number of pages kept in memory for one state.
const PAGES_CACHED: usize = 512;
/// Maximum number of attempts to find the database and its log at rest.
const ATTEMPTS_MAX: usize = 5;
/// The beginning of a rollback journal in use.
const JOURNAL_MAGIC: &[u8] = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7";

/// A state of a database. Later transactions do not change it, but a checkpoint can overwrite its
/// pages: see [`DatabaseState::is_intact`].
pub(crate) struct DatabaseState {
    file: Box<dyn File>,
    /// Metadata of the database before it was read.
    pub(crate) meta: Meta,
    wal: Option<Wal>,
    /// True if every later change of the files changes their metadata.
    is_settled: bool,
    page_size: usize,
    /// Number of bytes of a page that are used.
    pub(super) usable: usize,
    pages: u32,
    cache: Cache<u32, Arc<[u8]>>,
}

/// The state of a database in which something was read from it.
#[derive(Clone)]
pub(crate) struct Stamp {
    meta: Meta,
    is_settled: bool,
    wal: Option<[u8; 32]>,
    frames: u64,
}

impl DatabaseState {
    /// Returns the number of bytes in the pages.
    pub(super) fn size(&self) -> u64 {
        u64::from(self.pages).saturating_mul(self.usable as u64)
    }

    /// Opens the database at `path`. Takes the part of its log that was read before from `known`.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read, or is no database that is understood.
    pub(crate) fn open(
        store: &dyn Store,
        path: &RelPath,
        known: Option<&DatabaseState>,
    ) -> Result<DatabaseState> {
        for _ in 0..ATTEMPTS_MAX {
            let file = store.open(path)?;
            let meta = file.meta()?;
            let known = known.filter(|known| known.meta.identity == meta.identity);
            let wal_path = beside(path, "-wal")?;
            let wal = Wal::read(store, &wal_path, known.and_then(|known| known.wal.as_ref()))?;
            // SQLite removes the log of an empty database.
            let wal = wal.filter(|_| meta.size > 0);
            let snapshot = DatabaseState::new(file, meta, wal)?;
            if snapshot.wal.is_none() && has_journal(store, &beside(path, "-journal")?)? {
                return Err(Error::Malformed(
                    "the database is in the middle of a transaction; open it once with its program",
                ));
            }
            if snapshot.is_intact()? {
                return Ok(snapshot);
            }
        }
        Err(Error::Malformed("the database changes too fast to be read"))
    }

    fn new(file: Box<dyn File>, meta: Meta, wal: Option<Wal>) -> Result<DatabaseState> {
        let now = SystemTime::now();
        let is_past = |meta: &Meta| {
            meta.mtime.was_past_local_tick(now) && meta.ctime.was_past_local_tick(now)
        };
        let is_settled = is_past(&meta) && wal.as_ref().is_none_or(|wal| is_past(&wal.meta));
        let mut snapshot = DatabaseState {
            file,
            meta,
            is_settled,
            page_size: wal.as_ref().map_or(HEADER, |wal| wal.page_size),
            usable: 0,
            pages: 1,
            wal,
            cache: Cache::new(PAGES_CACHED),
        };
        let head = snapshot.read_page(1)?;
        if !head.starts_with(MAGIC) {
            return Err(Error::Malformed("not a database of SQLite"));
        }
        let malformed = Error::Malformed("the header of the database is damaged");
        let size = match u16_at(&head, 16).ok_or(malformed.clone())? {
            1 => 65_536,
            size @ 512.. if size.is_power_of_two() => usize::from(size),
            _ => return Err(malformed),
        };
        let reserved = head.get(20).copied().map_or(0, usize::from);
        // The encoding is 0 as long as there is no table.
        if !matches!(u32_at(&head, 56), Some(0 | 1)) {
            return Err(Error::Malformed("the texts of the database are not in UTF-8"));
        }
        if snapshot.wal.as_ref().is_some_and(|wal| wal.frames > 0 && wal.page_size != size) {
            return Err(malformed);
        }
        snapshot.page_size = size;
        snapshot.usable =
            size.checked_sub(reserved).filter(|size| *size >= 480).ok_or(malformed)?;
        snapshot.pages = match &snapshot.wal {
            Some(wal) if wal.frames > 0 => wal.pages,
            _ => u32::try_from(meta.size / size as u64).unwrap_or(u32::MAX),
        };
        snapshot.cache.clear();
        Ok(snapshot)
    }

    /// Returns true if every later change of the files changes their metadata.
    pub(crate) fn is_settled(&self) -> bool {
        self.is_settled
    }

    /// Returns true if the metadata of the database and of its log are still the same.
    pub(crate) fn is_same(&self, store: &dyn Store, path: &RelPath) -> Result<bool> {
        let wal = match store.stat(&beside(path, "-wal")?) {
            Err(error) if error.is_not_found() => None,
            meta => Some(meta?),
        };
        let is_same_wal = wal == self.wal.as_ref().map(|wal| wal.meta);
        Ok(is_same_wal && store.stat(path)? == self.meta)
    }

    /// Returns true if no page of this state was overwritten yet. Must be called after pages were
    /// used.
    pub(crate) fn is_intact(&self) -> Result<bool> {
        let now = self.file.meta()?;
        let is_same = |now: &Meta| {
            (now.size, now.mtime, now.ctime) == (self.meta.size, self.meta.mtime, self.meta.ctime)
        };
        Ok(is_same(&now) && self.wal.as_ref().map_or(Ok(true), Wal::is_same)?)
    }

    pub(crate) fn stamp(&self) -> Stamp {
        Stamp {
            meta: self.meta,
            is_settled: self.is_settled,
            wal: self.wal.as_ref().map(Wal::header),
            frames: self.wal.as_ref().map_or(0, |wal| wal.frames),
        }
    }

    /// Returns true if none of `pages`, which were read in the state `then`, has changed since.
    ///
    /// A checkpoint moves pages of the log that was known into the database, so that its own
    /// metadata says nothing while the log is the same.
    pub(crate) fn is_unchanged(&self, then: &Stamp, pages: &[u32]) -> bool {
        if then.meta.identity != self.meta.identity {
            return false;
        }
        match (&self.wal, &then.wal) {
            (Some(wal), Some(header)) if wal.continues(header) && wal.frames >= then.frames => {
                pages.iter().all(|page| wal.frame_of(*page).is_none_or(|frame| frame < then.frames))
            }
            (None, None) => then.is_settled && then.meta == self.meta,
            _ => false,
        }
    }

    /// Returns the metadata of the log.
    pub(crate) fn wal_meta(&self) -> Option<Meta> {
        self.wal.as_ref().map(|wal| wal.meta)
    }

    /// Returns a page; the first one has number 1.
    ///
    /// # Errors
    ///
    /// Fails if there is no such page.
    pub(super) fn page(&self, number: u32) -> Result<Arc<[u8]>> {
        if let Some(page) = self.cache.get(&number) {
            return Ok(page);
        }
        let page: Arc<[u8]> = self.read_page(number)?.into();
        self.cache.insert(number, page.clone());
        Ok(page)
    }

    fn read_page(&self, number: u32) -> Result<Vec<u8>> {
        let missing = Error::Malformed("the database is cut off or damaged: a page is missing");
        let before = number.checked_sub(1).filter(|_| number <= self.pages);
        let before = before.ok_or(missing.clone())?;
        let frame = self.wal.as_ref().and_then(|wal| Some((wal, wal.frame_of(number)?)));
        let page = match frame {
            Some((wal, frame)) => wal.read_page(frame)?,
            None => {
                let offset = u64::from(before) * self.page_size as u64;
                read_range(&*self.file, offset, self.page_size)?
            }
        };
        if page.len() == self.page_size { Ok(page) } else { Err(missing) }
    }
}

/// Returns the path of a file with the name of `path` and a suffix.
fn beside(path: &RelPath, suffix: &str) -> Result<RelPath> {
    let name = path.file_name().ok_or(Error::IsADirectory)?;
    let name = Name::new([name.as_bytes(), suffix.as_bytes()].concat())?;
    Ok(path.parent().join(&name))
}

/// Returns true if a transaction of a database without a log is under way, or was cut off.
fn has_journal(store: &dyn Store, path: &RelPath) -> Result<bool> {
    match store.open(path) {
        Ok(file) => Ok(read_range(&*file, 0, JOURNAL_MAGIC.len())? == JOURNAL_MAGIC),
        Err(error) if error.is_not_a_file() => Ok(false),
        Err(error) => Err(error),
    }
}
