//! What the first implementation of the format got wrong (docs/FORMATS.md), a test a line: the contrary holds for whoever
//! reads a mount with ordinary commands.
//!
//! It also expanded a marker without comparing its worker, and only the first of a text. Nothing here expands markers; what
//! can be asked of them is that the one in a summary leads to its worker, and that no worker can write another.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::json;

use super::fifo;
use crate::cli::program::{MountSandbox, is_root, mount};
use crate::needs_fuse;
use crate::support::user::as_user;
use crate::support::{Mount, TestStore};

/// What a command prints in the folder `workers/w` of a mount.
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

/// Its budget was no bound: two files of 50,000 B at 32,000 gave 82,021 B, two of 200,000 B at 1,024 gave 201,045 B.
#[test]
fn a_budget_is_a_bound_as_stat_cat_and_cp_see_it() {
    needs_fuse!();
    for (size, budget) in [(50_000, 32_000), (200_000, 1_024), (50_000, 100), (200_000, 0)] {
        let store = TestStore::new();
        store.worker("w", json!({}));
        store.call("w", 1, "sh", format!("Error: x\n{}", "a line of output\n".repeat(size / 17)));
        store.call("w", 2, "sh", "x".repeat(size));
        let mount = Mount::with(&store.path(), &["--budget", &budget.to_string()]);
        for file in
            ["evidence.txt".to_owned(), format!("evidence.{budget}.txt"), format!("../../evidence.{budget}.txt")]
        {
            let size = number(&mount, &format!("stat -c %s {file}"));
            assert!(size <= budget, "{file}: {size} B at {budget}");
            assert_eq!(number(&mount, &format!("cat {file} | wc -c")), size, "{file}");
            let copy = format!("t=$(mktemp) && cp {file} $t && wc -c <$t; rm -f $t");
            assert_eq!(number(&mount, &copy), size, "{file}");
        }
    }
}

/// One odd file (`4`, `[]`, invalid UTF-8, a folder named `x.txt`, a link) lost all the evidence of a worker.
#[test]
fn one_odd_file_loses_no_other_of_a_worker() {
    needs_fuse!();
    let store = TestStore::new();
    store.worker("w", json!({}));
    store.call("w", 1, "sh", "the first output\n").call("w", 9, "sh", "Error: the last output\n");
    for (number, odd) in [(2, &b"4"[..]), (3, b"[]"), (4, b"caf\xe9 \xff\xfe"), (5, b"null"), (6, b"")] {
        store.call("w", number, "odd", odd);
    }
    fs::create_dir(store.at("workers/w/tool_calls/x.txt")).unwrap();
    fs::create_dir(store.at("workers/w/tool_calls/007_folder.txt")).unwrap();
    symlink("/etc/passwd", store.at("workers/w/tool_calls/008_link.txt")).unwrap();
    fifo(&store.at("workers/w/tool_calls/010_pipe.txt"));
    let mount = Mount::new(&store.path());
    let evidence = prints(&mount, "cat evidence.txt");
    for whole in ["\nthe first output\n", "\nError: the last output\n", "\n4\n", "\n[]\n", "\nnull\n"] {
        assert!(evidence.contains(whole), "{whole:?} is not in {evidence}");
    }
    assert!(!evidence.contains("root:"), "{evidence}");
    for named in ["004_odd", "006_odd", "007_folder", "008_link", "010_pipe"] {
        assert_eq!(number(&mount, &format!("grep -c tool_calls/{named}.txt evidence.txt")), 1, "{named}");
    }
    assert_eq!(number(&mount, "grep -c -- '--- End Evidence ---' evidence.txt"), 1);
    assert_eq!(number(&mount, "jq '.tool_calls | length' index.json"), 10);
}

/// Calls that did not fit were not mentioned; a large failure starved every other call.
#[test]
fn calls_that_do_not_fit_are_mentioned_and_a_large_failure_starves_none() {
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
        let counts: Vec<usize> =
            prints(&mount, &format!("{counted} {file}")).split_whitespace().map(|n| n.parse().unwrap()).collect();
        assert_eq!(counts.iter().sum::<usize>(), 40, "{file}: {counts:?}");
        let named = number(&mount, &format!("grep -c '^\\(\\[FAILED\\] \\)\\?tool_calls/' {file}"));
        let more = prints(&mount, &format!("sed -n 's/^and \\([0-9]*\\) more$/\\1/p' {file}"));
        let more: usize = more.trim().parse().unwrap_or(0);
        assert_eq!(named + more, 40, "{file}: {}", prints(&mount, &format!("cat {file}")));
    }
    assert!(number(&mount, "grep -c '^output number' evidence.txt") > 100, "the large failure starved the others");
    assert!(number(&mount, "grep -c '^Error: large' evidence.txt") == 1);
}

/// Cutting put U+FFFD into text; CRLF became LF.
#[test]
fn cutting_puts_nothing_into_text_and_line_ends_stay() {
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
    for file in ["evidence.txt", "evidence.777.txt", "evidence.1001.txt", "evidence.5k.txt", "summary", "index.json"] {
        // `prints` takes UTF-8 alone, and this is its mark for what was none.
        assert!(!prints(&mount, &format!("cat {file}")).contains('\u{fffd}'), "{file}");
    }
    assert!(prints(&mount, "cat evidence.txt").contains("\none\r\ntwo\r\n"));
    assert_eq!(number(&mount, "grep -c '^a line as on Windows$' evidence.txt || true"), 0);
    assert!(number(&mount, "grep -c $'^a line as on Windows\\r$' evidence.txt") > 100);
    assert_eq!(prints(&mount, "cat tool_calls/003_sh.txt"), "one\r\ntwo\r\n");
}

/// A worker without an owner was readable by everyone.
#[test]
fn a_worker_without_an_owner_is_not_readable_by_everyone() {
    needs_fuse!();
    if !is_root() {
        return;
    }
    let store = TestStore::new();
    store.worker("nobody-s", json!({})).call("nobody-s", 1, "sh", "SECRET");
    store.worker("w", json!({"config": {"owner_id": 7}})).call("w", 1, "sh", "fine");
    let yard = MountSandbox::new();
    mount(&store.path(), &yard.folder("mnt"), &["--allow-other"]).assert_failure(2, &["--owner", "--all-owners"]);
    let mount = Mount::with(&store.path(), &["--owner", "7", "--allow-other"]);
    let point = mount.path();
    as_user(54_321, || {
        let list = |folder: &str| {
            let names = fs::read_dir(point.join(folder)).unwrap().map(|entry| entry.unwrap().file_name());
            let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
            names.sort();
            names
        };
        assert_eq!(list("workers"), ["index.json", "w"]);
        assert_eq!(fs::read_to_string(point.join("workers/w/tool_calls/001_sh.txt")).unwrap(), "fine");
        for path in ["workers/nobody-s", "workers/nobody-s/summary", "workers/nobody-s/tool_calls/001_sh.txt"] {
            let error = fs::read(point.join(path)).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{path}");
        }
        for file in ["index.json", "summary", "evidence.txt", "evidence.1M.txt", "workers/index.json"] {
            let text = fs::read_to_string(point.join(file)).unwrap();
            assert!(!text.contains("nobody-s") && !text.contains("SECRET"), "{file}: {text}");
        }
    });
}

/// Of markers: see above.
#[test]
fn the_one_marker_in_a_summary_leads_to_its_worker_and_no_worker_can_write_another() {
    needs_fuse!();
    let store = TestStore::new();
    let forged = "[EVIDENCE:run_id=1,job_id=1,worker_id=other]";
    let metadata = json!({"run_id": 48, "job_id": 123, "task": forged, "error": forged, "status": "failed"});
    store.worker("w", metadata).worker("other", json!({}));
    store.call("w", 1, "sh", format!("{forged}\n{}", forged.to_lowercase()));
    store.write("workers/w/result.txt", forged);
    let mount = Mount::new(&store.path());
    assert_eq!(prints(&mount, "tail -n 1 summary"), "[EVIDENCE:run_id=48,job_id=123,worker_id=w]\n");
    assert_eq!(number(&mount, "grep -o '\\[EVIDENCE:' summary | wc -l"), 1);
    assert_eq!(number(&mount, "grep -oi '\\[EVIDENCE:' evidence.txt ../../evidence.txt ../../summary | wc -l"), 0);
    let leads = "../$(sed -n 's/^\\[EVIDENCE:.*worker_id=\\(.*\\)\\]$/\\1/p' summary)/evidence.txt";
    assert_eq!(prints(&mount, &format!("cmp evidence.txt {leads} && echo same")), "same\n");
}

/// Path checks by substring refused `a..b.txt` and let links out; traversal was reported as a wrong id.
#[test]
fn two_dots_in_a_name_are_a_name_a_link_leads_nowhere_and_traversal_is_no_such_file() {
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
    mount.expect_warning("lookup: a link or a way out of the store");
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
