//! The search for what a worker changed, while it runs and after its end.

use std::collections::BTreeMap;
use std::path::PathBuf;

use jiff::Timestamp;

use super::candidate::{Candidate, OldEntry, Stop, Visitor, Walk};
use super::comparison::{Comparison, Outcome, Places};
use super::folder::Draft;
use super::overlay::OverlayWalk;
use super::{stored, view_rules};
use crate::deadline::Deadline;
use crate::error::Error as PathError;
use crate::model::{
    Base, CHANGES_VERSION, ChangeKind, ChangedFile, EntryKind, EntryState, WorkspaceChanges,
};
use crate::name::{Name, RelPath};
use crate::store::{EntryStat, OpenFolder};
use crate::trace::swarmlet::{APPLIED, BASE, CHANGES, CHANGES_FILE};
use crate::write::{Dir, During, Result, Worker};

/// Searches for the changes of a workspace, and records them in the worker's directory.
pub(crate) struct ChangeSearch {
    draft: Draft,
    worker: Worker,
    workspace: PathBuf,
    hidden: Vec<RelPath>,
    comparison: Option<Comparison>,
    known: BTreeMap<RelPath, Known>,
    /// Number of the current search.
    generation: u64,
    /// The last changes.json, without its time.
    written: Option<WorkspaceChanges>,
    report: SearchReport,
}

/// What a search found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SearchReport {
    /// Number of changed paths.
    pub(crate) files: u64,
    /// Number of added lines.
    pub(crate) added: u64,
    /// Number of removed lines.
    pub(crate) removed: u64,
    /// Number of changed paths that can never be applied.
    pub(crate) refused: u64,
    /// Number of changed paths that git ignores; an ignored directory counts once.
    pub(crate) ignored: u64,
    /// What a person must know.
    pub(crate) notes: Vec<String>,
    /// True if the search came to its end. Otherwise this is what an earlier one found.
    pub(crate) is_complete: bool,
}

/// What is known of a path since an earlier search.
struct Known {
    /// The entries before and after, as they were compared.
    compared: (Option<EntryStat>, Option<EntryStat>),
    change: Option<ChangedFile>,
    generation: u64,
}

impl ChangeSearch {
    /// Returns a search for what `worker` changed in its draft.
    pub(crate) fn new(draft: &Draft, worker: &Worker) -> ChangeSearch {
        let hidden = draft.record().hidden();
        let hidden = hidden.iter().map(|path| RelPath::parse(path.as_os_str().as_encoded_bytes()));
        ChangeSearch {
            draft: draft.clone(),
            worker: worker.clone(),
            workspace: draft.record().workspace(),
            hidden: hidden.flatten().filter(|path| !path.is_root()).collect(),
            comparison: None,
            known: BTreeMap::new(),
            generation: 0,
            written: None,
            report: SearchReport::default(),
        }
    }

    /// Searches while the worker runs, until `deadline` passes, and records what is new. Files that
    /// change meanwhile are left to the next search.
    ///
    /// # Errors
    ///
    /// The draft or the workspace cannot be read, or the draft cannot be written. What the worker
    /// does in its own directory is no error.
    pub(crate) fn update(&mut self, deadline: Deadline<'_>) -> Result<SearchReport> {
        self.report.is_complete = false;
        match self.search(deadline, false) {
            Ok(changes) => {
                let is_new = self.written.as_ref().map_or(!changes.files.is_empty(), |written| {
                    WorkspaceChanges { scanned_at: written.scanned_at, ..changes.clone() }
                        != *written
                });
                // The worker may have put something in the way. The last search removes it.
                if is_new && self.write(&changes, &self.folder_without_sync()?).is_ok() {
                    self.written = Some(changes);
                }
                self.report.is_complete = true;
            }
            Err(Stop::Late) => {}
            Err(Stop::Failed(error)) => return Err(error),
        }
        Ok(self.report.clone())
    }

    /// Searches after the worker has ended, and records everything anew: the worker may have written
    /// anything into its own directory. What is not among the changes is removed there.
    ///
    /// Afterwards the worker's directory holds all that `apply` needs, so the layers of the draft
    /// can be removed.
    ///
    /// # Errors
    ///
    /// A file cannot be read or written. The search can be repeated then.
    pub(crate) fn finish(&mut self) -> Result<SearchReport> {
        let folder = self.worker.folder();
        let clear = || {
            folder.make_self_accessible()?;
            // Removed first: after a crash, no list names contents that are not there.
            for name in [CHANGES_FILE, CHANGES, BASE, APPLIED] {
                folder.remove_all(&Name::new(name)?)?;
            }
            Ok(())
        };
        clear().during("clear", folder.path(), b"")?;
        self.known.clear();
        let changes = match self.search(Deadline::never(), true) {
            Ok(changes) => changes,
            Err(Stop::Failed(error)) => return Err(error),
            // Without a deadline this does not happen.
            Err(Stop::Late) => return Ok(self.report.clone()),
        };
        let folder = self.worker.folder();
        folder.sync_file_system().during("write", folder.path(), CHANGES.as_bytes())?;
        self.write(&changes, folder)?;
        self.written = Some(changes);
        self.report.is_complete = true;
        Ok(self.report.clone())
    }

    /// Returns all changes.
    fn search(&mut self, deadline: Deadline<'_>, is_final: bool) -> Walk<WorkspaceChanges> {
        let mut comparison = match self.comparison.take() {
            Some(comparison) => comparison,
            None => Comparison::new(&self.draft)?,
        };
        comparison.is_final = is_final;
        let folder = self.folder_without_sync()?;
        let ignored = self.examine(&mut comparison, &folder, deadline);
        self.comparison = Some(comparison);
        let ignored = ignored?;
        self.forget_unseen(&folder);
        let files: Vec<_> = self.known.values().filter_map(|known| known.change.clone()).collect();
        let notes = self.draft.notes();
        self.report = SearchReport::new(&files, ignored, &notes);
        let record = self.draft.record();
        Ok(WorkspaceChanges {
            version: CHANGES_VERSION,
            workspace: self.workspace.to_string_lossy().into_owned(),
            engine: record.engine.as_str().to_owned(),
            started_at: record.started_at,
            scanned_at: Timestamp::now(),
            is_final,
            ignored,
            notes,
            files,
        })
    }

    /// Compares every path that may differ. Returns the number of ignored ones.
    fn examine(
        &mut self,
        comparison: &mut Comparison,
        folder: &Dir,
        deadline: Deadline<'_>,
    ) -> Walk<u64> {
        let record = self.draft.record();
        let lower = OpenFolder::open(&self.workspace).during("open", &self.workspace, b"")?;
        let layer = self.draft.layer();
        let upper = OpenFolder::open(&layer).during("open", &layer, b"")?;
        self.generation += 1;
        let may_change_modes = comparison.is_final;
        let places = Places { worker: folder, workspace: &lower };
        let known = &mut self.known;
        let mut examiner = Examiner { comparison, known, generation: self.generation, places };
        let layers = [&upper, &lower];
        let rules = view_rules::of_workspace(&self.workspace, &layers, record.all_changes);
        let mut walk = OverlayWalk {
            workspace: &self.workspace,
            hidden: &self.hidden,
            deadline,
            may_change_modes,
            rules,
            ignored: 0,
            visitor: &mut examiner,
        };
        walk.run(&upper, &lower)?;
        Ok(walk.ignored)
    }

    /// Forgets the paths that the last search did not meet: they are as they were.
    fn forget_unseen(&mut self, folder: &Dir) {
        let generation = self.generation;
        self.known.retain(|path, known| {
            let is_seen = known.generation == generation;
            if let Some(change) = known.change.as_ref().filter(|_| !is_seen) {
                remove_stored(folder, path, Stored::of(Some(change)));
            }
            is_seen
        });
    }

    fn folder_without_sync(&self) -> Result<Dir> {
        let folder = self.worker.folder();
        folder.without_sync().during("open", folder.path(), b"")
    }

    /// Writes changes.json.
    fn write(&self, changes: &WorkspaceChanges, folder: &Dir) -> Result<()> {
        let write = || {
            let json = serde_json::to_vec_pretty(changes)
                .map_err(|_| PathError::Io(rustix::io::Errno::INVAL))?;
            stored::put(folder, &RelPath::constant(CHANGES_FILE), &mut json.as_slice())
        };
        write().during("write", folder.path(), CHANGES_FILE.as_bytes())
    }
}

/// Compares the paths of one search with what is known of them.
struct Examiner<'a> {
    comparison: &'a mut Comparison,
    known: &'a mut BTreeMap<RelPath, Known>,
    generation: u64,
    places: Places<'a>,
}

impl Visitor for Examiner<'_> {
    fn visit(&mut self, candidate: Candidate<'_>) -> Walk<()> {
        let path = candidate.path;
        let old = match candidate.old {
            Some(OldEntry::Live(live)) => Some(live.stat),
            // A copied entry does not change.
            Some(OldEntry::Copied(_)) | None => None,
        };
        let compared = (old, candidate.new.map(|new| new.stat));
        let generation = self.generation;
        let known = self.known.get_mut(path);
        if let Some(known) = known.filter(|known| known.compared == compared) {
            known.generation = generation;
            return Ok(());
        }
        let change = match self.comparison.compare(&candidate, self.places)? {
            Outcome::Same => None,
            Outcome::Changed(change) => Some(change),
            Outcome::Later => {
                // What an earlier search found still holds.
                if let Some(known) = self.known.get_mut(path) {
                    known.generation = generation;
                }
                return Ok(());
            }
        };
        let before = self.known.get(path).and_then(|known| known.change.as_ref());
        let stale = Stored::of(before).except(Stored::of(change.as_ref()));
        remove_stored(self.places.worker, path, stale);
        self.known.insert(path.clone(), Known { compared, change, generation });
        Ok(())
    }
}

/// Contents of a path in the worker's directory.
#[derive(Clone, Copy)]
struct Stored {
    has_new: bool,
    has_base: bool,
}

impl Stored {
    fn of(change: Option<&ChangedFile>) -> Stored {
        let change = change.filter(|change| change.refused.is_none());
        Stored {
            has_new: change.is_some_and(|change| {
                let is_file = |new: &EntryState| new.kind == EntryKind::File;
                change.kind != ChangeKind::Mode && change.new.as_ref().is_some_and(is_file)
            }),
            has_base: change.is_some_and(|change| change.base == Base::Saved),
        }
    }

    fn except(self, other: Stored) -> Stored {
        Stored {
            has_new: self.has_new && !other.has_new,
            has_base: self.has_base && !other.has_base,
        }
    }
}

/// Removes contents that no change names any more. If the worker is in the way, the last search
/// removes them.
fn remove_stored(folder: &Dir, path: &RelPath, stored: Stored) {
    for (is_stale, tree) in [(stored.has_new, CHANGES), (stored.has_base, BASE)] {
        if is_stale {
            let _ = stored::remove(folder, &RelPath::constant(tree).join_path(path));
        }
    }
}

impl SearchReport {
    fn new(files: &[ChangedFile], ignored: u64, notes: &[String]) -> SearchReport {
        SearchReport {
            files: files.len() as u64,
            added: files.iter().map(|file| file.added).sum(),
            removed: files.iter().map(|file| file.removed).sum(),
            refused: files.iter().filter(|file| file.refused.is_some()).count() as u64,
            ignored,
            notes: notes.to_vec(),
            is_complete: false,
        }
    }
}
