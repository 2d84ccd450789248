//! A command changes its view of the workspace, and the changes are recorded.
//!
//! Workspaces that others change while a worker runs.

use std::ffi::OsStr;
use std::fs;

use super::workspace::Workspace;
use crate::cli::program::{LIMIT, run, wait_timeout};
use crate::support::mount::PROGRAM;

#[test]
fn changes_are_recorded_and_the_workspace_stays() {
    for engine in [&[][..], &["--engine", "copy"], &["--no-sandbox"]] {
        for place in Workspace::all() {
            place.write("workspace/old", "old\n");
            let script = "echo three >> notes; rm old; mkdir d; echo new > d/new; touch .";
            place.sh(engine, script).assert_success();
            assert_eq!(place.read("workspace/notes"), "one\ntwo\n", "{engine:?}");
            assert_eq!(place.read("workspace/old"), "old\n");
            assert!(!place.at("workspace/d").exists());
            let expected = ["added d", "added d/new", "modified notes", "deleted old"];
            assert_eq!(place.changes("w"), expected, "{engine:?}");
            let changes = place.json("store/workers/w/changes.json");
            let name = if engine.is_empty() { "overlay" } else { "copy" };
            assert_eq!((&changes["engine"], &changes["is_final"]), (&name.into(), &true.into()));
            assert_eq!(place.read("store/workers/w/changes/notes"), "one\ntwo\nthree\n");
            assert_eq!(place.read("store/workers/w/changes/d/new"), "new\n");
            assert_eq!(place.read("store/workers/w/base/old"), "old\n");
            // The layers are gone, and the record of the draft stays.
            let draft = place.json("store/drafts/w/draft.json");
            assert_eq!(draft["state"], "ended");
            for layer in ["upper", "work", "copy"] {
                assert!(!place.at("store/drafts/w").join(layer).exists(), "{layer}");
            }
        }
    }
}

#[test]
fn changes_are_recorded_while_the_command_runs() {
    for place in Workspace::all() {
        // The command ends only when it sees its own change in its record.
        let script = "echo new > new
            own=$SWARMLET_STORE/workers/$SWARMLET_WORKER
            until grep -q '\"path\": \"new\"' $own/changes.json 2> /dev/null; do sleep 0.05; done
            cat $own/changes/new; grep is_final $own/changes.json";
        let done = place.sh(&["--timeout", "8"], script);
        assert_eq!(done.out, "new\n  \"is_final\": false,\n", "{done:#?}");
        assert_eq!(place.json("store/workers/w/changes.json")["is_final"], true);
    }
}

#[test]
fn workspace_and_store_can_be_beneath_tmp() {
    let place = Workspace::in_tmp();
    place.sh(&[], "echo three >> notes; echo x > /tmp/private").assert_success();
    assert_eq!(place.changes("w"), ["modified notes"]);
    assert_eq!(place.read("workspace/notes"), "one\ntwo\n");
    assert!(!fs::exists("/tmp/private").unwrap());
}

#[test]
fn workers_do_not_see_changes_of_each_other() {
    let place = Workspace::new();
    place.sh(&["--id", "a"], "echo a > notes").assert_success();
    let done = place.sh(&["--id", "b"], "cat notes");
    assert_eq!(done.out, "one\ntwo\n");
    assert_eq!(place.changes("b"), [""; 0]);
}

#[test]
fn ignored_files_are_changes_only_on_request() {
    let place = Workspace::new();
    place.write("workspace/.gitignore", "*.o\n");
    let script = "echo object > x.o; echo source > x.c";
    place.sh(&["--id", "a"], script).assert_success();
    assert_eq!(place.changes("a"), ["added x.c"]);
    place.sh(&["--id", "b", "--all-changes"], script).assert_success();
    assert_eq!(place.changes("b"), ["added x.c", "added x.o"]);
}

#[test]
fn hidden_paths_are_not_there_and_are_no_changes() {
    for place in Workspace::all() {
        place.write("workspace/.env", "SECRET\n");
        place.folder("workspace/keys");
        place.write("workspace/keys/id", "SECRET\n");
        let control = place.sh(&["--id", "control"], "cat .env keys/id");
        assert_eq!(control.out, "SECRET\nSECRET\n");
        for (id, engine) in [("a", "overlay"), ("b", "copy")] {
            let (env, keys) = (place.at("workspace/.env"), place.at("workspace/keys"));
            let hide = ["--hide", env.to_str().unwrap(), "--hide", keys.to_str().unwrap()];
            let options = [&hide[..], &["--id", id, "--engine", engine]].concat();
            let done = place.sh(&options, "ls -A; grep -r SECRET .");
            assert_eq!((done.code, &*done.out), (Some(1), "notes\n"), "{engine}: {done:#?}");
            assert_eq!(place.changes(id), [""; 0], "{engine}");
            assert_eq!(place.read("workspace/.env"), "SECRET\n");
        }
    }
}

#[test]
fn command_starts_where_the_user_is_in_the_workspace() {
    let place = Workspace::new();
    let folder = place.folder("workspace/src/deep");
    for (id, engine) in [("a", "overlay"), ("b", "copy")] {
        let script = "pwd; echo $PWD; echo new > new";
        let mut command = place.runner(&["--engine", engine, "--id", id], &["sh", "-c", script]);
        let done = crate::cli::program::run({
            command.current_dir(&folder);
            command
        });
        let folder = folder.display();
        assert_eq!(done.out, format!("{folder}\n{folder}\n"), "{done:#?}");
        assert_eq!(place.changes(id), ["added src/deep/new"]);
    }
    assert!(fs::read_dir(&folder).unwrap().next().is_none());
}

/// Temporary entries lie outside of folders that the application closes.
#[test]
fn folder_that_closes_above_a_change_is_applied_and_undone() {
    for place in Workspace::all() {
        place.outside("mkdir -p closed/open; echo old > closed/open/file");
        let done = place.sh(&[], "echo new > closed/open/file; chmod 0 closed");
        done.assert_success();
        let before = place.outside("ls -lR --time-style=+");
        let arguments = |command: &str| {
            let words = [PROGRAM, command, "w", "--yes", "--store"].map(OsStr::new);
            let store = place.at("store");
            run(place.command(words.into_iter().chain([store.as_os_str()])))
        };
        arguments("apply").assert_success();
        assert_eq!(place.outside("stat -c %a closed"), "0\n");
        assert_eq!(
            place.outside("chmod 755 closed; cat closed/open/file; chmod 0 closed"),
            "new\n"
        );
        if place.is_ordinary() {
            let closed = "closed/open/file: permission denied; try as a user who may write there";
            arguments("undo").assert_failure(1, &[closed]);
            place.outside("chmod 755 closed");
        }
        arguments("undo").assert_success();
        assert_eq!(place.outside("ls -lR --time-style=+"), before);
        assert_eq!(place.outside("cat closed/open/file"), "old\n");
    }
}

/// Promise: The search for changes reads holes and contents within bounds, and names each file that
/// it did not read.
#[test]
fn files_of_holes_do_not_hold_the_runner() {
    for engine in [&[][..], &["--engine", "copy"]] {
        for place in Workspace::all() {
            // The helper ends a command that takes as long as reading a part of this would.
            let script = "truncate -s 7G $(seq -f holes%g 60); truncate -s 1M few";
            let done = place.sh(engine, script);
            let err = &done.assert_success().err;
            assert!(err.contains("61 files changed") && err.contains("60 changes cannot"), "{err}");
            let changes = place.json("store/workers/w/changes.json");
            let files = changes["files"].as_array().unwrap();
            let is_unread = |file: &&serde_json::Value| {
                let reason = file["refused"].as_str();
                reason.is_some_and(|reason| reason.starts_with("its holes were not read"))
            };
            assert_eq!(files.iter().filter(is_unread).count(), 60);
            assert!(place.at("store/workers/w/changes/few").exists());
        }
    }
}

/// Promise: The record of a worker is read within bounds, and none that the command left keeps the
/// worker from its end.
#[test]
fn record_of_holes_or_without_permissions_does_not_hold_the_runner() {
    for place in Workspace::all() {
        for (id, change) in [
            ("w1", "truncate -s 1T metrics.jsonl"),
            ("w2", "truncate -s 1T logs/execution.log"),
            ("w3", "echo x > metrics.jsonl; chmod 0 metrics.jsonl"),
            ("w4", "echo x > result.txt; chmod 0 result.txt metadata.json"),
        ] {
            let script =
                format!("cd $SWARMLET_STORE/workers/{id}; {change}; echo new > $OLDPWD/new");
            // The helper ends a command that takes as long as reading a part of this would.
            place.sh(&["--id", id], &script).assert_success();
            assert_eq!(place.metadata(id)["status"], "completed", "{id}");
            assert_eq!(place.changes(id), ["added new"], "{id}");
        }
    }
}

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
