//! Questions on a terminal: `apply`, `apply --interactive`, `undo` and `discard`.

use std::io::{Read, Write};
use std::os::fd::AsFd;

use crate::cli::program::{LIMIT, wait_timeout};
use crate::support::draft::{Node, Workbench, file, folder};
use crate::support::terminal;

/// Runs a command on a terminal, and answers each question, which ends in `] `. Returns the exit
/// code and what the terminal shows.
fn answer(bench: &Workbench, arguments: &[&str], answers: &[&str]) -> (Option<i32>, String) {
    answer_after(bench, arguments, answers, || {})
}

/// Does the same, and calls `work` before each answer.
fn answer_after(
    bench: &Workbench,
    arguments: &[&str],
    answers: &[&str],
    work: impl Fn(),
) -> (Option<i32>, String) {
    let (mut master, slave) = terminal::open();
    let fd = || slave.as_fd().try_clone_to_owned().unwrap();
    let mut command = bench.command(arguments);
    // The pager must not wait for a key.
    command.env("PAGER", "cat").env_remove("GIT_PAGER").env("TERM", "xterm");
    command.stdin(fd()).stdout(fd()).stderr(fd());
    let mut child = command.spawn().unwrap();
    drop((command, slave));
    let mut shown = Vec::new();
    let mut answers = answers.iter();
    loop {
        let mut buffer = [0; 4_096];
        match master.read(&mut buffer) {
            // Reading a terminal without writers ends in an error.
            Ok(0) | Err(_) => break,
            Ok(count) => shown.extend_from_slice(&buffer[..count]),
        }
        if shown.ends_with(b"] ") {
            let answer = answers
                .next()
                .unwrap_or_else(|| panic!("another question: {}", String::from_utf8_lossy(&shown)));
            work();
            master.write_all(format!("{answer}\n").as_bytes()).unwrap();
        }
    }
    let status = wait_timeout(&mut child, LIMIT).unwrap();
    assert_eq!(answers.next(), None, "{}", String::from_utf8_lossy(&shown));
    (status.code(), String::from_utf8(shown).unwrap().replace("\r\n", "\n"))
}

fn trees() -> (Node, Node) {
    let old = folder([("a", file("a\n")), ("b", file("b\n")), ("c", file("c\n"))]);
    let new =
        folder([("a", file("a2\n")), ("b", file("b2\n")), ("d", folder([("e", file("e\n"))]))]);
    (old, new)
}

fn bench() -> Workbench {
    Workbench::with_worker(trees())
}

#[test]
fn apply_undo_and_discard_need_a_yes() {
    let (old, new) = trees();
    let bench = bench();
    for no in ["n", "", "no", "q"] {
        let (code, shown) = answer(&bench, &["apply", "w1"], &[no]);
        assert_eq!((code, bench.tree()), (Some(1), old.clone()), "{shown}");
        assert!(shown.contains("nothing was applied"), "{shown}");
    }
    let (code, shown) = answer(&bench, &["apply", "w1"], &["y"]);
    assert_eq!((code, bench.tree()), (Some(0), new.clone()), "{shown}");
    let question = format!("Apply 5 changes to {}? [y/N] ", bench.workspace.display());
    assert!(shown.contains(&question), "{shown}");
    // The diff is shown, and what is in none: a folder.
    assert!(shown.contains("-a\u{1b}[0m\n") && shown.contains("+a2\u{1b}[0m\n"), "{shown:?}");
    assert!(shown.contains("not in the diff: add d\n"), "{shown}");

    let (code, shown) = answer(&bench, &["undo", "w1"], &["n"]);
    assert_eq!((code, bench.tree()), (Some(1), new), "{shown}");
    let (code, shown) = answer(&bench, &["undo", "w1"], &["yes"]);
    assert_eq!((code, bench.tree()), (Some(0), old), "{shown}");

    let (code, shown) = answer(&bench, &["discard", "w1"], &["n"]);
    assert_eq!((code, bench.draft("w1").join("upper").exists()), (Some(1), true), "{shown}");
    let (code, shown) = answer(&bench, &["discard", "w1"], &["Y"]);
    assert_eq!((code, bench.draft("w1").join("upper").exists()), (Some(0), false), "{shown}");
}

#[test]
fn interactive_applies_the_accepted_changes() {
    let entry = |bench: &Workbench, name: &str| bench.at(name).exists();
    let text = |bench: &Workbench, name: &str| std::fs::read_to_string(bench.at(name)).unwrap();
    let one = bench();
    let (code, shown) = answer(&one, &["apply", "w1", "-i"], &["n", "?", "y", "n", "n", "y"]);
    assert_eq!(code, Some(0), "{shown}");
    assert_eq!((text(&one, "a"), text(&one, "b")), ("a\n".into(), "b2\n".into()));
    // The new folder of an accepted file comes with it.
    assert!(entry(&one, "c") && entry(&one, "d/e"), "{shown}");
    assert!(
        shown.contains("Replace a? [y,n,a,d,q,?] ") && shown.contains("y: apply this"),
        "{shown}"
    );

    let rest = bench();
    assert_eq!(answer(&rest, &["apply", "w1", "-i"], &["n", "a"]).0, Some(0));
    assert_eq!(
        (text(&rest, "a"), entry(&rest, "c"), entry(&rest, "d/e")),
        ("a\n".into(), false, true)
    );
    let first = bench();
    assert_eq!(answer(&first, &["apply", "w1", "-i"], &["y", "d"]).0, Some(0));
    assert_eq!((text(&first, "a"), text(&first, "b")), ("a2\n".into(), "b\n".into()));
    let none = bench();
    assert_eq!(answer(&none, &["apply", "w1", "-i"], &["y", "q"]).0, Some(1));
    assert_eq!(none.tree(), trees().0);
}

#[test]
fn interactive_skips_conflicts_if_told_so() {
    let bench = bench();
    std::fs::write(bench.at("a"), "ours\n").unwrap();
    let before = bench.tree();
    let (code, shown) = answer(&bench, &["apply", "w1", "-i"], &["n"]);
    assert_eq!((code, bench.tree()), (Some(1), before), "{shown}");
    let (code, shown) = answer(&bench, &["apply", "w1", "-i"], &["y", "a"]);
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.contains("conflict: a: it was changed meanwhile\n"), "{shown}");
    assert!(shown.contains("Skip 1 conflict and go on? [y/N] "), "{shown}");
    let text = |name| std::fs::read_to_string(bench.at(name)).unwrap();
    assert_eq!((text("a"), text("b"), text("d/e")), ("ours\n".into(), "b2\n".into(), "e\n".into()));
}

#[test]
fn what_changes_between_the_question_and_the_answer_is_a_conflict() {
    let bench = bench();
    let (mut master, slave) = terminal::open();
    let fd = || slave.as_fd().try_clone_to_owned().unwrap();
    let mut command = bench.command(&["apply", "w1", "--no-pager"]);
    command.stdin(fd()).stdout(fd()).stderr(fd());
    let mut child = command.spawn().unwrap();
    let mut shown = Vec::new();
    while !shown.ends_with(b"] ") {
        let mut byte = [0];
        master.read_exact(&mut byte).unwrap();
        shown.push(byte[0]);
    }
    std::fs::write(bench.at("b"), "ours\n").unwrap();
    master.write_all(b"y\n").unwrap();
    assert_eq!(wait_timeout(&mut child, LIMIT).unwrap().code(), Some(1));
    assert_eq!(std::fs::read_to_string(bench.at("a")).unwrap(), "a\n");
    assert_eq!(std::fs::read_to_string(bench.at("b")).unwrap(), "ours\n");
}

/// Promise: A folder that is or becomes a repository of git is left out, unless `--git-dir` is
/// given.
#[test]
fn a_repository_that_is_made_during_the_question_is_a_conflict() {
    let old = folder([("docs", folder([("refs", folder([]))]))]);
    let new = folder([("docs", folder([("objects", folder([])), ("refs", folder([]))]))]);
    for is_repository in [true, false] {
        let bench = Workbench::with_worker((old.clone(), new.clone()));
        let head = bench.at(if is_repository { "docs/HEAD" } else { "docs/TAIL" });
        let make = || std::fs::write(&head, "ref: refs/heads/main\n").unwrap();
        let (code, shown) = answer_after(&bench, &["apply", "w1"], &["y"], make);
        assert_eq!(code, Some(i32::from(is_repository)), "{shown}");
        assert_eq!(bench.at("docs/objects").exists(), !is_repository, "{shown}");
        assert_eq!(shown.contains("conflict: docs/objects: git takes"), is_repository, "{shown}");
    }
}

/// Promise: `review WORKER` applies the hunks that are taken, all or nothing, and keeps the
/// comments for the agent.
#[test]
fn hunks_are_taken_left_and_commented_on() {
    let lines = |second: &str, last: &str| {
        let middle: String = (3..20).map(|line| format!("{line}\n")).collect();
        file(&format!("1\n{second}\n{middle}{last}\n"))
    };
    let tree = |second: &str, last: &str, other: &str| {
        folder([("a", lines(second, last)), ("b", file(other))])
    };
    let bench = Workbench::with_worker((tree("2", "20", "b\n"), tree("two", "twenty", "b2\n")));
    let comments = bench.worker_folder("w1").join("comments.txt");
    let answers = ["c", "Why \u{202e}not 2?", "?", "n", "y", "n"];
    let (code, shown) = answer(&bench, &["review", "w1"], &answers);
    assert_eq!((code, bench.tree()), (Some(0), tree("2", "twenty", "b\n")), "{shown}");
    assert!(shown.contains("take hunk 1 of 2 of a? [y,n,c,a,d,q,?] "), "{shown}");
    assert!(
        shown.contains("applied 1 of 2 changes") && shown.contains("1 comment kept"),
        "{shown}"
    );
    let kept = std::fs::read_to_string(&comments).unwrap();
    assert!(kept.starts_with("a\n> @@ -1,5 +1,5 @@\n>  1\n> -2\n> +two\n"), "{kept}");
    assert!(kept.ends_with("Why \u{202e}not 2?\n"), "{kept}");
    let state = |expected: &str| {
        let listed = bench.run(&["review", "--json"]).assert_success().out.clone();
        let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
        assert_eq!(listed[0]["state"], expected, "{listed}");
    };
    state("partly_applied");
    // What was taken is not asked again, and the rest needs no merge.
    let (code, shown) = answer(&bench, &["review", "w1"], &["q"]);
    assert_eq!((code, bench.tree()), (Some(0), tree("2", "twenty", "b\n")), "{shown}");
    assert!(shown.contains("take hunk 1 of 1 of a? "), "{shown}");
    let said = bench.run(&["review", "w1", "--comment", "Keep b"]);
    assert!(said.assert_success().err.contains("1 comment kept"), "{said:#?}");
    assert!(std::fs::read_to_string(&comments).unwrap().ends_with("\n\nKeep b\n"));
    let (code, shown) = answer(&bench, &["review", "w1"], &["a", "y"]);
    assert_eq!((code, bench.tree()), (Some(0), tree("two", "twenty", "b2\n")), "{shown}");
    state("applied");
    for expected in [tree("2", "twenty", "b\n"), tree("2", "20", "b\n")] {
        bench.run(&["undo", "w1", "--yes"]).assert_success();
        assert_eq!(bench.tree(), expected);
    }
    state("taken_back");
    // A file that changed after the look is not overwritten.
    let changed = || std::fs::write(bench.at("a"), "other\n").unwrap();
    let (code, shown) = answer_after(&bench, &["review", "w1"], &["d", "y"], changed);
    assert_eq!(code, Some(0), "{shown}");
    assert_eq!(std::fs::read_to_string(bench.at("a")).unwrap(), "other\n");
    let (code, shown) = answer(&bench, &["review", "w1"], &[]);
    assert_eq!(code, Some(0));
    assert!(shown.contains("conflict: a: ") && shown.contains("nothing to review"), "{shown}");
}
