//! R5: hard links, symbolic links and bind mounts from one owner's directories to another's files,
//! at every place a reader opens. None widens a view.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use rustix::io::Errno;
use serde_json::{Value, json};
use swarmletfs_tree::catalog::{Freshness, Source};
use swarmletfs_tree::tree::{Settings, Tree};
use swarmletfs_tree::view::{Filter, View};

use super::{CANARY, holds_canary};
use crate::cli::program::{Bound, is_root};
use crate::needs_fuse;
use crate::support::seen::names;
use crate::support::{Mount, Seen, TestStore, see, some};

/// The ID of an out-of-band output.
const ARTIFACT: &str = "0123456789abcdef0123456789abcdef";

/// A path of owner A that a reader opens, the file of owner B brought there, and its name in the
/// mount; `None` if only generated files would reveal it.
const PLACES: [(&str, &str, Option<&str>); 18] = [
    ("workers/thief/loot.txt", "secret.txt", Some("loot.txt")),
    ("workers/thief/a/b/loot.txt", "secret.txt", Some("a/b/loot.txt")),
    ("workers/thief/summary", "secret.txt", Some("summary.own")),
    ("workers/thief/tool_calls/002_sh.txt", "secret.txt", Some("tool_calls/002_sh.txt")),
    ("workers/thief/result.txt", "secret.txt", Some("result.txt")),
    ("workers/thief/task.txt", "secret.txt", Some("task.txt")),
    ("workers/thief/thread.jsonl", "thread.jsonl", Some("thread.jsonl")),
    ("workers/loose/tools_used.json", "tools.json", Some("tools_used.json")),
    ("workers/loose/logs/errors.log", "secret.txt", Some("logs/errors.log")),
    ("workers/loose/logs/more.log", "secret.txt", Some("logs/more.log")),
    ("workers/loose/outputs/report.md", "secret.txt", Some("outputs/report.md")),
    ("workers/loose/outputs/data.json", "secret.txt", Some("outputs/data.json")),
    ("workers/third/metadata.json", "metadata-of-a.json", Some("metadata.json")),
    ("bare/result.txt", "secret.txt", Some("result.txt")),
    ("workers/index.json", "index.json", None),
    ("index.json", "index.json", None),
    ("tool_outputs/A/0123456789abcdef0123456789abcdef.txt", "secret.txt", None),
    ("tool_outputs/A/0123456789abcdef0123456789abcdef.json", "description.json", None),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LinkKind {
    HardLink,
    SymbolicLink,
    BindMount,
}
use LinkKind::{BindMount, HardLink, SymbolicLink};

/// Workers of owner A beside those of owner B, whose files hold the canary in every form that a
/// reader parses.
struct CrossingStore {
    store: TestStore,
    _bound: Vec<Bound>,
}

impl CrossingStore {
    fn new() -> CrossingStore {
        let store = TestStore::new();
        let of_a = json!({"owner_id": "A", "status": "completed"}).to_string();
        for id in ["workers/thief", "workers/loose", "bare"] {
            store.write(format!("{id}/metadata.json"), &of_a);
        }
        store.call(
            "thief",
            1,
            "sh",
            format!("[TOOL_OUTPUT:artifact_id={ARTIFACT},tool=sh,bytes=23]"),
        );
        store.worker("victim", json!({"owner_id": "B"}));
        let line = json!({"role": "assistant", "content": CANARY}).to_string();
        let entry =
            |id: &str| json!({"worker_id": id, "task": CANARY, "config": {"owner_id": "A"}});
        for (name, text) in [
            ("secret.txt", CANARY.to_owned()),
            ("thread.jsonl", line + "\n"),
            ("tools.json", json!([CANARY]).to_string()),
            ("metadata-of-a.json", json!({"owner_id": "A", "task": CANARY}).to_string()),
            ("index.json", json!([entry("thief"), entry("bare")]).to_string()),
            ("description.json", json!({"owner_id": "A"}).to_string()),
        ] {
            store.write(format!("workers/victim/{name}"), text);
        }
        CrossingStore { store, _bound: Vec::new() }
    }

    /// Brings one of B's files to a path of A's. Returns false if that is impossible.
    fn plant(&mut self, kind: LinkKind, place: &str, loot: &str) -> bool {
        let (from, to) = (self.store.at(format!("workers/victim/{loot}")), self.store.at(place));
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        match kind {
            HardLink => fs::hard_link(from, to).unwrap(),
            SymbolicLink => symlink(from, to).unwrap(),
            BindMount => {
                fs::write(&to, "").unwrap();
                let Some(bound) = Bound::new(&from, &to) else { return false };
                self._bound.push(bound);
            }
        }
        // An out-of-band output consists of its text and its description. The part that is not
        // planted is A's own.
        let other = place.strip_suffix(".txt").filter(|place| place.starts_with("tool_outputs/"));
        if let Some(description) = other.map(|place| self.store.at(format!("{place}.json"))) {
            fs::write(description, json!({"owner_id": "A"}).to_string()).unwrap();
        }
        if place.starts_with("tool_outputs/") && place.ends_with(".json") {
            self.store.write(place.replace(".json", ".txt"), CANARY);
        }
        true
    }

    /// Opens the tree of owner A with hard links allowed.
    fn tree_with_hard_links(&self) -> Tree {
        let source = Source::open(&self.store.path()).unwrap().allowing_hard_links();
        let filter = Filter { owner: Some("A".into()), run: None };
        Tree::new(
            View::new(vec![source], Freshness::default(), filter).unwrap(),
            Settings::default(),
        )
    }
}

/// Returns the path of a place in the mount.
fn mount_path(place: &str, name: &str) -> String {
    let worker = place.trim_start_matches("workers/").split('/').next().unwrap();
    format!("workers/{worker}/{name}")
}

/// Returns true if any listing or answer contains the canary, except B's own worker.
fn shows_canary(tree: &Tree) -> bool {
    let mut open: Vec<Vec<u8>> = vec![Vec::new()];
    while let Some(folder) = open.pop() {
        let mut inside = names(tree, &folder).unwrap();
        if inside.iter().any(|name| name == b"evidence.txt") {
            inside.push(b"evidence.4k.txt".to_vec());
        }
        for name in inside.iter().filter(|name| *name != b"victim") {
            let path =
                if folder.is_empty() { name.clone() } else { [&folder, &b"/"[..], name].concat() };
            match see(tree, &path) {
                Ok(Seen::Folder { .. }) => open.push(path),
                Ok(Seen::File { bytes, .. } | Seen::Link(bytes)) if holds_canary(&bytes) => {
                    return true;
                }
                // A mounted file is listed by its name but cannot be opened.
                Ok(_) | Err(_) => {}
            }
        }
    }
    false
}

/// Promise: No hard link, symlink or bind mount leads to another owner's files, wherever it is
/// planted.
#[test]
fn planted_links_and_bind_mounts_reach_no_foreign_file() {
    for way in [HardLink, SymbolicLink, BindMount] {
        for (place, loot, name) in some(PLACES) {
            let mut fixture = CrossingStore::new();
            if !fixture.plant(way, place, loot) {
                return;
            }
            let case = format!("{way:?} at {place}");
            let at_source = fs::read(fixture.store.at(place)).unwrap();
            assert!(holds_canary(&at_source) || loot == "description.json", "{case}: the control");
            let tree = fixture.store.tree_of_owner("A");
            assert!(!shows_canary(&tree), "{case}");
            if let Some(name) = name {
                let error = see(&tree, mount_path(place, name)).unwrap_err();
                assert_eq!(error.errno(), Errno::NOENT, "{case}: {error:?}");
            }
            // Control: an unrestricted view shows a hard link, and so does an owner's view if hard
            // links are allowed.
            let seen_by_all = shows_canary(&fixture.store.tree());
            assert_eq!(seen_by_all, way == HardLink, "{case}: in the view of everything");
            assert_eq!(
                shows_canary(&fixture.tree_with_hard_links()),
                way == HardLink,
                "{case}: with hard links admitted"
            );
        }
    }
}

/// Promise: No hard link, symlink or bind mount leads to another owner's files through a mount.
#[test]
fn planted_links_and_bind_mounts_reach_no_foreign_file_through_a_mount() {
    needs_fuse!();
    for way in [HardLink, SymbolicLink, BindMount] {
        let mut fixture = CrossingStore::new();
        for (place, loot, _) in
            PLACES.iter().filter(|(place, ..)| !place.ends_with(&format!("{ARTIFACT}.json")))
        {
            if !fixture.plant(way, place, loot) {
                return;
            }
        }
        let mut mount = Mount::with(&fixture.store.path(), &["--owner", "A"]);
        mount.expect_warning("lookup: a link or a path out of the store");
        let out = mount.shell(
            r#"cd "$M" && ls -R . && find . -type f -exec cat {} +; cat workers/*/evidence.4k.txt"#,
        );
        assert!(
            out.stdout.len() > 1_000 && !holds_canary(&out.stdout),
            "{way:?}: {}",
            out.stdout.escape_ascii()
        );
        for (place, _, name) in PLACES {
            let Some(path) = name.map(|name| mount_path(place, name)) else { continue };
            let error = fs::symlink_metadata(mount.at(&path)).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(Errno::NOENT.raw_os_error()), "{way:?}: {path}");
        }
        for absent in ["workers/victim", "workers/third"] {
            assert!(!mount.at(absent).exists(), "{way:?}: {absent}");
        }
        let index: Value = serde_json::from_slice(&mount.read("workers/thief/index.json")).unwrap();
        let check = index["checks"]
            .as_array()
            .unwrap()
            .iter()
            .find(|check| check["name"] == "not_shown")
            .unwrap();
        let counted = if way == BindMount { "0 links, 7 special" } else { "7 links, 0 special" };
        assert!(check["says"].as_str().unwrap().contains(counted), "{way:?}: {check}");
    }
}

#[test]
fn a_bind_mount_of_another_owners_folder_is_not_entered() {
    if !is_root() {
        return;
    }
    for place in ["workers/thief/inside", "workers/thief/tool_calls", "workers/bound", "bound"] {
        let fixture = CrossingStore::new();
        fs::write(fixture.store.at("workers/victim/001_sh.txt"), CANARY).unwrap();
        // The directory claims to be A's, but its location decides.
        fs::write(
            fixture.store.at("workers/victim/metadata.json"),
            json!({"owner_id": "A"}).to_string(),
        )
        .unwrap();
        let victim: PathBuf = fixture.store.path().parent().unwrap().join("victim");
        fs::rename(fixture.store.at("workers/victim"), &victim).unwrap();
        fs::create_dir_all(fixture.store.at(place)).unwrap();
        let Some(_bound) = Bound::new(&victim, &fixture.store.at(place)) else { return };
        assert!(
            holds_canary(&fs::read(fixture.store.at(place).join("001_sh.txt")).unwrap()),
            "{place}: the control"
        );
        for tree in
            [fixture.store.tree_of_owner("A"), fixture.store.tree(), fixture.tree_with_hard_links()]
        {
            assert!(!shows_canary(&tree), "{place}");
            for name in ["", "/secret.txt", "/001_sh.txt"] {
                let path =
                    mount_path(place, place.rsplit_once("thief/").map_or("", |(_, inner)| inner))
                        + name;
                assert_eq!(see(&tree, &path).unwrap_err().errno(), Errno::NOENT, "{path}");
            }
        }
    }
}

#[test]
fn control_walk_finds_a_visible_canary() {
    let fixture = CrossingStore::new();
    assert!(!shows_canary(&fixture.store.tree()));
    fixture.store.write("workers/thief/a/b/c", CANARY);
    assert!(shows_canary(&fixture.store.tree_of_owner("A")));
}
