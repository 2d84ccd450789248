//! The removal of one worker, which is looked at again while it is locked.

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::Arc;

use jiff::Timestamp;

use super::archive::Archive;
use super::candidates::{Candidate, HAS_CHILDREN, draft_obstacle, outcome, unfinished};
use super::rules::Rules;
use crate::draft::Draft;
use crate::error::{Error as PathError, Result as PathResult};
use crate::model::Outcome;
use crate::name::Name;
use crate::trace::swarmlet::Tombstone;
use crate::view::{Member, View, VisibleWorkers};
use swarmletfs_record::write::{Decision, Lock, RemovalLock, Removed, Result, Store};

const TASK_MAX: usize = 1_000;

pub(crate) struct Remover<'a> {
    store: &'a Store,
    /// A view of the whole store.
    view: &'a View,
    lock: RemovalLock,
    rules: &'a Rules,
    /// Gets a copy of each worker first.
    archive: Option<Archive>,
    /// The workers that were removed. The view may still show them for a moment.
    gone: HashSet<Name>,
    /// The entries of the directory of the workers when the view last read it.
    known: RefCell<HashSet<Name>>,
}

impl<'a> Remover<'a> {
    /// Starts removals by `rules` from `store`, which `view` shows whole. With an `archive`, only
    /// workers that were copied there are removed.
    pub(crate) fn new(
        store: &'a Store,
        view: &'a View,
        lock: RemovalLock,
        rules: &'a Rules,
        archive: Option<Archive>,
    ) -> Remover<'a> {
        Remover {
            store,
            view,
            lock,
            rules,
            archive,
            gone: HashSet::new(),
            known: RefCell::default(),
        }
    }

    /// Removes a worker that was chosen by `rule`. One that changed since then is kept.
    ///
    /// # Errors
    ///
    /// The store cannot be written.
    pub(crate) fn remove(&mut self, candidate: &Candidate, rule: &str) -> Result<Removed> {
        let decide = || self.decide(candidate, rule);
        let removed = self.store.remove_worker(&self.lock, &candidate.id, decide)?;
        if removed == Removed::Yes {
            self.gone.insert(candidate.id.clone());
        }
        Ok(removed)
    }

    /// Decides about a worker that is locked. The guard is the lock of its draft.
    fn decide(&self, candidate: &Candidate, rule: &str) -> Result<Decision<Option<Lock>>> {
        let keep = |reason: &str| Ok(Decision::Keep(reason.to_owned()));
        let draft_lock = match Draft::open(self.store, &candidate.id)? {
            Some(draft) => match draft.try_lock()? {
                Some(lock) => Some(lock),
                None => return keep("it is running"),
            },
            None => None,
        };
        let (member, outcome) = match self.read(candidate) {
            Ok(read) => read,
            Err(PathError::NotFound) => return keep("it is gone already"),
            Err(error) => return keep(&format!("it cannot be read: {error}")),
        };
        let status = member.entry.status;
        if let Some(reason) = unfinished(status, self.rules.status) {
            return keep(&reason);
        }
        if status != candidate.status || member.entry.is_torn() {
            return keep("it changed meanwhile");
        }
        // A child may have been kept, or created since the decision.
        let visible = self.visible_with_new()?;
        let mut children = visible.children(&member.name).iter();
        if children.any(|child| !self.gone.contains(&child.entry.id.0)) {
            return keep(HAS_CHILDREN);
        }
        if let Some(reason) = draft_obstacle(self.store, &candidate.id) {
            return keep(&reason);
        }
        // The worker is locked and has ended, so the copy stays equal.
        if let Some(archive) = &self.archive {
            archive.copy(self.store, &candidate.id)?;
        }
        let archived_to =
            self.archive.as_ref().map(|archive| archive.path().to_string_lossy().into_owned());
        let worker = member.entry.worker();
        let tombstone = Tombstone {
            id: candidate.id.to_text().into_owned(),
            run: worker.run.as_deref().map(str::to_owned),
            owner: worker.owner.map(|owner| owner.0.as_ref().to_owned()),
            task: worker.task.chars().take(TASK_MAX).collect(),
            outcome: outcome.as_str().to_owned(),
            removed_at: Timestamp::now(),
            rule: rule.to_owned(),
            archived_to,
        };
        Ok(Decision::Remove(Box::new(tombstone), draft_lock))
    }

    /// Returns the workers, with all that were created until now. The worker that is decided about
    /// is locked, so no program can create a child of it afterwards.
    fn visible_with_new(&self) -> Result<Arc<VisibleWorkers>> {
        let names: HashSet<Name> = self.store.worker_names()?.into_iter().collect();
        let mut known = self.known.borrow_mut();
        // Scanning all workers for each that is removed would take long.
        let visible =
            if names.is_subset(&known) { self.view.visible() } else { self.view.visible_now() };
        *known = names;
        Ok(visible)
    }

    fn read(&self, candidate: &Candidate) -> PathResult<(Arc<Member>, Outcome)> {
        let path = self.store.worker_path(&candidate.id);
        let visible = self.view.visible();
        let name = visible.name_at(0, &path).ok_or(PathError::NotFound)?;
        let member = visible.get(&name).ok_or(PathError::NotFound)?;
        let member = self.view.worker_now(&member)?;
        let outcome = outcome(self.view, &member)?;
        Ok((member, outcome))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Plan;
    use super::*;
    use crate::catalog::{Freshness, Source};
    use crate::store::Disk;
    use crate::view::Filter;
    use swarmletfs_record::write::{Finish, NewWorker};

    /// Lists the finished worker `w`, calls `change`, and then tries to remove it. Returns the
    /// reason why it was kept.
    #[track_caller]
    fn kept_after(change: impl FnOnce(&Store)) -> String {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::init(dir.path().join("store")).unwrap();
        let worker = store.create_worker(NewWorker::new("x").id("w")).unwrap();
        worker.finish(Finish::completed()).unwrap();
        let disk = Arc::new(Disk::open(&dir.path().join("store")).unwrap());
        let view = View::new(
            vec![Source::from_store(disk, None)],
            Freshness::default(),
            Filter::default(),
        );
        let view = view.unwrap();
        let rules = Rules { max_workers: Some(0), ..Rules::default() };
        let plan = Plan::new(
            Candidate::read_all(&store, &view, &rules),
            &rules,
            std::time::SystemTime::now(),
        );
        let [(candidate, rule)] = &plan.removals[..] else { panic!("{:?}", plan.kept) };
        change(&store);
        let lock = store.lock_removals().unwrap();
        let mut remover = Remover::new(&store, &view, lock, &rules, None);
        let Removed::No(reason) = remover.remove(candidate, rule).unwrap() else {
            panic!("it was removed")
        };
        assert!(dir.path().join("store/workers/w/metadata.json").exists());
        reason
    }

    /// Promise: A worker that changed after `gc` listed it, or that got a child, is kept.
    #[test]
    fn a_worker_that_got_a_child_meanwhile_is_kept() {
        let reason = kept_after(|store| {
            store.create_worker(NewWorker::new("x").id("child").parent("w")).unwrap();
        });
        assert_eq!(reason, HAS_CHILDREN);
    }

    #[test]
    fn a_worker_that_changed_meanwhile_is_kept() {
        let write = |store: &Store, status: &str| {
            let metadata = format!(r#"{{"worker_id": "w", "status": "{status}"}}"#);
            let path = store.root().path().join("workers/w/metadata.json");
            std::fs::write(path, metadata).unwrap();
        };
        assert_eq!(kept_after(|store| write(store, "running")), "it is running");
        assert_eq!(kept_after(|store| write(store, "failed")), "it changed meanwhile");
    }
}
