//! `swarmletfs search`: equals `search/` in a mount, with the exit codes of grep.

use std::fs;

use serde_json::json;

use super::{CommandBytes, look};
use crate::support::{TestStore, see};

fn store() -> TestStore {
    let store = TestStore::new();
    store.worker("a", json!({"run_id": "r1"})).call("a", 1, "sh", "the connection was refused\n");
    store.worker("b", json!({"status": "failed"})).call("b", 1, "sh", "Error: disk full\n");
    store.write("workers/b/outputs/report.md", "# Disk\nconnections are fine\n");
    store
}

fn search(store: &TestStore, words: &[&str]) -> CommandBytes {
    look(&store.path(), "search", words)
}

#[test]
fn search_prints_the_answer_of_the_tree() {
    let store = store();
    let tree = store.tree();
    for (words, path) in [
        (&["connection refused"][..], "search/connection refused"),
        (&["disk", "."], "search/disk"),
        (&["-b", "300", "disk"], "search.300/disk"),
        (&["-b", "100tok", "disk -full"], "search.100tok/disk -full"),
        (&["-g", "*.md", "disk"], "search@*.md/disk"),
        (&["connection", "runs/latest"], "runs/r1/search/connection"),
        (&["connection", "workers/b"], "workers/b/search/connection"),
        (&["disk", "by/status/failed"], "by/status/failed/search/disk"),
        (&["--semantic", "out of space", "."], "semantic/out of space"),
        (&["--semantic", "-b", "300", "disk", "workers/b"], "workers/b/semantic.300/disk"),
        (&["--mode", "both", "-g", "*.md", "disk"], "search.both@*.md/disk"),
        (&["--no-index", "disk"], "search/disk"),
        (&["--no-cache", "disk"], "search/disk"),
    ] {
        let wanted = see(&tree, path).unwrap();
        let done = search(&store, words);
        assert_eq!((done.text(), done.err.as_str()), (wanted.text(), ""), "{words:?}");
    }
    let inner = search(&store, &["disk", "workers/b/outputs"]);
    assert!(
        inner
            .assert_success()
            .text()
            .starts_with("[search/disk in outputs: 1 passage in 1 file of 1 worker;"),
        "{inner:?}"
    );
}

/// Promise: The exit codes of `search` are those of GNU grep.
#[test]
fn search_exits_like_gnu_grep() {
    let store = store();
    assert_eq!(search(&store, &["disk"]).code, Some(0));
    assert_eq!(search(&store, &["unheard"]).code, Some(1));
    assert_eq!(search(&store, &["tool:sh"]).code, Some(2));
    let nowhere = search(&store, &["disk", "full"]);
    assert_eq!(nowhere.code, Some(2));
    assert!(nowhere.err.contains("full: no such file or folder in this view"), "{nowhere:?}");
    assert_eq!(search(&store, &["disk", "by/status"]).code, Some(2));
}

/// Promise: A search answer in JSON has the content of the text.
#[test]
fn search_json_has_the_content_of_the_text() {
    let store = store();
    let all = search(&store, &["--json", "connection refused"]);
    let object = &all.assert_success().json()[0];
    assert_eq!(
        (object["passages"].as_u64(), object["workers"].as_u64(), object["same"].as_u64()),
        (Some(2), Some(2), Some(0))
    );
    let first = &object["shown"][0];
    assert_eq!(first["path"], "workers/a/tool_calls/001_sh.txt");
    assert_eq!(
        (first["text"][0]["first"].as_u64(), first["text"][0]["end"].as_u64()),
        (Some(0), Some(27))
    );
    assert_eq!(first["text"][0]["text"], "the connection was refused\n");
    assert!(
        search(&store, &["--json", "--", "-xy"]).json()[0]["error"]
            .as_str()
            .unwrap()
            .contains("no word")
    );
}

/// Promise: The search index is written to the cache directory and never to the store.
#[test]
fn search_index_is_written_to_the_cache_only() {
    let (store, folder) = (store(), tempfile::tempdir().unwrap());
    store.rest();
    let index = folder.path().join("deep/index");
    let wanted = search(&store, &["disk"]);
    let kept = search(&store, &["--index", index.to_str().unwrap(), "disk"]);
    assert_eq!(kept.text(), wanted.text());
    assert!(fs::read_dir(&index).unwrap().count() >= 4);
    let inside = store.at("index");
    let refused = search(&store, &["--index", inside.to_str().unwrap(), "disk"]);
    assert_eq!(refused.code, Some(2));
    assert!(
        refused.err.contains("cannot keep the index in")
            && refused.err.contains("it lies inside the store")
    );
    assert!(!inside.exists());
}
