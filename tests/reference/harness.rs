//! Harness that applies operations to a store and compares its views with the model.

use std::collections::BTreeMap;

use rustix::io::Errno;

use super::compare::{ObservedTree, compare, keeps_apart};
use super::model::Model;
use super::mutable_store::{MutableStore, RawEntries, RawKind};
use super::observer::{Observer, OpenFile};
use super::ops::{MINE, Op};
use super::view::{ExpectedContent, ExpectedNode, view};
use crate::support::Seen;

/// Excerpt budgets to request, one per turn.
const BUDGETS: [usize; 6] = [0, 1, 60, 300, 1_000, 4_096];
/// Interval of the directories in which an excerpt is requested per turn.
const FOLDER_INTERVAL: usize = 3;
/// Owners of the two views; `None` is the whole store.
const VIEWS: [Option<&str>; 2] = [None, Some(MINE)];

type ExpectedTree = BTreeMap<Vec<u8>, ExpectedNode>;

pub struct Harness<'a> {
    store: &'a dyn MutableStore,
    observer: [&'a dyn Observer; 2],
    models: [Model; 2],
    raw: RawEntries,
    expected: [ExpectedTree; 2],
    turn: usize,
    open: Vec<OpenFile>,
    /// Errors from opening files.
    open_errors: Vec<String>,
    /// Directories of the owner's workers.
    mine: Vec<Vec<u8>>,
}

impl<'a> Harness<'a> {
    pub fn new(store: &'a dyn MutableStore, observer: [&'a dyn Observer; 2]) -> Harness<'a> {
        let (models, expected) = Default::default();
        let (open, open_errors, mine) = Default::default();
        let mut harness = Harness {
            store,
            observer,
            models,
            raw: RawEntries::default(),
            expected,
            turn: 0,
            open,
            open_errors,
            mine,
        };
        harness.update_model();
        harness
    }

    /// Applies the operations of a turn.
    pub fn turn(&mut self, turn: usize, ops: &[Op]) {
        self.turn = turn;
        for (n, op) in ops.iter().enumerate() {
            match op {
                Op::Open(path) => self.open(path),
                Op::Close => self.close_all(),
                change => change.apply(self.store, &self.raw, &format!("token-{turn}-{n}.")),
            }
            self.raw = self.store.raw();
            self.open.iter_mut().for_each(|open| open.update(&self.raw));
        }
        self.update_model();
    }

    /// Updates the model from the store.
    fn update_model(&mut self) {
        self.raw = self.store.raw();
        let without_links = self.raw.without_hard_links();
        let swarm = self.models[0].read(&self.raw);
        self.expected[0] = view(&swarm, &self.raw, None);
        let swarm = self.models[1].read(&without_links);
        self.expected[1] = view(&swarm, &without_links, Some(MINE));
        let mine =
            swarm.workers.iter().filter(|worker| worker.record.owner.as_deref() == Some(MINE));
        self.mine = mine.map(|worker| worker.path.clone()).collect();
    }

    /// Opens a file in both views, if it exists.
    fn open(&mut self, path: &str) {
        for (number, observer) in self.observer.into_iter().enumerate() {
            match OpenFile::new(number, observer, path, self.expected[number].get(path.as_bytes()))
            {
                Ok(open) => self.open.extend(open),
                Err(error) => self.open_errors.push(error),
            }
        }
    }

    /// Returns the number of open files.
    pub fn open_count(&self) -> usize {
        self.open.len()
    }

    pub fn close_all(&mut self) {
        for open in std::mem::take(&mut self.open) {
            let observer = self.observer[open.view];
            open.close(observer);
        }
    }

    /// Compares both views and all open files with the model.
    pub fn check(&self) -> Result<(), String> {
        if let Some(error) = self.open_errors.first() {
            return Err(error.clone());
        }
        for ((owner, observer), expected) in VIEWS.iter().zip(self.observer).zip(&self.expected) {
            let in_view =
                |what: String| format!("in the view of {}: {what}", owner.unwrap_or("all"));
            let observed = observer.all().map_err(in_view)?;
            compare(expected, &observed).map_err(in_view)?;
            if owner.is_some() {
                let mine: Vec<&[u8]> = self.mine.iter().map(Vec::as_slice).collect();
                keeps_apart(&self.raw.without_hard_links(), &self.raw, &mine, expected, &observed)
                    .map_err(in_view)?;
            }
            check_budget(observer, expected, &observed, self.turn).map_err(in_view)?;
            self.check_absent(observer, expected).map_err(in_view)?;
        }
        self.open.iter().try_for_each(|open| open.check(self.observer[open.view]))
    }

    /// Checks that paths outside the view fail like paths that never existed.
    fn check_absent(&self, observer: &dyn Observer, expected: &ExpectedTree) -> Result<(), String> {
        let workers = self.raw.below(b"workers").chain(self.raw.below(b"")).map(|(path, _)| path);
        for path in workers.filter(|path| path.iter().filter(|b| **b == b'/').count() < 2) {
            let path = [b"workers/", path].concat();
            let above = expected.get(path.rsplitn(2, |b| *b == b'/').last().unwrap());
            // A requested excerpt exists without being listed.
            if expected.contains_key(&path) || path.ends_with(b"/evidence.4k.txt") {
                continue;
            }
            let errno = match above {
                Some(ExpectedNode::Folder(_)) => Errno::NOENT,
                Some(_) => Errno::NOTDIR,
                // The parent is checked itself.
                None => continue,
            };
            match observer.at(&path) {
                Err(found) if found == errno => {}
                other => {
                    return Err(format!(
                        "{}: {other:?}, expected no such path",
                        path.escape_ascii()
                    ));
                }
            }
        }
        Ok(())
    }

    /// Compares both views with those of new trees: bytes, times and modes must be equal.
    pub fn check_against(&self, fresh: [&dyn Observer; 2]) -> Result<(), String> {
        if self.models[0].remembers(&self.raw)
            || self.models[1].remembers(&self.raw.without_hard_links())
        {
            // A new tree does not know the last good version of a torn file.
            return Ok(());
        }
        for (held, fresh) in self.observer.into_iter().zip(fresh) {
            let (held, fresh) = (held.all()?, fresh.all()?);
            let differs = held.iter().find(|(path, seen)| fresh.get(*path) != Some(seen));
            if let Some((path, seen)) = differs {
                let path_shown = path.escape_ascii();
                return Err(format!(
                    "{path_shown}: {seen:?}\nand in a new tree {:?}",
                    fresh.get(path)
                ));
            }
        }
        Ok(())
    }
}

/// Checks that every excerpt can be requested with a budget, which limits its size.
fn check_budget(
    observer: &dyn Observer,
    expected: &ExpectedTree,
    observed: &ObservedTree,
    turn: usize,
) -> Result<(), String> {
    let budget = BUDGETS[turn % BUDGETS.len()];
    let excerpts = expected.iter().filter(|(path, shown)| {
        let text = matches!(
            shown,
            ExpectedNode::Made {
                says: ExpectedContent::Text(..) | ExpectedContent::Causes(..),
                ..
            }
        );
        text && path.ends_with(b"evidence.txt")
    });
    for (path, _) in excerpts.skip(turn % FOLDER_INTERVAL).step_by(FOLDER_INTERVAL) {
        let folder = path.strip_suffix(b"evidence.txt").unwrap();
        let path = [folder, format!("evidence.{budget}.txt").as_bytes()].concat();
        let said = |what: String| format!("{}: {what}", path.escape_ascii());
        match observer.at(&path) {
            Ok(Seen::File { bytes, .. }) if bytes.len() <= budget => {}
            Ok(other) => return Err(said(format!("{other:?}"))),
            Err(errno) => return Err(said(errno.to_string())),
        }
        if observed.contains_key(&path) {
            return Err(said("it is listed".into()));
        }
    }
    Ok(())
}

impl Model {
    /// Returns true if the model uses a last good version that is no longer in the store.
    pub fn remembers(&self, raw: &RawEntries) -> bool {
        self.uses_last_good(|path| match raw.get(path) {
            Some(RawKind::File(text)) => serde_json::from_slice::<serde_json::Value>(text).is_ok(),
            _ => false,
        })
    }
}
