//! What readers of a mount see of a worker while it is recorded.
//!
//! The notes of a supervisor on a worker.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use serde_json::Value;

use super::store::{TEMPORARY, command, metadata, new_store, record};
use crate::cli::program::run;
use crate::mount::eventually;
use crate::needs_fuse;
use crate::support::{Mount, is_full, scale};

/// Promise: A mount shows within a second what is recorded.
#[test]
fn mount_follows_a_worker_from_its_creation_to_its_end() {
    needs_fuse!();
    let (_dir, store) = new_store();
    let mount = Mount::new(&store);
    assert_eq!(mount.list("workers"), ["index.json", "w1"]);
    let mut waits = Vec::new();
    let mut await_change = |what: &str, is_seen: &dyn Fn() -> bool| {
        let begun = Instant::now();
        eventually(what, || is_seen().then_some(()));
        waits.push((begun.elapsed(), what.to_owned()));
    };
    let reads = |path: &str| fs::read_to_string(mount.at(path)).unwrap_or_default();

    let create = ["worker", "create", "--id", "new", "--task", "Check the disks", "--tag", "ops"];
    record(&store, &create, "").assert_success();
    await_change("a new worker", &|| mount.list("workers").contains(&"new".to_owned()));
    assert!(reads("workers/new/summary").contains("Check the disks"));
    assert!(reads("workers/new/metadata.json").contains("\"running\""));

    let mut recorder = command(&store, &["worker", "record", "new", "--tool", "df", "--exit", "1"]);
    recorder.stdin(Stdio::piped()).stdout(Stdio::null());
    let mut recorder = recorder.spawn().unwrap();
    let mut pipe = recorder.stdin.take().unwrap();
    let output = "workers/new/tool_calls/001_df.txt";
    await_change("a call that runs", &|| mount.at(output).exists());
    let mut written = String::new();
    for line in ["one\n", "two\n", "three\n"] {
        pipe.write_all(line.as_bytes()).unwrap();
        written += line;
        await_change("a line of an output", &|| reads(output) == written);
    }
    drop(pipe);
    assert!(recorder.wait().unwrap().success());
    let has_outcome = |path: &str, outcome: &str| {
        let index: Value = serde_json::from_str(&reads(path)).unwrap_or_default();
        index["tool_calls"].as_array().is_some_and(|calls| {
            calls.iter().any(|call| call["outcome"].as_str().is_some_and(|o| o == outcome))
        })
    };
    await_change("the end of a call", &|| has_outcome("workers/new/index.json", "failed"));

    let message = "{\"role\": \"assistant\", \"content\": \"The disk is full.\"}";
    record(&store, &["worker", "message", "new"], message).assert_success();
    await_change("a message", &|| reads("workers/new/thread.jsonl").contains("The disk is full."));
    for content in ["first", "second"] {
        record(&store, &["worker", "put", "new", "outputs/report.md"], content).assert_success();
        await_change("a file", &|| reads("workers/new/outputs/report.md") == content);
    }

    let finish = ["worker", "finish", "new", "--status", "failed", "--result", "-"];
    record(&store, &finish, "The disk is full.\n").assert_success();
    await_change("the end of a worker", &|| {
        reads("workers/new/metadata.json").contains("\"failed\"")
    });
    await_change("its final words", &|| reads("workers/new/result.txt") == "The disk is full.\n");
    await_change("its status", &|| {
        let index: Value = serde_json::from_str(&reads("workers/new/index.json")).unwrap();
        index["status"] == "failed"
    });
    assert!(mount.list("workers/new").iter().all(|name| !name.starts_with(TEMPORARY)));
    let (longest, what) = waits.into_iter().max().unwrap();
    eprintln!("seen in a mount after {longest:?} at most: {what}");
}

/// Promise: A reader never sees a part of a new worker.
#[test]
fn readers_meet_whole_workers_only() {
    needs_fuse!();
    let (dir, store) = new_store();
    fs::write(dir.path().join("spec.md"), "the specification\n").unwrap();
    let context = format!("spec.md={}", dir.path().join("spec.md").display());
    let mount = Mount::new(&store);
    let (has_ended, looks) = (AtomicBool::new(false), [AtomicUsize::new(0), AtomicUsize::new(0)]);
    let roots = [mount.at("workers"), store.join("workers")];
    let look = |is_mounted: bool| {
        let root = &roots[usize::from(!is_mounted)];
        let mut seen = BTreeSet::new();
        loop {
            // Looks once more after the last worker was created.
            let is_last = has_ended.load(Ordering::Relaxed);
            for entry in fs::read_dir(root).unwrap() {
                let name = entry.unwrap().file_name().into_string().unwrap();
                let is_temporary = name.starts_with(TEMPORARY);
                assert!(!is_mounted || !is_temporary, "{name} is listed");
                // A worker that was whole once stays so.
                if is_temporary || !name.starts_with("new-") || seen.contains(&name) {
                    continue;
                }
                let path = root.join(&name);
                let metadata = fs::read(path.join("metadata.json"))
                    .unwrap_or_else(|error| panic!("{name} has no metadata: {error}"));
                let metadata: Value = serde_json::from_slice(&metadata).unwrap();
                assert_eq!(metadata["status"], "running");
                let context = fs::read_to_string(path.join("context/spec.md")).unwrap();
                assert_eq!(context, "the specification\n");
                assert!(path.join("tool_calls").is_dir());
                seen.insert(name);
            }
            looks[usize::from(!is_mounted)].fetch_add(1, Ordering::Relaxed);
            if is_last {
                return seen.len();
            }
        }
    };
    let count = scale(200);
    thread::scope(|scope| {
        let mounted = scope.spawn(|| look(true));
        let direct = scope.spawn(|| look(false));
        for number in 0..count {
            let id = format!("new-{number}");
            let create = ["worker", "create", "--id", &id, "--context", &context];
            let created = record(&store, &create, "");
            if mounted.is_finished() || direct.is_finished() || created.code != Some(0) {
                has_ended.store(true, Ordering::Relaxed);
                panic!("a reader ended early, or a worker was not created: {created:#?}");
            }
        }
        let last = format!("new-{}", count - 1);
        // The list of the mount is up to a second old, and a name of it can be seen before.
        eventually("the last worker", || mount.list("workers").contains(&last).then_some(()));
        has_ended.store(true, Ordering::Relaxed);
        assert_eq!(direct.join().unwrap(), count);
        assert_eq!(mounted.join().unwrap(), count);
    });
    let [mounted, direct] = looks.map(AtomicUsize::into_inner);
    eprintln!("{count} new workers; {mounted} looks through a mount and {direct} at the store");
    assert!(mounted > 10 || !is_full(), "{mounted}");
}

/// Promise: A supervisor can annotate a worker that has finished, and nothing else of it changes.
#[test]
fn notes_are_set_replaced_and_removed() {
    let (_dir, store) = new_store();
    let annotate = |text: &str, stdin: &str| {
        record(&store, &["worker", "annotate", "w1", text], stdin).assert_success();
    };
    let summary = || run(command(&store, &["worker", "show", "w1"])).assert_success().out.clone();
    annotate("It runs\nwell.\u{1b}[31m", "");
    assert_eq!(metadata(&store, "w1")["supervisor_notes"], "It runs\nwell.\u{1b}[31m");
    assert!(summary().contains("notes    by the supervisor: It runs"), "{}", summary());
    assert!(!summary().contains('\u{1b}'));
    record(&store, &["worker", "finish", "w1"], "").assert_success();
    let before = metadata(&store, "w1");

    annotate("-", "It lacks a test.\n");
    assert!(summary().contains("notes    by the supervisor: It lacks a test.\n"), "{}", summary());
    let index = run(command(&store, &["worker", "show", "w1", "--json"]));
    let index: serde_json::Value = serde_json::from_str(&index.assert_success().out).unwrap();
    assert_eq!(index["supervisor_notes"], "It lacks a test.");
    let mut expected = before.clone();
    expected["supervisor_notes"] = "It lacks a test.".into();
    assert_eq!(metadata(&store, "w1"), expected);

    annotate("", "");
    assert!(!summary().contains("notes  "), "{}", summary());
    assert_eq!(metadata(&store, "w1").get("supervisor_notes"), None);
    let log = run(command(&store, &["audit", "--worker", "w1"])).assert_success().out.clone();
    assert_eq!(log.matches("annotate w1").count(), 3, "{log}");
}

#[test]
fn notes_that_cannot_be_set_are_refused_and_change_nothing() {
    let (_dir, store) = new_store();
    let before = metadata(&store, "w1");
    let long = "x".repeat((1 << 20) + 1);
    record(&store, &["worker", "annotate", "w1", "-"], long)
        .assert_failure(2, &["cannot use stdin: it has more than 1 MiB; try shorter notes"]);
    record(&store, &["worker", "annotate", "w1", "-"], b"\xff").assert_failure(1, &["not UTF-8"]);
    record(&store, &["worker", "annotate", "w9", "x"], "").assert_failure(1, &["cannot find"]);
    assert_eq!(metadata(&store, "w1"), before);
}
