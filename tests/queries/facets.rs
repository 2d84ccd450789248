//! `by/`: workers selected by shared values.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::json;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::{RelPath, to_file_name};
use swarmletfs_base::store::{Disk, File, Memory, Store};
use swarmletfs_tree::analysis::settings::DEADLINE;
use swarmletfs_tree::catalog::{Freshness, Source};
use swarmletfs_tree::tree::{ROOT, Settings, Symlinks, Tree};
use swarmletfs_tree::view::{Filter, View};

use super::{names, text};
use crate::needs_fuse;
use crate::support::fault_injection::{FaultInjector, FaultPlan};
use crate::support::intercept::{InterceptedStore, Interceptor};
use crate::support::open_counter::{OpenCounter, OpenLog};
use crate::support::{Mount, Seen, TestStore, see, seen};

/// Returns a store of four workers: `a` failed, `b` completed, `c` runs, and `d` has empty
/// metadata.
fn store() -> TestStore {
    let store = TestStore::new();
    let more = json!({"status": "failed", "task_type": "research", "tags": ["x", "y"], "job_id": 7, "run_id": 48,
        "cwd": "/srv/app/", "model": "large/1"});
    store.worker("a", more).call("a", 1, "sql", "{\"exit_code\": 1}");
    let more =
        json!({"task_type": "research", "tags": ["y"], "created_at": "2026-01-21T23:30:00-02:00"});
    store.worker("b", more).call("b", 1, "sql", "{\"ok\": true}").call("b", 2, "sh", "fine");
    store.worker(
        "c",
        json!({"status": "running", "task_type": "code", "run_id": 48, "model": "large/1"}),
    );
    store.write("workers/d/metadata.json", "{}");
    store
}

#[test]
fn workers_are_listed_by_shared_values() {
    let store = store();
    let tree = store.tree();
    assert_eq!(
        names(&tree, "by"),
        [
            "attention",
            "branch",
            "day",
            "file",
            "file.read",
            "job",
            "model",
            "outcome",
            "project",
            "run",
            "source",
            "status",
            "tag",
            "tool",
            "type"
        ]
    );
    for (facet, values) in [
        (
            "status",
            &[
                ("completed", &["b"][..]),
                ("failed", &["a"]),
                ("running", &["c"]),
                ("unknown", &["d"]),
            ][..],
        ),
        ("outcome", &[("failed", &["a"]), ("ok", &["b"]), ("unknown", &["c", "d"])]),
        ("attention", &[("high", &["a"]), ("none", &["b", "c", "d"])]),
        ("type", &[("code", &["c"]), ("research", &["a", "b"])]),
        ("tag", &[("x", &["a"]), ("y", &["a", "b"])]),
        ("tool", &[("sh", &["b"]), ("sql", &["a", "b"])]),
        ("job", &[("7", &["a"])]),
        ("run", &[("48", &["a", "c"])]),
        ("day", &[("2026-01-20", &["a", "c"]), ("2026-01-22", &["b"])]),
        ("project", &[("app", &["a"])]),
        ("model", &[("large%2F1", &["a", "c"])]),
        ("source", &[("swarmlet", &["a", "b", "c", "d"])]),
        ("branch", &[]),
        ("file", &[]),
        ("file.read", &[]),
    ] {
        let found = names(&tree, &format!("by/{facet}"));
        assert_eq!(found, values.iter().map(|(value, _)| *value).collect::<Vec<_>>(), "{facet}");
        for (value, workers) in values {
            assert_eq!(names(&tree, &format!("by/{facet}/{value}")), *workers, "{facet}/{value}");
        }
    }
}

/// Promise: Each directory of a value in `by/` has the three reports on its workers, which it does
/// not list.
#[test]
fn each_selection_has_reports() {
    let store = store();
    store.worker("summary", json!({"task_type": "research"}));
    let tree = store.tree();
    let read = |path: &str| see(&tree, path).unwrap().text().to_owned();
    let summary = read("by/type/research/summary");
    assert!(summary.starts_with("3 workers: "), "{summary}");
    assert!(!summary.contains("task of c"), "{summary}");
    let index: serde_json::Value =
        serde_json::from_str(&read("by/type/research/tag/x/index.json")).unwrap();
    assert_eq!((&index["total_workers"], &index["workers"][0]["id"]), (&json!(1), &json!("a")));
    let evidence = read("by/status/failed/evidence.2k.txt");
    assert!(evidence.starts_with("--- Evidence for Selection --- "), "{evidence}");
    assert!(evidence.len() <= 2_048, "{evidence}");
    assert_eq!(names(&tree, "by/type/research"), ["a", "b", "summary.own"]);
}

/// Promise: Several values can be combined in one path.
#[test]
fn values_can_be_combined() {
    let store = store();
    let tree = store.tree();
    for (path, workers) in [
        ("by/type/research/status/failed", &["a"][..]),
        ("by/status/failed/type/research", &["a"]),
        ("by/tag/x/tag/y", &["a"]),
        ("by/tool/sql/outcome/ok", &["b"]),
        ("by/tool/sh/tool/sql/type/research/tag/y/day/2026-01-22", &["b"]),
        ("by/type/code/outcome/failed", &[]),
    ] {
        assert_eq!(names(&tree, path), workers, "{path}");
    }
    assert_eq!(names(&tree, "by/type/research/status"), ["completed", "failed"]);
    assert_eq!(names(&tree, "by/run/48/limit"), [""; 0]);
    let deep = format!("by{}", "/tag/y".repeat(33));
    assert_eq!(see(&tree, &deep).err(), Some(Error::NotFound));
}

/// Promise: `limit/N` lists the workers that were created last.
#[test]
fn limit_lists_the_workers_created_last() {
    let store = TestStore::new();
    for (id, at) in [("old", "2026-01-01"), ("new", "2026-03-01"), ("middle", "2026-02-01")] {
        store.worker(id, json!({"created_at": format!("{at}T00:00:00Z")}));
    }
    let tree = store.tree();
    for (most, workers) in [
        ("0", &[][..]),
        ("1", &["new"]),
        ("2", &["middle", "new"]),
        ("9", &["middle", "new", "old"]),
    ] {
        let folder = format!("by/status/completed/limit/{most}");
        assert_eq!(names(&tree, &folder), workers);
        for id in ["old", "middle", "new"] {
            assert_eq!(
                see(&tree, format!("{folder}/{id}")).is_ok(),
                workers.contains(&id),
                "{most} {id}"
            );
        }
    }
    for bad in [
        "limit/01",
        "limit/+1",
        "limit/-1",
        "limit/x",
        "limit/1/limit/1",
        "limit/1/tag",
        "limit/99999999999999999999",
    ] {
        assert_eq!(
            see(&tree, format!("by/status/completed/{bad}")).err(),
            Some(Error::NotFound),
            "{bad}"
        );
    }
}

/// Promise: A link leads to its worker from any depth.
#[test]
fn links_lead_to_workers_from_any_depth() {
    needs_fuse!();
    let store = store();
    store
        .worker("status", json!({"task_type": "odd"}))
        .worker("index.json", json!({"task_type": "odd"}));
    let mount = Mount::new(&store.path());
    for (link, worker) in [
        ("by/status/failed/a", "a"),
        ("by/type/research/tool/sql/a", "a"),
        ("by/type/research/tool/sql/limit/2/b", "b"),
        // A worker whose name is reserved gets the suffix of an own file.
        ("by/type/odd/status.own", "status"),
        ("by/type/odd/index.json.own", "index.json.own"),
    ] {
        let wanted = mount.at(&format!("workers/{worker}"));
        assert_eq!(fs::canonicalize(mount.at(link)).unwrap(), wanted, "{link}");
        assert!(fs::read(mount.at(link).join("metadata.json")).is_ok());
    }
    assert_eq!(mount.list("by/type/odd"), ["index.json.own", "status.own"]);
}

/// Promise: Unusual values have names that lead to them.
#[test]
fn unusual_values_have_names() {
    let long = "long ".repeat(100);
    let odd =
        ["a/b", "100%", ".", "..", "", "new\nline", "\u{1b}[31m", "\u{202e}x", "é", &long, "%2F"];
    let store = TestStore::new();
    for (number, value) in odd.iter().enumerate() {
        store.worker(&format!("w{number}"), json!({"task_type": value, "tags": [value]}));
    }
    let tree = store.tree();
    for facet in ["type", "tag"] {
        let values = seen::names(&tree, format!("by/{facet}")).unwrap();
        let workers = |value: &[u8]| {
            seen::names(&tree, [b"by/", facet.as_bytes(), b"/", value].concat()).unwrap()
        };
        let mut listed: Vec<Vec<u8>> = values.iter().flat_map(|value| workers(value)).collect();
        listed.sort();
        listed.dedup();
        // An empty string is no value.
        let given = odd.iter().enumerate().filter(|(_, value)| !value.is_empty());
        let mut all: Vec<Vec<u8>> =
            given.map(|(number, _)| format!("w{number}").into_bytes()).collect();
        all.sort();
        assert!(all.iter().all(|name| listed.contains(name)), "{facet}: {values:?}");
        assert!(
            values.iter().all(|name| name.len() <= 200 && !name.iter().any(u8::is_ascii_control))
        );
    }
    for (name, worker) in [
        ("a%2Fb", "w0"),
        ("100%25", "w1"),
        ("100%", "w1"),
        ("%2E", "w2"),
        ("new%0Aline", "w5"),
        ("%C3%A9", "w8"),
        ("%252F", "w10"),
    ] {
        assert_eq!(names(&tree, &format!("by/type/{name}")), [worker], "{name}");
    }
}

/// Promise: Two values never share a name.
#[test]
fn values_never_share_a_name() {
    let long = "x".repeat(300);
    let name_of_long = to_file_name(&long, &[]).to_text().into_owned();
    let name_of_that_name = to_file_name(&name_of_long, &[]).to_text().into_owned();
    let values = [long, name_of_long, name_of_that_name];
    let store = TestStore::new();
    for (number, value) in values.iter().enumerate() {
        let more = json!({"run_id": value, "job_id": value, "task_type": value});
        store.worker(&format!("w{number}"), more);
    }
    // A tool with an empty name is listed as `%`, which is the name of another tool.
    store.call("w0", 1, "", "fine").call("w1", 1, "%", "fine").call("w2", 1, "%25", "fine");
    let tree = store.tree();
    for folder in ["by/run", "by/job", "by/type", "by/tool", "runs"] {
        let values: Vec<String> =
            names(&tree, folder).into_iter().filter(|name| name != "latest").collect();
        assert_eq!(values.len(), 3, "{folder}: {values:?}");
        let inside = if folder == "runs" { "/workers" } else { "" };
        let workers = |value: &String| names(&tree, &format!("{folder}/{value}{inside}"));
        let mut listed: Vec<String> = values.iter().flat_map(workers).collect();
        listed.sort();
        assert_eq!(listed, ["w0", "w1", "w2"], "{folder}: {values:?}");
    }
    for (tool, worker) in [("%", "w0"), ("%25", "w1"), ("%2525", "w2")] {
        assert_eq!(names(&tree, &format!("by/tool/{tool}")), [worker], "{tool}");
    }
}

/// Promise: A source's own word for a status is accepted.
#[test]
fn own_word_for_a_status_is_accepted() {
    let store = store();
    let tree = store.tree();
    assert_eq!(names(&tree, "by/status/success"), ["b"]);
    assert!(!names(&tree, "by/status").contains(&"success".to_owned()));
    // A known status without workers is an empty directory; an unknown word does not exist.
    assert_eq!(names(&tree, "by/status/created"), [""; 0]);
    assert_eq!(see(&tree, "by/status/never").err(), Some(Error::NotFound));
    assert_eq!(see(&tree, "by/type/never").err(), Some(Error::NotFound));
}

/// Promise: Listing values of the catalog opens no output.
#[test]
fn listing_catalog_values_opens_no_output() {
    let store = store();
    let log = Arc::new(OpenLog::default());
    let disk = InterceptedStore::new(
        OpenCounter(log.clone()),
        Arc::new(Disk::open(&store.path()).unwrap()),
    );
    let freshness = Freshness { unfinished: Duration::ZERO, finished: Duration::ZERO };
    let view =
        View::new(vec![Source::from_store(Arc::new(disk), None)], freshness, Filter::default())
            .unwrap();
    let tree = Tree::new(view, Settings::default());
    for path in [
        "by",
        "by/status/failed",
        "by/type/research",
        "by/tag/y",
        "by/job/7",
        "by/run/48/limit/1",
        "by/day/2026-01-20",
    ] {
        assert!(!seen::names(&tree, path).unwrap().is_empty(), "{path}");
    }
    assert!(
        matches!(see(&tree, "by/status/failed/a"), Ok(Seen::Link(target)) if target.as_slice().ends_with(b"workers/a"))
    );
    assert_eq!(["001_sql.txt", "002_sh.txt"].map(|name| log.opened(name)), [0, 0]);
    // Control: listing outcomes opens the outputs.
    assert_eq!(names(&tree, "by/outcome/ok"), ["b"]);
    assert!(log.opened("001_sql.txt") > 0);
}

#[test]
fn range_of_days_has_the_workers_of_each() {
    let store = store();
    let tree = store.tree();
    let days = |range: &str| names(&tree, &format!("by/day/{range}"));
    assert_eq!(days("2026-01-20..2026-01-21"), days("2026-01-20"));
    assert_eq!(days("2026-01-22..2026-01-31"), days("2026-01-22"));
    let all = days("2026-01-20..2026-01-22");
    assert_eq!(all.len(), days("2026-01-20").len() + days("2026-01-22").len());
    assert_eq!(names(&tree, "by/day/2026-01-20..2026-01-22/status/failed"), ["a"]);
    let summary = text(&tree, "by/day/2026-01-20..2026-01-22/summary");
    assert!(summary.starts_with(&format!("{} workers", all.len())), "{summary}");
    // Nobody worked then.
    assert!(days("2025-01-01..2025-12-31").is_empty());
    for no_range in ["2026-01-22..2026-01-20", "2026-01-20..", "..", "2026-01-20..x"] {
        assert!(see(&tree, format!("by/day/{no_range}")).is_err(), "{no_range}");
    }
    assert!(see(&tree, "by/tag/2026-01-20..2026-01-22").is_err());
}

/// Makes one access exceed the deadline of files about many workers.
#[derive(Clone)]
struct Slow {
    /// The next open of an output is slow.
    open: Arc<AtomicBool>,
    /// The next visit of a directory of calls is slow.
    enter: Arc<AtomicBool>,
}

impl Slow {
    fn store() -> Memory {
        let memory = Memory::new();
        for worker in 0..20 {
            let write = |path: &str, text: &str| {
                memory.write(&RelPath::parse(format!("workers/w{worker}/{path}")).unwrap(), text)
            };
            write("metadata.json", "{\"status\": \"success\"}");
            write("tool_calls/001_sh.txt", "{\"ok\": true}");
        }
        memory
    }

    fn view(open: bool, enter: bool) -> View {
        let memory = Slow::store();
        let [open, enter] = [open, enter].map(|slow| Arc::new(AtomicBool::new(slow)));
        let source = Source::from_store(
            Arc::new(InterceptedStore::new(Slow { open, enter }, Arc::new(memory))),
            None,
        );
        let freshness = Freshness { unfinished: Duration::ZERO, finished: Duration::ZERO };
        View::new(vec![source], freshness, Filter::default()).unwrap()
    }

    fn wait(slow: &AtomicBool) {
        if slow.swap(false, Ordering::SeqCst) {
            thread::sleep(DEADLINE + Duration::from_millis(100));
        }
    }
}

impl Interceptor for Slow {
    fn open(&self, store: &dyn Store, path: &RelPath) -> Result<Box<dyn File>> {
        if path.as_bytes().ends_with(b"_sh.txt") {
            Slow::wait(&self.open);
        }
        store.open(path)
    }

    fn enter(&self, path: &RelPath) -> Result<Slow> {
        if path.as_bytes() == b"tool_calls" {
            Slow::wait(&self.enter);
        }
        Ok(self.clone())
    }
}

/// Promise: Workers that could not be read in time are listed as unread.
#[test]
fn workers_not_read_in_time_are_listed_as_unread() {
    let tree = Tree::new(Slow::view(true, false), Settings::default());
    assert!(names(&tree, "by/outcome").contains(&"unread".to_owned()));
    // The next attempt has time for all workers.
    assert_eq!(names(&tree, "by/outcome"), ["ok"]);
    assert_eq!(names(&tree, "by/outcome/ok").len(), 20);
    assert_eq!(names(&tree, "by/outcome/unread"), [""; 0]);
    assert_eq!(names(&tree, "by/tool"), ["sh"]);
}

#[test]
fn workers_not_visited_in_time_are_unread_until_the_backfill() {
    let tree = || Tree::new(Slow::view(false, true), Settings::default());
    let mode_of = |tree: &Tree, path: &str| {
        tree.with_path(path.as_bytes(), Symlinks::Follow, |place| Ok(place.leaf().attr.mode))
            .unwrap()
    };
    let mode = |tree: &Tree| mode_of(tree, "index.json");
    let read = |tree: &Tree| {
        let index: serde_json::Value = serde_json::from_str(&text(tree, "index.json")).unwrap();
        index["outcomes_read"].as_u64().unwrap()
    };
    // Access to some sources is unknown, so only the owner may read the file.
    assert_eq!(mode(&tree()), 0o400);
    // The rule also holds for an answer that quotes them.
    assert_eq!(mode_of(&tree(), "grep/ok"), 0o400);
    let tree = tree();
    let some = read(&tree);
    assert!(some < 20, "{some} of 20");
    // One caller receives the pending backfill and runs it.
    assert!(tree.claim_backfill() && !tree.claim_backfill());
    while tree.backfill() {}
    // The incomplete file stays cached for a moment.
    while read(&tree) == some {}
    assert_eq!((read(&tree), mode(&tree)), (20, 0o444));
}

/// Makes the next visit of the calls of `w0` exceed the deadline.
#[derive(Clone)]
struct Stuck {
    inside: bool,
    next: Arc<AtomicBool>,
}

impl Interceptor for Stuck {
    fn enter(&self, path: &RelPath) -> Result<Stuck> {
        if self.inside && path.as_bytes() == b"tool_calls" {
            Slow::wait(&self.next);
        }
        Ok(Stuck { inside: path.as_bytes().ends_with(b"w0"), next: self.next.clone() })
    }
}

/// Delays every visit of a directory of calls, and counts the visits.
#[derive(Clone, Default)]
struct Late(Arc<AtomicUsize>);

impl Interceptor for Late {
    fn enter(&self, path: &RelPath) -> Result<Late> {
        if path.as_bytes() == b"tool_calls" {
            self.0.fetch_add(1, Ordering::SeqCst);
            thread::sleep(DEADLINE / 4);
        }
        Ok(self.clone())
    }
}

/// Promise: The mtime of a file about many workers is reported even if not all of them can be read
/// in time.
#[test]
fn mtime_of_many_workers_is_reported_within_the_deadline() {
    let (memory, late) = (Arc::new(Memory::new()), Late::default());
    for worker in 0..1_001 {
        let write = |file: &str, text: &str| {
            memory.write(&RelPath::parse(format!("workers/w{worker}/{file}")).unwrap(), text);
        };
        write("metadata.json", r#"{"status": "success", "run_id": "r"}"#);
        write("tool_calls/001_sh.txt", r#"{"ok": true}"#);
    }
    let source = Source::from_store(Arc::new(InterceptedStore::new(late.clone(), memory)), None);
    let freshness = Freshness { unfinished: Duration::ZERO, finished: Duration::ZERO };
    let tree = Tree::new(
        View::new(vec![source], freshness, Filter::default()).unwrap(),
        Settings::default(),
    );
    assert!(matches!(see(&tree, "by/status/completed"), Ok(Seen::Folder { .. })));
    assert_eq!(late.0.load(Ordering::SeqCst), 0, "the listing visited calls");
    assert!(
        matches!(see(&tree, "runs/latest"), Ok(Seen::Link(target)) if target.as_slice() == b"r")
    );
    assert!(late.0.load(Ordering::SeqCst) < 1_001, "every worker was visited");
}

/// Promise: Workers of unknown outcome are read before workers that were read already.
#[test]
fn unknown_workers_are_read_before_known_ones() {
    let next = Arc::new(AtomicBool::new(false));
    let store =
        InterceptedStore::new(Stuck { inside: false, next: next.clone() }, Arc::new(Slow::store()));
    let freshness = Freshness { unfinished: Duration::ZERO, finished: Duration::ZERO };
    let view =
        View::new(vec![Source::from_store(Arc::new(store), None)], freshness, Filter::default())
            .unwrap();
    let tree = Tree::new(view, Settings::default());
    text(&tree, "workers/w0/index.json");
    next.store(true, Ordering::SeqCst);
    let index: serde_json::Value = serde_json::from_str(&text(&tree, "index.json")).unwrap();
    assert!(!next.load(Ordering::SeqCst), "w0 was not visited");
    assert_eq!(index["outcomes_read"], 20);
}

/// Promise: An incomplete file about many workers is not rendered again at once.
///
/// The kernel repeats a lookup whose result changed, and other readers wait for the file too.
#[test]
fn incomplete_file_is_not_rendered_again_at_once() {
    // The deadline passes either while outputs are opened, or while directories are visited.
    for is_visit_slow in [false, true] {
        let slow = Arc::new(AtomicBool::new(false));
        let memory = Arc::new(Slow::store());
        let interceptor = match is_visit_slow {
            true => Slow { enter: slow.clone(), open: Arc::default() },
            false => Slow { open: slow.clone(), enter: Arc::default() },
        };
        let source =
            Source::from_store(Arc::new(InterceptedStore::new(interceptor, memory.clone())), None);
        let freshness = Freshness { unfinished: Duration::ZERO, finished: Duration::ZERO };
        let tree = Tree::new(
            View::new(vec![source], freshness, Filter::default()).unwrap(),
            Settings::default(),
        );
        let path = RelPath::parse("workers/w3/tool_calls/002_sh.txt").unwrap();
        // A busy machine may need several attempts.
        let is_reused = (0..5).any(|number| {
            let look = |number: usize| {
                memory.write(&path, "x".repeat(number));
                slow.store(true, Ordering::SeqCst);
                tree.lookup(ROOT, b"index.json").unwrap().ino
            };
            look(2 * number) == look(2 * number + 1)
        });
        assert!(is_reused, "each lookup renders the file again (slow visits: {is_visit_slow})");
    }
}

#[test]
fn worker_removed_during_a_read_is_gone_and_not_unread() {
    let path = |path: String| RelPath::parse(path).unwrap();
    for k in 1.. {
        let memory = Arc::new(Memory::new());
        for id in ["a", "b", "c"] {
            memory.write(&path(format!("workers/{id}/metadata.json")), "{\"status\": \"success\"}");
            memory.write(&path(format!("workers/{id}/tool_calls/001_sh.txt")), "{\"ok\": true}");
        }
        let plan = FaultPlan::none();
        let store = InterceptedStore::new(FaultInjector(plan.clone()), memory.clone());
        let freshness = Freshness { unfinished: Duration::ZERO, finished: Duration::ZERO };
        let view = View::new(
            vec![Source::from_store(Arc::new(store), None)],
            freshness,
            Filter::default(),
        )
        .unwrap();
        let tree = Tree::new(view, Settings::default());
        plan.run_before(k, move || memory.rename(&path("workers/b".into()), &path("b".into())));
        for (facet, value) in [("outcome", "ok"), ("tool", "sh")] {
            assert_eq!(names(&tree, &format!("by/{facet}")), [value], "{facet} at call {k}");
        }
        let index: serde_json::Value = serde_json::from_str(&text(&tree, "index.json")).unwrap();
        assert_eq!(index["outcomes_read"], index["total_workers"], "at call {k}: {index:#}");
        if !plan.has_run() {
            assert!(k > 40, "the reads made only {k} calls");
            break;
        }
    }
}
