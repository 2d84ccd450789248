//! `swarmletfs compare`: equals `compare/` in a mount, with the exit codes of diff.

use serde_json::json;

use super::{CommandBytes, look};
use crate::support::{TestStore, see};

fn store() -> TestStore {
    let store = TestStore::new();
    for (id, words) in [("a", "one\n"), ("b", "two\n"), ("c", "one\n"), ("v..1", "one\n")] {
        store
            .worker(id, json!({"task": "the task"}))
            .write(format!("workers/{id}/outputs/x.md"), words);
    }
    store.write("workers/b/outputs/y.md", "new\n");
    store
}

fn compare(store: &TestStore, words: &[&str]) -> CommandBytes {
    look(&store.path(), "compare", words)
}

#[test]
fn compare_prints_the_answer_of_the_tree() {
    let store = store();
    let tree = store.tree();
    for (words, path) in [
        (&["a", "b"][..], "compare/a..b"),
        (&["workers/a", "workers/b/"], "compare/a..b"),
        (&["a", "b", "c"], "compare/a..b..c"),
        (&["-b", "300", "a", "b"], "compare.300/a..b"),
        (&["--budget", "100tok", "a", "b"], "compare.100tok/a..b"),
        (&["--aspect", "two words", "a", "b"], "compare@two words/a..b"),
        (&["v..1", "b"], "compare/v%2E.1..b"),
        (&["a", "none"], "compare/a..none"),
    ] {
        let wanted = see(&tree, path).unwrap();
        let done = compare(&store, words);
        assert_eq!((done.text(), done.err.as_str()), (wanted.text(), ""), "{words:?}");
    }
}

/// Promise: The exit codes of `compare` are those of diff.
#[test]
fn compare_exits_like_diff() {
    let store = store();
    assert_eq!(compare(&store, &["a", "c"]).code, Some(0));
    assert_eq!(compare(&store, &["a", "b"]).code, Some(1));
    assert_eq!(compare(&store, &["a", "none"]).code, Some(2));
    assert_eq!(compare(&store, &["a", "a"]).code, Some(2));
    store.call("c", 1, "sh", "{\"ok\": true}");
    assert_eq!(compare(&store, &["a", "c"]).code, Some(1), "a call is a difference");
    let small = compare(&store, &["-b", "0", "a", "b"]);
    assert_eq!((small.code, small.text()), (Some(1), ""));
    assert_eq!(small.err, "swarmletfs: the budget is too small for an answer\n");
}

/// Promise: A comparison in JSON has every file and every count.
#[test]
fn compare_json_has_every_file_and_count() {
    let store = store();
    store.call("b", 1, "sh", "Error: x\n");
    let all = compare(&store, &["--json", "a", "b"]).json();
    let answer = &all[0];
    assert_eq!(
        (&answer["query"], &answer["workers"]),
        (&json!("compare/a..b"), &json!(["a", "b"]))
    );
    assert_eq!(answer["shared"]["task"], "the task");
    assert_eq!(answer["differing"][1]["calls"], "1 (1 failed)");
    assert_eq!(answer["not_compared"], json!(["metadata.json"]));
    assert_eq!((&answer["left_out"], &answer["differs"]), (&json!(0), &json!(true)));
    let file = |path: &str| {
        let files = answer["files"].as_array().unwrap();
        files
            .iter()
            .find(|file| file["path"] == path)
            .unwrap_or_else(|| panic!("{path}: {answer}"))
            .clone()
    };
    let diff =
        "--- workers/a/outputs/x.md\n+++ workers/b/outputs/x.md\n@@ -1,1 +1,1 @@\n-one\n+two\n";
    let wanted =
        json!({"path": "outputs/x.md", "kind": "differs", "workers": ["a", "b"], "text": diff});
    assert_eq!(file("outputs/x.md"), wanted);
    assert_eq!(
        (&file("outputs/y.md")["kind"], &file("outputs/y.md")["workers"]),
        (&json!("only_in"), &json!(["b"]))
    );
    assert!(answer["calls"].as_str().unwrap().contains("+001_sh.txt FAILED"));
    let equal = compare(&store, &["--json", "a", "c"]).json();
    assert_eq!(equal[0]["files"][0]["kind"], "equal");
    let wrong = compare(&store, &["--json", "a", "none"]).json();
    assert!(wrong[0]["error"].as_str().unwrap().starts_with("none is not a worker here."));
}
