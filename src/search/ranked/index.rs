//! The parts of workers: kept in memory and on disk, made where they are not.
//!
//! Of a worker it is kept which parts it has, under the state of its files; a part is kept under a hash of the text that
//! it is of. So where nothing changed no file is read, and where something did, what is read again is made again only
//! where it differs. What is damaged or gone is made anew.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use serde::{Deserialize, Serialize};

use super::part::{Maker, Part};
use crate::cache::{DiskCache, Key, key, single_shard};
use crate::catalog::Fingerprint;
use crate::error::{Error, Result};
use crate::name::{Name, RelPath};
use crate::search::is_binary;
use crate::store::{File, read_range};
use crate::view::{Member, View};

/// How much text a part is of at most, in bytes; and with so much it is closed.
const TEXT_MAX: usize = 4 << 20;
const TEXT_ENOUGH: usize = 1 << 20;
/// What is kept in memory of parts, in bytes, about how many they are, and of how many workers it is known which they have.
const PARTS_BYTES: u64 = 96 << 20;
const PARTS: usize = 4_000;
const WORKERS: usize = 100_000;
/// How long one step of catching up takes, about.
const CATCH_UP: Duration = Duration::from_millis(100);
/// And of one worker.
const EACH: Duration = Duration::from_secs(1);
/// The folder whose files are named by the number and the tool of a call.
const CALLS: &[u8] = b"tool_calls/";

/// Files of a worker whose words are not known, or not of all of it, by the reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unread {
    /// No text.
    pub binary: u64,
    /// Files and folders that could not be read.
    pub unreadable: u64,
    /// There was no time for them.
    pub late: u64,
}

impl std::ops::AddAssign for Unread {
    fn add_assign(&mut self, more: Unread) {
        self.binary += more.binary;
        self.unreadable += more.unreadable;
        self.late += more.late;
    }
}

/// What there is of a worker's words.
#[derive(Clone, Default)]
pub struct Indexed {
    pub(super) parts: Vec<Arc<Part>>,
    /// How many files it is of.
    pub files: u64,
    /// How much text, in bytes.
    pub bytes: u64,
    /// What it is not of.
    pub unread: Unread,
}

/// Which parts a worker has.
#[derive(Clone, Default, Serialize, Deserialize)]
struct Contents {
    parts: Vec<Key>,
    files: u64,
    bytes: u64,
    unread: Unread,
}

/// Weighs a part.
#[derive(Clone)]
struct Size;

impl Weighter<Key, Arc<Part>> for Size {
    fn weight(&self, _: &Key, part: &Arc<Part>) -> u64 {
        part.size() as u64
    }
}

/// Reads a worker's words while its last argument returns true.
pub(super) type Read<'a> = &'a dyn Fn(&Arc<Member>, &Arc<Fingerprint>, &(dyn Fn() -> bool + Sync)) -> Result<Indexed>;

/// All parts of a view.
pub struct Index {
    parts: Cache<Key, Arc<Part>, Size>,
    workers: Cache<Key, Arc<Contents>>,
    /// Where they are kept for the next start, if anywhere, and the scope of the view.
    disk: Option<(Arc<DiskCache>, Key)>,
    /// Whether somebody searched where there was not time for all.
    is_behind: AtomicBool,
    /// Which worker is next to be read for them, and how much of it was read before, in bytes; none once all is.
    catching_up: Mutex<Option<(usize, u64)>>,
    /// Those that made parts before: what they have learnt of words is of use for further ones.
    makers: Mutex<Vec<Maker>>,
}

impl Index {
    /// Returns the index of a view. With `disk` it outlives the process; the key stands for the scope of the view.
    pub fn new(disk: Option<(Arc<DiskCache>, Key)>) -> Index {
        Index {
            parts: single_shard(PARTS, PARTS_BYTES, Size),
            workers: Cache::new(WORKERS),
            disk,
            is_behind: AtomicBool::new(false),
            catching_up: Mutex::new(None),
            makers: Mutex::default(),
        }
    }

    /// Returns what there is of a worker's words in the state `stamp`, if it is known.
    pub fn cached(&self, member: &Member, stamp: &Fingerprint) -> Option<Indexed> {
        self.known(self.key(member, stamp))
    }

    fn key(&self, member: &Member, stamp: &Fingerprint) -> Key {
        let scope = self.disk.as_ref().map(|(_, scope)| *scope).unwrap_or_default();
        key("words of", &[&scope, member.name.as_bytes(), &stamp.version])
    }

    /// Reads a worker's words in the state `stamp` while `go_on` returns true.
    ///
    /// # Errors
    /// The worker's folder cannot be read.
    pub fn read(&self, view: &View, member: &Member, stamp: &Fingerprint, go_on: &dyn Fn() -> bool) -> Result<Indexed> {
        let of = self.key(member, stamp);
        let mut making = Making {
            index: self,
            member: &member.name,
            contents: Contents::default(),
            parts: Vec::new(),
            text: Vec::new(),
            gathered: 0,
        };
        making.read(view, member, go_on)?;
        let Making { contents, parts, .. } = making;
        if contents.unread.late > 0 {
            self.is_behind.store(true, Ordering::Release);
        }
        let Contents { files, bytes, unread, .. } = contents;
        // Only what is of the state that was asked for is kept as that.
        if unread.late == 0 && unread.unreadable == 0 && view.is_now(member, stamp) {
            if let (Some((disk, _)), Ok(head), true) = (&self.disk, postcard::to_stdvec(&contents), stamp.is_stable()) {
                disk.put(of, head, Vec::new());
            }
            self.workers.insert(of, Arc::new(contents));
        }
        Ok(Indexed { parts, files, bytes, unread })
    }

    /// Whether there is something left for [`Index::catch_up`] to do.
    pub fn is_behind(&self) -> bool {
        let mut next = self.catching_up.lock();
        if self.is_behind.swap(false, Ordering::AcqRel) {
            next.get_or_insert((0, 0));
        }
        next.is_some()
    }

    /// Makes for a moment what is missing, of each worker once, with `read`: [`Index::read`] with a bound. Returns true
    /// if more is missing.
    pub fn catch_up(&self, view: &View, read: Read<'_>) -> bool {
        let begun = Instant::now();
        let visible = view.visible();
        let Some((mut at, mut before)) = *self.catching_up.lock() else { return false };
        while let Some(member) = visible.members.get(at).filter(|_| begun.elapsed() < CATCH_UP) {
            // One that cannot be read at all must not keep the others from being.
            *self.catching_up.lock() = Some((at + 1, 0));
            let stamp = view.fingerprint(member, false);
            let found = stamp.and_then(|stamp| match self.cached(member, &stamp) {
                Some(known) => Ok(known),
                None => read(member, &stamp, &|| begun.elapsed() < EACH),
            });
            // What cannot be read now is read when it is asked for, and told. Of what is large the parts that were made are
            // not made again, so that a further step gets further.
            match found {
                Ok(found) if found.unread.late > 0 && found.bytes > before => before = found.bytes,
                _ => (at, before) = (at + 1, 0),
            }
        }
        let more = at < visible.members.len();
        *self.catching_up.lock() = more.then_some((at, before));
        more
    }

    /// What is known of a worker, if all of it is.
    fn known(&self, of: Key) -> Option<Indexed> {
        let contents = self.workers.get(&of).or_else(|| {
            let (disk, _) = self.disk.as_ref()?;
            let contents: Contents = postcard::from_bytes(&disk.get(of)?.head).ok()?;
            let contents = Arc::new(contents);
            self.workers.insert(of, contents.clone());
            Some(contents)
        })?;
        let parts = contents.parts.iter().map(|part| self.part(*part)).collect::<Option<Vec<_>>>()?;
        let Contents { files, bytes, unread, .. } = *contents;
        Some(Indexed { parts, files, bytes, unread })
    }

    /// A part that is kept.
    fn part(&self, of: Key) -> Option<Arc<Part>> {
        self.parts.get(&of).or_else(|| {
            let (disk, _) = self.disk.as_ref()?;
            let part = Arc::new(Part::from_bytes(&disk.get(of)?.body()?)?);
            self.parts.insert(of, part.clone());
            Some(part)
        })
    }
}

/// Text of a file that is not yet in a part.
struct Gathered {
    path: RelPath,
    start: u64,
    bytes: Vec<u8>,
}

/// Reads the files of a worker, and makes what is not known of them.
struct Making<'a> {
    index: &'a Index,
    member: &'a Name,
    contents: Contents,
    parts: Vec<Arc<Part>>,
    text: Vec<Gathered>,
    /// How much that is, in bytes.
    gathered: usize,
}

impl Making<'_> {
    fn read(&mut self, view: &View, member: &Member, go_on: &dyn Fn() -> bool) -> Result<()> {
        let folder = view.folder(member)?;
        let (files, unreadable) = folder.files()?;
        self.contents.unread.unreadable = unreadable;
        for (at, path) in files.iter().enumerate() {
            if !go_on() {
                self.contents.unread.late += (files.len() - at) as u64;
                break;
            }
            match folder.open(path).and_then(|file| self.file(path, &*file, go_on)) {
                // It went meanwhile.
                Ok(()) | Err(Error::NotFound) => {}
                Err(_) => self.contents.unread.unreadable += 1,
            }
        }
        self.close();
        Ok(())
    }

    fn file(&mut self, path: &RelPath, file: &dyn File, go_on: &dyn Fn() -> bool) -> Result<()> {
        let size = file.stat_without_acl()?.size;
        let mut start = 0;
        loop {
            let room = usize::try_from(size.saturating_sub(start)).unwrap_or(usize::MAX).clamp(1, TEXT_MAX);
            let mut bytes = read_range(file, start, room)?;
            if start == 0 && is_binary(&bytes) {
                self.contents.unread.binary += 1;
                return Ok(());
            }
            // What is behind the last whole line belongs to the next part.
            if bytes.len() == TEXT_MAX
                && let Some(end) = memchr::memrchr(b'\n', &bytes)
            {
                bytes.truncate(end + 1);
            }
            let read = bytes.len();
            self.contents.bytes += read as u64;
            if read > 0 {
                self.text.push(Gathered { path: path.clone(), start, bytes });
                self.gathered += read;
                if self.gathered >= TEXT_ENOUGH {
                    self.close();
                }
            }
            start += read as u64;
            // It is as long as it was when it was opened: what comes while it is read is the next time's.
            if read == 0 || start >= size {
                self.contents.files += 1;
                return Ok(());
            }
            if !go_on() {
                self.contents.unread.late += 1;
                return Ok(());
            }
        }
    }

    /// Makes a part of the text that was read.
    fn close(&mut self) {
        let text = std::mem::take(&mut self.text);
        self.gathered = 0;
        if text.is_empty() {
            return;
        }
        let mut hash = blake3::Hasher::new();
        for Gathered { path, start, bytes } in &text {
            for number in [path.as_bytes().len() as u64, *start, bytes.len() as u64] {
                hash.update(&number.to_le_bytes());
            }
            hash.update(path.as_bytes()).update(bytes);
        }
        let of = key("words", &[self.member.as_bytes(), hash.finalize().as_bytes()]);
        let part = self.index.part(of).or_else(|| {
            let mut maker = self.index.makers.lock().pop().unwrap_or_default();
            maker.begin();
            text.iter()
                .for_each(|text| maker.add(&text.path, &known_by(self.member, &text.path), text.start, &text.bytes));
            let part = Arc::new(maker.finish()?);
            self.index.makers.lock().push(maker);
            if let Some((disk, _)) = &self.index.disk {
                disk.put(of, Vec::new(), part.to_bytes()?);
            }
            self.index.parts.insert(of, part.clone());
            Some(part)
        });
        match part {
            Some(part) => {
                self.contents.parts.push(of);
                self.parts.push(part);
            }
            None => self.contents.unread.unreadable += text.len() as u64,
        }
    }
}

/// The tool whose output the file at `path` in a worker's folder is, as its name says: `tool_calls/NNN_<tool>.txt`.
pub fn tool_of(path: &RelPath) -> Option<&[u8]> {
    let name = path.as_bytes().strip_prefix(CALLS)?;
    let digits = name.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let tool = name.get(digits..)?.strip_prefix(b"_").filter(|_| digits > 0)?;
    Some(without_ending(tool))
}

/// The words that a file of a worker is known by, beside those that it holds: the worker's name, and the tool or the path.
fn known_by(worker: &Name, path: &RelPath) -> String {
    let words = tool_of(path).unwrap_or_else(|| without_ending(path.as_bytes()));
    format!("{} {}", worker.to_text(), String::from_utf8_lossy(words))
}

fn without_ending(path: &[u8]) -> &[u8] {
    memchr::memrchr(b'.', path).and_then(|end| path.get(..end)).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_known_by_its_worker_and_its_tool_or_path() {
        let worker = Name::new("auth-1").unwrap();
        for (path, words) in [
            ("tool_calls/002_ssh_exec.txt", "auth-1 ssh_exec"),
            ("outputs/report.md", "auth-1 outputs/report"),
            ("2024.csv", "auth-1 2024"),
            ("task", "auth-1 task"),
            ("tool_calls/x.txt", "auth-1 tool_calls/x"),
        ] {
            assert_eq!(known_by(&worker, &RelPath::parse(path).unwrap()), words);
        }
    }
}
