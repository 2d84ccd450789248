//! Every command that records, with a failure and with a crash at each of its system calls.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

use super::store::{
    TEMPORARY, assert_readable, assert_whole, assert_writable, ended_calls, in_store, input,
    make_store, metadata, outputs, read_tree, record, worker, worker_lines,
};
use crate::cli::program::{CommandOutput, program, run, swarmletfs};
use crate::support::mount::PROGRAM;
use crate::support::tool::is_here;
use crate::support::{is_exhaustive, is_full, sample};

/// A file system in memory. The system calls are those of any other.
const MEMORY: &str = "/dev/shm";
/// Content that needs more than one block of a file system.
static LONG: LazyLock<String> = LazyLock::new(|| "a line of the new content\n".repeat(400));
/// System calls that change nothing in the store: a crash is like that at the next change. They do
/// not fail: an injected failure of `close` would leave the file open, as no system does.
const HARMLESS: [&str; 2] = ["close", "fcntl"];
/// A kill is injected at one in so many system calls outside of the store.
const SAMPLE: usize = 8;
/// System calls that can fail because a disk is full.
const ALLOCATING: [&str; 8] =
    ["mkdir", "mkdirat", "write", "pwrite64", "fsync", "renameat", "renameat2", "ftruncate"];
/// Calls outside of the store that can fail.
const FALLIBLE_ELSEWHERE: [&str; 3] = ["read", "write", "readlink"];

/// A change of a store, and what it leaves.
struct Change {
    arguments: &'static [&'static str],
    stdin: &'static str,
    /// Returns true if all of the change is in the store.
    is_done: fn(&Path) -> bool,
    /// Returns true if nothing of the change is seen by a reader.
    is_absent: fn(&Path) -> bool,
    /// Text of the refusal to repeat the change, if it can be refused.
    refusal: Option<&'static str>,
    /// Minimum number of failures and of kills.
    least: usize,
}

/// A system call of a command.
#[derive(Debug, Clone)]
struct SystemCall {
    name: String,
    /// Number among the calls of this name, from 1.
    number: usize,
    /// Text of the call in the trace.
    text: String,
    is_in_store: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Injection {
    Failure(&'static str),
    Kill,
}

/// A store before the change, and copies of it.
struct Sandbox {
    dir: tempfile::TempDir,
    has_store: bool,
}

impl Sandbox {
    fn new(has_store: bool) -> Sandbox {
        let parent = Path::new(MEMORY);
        let dir = if parent.is_dir() {
            tempfile::tempdir_in(parent).unwrap()
        } else {
            tempfile::tempdir().unwrap()
        };
        let sandbox = Sandbox { dir, has_store };
        if has_store {
            let store = sandbox.dir.path().join("original");
            make_store(&store);
            fs::write(store.join("workers/index.json"), "{\"workers\": []}").unwrap();
            let call = ["worker", "record", "w1", "--tool", "sh", "--exit", "0"];
            record(&store, &call, "an output\n").assert_success();
            let message = "{\"role\": \"user\", \"content\": \"first\"}\n";
            record(&store, &["worker", "message", "w1"], message).assert_success();
            record(&store, &["worker", "put", "w1", "outputs/old.md"], "old\n").assert_success();
        }
        sandbox
    }

    /// Returns the path of a new copy.
    fn copy(&self) -> PathBuf {
        let copy = self.dir.path().join("store");
        let _ = fs::remove_dir_all(&copy);
        if self.has_store {
            fs::create_dir(&copy).unwrap();
            for (path, bytes) in read_tree(&self.dir.path().join("original")) {
                match bytes {
                    Some(bytes) => fs::write(copy.join(&path), bytes).unwrap(),
                    None => fs::create_dir(copy.join(&path)).unwrap(),
                }
                give_away(&copy.join(&path));
            }
            give_away(&copy);
        }
        copy
    }

    fn trace(&self) -> PathBuf {
        self.dir.path().join("trace")
    }

    /// Returns the command of `change`, run by a tracer with these options.
    fn traced(&self, change: &Change, store: &Path, options: &[&str]) -> Command {
        let mut command = program("strace", ["-f", "-y", "-s", "40", "-o"]);
        command.arg(self.trace()).args(options).arg("--").arg(PROGRAM).args(change.arguments);
        command.stdin(input(change.stdin));
        self.with_store(command, change, store)
    }

    fn with_store(&self, mut command: Command, change: &Change, store: &Path) -> Command {
        if change.arguments == ["init"] {
            command.arg(store);
            return command;
        }
        if let Some(context) = change.arguments.iter().position(|word| *word == "--context") {
            let file = change.arguments[context + 1].split_once('=').unwrap().1;
            fs::write(self.dir.path().join(file), &*LONG).unwrap();
            command.current_dir(self.dir.path());
        }
        in_store(command, store)
    }

    /// Runs the command of `change` without a tracer.
    fn repeat(&self, change: &Change, store: &Path) -> CommandOutput {
        let mut command = swarmletfs(change.arguments);
        command.stdin(input(change.stdin));
        run(self.with_store(command, change, store))
    }

    /// Returns the system calls of `change` from the first one on the store.
    fn system_calls(&self, change: &Change) -> Vec<SystemCall> {
        let store = self.copy();
        let traced = run(self.traced(change, &store, &[]));
        traced.assert_success();
        assert!((change.is_done)(&store), "not done without a failure: {:?}", change.arguments);
        let line = Regex::new(r"^(\d+) +(\w+)\(").unwrap();
        let mut numbers = BTreeMap::new();
        let mut calls = Vec::new();
        let trace = fs::read(self.trace()).unwrap();
        for text in String::from_utf8_lossy(&trace).lines() {
            let Some(found) = line.captures(text) else { continue };
            let name = found[2].to_owned();
            let number = numbers.entry((found[1].to_owned(), name.clone())).or_insert(0);
            *number += 1;
            let is_in_store = name != "execve" && text.contains(store.to_str().unwrap());
            if is_in_store || !calls.is_empty() {
                calls.push(SystemCall { name, number: *number, text: text.into(), is_in_store });
            }
        }
        calls
    }
}

/// Gives a file to another user, so that root has to give to that user what it creates there.
fn give_away(path: &Path) {
    if rustix::process::geteuid().is_root() {
        chown(path, Some(65_534), Some(65_534)).unwrap();
    }
}

/// Returns the failures and kills to inject at `calls`.
fn plan(calls: &[SystemCall]) -> Vec<(SystemCall, Injection)> {
    let mut plan = Vec::new();
    for (at, call) in calls.iter().enumerate() {
        let name = call.name.as_str();
        if call.is_in_store || at % SAMPLE == 0 || is_exhaustive() {
            plan.push((call.clone(), Injection::Kill));
        }
        // The standard library panics without the 16 random bytes that it asks for itself.
        let is_random_name = name == "getrandom" && call.text.ends_with("= 8");
        let can_fail = if call.is_in_store {
            !HARMLESS.contains(&name)
        } else {
            FALLIBLE_ELSEWHERE.contains(&name) || is_random_name
        };
        if can_fail {
            plan.push((call.clone(), Injection::Failure("EIO")));
        }
        if call.is_in_store && (ALLOCATING.contains(&name) || call.text.contains("O_CREAT")) {
            plan.push((call.clone(), Injection::Failure("ENOSPC")));
        }
    }
    sample(plan).collect()
}

/// Returns the state of a store without times and random names. Equal states differ for no reader.
fn state(store: &Path) -> BTreeMap<String, String> {
    static VARIABLE: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"[0-9]+").unwrap());
    static RANDOM: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"-[0-9a-f]{16}").unwrap());
    let describe = |(path, bytes): (String, Option<Vec<u8>>)| {
        let is_log = path.starts_with("audit/");
        let text = match bytes {
            None => "a directory".to_owned(),
            // Entries of the log repeat the text of an error.
            Some(bytes) if is_log => bytes.split(|byte| *byte == b'\n').count().to_string(),
            Some(bytes) => VARIABLE.replace_all(&String::from_utf8_lossy(&bytes), "0").into_owned(),
        };
        (RANDOM.replace_all(&path, "").into_owned(), text)
    };
    read_tree(store).into_iter().map(describe).collect()
}

/// Injects all failures and kills into the system calls of `change`.
fn inject_everywhere(change: &Change) {
    if !is_here("strace") {
        return;
    }
    let sandbox = Sandbox::new(change.arguments != ["init"]);
    let calls = sandbox.system_calls(change);
    let (mut failures, mut kills, mut missed) = (0, 0, 0);
    let mut states = BTreeSet::new();
    for (call, injection) in plan(&calls) {
        let at = format!("{:?}, {injection:?} at {}", change.arguments, call.text);
        let store = sandbox.copy();
        let fault = match injection {
            Injection::Failure(errno) => format!("error={errno}"),
            Injection::Kill => "signal=KILL".to_owned(),
        };
        let trace = format!("trace={}", call.name);
        let inject = format!("inject={}:{fault}:when={}", call.name, call.number);
        let done = run(sandbox.traced(change, &store, &["-e", &trace, "-e", &inject]));
        let is_injected = match injection {
            Injection::Kill => done.code.is_none(),
            Injection::Failure(_) => {
                fs::read_to_string(sandbox.trace()).unwrap().contains("(INJECTED)")
            }
        };
        match injection {
            _ if !is_injected => missed += 1,
            Injection::Failure(_) => failures += 1,
            Injection::Kill => kills += 1,
        }
        let is_done = (change.is_done)(&store);
        assert!(done.code != Some(0) || is_done, "acknowledged and not done: {at}: {done:#?}");
        assert!(is_done || (change.is_absent)(&store), "neither old nor new: {at}: {done:#?}");
        if matches!(injection, Injection::Failure(_)) && done.code != Some(0) {
            // Without stdout, only the exit code tells.
            if !call.text.contains(" write(1<") {
                done.assert_failure(1, &["cannot "]);
            }
            let left: Vec<String> =
                read_tree(&store).into_keys().filter(|path| path.contains(TEMPORARY)).collect();
            assert!(left.is_empty() || call.name == "unlinkat", "{at} leaves {left:?}");
        }
        // Each state that can be left behind is examined once; a longer run examines all.
        if states.insert((is_done, state(&store))) || is_exhaustive() {
            examine(&sandbox, change, &store, is_done, &at);
        }
    }
    let states = states.len();
    eprintln!(
        "{}: {failures} failures and {kills} kills injected at {} system calls; {states} states",
        change.arguments.join(" "),
        calls.len()
    );
    let are_enough = failures >= change.least && kills >= change.least;
    assert!(are_enough || !is_full(), "{failures}, {kills}");
    assert!(missed * 20 <= failures + kills || !is_full(), "{missed} calls were not met");
}

/// Reads and continues a store after a failure or a crash.
fn examine(sandbox: &Sandbox, change: &Change, store: &Path, was_done: bool, at: &str) {
    if change.arguments != ["init"] {
        assert_whole(store);
        assert_readable(store);
    }
    let repeated = sandbox.repeat(change, store);
    if repeated.code != Some(0) {
        let refusal = change.refusal.filter(|_| was_done);
        let refusal = refusal.unwrap_or_else(|| panic!("not repeated: {at}: {repeated:#?}"));
        repeated.assert_failure(1, &[refusal]);
    }
    assert!((change.is_done)(store), "not done at the second attempt: {at}");
    assert_writable(store);
    assert_whole(store);
    assert_readable(store);
}

fn status(store: &Path, id: &str) -> Option<String> {
    let is_there = worker(store, id).exists();
    is_there.then(|| metadata(store, id)["status"].as_str().unwrap().to_owned())
}

fn has_messages(store: &Path, wanted: &[&str]) -> bool {
    let lines = worker_lines(store, "w1", "thread.jsonl");
    // A repeated message follows the first one.
    let contents: Vec<&str> = lines.iter().map(|line| line["content"].as_str().unwrap()).collect();
    contents.first() == Some(&"first") && contents[1..].chunks(2).all(|chunk| chunk == wanted)
}

fn read(store: &Path, path: &str) -> Option<String> {
    fs::read_to_string(worker(store, "w1").join(path)).ok()
}

/// Promise: A crash at any system call leaves the old or the new state.
#[test]
fn init_survives_a_failure_at_every_system_call() {
    inject_everywhere(&Change {
        arguments: &["init"],
        stdin: "",
        is_done: |store| store.join("workers").is_dir() && store.join("audit").is_dir(),
        is_absent: |store| read_tree(store).into_keys().all(|path| path == "workers"),
        refusal: None,
        least: 12,
    });
}

/// Promise: A crash at any system call leaves the old or the new state.
#[test]
fn create_survives_a_failure_at_every_system_call() {
    inject_everywhere(&Change {
        arguments: &["worker", "create", "--id", "new", "--context", "spec.md=context.md"],
        stdin: "",
        is_done: |store| {
            let context = worker(store, "new").join("context/spec.md");
            status(store, "new").as_deref() == Some("running")
                && fs::read_to_string(context).unwrap() == *LONG
                && worker(store, "new").join("tool_calls").is_dir()
                && worker_lines(store, "new", "metrics.jsonl").is_empty()
        },
        is_absent: |store| status(store, "new").is_none(),
        refusal: Some("the id is taken"),
        least: 40,
    });
}

/// Promise: A crash at any system call leaves the old or the new state.
#[test]
fn record_survives_a_failure_at_every_system_call() {
    inject_everywhere(&Change {
        arguments: &["worker", "record", "w1", "--tool", "df", "--input", "{}", "--exit", "3"],
        stdin: "40G\n",
        is_done: |store| {
            let outputs = outputs(store, "w1");
            let ended = ended_calls(store, "w1");
            let mut calls = ended.iter().filter(|(_, call)| call["tool"] == "df");
            calls.any(|(seq, call)| call["exit_code"] == 3 && outputs[seq].1 == b"40G\n")
        },
        is_absent: |store| {
            let is_prefix = |output: &[u8]| b"40G\n".starts_with(output);
            // A call whose output could not be recorded wholly has an end that says so.
            let is_other = |seq: &u64, call: &Value| *seq == 1 || call["truncated"] == true;
            ended_calls(store, "w1").iter().all(|(seq, call)| is_other(seq, call))
                && outputs(store, "w1").range(2..).all(|(_, (_, output))| is_prefix(output))
        },
        refusal: None,
        least: 40,
    });
}

/// Promise: A crash at any system call leaves the old or the new state.
#[test]
fn message_survives_a_failure_at_every_system_call() {
    inject_everywhere(&Change {
        arguments: &["worker", "message", "w1"],
        stdin: concat!(
            "{\"role\": \"assistant\", \"content\": \"second\"}\n",
            "{\"role\": \"user\", \"content\": \"third\"}\n",
        ),
        is_done: |store| {
            has_messages(store, &["second", "third"])
                && worker_lines(store, "w1", "thread.jsonl").len() > 1
        },
        is_absent: |store| worker_lines(store, "w1", "thread.jsonl").len() == 1,
        refusal: None,
        least: 40,
    });
}

/// Promise: A command that fails leaves nothing under a temporary name.
#[test]
fn put_of_a_new_file_survives_a_failure_at_every_system_call() {
    inject_everywhere(&Change {
        arguments: &["worker", "put", "w1", "outputs/charts/new.md"],
        stdin: "new\n",
        is_done: |store| read(store, "outputs/charts/new.md").as_deref() == Some("new\n"),
        is_absent: |store| read(store, "outputs/charts/new.md").is_none(),
        refusal: None,
        least: 40,
    });
}

/// Promise: A crash at any system call leaves the old or the new state.
#[test]
fn put_of_an_existing_file_survives_a_failure_at_every_system_call() {
    inject_everywhere(&Change {
        arguments: &["worker", "put", "w1", "outputs/old.md"],
        stdin: "new\n",
        is_done: |store| read(store, "outputs/old.md").as_deref() == Some("new\n"),
        is_absent: |store| read(store, "outputs/old.md").as_deref() == Some("old\n"),
        refusal: None,
        least: 40,
    });
}

/// Promise: A crash at any system call leaves the old or the new state.
#[test]
fn finish_survives_a_failure_at_every_system_call() {
    inject_everywhere(&Change {
        arguments: &["worker", "finish", "w1", "--result", "-"],
        stdin: "All backups are fine.\n",
        is_done: |store| {
            status(store, "w1").as_deref() == Some("completed")
                && read(store, "result.txt").as_deref() == Some("All backups are fine.\n")
        },
        is_absent: |store| {
            status(store, "w1").as_deref() == Some("running")
                && read(store, "result.txt").is_none_or(|text| text == "All backups are fine.\n")
        },
        refusal: Some("it has finished"),
        least: 40,
    });
}

/// A name is given to content that is on disk, and the name is on disk before the command ends.
#[test]
fn content_reaches_the_disk_before_its_name() {
    if !is_here("strace") {
        return;
    }
    let sandbox = Sandbox::new(true);
    let rename =
        Regex::new(r#"renameat2?\(\d+<([^>]*)>, "([^"]+)", \d+<([^>]*)>, "([^"]+)""#).unwrap();
    let write = Regex::new(r"write\(\d+<([^>]*\.jsonl)>").unwrap();
    let put: &[&str] = &["worker", "put", "w1", "outputs/charts/new.md"];
    let message: &[&str] = &["worker", "message", "w1"];
    let finish: &[&str] = &["worker", "finish", "w1", "--result", "-"];
    let create: &[&str] = &["worker", "create", "--id", "new", "--context", "a.md=context.md"];
    // Files are renamed twice by `finish`, and so is the index.
    for (arguments, renames) in [(put, 1), (message, 0), (finish, 3), (create, 4)] {
        let stdin = "{\"role\": \"user\", \"content\": \"second\"}";
        let change = Change {
            arguments,
            stdin,
            is_done: |_| true,
            is_absent: |_| false,
            refusal: None,
            least: 0,
        };
        let calls = sandbox.system_calls(&change);
        let syncs = |calls: &[SystemCall], path: &str| {
            calls.iter().any(|call| call.name == "fsync" && call.text.contains(path))
        };
        let mut found = 0;
        for (at, call) in calls.iter().enumerate() {
            let (before, after) = calls.split_at(at);
            if let Some(renamed) = rename.captures(&call.text) {
                let from = format!("<{}/{}>", &renamed[1], &renamed[2]);
                let is_file = renamed[2].contains("-tmp-");
                assert!(!is_file || syncs(before, &from), "not on disk: {}", call.text);
                let folder = format!("<{}>", &renamed[3]);
                assert!(syncs(after, &folder), "the name is not on disk: {}", call.text);
                found += 1;
            }
            // The log of changes does not wait for the disk.
            if let Some(written) = write.captures(&call.text)
                && !written[1].contains("/audit/")
            {
                assert!(syncs(after, &format!("<{}>", &written[1])), "{}", call.text);
            }
        }
        assert_eq!(found, renames, "{arguments:?}");
    }
}
