//! Hard links as users of `--owner` meet them: the effect of a new link to a file while it is
//! mounted, its reporting, and how links are allowed.

use std::fs::{self, File, hard_link};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use serde_json::{Value, json};

use super::{CANARY, holds_canary, walk};
use crate::cli::program::{MountSandbox, is_root, mount, run, swarmletfs, umount};
use crate::mount::eventually;
use crate::needs_fuse;
use crate::support::user::as_user;
use crate::support::{Mount, TestStore};

/// The log text of a lookup that met a hard link.
const REFUSED: &str = "lookup: a link or a path out of the store";

fn store() -> TestStore {
    let store = TestStore::new();
    store.worker("w", json!({"owner_id": "A", "status": "running"}));
    store.call("w", 1, "sh", "first output\n").call("w", 2, "sh", "Error: second output\n");
    store.write("workers/w/notes.txt", "notes\n");
    store
}

fn outside(store: &TestStore) -> std::path::PathBuf {
    store.path().parent().unwrap().join("another")
}

fn check(mount: &Mount, name: &str) -> Option<String> {
    let index: Value = serde_json::from_slice(&mount.read("workers/w/index.json")).unwrap();
    let found =
        index["checks"].as_array().unwrap().iter().find(|check| check["name"] == name).cloned();
    found.map(|check| check["says"].as_str().unwrap().to_owned())
}

#[test]
fn a_hard_linked_file_disappears_until_the_link_is_removed() {
    needs_fuse!();
    let store = store();
    let mut mount = Mount::with(&store.path(), &["--owner", "A"]);
    mount.expect_warning(REFUSED);
    let held = File::open(mount.at("workers/w/notes.txt")).unwrap();
    for turn in 0..2 {
        assert_eq!(mount.text("workers/w/notes.txt"), "notes\n");
        assert_eq!(check(&mount, "not_shown"), None);
        hard_link(store.at("workers/w/notes.txt"), outside(&store)).unwrap();
        eventually("the file's absence", || {
            fs::symlink_metadata(mount.at("workers/w/notes.txt")).is_err().then_some(())
        });
        eventually("its absence in the list", || {
            (!mount.list("workers/w").contains(&"notes.txt".into())).then_some(())
        });
        let says = eventually("word of it", || check(&mount, "not_shown"));
        assert!(says.contains(": 1 link, 0 special"), "{says}");
        // A descriptor opened earlier stays readable.
        let mut buffer = [0; 6];
        held.read_exact_at(&mut buffer, 0).unwrap();
        assert_eq!(&buffer, b"notes\n", "turn {turn}");
        fs::remove_file(outside(&store)).unwrap();
        eventually("the file again", || fs::read(mount.at("workers/w/notes.txt")).ok());
        eventually("the file in the list", || {
            mount.list("workers/w").contains(&"notes.txt".into()).then_some(())
        });
        eventually("no word of it", || check(&mount, "not_shown").is_none().then_some(()));
    }
}

#[test]
fn a_hard_linked_output_is_named_but_not_quoted() {
    needs_fuse!();
    let store = store();
    let mount = Mount::with(&store.path(), &["--owner", "A"]);
    assert!(mount.text("workers/w/evidence.txt").contains("Error: second output"));
    hard_link(store.at("workers/w/tool_calls/002_sh.txt"), outside(&store)).unwrap();
    let evidence = eventually("evidence without the output", || {
        Some(mount.text("workers/w/evidence.txt")).filter(|text| !text.contains("second output"))
    });
    let section = "tool_calls/002_sh.txt (0 B, outcome unknown, not read)";
    assert!(
        evidence.contains(section) && evidence.contains("(a link, which is not read)"),
        "{evidence}"
    );
    assert!(evidence.contains("first output"), "{evidence}");
    assert_eq!(check(&mount, "unreadable_output").as_deref(), Some("a link, which is not read"));
    fs::remove_file(outside(&store)).unwrap();
    eventually("the output again", || {
        mount.text("workers/w/evidence.txt").contains("Error: second output").then_some(())
    });
}

#[test]
fn hard_linked_metadata_keeps_the_last_good_record_marked() {
    needs_fuse!();
    let store = store();
    let mount = Mount::with(&store.path(), &["--owner", "A"]);
    assert_eq!(mount.list("workers"), ["index.json", "w"]);
    hard_link(store.at("workers/w/metadata.json"), outside(&store)).unwrap();
    let says = eventually("word of it", || check(&mount, "bad_metadata"));
    assert!(says.contains("its earlier content is shown"), "{says}");
    // A new mount has read nothing before, so the worker has no owner.
    let later = Mount::with(&store.path(), &["--owner", "A"]);
    assert_eq!(later.list("workers"), ["index.json"]);
    assert_eq!(Mount::new(&store.path()).list("workers"), ["index.json", "w"]);
    fs::remove_file(outside(&store)).unwrap();
    eventually("metadata again", || check(&mount, "bad_metadata").is_none().then_some(()));
    eventually("the worker", || later.list("workers").contains(&"w".into()).then_some(()));
}

/// Promise: A file that is hard-linked from another owner's worker is hidden from both, and both
/// are warned.
///
/// Nothing tells which of two links is the original file.
#[test]
fn file_shared_by_two_owners_is_hidden_from_both() {
    needs_fuse!();
    let store = store();
    store.worker("v", json!({"owner_id": "B"}));
    let secret = store.write("workers/v/secret.txt", CANARY);
    hard_link(&secret, store.at("workers/w/loot.txt")).unwrap();
    for (owner, worker) in [("A", "w"), ("B", "v")] {
        let mount = Mount::with(&store.path(), &["--owner", owner]);
        assert!(!walk(&mount.path()).values().any(|bytes| holds_canary(bytes)), "{owner}");
        let summary = mount.text(&format!("workers/{worker}/summary"));
        assert!(
            summary.contains("in its folder but not shown: 1 link, 0 special"),
            "{owner}: {summary}"
        );
    }
    let whole = Mount::new(&store.path());
    assert_eq!(whole.text("workers/v/secret.txt"), CANARY);
    assert_eq!(whole.text("workers/w/loot.txt"), CANARY);
}

/// A link that remains as the only one looks like a file of its directory; the file's mode still
/// applies.
#[test]
fn a_surviving_hard_link_keeps_the_permissions_of_its_file() {
    needs_fuse!();
    if !is_root() {
        return;
    }
    const THIEF: u32 = 54_321;
    const VICTIM: u32 = 54_322;
    let store = store();
    store.worker("v", json!({"owner_id": "B"}));
    let secret = store.write("workers/v/secret.txt", CANARY);
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    chown(&secret, Some(VICTIM), Some(VICTIM)).unwrap();
    for path in ["", "workers", "workers/w", "workers/w/tool_calls"] {
        fs::set_permissions(store.at(path), fs::Permissions::from_mode(0o755)).unwrap();
    }
    chown(store.at("workers/w"), Some(THIEF), Some(THIEF)).unwrap();
    hard_link(&secret, store.at("workers/w/tool_calls/003_sh.txt")).unwrap();
    fs::remove_file(&secret).unwrap();
    let mount = Mount::with(&store.path(), &["--owner", "A", "--allow-other"]);
    let read = |uid: u32, name: &str| {
        let path = mount.at(&format!("workers/w/{name}"));
        as_user(uid, move || fs::read(path).map_err(|error| error.kind()))
    };
    for name in
        ["tool_calls/003_sh.txt", "evidence.txt", "summary", "index.json", "evidence.4k.txt"]
    {
        assert_eq!(read(THIEF, name), Err(std::io::ErrorKind::PermissionDenied), "{name}");
    }
    // Control: the thief can read his own files, and generated files contain the canary.
    assert_eq!(read(THIEF, "tool_calls/001_sh.txt").as_deref(), Ok(&b"first output\n"[..]));
    assert!(holds_canary(&mount.read("workers/w/evidence.txt")));
}

/// Promise: Hard links are shown if an option allows them, in each way to set that option.
#[test]
fn hard_links_are_shown_if_an_option_allows_them() {
    needs_fuse!();
    let store = store();
    for path in ["metadata.json", "notes.txt", "tool_calls/001_sh.txt"] {
        let other = store.path().parent().unwrap().join(path.replace('/', "-"));
        hard_link(store.at(format!("workers/w/{path}")), other).unwrap();
    }
    let sandbox = MountSandbox::new();
    for more in [
        &["--owner", "A", "--hard-links"][..],
        &["-o", "owner=A,hard_links"],
        &["--hard-links"],
        &[],
    ] {
        let point = sandbox.folder("mnt");
        mount(&store.path(), &point, more).assert_success();
        assert_eq!(fs::read(point.join("workers/w/notes.txt")).unwrap(), b"notes\n", "{more:?}");
        let evidence = fs::read_to_string(point.join("workers/w/evidence.txt")).unwrap();
        assert!(
            evidence.contains("first output") && evidence.contains("second output"),
            "{more:?}: {evidence}"
        );
        umount(&point, &[]).assert_success();
    }
    let point = sandbox.folder("mnt");
    let done = mount(&store.path(), &point, &["--owner", "A"]);
    assert!(done.assert_success().err.contains("0 workers"), "{done:?}");
    let help = run(swarmletfs(["mount", "--help"]));
    assert!(help.assert_success().out.contains("--hard-links"), "{help:?}");
}

/// Promise: The link count of a file is never disclosed.
#[test]
fn link_counts_are_not_disclosed() {
    needs_fuse!();
    let store = store();
    hard_link(store.at("workers/w/notes.txt"), outside(&store)).unwrap();
    for more in [&[][..], &["--owner", "A", "--hard-links"]] {
        let mount = Mount::with(&store.path(), more);
        for path in [
            "",
            "workers",
            "workers/w",
            "workers/w/notes.txt",
            "workers/w/tool_calls",
            "index.json",
        ] {
            assert_eq!(fs::metadata(mount.at(path)).unwrap().nlink(), 1, "{path}");
        }
    }
}

/// Not even a stat opens it: an open may wait for a lease or fetch the file from far away.
#[test]
fn a_hard_link_is_never_opened() {
    needs_fuse!();
    let store = store();
    for path in ["notes.txt", "tool_calls/001_sh.txt", "metadata.json"] {
        let other = store.path().parent().unwrap().join(path.replace('/', "-"));
        hard_link(store.at(format!("workers/w/{path}")), other).unwrap();
    }
    store.worker("x", json!({"owner_id": "A"})).call("x", 1, "sh", "fine\n");
    hard_link(store.at("workers/x/tool_calls/001_sh.txt"), store.at("workers/x/linked")).unwrap();
    let opened = |arguments: &[&str]| {
        let watch = inotify::init(CreateFlags::NONBLOCK).unwrap();
        for path in ["w/notes.txt", "w/tool_calls/001_sh.txt", "w/metadata.json", "x/linked"] {
            inotify::add_watch(&watch, store.at(format!("workers/{path}")), WatchFlags::OPEN)
                .unwrap();
        }
        let mut mount = Mount::with(&store.path(), arguments);
        mount.expect_warning(REFUSED);
        let paths = ["w/notes.txt", "w/metadata.json", "x/linked", "x/tool_calls/001_sh.txt"];
        let _ = paths.map(|path| fs::read(mount.at(&format!("workers/{path}"))));
        let out =
            mount.shell(r#"find "$M" -type f -exec cat {} + >/dev/null && ls -lR "$M" >/dev/null"#);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let mut buffer = [std::mem::MaybeUninit::uninit(); 4_096];
        inotify::Reader::new(&watch, &mut buffer).next().is_ok()
    };
    assert!(!opened(&["--owner", "A"]));
    assert!(opened(&["--owner", "A", "--hard-links"]), "the control");
}
