//! The removal of one worker, which is looked at again while it is locked, and copied into an
//! archive before.
//!
//! An archive is a store that can be mounted.

use std::cell::RefCell;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;

use super::plan::{Candidate, HAS_CHILDREN, Rules, draft_obstacle, outcome, unfinished};
use crate::draft::Draft;
use crate::error::{Error as PathError, Result as PathResult};
use crate::model::Outcome;
use crate::name::{Name, RelPath, printable_path};
use crate::store::Kind;
use crate::trace::swarmlet::Tombstone;
use crate::view::{Member, View, VisibleWorkers};
use swarmletfs_record::write::{
    Decision, Dir, During, Error, HashingReader, Lock, RemovalLock, Removed, Result, Store,
    set_file_attributes,
};

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
        if let Some(reason) = draft_obstacle(self.store, &candidate.id, self.rules) {
            return keep(&reason);
        }
        // The worker is locked and has ended, so the copy stays equal.
        if let Some(archive) = &self.archive {
            archive.copy(self.store, &candidate.id)?;
        }
        let archived_to =
            self.archive.as_ref().map(|archive| archive.path.to_string_lossy().into_owned());
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

const DEPTH_MAX: usize = 64;
/// Permissions that are copied. A copy may belong to another user.
const MODE: u32 = 0o1777;

pub(crate) struct Archive {
    store: Store,
    path: PathBuf,
}

impl Archive {
    /// Opens the archive at `path` for the workers of `source`, and makes it if it is missing.
    ///
    /// # Errors
    ///
    /// The path holds something else than a store, is `source`, or cannot be written.
    pub(crate) fn open(path: &Path, source: &Store) -> Result<Archive> {
        let store = Store::init(path)?;
        let identity = |store: &Store| store.root().identity();
        let is_same = identity(&store)
            .and_then(|archive| Ok(archive == identity(source)?))
            .during("open", path, b"")?;
        if is_same {
            return Err(Error::Store {
                store: printable_path(path),
                reason: "an archive cannot be the store itself".to_owned(),
                cure: "try another folder".to_owned(),
            });
        }
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        Ok(Archive { store, path })
    }

    /// Copies the worker `id` of `source` and the record of its draft, waits for the disk, and
    /// compares the copy with the worker by content. An equal copy that is there already is enough.
    ///
    /// # Errors
    ///
    /// The worker holds something that cannot be copied, the archive has another worker of this id,
    /// or a copy cannot be read, written or is not equal.
    pub(super) fn copy(&self, source: &Store, id: &Name) -> Result<()> {
        self.copy_worker(source, id)?;
        // With it, the changes can be applied from the archive.
        match Draft::open(source, id)? {
            Some(draft) => draft.copy_to(&self.store),
            None => Ok(()),
        }
    }

    fn copy_worker(&self, source: &Store, id: &Name) -> Result<()> {
        let worker = source.worker(id.as_bytes())?;
        let (from, record) = (worker.folder(), worker.registry_record()?);
        let compare = |copy: &Dir| match is_equal(from, copy, DEPTH_MAX) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::Approval {
                action: format!("archive worker {}", id.display()),
                reason: format!("{} differs from the worker", printable_path(copy.path())),
                cure: "try another archive".to_owned(),
            }),
            Err(error) => Err(error).during("compare the copy", copy.path(), b""),
        };
        if let Some(existing) = self.store.find_worker(id)? {
            compare(existing.folder())?;
            if let Some(record) = record {
                self.store.add_record_of_copy(id, existing.folder(), record)?;
            }
            // Another program may have made the copy.
            let synced = self.store.root().sync_file_system();
            return synced.during("write", &self.path, b"");
        }
        let fill = |to: &Dir| {
            let copy = || {
                // Private files are in folders that get their permissions only when they are full.
                to.set_own_mode(0o700)?;
                copy_folder(from, to, DEPTH_MAX)
            };
            copy().during("copy to", to.path(), b"")?;
            compare(to)?;
            let open = || to.set_own_mode(from.own_mode()? & MODE);
            open().during("copy to", to.path(), b"")
        };
        self.store.add_copy(id, record, fill).map(drop)
    }
}

/// Copies the entries of `from` into the empty directory `to`, and waits for the disk. Links are
/// copied, not followed.
///
/// # Errors
///
/// An entry is a device, FIFO or socket, a file with several names, or cannot be read or written.
fn copy_folder(from: &Dir, to: &Dir, depth: usize) -> PathResult<()> {
    let depth = depth.checked_sub(1).ok_or(PathError::Io(rustix::io::Errno::LOOP))?;
    for name in from.list()? {
        let stat = from.entry_stat(&name)?;
        let path = RelPath::from(name.clone());
        match stat.kind {
            Kind::File => {
                let mut source = from.open_to_read(&name)?.ok_or(PathError::NotFound)?;
                to.write_temporary(&mut source)?.replace(to, &name)?;
                let copy = to.open_to_read(&name)?.ok_or(PathError::NotFound)?;
                set_file_attributes(&copy, stat.mode & MODE, &stat)?;
            }
            Kind::Link => to.create_link(&name, &from.link_target(&path)?, &stat)?,
            Kind::Folder => {
                let made = to.create_dir(&name)?;
                copy_folder(&from.enter(&path)?, &made, depth)?;
                made.set_attributes(stat.mode & MODE, &stat)?;
            }
            Kind::Special => return Err(PathError::Special),
        }
    }
    to.sync()
}

/// Returns true if two directories hold the same names with the same contents.
fn is_equal(one: &Dir, other: &Dir, depth: usize) -> PathResult<bool> {
    let depth = depth.checked_sub(1).ok_or(PathError::Io(rustix::io::Errno::LOOP))?;
    let (mut names, mut other_names) = (one.list()?, other.list()?);
    names.sort();
    other_names.sort();
    if names != other_names {
        return Ok(false);
    }
    for name in names {
        let path = RelPath::from(name.clone());
        let (kind, other_kind) = (one.entry_stat(&name)?.kind, other.entry_stat(&name)?.kind);
        let is_equal = kind == other_kind
            && match kind {
                Kind::File => hash_file(one, &name)? == hash_file(other, &name)?,
                Kind::Link => one.link_target(&path)? == other.link_target(&path)?,
                Kind::Folder => is_equal(&one.enter(&path)?, &other.enter(&path)?, depth)?,
                Kind::Special => false,
            };
        if !is_equal {
            return Ok(false);
        }
    }
    Ok(true)
}

fn hash_file(folder: &Dir, name: &Name) -> PathResult<(u64, String)> {
    let file = folder.open_to_read(name)?.ok_or(PathError::NotFound)?;
    let mut reader = HashingReader::new(file);
    std::io::copy(&mut reader, &mut std::io::sink()).map_err(swarmletfs_record::write::from_io)?;
    Ok(reader.into_hash())
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
        let rules = Rules { max_workers: Some(0), attention: true, ..Rules::default() };
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
