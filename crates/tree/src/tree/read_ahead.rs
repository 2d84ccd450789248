//! Prepares the next requests of a reader while it goes through the workers in the order of their
//! names, forward as `grep -r` does, or backward as a shell does for `workers/*/summary`.
//!
//! A reader reads one file after the other, so rendering would use one processor. Once a reader has
//! reached several workers in a row, the next ones are prepared on other threads: their
//! fingerprints, and the generated files that the reader requested of the worker before. They wait
//! in the caches of fingerprints and versions.
//!
//! [`warm_up`] does work in advance that would delay the first report of a mount. The patterns that
//! judge outputs are compiled when they are first used, which takes longer than a
//! small report does. So the reports of a made-up worker are rendered once, while nobody waits.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;

use super::node::Node;
use super::{ROOT, Tree};
use crate::analysis::settings::Settings;
use crate::catalog::{Freshness, Source};
use crate::route::{Document, Report};
use crate::view::{Filter, View};
use swarmletfs_base::error::Result;
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::Memory;

/// Number of readers that are followed at a time.
const SCANS_MAX: usize = 8;
/// Number of workers that a reader must have reached in a row.
const STEPS_MIN: u32 = 3;

/// Requests for one worker: a bit for its directory, and one for each listed report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Requests(u8);

impl Requests {
    const DIRECTORY: Requests = Requests(1);

    /// Returns the request for which a lookup of `node` stands, with the worker. Returns `None` for
    /// any other node.
    fn of_node(node: &Node) -> Option<(&Name, Requests)> {
        match node {
            Node::Worker(worker) => Some((worker, Requests::DIRECTORY)),
            Node::Document(Document::Worker(worker, report)) => {
                let at = Report::LISTED.iter().position(|(_, listed)| listed == report)?;
                Some((worker, Requests(2 << at)))
            }
            _ => None,
        }
    }

    fn reports(self) -> impl Iterator<Item = Report> {
        let listed = Report::LISTED.into_iter().enumerate();
        listed.filter(move |(at, _)| self.0 & (2 << at) != 0).map(|(_, (_, report))| report)
    }
}

/// A reader that goes through the workers in order.
struct Scan {
    /// Number of the arrangement of the workers to which the positions belong.
    arrangement: u64,
    position: usize,
    /// Number of workers that it has reached in a row.
    steps: u32,
    /// Difference to the position of the next worker: 1, -1, or 0 if that is not known yet.
    direction: isize,
    /// Requests for this worker, and for the one before.
    requested: Requests,
    requested_before: Requests,
    /// Number of the following workers that are prepared or being prepared.
    ahead: usize,
    window: usize,
}

impl Scan {
    /// Returns true if a reader at `position` may be this one.
    fn reaches(&self, position: usize) -> bool {
        let next = |direction| self.position.checked_add_signed(direction) == Some(position);
        self.position == position
            || match self.direction {
                0 => next(1) || next(-1),
                direction => next(direction),
            }
    }

    fn next(&mut self) -> Option<Preparation> {
        if self.ahead >= self.window {
            return None;
        }
        self.ahead += 1;
        let position =
            self.position.checked_add_signed(self.direction * self.ahead.cast_signed())?;
        let (arrangement, requests) = (self.arrangement, self.requested_before);
        Some(Preparation { arrangement, position, requests })
    }
}

struct Preparation {
    arrangement: u64,
    position: usize,
    requests: Requests,
}

pub(super) struct ReadAhead {
    state: Mutex<State>,
    /// Maximum number of threads that prepare.
    threads: usize,
}

#[derive(Default)]
struct State {
    /// The latest first.
    scans: VecDeque<Scan>,
    running: usize,
}

impl Default for ReadAhead {
    fn default() -> ReadAhead {
        // The reader and the requests that it waits for take one processor.
        let threads = thread::available_parallelism().map_or(1, |cores| cores.get() - 1).max(1);
        ReadAhead { state: Mutex::default(), threads }
    }
}

impl ReadAhead {
    fn window(&self) -> usize {
        4 * (self.threads + 1)
    }

    fn note(&self, arrangement: u64, position: usize, request: Requests) {
        let mut state = self.state.lock();
        let found = state
            .scans
            .iter()
            .position(|scan| scan.arrangement == arrangement && scan.reaches(position));
        let scan = match found.and_then(|at| state.scans.remove(at)) {
            Some(scan) if scan.position == position => {
                Scan { requested: Requests(scan.requested.0 | request.0), ..scan }
            }
            Some(scan) => {
                let steps = scan.steps.saturating_add(1);
                Scan {
                    position,
                    steps,
                    direction: if position > scan.position { 1 } else { -1 },
                    requested: request,
                    requested_before: scan.requested,
                    ahead: scan.ahead.saturating_sub(1),
                    window: if steps < STEPS_MIN { 0 } else { self.window() },
                    ..scan
                }
            }
            None => {
                state.scans.truncate(SCANS_MAX - 1);
                Scan {
                    arrangement,
                    position,
                    steps: 1,
                    direction: 0,
                    requested: request,
                    requested_before: Requests::default(),
                    ahead: 0,
                    window: 0,
                }
            }
        };
        state.scans.push_front(scan);
    }

    /// Returns true if there may be a worker to prepare and another thread may do so. Then the
    /// caller must call [`ReadAhead::next`] until it returns `None`, and [`ReadAhead::release`].
    fn claim(&self) -> bool {
        let mut state = self.state.lock();
        let has_work = state.scans.iter().any(|scan| scan.ahead < scan.window);
        let may_run = has_work && state.running < self.threads;
        state.running += usize::from(may_run);
        may_run
    }

    fn release(&self) {
        self.state.lock().running -= 1;
    }

    fn next(&self) -> Option<Preparation> {
        self.state.lock().scans.iter_mut().find_map(Scan::next)
    }
}

impl Tree {
    /// Follows the readers by the lookup of `node`.
    pub(super) fn note_lookup(&self, node: &Node) {
        let Some((worker, request)) = Requests::of_node(node) else { return };
        let visible = self.namespace.view().visible();
        if let Some(position) = visible.rank(worker) {
            self.read_ahead.note(visible.arrangement, position, request);
        }
    }

    /// Returns true if a worker may have to be prepared for a reader, and another thread may do so.
    /// The caller must then call [`Tree::prepare_next`] on other threads until it returns false.
    pub fn claim_read_ahead(&self) -> bool {
        self.read_ahead.claim()
    }

    /// Prepares the next worker that a reader will reach. Returns false if there is none.
    pub fn prepare_next(&self) -> bool {
        let mut step = Step { read_ahead: &self.read_ahead, more: false };
        let Some(next) = self.read_ahead.next() else { return false };
        let visible = self.namespace.view().visible();
        // Errors are ignored: the reader's own request reports them.
        if visible.arrangement == next.arrangement
            && let Some(member) = visible.at_rank(next.position)
        {
            for report in next.requests.reports() {
                let document = Document::Worker(member.name.clone(), report);
                let _ = self.namespace.attr(&Node::Document(document));
            }
            // Last, since a report needs more of the files than their times.
            let _ = self.namespace.attr(&Node::Worker(member.name.clone()));
        }
        step.more = true;
        true
    }
}

/// One step of a thread that prepares workers. Dropping the last step, also in a panic, releases
/// the claim.
struct Step<'a> {
    read_ahead: &'a ReadAhead,
    more: bool,
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        if !self.more {
            self.read_ahead.release();
        }
    }
}

/// Files of the made-up worker: a success that claims too much, a failed call, and a call that
/// looks failed, with a line of each form.
const FILES: [(&str, &str); 4] = [
    ("metadata.json", r#"{"worker_id": "w", "task": "Run the tests", "status": "success"}"#),
    ("result.txt", "All tests pass. I fixed the error and wrote src/a.rs."),
    (
        "tool_calls/001_run_command.txt",
        r#"{"ok": false, "exit_code": 1, "stdout": "src/a.rs:3:1: error: no such field\n"}"#,
    ),
    (
        "tool_calls/002_run_command.txt",
        concat!(
            r#"{"ok": true, "exit_code": 0, "stdout": "running 2 tests\ntest a::b ... FAILED\n"#,
            r#"src/a.c:3:1: error: no x\nTraceback (most recent call last):\n"#,
            r#"  File \"a.py\", line 3, in f\nValueError: no\nbash: line 1: x: command not found\n"#,
            r#"The deploy failed: permission denied\n=== 1 failed, 3 passed in 0.1s ===\n"}"#,
        ),
    ),
];

/// Renders the reports of a made-up worker, and returns their bytes.
///
/// # Errors
///
/// None is expected, since the files are in memory.
pub fn warm_up() -> Result<Vec<Vec<u8>>> {
    let store = Memory::new();
    for (path, text) in FILES {
        store.write(&RelPath::parse(format!("workers/w/{path}"))?, text);
    }
    let sources = vec![Source::from_store(Arc::new(store), None)];
    let view = View::new(sources, Freshness::default(), Filter::default())?;
    let tree = Tree::new(view, Settings::default());
    let workers = tree.lookup(ROOT, b"workers")?.ino;
    let worker = tree.lookup(workers, b"w")?.ino;
    let report = |(name, _): (&str, Report)| {
        let opened = tree.open(tree.lookup(worker, name.as_bytes())?.ino)?;
        tree.read(opened.fh, 0, usize::MAX, <[u8]>::to_vec)
    };
    Report::LISTED.into_iter().map(report).collect()
}

#[cfg(test)]
mod tests {
    use super::super::ROOT;
    use super::*;
    use crate::analysis::settings::Settings;
    use crate::catalog::{Freshness, Source};
    use crate::view::{Filter, View};
    use std::sync::Arc;
    use swarmletfs_base::name::RelPath;
    use swarmletfs_base::store::Memory;

    const SUMMARY: Requests = Requests(8);

    fn read_ahead() -> ReadAhead {
        ReadAhead { threads: 1, ..ReadAhead::default() }
    }

    fn queued(read_ahead: &ReadAhead) -> Vec<(usize, u8)> {
        std::iter::from_fn(|| read_ahead.next())
            .map(|next| (next.position, next.requests.0))
            .collect()
    }

    #[test]
    fn each_kind_of_request_has_a_bit() {
        let name = Name::new("w").unwrap();
        let of = |report| {
            let document = Node::Document(Document::Worker(name.clone(), report));
            Requests::of_node(&document).map(|(_, requests)| requests)
        };
        let reports = Report::LISTED.map(|(_, report)| of(report).unwrap());
        assert_eq!(reports, [Requests(2), Requests(4), SUMMARY]);
        for requests in reports {
            let [report] = requests.reports().collect::<Vec<_>>().try_into().unwrap();
            assert_eq!(of(report), Some(requests));
        }
        assert_eq!(Requests::DIRECTORY.reports().count(), 0);
        assert_eq!(Requests::of_node(&Node::Root), None);
    }

    #[test]
    fn workers_are_prepared_once_a_reader_goes_through_them_in_order() {
        let read_ahead = read_ahead();
        for position in [5, 6] {
            read_ahead.note(1, position, Requests::DIRECTORY);
            read_ahead.note(1, position, SUMMARY);
        }
        assert_eq!((queued(&read_ahead), read_ahead.claim()), (vec![], false));
        read_ahead.note(1, 7, Requests::DIRECTORY);
        assert_eq!((read_ahead.claim(), read_ahead.claim()), (true, false), "one thread");
        let window: Vec<(usize, u8)> = (8..16).map(|position| (position, 9)).collect();
        assert_eq!(queued(&read_ahead), window);
        read_ahead.note(1, 8, Requests::DIRECTORY);
        // Of worker 7 it requested only the directory.
        assert_eq!(queued(&read_ahead), [(16, 1)]);
    }

    /// Promise: Reports of the workers that a reader will reach next are rendered ahead of it.
    #[test]
    fn reports_are_ready_when_a_reader_reaches_a_worker() {
        let store = Arc::new(Memory::new());
        for number in 0..40 {
            let path = format!("workers/w{number:02}/metadata.json");
            store.write(&RelPath::parse(path).unwrap(), r#"{"status": "success"}"#);
        }
        let sources = vec![Source::from_store(store, None)];
        let view = View::new(sources, Freshness::default(), Filter::default()).unwrap();
        let tree = Tree::new(view, Settings::default());
        let name = |number: usize| Name::new(format!("w{number:02}")).unwrap();
        let is_ready =
            |number, report| tree.namespace.has_version(&Document::Worker(name(number), report));
        let workers = tree.lookup_for_reader(ROOT, b"workers").unwrap().ino;
        for number in 10..12 {
            let worker = tree.lookup_for_reader(workers, name(number).as_bytes()).unwrap().ino;
            assert!(!tree.claim_read_ahead(), "before worker {number}");
            tree.lookup_for_reader(worker, b"summary").unwrap();
        }
        tree.lookup_for_reader(workers, name(12).as_bytes()).unwrap();
        assert!(tree.claim_read_ahead());
        while tree.prepare_next() {}
        let ready: Vec<usize> = (12..40).filter(|at| is_ready(*at, Report::Summary)).collect();
        let window = tree.read_ahead.window();
        assert_eq!(ready, (13..40).take(window).collect::<Vec<_>>());
        assert!(tree.namespace.view().has_fresh_fingerprint(&name(13)));
        assert!((0..40).all(|number| !is_ready(number, Report::Evidence(None))));
    }

    #[test]
    fn other_readers_and_other_orders_prepare_nothing() {
        let read_ahead = read_ahead();
        for position in [1, 9, 3, 7, 2, 8, 20, 30, 40, 50, 60, 70, 80] {
            read_ahead.note(1, position, SUMMARY);
        }
        (1..9).for_each(|arrangement| {
            read_ahead.note(arrangement, 90 + arrangement as usize, SUMMARY)
        });
        assert_eq!(queued(&read_ahead), []);
        assert_eq!(read_ahead.state.lock().scans.len(), SCANS_MAX);
    }

    #[test]
    fn a_reader_may_go_backward() {
        let read_ahead = read_ahead();
        for position in [12, 11, 10, 9] {
            read_ahead.note(1, position, SUMMARY);
        }
        let positions = |read_ahead| -> Vec<usize> {
            queued(read_ahead).into_iter().map(|(position, _)| position).collect()
        };
        assert_eq!(positions(&read_ahead), [8, 7, 6, 5, 4, 3, 2, 1]);
        read_ahead.note(1, 8, SUMMARY);
        assert_eq!(positions(&read_ahead), [0]);
        for position in (0..8).rev() {
            read_ahead.note(1, position, SUMMARY);
            assert_eq!(positions(&read_ahead), [0; 0], "no worker is left");
        }
    }

    #[test]
    fn readers_that_take_turns_are_told_apart() {
        let read_ahead = read_ahead();
        for step in 0..3 {
            read_ahead.note(1, step, SUMMARY);
            read_ahead.note(1, 500 + step, Requests::DIRECTORY);
        }
        let positions: Vec<usize> = queued(&read_ahead).into_iter().map(|(at, _)| at).collect();
        // The latest reader first.
        assert_eq!(positions, (503..511).chain(3..11).collect::<Vec<_>>());
    }

    #[test]
    fn the_reports_of_the_made_up_worker_judge_each_call() {
        let reports = warm_up().unwrap();
        let [evidence, index, summary] = reports.try_into().unwrap();
        let [evidence, index, summary] =
            [evidence, index, summary].map(|bytes| String::from_utf8(bytes).unwrap());
        assert!(evidence.contains("[FAILED]") && evidence.contains("[SUSPECT]"), "{evidence}");
        assert!(index.contains("\"suspect\""), "{index}");
        assert!(summary.contains("src/a.rs"), "{summary}");
    }
}
