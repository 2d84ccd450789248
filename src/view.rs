//! Who sees what: a catalog as one owner may see it. The only way to a worker's name or byte.
//!
//! A view is fixed when the mount starts: stores, owner, run. Everything above asks it and nothing else, so absent
//! and not-yours are one answer by construction: a worker outside the view is not in [`Visible`], and no count, size
//! or time is taken from anywhere else. Links and special files in a worker's folder are not shown, only counted; to a
//! view of one owner, a file with more than one hard link is such a link, since it may be another owner's.

mod places;
mod visible;

use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use quick_cache::sync::Cache;

pub use visible::{Member, RunMembers, Visible};

use crate::cache::{DiskCache, Key, key};
use crate::catalog::{self, Catalog, FileStat, Fingerprint, Freshness, Snapshot, Source};
use crate::error::{Error, Result};
use crate::model::{Output, Record, ToolCall};
use crate::name::{Name, RelPath};
use crate::store::{self, DirEntry, File, Kind, Meta, Time};

/// What narrows a view.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only this owner's workers. A worker without an owner is then not shown.
    pub owner: Option<String>,
    /// Only this run's workers.
    pub run: Option<String>,
}

/// How many records are kept at hand for the files that are made from the same one.
const RECORDS: usize = 64;
/// How often a worker is looked at again that changes whenever it is looked at.
const LOOKS: usize = 5;

/// A catalog as one owner may see it.
pub struct View {
    catalog: Catalog,
    filter: Filter,
    visible: Mutex<Arc<Visible>>,
    records: Cache<([u8; 16], [u8; 16]), Arc<Record>>,
}

impl View {
    /// A view of `sources` narrowed by `filter`. The one way to a view: whose it is decides how its sources are read,
    /// before anything of them is. Errors: a store that cannot be listed.
    pub fn over(sources: Vec<Source>, freshness: Freshness, filter: Filter) -> Result<View> {
        let sources = match filter.owner {
            Some(_) => sources.into_iter().map(Source::hiding_hard_links).collect(),
            None => sources,
        };
        let catalog = Catalog::open(sources, freshness)?;
        let visible = Visible::of(&catalog.current(), &filter);
        Ok(View { catalog, filter, visible: Mutex::new(Arc::new(visible)), records: Cache::new(RECORDS) })
    }

    /// What is in the view, for people: how many workers in how many runs.
    pub fn describe(&self) -> String {
        let visible = self.visible();
        let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        let workers = count(visible.members.len(), "worker");
        match visible.runs.len() {
            0 => workers,
            runs => format!("{workers} in {}", count(runs, "run")),
        }
    }

    /// Returns the cache for what was found out of the workers, if there is one, with the scope of this view.
    pub fn shelf(&self) -> Option<(Arc<DiskCache>, Key)> {
        self.catalog.cache().map(|cache| (cache, self.scope()))
    }

    /// Returns the cache for the words of the workers, if there is one, with the scope of this view.
    pub fn index(&self) -> Option<(Arc<DiskCache>, Key)> {
        self.catalog.index().map(|index| (index, self.scope()))
    }

    /// Returns the part of a cache key that stands for all that decides what this view shows.
    fn scope(&self) -> Key {
        let Filter { owner, run } = &self.filter;
        let set = |filter: &Option<String>| [u8::from(filter.is_some())];
        let text = |filter: &Option<String>| filter.clone().unwrap_or_default().into_bytes();
        key("view", &[&self.catalog.scope(), &set(owner), &text(owner), &set(run), &text(run)])
    }

    /// The run that it is narrowed to.
    pub fn run(&self) -> Option<&str> {
        self.filter.run.as_deref()
    }

    /// The folders on disk that reading this view needs.
    pub fn roots(&self) -> Vec<BorrowedFd<'_>> {
        self.catalog.roots()
    }

    /// Whether what lies in a worker's folder may take time to be looked at.
    pub fn makes_folders(&self) -> bool {
        self.catalog.makes_folders()
    }

    /// Whether by now other folders stand in the places of the stores.
    pub fn is_replaced(&self) -> bool {
        self.catalog.is_replaced()
    }

    /// All workers of this view as they are now.
    pub fn visible(&self) -> Arc<Visible> {
        self.visible_in(&self.catalog.current())
    }

    /// All workers of this view, looked at after this was called: none is missing that was there then.
    pub fn visible_now(&self) -> Arc<Visible> {
        self.visible_in(&self.catalog.current_now())
    }

    /// Reads the sessions of this view that were not read yet for the workers inside them, until `go_on` returns
    /// false. `expect` is told how many they are, and `done` is called after each.
    pub fn read_sessions(&self, go_on: &(dyn Fn() -> bool + Sync), expect: &dyn Fn(usize), done: &(dyn Fn() + Sync)) {
        let mut visible = self.visible();
        while !visible.unread.is_empty() && go_on() {
            let unread = visible.members.iter().filter(|member| visible.unread.contains(&member.name));
            let unread: Vec<_> = unread.map(|member| (member.entry.source(), member.entry.root.clone())).collect();
            expect(unread.len());
            self.catalog.backfill(&unread, go_on, done);
            let before = std::mem::replace(&mut visible, self.visible_now());
            // What cannot be read now stays unread.
            if visible.unread.len() >= before.unread.len() {
                break;
            }
        }
    }

    fn visible_in(&self, snapshot: &Snapshot) -> Arc<Visible> {
        let held = self.visible.lock().clone();
        if held.generation == snapshot.generation {
            return held;
        }
        let fresh = held.next(snapshot, &self.filter).unwrap_or_else(|| Visible::of(snapshot, &self.filter));
        let fresh = Arc::new(fresh);
        let mut slot = self.visible.lock();
        // Another thread may have been faster, with a newer catalog.
        if slot.generation < fresh.generation {
            *slot = fresh;
        }
        slot.clone()
    }

    /// The worker under this name, looked at within the last second.
    pub fn worker(&self, id: &Name) -> Result<Arc<Member>> {
        let find = || self.visible().get(id).ok_or(Error::NotFound);
        let member = find()?;
        if self.catalog.recheck_if_stale(&member.entry) { find() } else { Ok(member) }
    }

    /// The same worker, looked at after this was called.
    pub fn worker_now(&self, member: &Member) -> Result<Arc<Member>> {
        let mut member = self.visible().get(&member.name).ok_or(Error::NotFound)?;
        // Who looked last may have done so before this was called: what has changed is looked at once more.
        for _ in 0..LOOKS {
            if !self.catalog.recheck(&member.entry) {
                break;
            }
            member = self.visible().get(&member.name).ok_or(Error::NotFound)?;
        }
        Ok(member)
    }

    /// What `path` in a worker's folder is.
    pub fn stat(&self, member: &Member, path: &RelPath) -> Result<Meta> {
        shown(self.catalog.folder(&member.entry)?.stat(path)?)
    }

    /// The same for who asks whether something changed: the mode may give more than a list of access leaves of it.
    pub fn stat_without_acl(&self, member: &Member, path: &RelPath) -> Result<Meta> {
        shown(self.catalog.folder(&member.entry)?.stat_without_acl(path)?)
    }

    /// The files and folders in the folder `path` of a worker.
    pub fn list(&self, member: &Member, path: &RelPath) -> Result<Vec<DirEntry>> {
        Ok(listed(self.catalog.folder(&member.entry)?.list(path)?))
    }

    /// A worker's folder, for many files out of it.
    pub fn folder(&self, member: &Member) -> Result<Folder> {
        self.catalog.folder(&member.entry).map(Folder)
    }

    /// Opens the file `path` of a worker.
    pub fn open(&self, member: &Member, path: &RelPath) -> Result<Box<dyn File>> {
        self.catalog.folder(&member.entry)?.open(path)
    }

    /// From now on, [`View::backing`] opens files, where that can be done. Errors: why it cannot.
    pub fn pass_through(&self) -> Result<()> {
        self.catalog.pass_through()
    }

    /// Opens the file `path` of a worker, which is open as `file`, so that the kernel may read it by itself and leaves no
    /// time of access. `None` where that cannot be done, or another file has taken its place.
    pub fn backing(&self, member: &Member, path: &RelPath, file: &dyn File) -> Result<Option<OwnedFd>> {
        let Some(backing) = self.catalog.backing(&member.entry, path)? else { return Ok(None) };
        let same = store::identity_of(backing.as_fd())? == file.stat_without_acl()?.identity;
        Ok(same.then_some(backing))
    }

    /// Opens the output of a call, wherever it lies. `None` where it cannot be read for the reason the call gives.
    pub fn open_output(&self, member: &Member, call: &ToolCall) -> Result<Option<Box<dyn File>>> {
        match &call.output {
            Output::InPlace => self.open(member, &call.path).map(Some),
            Output::StoredOut(path) => match self.catalog.outputs(&member.entry) {
                Some(outputs) => outputs.open(path).map(Some),
                None => Ok(None),
            },
            Output::Pending | Output::Unreadable(_) => Ok(None),
        }
    }

    /// From now on workers are watched where that can be done; see [`Catalog::watch`].
    pub fn watch(&self) -> Result<usize> {
        self.catalog.watch()
    }

    /// Waits for changes of workers that are watched, no longer than `limit`, and gives the names of those that were
    /// believed not to change. `None` once `end` is readable or closed.
    pub fn changes(&self, end: BorrowedFd<'_>, limit: Option<Duration>) -> Result<Option<HashSet<Name>>> {
        let Some(changed) = self.catalog.wait_for_changes(end, limit)? else { return Ok(None) };
        // Nobody was told of a worker that is not among those that were visible last.
        let visible = self.visible.lock().clone();
        Ok(Some(changed.into_iter().filter_map(|(source, root)| visible.at(source, &root)).collect()))
    }

    /// Whether what a folder of a worker lists follows from the folder alone.
    pub fn lists_by_folder(&self, member: &Member) -> bool {
        self.catalog.listing_depends_on_dir_only(&member.entry)
    }

    /// For how long a folder of a worker lists the same while its times are the same.
    pub fn lists_for(&self, member: &Member) -> Duration {
        self.catalog.listing_max_age(&member.entry)
    }

    /// For how long may be believed what is told of a worker's files.
    pub fn holds(&self, member: &Member) -> Duration {
        self.catalog.max_age(&member.entry)
    }

    /// The state of all files of a worker; see [`Catalog::stamp`].
    pub fn fingerprint(&self, member: &Member, closely: bool) -> Result<Arc<Fingerprint>> {
        self.catalog.fingerprint(&member.entry, closely)
    }

    /// The state in which the files of a worker were seen last, if they were.
    pub fn last_fingerprint(&self, member: &Member) -> Option<Arc<Fingerprint>> {
        member.entry.last_fingerprint()
    }

    /// All files of a worker, at most `most`; and the state of all.
    pub fn files(&self, member: &Member, most: usize) -> Result<(Vec<FileStat>, Fingerprint)> {
        self.catalog.files(&member.entry, most)
    }

    /// The state of all files of a worker as it is now.
    pub fn fingerprint_now(&self, member: &Member) -> Result<Arc<Fingerprint>> {
        self.catalog.fingerprint_now(&member.entry)
    }

    /// Whether the files of a worker are still in the state `stamp`.
    pub fn is_now(&self, member: &Member, stamp: &Fingerprint) -> bool {
        self.fingerprint_now(member).is_ok_and(|now| now.key == stamp.key)
    }

    /// Returns a worker's record as of `stamp`, if it was read lately.
    pub fn cached_record(&self, member: &Member, stamp: &Fingerprint) -> Option<Arc<Record>> {
        self.records.get(&(stamp.version, member.entry.key()))
    }

    /// A worker's record as of `stamp`, read until `go_on` says no. [`Error::NotFound`] if it says by now that the
    /// worker is not of this view.
    pub fn record(&self, member: &Member, stamp: &Fingerprint, go_on: &dyn Fn() -> bool) -> Result<Arc<Record>> {
        if let Some(record) = self.cached_record(member, stamp) {
            return Ok(record);
        }
        let record = self.catalog.record(&member.entry, go_on)?;
        if !visible::admits(&self.filter, record.worker.owner.as_ref(), record.worker.run.as_ref()) {
            return Err(Error::NotFound);
        }
        let record = Arc::new(record);
        if record.is_whole() {
            self.records.insert((stamp.version, member.entry.key()), record.clone());
        }
        Ok(record)
    }

    /// Where the supervisor's notes lie. They speak of the whole swarm, so they are nobody's but those who see it all.
    pub fn supervisor(&self) -> Result<Option<Shared>> {
        if self.filter != Filter::default() {
            return Ok(None);
        }
        Ok(self.catalog.supervisor()?.map(|(source, path)| Shared { source, path }))
    }

    /// The store's own list of all workers, where the view shows all of it.
    pub fn index_file(&self) -> Result<Option<Shared>> {
        if self.filter != Filter::default() {
            return Ok(None);
        }
        Ok(self.catalog.index_file()?.map(|(source, path)| Shared { source, path }))
    }

    /// What `path` below a shared place is.
    pub fn shared_stat(&self, place: &Shared, path: &RelPath) -> Result<Meta> {
        shown(self.shared_store(place).stat(&place.path.join_path(path))?)
    }

    /// The files and folders in the folder `path` below a shared place.
    pub fn shared_list(&self, place: &Shared, path: &RelPath) -> Result<Vec<DirEntry>> {
        Ok(listed(self.shared_store(place).list(&place.path.join_path(path))?))
    }

    /// Opens the file `path` below a shared place.
    pub fn shared_open(&self, place: &Shared, path: &RelPath) -> Result<Box<dyn File>> {
        self.shared_store(place).open(&place.path.join_path(path))
    }

    /// The root folder of the first store: whose it is and who may enter it.
    pub fn root_meta(&self) -> Result<Meta> {
        self.catalog.source_store(0).stat(&RelPath::root())
    }

    /// The newest change of the view. Where it has no worker: of the store's root folder, but only for those who see
    /// everything; to others its time would tell of workers that are not theirs.
    pub fn newest(&self, visible: &Visible) -> Result<Time> {
        let whole = self.filter == Filter::default();
        Ok(if whole { visible.newest.max(self.root_meta()?.last_write()) } else { visible.newest })
    }

    fn shared_store(&self, place: &Shared) -> &dyn store::Store {
        self.catalog.source_store(place.source)
    }
}

/// A worker's folder, entered: it stays that worker's, whatever takes its name's place later.
pub struct Folder(Box<dyn store::Store>);

impl Folder {
    /// The files in it that are shown, sorted by path, and how many folders could not be listed.
    pub fn files(&self) -> Result<(Vec<RelPath>, u64)> {
        catalog::list_files(&*self.0)
    }

    /// Opens the file `path` in it.
    pub fn open(&self, path: &RelPath) -> Result<Box<dyn File>> {
        self.0.open(path)
    }
}

/// A place in a store that belongs to no worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shared {
    source: usize,
    path: RelPath,
}

fn shown(meta: Meta) -> Result<Meta> {
    match meta.kind {
        Kind::File | Kind::Folder => Ok(meta),
        Kind::Link => Err(Error::Escape),
        Kind::Special => Err(Error::Special),
    }
}

fn listed(mut all: Vec<DirEntry>) -> Vec<DirEntry> {
    all.retain(|entry| matches!(entry.kind, Kind::File | Kind::Folder));
    all
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::Status;
    use crate::store::Memory;
    use crate::trace::ClaudeCode;

    fn write(store: &Memory, status: &str) {
        let path = RelPath::parse("workers/w/metadata.json").unwrap();
        store.write(&path, format!(r#"{{"worker_id": "w", "status": "{status}"}}"#));
    }

    /// A view that believes for an hour what it has seen.
    fn view(store: &Arc<Memory>) -> View {
        let hour = Duration::from_secs(3_600);
        let freshness = Freshness { unfinished: hour, finished: hour };
        View::over(vec![Source::from_store(store.clone(), None)], freshness, Filter::default()).unwrap()
    }

    #[test]
    fn a_worker_that_is_asked_for_as_it_is_now_is_not_shown_as_it_was() {
        let store = Arc::new(Memory::new());
        write(&store, "running");
        let view = view(&store);
        let name = Name::new("w").unwrap();
        let member = view.worker(&name).unwrap();
        write(&store, "success");
        assert_eq!(view.worker(&name).unwrap().entry.status, Status::Running);
        assert_eq!(view.worker_now(&member).unwrap().entry.status, Status::Completed);
    }

    #[test]
    fn a_change_is_shown_though_nothing_has_changed_since() {
        let store = Arc::new(Memory::new());
        write(&store, "running");
        let view = view(&store);
        let status = |view: &View| view.visible().members.first().map(|member| member.entry.status);
        assert_eq!(status(&view), Some(Status::Running));
        // Another reader looks twice before this one.
        let look = || drop((view.catalog.current_now(), view.catalog.current_now()));
        write(&store, "success");
        look();
        assert_eq!(status(&view), Some(Status::Completed));
        store.remove(&RelPath::parse("workers/w").unwrap());
        look();
        assert_eq!(status(&view), None);
    }

    #[test]
    fn a_worker_that_changes_in_its_place_changes_nothing_else() {
        let store = Arc::new(Memory::new());
        let write = |id: &str, more: &str| {
            let path = RelPath::parse(format!("workers/{id}/metadata.json")).unwrap();
            store.write(&path, format!(r#"{{"worker_id": "{id}", "run_id": "r", {more}}}"#));
        };
        let (created, later) = (r#""created_at": "2026-01-20T00:00:00Z""#, r#""created_at": "2026-01-21T00:00:00Z""#);
        write("a", created);
        write("b", &format!(r#""parent_id": "a", {created}"#));
        let fresh = Freshness { unfinished: Duration::ZERO, finished: Duration::ZERO };
        let view = View::over(vec![Source::from_store(store.clone(), None)], fresh, Filter::default()).unwrap();
        let before = view.visible();
        // It is found new wherever it was, and what tells where that is is not made again.
        let [a, b] = ["a", "b"].map(|id| Name::new(id).unwrap());
        write("b", &format!(r#""parent_id": "a", "status": "failed", {created}"#));
        let after = view.visible();
        assert!(after.generation > before.generation && after.shares_places(&before));
        let run = &after.runs.values().next().unwrap().members;
        for member in [&after.get(&b).unwrap(), &after.members[1], &run[1], &after.children(&a)[0]] {
            assert_eq!((&member.name, member.entry.status), (&b, Status::Failed));
        }
        // Where it has another place, all is made again.
        write("a", later);
        let moved = view.visible();
        assert!(!moved.shares_places(&after));
        let names: Vec<_> = moved.members.iter().map(|member| member.name.clone()).collect();
        assert_eq!(names, [b, a]);
    }

    #[test]
    fn workers_of_one_id_have_names_that_are_no_other_workers_id() {
        let stores: Vec<Source> = [&["a", "a~2"][..], &["a"], &["a"]]
            .into_iter()
            .map(|ids| {
                let store = Memory::new();
                for id in ids {
                    store.write(&RelPath::parse(format!("workers/{id}/metadata.json")).unwrap(), "{}");
                }
                Source::from_store(Arc::new(store), None)
            })
            .collect();
        let visible = View::over(stores, Freshness::default(), Filter::default()).unwrap().visible();
        let of = |name: &str| {
            let member = visible.get(&Name::new(name).unwrap()).unwrap();
            (member.entry.id.0.display(), member.entry.source())
        };
        assert_eq!(visible.members.len(), 4);
        assert_eq!(
            ["a", "a~2", "a~3", "a~4"].map(of),
            [("a".into(), 0), ("a~2".into(), 0), ("a".into(), 1), ("a".into(), 2)]
        );
    }

    #[test]
    fn only_what_is_made_may_take_time_to_be_looked_at() {
        let source = || Source::from_store(Arc::new(Memory::new()), None);
        let makes = |source| View::over(vec![source], Freshness::default(), Filter::default()).unwrap().makes_folders();
        assert!(!makes(source()));
        assert!(makes(source().with_format(Box::new(ClaudeCode::default()))));
    }
}
