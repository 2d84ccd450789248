//! Workers whose runner was killed.
//!
//! Workspaces in which an `apply` was interrupted.
//!
//! Stores on a disk that gets full.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use super::workspace::Workspace;
use crate::cli::program::{CommandOutput, is_root, program, run, swarmletfs, wait_until};
use crate::support::mount::PROGRAM;
use crate::support::{skip, tool};

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
        assert_eq!(place.json("store/registry/w.json")["draft"], "waiting");

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

/// Contents by name.
type Contents = BTreeMap<String, Vec<u8>>;

fn contents(folder: &Path) -> Contents {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let read = |path: PathBuf| (path.file_name().unwrap().to_str().unwrap().to_owned(), path);
    let files = entries.map(|entry| read(entry.unwrap().path()));
    files.map(|(name, path)| (name, fs::read(path).unwrap())).collect()
}

/// Ends the worker `w`, whose runner was killed, and asserts that its changes are exactly what it
/// wrote. Returns false if the runner was killed before or after there was something to recover.
fn recover_exactly(place: &Workspace, at: &str) -> bool {
    let written = contents(&place.at("store/drafts/w/upper"));
    let done = place.run(&["--recover", "w"], &[]);
    if done.code != Some(0) {
        let reasons = ["cannot find worker w", "it has no draft", "it has ended"];
        assert!(reasons.iter().any(|reason| done.err.contains(reason)), "{at}: {done:#?}");
        return false;
    }
    let metadata = place.metadata("w");
    assert_ne!(metadata["status"], "running", "{at}");
    if metadata["error"] == "the runner ended before the command began" {
        assert!(done.err.contains("no files changed"), "{at}: {done:#?}");
        assert_eq!(place.json("store/drafts/w/draft.json")["state"], "discarded", "{at}");
        assert_eq!(written, Contents::new(), "{at}");
        return false;
    }
    let changes = place.changes("w");
    let names: Vec<String> = written.keys().map(|name| format!("added {name}")).collect();
    assert_eq!(changes, names, "{at}");
    assert_eq!(contents(&place.at("store/workers/w/changes")), written, "{at}");
    assert_eq!(place.read("workspace/notes"), "one\ntwo\n", "{at}");
    true
}

/// Whether a process has `text` in its command line.
fn is_running(text: &str) -> bool {
    let processes = fs::read_dir("/proc").unwrap();
    let mut lines = processes.filter_map(|entry| fs::read(entry.ok()?.path().join("cmdline")).ok());
    lines.any(|line| line.windows(text.len()).any(|part| part == text.as_bytes()))
}

/// With isolation, nothing of the command survives a killed runner, and `run --recover`
/// ends the worker with what it had changed.
#[test]
fn runner_can_be_killed_at_any_moment() {
    let written = ["f1", "f2", "f40", "f150", "f400"].map(|name| format!("drafts/w/upper/{name}"));
    let made =
        ["workers/w", "drafts/w", "drafts/w/draft.json", "drafts/w/upper"].map(str::to_owned);
    let recorded = ["workers/w/changes.json".to_owned()];
    for (step, event) in made.iter().chain(&written).chain(&recorded).enumerate() {
        for place in Workspace::all() {
            let seconds = format!("1000.{}{step}", std::process::id());
            let script =
                format!("sleep {seconds} & for n in $(seq 400); do echo $n > f$n; done; wait");
            let runner = &mut place.runner(&[], &["sh", "-c", &script]);
            let mut child = runner.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            let event_path = place.at("store").join(event);
            wait_until(event, || event_path.exists());
            child.kill().unwrap();
            child.wait().unwrap();
            // The shell names it, too, and may go on writing before its `sleep` has begun.
            wait_until("everything to end", || !is_running(&seconds));
            let is_recovered = recover_exactly(&place, event);
            assert!(is_recovered || made.contains(event), "{event}");
        }
    }
}

/// The runner renames a file into its place for each step of its record, so it is killed at each.
#[test]
fn runner_can_be_killed_while_it_records_the_changes() {
    if !tool::is_here("strace") {
        return skip("strace is not installed");
    }
    for place in [Workspace::new, Workspace::of_ordinary_user] {
        let (mut recovered, mut number) = (0, 0);
        loop {
            number += 1;
            let place = place();
            let inject = format!("inject=renameat:signal=KILL:when={number}");
            let (store, workspace) = (place.at("store"), place.at("workspace"));
            let mut words =
                ["strace", "-qq", "-o", "/dev/null", "-e", &inject].map(OsStr::new).to_vec();
            words.extend([PROGRAM, "run", "--id", "w", "--store"].map(OsStr::new));
            words.extend([store.as_os_str(), "--workspace".as_ref(), workspace.as_os_str()]);
            words.extend(
                ["--", "sh", "-c", "for n in a b c d; do echo $n > $n; done"].map(OsStr::new),
            );
            let done = run(place.command(words));
            if done.code == Some(0) {
                break;
            }
            assert_eq!(done.code, None, "{number}: {done:#?}");
            recovered += u32::from(recover_exactly(&place, &format!("{number}")));
        }
        assert!(recovered >= 6, "{recovered} of {number}");
    }
}

/// A copy that was not complete is removed, since the command never began.
#[test]
fn runner_can_be_killed_while_it_copies() {
    for place in Workspace::all() {
        let many = "for n in $(seq 3000); do echo $n > $n; done";
        place.outside(many);
        let mut runner = place.runner(&["--engine", "copy"], &["true"]);
        let mut child = runner.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let copy = place.at("store/drafts/w/copy");
        wait_until("the copy to begin", || {
            fs::read_dir(&copy).is_ok_and(|mut entries| entries.next().is_some())
        });
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!place.at("store/drafts/w/manifest").exists());
        place.run(&["--recover", "w"], &[]).assert_success();
        assert_eq!(place.metadata("w")["error"], "the runner ended before the command began");
        assert!(!copy.exists());
        place.run(&["--recover", "w"], &[]).assert_failure(1, &["it has ended"]);
    }
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
    let done = discard(&place);
    assert!(
        done.assert_success().err.contains("worker w: failed (the runner ended early), 1 file")
    );
    assert!(!place.at("store/drafts/w/upper").exists());
    assert_eq!(place.metadata("w")["status"], "failed");
}

/// Promise: The next command on drafts ends a worker whose runner was killed.
#[test]
fn next_command_ends_a_worker_whose_runner_was_killed() {
    let commands: [&[&str]; 4] =
        [&["changes", "w"], &["review"], &["changes"], &["run", "--", "true"]];
    for arguments in commands {
        let place = lost();
        let (command, rest) = arguments.split_first().unwrap();
        let mut next = swarmletfs([command]);
        next.arg("--store").arg(place.at("store")).args(rest).current_dir(place.at("workspace"));
        let done = run(next);
        let ended = "worker w: failed (the runner ended early), 1 file changed (+1 -0)";
        assert!(done.assert_success().err.contains(ended), "{arguments:?}: {done:#?}");
        assert_eq!(place.metadata("w")["status"], "failed");
    }
}

#[test]
fn worker_is_ended_although_its_changes_are_unknown() {
    let cases =
        [("they were discarded", "discarded"), ("its workspace does not exist any more", "ended")];
    for (reason, state) in cases {
        let place = lost();
        if state == "ended" {
            fs::rename(place.at("workspace"), place.at("away")).unwrap();
        } else {
            set_state(&place, state);
        }
        let done = place.run(&["--recover", "w"], &[]);
        done.assert_success();
        let error = format!("the runner ended early; its changes are unknown, because {reason}");
        assert!(done.err.contains(&error), "{done:#?}");
        let metadata = place.metadata("w");
        assert_eq!((&metadata["status"], &metadata["error"]), (&"failed".into(), &error.into()));
        assert_eq!(place.json("store/drafts/w/draft.json")["state"], state);
        let kept = if state == "ended" { "unknown" } else { state };
        assert_eq!(place.json("store/registry/w.json")["draft"], kept);
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

/// Applies the changes of `w0`, and kills the command at the rename of this number.
fn apply_killed_at(place: &Workspace, number: u32) -> CommandOutput {
    let store = place.at("store");
    let inject = format!("inject=renameat2:signal=KILL:when={number}");
    let mut words =
        ["strace", "-f", "-qq", "-o", "/dev/null", "-e", &inject].map(OsStr::new).to_vec();
    words.extend([PROGRAM, "apply", "w0", "--yes", "--store"].map(OsStr::new));
    words.push(store.as_os_str());
    run(place.command(words))
}

/// Makes a workspace with two files that the worker `w0` has changed.
fn changed(place: Workspace) -> Workspace {
    place.write("workspace/other", "one\n");
    place.sh(&["--id", "w0"], "echo new > notes; echo new > other").assert_success();
    place
}

fn notes_and_other(place: &Workspace) -> [String; 2] {
    ["workspace/notes", "workspace/other"].map(|name| place.read(name))
}

/// A worker begins with a workspace as it was before or after an application, even if that
/// was interrupted.
#[test]
fn worker_does_not_begin_with_a_part_of_an_application() {
    if !tool::is_here("strace") {
        return skip("strace is not installed");
    }
    let mut half = 0;
    for number in 1..=4 {
        for place in Workspace::all().map(changed) {
            let is_killed = apply_killed_at(&place, number).code.is_none();
            let [notes, other] = notes_and_other(&place);
            let is_half = (notes == "new\n") != (other == "new\n");
            half += u32::from(is_half);
            let done = place.sh(&[], "cat notes other");
            done.assert_success();
            let is_whole = done.out == "new\nnew\n" || done.out == "one\ntwo\none\n";
            assert!(is_whole, "{number}: {done:#?}");
            assert_eq!(notes_and_other(&place).concat(), done.out);
            assert!(!place.at("store/drafts/w0/journal.json").exists());
            if is_half {
                assert!(is_killed);
                let said = "the interrupted `swarmletfs apply w0` was taken back; run it again";
                assert!(done.err.contains(said), "{done:#?}");
            }
            assert_eq!(place.changes("w"), [""; 0]);
        }
    }
    assert!(half > 0, "no application was interrupted in the middle");
}

/// The worker may run in a part of the workspace, or in a folder that has it as a part.
#[test]
fn parts_of_a_workspace_are_recovered_too() {
    if !tool::is_here("strace") {
        return skip("strace is not installed");
    }
    let place = Workspace::new();
    place.folder("workspace/part");
    let place = changed(place);
    apply_killed_at(&place, 2);
    assert!(place.at("store/drafts/w0/journal.json").exists());
    let mut command = place.command(
        [PROGRAM, "run", "--store", "store", "--workspace", "workspace/part", "--", "true"]
            .map(OsStr::new),
    );
    command.current_dir(place.at("workspace").parent().unwrap());
    run(command).assert_success();
    assert!(!place.at("store/drafts/w0/journal.json").exists());
}

#[test]
fn application_that_cannot_be_recovered_refuses_a_run_by_name() {
    let place = changed(Workspace::new());
    fs::write(place.at("store/drafts/w0/journal.json"), "{\"version\": 99}").unwrap();
    let refused = place.run(&[], &["true"]);
    let workspace = place.at("workspace");
    let reason = format!(
        "cannot use {} as the workspace: a command that changed it was interrupted",
        workspace.display()
    );
    refused.assert_failure(125, &[&reason, "journal.json"]);
    assert_eq!(place.workers(), ["w0"]);
}

/// If the disk is full, the command sees that, the error is clear, and the worker can be
/// ended later.
#[test]
fn full_disk_is_an_error_from_which_a_worker_recovers() {
    if !is_root() {
        return;
    }
    for place in Workspace::all() {
        let user: Vec<&str> = place.user().iter().map(|word| word.to_str().unwrap()).collect();
        let user = user.join(" ");
        let (store, workspace) = (place.at("store"), place.at("workspace"));
        let (store, workspace) = (store.display(), workspace.display());
        let run_command = format!("{user} {PROGRAM} run --store {store}");
        // The disk is one of this script only.
        let script = format!(
            "mount -t tmpfs -o size=4m,mode=0777 none {store}
             {user} {PROGRAM} init {store}
             set +e
             {run_command} --id w --workspace {workspace} -- sh -c '
                 echo small > small; echo more >> notes
                 dd if=/dev/zero of=large bs=64k count=200 2>&1 | grep -o \"No space left.*\"'
             echo code $?
             echo status $(grep -o '\"status\": *\"[a-z]*\"' {store}/workers/w/metadata.json)
             mount -o remount,size=64m {store}
             {run_command} --recover w
             echo recovered $?
             cat {store}/workers/w/changes/small {store}/workers/w/changes/notes
             {user} {PROGRAM} changes w --stat --store {store}"
        );
        let mut command = program("unshare", ["--mount", "--propagation", "private"]);
        command.args(["timeout", "100", "sh", "-ec", &script]);
        let done = run(command);
        let said = format!("{}{}", done.out, done.err);
        assert!(done.out.contains("No space left on device"), "{said}");
        assert!(done.err.contains("the changes are not recorded wholly"), "{said}");
        assert!(done.err.contains("run --recover w"), "{said}");
        assert!(!done.out.contains("code 0\n") && !said.contains("panicked"), "{said}");
        assert!(done.out.contains("recovered 0\nsmall\none\ntwo\nmore\n"), "{said}");
    }
}

/// A copy of the workspace that fills the disk is removed again.
#[test]
fn copy_that_does_not_fit_leaves_nothing() {
    if !is_root() {
        return;
    }
    for place in Workspace::all() {
        let user: Vec<&str> = place.user().iter().map(|word| word.to_str().unwrap()).collect();
        let user = user.join(" ");
        let large: String = "0123456789abcde\n".repeat(512 << 10);
        place.write("workspace/large", &large);
        let (store, workspace) = (place.at("store"), place.at("workspace"));
        let (store, workspace) = (store.display(), workspace.display());
        let script = format!(
            "mount -t tmpfs -o size=4m,mode=0777 none {store}
             {user} {PROGRAM} init {store}
             set +e
             {user} {PROGRAM} run --store {store} --id w --workspace {workspace} --engine copy \
                 -- echo ran
             echo code $?; ls {store}/drafts/w
             grep -o '\"status\": *\"[a-z]*\"' {store}/workers/w/metadata.json"
        );
        let mut command = program("unshare", ["--mount", "--propagation", "private"]);
        command.args(["timeout", "100", "sh", "-ec", &script]);
        let done = run(command);
        assert!(done.out.contains("code 125\nboot_id\ndraft.json\n"), "{done:#?}");
        assert!(done.out.ends_with("\"failed\"\n") && !done.out.contains("ran"), "{done:#?}");
        assert!(done.err.contains("no space left on device"), "{done:#?}");
    }
}
