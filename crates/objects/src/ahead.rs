//! Guesses which objects are opened next, so that they are read before.
//!
//! A request to an object store takes long, and readers of a swarm open thousands of small objects
//! in turn. Two orders are recognized: the same name in one directory after another, such as the
//! metadata of all workers, and one object after another in the order of keys. The first opens of
//! an order guess nothing. Then the number of objects that are read ahead doubles while the guesses
//! are right, so a single open costs a single request.

use parking_lot::Mutex;
use swarmletfs_base::name::{Name, RelPath};

use crate::key_tree::KeyTree;

/// Opens in one order that are necessary for a guess.
const OPENS_MIN: usize = 2;
const WINDOW_MIN: usize = 4;
const WINDOW_MAX: usize = 128;
/// Distance between two opens in the order of keys. Several threads do not keep the order.
const STEP_MAX: usize = 8;

#[derive(Default)]
pub(crate) struct Ahead(Mutex<OpenOrders>);

#[derive(Default)]
struct OpenOrders {
    /// The directory of directories and the name that is opened in each.
    name: Option<(RelPath, Name)>,
    by_name: OpenOrder,
    by_key: OpenOrder,
}

#[derive(Default)]
struct OpenOrder {
    opens: usize,
    /// Greatest position of an open.
    last: usize,
    /// Position up to which was guessed.
    end: usize,
    /// Number of guesses of which no open is known.
    left: usize,
    window: usize,
}

impl OpenOrder {
    /// Starts a new order at an open.
    fn restart(&mut self, position: usize) {
        *self = OpenOrder { opens: 1, last: position, end: position + 1, ..OpenOrder::default() };
    }

    /// Adds an open at `position`. Returns the position after the last guess and the number of
    /// guesses to make, or `None` if enough were made.
    fn advance(&mut self, position: usize) -> Option<(usize, usize)> {
        self.opens += 1;
        self.last = self.last.max(position);
        self.left = if position < self.end { self.left.saturating_sub(1) } else { 0 };
        self.end = self.end.max(position + 1);
        if self.opens <= OPENS_MIN || self.left > self.window / 2 {
            return None;
        }
        self.window = (self.window * 2).clamp(WINDOW_MIN, WINDOW_MAX);
        self.left += self.window;
        Some((self.end, self.window))
    }

    fn is_near(&self, position: usize) -> bool {
        position + STEP_MAX >= self.last && position <= self.end + STEP_MAX
    }
}

impl Ahead {
    /// Adds the open of the object at `path`. Returns the positions of the objects to read ahead.
    pub(crate) fn next(&self, tree: &KeyTree, path: &RelPath) -> Vec<usize> {
        let position = tree.position(path.as_bytes());
        let mut orders = self.0.lock();
        let name = path.file_name().map(|name| (path.parent().parent(), name));
        if name.is_some() && orders.name == name {
            let Some((end, count)) = orders.by_name.advance(position) else { return Vec::new() };
            let found = tree.namesakes(path, end, count);
            orders.by_name.end = found.last().map_or(end, |last| last + 1);
            return found;
        }
        orders.name = name;
        orders.by_name.restart(position);
        if !orders.by_key.is_near(position) {
            orders.by_key.restart(position);
            return Vec::new();
        }
        let Some((end, count)) = orders.by_key.advance(position) else { return Vec::new() };
        orders.by_key.end = end + count;
        (end..end + count).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key_tree::ListedObject;
    use swarmletfs_base::store::Time;

    const WORKERS: usize = 300;

    /// Returns a swarm of workers with three objects each.
    fn swarm() -> KeyTree {
        let names = ["final_output.md", "metadata.json", "prompt.md"];
        let keys = (0..WORKERS).flat_map(|at| names.map(|name| format!("workers/{at:03}/{name}")));
        let objects = keys.map(|key| ListedObject {
            path: key.into(),
            size: 1,
            modified: Time::default(),
            etag: None,
            parts: Box::default(),
        });
        KeyTree::new(objects.collect(), 0)
    }

    /// Opens `paths` in turn. Returns the paths that were guessed, and the number of opens that
    /// were not.
    fn open(tree: &KeyTree, paths: &[String]) -> (Vec<String>, usize) {
        let (ahead, mut guessed, mut missed) = (Ahead::default(), Vec::new(), 0);
        for path in paths {
            missed += usize::from(!guessed.contains(path));
            let next = ahead.next(tree, &RelPath::parse(path).unwrap());
            guessed.extend(next.iter().filter_map(|at| Some(tree.at(*at)?.path.to_string())));
        }
        (guessed, missed)
    }

    #[test]
    fn the_metadata_of_workers_in_turn_is_guessed() {
        let paths: Vec<_> =
            (0..WORKERS).map(|at| format!("workers/{at:03}/metadata.json")).collect();
        let (guessed, missed) = open(&swarm(), &paths);
        assert_eq!(missed, OPENS_MIN + 1);
        assert!(guessed.iter().all(|path| path.ends_with("metadata.json")));
        let distinct: std::collections::BTreeSet<_> = guessed.iter().collect();
        assert_eq!(distinct.len(), guessed.len());
    }

    #[test]
    fn objects_in_the_order_of_keys_are_guessed() {
        let tree = swarm();
        let paths: Vec<_> =
            (0..3 * WORKERS).map(|at| tree.at(at).unwrap().path.to_string()).collect();
        let (_, missed) = open(&tree, &paths);
        assert_eq!(missed, OPENS_MIN + 1);
    }

    #[test]
    fn a_single_worker_costs_few_guesses() {
        let paths = ["metadata.json", "prompt.md"].map(|name| format!("workers/050/{name}"));
        assert_eq!(open(&swarm(), &paths), (Vec::new(), 2));
    }
}
