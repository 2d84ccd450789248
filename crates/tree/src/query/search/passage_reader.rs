//! Reads the passages of ranked workers and the outcomes of their calls.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use super::page::FilePassages;
use crate::analysis::analyzer::Analyzer;
use crate::analysis::isolation::PART_GRACE;
use crate::catalog::Fingerprint;
use crate::route::shown_path::{display_path, worker_path};
use crate::search::ranked::FileHit;
use crate::view::{Folder, Member};
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::error::Error;
use swarmletfs_base::model::Outcome;
use swarmletfs_base::name::RelPath;
use swarmletfs_base::split::Split;
use swarmletfs_base::store::read_range;

/// A byte range of a file: index of the worker, path, start and end.
type RangeKey = (usize, RelPath, u64, u64);

/// Size of a read if many passages of a file are needed in order, in bytes.
const WINDOW_BYTES: u64 = 256 << 10;

struct Window {
    worker: usize,
    path: RelPath,
    start: u64,
    /// End of the range that was requested; the file may end before.
    end: u64,
    bytes: Vec<u8>,
}

impl Window {
    fn covers(&self, worker: usize, path: &RelPath, range: &Range<u64>) -> bool {
        self.worker == worker
            && self.path == *path
            && self.start <= range.start
            && range.end <= self.end
    }

    /// Returns the text of a range that the window covers, as far as the file has it.
    fn text(&self, range: Range<u64>) -> Rc<str> {
        let within = |at: u64| usize::try_from(at.saturating_sub(self.start)).unwrap_or(usize::MAX);
        let (bytes, _) = self.bytes.split_at_most(within(range.end));
        let (_, bytes) = bytes.split_at_most(within(range.start));
        String::from_utf8_lossy(bytes).into()
    }
}

pub(super) struct PassageReader<'a> {
    analyzer: &'a Analyzer,
    workers: Vec<(&'a Arc<Member>, &'a Arc<Fingerprint>)>,
    /// The directory of the worker that was read last. Many workers would take many descriptors.
    folder: RefCell<Option<(usize, Folder)>>,
    /// The part of a file that was read last in order.
    window: RefCell<Option<Window>>,
    /// Cached passages; most are requested several times.
    texts: RefCell<HashMap<RangeKey, Option<Rc<str>>>>,
    outcomes: RefCell<HashMap<usize, HashMap<RelPath, Outcome>>>,
    /// True if the deadline passed before the outcomes of some calls were read.
    late: Cell<bool>,
}

impl<'a> PassageReader<'a> {
    pub(super) fn new(
        analyzer: &'a Analyzer,
        workers: Vec<(&'a Arc<Member>, &'a Arc<Fingerprint>)>,
    ) -> PassageReader<'a> {
        PassageReader {
            analyzer,
            workers,
            folder: RefCell::default(),
            window: RefCell::default(),
            texts: RefCell::default(),
            outcomes: RefCell::default(),
            late: Cell::new(false),
        }
    }

    pub(super) fn member(&self, worker: usize) -> Option<&'a Arc<Member>> {
        self.workers.get(worker).map(|(member, _)| *member)
    }

    pub(super) fn shown_path(&self, worker: usize, path: &RelPath) -> String {
        self.member(worker)
            .map(|member| display_path(&worker_path(&member.name), path))
            .unwrap_or_default()
    }

    /// Returns a byte range of a file as text, or `None` if it cannot be read.
    pub(super) fn read(&self, worker: usize, path: &RelPath, range: Range<u64>) -> Option<Rc<str>> {
        let passage = (worker, path.clone(), range.start, range.end);
        if let Some(text) = self.texts.borrow().get(&passage) {
            return text.clone();
        }
        let text = self.read_uncached(worker, path, range);
        self.texts.borrow_mut().insert(passage, text.clone());
        text
    }

    /// Returns a byte range of a file as text, or `None` if it cannot be read. Ranges that follow
    /// one another are read together, and are not cached otherwise.
    pub(super) fn read_in_order(
        &self,
        worker: usize,
        path: &RelPath,
        range: Range<u64>,
    ) -> Option<Rc<str>> {
        let mut window = self.window.borrow_mut();
        if !window.as_ref().is_some_and(|window| window.covers(worker, path, &range)) {
            let end = range.end.max(range.start.saturating_add(WINDOW_BYTES));
            let bytes = self.read_bytes(worker, path, range.start..end)?;
            let (path, start) = (path.clone(), range.start);
            *window = Some(Window { worker, path, start, end, bytes });
        }
        window.as_ref().map(|window| window.text(range))
    }

    fn read_uncached(&self, worker: usize, path: &RelPath, range: Range<u64>) -> Option<Rc<str>> {
        let bytes = self.read_bytes(worker, path, range)?;
        Some(String::from_utf8_lossy(&bytes).into())
    }

    fn read_bytes(&self, worker: usize, path: &RelPath, range: Range<u64>) -> Option<Vec<u8>> {
        let mut last = self.folder.borrow_mut();
        if last.as_ref().is_none_or(|(known, _)| *known != worker) {
            *last = Some((worker, self.analyzer.view.folder(self.member(worker)?).ok()?));
        }
        let (_, folder) = last.as_ref()?;
        let file = folder.open(path).ok()?;
        let length = usize::try_from(range.end.saturating_sub(range.start)).ok()?;
        read_range(&*file, range.start, length).ok()
    }

    pub(super) fn passages(&self, hit: &FileHit, deadline: Deadline<'_>) -> Option<FilePassages> {
        let FileHit { worker, path, passages, ranges } = hit;
        let text = ranges.iter().filter_map(|range| {
            self.read(*worker, path, range.clone()).map(|text| (range.clone(), text))
        });
        Some(FilePassages {
            worker: self.member(*worker)?.name.clone(),
            path: self.shown_path(*worker, path),
            outcome: self.outcome(*worker, path, deadline),
            passages: *passages,
            text: text.collect(),
        })
    }

    /// Returns the outcome of the call whose output a file is, or `None` for other files.
    pub(super) fn outcome(
        &self,
        worker: usize,
        path: &RelPath,
        deadline: Deadline<'_>,
    ) -> Option<Outcome> {
        let (member, fingerprint) = self.workers.get(worker)?;
        let mut outcomes = self.outcomes.borrow_mut();
        let calls = outcomes.entry(worker).or_insert_with(|| {
            let record = self.analyzer.record(member, fingerprint, PART_GRACE, deadline);
            self.late.set(
                self.late.get()
                    || record.as_ref().map_or_else(Error::is_timeout, |record| record.timed_out()),
            );
            record.iter().flat_map(|record| record.trace.outcomes()).collect()
        });
        calls.get(path).copied()
    }

    pub(super) fn is_late(&self) -> bool {
        self.late.get()
    }

    /// Returns true if the files of a worker have not changed since it was ranked.
    pub(super) fn is_now(&self, worker: usize) -> bool {
        let worker = self.workers.get(worker);
        worker.is_some_and(|(member, fingerprint)| {
            self.analyzer.view.is_unchanged(member, fingerprint)
        })
    }
}
