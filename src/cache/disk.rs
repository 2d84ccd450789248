//! A folder of results that outlives the process: what took long to work out is not worked out again at the next start.
//!
//! An entry is a head, which is read by itself, and a body. Both carry a hash of their bytes: of an entry that is torn,
//! damaged or gone it is as if it had never been. Entries are written by one thread, which is started before any thread
//! is confined to reading and is given nothing but a key and bytes. It waits for nobody: what comes faster than it can
//! write is not kept. The oldest entries go when there are too many bytes.

use std::ffi::CString;
use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, fstat, openat, renameat, statat, unlinkat};
use rustix::io::Errno;
use rustix::process::geteuid;

/// What an entry is known by.
pub type Key = [u8; 16];

/// So many entries wait to be written at most, with so many bytes.
const WAITING: usize = 1_024;
const WAITING_BYTES: usize = 64 << 20;
/// The largest head and the largest body, in bytes.
const HEAD_MAX: usize = 1 << 20;
const BODY_MAX: u64 = 64 << 20;
/// How much of an entry is read at first: its head, in nearly every case.
const FIRST: usize = 4_096;
/// A hash and the length of what it is of, in bytes.
const SEAL: usize = 36;

/// A folder of entries, of this user alone.
pub struct DiskCache {
    folder: OwnedFd,
    /// True if results are cached however quickly they could be computed again.
    eager: bool,
    /// None once no more is to be written.
    waiting: Option<SyncSender<Entry>>,
    /// How much waits to be written, in bytes.
    bytes: Arc<AtomicUsize>,
    writer: Option<JoinHandle<()>>,
}

/// An entry that is to be written.
struct Entry {
    key: Key,
    head: Vec<u8>,
    body: Vec<u8>,
}

/// An entry whose head was read.
pub struct Kept {
    /// As it was given.
    pub head: Vec<u8>,
    file: File,
    /// Where the body begins, in bytes.
    at: u64,
}

impl DiskCache {
    /// Opens the folder `path`, and makes it if it is not there. It holds about `most` bytes. Errors: it cannot be made or
    /// opened, or it is not this user's alone.
    pub fn open(path: &Path, most: u64) -> io::Result<DiskCache> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        let folder = of_this_user(path)?;
        let (waiting, entries) = sync_channel(WAITING);
        let bytes = Arc::new(AtomicUsize::new(0));
        let (folder_too, bytes_too) = (folder.try_clone()?, bytes.clone());
        let writer = Writer { folder: folder_too, waiting: bytes_too, most, written: most, warned: false };
        let writer = std::thread::Builder::new().name("cache".into()).spawn(move || writer.run(&entries))?;
        Ok(DiskCache { folder, eager: false, waiting: Some(waiting), bytes, writer: Some(writer) })
    }

    /// Caches results however quickly they could be computed again, so that a test needs no large store.
    pub fn eager(mut self) -> DiskCache {
        self.eager = true;
        self
    }

    /// Returns the number from which on results are worth caching, where that is usually `usual`.
    pub fn threshold(&self, usual: u64) -> u64 {
        if self.eager { usual.min(1) } else { usual }
    }

    /// How much the folder `path` holds, in bytes; nothing is made. Errors: as of [`DiskCache::open`].
    pub fn size(path: &Path) -> io::Result<u64> {
        let files = files(&of_this_user(path)?)?;
        Ok(files.iter().map(|file| file.bytes).sum())
    }

    /// The folder, for a process that confines itself to reading it.
    pub fn root(&self) -> BorrowedFd<'_> {
        self.folder.as_fd()
    }

    /// What is kept under `key`, with its head.
    pub fn get(&self, key: Key) -> Option<Kept> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(openat(&self.folder, name(key), flags, Mode::empty()).ok()?);
        if !file.metadata().ok()?.is_file() {
            return None;
        }
        let (head, at) = sealed(&file, 0, HEAD_MAX as u64)?;
        Some(Kept { head, file, at })
    }

    /// Keeps this under `key`, in the place of what was there; later, and not if there is too much to do.
    pub fn put(&self, key: Key, head: Vec<u8>, body: Vec<u8>) {
        let size = head.len() + body.len();
        let fits = head.len() <= HEAD_MAX && body.len() as u64 <= BODY_MAX;
        if fits && self.bytes.fetch_add(size, Ordering::AcqRel) <= WAITING_BYTES {
            // A full queue means that something else is being kept.
            if self.waiting.as_ref().is_some_and(|waiting| waiting.try_send(Entry { key, head, body }).is_ok()) {
                return;
            }
        }
        if fits {
            self.bytes.fetch_sub(size, Ordering::AcqRel);
        }
    }
}

impl Drop for DiskCache {
    /// Returns once all is written that waits for it.
    fn drop(&mut self) {
        self.waiting = None;
        let _ = self.writer.take().map(JoinHandle::join);
    }
}

impl Kept {
    /// As it was given; none if it is damaged.
    pub fn body(&self) -> Option<Vec<u8>> {
        sealed(&self.file, self.at, BODY_MAX).map(|(body, _)| body)
    }
}

fn name(key: Key) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes that are sealed at `at`, at most `most`, and where they end; none unless they are whole.
fn sealed(file: &File, at: u64, most: u64) -> Option<(Vec<u8>, u64)> {
    let mut first = [0; FIRST];
    let mut filled = 0;
    while let Some(rest) = first.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, at + filled as u64).ok()? {
            0 => break,
            read => filled += read,
        }
    }
    let (seal, rest) = first.get(..filled)?.split_at_checked(SEAL)?;
    let (hash, length) = seal.split_at_checked(32)?;
    let length = u64::from(u32::from_le_bytes(length.try_into().ok()?));
    let left = file.metadata().ok()?.len().checked_sub(at + SEAL as u64)?;
    if length > most || length > left {
        return None;
    }
    let mut bytes = vec![0; usize::try_from(length).ok()?];
    let known = rest.len().min(bytes.len());
    bytes.get_mut(..known)?.copy_from_slice(rest.get(..known)?);
    file.read_exact_at(bytes.get_mut(known..)?, at + (SEAL + known) as u64).ok()?;
    (blake3::hash(&bytes).as_bytes() == hash).then_some((bytes, at + SEAL as u64 + length))
}

/// Opens the folder `path`, if it is this user's alone.
fn of_this_user(path: &Path) -> io::Result<OwnedFd> {
    let folder = rustix::fs::open(path, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let stat = fstat(&folder)?;
    if stat.st_uid != geteuid().as_raw() {
        return Err(io::Error::other("it belongs to another user"));
    }
    if stat.st_mode & 0o077 != 0 {
        return Err(io::Error::other("other users may enter it (chmod 700 keeps them out)"));
    }
    Ok(folder)
}

/// Creates the file `name` in `folder`, in the place of whatever an earlier process left there.
fn create_anew(folder: &OwnedFd, name: &str) -> io::Result<File> {
    // Only a file of one's own is written to: to open a FIFO would block.
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

/// A file in the folder.
struct Found {
    name: CString,
    bytes: u64,
    /// When it was last read, as far as the file system notes that, in seconds and nanoseconds.
    used: (i64, i64),
}

fn files(folder: &OwnedFd) -> io::Result<Vec<Found>> {
    let mut files = Vec::new();
    for entry in Dir::read_from(folder)? {
        let name = entry?.file_name().to_owned();
        // One that another process removed is gone.
        let Ok(stat) = statat(folder, &name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
            let seconds = |time: i64, nanos| (time, i64::try_from(nanos).unwrap_or_default());
            let used = seconds(stat.st_mtime, stat.st_mtime_nsec).max(seconds(stat.st_atime, stat.st_atime_nsec));
            files.push(Found { name, bytes: u64::try_from(stat.st_blocks).unwrap_or_default() * 512, used });
        }
    }
    Ok(files)
}

/// Writes entries, and removes the oldest.
struct Writer {
    folder: OwnedFd,
    /// How much waits, in bytes.
    waiting: Arc<AtomicUsize>,
    most: u64,
    /// How much was written since it was last looked how much there is, in bytes.
    written: u64,
    warned: bool,
}

impl Writer {
    fn run(mut self, entries: &Receiver<Entry>) {
        while let Ok(entry) = entries.recv() {
            let done = self.write(&entry).and_then(|()| self.make_room());
            self.waiting.fetch_sub(entry.head.len() + entry.body.len(), Ordering::AcqRel);
            if let Err(error) = done
                && !std::mem::replace(&mut self.warned, true)
            {
                tracing::warn!("what took long to find out cannot be kept for the next start: {error}");
            }
        }
    }

    fn write(&mut self, Entry { key, head, body }: &Entry) -> io::Result<()> {
        // Another process may write to the same folder at the same time.
        let new = format!(".{}-{}", name(*key), std::process::id());
        let mut file = create_anew(&self.folder, &new)?;
        let write = |file: &mut File| {
            for part in [head, body] {
                let length = u32::try_from(part.len()).map_err(io::Error::other)?;
                file.write_all(blake3::hash(part).as_bytes())?;
                file.write_all(&length.to_le_bytes())?;
                file.write_all(part)?;
            }
            Ok(renameat(&self.folder, &new, &self.folder, name(*key))?)
        };
        let written = write(&mut file);
        if written.is_err() {
            let _ = unlinkat(&self.folder, &new, AtFlags::empty());
        }
        self.written += (head.len() + body.len()) as u64;
        written
    }

    /// Removes the oldest entries where there are more bytes than are wanted. Now and then: looking takes time.
    fn make_room(&mut self) -> io::Result<()> {
        if self.written < self.most / 8 {
            return Ok(());
        }
        self.written = 0;
        let mut files = files(&self.folder)?;
        let mut bytes: u64 = files.iter().map(|file| file.bytes).sum();
        if bytes <= self.most {
            return Ok(());
        }
        files.sort_by_key(|file| file.used);
        for file in files {
            if bytes <= self.most / 4 * 3 {
                break;
            }
            unlinkat(&self.folder, &file.name, AtFlags::empty())?;
            bytes -= file.bytes;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const KEY: Key = [0xab; 16];

    fn get(cache: &DiskCache, key: Key) -> Option<(Vec<u8>, Vec<u8>)> {
        let kept = cache.get(key)?;
        Some((kept.head.clone(), kept.body()?))
    }

    #[test]
    fn what_was_kept_is_there_at_the_next_start() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a/b");
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
        let files: Vec<_> = fs::read_dir(&path).unwrap().map(|file| file.unwrap().metadata().unwrap()).collect();
        assert_eq!(files.len(), 1);
        assert!(files.iter().all(|file| file.permissions().mode() & 0o777 == 0o600));
    }

    #[test]
    fn a_damaged_entry_is_none() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("cache");
        let cache = DiskCache::open(&path, 1 << 30).unwrap();
        cache.put(KEY, b"head".to_vec(), vec![1; 5_000]);
        drop(cache);
        let cache = DiskCache::open(&path, 1 << 30).unwrap();
        let file = path.join(name(KEY));
        let whole = fs::read(&file).unwrap();
        for length in 0..whole.len() {
            fs::write(&file, &whole[..length]).unwrap();
            assert_eq!(get(&cache, KEY), None, "cut to {length}");
        }
        for at in (0..whole.len()).step_by(7).chain(0..2 * SEAL + 4) {
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
    fn the_oldest_go_when_there_are_too_many_bytes() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("cache");
        for number in 0..40 {
            // Each time anew, so that nothing waits.
            DiskCache::open(&path, 1 << 20).unwrap().put([number; 16], Vec::new(), vec![0; 60_000]);
        }
        let cache = DiskCache::open(&path, 1 << 20).unwrap();
        let there: Vec<u8> = (0..40).filter(|number| get(&cache, [*number; 16]).is_some()).collect();
        assert!(there.ends_with(&[38, 39]) && !there.contains(&0), "{there:?}");
        assert!((10..20).contains(&there.len()), "{there:?}");
    }

    #[test]
    fn what_lies_in_the_way_of_a_new_entry_is_replaced() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("cache");
        let cache = DiskCache::open(&path, 1 << 30).unwrap();
        let new = format!(".{}-{}", name(KEY), std::process::id());
        rustix::fs::mknodat(&cache.folder, &new, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        cache.put(KEY, b"head".to_vec(), b"body".to_vec());
        // Waits for the writer, which a FIFO without a reader would block for ever.
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
    fn a_folder_that_others_may_enter_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let cache = place.path().join("cache");
        fs::create_dir(&cache).unwrap();
        fs::set_permissions(&cache, Permissions::from_mode(0o755)).unwrap();
        assert!(DiskCache::open(&cache, 1).err().unwrap().to_string().contains("chmod 700"));
        let link = place.path().join("link");
        std::os::unix::fs::symlink(place.path(), &link).unwrap();
        assert!(DiskCache::open(&link, 1).is_err());
        fs::write(place.path().join("file"), "").unwrap();
        assert!(DiskCache::open(&place.path().join("file"), 1).is_err());
    }
}
