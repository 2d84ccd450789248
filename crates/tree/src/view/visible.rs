//! The workers of a view at one moment, and their names in the tree.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::Filter;
use super::name_index::{NameIndex, ShortIds};
use crate::catalog::{Entry, EntryChange, Snapshot, WorkerLocation};
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::model::{Owner, SharedStr, SkipReport, Skipped, WorkerId};
use swarmletfs_base::name::{Name, RelPath, to_file_name};
use swarmletfs_base::split::Split;
use swarmletfs_base::store::Time;

/// Names of workers by their locations. They hold regardless of the other workers in the stores.
pub(super) type KeptNames = HashMap<WorkerLocation, Name>;

/// Minimum length of the beginning of an id that stands for a worker, in bytes.
const PREFIX_MIN: usize = 4;
const CANDIDATES_MAX: usize = 10;
/// Names in `runs/` that no run may have.
const RESERVED: [&str; 1] = ["latest"];

#[derive(Default)]
pub struct VisibleWorkers {
    pub generation: u64,
    /// Workers, sorted by creation time, then by id.
    pub members: Vec<Arc<Member>>,
    pub runs: BTreeMap<Name, Arc<RunMembers>>,
    /// Counts of entries that the stores hold but the view does not show. `None` in a restricted
    /// view.
    pub skipped: Option<Skipped>,
    /// Counts for each store, with examples of names. `None` in a restricted view.
    pub skip_reports: Option<Vec<SkipReport>>,
    pub list_errors: Vec<String>,
    /// Sessions not yet searched for workers inside them: there may be more workers than these.
    pub unread: HashSet<Name>,
    /// Time of the newest change that listing the stores reveals.
    pub newest: Time,
    /// Number of the arrangement: equal if names, order, runs and parents are equal.
    pub arrangement: u64,
    name_index: Arc<NameIndex>,
    short_ids: Arc<OnceLock<ShortIds>>,
    /// Indexes of the members in the order of their names; computed on first use.
    by_name: Arc<OnceLock<Vec<u32>>>,
    children: Arc<HashMap<Name, Vec<Arc<Member>>>>,
}

pub struct Member {
    /// Name in the tree: the id, with a number appended if another store has a worker of that id.
    pub name: Name,
    pub entry: Arc<Entry>,
}

#[derive(Clone)]
pub struct RunMembers {
    pub id: String,
    /// Workers of the run, sorted by creation time, then by id.
    pub members: Vec<Arc<Member>>,
}

impl VisibleWorkers {
    pub fn get(&self, name: &Name) -> Option<Arc<Member>> {
        self.index_of(name).and_then(|at| self.members.get(at)).cloned()
    }

    /// Returns the worker called `id`, or else the only one whose name begins with `id`.
    ///
    /// # Errors
    /// The same as [`find_by_prefix`].
    pub fn find(&self, id: &Name) -> Result<Arc<Member>> {
        match self.get(id) {
            Some(member) => Ok(member),
            None => find_by_prefix(&self.members, id).cloned(),
        }
    }

    fn index_of(&self, name: &Name) -> Option<usize> {
        self.name_index.get(&self.members, |member| &member.name, name)
    }

    /// Returns the position of a worker in the order of the names.
    pub fn rank(&self, name: &Name) -> Option<usize> {
        let order = self.name_order();
        let found = order.binary_search_by_key(&Some(name), |at| {
            self.members.get(*at as usize).map(|member| &member.name)
        });
        found.ok()
    }

    pub fn at_rank(&self, rank: usize) -> Option<&Arc<Member>> {
        self.members.get(*self.name_order().get(rank)? as usize)
    }

    fn name_order(&self) -> &[u32] {
        self.by_name.get_or_init(|| {
            let mut order: Vec<u32> =
                (0..self.members.len()).map_while(|at| u32::try_from(at).ok()).collect();
            order.sort_unstable_by_key(|at| {
                self.members.get(*at as usize).map(|member| &member.name)
            });
            order
        })
    }

    pub fn is_in_run(&self, run: &Name, name: &Name) -> bool {
        self.runs.get(run).is_some_and(|run| self.is_among(&run.members, name))
    }

    /// Returns the worker whose history the record of `worker` begins with, if it is in the view
    /// and lies in the same store.
    pub fn original(&self, worker: &Name) -> Option<Name> {
        let member = self.get(worker)?;
        let id = member.entry.worker().continues?;
        let original = self.get(&Name::new(&*id).ok()?)?;
        let is_other = original.name != *worker;
        (is_other && original.entry.source() == member.entry.source())
            .then(|| original.name.clone())
    }

    pub fn is_child(&self, parent: &Name, name: &Name) -> bool {
        self.is_among(self.children(parent), name)
    }

    /// Returns true if the worker called `name` is among `members`, sorted as all members are.
    fn is_among(&self, members: &[Arc<Member>], name: &Name) -> bool {
        self.get(name).is_some_and(|wanted| {
            let order = |member: &Member| (member.entry.created_at, member.name.clone());
            members.binary_search_by_key(&order(&wanted), |member| order(member)).is_ok()
        })
    }

    pub fn name_at(&self, source: usize, root: &RelPath) -> Option<Name> {
        let is_at_root =
            |member: &&Arc<Member>| (member.entry.source(), &member.entry.root) == (source, root);
        // A worker is usually named after its directory.
        let named = self
            .index_of(&root.file_name()?)
            .and_then(|at| self.members.get(at))
            .filter(is_at_root);
        named.or_else(|| self.members.iter().find(is_at_root)).map(|member| member.name.clone())
    }

    /// Returns the shortest beginning of a worker's name that no other name in the view has, at
    /// least eight bytes of it.
    pub fn short_id(&self, name: &Name) -> Name {
        let ids = self.short_ids.get_or_init(|| {
            ShortIds::new(&self.members.iter().map(|member| &member.name).collect::<Vec<_>>())
        });
        self.index_of(name).and_then(|at| ids.get(at, name)).unwrap_or_else(|| name.clone())
    }

    /// Returns the workers that this one started, sorted by creation time, then by id.
    pub fn children(&self, name: &Name) -> &[Arc<Member>] {
        self.children.get(name).map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns the names that differ from the worker's id, by the worker's location in the stores
    /// that have `numbers` now. `numbers` has an item for each store that these workers are in,
    /// `None` for a store that is gone.
    pub(super) fn numbered_names(&self, numbers: &[Option<usize>]) -> KeptNames {
        let numbered = self.members.iter().filter(|member| member.name != member.entry.id.0);
        let moved = numbered.filter_map(|member| {
            let source = numbers.get(member.entry.source()).copied().flatten()?;
            Some(((source, member.entry.root.clone()), member.name.clone()))
        });
        moved.collect()
    }

    /// Builds the workers of `snapshot` that `filter` admits. Workers in `kept_names` get the names
    /// there.
    pub(super) fn new(
        snapshot: &Snapshot,
        filter: &Filter,
        kept_names: &KeptNames,
    ) -> VisibleWorkers {
        let mut entries: Vec<&Arc<Entry>> =
            snapshot.entries.iter().filter(|entry| is_visible(filter, entry)).collect();
        // Among equal ids, the store given first comes first, then the shorter path, so names are
        // stable.
        entries.sort_by_cached_key(|entry| {
            (entry.id.clone(), entry.source(), entry.root.depth(), entry.root.clone())
        });
        let mut members = assign_names(entries, kept_names);
        members.sort_by_cached_key(|member| (member.entry.created_at, member.name.clone()));
        let mut runs: BTreeMap<Name, RunMembers> = BTreeMap::new();
        for member in &members {
            let Some(id) = &member.entry.run else { continue };
            let run = runs
                .entry(run_name(id))
                .or_insert_with(|| RunMembers { id: id.to_string(), members: Vec::new() });
            run.members.push(member.clone());
        }
        let runs = runs.into_iter().map(|(name, run)| (name, Arc::new(run))).collect();
        let is_unrestricted = *filter == Filter::default();
        static ARRANGEMENTS: AtomicU64 = AtomicU64::new(0);
        let visible = VisibleWorkers {
            generation: snapshot.generation,
            arrangement: ARRANGEMENTS.fetch_add(1, Ordering::Relaxed),
            children: Arc::new(children_by_parent(&members)),
            name_index: Arc::new(NameIndex::new(&members, |member| &member.name)),
            short_ids: Arc::default(),
            by_name: Arc::default(),
            newest: members
                .iter()
                .map(|member| member.entry.last_write())
                .max()
                .unwrap_or_default(),
            members,
            runs,
            skipped: is_unrestricted.then_some(snapshot.skipped),
            skip_reports: is_unrestricted.then(|| snapshot.skip_reports.clone()),
            list_errors: snapshot.problems.clone(),
            unread: HashSet::new(),
        };
        VisibleWorkers { unread: visible.unread(snapshot), ..visible }
    }

    /// Returns the sessions of this view that were not yet searched for workers inside them.
    fn unread(&self, snapshot: &Snapshot) -> HashSet<Name> {
        if snapshot.unread.is_empty() {
            return HashSet::new();
        }
        let unread: HashSet<(usize, &RelPath)> =
            snapshot.unread.iter().map(|(source, root)| (*source, root)).collect();
        let members = self.members.iter();
        let unread =
            members.filter(|member| unread.contains(&(member.entry.source(), &member.entry.root)));
        unread.map(|member| member.name.clone()).collect()
    }

    /// Applies `snapshot.changes` without sorting again, with the same result as
    /// [`VisibleWorkers::new`]. Returns `None` if the order would change or `snapshot` is not the
    /// next generation.
    pub(super) fn apply_changes(
        &self,
        snapshot: &Snapshot,
        filter: &Filter,
    ) -> Option<VisibleWorkers> {
        let changes = snapshot.changes.as_ref()?;
        if snapshot.generation != self.generation + 1 {
            return None;
        }
        let mut updated = VisibleWorkers {
            generation: snapshot.generation,
            members: self.members.clone(),
            runs: self.runs.clone(),
            skipped: self.skipped.map(|_| snapshot.skipped),
            skip_reports: self.skip_reports.as_ref().map(|_| snapshot.skip_reports.clone()),
            list_errors: snapshot.problems.clone(),
            unread: self.unread(snapshot),
            newest: self.newest,
            arrangement: self.arrangement,
            name_index: self.name_index.clone(),
            short_ids: self.short_ids.clone(),
            by_name: self.by_name.clone(),
            children: self.children.clone(),
        };
        changes.iter().all(|change| updated.replace(change, filter)).then_some(updated)
    }

    /// Replaces a worker at its position. Returns false if its position may change.
    fn replace(&mut self, EntryChange { old, new }: &EntryChange, filter: &Filter) -> bool {
        let sort_key = |entry: &Entry| {
            (entry.owner.clone(), entry.run.clone(), entry.parent.clone(), entry.created_at)
        };
        if sort_key(old) != sort_key(new)
            || (old.last_write() == self.newest && new.last_write() < self.newest)
        {
            return false;
        }
        if !is_visible(filter, new) {
            return true;
        }
        let named = self.index_of(&new.id.0);
        let is_old = |member: &Arc<Member>| Arc::ptr_eq(&member.entry, old);
        let at = named.filter(|at| self.members.get(*at).is_some_and(is_old));
        let Some(slot) = at
            .or_else(|| self.members.iter().position(is_old))
            .and_then(|at| self.members.get_mut(at))
        else {
            return false;
        };
        let member = Arc::new(Member { name: slot.name.clone(), entry: new.clone() });
        *slot = member.clone();
        self.newest = self.newest.max(new.last_write());
        let replace_in = |members: &mut Vec<Arc<Member>>| {
            members
                .iter_mut()
                .filter(|other| is_old(other))
                .for_each(|other| *other = member.clone());
        };
        if let Some(run) = new.run.as_ref().and_then(|run| self.runs.get_mut(&run_name(run))) {
            replace_in(&mut Arc::make_mut(run).members);
        }
        if new.parent.is_some() {
            Arc::make_mut(&mut self.children).values_mut().for_each(replace_in);
        }
        true
    }
}

/// Returns the only member whose name begins with `id`.
///
/// # Errors
/// [`Error::AmbiguousId`] if several names begin with `id`; [`Error::NotFound`] if none does, or
/// `id` is shorter than four bytes.
pub fn find_by_prefix<'a>(
    members: impl IntoIterator<Item = &'a Arc<Member>>,
    id: &Name,
) -> Result<&'a Arc<Member>> {
    if id.as_bytes().len() < PREFIX_MIN {
        return Err(Error::NotFound);
    }
    let begins = |member: &&Arc<Member>| member.name.as_bytes().starts_with(id.as_bytes());
    let mut found = members.into_iter().filter(begins);
    let first = found.next().ok_or(Error::NotFound)?;
    let Some(second) = found.next() else { return Ok(first) };
    let listed = [first, second].into_iter().chain(found.by_ref().take(CANDIDATES_MAX - 2));
    let mut listed: Vec<String> = listed.map(|member| member.name.display()).collect();
    match found.count() {
        0 => {}
        more => listed.push(format!("{more} more")),
    }
    Err(Error::AmbiguousId(listed.join(", ")))
}

fn run_name(id: &str) -> Name {
    to_file_name(id, &RESERVED)
}

/// Groups the workers by the name of their parent. A worker states its parent's id within its own
/// store.
fn children_by_parent(members: &[Arc<Member>]) -> HashMap<Name, Vec<Arc<Member>>> {
    let mut parents: HashMap<(usize, Vec<u8>), &Name> = HashMap::new();
    if members.iter().any(|member| member.entry.parent.is_some()) {
        // Among workers with one id, the smallest name is the plain one.
        for Member { name, entry } in members.iter().map(Arc::as_ref) {
            let id = (entry.source(), entry.id.0.as_bytes().to_vec());
            let parent = parents.entry(id).or_insert(name);
            *parent = (*parent).min(name);
        }
    }
    let mut children: HashMap<Name, Vec<Arc<Member>>> = HashMap::new();
    for member in members {
        let Some(parent) = &member.entry.parent else { continue };
        let parent = parents.get(&(member.entry.source(), parent.as_bytes().to_vec()));
        if let Some(parent) = parent.filter(|parent| ***parent != member.name) {
            children.entry((*parent).clone()).or_default().push(member.clone());
        }
    }
    children
}

/// Returns true if a worker of this owner and run is in a view. Nothing else decides that.
pub(super) fn matches(filter: &Filter, owner: Option<&Owner>, run: Option<&SharedStr>) -> bool {
    let owner_matches =
        filter.owner.as_ref().is_none_or(|id| owner.is_some_and(|owner| *owner.0 == **id));
    let run_matches = filter.run.as_ref().is_none_or(|id| run.is_some_and(|run| **run == **id));
    owner_matches && run_matches
}

fn is_visible(filter: &Filter, entry: &Entry) -> bool {
    matches(filter, entry.owner.as_ref(), entry.run.as_ref())
}

/// Longest name that programs accept for a file, in bytes.
const FILE_NAME_MAX: usize = 255;

/// Returns `<id>~<number>`, of which the id is shortened if the name would be too long for a file.
fn numbered(id: &Name, number: u32) -> Option<Name> {
    let suffix = format!("~{number}");
    let room = FILE_NAME_MAX.saturating_sub(suffix.len());
    let id = match std::str::from_utf8(id.as_bytes()) {
        Ok(id) => id.split_at_most(room).0.as_bytes(),
        Err(_) => id.as_bytes().split_at_most(room).0,
    };
    Name::new([id, suffix.as_bytes()].concat()).ok()
}

/// Gives each worker a unique name. `entries` must be sorted by id; a second worker with an id is
/// named `<id>~2`, unless `kept_names` has another name for it.
fn assign_names(entries: Vec<&Arc<Entry>>, kept_names: &KeptNames) -> Vec<Arc<Member>> {
    let kept_name = |entry: &Entry| kept_names.get(&(entry.source(), entry.root.clone()));
    let kept = entries.iter().filter(|_| !kept_names.is_empty());
    let mut taken: HashSet<Name> = kept.filter_map(|entry| kept_name(entry)).cloned().collect();
    let ids: HashSet<WorkerId> = entries.iter().map(|entry| entry.id.clone()).collect();
    let mut members = Vec::with_capacity(entries.len());
    let mut last: Option<(&WorkerId, u32)> = None;
    for entry in entries {
        let id = &entry.id;
        let mut name = id.0.clone();
        // The names of equal ids before are taken.
        let mut number = last.filter(|(known, _)| *known == id).map_or(2, |(_, number)| number);
        if let Some(kept) = kept_name(entry).filter(|_| !kept_names.is_empty()) {
            name = kept.clone();
        } else {
            while taken.contains(&name) || name != id.0 && ids.contains(&WorkerId(name.clone())) {
                let Some(next) = numbered(&id.0, number) else { break };
                name = next;
                number += 1;
            }
        }
        last = Some((id, number));
        taken.insert(name.clone());
        members.push(Arc::new(Member { name, entry: entry.clone() }));
    }
    members
}
