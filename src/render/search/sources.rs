//! What passages are quoted from: the workers that were ranked, their files, and how their calls ended.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use super::super::Renderer;
use super::super::fragments::GoOn;
use super::super::isolate::GRACE_OF_PART;
use super::super::own::{at_in_text, place};
use crate::catalog::Fingerprint;
use crate::error::Error;
use crate::model::Outcome;
use crate::name::RelPath;
use crate::store::read_range;
use crate::view::{Folder, Member};

/// A range of a file: the worker's place among those that were ranked, the file, and the range's ends in bytes.
type Passage = (usize, RelPath, u64, u64);

/// Workers, in the order in which they were ranked.
pub(super) struct Sources<'a> {
    renderer: &'a Renderer,
    of: Vec<(&'a Arc<Member>, &'a Arc<Fingerprint>)>,
    folders: RefCell<HashMap<usize, Option<Folder>>>,
    /// What was read: most of it is wanted several times.
    texts: RefCell<HashMap<Passage, Option<Rc<str>>>>,
    outcomes: RefCell<HashMap<usize, HashMap<RelPath, Outcome>>>,
    /// True if there was no time to read how some calls ended.
    late: Cell<bool>,
}

impl<'a> Sources<'a> {
    pub(super) fn new(renderer: &'a Renderer, of: Vec<(&'a Arc<Member>, &'a Arc<Fingerprint>)>) -> Sources<'a> {
        let (folders, texts, outcomes) = (RefCell::default(), RefCell::default(), RefCell::default());
        Sources { renderer, of, folders, texts, outcomes, late: Cell::new(false) }
    }

    pub(super) fn member(&self, worker: usize) -> Option<&'a Arc<Member>> {
        self.of.get(worker).map(|(member, _)| *member)
    }

    /// Where a file is shown, from the root of the tree.
    pub(super) fn shown_at(&self, worker: usize, path: &RelPath) -> String {
        self.member(worker).map(|member| at_in_text(&place(&member.name), path)).unwrap_or_default()
    }

    /// What a file holds there, in bytes; none if it cannot be read.
    pub(super) fn read(&self, worker: usize, path: &RelPath, range: Range<u64>) -> Option<Rc<str>> {
        let passage = (worker, path.clone(), range.start, range.end);
        if let Some(text) = self.texts.borrow().get(&passage) {
            return text.clone();
        }
        let text = self.read_now(worker, path, range);
        self.texts.borrow_mut().insert(passage, text.clone());
        text
    }

    fn read_now(&self, worker: usize, path: &RelPath, range: Range<u64>) -> Option<Rc<str>> {
        let member = self.member(worker)?;
        let mut folders = self.folders.borrow_mut();
        let folder = folders.entry(worker).or_insert_with(|| self.renderer.view.folder(member).ok()).as_ref()?;
        let file = folder.open(path).ok()?;
        let length = usize::try_from(range.end.saturating_sub(range.start)).ok()?;
        let bytes = read_range(&*file, range.start, length).ok()?;
        Some(String::from_utf8_lossy(&bytes).into())
    }

    /// How the call ended whose output a file is; none of other files.
    pub(super) fn outcome(&self, worker: usize, path: &RelPath, go_on: GoOn<'_>) -> Option<Outcome> {
        let (member, stamp) = self.of.get(worker)?;
        let mut outcomes = self.outcomes.borrow_mut();
        let calls = outcomes.entry(worker).or_insert_with(|| {
            let record = self.renderer.record(member, stamp, GRACE_OF_PART, go_on);
            self.late.set(self.late.get() || record.as_ref().map_or_else(Error::is_late, |record| record.is_late()));
            record.iter().flat_map(|record| record.trace.outcomes()).collect()
        });
        calls.get(path).copied()
    }

    /// Returns true if there was no time to read how calls ended.
    pub(super) fn is_late(&self) -> bool {
        self.late.get()
    }

    /// Whether the files of a worker are still as they were.
    pub(super) fn is_now(&self, worker: usize) -> bool {
        let known = self.of.get(worker);
        known.is_some_and(|(member, stamp)| self.renderer.view.is_now(member, stamp))
    }
}
