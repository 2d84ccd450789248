//! Many recorders at once: of one worker, of many workers in one store, and beside its end.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use serde_json::Value;
use swarmletfs_record::write::{CallEnd, Durability, Error, Finish, NewWorker, StoreOptions};

use super::store::{
    TEMPORARY, assert_readable, assert_whole, command, ended_calls, input, metadata, new_store,
    outputs, read_tree, record, worker, worker_lines,
};
use crate::cli::program::wait_until;
use crate::support::scale;

/// Number of recorders at once.
const RECORDERS: usize = 64;

/// Starts a command that records.
fn start(store: &Path, arguments: &[&str], stdin: impl AsRef<[u8]>) -> Child {
    let mut command = command(store, arguments);
    command.stdin(input(stdin)).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// Waits for a command that succeeds, and returns what it printed.
#[track_caller]
fn end(child: Child) -> String {
    let done = child.wait_with_output().unwrap();
    assert!(done.status.success(), "{done:?}");
    assert_eq!(String::from_utf8(done.stderr).unwrap(), "");
    String::from_utf8(done.stdout).unwrap().trim_end().to_owned()
}

/// Returns the output of the recorder `number`, with several lines.
fn output(number: usize) -> String {
    format!("a line of recorder {number}\n").repeat(200)
}

/// Asserts that the calls of `w1` are those of the recorders `numbers`, each with its own output.
#[track_caller]
fn assert_calls(store: &Path, numbers: impl IntoIterator<Item = usize>) {
    let (ended, outputs) = (ended_calls(store, "w1"), outputs(store, "w1"));
    let mut missing: BTreeSet<usize> = numbers.into_iter().collect();
    assert_eq!(ended.len(), missing.len());
    assert_eq!(
        outputs.keys().collect::<Vec<_>>(),
        (1..=missing.len() as u64).collect::<Vec<_>>().iter().collect::<Vec<_>>()
    );
    for (seq, call) in &ended {
        let number = usize::try_from(call["input"]["number"].as_u64().unwrap()).unwrap();
        assert!(missing.remove(&number), "two calls of recorder {number}");
        assert!(outputs[seq].1 == output(number).as_bytes(), "call {seq} has another's output");
        assert!(outputs[seq].0.ends_with("_sh.txt"));
    }
    let started = worker_lines(store, "w1", "metrics.jsonl");
    let started = started.iter().filter(|line| line["event"] == "call_start");
    for line in started {
        let call = &ended[&line["seq"].as_u64().unwrap()];
        assert_eq!(line["input"], call["input"], "a start and an end of two calls");
    }
}

/// Promise: Concurrent recorders of one worker never share a number.
#[test]
fn concurrent_recorders_of_one_worker_lose_no_call() {
    let (_dir, store) = new_store();
    let recorders: Vec<Child> = (0..RECORDERS)
        .map(|number| {
            let input = format!("{{\"number\": {number}}}");
            let arguments =
                ["worker", "record", "w1", "--tool", "sh", "--exit", "0", "--input", &input];
            start(&store, &arguments, output(number))
        })
        .collect();
    let paths: BTreeSet<String> = recorders.into_iter().map(end).collect();
    assert_eq!(paths.len(), RECORDERS);
    assert_calls(&store, 0..RECORDERS);
    record(&store, &["worker", "finish", "w1"], "").assert_success();
    assert_whole(&store);
    assert_readable(&store);
}

/// Promise: Concurrent recorders of one worker never share a number.
#[test]
fn concurrent_threads_of_one_process_lose_no_call() {
    const THREADS: usize = 16;
    let calls = scale(16);
    let (_dir, path) = new_store();
    let open = || StoreOptions::default().durability(Durability::None).open(&path).unwrap();
    let shared = open().worker("w1").unwrap();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            // Half of the threads share a worker that was opened once.
            let own = if thread % 2 == 0 { shared.clone() } else { open().worker("w1").unwrap() };
            scope.spawn(move || {
                for number in thread * calls..(thread + 1) * calls {
                    let input = serde_json::json!({"number": number});
                    let mut call = own.begin_call("sh", Some(input)).unwrap();
                    call.write_all(output(number).as_bytes()).unwrap();
                    call.end(CallEnd::success(true)).unwrap();
                    own.message("assistant", &format!("call {number} has ended")).unwrap();
                }
            });
        }
    });
    assert_calls(&path, 0..THREADS * calls);
    let contents: BTreeSet<String> = worker_lines(&path, "w1", "thread.jsonl")
        .iter()
        .map(|line| line["content"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(contents.len(), THREADS * calls);
    shared.finish(Finish::completed()).unwrap();
    assert_whole(&path);
    assert_readable(&path);
}

/// Promise: An index is whole at every moment, however many workers are created and finished.
#[test]
fn concurrent_workers_share_an_index_that_is_whole_at_every_moment() {
    let (_dir, store) = new_store();
    record(&store, &["worker", "create", "--id", "w0", "--index"], "").assert_success();
    let (has_ended, reads) = (AtomicBool::new(false), AtomicUsize::new(0));
    let parse = || -> Value {
        let bytes = fs::read(store.join("workers/index.json")).unwrap();
        serde_json::from_slice(&bytes).unwrap_or_else(|error| panic!("{error}: {bytes:?}"))
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            while !has_ended.load(Ordering::Relaxed) {
                let index = parse();
                let count = index["workers"].as_array().unwrap().len() as u64;
                assert_eq!(index["total_workers"], count);
                reads.fetch_add(1, Ordering::Relaxed);
            }
        });
        let workers: Vec<_> = (0..RECORDERS)
            .map(|number| {
                let store = &store;
                scope.spawn(move || {
                    let id = format!("worker-{number}");
                    let run = |arguments: &[&str], stdin: &str| end(start(store, arguments, stdin));
                    run(&["worker", "create", "--id", &id, "--tag", &id], "");
                    run(&["worker", "record", &id, "--tool", "sh"], &output(number));
                    run(&["worker", "finish", &id, "--result", "-"], &id);
                })
            })
            .collect();
        let ended: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        has_ended.store(true, Ordering::Relaxed);
        assert!(ended.iter().all(Result::is_ok));
    });
    let index = parse();
    for number in 0..RECORDERS {
        let id = format!("worker-{number}");
        let entries = index["workers"].as_array().unwrap().iter();
        let entries: Vec<_> = entries.filter(|entry| entry["id"] == id.as_str()).collect();
        assert_eq!(entries.len(), 1, "{id}");
        assert_eq!(entries[0]["status"], "completed");
        assert_eq!(metadata(&store, &id)["status"], "completed");
        assert_eq!(outputs(&store, &id)[&1].1, output(number).as_bytes());
        assert_eq!(fs::read_to_string(worker(&store, &id).join("result.txt")).unwrap(), id);
    }
    let reads = reads.into_inner();
    assert!(reads > 10, "only {reads} reads");
    assert_whole(&store);
    assert_readable(&store);
}

/// Promise: A worker cannot finish while a call of it is being recorded.
#[test]
fn worker_does_not_finish_while_a_call_is_recorded() {
    let (_dir, store) = new_store();
    let mut recorder = command(&store, &["worker", "record", "w1", "--tool", "sh"]);
    recorder.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut recorder = recorder.spawn().unwrap();
    let mut pipe = recorder.stdin.take().unwrap();
    wait_until("the beginning of a call", || {
        worker_lines(&store, "w1", "metrics.jsonl").len() == 1
    });
    let finish = ["worker", "finish", "w1", "--result", "-"];
    let refused = record(&store, &finish, "too early\n");
    refused.assert_failure(1, &["tool_calls/001_sh.txt is still being recorded"]);
    assert_eq!(metadata(&store, "w1")["status"], "running");
    assert!(!worker(&store, "w1").join("result.txt").exists());
    pipe.write_all(b"the output\n").unwrap();
    drop(pipe);
    assert_eq!(end(recorder), "tool_calls/001_sh.txt");
    record(&store, &finish, "done\n").assert_success();
    assert_eq!(outputs(&store, "w1")[&1].1, b"the output\n");

    // A recorder that was killed holds up nothing.
    record(&store, &["worker", "create", "--id", "w2"], "").assert_success();
    let mut recorder = command(&store, &["worker", "record", "w2", "--tool", "sh"]);
    let mut recorder = recorder.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    wait_until("the beginning of a call", || {
        worker_lines(&store, "w2", "metrics.jsonl").len() == 1
    });
    recorder.kill().unwrap();
    recorder.wait().unwrap();
    record(&store, &["worker", "finish", "w2"], "").assert_success();
    assert_whole(&store);
    assert_readable(&store);
}

/// Promise: A worker that has finished does not change any more.
#[test]
fn finished_worker_refuses_every_change() {
    let (_dir, path) = new_store();
    let open = || StoreOptions::default().durability(Durability::None).open(&path).unwrap();
    for round in 0..scale(20) {
        let id = format!("round-{round}");
        let recorded_worker = open().create_worker(NewWorker::new("a task").id(&id)).unwrap();
        let (acknowledged, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let at_end = thread::scope(|scope| {
            for thread in 0..4 {
                let (own, acknowledged, refused) =
                    (recorded_worker.clone(), &acknowledged, &refused);
                scope.spawn(move || {
                    for number in 0.. {
                        let recorded = own.begin_call("sh", None).and_then(|mut call| {
                            call.write_all(b"output\n").unwrap();
                            call.end(CallEnd::success(true)).map(drop)
                        });
                        let recorded = recorded.and_then(|()| own.message("user", "hello"));
                        let file = format!("outputs/{thread}-{number}");
                        let recorded =
                            recorded.and_then(|()| own.put(file, &mut &b"x"[..]).map(drop));
                        match recorded {
                            Ok(()) => acknowledged.fetch_add(1, Ordering::Relaxed),
                            Err(Error::Finished { .. }) => break,
                            Err(error) => panic!("{error}"),
                        };
                    }
                    refused.fetch_add(1, Ordering::Relaxed);
                });
            }
            wait_until("some calls", || acknowledged.load(Ordering::Relaxed) > round % 5);
            loop {
                match recorded_worker.finish(Finish::completed().result("done")) {
                    Ok(()) => break read_tree(&worker(&path, &id)),
                    Err(Error::OpenCall { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        });
        assert_eq!(refused.into_inner(), 4);
        let after = read_tree(&worker(&path, &id));
        let without_temporary = |tree: BTreeMap<String, Option<Vec<u8>>>| {
            tree.into_iter().filter(|(path, _)| !path.contains(TEMPORARY)).collect::<Vec<_>>()
        };
        assert!(
            without_temporary(after) == without_temporary(at_end),
            "{id} changed after its end"
        );
        let ended = ended_calls(&path, &id);
        assert!(ended.len() >= acknowledged.into_inner());
        assert_eq!(ended.len(), outputs(&path, &id).len(), "a call has no end");
    }
    let finished = "has finished (completed)";
    for arguments in [
        &["worker", "record", "round-0", "--tool", "sh"][..],
        &["worker", "message", "round-0"],
        &["worker", "put", "round-0", "outputs/late.md"],
        &["worker", "finish", "round-0", "--status", "failed"],
    ] {
        let stdin = "{\"role\": \"user\", \"content\": \"late\"}";
        record(&path, arguments, stdin).assert_failure(1, &[finished]);
    }
    assert_whole(&path);
}
