//! Tests of metadata.json: owner, times and status, also while it is being written.

use std::fs;

use super::*;

/// Returns the index of a worker with only this metadata.
fn index_of(metadata: Value) -> Value {
    let store = TestStore::new();
    store.write("workers/w/metadata.json", metadata.to_string());
    index(&store.tree(), "w")
}

#[test]
fn the_owner_is_a_number_or_a_string_inside_config_or_at_the_top() {
    for metadata in [
        json!({"config": {"owner_id": 7}}),
        json!({"config": {"owner_id": "7"}}),
        json!({"owner_id": 7}),
        json!({"owner_id": "7"}),
        json!({"owner_id": "7", "config": {"owner_id": 7}}),
        json!({"owner_id": null, "config": {"owner_id": 7}}),
    ] {
        let store = TestStore::new();
        store.worker("w", metadata.clone());
        assert_eq!(listed(&store.tree_of_owner("7")), ["w"], "{metadata}");
        assert_eq!(index(&store.tree_of_owner("7"), "w")["owner_id"], "7", "{metadata}");
        for other in ["8", "07", "7 ", "", "77"] {
            assert!(
                listed(&store.tree_of_owner(other)).is_empty(),
                "{metadata} is shown to {other:?}"
            );
        }
    }
}

#[test]
fn a_worker_without_an_owner_belongs_to_nobody() {
    for metadata in [
        json!({}),
        json!({"config": {}}),
        json!({"config": null}),
        json!({"config": {"owner_id": null}}),
        json!({"owner_id": ""}),
        json!({"owner_id": true}),
        json!({"owner_id": ["7"]}),
        json!({"owner_id": {"7": 7}}),
    ] {
        let store = TestStore::new();
        store.worker("w", metadata.clone());
        assert_eq!(listed(&store.tree()), ["w"], "{metadata}");
        assert!(index(&store.tree(), "w").get("owner_id").is_none(), "{metadata}");
        for owner in ["7", "", "null", "None", "true", "-", "0"] {
            assert!(
                listed(&store.tree_of_owner(owner)).is_empty(),
                "{metadata} is shown to {owner:?}"
            );
        }
    }
}

#[test]
fn a_worker_with_two_owners_belongs_to_nobody_and_is_reported() {
    let store = TestStore::new();
    store.worker("w", json!({"owner_id": 7, "config": {"owner_id": 8}}));
    for owner in ["7", "8"] {
        assert!(listed(&store.tree_of_owner(owner)).is_empty());
    }
    assert!(checks(&index(&store.tree(), "w")).contains(&"two_owners"));
}

/// Promise: A worker whose metadata repeats the owner key with different values belongs to none of
/// them.
///
/// A reader of the first owner and a reader of the last one would assign the worker differently.
#[test]
fn worker_with_a_repeated_owner_key_belongs_to_none() {
    let store = TestStore::new();
    for (at, owners) in [
        r#""owner_id": "7", "owner_id": "8""#,
        r#""config": {"owner_id": 7, "owner_id": 8}"#,
        r#""config": {"owner_id": 8}, "config": {"owner_id": 7}"#,
        r#""owner_id": 7, "owner_id": null"#,
    ]
    .iter()
    .enumerate()
    {
        store.write(
            format!("workers/w{at}/metadata.json"),
            format!("{{\"status\": \"success\", {owners}}}"),
        );
        assert!(
            checks(&index(&store.tree(), &format!("w{at}"))).contains(&"two_owners"),
            "{owners}"
        );
    }
    for owner in ["7", "8"] {
        assert!(listed(&store.tree_of_owner(owner)).is_empty(), "{owner}");
    }
    store.write("workers/same/metadata.json", r#"{"owner_id": 7, "owner_id": "7"}"#);
    assert_eq!(listed(&store.tree_of_owner("7")), ["same"]);
}

/// Promise: A number as an id is shown digit for digit, whatever its length.
#[test]
fn numeric_id_is_shown_digit_for_digit() {
    for id in
        ["18446744073709551616", "-9223372036854775809", "340282366920938463463374607431768211456"]
    {
        let store = TestStore::new();
        let ids =
            ["owner_id", "run_id", "job_id", "parent_id"].map(|name| format!("\"{name}\": {id}"));
        store.write("workers/w/metadata.json", format!("{{{}}}", ids.join(", ")));
        let index = index(&store.tree_of_owner(id), "w");
        for name in ["owner_id", "run_id", "job_id", "parent_id"] {
            assert_eq!(index[name], id, "{name}");
        }
    }
}

#[test]
fn run_and_job_are_read_from_the_top_level_or_config() {
    for metadata in [
        json!({"run_id": 48, "job_id": 123}),
        json!({"run_id": "48", "job_id": "123"}),
        json!({"config": {"run_id": 48, "job_id": "123"}}),
        json!({"run_id": 48, "config": {"job_id": 123}}),
    ] {
        let store = TestStore::new();
        store.worker("w", metadata.clone());
        let tree = store.tree();
        let index = index(&tree, "w");
        assert_eq!(
            (&index["run_id"], &index["job_id"]),
            (&json!("48"), &json!("123")),
            "{metadata}"
        );
        assert_eq!(index["marker"], "[EVIDENCE:run_id=48,job_id=123,worker_id=w]");
        assert!(
            text(&tree, "w", "summary")
                .ends_with("\n[EVIDENCE:run_id=48,job_id=123,worker_id=w]\n")
        );
        assert_eq!(json_at(&tree, "runs/48/index.json")["total_workers"], 1);
    }
    let without = index_of(json!({}));
    assert!(without.get("run_id").is_none() && without.get("job_id").is_none());
    assert_eq!(without["marker"], "[EVIDENCE:run_id=-,job_id=-,worker_id=w]");
}

#[test]
fn all_forms_of_time_are_parsed() {
    for (written, shown) in [
        ("2026-01-20T10:00:00.123456+00:00", "2026-01-20T10:00:00.123456Z"),
        ("2026-01-20T10:00:00+00:00", "2026-01-20T10:00:00Z"),
        ("2026-01-20T10:00:00Z", "2026-01-20T10:00:00Z"),
        ("2026-01-20T10:00:00.5Z", "2026-01-20T10:00:00.5Z"),
        ("2026-01-20T12:00:00+02:00", "2026-01-20T10:00:00Z"),
        ("2026-01-20T10:00:00.123456", "2026-01-20T10:00:00.123456Z"),
        ("2026-01-20T10:00:00", "2026-01-20T10:00:00Z"),
    ] {
        let index =
            index_of(json!({"created_at": written, "started_at": written, "finished_at": written}));
        for key in ["created_at", "started_at", "finished_at"] {
            assert_eq!(index[key], shown, "{key} {written}");
        }
    }
}

#[test]
fn an_unparsable_time_is_shown_as_written() {
    let index = index_of(
        json!({"created_at": "yesterday \u{1b}[31mat noon", "started_at": null, "finished_at": []}),
    );
    assert_eq!(index["created_at"], "yesterday at noon");
    assert!(index.get("started_at").is_none() && index.get("finished_at").is_none());
}

#[test]
fn durations_have_two_names() {
    assert_eq!(index_of(json!({"duration_ms": 1200}))["duration_ms"], 1200);
    assert_eq!(index_of(json!({"duration_ms": 1200.7}))["duration_ms"], 1200);
    assert_eq!(index_of(json!({"completion_time_ms": 900}))["duration_ms"], 900);
    assert!(index_of(json!({"duration_ms": -1})).get("duration_ms").is_none());
    assert!(index_of(json!({"duration_ms": null})).get("duration_ms").is_none());
}

#[test]
fn statuses_of_both_programs_are_known_and_others_are_unknown() {
    for (written, status) in [
        ("created", "created"),
        ("running", "running"),
        ("success", "completed"),
        ("completed", "completed"),
        ("failed", "failed"),
        ("exploded", "unknown"),
    ] {
        let index = index_of(json!({"status": written}));
        assert_eq!(index["status"], status, "{written}");
        let source = index["status_source"].as_str().unwrap_or(status);
        assert_eq!(source, written, "the source's own word is kept");
    }
    for odd in [json!(null), json!(true), json!([]), json!("")] {
        assert_eq!(index_of(json!({"status": odd}))["status"], "unknown", "{odd}");
    }
}

#[test]
fn fields_inside_config_are_found() {
    let index = index_of(json!({"config": {"model": "some-model", "reasoning_effort": "high"},
        "summary": "done", "summary_meta": {"version": 1}, "error": "timeout", "parent_thread_id": "t-1",
        "task_type": "ops", "tags": ["a", 1]}));
    assert_eq!(index["model"], "some-model");
    assert_eq!((&index["summary"], &index["error"]), (&json!("done"), &json!("timeout")));
    assert_eq!((&index["parent_id"], &index["task_type"]), (&json!("t-1"), &json!("ops")));
    assert_eq!(index["tags"], json!(["a", "1"]));
}

#[test]
fn the_task_may_be_in_a_file_of_its_own() {
    let store = TestStore::new();
    store.write("workers/w/metadata.json", r#"{"worker_id": "w", "status": "completed"}"#);
    store.write("workers/w/task.txt", "Check the disks.\n");
    let tree = store.tree();
    assert_eq!(index(&tree, "w")["task"], "Check the disks.");
    assert_eq!(rows(&tree)["w"]["task"], "Check the disks.");
}

#[test]
fn metadata_of_the_first_implementation_is_read_completely() {
    let store = TestStore::new();
    // ASCII-escaped, indented by 2, without a newline at the end.
    let written = concat!(
        "{\n  \"worker_id\": \"w\",\n  \"task\": \"Gr\\u00f6\\u00dfe \\ud83d\\ude00\",\n  \"config\": {\n",
        "    \"owner_id\": 7\n  },\n  \"status\": \"success\",\n  \"error\": null\n}"
    );
    store.write("workers/w/metadata.json", written);
    let tree = store.tree_of_owner("7");
    assert_eq!(index(&tree, "w")["task"], "Größe 😀");
    assert_eq!(text(&tree, "w", "metadata.json"), written);
}

/// Promise: Torn metadata of any length keeps the last good record and is reported.
#[test]
fn torn_metadata_keeps_the_last_good_record() {
    let store = TestStore::new();
    store.worker("w", json!({"status": "running", "config": {"owner_id": 7, "run_id": 48}}));
    let path = store.at("workers/w/metadata.json");
    let whole = fs::read(&path).unwrap();
    let tree = store.tree_of_owner("7");
    let good = index(&tree, "w");
    assert!(!checks(&good).contains(&"bad_metadata"));
    for length in 0..whole.len() {
        // Truncate and write, as the first implementation does.
        fs::write(&path, &whole[..length]).unwrap();
        let torn = index(&tree, "w");
        for key in ["status", "task", "owner_id", "run_id", "created_at", "marker"] {
            assert_eq!(torn[key], good[key], "{key}, torn at {length}");
        }
        assert!(checks(&torn).contains(&"bad_metadata"), "torn at {length}: {torn:#}");
        assert_eq!(listed(&tree), ["w"], "torn at {length}");
    }
    fs::write(&path, &whole).unwrap();
    assert_eq!(checks(&index(&tree, "w")), checks(&good), "whole again");
}

#[test]
fn worker_with_torn_first_metadata_is_listed_and_belongs_to_nobody() {
    let store = TestStore::new();
    store.worker("w", json!({"config": {"owner_id": 7}}));
    let path = store.at("workers/w/metadata.json");
    let whole = fs::read(&path).unwrap();
    for length in 0..whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        let tree = store.tree();
        assert_eq!(listed(&tree), ["w"], "torn at {length}");
        let torn = index(&tree, "w");
        assert!(checks(&torn).contains(&"bad_metadata"), "torn at {length}");
        assert_eq!(torn["status"], "unknown", "torn at {length}");
        assert!(listed(&store.tree_of_owner("7")).is_empty(), "torn at {length}");
    }
}

#[test]
fn metadata_other_than_an_object_counts_as_torn() {
    for odd in ["4", "[]", "null", "true", "\"x\"", " \n", "\u{feff}", "nonsense"] {
        let store = TestStore::new();
        store.worker("w", json!({"status": "running"}));
        let tree = store.tree();
        assert_eq!(index(&tree, "w")["status"], "running");
        store.write("workers/w/metadata.json", odd);
        let index = index(&tree, "w");
        assert_eq!(index["status"], "running", "{odd:?}");
        assert!(checks(&index).contains(&"bad_metadata"), "{odd:?}");
    }
}

#[test]
fn metadata_that_is_not_a_file_is_reported_and_never_followed() {
    let store = TestStore::new();
    let outside = store.path().parent().unwrap().join("outside.json");
    fs::write(&outside, r#"{"status": "success", "owner_id": 7, "task": "SECRET"}"#).unwrap();
    for id in ["link", "fifo", "folder"] {
        store.call(id, 1, "x", "its output");
    }
    std::os::unix::fs::symlink(&outside, store.at("workers/link/metadata.json")).unwrap();
    fifo(&store.at("workers/fifo/metadata.json"));
    fs::create_dir(store.at("workers/folder/metadata.json")).unwrap();
    let tree = store.tree();
    assert_eq!(listed(&tree), ["fifo", "folder", "link"]);
    for id in ["link", "fifo", "folder"] {
        let index = index(&tree, id);
        assert!(checks(&index).contains(&"bad_metadata"), "{id}: {index:#}");
        assert_eq!(index["status"], "unknown", "{id}");
        assert!(!index.to_string().contains("SECRET"), "{id}");
        assert!(text(&tree, id, "evidence.txt").contains("its output"), "{id}");
    }
    assert!(listed(&store.tree_of_owner("7")).is_empty());
}

#[test]
fn a_new_folder_under_an_old_name_inherits_nothing() {
    let store = TestStore::new();
    store.worker("w", json!({"status": "running", "config": {"owner_id": 7}}));
    let tree = store.tree_of_owner("7");
    assert_eq!(index(&tree, "w")["status"], "running");
    fs::rename(store.at("workers/w"), store.path().parent().unwrap().join("away")).unwrap();
    store.write("workers/w/metadata.json", "{");
    assert!(
        see(&tree, "workers/w/index.json").is_err(),
        "a torn record of somebody else is not owner 7's"
    );
}

#[test]
fn a_folder_keeps_its_own_id_whatever_its_metadata_claims() {
    let store = TestStore::new();
    store.worker("w", json!({"worker_id": "other", "config": {"owner_id": 7}}));
    store.worker("other", json!({"config": {"owner_id": 8}}));
    let tree = store.tree_of_owner("7");
    assert_eq!(listed(&tree), ["w"]);
    let index = index(&tree, "w");
    assert_eq!(index["id"], "w");
    assert!(checks(&index).contains(&"other_id"));
    assert!(see(&tree, "workers/other/index.json").is_err());
}

#[test]
fn workers_with_nothing_in_them_are_shown_as_they_are() {
    let store = TestStore::new();
    for (id, metadata) in [
        ("new", json!({"status": "created"})),
        ("busy", json!({"status": "running"})),
        ("dead", json!({"status": "failed", "error": "timeout after 300 s"})),
        ("liar", json!({"status": "success"})),
    ] {
        store.worker(id, metadata);
        fs::create_dir(store.at(format!("workers/{id}/tool_calls"))).unwrap();
    }
    let tree = store.tree();
    let rows = rows(&tree);
    for (id, status, outcome) in [
        ("new", "created", "unknown"),
        ("busy", "running", "unknown"),
        ("dead", "failed", "failed"),
        ("liar", "completed", "unknown"),
    ] {
        assert_eq!(
            (&rows[id]["status"], &rows[id]["outcome"]),
            (&json!(status), &json!(outcome)),
            "{id}"
        );
        let index = index(&tree, id);
        assert_eq!(index["tool_calls"], json!([]), "{id}");
        assert!(index.get("final_words").is_none(), "{id}");
        assert!(text(&tree, id, "evidence.txt").contains("Calls: 0"), "{id}");
        assert!(text(&tree, id, "summary").contains(status), "{id}");
    }
    assert_eq!(rows["dead"]["cause"], "timeout after 300 s");
    assert!(text(&tree, "dead", "evidence.txt").contains("timeout after 300 s"));
    assert!(checks(&index(&tree, "liar")).contains(&"no_tool_call"));
    for id in ["new", "busy"] {
        assert!(checks(&index(&tree, id)).is_empty(), "{id}: not finished is no flaw");
    }
}
