//! Recording into an object store: everything arrives, whatever fails in between.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::Value;
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{Store, read_range};
use swarmletfs_objects::BucketWriter;
use swarmletfs_record::write::{Durability, Finish, NewWorker, StoreOptions};

use super::proxy::{Proxy, WebFault};
use super::recorder::{
    Machine, files_in_bucket, files_in_store, recorded_files, session, take_step, worker_ids,
};
use super::server::{Server, new_prefix, server, url};
use crate::cli::program::{swarmletfs, wait_timeout};
use crate::support::patience;
use crate::support::scale::{is_exhaustive, rng, sample, scale};

/// Longest time of a command that uploads.
pub const LIMIT: Duration = Duration::from_secs(60);
/// An address at which nobody listens.
const NOBODY: &str = "127.0.0.1:9";

fn path(text: &str) -> RelPath {
    RelPath::parse(text).unwrap()
}

/// Returns a field of the metadata of a worker; `None` if there is none.
fn field_of(server: &Server, prefix: &str, id: &str, field: &str) -> Option<Value> {
    let bucket = swarmletfs_objects::open_if_any(Path::new(&url(prefix)), &server.settings());
    let file = bucket.unwrap()?.open(&path(&format!("workers/{id}/metadata.json"))).ok()?;
    let metadata: Value = serde_json::from_slice(&read_range(&*file, 0, 1 << 20).unwrap()).unwrap();
    metadata.get(field).cloned()
}

fn status_of(server: &Server, prefix: &str, id: &str) -> Option<String> {
    field_of(server, prefix, id, "status").map(|status| status.as_str().unwrap().to_owned())
}

/// Returns the files of a session that was recorded into a folder.
fn files_in_folder(machine: &Machine<'_>, id: &str) -> BTreeMap<String, Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("swarm");
    let store = store.to_str().unwrap();
    machine.run(&["init", store]).assert_success();
    for step in session(id) {
        take_step(machine, &step, store).assert_success();
    }
    files_in_store(&swarmletfs_base::store::Disk::open(Path::new(store)).unwrap())
}

/// Returns the messages without their times.
fn without_times(files: BTreeMap<String, Vec<u8>>) -> BTreeMap<String, Vec<u8>> {
    let strip = |line: &[u8]| match serde_json::from_slice::<Value>(line) {
        Ok(mut value) => {
            if let Some(fields) = value.as_object_mut() {
                fields.remove("timestamp");
            }
            value.to_string().into_bytes()
        }
        Err(_) => line.to_vec(),
    };
    files
        .into_iter()
        .map(|(path, bytes)| match path.ends_with(".jsonl") {
            true => (path, bytes.split(|byte| *byte == b'\n').flat_map(strip).collect()),
            false => (path, bytes),
        })
        .collect()
}

/// Promise: A worker that is recorded into an object store has the files of one that is recorded
/// into a folder.
#[test]
fn a_recorded_worker_has_the_files_of_one_in_a_folder() {
    let Some(server) = server() else { return };
    let (machine, prefix) = (Machine::new(server), new_prefix());
    for step in session("w1") {
        assert_eq!(take_step(&machine, &step, &url(&prefix)).assert_success().err, "");
    }
    let found = without_times(files_in_bucket(server, &prefix));
    let expected = without_times(files_in_folder(&machine, "w1"));
    assert!(expected.len() >= 4, "{expected:?}");
    assert_eq!(found, expected);
    assert_eq!(status_of(server, &prefix, "w1").as_deref(), Some("failed"));
    // It is in the object store, so the spool forgets it.
    assert_eq!(machine.spooled(), [""; 0]);
    let finished = ["it has finished (failed)", "try a new worker"];
    let again = ["worker", "finish", "w1", "--store", &url(&prefix)];
    machine.run(&again).assert_failure(1, &finished);
    machine
        .run(&["worker", "finish", "w2", "--store", &url(&prefix)])
        .assert_failure(1, &["cannot find worker w2"]);
    // Notes reach a worker that has ended.
    let annotate = ["worker", "annotate", "w1", "It is right.", "--store", &url(&prefix)];
    machine.run(&annotate).assert_success();
    let notes = field_of(server, &prefix, "w1", "supervisor_notes");
    assert_eq!(notes, Some("It is right.".into()));
    assert_eq!(status_of(server, &prefix, "w1").as_deref(), Some("failed"));
    for (place, text) in [("write", "one"), ("append", "two")] {
        let note = ["note", place, "plans/a.md", text, "--store", &url(&prefix)];
        machine.run(&note).assert_success();
    }
    let read = machine.run(&["note", "read", "plans/a.md", "--store", &url(&prefix)]);
    assert_eq!(read.assert_success().out, "one\ntwo\n");
    let listed = machine.run(&["note", "list", "--store", &url(&prefix)]);
    assert_eq!(listed.assert_success().out, "plans/a.md\n");
}

/// Asserts that everything of a session is in the object store, and nothing else.
fn assert_arrived(server: &Server, machine: &Machine<'_>, prefix: &str, case: &str) {
    let found = without_times(files_in_bucket(server, prefix));
    let expected = without_times(files_in_folder(machine, "w1"));
    assert_eq!(found, expected, "{case}");
    assert_eq!(status_of(server, prefix, "w1").as_deref(), Some("failed"), "{case}");
    assert_eq!(machine.spooled(), [""; 0], "{case}");
    let keys = raw_keys(server, prefix);
    assert!(!keys.iter().any(|key| key.contains(".parts/")), "{case}: {keys:?}");
}

fn raw_keys(server: &Server, prefix: &str) -> Vec<String> {
    let bucket = BucketWriter::open(Path::new(&url(prefix)), &server.settings());
    bucket.unwrap().list("").unwrap().into_iter().map(|entry| entry.key).collect()
}

/// Asserts that what is there now is a part of the session: no wrong bytes, and no end before the
/// files.
fn assert_partly(server: &Server, expected: &BTreeMap<String, Vec<u8>>, prefix: &str, case: &str) {
    let ended = status_of(server, prefix, "w1").is_some_and(|status| status != "running");
    let found = without_times(files_in_bucket(server, prefix));
    for (path, bytes) in &found {
        let whole = expected.get(path).unwrap_or_else(|| panic!("{case}: {path}"));
        assert!(whole.starts_with(bytes), "{case}: {path} is no beginning");
    }
    assert!(!ended || found == *expected, "{case}: the end is seen before {expected:?}");
}

/// Promise: If any request of a recorder to an object store fails, nothing is lost: the next
/// command or `flush` uploads it.
#[test]
fn a_failure_of_any_request_of_a_recorder_loses_nothing() {
    let Some(server) = server() else { return };
    let proxy = Proxy::start(&server.address());
    let record = |fault: WebFault, k: u64| {
        let mut machine = Machine::new(server);
        machine.address = proxy.address();
        let prefix = new_prefix();
        proxy.fail(fault, k, false);
        for step in session("w1") {
            take_step(&machine, &step, &url(&prefix)).assert_success();
        }
        let requests = proxy.heal();
        machine.address = server.address();
        machine.run(&["flush", "--store", &url(&prefix)]).assert_success();
        assert_arrived(server, &machine, &prefix, &format!("{fault:?} at {k}"));
        requests
    };
    let requests = record(WebFault::Reset, u64::MAX);
    assert!((5..60).contains(&requests), "{requests} requests");
    let faults = [WebFault::Status(500), WebFault::Reset, WebFault::LostAnswer, WebFault::Slow];
    for (fault, k) in sample((0..requests).flat_map(|k| faults.map(|fault| (fault, k)))) {
        record(fault, k);
    }
}

/// Promise: If a recorder into an object store is killed at any moment, nothing is lost: `flush`
/// uploads it.
#[test]
fn a_kill_at_any_request_of_a_recorder_loses_nothing() {
    let Some(server) = server() else { return };
    let proxy = Proxy::start(&server.address());
    let expected = without_times(files_in_folder(&Machine::new(server), "w1"));
    let record = |fault: WebFault, k: u64| {
        let mut machine = Machine::new(server);
        let prefix = new_prefix();
        machine.address = proxy.address();
        proxy.fail(fault, k, true);
        let mut is_killed = false;
        for (arguments, stdin) in session("w1") {
            let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let url = url(&prefix);
            arguments.extend(["--store", &url]);
            let mut child = machine.start(&arguments, &stdin);
            let begun = Instant::now();
            while child.try_wait().unwrap().is_none() {
                assert!(begun.elapsed() < patience(LIMIT), "{arguments:?}");
                if proxy.count() > k && !is_killed {
                    // The change of this command was made before its first request.
                    child.kill().unwrap();
                    child.wait().unwrap();
                    is_killed = true;
                    proxy.heal();
                    machine.address = server.address();
                }
                thread::sleep(Duration::from_millis(1));
            }
            assert_partly(server, &expected, &prefix, &format!("{fault:?} at {k}"));
        }
        let requests = proxy.heal();
        machine.run(&["flush", "--store", &url(&prefix)]).assert_success();
        assert_arrived(server, &machine, &prefix, &format!("kill at {k} with {fault:?}"));
        requests
    };
    let requests = record(WebFault::Blocked, u64::MAX);
    let faults = [WebFault::Blocked, WebFault::LostAnswer];
    for (fault, k) in sample((0..requests).flat_map(|k| faults.map(|fault| (fault, k)))) {
        record(fault, k);
    }
}

/// Promise: Without a connection, commands record into the spool and say what waits, and `flush`
/// uploads it later.
#[test]
fn offline_recording_waits_for_a_flush() {
    let Some(server) = server() else { return };
    let (mut machine, prefix) = (Machine::new(server), new_prefix());
    machine.address = NOBODY.into();
    for step in session("w1") {
        let output = take_step(&machine, &step, &url(&prefix));
        output.assert_success();
        for text in ["wait in", "to be uploaded", "swarmletfs flush", "cannot be reached"] {
            assert!(output.err.contains(text), "{text} is not in {output:#?}");
        }
    }
    assert_eq!(machine.spooled(), ["w1"]);
    let failed = machine.run(&["flush", "--json"]);
    assert_eq!(failed.code, Some(1), "{failed:#?}");
    let rows: Value = serde_json::from_str(&failed.out).unwrap();
    assert_eq!(rows[0]["waiting"]["ended"], 1, "{rows}");
    machine.address = server.address();
    // A bucket of the same name elsewhere may belong to somebody else.
    let elsewhere = machine.run(&["flush"]);
    assert_eq!(elsewhere.code, Some(1), "{elsewhere:#?}");
    assert!(elsewhere.err.contains("it was recorded for s3 http://"), "{elsewhere:#?}");
    assert_eq!(machine.spooled(), ["w1"]);
    let flushed = machine.run(&["flush", "--store", &url(&prefix)]);
    assert!(flushed.assert_success().out.contains("nothing waits"), "{flushed:#?}");
    assert_arrived(server, &machine, &prefix, "offline");
    let again = machine.run(&["flush", "--store", &url(&prefix)]);
    assert!(again.assert_success().out.contains("uploaded 0 files"), "{again:#?}");
}

/// Promise: `doctor` names the spools of the user with what waits in each and since when, and says
/// how to upload it.
#[test]
fn doctor_names_the_spools_in_which_something_waits() {
    let Some(server) = server() else { return };
    let (mut machine, prefix) = (Machine::new(server), new_prefix());
    let url = url(&prefix);
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("swarm");
    machine.run(&["init", store.to_str().unwrap()]).assert_success();
    let doctor = |machine: &Machine<'_>, more: &[&str]| {
        let mut arguments = vec!["doctor", "--json", "--store", store.to_str().unwrap()];
        arguments.extend(more);
        let report: Value = serde_json::from_str(&machine.run(&arguments).out).unwrap();
        crate::cli::doctor::check_shape(&report);
        let findings = report["findings"].as_array().unwrap().iter();
        let waiting = findings.filter(|finding| finding["check"] == "waiting").cloned().collect();
        (report["spools"].clone(), waiting)
    };
    let none: (Value, Vec<Value>) = doctor(&machine, &[]);
    assert_eq!(none, (serde_json::json!([]), Vec::new()));
    machine.address = NOBODY.into();
    for id in ["w1", "w2"] {
        machine.run(&["worker", "create", "--id", id, "--store", &url]).assert_success();
    }
    machine.run(&["worker", "finish", "w1", "--store", &url]).assert_success();
    let (spools, findings) = doctor(&machine, &[]);
    let spool = &spools[0];
    assert_eq!(
        (&spool["url"], &spool["workers"], &spool["ended"]),
        (&url.clone().into(), &2.into(), &1.into())
    );
    assert!(spool["bytes"].as_u64() > Some(0) && spool["since"].is_string(), "{spool}");
    assert_eq!(findings.len(), 1);
    let says = findings[0]["says"].as_str().unwrap();
    assert!(says.contains(&url) && says.contains(", since 20"), "{says}");
    let flush = format!("`swarmletfs flush --store {url}` uploads them");
    assert_eq!(findings[0]["cure"], flush.as_str());
    // A spool says nothing about owners.
    assert_eq!(doctor(&machine, &["--owner", "alice"]), none);
    machine.address = server.address();
    machine.run(&["worker", "finish", "w2", "--store", &url]).assert_success();
    machine.run(&["flush", "--store", &url]).assert_success();
    let (spools, findings) = doctor(&machine, &[]);
    assert_eq!(spools, serde_json::json!([]));
    assert_eq!(findings[0]["level"], "ok", "{findings:?}");
}

/// Promise: Two machines never share the id of a worker in an object store: the second one gets an
/// error, or keeps its worker in its spool.
#[test]
fn two_machines_never_share_an_id() {
    let Some(server) = server() else { return };
    let prefix = new_prefix();
    let url = url(&prefix);
    let [one, mut two] = [Machine::new(server), Machine::new(server)];
    let create = ["worker", "create", "--id", "w1", "--store", &url];
    assert_eq!(one.run(&create).assert_success().out, "w1\n");
    two.run(&create).assert_failure(1, &["cannot create worker w1", "the id is taken"]);
    assert_eq!(two.spooled(), [""; 0]);
    let finish = ["worker", "finish", "w1", "--store", &url];
    two.run(&finish).assert_failure(1, &["another machine", "records it"]);
    two.address = NOBODY.into();
    two.run(&create).assert_success();
    let put = ["worker", "put", "w1", "notes/two.md", "--store", &url];
    two.run_with(&put, "of the second machine").assert_success();
    two.run(&finish).assert_success();
    two.address = server.address();
    let flushed = two.run(&["flush", "--store", &url]);
    let named = ["cannot upload worker w1", "another worker with this id", "swarmletfs sync"];
    assert_eq!(flushed.code, Some(1), "{flushed:#?}");
    assert!(named.iter().all(|text| flushed.err.contains(text)), "{flushed:#?}");
    // Nothing of it was mixed with the first one, and nothing is lost.
    assert_eq!(two.spooled(), ["w1"]);
    assert!(!raw_keys(server, &prefix).iter().any(|key| key.contains("two.md")));
    one.run(&finish).assert_success();
    assert_eq!(status_of(server, &prefix, "w1").as_deref(), Some("completed"));
    assert_eq!(one.spooled(), [""; 0]);
    // An id stays taken after its worker was uploaded.
    one.run(&create).assert_failure(1, &["the id is taken"]);
}

/// Promise: A spool that is full stops a recorder with an error, and what was recorded before
/// stays.
#[test]
fn a_full_spool_stops_the_recorder() {
    let Some(server) = server() else { return };
    let (mut machine, prefix) = (Machine::new(server), new_prefix());
    let url = url(&prefix);
    machine.address = NOBODY.into();
    machine.run(&["worker", "create", "--id", "w1", "--store", &url]).assert_success();
    let limited = |machine: &Machine<'_>, path: &str, size: usize| {
        let put = ["worker", "put", "w1", path, "--store", &url, "--spool-max", "100k"];
        machine.run_with(&put, vec![b'x'; size])
    };
    limited(&machine, "a", 60_000).assert_success();
    let named = ["its spool", "is full", "swarmletfs flush", "--spool-max"];
    limited(&machine, "b", 60_000).assert_failure(1, &named);
    let record = ["record", "--worker", "w1", "--store", &url, "--spool-max", "100k", "--"];
    let output = machine.run(&[&record[..], &["head", "-c", "300000", "/dev/zero"]].concat());
    assert_eq!(output.code, Some(125), "{:#?}", output.err);
    assert!(output.err.contains("is full"), "{:#?}", output.err);
    machine.address = server.address();
    machine.run(&["worker", "finish", "w1", "--store", &url]).assert_success();
    machine.run(&["flush", "--store", &url]).assert_success();
    let files = files_in_bucket(server, &prefix);
    assert!(files.keys().any(|path| path.contains("tool_calls")), "{files:?}");
    let bucket = server.open(&prefix, &server.settings()).unwrap();
    assert_eq!(bucket.stat(&path("workers/w1/a")).unwrap().size, 60_000);
    assert!(bucket.stat(&path("workers/w1/b")).is_err());
    // With a connection, the spool empties, so more fits than its limit.
    machine.run(&["worker", "create", "--id", "w2", "--store", &url]).assert_success();
}

/// Promise: A file that grows in an object store is always a beginning of what was recorded, and
/// the whole file in the end.
#[test]
fn a_growing_file_is_always_a_beginning() {
    let Some(server) = server() else { return };
    let (machine, prefix) = (Machine::new(server), new_prefix());
    let url = url(&prefix);
    machine.run(&["worker", "create", "--id", "w1", "--store", &url]).assert_success();
    let mut command = machine.command(&["record", "--worker", "w1", "--store", &url]);
    command.args(["--tool", "log", "--", "cat"]).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let line = |number: usize| format!("line {number} of the output of a command that runs\n");
    let lines: usize = 60_000;
    let whole: Vec<u8> = (0..lines).flat_map(|number| line(number).into_bytes()).collect();
    let output = path("workers/w1/tool_calls/001_log.txt");
    let bucket = server.open(&prefix, &server.settings()).unwrap();
    let (mut seen, mut sizes) = (0, Vec::new());
    let mut look = || {
        let Ok(file) = bucket.open(&output) else { return 0 };
        let Ok(bytes) = read_range(&*file, 0, 2 * whole.len()) else { return 0 };
        assert!(whole.starts_with(&bytes), "{} bytes are no beginning", bytes.len());
        assert!(bytes.len() >= seen, "{} bytes after {seen}", bytes.len());
        seen = bytes.len();
        if sizes.last() != Some(&seen) {
            sizes.push(seen);
        }
        seen
    };
    for chunk in whole.chunks(whole.len() / 4 + 1) {
        stdin.write_all(chunk).unwrap();
        let written = look() + chunk.len() / 2;
        let begun = Instant::now();
        while look() < written {
            assert!(begun.elapsed() < patience(LIMIT));
            thread::sleep(Duration::from_millis(50));
        }
    }
    drop(stdin);
    assert!(wait_timeout(&mut child, patience(LIMIT)).unwrap().success());
    assert!(raw_keys(server, &prefix).iter().any(|key| key.contains(".parts/")));
    machine.run(&["worker", "finish", "w1", "--store", &url]).assert_success();
    let begun = Instant::now();
    while look() < whole.len() {
        assert!(begun.elapsed() < patience(LIMIT));
        thread::sleep(Duration::from_millis(50));
    }
    assert!(sizes.len() >= 4, "{sizes:?}");
    assert!(!raw_keys(server, &prefix).iter().any(|key| key.contains(".parts/")));
}

/// Promise: A spool uploads several workers at once, with at most eight requests in progress.
#[test]
fn a_spool_uploads_with_eight_requests_at_once() {
    let Some(server) = server() else { return };
    let (mut machine, prefix) = (Machine::new(server), new_prefix());
    let url = url(&prefix);
    let proxy = Proxy::start(&server.address());
    machine.address = NOBODY.into();
    machine.run(&["worker", "create", "--id", "first", "--store", &url]).assert_success();
    let spools = machine.state.path().join("swarmletfs/spool");
    let spool = fs::read_dir(spools).unwrap().next().unwrap().unwrap().path();
    let options = StoreOptions::default().durability(Durability::None);
    let store = options.open(spool.join("store")).unwrap();
    let workers = scale(40).max(16);
    for number in 0..workers {
        let worker = store.create_worker(NewWorker::new("t").id(format!("w{number}"))).unwrap();
        for file in ["outputs/a.md", "outputs/b.md", "outputs/c.md"] {
            worker.put(file, &mut "content".as_bytes()).unwrap();
        }
        worker.finish(Finish::completed().result("Done.")).unwrap();
    }
    machine.address = proxy.address();
    proxy.fail(WebFault::Late(Duration::from_millis(20)), 0, true);
    proxy.most_at_once();
    let begun = Instant::now();
    machine.run(&["flush", "--store", &url]).assert_success();
    let (time, requests, most) = (begun.elapsed(), proxy.heal(), proxy.most_at_once());
    eprintln!("{workers} workers in {time:.1?}, {requests} requests, {most} at once");
    assert!((4..=8).contains(&most), "{most} requests at once");
    assert_eq!(machine.spooled(), ["first"]);
    let bucket = server.open(&prefix, &server.settings()).unwrap();
    for number in 0..workers {
        let files = recorded_files(&bucket, &format!("w{number}")).unwrap();
        assert_eq!(files.len(), 4, "{number}: {files:?}");
    }
}

/// Records workers one after the other until `end`. Returns their ids.
fn record_until(machine: &Machine<'_>, url: &str, recorder: usize, end: Instant) -> Vec<String> {
    let mut ids = Vec::new();
    while Instant::now() < end {
        let id = format!("r{recorder}-{}", ids.len());
        for step in session(&id) {
            take_step(machine, &step, url).assert_success();
        }
        ids.push(id);
    }
    ids
}

/// Returns the recorded files of a worker of [`session`], by their paths in its directory.
fn files_of_session(machine: &Machine<'_>) -> BTreeMap<String, Vec<u8>> {
    let files = without_times(files_in_folder(machine, "w1")).into_iter();
    files.map(|(path, bytes)| (path.strip_prefix("w1/").unwrap().to_owned(), bytes)).collect()
}

/// Reads the workers until `end`. Each file must begin as the session writes it. Returns the number
/// of files.
fn read_until(server: &Server, prefix: &str, end: Instant) -> usize {
    let expected = files_of_session(&Machine::new(server));
    let (mut reads, mut rng) = (0, rng());
    while Instant::now() < end {
        let bucket = swarmletfs_objects::open_if_any(Path::new(&url(prefix)), &server.settings());
        let Some(bucket) = bucket.unwrap() else { continue };
        let mut ids = worker_ids(&bucket);
        rng.shuffle(&mut ids);
        for id in ids.iter().take_while(|_| Instant::now() < end) {
            // A file may be replaced while it is read, which is an error.
            let Ok(files) = recorded_files(&bucket, id) else { continue };
            for (path, bytes) in without_times(files) {
                let whole = expected.get(&path).unwrap_or_else(|| panic!("{id}/{path}"));
                assert!(whole.starts_with(&bytes), "{id}/{path} is no beginning");
                reads += 1;
            }
        }
    }
    reads
}

/// Runs recorders, half of them with a spool that they share, beside readers.
fn record_and_read(recorders: usize, readers: usize, time: Duration) {
    let Some(server) = server() else { return };
    let prefix = new_prefix();
    let url = url(&prefix);
    let machines = [Machine::new(server), Machine::new(server)];
    let end = Instant::now() + time;
    let (ids, reads) = thread::scope(|scope| {
        let recording: Vec<_> = (0..recorders)
            .map(|number| {
                let (machine, url) = (&machines[number % machines.len()], &url);
                scope.spawn(move || record_until(machine, url, number, end))
            })
            .collect();
        let reading: Vec<_> =
            (0..readers).map(|_| scope.spawn(|| read_until(server, &prefix, end))).collect();
        let ids: Vec<String> =
            recording.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        (ids, reading.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>())
    });
    for machine in &machines {
        machine.run(&["flush", "--store", &url]).assert_success();
        assert_eq!(machine.spooled(), [""; 0]);
    }
    let expected = files_of_session(&machines[0]);
    let bucket = server.open(&prefix, &server.settings()).unwrap();
    let (mut lost, mut mixed) = (Vec::new(), Vec::new());
    for id in &ids {
        let metadata = bucket.open(&path(&format!("workers/{id}/metadata.json")));
        let metadata = metadata.and_then(|file| read_range(&*file, 0, 1 << 20)).unwrap_or_default();
        let metadata: Value = serde_json::from_slice(&metadata).unwrap_or_default();
        let found = without_times(recorded_files(&bucket, id).unwrap_or_default());
        if metadata["status"] != "failed" || expected.keys().any(|path| !found.contains_key(path)) {
            lost.push(id);
        }
        if found.iter().any(|(path, bytes)| expected.get(path) != Some(bytes)) {
            mixed.push(id);
        }
    }
    eprintln!(
        "{} workers by {recorders} recorders, {reads} files read by {readers} readers, {} lost, {} \
         mixed",
        ids.len(),
        lost.len(),
        mixed.len()
    );
    assert!(lost.is_empty() && mixed.is_empty(), "lost {lost:?}, mixed {mixed:?}");
    assert_eq!(worker_ids(&bucket).len(), ids.len());
}

#[test]
fn recorders_and_readers_at_once_lose_and_mix_nothing() {
    let (recorders, readers, seconds) = match is_exhaustive() {
        true => (16, 8, scale(10)),
        false => (4, 2, 4),
    };
    record_and_read(recorders, readers, Duration::from_secs(seconds as u64));
}

#[test]
fn run_records_into_an_object_store() {
    let Some(server) = server() else { return };
    let (machine, prefix) = (Machine::new(server), new_prefix());
    let url = url(&prefix);
    let workspace = tempfile::tempdir().unwrap();
    fs::write(workspace.path().join("a.txt"), "old\n").unwrap();
    let run = |script: &str, id: &str| {
        let mut command = machine.command(&["run", "--engine", "copy", "--no-sandbox"]);
        command.args(["--id", id, "--task", "Change a file", "--store", &url, "--workspace"]);
        command.arg(workspace.path()).args(["--", "sh", "-c", script]);
        crate::cli::program::run(command)
    };
    run("echo looked", "w1").assert_success();
    assert_eq!(status_of(server, &prefix, "w1").as_deref(), Some("completed"));
    assert_eq!(machine.spooled(), [""; 0]);
    run("echo new > a.txt", "w2").assert_success();
    // Its changes wait for a decision, here.
    assert_eq!(machine.spooled(), ["w2"]);
    assert_eq!(status_of(server, &prefix, "w2").as_deref(), Some("completed"));
    machine.run(&["apply", "w2", "--yes", "--store", &url]).assert_success();
    assert_eq!(fs::read_to_string(workspace.path().join("a.txt")).unwrap(), "new\n");
    let bucket = server.open(&prefix, &server.settings()).unwrap();
    let log = bucket.open(&path("workers/w1/logs/execution.log")).unwrap();
    assert_eq!(read_range(&*log, 0, 99).unwrap(), b"looked\n");
    assert!(bucket.stat(&path("workers/w2/changes.json")).is_ok());
}

/// Promise: Changes of a worker of `run` in an object store can be taken back for seven days after
/// `apply`, and applied again.
#[test]
fn applied_changes_of_a_worker_in_an_object_store_can_be_taken_back() {
    let Some(server) = server() else { return };
    let (machine, prefix) = (Machine::new(server), new_prefix());
    let url = url(&prefix);
    let workspace = tempfile::tempdir().unwrap();
    let file = workspace.path().join("a.txt");
    fs::write(&file, "old\n").unwrap();
    let mut command = machine.command(&["run", "--engine", "copy", "--no-sandbox", "--id", "w1"]);
    command.args(["--task", "Change a file", "--store", &url, "--workspace"]);
    command.arg(workspace.path()).args(["--", "sh", "-c", "echo new > a.txt"]);
    crate::cli::program::run(command).assert_success();
    let decide = |decision: &str, content: &str| {
        machine.run(&[decision, "w1", "--yes", "--store", &url]).assert_success();
        assert_eq!(fs::read_to_string(&file).unwrap(), content, "{decision}");
        assert_eq!(machine.spooled(), ["w1"]);
    };
    decide("apply", "new\n");
    machine.run(&["flush", "--store", &url]).assert_success();
    decide("undo", "old\n");
    decide("apply", "new\n");
    // The object store has both applications, and readers of a catalog look at the worker again.
    let bucket = server.open(&prefix, &server.settings()).unwrap();
    let record = |number: u64| -> Value {
        let path = path(&format!("workers/w1/applied/{number}/applied.json"));
        let bytes = read_range(&*bucket.open(&path).unwrap(), 0, 1 << 20).unwrap();
        serde_json::from_slice(&bytes).unwrap()
    };
    assert!(record(1)["undone_at"].is_string() && record(2)["undone_at"].is_null());
    let keys = raw_keys(server, &prefix);
    let ends = keys.iter().filter(|key| key.contains("-closed-w1")).count();
    assert!(ends >= 3, "{keys:?}");
    // A week later it leaves the spool.
    let spools = machine.state.path().join("swarmletfs/spool");
    let spool = fs::read_dir(spools).unwrap().next().unwrap().unwrap().path();
    let applied = spool.join("store/workers/w1/applied/2/applied.json");
    let mut old = record(2);
    old["applied_at"] =
        (Timestamp::now() - Duration::from_secs(7 * 86_400 + 60)).to_string().into();
    fs::write(&applied, old.to_string()).unwrap();
    machine.run(&["flush", "--store", &url]).assert_success();
    assert_eq!(machine.spooled(), [""; 0]);
}

/// Promise: A worker that stays in the spool for `undo` makes room for others when the spool is
/// half full.
#[test]
fn a_spool_that_is_half_full_forgets_applied_workers() {
    let Some(server) = server() else { return };
    let (machine, prefix) = (Machine::new(server), new_prefix());
    let url = url(&prefix);
    let workspace = tempfile::tempdir().unwrap();
    let mut command = machine.command(&["run", "--engine", "copy", "--no-sandbox", "--id", "w1"]);
    command.args(["--task", "Make a file", "--store", &url, "--workspace"]);
    command.arg(workspace.path()).args(["--", "sh", "-c", "head -c 60000 /dev/zero > a"]);
    crate::cli::program::run(command).assert_success();
    machine.run(&["apply", "w1", "--yes", "--store", &url]).assert_success();
    let create = |id: &str, size: &str| {
        let create = ["worker", "create", "--id", id, "--store", &url, "--spool-max", size];
        machine.run(&create).assert_success();
    };
    create("w2", "1M");
    assert_eq!(machine.spooled(), ["w1", "w2"]);
    create("w3", "110k");
    assert_eq!(machine.spooled(), ["w2", "w3"]);
}

#[test]
fn flush_without_a_spool_has_nothing_to_do() {
    let state = tempfile::tempdir().unwrap();
    let mut command = swarmletfs(["flush"]);
    command.env("XDG_STATE_HOME", state.path());
    assert_eq!(crate::cli::program::run(command).assert_success().out, "nothing waits\n");
}
