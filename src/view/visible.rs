//! The workers of a view at one moment, and the names they are reached by.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::Filter;
use super::places::Places;
use crate::catalog::{Entry, EntryChange, Snapshot};
use crate::model::{Owner, PassedOver, Skipped, Word, WorkerId};
use crate::name::{Name, RelPath, to_file_name};
use crate::store::Time;

/// The names in `runs/` that stand for no run.
const RESERVED: [&str; 1] = ["latest"];

/// All workers of a view.
#[derive(Default)]
pub struct Visible {
    /// The catalog's generation this was made from.
    pub generation: u64,
    /// By creation time, then id.
    pub members: Vec<Arc<Member>>,
    /// The runs by the name of their folder.
    pub runs: BTreeMap<Name, Arc<RunMembers>>,
    /// What the stores hold that is not shown: known only to a view of everything.
    pub skipped: Option<Skipped>,
    /// The same of each store, with a few names: likewise.
    pub passed: Option<Vec<PassedOver>>,
    /// What went wrong when a store was listed.
    pub troubles: Vec<String>,
    /// The sessions that were not read yet for workers inside them: there may be more workers than these.
    pub unread: HashSet<Name>,
    /// The newest change that listing tells of.
    pub newest: Time,
    places: Arc<Places>,
    children: Arc<HashMap<Name, Vec<Arc<Member>>>>,
}

/// A worker in a view.
pub struct Member {
    /// The name it is reached by: its id, with a number behind where another store has the same.
    pub name: Name,
    /// What the catalog has.
    pub entry: Arc<Entry>,
}

/// The workers of a run.
#[derive(Clone)]
pub struct RunMembers {
    /// The run's id, as the workers say it.
    pub id: String,
    /// Its workers, by creation time, then id.
    pub members: Vec<Arc<Member>>,
}

impl Visible {
    /// The worker under this name.
    pub fn get(&self, name: &Name) -> Option<Arc<Member>> {
        self.place(name).and_then(|at| self.members.get(at)).cloned()
    }

    fn place(&self, name: &Name) -> Option<usize> {
        self.places.get(&self.members, |member| &member.name, name)
    }

    /// The name of the worker that lies there in a store.
    pub(super) fn at(&self, source: usize, root: &RelPath) -> Option<Name> {
        let is_it = |member: &&Arc<Member>| (member.entry.source(), &member.entry.root) == (source, root);
        // Most often it is the name of its folder.
        let named = self.place(&root.file_name()?).and_then(|at| self.members.get(at)).filter(is_it);
        named.or_else(|| self.members.iter().find(is_it)).map(|member| member.name.clone())
    }

    /// The workers that this one started, by creation time, then id.
    pub fn children(&self, name: &Name) -> &[Arc<Member>] {
        self.children.get(name).map(Vec::as_slice).unwrap_or_default()
    }

    /// Whether the one follows from the other without anything having been put in order again.
    #[cfg(test)]
    pub(super) fn shares_places(&self, other: &Visible) -> bool {
        Arc::ptr_eq(&self.places, &other.places)
    }

    pub(super) fn of(snapshot: &Snapshot, filter: &Filter) -> Visible {
        let mut entries: Vec<&Arc<Entry>> = snapshot.entries.iter().filter(|entry| has(filter, entry)).collect();
        // Among equal ids the store that was named first comes first, then the shorter path: always the same.
        entries.sort_by_cached_key(|entry| (entry.id.clone(), entry.source(), entry.root.depth(), entry.root.clone()));
        let mut members = name_all(entries);
        members.sort_by_cached_key(|member| (member.entry.created_at, member.name.clone()));
        let mut runs: BTreeMap<Name, RunMembers> = BTreeMap::new();
        for member in &members {
            let Some(id) = &member.entry.run else { continue };
            let run =
                runs.entry(run_name(id)).or_insert_with(|| RunMembers { id: id.to_string(), members: Vec::new() });
            run.members.push(member.clone());
        }
        let runs = runs.into_iter().map(|(name, run)| (name, Arc::new(run))).collect();
        let whole = *filter == Filter::default();
        let visible = Visible {
            generation: snapshot.generation,
            children: Arc::new(children(&members)),
            places: Arc::new(Places::of(&members, |member| &member.name)),
            newest: members.iter().map(|member| member.entry.last_write()).max().unwrap_or_default(),
            members,
            runs,
            skipped: whole.then_some(snapshot.skipped),
            passed: whole.then(|| snapshot.skip_reports.clone()),
            troubles: snapshot.problems.clone(),
            unread: HashSet::new(),
        };
        Visible { unread: visible.unread(snapshot), ..visible }
    }

    /// Returns the sessions among these workers that were not read yet for workers inside them. Those of another view are
    /// not told.
    fn unread(&self, snapshot: &Snapshot) -> HashSet<Name> {
        if snapshot.unread.is_empty() {
            return HashSet::new();
        }
        let unread: HashSet<(usize, &RelPath)> = snapshot.unread.iter().map(|(source, root)| (*source, root)).collect();
        let is_unread = |member: &&Arc<Member>| unread.contains(&(member.entry.source(), &member.entry.root));
        self.members.iter().filter(is_unread).map(|member| member.name.clone()).collect()
    }
}

impl Visible {
    /// What became of it in the next generation, where a few workers are known anew and none has another place by that. It
    /// costs no more than that, and is what [`Visible::of`] makes.
    pub(super) fn next(&self, snapshot: &Snapshot, filter: &Filter) -> Option<Visible> {
        let changes = snapshot.changes.as_ref()?;
        if snapshot.generation != self.generation + 1 {
            return None;
        }
        let mut next = Visible {
            generation: snapshot.generation,
            members: self.members.clone(),
            runs: self.runs.clone(),
            skipped: self.skipped.map(|_| snapshot.skipped),
            passed: self.passed.as_ref().map(|_| snapshot.skip_reports.clone()),
            troubles: snapshot.problems.clone(),
            unread: self.unread(snapshot),
            newest: self.newest,
            places: self.places.clone(),
            children: self.children.clone(),
        };
        changes.iter().all(|change| next.replace(change, filter)).then_some(next)
    }

    /// Puts a worker in the place that it had. Whether that could be done.
    fn replace(&mut self, EntryChange { old, new }: &EntryChange, filter: &Filter) -> bool {
        let place = |entry: &Entry| (entry.owner.clone(), entry.run.clone(), entry.parent.clone(), entry.created_at);
        if place(old) != place(new) || (old.last_write() == self.newest && new.last_write() < self.newest) {
            return false;
        }
        if !has(filter, new) {
            return true;
        }
        let named = self.place(&new.id.0);
        let is_old = |member: &Arc<Member>| Arc::ptr_eq(&member.entry, old);
        let at = named.filter(|at| self.members.get(*at).is_some_and(is_old));
        let Some(slot) = at.or_else(|| self.members.iter().position(is_old)).and_then(|at| self.members.get_mut(at))
        else {
            return false;
        };
        let member = Arc::new(Member { name: slot.name.clone(), entry: new.clone() });
        *slot = member.clone();
        self.newest = self.newest.max(new.last_write());
        let put = |members: &mut Vec<Arc<Member>>| {
            members.iter_mut().filter(|other| is_old(other)).for_each(|other| *other = member.clone());
        };
        if let Some(run) = new.run.as_ref().and_then(|run| self.runs.get_mut(&run_name(run))) {
            put(&mut Arc::make_mut(run).members);
        }
        if new.parent.is_some() {
            Arc::make_mut(&mut self.children).values_mut().for_each(put);
        }
        true
    }
}

fn run_name(id: &str) -> Name {
    to_file_name(id, &RESERVED)
}

/// The members by their parents' names. A worker names its parent by its id, within its store.
fn children(members: &[Arc<Member>]) -> HashMap<Name, Vec<Arc<Member>>> {
    let of = |member: &Member| (member.entry.source(), member.entry.id.0.as_bytes().to_vec());
    let mut parents: HashMap<(usize, Vec<u8>), &Name> = HashMap::new();
    if members.iter().any(|member| member.entry.parent.is_some()) {
        // Of two with one id the first is the one with the plain name.
        let by_name = members.iter().map(|member| (of(member), &member.name));
        by_name.for_each(|(id, name)| {
            let known = parents.entry(id).or_insert(name);
            *known = (*known).min(name);
        });
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

/// Whether a worker of this owner and run is in a view: the one place where that is decided.
pub(super) fn admits(filter: &Filter, owner: Option<&Owner>, run: Option<&Word>) -> bool {
    let of_owner = filter.owner.as_ref().is_none_or(|id| owner.is_some_and(|owner| *owner.0 == **id));
    let of_run = filter.run.as_ref().is_none_or(|id| run.is_some_and(|run| **run == **id));
    of_owner && of_run
}

fn has(filter: &Filter, entry: &Entry) -> bool {
    admits(filter, entry.owner.as_ref(), entry.run.as_ref())
}

/// Gives every worker a name of its own. `entries` are sorted by id; a second worker of the same id is `<id>~2`.
fn name_all(entries: Vec<&Arc<Entry>>) -> Vec<Arc<Member>> {
    let mut taken: HashSet<Name> = HashSet::new();
    let ids: HashSet<WorkerId> = entries.iter().map(|entry| entry.id.clone()).collect();
    let mut members = Vec::with_capacity(entries.len());
    for entry in entries {
        let id = &entry.id;
        let mut name = id.0.clone();
        let mut number = 2_u32;
        while taken.contains(&name) || (number > 2 && ids.contains(&WorkerId(name.clone()))) {
            let numbered = [id.0.as_bytes(), format!("~{number}").as_bytes()].concat();
            let Ok(next) = Name::new(numbered) else { break };
            name = next;
            number += 1;
        }
        taken.insert(name.clone());
        members.push(Arc::new(Member { name, entry: entry.clone() }));
    }
    members
}
