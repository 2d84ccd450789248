//! Every reader cut off at many moments (R41): what it answers is complete, or its first line says that it is not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use serde_json::{Value, json};
use swarmletfs::catalog::{Freshness, Source};
use swarmletfs::error::{Error, Result};
use swarmletfs::name::RelPath;
use swarmletfs::render::{Control, grep, search};
use swarmletfs::store::{File, Memory, Meta, Store};
use swarmletfs::tree::{ROOT, Settings, Tree};
use swarmletfs::view::{Filter, View};

use super::look;
use crate::support::dose;
use crate::support::through::{Between, Through};

/// At how many moments each reader is cut off.
const MOMENTS: usize = 20;

/// What is read: pages of the swarm, of a run and of a worker, and answers, with large budgets and small ones.
const PATHS: [&str; 31] = [
    "summary",
    "index.json",
    "evidence.txt",
    "evidence.600.txt",
    "evidence.150.txt",
    "evidence.400tok.txt",
    "runs/7/summary",
    "runs/7/index.json",
    "runs/7/evidence.txt",
    "workers/w1/summary",
    "workers/w1/index.json",
    "workers/w1/evidence.txt",
    "workers/w1/evidence.600.txt",
    "workers/w1/evidence.150.txt",
    "workers/w1/evidence.400tok.txt",
    "workers/w1/summary@disk full",
    "grep/disk|full",
    "grep.300/disk|full",
    "grep.64/disk|full",
    "workers/w1/grep/full",
    "search/disk full",
    "search.300/disk full",
    "search.64/disk full",
    "search/\"the disk\"",
    "runs/7/search/disk full",
    "workers/w1/search/disk full",
    "compare/w1..w2",
    "compare.400/w1..w2",
    "compare.200/w1..w2..w3",
    "compare@disk/w1..w2",
    "by/run/7/search/disk full",
];

fn store() -> Memory {
    let store = Memory::new();
    let write = |path: String, bytes: String| store.write(&RelPath::parse(path).unwrap(), bytes);
    for worker in 1..=6 {
        let status = ["failed", "completed", "running"][worker % 3];
        let metadata = json!({"worker_id": format!("w{worker}"), "status": status, "run_id": 7, "task": "copy it"});
        write(format!("w{worker}/metadata.json"), metadata.to_string());
        for call in 1..=4 {
            let mut text = format!("step {call} of {worker}\nthe disk holds {}\n", call * worker);
            text.push_str(&"copied a file\n".repeat(60 * call));
            text.push_str("error: the disk of the host is full\n");
            write(format!("w{worker}/tool_calls/{call:03}_sh.txt"), text);
        }
        let metric = |success| json!({"event": "tool_call", "tool": "sh", "success": success}).to_string() + "\n";
        write(format!("w{worker}/metrics.jsonl"), [true, false, false, true].map(metric).concat());
        write(format!("w{worker}/outputs/report.md"), format!("# Report {worker}\n\nThe disk was full.\n"));
    }
    // One output is larger than what is taken into memory at once.
    write("w1/tool_calls/005_log.txt".into(), "copied a file to the disk\n".repeat(50_000) + "error: full\n");
    store
}

/// The tree whose renders stop after `steps` looks at the clock, and how many looks there were.
fn tree(store: &Arc<Memory>, steps: u64) -> (Tree, Arc<AtomicU64>) {
    let looks = Arc::new(AtomicU64::new(0));
    let counted = looks.clone();
    let control = Arc::new(Control::new(move || counted.fetch_add(1, Ordering::SeqCst) < steps));
    (controlled(store, control), looks)
}

fn controlled(store: &Arc<Memory>, control: Arc<Control>) -> Tree {
    let hour = Duration::from_secs(3_600);
    let freshness = Freshness { unfinished: hour, finished: hour };
    let view = View::over(vec![Source::from_store(store.clone(), None)], freshness, Filter::default()).unwrap();
    Tree::new(view, Settings::unhurried(control))
}

/// Returns true if an answer says at its top that it is incomplete.
fn says_so(path: &str, bytes: &[u8]) -> bool {
    if path.ends_with(".json") {
        let value: Value = serde_json::from_slice(bytes).unwrap();
        let told = value["incomplete"].as_str().is_some_and(|text| text.starts_with("incomplete: "));
        return value["complete"] == json!(false) && told;
    }
    String::from_utf8_lossy(bytes).lines().next().is_some_and(|line| line.contains("incomplete"))
}

fn moments(all: u64) -> impl Iterator<Item = u64> {
    let many = (dose(MOMENTS) as u64).min(all + 1);
    (0..many).map(move |at| at * all / many.max(1))
}

#[test]
fn an_answer_that_is_cut_off_at_any_moment_says_so_in_its_first_line() {
    let store = Arc::new(store());
    let (mut cut, mut runs) = (0, 0);
    for path in PATHS {
        let (whole, looks) = tree(&store, u64::MAX);
        let complete = look(&whole, path).unwrap();
        assert!(!says_so(path, &complete), "{path}: {}", String::from_utf8_lossy(&complete));
        for steps in moments(looks.load(Ordering::SeqCst)) {
            let (tree, _) = tree(&store, steps);
            let answer = look(&tree, path).unwrap();
            let told = says_so(path, &answer);
            assert!(
                told || answer == complete,
                "{path} cut off after {steps} looks:\n{}\n--- complete ---\n{}",
                String::from_utf8_lossy(&answer),
                String::from_utf8_lossy(&complete)
            );
            cut += u32::from(told);
            runs += 1;
        }
    }
    eprintln!("{runs} answers, {cut} of them incomplete");
    assert!(cut > 100, "only {cut} of {runs} were cut off");
}

/// What is found is shown as far as there is room, however late it was found.
#[test]
fn what_was_found_in_time_is_shown() {
    let store = Arc::new(store());
    let query = search::Query { options: search::Options::default(), words: "disk full".into(), under: None };
    let (whole, looks) = tree(&store, u64::MAX);
    whole.search(ROOT, &query).unwrap().unwrap();
    for steps in moments(looks.load(Ordering::SeqCst)) {
        let answer = tree(&store, steps).0.search(ROOT, &query).unwrap().unwrap();
        assert!(answer.passages == 0 || !answer.shown.is_empty(), "{steps}: {}", answer.text);
        assert_eq!(answer.missing.is_some(), says_so("search", answer.text.as_bytes()), "{}", answer.text);
    }
    let options = grep::Options::default();
    let query = grep::Query { options, regex: "disk".into(), under: None };
    let (whole, looks) = tree(&store, u64::MAX);
    whole.grep(ROOT, &query).unwrap().unwrap();
    for steps in moments(looks.load(Ordering::SeqCst)) {
        let answer = tree(&store, steps).0.grep(ROOT, &query).unwrap().unwrap();
        assert!(answer.lines == 0 || !answer.shown.is_empty(), "{steps}: {}", answer.text);
    }
}

/// A swarm that was read in part is read to its end by reading it again.
#[test]
fn reading_an_incomplete_answer_again_continues() {
    let store = Arc::new(store());
    let (whole, looks) = tree(&store, u64::MAX);
    let complete = look(&whole, "summary").unwrap();
    let half = looks.load(Ordering::SeqCst) / 2;
    let stopped = Arc::new(AtomicU64::new(0));
    let counted = stopped.clone();
    let control = Arc::new(Control::new(move || counted.fetch_add(1, Ordering::SeqCst) < half));
    let tree = controlled(&store, control.clone());
    assert!(says_so("summary", &look(&tree, "summary").unwrap()));
    assert!(control.is_incomplete());
    // What was read before is not read again, so that half of the looks are enough at some time.
    let again = || {
        stopped.store(0, Ordering::SeqCst);
        look(&tree, "summary").unwrap()
    };
    assert!((0..10).any(|_| again() == complete), "{}", String::from_utf8(again()).unwrap());
}

/// Holds every read of a worker's outputs until its gate is open.
#[derive(Clone)]
struct Held {
    gate: Arc<(Mutex<bool>, Condvar)>,
    is_inside: bool,
}

struct HeldFile(Box<dyn File>, Held);

impl Held {
    fn wait(&self) {
        let mut is_open = self.gate.0.lock();
        while !*is_open {
            self.gate.1.wait(&mut is_open);
        }
    }
}

impl Between for Held {
    fn open(&self, store: &dyn Store, path: &RelPath) -> Result<Box<dyn File>> {
        let file = store.open(path)?;
        let is_held = self.is_inside && path.as_bytes().starts_with(b"tool_calls/");
        Ok(if is_held { Box::new(HeldFile(file, self.clone())) } else { file })
    }

    fn enter(&self, path: &RelPath) -> Result<Held> {
        Ok(Held { is_inside: path.as_bytes() == b"w1", ..self.clone() })
    }
}

impl File for HeldFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.1.wait();
        self.0.read_at(buffer, offset)
    }

    fn meta(&self) -> Result<Meta> {
        self.0.meta()
    }
}

/// A worker whose outputs cannot be read to their end is told as missing, though there was time for all others.
#[test]
fn what_was_given_up_is_missing_in_the_first_line() {
    let held = Held { gate: Arc::default(), is_inside: false };
    let through = Through::new(held.clone(), Arc::new(store()));
    let hour = Duration::from_secs(3_600);
    let freshness = Freshness { unfinished: hour, finished: hour };
    let view = View::over(vec![Source::from_store(Arc::new(through), None)], freshness, Filter::default()).unwrap();
    let tree = Tree::new(view, Settings { deadline: Duration::from_secs(4), ..Settings::default() });
    // Once it was given up nobody waits for it again.
    for path in [
        "workers/w1/summary",
        "workers/w1/index.json",
        "workers/w1/evidence.txt",
        "workers/w1/evidence.150.txt",
        "summary",
        "index.json",
        "evidence.txt",
        "runs/7/summary",
        "search/disk full",
        "search.64/disk full",
        "compare/w1..w2",
    ] {
        match look(&tree, path) {
            Ok(answer) => assert!(says_so(path, &answer), "{path}:\n{}", String::from_utf8_lossy(&answer)),
            // Where nothing can be shown without it, the answer is an error.
            Err(error) => assert_eq!((path, error), ("compare/w1..w2", Error::GivenUp)),
        }
    }
    assert!(!says_so("summary", &look(&tree, "workers/w2/summary").unwrap()));
    *held.gate.0.lock() = true;
    held.gate.1.notify_all();
}
