//! Stores on a disk that gets full.

use super::workspace::Workspace;
use crate::cli::program::{is_root, program, run};
use crate::support::mount::PROGRAM;

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
