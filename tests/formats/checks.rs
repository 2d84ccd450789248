//! Tests of the checks: each appears in every file that reports checks, and only where it applies.

use std::fs::{File, FileTimes};
use std::time::{Duration, SystemTime};

use super::*;
use crate::support::transcript::{Transcript, place};

const OK: &str = "{\"ok\": true}";
const BAD: &str = "{\"ok\": false, \"stderr\": \"no\"}";

/// Creates a worker `w` with these contents, beside a worker without any finding.
fn store_with(metadata: Value, words: &str, calls: &[(&str, &str)]) -> TestStore {
    let store = TestStore::new();
    for (id, metadata) in [("w", metadata), ("fine", json!({"run_id": "r"}))] {
        store.worker(id, metadata);
        store.write(format!("workers/{id}/result.txt"), if id == "w" { words } else { "done" });
    }
    store.call("fine", 1, "sh", OK);
    for (at, (tool, output)) in calls.iter().enumerate() {
        store.call("w", at as u32 + 1, tool, output);
    }
    store
}

fn done(words: &str, calls: &[(&str, &str)]) -> TestStore {
    store_with(json!({"run_id": "r"}), words, calls)
}

/// Writes the thread of a worker that calls `sh` with these commands.
fn thread(store: &TestStore, commands: &[&str]) {
    let call = |command| json!({"name": "sh", "args": {"command": command}});
    let calls: Vec<Value> = commands.iter().map(call).collect();
    let line = json!({"role": "assistant", "content": "", "tool_calls": calls});
    store.write("workers/w/thread.jsonl", format!("{line}\n"));
}

/// Returns true if `w` has the check `name`, and asserts that all files agree.
fn found(store: &TestStore, name: &str) -> bool {
    let tree = store.tree();
    assert!(checks(&index(&tree, "fine")).is_empty(), "{:#}", index(&tree, "fine"));
    let says = checks(&index(&tree, "w")).contains(&name);
    assert_eq!(
        text(&tree, "w", "summary").contains(&format!("  ! {name}: ")),
        says,
        "summary of the worker"
    );
    for path in ["index.json", "runs/r/index.json"] {
        let all = json_at(&tree, path);
        let row =
            all["workers"].as_array().unwrap().iter().find(|row| row["id"] == "w").unwrap().clone();
        let names = row.get("check_names").and_then(Value::as_array).cloned().unwrap_or_default();
        assert_eq!(names.contains(&json!(name)), says, "{path}: {row:#}");
    }
    let index = index(&tree, "w");
    let kind = index["checks"].as_array().unwrap().iter().find(|check| check["name"] == name);
    let kind = kind.map(|check| check["kind"].as_str().unwrap().to_owned()).unwrap_or_default();
    for folder in ["", "runs/r/"] {
        // A remark contradicts nothing, and needs no line among many workers.
        let summary = see(&tree, format!("{folder}summary")).unwrap().text().to_owned();
        assert_eq!(summary.contains(name), says && kind == "data_quality", "{summary}");
        let is_named = summary.contains("\nsaid done, but (1):\n  w  ")
            || summary.contains("claims success, but ");
        assert!(is_named || kind != "doubt", "{summary}");
        let evidence = see(&tree, format!("{folder}evidence.txt")).unwrap().text().to_owned();
        let line = evidence.lines().find_map(|line| line.strip_prefix("[DOUBTFUL] w: "));
        // A failed worker is reported as failed instead.
        let told = kind == "doubt" && index["outcome"] != "failed";
        assert_eq!(line.is_some_and(|line| line.contains(name)), told, "{evidence}");
        let all = json_at(&tree, format!("{folder}index.json"));
        let row = all["workers"].as_array().unwrap().iter().find(|row| row["id"] == "w").unwrap();
        let doubts = row.get("doubts").and_then(Value::as_array).cloned().unwrap_or_default();
        assert_eq!(doubts.contains(&json!(name)), kind == "doubt", "{row:#}");
    }
    says
}

#[test]
fn a_success_whose_last_call_failed() {
    let name = "success_but_last_call_failed";
    assert!(found(&done("done", &[("sh", OK), ("sh", BAD)]), name));
    assert!(!found(&done("done", &[("sh", BAD), ("sh", OK)]), name));
}

#[test]
fn an_unrecovered_failure() {
    let name = "failure_never_made_good";
    assert!(found(&done("done", &[("ssh", BAD), ("sh", OK)]), name));
    assert!(!found(&done("done", &[("ssh", BAD), ("ssh", OK), ("sh", OK)]), name));
}

#[test]
fn no_call_and_no_final_message() {
    let silent = done("", &[]);
    silent.write("workers/w/tool_calls/.keep", "");
    assert!(found(&silent, "no_tool_call") && found(&silent, "no_final_words"));
    let spoken = done("done", &[("sh", OK)]);
    assert!(!found(&spoken, "no_tool_call") && !found(&spoken, "no_final_words"));
}

#[test]
fn a_call_without_a_result() {
    let store = done("done", &[("sh", OK)]);
    thread(&store, &["df"]);
    assert!(!found(&store, "call_without_result"));
    thread(&store, &["df", "df"]);
    assert!(found(&store, "call_without_result"));
}

#[test]
fn a_repeated_failing_call_unless_it_succeeds_in_the_end() {
    let store = done("done", &[("sh", BAD), ("sh", BAD), ("sh", BAD), ("sh", OK)]);
    thread(&store, &["make", "make", "make", "ls"]);
    assert!(found(&store, "same_call_failed_again"));
    thread(&store, &["make", "make", "make", "make"]);
    assert!(!found(&store, "same_call_failed_again"), "it went well in the end");
    thread(&store, &["make", "make", "make all", "ls"]);
    assert!(!found(&store, "same_call_failed_again"), "twice is not yet again and again");
}

#[test]
fn a_missing_file_named_in_the_final_message() {
    let name = "claimed_file_missing";
    let elsewhere = done("See src/main.rs and reports/final.md.", &[("sh", OK)]);
    assert!(
        !found(&elsewhere, name),
        "a folder that no worker has is in another place, such as a repository"
    );
    let store = done("See `outputs/report.md`, outputs/data.json and src/main.rs.", &[("sh", OK)]);
    assert!(found(&store, name), "what was never written has no folder either");
    store.write("workers/w/outputs/data.json", "{}");
    assert!(found(&store, name));
    let index = index(&store.tree(), "w");
    let missing: Vec<&Value> =
        index["checks"].as_array().unwrap().iter().filter(|check| check["name"] == name).collect();
    assert_eq!(
        missing.iter().map(|check| &check["file"]).collect::<Vec<_>>(),
        ["outputs/report.md"],
        "{index:#}"
    );
    store.write("workers/w/outputs/report.md", "# it");
    assert!(!found(&store, name));
    // A failed worker makes no claim.
    let failed = store_with(
        json!({"run_id": "r", "status": "failed"}),
        "See outputs/report.md",
        &[("sh", BAD)],
    );
    failed.write("workers/w/outputs/data.json", "{}");
    assert!(!found(&failed, name));
}

#[test]
fn an_index_with_another_status() {
    let store = done("done", &[("sh", OK)]);
    store.write(
        "workers/index.json",
        json!({"workers": [{"id": "w", "status": "failed"}]}).to_string(),
    );
    assert!(found(&store, "index_disagrees"));
    store.write(
        "workers/index.json",
        json!({"workers": [{"id": "w", "status": "success"}]}).to_string(),
    );
    assert!(!found(&store, "index_disagrees"));
}

#[test]
fn silent_worker_while_others_write() {
    let store = store_with(json!({"run_id": "r", "status": "running"}), "", &[("sh", OK)]);
    let at =
        |minutes: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(1_768_900_000 + minutes * 60);
    let touch = |id: &str, minutes| {
        let folder = store.at(format!("workers/{id}"));
        let tools = folder.join("tool_calls");
        let files =
            ["metadata.json", "result.txt", "tool_calls/001_sh.txt"].map(|file| folder.join(file));
        for path in files.iter().chain([&tools, &folder]) {
            File::open(path)
                .unwrap()
                .set_times(FileTimes::new().set_modified(at(minutes)))
                .unwrap();
        }
    };
    let tells = |silent: Option<&str>| {
        let tree = store.tree();
        for folder in ["", "runs/r/"] {
            let summary = see(&tree, format!("{folder}summary")).unwrap().text().to_owned();
            let row = json_at(&tree, format!("{folder}index.json"))["workers"]
                .as_array()
                .unwrap()
                .clone();
            let row = row.into_iter().find(|row| row["id"] == "w").unwrap();
            assert_eq!(
                row.get("check_names"),
                silent.map(|_| json!(["silent"])).as_ref(),
                "{row:#}"
            );
            assert_eq!(summary.contains("silent for"), silent.is_some(), "{summary}");
            assert!(silent.is_none_or(|since| summary.contains(since)), "{summary}");
        }
        // A worker's own files depend neither on other workers nor on the clock.
        assert!(!checks(&index(&tree, "w")).contains(&"silent"));
    };
    touch("w", 0);
    touch("fine", 14);
    tells(None);
    touch("fine", 95);
    tells(Some("silent for 1h 35m"));
    touch("w", 95);
    tells(None);
}

/// Returns the doubts about a session that makes these calls of a shell and then says `words`. Each
/// call has a command, an output and true if it failed.
fn session_doubts(calls: &[(&str, &str, bool)], words: &str) -> Vec<String> {
    let mut transcript = Transcript::new("s");
    transcript.user("make it work");
    for (at, (command, output, failed)) in calls.iter().enumerate() {
        let id = format!("c{at}");
        transcript.call(&id, "Bash", json!({"command": command}));
        transcript.result(&id, json!({"content": output, "is_error": failed}));
    }
    transcript.says(words);
    let store = crate::support::transcript::store();
    store.write(&place("s"), transcript.bytes());
    let rows = rows(&crate::support::transcript::tree(&store));
    let names = rows["s"].get("doubts").and_then(Value::as_array).cloned().unwrap_or_default();
    names.iter().map(|name| name.as_str().unwrap().to_owned()).collect()
}

const MASKED: &str = "2 tests, 1 failed";

/// Promise: A doubt is a claim of success that the record contradicts.
///
/// A transcript states no status, so its final words are the claim.
#[test]
fn a_claim_of_a_session_is_doubted_if_the_record_contradicts_it() {
    for (calls, words, name) in [
        (&[("sh ./test.sh | tail", MASKED, false)][..], "All tests pass.", LOOKS_FAILED),
        (&[("run tests", "no", true)], "Done.", LAST_FAILED),
        (&[("run tests", "no", true), ("ls", "a", false)], "Fixed ✅", NOT_MADE_GOOD),
        (&[("tool deploy", "refused", true)], "Deployed successfully.", LAST_FAILED),
        (&[("ls", "a", false)], "All tests pass.", "claimed_tests_never_ran"),
        (&[], "Done.", "no_tool_call"),
    ] {
        assert_eq!(session_doubts(calls, words), [name], "{calls:?}: {words}");
    }
}

const LOOKS_FAILED: &str = "success_but_call_looks_failed";
const LAST_FAILED: &str = "success_but_last_call_failed";
const NOT_MADE_GOOD: &str = "failure_never_made_good";

#[test]
fn a_session_without_a_contradicted_claim_is_not_doubted() {
    let failed = ("run tests", "no", true);
    for (calls, words) in [
        (&[failed][..], "Here is what I found."),
        (&[failed], "Done, but the tests still fail."),
        (&[failed], "I couldn't get the tests to pass. The parser is fixed."),
        (&[failed, ("run tests", "yes", false)], "All tests pass."),
        // A later check of the kind stands for the earlier one.
        (&[failed, ("other tests --all", "yes", false)], "All tests pass."),
        // A look at something absent contradicts nothing.
        (&[("grep -rn old src", "", true), ("run tests", "yes", false)], "All tests pass."),
        (&[("cd a && make; echo $?", "12 tests passed", false)], "All tests pass."),
        (&[], "A monad is a monoid in the category of endofunctors."),
    ] {
        assert_eq!(session_doubts(calls, words), [""; 0], "{calls:?}: {words}");
    }
}

/// Promise: Damage to a record casts no doubt on a claim.
#[test]
fn damage_to_a_record_casts_no_doubt_on_a_claim() {
    let mut transcript = Transcript::new("s");
    transcript.user("make it work").bash("a", "run tests", "ok");
    transcript.raw("{\"torn\": \n").says("All tests pass.");
    let store = crate::support::transcript::store();
    store.write(&place("s"), transcript.bytes());
    let tree = crate::support::transcript::tree(&store);
    assert_eq!(rows(&tree)["s"].get("doubts"), None);
    let summary = text(&tree, "s", "summary");
    let (doubts, quality) =
        (summary.find("\ndoubts: none\n").unwrap(), summary.find("\ndata quality:\n").unwrap());
    assert!(doubts < quality && summary.contains("\n  ! bad_lines: "), "{summary}");
    let swarm = see(&tree, "summary").unwrap().text().to_owned();
    assert!(!swarm.contains("\nsaid done, but"), "{swarm}");
    let (_, quality) = swarm.split_once("\ndata quality, by number of workers: ").unwrap();
    assert!(quality.starts_with("bad_lines 1\n\nMore: "), "{swarm}");
}
