//! Every reader interrupted at many points (R41): the answer is complete, or its first line says
//! that it is not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use serde_json::{Value, json};
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{File, Memory, Meta, Store};
use swarmletfs_tree::analysis::settings::Control;
use swarmletfs_tree::catalog::{Freshness, Source};
use swarmletfs_tree::query::grep::{GrepOptions, GrepQuery};
use swarmletfs_tree::query::search::{SearchMode, SearchOptions, SearchQuery};
use swarmletfs_tree::query::{FileAnswer, FileQuery};
use swarmletfs_tree::tree::{ROOT, Settings, Tree};
use swarmletfs_tree::view::{Filter, View};

use super::read;
use crate::support::intercept::{InterceptedStore, Interceptor};
use crate::support::scale;

/// Number of points at which each reader is interrupted.
const POINTS: usize = 20;

/// Paths that are read: files of the swarm, of a run and of a worker, and queries, with large and
/// small budgets.
const PATHS: [&str; 33] = [
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
    "search.both/disk full",
    "semantic/disk full",
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
        let metric = |success| {
            json!({"event": "tool_call", "tool": "sh", "success": success}).to_string() + "\n"
        };
        write(format!("w{worker}/metrics.jsonl"), [true, false, false, true].map(metric).concat());
        write(
            format!("w{worker}/outputs/report.md"),
            format!("# Report {worker}\n\nThe disk was full.\n"),
        );
    }
    // One output is larger than a single read.
    write(
        "w1/tool_calls/005_log.txt".into(),
        "copied a file to the disk\n".repeat(50_000) + "error: full\n",
    );
    store
}

/// Returns a tree whose renders stop after `steps` checks of the clock, and the counter of checks.
fn tree(store: &Arc<Memory>, steps: u64) -> (Tree, Arc<AtomicU64>) {
    let looks = Arc::new(AtomicU64::new(0));
    let counted = looks.clone();
    let control = Arc::new(Control::new(move || counted.fetch_add(1, Ordering::SeqCst) < steps));
    (controlled(store, control), looks)
}

fn controlled(store: &Arc<Memory>, control: Arc<Control>) -> Tree {
    let hour = Duration::from_secs(3_600);
    let freshness = Freshness { unfinished: hour, finished: hour };
    let view =
        View::new(vec![Source::from_store(store.clone(), None)], freshness, Filter::default())
            .unwrap();
    Tree::new(view, Settings::without_deadline(control))
}

/// Returns true if the first line of an answer says that it is incomplete.
fn says_incomplete(path: &str, bytes: &[u8]) -> bool {
    if path.ends_with(".json") {
        let value: Value = serde_json::from_slice(bytes).unwrap();
        let told =
            value["incomplete"].as_str().is_some_and(|text| text.starts_with("incomplete: "));
        return value["complete"] == json!(false) && told;
    }
    String::from_utf8_lossy(bytes).lines().next().is_some_and(|line| line.contains("incomplete"))
}

fn points(all: u64) -> impl Iterator<Item = u64> {
    let many = (scale(POINTS) as u64).min(all + 1);
    (0..many).map(move |at| at * all / many.max(1))
}

/// Promise: An answer that hits the deadline at any point is marked in its first line.
#[test]
fn answer_cut_off_at_any_point_is_marked() {
    let store = Arc::new(store());
    let (mut cut, mut runs) = (0, 0);
    for path in PATHS {
        let (whole, looks) = tree(&store, u64::MAX);
        let complete = read(&whole, path).unwrap();
        assert!(
            !says_incomplete(path, &complete),
            "{path}: {}",
            String::from_utf8_lossy(&complete)
        );
        for steps in points(looks.load(Ordering::SeqCst)) {
            let (tree, _) = tree(&store, steps);
            let answer = read(&tree, path).unwrap();
            let told = says_incomplete(path, &answer);
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
    assert!(cut > scale(100) as u32, "only {cut} of {runs} were cut off");
}

/// Returns the answers to a query that is cut off after some numbers of looks at the clock.
fn cut_off_answers<Q: FileQuery>(
    store: &Arc<Memory>,
    query: &Q,
) -> impl Iterator<Item = (u64, FileAnswer<Q::Found>)> {
    let (whole, looks) = tree(store, u64::MAX);
    whole.search(ROOT, query).unwrap().unwrap();
    points(looks.load(Ordering::SeqCst))
        .map(|steps| (steps, tree(store, steps).0.search(ROOT, query).unwrap().unwrap()))
}

/// Promise: An incomplete answer shows what was found before the deadline.
///
/// A match is shown if it fits the budget, however late it was found.
#[test]
fn incomplete_answer_shows_what_was_found() {
    let store = Arc::new(store());
    for mode in SearchMode::ALL {
        let options = SearchOptions { mode, ..SearchOptions::default() };
        let query = SearchQuery { options, words: "disk full".into(), under: None };
        for (steps, answer) in cut_off_answers(&store, &query) {
            assert!(
                answer.totals.matches == 0 || !answer.found.shown.is_empty(),
                "{steps}: {}",
                answer.page.text
            );
            assert_eq!(
                answer.page.missing.is_some(),
                says_incomplete("search", answer.page.text.as_bytes()),
                "{}",
                answer.page.text
            );
        }
    }
    let options = GrepOptions::default();
    let query = GrepQuery { options, regex: "disk".into(), under: None };
    for (steps, answer) in cut_off_answers(&store, &query) {
        assert!(
            answer.totals.matches == 0 || !answer.found.shown.is_empty(),
            "{steps}: {}",
            answer.page.text
        );
    }
}

/// Promise: Reading an incomplete answer again continues the work.
///
/// Reading again continues where the interrupted read stopped.
#[test]
fn reading_again_continues_an_incomplete_answer() {
    let store = Arc::new(store());
    let (whole, looks) = tree(&store, u64::MAX);
    let complete = read(&whole, "summary").unwrap();
    let half = looks.load(Ordering::SeqCst) / 2;
    let stopped = Arc::new(AtomicU64::new(0));
    let counted = stopped.clone();
    let control = Arc::new(Control::new(move || counted.fetch_add(1, Ordering::SeqCst) < half));
    let tree = controlled(&store, control.clone());
    assert!(says_incomplete("summary", &read(&tree, "summary").unwrap()));
    assert!(control.is_incomplete());
    // Earlier results are cached, so that half of the checks suffice at some time.
    let again = || {
        stopped.store(0, Ordering::SeqCst);
        read(&tree, "summary").unwrap()
    };
    assert!((0..10).any(|_| again() == complete), "{}", String::from_utf8(again()).unwrap());
}

/// Blocks every read of the outputs of `w1` until its gate is open.
#[derive(Clone)]
struct BlockedReads {
    gate: Arc<(Mutex<bool>, Condvar)>,
    /// The directory that was entered.
    folder: RelPath,
}

struct BlockedFile(Box<dyn File>, BlockedReads);

impl BlockedReads {
    fn wait(&self) {
        let mut is_open = self.gate.0.lock();
        while !*is_open {
            self.gate.1.wait(&mut is_open);
        }
    }
}

impl Interceptor for BlockedReads {
    fn open(&self, store: &dyn Store, path: &RelPath) -> Result<Box<dyn File>> {
        let file = store.open(path)?;
        let is_blocked = self.folder.join_path(path).as_bytes().starts_with(b"w1/tool_calls/");
        Ok(if is_blocked { Box::new(BlockedFile(file, self.clone())) } else { file })
    }

    fn enter(&self, path: &RelPath) -> Result<BlockedReads> {
        Ok(BlockedReads { folder: self.folder.join_path(path), ..self.clone() })
    }
}

impl File for BlockedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.1.wait();
        self.0.read_at(buffer, offset)
    }

    fn meta(&self) -> Result<Meta> {
        self.0.meta()
    }
}

/// Promise: The first line counts workers that were given up.
///
/// A worker whose outputs block is reported as missing, although there was time for all others.
#[test]
fn workers_given_up_are_counted_in_the_first_line() {
    let blocked = BlockedReads { gate: Arc::default(), folder: RelPath::root() };
    let through = InterceptedStore::new(blocked.clone(), Arc::new(store()));
    let hour = Duration::from_secs(3_600);
    let freshness = Freshness { unfinished: hour, finished: hour };
    let view =
        View::new(vec![Source::from_store(Arc::new(through), None)], freshness, Filter::default())
            .unwrap();
    let tree =
        Tree::new(view, Settings { deadline: Duration::from_secs(4), ..Settings::default() });
    // After the first timeout no reader waits for the worker again.
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
        match read(&tree, path) {
            Ok(answer) => assert!(
                says_incomplete(path, &answer),
                "{path}:\n{}",
                String::from_utf8_lossy(&answer)
            ),
            // A comparison needs both workers.
            Err(error) => assert_eq!((path, error), ("compare/w1..w2", Error::Abandoned)),
        }
    }
    assert!(!says_incomplete("summary", &read(&tree, "workers/w2/summary").unwrap()));
    *blocked.gate.0.lock() = true;
    blocked.gate.1.notify_all();
}
