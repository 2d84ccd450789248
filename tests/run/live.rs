//! Workspaces that others change while a worker runs.

use std::ffi::OsStr;
use std::fs;

use super::workspace::Workspace;
use crate::cli::program::{LIMIT, run, wait_timeout};
use crate::support::mount::PROGRAM;

/// Names of the files of the workspace.
const FILES: [&str; 4] = ["deleted", "kept", "replaced", "written"];

/// Reads all files, waits for `go`, and changes all files. The kernel remembers names outside that
/// were looked up in vain, so `go` is waited for in a list.
fn script(place: &Workspace) -> String {
    let outside = place.at("outside");
    format!(
        "cat * > /dev/null; echo ready; until ls {} | grep -q go; do sleep 0.01; done
         for name in {}; do echo worker >> $name; done",
        outside.display(),
        FILES.join(" ")
    )
}

fn base(place: &Workspace, name: &str) -> (String, Option<String>) {
    let changes = place.json("store/workers/w/changes.json");
    let files = changes["files"].as_array().unwrap();
    let file = files.iter().find(|file| file["path"] == name).unwrap();
    let saved = fs::read_to_string(place.at("store/workers/w/base").join(name)).ok();
    (file["base"].as_str().unwrap().to_owned(), saved)
}

/// The old content of a changed file is recorded as `base` only if the file is proved to
/// be as it was at the start. Otherwise the base is `unknown`.
#[test]
fn base_of_a_file_that_others_changed_is_unknown() {
    for place in Workspace::all() {
        FILES.iter().for_each(|name| drop(place.write(&format!("workspace/{name}"), "old\n")));
        let mut child = place.start(&[], &script(&place));
        place.outside(
            "echo others > written; echo others > x; mv x replaced; rm deleted
             touch ../outside/go",
        );
        assert!(wait_timeout(&mut child, LIMIT).unwrap().success());
        let saved = ("saved".to_owned(), Some("old\n".to_owned()));
        assert_eq!(base(&place, "kept"), saved);
        for name in ["written", "replaced"] {
            let (base, content) = base(&place, name);
            assert_eq!((base.as_str(), content), ("unknown", None), "{name}");
        }
        // A deleted file that was written comes back.
        assert!(
            place.changes("w").contains(&"added deleted".to_owned()),
            "{:?}",
            place.changes("w")
        );
        // Nothing is applied over what others wrote.
        let store = place.at("store");
        let words = [PROGRAM, "apply", "w", "--yes", "--store"].map(OsStr::new);
        let apply = words.into_iter().chain([store.as_os_str()]);
        let refused = run(place.command(apply));
        refused.assert_failure(1, &["replaced", "written"]);
        assert_eq!(place.read("workspace/written"), "others\n");
        assert_eq!(place.read("workspace/kept"), "old\n");
    }
}

/// `apply` saves what it replaces as the base of workers that run.
#[test]
fn application_of_another_worker_keeps_the_base() {
    for place in Workspace::all() {
        FILES.iter().for_each(|name| drop(place.write(&format!("workspace/{name}"), "old\n")));
        place.sh(&["--id", "w0"], "echo applied > replaced; rm deleted").assert_success();
        let mut child = place.start(&[], &script(&place));
        let store = place.at("store");
        let words = [PROGRAM, "apply", "w0", "--yes", "--store"].map(OsStr::new);
        let applied = run(place.command(words.into_iter().chain([store.as_os_str()])));
        applied.assert_success();
        assert!(applied.err.contains("w runs on this workspace"), "{applied:#?}");
        assert_eq!(place.read("workspace/replaced"), "applied\n");
        place.outside("touch ../outside/go");
        assert!(wait_timeout(&mut child, LIMIT).unwrap().success());
        let saved = ("saved".to_owned(), Some("old\n".to_owned()));
        for name in ["kept", "replaced", "written"] {
            assert_eq!(base(&place, name), saved, "{name}");
        }
    }
}
