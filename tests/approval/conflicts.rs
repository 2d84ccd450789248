//! Conflicts: the workspace is not as the worker found it.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;

use crate::support::draft::{Node, Workbench, file, folder};
use crate::support::skip;

/// Returns a workspace, and the worker's view of it.
fn trees() -> (Node, Node) {
    let old = folder([
        ("changed", file("old\n")),
        ("gone", file("old\n")),
        ("link", Node::Link("changed".into())),
        ("mode", file("script\n")),
        ("src", folder([("a.rs", file("a\n")), ("deep", folder([("b.rs", file("b\n"))]))])),
    ]);
    let new = folder([
        ("added", file("new\n")),
        ("changed", file("new\n")),
        ("link", Node::Link("added".into())),
        ("mode", Node::File { mode: 0o755, bytes: b"script\n".into() }),
        ("src", folder([("a.rs", file("a\n")), ("deep", file("now a file\n"))])),
    ]);
    (old, new)
}

fn bench() -> Workbench {
    Workbench::with_worker(trees())
}

fn replace(path: &Path, make: impl FnOnce(&Path)) {
    fs::remove_file(path).unwrap();
    make(path);
}

/// Changes that others make, the path that conflicts, and a part of the reason.
type Case = (fn(&Workbench), &'static str, &'static str);

const CASES: [Case; 14] = [
    (|b| fs::write(b.at("changed"), "ours\n").unwrap(), "changed", "it was changed meanwhile"),
    (|b| fs::remove_file(b.at("changed")).unwrap(), "changed", "it was removed meanwhile"),
    (|b| replace(&b.at("changed"), |at| fs::create_dir(at).unwrap()), "changed", "a folder now"),
    (|b| replace(&b.at("changed"), |at| symlink("gone", at).unwrap()), "changed", "a link now"),
    (|b| fs::write(b.at("gone"), "ours\n").unwrap(), "gone", "it was changed meanwhile"),
    (|b| fs::write(b.at("added"), "ours\n").unwrap(), "added", "it was made meanwhile"),
    (|b| replace(&b.at("link"), |at| symlink("gone", at).unwrap()), "link", "it was changed"),
    (|b| replace(&b.at("link"), |at| fs::write(at, "").unwrap()), "link", "it is a file now"),
    (|b| chmod(&b.at("mode"), 0o600), "mode", "its permissions were changed"),
    (|b| fs::write(b.at("mode"), "ours\n").unwrap(), "mode", "it was changed meanwhile"),
    (|b| fs::write(b.at("src/deep/c.rs"), "ours\n").unwrap(), "src/deep", "a folder with entries"),
    (|b| fs::write(b.at("src/deep/b.rs"), "ours\n").unwrap(), "src/deep/b.rs", "it was changed"),
    (
        |b| {
            fs::rename(b.at("src"), b.at("moved")).unwrap();
            symlink("moved", b.at("src")).unwrap();
        },
        "src/deep",
        "a folder of its path is a link",
    ),
    (
        |b| b.edit_change("w1", "changed", |change| change["base"] = "unknown".into()),
        "changed",
        "nobody knows",
    ),
];

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Promise: If an entry is not as the worker found it, nothing is applied, and all conflicts are
/// listed.
#[test]
fn a_conflict_of_any_kind_prevents_all_changes() {
    for (change, path, reason) in CASES {
        let bench = bench();
        change(&bench);
        let before = bench.tree();
        let conflict = format!("swarmletfs: conflict: {path}: ");
        for arguments in [&["apply", "w1", "--yes"][..], &["apply", "w1", "--dry-run"]] {
            let done = bench.run(arguments);
            done.assert_failure(1, &[&conflict, reason, "nothing was changed"]);
        }
        assert_eq!(bench.tree(), before, "{path}: {reason}");
        assert!(!bench.worker_folder("w1").join("applied").exists(), "{path}: {reason}");
    }
}

#[test]
fn all_conflicts_are_listed() {
    let bench = bench();
    for name in ["added", "changed", "gone"] {
        fs::write(bench.at(name), "ours\n").unwrap();
    }
    bench.run(&["apply", "w1", "--yes"]).assert_failure(
        1,
        &[
            "conflict: added:",
            "conflict: changed:",
            "conflict: gone:",
            ": 3 conflicts,",
            "versions are in",
            "w1/changes",
            "--interactive",
        ],
    );
}

/// Promise: A change that the workspace has already is skipped.
#[test]
fn a_change_that_is_there_already_is_skipped() {
    let (_, new) = trees();
    let bench = bench();
    fs::write(bench.at("changed"), "new\n").unwrap();
    fs::remove_file(bench.at("gone")).unwrap();
    bench.edit_change("w1", "changed", |change| change["base"] = "unknown".into());
    let applied = bench.run(&["apply", "w1", "--yes"]);
    assert!(applied.assert_success().err.contains("(2 changes had been made already)"));
    assert_eq!(bench.tree(), new);
}

#[test]
fn permissions_that_the_worker_did_not_change_stay() {
    let bench = bench();
    chmod(&bench.at("changed"), 0o600);
    bench.run(&["apply", "w1", "--yes"]).assert_success();
    let changed = Node::File { mode: 0o600, bytes: b"new\n".into() };
    assert_eq!(Node::read(&bench.at("changed")), changed);
    bench.run(&["undo", "w1", "--yes"]).assert_success();
    let changed = Node::File { mode: 0o600, bytes: b"old\n".into() };
    assert_eq!(Node::read(&bench.at("changed")), changed);
}

/// Promise: A file that is replaced keeps its ACL and its extended attributes.
#[test]
fn acl_and_extended_attributes_of_a_replaced_file_stay() {
    let bench = bench();
    let path = bench.at("changed");
    // The owner may read and write, the user 1234 and the group may read, others nothing.
    let entries = [(0x01, 6, u32::MAX), (0x02, 4, 1234), (0x04, 4, u32::MAX), (0x10, 4, u32::MAX)];
    let entries = entries.into_iter().chain([(0x20_u16, 0_u16, u32::MAX)]);
    let entry = |(tag, rights, id): (u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let acl = [2_u32.to_le_bytes().to_vec(), entries.flat_map(entry).collect()].concat();
    let attributes = [("system.posix_acl_access", &acl[..]), ("user.note", b"mine")];
    for (name, value) in attributes {
        match setxattr(&path, name, value, XattrFlags::empty()) {
            Err(Errno::OPNOTSUPP) => return skip("the file system has no such attributes"),
            set => set.unwrap(),
        }
    }
    bench.edit_change("w1", "changed", |change| change["old"]["mode"] = "0640".into());
    bench.edit_change("w1", "changed", |change| change["new"]["mode"] = "0640".into());
    let read = |name: &str| {
        let mut value = vec![0; 256];
        let length = getxattr(&path, name, value.as_mut_slice());
        length.map(|length| value[..length].to_vec())
    };
    for command in ["apply", "undo"] {
        bench.run(&[command, "w1", "--yes"]).assert_success();
        let content = if command == "apply" { b"new\n" } else { b"old\n" };
        assert_eq!(fs::read(&path).unwrap(), content);
        for (name, value) in attributes {
            assert_eq!(read(name).as_deref(), Ok(value), "{command}: {name}");
        }
    }
}

#[test]
fn a_removed_folder_stays_if_others_have_entries_in_it() {
    let old = folder([("src", folder([("a.rs", file("a\n"))]))]);
    let bench = Workbench::new(&old);
    bench.worker("w1", &old, &folder([]));
    fs::write(bench.at("src/ours"), "").unwrap();
    let applied = bench.run(&["apply", "w1", "--yes"]);
    assert!(applied.assert_success().err.contains("the folder src stays"), "{applied:#?}");
    assert_eq!(bench.tree(), folder([("src", folder([("ours", file(""))]))]));
    bench.run(&["undo", "w1", "--yes"]).assert_success();
    assert_eq!(
        bench.tree(),
        folder([("src", folder([("a.rs", file("a\n")), ("ours", file(""))]))])
    );
}

/// Promise: Undoing changes nothing if an entry is not as it was applied.
#[test]
fn what_changed_since_it_was_applied_is_not_taken_back() {
    let bench = bench();
    bench.run(&["apply", "w1", "--yes"]).assert_success();
    fs::write(bench.at("added"), "mine\n").unwrap();
    fs::remove_file(bench.at("changed")).unwrap();
    let before = bench.tree();
    bench.run(&["undo", "w1", "--yes"]).assert_failure(
        1,
        &["conflict: added: it was changed meanwhile", "conflict: changed: it was removed"],
    );
    assert_eq!(bench.tree(), before);
}
