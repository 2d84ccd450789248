//! What stays of a removed worker.

use std::fs;

use super::store::{gc, gc_report, indexed, new_store, old_worker, tombstone, workers};
use crate::cli::program::{run, swarmletfs, wait_until};
use crate::recording::store::{
    assert_readable, assert_whole, assert_writable, command, metadata, record,
};
use crate::support::mount::Mount;

/// Promise: Of a removed worker, a tombstone stays, with its run, owner, task, outcome and rule.
#[test]
fn a_tombstone_stays() {
    let (_dir, store) = new_store();
    old_worker(&store, "w1", 1, &["--run", "48", "--owner", "7"]);
    old_worker(&store, "w2", 2, &[]);
    gc(&store, &["--max-workers", "1", "--yes"]).assert_success();
    assert_eq!((workers(&store), indexed(&store)), (vec!["w2".into()], vec!["w2".to_owned()]));
    let tombstone = tombstone(&store, "w1");
    for (key, value) in [
        ("id", "w1"),
        ("run", "48"),
        ("owner", "7"),
        ("task", "Check the backups"),
        ("outcome", "ok"),
        ("rule", "--max-workers 1"),
    ] {
        assert_eq!(tombstone[key], value, "{tombstone}");
    }
    assert!(tombstone["removed_at"].as_str().unwrap().ends_with('Z'), "{tombstone}");
    let log = run(command(&store, &["audit", "--worker", "w1"])).assert_success().out.clone();
    assert!(log.contains("gc w1  tombstones/w1.json "), "{log}");
    assert_whole(&store);
    assert_readable(&store);
    assert_writable(&store);
}

/// Promise: The id of a removed worker is never given again.
#[test]
fn the_id_is_never_given_again() {
    let (_dir, store) = new_store();
    old_worker(&store, "w1", 1, &[]);
    gc(&store, &["--older-than", "30d", "--yes"]).assert_success();
    let day = &tombstone(&store, "w1")["removed_at"].as_str().unwrap()[..10].to_owned();
    let refusal =
        format!("cannot create worker w1: a worker of this id was removed on {day}; try another");
    record(&store, &["worker", "create", "--id", "w1"], "").assert_failure(1, &[&refusal]);
    let workspace = tempfile::tempdir().unwrap();
    let mut by_run = swarmletfs(["run", "--id", "w1", "--store"]);
    by_run.arg(&store).args(["--", "true"]).current_dir(workspace.path());
    run(by_run).assert_failure(125, &["a worker of this id was removed on"]);
    // A damaged tombstone holds the id, too.
    fs::write(store.join("tombstones/w1.json"), "{").unwrap();
    record(&store, &["worker", "create", "--id", "w1"], "")
        .assert_failure(1, &["a worker of this id was removed earlier"]);
    assert!(workers(&store).is_empty());
    record(&store, &["worker", "create", "--id", "w10"], "").assert_success();
    assert_eq!(metadata(&store, "w10")["status"], "running");
}

/// Promise: A command on a removed worker says when and why it was removed, and where its copy is.
#[test]
fn commands_on_a_removed_worker_say_where_it_is() {
    let (dir, store) = new_store();
    old_worker(&store, "w1", 1, &[]);
    old_worker(&store, "w2", 2, &[]);
    let archive = dir.path().join("archive");
    let to_archive = ["--max-workers", "1", "--yes", "--archive", archive.to_str().unwrap()];
    gc(&store, &to_archive).assert_success();
    gc(&store, &["--older-than", "30d", "--yes"]).assert_success();
    let day = &tombstone(&store, "w1")["removed_at"].as_str().unwrap()[..10].to_owned();
    let copy = format!("try `--store {}`", archive.display());
    for command in
        [&["changes", "w1"][..], &["apply", "w1", "--yes"], &["worker", "put", "w1", "a"]]
    {
        let removed = format!("`swarmletfs gc` removed it on {day} (--max-workers 1)");
        record(&store, command, "").assert_failure(1, &["cannot find worker w1", &removed, &copy]);
    }
    record(&store, &["changes", "w2"], "").assert_failure(1, &["--older-than 30d", "no copy"]);
}

/// Promise: A removed worker is gone from a mount and from its searches within a second.
#[test]
fn a_mount_shows_the_removal_within_a_second() {
    let (_dir, store) = new_store();
    old_worker(&store, "w1", 1, &[]);
    old_worker(&store, "w2", 2, &[]);
    let mount = Mount::new(&store);
    assert!(mount.list("workers").contains(&"w1".to_owned()));
    assert!(mount.text("search/output").contains("w1"));
    assert!(mount.text("grep/output").contains("w1"));
    gc_report(&store, &["--max-workers", "1", "--yes"]);
    wait_until("the worker is gone", || {
        !mount.list("workers").contains(&"w1".to_owned())
            && !mount.at("workers/w1/metadata.json").exists()
            && !mount.text("index.json").contains("\"w1\"")
            && !mount.text("search/output").contains("w1")
            && !mount.text("grep/output").contains("w1")
    });
    assert!(mount.list("workers").contains(&"w2".to_owned()));
}

/// Promise: `expand` says when and by which rule the worker of a marker was removed, only in a view
/// that would show it.
#[test]
fn expand_names_the_removal_only_to_the_owner() {
    let (_dir, store) = new_store();
    old_worker(&store, "worker1", 1, &["--owner", "7"]);
    old_worker(&store, "worker10", 2, &["--owner", "7"]);
    gc(&store, &["--max-workers", "1", "--yes"]).assert_success();
    let expand = |id: &str, more: &[&str]| {
        let marker = format!("[EVIDENCE:run_id=-,job_id=-,worker_id={id}]\n");
        record(&store, &[&["expand", "--no-cache"], more].concat(), marker).out
    };
    let day = &tombstone(&store, "worker1")["removed_at"].as_str().unwrap()[..10].to_owned();
    let line = format!("[evidence no longer available: removed {day} by --max-workers 1]");
    for more in [&[][..], &["--owner", "7"]] {
        assert!(expand("worker1", more).contains(&line), "{}", expand("worker1", more));
    }
    let other = expand("worker1", &["--owner", "8"]);
    assert_eq!(other.replace("worker1", "absent1"), expand("absent1", &["--owner", "8"]));
}

/// Promise: The summary of a swarm counts the removed workers that its view would show.
#[test]
fn the_summary_counts_removed_workers() {
    let (_dir, store) = new_store();
    for (id, owner) in [("w1", "7"), ("w2", "8"), ("w3", "7"), ("w4", "7")] {
        old_worker(&store, id, 1, &["--owner", owner]);
    }
    let removed = |more: &[&str]| {
        let summary = record(&store, &[&["cat", "summary", "--no-cache"], more].concat(), "");
        let line = summary.assert_success().out.lines();
        line.filter_map(|line| line.strip_prefix("removed  ")).collect::<Vec<_>>().join("|")
    };
    assert_eq!(removed(&[]), "");
    let mount = Mount::new(&store);
    assert!(!mount.text("summary").contains("removed"));
    gc(&store, &["--max-workers", "1", "--yes"]).assert_success();
    assert_eq!([removed(&[]), removed(&["--owner", "7"])], ["3 workers", "2 workers"]);
    assert_eq!([removed(&["--owner", "8"]), removed(&["--owner", "9"])], ["1 worker", ""]);
    wait_until("the mount counts them", || {
        mount.text("summary").contains("\nremoved  3 workers\n")
    });
    // A record beside a worker, and other files, count nothing.
    fs::copy(store.join("tombstones/w1.json"), store.join("tombstones/w4.json")).unwrap();
    fs::write(store.join("tombstones/notes.txt"), "x").unwrap();
    assert_eq!(removed(&[]), "3 workers");
    // Nobody knows whose a damaged record is.
    fs::write(store.join("tombstones/w1.json"), "{").unwrap();
    assert_eq!([removed(&[]), removed(&["--owner", "7"])], ["3 workers", "1 worker"]);
}

/// Promise: `doctor` notes damaged records of removed workers.
#[test]
fn doctor_notes_damaged_tombstones() {
    let (_dir, store) = new_store();
    old_worker(&store, "w1", 1, &[]);
    old_worker(&store, "w2", 2, &[]);
    gc(&store, &["--max-workers", "1", "--yes"]).assert_success();
    let doctor = || run(command(&store, &["doctor"])).out;
    assert!(!doctor().contains("tombstone"), "{}", doctor());
    fs::write(store.join("tombstones/w1.json"), "{").unwrap();
    assert!(doctor().contains("1 tombstone is damaged: w1"), "{}", doctor());
}

/// Promise: No worker is created as the child of a removed one.
#[test]
fn a_removed_worker_gets_no_children() {
    let (_dir, store) = new_store();
    old_worker(&store, "w1", 1, &[]);
    gc(&store, &["--older-than", "30d", "--yes"]).assert_success();
    let create = |parent: &str| {
        let arguments = ["worker", "create", "--id", "child", "--task", "x", "--parent", parent];
        record(&store, &arguments, "")
    };
    create("w1").assert_failure(2, &["this worker was removed"]);
    assert!(workers(&store).is_empty());
    // A parent may be in another store.
    create("elsewhere").assert_success();
}
