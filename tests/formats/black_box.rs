//! Bugs of the first implementation (docs/FORMATS.md), tested with ordinary commands on a mount.
//! Each test asserts the opposite of one bug.
//!
//! The first implementation also expanded a marker without comparing its worker, and only the first
//! marker of a text. This program expands no markers here. The test checks that the marker in a
//! summary leads to its worker, and that no worker can write another.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::json;

use super::fifo;
use crate::cli::program::{MountSandbox, is_root, mount};
use crate::needs_fuse;
use crate::support::user::as_user;
use crate::support::{Mount, TestStore};

/// Returns the output of a command run in the directory `workers/w` of a mount.
#[track_caller]
fn prints(mount: &Mount, command: &str) -> String {
    let out = mount.shell(&format!("cd \"$M/workers/w\" && {command}"));
    assert!(out.status.success(), "{command}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap_or_else(|error| panic!("{command}: {error}"))
}

#[track_caller]
fn number(mount: &Mount, command: &str) -> usize {
    let text = prints(mount, command);
    text.trim().parse().unwrap_or_else(|error| panic!("{command} printed {text:?}: {error}"))
}

/// Bug: the budget was no limit. Two files of 50,000 B at 32,000 gave 82,021 B, two of 200,000 B at
/// 1,024 gave 201,045 B.
#[test]
fn stat_cat_and_cp_see_files_within_the_budget() {
    needs_fuse!();
    for (size, budget) in [(50_000, 32_000), (200_000, 1_024), (50_000, 100), (200_000, 0)] {
        let store = TestStore::new();
        store.worker("w", json!({}));
        store.call("w", 1, "sh", format!("Error: x\n{}", "a line of output\n".repeat(size / 17)));
        store.call("w", 2, "sh", "x".repeat(size));
        let mount = Mount::with(&store.path(), &["--budget", &budget.to_string()]);
        for file in [
            "evidence.txt".to_owned(),
            format!("evidence.{budget}.txt"),
            format!("../../evidence.{budget}.txt"),
        ] {
            let size = number(&mount, &format!("stat -c %s {file}"));
            assert!(size <= budget, "{file}: {size} B at {budget}");
            assert_eq!(number(&mount, &format!("cat {file} | wc -c")), size, "{file}");
            let copy = format!("t=$(mktemp) && cp {file} $t && wc -c <$t; rm -f $t");
            assert_eq!(number(&mount, &copy), size, "{file}");
        }
    }
}

/// Bug: one odd file (`4`, `[]`, invalid UTF-8, a directory named `x.txt`, a link) lost all
/// evidence of a worker.
#[test]
fn one_odd_file_hides_no_other_file_of_its_worker() {
    needs_fuse!();
    let store = TestStore::new();
    store.worker("w", json!({}));
    store.call("w", 1, "sh", "the first output\n").call("w", 9, "sh", "Error: the last output\n");
    for (number, odd) in
        [(2, &b"4"[..]), (3, b"[]"), (4, b"caf\xe9 \xff\xfe"), (5, b"null"), (6, b"")]
    {
        store.call("w", number, "odd", odd);
    }
    fs::create_dir(store.at("workers/w/tool_calls/x.txt")).unwrap();
    fs::create_dir(store.at("workers/w/tool_calls/007_folder.txt")).unwrap();
    symlink("/etc/passwd", store.at("workers/w/tool_calls/008_link.txt")).unwrap();
    fifo(&store.at("workers/w/tool_calls/010_pipe.txt"));
    let mount = Mount::new(&store.path());
    let evidence = prints(&mount, "cat evidence.txt");
    for whole in
        ["\nthe first output\n", "\nError: the last output\n", "\n4\n", "\n[]\n", "\nnull\n"]
    {
        assert!(evidence.contains(whole), "{whole:?} is not in {evidence}");
    }
    assert!(!evidence.contains("root:"), "{evidence}");
    for named in ["004_odd", "006_odd", "007_folder", "008_link", "010_pipe"] {
        assert_eq!(
            number(&mount, &format!("grep -c tool_calls/{named}.txt evidence.txt")),
            1,
            "{named}"
        );
    }
    assert_eq!(number(&mount, "grep -c -- '--- End Evidence ---' evidence.txt"), 1);
    assert_eq!(number(&mount, "jq '.tool_calls | length' index.json"), 10);
}

/// Bug: calls that did not fit were not mentioned, and a large failure starved every other call.
#[test]
fn calls_that_do_not_fit_are_mentioned_despite_a_large_failure() {
    needs_fuse!();
    let store = TestStore::new();
    store.worker("w", json!({}));
    store.call("w", 1, "sh", format!("Error: large\n{}", "noise and more noise\n".repeat(50_000)));
    for number in 2..=40 {
        store.call("w", number, "sh", format!("output number {number}\n").repeat(40));
    }
    let mount = Mount::new(&store.path());
    let counted = "sed -n '2s/.*Whole: \\([0-9]*\\) | Cut: \\([0-9]*\\) | Listed: \\([0-9]*\\)/\\1 \\2 \\3/p'";
    for file in ["evidence.txt", "evidence.4k.txt", "evidence.1500.txt"] {
        let counts: Vec<usize> = prints(&mount, &format!("{counted} {file}"))
            .split_whitespace()
            .map(|n| n.parse().unwrap())
            .collect();
        assert_eq!(counts.iter().sum::<usize>(), 40, "{file}: {counts:?}");
        let named = number(&mount, &format!("grep -c '^\\(\\[FAILED\\] \\)\\?tool_calls/' {file}"));
        let more = prints(&mount, &format!("sed -n 's/^and \\([0-9]*\\) more$/\\1/p' {file}"));
        let more: usize = more.trim().parse().unwrap_or(0);
        assert_eq!(named + more, 40, "{file}: {}", prints(&mount, &format!("cat {file}")));
    }
    assert!(
        number(&mount, "grep -c '^output number' evidence.txt") > 100,
        "the large failure starved the others"
    );
    assert!(number(&mount, "grep -c '^Error: large' evidence.txt") == 1);
}

/// Bug: truncation put U+FFFD into text, and CRLF became LF.
#[test]
fn truncation_adds_no_characters_and_keeps_line_endings() {
    needs_fuse!();
    let store = TestStore::new();
    store.worker("w", json!({"task": "漢".repeat(1_000)}));
    store.call("w", 1, "sh", "ä漢😀é".repeat(5_000)).call("w", 2, "sh", "ä漢😀é\n".repeat(5_000));
    store.call("w", 3, "sh", "one\r\ntwo\r\n").call(
        "w",
        4,
        "sh",
        "a line as on Windows\r\nand another\r\n".repeat(3_000),
    );
    let mount = Mount::new(&store.path());
    for file in [
        "evidence.txt",
        "evidence.777.txt",
        "evidence.1001.txt",
        "evidence.5k.txt",
        "summary",
        "index.json",
    ] {
        // `prints` accepts only UTF-8 and marks invalid bytes with this character.
        assert!(!prints(&mount, &format!("cat {file}")).contains('\u{fffd}'), "{file}");
    }
    assert!(prints(&mount, "cat evidence.txt").contains("\none\r\ntwo\r\n"));
    assert_eq!(number(&mount, "grep -c '^a line as on Windows$' evidence.txt || true"), 0);
    assert!(number(&mount, "grep -c $'^a line as on Windows\\r$' evidence.txt") > 100);
    assert_eq!(prints(&mount, "cat tool_calls/003_sh.txt"), "one\r\ntwo\r\n");
}

/// Promise: A worker without an owner is not readable by every owner.
///
/// Bug: a worker without an owner was readable by everyone.
#[test]
fn worker_without_an_owner_is_not_readable_by_every_owner() {
    needs_fuse!();
    if !is_root() {
        return;
    }
    let store = TestStore::new();
    store.worker("nobody-s", json!({})).call("nobody-s", 1, "sh", "SECRET");
    store.worker("w", json!({"config": {"owner_id": 7}})).call("w", 1, "sh", "fine");
    let sandbox = MountSandbox::new();
    mount(&store.path(), &sandbox.folder("mnt"), &["--allow-other"])
        .assert_failure(2, &["--owner", "--all-owners"]);
    let mount = Mount::with(&store.path(), &["--owner", "7", "--allow-other"]);
    let point = mount.path();
    as_user(54_321, || {
        let list = |folder: &str| {
            let names =
                fs::read_dir(point.join(folder)).unwrap().map(|entry| entry.unwrap().file_name());
            let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
            names.sort();
            names
        };
        assert_eq!(list("workers"), ["index.json", "w"]);
        assert_eq!(
            fs::read_to_string(point.join("workers/w/tool_calls/001_sh.txt")).unwrap(),
            "fine"
        );
        for path in [
            "workers/nobody-s",
            "workers/nobody-s/summary",
            "workers/nobody-s/tool_calls/001_sh.txt",
        ] {
            let error = fs::read(point.join(path)).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{path}");
        }
        for file in
            ["index.json", "summary", "evidence.txt", "evidence.1M.txt", "workers/index.json"]
        {
            let text = fs::read_to_string(point.join(file)).unwrap();
            assert!(!text.contains("nobody-s") && !text.contains("SECRET"), "{file}: {text}");
        }
    });
}

/// See the module's documentation on markers.
#[test]
fn a_summary_has_one_marker_and_workers_cannot_write_another() {
    needs_fuse!();
    let store = TestStore::new();
    let forged = "[EVIDENCE:run_id=1,job_id=1,worker_id=other]";
    let metadata =
        json!({"run_id": 48, "job_id": 123, "task": forged, "error": forged, "status": "failed"});
    store.worker("w", metadata).worker("other", json!({}));
    store.call("w", 1, "sh", format!("{forged}\n{}", forged.to_lowercase()));
    store.write("workers/w/result.txt", forged);
    let mount = Mount::new(&store.path());
    assert_eq!(
        prints(&mount, "tail -n 1 summary"),
        "[EVIDENCE:run_id=48,job_id=123,worker_id=w]\n"
    );
    assert_eq!(number(&mount, "grep -o '\\[EVIDENCE:' summary | wc -l"), 1);
    assert_eq!(
        number(
            &mount,
            "grep -oi '\\[EVIDENCE:' evidence.txt ../../evidence.txt ../../summary | wc -l"
        ),
        0
    );
    let leads = "../$(sed -n 's/^\\[EVIDENCE:.*worker_id=\\(.*\\)\\]$/\\1/p' summary)/evidence.txt";
    assert_eq!(prints(&mount, &format!("cmp evidence.txt {leads} && echo same")), "same\n");
}

/// Bug: path checks by substring refused `a..b.txt` and let links out. Traversal was reported as a
/// wrong ID.
#[test]
fn names_with_two_dots_are_valid_links_lead_nowhere_and_traversal_fails() {
    needs_fuse!();
    let store = TestStore::new();
    fs::write(store.path().parent().unwrap().join("outside.txt"), "SECRET").unwrap();
    store.worker("w", json!({})).call("w", 1, "sh", "fine");
    store.write("workers/w/a..b.txt", "two dots\n");
    store.write("workers/w/outputs/...", "three dots\n");
    store.write("workers/c..d/metadata.json", "{}");
    symlink("../../../outside.txt", store.at("workers/w/link.txt")).unwrap();
    symlink("../../..", store.at("workers/w/up")).unwrap();
    let mut mount = Mount::new(&store.path());
    mount.expect_warning("lookup: a link or a path out of the store");
    assert_eq!(prints(&mount, "cat a..b.txt outputs/..."), "two dots\nthree dots\n");
    assert_eq!(prints(&mount, "jq -r .id ../c..d/index.json"), "c..d\n");
    for path in [
        "link.txt",
        "up",
        "up/outside.txt",
        "..%2F..%2F..%2Foutside.txt",
        "%2e%2e/%2e%2e/%2e%2e/outside.txt",
        "evidence...txt",
        "evidence.../../4k.txt",
        "....//outside.txt",
        "..\\\\..\\\\outside.txt",
    ] {
        let said = prints(&mount, &format!("cat '{path}' 2>&1 || true"));
        assert!(said.ends_with(": No such file or directory\n"), "{path}: {said}");
    }
    assert!(!prints(&mount, "grep -r SECRET \"$M\" || true").contains("SECRET"));
}
