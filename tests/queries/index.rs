//! The index of `search/`: answers do not depend on what an index holds or which process wrote it.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use serde_json::json;
use swarmletfs_base::cache::DiskCache;
use swarmletfs_tree::catalog::{Freshness, Source};
use swarmletfs_tree::tree::{Settings, Tree};
use swarmletfs_tree::view::{Filter, View};

use super::text;
use crate::hostile::Dice;
use crate::mount::eventually;
use crate::support::TestStore;
use crate::support::{seed, seeds};

const WORDS: [&str; 16] = [
    "error",
    "errors",
    "timeout",
    "connection",
    "connected",
    "the",
    "disk",
    "full",
    "retry",
    "42",
    "0x7f",
    "caf\u{e9}",
    "E2BIG",
    "module",
    "refused",
    "build",
];

fn sentence(dice: &mut Dice) -> String {
    let words: Vec<&str> = (0..1 + dice.below(9)).map(|_| *dice.pick(&WORDS)).collect();
    let between = *dice.pick(&[" ", " ", ", ", ": ", "_"]);
    words.join(between) + *dice.pick(&["\n", "\n", "\n\n", ". "])
}

/// Writes a random file of one of six workers.
fn change(dice: &mut Dice, store: &TestStore) {
    let id = format!("w{}", dice.below(6));
    let body: String = (0..dice.below(60)).map(|_| sentence(dice)).collect();
    match dice.below(5) {
        0 => drop(store.worker(
            &id,
            json!({"task": sentence(dice), "status": dice.pick(&["failed", "success", "running"])}),
        )),
        1 => drop(store.write(format!("workers/{id}/outputs/report.md"), body)),
        2 => {
            let path = store
                .write(format!("workers/{id}/metadata.json"), json!({"worker_id": id}).to_string());
            fs::write(
                path.with_file_name("thread.jsonl"),
                format!("{}\n", json!({"role": "user", "content": body})),
            )
            .unwrap();
        }
        _ => {
            let tool = *dice.pick(&["sh", "sql"]);
            store.call(&id, dice.below(4) as u32 + 1, tool, body);
        }
    }
}

/// Returns a random search query.
fn random_query(dice: &mut Dice) -> String {
    let words: Vec<&str> = (0..1 + dice.below(3)).map(|_| *dice.pick(&WORDS)).collect();
    let filter = dice.pick(&[
        "",
        "",
        " -retry",
        " \"disk full\"",
        " tool:sql",
        " status:failed",
        " path:*.md",
    ]);
    let (scope, dir, size) = (
        dice.pick(&["", "workers/w1/", "by/status/completed/"]),
        dice.pick(&["search", "search", "semantic", "search.both"]),
        dice.pick(&["", ".900", ".4k", ".100k"]),
    );
    format!("{scope}{dir}{size}/{}{filter}", words.join(" "))
}

/// Returns a tree that keeps its index in `folder`.
fn tree_with_index(store: &TestStore, folder: &Path) -> Tree {
    let index = Arc::new(DiskCache::open(folder, 1 << 30).unwrap());
    let source = Source::open(&store.path()).unwrap().with_index_cache(index);
    let fresh = Freshness { unfinished: Duration::ZERO, finished: Duration::ZERO };
    Tree::new(View::new(vec![source], fresh, Filter::default()).unwrap(), Settings::default())
}

/// Returns the answer to a query, or the error if its scope does not exist.
fn answer(tree: &Tree, query: &str) -> String {
    crate::support::see(tree, query)
        .map_or_else(|error| error.to_string(), |seen| seen.text().to_owned())
}

/// Truncates, corrupts or removes some index files.
fn damage(dice: &mut Dice, folder: &Path) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if !dice.once_in(3) {
            continue;
        }
        let mut bytes = fs::read(&path).unwrap();
        match dice.below(3) {
            0 => bytes.truncate(dice.below(bytes.len() + 1)),
            1 => bytes.iter_mut().step_by(17).for_each(|byte| *byte ^= 0x55),
            _ => return fs::remove_file(&path).unwrap(),
        }
        fs::write(&path, bytes).unwrap();
    }
}

/// Promise: An answer is the same with an index, without one, and with a damaged one.
#[test]
fn answer_is_independent_of_the_index() {
    for seed in seeds(6) {
        let (mut dice, store, folder) =
            (Dice::new(seed), TestStore::new(), tempfile::tempdir().unwrap());
        fs::create_dir(store.at("workers")).unwrap();
        let folder = folder.path().join("index");
        (0..20).for_each(|_| change(&mut dice, &store));
        let mut indexed = tree_with_index(&store, &folder);
        for turn in 0..12 {
            (0..dice.below(4)).for_each(|_| change(&mut dice, &store));
            for _ in 0..4 {
                let query = random_query(&mut dice);
                let expected = answer(&store.tree(), &query);
                assert_eq!(answer(&indexed, &query), expected, "seed {seed}, turn {turn}: {query}");
            }
            if dice.once_in(2) {
                // Dropping the tree writes the index.
                drop(indexed);
                if dice.once_in(2) {
                    damage(&mut dice, &folder);
                }
                indexed = tree_with_index(&store, &folder);
            }
        }
        drop(indexed);
        assert!(fs::read_dir(&folder).unwrap().count() > 10);
    }
}

/// Promise: Several processes can use the same index at once.
#[test]
fn processes_can_share_an_index() {
    let (mut dice, store, folder) =
        (Dice::new(seed()), TestStore::new(), tempfile::tempdir().unwrap());
    (0..60).for_each(|_| change(&mut dice, &store));
    let folder = folder.path().join("index");
    let queries: Vec<String> = (0..20).map(|_| random_query(&mut dice)).collect();
    let plain = store.tree();
    let expected: Vec<String> = queries.iter().map(|query| answer(&plain, query)).collect();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..5 {
                    let indexed = tree_with_index(&store, &folder);
                    let answers: Vec<String> =
                        queries.iter().map(|query| answer(&indexed, query)).collect();
                    assert_eq!(answers, expected);
                }
            });
        }
    });
}

/// The index saves work: a file with an unchanged fingerprint is not read again.
#[test]
fn unchanged_file_is_not_read_again() {
    let (store, folder) = (TestStore::new(), tempfile::tempdir().unwrap());
    for id in ["a", "b"] {
        store.worker(id, json!({})).call(id, 1, "sh", format!("connection of {id} refused\n"));
    }
    let folder = folder.path().join("index");
    let before_change = text(&tree_with_index(&store, &folder), "search/refused");
    // Other bytes of the same length.
    let path = store.at("workers/b/tool_calls/001_sh.txt");
    let old_meta = fs::metadata(&path).unwrap();
    fs::write(&path, "xxxxxxxxxx of b xxxxxxx\n").unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), old_meta.len());
    assert!(before_change.contains(": 2 passages in 2 files of 2 workers;"));
    // Its timestamps changed, so this file is read again.
    let now = text(&tree_with_index(&store, &folder), "search/refused");
    assert!(now.contains(": 1 passage in 1 file of 1 worker;"), "{now}");
}

/// Promise: A growing file is searched to its end.
#[test]
fn growing_file_is_searched_to_its_end() {
    let (store, folder) = (TestStore::new(), tempfile::tempdir().unwrap());
    store.worker("w", json!({"status": "running"}));
    let tree = tree_with_index(&store, &folder.path().join("index"));
    let mut log = String::new();
    for step in 0..30 {
        log.push_str(&format!("step{step} was done\n"));
        log.push_str(&"and then some more of the same\n".repeat(400 * step));
        store.call("w", 1, "log", &log);
        // If the deadline passes, the next query continues the work.
        let answer = || Some(text(&tree, &format!("search/step{step}")));
        let answer = eventually("a complete answer", || {
            answer().filter(|answer| !answer.contains("for lack of time"))
        });
        assert!(answer.contains(&format!("\nstep{step} was done\n")), "{step}: {answer}");
    }
}
