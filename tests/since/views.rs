//! An owner's answers equal those of a store with only that owner's workers.

use std::fs;

use serde_json::json;
use swarmletfs_tree::tree::Tree;
use swarmletfs_tree::view::Filter;

use super::since;
use crate::support::{Seen, TestStore, see};

/// Creates workers of two owners, interleaved by name and time, and an index that lists both.
fn shared() -> TestStore {
    let store = TestStore::new();
    for number in 0..120 {
        let (id, owner) =
            (format!("w{}-{number}", number * 37 % 10), if number % 3 == 0 { 8 } else { 7 });
        store.worker(&id, json!({"owner_id": owner, "run_id": number % 2, "status": "running"}));
        store.call(&id, 1, "sh", "fine");
        store.write(format!("workers/{id}/outputs/{}", "long".repeat(20)), "x");
    }
    store.worker("nobodys", json!({}));
    store.write(
        "workers/index.json",
        json!({"workers": [{"id": "w0-0", "status": "failed"}]}).to_string(),
    );
    store
}

fn remove_others(store: &TestStore) {
    for entry in fs::read_dir(store.at("workers")).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(path.join("metadata.json")).unwrap_or_default();
        if path.is_dir() && !text.contains("\"owner_id\": 7") {
            fs::remove_dir_all(path).unwrap();
        }
    }
    fs::remove_file(store.at("workers/index.json")).unwrap();
}

/// Returns all answers from cursor 0 on, with their attributes.
fn all_answers(tree: &Tree) -> Vec<Seen> {
    let (mut cursor, mut seen) = ("0".to_owned(), Vec::new());
    loop {
        let answer = since(tree, &cursor);
        seen.push(see(tree, format!("since/{cursor}")).unwrap());
        if answer.next == cursor {
            return seen;
        }
        cursor = answer.next;
    }
}

/// Promise: A `since` answer for one owner discloses nothing about another owner's workers.
#[test]
fn since_answers_disclose_no_foreign_workers() {
    let filters = [Some("7")].into_iter().flat_map(|owner| {
        [None, Some("0"), Some("none")]
            .map(|run| Filter { owner: owner.map(str::to_owned), run: run.map(str::to_owned) })
    });
    let filters: Vec<Filter> = filters.collect();
    let store = shared();
    let trees: Vec<Tree> = filters.iter().map(|filter| store.tree_of(filter.clone())).collect();
    let before: Vec<Vec<Seen>> = trees.iter().map(all_answers).collect();
    assert!(before[0].len() > 2, "the answer has several pages");
    let now: Vec<String> = trees.iter().map(|tree| since(tree, "now").next).collect();
    // Changes of another owner's workers are invisible.
    store
        .worker("w0-0", json!({"owner_id": 8, "status": "failed"}))
        .worker("another", json!({"owner_id": 8}));
    store.write(
        "workers/index.json",
        json!({"workers": [{"id": "another", "status": "failed"}]}).to_string(),
    );
    for (tree, now) in trees.iter().zip(&now) {
        let answer = since(tree, now);
        assert!(answer.next == *now && !answer.text.contains("gone:"), "{answer:#?}");
    }
    assert!(!since(&store.tree(), &since(&store.tree(), "0").next).text.is_empty());
    remove_others(&store);
    for ((filter, tree), before) in filters.iter().zip(&trees).zip(&before) {
        assert_eq!(all_answers(tree), *before, "{filter:?}");
        // Workers that were removed before the tree was opened do not matter either.
        assert_eq!(all_answers(&store.tree_of(filter.clone())), *before, "{filter:?}");
    }
    // Control: the answers of an unfiltered view differ.
    let all = shared();
    let whole = all_answers(&all.tree());
    remove_others(&all);
    assert_ne!(all_answers(&all.tree()), whole);
}

/// Promise: A worker that changes owner is removed from one view and added to the other.
#[test]
fn worker_that_changes_owner_is_removed_and_added() {
    let store = TestStore::new();
    store
        .worker("given", json!({"owner_id": 7}))
        .worker("kept", json!({"owner_id": 7}))
        .worker("w", json!({"owner_id": 8}));
    let (seven, eight) = (store.tree_of_owner("7"), store.tree_of_owner("8"));
    let (cursor, other) = (since(&seven, "now").next, since(&eight, "now").next);
    store.worker("given", json!({"owner_id": 8}));
    let answer = since(&seven, &cursor);
    assert!(
        answer.text.lines().any(|line| line.starts_with("gone: ") && line.ends_with("1 worker"))
            && !answer.text.contains("given"),
        "{answer:#?}"
    );
    let answer = since(&eight, &other);
    assert!(answer.workers().contains(&"given".to_owned()), "{answer:#?}");
    assert!(!answer.text.contains("kept"), "{answer:#?}");
}
