//! Disks whose clock ticks so slowly that two changes have one time: neither bytes nor names of before the second may be
//! taken for those after it.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use rustix::mount::{MountFlags, UnmountFlags};
use serde_json::json;

use super::eventually;
use crate::cli::program::is_root;
use crate::needs_fuse;
use crate::support::{Mount, TestStore, dose};

/// A store on a disk that gives times by the tick, whoever has asked for them between.
struct Coarse(TestStore);

impl Coarse {
    fn new() -> Coarse {
        let store = TestStore::new();
        rustix::mount::mount("ramfs", store.path(), "ramfs", MountFlags::empty(), None).unwrap();
        Coarse(store)
    }
}

impl Drop for Coarse {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0.path(), UnmountFlags::DETACH);
    }
}

/// Does `check` with each of two workers, one at work and one that has finished: with the store, its mount, and the folder
/// of the worker's outputs, in which a file is.
fn with_each(check: impl Fn(&TestStore, &Mount, &str)) {
    let disk = Coarse::new();
    let store = &disk.0;
    for status in ["running", "success"] {
        store.worker(status, json!({"status": status}));
        let outputs = format!("workers/{status}/outputs");
        store.write(format!("{outputs}/file"), "old bytes\n");
        check(store, &Mount::new(&store.path()), &outputs);
    }
}

#[test]
fn what_is_written_within_the_tick_in_which_it_was_read_is_read() {
    needs_fuse!();
    if !is_root() {
        return;
    }
    with_each(|store, mount, outputs| {
        let (path, at) = (store.at(format!("{outputs}/file")), mount.at(&format!("{outputs}/file")));
        for turn in 0..dose(60) {
            let (old, new) = (format!("old {turn:06}\n"), format!("new {turn:06}\n"));
            let file = File::options().write(true).open(&path).unwrap();
            file.write_all_at(old.as_bytes(), 0).unwrap();
            let _ = fs::read(&at).unwrap();
            file.write_all_at(new.as_bytes(), 0).unwrap();
            eventually("what was written last", || (fs::read(&at).unwrap() == new.as_bytes()).then_some(()));
        }
    });
}

#[test]
fn what_comes_within_the_tick_in_which_its_folder_was_listed_is_listed() {
    needs_fuse!();
    if !is_root() {
        return;
    }
    with_each(|store, mount, outputs| {
        for turn in 0..dose(60) {
            store.write(format!("{outputs}/first-{turn}"), "");
            let _ = mount.list(outputs);
            store.write(format!("{outputs}/second-{turn}"), "");
            eventually("what came last", || {
                let names = mount.list(outputs);
                (names.len() == 2 * turn + 3).then_some(())
            });
        }
    });
}
