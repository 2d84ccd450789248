//! Selects the changes to apply: all, or the changes of named paths, without refused ones.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use super::unasked::{ChangedEntry, PathRules, UnaskedPaths};
use swarmletfs_base::model::{
    Base, CHANGES_VERSION, ChangedFile, EntryKind, EntryState, WorkspaceChanges,
};
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::is_temporary;
use swarmletfs_record::write::{Dir, Error, Result, hash_bytes};
use swarmletfs_trace::swarmlet::CHANGES_FILE;

/// Deepest path that is applied, in names. Readers of a store go no deeper, either.
const DEPTH_MAX: usize = 60;

/// A change of one path: the state that it must have, and the one that it gets.
#[derive(Debug, Clone)]
pub(super) struct Change {
    pub(super) path: RelPath,
    /// State before; `None` if there is no entry.
    pub(super) from: Option<EntryState>,
    pub(super) to: Option<EntryState>,
    /// False if the content before is unknown.
    pub(super) is_from_known: bool,
    /// The content afterwards, if it is a part of the worker's.
    pub(super) part: Option<Arc<[u8]>>,
}

#[derive(Debug, Clone)]
pub struct UnappliedChange {
    pub path: RelPath,
    pub reason: String,
}

/// Changes to apply, sorted by path, so that folders come before their entries.
#[derive(Debug, Clone, Default)]
pub struct ChangeSelection {
    pub(super) changes: BTreeMap<RelPath, Change>,
    left_out: Vec<UnappliedChange>,
    rules: PathRules,
    /// The changes.json of the selection; `None` if an application is taken back.
    pub(super) source: Option<Arc<WorkspaceChanges>>,
}

impl ChangeSelection {
    /// Selects the changes of `paths`, or all if `paths` is empty. A path stands for everything
    /// beneath it. `store` holds the worker. Without a `workspace`, names alone decide whether
    /// programs run a path unasked.
    ///
    /// # Errors
    ///
    /// The changes are invalid, or one of the paths has none.
    pub fn new(
        changes: WorkspaceChanges,
        paths: &[RelPath],
        rules: PathRules,
        workspace: Option<&Dir>,
        store: &Path,
    ) -> Result<ChangeSelection> {
        if changes.version != CHANGES_VERSION {
            return Err(bad_changes("its version is not known"));
        }
        let mut all = BTreeMap::new();
        for file in &changes.files {
            let path = file.path.parse().map_err(|_| bad_changes("a path leads elsewhere"))?;
            if all.insert(path, file).is_some() {
                return Err(bad_changes("a path is listed twice"));
            }
        }
        for path in paths {
            if !all.keys().any(|changed| changed.is_within(path)) {
                let reason = "the worker has not changed it";
                return Err(Error::invalid(path.as_bytes(), "a path to select", reason));
            }
        }
        let is_named = |changed: &RelPath| {
            paths.is_empty() || paths.iter().any(|path| changed.is_within(path))
        };
        let mut selection = ChangeSelection { rules, ..ChangeSelection::default() };
        let entries = all.iter().map(|(path, file)| ChangedEntry::new(path, file.new.as_ref()));
        let unasked = UnaskedPaths::find(workspace, store, entries);
        for (path, file) in &all {
            selection.add(path, file, &unasked);
        }
        let accepted = all.into_keys().filter(is_named).collect();
        let left_out = selection.left_out.iter().filter(|left_out| is_named(&left_out.path));
        let left_out = left_out.cloned().collect();
        let selected = selection.restricted_to(&accepted);
        Ok(ChangeSelection { left_out, source: Some(Arc::new(changes)), ..selected })
    }

    fn add(&mut self, path: &RelPath, file: &ChangedFile, unasked: &UnaskedPaths) {
        let entry = ChangedEntry::new(path, file.new.as_ref());
        let refused = refusal(path, file).or_else(|| unasked.refusal(entry, self.rules));
        if let Some(reason) = refused {
            self.left_out.push(UnappliedChange { path: path.clone(), reason });
            return;
        }
        self.changes.insert(
            path.clone(),
            Change {
                path: path.clone(),
                from: file.old.clone(),
                to: file.new.clone(),
                is_from_known: file.base != Base::Unknown,
                part: None,
            },
        );
    }

    /// Takes `content`, a part of the worker's change of `path`, in place of the whole.
    pub fn take_part(&mut self, path: &RelPath, content: &[u8]) {
        let Some(change) = self.changes.get_mut(path) else { return };
        if let Some(to) = change.to.as_mut() {
            (to.size, to.sha256) = (content.len() as u64, hash_bytes(content));
            change.part = Some(content.into());
        }
    }

    /// Expects that `path` is as `state` now, a part of the worker's change that was applied.
    pub(super) fn expect(&mut self, path: &RelPath, state: EntryState) {
        if let Some(change) = self.changes.get_mut(path) {
            (change.from, change.is_from_known) = (Some(state), true);
        }
    }

    /// Returns the state that `path` must have before its change.
    pub(super) fn expected(&self, path: &RelPath) -> Option<&EntryState> {
        self.changes.get(path)?.from.as_ref()
    }

    /// Returns the part of this selection that is in `accepted`, and the new folders that it needs.
    pub fn restricted_to(&self, accepted: &BTreeSet<RelPath>) -> ChangeSelection {
        let mut changes = BTreeMap::new();
        let mut add = |path: &RelPath| {
            if let Some(change) = self.changes.get(path) {
                changes.insert(path.clone(), change.clone());
            }
        };
        for change in accepted.iter().filter_map(|path| self.changes.get(path)) {
            add(&change.path);
            let mut folder = change.path.parent();
            while change.to.is_some() && !folder.is_root() {
                let is_new = |change: &&Change| is_folder(change.to.as_ref());
                self.changes.get(&folder).filter(is_new).into_iter().for_each(|_| add(&folder));
                folder = folder.parent();
            }
            if change.to.is_some() && !is_folder(change.to.as_ref()) {
                // Names that continue this one, as `a.b` continues `a`, lie in between.
                let continued = self.changes.range(change.path.clone()..).map(|(path, _)| path);
                let prefix = change.path.as_bytes();
                let continued = continued.take_while(|path| path.as_bytes().starts_with(prefix));
                continued.filter(|path| path.is_within(&change.path)).for_each(&mut add);
            }
        }
        let (rules, source) = (self.rules, self.source.clone());
        ChangeSelection { changes, left_out: Vec::new(), rules, source }
    }

    /// Returns the changes that programs would run unasked in the workspace as it is now, which
    /// others may have changed since the selection.
    pub(super) fn unasked_now(&self, workspace: &Dir, store: &Path) -> Vec<UnappliedChange> {
        let entries = || {
            self.changes.values().map(|change| ChangedEntry::new(&change.path, change.to.as_ref()))
        };
        let unasked = UnaskedPaths::find(Some(workspace), store, entries());
        let refused = entries().filter_map(|entry| {
            let reason = unasked.refusal(entry, self.rules)?;
            Some(UnappliedChange { path: entry.path.clone(), reason })
        });
        refused.collect()
    }

    /// Returns this selection without `paths` and everything beneath them; `None` if the rest needs
    /// one.
    pub fn without(&self, paths: &BTreeSet<RelPath>) -> Option<ChangeSelection> {
        let is_dropped = |path: &RelPath| paths.iter().any(|dropped| path.is_within(dropped));
        let rest = self.changes.keys().filter(|path| !is_dropped(path)).cloned().collect();
        let rest = self.restricted_to(&rest);
        (!rest.changes.keys().any(is_dropped)).then_some(rest)
    }

    /// Returns the files that the worker moved, by their old paths: a removed file and an added one
    /// of the same content, and other files that went from one folder to another with such files.
    pub(super) fn renames(&self) -> BTreeMap<RelPath, &Change> {
        let file = |state: &Option<EntryState>| {
            state.clone().filter(|state| state.kind == EntryKind::File && state.size > 0)
        };
        let removed = || self.changes.values().filter(|change| change.to.is_none());
        let added = || self.changes.values().filter(|change| change.from.is_none());
        let mut by_content: BTreeMap<String, Vec<&Change>> = BTreeMap::new();
        for change in added() {
            let state = file(&change.to);
            by_content.entry(state.map_or(String::new(), |it| it.sha256)).or_default().push(change);
        }
        let (mut found, mut folders) = (BTreeMap::new(), BTreeMap::new());
        for change in removed() {
            let Some(state) = file(&change.from) else { continue };
            if let Some([same]) = by_content.get(&state.sha256).map(Vec::as_slice) {
                folders.insert(change.path.parent(), same.path.parent());
                found.insert(change.path.clone(), *same);
            }
        }
        for change in removed().filter(|change| file(&change.from).is_some()) {
            let folder = folders.get(&change.path.parent());
            let moved = folder.zip(change.path.file_name());
            let moved = moved.and_then(|(folder, name)| self.changes.get(&folder.join(&name)));
            let moved = moved.filter(|it| it.from.is_none() && file(&it.to).is_some());
            if let Some(moved) = moved {
                found.entry(change.path.clone()).or_insert(moved);
            }
        }
        found
    }

    /// Returns the old and the new paths of the files that the worker moved.
    pub fn moved(&self) -> Vec<(RelPath, RelPath)> {
        self.renames().into_iter().map(|(old, change)| (old, change.path.clone())).collect()
    }

    pub(super) fn from_changes(changes: impl IntoIterator<Item = Change>) -> ChangeSelection {
        let changes = changes.into_iter().map(|change| (change.path.clone(), change)).collect();
        ChangeSelection { changes, ..ChangeSelection::default() }
    }

    /// Returns the list that the changes come from, unless they come from an application.
    pub fn source(&self) -> Option<&WorkspaceChanges> {
        self.source.as_deref()
    }

    pub(super) fn rules(&self) -> PathRules {
        self.rules
    }

    pub fn left_out(&self) -> &[UnappliedChange] {
        &self.left_out
    }
}

/// Returns true if `path`, or something beneath it, has changed.
pub fn has_changed(changes: &WorkspaceChanges, path: &RelPath) -> bool {
    let is_in = |file: &ChangedFile| file.path.parse().is_ok_and(|file| file.is_within(path));
    changes.files.iter().any(is_in)
}

fn is_folder(state: Option<&EntryState>) -> bool {
    state.is_some_and(|state| state.kind == EntryKind::Folder)
}

/// Returns why the change of `path` is never applied; `None` if it may be.
fn refusal(path: &RelPath, file: &ChangedFile) -> Option<String> {
    let states = [&file.old, &file.new].into_iter().flatten();
    if let Some(reason) = &file.refused {
        Some(reason.clone())
    } else if states.clone().any(|state| state.kind == EntryKind::Special) {
        Some("it is a device, FIFO or socket".to_owned())
    } else if states.clone().any(|state| state.kind == EntryKind::Link && state.target.is_none()) {
        Some("it is a link without a target".to_owned())
    } else if path.depth() > DEPTH_MAX {
        Some(format!("it has more than {DEPTH_MAX} folders"))
    } else if path.names().any(|name| is_temporary(&name)) {
        Some("its name is one that swarmletfs uses itself".to_owned())
    } else {
        None
    }
}

fn bad_changes(reason: &str) -> Error {
    Error::invalid(CHANGES_FILE.as_bytes(), "changes of a workspace", reason)
}
