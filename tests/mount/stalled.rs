//! Work that does not return (R37): an output of one worker cannot be read to its end. That
//! worker's files report it, all others are served, and the process ends on request. A tracer
//! blocks each read of the output, like a parser that never ends.

use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::eventually;
use crate::cli::program::{is_root, run, swarmletfs};
use crate::needs_fuse;
use crate::support::mount::connection_at;
use crate::support::tool::is_here;
use crate::support::{Mount, TestStore, scale};

/// Timeout against hangs for one read. The promise is the deadline of 2 s plus one second.
const ANSWER: Duration = Duration::from_secs(20);
/// Number of readers, how many of them read the stalled worker, and rounds per reader.
const READERS: usize = 64;
const READERS_OF_BAD: usize = 16;
const ROUNDS: usize = 8;
/// The stalled output, as a path in the store.
const STALLS: &str = "workers/bad/tool_calls/001_sh.txt";
/// Texts for data that could not be read: at first, and after some seconds.
const LATE: &str = "not read in time";
const ABANDONED: &str = "did not finish in time and was abandoned";

fn store() -> TestStore {
    let store = TestStore::new();
    store.worker("bad", json!({"status": "failed"}));
    store.call("bad", 1, "sh", "Error: never read\n");
    for number in 0..10 {
        let name = format!("w{number}");
        store.worker(&name, json!({"status": "failed"}));
        store.call(&name, 1, "sh", format!("Error: number {number}\n"));
    }
    store
}

/// Mounts `store`, one output of which blocks every read. Returns `None` where that is not
/// possible.
fn mount_with_stalled_output(store: &TestStore) -> Option<Mount> {
    if !is_root() || !is_here("strace") {
        return None;
    }
    let stalls = store.path().canonicalize().unwrap().join(STALLS);
    let tracer =
        ["strace", "-f", "--seccomp-bpf", "-o", "/dev/null", "-P", stalls.to_str().unwrap()];
    let hold = ["-e", "trace=pread64", "-e", "inject=pread64:delay_enter=3600000000"];
    let mut mount = Mount::by(&[&tracer[..], &hold].concat(), &store.path(), &[]);
    mount.expect_warning("reading the files of worker bad does not end; the thread was abandoned");
    Some(mount)
}

/// Returns the serving process, which the tracer started.
fn server(mount: &Mount) -> Pid {
    let children = format!("/proc/{0}/task/{0}/children", mount.pid());
    let pid =
        fs::read_to_string(children).unwrap().split_whitespace().next().unwrap().parse().unwrap();
    Pid::from_raw(pid).unwrap()
}

/// Reads `path`. Fails if that takes too long.
fn read(mount: &Path, path: &str, longest: &Mutex<Duration>) -> String {
    let begun = Instant::now();
    let text =
        fs::read_to_string(mount.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    let took = begun.elapsed();
    let mut longest = longest.lock().unwrap();
    *longest = took.max(*longest);
    assert!(took < ANSWER, "{path} took {took:?}");
    text
}

/// Promise: A worker whose reads block delays no answer about other workers.
#[test]
fn blocked_worker_delays_no_other_answer() {
    needs_fuse!();
    let store = store();
    let Some(mount) = mount_with_stalled_output(&store) else { return };
    let (point, longest, of_bad) = (mount.path(), Mutex::default(), Mutex::default());
    thread::scope(|scope| {
        for number in 0..READERS_OF_BAD {
            let (point, of_bad) = (&point, &of_bad);
            scope.spawn(move || {
                for round in 0..scale(ROUNDS) {
                    let evidence = format!("evidence.{}.txt", 500 + round);
                    let page = ["summary", "index.json", &evidence][number % 3];
                    let text = read(point, &format!("workers/bad/{page}"), of_bad);
                    assert!(text.contains(LATE) || text.contains(ABANDONED), "{page}: {text}");
                }
            });
        }
        for number in READERS_OF_BAD..READERS {
            let (point, longest) = (&point, &longest);
            scope.spawn(move || {
                for round in 0..scale(ROUNDS) {
                    let worker = (number + round) % 10;
                    let text = read(
                        point,
                        &format!("workers/w{worker}/evidence.{}.txt", 500 + number),
                        longest,
                    );
                    assert!(text.contains(&format!("Error: number {worker}")), "{text}");
                    let text = read(point, "summary", longest);
                    assert!(text.contains("11 failed"), "{text}");
                    let text = read(point, &format!("evidence.{}.txt", 4_000 + round), longest);
                    assert!(text.contains("Error: number"), "{text}");
                    let text =
                        read(point, &format!("workers/w{worker}/search/number {worker}"), longest);
                    assert!(text.contains(&format!("Error: number {worker}")), "{text}");
                }
            });
        }
    });
    println!(
        "longest answer {:?}, of the worker that stalls {:?}",
        longest.lock().unwrap(),
        of_bad.lock().unwrap()
    );
    eventually("a summary that says so", || {
        let summary = mount.text("summary");
        (summary.contains("bad") && summary.contains(ABANDONED)).then_some(())
    });
    let evidence = mount.text("workers/bad/evidence.txt");
    assert!(evidence.contains(ABANDONED), "{evidence}");
}

/// Reads files of the stalled worker, each once, waits until its output is being read, and calls
/// `then`.
fn while_it_is_read(mount: &Mount, then: impl FnOnce(Pid)) {
    let server = server(mount);
    let is_reading = || {
        let tasks = fs::read_dir(format!("/proc/{}/task", server.as_raw_pid())).unwrap();
        let names =
            tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
        names.filter(|name| name.trim_end() == "record").count() > 0
    };
    thread::scope(|scope| {
        for page in [
            "summary",
            "index.json",
            "evidence.txt",
            "evidence.2k.txt",
            "../../summary",
            "../../index.json",
        ] {
            let path = mount.at("workers/bad").join(page);
            // The result does not matter here.
            scope.spawn(move || drop(fs::read(&path)));
        }
        eventually("a read that waits", || is_reading().then_some(()));
        then(server);
    });
}

#[test]
fn umount_returns_when_the_process_has_ended() {
    needs_fuse!();
    if !is_root() {
        return;
    }
    let store = store();
    let mut mount = Mount::new(&store.path());
    let (point, pid) = (mount.path(), Pid::from_child(mount.process()));
    // A stopped process does not notice that its mount is gone.
    kill_process(pid, Signal::STOP).unwrap();
    let umount = thread::spawn({
        let point = point.clone();
        move || run(swarmletfs([Path::new("umount"), &point]))
    });
    eventually("the mount's end", || connection_at(&point).is_none().then_some(()));
    assert!(!umount.is_finished(), "the process still has the store open");
    kill_process(pid, Signal::CONT).unwrap();
    umount.join().unwrap().assert_success();
    assert!(mount.process().try_wait().unwrap().is_some());
}

/// Promise: A signal ends the process even while a read blocks.
#[test]
fn signal_ends_the_process_during_blocked_reads() {
    needs_fuse!();
    let store = store();
    let Some(mut mount) = mount_with_stalled_output(&store) else { return };
    let tracer = Pid::from_child(mount.process());
    while_it_is_read(&mount, |server| {
        kill_process(server, Signal::TERM).unwrap();
        // Only the blocked thread is left.
        let stat = format!("/proc/{}/stat", server.as_raw_pid());
        eventually("the end of the process", || {
            let state = fs::read_to_string(&stat).unwrap_or_default();
            (state.is_empty() || state.contains(") Z ")).then_some(())
        });
        kill_process(tracer, Signal::KILL).unwrap();
    });
    mount.process().wait().unwrap();
}
