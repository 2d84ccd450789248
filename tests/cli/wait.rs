//! `swarmletfs wait`: it ends when what is asked has happened, at a signal, or when the time is over.

use std::fs;
use std::path::PathBuf;
use std::process::Child;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::program::{Done, LIMIT, Yard, ended, run, typed, wait_until};
use crate::support::TestStore;

/// A `wait` that goes on beside the test.
struct Waiting {
    child: Child,
    yard: Yard,
}

impl Waiting {
    /// Begins, and returns when it waits.
    #[track_caller]
    fn begin(store: &TestStore, more: &[&str]) -> Waiting {
        let yard = Yard::new();
        let mut command = typed(["wait", "--store"]);
        command.arg(store.path()).args(more);
        command.stdout(fs::File::create(yard.at("out")).unwrap()).stderr(fs::File::create(yard.at("err")).unwrap());
        let waiting = Waiting { child: command.spawn().unwrap(), yard };
        wait_until("it waits", || waiting.text("err").contains("waiting until"));
        waiting
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.yard.at(name)).unwrap()
    }

    /// Whether it is still waiting, a few looks later.
    #[track_caller]
    fn goes_on(&mut self) {
        // It looks once a second; nothing tells from outside that it has looked.
        assert!(ended(&mut self.child, 2 * LOOK).is_none(), "{}", self.text("out"));
    }

    /// How it ended.
    #[track_caller]
    fn end(mut self) -> Done {
        let status = ended(&mut self.child, LIMIT);
        assert!(status.is_some(), "it goes on: {}", self.text("err"));
        Done { code: status.and_then(|status| status.code()), out: self.text("out"), err: self.text("err") }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How often it looks.
const LOOK: std::time::Duration = std::time::Duration::from_secs(1);

fn swarm() -> TestStore {
    let store = TestStore::new();
    store
        .worker("a", json!({"owner_id": 7, "status": "running"}))
        .worker("b", json!({"owner_id": 8, "status": "running"}));
    store
}

/// Changes `path` of `store` in one step, so that no look meets it half done: to what stands there in another store, or
/// to nothing.
fn exchange(store: &TestStore, path: &str, becomes: Option<&TestStore>) {
    match becomes {
        Some(other) => fs::rename(other.at(path), store.at(path)),
        None => fs::rename(store.at(path), Yard::new().at("gone")),
    }
    .unwrap();
}

/// Gives a worker that is there another status.
fn set(store: &TestStore, id: &str, status: &str) {
    let other = TestStore::new();
    other.worker(id, json!({"status": status}));
    exchange(store, &format!("workers/{id}/metadata.json"), Some(&other));
}

/// Adds a worker.
fn add(store: &TestStore, id: &str, metadata: serde_json::Value) {
    let other = TestStore::new();
    other.worker(id, metadata);
    exchange(store, &format!("workers/{id}"), Some(&other));
}

fn cursor(done: &Done) -> &str {
    done.out.lines().last().unwrap()
}

#[test]
fn a_wait_ends_when_all_have_finished_and_says_how() {
    let store = swarm();
    let mut waiting = Waiting::begin(&store, &[]);
    set(&store, "a", "completed");
    waiting.goes_on();
    set(&store, "b", "failed");
    let done = waiting.end();
    assert!(done.fine().out.starts_with("Of 2 workers: 1 completed, 1 failed. Failed: b\nSince "), "{done:#?}");
    for line in ["finished completed a: last write ", "finished failed    b: last write "] {
        assert!(done.out.contains(line), "{done:#?}");
    }
    // What has happened already is not waited for.
    let mut command = typed(["wait", "--until", "finished", "--store"]);
    command.arg(store.path());
    assert!(run(command).fine().out.starts_with("Of 2 workers: 1 completed, 1 failed. Failed: b\n"));
}

#[test]
fn a_wait_for_a_failure_ends_with_the_first() {
    let store = swarm();
    let mut waiting = Waiting::begin(&store, &["--until", "failed"]);
    set(&store, "a", "completed");
    waiting.goes_on();
    add(&store, "c", json!({"status": "failed"}));
    let done = waiting.end();
    assert!(done.fine().out.contains("\nnew      failed    c: "), "{done:#?}");
    // With a cursor, a failure of before is none.
    let mut waiting = Waiting::begin(&store, &["--until", "failed", "--since", cursor(&done)]);
    exchange(&store, "workers/c", None);
    waiting.goes_on();
    set(&store, "b", "failed");
    assert!(waiting.end().fine().out.contains("\nfinished failed    b: "));
}

#[test]
fn a_wait_for_anything_ends_with_any_change() {
    let store = swarm();
    store.worker("d", json!({"status": "completed"}));
    let mut waiting = Waiting::begin(&store, &["--until", "any"]);
    waiting.goes_on();
    let other = TestStore::new();
    other.write("workers/a/logs/run.log", "line\n");
    exchange(&store, "workers/a/logs", Some(&other));
    let mut done = waiting.end();
    assert!(done.fine().out.contains("logs/run.log (5 B)"), "{done:#?}");
    let changes: [(&str, &dyn Fn()); 4] = [
        ("new      running   e: ", &|| add(&store, "e", json!({"status": "running"}))),
        ("finished completed a: ", &|| set(&store, "a", "completed")),
        // Its metadata may be of the very tick of the cursor, and is told again.
        ("finished completed a: last write ", &|| exchange(&store, "workers/a/logs", None)),
        ("1 worker\n", &|| exchange(&store, "workers/e", None)),
    ];
    for (number, (told, change)) in changes.into_iter().enumerate() {
        let since = |cursor: &str| {
            let mut command = typed(["since", cursor, "--store"]);
            command.arg(store.path());
            run(command)
        };
        // What was still being written when it was looked at is told again, and then no more.
        let told_again = since(cursor(&done));
        let next = cursor(&told_again).to_owned();
        assert!(since(&next).fine().out.contains(": nothing changed in "));
        // Nothing is lost between two waits: it does not matter which comes first.
        let waiting = match number % 2 {
            0 => {
                let waiting = Waiting::begin(&store, &["--until", "any", "--since", &next]);
                change();
                waiting
            }
            _ => {
                change();
                Waiting::begin(&store, &["--until", "any", "--since", &next])
            }
        };
        done = waiting.end();
        assert!(done.fine().out.contains(told), "{told}: {done:#?}");
    }
}

#[test]
fn a_wait_whose_time_is_over_says_who_has_not_finished_and_loses_nothing() {
    let store = swarm();
    store.worker("c", json!({"status": "completed"}));
    let mut command = typed(["wait", "--timeout", "0s", "--store"]);
    command.arg(store.path());
    let done = run(command);
    assert_eq!(done.code, Some(3), "{done:#?}");
    assert!(done.out.starts_with("2 of 3 workers not finished. "), "{done:#?}");
    assert!(done.out.contains("\nrunning   a: last write ") && done.out.contains("\nrunning   b: last write "));
    assert!(!done.out.contains(" c: ") && done.err.contains("the time is over"), "{done:#?}");
    store.worker("a", json!({"status": "completed"}));
    let mut command = typed(["wait", "--until", "any", "--timeout", "0", "--since", cursor(&done), "--store"]);
    command.arg(store.path());
    assert!(run(command).fine().out.contains("finished completed a: "));
    for (until, owner, out) in [("failed", "7", "0 of 1 worker"), ("any", "9", "There are no workers.")] {
        let mut command = typed(["wait", "--timeout", "50ms", "--until", until, "--owner", owner, "--store"]);
        store.worker("a", json!({"owner_id": 7, "status": "completed"}));
        command.arg(store.path());
        let done = run(command);
        assert_eq!(done.code, Some(3), "{done:#?}");
        assert!(done.out.starts_with(out) || done.out.starts_with("All workers (1)"), "{done:#?}");
    }
}

#[test]
fn a_view_without_workers_is_waited_for() {
    let store = TestStore::new();
    store.worker("other", json!({"owner_id": 8, "status": "failed"}));
    let mut waiting = Waiting::begin(&store, &["--owner", "7"]);
    assert!(waiting.text("err").contains("; there are no workers yet"));
    waiting.goes_on();
    add(&store, "mine", json!({"owner_id": 7, "status": "completed"}));
    let done = waiting.end();
    assert!(done.fine().out.starts_with("Of 1 worker: 1 completed\n") && !done.out.contains("other"), "{done:#?}");
}

#[test]
fn a_signal_ends_a_wait_at_once() {
    for signal in [Signal::INT, Signal::TERM] {
        let mut waiting = Waiting::begin(&swarm(), &[]);
        kill_process(Pid::from_child(&waiting.child), signal).unwrap();
        let status = ended(&mut waiting.child, LIMIT).unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(signal.as_raw()));
        assert_eq!(waiting.text("out"), "");
    }
}

#[test]
fn a_store_that_is_replaced_while_it_is_waited_for_is_the_other() {
    let store = swarm();
    let waiting = Waiting::begin(&store, &[]);
    let away: PathBuf = store.path().with_file_name("away");
    fs::rename(store.path(), &away).unwrap();
    let other = TestStore::new();
    other.worker("x", json!({"status": "completed"}));
    fs::rename(other.path(), store.path()).unwrap();
    let done = waiting.end();
    assert!(done.fine().out.starts_with("Of 1 worker: 1 completed\n") && done.out.contains(" x: "), "{done:#?}");
}

#[test]
fn what_is_typed_wrongly_is_named() {
    for (typed_words, named) in [
        (&["--until", "done"][..], "finished"),
        (&["--timeout", "soon"], "30s"),
        (&["--timeout", "-1"], "-1"),
        (&["--timeout", ""], "--timeout"),
        (&["--owner", ""], "--owner"),
        (&["--mount"], "--mount"),
    ] {
        let mut command = typed(["wait"]);
        command.args(typed_words);
        run(command).refused(2, &[named]);
    }
}
