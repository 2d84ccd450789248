//! `apply` and `undo` with a failure and with a crash at each of their system calls.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;

use crate::cli::program::{CommandOutput, program, run};
use crate::support::draft::{Node, Workbench, file, folder};
use crate::support::tool::is_here;
use crate::support::{is_exhaustive, is_full, sample};

/// System calls that change something. A crash at another one is like one at the next of these.
const CHANGING: [&str; 11] = [
    "write",
    "renameat",
    "renameat2",
    "unlinkat",
    "mkdirat",
    "symlinkat",
    "fchmod",
    "fchown",
    "fchownat",
    "fsync",
    "openat2",
];
/// System calls that can fail because a disk is full.
const ALLOCATING: [&str; 6] = ["write", "renameat", "renameat2", "mkdirat", "symlinkat", "fsync"];
/// System calls whose failure leaves no trace in a program: it ignores them.
const HARMLESS: [&str; 3] = ["close", "fcntl", "lseek"];
/// One in so many failures of a call that only reads is injected.
const SAMPLE: usize = 6;

/// A system call of a command.
struct SystemCall {
    name: String,
    /// Number among the calls of this name, from 1.
    number: usize,
    text: String,
}

/// Returns a workspace and a changed one, with a change of each kind.
fn trees() -> (Node, Node) {
    let old = folder([
        ("changed", file("old\n")),
        ("gone", folder([("x", file("x\n"))])),
        ("link", Node::Link("changed".into())),
        ("mode", file("script\n")),
        ("shared", file("shared\n")),
        ("tree", folder([("y", file("y\n"))])),
    ]);
    let new = folder([
        ("added", folder([("z", file("z\n"))])),
        ("changed", file("new\n")),
        ("link", Node::Link("mode".into())),
        ("mode", Node::File { mode: 0o755, bytes: b"script\n".into() }),
        ("shared", Node::File { mode: 0o600, bytes: b"shared\n".into() }),
        ("tree", file("now a file\n")),
    ]);
    (old, new)
}

/// Returns a worker whose changes are about to be applied, or taken back.
fn prepare(command: &str) -> Workbench {
    let (old, new) = trees();
    let mut bench = Workbench::new(&old);
    bench.worker("w1", &old, &new);
    // Its permissions change under one name only.
    fs::hard_link(bench.at("shared"), bench.path().join("other")).unwrap();
    if command == "undo" {
        bench.run(&["apply", "w1", "--yes"]).assert_success();
    }
    // So that root has to give away what it makes.
    if rustix::process::geteuid().is_root() {
        bench.give_away(false);
    }
    bench
}

fn trace_of(bench: &Workbench) -> PathBuf {
    bench.path().join("trace")
}

/// Runs a command by a tracer with these options.
fn traced(bench: &Workbench, command: &str, options: &[&str]) -> CommandOutput {
    let of = bench.command(&[command, "w1", "--yes"]);
    let mut tracer = program("strace", ["-f", "-y", "-s", "40", "-o"]);
    tracer.arg(trace_of(bench)).args(options).arg("--").arg(of.get_program()).args(of.get_args());
    tracer.env_remove("SWARMLET_WORKER");
    run(tracer)
}

/// Returns the system calls of a command on the store and the workspace.
fn system_calls(command: &str) -> Vec<SystemCall> {
    let bench = prepare(command);
    traced(&bench, command, &[]).assert_success();
    let line = Regex::new(r"^(\d+) +(\w+)\(").unwrap();
    let (mut numbers, mut calls) = (BTreeMap::new(), Vec::new());
    let trace = fs::read(trace_of(&bench)).unwrap();
    for text in String::from_utf8_lossy(&trace).lines() {
        let Some(found) = line.captures(text) else { continue };
        let name = found[2].to_owned();
        let number = numbers.entry((found[1].to_owned(), name.clone())).or_insert(0);
        *number += 1;
        if name != "execve" && text.contains(bench.path().to_str().unwrap()) {
            calls.push(SystemCall { name, number: *number, text: text.into() });
        }
    }
    calls
}

/// Returns the faults to inject at `calls`, as strace has them.
fn plan(calls: &[SystemCall]) -> Vec<(&SystemCall, &'static str)> {
    let mut plan = Vec::new();
    for (at, call) in calls.iter().enumerate() {
        let name = call.name.as_str();
        let is_changing =
            CHANGING.contains(&name) && (name != "openat2" || call.text.contains("O_CREAT"));
        if is_changing {
            plan.push((call, "signal=KILL"));
        }
        if !HARMLESS.contains(&name) && (is_changing || at % SAMPLE == 0 || is_exhaustive()) {
            plan.push((call, "error=EIO"));
        }
        if is_changing && (ALLOCATING.contains(&name) || name == "openat2") {
            plan.push((call, "error=ENOSPC"));
        }
    }
    sample(plan).collect()
}

/// Injects faults into all system calls of `command`.
fn interrupt_everywhere(command: &str, before: &Node, after: &Node) {
    if !is_here("strace") {
        return;
    }
    let calls = system_calls(command);
    let (mut failures, mut kills, mut missed) = (0, 0, 0);
    for (call, fault) in plan(&calls) {
        let at = format!("{command}, {fault} at {}", call.text);
        let bench = prepare(command);
        let trace = format!("trace={}", call.name);
        let inject = format!("inject={}:{fault}:when={}", call.name, call.number);
        let done = traced(&bench, command, &["-e", &trace, "-e", &inject]);
        let is_kill = fault == "signal=KILL";
        let is_injected = if is_kill {
            done.code.is_none()
        } else {
            fs::read_to_string(trace_of(&bench)).unwrap().contains("(INJECTED)")
        };
        match (is_injected, is_kill) {
            (false, _) => missed += 1,
            (true, false) => failures += 1,
            (true, true) => kills += 1,
        }
        let now = bench.tree();
        if done.code == Some(0) {
            assert_eq!(&now, after, "acknowledged and not done: {at}: {done:#?}");
        } else if !is_kill && !done.err.contains("the next command") {
            done.assert_failure(1, &["cannot "]);
            assert!(now == *before || now == *after, "{at}: {done:#?}: {now:#?}");
        }
        // Whichever command comes next completes it or takes it back, and says so if it shows more.
        let journal = bench.draft("w1").join("journal.json");
        let is_interrupted = journal.exists();
        if call.number % 2 == 0 {
            bench.run(&["apply", "w1", "--dry-run"]).assert_success();
        } else {
            let shown = bench.run(&["changes", "w1", "--stat"]);
            assert_eq!(shown.assert_success().err.contains("interrupted"), is_interrupted, "{at}");
        }
        let now = bench.tree();
        assert!(now == *before || now == *after, "neither old nor new: {at}: {now:#?}");
        assert!(!journal.exists(), "{at}");
        assert_no_temporaries(&bench.store, &at);
        for command in ["apply", "undo"] {
            let next = bench.run(&[command, "w1", "--yes", "--no-sync"]);
            assert_eq!(next.code, Some(0), "{at}: {command}: {next:#?}");
        }
        assert_eq!(bench.tree(), trees().0, "{at}");
    }
    eprintln!(
        "{command}: {failures} failures and {kills} kills at {} system calls, {missed} missed",
        calls.len()
    );
    assert!(failures >= 40 && kills >= 40 || !is_full(), "{failures}, {kills}");
    assert!(missed * 20 <= failures + kills || !is_full(), "{missed} calls were not met");
}

/// Asserts that nothing is left but temporary files of the store, which `doctor --repair` removes.
fn assert_no_temporaries(store: &Path, at: &str) {
    let applied = store.join("workers/w1/applied");
    for number in fs::read_dir(applied).into_iter().flatten() {
        let record = number.unwrap().path().join("applied.json");
        assert!(record.exists(), "an application without a record: {at}");
    }
}

/// Promise: A crash or an error at any system call of `apply` and `undo` leaves the old or the new
/// workspace, at the latest after the next command.
#[test]
fn apply_survives_a_failure_at_every_system_call() {
    let (old, new) = trees();
    interrupt_everywhere("apply", &old, &new);
}

/// Promise: A crash or an error at any system call of `apply` and `undo` leaves the old or the new
/// workspace, at the latest after the next command.
#[test]
fn undo_survives_a_failure_at_every_system_call() {
    let (old, new) = trees();
    interrupt_everywhere("undo", &new, &old);
}

/// Promise: A journal moves and removes only what a command of this program would.
#[test]
fn root_completes_no_journal_of_a_user_in_a_workspace_of_others() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    for is_own in [false, true] {
        let mut bench = Workbench::with_worker(trees());
        let temporary = ".swarmletfs-tmp-1";
        fs::write(bench.at(temporary), "of someone\n").unwrap();
        let journal = serde_json::json!({
            "version": 1, "operation": "apply", "number": 1, "phase": "cleaning",
            "temporaries": [temporary], "moves": [],
        });
        fs::write(bench.draft("w1").join("journal.json"), journal.to_string()).unwrap();
        bench.give_away(false);
        if !is_own {
            std::os::unix::fs::chown(&bench.workspace, Some(0), Some(0)).unwrap();
        }
        let shown = bench.run(&["changes", "w1", "--stat"]);
        let refusal = "its draft belongs to the user with the id 65534";
        assert_eq!(shown.assert_success().err.contains(refusal), !is_own, "{shown:#?}");
        assert_eq!(bench.at(temporary).exists(), !is_own);
        if !is_own {
            bench.run(&["discard", "w1", "--yes"]).assert_failure(1, &[refusal]);
            assert!(bench.at(temporary).exists());
        }
    }
}
