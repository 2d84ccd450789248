//! Copies of workers that are removed.

use std::fs;
use std::path::Path;

use super::store::{gc, gc_report, indexed, new_store, old_worker, tombstone, workers};
use crate::cli::program::{run, swarmletfs, tmpfs};
use crate::recording::store::{assert_readable, in_store, read_tree, worker};

/// Runs `gc` that archives all old workers to `archive`.
fn archive(store: &Path, archive: &Path) -> crate::cli::program::CommandOutput {
    gc(store, &["--older-than", "30d", "--yes", "--archive", archive.to_str().unwrap()])
}

/// Promise: With `--archive`, a worker is copied whole into a store that can be mounted, and
/// removed only after the copy was compared with it by content.
#[test]
fn workers_are_copied_whole_before_they_are_removed() {
    let (dir, store) = new_store();
    old_worker(&store, "w1", 1, &["--run", "48"]);
    std::os::unix::fs::symlink("nowhere", worker(&store, "w1").join("outputs-link")).unwrap();
    fs::create_dir_all(worker(&store, "w1").join("a/b")).unwrap();
    fs::write(worker(&store, "w1").join("a/b/zeros"), vec![0; 100_000]).unwrap();
    let target = worker(&store, "w1").join("outputs-link");
    assert_eq!(fs::read_link(&target).unwrap(), Path::new("nowhere"));
    fs::remove_file(&target).unwrap();
    let before = read_tree(&worker(&store, "w1"));
    std::os::unix::fs::symlink("nowhere", &target).unwrap();

    let copies = dir.path().join("copies");
    archive(&store, &copies).assert_success();
    assert!(workers(&store).is_empty());
    assert_eq!(tombstone(&store, "w1")["archived_to"], copies.to_str().unwrap());
    assert_eq!((workers(&copies), indexed(&copies)), (vec!["w1".into()], vec!["w1".to_owned()]));
    let link = worker(&copies, "w1").join("outputs-link");
    assert_eq!(fs::read_link(&link).unwrap(), Path::new("nowhere"));
    fs::remove_file(link).unwrap();
    assert!(read_tree(&worker(&copies, "w1")) == before, "the copy differs");
    assert_readable(&copies);
    let listed = run(in_store(swarmletfs(["ls", "workers"]), &copies));
    assert!(listed.assert_success().out.contains("w1"), "{}", listed.out);
}

#[test]
fn an_existing_copy_counts_only_if_it_is_equal() {
    let (dir, store) = new_store();
    old_worker(&store, "w1", 1, &[]);
    old_worker(&store, "w2", 2, &[]);
    let copies = dir.path().join("copies");
    let mut init = swarmletfs(["init"]);
    init.arg(&copies);
    run(init).assert_success();
    for id in ["w1", "w2"] {
        let mut cp = crate::cli::program::program("cp", ["-a"]);
        cp.arg(worker(&store, id)).arg(copies.join("workers"));
        run(cp).assert_success();
    }
    fs::write(worker(&copies, "w2").join("result.txt"), "other\n").unwrap();
    archive(&store, &copies).assert_failure(1, &["removed 1 worker"]);
    assert_eq!(workers(&store), ["w2"]);
    assert_eq!(fs::read_to_string(worker(&copies, "w2").join("result.txt")).unwrap(), "other\n");
    // The store itself and what is no store are no archives.
    archive(&store, &store).assert_failure(1, &["an archive cannot be the store itself"]);
    fs::create_dir_all(dir.path().join("other/x")).unwrap();
    archive(&store, &dir.path().join("other")).assert_failure(1, &["cannot open the store"]);
    assert_eq!(workers(&store), ["w2"]);
}

/// A file system that is unmounted when dropped.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

/// Promise: A worker that cannot be copied to the archive, as to a full disk, is kept and named.
#[test]
fn a_full_archive_keeps_the_workers() {
    let (dir, store) = new_store();
    old_worker(&store, "w1", 1, &[]);
    old_worker(&store, "w2", 2, &[]);
    // More than fits beside the first worker.
    fs::write(worker(&store, "w2").join("large"), vec![1; 8 << 20]).unwrap();
    let mounted = dir.path().join("mounted");
    fs::create_dir(&mounted).unwrap();
    if tmpfs(&mounted).is_none() {
        return;
    }
    let _guard = Mounted(&mounted);
    rustix::mount::mount_remount(&mounted, rustix::mount::MountFlags::empty(), c"size=4m").unwrap();
    let copies = mounted.join("copies");
    let done = archive(&store, &copies);
    let (store_left, copied) = (workers(&store), workers(&copies));
    done.assert_failure(1, &["removed 1 worker"]);
    assert!(done.out.contains("w2  kept: cannot copy to"), "{done:#?}");
    assert_eq!((store_left, copied), (vec!["w2".to_owned()], vec!["w1".to_owned()]));
    assert!(tombstone(&store, "w2").is_null());
    gc_report(&store, &["--older-than", "30d"]);
}
