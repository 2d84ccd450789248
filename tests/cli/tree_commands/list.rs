//! `list`: filters, order, width and JSON.

use serde_json::json;
use tempfile::TempDir;

use super::super::program::{run, swarmletfs};
use super::{look, ok_text, session};
use crate::support::TestStore;
use crate::support::transcript::Transcript;

/// Creates three workers: `cli-parser` and `cli-failed` of the project cli, and the oldest,
/// `server`, of another.
fn three_workers() -> TestStore {
    let store = TestStore::new();
    let times = ["2026-02-14T10:00:00Z", "2026-02-15T10:00:00Z", "2026-02-15T11:00:00Z"];
    store.worker(
        "server",
        json!({"created_at": times[0], "cwd": "/srv/server", "owner_id": 8, "task": "Restart it."}),
    );
    store
        .worker(
            "cli-parser",
            json!({"created_at": times[1], "cwd": "/srv/cli", "owner_id": 7,
                   "summary": "Fix the Parser of dates", "task": "See issue 49."}),
        )
        .call("cli-parser", 1, "Edit", "{\"ok\": true}");
    store.worker(
        "cli-failed",
        json!({"created_at": times[2], "cwd": "/srv/cli", "owner_id": 7, "status": "failed",
               "error": "no space left"}),
    );
    store
}

/// Returns the ids that `list` has with these options.
#[track_caller]
fn listed<const N: usize>(store: &TestStore, options: [&str; N]) -> Vec<String> {
    let answer = look(&store.path(), "list", ["--json"].iter().chain(&options));
    assert_eq!(answer.code, Some(0), "{answer:?}");
    let ids = answer.json();
    ids.as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn list_has_the_newest_worker_first() {
    let store = three_workers();
    let text = ok_text(&store, "list", []);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("id ") && lines[0].ends_with("end"), "{text}");
    assert!(lines[1].starts_with("cli-fail  2026-02-15 11:00"), "{text}");
    assert!(lines[1].ends_with("failed"), "{text}");
    assert!(lines[3].starts_with("server"), "{text}");
    assert_eq!(listed(&store, []), ["cli-failed", "cli-parser", "server"]);
}

#[test]
fn filters_of_a_list_must_all_match() {
    let store = three_workers();
    let all = ["cli-failed", "cli-parser", "server"];
    for (options, expected) in [
        (["--day", "2026-02-14"], &all[2..]),
        (["--day", "2026-02-01..2026-02-14"], &all[2..]),
        (["--day", "2026-02-14..2026-02-15"], &all),
        (["--status", "COMPLETED"], &all[1..]),
        (["--since", "2026-02-15T10:30:00Z"], &all[..1]),
        (["--since", "2026-02-15"], &all[..2]),
        (["--since", "1h"], &[]),
        (["--project", "cli"], &all[..2]),
        (["--project", "none"], &[]),
        (["--status", "completed"], &all[1..]),
        (["--outcome", "failed"], &all[..1]),
        (["--attention", "high"], &all[..1]),
        (["--tool", "Edit"], &all[1..2]),
        (["--text", "the parser"], &all[1..2]),
        (["--text", "ISSUE 49"], &all[1..2]),
        (["--owner", "8"], &all[2..]),
    ] {
        assert_eq!(listed(&store, options), expected, "{options:?}");
    }
    assert_eq!(listed(&store, ["--project", "cli", "--status", "completed"]), ["cli-parser"]);
    assert!(listed(&store, ["--owner", "7", "--project", "server"]).is_empty());
}

#[test]
fn list_finds_sessions_by_branch_and_file() {
    let (_folder, file) = session();
    for (options, count) in [
        (["--file", "src/main.rs"], 1),
        (["--file", "main.rs"], 0),
        (["--branch", "fix/x"], 1),
        (["--branch", "main"], 0),
    ] {
        let answer = look(&file, "list", ["--json"].iter().chain(&options));
        assert_eq!(answer.json().as_array().unwrap().len(), count, "{options:?}");
    }
}

#[test]
fn list_without_a_match_names_the_listings_of_values() {
    let store = three_workers();
    let answer = look(&store.path(), "list", ["--branch", "none"]);
    assert_eq!((answer.code, answer.text()), (Some(0), ""));
    assert!(
        answer.err.contains("no worker matches") && answer.err.contains("ls by/"),
        "{answer:?}"
    );
}

#[test]
fn list_refuses_values_that_no_worker_can_have() {
    let store = three_workers();
    for options in [["--day", "15.2.2026"], ["--since", "soon"], ["--attention", "much"]] {
        let mut command = swarmletfs(["list", "--store"]);
        command.arg(store.path()).args(options);
        run(command).assert_failure(2, &[options[0]]);
    }
}

#[test]
fn list_keeps_to_80_columns_unless_it_is_wide() {
    let store = three_workers();
    let long = "word ".repeat(40);
    store.worker("long", json!({"task": long, "cwd": "/srv/cli"}));
    let text = ok_text(&store, "list", []);
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(ok_text(&store, "list", ["--wide"]).contains(long.trim()));
}

/// Promise: A program that the user names as a check is one, in cached results too.
#[test]
fn own_checks_are_named_in_a_file_of_the_user() {
    let mut session = Transcript::new("s");
    session.user("Do it.").call("c", "Bash", json!({"command": "frobnicate ."}));
    session.result("c", json!({"content": "Exit code 1\n3 problems", "is_error": true}));
    session.bash("d", "echo", "x").says("I see.");
    let home = TempDir::new().unwrap();
    let transcript = home.path().join("s.jsonl");
    std::fs::write(&transcript, session.bytes()).unwrap();
    let list = || {
        let mut command = swarmletfs(["list", "--attention", "high", "--stale", "0s", "--store"]);
        command.arg(&transcript).env("XDG_CONFIG_HOME", home.path());
        command.env("XDG_CACHE_HOME", home.path().join("cache"));
        run(command)
    };
    assert!(!list().assert_success().out.contains("3 problems"));
    std::fs::create_dir(home.path().join("swarmletfs")).unwrap();
    let file = home.path().join("swarmletfs/checks");
    std::fs::write(&file, "# ours\n\nlint frobnicate\n").unwrap();
    assert!(list().assert_success().out.contains("s "), "{:#?}", list());
    std::fs::write(&file, "lint frobnicate\ntset frobnicate\n").unwrap();
    list().assert_failure(1, &["swarmletfs/checks", "line 2", "kinds are test, lint"]);
    // 1 would say that nothing was found, or that the command ended so.
    for (arguments, code) in [(&["grep", "x"][..], 2), (&["record", "--", "true"], 125)] {
        let mut command = swarmletfs(arguments);
        command.env("XDG_CONFIG_HOME", home.path());
        run(command).assert_failure(code, &["swarmletfs/checks"]);
    }
}
