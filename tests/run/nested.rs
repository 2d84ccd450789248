//! Runs in runs, and workspaces that are layers of other overlays or of other users.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, chown};

use super::workspace::Workspace;
use crate::cli::program::{is_root, program, run};
use crate::support::mount::PROGRAM;

/// Landlock forbids sandboxes inside, so `--nested` leaves it out.
#[test]
fn run_in_a_run_works_if_it_is_allowed() {
    let place = Workspace::of_ordinary_user();
    let script = format!(
        "set -e; {PROGRAM} init -q /tmp/store 2> /dev/null || {PROGRAM} init /tmp/store
         {PROGRAM} run --store /tmp/store --id inner --workspace . -- sh -c 'echo x > new; ls'
         test ! -e new; cat /tmp/store/workers/inner/changes/new; echo outer > outer"
    );
    let done = place.sh(&["--nested"], &script);
    done.assert_success();
    assert!(done.out.ends_with("new\nnotes\nx\n"), "{done:#?}");
    assert_eq!(place.changes("w"), ["added outer"]);
    assert!(!place.at("workspace/new").exists());
    let refused = place.sh(&["--id", "w2"], &script);
    refused.assert_failure(125, &["cannot protect this machine", "--no-sandbox"]);
}

/// In a run of root, sandboxes that make user namespaces do not work.
#[test]
fn root_is_told_that_sandboxes_inside_do_not_work() {
    if !is_root() {
        return;
    }
    let notice = "sandboxes with user namespaces do not work in a run of root; try --as USER";
    let script = "unshare --user --map-root-user true";
    let [root, user] = Workspace::all();
    let done = root.sh(&["--nested"], script);
    assert!(done.code != Some(0) && done.err.contains(notice), "{done:#?}");
    let done = user.sh(&["--nested"], script);
    assert!(done.code == Some(0) && !done.err.contains(notice), "{done:#?}");
    let done = root.sh(&["--id", "v"], "true");
    assert!(!done.err.contains(notice), "{done:#?}");
}

/// Promise: Files of other users in a workspace make no run copy the whole of it: they alone are
/// copied, can be changed, and count as changes only if the worker changed them.
#[test]
fn files_of_others_are_copied_into_the_overlay() {
    if !is_root() {
        return;
    }
    for (uid, gid) in [(Some(1234), None), (None, Some(1234))] {
        let place = Workspace::of_ordinary_user();
        for name in ["kept", "edited", "removed", "moved", "outside", "secret"] {
            place.folder("workspace/dir");
            let path = place.write(&format!("workspace/dir/{name}"), "foreign\n");
            chown(&path, uid, gid).unwrap();
        }
        std::os::unix::fs::symlink("kept", place.at("workspace/dir/link")).unwrap();
        let secret = place.at("workspace/dir/secret");
        std::fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
        chown(&secret, Some(1234), Some(1234)).unwrap();
        chown(place.at("workspace/dir"), uid, gid).unwrap();
        let script = "set -e; cat dir/kept; echo more >> dir/edited; rm dir/removed dir/link
            mv dir/moved dir/there; echo new > dir/new; cat dir/secret 2> /dev/null || echo no
            echo ready; while [ ! -e $SWARMLET_STORE/workers/w/go ]; do sleep 0.05; done";
        let mut child = place.start(&[], script);
        // Others change a file that the worker leaves alone.
        std::fs::write(place.at("workspace/dir/outside"), "changed\n").unwrap();
        place.write("store/workers/w/go", "");
        assert!(child.wait().unwrap().success());
        assert_eq!(place.read("store/workers/w/logs/execution.log"), "foreign\nno\nready\n");
        let changes = [
            "modified dir/edited",
            "deleted dir/link",
            "deleted dir/moved",
            "added dir/new",
            "deleted dir/removed",
            "added dir/there",
        ];
        assert_eq!(place.changes("w"), changes);
        let draft = place.json("store/drafts/w/draft.json");
        assert_eq!(draft["engine"], "overlay");
    }
    // Root can change files of all users.
    let place = Workspace::new();
    let foreign = place.write("workspace/foreign", "foreign\n");
    chown(&foreign, Some(1234), Some(1234)).unwrap();
    place.sh(&["--engine", "overlay"], "echo more >> foreign").assert_success();
    assert_eq!(place.changes("w"), ["modified foreign"]);
}

/// The layer of another overlay is copied, since an overlay of it is undefined.
#[test]
fn workspace_in_the_layer_of_another_overlay_is_copied() {
    if !is_root() {
        return;
    }
    for place in Workspace::all() {
        let user: Vec<&str> = place.user().iter().map(|word| word.to_str().unwrap()).collect();
        let user = user.join(" ");
        let [workspace, store, work, lower, merged] =
            ["workspace", "store", "work", "lower", "merged"].map(|name| {
                if name != "store" {
                    place.folder(name);
                }
                place.at(name).display().to_string()
            });
        let run_command = format!("{user} {PROGRAM} run --store {store} --workspace {workspace}");
        let script = format!(
            "mount -t overlay -o lowerdir={lower},upperdir={workspace},workdir={work} none {merged}
             set +e
             {run_command} --id w -- sh -c 'echo new > new'; echo code $?
             {run_command} --id w2 --engine overlay -- true; echo code $?"
        );
        let mut command = program("unshare", ["--mount", "--propagation", "private"]);
        command.args(["timeout", "100", "sh", "-ec", &script]);
        let done = run(command);
        assert_eq!(done.out, "code 0\ncode 125\n", "{done:#?}");
        let reason = "the workspace is a layer of another overlay";
        assert!(done.err.contains(&format!("not in an overlay: {reason}")), "{done:#?}");
        assert!(done.err.contains(&format!("{reason}; try --engine copy")), "{done:#?}");
        assert_eq!(place.changes("w"), ["added new"]);
        assert_eq!(place.workers(), ["w"]);
    }
}

/// A copy is used, and named in a message, if the store is on an overlay. `doctor` tells
/// beforehand.
#[test]
fn store_on_an_overlay_makes_copies() {
    if !is_root() {
        return;
    }
    for place in Workspace::all() {
        let user: Vec<&str> = place.user().iter().map(|word| word.to_str().unwrap()).collect();
        let user = user.join(" ");
        let folders = ["workspace", "upper", "work", "lower", "merged"].map(|name| {
            place.folder(name);
            place.at(name).display().to_string()
        });
        let [workspace, upper, work, lower, merged] = folders;
        let run_command =
            format!("{user} {PROGRAM} run --store {merged}/store --workspace {workspace}");
        let script = format!(
            "mount -t overlay -o lowerdir={lower},upperdir={upper},workdir={work} none {merged}
             {user} {PROGRAM} init {merged}/store
             set +e
             {run_command} --id w -- sh -c 'echo new > new'; echo code $?
             {run_command} --id w2 --engine overlay -- true; echo code $?
             TMPDIR={merged} {user} {PROGRAM} doctor --json"
        );
        let mut command = program("unshare", ["--mount", "--propagation", "private"]);
        command.args(["timeout", "100", "sh", "-ec", &script]);
        let done = run(command);
        let (codes, report) = done.out.split_at(done.out.find('{').unwrap());
        assert!(codes.ends_with("code 0\ncode 125\n"), "{done:#?}");
        let reason = "the store is on an overlay, as in most containers";
        assert!(done.err.contains(&format!("not in an overlay: {reason}")), "{done:#?}");
        let copied = place.read("upper/store/workers/w/changes/new");
        assert_eq!(copied, "new\n");
        let report: serde_json::Value = serde_json::from_str(report).unwrap();
        assert_eq!(report["run"]["engine"], "copy", "{report:#}");
    }
}
