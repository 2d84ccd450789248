//! `since`: the answers to cursors, their visibility, and that no change is lost between two
//! cursors.

mod answers;
mod coarse;
mod interfaces;
mod race;
mod views;

use std::sync::Arc;
use std::time::Duration;

use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::Store;
use swarmletfs_tree::catalog::{Freshness, Source};
use swarmletfs_tree::tree::{Settings, Tree};
use swarmletfs_tree::view::{Filter, View};

use super::support::see;

/// Largest answer, in bytes.
const BYTES: usize = 16_000;

fn path(text: &str) -> RelPath {
    RelPath::parse(text).unwrap()
}

/// Returns the tree of all workers in `store`, without caching of fingerprints.
fn tree(store: Arc<dyn Store>) -> Tree {
    let fresh = Freshness { unfinished: Duration::ZERO, finished: Duration::ZERO };
    let view = View::new(vec![Source::from_store(store, None)], fresh, Filter::default()).unwrap();
    Tree::new(view, Settings::default())
}

/// An answer without its last line, and that line: the next cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Answer {
    text: String,
    next: String,
}

impl Answer {
    fn parse(text: &str) -> Answer {
        let (text, next) =
            text.trim_end_matches('\n').rsplit_once('\n').unwrap_or(("", text.trim_end()));
        Answer { text: text.to_owned(), next: next.to_owned() }
    }

    /// Returns the line of a worker.
    fn line(&self, worker: &str) -> Option<&str> {
        self.text.lines().find(|line| line.split_whitespace().nth(2) == Some(&format!("{worker}:")))
    }

    /// Returns the change of a worker (new, changed or finished) and its status.
    fn change_and_status(&self, worker: &str) -> Option<[&str; 2]> {
        let mut words = self.line(worker)?.split_whitespace();
        Some([words.next()?, words.next()?])
    }

    /// Returns the listed workers, in order.
    fn workers(&self) -> Vec<String> {
        let line = |line: &str| {
            let mut words = line.split_whitespace();
            let known =
                words.next().is_some_and(|word| ["new", "changed", "finished"].contains(&word));
            words.nth(1).filter(|_| known).map(|name| name.trim_end_matches(':').to_owned())
        };
        self.text.lines().filter_map(line).collect()
    }

    fn has_no_changes(&self) -> bool {
        self.text.contains(": nothing changed in ") && self.text.lines().count() == 1
    }
}

/// Returns the answer of `tree` to a cursor.
#[track_caller]
fn since(tree: &Tree, cursor: &str) -> Answer {
    let seen = see(tree, format!("since/{cursor}"))
        .unwrap_or_else(|error| panic!("since/{cursor}: {error}"));
    assert!(seen.bytes().len() <= BYTES, "{} bytes", seen.bytes().len());
    Answer::parse(seen.text())
}
