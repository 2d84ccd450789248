//! `apply --merge`: files that several workers changed.

use std::fs;
use std::path::Path;

use fastrand::Rng;

use crate::cli::program::{program, run};
use crate::support::draft::{Node, Workbench, file, folder};
use crate::support::tool::is_here;
use crate::support::{is_full, seeds};

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

/// Returns a random text, or a changed one.
fn random_text(rng: &mut Rng, of: Option<&str>) -> String {
    let line = |rng: &mut Rng| format!("line {}\n", rng.u8(..6));
    let Some(of) = of else { return (0..rng.usize(..40)).map(|_| line(rng)).collect() };
    let mut lines: Vec<String> = of.split_inclusive('\n').map(str::to_owned).collect();
    for _ in 0..rng.usize(1..4) {
        let at = rng.usize(..=lines.len());
        match rng.u8(..3) {
            0 if at < lines.len() => drop(lines.remove(at)),
            1 if at < lines.len() => lines[at] = line(rng),
            _ => lines.insert(at, line(rng)),
        }
    }
    lines.concat()
}

/// Returns what git makes of the changes; `None` for a conflict.
fn merged_by_git(dir: &Path, texts: [&str; 3]) -> Option<String> {
    let mut git = program("git", ["merge-file", "-p", "-q"]);
    for (name, text) in ["current", "base", "new"].into_iter().zip(texts) {
        fs::write(dir.join(name), text).unwrap();
        git.arg(dir.join(name));
    }
    let done = run(git);
    (done.code == Some(0)).then_some(done.out)
}

/// Promise: Changes of one file by two workers are merged as git merges them, or nothing is
/// applied.
#[test]
fn random_changes_are_merged_as_by_git() {
    if !is_here("git") {
        return;
    }
    let (mut merges, mut conflicts) = (0, 0);
    for seed in seeds(40) {
        let mut rng = Rng::with_seed(seed);
        let base = random_text(&mut rng, None);
        let [current, new] = [(); 2].map(|()| random_text(&mut rng, Some(&base)));
        let with = |text: &str| folder([("file", file(text)), ("other", file("other\n"))]);
        let bench = Workbench::new(&with(&base));
        bench.worker("w1", &with(&base), &with(&new));
        fs::write(bench.at("file"), &current).unwrap();
        let expected = merged_by_git(bench.path(), [&current, &base, &new]);
        let done = bench.run(&["apply", "w1", "--yes", "--merge", "--no-sync"]);
        let about = format!("seed {seed}: {done:#?}");
        match expected {
            Some(text) => {
                assert_eq!((done.code, bench.tree()), (Some(0), with(&text)), "{about}");
                bench.run(&["undo", "w1", "--yes", "--no-sync"]).assert_success();
                merges += 1;
            }
            None => {
                assert_eq!(done.code, Some(1), "{about}");
                conflicts += 1;
            }
        }
        assert_eq!(bench.tree(), with(&current), "{about}");
    }
    assert!(merges > 5 && conflicts > 5 || !is_full(), "{merges} merges and {conflicts} conflicts");
}
