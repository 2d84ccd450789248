//! R2: a planted link is counted, but neither followed nor shown, wherever it lies and wherever it
//! leads.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use serde_json::{Value, json};
use swarmletfs_base::model::SkipReason;
use swarmletfs_tree::catalog::{Source, SourceError};
use swarmletfs_tree::tree::Tree;

use super::{CANARY, holds_canary, make_fifo, walk};
use crate::cli::program::Bound;
use crate::needs_fuse;
use crate::support::{Mount, Seen, TestStore, see, see_folder};

/// The ID of an out-of-band output.
const ARTIFACT: &str = "0123456789abcdef0123456789abcdef";

/// A file of another owner that legitimately holds the canary.
const SECRET: &str = "workers/other/secret.txt";

/// A store with planted links, and the files outside that the attacker wants.
struct Planted {
    store: TestStore,
    /// Paths of links in the mount. None may exist there.
    links: Vec<String>,
    /// Files in the store through which links lead to the canary.
    reached: Vec<PathBuf>,
    _open: fs::File,
}

/// Creates a directory outside that looks like anything a reader expects.
fn outside(store: &TestStore) -> PathBuf {
    let folder = store.path().parent().unwrap().join("outside");
    let write = |path: &str, text: String| {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("canary.txt", CANARY.into());
    let metadata = json!({"worker_id": "x", "owner_id": "A", "task": CANARY, "status": CANARY, "tags": [CANARY]});
    for worker in ["worker", "workers/inner"] {
        write(&format!("{worker}/metadata.json"), metadata.to_string());
        write(&format!("{worker}/result.txt"), CANARY.into());
        write(&format!("{worker}/tool_calls/001_sh.txt"), CANARY.into());
    }
    write(
        "lines.jsonl",
        json!({"role": "assistant", "content": CANARY, "tool": CANARY}).to_string(),
    );
    write("tools.json", json!([CANARY]).to_string());
    write(
        "index.json",
        json!([{"worker_id": "w1", "summary": CANARY, "tags": [CANARY]}]).to_string(),
    );
    write(
        &format!("outputs/A/{ARTIFACT}.json"),
        json!({"artifact_id": ARTIFACT, "owner_id": "A"}).to_string(),
    );
    write(&format!("outputs/A/{ARTIFACT}.txt"), CANARY.into());
    make_fifo(&folder.join("pipe"));
    folder
}

fn stub() -> String {
    format!("[TOOL_OUTPUT:artifact_id={ARTIFACT},tool=sh,bytes=23]")
}

/// Plants every kind of link, in and around the worker `w1` of owner A.
fn planted() -> Planted {
    let store = TestStore::new();
    let outside = outside(&store);
    let canary = outside.join("canary.txt");
    let open = fs::File::open(&canary).unwrap();
    store.worker("w1", json!({"owner_id": "A"})).call("w1", 1, "sh", "{\"ok\": true}");
    store.worker("w2", json!({"owner_id": "A"}));
    store.worker("other", json!({"owner_id": "B"}));
    store.write(SECRET, CANARY);
    let mut planted = Planted { store, links: Vec::new(), reached: Vec::new(), _open: open };
    let mut plant = |link: &str, target: &Path, then: Option<&str>| {
        let path = planted.store.at(link);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, &path).unwrap();
        planted.links.push(link.to_owned());
        planted
            .reached
            .extend(then.map(|then| if then.is_empty() { path.clone() } else { path.join(then) }));
    };
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    plant("workers/w1/absolute", &canary, Some(""));
    plant("workers/w1/relative", Path::new("../../../outside/canary.txt"), Some(""));
    plant(
        "workers/w1/dots",
        Path::new("./../w1/../../workers/../../outside/./canary.txt"),
        Some(""),
    );
    plant(
        "workers/w1/proc-root",
        Path::new(&format!("/proc/self/root{}", text(&canary))),
        Some(""),
    );
    plant(
        "workers/w1/proc-cwd",
        Path::new(&format!("/proc/self/cwd{}", "/..".repeat(30) + &text(&canary))),
        Some(""),
    );
    plant(
        "workers/w1/proc-fd",
        Path::new(&format!("/proc/self/fd/{}", planted._open.as_raw_fd())),
        Some(""),
    );
    for fd in 3..12 {
        plant(&format!("workers/w1/proc-fd-{fd}"), Path::new(&format!("/proc/self/fd/{fd}")), None);
    }
    plant("workers/w1/other-worker", Path::new("../other/secret.txt"), Some(""));
    plant("workers/w1/dangling", Path::new("/nowhere/at/all"), None);
    plant("workers/w1/pipe", &outside.join("pipe"), None);
    plant("workers/w1/parent", &outside, Some("canary.txt"));
    plant("workers/w1/deep/er/parent", &outside, Some("canary.txt"));
    plant("workers/w1/loop-a", Path::new("loop-b"), None);
    plant("workers/w1/loop-b", Path::new("loop-a"), None);
    for step in 0..41 {
        plant(&format!("workers/w1/chain/{step}"), Path::new(&(step + 1).to_string()), None);
    }
    plant("workers/w1/chain/41", &canary, Some(""));
    plant("workers/w1/tool_calls/002_link.txt", &canary, Some(""));
    // Names that the reader opens.
    plant("workers/w2/result.txt", &canary, Some(""));
    plant("workers/w2/task.txt", &canary, Some(""));
    plant("workers/w2/thread.jsonl", &outside.join("lines.jsonl"), Some(""));
    plant("workers/w2/metrics.jsonl", &outside.join("lines.jsonl"), Some(""));
    plant("workers/w2/tools_used.json", &outside.join("tools.json"), Some(""));
    plant("workers/w2/logs", &outside, Some("canary.txt"));
    plant("workers/w2/tool_calls", &outside.join("worker/tool_calls"), Some("001_sh.txt"));
    plant("workers/w3/metadata.json", &outside.join("worker/metadata.json"), Some(""));
    plant("workers/whole", &outside.join("worker"), Some("metadata.json"));
    plant("bare", &outside.join("worker"), Some("metadata.json"));
    plant("supervisor", &outside, Some("canary.txt"));
    plant("index.json", &outside.join("index.json"), Some(""));
    plant("workers/index.json", &outside.join("index.json"), Some(""));
    planted
}

/// Returns true if the mount generates a file with the name of the link.
fn is_generated(link: &str) -> bool {
    matches!(link, "index.json" | "workers/index.json" | "bare")
}

fn json_of(tree: &Tree, path: &str) -> Value {
    serde_json::from_slice(see(tree, path).unwrap().bytes()).unwrap()
}

fn not_shown(index: &Value) -> String {
    let checks = index["checks"].as_array().unwrap();
    let found = checks.iter().find(|check| check["name"] == "not_shown");
    found.map(|check| check["says"].as_str().unwrap().to_owned()).unwrap_or_default()
}

#[track_caller]
fn check_no_canary(tree: &Tree) {
    for (path, seen) in see_folder(tree, "").unwrap() {
        if path == SECRET.as_bytes() {
            continue;
        }
        let bytes = match &seen {
            Seen::File { bytes, .. } | Seen::Link(bytes) => bytes.as_slice(),
            Seen::Folder { .. } => continue,
        };
        assert!(!holds_canary(bytes), "{} holds the canary", path.escape_ascii());
    }
}

/// Promise: A symlink that a worker planted is neither followed nor shown, and all are counted.
#[test]
fn planted_symlinks_are_hidden_and_counted() {
    let planted = planted();
    for tree in [planted.store.tree(), planted.store.tree_of_owner("A")] {
        check_no_canary(&tree);
        let all = see_folder(&tree, "").unwrap();
        for link in planted.links.iter().filter(|link| !is_generated(link)) {
            assert!(!all.contains_key(link.as_bytes()), "{link} is listed");
            for path in [
                link.clone(),
                format!("{link}/canary.txt"),
                format!("{link}/tool_calls/001_sh.txt"),
            ] {
                let error = see(&tree, &path).unwrap_err();
                assert_eq!(error.errno(), Errno::NOENT, "{path}: {error:?}");
            }
        }
    }
    let tree = planted.store.tree();
    let in_folder = |id: &str| {
        planted.links.iter().filter(|link| link.starts_with(&format!("workers/{id}/"))).count()
    };
    for id in ["w1", "w2", "w3"] {
        let says = not_shown(&json_of(&tree, &format!("workers/{id}/index.json")));
        assert!(
            says.contains(&format!(": {} link", in_folder(id))) && says.contains(", 0 special"),
            "{id}: {says}"
        );
    }
    // `whole`, `bare`, `supervisor` and both index files, which lie in the store's own directories.
    assert_eq!(json_of(&tree, "index.json")["skipped"]["links"], 5);
    let unread = json_of(&tree, "workers/w1/index.json")["tool_calls"][1]["unreadable"].clone();
    assert_eq!(unread, "a link, which is not read");
}

#[test]
fn no_planted_link_is_followed_or_shown_through_a_mount() {
    needs_fuse!();
    let planted = planted();
    let mut mount = Mount::new(&planted.store.path());
    mount.expect_warning("lookup: a link or a path out of the store");
    let all = walk(&mount.path());
    for (path, bytes) in all.iter().filter(|(path, _)| path.as_slice() != SECRET.as_bytes()) {
        assert!(
            !holds_canary(path) && !holds_canary(bytes),
            "{} holds the canary",
            path.escape_ascii()
        );
    }
    for link in planted.links.iter().filter(|link| !is_generated(link)) {
        assert!(!all.contains_key(link.as_bytes()), "{link} is listed");
        let error = fs::symlink_metadata(mount.at(link)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::NOENT.raw_os_error()), "{link}: {error}");
        let error = fs::read(mount.at(&format!("{link}/canary.txt"))).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::NOENT.raw_os_error()), "{link}: {error}");
    }
    let index: Value = serde_json::from_slice(&mount.read("index.json")).unwrap();
    assert_eq!(index["skipped"]["links"], 5);
}

#[test]
fn control_following_links_reaches_the_canary() {
    let planted = planted();
    assert!(planted.reached.len() >= 20);
    for path in &planted.reached {
        assert!(holds_canary(&fs::read(path).unwrap()), "{path:?} does not lead to the canary");
    }
    let error = fs::read(planted.store.at("workers/w1/chain/0")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::LOOP.raw_os_error()));
}

/// Promise: A symlink in place of a worker's directory is not a worker.
#[test]
fn symlink_in_place_of_a_worker_directory_is_no_worker() {
    let store = TestStore::new();
    let outside = outside(&store);
    symlink(outside.join("workers"), store.at("workers")).unwrap();
    assert!(
        holds_canary(&fs::read(store.at("workers/inner/metadata.json")).unwrap()),
        "the control"
    );
    // With nothing else in it, the directory is not a store.
    let Err(SourceError::NoWorkers { skipped: passed, .. }) = Source::open(&store.path()) else {
        panic!("it is a store")
    };
    assert_eq!(passed.entries(SkipReason::Link).count, 1);
    store.write("beside/metadata.json", json!({"owner_id": "A"}).to_string());
    for tree in [store.tree(), store.tree_of_owner("A")] {
        check_no_canary(&tree);
        assert_eq!(see(&tree, "workers/inner").unwrap_err().errno(), Errno::NOENT);
    }
    assert_eq!(json_of(&store.tree(), "index.json")["skipped"]["links"], 1);
    assert_eq!(json_of(&store.tree(), "index.json")["total_workers"], 1);
}

/// Promise: A foreign mount inside the store is not entered, and is counted.
#[test]
fn foreign_mount_in_the_store_is_skipped_and_counted() {
    for inside in ["workers/w1/outputs", "workers/mounted", "bare", "workers"] {
        let (store, elsewhere) = (TestStore::new(), TestStore::new());
        let outside = outside(&elsewhere);
        store.worker("w1", json!({"owner_id": "A"}));
        store.write("plain/metadata.json", json!({"owner_id": "A"}).to_string());
        fs::create_dir_all(store.at(inside)).unwrap();
        // The mounted directory is a worker, contains a worker, and holds the canary.
        fs::rename(outside.join("workers/inner"), outside.join("worker/inner")).unwrap();
        let Some(_bound) = Bound::new(&outside.join("worker"), &store.at(inside)) else { return };
        assert!(
            holds_canary(&fs::read(store.at(format!("{inside}/result.txt"))).unwrap()),
            "the control"
        );
        for tree in [store.tree(), store.tree_of_owner("A")] {
            for path in ["", "/result.txt", "/inner", "/inner/result.txt"] {
                let error = see(&tree, format!("workers/w1/outputs{path}")).unwrap_err();
                assert_eq!(error.errno(), Errno::NOENT, "{inside}: {path}");
            }
            for worker in ["mounted", "bare", "inner", "worker"] {
                let error = see(&tree, format!("workers/{worker}/result.txt")).unwrap_err();
                assert_eq!(error.errno(), Errno::NOENT, "{inside}: {worker}");
            }
            for name in ["summary", "index.json", "evidence.txt"] {
                assert!(!holds_canary(see(&tree, name).unwrap().bytes()), "{inside}: {name}");
            }
        }
        let tree = store.tree();
        if inside.ends_with("outputs") {
            let says = not_shown(&json_of(&tree, "workers/w1/index.json"));
            assert!(says.contains("1 special"), "{says}");
        } else {
            assert_eq!(json_of(&tree, "index.json")["skipped"]["special"], 1, "{inside}");
        }
    }
}

/// Creates a store with one call whose output is out of band. Returns it with the output's path.
fn store_with_out_of_band_output() -> (TestStore, PathBuf) {
    let store = TestStore::new();
    let outside = outside(&store);
    store.worker("w1", json!({"owner_id": "A"})).call("w1", 1, "sh", stub());
    (store, outside.join("outputs"))
}

/// Promise: A symlink in place of the directory of stored outputs is not followed.
#[test]
fn symlink_in_place_of_stored_outputs_is_not_followed() {
    let at: [fn(&TestStore) -> PathBuf; 4] = [
        |store| store.at("tool_outputs"),
        |store| store.path().parent().unwrap().join("tool_outputs"),
        |store| store.at("tool_outputs/A"),
        |store| store.at(format!("tool_outputs/A/{ARTIFACT}.txt")),
    ];
    for (kind, at) in at.iter().enumerate() {
        let (store, outputs) = store_with_out_of_band_output();
        let (link, target) = match kind {
            0 | 1 => (at(&store), outputs.clone()),
            2 => (at(&store), outputs.join("A")),
            _ => {
                let description = json!({"artifact_id": ARTIFACT, "owner_id": "A"}).to_string();
                store.write(format!("tool_outputs/A/{ARTIFACT}.json"), description);
                (at(&store), outputs.join(format!("A/{ARTIFACT}.txt")))
            }
        };
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        symlink(target, &link).unwrap();
        for tree in [store.tree(), store.tree_of_owner("A")] {
            check_no_canary(&tree);
            let index = json_of(&tree, "workers/w1/index.json");
            assert_eq!(index["tool_calls"][0]["unreadable"], "stored out of band", "{link:?}");
        }
    }
}

#[test]
fn control_out_of_band_outputs_in_a_real_folder_are_shown() {
    for beside in [false, true] {
        let (store, outputs) = store_with_out_of_band_output();
        let folder =
            if beside { store.path().parent().unwrap().to_path_buf() } else { store.path() };
        fs::rename(outputs, folder.join("tool_outputs")).unwrap();
        let tree = store.tree_of_owner("A");
        assert!(holds_canary(see(&tree, "workers/w1/evidence.txt").unwrap().bytes()));
    }
}
