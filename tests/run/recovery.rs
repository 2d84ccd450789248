//! Workers whose runner was killed.

use std::fs;

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

/// Returns a workspace whose worker `w` has no runner any more.
fn lost() -> Workspace {
    let place = Workspace::new();
    let mut child = place.start(&[], SCRIPT);
    child.kill().unwrap();
    child.wait().unwrap();
    place
}

fn discard(place: &Workspace) -> crate::cli::program::CommandOutput {
    let mut command = swarmletfs(["discard", "w", "--yes", "--store"]);
    command.arg(place.at("store"));
    run(command)
}

fn set_state(place: &Workspace, state: &str) {
    let mut record = place.json("store/drafts/w/draft.json");
    record["state"] = state.into();
    fs::write(place.at("store/drafts/w/draft.json"), record.to_string()).unwrap();
}

/// Promise: The draft of a worker without an end is not discarded: nothing could end it then.
#[test]
fn draft_of_a_lost_worker_is_discarded_after_its_end() {
    let place = lost();
    let refused = discard(&place);
    refused.assert_failure(1, &["its end is not recorded; try `swarmletfs run --recover w`"]);
    assert!(place.at("store/drafts/w/upper").exists());
    place.run(&["--recover", "w"], &[]).assert_success();
    discard(&place).assert_success();
}

#[test]
fn worker_is_ended_although_its_changes_are_unknown() {
    let layers = |place: &Workspace| place.at("store/drafts/w/upper");
    let cases: [(&str, &str, &dyn Fn(&Workspace)); 3] = [
        ("they were discarded", "discarded", &|place| set_state(place, "discarded")),
        ("it never began", "discarded", &|place| fs::remove_dir_all(layers(place)).unwrap()),
        ("its workspace does not exist any more", "ended", &|place| {
            fs::rename(place.at("workspace"), place.at("away")).unwrap();
        }),
    ];
    for (reason, state, break_it) in cases {
        let place = lost();
        break_it(&place);
        let done = place.run(&["--recover", "w"], &[]);
        done.assert_success();
        let error = format!("the runner ended early; its changes are unknown, because {reason}");
        assert!(done.err.contains(&error), "{done:#?}");
        let metadata = place.metadata("w");
        assert_eq!((&metadata["status"], &metadata["error"]), (&"failed".into(), &error.into()));
        assert_eq!(place.json("store/drafts/w/draft.json")["state"], state);
        assert!(!place.at("store/workers/w/changes.json").exists(), "{reason}");
        let mut doctor = swarmletfs(["doctor", "--json"]);
        doctor.arg(place.at("store"));
        assert!(!run(doctor).out.contains("lost_runners\","), "{reason}");
        if state == "ended" {
            // What it wrote is kept until the workspace is back.
            fs::rename(place.at("away"), place.at("workspace")).unwrap();
            place.run(&["--recover", "w"], &[]).assert_success();
            assert_eq!(place.changes("w"), ["added new"]);
        }
        place.run(&["--recover", "w"], &[]).assert_failure(1, &["it has ended"]);
    }
}
