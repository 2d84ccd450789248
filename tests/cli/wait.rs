//! `swarmletfs wait` ends when the event occurs, at a signal, or at the timeout.

use std::fs;
use std::path::PathBuf;
use std::process::Child;
use std::time::{Duration, SystemTime};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::program::{
    CommandOutput, LIMIT, MountSandbox, run, swarmletfs, wait_timeout, wait_until,
};
use crate::support::TestStore;
use crate::support::transcript::Transcript;

/// A `wait` process running beside the test.
struct Waiting {
    child: Child,
    sandbox: MountSandbox,
}

impl Waiting {
    /// Starts the process and returns when it waits.
    #[track_caller]
    fn begin(store: &TestStore, more: &[&str]) -> Waiting {
        let sandbox = MountSandbox::new();
        let mut command = swarmletfs(["wait", "--store"]);
        command.arg(store.path()).args(more);
        command
            .stdout(fs::File::create(sandbox.at("out")).unwrap())
            .stderr(fs::File::create(sandbox.at("err")).unwrap());
        let waiting = Waiting { child: command.spawn().unwrap(), sandbox };
        wait_until("it waits", || waiting.text("err").contains("waiting until"));
        waiting
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.sandbox.at(name)).unwrap()
    }

    /// Asserts that the process still waits a few polls later.
    #[track_caller]
    fn goes_on(&mut self) {
        // It polls once a second, which is not visible from outside.
        assert!(wait_timeout(&mut self.child, 2 * LOOK).is_none(), "{}", self.text("out"));
    }

    /// Returns how the process ended.
    #[track_caller]
    fn end(mut self) -> CommandOutput {
        let status = wait_timeout(&mut self.child, LIMIT);
        assert!(status.is_some(), "the command is still running: {}", self.text("err"));
        CommandOutput {
            code: status.and_then(|status| status.code()),
            out: self.text("out"),
            err: self.text("err"),
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Poll interval of `wait`.
const LOOK: Duration = Duration::from_secs(1);

fn swarm() -> TestStore {
    let store = TestStore::new();
    store
        .worker("a", json!({"owner_id": 7, "status": "running"}))
        .worker("b", json!({"owner_id": 8, "status": "running"}));
    store
}

/// Replaces `path` of `store` atomically by the same path of another store, or removes it.
fn exchange(store: &TestStore, path: &str, becomes: Option<&TestStore>) {
    match becomes {
        Some(other) => fs::rename(other.at(path), store.at(path)),
        None => fs::rename(store.at(path), MountSandbox::new().at("gone")),
    }
    .unwrap();
}

/// Changes the status of an existing worker.
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

fn cursor(done: &CommandOutput) -> &str {
    done.out.lines().last().unwrap()
}

/// Promise: A wait for all ends when every worker has finished, and reports how.
#[test]
fn wait_for_all_reports_how_workers_finished() {
    let store = swarm();
    let mut waiting = Waiting::begin(&store, &[]);
    set(&store, "a", "completed");
    waiting.goes_on();
    set(&store, "b", "failed");
    let done = waiting.end();
    assert!(
        done.assert_success()
            .out
            .starts_with("Of 2 workers: 1 completed, 1 failed. Failed: b\nSince "),
        "{done:#?}"
    );
    for line in ["finished completed a: last write ", "finished failed    b: last write "] {
        assert!(done.out.contains(line), "{done:#?}");
    }
    // An event that has occurred already ends the wait at once.
    let mut command = swarmletfs(["wait", "--until", "finished", "--store"]);
    command.arg(store.path());
    assert!(
        run(command)
            .assert_success()
            .out
            .starts_with("Of 2 workers: 1 completed, 1 failed. Failed: b\n")
    );
}

/// Promise: A wait for a failure ends with the first failure.
#[test]
fn wait_for_a_failure_ends_with_the_first() {
    let store = swarm();
    let mut waiting = Waiting::begin(&store, &["--until", "failed"]);
    set(&store, "a", "completed");
    waiting.goes_on();
    add(&store, "c", json!({"status": "failed"}));
    let done = waiting.end();
    assert!(done.assert_success().out.contains("\nnew      failed    c: "), "{done:#?}");
    // With a cursor, an earlier failure does not count.
    let mut waiting = Waiting::begin(&store, &["--until", "failed", "--since", cursor(&done)]);
    exchange(&store, "workers/c", None);
    waiting.goes_on();
    set(&store, "b", "failed");
    assert!(waiting.end().assert_success().out.contains("\nfinished failed    b: "));
}

/// Promise: A wait for any change ends with the first change.
#[test]
fn wait_for_any_change_ends_with_the_first() {
    let store = swarm();
    store.worker("d", json!({"status": "completed"}));
    let mut waiting = Waiting::begin(&store, &["--until", "any"]);
    waiting.goes_on();
    let other = TestStore::new();
    other.write("workers/a/logs/run.log", "line\n");
    exchange(&store, "workers/a/logs", Some(&other));
    let mut done = waiting.end();
    assert!(done.assert_success().out.contains("logs/run.log (5 B)"), "{done:#?}");
    let changes: [(&str, &dyn Fn()); 4] = [
        ("new      running   e: ", &|| add(&store, "e", json!({"status": "running"}))),
        ("finished completed a: ", &|| set(&store, "a", "completed")),
        // The metadata may have the timestamp of the cursor, and is then reported again.
        ("finished completed a: last write ", &|| exchange(&store, "workers/a/logs", None)),
        ("1 worker\n", &|| exchange(&store, "workers/e", None)),
    ];
    for (number, (expected, change)) in changes.into_iter().enumerate() {
        let since = |cursor: &str| {
            let mut command = swarmletfs(["since", cursor, "--store"]);
            command.arg(store.path());
            run(command)
        };
        // A file that was being written during the poll is reported once more, and then no longer.
        let told_again = since(cursor(&done));
        let next = cursor(&told_again).to_owned();
        assert!(since(&next).assert_success().out.contains(": nothing changed in "));
        // Nothing is lost between two waits, whichever comes first.
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
        assert!(done.assert_success().out.contains(expected), "{expected}: {done:#?}");
    }
}

/// Promise: A wait that times out names the unfinished workers and loses no change.
#[test]
fn timed_out_wait_names_unfinished_workers() {
    let store = swarm();
    store.worker("c", json!({"status": "completed"}));
    let mut command = swarmletfs(["wait", "--timeout", "0s", "--store"]);
    command.arg(store.path());
    let done = run(command);
    assert_eq!(done.code, Some(3), "{done:#?}");
    assert!(done.out.starts_with("2 of 3 workers not finished. "), "{done:#?}");
    assert!(
        done.out.contains("\nrunning   a: last write ")
            && done.out.contains("\nrunning   b: last write ")
    );
    assert!(!done.out.contains(" c: ") && done.err.contains("the time is over"), "{done:#?}");
    store.worker("a", json!({"status": "completed"}));
    let mut command = swarmletfs([
        "wait",
        "--until",
        "any",
        "--timeout",
        "0",
        "--since",
        cursor(&done),
        "--store",
    ]);
    command.arg(store.path());
    assert!(run(command).assert_success().out.contains("finished completed a: "));
    for (until, owner, out) in
        [("failed", "7", "0 of 1 worker"), ("any", "9", "There are no workers.")]
    {
        let mut command = swarmletfs([
            "wait",
            "--timeout",
            "50ms",
            "--until",
            until,
            "--owner",
            owner,
            "--store",
        ]);
        store.worker("a", json!({"owner_id": 7, "status": "completed"}));
        command.arg(store.path());
        let done = run(command);
        assert_eq!(done.code, Some(3), "{done:#?}");
        assert!(done.out.starts_with(out) || done.out.starts_with("All workers (1)"), "{done:#?}");
    }
}

/// Promise: A wait counts abandoned workers as finished, and names them.
#[test]
fn wait_counts_abandoned_workers_as_finished() {
    let store = TestStore::new();
    let mut transcript = Transcript::live("s");
    store.write("projects/-p/s.jsonl", transcript.user("look").bytes());
    // No file changes meanwhile: the clock decides.
    let waiting = Waiting::begin(&store, &["--stale", "2s"]);
    let done = waiting.end();
    assert!(
        done.assert_success().out.starts_with("Of 1 worker: 1 abandoned. Abandoned: s\nSince "),
        "{done:#?}"
    );
    assert!(done.out.contains("\nfinished abandoned s: last write "), "{done:#?}");
    let waiting = Waiting::begin(&store, &["--until", "any", "--stale", "1h"]);
    assert!(waiting.text("err").contains("; 0 of 1 worker finished so far"));
}

/// Promise: A worker that was abandoned since a cursor is reported, whatever else changed.
#[test]
fn since_reports_an_abandoned_worker() {
    let store = TestStore::new();
    let mut transcript = Transcript::live("s");
    store.write("projects/-p/s.jsonl", transcript.user("look").bytes());
    let written = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos();
    let swarmletfs_at = |arguments: &[&str]| {
        let mut command = swarmletfs(arguments);
        command.args(["--stale", "8s", "--store"]).arg(store.path());
        run(command)
    };
    let mut first = swarmletfs_at(&["since", "now"]);
    wait_until("the cursor is after the write of s", || {
        store.write("projects/-p/t.jsonl", Transcript::live("t").user("look").bytes());
        first = swarmletfs_at(&["since", "now"]);
        let (time, _) = cursor(&first).split_once('-').unwrap();
        time.parse::<u128>().unwrap() > written + 50_000_000
    });
    wait_until("s is abandoned", || {
        swarmletfs_at(&["ls", "by/status/abandoned"]).out.contains("s\n")
    });
    store.write("projects/-p/t.jsonl", Transcript::live("t").user("look again").bytes());
    let then = swarmletfs_at(&["since", cursor(&first)]);
    for line in ["\nfinished abandoned s: ", "; nothing was written for long\n", " running   t: "] {
        assert!(then.assert_success().out.contains(line), "{line}: {first:#?} {then:#?}");
    }
    assert!(!then.out.contains("everything is listed again"), "{then:#?}");
}

/// Every command that shows the status of workers takes the time limit.
#[test]
fn commands_take_the_time_limit() {
    let store = TestStore::new();
    store.write("projects/-p/s.jsonl", Transcript::new("s").user("look").bytes());
    for (arguments, expected) in [
        (&["cat", "workers/s/summary"][..], "abandoned (its record says running), last message "),
        (&["ls", "by/status/abandoned"], "s\n"),
        (&["since", "0"], "new      abandoned s: "),
        (&["grep", "look"], "look"),
        (&["wait", "--timeout", "0"], "Of 1 worker: 1 abandoned"),
    ] {
        let mut command = swarmletfs(arguments);
        command.args(["--stale", "0", "--store"]).arg(store.path());
        let done = run(command);
        assert!(done.out.contains(expected), "{arguments:?}: {done:#?}");
    }
    let mut command = swarmletfs(["ls", "--stale", "soon", "--store"]);
    command.arg(store.path());
    assert_eq!(run(command).code, Some(2));
}

/// Promise: Commands show ages by the clock; JSON and piped listings hold only dates.
#[test]
fn commands_show_ages_by_the_clock() {
    let store = swarm();
    for id in ["a", "b"] {
        for path in ["metadata.json", ""] {
            let file = fs::File::open(store.at(format!("workers/{id}/{path}"))).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(3 * 3_600 + 60)).unwrap();
        }
    }
    let at_store = |arguments: &[&str]| {
        let mut command = swarmletfs(arguments);
        command.arg("--store").arg(store.path());
        run(command).out
    };
    let report = at_store(&["wait", "--timeout", "0"]);
    assert!(report.contains("Z (3h ago)\nrunning   b: last write "), "{report}");
    for arguments in [&["ls", "-l", "workers"][..], &["tree", "-D"]] {
        let out = at_store(arguments);
        assert!(!out.contains(" ago") && out.contains("Z"), "{out}");
    }
}

/// Promise: A wait also works on a view without workers.
#[test]
fn wait_starts_on_a_view_without_workers() {
    let store = TestStore::new();
    store.worker("other", json!({"owner_id": 8, "status": "failed"}));
    let mut waiting = Waiting::begin(&store, &["--owner", "7"]);
    assert!(waiting.text("err").contains("; there are no workers yet"));
    waiting.goes_on();
    add(&store, "mine", json!({"owner_id": 7, "status": "completed"}));
    let done = waiting.end();
    assert!(
        done.assert_success().out.starts_with("Of 1 worker: 1 completed\n")
            && !done.out.contains("other"),
        "{done:#?}"
    );
}

/// Promise: A signal ends a wait at once.
#[test]
fn signal_ends_a_wait_at_once() {
    for signal in [Signal::INT, Signal::TERM] {
        let mut waiting = Waiting::begin(&swarm(), &[]);
        kill_process(Pid::from_child(&waiting.child), signal).unwrap();
        let status = wait_timeout(&mut waiting.child, LIMIT).unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(signal.as_raw()));
        assert_eq!(waiting.text("out"), "");
    }
}

/// Promise: A wait continues on a store that replaces the one it started on.
#[test]
fn wait_continues_on_a_replaced_store() {
    let store = swarm();
    let waiting = Waiting::begin(&store, &[]);
    let away: PathBuf = store.path().with_file_name("away");
    fs::rename(store.path(), &away).unwrap();
    let other = TestStore::new();
    other.worker("x", json!({"status": "completed"}));
    fs::rename(other.path(), store.path()).unwrap();
    let done = waiting.end();
    assert!(
        done.assert_success().out.starts_with("Of 1 worker: 1 completed\n")
            && done.out.contains(" x: "),
        "{done:#?}"
    );
}

#[test]
fn wait_rejects_invalid_arguments() {
    for (typed_words, named) in [
        (&["--until", "done"][..], "finished"),
        (&["--timeout", "soon"], "30s"),
        (&["--timeout", "-1"], "-1"),
        (&["--timeout", ""], "--timeout"),
        (&["--owner", ""], "--owner"),
        (&["--mount"], "--mount"),
    ] {
        let mut command = swarmletfs(["wait"]);
        command.args(typed_words);
        run(command).assert_failure(2, &[named]);
    }
}
