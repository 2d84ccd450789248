//! The search for what a worker changed, while it runs and after its end.

use std::collections::BTreeMap;
use std::path::PathBuf;

use jiff::Timestamp;

use super::candidate::{Candidate, OldEntry, Stop, Visitor, Walk};
use super::comparison::{Comparison, Outcome, Places};
use super::copied::CopyWalk;
use super::folder::Draft;
use super::manifest::Manifest;
use super::overlay::OverlayWalk;
use super::record::Engine;
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
    /// The entries that were copied, with that engine.
    manifest: Option<Manifest>,
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
        let notes = self.draft.notes(self.manifest.as_ref().map(Manifest::facts));
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
        if record.engine == Engine::Copy && self.manifest.is_none() {
            let manifest = Manifest::load(self.draft.folder());
            self.manifest = Some(manifest.during("read the manifest of", &layer, b"")?);
        }
        self.generation += 1;
        let may_change_modes = comparison.is_final;
        let places = Places { worker: folder, workspace: &lower };
        let (known, generation) = (&mut self.known, self.generation);
        let visitor = &mut Examiner { comparison, known, generation, places };
        let (workspace, hidden) = (self.workspace.as_path(), self.hidden.as_slice());
        let layers = [&upper, &lower];
        let shown = if self.manifest.is_some() { &layers[..1] } else { &layers[..] };
        let (rules, ignored) = (view_rules::of_workspace(workspace, shown, record.all_changes), 0);
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
            walk.run(&upper)?;
            return Ok(walk.ignored);
        }
        let mut walk =
            OverlayWalk { workspace, hidden, deadline, may_change_modes, rules, ignored, visitor };
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::path::Path;
    use std::time::SystemTime;
    use std::{ffi::OsStr, thread};

    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};

    use super::*;
    use crate::draft::record::{DraftRecord, kernel_time};
    use crate::write::{Lock, NewWorker, Store};

    /// A workspace and the draft of a worker on it.
    struct Bed {
        folder: tempfile::TempDir,
        draft: Draft,
        worker: Worker,
        _lock: Lock,
    }

    /// What `apply` would find: kind, mode, and content or target of each path.
    type Tree = BTreeMap<RelPath, (EntryKind, u32, Vec<u8>)>;

    impl Bed {
        /// Fills a workspace with `fill`, and makes a draft with `change`.
        fn with(
            engine: Engine,
            fill: impl FnOnce(&Path),
            change: impl FnOnce(&mut DraftRecord),
        ) -> Bed {
            let folder = tempfile::tempdir().unwrap();
            let workspace = folder.path().join("w, a:b");
            fs::create_dir(&workspace).unwrap();
            fill(&workspace);
            let store = Store::init(folder.path().join("store")).unwrap();
            let worker = store.create_worker(NewWorker::new("Edit").id("w1")).unwrap();
            // The stamps of the files must be in the past.
            let filled = kernel_time();
            while kernel_time() <= filled {
                thread::yield_now();
            }
            let mut record = DraftRecord::new(&workspace, engine);
            change(&mut record);
            let (draft, lock) = Draft::create(&store, worker.id(), record).unwrap();
            draft.prepare().unwrap();
            Bed { folder, draft, worker, _lock: lock }
        }

        fn new(fill: impl FnOnce(&Path)) -> Bed {
            Bed::with(Engine::Overlay, fill, |_| {})
        }

        fn workspace(&self) -> PathBuf {
            self.draft.record().workspace()
        }

        /// Edits the worker's view.
        fn edit<T: Send>(&self, work: impl FnOnce(&Path) -> T + Send) -> T {
            let workspace = self.workspace();
            if self.draft.record().engine == Engine::Copy {
                return work(&self.draft.copy_dir());
            }
            let dirs = self.draft.overlay_dirs();
            let escaped = |path: &Path| {
                path.to_str().unwrap().replace('\\', "\\\\").replace(',', "\\,").replace(':', "\\:")
            };
            let options = format!(
                "userxattr,lowerdir={},upperdir={},workdir={}",
                escaped(&workspace),
                escaped(&dirs.upper),
                escaped(&dirs.work)
            );
            let in_own_mounts = || {
                // The mounts of this thread end with it.
                nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
                let flags = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
                mount_change("/", flags).unwrap();
                let options = std::ffi::CString::new(options).unwrap();
                let options = Some(options.as_c_str());
                mount("overlay", &workspace, "overlay", MountFlags::empty(), options).unwrap();
                work(&workspace)
            };
            thread::scope(|scope| scope.spawn(in_own_mounts).join().unwrap())
        }

        fn search(&self) -> ChangeSearch {
            ChangeSearch::new(&self.draft, &self.worker)
        }

        fn finish(&self) -> (WorkspaceChanges, SearchReport) {
            let report = self.search().finish().unwrap();
            assert!(report.is_complete);
            (self.changes(), report)
        }

        fn changes(&self) -> WorkspaceChanges {
            serde_json::from_slice(&fs::read(self.stored(CHANGES_FILE)).unwrap()).unwrap()
        }

        /// Returns the path of an entry of the worker's directory.
        fn stored(&self, path: &str) -> PathBuf {
            self.folder.path().join("store/workers/w1").join(path)
        }
    }

    /// Returns one line for each change.
    fn lines(changes: &WorkspaceChanges) -> Vec<String> {
        let line = |file: &ChangedFile| {
            let refused = if file.refused.is_some() { " refused" } else { "" };
            let path = file.path.as_text();
            format!(
                "{path} {:?} {:?} +{} -{}{refused}",
                file.kind, file.base, file.added, file.removed
            )
        };
        changes.files.iter().map(line).collect()
    }

    fn chmod(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn snapshot(root: &Path) -> Tree {
        let mut tree = Tree::new();
        let mut folders = vec![RelPath::root()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(root.join(folder.as_os_str())).unwrap() {
                let entry = entry.unwrap();
                let path = folder.join(&Name::new(entry.file_name().as_bytes()).unwrap());
                let meta = entry.path().symlink_metadata().unwrap();
                let (kind, content) = if meta.is_dir() {
                    folders.push(path.clone());
                    (EntryKind::Folder, Vec::new())
                } else if meta.is_symlink() {
                    let target = fs::read_link(entry.path()).unwrap();
                    (EntryKind::Link, target.as_os_str().as_bytes().to_vec())
                } else {
                    (EntryKind::File, fs::read(entry.path()).unwrap())
                };
                tree.insert(path, (kind, meta.mode() & 0o7777, content));
            }
        }
        tree
    }

    /// Applies changes to the tree that the worker found. Their old states must be those of the tree.
    fn apply(bed: &Bed, changes: &WorkspaceChanges, mut tree: Tree) -> Tree {
        let stored =
            |tree: &str, path: &RelPath| fs::read(bed.stored(tree).join(path.as_os_str())).unwrap();
        let content = |state: &EntryState, tree: &str, path: &RelPath| match state.kind {
            EntryKind::File => stored(tree, path),
            EntryKind::Link => state.target_bytes().unwrap(),
            _ => Vec::new(),
        };
        for change in &changes.files {
            let path = change.path.parse().unwrap();
            let before = tree.remove(&path);
            let old = change.old.as_ref().map(|old| {
                let content = match (change.kind, &before) {
                    (ChangeKind::Mode, Some((_, _, content))) => content.clone(),
                    _ => content(old, BASE, &path),
                };
                (old.kind, old.mode, content)
            });
            assert_eq!(old, before, "{path:?}: {change:?}");
            assert_eq!(change.refused, None, "{path:?}");
            if let Some(new) = &change.new {
                let content = match (change.kind, before) {
                    (ChangeKind::Mode, Some((_, _, content))) => content,
                    _ => content(new, CHANGES, &path),
                };
                if new.kind == EntryKind::File {
                    let id = crate::draft::content::Content::Small(content.clone()).id().unwrap();
                    assert_eq!((&id.sha256, id.size), (&new.sha256, new.size), "{path:?}");
                }
                tree.insert(path, (new.kind, new.mode, content));
            }
        }
        tree
    }

    #[test]
    fn each_kind_of_change_is_found() {
        let bed = Bed::new(|w| {
            for name in ["same", "touched", "edited", "gone", "mode", "to-folder", "to-link"] {
                fs::write(w.join(name), "one\ntwo\n").unwrap();
            }
            for name in ["kept", "removed/deep", "again", "to-file"] {
                fs::create_dir_all(w.join(name)).unwrap();
                fs::write(w.join(name).join("inner"), "x\n").unwrap();
            }
            symlink("same", w.join("link")).unwrap();
        });
        bed.edit(|w| {
            let file = fs::File::options().append(true).open(w.join("touched")).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
            fs::write(w.join("edited"), "one\nTWO\nthree\n").unwrap();
            fs::remove_file(w.join("gone")).unwrap();
            chmod(&w.join("mode"), 0o755);
            fs::remove_file(w.join("to-folder")).unwrap();
            fs::create_dir(w.join("to-folder")).unwrap();
            fs::write(w.join("to-folder/new"), "").unwrap();
            fs::remove_file(w.join("to-link")).unwrap();
            symlink("x", w.join("to-link")).unwrap();
            fs::remove_dir_all(w.join("removed")).unwrap();
            fs::remove_dir_all(w.join("again")).unwrap();
            fs::create_dir(w.join("again")).unwrap();
            fs::write(w.join("again/other"), "y\n").unwrap();
            fs::remove_dir_all(w.join("to-file")).unwrap();
            fs::write(w.join("to-file"), "z").unwrap();
            fs::remove_file(w.join("link")).unwrap();
            symlink("elsewhere", w.join("link")).unwrap();
            fs::write(w.join("binary"), b"a\0").unwrap();
        });
        let (changes, report) = bed.finish();
        assert_eq!(
            lines(&changes),
            [
                "again/inner Deleted Saved +0 -1",
                "again/other Added None +1 -0",
                "binary Added None +0 -0",
                "edited Modified Saved +2 -1",
                "gone Deleted Saved +0 -2",
                "link Modified None +1 -1",
                "mode Mode None +0 -0",
                "removed Deleted None +0 -0",
                "removed/deep Deleted None +0 -0",
                "removed/deep/inner Deleted Saved +0 -1",
                "to-file Replaced None +1 -0",
                "to-file/inner Deleted Saved +0 -1",
                "to-folder Replaced Saved +0 -2",
                "to-folder/new Added None +0 -0",
                "to-link Replaced Saved +1 -2",
            ]
        );
        assert_eq!((report.files, report.added, report.removed), (15, 6, 11));
        assert!(changes.is_final && changes.notes.is_empty());
        assert_eq!(fs::read_to_string(bed.stored("base/edited")).unwrap(), "one\ntwo\n");
        assert_eq!(fs::read_to_string(bed.stored("changes/edited")).unwrap(), "one\nTWO\nthree\n");
        assert!(!bed.stored("changes/touched").exists() && !bed.stored("changes/mode").exists());
        bed.draft.remove_layers().unwrap();
        assert!(!bed.draft.overlay_dirs().upper.exists());
        assert!(bed.draft.path("base/gone").exists());
    }
}
