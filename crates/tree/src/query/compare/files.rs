//! Matches the files and call outputs of the compared workers by name, and finds out which are
//! equal.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use super::calls;
use crate::route::shown_path::{shown_path, worker_path};
use crate::search::is_binary;
use crate::view::{Folder, Member, View};
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::model::{Outcome, Output, Record, ToolCall};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::split::Split;
use swarmletfs_base::store::{File, read_into, read_range};
use swarmletfs_base::text::clean::escape_markers;

/// Maximum size of a file that is compared line by line, in bytes.
const FILE_MAX: u64 = 4 << 20;
/// Maximum number of lines of a file that is compared line by line.
const LINES_MAX: usize = 200_000;
/// Maximum number of bytes of all files that are read for their differences.
const READ_MAX: u64 = 64 << 20;
const READ_SIZE: usize = 1 << 20;
/// File with a worker's final words.
const RESULT: &str = "result.txt";
/// Name of final words that are not in a file.
const FINAL_WORDS: &str = "final words";

/// Kind of an item, in display order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ItemRank {
    /// Final words of the worker.
    Words,
    /// Files in `outputs/`, and the files of a workspace that the worker changed.
    Outputs,
    Own,
    Logs,
    Calls,
    /// Steps of a transcript that no other worker has.
    Steps,
}

pub(super) struct ComparedWorker {
    pub member: Arc<Member>,
    /// Path of the worker in the tree, safe to print.
    pub path: String,
    pub record: std::result::Result<Arc<Record>, Error>,
    folder: Option<Folder>,
}

#[derive(Debug, Clone)]
enum CopySource {
    File(RelPath),
    Call(Box<ToolCall>),
    Words(String),
}

#[derive(Debug, Clone)]
pub(super) struct ItemCopy {
    source: CopySource,
    pub path: String,
}

/// An item of one name, such as a file, that some of the workers have.
#[derive(Debug)]
pub(super) struct ComparedItem {
    pub rank: ItemRank,
    /// Name of the item in each worker's directory, safe to print.
    pub name: String,
    /// Copy of each worker, in the order of the workers.
    pub copies: Vec<Option<ItemCopy>>,
    /// True if the item is the output of calls that failed or have different outcomes.
    pub is_failure: bool,
    /// Version of each worker; equal numbers mean equal bytes.
    pub versions: Vec<Option<usize>>,
    pub skipped: Option<NotComparedReason>,
}

/// Reason why an item is not compared, or not line by line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NotComparedReason {
    Binary,
    TooLarge,
    Unreadable(String),
    Late,
}

type CopyResult<T> = std::result::Result<T, NotComparedReason>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiffKind {
    Equal,
    Differs,
    /// Some workers lack the item; the copies of the others are equal.
    OnlyIn,
    NotCompared,
}

impl ComparedItem {
    fn new(rank: ItemRank, name: String, copies: Vec<Option<ItemCopy>>) -> ComparedItem {
        ComparedItem { rank, name, copies, is_failure: false, versions: Vec::new(), skipped: None }
    }

    pub(super) fn kind(&self) -> DiffKind {
        let mut versions = self.versions.iter().flatten();
        let first = versions.next();
        if self.skipped.is_some() {
            DiffKind::NotCompared
        } else if versions.any(|version| Some(version) != first) {
            DiffKind::Differs
        } else if self.copies.contains(&None) {
            DiffKind::OnlyIn
        } else {
            DiffKind::Equal
        }
    }

    pub(super) fn holders(&self) -> impl Iterator<Item = usize> + '_ {
        self.copies.iter().enumerate().filter_map(|(at, copy)| copy.as_ref().map(|_| at))
    }
}

impl PartialEq for ItemCopy {
    fn eq(&self, other: &ItemCopy) -> bool {
        self.path == other.path
    }
}

pub(super) struct Comparison<'a> {
    pub view: &'a View,
    pub workers: Vec<ComparedWorker>,
    pub deadline: Deadline<'a>,
    /// Time after which diffs are no longer minimal.
    pub minimal_until: Instant,
    /// Number of bytes that may still be read.
    left: std::cell::Cell<u64>,
    /// False once something failed that may succeed in a retry.
    pub is_complete: std::cell::Cell<bool>,
    /// True once something was left out for lack of time.
    pub is_late: std::cell::Cell<bool>,
}

#[derive(Debug, Default)]
pub(super) struct ComparedItems {
    pub all: Vec<ComparedItem>,
    /// Names of files that differ between any two workers, such as metadata.
    pub always: Vec<String>,
    /// Number of directories that could not be listed.
    pub unlisted: u64,
}

impl<'a> Comparison<'a> {
    pub(super) fn new(
        view: &'a View,
        workers: Vec<ComparedWorker>,
        deadline: Deadline<'a>,
        minimal_until: Instant,
    ) -> Comparison<'a> {
        let (is_complete, is_late) = (true.into(), false.into());
        Comparison {
            view,
            workers,
            deadline,
            minimal_until,
            left: READ_MAX.into(),
            is_complete,
            is_late,
        }
    }

    /// Returns the items of all workers, in display order.
    pub(super) fn items(&self) -> ComparedItems {
        let mut items = ComparedItems::default();
        let mut by_path: BTreeMap<RelPath, Vec<Option<ItemCopy>>> = BTreeMap::new();
        let mut always: HashSet<RelPath> = HashSet::new();
        for (at, worker) in self.workers.iter().enumerate() {
            let listed = worker.folder.as_ref().map(Folder::files);
            let Some(Ok((paths, unlisted))) = listed else {
                items.unlisted += 1;
                continue;
            };
            items.unlisted += unlisted;
            let calls: HashSet<&RelPath> = worker.calls().iter().map(|call| &call.path).collect();
            for path in paths.into_iter().filter(|path| !calls.contains(path)) {
                if differs_always(&path) {
                    always.insert(path);
                    continue;
                }
                let copies =
                    by_path.entry(path.clone()).or_insert_with(|| vec![None; self.workers.len()]);
                if let Some(copy) = copies.get_mut(at) {
                    *copy = Some(worker.file(path));
                }
            }
        }
        self.add_words(&mut by_path, &mut items.all);
        for (path, copies) in by_path {
            items.all.push(ComparedItem::new(rank(&path), name_of(&path), copies));
        }
        items.all.extend(self.outputs());
        items.always = always.iter().map(name_of).collect();
        items.always.sort();
        items.all.sort_by_key(|item| (item.rank, !item.is_failure));
        for item in &mut items.all {
            match self.versions(item) {
                Ok(versions) => item.versions = versions,
                Err(reason) => item.skipped = Some(reason),
            }
        }
        items.all.sort_by_key(|item| {
            let is_only_in = item.kind() == DiffKind::OnlyIn;
            (item.rank, !item.is_failure, is_only_in, item.holders().next())
        });
        self.is_complete.set(self.is_complete.get() && items.unlisted == 0);
        items
    }

    fn add_words(
        &self,
        by_path: &mut BTreeMap<RelPath, Vec<Option<ItemCopy>>>,
        all: &mut Vec<ComparedItem>,
    ) {
        let files = RelPath::parse(RESULT).ok().and_then(|path| by_path.remove(&path));
        let mut copies = files.unwrap_or_else(|| vec![None; self.workers.len()]);
        let has_file = copies.iter().any(Option::is_some);
        for (worker, copy) in
            self.workers.iter().zip(&mut copies).filter(|(_, copy)| copy.is_none())
        {
            let words =
                worker.record.as_ref().ok().and_then(|record| record.trace.final_words.clone());
            *copy = words.map(|words| ItemCopy {
                source: CopySource::Words(words),
                path: format!("{} ({FINAL_WORDS})", worker.path),
            });
        }
        if copies.iter().any(Option::is_some) {
            all.push(ComparedItem::new(
                ItemRank::Words,
                if has_file { RESULT } else { FINAL_WORDS }.into(),
                copies,
            ));
        }
    }

    /// Returns the outputs of corresponding calls, and of unmatched calls that failed or are steps.
    fn outputs(&self) -> Vec<ComparedItem> {
        let Some((first, others)) = self.workers.split_first() else { return Vec::new() };
        let first = first.calls();
        let mut items: Vec<ComparedItem> = Vec::new();
        let mut item_of_call: HashMap<usize, usize> = HashMap::new();
        for (at, worker) in (1..).zip(others) {
            let pairs = calls::corresponding(first, worker.calls(), self.minimal_until);
            for (a, b) in &pairs {
                let (Some(mine), Some(other)) = (first.get(*a), worker.calls().get(*b)) else {
                    continue;
                };
                let number = *item_of_call.entry(*a).or_insert(items.len());
                if number == items.len() {
                    items.push(self.output(0, mine));
                }
                let Some(item) = items.get_mut(number) else { continue };
                item.is_failure |= mine.outcome != other.outcome;
                if let Some(copy) = item.copies.get_mut(at) {
                    *copy = Some(worker.call(other));
                }
            }
            let paired: HashSet<usize> = pairs.iter().map(|(_, b)| *b).collect();
            items.extend(self.unmatched(at, worker.calls(), |b| paired.contains(&b)));
        }
        items.extend(self.unmatched(0, first, |a| item_of_call.contains_key(&a)));
        items
    }

    /// Returns the outputs of the calls of worker `at` without a counterpart, if they failed or are
    /// steps of a transcript.
    fn unmatched(
        &self,
        at: usize,
        calls: &[ToolCall],
        is_paired: impl Fn(usize) -> bool,
    ) -> Vec<ComparedItem> {
        let calls = calls.iter().enumerate().filter(|(number, _)| !is_paired(*number));
        let items = calls.filter_map(|(_, call)| {
            let rank = match (call.outcome, &call.input) {
                (Outcome::Failed, _) => ItemRank::Calls,
                (Outcome::Unknown, None) => ItemRank::Steps,
                _ => return None,
            };
            Some(ComparedItem { rank, ..self.output(at, call) })
        });
        items.collect()
    }

    fn output(&self, at: usize, call: &ToolCall) -> ComparedItem {
        let mut copies = vec![None; self.workers.len()];
        if let (Some(copy), Some(worker)) = (copies.get_mut(at), self.workers.get(at)) {
            *copy = Some(worker.call(call));
        }
        let mut item = ComparedItem::new(ItemRank::Calls, name_of(&call.path), copies);
        item.is_failure = calls::failed(call);
        item
    }

    fn versions(&self, item: &ComparedItem) -> CopyResult<Vec<Option<usize>>> {
        let copies: Vec<Option<(&ComparedWorker, &ItemCopy)>> = self
            .workers
            .iter()
            .zip(&item.copies)
            .map(|(worker, copy)| Some((worker, copy.as_ref()?)))
            .collect();
        let sizes = copies.iter().map(|copy| copy.map(|(worker, copy)| self.size(worker, copy)));
        let sizes: Vec<Option<u64>> = sizes.map(Option::transpose).collect::<CopyResult<_>>()?;
        let mut known: Vec<(u64, Option<[u8; 32]>)> = Vec::new();
        let mut versions = Vec::with_capacity(copies.len());
        for (copy, size) in copies.into_iter().zip(&sizes) {
            let (Some((worker, copy)), Some(size)) = (copy, *size) else {
                versions.push(None);
                continue;
            };
            let is_unique_size = sizes.iter().filter(|other| **other == Some(size)).count() == 1;
            let digest = if is_unique_size { None } else { Some(self.digest(worker, copy)?) };
            let version = known.iter().position(|known| *known == (size, digest));
            versions.push(Some(version.unwrap_or_else(|| {
                known.push((size, digest));
                known.len() - 1
            })));
        }
        Ok(versions)
    }

    fn size(&self, worker: &ComparedWorker, copy: &ItemCopy) -> CopyResult<u64> {
        if let CopySource::Words(words) = &copy.source {
            return Ok(words.len() as u64);
        }
        self.read(worker, copy, |file| Ok(file.stat_without_acl()?.size))
    }

    fn digest(&self, worker: &ComparedWorker, copy: &ItemCopy) -> CopyResult<[u8; 32]> {
        if let CopySource::Words(words) = &copy.source {
            return Ok(*blake3::hash(words.as_bytes()).as_bytes());
        }
        let mut is_late = false;
        let digest = self.read(worker, copy, |file| {
            let (mut hash, mut buffer, mut at) = (blake3::Hasher::new(), vec![0; READ_SIZE], 0);
            loop {
                let read = read_into(file, at, &mut buffer)?;
                hash.update(buffer.split_at_known(read).0);
                at += read as u64;
                is_late = read == READ_SIZE && !self.deadline.has_time();
                if read < READ_SIZE || is_late {
                    return Ok(*hash.finalize().as_bytes());
                }
            }
        })?;
        if is_late { Err(self.late()) } else { Ok(digest) }
    }

    /// Returns the content of a copy.
    ///
    /// # Errors
    ///
    /// Returns the reason if the copy is not text that can be compared line by line.
    pub(super) fn text(&self, worker: &ComparedWorker, copy: &ItemCopy) -> CopyResult<Vec<u8>> {
        if let CopySource::Words(words) = &copy.source {
            return Ok(words.clone().into_bytes());
        }
        let left = self.left.get();
        let text = self.read(worker, copy, |file| {
            let size = file.stat_without_acl()?.size;
            let fits = size <= FILE_MAX.min(left);
            if fits { read_range(file, 0, FILE_MAX as usize).map(Some) } else { Ok(None) }
        })?;
        let text = text.ok_or(NotComparedReason::TooLarge)?;
        self.left.set(left.saturating_sub(text.len() as u64));
        if is_binary(&text) {
            Err(NotComparedReason::Binary)
        } else if memchr::memchr_iter(b'\n', &text).count() > LINES_MAX {
            Err(NotComparedReason::TooLarge)
        } else {
            Ok(text)
        }
    }

    fn read<T>(
        &self,
        worker: &ComparedWorker,
        copy: &ItemCopy,
        read: impl FnOnce(&dyn File) -> Result<T>,
    ) -> CopyResult<T> {
        if !self.deadline.has_time() {
            return Err(self.late());
        }
        let opened = match (&copy.source, &worker.folder) {
            (CopySource::File(path), Some(folder)) => folder.open(path),
            (CopySource::Call(call), _) => match self.view.open_output(&worker.member, call) {
                Ok(Some(file)) => Ok(file),
                Ok(None) => return Err(NotComparedReason::Unreadable(calls::unreadable(call))),
                Err(error) => Err(error),
            },
            (CopySource::Words(_) | CopySource::File(_), _) => Err(Error::NotFound),
        };
        opened.and_then(|file| read(&*file)).map_err(|error| {
            self.is_complete.set(false);
            NotComparedReason::Unreadable(error.to_string())
        })
    }

    /// Records that time ran out, and returns this reason.
    fn late(&self) -> NotComparedReason {
        self.is_complete.set(false);
        self.is_late.set(true);
        NotComparedReason::Late
    }
}

impl ComparedWorker {
    pub(super) fn new(
        view: &View,
        member: Arc<Member>,
        record: std::result::Result<Arc<Record>, Error>,
    ) -> ComparedWorker {
        let path = escape_markers(&worker_path(&member.name).display());
        let folder = view.folder(&member).ok();
        ComparedWorker { path, record, folder, member }
    }

    pub(super) fn name(&self) -> &Name {
        &self.member.name
    }

    pub(super) fn calls(&self) -> &[ToolCall] {
        self.record.as_ref().map(|record| record.trace.calls.as_slice()).unwrap_or_default()
    }

    fn file(&self, path: RelPath) -> ItemCopy {
        ItemCopy {
            path: format!("{}/{}", self.path, name_of(&path)),
            source: CopySource::File(path),
        }
    }

    fn call(&self, call: &ToolCall) -> ItemCopy {
        let path = match &call.output {
            // The call's own file holds only a stub.
            Output::OutOfBand(file) => {
                format!(
                    "{} (the store's tool_outputs/{})",
                    self.path,
                    escape_markers(&file.display())
                )
            }
            _ => format!("{}/{}", self.path, name_of(&call.path)),
        };
        ItemCopy { path, source: CopySource::Call(Box::new(call.clone())) }
    }
}

/// Returns the name of a file in a worker's directory, safe to print.
fn name_of(path: &RelPath) -> String {
    escape_markers(&shown_path(path).display())
}

fn rank(path: &RelPath) -> ItemRank {
    let first = path.names().next();
    match first.as_ref().map(Name::as_bytes) {
        Some(b"outputs" | b"changes") if path.depth() > 1 => ItemRank::Outputs,
        Some(b"logs") if path.depth() > 1 => ItemRank::Logs,
        Some(b"tool_calls") if path.depth() > 1 => ItemRank::Calls,
        _ => ItemRank::Own,
    }
}

/// Returns true if a file differs even between two equal workers: metadata, indexes, transcripts,
/// metrics, times of changes.
fn differs_always(path: &RelPath) -> bool {
    let name = path.as_bytes();
    !name.contains(&b'/')
        && (name.ends_with(b".jsonl")
            || matches!(name, b"metadata.json" | b"index.json" | b"changes.json"))
}
