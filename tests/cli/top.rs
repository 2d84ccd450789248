//! `swarmletfs top` in tmux: keys are sent, and screens compared; and what it prints once.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::program::{LIMIT, check_printable, run, swarmletfs, wait_until};
use crate::run::workspace::Workspace;
use crate::support::mount::{CACHES, PROGRAM};
use crate::support::tool::is_here;
use crate::support::{TestStore, patience};

/// Line that the shell prints after the program, with its exit code.
const ENDED: &str = "ended with ";

/// Returns a store of workers in all groups, one of them with hostile texts.
fn swarm() -> TestStore {
    let store = TestStore::new();
    let asked = json!({"task": "Choose a port", "finished_at": "2026-01-20T10:30:00Z"});
    store
        .worker("ask-1", asked)
        .worker("run-1", json!({"status": "running", "task": "Build it"}))
        .worker("end-1", json!({}))
        .worker("end-2", json!({"status": "failed", "error": "No space left on device"}))
        .worker("bad-1", json!({"task": "evil \u{1b}[31m\u{202e}\u{200b}title\u{7}"}));
    store.call("end-1", 1, "sh", "needle one\n").call(
        "end-2",
        1,
        "sh",
        "No space left on device\n",
    );
    store.write("workers/ask-1/result.txt", "Two are free.\n\nWhich port shall I use?\n");
    let long: String = (0..300).map(|at| format!("output line {at}\n")).collect();
    store.call("end-1", 2, "sh", long + "the last needle\n");
    store
}

/// A terminal in a tmux of its own, which ends with it.
struct Tmux {
    dir: tempfile::TempDir,
}

impl Tmux {
    /// Starts `swarmletfs top` on a terminal of 80 x 24 cells.
    fn start(store: &Path, options: &str) -> Tmux {
        Tmux::start_with("TERM=screen-256color", store, options)
    }

    /// Starts it with a variable of the environment.
    fn start_with(variable: &str, store: &Path, options: &str) -> Tmux {
        let tmux = Tmux { dir: tempfile::tempdir().unwrap() };
        fs::write(tmux.config(), "set -g set-clipboard on\nset -g remain-on-exit on\n").unwrap();
        let command = format!(
            "stty -a >{0}/before; {variable} {PROGRAM} top --store {1} -q {options}; echo {ENDED}$?; \
             stty -a >{0}/after; exec cat",
            tmux.dir.path().display(),
            store.display(),
        );
        let mut server =
            tmux.command(&["-f", tmux.config().to_str().unwrap(), "new-session", "-d"]);
        server.args(["-x", "80", "-y", "24", &command]);
        assert!(server.status().unwrap().success());
        tmux
    }

    fn config(&self) -> PathBuf {
        self.dir.path().join("tmux.conf")
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("tmux");
        command.arg("-S").arg(self.dir.path().join("socket")).args(words).stdin(Stdio::null());
        for variable in
            ["TMUX", "NO_COLOR", "SWARMLET_STORE", "SWARMLET_DATA_PATH", "SWARMLET_WORKER"]
        {
            command.env_remove(variable);
        }
        command.env("XDG_CACHE_HOME", CACHES).env("PAGER", "cat").env("LC_ALL", "C.UTF-8");
        command
    }

    #[track_caller]
    fn tmux(&self, words: &[&str]) -> String {
        let output = self.command(words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Types keys, each by its name in tmux.
    fn send(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// Waits until the screen is as wished, and returns it.
    #[track_caller]
    fn wait(&self, wanted: impl Fn(&str) -> bool) -> String {
        let begun = Instant::now();
        loop {
            let screen = self.screen();
            if wanted(&screen) {
                return screen;
            }
            assert!(begun.elapsed() < patience(LIMIT), "the screen is\n{screen}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Types keys and waits until the screen has all of `texts`.
    #[track_caller]
    fn see(&self, keys: &[&str], texts: &[&str]) -> String {
        if !keys.is_empty() {
            self.send(keys);
        }
        self.wait(|screen| texts.iter().all(|text| screen.contains(text)))
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let _ = self.command(&["kill-server"]).output();
    }
}

#[test]
fn keys_move_open_search_compare_and_quit() {
    if !is_here("tmux") {
        return;
    }
    let store = swarm();
    let tmux = Tmux::start(&store.path(), "");
    let screen = tmux.see(&[], &["NEEDS YOU 2", "RUNNING 1", "NEWLY ENDED 2", "? help"]);
    let rows: Vec<&str> = screen.lines().collect();
    assert!(rows[0].starts_with("swarmletfs top  5 workers"), "{screen}");
    assert!(rows[2].starts_with(">ask") && rows[2].contains("Which port"), "{screen}");
    assert!(rows[3].contains("failed") && rows[3].contains("No space"), "{screen}");
    assert!(rows[5].contains("running"), "{screen}");
    check_printable(&screen);

    tmux.see(&["j"], &[">end-2"]);
    tmux.see(&["G"], &[">bad"]);
    tmux.see(&["s"], &["by failures"]);
    tmux.see(&["f"], &["only needs you"]);
    tmux.see(&["Escape"], &["RUNNING 1", "by failures"]);
    tmux.see(&["t", "end-1", "Enter"], &["with end-1", ">end-1"]);
    tmux.see(&["a"], &["a is off: end-1 has no draft"]);
    tmux.see(&["n"], &["n is off"]);
    tmux.see(&["?"], &["Keys of the list", "(off:"]);
    tmux.see(&["x"], &[">end-1"]);

    tmux.see(&["Enter"], &["[summary] evidence calls diff", "completed"]);
    tmux.see(&["Tab"], &["[evidence]", "Evidence for"]);
    tmux.see(&["/", "last needle", "Enter"], &["the last needle"]);
    tmux.see(&["3"], &["[calls]", "001_sh"]);
    tmux.see(&["4"], &["[diff]", "no changes"]);
    tmux.see(&["y"], &["copied workers/end-1/changes.diff"]);
    wait_until("the path is copied", || {
        let shown = tmux.command(&["show-buffer"]).output().unwrap();
        shown.stdout == b"workers/end-1/changes.diff"
    });

    tmux.see(&["q"], &["with end-1"]);
    tmux.see(&["c"], &["marked end-1"]);
    tmux.see(&["t", "C-u", "end-2", "Enter", "c"], &["compare end-1 end-2", "needle one"]);
    tmux.see(&["Escape"], &["with end-2"]);
    tmux.see(&["Escape"], &["NEEDS YOU 2"]);
    tmux.see(&["/", "needle", "Enter"], &["search needle", "needle one"]);
    tmux.see(&["Enter"], &["found by needle", "1 shown"]);
    tmux.see(&["Escape"], &["NEEDS YOU 2"]);
    tmux.see(&["x"], &["NEEDS YOU 2", "x does nothing; ? lists the keys"]);

    // What a worker writes appears without a key.
    store.worker("new-1", json!({"status": "running"}));
    tmux.see(&[], &["6 workers", "RUNNING 2", "new"]);

    let screen = tmux.see(&["q"], &["ended with 0"]);
    assert!(!screen.contains("NEEDS YOU"), "the alternate screen was left: {screen}");
    let settings = |name: &str| fs::read_to_string(tmux.dir.path().join(name)).unwrap_or_default();
    wait_until("the settings are as before", || settings("before") == settings("after"));
    assert_eq!(tmux.tmux(&["display-message", "-p", "#{cursor_flag} #{mouse_any_flag}"]), "1 0\n");
}

#[test]
fn small_screens_and_resizes_are_drawn_again() {
    if !is_here("tmux") {
        return;
    }
    let store = swarm();
    let tmux = Tmux::start(&store.path(), "--theme color-blind");
    tmux.see(&[], &["NEEDS YOU 2"]);
    for (columns, rows) in [("40", "10"), ("20", "4"), ("150", "40"), ("80", "24")] {
        tmux.tmux(&["resize-window", "-x", columns, "-y", rows]);
        let (columns, rows): (usize, usize) = (columns.parse().unwrap(), rows.parse().unwrap());
        let screen = tmux.wait(|screen| {
            let lines: Vec<&str> = screen.lines().collect();
            lines.len() == rows && lines[rows - 1].starts_with("? help") && lines[0].contains("top")
        });
        assert!(screen.contains(">ask"), "{screen}");
        assert!(screen.lines().all(|line| line.chars().count() <= columns), "{screen}");
    }
}

#[test]
fn colors_are_those_of_the_theme() {
    if !is_here("tmux") {
        return;
    }
    let store = swarm();
    for (variable, theme, color) in [
        ("A=1", "default", Some("\u{1b}[38;5;1m")),
        ("A=1", "colour-blind", Some("\u{1b}[38;5;208m")),
        ("A=1", "none", None),
        ("NO_COLOR=1", "default", None),
    ] {
        let tmux = Tmux::start_with(variable, &store.path(), &format!("--theme {theme}"));
        tmux.see(&[], &["NEEDS YOU 2", "failed", "? help"]);
        let cells = tmux.tmux(&["capture-pane", "-p", "-e"]);
        let is_colored = cells.contains("\u{1b}[38;");
        assert_eq!(is_colored, color.is_some(), "{variable} {theme}: {cells:?}");
        assert!(color.is_none_or(|color| cells.contains(color)), "{theme}: {cells:?}");
    }
}

#[test]
fn signals_and_a_closed_terminal_end_the_view() {
    if !is_here("tmux") {
        return;
    }
    let store = swarm();
    for signal in ["TERM", "INT", "HUP"] {
        let tmux = Tmux::start(&store.path(), "--mouse");
        tmux.see(&[], &["NEEDS YOU 2"]);
        let pid = child_of(&tmux);
        let kill = Command::new("kill").args(["-s", signal, &pid.to_string()]).status().unwrap();
        assert!(kill.success());
        let screen = tmux.see(&[], &[ENDED]);
        assert!(!screen.contains("NEEDS YOU"), "{screen}");
        let flags = tmux.tmux(&["display-message", "-p", "#{cursor_flag} #{mouse_any_flag}"]);
        assert_eq!(flags, "1 0\n", "{signal}");
    }
    let tmux = Tmux::start(&store.path(), "");
    tmux.see(&[], &["NEEDS YOU 2"]);
    let pid = child_of(&tmux);
    drop(tmux);
    wait_until("the program ends with its terminal", || {
        !fs::exists(format!("/proc/{pid}")).unwrap()
    });
}

/// Returns the process of the program.
fn child_of(tmux: &Tmux) -> u32 {
    let shell = tmux.tmux(&["display-message", "-p", "#{pane_pid}"]);
    let shell = shell.trim();
    let children = fs::read_to_string(format!("/proc/{shell}/task/{shell}/children")).unwrap();
    children.trim().parse().unwrap()
}

#[test]
fn draft_is_applied_after_a_question() {
    if !is_here("tmux") {
        return;
    }
    let place = Workspace::new();
    place.sh(&[], "echo three >>notes").assert_success();
    let tmux = Tmux::start(&place.at("store"), "");
    tmux.see(&[], &["NEEDS YOU 1", "draft", "a apply"]);
    tmux.see(&["a"], &["+three", "Apply 1 change to ", "[y/N]"]);
    tmux.see(&["n", "Enter"], &["nothing was applied", "Enter goes back"]);
    assert_eq!(place.read("workspace/notes"), "one\ntwo\n");
    tmux.see(&["Enter"], &["NEEDS YOU 1"]);
    tmux.send(&["a"]);
    // The first question is still on this screen.
    tmux.wait(|screen| screen.matches("[y/N]").count() == 2);
    tmux.see(&["y", "Enter"], &["applied 1 change", "Enter goes back"]);
    assert_eq!(place.read("workspace/notes"), "one\ntwo\nthree\n");
    tmux.see(&["Enter"], &["NEWLY ENDED 1"]);
    tmux.see(&["a"], &["a is off: the draft of w is applied, so nothing waits"]);
}

fn top(store: &TestStore, options: &[&str]) -> Command {
    let mut command = swarmletfs(["top", "-q"]);
    command.args(options).arg("--store").arg(store.path());
    command
}

#[test]
fn once_prints_a_screen_of_text() {
    let store = swarm();
    let printed = run(top(&store, &["--once"]));
    printed.assert_success();
    check_printable(&printed.out);
    let lines: Vec<&str> = printed.out.lines().collect();
    assert_eq!((lines.len(), lines[0].starts_with("swarmletfs top  5 workers")), (24, true));
    assert!(lines.iter().all(|line| line.chars().count() <= 80), "{}", printed.out);
    assert!(lines[2].contains("asks") && lines[2].contains("Which port"), "{}", printed.out);
    let filtered = run(top(&store, &["--once", "--text", "build"]));
    assert!(filtered.out.starts_with("swarmletfs top  1 worker "), "{}", filtered.out);
    let none = run(top(&store, &["--once", "--project", "none"]));
    assert!(none.assert_success().out.contains("no worker in this view yet"), "{}", none.out);
}

#[test]
fn json_has_the_groups_and_the_keys_of_the_index() {
    let store = swarm();
    let printed = run(top(&store, &["--json"]));
    printed.assert_success();
    check_printable(&printed.out);
    let found: Value = serde_json::from_str(&printed.out).unwrap();
    let ids = |group: &str| {
        let rows = found[group].as_array().unwrap().iter();
        let mut ids: Vec<&str> = rows.map(|row| row["id"].as_str().unwrap()).collect();
        ids.sort_unstable();
        ids
    };
    assert_eq!(ids("needs_you"), ["ask-1", "end-2"]);
    assert_eq!(ids("running"), ["run-1"]);
    assert_eq!(ids("ended"), ["bad-1", "end-1"]);
    let asks = found["needs_you"].as_array().unwrap().iter().find(|row| row["id"] == "ask-1");
    let asks = asks.unwrap();
    assert_eq!((&asks["state"], &asks["since"]), (&json!("asks"), &json!("2026-01-20T10:30:00Z")));
    let listed = run({
        let mut command = swarmletfs(["list", "-q", "--json", "--store"]);
        command.arg(store.path());
        command
    });
    let listed: Vec<Value> = serde_json::from_str(&listed.out).unwrap();
    let listed = listed.iter().find(|row| row["id"] == "ask-1").unwrap().as_object().unwrap();
    assert!(listed.iter().all(|(key, value)| asks[key] == *value), "{asks:#}");
}

#[test]
fn without_a_terminal_it_names_a_way() {
    let store = swarm();
    run(top(&store, &[])).assert_failure(1, &["no terminal", "--once"]);
    run(top(&store, &["--once", "--json"])).assert_failure(2, &["--json"]);
}
