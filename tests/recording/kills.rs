//! Recorders that are killed at random moments.
//!
//! A crash that tore a last line, and what the next change makes of it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::store::{
    assert_readable, assert_whole, assert_writable, command, ended_calls, input, new_store,
    outputs, record, worker, worker_lines,
};
use crate::support::{is_full, rng, scale};

/// Number of killed recorders at each check.
const KILLS: usize = 100;
/// Number of pieces in which the slow recorder gets its output.
const PIECES: usize = 5;
/// Bytes of an output or a file.
const SIZE: usize = 20_000;

/// Everything that was acknowledged.
#[derive(Default)]
struct Acknowledged {
    /// Outputs by their paths in the worker's directory.
    calls: BTreeMap<String, String>,
    messages: Vec<String>,
    /// Contents that a file may have, by its path; the last acknowledged one and later attempts.
    files: BTreeMap<String, Vec<String>>,
    workers: Vec<String>,
}

/// A recorder of one change.
struct Recorder {
    child: Child,
    change: Change,
}

enum Change {
    Call(String),
    Message(String),
    File(String, String),
    Worker(String),
}

/// Starts a recorder, which gets its input in pieces with this pause between them.
fn start(store: &Path, change: Change, pause: Duration) -> Recorder {
    let (arguments, stdin): (Vec<&str>, _) = match &change {
        Change::Call(output) => {
            (vec!["worker", "record", "w1", "--tool", "sh", "--exit", "0"], output.clone())
        }
        Change::Message(content) => {
            let message = serde_json::json!({"role": "user", "content": content});
            (vec!["worker", "message", "w1"], format!("{message}\n"))
        }
        Change::File(path, content) => (vec!["worker", "put", "w1", path], content.clone()),
        Change::Worker(id) => (vec!["worker", "create", "--id", id, "--index"], String::new()),
    };
    let mut command = command(store, &arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    if pause.is_zero() {
        let child = command.stdin(input(stdin)).spawn().unwrap();
        return Recorder { child, change };
    }
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    thread::spawn(move || {
        for piece in stdin.as_bytes().chunks(SIZE / PIECES) {
            // The pipe is broken once the recorder is killed.
            if pipe.write_all(piece).is_err() {
                break;
            }
            thread::sleep(pause);
        }
    });
    Recorder { child, change }
}

/// Waits for a recorder. Returns true if it was killed.
fn end(recorder: Recorder, acknowledged: &mut Acknowledged) -> bool {
    let done = recorder.child.wait_with_output().unwrap();
    let is_acknowledged = done.status.success();
    match recorder.change {
        Change::Call(output) if is_acknowledged => {
            let path = String::from_utf8(done.stdout).unwrap().trim_end().to_owned();
            let before = acknowledged.calls.insert(path, output);
            assert_eq!(before, None, "two calls share a number");
        }
        Change::Message(content) if is_acknowledged => acknowledged.messages.push(content),
        Change::Worker(id) if is_acknowledged => acknowledged.workers.push(id),
        Change::File(path, content) => {
            let contents = acknowledged.files.entry(path).or_default();
            if is_acknowledged {
                contents.clear();
            }
            contents.push(content);
        }
        _ => {}
    }
    let is_killed = done.status.signal() == Some(9);
    assert!(is_acknowledged || is_killed, "a recorder failed: {:?}", done.status);
    is_killed
}

#[track_caller]
fn assert_all_there(store: &Path, acknowledged: &Acknowledged) {
    let ended = ended_calls(store, "w1");
    let outputs = outputs(store, "w1");
    for (path, output) in &acknowledged.calls {
        let is_named = |name: &str| path.strip_prefix("tool_calls/") == Some(name);
        let (seq, (_, bytes)) = outputs.iter().find(|(_, (name, _))| is_named(name)).unwrap();
        assert!(bytes == output.as_bytes(), "{path} is not as it was recorded");
        assert_eq!(ended[seq]["exit_code"], 0, "{path} has no end");
    }
    let lines = worker_lines(store, "w1", "thread.jsonl");
    for content in &acknowledged.messages {
        let found = lines.iter().filter(|line| line["content"] == content.as_str()).count();
        assert_eq!(found, 1, "a message was lost: {content}");
    }
    for (path, contents) in &acknowledged.files {
        let found = std::fs::read_to_string(worker(store, "w1").join(path)).unwrap_or_default();
        let is_first = |content: &String| content.starts_with("version 0 ");
        let may_be_missing = found.is_empty() && contents.first().is_some_and(is_first);
        assert!(may_be_missing || contents.contains(&found), "{path} has another content");
    }
    for id in &acknowledged.workers {
        assert!(worker(store, id).join("metadata.json").is_file(), "worker {id} was lost");
    }
}

/// Promise: A change that was acknowledged survives the end of its process at any moment.
#[test]
fn acknowledged_changes_survive_kills_at_random_moments() {
    let (_dir, store) = new_store();
    let (wanted, mut rng) = (scale(KILLS), rng());
    let (mut acknowledged, mut kills) = (Acknowledged::default(), 0);
    // The moments are spread over the time that a recorder takes on this machine.
    let mut longest = Duration::from_millis(20);
    for round in 0.. {
        if kills >= wanted && round >= 10 {
            break;
        }
        let text = |what: &str| format!("{what} of round {round}\n").repeat(SIZE / 25);
        let pause = longest / 10;
        let changes = [
            (Change::Call(text("an output")), Duration::ZERO),
            (Change::Call(text("a slow output")), pause),
            (Change::Message(format!("message {round}")), Duration::ZERO),
            (
                Change::File(format!("outputs/{}/a.txt", round % 3), {
                    format!("version {} {}", round / 3, text("a file"))
                }),
                Duration::ZERO,
            ),
            (Change::Worker(format!("new-{round}")), Duration::ZERO),
        ];
        let begun = Instant::now();
        let mut recorders: Vec<Recorder> =
            changes.into_iter().map(|(change, pause)| start(&store, change, pause)).collect();
        // In every eighth round nothing is killed, which also measures the time.
        if round % 8 != 0 {
            let moment = longest.mul_f64(rng.f64() * 1.2);
            thread::sleep(moment.saturating_sub(begun.elapsed()));
            for recorder in recorders.iter_mut().filter(|_| rng.u8(0..4) != 0) {
                let _ = recorder.child.kill();
            }
        }
        for recorder in recorders {
            kills += usize::from(end(recorder, &mut acknowledged));
        }
        if round % 8 == 0 {
            longest = begun.elapsed();
        }
        if round % 16 == 0 {
            assert_all_there(&store, &acknowledged);
        }
    }
    record(&store, &["worker", "message", "w1"], "{\"role\": \"user\", \"content\": \"last\"}\n")
        .assert_success();
    let finished = record(&store, &["worker", "finish", "w1", "--result", "-"], "done\n");
    finished.assert_success();
    assert_all_there(&store, &acknowledged);
    assert_whole(&store);
    assert_writable(&store);
    assert_readable(&store);
    let Acknowledged { calls, messages, files, workers } = acknowledged;
    eprintln!(
        "{kills} recorders killed; acknowledged: {} calls, {} messages, {} workers; {} files",
        calls.len(),
        messages.len(),
        workers.len(),
        files.len()
    );
    let are_many = calls.len() > 10 && messages.len() > 10 && workers.len() > 10;
    assert!(are_many || !is_full());
}

/// Appends `bytes` to a file of the store.
fn append(path: &Path, bytes: &str) {
    File::options().append(true).open(path).unwrap().write_all(bytes.as_bytes()).unwrap();
}

/// Promise: The next change removes a line that a crash tore.
#[test]
fn torn_last_line_is_removed_by_the_next_append() {
    let (_dir, store) = new_store();
    let message = "{\"role\": \"user\", \"content\": \"first\"}\n";
    let call = ["worker", "record", "w1", "--tool", "sh", "--exit", "0"];
    record(&store, &["worker", "message", "w1"], message).assert_success();
    record(&store, &call, "one\n").assert_success();

    let line = "{\"role\": \"user\", \"content\": \"torn\"}";
    for end in 1..line.len() {
        append(&worker(&store, "w1").join("thread.jsonl"), &line[..end]);
        let recorded = record(&store, &["worker", "message", "w1"], message);
        let warning = format!("thread.jsonl of worker w1: removed {end} bytes of a line");
        assert!(recorded.assert_success().err.contains(&warning), "{recorded:#?}");
    }
    let contents = worker_lines(&store, "w1", "thread.jsonl");
    assert_eq!(contents.len(), line.len());
    assert!(contents.iter().all(|line| line["content"] == "first"), "{contents:#?}");

    append(&worker(&store, "w1").join("metrics.jsonl"), "{\"event\": \"tool_c");
    record(&store, &call, "two\n").assert_success();
    assert_eq!(ended_calls(&store, "w1").len(), 2);

    for log in fs::read_dir(store.join("audit")).unwrap() {
        append(&log.unwrap().path(), "{\"time\": \"20");
    }
    record(&store, &["worker", "finish", "w1"], "").assert_success();
    assert_whole(&store);
    assert_readable(&store);
}

/// A whole last line without its end was written, so it stays.
#[test]
fn whole_last_line_without_its_end_is_kept() {
    let (_dir, store) = new_store();
    let message = "{\"role\": \"user\", \"content\": \"second\"}\n";
    fs::write(
        worker(&store, "w1").join("thread.jsonl"),
        "{\"role\": \"user\", \"content\": \"first\"}",
    )
    .unwrap();
    let recorded = record(&store, &["worker", "message", "w1"], message);
    assert_eq!(recorded.assert_success().err, "");
    let contents = worker_lines(&store, "w1", "thread.jsonl");
    assert_eq!(contents[0]["content"], "first");
    assert_eq!(contents[1]["content"], "second");
    assert_eq!(contents.len(), 2);
}
