//! A mount for several owners: a directory for each, which only the owner's user can enter.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use serde_json::{Value, json};

use crate::needs_fuse;
use crate::support::mount::PROGRAM;
use crate::support::user::as_user;
use crate::support::{Mount, TestStore};

const ALICE: u32 = 42_001;
const BOB: u32 = 42_002;
/// A user without a directory.
const EVE: u32 = 42_003;

/// Returns a store with workers of three owners and of none. Alice and bob each have a worker that
/// no other user of the machine may read in the store.
fn store() -> TestStore {
    let store = TestStore::new();
    for owner in ["alice", "bob", "carol"] {
        for (number, run) in [(1, "r1"), (2, "r2")] {
            let id = format!("{owner}-{number}");
            let config = json!({"owner_id": owner});
            store.worker(&id, json!({"status": "success", "config": config, "run_id": run}));
            store.call(&id, 1, "sh", format!("output of {id}\n"));
            let path = store.write(format!("workers/{id}/outputs/closed"), format!("of {id}"));
            rustix::fs::chmod(&path, Mode::from_raw_mode(0o600)).unwrap();
        }
    }
    store.worker("nobody", json!({"status": "success"}));
    store
}

fn map(store: &TestStore, owners: Value) -> PathBuf {
    let path = store.path().parent().unwrap().join("owners.json");
    fs::write(&path, serde_json::to_vec(&owners).unwrap()).unwrap();
    path
}

/// Mounts `store` for alice and bob.
fn mount(store: &TestStore, arguments: &[&str]) -> Mount {
    let map = map(store, json!({"alice": ALICE, "bob": BOB}));
    let owners = ["--owners", map.to_str().unwrap()];
    Mount::with(&store.path(), &[owners.as_slice(), arguments].concat())
}

fn errno(result: std::io::Result<impl Sized>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

/// Promise: A mount for several owners shows each user the whole view of that owner, and nothing of
/// the others.
#[test]
fn each_user_sees_the_view_of_one_owner() {
    needs_fuse!();
    let store = store();
    let mount = mount(&store, &[]);
    for (uid, owner) in [(ALICE, "alice"), (BOB, "bob")] {
        let alone = Mount::with(&store.path(), &["--owner", owner]);
        let expected = everything(&alone.path());
        assert!(expected.len() > 30, "{:?}", expected.keys());
        for root in ["self".into(), format!("owners/{owner}")] {
            let seen = as_user(uid, || everything(&mount.at(&root)));
            assert_eq!(seen, expected, "{root}");
        }
        let closed = format!("self/workers/{owner}-1/outputs/closed");
        assert_eq!(as_user(uid, || mount.text(&closed)), format!("of {owner}-1"));
    }
}

/// Returns the content of all files beneath `root`, and the targets of links.
fn everything(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let (mut found, mut folders) = (BTreeMap::new(), vec![root.to_path_buf()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let entry = entry.unwrap();
            let (path, kind) = (entry.path(), entry.file_type().unwrap());
            let bytes = if kind.is_dir() {
                folders.push(path.clone());
                Vec::new()
            } else if kind.is_symlink() {
                fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
            } else {
                fs::read(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"))
            };
            found.insert(path.strip_prefix(root).unwrap().to_path_buf(), bytes);
        }
    }
    found
}

#[test]
fn the_directories_around_the_trees_are_equal_for_all() {
    needs_fuse!();
    let store = store();
    let mount = mount(&store, &[]);
    let begun = fs::metadata(mount.path()).unwrap();
    for uid in [0, ALICE, BOB, EVE] {
        as_user(uid, || {
            assert_eq!(mount.list(""), ["README.md", "owners", "self"]);
            assert_eq!(mount.list("owners"), ["alice", "bob"]);
            assert!(mount.text("README.md").contains("owners/<id>/"));
            for (name, owner) in [("alice", ALICE), ("bob", BOB)] {
                let meta = fs::metadata(mount.at(&format!("owners/{name}"))).unwrap();
                assert_eq!((meta.uid(), meta.mode() & 0o7777), (owner, 0o700));
                // Nothing that depends on the tree.
                assert_eq!((meta.size(), meta.mtime(), meta.nlink()), (0, begun.mtime(), 1));
            }
            let stats = rustix::fs::statvfs(mount.path()).unwrap();
            assert_eq!((stats.f_blocks, stats.f_files), (0, 0));
            let link = fs::symlink_metadata(mount.at("self")).unwrap();
            assert_eq!((link.size(), link.uid()), (0, 0));
        });
    }
    let target = |uid| as_user(uid, || fs::read_link(mount.at("self")));
    for _ in 0..3 {
        assert_eq!(target(ALICE).unwrap(), Path::new("owners/alice"));
        assert_eq!(target(BOB).unwrap(), Path::new("owners/bob"));
        for uid in [0, EVE] {
            assert_eq!(errno(target(uid)), Some(Errno::NOENT.raw_os_error()));
        }
    }
}

/// Promise: In a mount for several owners, another owner's directory gives the same answer for what
/// is there and what is not.
#[test]
fn the_directories_of_others_are_closed() {
    needs_fuse!();
    let store = store();
    let mount = mount(&store, &["--ttl", "3600"]);
    let inside = ["", "/workers", "/workers/alice-1/summary", "/workers/alice-9", "/summary", "/x"];
    for is_warm in [false, true] {
        for path in inside {
            let path = mount.at(&format!("owners/alice{path}"));
            let opened = as_user(BOB, || errno(fs::File::open(&path)));
            assert_eq!(opened, Some(Errno::ACCESS.raw_os_error()), "{path:?}, warm: {is_warm}");
            let listed = as_user(EVE, || errno(fs::read_dir(&path)));
            assert_eq!(listed, Some(Errno::ACCESS.raw_os_error()), "{path:?}, warm: {is_warm}");
        }
        as_user(ALICE, || everything(&mount.at("owners/alice")));
    }
    // What is not mapped is not there, whether or not the store has such an owner.
    for owner in ["carol", "dave", "alice2"] {
        let found = errno(fs::metadata(mount.at(&format!("owners/{owner}"))));
        assert_eq!(found, Some(Errno::NOENT.raw_os_error()), "{owner}");
    }
}

#[test]
fn an_open_directory_or_file_of_another_cannot_be_reached_by_its_relatives() {
    needs_fuse!();
    let store = store();
    let mount = mount(&store, &[]);
    // Alice's working directory is inside; she hands it to bob, as a process that changes its user.
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let held = as_user(ALICE, || {
        rustix::fs::open(mount.at("self/workers/alice-1"), flags, Mode::empty()).unwrap()
    });
    as_user(BOB, || {
        let open = |path: &str| {
            rustix::fs::openat(&held, path, OFlags::RDONLY, Mode::empty()).map(drop).unwrap_err()
        };
        for path in ["summary", "outputs/closed", "../alice-2/summary", ".."] {
            assert_eq!(open(path), Errno::ACCESS, "{path}");
        }
    });
}

/// Promise: Nobody can change anything through any node, whatever the mount options.
#[test]
fn nothing_can_be_changed() {
    needs_fuse!();
    let store = store();
    let mount = mount(&store, &[]);
    mount.remount("rw");
    let paths = ["", "README.md", "owners", "owners/alice", "owners/alice/summary", "self"];
    for path in paths.map(|path| mount.at(path)) {
        for uid in [0, ALICE] {
            let refused = as_user(uid, || {
                let times = Timespec { tv_sec: 1, tv_nsec: 0 };
                let times = Timestamps { last_access: times, last_modification: times };
                [
                    rustix::fs::open(&path, OFlags::WRONLY, Mode::empty()).map(drop),
                    rustix::fs::mkdir(path.join("new"), Mode::RWXU),
                    rustix::fs::unlink(&path),
                    rustix::fs::rmdir(&path),
                    rustix::fs::rename(&path, mount.at("other")),
                    rustix::fs::symlink("/", path.join("new")),
                    rustix::fs::chmod(&path, Mode::RWXO),
                    rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty()),
                    rustix::fs::lsetxattr(&path, c"user.a", b"b", XattrFlags::empty()),
                ]
            });
            for (number, result) in refused.into_iter().enumerate() {
                let errno = result.unwrap_err();
                let allowed = [
                    Errno::ROFS,
                    Errno::ACCESS,
                    Errno::PERM,
                    Errno::ISDIR,
                    Errno::NOTDIR,
                    Errno::BUSY,
                    Errno::NOENT,
                    Errno::EXIST,
                    Errno::NOTSUP,
                    // The root of a mount cannot be renamed.
                    Errno::XDEV,
                ];
                assert!(allowed.contains(&errno), "{path:?} by {uid}, call {number}: {errno}");
            }
        }
    }
    assert_eq!(mount.list(""), ["README.md", "owners", "self"]);
    assert_eq!(mount.list("owners"), ["alice", "bob"]);
}

#[test]
fn a_worker_that_changes_its_owner_changes_the_directory() {
    needs_fuse!();
    let store = store();
    let mount = mount(&store, &[]);
    let ids = |name: &str| mount.list(&format!("owners/{name}/workers"));
    assert_eq!(ids("alice"), ["alice-1", "alice-2", "index.json"]);
    let before = fs::metadata(mount.at("owners/alice/workers/alice-1/summary")).unwrap().ino();
    let config = json!({"owner_id": "bob"});
    store.worker("alice-1", json!({"status": "success", "config": config, "run_id": "r1"}));
    super::eventually("the change of the owner", || {
        (ids("bob") == ["alice-1", "bob-1", "bob-2", "index.json"]).then_some(())
    });
    super::eventually("the end of it in alice's list", || {
        (ids("alice") == ["alice-2", "index.json"]).then_some(())
    });
    let path = mount.at("owners/alice/workers/alice-1/summary");
    super::eventually("the end of what alice's directory had", || fs::metadata(&path).err());
    let after = fs::metadata(mount.at("owners/bob/workers/alice-1/summary")).unwrap().ino();
    assert_ne!(before, after, "an inode of another tree");
}

/// Promise: The kernel reports late changes of a finished worker in each owner's tree.
#[test]
fn late_changes_are_reported_to_each_owner() {
    needs_fuse!();
    let store = store();
    store.rest();
    let mount = mount(&store, &["--ttl", "3600"]);
    for (uid, owner) in [(ALICE, "alice"), (BOB, "bob")] {
        let path = format!("workers/{owner}-1/tool_calls/001_sh.txt");
        let size = || as_user(uid, || fs::metadata(mount.at("self").join(&path)).unwrap().len());
        let summary = || as_user(uid, || mount.text(&format!("self/workers/{owner}-1/summary")));
        assert_ne!(size(), 3);
        summary();
        store.write(&path, "new");
        super::eventually("the new size", || (size() == 3).then_some(()));
    }
}

#[test]
fn one_user_can_be_several_owners_and_ids_can_be_odd() {
    needs_fuse!();
    let store = TestStore::new();
    for (id, owner) in [("w1", "a/b"), ("w2", ".."), ("w3", "x")] {
        store.worker(id, json!({"config": {"owner_id": owner}}));
    }
    let map = map(&store, json!({"a/b": ALICE, "..": ALICE, "x": BOB}));
    let mount = Mount::with(&store.path(), &["-o", &format!("owners={}", map.display())]);
    assert_eq!(mount.list("owners"), ["%2E.", "a%2Fb", "x"]);
    as_user(ALICE, || {
        assert_eq!(mount.list("owners/a%2Fb/workers"), ["index.json", "w1"]);
        assert_eq!(mount.list("self/workers"), ["index.json", "w2"]);
    });
    let run = Mount::with(
        &store.path(),
        &["--owners", map.to_str().unwrap(), "--run", "none", "--allow-other"],
    );
    assert_eq!(run.list("owners/x/workers"), ["index.json"]);
}

#[test]
fn an_attached_store_is_shown_to_each_owner() {
    needs_fuse!();
    let (first, second) = (store(), TestStore::new());
    for owner in ["alice", "bob"] {
        // The ids are equal, but no owner sees two workers of one id.
        second.worker("shared-id", json!({"config": {"owner_id": owner}}));
        let config = json!({"config": {"owner_id": owner}});
        second.worker(&format!("{owner}-1"), config);
    }
    let mount = mount(&first, &[]);
    let ids = |uid| as_user(uid, || mount.list("self/workers"));
    mount.change_stores("attach", &second.path());
    assert_eq!(ids(ALICE), ["alice-1", "alice-1~2", "alice-2", "index.json"]);
    assert_eq!(ids(BOB), ["bob-1", "bob-1~2", "bob-2", "index.json", "shared-id"]);
    mount.change_stores("detach", &second.path());
    assert_eq!(ids(ALICE), ["alice-1", "alice-2", "index.json"]);
    assert_eq!(ids(BOB), ["bob-1", "bob-2", "index.json"]);
}

#[test]
fn files_with_several_names_are_hidden() {
    needs_fuse!();
    let store = store();
    let (theirs, mine) = ("workers/bob-1/outputs/closed", "workers/alice-1/outputs/stolen");
    fs::hard_link(store.at(theirs), store.at(mine)).unwrap();
    let mut mount = mount(&store, &[]);
    mount.expect_warning("hard link");
    as_user(ALICE, || assert!(fs::metadata(mount.at("self").join(mine)).is_err()));
    as_user(BOB, || assert!(fs::metadata(mount.at("self").join(theirs)).is_err()));
}

#[test]
fn a_map_or_options_that_cannot_be_used_are_refused() {
    needs_fuse!();
    let store = store();
    let point = store.path().parent().unwrap().join("point");
    fs::create_dir(&point).unwrap();
    let refusal = |map: &Path, arguments: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command.arg("mount").arg("--store").arg(store.path()).arg("--owners").arg(map);
        let ran = command.args(arguments).arg(&point).stdin(Stdio::null()).output().unwrap();
        assert!(!ran.status.success());
        String::from_utf8(ran.stderr).unwrap()
    };
    let good = map(&store, json!({"alice": ALICE}));
    for (option, expected) in [
        ("--owner=alice", "'--owners <MAP>' cannot be used with '--owner <ID>'"),
        ("--all-owners", "'--owners <MAP>' cannot be used with '--all-owners'"),
        ("--audit", "'--owners <MAP>' cannot be used with '--audit'"),
    ] {
        let said = refusal(&good, &[option]);
        assert!(said.contains(expected), "{option}: {said}");
    }
    let said = refusal(Path::new("/nonexistent"), &[]);
    assert!(said.contains("cannot read the owners in /nonexistent"), "{said}");
    let unknown = map(&store, json!({"alice": "no-such-user"}));
    let said = refusal(&unknown, &[]);
    assert!(said.contains("there is no user no-such-user"), "{said}");
    rustix::fs::chmod(&unknown, Mode::from_raw_mode(0o666)).unwrap();
    assert!(refusal(&unknown, &[]).contains("other users can write it"));
}
