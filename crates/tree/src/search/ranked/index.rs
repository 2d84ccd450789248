//! The index of a view: segments cached in memory and on disk, built when missing.
//!
//! The list of a worker's segments is cached under the fingerprint of its files; each segment is
//! cached under a hash of its text. An unchanged worker is not read again. A changed worker is
//! read again, and only segments whose text differs are rebuilt. Damaged entries are rebuilt.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use serde::{Deserialize, Serialize};

use super::conversation::CONVERSATION;
use super::embedding::SegmentMeaning;
use super::segment::{Segment, SegmentPart, SegmentWriter};
use crate::catalog::Fingerprint;
use crate::search::is_binary;
use crate::view::{Member, View};
use swarmletfs_base::cache::{DiskCache, Key, key, share_of_memory, single_shard};
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{File, read_range};
use swarmletfs_meaning::Embedder;

/// Most text in one segment, in bytes.
const TEXT_MAX: usize = 4 << 20;
/// Amount of text that closes a segment, in bytes.
const TEXT_ENOUGH: usize = 1 << 20;
/// Memory for cached segments, in bytes.
const SEGMENTS_BYTES: u64 = 96 << 20;
/// Memory for cached embeddings, in bytes.
const MEANINGS_BYTES: u64 = 96 << 20;
const SEGMENTS: usize = 4_000;
const WORKERS: usize = 100_000;
/// Approximate duration of one call of [`Index::catch_up`].
const CATCH_UP: Duration = Duration::from_millis(100);
const WORKER_TIMEOUT: Duration = Duration::from_secs(1);
/// Directory whose files are named by the number and the tool of a call.
const CALLS: &[u8] = b"tool_calls/";

/// Files of a worker that were not indexed, or not to their end, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unread {
    pub binary: u64,
    /// Files and directories that could not be read.
    pub unreadable: u64,
    /// Files that were not read in time.
    pub late: u64,
}

/// The part of an index that a query needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum IndexPart {
    Words,
    /// Words and embeddings.
    Meaning,
}

#[derive(Clone, Default)]
pub struct WorkerIndex {
    pub(super) segments: Vec<Arc<Segment>>,
    /// The embeddings of each segment, if they were asked for.
    pub(super) meanings: Vec<Arc<SegmentMeaning>>,
    pub files: u64,
    pub bytes: u64,
    pub unread: Unread,
}

impl WorkerIndex {
    pub fn has_file(&self, path: &[u8]) -> bool {
        let chunks = self.segments.iter().flat_map(|segment| &segment.header.chunks);
        chunks.into_iter().any(|chunk| chunk.path.as_bytes() == path)
    }
}

#[derive(Clone, Default, Serialize, Deserialize)]
struct SegmentList {
    segments: Vec<Key>,
    files: u64,
    bytes: u64,
    unread: Unread,
}

#[derive(Clone)]
struct SizeWeighter;

impl<T: SegmentPart> Weighter<Key, Arc<T>> for SizeWeighter {
    fn weight(&self, _: &Key, part: &Arc<T>) -> u64 {
        part.size() as u64
    }
}

type PartCache<T> = Cache<Key, Arc<T>, SizeWeighter>;

pub(super) type ReadWorker<'a> =
    &'a dyn Fn(&Arc<Member>, &Arc<Fingerprint>, IndexPart, Deadline<'_>) -> Result<WorkerIndex>;

/// The next worker to index in the background.
#[derive(Debug, Clone, Copy)]
struct Backlog {
    part: IndexPart,
    worker: usize,
    /// Bytes of the worker that were read before.
    bytes: u64,
}

pub struct Index {
    segments: PartCache<Segment>,
    meanings: PartCache<SegmentMeaning>,
    workers: Cache<Key, Arc<SegmentList>>,
    /// The disk cache, if any, and the scope of the view.
    disk: Option<(Arc<DiskCache>, Key)>,
    /// True if a search has run out of time since the last [`Index::has_backlog`], by words and by
    /// meaning.
    words_were_late: AtomicBool,
    meaning_was_late: AtomicBool,
    backlog: Mutex<Option<Backlog>>,
    /// Idle writers. Their vocabularies speed up later segments.
    writers: Mutex<Vec<SegmentWriter>>,
    embedders: Mutex<Vec<Embedder>>,
}

impl Index {
    /// Creates the index of a view, one of `views` that share the memory for it. With `disk` it
    /// outlives the process; the key names the scope.
    pub fn new(disk: Option<(Arc<DiskCache>, Key)>, views: usize) -> Index {
        Index {
            segments: single_shard(SEGMENTS, share_of_memory(SEGMENTS_BYTES, views), SizeWeighter),
            meanings: single_shard(SEGMENTS, share_of_memory(MEANINGS_BYTES, views), SizeWeighter),
            workers: Cache::new(WORKERS),
            disk,
            words_were_late: AtomicBool::new(false),
            meaning_was_late: AtomicBool::new(false),
            backlog: Mutex::new(None),
            writers: Mutex::default(),
            embedders: Mutex::default(),
        }
    }

    /// Returns the cached index of a worker in the state `fingerprint`, if it is complete.
    pub fn cached(
        &self,
        member: &Member,
        fingerprint: &Fingerprint,
        part: IndexPart,
    ) -> Option<WorkerIndex> {
        self.load(self.key(member, fingerprint), part)
    }

    fn key(&self, member: &Member, fingerprint: &Fingerprint) -> Key {
        let scope = self.disk.as_ref().map(|(_, scope)| *scope).unwrap_or_default();
        key("words of worker", &[&scope, member.name.as_bytes(), &fingerprint.version])
    }

    /// Indexes a worker's files in the state `fingerprint` until `deadline` passes.
    ///
    /// # Errors
    /// The worker's directory cannot be read.
    pub fn read(
        &self,
        view: &View,
        member: &Member,
        fingerprint: &Fingerprint,
        part: IndexPart,
        deadline: Deadline<'_>,
    ) -> Result<WorkerIndex> {
        let key = self.key(member, fingerprint);
        let was_late = match part {
            IndexPart::Words => &self.words_were_late,
            IndexPart::Meaning => &self.meaning_was_late,
        };
        let mut indexer = WorkerIndexer {
            index: self,
            member: &member.name,
            part,
            contents: SegmentList::default(),
            segments: Vec::new(),
            meanings: Vec::new(),
            pending: Vec::new(),
            pending_bytes: 0,
        };
        indexer.read(view, member, deadline).inspect_err(|error| {
            if error.is_timeout() {
                was_late.store(true, Ordering::Release);
            }
        })?;
        let WorkerIndexer { contents, segments, meanings, .. } = indexer;
        if contents.unread.late > 0 {
            was_late.store(true, Ordering::Release);
        }
        let SegmentList { files, bytes, unread, .. } = contents;
        // Cache only a complete index of the requested state.
        if unread.late == 0 && unread.unreadable == 0 && view.is_unchanged(member, fingerprint) {
            if let (Some((disk, _)), Ok(head), true) =
                (&self.disk, postcard::to_stdvec(&contents), fingerprint.is_stable())
            {
                disk.put(key, head, Vec::new());
            }
            self.workers.insert(key, Arc::new(contents));
        }
        Ok(WorkerIndex { segments, meanings, files, bytes, unread })
    }

    /// Returns true if a search lacked time. Words come before embeddings.
    pub fn has_backlog(&self) -> bool {
        let mut backlog = self.backlog.lock();
        let parts = [
            (IndexPart::Words, &self.words_were_late),
            (IndexPart::Meaning, &self.meaning_was_late),
        ];
        for (part, was_late) in parts {
            if backlog.is_none() && was_late.swap(false, Ordering::AcqRel) {
                *backlog = Some(Backlog { part, worker: 0, bytes: 0 });
            }
        }
        backlog.is_some()
    }

    /// Indexes missing workers for `CATCH_UP`, each once, with `read`: [`Index::read`] with a
    /// time limit. Returns true if work is left.
    pub fn catch_up(&self, view: &View, read: ReadWorker<'_>) -> bool {
        let begun = Instant::now();
        let worker_end = begun + WORKER_TIMEOUT;
        let visible = view.visible();
        let Some(Backlog { part, worker: mut at, bytes: mut bytes_before }) = *self.backlog.lock()
        else {
            return false;
        };
        while let Some(member) = visible.members.get(at).filter(|_| begun.elapsed() < CATCH_UP) {
            // Advance first, so that a worker that cannot be read does not block the others.
            *self.backlog.lock() = Some(Backlog { part, worker: at + 1, bytes: 0 });
            let fingerprint = view.fingerprint(member, false);
            let found =
                fingerprint.and_then(|fingerprint| match self.cached(member, &fingerprint, part) {
                    Some(known) => Ok(known),
                    None => read(member, &fingerprint, part, Deadline::new(&worker_end)),
                });
            // An error is reported when the worker is next searched. A large worker is retried as
            // long as each try gets further, since its finished segments are cached.
            match found {
                Ok(found) if found.unread.late > 0 && found.bytes > bytes_before => {
                    bytes_before = found.bytes
                }
                _ => (at, bytes_before) = (at + 1, 0),
            }
        }
        let more = at < visible.members.len();
        *self.backlog.lock() = more.then_some(Backlog { part, worker: at, bytes: bytes_before });
        more || self.has_backlog()
    }

    /// Loads the index of a worker from the cache, if all of it is there.
    fn load(&self, key: Key, part: IndexPart) -> Option<WorkerIndex> {
        let contents = self.workers.get(&key).or_else(|| {
            let (disk, _) = self.disk.as_ref()?;
            let contents: SegmentList = postcard::from_bytes(&disk.get(key)?.head).ok()?;
            let contents = Arc::new(contents);
            self.workers.insert(key, contents.clone());
            Some(contents)
        })?;
        let segments = contents
            .segments
            .iter()
            .map(|segment| self.segment(*segment))
            .collect::<Option<Vec<_>>>()?;
        let meanings = match part {
            IndexPart::Words => Vec::new(),
            IndexPart::Meaning => {
                let meanings = contents.segments.iter().map(|segment| self.meaning(*segment));
                meanings.collect::<Option<Vec<_>>>()?
            }
        };
        let SegmentList { files, bytes, unread, .. } = *contents;
        Some(WorkerIndex { segments, meanings, files, bytes, unread })
    }

    fn segment(&self, key: Key) -> Option<Arc<Segment>> {
        self.part(&self.segments, key)
    }

    /// Returns the embeddings of the segment with the key `segment`.
    fn meaning(&self, segment: Key) -> Option<Arc<SegmentMeaning>> {
        self.part(&self.meanings, meaning_key(segment))
    }

    fn part<T: SegmentPart>(&self, cache: &PartCache<T>, key: Key) -> Option<Arc<T>> {
        cache.get(&key).or_else(|| {
            let (disk, _) = self.disk.as_ref()?;
            let part = Arc::new(T::from_bytes(&disk.get(key)?.body()?)?);
            cache.insert(key, part.clone());
            Some(part)
        })
    }
}

fn meaning_key(segment: Key) -> Key {
    key("meaning of text", &[&segment])
}

struct PendingText {
    path: RelPath,
    start: u64,
    bytes: Vec<u8>,
}

struct WorkerIndexer<'a> {
    index: &'a Index,
    member: &'a Name,
    part: IndexPart,
    contents: SegmentList,
    segments: Vec<Arc<Segment>>,
    meanings: Vec<Arc<SegmentMeaning>>,
    pending: Vec<PendingText>,
    pending_bytes: usize,
}

impl WorkerIndexer<'_> {
    fn read(&mut self, view: &View, member: &Member, deadline: Deadline<'_>) -> Result<()> {
        let folder = view.folder(member)?;
        folder.prepare(deadline)?;
        let (mut files, unreadable) = folder.files()?;
        self.contents.unread.unreadable = unreadable;
        sort_for_reading(&mut files);
        for (at, path) in files.iter().enumerate() {
            if !deadline.has_time() {
                self.contents.unread.late += (files.len() - at) as u64;
                break;
            }
            match folder.open(path).and_then(|file| self.file(path, &*file, deadline)) {
                // The file was removed meanwhile.
                Ok(()) | Err(Error::NotFound) => {}
                Err(_) => self.contents.unread.unreadable += 1,
            }
        }
        self.close_segment();
        Ok(())
    }

    fn file(&mut self, path: &RelPath, file: &dyn File, deadline: Deadline<'_>) -> Result<()> {
        let size = file.stat_without_acl()?.size;
        let mut start = 0;
        loop {
            let length = usize::try_from(size.saturating_sub(start))
                .unwrap_or(usize::MAX)
                .clamp(1, TEXT_MAX);
            let mut bytes = read_range(file, start, length)?;
            if start == 0 && is_binary(&bytes) {
                self.contents.unread.binary += 1;
                return Ok(());
            }
            // Leave an incomplete last line to the next segment.
            if bytes.len() == TEXT_MAX
                && let Some(end) = memchr::memrchr(b'\n', &bytes)
            {
                bytes.truncate(end + 1);
            }
            let read = bytes.len();
            self.contents.bytes += read as u64;
            if read > 0 {
                self.pending.push(PendingText { path: path.clone(), start, bytes });
                self.pending_bytes += read;
                if self.pending_bytes >= TEXT_ENOUGH {
                    self.close_segment();
                }
            }
            start += read as u64;
            // Text that is appended during the read belongs to the next state of the worker.
            if read == 0 || start >= size {
                self.contents.files += 1;
                return Ok(());
            }
            if !deadline.has_time() {
                self.contents.unread.late += 1;
                return Ok(());
            }
        }
    }

    /// Builds a segment of the pending text, or takes it from the cache.
    fn close_segment(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        self.pending_bytes = 0;
        if pending.is_empty() {
            return;
        }
        let mut hash = blake3::Hasher::new();
        for PendingText { path, start, bytes } in &pending {
            for number in [path.as_bytes().len() as u64, *start, bytes.len() as u64] {
                hash.update(&number.to_le_bytes());
            }
            hash.update(path.as_bytes()).update(bytes);
        }
        let key = key("words of text", &[self.member.as_bytes(), hash.finalize().as_bytes()]);
        let segment = self.index.segment(key).or_else(|| {
            let mut writer = self.index.writers.lock().pop().unwrap_or_default();
            writer.begin();
            for PendingText { path, start, bytes } in &pending {
                writer.add(path, &descriptive_words(self.member, path), *start, bytes);
            }
            let segment = Arc::new(writer.finish()?);
            self.index.writers.lock().push(writer);
            if let Some((disk, _)) = &self.index.disk {
                disk.put(key, Vec::new(), segment.to_bytes()?);
            }
            self.index.segments.insert(key, segment.clone());
            Some(segment)
        });
        let Some(segment) = segment else {
            self.contents.unread.unreadable += pending.len() as u64;
            return;
        };
        if self.part == IndexPart::Meaning {
            let meaning = self.index.meaning(key).unwrap_or_else(|| self.embed(key, &pending));
            self.meanings.push(meaning);
        }
        self.contents.segments.push(key);
        self.segments.push(segment);
    }

    /// Embeds the passages of the segment with the key `segment`, whose text is `texts`.
    fn embed(&self, segment: Key, texts: &[PendingText]) -> Arc<SegmentMeaning> {
        let files = texts.iter().map(|text| (&text.path, text.bytes.as_slice()));
        let mut embedder = self.index.embedders.lock().pop().unwrap_or_default();
        let meaning = Arc::new(SegmentMeaning::new(files, &mut embedder));
        self.index.embedders.lock().push(embedder);
        let key = meaning_key(segment);
        if let Some((disk, _)) = &self.index.disk {
            disk.put(key, Vec::new(), meaning.to_bytes());
        }
        self.index.meanings.insert(key, meaning.clone());
        meaning
    }
}

/// Moves the conversation to the front: if time runs out, its words are those that count most.
fn sort_for_reading(files: &mut [RelPath]) {
    files.sort_by_key(|path| path.as_bytes() != CONVERSATION);
}

/// Returns the tool in a file name of the form `tool_calls/NNN_<tool>.txt`.
pub fn tool_of(path: &RelPath) -> Option<&[u8]> {
    let name = path.as_bytes().strip_prefix(CALLS)?;
    let digits = name.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let tool = name.get(digits..)?.strip_prefix(b"_").filter(|_| digits > 0)?;
    Some(without_extension(tool))
}

/// Returns words that describe a file: the worker's name, and the tool or else the path.
fn descriptive_words(worker: &Name, path: &RelPath) -> String {
    let words = tool_of(path).unwrap_or_else(|| without_extension(path.as_bytes()));
    format!("{} {}", worker.to_text(), String::from_utf8_lossy(words))
}

fn without_extension(path: &[u8]) -> &[u8] {
    memchr::memrchr(b'.', path).and_then(|end| path.get(..end)).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversation_is_read_first() {
        let mut files = ["outputs/a", "task.txt", "thread.jsonl", "z"]
            .map(|path| RelPath::parse(path).unwrap());
        sort_for_reading(&mut files);
        let order = files.each_ref().map(|path| path.display().to_string());
        assert_eq!(order, ["thread.jsonl", "outputs/a", "task.txt", "z"]);
    }

    #[test]
    fn a_file_is_described_by_its_worker_and_its_tool_or_path() {
        let worker = Name::new("auth-1").unwrap();
        for (path, words) in [
            ("tool_calls/002_ssh_exec.txt", "auth-1 ssh_exec"),
            ("outputs/report.md", "auth-1 outputs/report"),
            ("2024.csv", "auth-1 2024"),
            ("task", "auth-1 task"),
            ("tool_calls/x.txt", "auth-1 tool_calls/x"),
        ] {
            assert_eq!(descriptive_words(&worker, &RelPath::parse(path).unwrap()), words);
        }
    }
}
