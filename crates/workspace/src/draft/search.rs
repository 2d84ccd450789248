//! The search for a worker's changes, while it runs and after its end.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::candidates::{
    CopyWalk, Manifest, OldEntry, OverlayWalk, PossibleChange, SearchResult, SearchStop, Visitor,
};
use super::commits;
use super::comparison::{ComparedPath, PathComparison, Places};
use super::content::{self, HOLES_MAX, ReadLimits};
use super::folder::{Draft, Engine};
use super::ignore_rules;
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::error::Error as PathError;
use swarmletfs_base::model::{
    CHANGES_FILES_MAX, CHANGES_VERSION, ChangeKind, ChangedFile, CommandExit, EntryKind,
    EntryState, KeptCommits, WorkspaceChanges,
};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{EntryStat, OpenFolder, Time};
use swarmletfs_record::write::{Dir, During, Error as WriteError, Result, SetIdReport, Worker};
use swarmletfs_trace::swarmlet::{
    APPLIED, BASE, CHANGES, CHANGES_FILE, COMMENTS, METADATA, METRICS, RESULT,
};

/// Time in which the search after a worker's end reads contents. Changes with unread contents are
/// refused.
const CONTENT_TIME: Duration = Duration::from_secs(300);

/// Searches for the changes of a workspace, and records them in the worker's directory.
pub struct ChangeSearch {
    draft: Draft,
    worker: Worker,
    workspace: PathBuf,
    hidden: Vec<RelPath>,
    comparison: Option<PathComparison>,
    /// The copied entries, if the engine copies the workspace.
    manifest: Option<Manifest>,
    known: BTreeMap<RelPath, Known>,
    generation: u64,
    /// The last changes.json, without its time.
    written: Option<WorkspaceChanges>,
    report: SearchReport,
    /// Facts about the worker's directory that a person must know.
    directory_notes: Vec<String>,
    notes: Vec<String>,
    command: Option<CommandExit>,
    commits: Option<KeptCommits>,
    content_time: Duration,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SearchReport {
    /// Number of changed files; folders do not count.
    pub files: u64,
    pub added: u64,
    pub removed: u64,
    /// Number of changed paths that can never be applied.
    pub refused: u64,
    /// True if the content of a changed file is in the layers of the draft only.
    pub needs_layers: bool,
    /// Number of changed paths that git ignores; an ignored directory counts once.
    pub ignored: u64,
    /// Number of new commits.
    pub commits: u64,
    pub notes: Vec<String>,
    /// True if the search was completed. Otherwise the report is the one of an earlier search.
    pub is_complete: bool,
}

struct Known {
    /// The entries before and after, as they were compared.
    compared: (Option<EntryStat>, Option<EntryStat>),
    change: Option<ChangedFile>,
    generation: u64,
}

impl ChangeSearch {
    pub fn new(draft: &Draft, worker: &Worker) -> ChangeSearch {
        ChangeSearch {
            draft: draft.clone(),
            worker: worker.clone(),
            workspace: draft.record().workspace(),
            hidden: draft.hidden_paths(),
            manifest: None,
            comparison: None,
            known: BTreeMap::new(),
            generation: 0,
            written: None,
            report: SearchReport::default(),
            directory_notes: Vec::new(),
            notes: Vec::new(),
            command: None,
            commits: None,
            content_time: CONTENT_TIME,
        }
    }

    /// Records the end of the worker's command with the changes that are recorded next.
    pub fn set_command_exit(&mut self, end: CommandExit) {
        self.command = Some(end);
    }

    pub fn add_note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// Searches while the worker runs, until `deadline` passes, and records new changes. Files that
    /// change meanwhile are left to the next search.
    ///
    /// # Errors
    ///
    /// The draft or the workspace cannot be read, or the draft cannot be written. Nothing that the
    /// worker does in its own directory is an error.
    pub fn update(&mut self, deadline: Deadline<'_>) -> Result<SearchReport> {
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
            Err(SearchStop::Late) => {}
            Err(SearchStop::Failed(error)) => return Err(error),
        }
        Ok(self.report.clone())
    }

    /// Searches after the worker has ended, and records everything anew: the worker may have
    /// written anything into its own directory. Other files in the place of changes are removed.
    ///
    /// Afterwards the worker's directory holds all that `apply` needs, so the layers of the draft
    /// can be removed.
    ///
    /// # Errors
    ///
    /// A file cannot be read or written. The search can be repeated then.
    pub fn finish(&mut self) -> Result<SearchReport> {
        self.clear()?;
        self.keep_commits();
        let changes = match self.search(Deadline::never(), true) {
            Ok(changes) => changes,
            Err(SearchStop::Failed(error)) => return Err(error),
            // Without a deadline this does not happen.
            Err(SearchStop::Late) => return Ok(self.report.clone()),
        };
        if changes.files.len() > CHANGES_FILES_MAX {
            self.clear()?;
            return Err(self.excess(changes.files.len()));
        }
        let folder = self.worker.folder();
        folder.sync_file_system().during("write", folder.path(), CHANGES.as_bytes())?;
        self.write(&changes, folder)?;
        self.written = Some(changes);
        self.report.is_complete = true;
        Ok(self.report.clone())
    }

    fn keep_commits(&mut self) {
        self.commits = match commits::keep(&self.draft, self.worker.folder()) {
            Ok(commits) => commits,
            Err(commits::Reason(reason)) => {
                self.notes.push(format!(
                    "the commits that the command may have made are not kept: {reason}; the \
                     changed files are"
                ));
                None
            }
        };
    }

    /// Removes the files that earlier searches, or the worker, wrote into its directory.
    fn clear(&mut self) -> Result<()> {
        self.known.clear();
        let folder = self.worker.folder();
        let clear = || {
            // The worker may have let others write here, who could plant an application to undo.
            if let Some(mode) = self.draft.record().folder_mode {
                folder.set_own_mode(mode)?;
            }
            folder.make_self_accessible()?;
            // Removed first: after a crash, no list names contents that are not there.
            for name in [CHANGES_FILE, CHANGES, BASE, APPLIED, COMMENTS] {
                folder.remove_all(&Name::new(name)?)?;
            }
            // Anything in the way of the record would prevent the end of the worker.
            for name in [METADATA, METRICS, RESULT] {
                let name = Name::new(name)?;
                folder.make_file_accessible(&name)?;
                if folder.open_to_read(&name).is_err_and(|error| error.is_not_a_file()) {
                    folder.remove_all(&name)?;
                }
            }
            // Otherwise other users could run files here with the rights of the worker's user.
            folder.clear_set_id()
        };
        self.directory_notes = describe(&clear().during("clear", folder.path(), b"")?);
        Ok(())
    }

    /// Returns the error for more changes than readers take.
    fn excess(&self, changes: usize) -> WriteError {
        WriteError::Approval {
            action: format!("record the changes of {}", self.worker.id().display()),
            reason: format!("there are {changes}, and at most {CHANGES_FILES_MAX} can be recorded"),
            cure: "try to add generated files to the .gitignore of the workspace".to_owned(),
        }
    }

    fn search(&mut self, deadline: Deadline<'_>, is_final: bool) -> SearchResult<WorkspaceChanges> {
        let mut comparison = match self.comparison.take() {
            Some(comparison) => comparison,
            None => PathComparison::new(&self.draft)?,
        };
        comparison.is_final = is_final;
        let folder = self.folder_without_sync()?;
        // The worker may have left more than can be read in any time, such as many names of one
        // file. If the search has no deadline, reading the contents has one.
        let end = Instant::now() + self.content_time;
        let holes = Cell::new(HOLES_MAX);
        let content_deadline = if is_final { Deadline::new(&end) } else { deadline };
        let limits = ReadLimits { deadline: content_deadline, holes: &holes };
        let examined = self.examine(&mut comparison, &folder, deadline, limits);
        self.comparison = Some(comparison);
        let (ignored, has_all_rules) = examined?;
        self.forget_unseen(&folder);
        let files: Vec<_> = self.known.values().filter_map(|known| known.change.clone()).collect();
        let mut notes = self.draft.notes(self.manifest.as_ref().map(Manifest::facts));
        notes.extend(self.directory_notes.iter().cloned());
        notes.extend(self.notes.iter().cloned());
        if !has_all_rules {
            notes.push("some .gitignore rules were left out: there are too many".to_owned());
        }
        self.report = SearchReport::new(&files, ignored, &notes);
        self.report.commits = self.commits.as_ref().map_or(0, |commits| commits.count);
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
            command: self.command.clone(),
            commits: self.commits.clone(),
            files,
        })
    }

    /// Compares every path that may differ. Returns the number of ignored ones, and true if all
    /// rules were read.
    fn examine(
        &mut self,
        comparison: &mut PathComparison,
        folder: &Dir,
        deadline: Deadline<'_>,
        limits: ReadLimits<'_>,
    ) -> SearchResult<(u64, bool)> {
        let record = self.draft.record();
        let lower = OpenFolder::open(&self.workspace).during("open", &self.workspace, b"")?;
        let layer = self.draft.layer();
        let upper = OpenFolder::open(&layer).during("open", &layer, b"")?;
        if record.engine == Engine::Copy && self.manifest.is_none() {
            let manifest = Manifest::load(self.draft.folder());
            self.manifest = Some(manifest.during("read the manifest of", &layer, b"")?);
        }
        self.generation += 1;
        let may_change_modes = comparison.is_final;
        let places = Places { worker: folder, workspace: &lower, limits };
        let (known, generation) = (&mut self.known, self.generation);
        let visitor = &mut Examiner { comparison, known, generation, places };
        let (workspace, hidden) = (self.workspace.as_path(), self.hidden.as_slice());
        let layers = [&upper, &lower];
        let shown = if self.manifest.is_some() { &layers[..1] } else { &layers[..] };
        let takes_all = record.all_changes;
        let rules = ignore_rules::rules_of_workspace(workspace, shown, Some(&lower), takes_all);
        let ignored = 0;
        if let Some(manifest) = &self.manifest {
            let mut walk = CopyWalk {
                workspace,
                hidden,
                deadline,
                may_change_modes,
                rules,
                ignored,
                manifest,
                visitor,
            };
            walk.run(&upper, &lower)?;
            return Ok((walk.ignored, !walk.rules.is_incomplete()));
        }
        let copied_at = record.copied_at.map(Time::from);
        let mut walk = OverlayWalk {
            workspace,
            hidden,
            deadline,
            may_change_modes,
            rules,
            ignored,
            copied_at,
            visitor,
        };
        walk.run(&upper, &lower)?;
        Ok((walk.ignored, !walk.rules.is_incomplete()))
    }

    /// Forgets the paths that the last search did not meet: they are as they were.
    fn forget_unseen(&mut self, folder: &Dir) {
        let generation = self.generation;
        self.known.retain(|path, known| {
            let is_seen = known.generation == generation;
            if let Some(change) = known.change.as_ref().filter(|_| !is_seen) {
                remove_stored(folder, path, StoredParts::new(Some(change)));
            }
            is_seen
        });
    }

    fn folder_without_sync(&self) -> Result<Dir> {
        let folder = self.worker.folder();
        folder.without_sync().during("open", folder.path(), b"")
    }

    fn write(&self, changes: &WorkspaceChanges, folder: &Dir) -> Result<()> {
        let json = serde_json::to_vec_pretty(changes)
            .map_err(|_| PathError::Io(rustix::io::Errno::INVAL))
            .during("write", folder.path(), CHANGES_FILE.as_bytes())?;
        // Readers take the file only if this says that it is not the worker's.
        self.worker.vouch_for(&json, folder)?;
        content::store_content(folder, &RelPath::constant(CHANGES_FILE), &mut json.as_slice())
            .during("write", folder.path(), CHANGES_FILE.as_bytes())
    }
}

/// Compares the paths of one search with the results of earlier ones.
struct Examiner<'a> {
    comparison: &'a mut PathComparison,
    known: &'a mut BTreeMap<RelPath, Known>,
    generation: u64,
    places: Places<'a>,
}

impl Visitor for Examiner<'_> {
    fn visit(&mut self, candidate: PossibleChange<'_>) -> SearchResult<()> {
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
            ComparedPath::Same => None,
            ComparedPath::Changed(change) => Some(*change),
            ComparedPath::Later => {
                // The result of an earlier search still holds.
                if let Some(known) = self.known.get_mut(path) {
                    known.generation = generation;
                }
                return Ok(());
            }
        };
        let before = self.known.get(path).and_then(|known| known.change.as_ref());
        let stale = StoredParts::new(before).except(StoredParts::new(change.as_ref()));
        remove_stored(self.places.worker, path, stale);
        self.known.insert(path.clone(), Known { compared, change, generation });
        Ok(())
    }
}

#[derive(Clone, Copy)]
struct StoredParts {
    has_new: bool,
    has_base: bool,
}

impl StoredParts {
    fn new(change: Option<&ChangedFile>) -> StoredParts {
        let change = change.filter(|change| change.refused.is_none());
        StoredParts {
            has_new: change.is_some_and(|change| {
                let is_file = |new: &EntryState| new.kind == EntryKind::File;
                change.kind != ChangeKind::Mode && change.new.as_ref().is_some_and(is_file)
            }),
            has_base: change.is_some_and(|change| change.base.is_stored()),
        }
    }

    fn except(self, other: StoredParts) -> StoredParts {
        StoredParts {
            has_new: self.has_new && !other.has_new,
            has_base: self.has_base && !other.has_base,
        }
    }
}

/// Removes contents that no change names any more. If the worker is in the way, the last search
/// removes them.
fn remove_stored(folder: &Dir, path: &RelPath, stored: StoredParts) {
    for (is_stale, tree) in [(stored.has_new, CHANGES), (stored.has_base, BASE)] {
        if is_stale {
            let _ = content::remove_content(folder, &RelPath::constant(tree).join_path(path));
        }
    }
}

/// Returns notes for a person about setuid and setgid bits in the worker's directory.
fn describe(report: &SetIdReport) -> Vec<String> {
    let mut notes = Vec::new();
    for (paths, what) in [
        (&report.cleared, "setuid and setgid bits were removed from files in"),
        (&report.kept, "setuid and setgid bits were left on entries of other users in"),
        (&report.removed, "directories nested too deeply were removed from"),
    ] {
        let (Some(first), others) = (paths.first(), paths.len().saturating_sub(1)) else {
            continue;
        };
        let more = if others > 0 { format!(" and {others} more") } else { String::new() };
        notes.push(format!("{what} the worker's directory: {}{more}", first.display()));
    }
    notes
}

impl SearchReport {
    fn new(files: &[ChangedFile], ignored: u64, notes: &[String]) -> SearchReport {
        SearchReport {
            files: files.iter().filter(|file| !file.is_folder()).count() as u64,
            added: files.iter().map(|file| file.added).sum(),
            removed: files.iter().map(|file| file.removed).sum(),
            refused: files.iter().filter(|file| file.refused.is_some()).count() as u64,
            needs_layers: files.iter().any(is_unrecorded_file),
            ignored,
            commits: 0,
            notes: notes.to_vec(),
            is_complete: false,
        }
    }
}

/// Returns true if a changed file is refused, so that its content is not recorded.
fn is_unrecorded_file(change: &ChangedFile) -> bool {
    let is_file = change.new.as_ref().is_some_and(|new| new.kind == EntryKind::File);
    is_file && change.refused.is_some()
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests;
