//! `apply --merge`: files that several workers changed.

use std::fs;
use std::path::Path;

use crate::support::draft::{Node, Workbench, file, folder};
use crate::support::tool::is_here;

const BASE: &str = "1\n2\n3\n4\n5\n6\n7\n8\n9\n";

/// Returns a workspace in which two workers changed a file: the first line, and `second` of it.
fn two_workers(second: &str) -> Workbench {
    let with = |text: &str| folder([("file", file(text)), ("other", file(text))]);
    let bench = Workbench::new(&with(BASE));
    bench.worker("w1", &with(BASE), &with(&BASE.replace("1\n", "one\n")));
    bench.worker("w2", &with(BASE), &with(second));
    bench
}

/// Promise: Changes of one file by two workers are merged as git merges them, or nothing is
/// applied.
#[test]
fn changes_of_other_lines_are_merged() {
    if !is_here("git") {
        return;
    }
    let bench = two_workers(&BASE.replace("9\n", "nine\n"));
    bench.run(&["apply", "w1", "--yes"]).assert_success();
    let before = bench.tree();
    bench.run(&["apply", "w2", "--yes"]).assert_failure(1, &["conflict: file: it was changed"]);
    assert_eq!(bench.tree(), before);
    bench.run(&["apply", "w2", "--yes", "--merge"]).assert_success();
    let both = BASE.replace("1\n", "one\n").replace("9\n", "nine\n");
    assert_eq!(bench.tree(), folder([("file", file(&both)), ("other", file(&both))]));
    bench.run(&["undo", "w2", "--yes"]).assert_success();
    assert_eq!(bench.tree(), before);
}

#[test]
fn changes_of_one_line_stay_conflicts_and_nothing_is_applied() {
    if !is_here("git") {
        return;
    }
    let bench = two_workers(&BASE.replace("1\n", "eins\n"));
    bench.run(&["apply", "w1", "--yes"]).assert_success();
    let before = bench.tree();
    let merged = bench.run(&["apply", "w2", "--yes", "--merge"]);
    // The first one ends the merge.
    merged.assert_failure(1, &["conflict: file: it was changed", "only the other paths"]);
    assert!(!merged.err.contains("conflict: other"), "{merged:#?}");
    assert_eq!(bench.tree(), before);
}

#[test]
fn a_merge_without_git_or_with_a_forged_base_fails() {
    let bench = two_workers(&BASE.replace("9\n", "nine\n"));
    bench.run(&["apply", "w1", "--yes"]).assert_success();
    let before = bench.tree();
    let mut command = bench.command(&["apply", "w2", "--yes", "--merge"]);
    command.env("PATH", "/nonexistent");
    crate::cli::program::run(command).assert_failure(1, &["git is not installed", "--merge"]);
    fs::write(bench.worker_folder("w2").join("base/file"), "forged\n").unwrap();
    bench.run(&["apply", "w2", "--yes", "--merge"]).assert_failure(1, &["conflict: file:"]);
    assert_eq!(bench.tree(), before);
    assert_eq!(Node::read(Path::new(&bench.at("file"))), file(&BASE.replace("1\n", "one\n")));
}
