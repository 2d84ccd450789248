//! Every change in the store becomes visible by path, without a new mount. The tests wait for it
//! and measure no times.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use swarmletfs_base::error::Result;
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::Memory;
use swarmletfs_tree::catalog::{Freshness, Source};
use swarmletfs_tree::view::{Filter, View};

use super::{PATIENCE, eventually, swarm};
use crate::needs_fuse;
use crate::support::intercept::{InterceptedStore, Interceptor};
use crate::support::{Mount, TestStore};

fn append(path: &Path, text: &str) {
    File::options().append(true).open(path).unwrap().write_all(text.as_bytes()).unwrap();
}

fn replace(store: &TestStore, path: &str, text: &str) {
    let fresh = store.write(format!("{path}.tmp"), text);
    fs::rename(fresh, store.at(path)).unwrap();
}

/// Waits until the file at `path` in the mount contains `text`.
fn await_text(mount: &Mount, path: &str, text: &str) {
    eventually(&format!("{text:?} in {path}"), || {
        let bytes = fs::read(mount.at(path)).ok()?;
        String::from_utf8(bytes).ok()?.contains(text).then_some(())
    });
}

/// Promise: Changes of a worker's own file appear.
#[test]
fn changes_of_an_own_file_appear() {
    needs_fuse!();
    let store = swarm();
    // Files of a finished worker are as fresh as others.
    for worker in ["alpha", "gamma"] {
        let path = format!("workers/{worker}/logs/run.log");
        store.write(&path, "first\n");
        let mount = Mount::new(&store.path());
        let exactly = |text: &str| {
            eventually(&format!("{text:?} in {path}"), || {
                (mount.read(&path) == text.as_bytes()).then_some(())
            });
            assert_eq!(fs::metadata(mount.at(&path)).unwrap().len(), text.len() as u64);
        };
        exactly("first\n");
        append(&store.at(&path), "second\n");
        exactly("first\nsecond\n");
        fs::write(store.at(&path), "rewritten in place, and longer than before\n").unwrap();
        exactly("rewritten in place, and longer than before\n");
        fs::write(store.at(&path), "rewritten in place, and longer than BEFORE\n").unwrap();
        exactly("rewritten in place, and longer than BEFORE\n");
        replace(&store, &path, "replaced\n");
        exactly("replaced\n");
        File::options().write(true).open(store.at(&path)).unwrap().set_len(3).unwrap();
        exactly("rep");
        File::options().write(true).open(store.at(&path)).unwrap().set_len(0).unwrap();
        exactly("");
        append(&store.at(&path), &"long ".repeat(40_000));
        exactly(&"long ".repeat(40_000));
        fs::remove_file(store.at(&path)).unwrap();
        eventually("the file is gone", || fs::metadata(mount.at(&path)).is_err().then_some(()));
        assert_eq!(mount.list(&format!("workers/{worker}/logs")), [""; 0]);
        store.write(&path, "back\n");
        exactly("back\n");
    }
}

#[test]
fn absent_name_appears_when_it_is_created() {
    needs_fuse!();
    let store = swarm();
    let mount = Mount::new(&store.path());
    for path in ["workers/gamma/result.txt", "workers/gamma/outputs/new", "supervisor/notes.md"] {
        assert!(fs::metadata(mount.at(path)).is_err(), "{path}");
        store.write(path, "there\n");
        await_text(&mount, path, "there\n");
    }
}

/// Promise: A new call appears in every file that is generated from the worker.
#[test]
fn new_call_appears_in_every_generated_file() {
    needs_fuse!();
    let store = swarm();
    let mount = Mount::new(&store.path());
    for path in [
        "evidence.txt",
        "runs/r2/evidence.txt",
        "workers/gamma/evidence.txt",
        "workers/gamma/index.json",
    ] {
        assert!(!mount.text(path).contains("wholly_new"), "{path}");
    }
    store.call("gamma", 2, "wholly_new", "Error: wholly_new trouble\n");
    await_text(&mount, "workers/gamma/evidence.txt", "wholly_new trouble");
    await_text(&mount, "workers/gamma/summary", "wholly_new");
    await_text(&mount, "workers/gamma/index.json", "002_wholly_new.txt");
    await_text(&mount, "workers/gamma/evidence.3k.txt", "wholly_new trouble");
    await_text(&mount, "runs/r2/evidence.txt", "wholly_new trouble");
    await_text(&mount, "evidence.txt", "wholly_new trouble");
    await_text(&mount, "index.json", "wholly_new trouble");
    assert!(mount.list("workers/gamma/tool_calls").contains(&"002_wholly_new.txt".to_owned()));
    append(&store.at("workers/gamma/tool_calls/002_wholly_new.txt"), "and one line more\n");
    await_text(&mount, "workers/gamma/evidence.txt", "and one line more");
    await_text(&mount, "evidence.txt", "and one line more");
    // A finished worker that is looked up by name is as fresh as others.
    store.call("alpha", 9, "late", "Error: very late\n");
    await_text(&mount, "workers/alpha/evidence.txt", "very late");
}

/// Promise: A change of status appears.
#[test]
fn change_of_status_appears() {
    needs_fuse!();
    let store = swarm();
    let mount = Mount::new(&store.path());
    let status = |path: &str| {
        let index: Value = serde_json::from_slice(&mount.read(path)).unwrap();
        let row = index["workers"]
            .as_array()
            .map(|rows| rows.iter().find(|row| row["id"] == "gamma").unwrap());
        row.unwrap_or(&index)["status"].as_str().unwrap().to_owned()
    };
    let all =
        ["index.json", "workers/index.json", "runs/r2/index.json", "workers/gamma/index.json"];
    for path in all {
        assert_eq!(status(path), "running", "{path}");
    }
    store.worker(
        "gamma",
        json!({"run_id": "r2", "status": "failed", "error": "killed by a signal"}),
    );
    for path in all {
        eventually(path, || (status(path) == "failed").then_some(()));
    }
    await_text(&mount, "workers/gamma/summary", "killed by a signal");
    await_text(&mount, "summary", "killed by a signal");
    await_text(&mount, "evidence.txt", "killed by a signal");
}

/// Promise: A late change of a finished worker appears.
#[test]
fn late_change_of_a_finished_worker_appears() {
    needs_fuse!();
    let store = swarm();
    let mount = Mount::with(&store.path(), &["--ttl", "1"]);
    assert!(!mount.text("index.json").contains("corrected"));
    store.worker("alpha", json!({"run_id": "r1", "task": "corrected afterwards"}));
    await_text(&mount, "index.json", "corrected afterwards");
    store.call("beta", 2, "sql", "Error: a late line\n");
    await_text(&mount, "evidence.txt", "a late line");
    await_text(&mount, "runs/r1/evidence.txt", "a late line");
}

/// Promise: Workers can be added and removed while mounted.
#[test]
fn workers_come_and_go() {
    needs_fuse!();
    let store = swarm();
    let mount = Mount::new(&store.path());
    let total = || -> u64 {
        let index: Value = serde_json::from_slice(&mount.read("index.json")).unwrap();
        index["total_workers"].as_u64().unwrap()
    };
    assert!(fs::metadata(mount.at("workers/new")).is_err());
    store
        .worker("new", json!({"run_id": "r3", "status": "running"}))
        .call("new", 1, "echo", "hello\n");
    await_text(&mount, "workers/new/evidence.txt", "hello");
    eventually("the new worker is listed", || {
        mount.list("workers").contains(&"new".into()).then_some(())
    });
    eventually("the new run is listed", || mount.list("runs").contains(&"r3".into()).then_some(()));
    eventually("the new worker is counted", || (total() == 4).then_some(()));
    assert_eq!(mount.list("runs/r3/workers"), ["new"]);
    fs::remove_dir_all(store.at("workers/new")).unwrap();
    eventually("the worker is gone", || {
        fs::metadata(mount.at("workers/new/summary")).is_err().then_some(())
    });
    eventually("the worker's folder is gone", || {
        fs::metadata(mount.at("workers/new")).is_err().then_some(())
    });
    eventually("the worker is not listed", || {
        (!mount.list("workers").contains(&"new".into())).then_some(())
    });
    eventually("the run is not listed", || {
        (!mount.list("runs").contains(&"r3".into())).then_some(())
    });
    eventually("the worker is not counted", || (total() == 3).then_some(()));
    // A new worker under the same name is another worker.
    store.worker(
        "new",
        json!({"run_id": "r4", "status": "running", "task": "the second of its name"}),
    );
    await_text(&mount, "workers/new/index.json", "the second of its name");
    assert!(!mount.text("workers/new/evidence.txt").contains("hello"));
    // A renamed worker keeps its bytes under its new name.
    fs::rename(store.at("workers/new"), store.at("workers/renamed")).unwrap();
    await_text(&mount, "workers/renamed/metadata.json", "the second of its name");
    eventually("the old name is gone", || {
        fs::metadata(mount.at("workers/new")).is_err().then_some(())
    });
}

/// Delays each look at a worker, and counts them.
#[derive(Clone, Default)]
struct SlowStore(Arc<AtomicUsize>);

impl Interceptor for SlowStore {
    fn enter(&self, path: &RelPath) -> Result<SlowStore> {
        if path.as_bytes().starts_with(b"workers/") {
            self.0.fetch_add(1, Ordering::SeqCst);
            thread::sleep(Duration::from_millis(200));
        }
        Ok(self.clone())
    }
}

/// Promise: A worker that is added or removed appears or disappears before the next full scan.
#[test]
fn added_and_removed_workers_are_seen_before_the_next_full_scan() {
    let (memory, looks) = (Arc::new(Memory::new()), SlowStore::default());
    let path = |path: String| RelPath::parse(&path).unwrap();
    let add = |id: &str| {
        memory.write(&path(format!("workers/{id}/metadata.json")), r#"{"status": "running"}"#)
    };
    let running: Vec<String> = (0..20).map(|number| format!("w{number:02}")).collect();
    running.iter().for_each(|id| add(id));
    let source =
        Source::from_store(Arc::new(InterceptedStore::new(looks.clone(), memory.clone())), None);
    let freshness =
        Freshness { unfinished: Duration::from_millis(1), finished: Duration::from_millis(1) };
    let view = View::new(vec![source], freshness, Filter::default()).unwrap();
    let there = |id: &str| view.visible().get(&Name::new(id).unwrap()).is_some();
    assert_eq!(looks.0.load(Ordering::SeqCst), 20);
    add("new");
    eventually("the added worker", || there("new").then_some(()));
    memory.remove(&path("workers/w07".into()));
    eventually("the removal of the worker", || (!there("w07")).then_some(()));
    assert!(running.iter().filter(|id| *id != "w07").all(|id| there(id)));
    assert_eq!(looks.0.load(Ordering::SeqCst), 21, "other workers were read");
}

/// Promise: An empty store can be mounted and filled later.
#[test]
fn empty_store_is_mounted_and_filled_later() {
    needs_fuse!();
    let store = TestStore::new();
    let mount = Mount::new(&store.path());
    assert_eq!(mount.list("workers"), ["index.json"]);
    store.worker("first", json!({"status": "running"}));
    eventually("the first worker", || {
        mount.list("workers").contains(&"first".into()).then_some(())
    });
    await_text(&mount, "index.json", "\"first\"");
    store.write("supervisor/strategy.md", "a plan\n");
    await_text(&mount, "supervisor/strategy.md", "a plan\n");
    eventually("the notes are listed", || {
        mount.list("").contains(&"supervisor".into()).then_some(())
    });
}

/// A running `tail` and its output lines. Dropping this ends it.
pub struct Tail {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Tail {
    /// Starts `tail` with `flag` on files of the mount.
    pub fn follow(mount: &Mount, flag: &str, paths: &[&str]) -> Tail {
        let mut tail = Command::new("tail");
        tail.args(["-n", "+1", "-q", "-s", "0.05", flag])
            .args(paths.iter().map(|path| mount.at(path)));
        let mut child = tail.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let output = child.stdout.take().unwrap();
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Tail { child, lines }
    }

    /// Returns the next line of output.
    pub fn next(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("tail shows a line")
    }

    /// Returns the lines of output up to `last`.
    fn lines_until(&self, last: &str) -> Vec<String> {
        let mut shown = Vec::new();
        while shown.last().is_none_or(|line| line != last) {
            shown.push(self.next());
        }
        shown
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Promise: `tail -f` follows a worker's own file.
#[test]
fn tail_follows_an_own_file() {
    needs_fuse!();
    let store = swarm();
    let path = store.write("workers/gamma/logs/run.log", "begin\n");
    let mount = Mount::new(&store.path());
    let tail = Tail::follow(&mount, "-f", &["workers/gamma/logs/run.log"]);
    assert_eq!(tail.next(), "begin");
    for n in 0..3 {
        append(&path, &format!("line {n}\n"));
        assert_eq!(tail.next(), format!("line {n}"));
    }
}

#[test]
fn tail_follows_a_generated_file_only_by_name() {
    needs_fuse!();
    let store = swarm();
    let log = store.write("workers/gamma/logs/run.log", "begin\n");
    let mount = Mount::new(&store.path());
    let generated = "workers/gamma/evidence.txt";
    let paths = [generated, "workers/gamma/logs/run.log"];
    let (by_handle, by_name) =
        (Tail::follow(&mount, "-f", &paths), Tail::follow(&mount, "-F", &paths));
    let first: Vec<String> =
        mount.text(generated).lines().chain(["begin"]).map(str::to_owned).collect();
    assert_eq!(
        (by_handle.lines_until("begin"), by_name.lines_until("begin")),
        (first.clone(), first)
    );
    store.call("gamma", 2, "sql", "Error: quite new\n");
    await_text(&mount, generated, "Error: quite new");
    let second: Vec<String> = mount.text(generated).lines().map(str::to_owned).collect();
    assert_eq!(
        by_name.lines_until(second.last().unwrap()),
        second,
        "the new version from its start"
    );
    // Each change is shown in a later round than the one before, and tail checks all its files in
    // each round.
    for n in 0..3 {
        append(&log, &format!("line {n}\n"));
        assert_eq!(
            by_handle.next(),
            format!("line {n}"),
            "the open handle reads a mix of versions"
        );
    }
}
