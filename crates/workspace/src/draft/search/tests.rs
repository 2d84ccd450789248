//! Tests of the search for changes, on both engines and against a model.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::thread;
use std::time::SystemTime;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};

use super::*;
use crate::draft::folder::{DraftRecord, kernel_time};
use crate::scale::{is_full, scale, seed, seeds};
use swarmletfs_record::write::{Lock, NewWorker, Store};

/// A workspace and the draft of a worker on it.
struct Bed {
    folder: tempfile::TempDir,
    draft: Draft,
    worker: Worker,
    _lock: Lock,
}

/// The state that `apply` would find: kind, mode, and content or target of each path.
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
        let filled = Timestamp::now();
        while kernel_time() <= filled {
            thread::yield_now();
        }
        let mut record = DraftRecord::new(&workspace, engine);
        change(&mut record);
        let (mut draft, lock) = Draft::create(&store, worker.id(), record).unwrap();
        draft.prepare(&[]).unwrap();
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
        format!("{path} {:?} {:?} +{} -{}{refused}", file.kind, file.base, file.added, file.removed)
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

/// Applies changes to the tree that the worker found, whose entries must be their old states.
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
                let id = (swarmletfs_record::write::hash_bytes(&content), content.len() as u64);
                assert_eq!(id, (new.sha256.clone(), new.size), "{path:?}");
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
    assert_eq!((report.files, report.added, report.removed), (13, 6, 11));
    assert!(changes.is_final && changes.notes.is_empty());
    assert_eq!(fs::read_to_string(bed.stored("base/edited")).unwrap(), "one\ntwo\n");
    assert_eq!(fs::read_to_string(bed.stored("changes/edited")).unwrap(), "one\nTWO\nthree\n");
    assert!(!bed.stored("changes/touched").exists() && !bed.stored("changes/mode").exists());
    bed.draft.remove_layers().unwrap();
    assert!(!bed.draft.overlay_dirs().upper.exists());
    assert!(!bed.draft.path("base").exists(), "a second copy of the bases stays");
}

#[test]
fn a_search_that_finds_nothing_new_writes_nothing() {
    let bed = Bed::new(|w| fs::write(w.join("a"), "one\n").unwrap());
    let mut search = bed.search();
    assert_eq!(search.update(Deadline::never()).unwrap().files, 0);
    bed.edit(|w| chmod(&w.join("a"), 0o644));
    assert!(search.update(Deadline::never()).unwrap().is_complete);
    assert!(!bed.stored(CHANGES_FILE).exists());
    bed.edit(|w| fs::write(w.join("a"), "two\n").unwrap());
    assert_eq!(search.update(Deadline::never()).unwrap().added, 1);
    let inodes = || {
        [CHANGES_FILE, "changes/a", "base/a"].map(|path| bed.stored(path).metadata().unwrap().ino())
    };
    let before = inodes();
    assert_eq!(search.update(Deadline::never()).unwrap().added, 1);
    assert_eq!(inodes(), before);
    assert!(!bed.changes().is_final);
    bed.edit(|w| fs::write(w.join("a"), "one\n").unwrap());
    assert_eq!(search.update(Deadline::never()).unwrap().files, 0);
    assert_eq!(bed.changes().files, []);
    assert!(!bed.stored("changes/a").exists() && !bed.stored("base/a").exists());
}

#[test]
fn a_search_without_time_keeps_what_was_found() {
    let bed = Bed::new(|w| fs::write(w.join("a"), "one\n").unwrap());
    bed.edit(|w| fs::write(w.join("a"), "two\n").unwrap());
    let mut search = bed.search();
    assert!(!search.update(Deadline::passed()).unwrap().is_complete);
    assert!(!bed.stored(CHANGES_FILE).exists());
    search.update(Deadline::never()).unwrap();
    bed.edit(|w| fs::write(w.join("b"), "").unwrap());
    let report = search.update(Deadline::passed()).unwrap();
    assert_eq!((report.files, report.is_complete), (1, false));
    assert_eq!(lines(&bed.changes()), ["a Modified Saved +1 -1"]);
}

#[test]
fn a_base_is_saved_only_if_the_workspace_has_not_changed() {
    let names = ["early", "late", "gone", "link", "mode"];
    let bed = Bed::new(|w| {
        for name in names {
            fs::write(w.join(name), "old\n").unwrap();
        }
        fs::remove_file(w.join("link")).unwrap();
        symlink("old", w.join("link")).unwrap();
    });
    let w = bed.workspace();
    bed.edit(|w| fs::write(w.join("early"), "new\n").unwrap());
    let mut search = bed.search();
    search.update(Deadline::never()).unwrap();
    for name in ["early", "late", "gone"] {
        fs::write(w.join(name), "other\n").unwrap();
    }
    chmod(&w.join("mode"), 0o600);
    fs::remove_file(w.join("link")).unwrap();
    symlink("other", w.join("link")).unwrap();
    bed.edit(|w| {
        for name in ["early", "late"] {
            fs::write(w.join(name), "newer\n").unwrap();
        }
        fs::remove_file(w.join("gone")).unwrap();
        fs::remove_file(w.join("link")).unwrap();
        symlink("new", w.join("link")).unwrap();
        chmod(&w.join("mode"), 0o755);
    });
    let expected = [
        "early Modified Saved +1 -1",
        "gone Deleted Unknown +0 -1",
        "late Modified Unknown +1 -1",
        "link Modified Unknown +1 -1",
        "mode Mode Unknown +0 -0",
    ];
    search.update(Deadline::never()).unwrap();
    assert_eq!(lines(&bed.changes()), expected);
    search.finish().unwrap();
    assert_eq!(lines(&bed.changes()), expected);
    // Another process, such as one that recovers the worker, finds the same.
    assert_eq!(lines(&bed.finish().0), expected);
    assert_eq!(fs::read_to_string(bed.stored("base/early")).unwrap(), "old\n");
    assert!(!bed.stored("base/late").exists());
    // A content that another worker's apply saved counts, even if the file is gone.
    fs::write(bed.draft.path("base/late"), "old\n").unwrap();
    fs::remove_file(w.join("late")).unwrap();
    let (changes, _) = bed.finish();
    assert_eq!(lines(&changes)[2], "late Modified Saved +1 -1");
    assert_eq!(fs::read_to_string(bed.stored("base/late")).unwrap(), "old\n");
}

fn ignoring_workspace(w: &Path) {
    fs::create_dir_all(w.join("sub/target")).unwrap();
    fs::create_dir_all(w.join(".git/info")).unwrap();
    fs::write(w.join(".git/info/exclude"), "excluded\n").unwrap();
    fs::write(w.join(".gitignore"), "*.log\n/out/\n").unwrap();
    fs::write(w.join("sub/.gitignore"), "target\n!kept.log\n").unwrap();
    fs::write(w.join("old.log"), "x\n").unwrap();
}

fn edit_ignored(w: &Path) {
    fs::write(w.join("a.log"), "").unwrap();
    fs::write(w.join("excluded"), "").unwrap();
    fs::remove_file(w.join("old.log")).unwrap();
    fs::create_dir(w.join("out")).unwrap();
    fs::write(w.join("out/a"), "").unwrap();
    fs::write(w.join("out/b"), "").unwrap();
    fs::write(w.join("sub/target/x"), "").unwrap();
    fs::write(w.join("sub/kept.log"), "x\n").unwrap();
    fs::write(w.join(".git/HEAD"), "").unwrap();
    fs::create_dir(w.join("sub/.git")).unwrap();
}

#[test]
fn ignored_paths_are_counted_and_left_out() {
    for engine in [Engine::Overlay, Engine::Copy] {
        let bed = Bed::with(engine, ignoring_workspace, |_| {});
        bed.edit(edit_ignored);
        let (changes, report) = bed.finish();
        assert_eq!(lines(&changes), ["sub/kept.log Added None +1 -0"], "{engine:?}");
        assert_eq!((changes.ignored, report.ignored), (7, 7), "{engine:?}");

        let bed = Bed::with(engine, ignoring_workspace, |record| record.all_changes = true);
        bed.edit(edit_ignored);
        let (changes, _) = bed.finish();
        assert_eq!((changes.ignored, changes.files.len()), (0, 10), "{:?}", lines(&changes));
    }
}

#[test]
fn untouched_ignored_paths_are_not_counted() {
    for engine in [Engine::Overlay, Engine::Copy] {
        let bed = Bed::with(engine, ignoring_workspace, |_| {});
        bed.edit(|w| fs::write(w.join("new"), "x\n").unwrap());
        let (changes, report) = bed.finish();
        assert_eq!((changes.ignored, report.ignored), (0, 0), "{engine:?}");
        assert_eq!(lines(&changes), ["new Added None +1 -0"], "{engine:?}");
    }
}

/// A worker that removes or changes rules does not put the ignored files into its draft.
#[test]
fn what_the_rules_at_the_start_ignore_stays_ignored() {
    let fill = |w: &Path| {
        ignoring_workspace(w);
        fs::write(w.join("sub/target/x"), "").unwrap();
    };
    for engine in [Engine::Overlay, Engine::Copy] {
        let bed = Bed::with(engine, fill, |_| {});
        bed.edit(|w| {
            fs::remove_file(w.join(".gitignore")).unwrap();
            fs::write(w.join("sub/.gitignore"), "!target\nnew\n").unwrap();
            fs::write(w.join(".git/info/exclude"), "").unwrap();
            for ignored in ["a.log", "excluded", "sub/target/y", "sub/new"] {
                fs::write(w.join(ignored), "").unwrap();
            }
            // It is no pattern of the view any more.
            fs::write(w.join("sub/kept.log"), "x\n").unwrap();
        });
        let (changes, _) = bed.finish();
        let expected = [
            ".gitignore Deleted Saved +0 -2",
            "sub/.gitignore Modified Saved +2 -2",
            "sub/kept.log Added None +1 -0",
        ];
        assert_eq!(lines(&changes), expected, "{engine:?}");
        // The four files, and `.git`.
        assert_eq!(changes.ignored, 5, "{engine:?}");

        let bed = Bed::with(engine, fill, |_| {});
        bed.edit(|w| fs::remove_dir_all(w.join("sub")).unwrap());
        let (changes, _) = bed.finish();
        let expected = ["sub Deleted None +0 -0", "sub/.gitignore Deleted Saved +0 -2"];
        assert_eq!(lines(&changes), expected, "{engine:?}");
    }
}

#[test]
fn the_rules_above_a_part_of_a_repository_count() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("repo/part")).unwrap();
    fs::create_dir(folder.path().join("repo/.git")).unwrap();
    fs::write(folder.path().join("repo/.gitignore"), "/part/x\n").unwrap();
    fs::write(folder.path().join(".gitignore"), "*\n").unwrap();
    let workspace = folder.path().join("repo/part");
    let mut rules = ignore_rules::rules_of_workspace(&workspace, &[], None, false);
    assert!(rules.is_ignored(&RelPath::constant("x"), false));
    assert!(!rules.is_ignored(&RelPath::constant("y"), false));
}

#[test]
fn what_a_worker_planted_in_its_folder_is_replaced_and_not_followed() {
    let bed = Bed::new(|w| {
        fs::create_dir(w.join("d")).unwrap();
        for name in ["a", "b", "c", "d/e"] {
            fs::write(w.join(name), "old\n").unwrap();
        }
    });
    let outside = bed.folder.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("a"), "kept\n").unwrap();
    bed.edit(|w| {
        for name in ["a", "b", "c", "d/e"] {
            fs::write(w.join(name), "new\n").unwrap();
        }
    });
    let plant = || {
        for tree in [CHANGES, BASE] {
            let tree = bed.stored(tree);
            fs::create_dir(&tree).unwrap();
            symlink(outside.join("a"), tree.join("a")).unwrap();
            mknodat(CWD, tree.join("b"), FileType::Fifo, Mode::RUSR, 0).unwrap();
            fs::create_dir_all(tree.join("c/deep")).unwrap();
            symlink(&outside, tree.join("d")).unwrap();
            fs::write(tree.join("unlisted"), "").unwrap();
            chmod(&tree.join("c"), 0);
        }
    };
    plant();
    let mut search = bed.search();
    assert_eq!(search.update(Deadline::never()).unwrap().files, 4);
    for tree in [CHANGES, BASE] {
        fs::remove_dir_all(bed.stored(tree)).unwrap();
    }
    plant();
    fs::create_dir(bed.stored(APPLIED)).unwrap();
    fs::remove_file(bed.stored(CHANGES_FILE)).unwrap();
    symlink(outside.join("a"), bed.stored(CHANGES_FILE)).unwrap();
    let mode = || fs::metadata(bed.stored("")).unwrap().mode() & 0o777;
    let before = mode();
    chmod(&bed.stored(""), 0o777);
    let report = search.finish().unwrap();
    assert_eq!(mode(), before, "others may write what `undo` reads");
    assert_eq!((report.files, report.added, report.refused), (4, 4, 0));
    for name in ["a", "b", "c", "d/e"] {
        let read = |tree| fs::read_to_string(bed.stored(tree).join(name)).unwrap();
        assert_eq!((read(CHANGES), read(BASE)), ("new\n".into(), "old\n".into()));
        assert!(!bed.stored(CHANGES).join(name).is_symlink());
    }
    // Contents may come from private files.
    for tree in [CHANGES, BASE] {
        assert_eq!(fs::metadata(bed.stored(tree)).unwrap().mode() & 0o777, 0o700, "{tree}");
    }
    assert!(!bed.stored(APPLIED).exists() && !bed.stored("changes/unlisted").exists());
    assert_eq!(fs::read_to_string(outside.join("a")).unwrap(), "kept\n");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);

    // Links in place of the trees themselves.
    for tree in [CHANGES, BASE] {
        fs::remove_dir_all(bed.stored(tree)).unwrap();
        symlink(&outside, bed.stored(tree)).unwrap();
    }
    chmod(&bed.stored(""), 0o500);
    search.finish().unwrap();
    assert!(!bed.stored(CHANGES).is_symlink());
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
}

#[test]
fn hidden_paths_are_missing_and_no_changes() {
    let fill = |w: &Path| {
        fs::create_dir_all(w.join("conf/keys")).unwrap();
        fs::write(w.join(".env"), "secret\n").unwrap();
        fs::write(w.join("conf/keys/k"), "secret\n").unwrap();
        fs::write(w.join("conf/other"), "x\n").unwrap();
        chmod(&w.join("conf"), 0o750);
    };
    let hide = |record: &mut DraftRecord| {
        for path in [".env", "conf/keys", "none/x"] {
            record.hide(OsStr::new(path));
        }
    };
    for engine in [Engine::Overlay, Engine::Copy] {
        let bed = Bed::with(engine, fill, hide);
        bed.edit(|w| {
            assert!(!w.join(".env").exists() && !w.join("conf/keys").exists());
            assert!(w.join("conf/other").exists());
            assert_eq!(w.join("conf").metadata().unwrap().mode() & 0o7777, 0o750);
        });
        assert_eq!(lines(&bed.finish().0), [""; 0], "{engine:?}");
        bed.edit(|w| {
            fs::write(w.join(".env"), "mine\n").unwrap();
            fs::remove_dir_all(w.join("conf")).unwrap();
        });
        let (changes, report) = bed.finish();
        assert_eq!(
            lines(&changes),
            [
                ".env Added None +0 -0 refused",
                "conf Deleted None +0 -0",
                "conf/other Deleted Saved +0 -1",
            ],
            "{engine:?}"
        );
        assert_eq!(report.refused, 1);
        assert!(!bed.stored("base/.env").exists() && !bed.draft.path("base/.env").exists());
    }
}

#[test]
fn changes_that_cannot_be_stored_are_refused() {
    let deep = |count: usize| vec!["d"; count].join("/");
    for engine in [Engine::Overlay, Engine::Copy] {
        let bed = Bed::with(engine, |_| {}, |_| {});
        bed.edit(|w| {
            fs::create_dir_all(w.join(deep(100))).unwrap();
            fs::write(w.join(".swarmletfs-x"), "a\n").unwrap();
            mknodat(CWD, w.join("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
            fs::write(w.join("fine"), "").unwrap();
        });
        let (changes, report) = bed.finish();
        let refused: Vec<_> = changes.files.iter().filter(|file| file.refused.is_some()).collect();
        let paths: Vec<_> = refused.iter().map(|file| file.path.as_text()).collect();
        assert_eq!(paths, [".swarmletfs-x", &deep(61), "pipe"], "{engine:?}");
        assert_eq!((report.files, report.refused), (3, 3));
        bed.draft.remove_layers().unwrap();
    }
}

#[test]
fn a_file_of_holes_takes_no_disk_and_a_huge_one_is_refused() {
    let bed = Bed::with(Engine::Copy, |_| {}, |_| {});
    bed.edit(|w| {
        for (name, size) in [("holes", 64 << 20), ("huge", 1 << 40)] {
            fs::File::create(w.join(name)).unwrap().set_len(size).unwrap();
        }
    });
    let report = bed.search().finish().unwrap();
    assert!(report.needs_layers, "{report:?}");
    assert_eq!((report.files, report.refused), (2, 1));
    let stored = bed.stored(CHANGES).join("holes").metadata().unwrap();
    assert_eq!(stored.len(), 64 << 20);
    assert!(stored.blocks() * 512 < 1 << 20, "{} blocks", stored.blocks());
    assert!(!bed.stored(CHANGES).join("huge").exists());
    let changes = bed.changes();
    let huge = changes.files.iter().find(|file| file.path.as_text() == "huge").unwrap();
    assert_eq!(huge.refused.as_deref(), Some("it has more than 8 GiB"));
}

/// Promise: The search for changes reads holes and contents within bounds, and names each file
/// that it did not read.
#[test]
fn holes_are_bounded_in_all_files_together() {
    let fill = |w: &Path| fs::write(w.join("old"), "old").unwrap();
    for engine in [Engine::Overlay, Engine::Copy] {
        let bed = Bed::with(engine, fill, |_| {});
        bed.edit(|w| {
            // Each one alone is not too large for a file.
            for name in ["many", "old"] {
                fs::File::create(w.join(name)).unwrap().set_len(4 << 30).unwrap();
            }
            fs::File::create(w.join("few")).unwrap().set_len(1 << 20).unwrap();
        });
        let report = bed.search().finish().unwrap();
        assert_eq!((report.files, report.refused), (3, 2), "{engine:?}");
        assert!(report.needs_layers && bed.stored("changes/few").exists());
        for file in bed.changes().files.iter().filter(|file| file.path.as_text() != "few") {
            let reason = file.refused.as_deref().unwrap();
            assert!(reason.starts_with("its holes were not read"), "{reason}");
            assert!(!bed.stored(CHANGES).join(file.path.as_text()).exists());
        }
    }
}

/// Promise: The search for changes reads holes and contents within bounds, and names each file
/// that it did not read.
#[test]
fn contents_for_which_no_time_is_left_are_refused() {
    let fill = |w: &Path| {
        for name in ["edited", "gone", "mode"] {
            fs::write(w.join(name), name).unwrap();
        }
    };
    for engine in [Engine::Overlay, Engine::Copy] {
        let bed = Bed::with(engine, fill, |_| {});
        bed.edit(|w| {
            fs::write(w.join("added"), "new").unwrap();
            fs::write(w.join("edited"), "new").unwrap();
            fs::remove_file(w.join("gone")).unwrap();
            fs::set_permissions(w.join("mode"), fs::Permissions::from_mode(0o600)).unwrap();
        });
        let mut search = bed.search();
        assert_eq!(search.finish().unwrap().refused, 0, "{engine:?}");
        search.content_time = Duration::ZERO;
        let report = search.finish().unwrap();
        // Of a copied file that is gone, the hash is known, and its content is not needed.
        let refused = if engine == Engine::Overlay { 4 } else { 3 };
        assert_eq!((report.files, report.refused), (4, refused), "{engine:?}");
        assert!(report.needs_layers);
        let changes = bed.changes();
        let added = changes.files.iter().find(|file| file.path.as_text() == "added").unwrap();
        let expected = "there was no time left to read it";
        assert_eq!(added.refused.as_deref(), Some(expected), "{engine:?}");
        assert!(!bed.stored("changes/added").exists());
    }
}

#[test]
fn what_stands_in_the_way_of_the_record_is_removed() {
    let bed = Bed::with(Engine::Copy, |_| {}, |_| {});
    let folder = bed.worker.folder().path().to_path_buf();
    fs::write(folder.join("other"), "{}").unwrap();
    for name in [METADATA, METRICS] {
        fs::remove_file(folder.join(name)).unwrap();
    }
    fs::hard_link(folder.join("other"), folder.join(METADATA)).unwrap();
    symlink("/etc/hostname", folder.join(METRICS)).unwrap();
    fs::create_dir(folder.join(RESULT)).unwrap();
    bed.search().finish().unwrap();
    for name in [METADATA, METRICS, RESULT] {
        assert!(folder.join(name).symlink_metadata().is_err(), "{name}");
    }
    assert!(folder.join("other").exists());
    bed.worker.finish(swarmletfs_record::write::Finish::failed("it ended")).unwrap();
}

#[test]
fn large_files_are_stored_whole() {
    let size = crate::draft::content::MEMORY_MAX + 5;
    for engine in [Engine::Overlay, Engine::Copy] {
        let fill = |w: &Path| {
            for name in ["edited", "touched", "gone"] {
                fs::File::create(w.join(name)).unwrap().set_len(size).unwrap();
            }
        };
        let bed = Bed::with(engine, fill, |_| {});
        if engine == Engine::Copy {
            assert_eq!(bed.draft.copy_dir().join("gone").metadata().unwrap().blocks(), 0);
        }
        bed.edit(|w| {
            let append = |name| fs::File::options().append(true).open(w.join(name)).unwrap();
            std::io::Write::write_all(&mut append("edited"), b"end").unwrap();
            append("touched").set_modified(SystemTime::UNIX_EPOCH).unwrap();
            fs::remove_file(w.join("gone")).unwrap();
        });
        let mut search = bed.search();
        // It may still grow.
        let report = search.update(Deadline::never()).unwrap();
        assert_eq!(report.files, 1);
        assert_eq!(search.finish().unwrap().files, 2);
        let changes = bed.changes();
        assert_eq!(
            lines(&changes),
            ["edited Modified Saved +0 -0", "gone Deleted Saved +0 -0"],
            "{engine:?}"
        );
        assert!(changes.files[0].is_binary);
        assert_eq!(changes.files[0].new.as_ref().unwrap().size, size + 3);
        assert_eq!(bed.stored("changes/edited").metadata().unwrap().len(), size + 3);
        assert_eq!(bed.stored("base/edited").metadata().unwrap().len(), size);
    }
}

#[test]
fn a_copy_has_the_attributes_of_the_workspace() {
    let fill = |w: &Path| {
        fs::create_dir(w.join("d")).unwrap();
        fs::write(w.join("d/x"), "x\n").unwrap();
        fs::hard_link(w.join("d/x"), w.join("y")).unwrap();
        symlink("nowhere", w.join("link")).unwrap();
        mknodat(CWD, w.join("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        fs::write(w.join("tool"), "").unwrap();
        chmod(&w.join("tool"), 0o4755);
        chmod(&w.join("d"), 0o550);
        let file = fs::File::open(w.join("tool")).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    };
    let bed = Bed::with(Engine::Copy, fill, |_| {});
    let copy = bed.draft.copy_dir();
    let meta = |name: &str| copy.join(name).symlink_metadata().unwrap();
    assert_eq!(meta("tool").mode() & 0o7777, 0o755);
    assert_eq!((meta("tool").mtime(), meta("d").mode() & 0o7777), (0, 0o550));
    assert_eq!(meta("d/x").nlink(), 1);
    assert!(meta("link").is_symlink() && !copy.join("pipe").exists());
    let times = |path: &Path| path.symlink_metadata().unwrap().modified().unwrap();
    assert_eq!(times(&copy.join("d")), times(&bed.workspace().join("d")));
    let (changes, report) = bed.finish();
    assert_eq!(changes.files, []);
    assert_eq!(report.notes.len(), 1, "{:?}", report.notes);
    bed.edit(|w| fs::write(w.join("y"), "z\n").unwrap());
    fs::write(bed.workspace().join("y"), "other\n").unwrap();
    let (changes, _) = bed.finish();
    let change = &changes.files[0];
    assert_eq!(lines(&changes), ["y Modified Unknown +0 -0"]);
    assert_eq!(change.old.as_ref().unwrap().size, 2);
    assert!(!change.old.as_ref().unwrap().sha256.is_empty());
}

#[test]
fn a_stop_of_the_machine_is_noted() {
    let bed = Bed::new(|_| {});
    assert_eq!(bed.finish().1.notes, [""; 0]);
    fs::write(bed.draft.path("boot_id"), "another\n").unwrap();
    assert_eq!(bed.finish().0.notes.len(), 1);
}

#[test]
fn a_discarded_draft_has_no_layers_and_no_bases() {
    let mut bed = Bed::new(|w| fs::write(w.join("a"), "x\n").unwrap());
    bed.edit(|w| fs::remove_file(w.join("a")).unwrap());
    bed.finish();
    bed.draft.discard().unwrap();
    let left: BTreeMap<_, _> = fs::read_dir(bed.draft.folder().path())
        .unwrap()
        .map(|entry| (entry.unwrap().file_name(), ()))
        .collect();
    assert_eq!(left.into_keys().collect::<Vec<_>>(), ["boot_id", "draft.json"]);
    assert_eq!(bed.draft.record().state, crate::draft::DraftState::Discarded);
    let mode = bed.draft.folder().path().metadata().unwrap().mode() & 0o7777;
    assert_eq!(mode, 0o700);
}

/// Runs `work` in a thread with the rights of an ordinary user only.
fn as_user<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let with_rights = || {
        rustix::thread::set_thread_groups(&[]).unwrap();
        rustix::thread::set_thread_gid(rustix::fs::Gid::from_raw(4_711)).unwrap();
        rustix::thread::set_thread_uid(rustix::fs::Uid::from_raw(4_711)).unwrap();
        work()
    };
    thread::scope(|scope| scope.spawn(with_rights).join().unwrap())
}

#[test]
fn an_ordinary_user_reads_and_removes_closed_folders() {
    as_user(|| {
        let bed = Bed::new(|w| {
            fs::create_dir(w.join("old")).unwrap();
            for name in ["old/f", "secret", "gone"] {
                fs::write(w.join(name), "old\n").unwrap();
            }
            chmod(&w.join("secret"), 0);
            chmod(&w.join("gone"), 0);
        });
        // No special characters, which mount(8) would take for options.
        let plain = bed.folder.path().join("plain");
        symlink(bed.workspace(), &plain).unwrap();
        let dirs = bed.draft.overlay_dirs();
        let script = format!(
            "mount -t overlay overlay -o userxattr,lowerdir={0},upperdir={1},workdir={2} {0}
            cd {0}
            mkdir closed half
            echo new > closed/f; echo new > half/f; echo new > old/f
            chmod 000 old/f closed; chmod 500 half
            chmod 600 secret
            rm -f gone",
            plain.display(),
            dirs.upper.display(),
            dirs.work.display()
        );
        let output = std::process::Command::new("unshare")
            .args(["-Urm", "sh", "-ec", &script])
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let mut search = bed.search();
        let report = search.update(Deadline::never()).unwrap();
        assert!(report.is_complete && report.refused >= 2, "{report:?}");
        let report = search.finish().unwrap();
        assert_eq!(
            lines(&bed.changes()),
            [
                "closed Added None +0 -0",
                "closed/f Added None +1 -0",
                "gone Deleted Unknown +0 -0 refused",
                "half Added None +0 -0",
                "half/f Added None +1 -0",
                "old/f Modified Saved +1 -1",
                "secret Mode Unknown +0 -0 refused",
            ]
        );
        let changes = bed.changes();
        let mode = |at: usize| changes.files[at].new.as_ref().unwrap().mode;
        assert_eq!((mode(0), mode(3), mode(5)), (0, 0o500, 0));
        assert_eq!(report.refused, 2);
        assert_eq!(search.finish().unwrap(), report);
        bed.draft.remove_layers().unwrap();
        assert!(!dirs.upper.exists() && !dirs.work.exists());
    });
}

/// Names of random trees.
const NAMES: [&[u8]; 8] = [b"a", b"b", b"c d", "é".as_bytes(), b"-x", b"\xff", b"n\nl", b"z.txt"];

fn random_content() -> Vec<u8> {
    match fastrand::u8(..6) {
        0 => Vec::new(),
        1 => b"a\0b".to_vec(),
        2 => vec![b'x'; fastrand::usize(..200_000)],
        3 => b"\xff\xfe".to_vec(),
        _ => (0..fastrand::u8(..9)).flat_map(|_| [b'a' + fastrand::u8(..3), b'\n']).collect(),
    }
}

fn random_path(root: &Path) -> PathBuf {
    (0..=fastrand::usize(..3)).fold(root.to_path_buf(), |path, _| {
        path.join(OsStr::from_bytes(fastrand::choice(NAMES).unwrap()))
    })
}

/// Changes something beneath `root`, if that is possible.
fn edit_at_random(root: &Path) {
    let (path, other) = (random_path(root), random_path(root));
    let _ = match fastrand::u8(..16) {
        0..4 => fs::write(&path, random_content()),
        4 => fs::File::options()
            .append(true)
            .open(&path)
            .and_then(|mut file| std::io::Write::write_all(&mut file, b"more\n")),
        5 => fs::remove_file(&path),
        6 => fs::remove_dir_all(&path),
        7 | 8 => fs::create_dir_all(&path),
        9 => {
            let _ = fs::remove_file(&path);
            symlink(OsStr::from_bytes(fastrand::choice(NAMES).unwrap()), &path)
        }
        10 if !path.is_symlink() => {
            let mode = fastrand::choice([0, 0o600, 0o644, 0o755, 0o1777, 0o500]).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))
        }
        11 | 12 => fs::rename(&path, &other),
        13 => fs::remove_dir_all(&path).and_then(|()| fs::create_dir(&path)),
        14 => fs::File::options()
            .write(true)
            .open(&path)
            .and_then(|file| file.set_modified(SystemTime::UNIX_EPOCH)),
        _ => fs::remove_dir_all(&path)
            .or_else(|_| fs::remove_file(&path))
            .and_then(|()| fs::write(&path, random_content())),
    };
}

#[test]
fn random_edits_are_found_exactly() {
    let mut kinds = std::collections::HashSet::new();
    let least = seeds(60).count();
    for (at, seed) in seeds(600).enumerate() {
        // More cases run only until each kind of change came up.
        if at >= least && (kinds.len() == 8 || !is_full()) {
            break;
        }
        fastrand::seed(seed);
        let engine = if seed % 3 == 0 { Engine::Copy } else { Engine::Overlay };
        let fill = |w: &Path| (0..fastrand::u8(..60)).for_each(|_| edit_at_random(w));
        let bed = Bed::with(engine, fill, |_| {});
        let old = snapshot(&bed.workspace());
        let mut search = bed.search();
        let mut new = Tree::new();
        for round in 0..fastrand::u64(1..4) {
            new = bed.edit(move |w| {
                fastrand::seed(seed << 32 | round);
                (0..fastrand::u8(..30)).for_each(|_| edit_at_random(w));
                snapshot(w)
            });
            let report = search.update(Deadline::never()).unwrap();
            assert!(report.is_complete, "seed {seed}");
            if bed.stored(CHANGES_FILE).exists() {
                assert_eq!(apply(&bed, &bed.changes(), old.clone()), new, "seed {seed}");
            } else {
                assert_eq!(old, new, "seed {seed}");
            }
        }
        search.finish().unwrap();
        assert_eq!(apply(&bed, &bed.changes(), old.clone()), new, "seed {seed}");
        assert_eq!(snapshot(&bed.workspace()), old, "seed {seed}");
        let found = bed.changes().files.into_iter();
        kinds.extend(found.map(|change| format!("{:?} {:?}", change.kind, change.base)));
        bed.draft.remove_layers().unwrap();
    }
    assert!(kinds.len() == 8 || !is_full(), "{kinds:?}");
}

#[test]
fn a_worker_may_write_while_it_is_searched() {
    let seed = seed();
    let bed = Bed::new(move |w| {
        fastrand::seed(seed);
        (0..200).for_each(|_| edit_at_random(w));
    });
    let old = snapshot(&bed.workspace());
    let is_done = std::sync::atomic::AtomicBool::new(false);
    let mut search = bed.search();
    let new = thread::scope(|scope| {
        let editor = scope.spawn(|| {
            let new = bed.edit(move |w| {
                fastrand::seed(!seed);
                (0..scale(4_000)).for_each(|_| edit_at_random(w));
                snapshot(w)
            });
            is_done.store(true, std::sync::atomic::Ordering::Release);
            new
        });
        while !is_done.load(std::sync::atomic::Ordering::Acquire) {
            search.update(Deadline::never()).unwrap();
        }
        editor.join().unwrap()
    });
    search.finish().unwrap();
    assert_eq!(apply(&bed, &bed.changes(), old), new);
}
