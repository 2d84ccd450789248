//! Which workers are listed and removed.

use std::fs;
use std::os::fd::AsFd;

use rustix::fs::FlockOperation;

use super::store::{
    edit, gc, gc_report, ids, indexed, make_draft, new_store, old_worker, running_worker,
    tombstone, workers,
};
use crate::cli::program::{run, swarmletfs};
use crate::recording::store::{read_tree, record, worker};

/// Promise: `gc` removes nothing without `--yes`.
#[test]
fn without_yes_nothing_changes() {
    let (_dir, store) = new_store();
    old_worker(&store, "w1", 1, &[]);
    old_worker(&store, "w2", 2, &[]);
    let before = read_tree(&store);
    let listed = gc(&store, &["--older-than", "30d"]);
    listed.assert_success();
    assert!(listed.out.starts_with("w1  "), "{}", listed.out);
    assert!(listed.out.lines().next().unwrap().ends_with("  --older-than 30d"), "{}", listed.out);
    assert!(listed.err.contains("would remove 2 workers of "), "{}", listed.err);
    assert!(read_tree(&store) == before, "something changed");

    let removed = gc(&store, &["--older-than", "30d", "--yes"]);
    assert!(removed.assert_success().err.contains("removed 2 workers of "), "{}", removed.err);
    assert!(workers(&store).is_empty());
}

#[test]
fn a_rule_is_needed() {
    let (_dir, store) = new_store();
    gc(&store, &["--yes"]).assert_failure(2, &["no rule is given; try --older-than 30d"]);
    gc(&store, &["--older-than", "soon"]).assert_failure(2, &["give a time such as 30d"]);
    gc(&store, &["--max-size", "10X"]).assert_failure(2, &["--max-size"]);
    gc(&store, &["--max-workers", "1", "--status", "running"]).assert_failure(2, &["running"]);
}

#[test]
fn workers_are_chosen_by_status_and_outcome() {
    let (_dir, store) = new_store();
    for (day, id) in [(1, "ok"), (2, "failed"), (3, "bad-call"), (4, "left"), (5, "unknown")] {
        old_worker(&store, id, day, &[]);
    }
    edit(&store, "failed", |metadata| metadata["status"] = "failed".into());
    edit(&store, "left", |metadata| metadata["status"] = "abandoned".into());
    edit(&store, "unknown", |metadata| metadata["status"] = "whatever".into());
    let metrics = worker(&store, "bad-call").join("metrics.jsonl");
    let lines = fs::read_to_string(&metrics).unwrap();
    fs::write(&metrics, lines.replace("\"exit_code\":0", "\"exit_code\":1")).unwrap();

    let listed = |more: &[&str]| {
        let report = gc_report(&store, &[&["--older-than", "30d", "--attention"], more].concat());
        ids(&report["workers"]).join(" ")
    };
    assert_eq!(listed(&[]), "ok failed bad-call left");
    assert_eq!(listed(&["--status", "failed"]), "failed");
    assert_eq!(listed(&["--status", "unknown"]), "unknown");
    assert_eq!(listed(&["--keep-failed"]), "ok left");
    let report = gc_report(&store, &["--max-workers", "3", "--attention"]);
    assert_eq!(ids(&report["workers"]), ["ok", "failed"]);
    assert_eq!(report["left_workers"], 3);
    let report = gc_report(&store, &["--older-than", "50000d"]);
    assert_eq!(ids(&report["workers"]).len(), 0);
}

/// Promise: A worker that has not ended is never removed, nor one whose draft has not ended.
#[test]
fn workers_that_have_not_ended_are_kept() {
    let (_dir, store) = new_store();
    running_worker(&store, "running", &[]);
    for (day, id) in [(1, "killed"), (2, "locked-draft"), (3, "ended"), (4, "half")] {
        old_worker(&store, id, day, &[]);
    }
    // The command ends a worker whose runner was killed.
    make_draft(&store, "killed", "running");
    let locked = make_draft(&store, "locked-draft", "ended");
    let locked = fs::File::open(locked).unwrap();
    rustix::fs::flock(locked.as_fd(), FlockOperation::LockExclusive).unwrap();
    let ended = make_draft(&store, "ended", "ended");
    let half = make_draft(&store, "half", "ended");
    let journal = serde_json::json!({
        "version": 1, "operation": "apply", "number": 1, "phase": "moving",
        "temporaries": [], "moves": [],
    });
    fs::write(half.join("journal.json"), journal.to_string()).unwrap();

    let report = gc_report(&store, &["--max-workers", "0", "--unreviewed", "--yes"]);
    assert_eq!(workers(&store), ["half", "locked-draft", "running"]);
    assert!(!ended.exists(), "the draft of a removed worker stays");
    let reason = |id: &str| {
        let lists = [&report["kept"], &report["workers"]];
        let mut lines = lists.iter().flat_map(|list| list.as_array().unwrap());
        let line = lines.find(|line| line["id"] == id).unwrap();
        line["reason"].as_str().unwrap().to_owned()
    };
    assert_eq!(reason("running"), "it is running");
    assert_eq!(reason("locked-draft"), "it is running");
    assert!(reason("half").contains("its changes are applied half"));
}

#[test]
fn children_go_before_their_parents() {
    let (_dir, store) = new_store();
    old_worker(&store, "parent", 1, &[]);
    old_worker(&store, "child", 2, &["--parent", "parent"]);
    running_worker(&store, "late", &["--parent", "parent"]);
    gc(&store, &["--older-than", "30d", "--yes"]).assert_success();
    assert_eq!(workers(&store), ["late", "parent"]);
    record(&store, &["worker", "finish", "late"], "").assert_success();
    edit(&store, "late", |metadata| metadata["finished_at"] = "2025-01-03T10:00:00Z".into());
    let report = gc_report(&store, &["--older-than", "30d", "--yes"]);
    assert_eq!(ids(&report["workers"]), ["late", "parent"]);
    assert!(workers(&store).is_empty(), "{report}");
}

/// Promise: A worker that a program writes while `gc` decides is kept.
#[test]
fn a_worker_that_is_being_written_is_kept() {
    let (_dir, store) = new_store();
    old_worker(&store, "w1", 1, &[]);
    old_worker(&store, "w2", 2, &[]);
    let folder = fs::File::open(worker(&store, "w1")).unwrap();
    rustix::fs::flock(folder.as_fd(), FlockOperation::LockExclusive).unwrap();
    let report = gc_report(&store, &["--older-than", "30d", "--yes"]);
    assert_eq!(report["workers"][0]["removed"], false);
    assert_eq!(report["workers"][0]["reason"], "a program is writing it");
    assert_eq!(report["workers"][1]["removed"], true);
    assert_eq!(workers(&store), ["w1"]);
    assert!(tombstone(&store, "w1").is_null());
    drop(folder);
    gc(&store, &["--older-than", "30d", "--yes"]).assert_success();
    assert!(workers(&store).is_empty());
}

#[test]
fn two_removals_at_once_are_refused() {
    let (_dir, store) = new_store();
    old_worker(&store, "w1", 1, &[]);
    fs::create_dir(store.join("tombstones")).unwrap();
    let folder = fs::File::open(store.join("tombstones")).unwrap();
    rustix::fs::flock(folder.as_fd(), FlockOperation::LockExclusive).unwrap();
    gc(&store, &["--older-than", "30d", "--yes"])
        .assert_failure(1, &["another process removes workers", "try again"]);
    gc(&store, &["--older-than", "30d"]).assert_success();
    assert_eq!(workers(&store), ["w1"]);
}

/// Promise: A tombstone beside a worker that is there does not choose that worker.
#[test]
fn a_tombstone_chooses_no_worker() {
    let (_dir, store) = new_store();
    old_worker(&store, "w1", 1, &[]);
    old_worker(&store, "w2", 2, &[]);
    fs::create_dir_all(store.join("tombstones")).unwrap();
    let planted = serde_json::json!({
        "id": "w2", "task": "", "outcome": "ok", "removed_at": "2025-02-01T00:00:00Z",
        "rule": "--older-than 1d",
    });
    fs::write(store.join("tombstones/w2.json"), planted.to_string()).unwrap();
    let report = gc_report(&store, &["--max-workers", "1", "--yes"]);
    assert_eq!((ids(&report["workers"]), workers(&store)), (vec!["w1"], vec!["w2".to_owned()]));
    // A later removal states its own rule.
    gc(&store, &["--older-than", "30d", "--yes"]).assert_success();
    assert_eq!(tombstone(&store, "w2")["rule"], "--older-than 30d");
}

#[test]
fn sizes_include_drafts() {
    let (_dir, store) = new_store();
    old_worker(&store, "w1", 1, &[]);
    old_worker(&store, "w2", 2, &[]);
    let draft = make_draft(&store, "w1", "ended");
    fs::create_dir_all(draft.join("upper/deep/er")).unwrap();
    fs::write(draft.join("upper/deep/er/file"), vec![1; 1 << 20]).unwrap();
    let report = gc_report(&store, &["--max-size", "1M", "--unreviewed"]);
    assert_eq!(ids(&report["workers"]), ["w1"]);
    assert!(report["bytes"].as_u64().unwrap() > 1 << 20, "{report}");
    assert!(report["left_bytes"].as_u64().unwrap() < 1 << 20, "{report}");
}

/// Promise: `doctor --repair` completes a removal that was interrupted, too.
#[test]
fn doctor_completes_an_interrupted_removal() {
    let (_dir, store) = new_store();
    old_worker(&store, "w1", 1, &[]);
    let index = fs::read(store.join("workers/index.json")).unwrap();
    gc(&store, &["--older-than", "30d", "--yes"]).assert_success();
    // As if the program had been killed after the rename.
    let gone = store.join("workers/.swarmletfs-gone-0123456789abcdef");
    fs::create_dir_all(gone.join("tool_calls")).unwrap();
    fs::write(gone.join("metadata.json"), "{}").unwrap();
    fs::write(store.join("workers/index.json"), index).unwrap();
    make_draft(&store, "w1", "ended");
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(60);
    fs::File::open(&gone).unwrap().set_modified(old).unwrap();
    assert_eq!(indexed(&store), ["w1"]);
    let mut doctor = swarmletfs(["doctor", "--repair", "--store"]);
    doctor.arg(&store);
    run(doctor);
    assert!(!gone.exists());
    assert!(indexed(&store).is_empty());
    assert!(!store.join("drafts/w1").exists());
    assert_eq!(tombstone(&store, "w1")["id"], "w1");
}

/// Promise: Without an option of its own, `gc` keeps workers whose changes nobody looked at, and
/// workers that need a person.
#[test]
fn what_nobody_looked_at_is_kept() {
    let (_dir, store) = new_store();
    for (day, id) in [(1, "ok"), (2, "failed"), (3, "draft"), (4, "discarded")] {
        old_worker(&store, id, day, &[]);
    }
    edit(&store, "failed", |metadata| metadata["status"] = "failed".into());
    make_draft(&store, "draft", "ended");
    make_draft(&store, "discarded", "discarded");
    let listed = |more: &[&str]| {
        let report = gc_report(&store, &[&["--older-than", "30d"], more].concat());
        (ids(&report["workers"]).join(" "), report["kept"].to_string())
    };
    let (removed, kept) = listed(&[]);
    assert_eq!(removed, "ok discarded");
    assert!(kept.contains("--unreviewed") && kept.contains("--attention"), "{kept}");
    assert_eq!(listed(&["--unreviewed"]).0, "ok draft discarded");
    assert_eq!(listed(&["--attention"]).0, "ok failed discarded");
    assert_eq!(listed(&["--attention", "--unreviewed"]).0, "ok failed draft discarded");
}
