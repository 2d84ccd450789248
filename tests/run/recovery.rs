//! Workers whose runner was killed.

use super::workspace::Workspace;
use crate::cli::program::{run, swarmletfs};

/// A command that changes something and waits.
const SCRIPT: &str = "echo new > new; echo ready; sleep 1000";

#[test]
fn worker_is_recovered_after_its_runner_was_killed() {
    for place in Workspace::all() {
        let mut child = place.start(&[], SCRIPT);
        let early = place.run(&["--recover", "w"], &[]);
        early.assert_failure(1, &["cannot recover worker w: it still runs"]);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(place.metadata("w")["status"], "running");

        let mut doctor = swarmletfs(["doctor", "--json"]);
        doctor.arg(place.at("store"));
        let report: serde_json::Value = serde_json::from_str(&run(doctor).out).unwrap();
        let findings = report["findings"].as_array().unwrap();
        let found = findings.iter().find(|found| found["check"] == "lost_runners").unwrap();
        assert_eq!(found["says"], "1 worker whose runner ended early: w");
        assert!(found["cure"].as_str().unwrap().contains("--recover w"), "{found}");
        assert_eq!(report["stores"][0]["recording"]["lost_runners"], 1);

        let done = place.run(&["--recover", "w"], &[]);
        done.assert_success();
        let end = "worker w: failed (the runner ended early), 1 file changed (+1 -0)";
        assert!(done.err.contains(end), "{done:#?}");
        let metadata = place.metadata("w");
        assert_eq!(metadata["status"], "failed");
        assert_eq!(metadata["error"], "the runner ended early");
        assert_eq!(place.changes("w"), ["added new"]);
        assert_eq!(place.read("store/workers/w/changes/new"), "new\n");
        assert_eq!(place.json("store/drafts/w/draft.json")["state"], "ended");

        let again = place.run(&["--recover", "w"], &[]);
        again.assert_failure(1, &["cannot recover worker w: it has ended"]);
    }
}

#[test]
fn only_workers_of_run_can_be_recovered() {
    let place = Workspace::new();
    let mut create = swarmletfs(["worker", "create", "--id", "w", "--store"]);
    create.arg(place.at("store"));
    run(create).assert_success();
    let done = place.run(&["--recover", "w"], &[]);
    done.assert_failure(1, &["it has no draft", "`swarmletfs worker finish w --status failed`"]);
    place.run(&["--recover", "nobody"], &[]).assert_failure(1, &["cannot find worker nobody"]);
}
