//! Colors of answers, and no control characters besides them.

use serde_json::json;

use super::program::{check_printable, run, swarmletfs};
use crate::support::TestStore;

/// Commands with colors.
const COMMANDS: [&[&str]; 8] = [
    &["ls", "-l", "workers"],
    &["ls", "-R"],
    &["tree", "-L", "2"],
    &["grep", "-i", "needle"],
    &["grep", "-C", "1", "needle"],
    &["grep", "-l", "needle"],
    &["search", "needle"],
    &["compare", "a", "b"],
];

fn store() -> TestStore {
    let store = TestStore::new();
    store.worker("a", json!({"run_id": "r", "status": "failed"}));
    store.worker("b", json!({"run_id": "r"}));
    store.call("a", 1, "sh", "one\nNeedle needle\n").call("b", 1, "sh", "two needles\n");
    store.write("workers/a/result.txt", "x\n");
    store.write("workers/b/result.txt", "y\n");
    store
}

/// Runs a command with one variable, and returns what it prints.
fn output(store: &TestStore, words: &[&str], variable: (&str, &str)) -> String {
    let mut command = swarmletfs(words);
    for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"] {
        command.env_remove(name);
    }
    command.env("SWARMLET_STORE", store.path()).env(variable.0, variable.1);
    run(command).out
}

/// Returns a text without the sequences that set colors.
fn without_colors(text: &str) -> String {
    regex::Regex::new("\u{1b}\\[[0-9;]*m").unwrap().replace_all(text, "").into_owned()
}

#[test]
fn colors_change_nothing_else() {
    let store = store();
    for words in COMMANDS {
        let plain = output(&store, words, ("TERM", "xterm"));
        assert!(!plain.contains('\u{1b}'), "{words:?}: {plain:?}");
        let colored = output(&store, &[words, &["--color", "always"]].concat(), ("NO_COLOR", "1"));
        assert!(colored.contains('\u{1b}'), "{words:?}: {colored:?}");
        assert_eq!(without_colors(&colored), plain, "{words:?}");
    }
}

#[test]
fn variables_decide_about_colors() {
    let store = store();
    let words = COMMANDS[0];
    let is_colored = |more: &[&str], variable| {
        output(&store, &[words, more].concat(), variable).contains('\u{1b}')
    };
    assert!(is_colored(&[], ("CLICOLOR_FORCE", "1")));
    assert!(!is_colored(&["--color", "never"], ("CLICOLOR_FORCE", "1")));
    assert!(!is_colored(&["--json"], ("CLICOLOR_FORCE", "1")));
    assert!(!is_colored(&[], ("TERM", "xterm")));
}

#[test]
fn colors_mark_what_a_reader_looks_for() {
    let store = store();
    let colored =
        |words: &[&str]| output(&store, &[words, &["--color=always"]].concat(), ("TERM", "xterm"));
    let list = colored(&["ls", "workers"]);
    assert!(list.contains("\u{1b}[31ma\u{1b}[0m\n"), "{list:?}");
    assert!(list.contains("\u{1b}[1m\u{1b}[34mb\u{1b}[0m\n"), "{list:?}");
    let lines = colored(&["grep", "-i", "needle", "workers/a"]);
    let separator = "\u{1b}[36m:\u{1b}[0m";
    let line = format!(
        "\u{1b}[35mworkers/a/tool_calls/001_sh.txt\u{1b}[0m{separator}\u{1b}[32m2\u{1b}[0m{separator}\
         \u{1b}[1m\u{1b}[31mNeedle\u{1b}[0m \u{1b}[1m\u{1b}[31mneedle\u{1b}[0m\n"
    );
    assert!(lines.contains(&line), "{lines:?}");
    let inverted = colored(&["grep", "-v", "-F", "two", "workers/a/result.txt"]);
    assert!(inverted.ends_with("x\n") && !inverted.contains("[31m"), "{inverted:?}");
    let diff = colored(&["compare", "a", "b"]);
    assert!(diff.contains("\u{1b}[31m-x\u{1b}[0m\n\u{1b}[32m+y\u{1b}[0m\n"), "{diff:?}");
    assert!(diff.contains("\u{1b}[1m--- workers/a/result.txt\u{1b}[0m\n"), "{diff:?}");
    let passages = colored(&["search", "needle"]);
    assert!(passages.contains("\u{1b}[35mworkers/a/tool_calls/001_sh.txt\u{1b}[0m, bytes"));
}

/// Promise: Where a command prints colors, no text of a worker has escapes of its own.
#[test]
fn workers_have_no_escapes_of_their_own_in_colored_answers() {
    let hostile = "\u{1b}[31mred\u{1b}]0;title\u{7}\u{9b}2J\u{202e}needle";
    let store = TestStore::new();
    for id in ["a", "b"] {
        store.worker(id, json!({"run_id": "r", "status": "failed", "task": hostile}));
        store.call(id, 1, "sh", format!("{id} {hostile}\n"));
        store.write(format!("workers/{id}/{hostile}.txt"), format!("{hostile}{id}\n"));
    }
    store.worker(&format!("w{hostile}"), json!({"status": "failed"}));
    for words in COMMANDS {
        let colored = output(&store, &[words, &["--color", "always"]].concat(), ("TERM", "xterm"));
        let rest = without_colors(&colored);
        check_printable(&rest);
        // The colors of the worker would be removed with those of the program.
        assert!(!colored.contains("\u{1b}[31mred"), "{words:?}: {colored:?}");
    }
}
