//! `swarmletfs since` as a process.

use serde_json::json;

use super::program::{MountSandbox, program, run, small_store, swarmletfs};
use crate::support::TestStore;
use crate::support::mount::PROGRAM;

#[test]
fn since_prints_the_answer_to_stdout_and_messages_to_stderr() {
    let store = small_store();
    let mut command = swarmletfs(["since", "0"]);
    command.current_dir(store.at("workers/w1"));
    let done = run(command);
    let expected = format!(
        "swarmletfs: the store is {} (the current folder is inside it)\n",
        store.path().display()
    );
    assert_eq!(done.assert_success().err, expected);
    assert!(done.out.starts_with("From the beginning: 1 of 1 worker "), "{done:#?}");
    let mut command = swarmletfs(["since", "now"]);
    command.env("SWARMLET_DATA_PATH", store.path());
    let now = run(command);
    assert_eq!(now.assert_success().out.lines().count(), 1);
    assert_eq!(done.out.lines().last(), now.out.lines().last());
}

#[test]
fn shell_loop_over_cursors_sees_each_change() {
    let store = small_store();
    let script = "set -e
        cursor=$(\"$0\" since now --store \"$1\")
        mkdir \"$1/workers/w2\"; echo '{}' > \"$1/workers/w2/metadata.json\"
        \"$0\" since $cursor --store \"$1\"";
    let mut command = program("bash", ["-c", script, PROGRAM]);
    command.arg(store.path());
    let done = run(command);
    assert!(done.assert_success().out.contains("new      unknown   w2: "), "{done:#?}");
}

/// Promise: The command line refuses a malformed cursor with advice.
#[test]
fn malformed_cursor_is_refused_with_advice() {
    let store = small_store();
    for cursor in ["", "x", "00", "1-2-3", "Now", "1 2", "\u{1b}[31m"] {
        let mut command = swarmletfs(["since", cursor]);
        command.arg("--store").arg(store.path());
        let done = run(command);
        assert_eq!(done.assert_failure(2, &["not a valid cursor", "`now`", "`0`"]).out, "");
        let mut command = swarmletfs(["wait", "--since", cursor]);
        command.arg("--store").arg(store.path());
        run(command).assert_failure(2, &["not a valid cursor", "`now`", "`0`"]);
    }
    run(swarmletfs(["since"])).assert_failure(2, &["CURSOR"]);
    run(swarmletfs(["since", "--since", "0"])).assert_failure(2, &["--since"]);
}

#[test]
fn since_rejects_an_invalid_store_like_mount() {
    let sandbox = MountSandbox::new();
    let other = sandbox.folder("other");
    std::fs::write(other.join("file"), "x").unwrap();
    for command in [&["since", "0"][..], &["wait"]] {
        let done = |store: &std::path::Path| {
            let mut command = swarmletfs(command);
            command.arg("--store").arg(store);
            run(command)
        };
        done(&sandbox.at("missing")).assert_failure(1, &["missing", "--store"]);
        done(&other).assert_failure(1, &["no workers in"]);
        done(std::path::Path::new("")).assert_failure(2, &["--store"]);
    }
}

#[test]
fn since_reads_several_stores_as_one_view() {
    let (one, two) = (small_store(), TestStore::new());
    two.worker("w1", json!({"status": "failed"}));
    let mut command = swarmletfs(["since", "0", "--store"]);
    command.arg(one.path()).arg("--store").arg(two.path());
    let done = run(command);
    assert!(
        done.assert_success().out.contains(" w1: ") && done.out.contains(" w1~2: "),
        "{done:#?}"
    );
    let mut command = swarmletfs(["since", "0", "--owner", "7", "--run", "48", "--store"]);
    command.arg(one.path()).arg("--store").arg(two.path());
    let done = run(command);
    assert!(
        done.assert_success().out.starts_with("From the beginning: 1 of 1 worker "),
        "{done:#?}"
    );
}
