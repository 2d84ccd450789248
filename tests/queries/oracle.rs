//! `grep/` finds the lines that ripgrep finds in the store's directory.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::json;

use super::text;
use crate::hostile::Dice;
use crate::support::TestStore;
use crate::support::seeds;
use crate::support::tool::is_here;

const PATTERNS: [&str; 22] = [
    "error",
    "err.r",
    "^error",
    "[a-c]+$",
    "a|b",
    "\\berr",
    "(?i)ERROR",
    "x{3}",
    "^$",
    "\\d+",
    "\\s",
    "[^a]b",
    "\\w+\\s\\w+",
    "é",
    "\\p{Lu}",
    "a.*b",
    "(a|ab)(c|bcd)",
    "\\x41",
    "c$",
    "^\\s*\\{",
    "no such",
    "(.)",
];
const WORDS: [&str; 12] =
    ["error", "Error", "a", "b", "abcd", "xxx", "é", "\t", " ", "{", "12", "no such file"];

fn line(dice: &mut Dice) -> String {
    (0..dice.below(8)).map(|_| *dice.pick(&WORDS)).collect()
}

/// Promise: The lines are those that ripgrep finds on disk, except those of records that repeat
/// others.
#[test]
fn grep_finds_the_lines_that_ripgrep_finds() {
    if !is_here("rg") {
        return;
    }
    for seed in seeds(4) {
        let mut dice = Dice::new(seed);
        let store = TestStore::new();
        for worker in 0..5 {
            store.worker(
                &format!("w{worker}"),
                json!({"status": dice.pick(&["failed", "success"])}),
            );
            for call in 1..4 {
                let ends = ["\n", "\n", "\r\n", ""];
                let lines: String =
                    (0..dice.below(40)).map(|_| line(&mut dice) + *dice.pick(&ends)).collect();
                store.call(&format!("w{worker}"), call, "sh", lines);
            }
        }
        let tree = store.tree();
        for pattern in PATTERNS {
            let query = pattern.replace('%', "%25").replace('/', "%2F");
            let answer = text(&tree, &format!("grep.4M@*.txt/{query}"));
            let found: BTreeSet<&str> =
                answer.lines().filter(|line| !line.starts_with('[')).collect();
            let mut rg = Command::new("rg");
            rg.args([
                "--no-config",
                "-uuu",
                "-n",
                "--no-heading",
                "--color=never",
                "-g",
                "*.txt",
                "-e",
                pattern,
                "workers",
            ]);
            let out = rg.current_dir(store.path()).output().unwrap();
            let printed = String::from_utf8(out.stdout).unwrap();
            // A carriage return at the end of a line is not shown.
            let expected: BTreeSet<&str> = printed
                .split('\n')
                .map(|line| line.trim_end_matches('\r'))
                .filter(|line| !line.is_empty())
                .collect();
            assert_eq!(found, expected, "{pattern} in the store of seed {seed}");
        }
    }
}
