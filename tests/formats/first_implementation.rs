//! Bugs of the first implementation. Each test asserts the opposite of one bug.

use std::fs;
use std::os::unix::fs::symlink;

use super::*;

#[test]
fn generated_files_stay_within_the_budget() {
    for (sizes, budgets) in [
        (vec![50_000, 50_000], vec![32_000, 16_000, 1_000]),
        (vec![200_000, 200_000], vec![1_024, 500, 100, 10, 0]),
        (vec![10; 100], vec![0, 1, 50, 1_000, 4_096]),
        (vec![0, 1, 300_000], vec![300, 30_000]),
    ] {
        for letter in [
            "x",
            "line of output\n",
            "漢",
            "\r50%",
            "[EVIDENCE:",
            "\u{1b}[31m\n",
            "{'ok': False}\n",
        ] {
            let store = TestStore::new();
            store.worker("w", json!({}));
            for (at, size) in sizes.iter().enumerate() {
                store.call("w", at as u32 + 1, "x", letter.repeat(size / letter.len() + 1));
            }
            let tree = store.tree();
            for budget in &budgets {
                let length = text(&tree, "w", &format!("evidence.{budget}.txt")).len();
                assert!(length <= *budget, "{length} B at {budget} for {sizes:?} of {letter:?}");
            }
        }
    }
}

/// Creates a file or directory at a path of a store.
type CreateEntry = fn(&TestStore, &str);

/// Promise: One malformed file hides nothing else.
#[test]
fn malformed_file_hides_nothing_else() {
    let odd: [(&str, CreateEntry); 14] = [
        ("4", |store, path| drop(store.write(path, "4"))),
        ("[]", |store, path| drop(store.write(path, "[]"))),
        ("null", |store, path| drop(store.write(path, "null"))),
        ("torn JSON", |store, path| drop(store.write(path, "{\"ok\": tr"))),
        ("deep JSON", |store, path| drop(store.write(path, "[".repeat(100_000)))),
        ("invalid UTF-8", |store, path| drop(store.write(path, b"caf\xe9 \xff\xfe\xc3"))),
        ("NUL", |store, path| drop(store.write(path, [0; 5_000]))),
        ("empty", |store, path| drop(store.write(path, ""))),
        ("a folder", |store, path| fs::create_dir(store.at(path)).unwrap()),
        ("a folder with a file", |store, path| {
            drop(store.write(format!("{path}/001_y.txt"), "inner"))
        }),
        ("a dangling link", |store, path| symlink("nowhere", store.at(path)).unwrap()),
        ("a link to itself", |store, path| symlink(store.at(path), store.at(path)).unwrap()),
        ("a link out", |store, path| symlink("/etc/passwd", store.at(path)).unwrap()),
        ("a FIFO", |store, path| fifo(&store.at(path))),
    ];
    for (kind, make) in odd {
        for name in ["002_d.txt", "x.txt", "002_.txt", "notes"] {
            let store = TestStore::new();
            store.worker("w", json!({}));
            store.call("w", 1, "a", "the first output").call(
                "w",
                3,
                "c",
                "Error: the third output",
            );
            make(&store, &format!("workers/w/tool_calls/{name}"));
            let tree = store.tree();
            let evidence = text(&tree, "w", "evidence.txt");
            for rest in ["the first output", "Error: the third output", "--- End Evidence ---"] {
                assert!(evidence.contains(rest), "{kind} as {name} lost {rest:?}: {evidence}");
            }
            assert!(!evidence.contains("root:x:"), "{kind} as {name}: {evidence}");
            let index = index(&tree, "w");
            assert_eq!(call(&index, 3)["outcome"], "failed", "{kind} as {name}");
            assert!(text(&tree, "w", "summary").contains("003_c.txt"), "{kind} as {name}");
            assert_eq!(rows(&tree)["w"]["outcome"], "failed", "{kind} as {name}");
            if name == "002_d.txt" {
                assert!(
                    evidence.contains("tool_calls/002_d.txt"),
                    "{kind} is not mentioned: {evidence}"
                );
                assert_eq!(call(&index, 2)["outcome"], "unknown", "{kind}");
            }
        }
    }
}

#[test]
fn an_unreadable_output_is_reported_with_its_reason() {
    let store = TestStore::new();
    store.worker("w", json!({})).call("w", 1, "a", "fine");
    fs::create_dir(store.at("workers/w/tool_calls/002_d.txt")).unwrap();
    symlink("/etc/passwd", store.at("workers/w/tool_calls/003_l.txt")).unwrap();
    fifo(&store.at("workers/w/tool_calls/004_f.txt"));
    let tree = store.tree();
    let evidence = text(&tree, "w", "evidence.txt");
    let index = index(&tree, "w");
    for (seq, reason) in [(2, "folder"), (3, "link"), (4, "special")] {
        assert!(call(&index, seq)["unreadable"].as_str().unwrap().contains(reason), "{index:#}");
        assert!(
            evidence.lines().any(|line| line.starts_with('(') && line.contains(reason)),
            "{reason}: {evidence}"
        );
    }
    assert_eq!(checks(&index).iter().filter(|name| **name == "unreadable_output").count(), 3);
}

#[test]
fn many_odd_files_at_once_hide_no_other_file() {
    let store = TestStore::new();
    store.worker("w", json!({}));
    for (number, output) in [&b"4"[..], b"[]", b"\xff\xfe", b"\0\0", b"", b"{'"].iter().enumerate()
    {
        store.call("w", number as u32 + 2, "odd", output);
    }
    fs::create_dir(store.at("workers/w/tool_calls/010_d.txt")).unwrap();
    symlink("gone", store.at("workers/w/tool_calls/011_l.txt")).unwrap();
    fifo(&store.at("workers/w/tool_calls/012_f.txt"));
    store.write(b"workers/w/tool_calls/013_\xff\n.txt", "an odd name");
    store.call("w", 1, "a", "the good output");
    for layout in
        ["outputs/report.md", "logs/errors.log", "thread.jsonl", "metrics.jsonl", "result.txt"]
    {
        fs::create_dir_all(store.at(format!("workers/w/{layout}"))).unwrap();
    }
    let tree = store.tree();
    let evidence = text(&tree, "w", "evidence.txt");
    assert!(evidence.contains("the good output") && evidence.contains("an odd name"), "{evidence}");
    assert!(evidence.contains("Calls: 11 (0 failed, 11 unknown)"), "{evidence}");
    assert!(text(&tree, "w", "summary").contains("001_a.txt"));
}

#[test]
fn calls_that_do_not_fit_are_mentioned() {
    let store = TestStore::new();
    store.worker("w", json!({}));
    for number in 1..=400 {
        store.call("w", number, "ssh_exec", "a line of output\n".repeat(60));
    }
    for budget in [700, 2_000, 16_000, 100_000] {
        let evidence = text(&store.tree(), "w", &format!("evidence.{budget}.txt"));
        let number_behind = |before: &str| -> usize {
            let after =
                evidence.split(before).nth(1).unwrap_or_else(|| panic!("{before} in {evidence}"));
            let end = after.find(|c: char| !c.is_ascii_digit()).unwrap();
            after[..end].parse().unwrap()
        };
        let sum: usize =
            ["| Whole: ", "| Cut: ", "| Listed: "].into_iter().map(number_behind).sum();
        assert_eq!(sum, 400, "{evidence}");
        let named = evidence
            .lines()
            .filter(|line| line.starts_with("tool_calls/") && line.ends_with(" B)"))
            .count();
        let more = if evidence.contains("\nand ") { number_behind("\nand ") } else { 0 };
        assert_eq!(named + more, number_behind("| Listed: "), "at {budget}: {evidence}");
    }
}

/// Promise: A large failure does not crowd out other calls.
#[test]
fn large_failure_does_not_crowd_out_other_calls() {
    let store = TestStore::new();
    store.worker("w", json!({}));
    store.call(
        "w",
        1,
        "big",
        format!("Error: large\n{}", "noise and more noise\n".repeat(100_000)),
    );
    for number in 2..=8 {
        store.call("w", number, "small", format!("result number {number}"));
    }
    let evidence = text(&store.tree(), "w", "evidence.txt");
    for number in 2..=8 {
        assert!(evidence.contains(&format!("result number {number}\n")), "{number}: {evidence}");
    }
    assert!(evidence.contains("Error: large"), "{evidence}");
}

#[test]
fn truncation_adds_no_replacement_character() {
    let store = TestStore::new();
    store.worker("w", json!({"task": "漢".repeat(1_000), "error": "é".repeat(1_000)}));
    store.call("w", 1, "lines", "ä漢😀é\n".repeat(3_000));
    store.call("w", 2, "line", "ä漢😀é".repeat(3_000));
    store.call("w", 3, "漢é", format!("Error: {}", "漢".repeat(40_000)));
    store.call("w", 4, "huge", "漢😀é".repeat(600_000));
    let call = json!({"role": "assistant", "content": "x", "tool_calls": [{"name": "lines", "args": {"q": "漢".repeat(500)}}]});
    store.write("workers/w/thread.jsonl", format!("{call}\n"));
    let tree = store.tree();
    for budget in (0..600).chain((600..20_000).step_by(997)) {
        let evidence = text(&tree, "w", &format!("evidence.{budget}.txt"));
        assert!(!evidence.contains('\u{fffd}'), "at {budget}");
        let swarm = see(&tree, format!("evidence.{budget}.txt")).unwrap();
        assert!(!swarm.text().contains('\u{fffd}'), "of the swarm, at {budget}");
    }
    for path in ["workers/w/summary", "workers/w/index.json", "summary", "index.json"] {
        assert!(!see(&tree, path).unwrap().text().contains('\u{fffd}'), "{path}");
    }
}

#[test]
fn crlf_stays_crlf() {
    let store = TestStore::new();
    store.worker("w", json!({})).call("w", 1, "short", "one\r\ntwo\r\n");
    store.call("w", 2, "long", "a line that ends as on Windows\r\nand another\r\n".repeat(3_000));
    let tree = store.tree();
    let evidence = text(&tree, "w", "evidence.txt");
    assert!(evidence.contains("\none\r\ntwo\r\n"), "{evidence}");
    assert!(evidence.matches("Windows\r\n").count() > 100);
    assert_eq!(evidence.matches("Windows\n").count(), 0);
    assert_eq!(text(&tree, "w", "tool_calls/001_short.txt"), "one\r\ntwo\r\n");
}

#[test]
fn names_with_two_dots_are_served() {
    let store = TestStore::new();
    store.worker("a..b", json!({}));
    store.write("workers/a..b/tool_calls/001_a..b.txt", "two dots");
    store.write("workers/a..b/outputs/...", "three dots");
    store.write("workers/a..b/a..b.txt", "its own");
    let tree = store.tree();
    assert_eq!(text(&tree, "a..b", "a..b.txt"), "its own");
    assert_eq!(text(&tree, "a..b", "outputs/..."), "three dots");
    assert_eq!(text(&tree, "a..b", "tool_calls/001_a..b.txt"), "two dots");
    assert!(text(&tree, "a..b", "evidence.txt").contains("two dots"));
    assert_eq!(call(&index(&tree, "a..b"), 1)["tool"], "a..b");
}

/// Promise: A worker without an owner is not readable by every owner.
#[test]
fn worker_without_an_owner_is_not_readable_by_every_owner() {
    let store = TestStore::new();
    store.worker("nobody-s", json!({})).call("nobody-s", 1, "x", "SECRET");
    store.worker("mine", json!({"config": {"owner_id": 7}})).call("mine", 1, "x", "fine");
    let tree = store.tree_of_owner("7");
    let all = crate::support::see_folder(&tree, "").unwrap();
    for (path, seen) in all {
        let path = String::from_utf8(path).unwrap();
        assert!(!path.contains("nobody-s"), "{path}");
        if let crate::support::Seen::File { bytes, .. } = seen {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            assert!(!text.contains("SECRET") && !text.contains("nobody-s"), "{path}: {text}");
        }
    }
    assert!(see(&tree, "workers/nobody-s/tool_calls/001_x.txt").is_err());
}
