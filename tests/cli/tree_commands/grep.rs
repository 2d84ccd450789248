//! `swarmletfs grep`: equals `grep/` in a mount, with the exit codes of grep.

use serde_json::json;

use super::{CommandBytes, look};
use crate::cli::program::{run, swarmletfs};
use crate::support::tool::shell;
use crate::support::{TestStore, see};

fn store() -> TestStore {
    let store = TestStore::new();
    store.worker("a", json!({"run_id": "r1"})).call("a", 1, "sh", "one needle\n").call(
        "a",
        2,
        "sh",
        "two needles\nNEEDLE\n",
    );
    store.worker("b", json!({"status": "failed"})).call("b", 1, "sh", "Error: needle\n");
    store.write("workers/b/outputs/report.md", "# needle\nhay\n");
    store
}

fn grep(store: &TestStore, words: &[&str]) -> CommandBytes {
    look(&store.path(), "grep", words)
}

#[test]
fn grep_prints_the_answer_of_the_tree() {
    let store = store();
    let tree = store.tree();
    for (words, path) in [
        (&["needle"][..], "grep/needle"),
        (&["needle", "."], "grep/needle"),
        (&["needle", "workers"], "grep/needle"),
        (&["-i", "needle", "/"], "grep.i/needle"),
        (&["-C", "2", "needle"], "grep.ctx2/needle"),
        (&["-b", "300", "needle"], "grep.300/needle"),
        (&["--budget", "100tok", "-i", "needle"], "grep.100tok.i/needle"),
        (&["-g", "*.md", "needle"], "grep@*.md/needle"),
        (&["needle", "runs/r1"], "runs/r1/grep/needle"),
        (&["needle", "runs/latest/workers"], "runs/r1/grep/needle"),
        (&["needle", "workers/b"], "workers/b/grep/needle"),
        (&["needle", "by/status/failed/b"], "workers/b/grep/needle"),
        (&["needle", "by/status/failed"], "by/status/failed/grep/needle"),
        (&["-n", "-F", "a.b[", "."], "grep/a\\.b\\["),
        (&["-v", "needle"], "grep.v/needle"),
        (&["-vi", "-C", "1", "needle"], "grep.ctx1.v.i/needle"),
    ] {
        let wanted = see(&tree, path).unwrap();
        let done = grep(&store, words);
        assert_eq!((done.text(), done.err.as_str()), (wanted.text(), ""), "{words:?}");
    }
    let several = grep(&store, &["needle", "workers/a", "workers/b"]);
    let each = ["a", "b"]
        .map(|id| see(&tree, format!("workers/{id}/grep/needle")).unwrap().text().to_owned());
    assert_eq!(several.assert_success().text(), each.concat());
}

/// Promise: `grep` accepts one file or directory of a worker.
#[test]
fn grep_accepts_one_file_or_directory() {
    let store = store();
    let lines = |path: &str| {
        grep(&store, &["needle", path])
            .assert_success()
            .text()
            .lines()
            .skip(1)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(lines("workers/b/outputs"), ["workers/b/outputs/report.md:1:# needle"]);
    assert_eq!(
        lines("workers/a/tool_calls/001_sh.txt"),
        ["workers/a/tool_calls/001_sh.txt:1:one needle"]
    );
    assert_eq!(grep(&store, &["needle", "workers/a/tool_calls/001_sh"]).code, Some(2));
}

/// Promise: The exit codes of `grep` are those of GNU grep.
#[test]
fn grep_exits_like_gnu_grep() {
    let store = store();
    assert_eq!(grep(&store, &["needle"]).code, Some(0));
    assert_eq!(grep(&store, &["nothing of it"]).code, Some(1));
    let wrong = grep(&store, &["a(b"]);
    assert_eq!(wrong.code, Some(2));
    assert!(wrong.text().contains("unclosed group"), "{wrong:?}");
    for words in [
        &["needle", "workers/none"][..],
        &["needle", "workers/a", "runs/none"],
        &["needle", "summary"],
        &["needle", "by/status"],
    ] {
        let done = grep(&store, words);
        assert_eq!(done.code, Some(2), "{done:?}");
        assert!(!done.err.is_empty());
    }
}

/// Promise: A grep answer in JSON has every line and every count.
#[test]
fn grep_json_has_every_line_and_count() {
    let store = store();
    let all = grep(&store, &["--json", "-C", "1", "needle"]).assert_success().json();
    let answer = &all[0];
    assert_eq!(
        (answer["lines"].as_u64(), answer["files"].as_u64(), answer["workers"].as_u64()),
        (Some(4), Some(4), Some(2))
    );
    assert_eq!(answer["query"], "grep.ctx1/needle");
    assert_eq!(
        answer["searched"],
        json!({"workers": 2, "files": 6, "bytes": answer["searched"]["bytes"]})
    );
    assert_eq!(
        answer["not_searched"],
        json!({"binary": 0, "unreadable": 0, "long_line": 0, "late": 0, "late_workers": []})
    );
    let report = answer["shown"]
        .as_array()
        .unwrap()
        .iter()
        .find(|file| file["path"] == "workers/b/outputs/report.md")
        .unwrap();
    let lines = json!([{"number": 1, "text": "# needle", "matches": true}, {"number": 2, "text": "hay", "matches": false}]);
    assert_eq!(answer["left_out"], json!({"files": 0, "lines": 0}));
    assert_eq!(
        report,
        &json!({"worker": "b", "path": "workers/b/outputs/report.md", "lines": lines, "more": 0})
    );
    let wrong = grep(&store, &["--json", "a(b"]);
    assert!(wrong.json()[0]["error"].as_str().unwrap().contains("unclosed group"));
}

/// Promise: A hit that a worker's records repeat counts once.
#[test]
fn grep_counts_a_repeated_hit_once() {
    let store = store();
    let message = json!({"role": "tool", "content": "Error: needle\n"});
    store.write("workers/b/thread.jsonl", format!("{message}\n"));
    let text = String::from_utf8(grep(&store, &["Error: needle"]).out).unwrap();
    assert!(
        text.ends_with("workers/b/tool_calls/001_sh.txt:1:Error: needle\n[also in thread.jsonl]\n"),
        "{text}"
    );
    let all = grep(&store, &["--json", "Error: needle"]).assert_success().json();
    assert_eq!((&all[0]["lines"], &all[0]["files"]), (&json!(1), &json!(1)));
    assert_eq!(all[0]["shown"][0]["also_in"], json!(["thread.jsonl"]));
}

#[test]
fn grep_lists_files_beyond_the_budget() {
    let store = store();
    let files = grep(&store, &["-lr", "-b", "100", "needle"]);
    assert_eq!(
        files.assert_success().lines(),
        [
            "workers/b/tool_calls/001_sh.txt",
            "workers/b/outputs/report.md",
            "workers/a/tool_calls/001_sh.txt",
            "workers/a/tool_calls/002_sh.txt",
        ]
    );
    let counts = grep(&store, &["-ci", "needle", "workers/a"]);
    assert_eq!(
        counts.assert_success().lines(),
        ["workers/a/tool_calls/001_sh.txt:1", "workers/a/tool_calls/002_sh.txt:2"]
    );
    let none = grep(&store, &["-l", "absent"]);
    assert_eq!((none.code, none.text(), none.err.as_str()), (Some(1), "", ""));
    let wrong = grep(&store, &["-l", "a(b"]);
    assert_eq!(wrong.code, Some(2));
    assert!(wrong.text().contains("unclosed group"), "{wrong:#?}");
}

#[test]
fn grep_matches_whole_words() {
    let store = store();
    let files = |words: &[&str]| grep(&store, words).lines().join(" ");
    assert_eq!(files(&["-lw", "needles"]), "workers/a/tool_calls/002_sh.txt");
    assert_eq!(files(&["-lw", "needl|one"]), "workers/a/tool_calls/001_sh.txt");
    assert_eq!(files(&["-lwF", "# needle"]), "workers/b/outputs/report.md");
    assert_eq!(grep(&store, &["-w", "needl"]).code, Some(1));
    let wrong = grep(&store, &["-w", "a)(b"]);
    assert_eq!(wrong.code, Some(2));
    assert!(wrong.text().contains("unopened group"), "{wrong:#?}");
}

/// Promise: `grep -v`, `-L`, `-l` and `-c` find what GNU grep finds in the store, except in records
/// that repeat others, with its exit codes.
#[test]
fn grep_finds_what_gnu_grep_finds() {
    let store = store();
    store.write("workers/b/all.log", "needle\n\nneedle-work\n");
    store.write("workers/b/only.log", "needle 1\nneedle 2\n");
    store.write("workers/b/empty", "");
    // A record that repeats a line of another file. Its copies are left out of -l, but it has no
    // place in -L, and each line without a match is for itself.
    let message = json!({"role": "tool", "content": "Error: needle\n"});
    store.write("workers/b/thread.jsonl", format!("{message}\n{{}}\n"));
    for (options, pattern) in [
        ("-v", "needle"),
        ("-vi", "needle"),
        ("-vw", "needle"),
        ("-vF", "[x"),
        ("-vc", "needle"),
        ("-vl", "needle"),
        ("-vL", "needle"),
        ("-L", "needle"),
        ("-Li", "needle"),
        ("-Lw", "needles"),
        ("-LF", "[x"),
        ("-L", "."),
        ("-L", "^"),
        ("-v", "^"),
        ("-vL", "^"),
        ("-l", "needle"),
        ("-lw", "needles"),
        ("-n", "hay"),
    ] {
        let ours = grep(&store, &[options, pattern]);
        let lists = options.contains(['l', 'L', 'c']);
        let mut lines: Vec<&str> = ours.text().lines().skip(usize::from(!lists)).collect();
        lines.sort_unstable();
        let number = if lists { "" } else { "n" };
        let syntax = if options.contains('F') { "" } else { "E" };
        let without_copies =
            if options.contains(['v', 'L']) { "" } else { " --exclude=thread.jsonl" };
        let command =
            format!("grep -r{syntax}{number} {options} '{pattern}' workers{without_copies}");
        let theirs = shell(&command, &store.path()).output().unwrap();
        let text = String::from_utf8(theirs.stdout).unwrap();
        // It also counts files without a match.
        let mut expected: Vec<&str> = text.lines().filter(|line| !line.ends_with(":0")).collect();
        expected.sort_unstable();
        assert_eq!(lines, expected, "{options} {pattern}");
        assert_eq!(ours.code, theirs.status.code(), "{options} {pattern}");
    }
}

#[test]
fn grep_without_a_match_lists_no_binary_file() {
    let store = store();
    store.write("workers/b/image", b"\0needle");
    let listed = grep(&store, &["-L", "nothing", "workers/b"]);
    assert_eq!(
        listed.lines(),
        [
            "workers/b/metadata.json",
            "workers/b/outputs/report.md",
            "workers/b/tool_calls/001_sh.txt"
        ]
    );
}

#[test]
fn grep_refuses_options_that_contradict_each_other() {
    for words in [["-L", "-l"], ["-L", "-c"], ["-L", "--json"], ["-l", "-c"], ["-c", "--json"]] {
        let done = run(swarmletfs(["grep", words[0], words[1], "needle"]));
        done.assert_failure(2, &["cannot be used with"]);
    }
}

#[test]
fn inverted_answer_in_json_has_the_other_lines() {
    let all =
        grep(&store(), &["--json", "-v", "needle", "workers/b/outputs"]).assert_success().json();
    assert_eq!((&all[0]["query"], &all[0]["lines"]), (&json!("grep.v/needle"), &json!(1)));
    let lines = json!([{"number": 2, "text": "hay", "matches": true}]);
    assert_eq!(all[0]["shown"][0]["lines"], lines);
}
