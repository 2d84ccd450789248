//! Long answers in a pager, on a real terminal.

use std::process::Command;

use serde_json::json;

use super::program::swarmletfs;
use crate::support::TestStore;
use crate::support::terminal::Terminal;
use crate::support::tool::is_here;

/// Number of workers: more than the lines of a screen, and their names more than a pipe holds.
const WORKERS: usize = 200;

/// A pager that marks each line.
const MARKING: &str = "sed s/^/P:/";

fn store() -> TestStore {
    let store = TestStore::new();
    for at in 0..WORKERS {
        store.worker(&format!("worker-{at:03}"), json!({"run_id": "r"}));
    }
    store
}

/// Returns a command with a pager from a variable; an empty name sets none.
fn command(store: &TestStore, words: &[&str], (variable, pager): (&str, &str)) -> Command {
    let mut command = swarmletfs(words);
    for name in ["SWARMLETFS_PAGER", "GIT_PAGER", "PAGER", "LESS"] {
        command.env_remove(name);
    }
    if !variable.is_empty() {
        command.env(variable, pager);
    }
    // A colored match would be in several parts.
    command.env("SWARMLET_STORE", store.path()).env("NO_COLOR", "1");
    command
}

fn shown(store: &TestStore, words: &[&str], pager: (&str, &str)) -> (Option<i32>, String) {
    Terminal::start(&command(store, words, pager)).end()
}

#[test]
fn long_answers_are_shown_in_the_pager() {
    if !is_here("setsid") {
        return;
    }
    let store = store();
    store.call("worker-001", 1, "sh", "needle 1\n").call("worker-002", 1, "sh", "needle 2\n");
    for (words, line, code) in [
        (&["ls", "workers"][..], "worker-001", 0),
        (&["tree", "workers", "-L", "1"], "worker-001", 0),
        (&["cat", "workers/worker-001/tool_calls/001_sh.txt"], "needle 1", 0),
        (&["grep", "needle"], "needle 1", 0),
        (&["search", "needle"], "needle 1", 0),
        (&["compare", "worker-001", "worker-002"], "needle 1", 1),
        (&["worker", "show", "worker-001"], "worker-001", 0),
    ] {
        let (ended, text) = shown(&store, words, ("PAGER", MARKING));
        let is_marked = text.lines().any(|text| text.contains("P:") && text.contains(line));
        assert!(is_marked, "{words:?}: {text:?}");
        assert_eq!(ended, Some(code), "{words:?}");
        let at_once = [words, &["--no-pager"]].concat();
        let (ended, text) = shown(&store, &at_once, ("PAGER", MARKING));
        assert!(!text.contains("P:") && text.contains(line), "{words:?}: {text:?}");
        assert_eq!(ended, Some(code), "{words:?}");
    }
}

#[test]
fn the_first_variable_names_the_pager() {
    if !is_here("setsid") {
        return;
    }
    let store = store();
    let is_paged = |words: &[&str], pager| shown(&store, words, pager).1.contains("P:");
    assert!(is_paged(&["ls"], ("SWARMLETFS_PAGER", MARKING)));
    assert!(!is_paged(&["ls"], ("GIT_PAGER", MARKING)));
    assert!(is_paged(&["compare", "worker-001", "worker-002"], ("GIT_PAGER", MARKING)));
    for none in ["", "cat"] {
        let mut command = command(&store, &["ls"], ("SWARMLETFS_PAGER", none));
        command.env("PAGER", MARKING);
        assert!(!Terminal::start(&command).end().1.contains("P:"), "{none}");
    }
    let mut dumb = command(&store, &["ls"], ("PAGER", MARKING));
    dumb.env("TERM", "dumb");
    assert!(!Terminal::start(&dumb).end().1.contains("P:"));
    // A pager that does not exist shows nothing, but the command is no failure.
    let (code, text) = shown(&store, &["ls"], ("PAGER", "no-such-pager"));
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn quitting_the_pager_ends_the_command_quietly() {
    if !is_here("setsid") {
        return;
    }
    let store = TestStore::new();
    store.worker("a", json!({})).write("workers/a/big.log", "a line of text\n".repeat(1_000_000));
    for (words, code) in [(&["cat", "workers/a/big.log", "-q"][..], 0), (&["ls", "-R", "-q"], 0)] {
        let (ended, text) = shown(&store, words, ("PAGER", "head -n 1"));
        assert_eq!(ended, Some(code), "{text:?}");
        assert!(text.lines().count() <= 2 && !text.contains("swarmletfs"), "{text:?}");
    }
}

#[test]
fn less_shows_one_screen_and_quits_by_itself_if_all_fits() {
    if !is_here("setsid") || !is_here("less") {
        return;
    }
    let store = store();
    let mut terminal = Terminal::start(&command(&store, &["ls", "workers"], ("", "")));
    terminal.expect("worker-010");
    terminal.expect(":");
    terminal.send("G");
    terminal.expect("worker-199");
    terminal.send("q");
    assert_eq!(terminal.end().0, Some(0));
    // Ctrl-C does not end the command while its pager is open.
    let mut terminal = Terminal::start(&command(&store, &["ls", "workers"], ("", "")));
    terminal.expect("worker-010");
    terminal.expect(":");
    terminal.send("\u{3}");
    // The terminal drops what was typed before less shows its prompt again.
    terminal.expect(":");
    terminal.send("q");
    assert_eq!(terminal.end().0, Some(0));
    let (code, text) = shown(&store, &["ls", "workers/worker-001"], ("", ""));
    assert_eq!(code, Some(0));
    assert!(text.contains("summary"), "{text:?}");
}

/// Promise: In a pager, the bytes of a file cannot control the terminal.
#[test]
fn escapes_in_a_file_have_no_effect_in_less() {
    if !is_here("setsid") || !is_here("less") {
        return;
    }
    let store = TestStore::new();
    store.worker("a", json!({})).write("workers/a/x", "\u{1b}]0;title\u{7}\u{1b}[31mred\n");
    let (code, text) = shown(&store, &["cat", "workers/a/x", "-q"], ("", ""));
    assert_eq!(code, Some(0));
    assert!(text.contains("ESC") && text.contains("red"), "{text:?}");
    assert!(!text.contains("\u{1b}]0;") && !text.contains("\u{1b}[31m"), "{text:?}");
}
