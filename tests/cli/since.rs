//! `swarmletfs since` as it is typed.

use serde_json::json;

use super::program::{Yard, plain, run, small_store, typed};
use crate::support::TestStore;
use crate::support::mount::PROGRAM;

#[test]
fn the_answer_is_on_stdout_and_everything_else_on_stderr() {
    let store = small_store();
    let mut command = typed(["since", "0"]);
    command.current_dir(store.at("workers/w1"));
    let done = run(command);
    let said = format!("swarmletfs: the store is {} (the current folder is inside it)\n", store.path().display());
    assert_eq!(done.fine().err, said);
    assert!(done.out.starts_with("From the beginning: 1 of 1 worker "), "{done:#?}");
    let mut command = typed(["since", "now"]);
    command.env("SWARMLET_DATA_PATH", store.path());
    let now = run(command);
    assert_eq!(now.fine().out.lines().count(), 1);
    assert_eq!(done.out.lines().last(), now.out.lines().last());
}

#[test]
fn cursors_lead_on_in_a_shell() {
    let store = small_store();
    let script = "set -e
        cursor=$(\"$0\" since now --store \"$1\")
        mkdir \"$1/workers/w2\"; echo '{}' > \"$1/workers/w2/metadata.json\"
        \"$0\" since $cursor --store \"$1\"";
    let mut command = plain("bash", ["-c", script, PROGRAM]);
    command.arg(store.path());
    let done = run(command);
    assert!(done.fine().out.contains("new      unknown   w2: "), "{done:#?}");
}

#[test]
fn a_cursor_that_is_none_is_refused_with_what_helps() {
    let store = small_store();
    for cursor in ["", "x", "00", "1-2-3", "Now", "1 2", "\u{1b}[31m"] {
        let mut command = typed(["since", cursor]);
        command.arg("--store").arg(store.path());
        let done = run(command);
        assert_eq!(done.refused(2, &["no cursor", "`now`", "`0`"]).out, "");
        let mut command = typed(["wait", "--since", cursor]);
        command.arg("--store").arg(store.path());
        run(command).refused(2, &["no cursor", "`now`", "`0`"]);
    }
    run(typed(["since"])).refused(2, &["CURSOR"]);
    run(typed(["since", "--since", "0"])).refused(2, &["--since"]);
}

#[test]
fn a_store_that_is_none_is_refused_as_by_mount() {
    let yard = Yard::new();
    let other = yard.folder("other");
    std::fs::write(other.join("file"), "x").unwrap();
    for command in [&["since", "0"][..], &["wait"]] {
        let done = |store: &std::path::Path| {
            let mut command = typed(command);
            command.arg("--store").arg(store);
            run(command)
        };
        done(&yard.at("missing")).refused(1, &["missing", "--store"]);
        done(&other).refused(1, &["no workers in"]);
        done(std::path::Path::new("")).refused(2, &["--store"]);
    }
}

#[test]
fn several_stores_are_one_view() {
    let (one, two) = (small_store(), TestStore::new());
    two.worker("w1", json!({"status": "failed"}));
    let mut command = typed(["since", "0", "--store"]);
    command.arg(one.path()).arg("--store").arg(two.path());
    let done = run(command);
    assert!(done.fine().out.contains(" w1: ") && done.out.contains(" w1~2: "), "{done:#?}");
    let mut command = typed(["since", "0", "--owner", "7", "--run", "48", "--store"]);
    command.arg(one.path()).arg("--store").arg(two.path());
    let done = run(command);
    assert!(done.fine().out.starts_with("From the beginning: 1 of 1 worker "), "{done:#?}");
}
