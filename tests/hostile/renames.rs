//! R5: directories that change their name or owner while they are mounted. A name always shows the
//! view's own owner, and an open handle never leads to another directory.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use serde_json::json;

use super::{CANARY, holds_canary, walk};
use crate::mount::eventually;
use crate::needs_fuse;
use crate::support::{Mount, TestStore};

/// Creates A's workers `one` and `two` beside B's `theirs`, which holds the canary under every name
/// of A's files.
fn store() -> TestStore {
    let store = TestStore::new();
    for (worker, owner, text) in [("one", "A", "one"), ("two", "A", "two"), ("theirs", "B", CANARY)]
    {
        store.worker(worker, json!({"owner_id": owner, "status": "running", "task": text}));
        store.call(worker, 1, "sh", text);
        store.write(format!("workers/{worker}/result.txt"), text);
    }
    store
}

fn mount_of_a(store: &TestStore) -> Mount {
    let mut mount = Mount::with(&store.path(), &["--owner", "A"]);
    mount.expect_warning("this version is gone");
    mount
}

fn rename(store: &TestStore, from: &str, to: &str) {
    fs::rename(store.at(format!("workers/{from}")), store.at(format!("workers/{to}"))).unwrap();
}

fn exchange(a: &Path, b: &Path) {
    rustix::fs::renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE).unwrap();
}

/// Reads the files of workers until the list of workers is `wanted`.
#[track_caller]
fn read_until(mount: &Mount, wanted: &[&str]) {
    eventually("the new list of workers", || {
        for worker in ["one", "two", "theirs", "new"] {
            for file in [
                "result.txt",
                "tool_calls/001_sh.txt",
                "metadata.json",
                "summary",
                "evidence.txt",
                "index.json",
            ] {
                let bytes =
                    fs::read(mount.at(&format!("workers/{worker}/{file}"))).unwrap_or_default();
                assert!(!holds_canary(&bytes), "{worker}/{file}: {}", bytes.escape_ascii());
            }
        }
        (mount.list("workers") == wanted).then_some(())
    });
    assert!(!walk(&mount.path()).values().any(|bytes| holds_canary(bytes)));
}

/// Open handles of a worker: a file, a generated file, and the directory itself.
struct OpenHandles {
    file: File,
    generated: File,
    folder: rustix::fd::OwnedFd,
}

impl OpenHandles {
    fn of(mount: &Mount, worker: &str) -> OpenHandles {
        let at = |name: &str| mount.at(&format!("workers/{worker}/{name}"));
        OpenHandles {
            file: File::open(at("result.txt")).unwrap(),
            generated: File::open(at("evidence.txt")).unwrap(),
            folder: rustix::fs::open(at(""), OFlags::PATH | OFlags::DIRECTORY, Mode::empty())
                .unwrap(),
        }
    }

    /// Asserts that open files keep their contents. The directory handle must show nothing of
    /// another directory: it is stale, or still the old one.
    #[track_caller]
    fn check(&self, text: &str) {
        for (file, whole) in [(&self.file, true), (&self.generated, false)] {
            let mut bytes = vec![0; 4_096];
            let length = file.read_at(&mut bytes, 0).unwrap();
            let seen = String::from_utf8_lossy(&bytes[..length]);
            assert!(
                if whole { seen == text } else { seen.contains(&format!("\n{text}\n")) },
                "{seen}"
            );
        }
        for name in ["result.txt", "tool_calls/001_sh.txt", "summary", "evidence.txt"] {
            let opened = rustix::fs::openat(&self.folder, name, OFlags::RDONLY, Mode::empty());
            match opened.map_err(io::Error::from).and_then(|fd| io::read_to_string(File::from(fd)))
            {
                Ok(seen) => {
                    assert!(seen.contains(text) && !holds_canary(seen.as_bytes()), "{name}: {seen}")
                }
                Err(error) => {
                    let errno = Errno::from_io_error(&error);
                    assert!(matches!(errno, Some(Errno::NOENT | Errno::STALE)), "{name}: {error}");
                }
            }
        }
    }
}

#[test]
fn another_owners_folder_under_a_visible_name_is_absent() {
    needs_fuse!();
    let store = store();
    let mount = mount_of_a(&store);
    let held = OpenHandles::of(&mount, "one");
    fs::rename(store.at("workers/one"), store.path().parent().unwrap().join("elsewhere")).unwrap();
    rename(&store, "theirs", "one");
    read_until(&mount, &["index.json", "two"]);
    held.check("one");
}

#[test]
fn exchanged_folders_of_two_owners_stay_with_their_owners() {
    needs_fuse!();
    let store = store();
    let mount = mount_of_a(&store);
    let held = OpenHandles::of(&mount, "one");
    exchange(&store.at("workers/one"), &store.at("workers/theirs"));
    read_until(&mount, &["index.json", "theirs", "two"]);
    held.check("one");
    assert_eq!(mount.text("workers/theirs/result.txt"), "one");
    assert!(
        mount
            .text("workers/theirs/summary")
            .contains("other_id: metadata.json has another id: one")
    );
}

#[test]
fn exchanged_folders_of_one_owner_are_not_mixed_up() {
    needs_fuse!();
    let store = store();
    let mount = mount_of_a(&store);
    let held = OpenHandles::of(&mount, "one");
    exchange(&store.at("workers/one"), &store.at("workers/two"));
    eventually("the other worker", || {
        (mount.text("workers/one/evidence.txt").contains("\ntwo\n")).then_some(())
    });
    assert_eq!(mount.text("workers/one/result.txt"), "two");
    let mut bytes = [0; 8];
    let length = held.file.read_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes[..length], b"one");
}

#[test]
fn a_renamed_folder_is_another_worker() {
    needs_fuse!();
    let store = store();
    let mount = mount_of_a(&store);
    let held = OpenHandles::of(&mount, "one");
    rename(&store, "one", "new");
    read_until(&mount, &["index.json", "new", "two"]);
    held.check("one");
    assert_eq!(mount.text("workers/new/result.txt"), "one");
}

/// Promise: Another owner's directory is absent under every name.
#[test]
fn foreign_directory_is_absent_under_every_name() {
    needs_fuse!();
    let store = store();
    let mount = mount_of_a(&store);
    rename(&store, "theirs", "new");
    store.worker("one-more", json!({"owner_id": "A"}));
    read_until(&mount, &["index.json", "one", "one-more", "two"]);
}

/// Promise: A worker that is given to another owner leaves one view and enters the other.
#[test]
fn worker_that_changes_owner_moves_between_views() {
    needs_fuse!();
    let store = store();
    let mount = mount_of_a(&store);
    let held = OpenHandles::of(&mount, "one");
    store.worker("one", json!({"owner_id": "B", "status": "running"}));
    store.write("workers/one/result.txt", "one");
    read_until(&mount, &["index.json", "two"]);
    held.check("one");
    store.worker("one", json!({"owner_id": "A", "status": "running"}));
    read_until(&mount, &["index.json", "one", "two"]);
    assert_eq!(mount.text("workers/one/result.txt"), "one");
}

/// One owner's metadata must not apply to files of another that are moved beside it.
#[test]
fn exchanged_metadata_of_two_owners_moves_the_folders() {
    needs_fuse!();
    let store = store();
    let mount = mount_of_a(&store);
    exchange(&store.at("workers/one/metadata.json"), &store.at("workers/two/metadata.json"));
    let says = "other_id: metadata.json has another id: two";
    eventually("the claim", || mount.text("workers/one/summary").contains(says).then_some(()));
    assert_eq!(mount.text("workers/one/result.txt"), "one");
    assert_eq!(mount.list("workers"), ["index.json", "one", "two"]);
}
