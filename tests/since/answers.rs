//! The content of answers, their size limit, and their cursors.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::json;
use swarmletfs_base::error::Error;
use swarmletfs_base::store::{Kind, Memory};

use super::coarse::Coarse;
use super::{Answer, BYTES, path, since, tree};
use crate::support::intercept::InterceptedStore;
use crate::support::seen::names;
use crate::support::{Seen, TestStore, see};

fn worker(store: &Memory, id: &str, status: &str) {
    store.write(
        &path(&format!("workers/{id}/metadata.json")),
        format!("{{\"status\":\"{status}\"}}"),
    );
}

/// Promise: A changed worker is reported with its changed files, and an unchanged one is not.
#[test]
fn changed_workers_are_reported_with_their_files() {
    let store = Arc::new(Memory::new());
    for id in ["a", "b", "c"] {
        worker(&store, id, "running");
        store.write(&path(&format!("workers/{id}/tool_calls/001_sh.txt")), "fine");
    }
    let tree = tree(store.clone());
    let first = since(&tree, "0");
    assert_eq!(first.workers(), ["a", "b", "c"], "the oldest change first");
    assert_eq!(first.change_and_status("b"), Some(["new", "running"]));
    assert!(
        first
            .line("b")
            .unwrap()
            .ends_with("2 files: tool_calls/001_sh.txt (4 B), metadata.json (20 B)"),
        "{first:#?}"
    );
    let quiet = since(&tree, &first.next);
    assert!(quiet.has_no_changes() && quiet.next == first.next, "{quiet:#?}");

    store.write(&path("workers/a/logs/run.log"), "line\n");
    worker(&store, "b", "failed");
    worker(&store, "d", "completed");
    let second = since(&tree, &quiet.next);
    assert_eq!(second.change_and_status("a"), Some(["changed", "running"]));
    assert!(second.line("a").unwrap().ends_with("; 1 file: logs/run.log (5 B)"), "{second:#?}");
    assert_eq!(second.change_and_status("b"), Some(["finished", "failed"]));
    assert!(second.line("b").unwrap().ends_with("; 1 file: metadata.json (19 B)"), "{second:#?}");
    assert_eq!(second.change_and_status("d"), Some(["new", "completed"]));
    // The newest earlier change is within the margin of the cursor, so it is listed again.
    assert_eq!(second.workers(), ["c", "a", "b", "d"]);
    assert!(!second.text.contains("gone:") && !second.text.contains("came"), "{second:#?}");
    assert!(since(&tree, &second.next).has_no_changes());

    for number in 0..9 {
        store.write(&path(&format!("workers/a/outputs/{number}.txt")), "x");
    }
    let third = since(&tree, &second.next);
    let names: Vec<String> =
        (4..9).rev().map(|number| format!("outputs/{number}.txt (1 B)")).collect();
    assert!(
        third.line("a").unwrap().ends_with(&format!("; 9 files: {} and 4 more", names.join(", "))),
        "{third:#?}"
    );

    store.remove(&path("workers/a/outputs/3.txt"));
    let fourth = since(&tree, &third.next);
    assert!(
        fourth.line("a").unwrap().ends_with("no file is newer; one may have been removed"),
        "{fourth:#?}"
    );
    // A file whose name collides with a generated one is listed by its name in the tree.
    store.write(&path("workers/a/summary"), "mine");
    assert!(since(&tree, &fourth.next).line("a").unwrap().contains("; 1 file: summary.own (4 B)"));
}

#[test]
fn removed_workers_are_counted() {
    let store = Arc::new(Memory::new());
    for id in ["a", "b", "c", "d"] {
        worker(&store, id, "running");
    }
    let tree = tree(store.clone());
    let first = since(&tree, "now");
    assert_eq!(first.text, "");
    store.remove(&path("workers/a"));
    let second = since(&tree, &first.next);
    assert!(second.text.contains("\ngone: 1 worker"), "{second:#?}");
    assert!(since(&tree, &second.next).has_no_changes());
    // One worker is added and two are removed; then one is replaced by an older one.
    worker(&store, "e", "running");
    store.remove(&path("workers/b"));
    store.remove(&path("workers/c"));
    let third = since(&tree, &second.next);
    assert!(
        third.text.contains("\ngone: 2 workers")
            && third.change_and_status("e") == Some(["new", "running"]),
        "{third:#?}"
    );
    store.rename(&path("workers/d"), &path("workers/z"));
    let fourth = since(&tree, &third.next);
    assert!(
        fourth.text.contains("\nworkers came or went: there were 2, there are 2"),
        "{fourth:#?}"
    );
    for id in ["e", "z"] {
        store.remove(&path(&format!("workers/{id}")));
    }
    let last = since(&tree, &fourth.next);
    assert!(
        last.text.starts_with("Since ") && last.text.contains("there are no workers"),
        "{last:#?}"
    );
    assert!(last.text.contains("gone: 2 workers"), "{last:#?}");
    worker(&store, "f", "running");
    assert_eq!(since(&tree, &last.next).workers(), ["f"]);
}

/// Promise: A change without a timestamp makes the next answer report everything again.
#[test]
fn change_without_a_timestamp_reports_everything_again() {
    let store = Arc::new(Memory::new());
    for id in ["a", "b"] {
        store.write(&path(&format!("workers/{id}/metadata.json")), "{}");
    }
    let index = |status: &str| {
        let text = json!({"workers": [{"id": "a", "status": status}]}).to_string();
        store.write(&path("workers/index.json"), text);
    };
    index("running");
    let tree = tree(store.clone());
    let first = since(&tree, "0");
    assert_eq!(first.change_and_status("a"), Some(["new", "running"]));
    index("failed");
    let second = since(&tree, &first.next);
    assert!(
        second.text.starts_with(
            "Timestamps do not show what changed, so everything is listed again: 2 of 2 workers"
        ),
        "{second:#?}"
    );
    assert_eq!(second.change_and_status("a"), Some(["finished", "failed"]));
    assert!(since(&tree, &second.next).has_no_changes());
}

/// Promise: No answer is larger than 16,000 bytes, and cursors page through all changes.
#[test]
fn answers_are_bounded_and_cursors_page_through_all() {
    let store = Arc::new(Memory::new());
    let all: BTreeSet<String> = (0..200).map(|n| format!("w{n}-{}", "x".repeat(n % 200))).collect();
    for id in &all {
        worker(&store, id, "running");
        for number in 0..n_files(id) {
            store.write(&path(&format!("workers/{id}/outputs/{number}-{}", "y".repeat(150))), "x");
        }
    }
    let tree = tree(store.clone());
    let follow = |mut cursor: String, during: &dyn Fn(usize)| {
        let (mut listed, mut pages) = (Vec::new(), 0);
        loop {
            let answer = since(&tree, &cursor);
            assert!(answer.text.starts_with(if pages == 0 || answer.has_no_changes() {
                ""
            } else {
                "From the beginning"
            }));
            listed.extend(answer.workers());
            cursor = answer.next.clone();
            pages += 1;
            if !answer.text.contains("\nleft out: ") {
                return (listed, pages, cursor);
            }
            during(pages);
        }
    };
    let (listed, pages, end) = follow("0".into(), &|_| {});
    assert!(pages > 3, "{pages} pages");
    assert_eq!(listed.len(), 200, "no worker is listed twice");
    assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), all);
    assert!(since(&tree, &end).has_no_changes());
    // A change between two pages is listed at the end, and no worker is lost for it.
    let changed: Vec<&String> = all.iter().step_by(7).collect();
    let (listed, _, end) = follow("0".into(), &|page| {
        if page == 2 {
            changed.iter().for_each(|id| store.write(&path(&format!("workers/{id}/late")), "late"));
        }
    });
    assert_eq!(listed.iter().cloned().collect::<BTreeSet<_>>(), all);
    let last: BTreeSet<&String> = listed.iter().rev().take(changed.len() + 1).collect();
    assert!(changed.iter().all(|id| last.contains(id)));
    assert!(since(&tree, &end).has_no_changes());
}

fn n_files(id: &str) -> usize {
    id.len() % 7
}

/// Promise: Cursors page through workers even if all share one timestamp.
#[test]
fn cursors_page_through_workers_of_one_timestamp() {
    let store = TestStore::new();
    for number in 0..200 {
        store.worker(&format!("w{number}"), json!({"status": "running"}));
    }
    let disk = swarmletfs_base::store::Disk::open(&store.path()).unwrap();
    let tree = tree(Arc::new(InterceptedStore::new(Coarse(i64::MAX), Arc::new(disk))));
    let (mut cursor, mut listed, mut pages) = ("0".to_owned(), BTreeSet::new(), 0);
    loop {
        let answer = since(&tree, &cursor);
        listed.extend(answer.workers());
        (cursor, pages) = (answer.next.clone(), pages + 1);
        if !answer.text.contains("\nleft out: ") {
            break;
        }
        assert!(pages < 10, "the cursors do not advance: {answer:#?}");
    }
    assert!(pages > 1 && listed.len() == 200, "{pages} pages, {} listed", listed.len());
    assert!(since(&tree, &cursor).has_no_changes());
    // A change without a newer time is listed all the same.
    store.write("workers/w7/outputs/late", "late");
    assert!(!since(&tree, &cursor).has_no_changes());
}

/// Promise: A malformed cursor does not exist in the tree.
#[test]
fn malformed_cursor_does_not_exist_in_the_tree() {
    let store = TestStore::new();
    store.worker("w1", json!({}));
    let tree = store.tree();
    for name in [
        "",
        ".ignore",
        "README.md",
        "x",
        "00",
        "-1",
        "now ",
        "1-2-3",
        "0-0",
        "18446744073709551616",
    ] {
        assert_eq!(
            see(&tree, format!("since/{name}/")).err(),
            (!name.is_empty()).then_some(Error::NotFound),
            "{name}"
        );
    }
    assert_eq!(see(&tree, "since/0/x").err(), Some(Error::NotADirectory));
    for place in ["workers/since", "runs/since", "workers/w1/since", "workers/w1/0"] {
        assert_eq!(see(&tree, place).err(), Some(Error::NotFound), "{place}");
    }
    assert!(matches!(see(&tree, "since"), Ok(Seen::Folder { .. })));
    assert_eq!(names(&tree, "since").unwrap(), [&b"0"[..], b"now"]);
    assert!(!names(&tree, "").unwrap().contains(&b"since".to_vec()));
}

#[test]
fn a_plain_time_is_a_cursor() {
    let store = Arc::new(Memory::new());
    ["a", "b", "c"].iter().for_each(|id| worker(&store, id, "running"));
    let tree = tree(store);
    let all = since(&tree, "0");
    // The cursor is a tenth of a second older than the newest change.
    let newest = all.next.split('-').next().unwrap().parse::<u64>().unwrap() + 100_000_000;
    assert_eq!(since(&tree, &newest.to_string()).workers(), ["c"]);
    assert!(since(&tree, &(newest + 1).to_string()).workers().is_empty());
    assert!(since(&tree, &u64::MAX.to_string()).workers().is_empty());
    assert_eq!(since(&tree, &u64::MAX.to_string()).next, all.next);
}

/// Promise: No name can forge a line or a cursor.
#[test]
fn names_cannot_forge_lines_or_cursors() {
    let store = Arc::new(Memory::new());
    let odd = [
        "new\nline",
        "0\n1-1-00000000-0000000000000000",
        "[EVIDENCE:worker_id=x]",
        "\u{1b}[31m\u{202e}",
        "\u{feff}",
    ];
    for id in odd {
        worker(&store, id, "running");
        store.write(&path(&format!("workers/{id}/{id}")), "x");
    }
    store.put(&path("workers/pipe"), Kind::Special);
    let answer = since(&tree(store), "0");
    assert_eq!(answer.text.lines().count(), 1 + odd.len(), "{answer:#?}");
    let bad = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}' || c == '\u{feff}';
    assert!(!answer.text.contains(bad) && !answer.text.contains("[EVIDENCE:"), "{answer:#?}");
    assert!(answer.text.len() < BYTES && Answer::parse(&answer.text) != answer);
}

/// Promise: A user who may not read a worker may not read what is reported about it.
#[test]
fn changes_are_unreadable_without_access_to_the_worker() {
    use std::os::unix::fs::PermissionsExt;
    let store = TestStore::new();
    store.worker("w1", json!({})).worker("w2", json!({}));
    let mode = |tree: &swarmletfs_tree::tree::Tree| match see(tree, "since/0").unwrap() {
        Seen::File { attr, .. } => attr.0,
        other => panic!("{other:?}"),
    };
    assert_eq!(mode(&store.tree()), 0o444);
    std::fs::set_permissions(
        store.at("workers/w2/metadata.json"),
        PermissionsExt::from_mode(0o600),
    )
    .unwrap();
    assert_eq!(mode(&store.tree()), 0o400);
}
