//! Disk cache of results that are expensive to compute.
//!
//! An entry is a head and a body; the head can be read alone. Both carry a checksum, so a torn or
//! damaged entry counts as missing. One thread writes all entries. It starts before the other
//! threads are restricted to reading, and receives only keys and bytes. If more bytes wait for it
//! than its queue may hold, further writes are dropped. The oldest entries are evicted when the
//! cache is too large.

use std::ffi::CString;
use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, fstat, openat, renameat, statat, unlinkat};
use rustix::io::Errno;
use rustix::process::geteuid;

pub use crate::digest::Key;

use crate::digest::to_hex;

/// Maximum size of the entries that wait to be written, in bytes.
const QUEUE_MAX: usize = 64 << 20;
/// Memory for an entry in the queue beside its head and body, in bytes.
const QUEUED: usize = 128;
/// Maximum size of a head, in bytes.
const HEAD_MAX: usize = 1 << 20;
/// Maximum size of a body, in bytes.
const BODY_MAX: u64 = 64 << 20;
/// Size of the first read of an entry, in bytes; nearly every head fits.
const FIRST_READ: usize = 4_096;
/// Size of the checksum and length in front of a head or body, in bytes.
const HEADER_SIZE: usize = 36;

/// A directory of cache entries that only this user can access.
pub struct DiskCache {
    folder: OwnedFd,
    /// True if results are cached however quickly they could be computed again.
    eager: bool,
    /// `None` after the cache is closed, and if it is only read.
    queue: Option<Sender<PendingWrite>>,
    queued_bytes: Arc<AtomicUsize>,
    writer: Option<JoinHandle<()>>,
}

struct PendingWrite {
    key: Key,
    head: Vec<u8>,
    body: Vec<u8>,
}

impl PendingWrite {
    /// Returns the memory that the entry takes in the queue, in bytes.
    fn size(&self) -> usize {
        self.head.len() + self.body.len() + QUEUED
    }
}

/// An entry with its head; the body is read on demand.
pub struct CachedEntry {
    pub head: Vec<u8>,
    file: File,
    body_offset: u64,
}

impl DiskCache {
    /// Opens or creates the cache directory `path`, limited to about `max_bytes`.
    ///
    /// # Errors
    ///
    /// Fails if the directory cannot be created or opened, or if other users can access it.
    pub fn open(path: &Path, max_bytes: u64) -> io::Result<DiskCache> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        let folder = open_private(path)?;
        let (queue, writes) = channel();
        let queued_bytes = Arc::new(AtomicUsize::new(0));
        let writer = Writer {
            folder: folder.try_clone()?,
            queued_bytes: queued_bytes.clone(),
            max_bytes,
            // Checks the size at the first write.
            written: max_bytes,
            warned: false,
        };
        let writer =
            std::thread::Builder::new().name("cache".into()).spawn(move || writer.run(&writes))?;
        Ok(DiskCache {
            folder,
            eager: false,
            queue: Some(queue),
            queued_bytes,
            writer: Some(writer),
        })
    }

    /// Opens the cache directory `path`, which must exist, to read it only: writes are dropped.
    ///
    /// # Errors
    ///
    /// Fails if the directory cannot be opened, or if other users can access it.
    pub fn open_to_read(path: &Path) -> io::Result<DiskCache> {
        Ok(DiskCache {
            folder: open_private(path)?,
            eager: false,
            queue: None,
            queued_bytes: Arc::default(),
            writer: None,
        })
    }

    /// Caches even results that are cheap to compute, for tests.
    pub fn eager(mut self) -> DiskCache {
        self.eager = true;
        self
    }

    /// Returns the minimum number of results to cache: `usual`, or at most 1 if the cache is eager.
    pub fn threshold(&self, usual: u64) -> u64 {
        if self.eager { usual.min(1) } else { usual }
    }

    /// Returns the size of the cache directory `path`, in bytes. Does not create the directory.
    ///
    /// # Errors
    ///
    /// Fails if the directory cannot be opened, or if other users can access it.
    pub fn size(path: &Path) -> io::Result<u64> {
        let files = files(&open_private(path)?)?;
        Ok(files.iter().map(|file| file.bytes).sum())
    }

    pub fn root(&self) -> BorrowedFd<'_> {
        self.folder.as_fd()
    }

    pub fn get(&self, key: Key) -> Option<CachedEntry> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(openat(&self.folder, file_name(key), flags, Mode::empty()).ok()?);
        if !file.metadata().ok()?.is_file() {
            return None;
        }
        let (head, body_offset) = read_checked(&file, 0, HEAD_MAX as u64)?;
        Some(CachedEntry { head, file, body_offset })
    }

    /// Queues a write of an entry, replacing the previous one. Drops it if the queue is full.
    pub fn put(&self, key: Key, head: Vec<u8>, body: Vec<u8>) {
        if head.len() > HEAD_MAX || body.len() as u64 > BODY_MAX {
            return;
        }
        let write = PendingWrite { key, head, body };
        let size = write.size();
        if self.queued_bytes.fetch_add(size, Ordering::AcqRel) <= QUEUE_MAX
            && self.queue.as_ref().is_some_and(|queue| queue.send(write).is_ok())
        {
            return;
        }
        self.queued_bytes.fetch_sub(size, Ordering::AcqRel);
    }
}

impl Drop for DiskCache {
    /// Waits for all queued writes.
    fn drop(&mut self) {
        self.queue = None;
        let _ = self.writer.take().map(JoinHandle::join);
    }
}

impl CachedEntry {
    /// Reads the body. Returns `None` if it is damaged.
    pub fn body(&self) -> Option<Vec<u8>> {
        read_checked(&self.file, self.body_offset, BODY_MAX).map(|(body, _)| body)
    }
}

fn file_name(key: Key) -> String {
    to_hex(&key)
}

/// Reads and verifies the head or body at `offset`, at most `max` bytes. Returns it with the offset
/// of its end, or `None` if it is damaged.
fn read_checked(file: &File, offset: u64, max: u64) -> Option<(Vec<u8>, u64)> {
    let mut first = [0; FIRST_READ];
    let mut filled = 0;
    while let Some(rest) = first.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset + filled as u64).ok()? {
            0 => break,
            read => filled += read,
        }
    }
    let (header, rest) = first.get(..filled)?.split_at_checked(HEADER_SIZE)?;
    let (hash, length) = header.split_at_checked(32)?;
    let length = u64::from(u32::from_le_bytes(length.try_into().ok()?));
    let available = file.metadata().ok()?.len().checked_sub(offset + HEADER_SIZE as u64)?;
    if length > max || length > available {
        return None;
    }
    let mut bytes = vec![0; usize::try_from(length).ok()?];
    let copied = rest.len().min(bytes.len());
    bytes.get_mut(..copied)?.copy_from_slice(rest.get(..copied)?);
    file.read_exact_at(bytes.get_mut(copied..)?, offset + (HEADER_SIZE + copied) as u64).ok()?;
    (blake3::hash(&bytes).as_bytes() == hash)
        .then_some((bytes, offset + HEADER_SIZE as u64 + length))
}

/// Writes a head or body with its checksum and length; see [`read_checked`].
fn write_checked(file: &mut File, part: &[u8]) -> io::Result<()> {
    let length = u32::try_from(part.len()).map_err(io::Error::other)?;
    file.write_all(blake3::hash(part).as_bytes())?;
    file.write_all(&length.to_le_bytes())?;
    file.write_all(part)
}

/// Opens the directory `path` and checks that only this user can access it.
fn open_private(path: &Path) -> io::Result<OwnedFd> {
    let folder = rustix::fs::open(
        path,
        OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let stat = fstat(&folder)?;
    if stat.st_uid != geteuid().as_raw() {
        return Err(io::Error::other("it belongs to another user"));
    }
    if stat.st_mode & 0o077 != 0 {
        return Err(io::Error::other("other users can access it; try chmod 700"));
    }
    Ok(folder)
}

/// Creates the file `name` in `folder`, replacing a file that an earlier process left there.
fn create_anew(folder: &OwnedFd, name: &str) -> io::Result<File> {
    // O_EXCL, because opening a FIFO under this name would block.
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let create = || openat(folder, name, flags, Mode::RUSR | Mode::WUSR);
    let file = match create() {
        Err(Errno::EXIST) => {
            unlinkat(folder, name, AtFlags::empty())?;
            create()?
        }
        other => other?,
    };
    Ok(File::from(file))
}

struct CacheFile {
    name: CString,
    bytes: u64,
    /// Later of mtime and atime, in seconds and nanoseconds.
    last_used: (i64, i64),
}

fn files(folder: &OwnedFd) -> io::Result<Vec<CacheFile>> {
    let mut files = Vec::new();
    for entry in Dir::read_from(folder)? {
        let name = entry?.file_name().to_owned();
        // Another process may have removed the file.
        let Ok(stat) = statat(folder, &name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
            let timestamp =
                |seconds: i64, nanos| (seconds, i64::try_from(nanos).unwrap_or_default());
            let last_used = timestamp(stat.st_mtime, stat.st_mtime_nsec)
                .max(timestamp(stat.st_atime, stat.st_atime_nsec));
            files.push(CacheFile {
                name,
                bytes: u64::try_from(stat.st_blocks).unwrap_or_default() * 512,
                last_used,
            });
        }
    }
    Ok(files)
}

struct Writer {
    folder: OwnedFd,
    queued_bytes: Arc<AtomicUsize>,
    max_bytes: u64,
    written: u64,
    warned: bool,
}

impl Writer {
    fn run(mut self, writes: &Receiver<PendingWrite>) {
        while let Ok(write) = writes.recv() {
            let result = self.write(&write).and_then(|()| self.evict());
            self.queued_bytes.fetch_sub(write.size(), Ordering::AcqRel);
            if let Err(error) = result
                && !std::mem::replace(&mut self.warned, true)
            {
                tracing::warn!("cannot write to the cache: {error}");
            }
        }
    }

    fn write(&mut self, PendingWrite { key, head, body }: &PendingWrite) -> io::Result<()> {
        // The process id keeps concurrent writers of one cache apart.
        let temporary = format!(".{}-{}", file_name(*key), std::process::id());
        let mut file = create_anew(&self.folder, &temporary)?;
        let written = write_checked(&mut file, head)
            .and_then(|()| write_checked(&mut file, body))
            .and_then(|()| Ok(renameat(&self.folder, &temporary, &self.folder, file_name(*key))?));
        if written.is_err() {
            let _ = unlinkat(&self.folder, &temporary, AtFlags::empty());
        }
        self.written += (head.len() + body.len()) as u64;
        written
    }

    /// Evicts the oldest entries if the cache is too large. Checks the size only after enough
    /// writes, because it stats every file.
    fn evict(&mut self) -> io::Result<()> {
        if self.written < self.max_bytes / 8 {
            return Ok(());
        }
        self.written = 0;
        let mut files = files(&self.folder)?;
        let bytes: u64 = files.iter().map(|file| file.bytes).sum();
        if bytes <= self.max_bytes {
            return Ok(());
        }
        files.sort_by_key(|file| file.last_used);
        let kept = self.max_bytes / 4 * 3;
        remove_first(&self.folder, &files, bytes.saturating_sub(kept))
    }
}

/// Removes the first files until `excess` bytes are gone.
fn remove_first(folder: &OwnedFd, files: &[CacheFile], mut excess: u64) -> io::Result<()> {
    for file in files {
        if excess == 0 {
            break;
        }
        match unlinkat(folder, &file.name, AtFlags::empty()) {
            // Another process that uses the cache evicted it.
            Ok(()) | Err(Errno::NOENT) => excess = excess.saturating_sub(file.bytes),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const KEY: Key = [0xab; 16];

    fn get(cache: &DiskCache, key: Key) -> Option<(Vec<u8>, Vec<u8>)> {
        let entry = cache.get(key)?;
        Some((entry.head.clone(), entry.body()?))
    }

    #[test]
    fn entry_is_readable_after_reopening_the_cache() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        let long = vec![7; 100_000];
        for head in [&b""[..], b"head", &long] {
            let cache = DiskCache::open(&path, 1 << 30).unwrap();
            cache.put(KEY, head.to_vec(), long.clone());
            drop(cache);
            let cache = DiskCache::open(&path, 1 << 30).unwrap();
            assert_eq!(get(&cache, KEY), Some((head.to_vec(), long.clone())));
            assert_eq!(get(&cache, [0; 16]), None);
        }
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        let files: Vec<_> =
            fs::read_dir(&path).unwrap().map(|file| file.unwrap().metadata().unwrap()).collect();
        assert_eq!(files.len(), 1);
        assert!(files.iter().all(|file| file.permissions().mode() & 0o777 == 0o600));
    }

    /// Two processes that use one cache may evict the same entries.
    #[test]
    fn entries_that_another_process_evicted_count_as_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cache");
        for key in 0..4 {
            let cache = DiskCache::open(&path, 1 << 30).unwrap();
            cache.put([key; 16], Vec::new(), vec![0; 100]);
        }
        let folder = File::open(&path).unwrap().into();
        let found = files(&folder).unwrap();
        unlinkat(&folder, &found[0].name, AtFlags::empty()).unwrap();
        remove_first(&folder, &found, found[0].bytes + 1).unwrap();
        assert_eq!(fs::read_dir(&path).unwrap().count(), 2);
    }

    #[test]
    fn cache_opened_to_read_is_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cache");
        assert!(DiskCache::open_to_read(&path).is_err());
        assert!(!path.exists());
        DiskCache::open(&path, 1 << 30).unwrap().put(KEY, b"head".to_vec(), vec![1; 10]);
        let cache = DiskCache::open_to_read(&path).unwrap();
        cache.put([0; 16], b"other".to_vec(), vec![2; 10]);
        assert_eq!(get(&cache, KEY), Some((b"head".to_vec(), vec![1; 10])));
        drop(cache);
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1);
    }

    #[test]
    fn damaged_entry_counts_as_missing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cache");
        let cache = DiskCache::open(&path, 1 << 30).unwrap();
        cache.put(KEY, b"head".to_vec(), vec![1; 5_000]);
        drop(cache);
        let cache = DiskCache::open(&path, 1 << 30).unwrap();
        let file = path.join(file_name(KEY));
        let whole = fs::read(&file).unwrap();
        for length in 0..whole.len() {
            fs::write(&file, &whole[..length]).unwrap();
            assert_eq!(get(&cache, KEY), None, "cut to {length}");
        }
        for at in (0..whole.len()).step_by(7).chain(0..2 * HEADER_SIZE + 4) {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x40;
            fs::write(&file, &damaged).unwrap();
            assert_eq!(get(&cache, KEY), None, "at {at}");
        }
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &file).unwrap();
        assert_eq!(get(&cache, KEY), None);
    }

    #[test]
    fn oldest_entries_are_evicted_when_the_cache_is_too_large() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cache");
        for number in 0..40 {
            // Reopened each time, which waits for the write.
            DiskCache::open(&path, 1 << 20).unwrap().put([number; 16], Vec::new(), vec![0; 60_000]);
        }
        let cache = DiskCache::open(&path, 1 << 20).unwrap();
        let there: Vec<u8> =
            (0..40).filter(|number| get(&cache, [*number; 16]).is_some()).collect();
        assert!(there.ends_with(&[38, 39]) && !there.contains(&0), "{there:?}");
        assert!((10..20).contains(&there.len()), "{there:?}");
    }

    #[test]
    fn many_small_entries_are_kept_however_quickly_they_arrive() {
        const COUNT: u32 = 20_000;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cache");
        let cache = DiskCache::open(&path, 1 << 30).unwrap();
        let entry = |number: u32| {
            let mut key = KEY;
            key[..4].copy_from_slice(&number.to_le_bytes());
            (key, number.to_le_bytes().to_vec())
        };
        for (key, body) in (0..COUNT).map(entry) {
            cache.put(key, Vec::new(), body);
        }
        drop(cache);
        let cache = DiskCache::open_to_read(&path).unwrap();
        for (key, body) in (0..COUNT).map(entry) {
            assert_eq!(get(&cache, key), Some((Vec::new(), body)));
        }
    }

    #[test]
    fn leftover_temporary_file_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cache");
        let cache = DiskCache::open(&path, 1 << 30).unwrap();
        let new = format!(".{}-{}", file_name(KEY), std::process::id());
        rustix::fs::mknodat(&cache.folder, &new, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
            .unwrap();
        cache.put(KEY, b"head".to_vec(), b"body".to_vec());
        // Dropping the cache waits for the writer, which would block on the FIFO.
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            drop(cache);
            done.send(()).unwrap();
        });
        is_done.recv_timeout(std::time::Duration::from_secs(30)).expect("the writer is blocked");
        let cache = DiskCache::open(&path, 1 << 30).unwrap();
        assert_eq!(get(&cache, KEY), Some((b"head".to_vec(), b"body".to_vec())));
        assert!(fs::symlink_metadata(path.join(new)).is_err());
    }

    #[test]
    fn directory_that_other_users_can_access_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let cache = dir.path().join("cache");
        fs::create_dir(&cache).unwrap();
        fs::set_permissions(&cache, Permissions::from_mode(0o755)).unwrap();
        assert!(DiskCache::open(&cache, 1).err().unwrap().to_string().contains("chmod 700"));
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        assert!(DiskCache::open(&link, 1).is_err());
        fs::write(dir.path().join("file"), "").unwrap();
        assert!(DiskCache::open(&dir.path().join("file"), 1).is_err());
    }
}
