//! R5: ways out of one owner's folders into another's files, at every place a reader looks: hard links, symbolic
//! links and bind mounts of single files. None widens a view.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use rustix::io::Errno;
use serde_json::{Value, json};
use swarmletfs::catalog::{Freshness, Source};
use swarmletfs::tree::{Settings, Tree};
use swarmletfs::view::{Filter, View};

use super::{CANARY, holds_canary};
use crate::cli::program::{Bound, is_root};
use crate::needs_fuse;
use crate::support::seen::names;
use crate::support::{Mount, Seen, TestStore, see};

/// Under this name an output is stored out of band.
const ARTIFACT: &str = "0123456789abcdef0123456789abcdef";

/// Where a reader of owner A's workers looks, which of B's files is brought there, and under what name it would be
/// seen; none where only what is generated would tell.
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
enum Way {
    HardLink,
    SymbolicLink,
    BindMount,
}
use Way::{BindMount, HardLink, SymbolicLink};

/// A's workers beside B's, whose files hold the canary in every form that a reader understands.
struct Ground {
    store: TestStore,
    _bound: Vec<Bound>,
}

impl Ground {
    fn new() -> Ground {
        let store = TestStore::new();
        let of_a = json!({"owner_id": "A", "status": "completed"}).to_string();
        for id in ["workers/thief", "workers/loose", "bare"] {
            store.write(format!("{id}/metadata.json"), &of_a);
        }
        store.call("thief", 1, "sh", format!("[TOOL_OUTPUT:artifact_id={ARTIFACT},tool=sh,bytes=23]"));
        store.worker("victim", json!({"owner_id": "B"}));
        let line = json!({"role": "assistant", "content": CANARY}).to_string();
        let entry = |id: &str| json!({"worker_id": id, "task": CANARY, "config": {"owner_id": "A"}});
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
        Ground { store, _bound: Vec::new() }
    }

    /// Brings one of B's files to a place of A's. Says whether that could be done.
    fn plant(&mut self, way: Way, place: &str, loot: &str) -> bool {
        let (from, to) = (self.store.at(format!("workers/victim/{loot}")), self.store.at(place));
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        match way {
            HardLink => fs::hard_link(from, to).unwrap(),
            SymbolicLink => symlink(from, to).unwrap(),
            BindMount => {
                fs::write(&to, "").unwrap();
                let Some(bound) = Bound::new(&from, &to) else { return false };
                self._bound.push(bound);
            }
        }
        // An output stored out of band is its text and its description: what is not planted is A's own.
        let other = place.strip_suffix(".txt").filter(|place| place.starts_with("tool_outputs/"));
        if let Some(description) = other.map(|place| self.store.at(format!("{place}.json"))) {
            fs::write(description, json!({"owner_id": "A"}).to_string()).unwrap();
        }
        if place.starts_with("tool_outputs/") && place.ends_with(".json") {
            self.store.write(place.replace(".json", ".txt"), CANARY);
        }
        true
    }

    /// The tree of owner A where hard links are admitted.
    fn admitting(&self) -> Tree {
        let source = Source::open(&self.store.path()).unwrap().allowing_hard_links();
        let filter = Filter { owner: Some("A".into()), run: None };
        Tree::new(View::over(vec![source], Freshness::default(), filter).unwrap(), Settings::default())
    }
}

/// Where a place is in the mount.
fn in_mount(place: &str, name: &str) -> String {
    let worker = place.trim_start_matches("workers/").split('/').next().unwrap();
    format!("workers/{worker}/{name}")
}

/// Whether the canary is in anything that is listed or asked, B's own worker aside.
fn shows_canary(tree: &Tree) -> bool {
    let mut open: Vec<Vec<u8>> = vec![Vec::new()];
    while let Some(folder) = open.pop() {
        let mut inside = names(tree, &folder).unwrap();
        if inside.iter().any(|name| name == b"evidence.txt") {
            inside.push(b"evidence.4k.txt".to_vec());
        }
        for name in inside.iter().filter(|name| *name != b"victim") {
            let path = if folder.is_empty() { name.clone() } else { [&folder, &b"/"[..], name].concat() };
            match see(tree, &path) {
                Ok(Seen::Folder { .. }) => open.push(path),
                Ok(Seen::File { bytes, .. } | Seen::Link(bytes)) if holds_canary(&bytes) => return true,
                // What is mounted on a file is listed by the file's name, and is not there.
                Ok(_) | Err(_) => {}
            }
        }
    }
    false
}

#[test]
fn no_way_into_another_owners_files_is_taken_at_any_place() {
    for way in [HardLink, SymbolicLink, BindMount] {
        for (place, loot, name) in PLACES {
            let mut ground = Ground::new();
            if !ground.plant(way, place, loot) {
                return;
            }
            let case = format!("{way:?} at {place}");
            let at_source = fs::read(ground.store.at(place)).unwrap();
            assert!(holds_canary(&at_source) || loot == "description.json", "{case}: the control");
            let tree = ground.store.tree_of_owner("A");
            assert!(!shows_canary(&tree), "{case}");
            if let Some(name) = name {
                let error = see(&tree, in_mount(place, name)).unwrap_err();
                assert_eq!(error.errno(), Errno::NOENT, "{case}: {error:?}");
            }
            // The control: whoever sees everything does see a hard link, and so does an owner if they are admitted.
            let seen_by_all = shows_canary(&ground.store.tree());
            assert_eq!(seen_by_all, way == HardLink, "{case}: in the view of everything");
            assert_eq!(shows_canary(&ground.admitting()), way == HardLink, "{case}: with hard links admitted");
        }
    }
}

#[test]
fn no_way_into_another_owners_files_is_taken_through_a_mount() {
    needs_fuse!();
    for way in [HardLink, SymbolicLink, BindMount] {
        let mut ground = Ground::new();
        for (place, loot, _) in PLACES.iter().filter(|(place, ..)| !place.ends_with(&format!("{ARTIFACT}.json"))) {
            if !ground.plant(way, place, loot) {
                return;
            }
        }
        let mut mount = Mount::with(&ground.store.path(), &["--owner", "A"]);
        mount.expect_warning("lookup: a link or a way out of the store");
        let out = mount.shell(r#"cd "$M" && ls -R . && find . -type f -exec cat {} +; cat workers/*/evidence.4k.txt"#);
        assert!(out.stdout.len() > 1_000 && !holds_canary(&out.stdout), "{way:?}: {}", out.stdout.escape_ascii());
        for (place, _, name) in PLACES {
            let Some(path) = name.map(|name| in_mount(place, name)) else { continue };
            let error = fs::symlink_metadata(mount.at(&path)).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(Errno::NOENT.raw_os_error()), "{way:?}: {path}");
        }
        for absent in ["workers/victim", "workers/third"] {
            assert!(!mount.at(absent).exists(), "{way:?}: {absent}");
        }
        let index: Value = serde_json::from_slice(&mount.read("workers/thief/index.json")).unwrap();
        let check = index["checks"].as_array().unwrap().iter().find(|check| check["name"] == "not_shown").unwrap();
        let counted = if way == BindMount { "0 links, 7 special" } else { "7 links, 0 special" };
        assert!(check["says"].as_str().unwrap().contains(counted), "{way:?}: {check}");
    }
}

#[test]
fn a_folder_of_another_owner_bound_into_ones_own_is_not_entered() {
    if !is_root() {
        return;
    }
    for place in ["workers/thief/inside", "workers/thief/tool_calls", "workers/bound", "bound"] {
        let ground = Ground::new();
        fs::write(ground.store.at("workers/victim/001_sh.txt"), CANARY).unwrap();
        // The folder says it is A's: it is where it lies that counts.
        fs::write(ground.store.at("workers/victim/metadata.json"), json!({"owner_id": "A"}).to_string()).unwrap();
        let victim: PathBuf = ground.store.path().parent().unwrap().join("victim");
        fs::rename(ground.store.at("workers/victim"), &victim).unwrap();
        fs::create_dir_all(ground.store.at(place)).unwrap();
        let Some(_bound) = Bound::new(&victim, &ground.store.at(place)) else { return };
        assert!(holds_canary(&fs::read(ground.store.at(place).join("001_sh.txt")).unwrap()), "{place}: the control");
        for tree in [ground.store.tree_of_owner("A"), ground.store.tree(), ground.admitting()] {
            assert!(!shows_canary(&tree), "{place}");
            for name in ["", "/secret.txt", "/001_sh.txt"] {
                let path = in_mount(place, place.rsplit_once("thief/").map_or("", |(_, inner)| inner)) + name;
                assert_eq!(see(&tree, &path).unwrap_err().errno(), Errno::NOENT, "{path}");
            }
        }
    }
}

#[test]
fn control_the_walk_finds_the_canary_where_it_is_shown() {
    let ground = Ground::new();
    assert!(!shows_canary(&ground.store.tree()));
    ground.store.write("workers/thief/a/b/c", CANARY);
    assert!(shows_canary(&ground.store.tree_of_owner("A")));
}
