//! What changed since a cursor: the answers, who may see what of them, and that no change is lost between two.

mod answers;
mod coarse;
mod doors;
mod race;
mod views;

use std::sync::Arc;
use std::time::Duration;

use swarmletfs::catalog::{Freshness, Source};
use swarmletfs::name::RelPath;
use swarmletfs::store::Store;
use swarmletfs::tree::{Settings, Tree};
use swarmletfs::view::{Filter, View};

use super::support::see;

/// The whole answer is never larger.
const BYTES: usize = 16_000;

fn path(text: &str) -> RelPath {
    RelPath::parse(text).unwrap()
}

/// The tree of everything in `store`, always fresh.
fn tree(store: Arc<dyn Store>) -> Tree {
    let fresh = Freshness { unfinished: Duration::ZERO, finished: Duration::ZERO };
    let view = View::over(vec![Source::from_store(store, None)], fresh, Filter::default()).unwrap();
    Tree::new(view, Settings::default())
}

/// An answer, and the cursor it ends with.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Answer {
    text: String,
    next: String,
}

impl Answer {
    fn of(text: &str) -> Answer {
        let (text, next) = text.trim_end_matches('\n').rsplit_once('\n').unwrap_or(("", text.trim_end()));
        Answer { text: text.to_owned(), next: next.to_owned() }
    }

    /// The line of a worker, without what it begins with for every worker.
    fn line(&self, worker: &str) -> Option<&str> {
        self.text.lines().find(|line| line.split_whitespace().nth(2) == Some(&format!("{worker}:")))
    }

    /// What a worker is said to be: new, changed or finished, and its status.
    fn says(&self, worker: &str) -> Option<[&str; 2]> {
        let mut words = self.line(worker)?.split_whitespace();
        Some([words.next()?, words.next()?])
    }

    /// The workers that are told, in order.
    fn workers(&self) -> Vec<String> {
        let line = |line: &str| {
            let mut words = line.split_whitespace();
            let known = words.next().is_some_and(|word| ["new", "changed", "finished"].contains(&word));
            words.nth(1).filter(|_| known).map(|name| name.trim_end_matches(':').to_owned())
        };
        self.text.lines().filter_map(line).collect()
    }

    fn is_quiet(&self) -> bool {
        self.text.contains(": nothing changed, of ") && self.text.lines().count() == 1
    }
}

/// What `tree` answers to a cursor.
#[track_caller]
fn since(tree: &Tree, cursor: &str) -> Answer {
    let seen = see(tree, format!("since/{cursor}")).unwrap_or_else(|error| panic!("since/{cursor}: {error}"));
    assert!(seen.bytes().len() <= BYTES, "{} bytes", seen.bytes().len());
    Answer::of(seen.text())
}
