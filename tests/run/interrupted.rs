//! Workspaces in which an `apply` was interrupted.

use std::ffi::OsStr;
use std::fs;

use super::workspace::Workspace;
use crate::cli::program::{CommandOutput, run};
use crate::support::mount::PROGRAM;
use crate::support::{skip, tool};

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

fn contents(place: &Workspace) -> [String; 2] {
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
            let [notes, other] = contents(&place);
            let is_half = (notes == "new\n") != (other == "new\n");
            half += u32::from(is_half);
            let done = place.sh(&[], "cat notes other");
            done.assert_success();
            let is_whole = done.out == "new\nnew\n" || done.out == "one\ntwo\none\n";
            assert!(is_whole, "{number}: {done:#?}");
            assert_eq!(contents(&place).concat(), done.out);
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
