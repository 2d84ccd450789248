//! The end of a command is the end of its worker.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::workspace::Workspace;
use crate::cli::program::{LIMIT, run, swarmletfs, wait_timeout};
use crate::support::mount::PROGRAM;

/// Asserts the exit code of a run, and the status and the error of its worker.
#[track_caller]
fn assert_end(place: &Workspace, options: &[&str], command: &[&str], end: (i32, &str, &str)) {
    let worker = format!("w{}", place.workers().len());
    let options = [options, &["--id", &worker]].concat();
    let done = place.run(&options, command);
    let metadata = place.metadata(&worker);
    let error = metadata["error"].as_str().unwrap_or_default();
    let status = metadata["status"].as_str().unwrap();
    assert_eq!((done.code.unwrap(), status, error), end, "{command:?}: {done:#?}");
    assert!(metadata["finished_at"].is_string());
}

#[test]
fn exit_code_is_that_of_the_command_and_decides_the_status() {
    for place in Workspace::all() {
        assert_end(&place, &[], &["true"], (0, "completed", ""));
        assert_end(&place, &[], &["sh", "-c", "exit 3"], (3, "failed", "exit code 3"));
        let killed = (137, "failed", "ended by signal 9 (SIGKILL)");
        assert_end(&place, &[], &["sh", "-c", "kill -9 $$"], killed);
        let late = (124, "failed", "timed out after 1s");
        assert_end(&place, &["--timeout", "1"], &["sleep", "1000"], late);
        assert_end(&place, &[], &["no-such-program"], (127, "failed", "exit code 127"));
        assert_end(&place, &[], &["/etc/passwd"], (126, "failed", "exit code 126"));
    }
}

/// A command that knows nothing of records is not doubted because it records no calls.
#[test]
fn command_without_recorded_calls_is_not_doubted() {
    let place = Workspace::new();
    place.sh(&[], "echo done").assert_success();
    let cat = |path: &str| {
        let mut command = swarmletfs(["cat", path, "--store"]);
        command.arg(place.at("store"));
        run(command).assert_success().out.clone()
    };
    let summary = cat("workers/w/summary");
    assert!(!summary.contains("no_tool_call") && summary.contains("doubts: none"), "{summary}");
    place.run(&["--id", "v"], &[PROGRAM, "record", "--", "true"]).assert_success();
    let recorded = cat("workers/v/summary");
    assert!(recorded.contains("001_true.txt"), "{recorded}");
}

/// Promise: The exit code of a run decides its outcome, whatever the command wrote into its own
/// record.
#[test]
fn outcome_of_a_run_is_its_exit_code_and_its_cause_a_line_of_its_log() {
    let place = Workspace::new();
    let cat = |path: &str| {
        let mut command = swarmletfs(["cat", path, "--store"]);
        command.arg(place.at("store"));
        run(command).assert_success().out.clone()
    };
    let folder = place.at("store/workers");
    let forge = |id: &str, code: u8| {
        let at = folder.join(id);
        let command = format!(r#"{{"exit_code": {code}, "error": "forged"}}"#);
        let changes = format!(
            r#"{{"version": 1, "workspace": "/", "engine": "copy", "is_final": true,
            "started_at": "2026-11-24T10:00:00Z", "scanned_at": "2026-11-24T10:00:00Z",
            "command": {command}, "files": []}}"#
        );
        format!("cd {}; echo '{changes}' > changes.json", at.display())
    };
    let finish = |status: &str| format!("{PROGRAM} worker finish --status {status}");
    let error = "echo starting; echo 'error: no such table: users' >&2; echo; exit 4";
    let quiet = "echo reading; echo stopped here; exit 5";
    let cases = [
        ("ok", "echo done".to_owned(), "ok: its command exited with 0", None),
        ("looks", format!("{}; exit 0", forge("looks", 7)), "ok: its command exited with 0", None),
        (
            "error",
            error.to_owned(),
            "failed: its status says so",
            Some("exit code 4: error: no such table: users"),
        ),
        (
            "quiet",
            quiet.to_owned(),
            "failed: its status says so",
            Some("exit code 5; last output: stopped here"),
        ),
        (
            "claims",
            format!("{}; {}; exit 6", forge("claims", 0), finish("completed")),
            "failed: its command exited with 6",
            Some("exit code 6"),
        ),
        (
            "says",
            format!("{} --error 'out of paper'; exit 7", finish("failed")),
            "failed: its status says so",
            Some("out of paper"),
        ),
    ];
    for (id, script, outcome, cause) in cases {
        place.run(&["--id", id], &["sh", "-c", &script]);
        let summary = cat(&format!("workers/{id}/summary"));
        assert!(summary.contains(&format!("\noutcome  {outcome}\n")), "{id}: {summary}");
        let expected = cause.map(|cause| format!("\ncause    {cause}"));
        let is_cause = expected.is_none_or(|expected| summary.contains(&expected));
        assert!(is_cause && cause.is_some() == summary.contains("\ncause "), "{id}: {summary}");
    }
    let evidence = cat("workers/error/evidence.txt");
    assert!(evidence.contains("error: no such table: users"), "{evidence}");
}

#[test]
fn exit_code_is_that_of_the_command_without_a_sandbox() {
    let place = Workspace::new();
    let options = ["--no-sandbox"];
    assert_end(&place, &options, &["true"], (0, "completed", ""));
    assert_end(&place, &options, &["sh", "-c", "exit 3"], (3, "failed", "exit code 3"));
    let killed = (137, "failed", "ended by signal 9 (SIGKILL)");
    assert_end(&place, &options, &["sh", "-c", "kill -9 $$"], killed);
    let missing = "cannot be run: No such file or directory (os error 2)";
    assert_end(&place, &options, &["no-such-program"], (127, "failed", missing));
}

#[test]
fn metadata_describes_the_worker() {
    let place = Workspace::new();
    let options = ["--run", "48", "--type", "ops", "--tag", "a", "--tag", "b", "--owner", "7"];
    let more = ["--parent", "p", "--job", "j", "--model", "m"];
    place.sh(&[&options[..], &more[..]].concat(), "exit 4").assert_failure(4, &[]);
    let metadata = place.metadata("w");
    for (key, value) in [
        ("run_id", "48"),
        ("task_type", "ops"),
        ("owner_id", "7"),
        ("parent_id", "p"),
        ("job_id", "j"),
        ("model", "m"),
        ("task", "sh -c 'exit 4'"),
    ] {
        assert_eq!(metadata[key], value, "{metadata:#}");
    }
    assert_eq!(metadata["tags"], serde_json::json!(["a", "b"]));
    assert_eq!(metadata["cwd"], place.at("workspace").to_str().unwrap());
    assert_eq!(metadata["exit_code"], 4);
    place.run(&["--id", "w2", "--task", "Fix issue 12"], &["true"]).assert_success();
    assert_eq!(place.metadata("w2")["task"], "Fix issue 12");
}

#[test]
fn output_is_passed_on_and_recorded_in_order() {
    let place = Workspace::new();
    let done = place.sh(&["--quiet"], "echo one; echo two >&2; echo three; head -c 3 /dev/zero");
    assert_eq!((done.code, &*done.out, &*done.err), (Some(0), "one\nthree\n\0\0\0", "two\n"));
    let log = place.read("store/workers/w/logs/execution.log");
    assert_eq!(log, "one\ntwo\nthree\n\0\0\0");
    let options = ["--quiet", "--id", "w2", "--max-bytes", "10"];
    place.sh(&options, "seq 100").assert_success();
    let log = place.read("store/workers/w2/logs/execution.log");
    assert!(log.starts_with("1\n2\n3") && log.ends_with("100\n"), "{log}");
    assert!(log.contains(" B omitted: bytes "), "{log}");
}

#[test]
fn messages_name_the_worker_and_its_changes() {
    let place = Workspace::new();
    let done = place.sh(&[], "printf 'three\\nfour\\n' > notes");
    done.assert_success();
    let expected = "swarmletfs: worker w\n\
        swarmletfs: worker w: ok, 1 file changed (+2 -2); see `swarmletfs changes w`\n";
    assert_eq!(done.err, expected);
    let done = place.sh(&["--id", "w2"], "exit 5");
    let end = "swarmletfs: worker w2: failed (exit code 5), no files changed\n";
    assert!(done.err.ends_with(end), "{done:#?}");
    let done = place.sh(&["--id", "w3", "--quiet"], "exit 5");
    assert_eq!((done.code, &*done.err), (Some(5), ""));
}

#[test]
fn worker_that_finishes_itself_keeps_its_end() {
    for place in Workspace::all() {
        let script = format!("echo Done. | {PROGRAM} worker finish --result - || exit 1; exit 7");
        let done = place.sh(&[], &script);
        assert_eq!(done.code, Some(7), "{done:#?}");
        assert!(
            done.err
                .contains("worker w: failed (exit code 7; last output: Done.), no files changed"),
            "{done:#?}"
        );
        assert_eq!(place.metadata("w")["status"], "completed");
        assert_eq!(place.read("store/workers/w/result.txt"), "Done.\n");
        assert_eq!(place.json("store/workers/w/changes.json")["is_final"], true);
        place.sh(&["--id", "v", "--no-sandbox"], &script);
        assert_eq!(place.metadata("v")["status"], "completed");
        // The log of changes has each end once, and no failure.
        let mut audit = swarmletfs(["audit", "--json", "--store"]);
        audit.arg(place.at("store"));
        let log = run(audit).assert_success().out.clone();
        let entries = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let ends = entries.filter(|entry| entry["action"] == "finish");
        let ends: Vec<_> =
            ends.map(|entry| (entry["worker"].clone(), entry["result"].clone())).collect();
        assert_eq!(ends, [("w".into(), "ok".into()), ("v".into(), "ok".into())], "{log}");
    }
}

#[test]
fn index_of_the_store_has_the_end_of_a_worker_that_finished_itself() {
    let place = Workspace::new();
    let mut create = swarmletfs(["worker", "create", "--id", "first", "--index", "--store"]);
    create.arg(place.at("store"));
    run(create).assert_success();
    place.sh(&[], &format!("{PROGRAM} worker finish --status failed")).assert_success();
    let index = place.json("store/workers/index.json");
    let entries = index["workers"].as_array().unwrap();
    let entry = entries.iter().find(|entry| entry["id"] == "w").unwrap();
    assert_eq!(entry["status"], "failed");
}

#[test]
fn signals_reach_the_command() {
    for place in Workspace::all() {
        let script = "trap 'echo got it; exit 9' TERM; echo ready; while :; do sleep 0.01; done";
        let mut child = place.start(&[], script);
        // The command that drops the privileges has become the program.
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        let status = wait_timeout(&mut child, LIMIT).expect("the run goes on");
        assert_eq!(status.code(), Some(9));
        assert!(place.read("store/workers/w/logs/execution.log").ends_with("got it\n"));
        assert_eq!(place.metadata("w")["error"], "exit code 9");
    }
}

#[test]
fn command_can_have_a_terminal_of_its_own() {
    let place = Workspace::new();
    let mut command = place.runner(&["--tty"], &["sh", "-c", "test -t 1 && echo terminal"]);
    let done = command.stdin(Stdio::null()).output().unwrap();
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert!(String::from_utf8_lossy(&done.stdout).contains("terminal"), "{done:?}");
    place.sh(&["--id", "w2"], "test -t 1").assert_failure(1, &[]);
}

#[test]
fn end_counts_the_ignored_paths() {
    let place = Workspace::new();
    place.folder("workspace/.git");
    place.write("workspace/.gitignore", "*.log\n");
    let done = place.sh(&[], "echo x | tee a.log b.log new");
    done.assert_success();
    let expected = "1 file changed (+1 -0), 2 ignored paths left out; see";
    assert!(done.err.contains(expected), "{done:#?}");
}

#[test]
fn record_that_the_command_damaged_is_restored() {
    for place in Workspace::all() {
        for (id, damage, is_log_lost) in [
            ("w1", "rm -rf ./* .[!.]*", true),
            ("w2", "echo '{' > metadata.json", false),
            ("w3", "rm metadata.json; mkdir -p metadata.json/a; chmod 0 metadata.json", false),
            ("w4", "rm metadata.json; ln -s /etc/passwd metadata.json; chmod 0 .", false),
        ] {
            let script =
                format!("cd $SWARMLET_STORE/workers/{id}; {damage}; echo new > $OLDPWD/new");
            let options = ["--id", id, "--task", "Clean up"];
            let done = place.sh(&options, &script);
            let told = "the command damaged the record of its worker";
            assert!(done.err.contains(told), "{id} {done:#?}");
            let metadata = place.metadata(id);
            assert_eq!(
                (&metadata["task"], &metadata["worker_id"]),
                (&"Clean up".into(), &id.into())
            );
            assert_eq!(metadata["status"], "completed", "{id} {done:#?}");
            assert!(metadata["duration_ms"].is_u64() && metadata["exit_code"] == 0, "{metadata}");
            let changes = place.json(&format!("store/workers/{id}/changes.json"));
            let note = changes["notes"][0].as_str().unwrap();
            assert_eq!(note.contains("execution.log is missing"), is_log_lost, "{note}");
            assert_eq!(place.changes(id), ["added new"]);
        }
        let done = place.sh(&[], "true");
        assert!(!done.err.contains("damaged"), "{done:#?}");
    }
}

#[test]
fn sandbox_is_tried_out_once() {
    for place in Workspace::all() {
        // The first run makes the folder of the drafts.
        place.sh(&["--id", "w1"], "true").assert_success();
        place.sh(&["--id", "w2"], "true").assert_success();
        let trial = || {
            let entries = fs::read_dir(place.at("store/drafts")).unwrap().map(Result::unwrap);
            let is_trial = |name: &str| name.starts_with(".swarmletfs-trial-");
            entries.into_iter().find(|entry| is_trial(entry.file_name().to_str().unwrap()))
        };
        let first = trial().unwrap();
        place.sh(&["--id", "w3"], "true").assert_success();
        assert_eq!(trial().unwrap().metadata().unwrap().ino(), first.metadata().unwrap().ino());
        // A success under other conditions counts for nothing.
        fs::write(first.path(), "other").unwrap();
        place.sh(&["--id", "w4"], "true").assert_success();
        assert_ne!(fs::read_to_string(first.path()).unwrap(), "other");
        // Nor does one before the sandbox failed.
        assert_eq!(place.sh(&["--id", "w5"], "exit 125").code, Some(125));
        assert!(trial().is_none());
    }
}

/// Promise: The end of a run names the files that vanished with the command.
#[test]
fn files_outside_of_the_workspace_are_named_at_the_end() {
    for place in Workspace::all() {
        let script = "mkdir /tmp/deep; echo 12345 > /tmp/deep/report; ln -s /etc /tmp/link; exit 3";
        let done = place.sh(&[], script);
        let named = "1 file of 6 outside of the workspace vanished with the command: \
                     /tmp/deep/report; to keep such files, write into the workspace, or use --write";
        assert!(done.err.contains(named), "{done:#?}");
        let quiet = place.sh(&["--id", "q", "--quiet"], "echo > /dev/shm/x");
        assert_eq!(quiet.assert_success().err, "");
        let none = place.sh(&["--id", "n"], "echo new > new; mkdir /tmp/empty");
        assert!(!none.assert_success().err.contains("vanished"), "{none:#?}");
    }
}
