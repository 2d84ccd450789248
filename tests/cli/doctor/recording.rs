//! Findings about what recorders left behind, and their repair.

use std::fs::{self, File, FileTimes};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, SystemTime};

use rustix::fs::FlockOperation;
use serde_json::{Value, json};
use swarmletfs_base::deadline::Deadline;
use swarmletfs_record::write::{CallEnd, Finish, NewWorker, Store};

use super::{IsolatedDoctor, finding, findings};
use crate::cli::program::{
    MountSandbox, is_root, make_accessible, run, swarmletfs, wait_until, without_privileges,
};
use crate::hostile::walk;
use crate::support::TestStore;

/// Makes a recorded store of the worker `w1` with one whole call.
fn recorded_store() -> (TestStore, Store) {
    let folder = TestStore::new();
    let store = Store::init(folder.path()).unwrap();
    let worker = store.create_worker(NewWorker::new("Check").id("w1").owner("7")).unwrap();
    worker.begin_call("sh", None).unwrap().end(CallEnd::exit_code(0)).unwrap();
    (folder, store)
}

/// Makes a file or directory look as if it was written an hour ago.
fn make_old(path: &Path) {
    let time = SystemTime::now() - Duration::from_secs(3_600);
    File::open(path).unwrap().set_times(FileTimes::new().set_modified(time)).unwrap();
}

/// Starts `worker record` for a call of `w1`, and returns once its output is in the store.
fn start_recorder(store: &Path, tool: &str) -> Child {
    let mut command = swarmletfs(["worker", "record", "w1", "--tool", tool, "--store"]);
    command.arg(store).stdin(Stdio::piped()).stdout(Stdio::null());
    let recorder = command.spawn().unwrap();
    let metrics = store.join("workers/w1/metrics.jsonl");
    let is_started = |line: std::io::Result<String>| {
        let line: Value = serde_json::from_str(&line.unwrap()).unwrap_or_default();
        line["event"] == "call_start" && line["tool"] == tool
    };
    wait_until("the start of a call", || {
        BufReader::new(File::open(&metrics).unwrap()).lines().any(is_started)
    });
    recorder
}

/// Leaves what a crash leaves: a part of a worker, two temporary files, and a call of `w1` whose
/// recorder was killed. Returns the paths of the temporary entries.
fn leave_behind(store: &Path) -> Vec<PathBuf> {
    let mut recorder = start_recorder(store, "slow");
    recorder.kill().unwrap();
    recorder.wait().unwrap();
    let new = store.join("workers/.swarmletfs-new-0011223344556677");
    fs::create_dir_all(new.join("tool_calls")).unwrap();
    fs::write(new.join("metrics.jsonl"), "").unwrap();
    let files = ["workers/.swarmletfs-tmp-0", "workers/w1/.swarmletfs-tmp-1"];
    let files = files.map(|name| store.join(name));
    files.iter().for_each(|file| fs::write(file, "half of").unwrap());
    let all: Vec<PathBuf> = [new].into_iter().chain(files).collect();
    all.iter().for_each(|path| make_old(path));
    all
}

#[test]
fn doctor_counts_leftovers_and_changes_nothing() {
    let (folder, sandbox) = (recorded_store().0, MountSandbox::new());
    let (store, keep) = (folder.path(), sandbox.path());
    let Some(report) = IsolatedDoctor::new(&keep).json(&[&store]) else { return };
    finding(&report, "left_behind", "ok", &["no recorder left anything behind"]);
    let none = json!({
        "new_workers": 0, "temporary_files": 0, "open_calls": 0, "lost_runners": 0, "not_searched": 0, "repaired": 0,
    });
    assert_eq!(report["stores"][0]["recording"], none);

    leave_behind(&store);
    let before = walk(&store);
    let report = IsolatedDoctor::new(&keep).json(&[&store]).unwrap();
    let found = finding(
        &report,
        "left_behind",
        "note",
        &[
            "1 worker not created wholly, 2 temporary files, 1 call of 1 worker whose recorder is \
             gone",
            "workers/w1/.swarmletfs-tmp-1",
            "and 1 more",
            &format!("`swarmletfs doctor --repair --store {}`", store.display()),
        ],
    );
    assert_eq!(found["about"], json!(store));
    let some = json!({
        "new_workers": 1, "temporary_files": 2, "open_calls": 1, "lost_runners": 0, "not_searched": 0, "repaired": 0,
    });
    assert_eq!(report["stores"][0]["recording"], some);
    assert_eq!(walk(&store), before, "the doctor changed something");
}

#[test]
fn doctor_repair_removes_temporary_entries_and_ends_calls() {
    let (folder, sandbox) = (recorded_store().0, MountSandbox::new());
    let (store, keep) = (folder.path(), sandbox.path());
    let temporary = leave_behind(&store);
    let arguments = ["--repair".as_ref(), "--store".as_ref(), store.as_os_str()];
    let Some(done) = IsolatedDoctor::new(&keep).run(&arguments) else { return };
    for line in [
        "ok      recording removed the unfinished folder of a worker \
         workers/.swarmletfs-new-0011223344556677\n",
        "removed the temporary file workers/.swarmletfs-tmp-0\n",
        "removed the temporary file workers/w1/.swarmletfs-tmp-1\n",
        "ended the call tool_calls/002_slow.txt of worker w1\n",
    ] {
        assert!(done.out.contains(line), "{line} is not in {done:#?}");
    }
    temporary.iter().for_each(|path| assert!(!path.exists(), "{path:?}"));

    // Nothing is left, and the end of the call is an unknown outcome with a reason.
    let report = IsolatedDoctor::new(&keep).json(&[&store]).unwrap();
    finding(&report, "left_behind", "ok", &[]);
    let metrics = fs::read_to_string(store.join("workers/w1/metrics.jsonl")).unwrap();
    let last: Value = serde_json::from_str(metrics.lines().last().unwrap()).unwrap();
    assert_eq!((&last["seq"], &last["success"]), (&json!(2), &Value::Null), "{last}");
    assert_eq!(last["error"], "its recorder ended before it did");
    let mut log = swarmletfs(["audit", "--json", "--store"]);
    log.arg(&store);
    let log = run(log).out;
    assert_eq!(log.lines().filter(|line| line.contains("\"repair\"")).count(), 4, "{log}");

    // Recording goes on.
    let store = Store::open(&store).unwrap();
    let worker = store.worker("w1").unwrap();
    let next = worker.begin_call("sh", None).unwrap().end(CallEnd::exit_code(0)).unwrap();
    assert_eq!(next.seq, 3);
    worker.finish(Finish::completed()).unwrap();
}

#[test]
fn doctor_repair_leaves_alone_what_is_being_recorded() {
    let (folder, sandbox) = (recorded_store().0, MountSandbox::new());
    let (store, keep) = (folder.path(), sandbox.path());
    let mut recorder = start_recorder(&store, "live");
    // An old entry whose writer holds its lock, and a new one whose writer does not yet.
    let (locked, new) =
        (store.join("workers/.swarmletfs-new-a"), store.join("workers/w1/.swarmletfs-tmp-b"));
    fs::create_dir(&locked).unwrap();
    make_old(&locked);
    fs::write(&new, "new").unwrap();
    let lock = File::open(&locked).unwrap();
    rustix::fs::flock(&lock, FlockOperation::LockExclusive).unwrap();
    let before = walk(&store);
    let arguments = ["--repair".as_ref(), store.as_os_str()];
    if let Some(report) = IsolatedDoctor::new(&keep).json(&arguments) {
        finding(&report, "left_behind", "ok", &[]);
        assert_eq!(findings(&report, "repaired").len(), 0);
    }
    assert_eq!(walk(&store), before);
    drop(recorder.stdin.take());
    assert!(recorder.wait().unwrap().success());
}

#[test]
fn doctor_searches_what_another_user_may_read_and_cannot_repair_it() {
    if !is_root() {
        return;
    }
    let (folder, sandbox) = (recorded_store(), MountSandbox::new());
    let (store, keep) = (folder.0.path(), sandbox.path());
    leave_behind(&store);
    folder.1.create_worker(NewWorker::new("private").id("w2")).unwrap();
    let private = fs::Permissions::from_mode(0o700);
    fs::set_permissions(store.join("workers/w2"), private).unwrap();
    make_accessible(store.parent().unwrap());
    make_accessible(&keep);
    let before = walk(&store);
    let nobody = IsolatedDoctor { before: without_privileges(&[]), ..IsolatedDoctor::new(&keep) };
    let Some(report) = nobody.json(&[&store]) else { return };
    let named = ["2 temporary files, 1 call of 1 worker", "1 worker could not be searched"];
    finding(&report, "left_behind", "note", &named);
    assert_eq!(report["stores"][0]["recording"]["not_searched"], 1);

    let report = nobody.json(&["--repair".as_ref(), store.as_os_str()]).unwrap();
    let refused = findings(&report, "not_repaired");
    assert_eq!(refused.len(), 4, "{report:#}");
    for refused in refused {
        assert_eq!(refused["level"], "problem");
        let says = refused["says"].as_str().unwrap();
        assert!(says.contains("try as a user who may write there"), "{says}");
    }
    assert_eq!(walk(&store), before);
}

#[test]
fn doctor_of_one_owner_reveals_nothing_of_recorders() {
    let (folder, sandbox) = (recorded_store().0, MountSandbox::new());
    let (store, keep) = (folder.path(), sandbox.path());
    leave_behind(&store);
    let arguments = [store.as_os_str(), "--owner".as_ref(), "8".as_ref()];
    let Some(report) = IsolatedDoctor::new(&keep).json(&arguments) else { return };
    assert_eq!(report["stores"][0]["recording"], Value::Null);
    assert_eq!(findings(&report, "left_behind").len(), 0);
    let both = run(swarmletfs(["doctor", "--repair", "--owner", "8"]));
    both.assert_failure(2, &["--repair"]);
}

#[test]
fn workers_that_are_not_searched_in_time_are_counted() {
    let (folder, store) = recorded_store();
    leave_behind(&folder.path());
    let late = store.leftovers(Deadline::new(&|| false)).unwrap();
    // The worker, the part of one, and the temporary file.
    assert_eq!((late.found.len(), late.unread), (0, 3));
}
