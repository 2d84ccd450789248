//! Random changes: applied, they give the worker's view exactly; taken back, the old workspace.

use std::collections::BTreeMap;

use fastrand::Rng;

use crate::support::draft::{Node, Workbench};
use crate::support::seeds;

/// Names of entries. Few of them, so that changes meet.
const NAMES: [&str; 5] = ["a", "b", "c d", "ä", "z.rs"];
const FILE_MODES: [u32; 4] = [0o644, 0o755, 0o600, 0o444];
const FOLDER_MODES: [u32; 3] = [0o755, 0o700, 0o555];

fn pick<T: Copy>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.usize(..of.len())]
}

fn random_file(rng: &mut Rng) -> Node {
    let bytes = match rng.u8(..4) {
        0 => Vec::new(),
        1 => (0..rng.usize(..300)).map(|_| rng.u8(..)).collect(),
        _ => format!("line {}\n", rng.u8(..4)).repeat(rng.usize(1..4)).into_bytes(),
    };
    Node::File { mode: pick(rng, &FILE_MODES), bytes }
}

fn random_node(rng: &mut Rng, depth: usize) -> Node {
    match rng.u8(..10) {
        0 => Node::Link(pick(rng, &["a", "../b", "/etc/hostname", "nowhere"]).to_owned()),
        1..=4 if depth > 0 => random_folder(rng, depth - 1),
        _ => random_file(rng),
    }
}

fn random_folder(rng: &mut Rng, depth: usize) -> Node {
    let mut entries = BTreeMap::new();
    for name in NAMES {
        if rng.u8(..3) > 0 {
            entries.insert(name.to_owned(), random_node(rng, depth));
        }
    }
    Node::Folder { mode: pick(rng, &FOLDER_MODES), entries }
}

/// Returns a changed copy of `node`.
fn changed(rng: &mut Rng, node: &Node, depth: usize) -> Node {
    match node {
        Node::Folder { mode, entries } if rng.u8(..8) > 0 => {
            let mut new = BTreeMap::new();
            for name in NAMES {
                match entries.get(name) {
                    Some(_) if rng.u8(..6) == 0 => {}
                    Some(node) if rng.bool() => drop(new.insert(name.into(), node.clone())),
                    Some(node) => {
                        let depth = depth.saturating_sub(1);
                        new.insert(name.into(), changed(rng, node, depth));
                    }
                    None if rng.u8(..4) == 0 => {
                        new.insert(name.into(), random_node(rng, depth.saturating_sub(1)));
                    }
                    None => {}
                }
            }
            let mode = if rng.u8(..5) == 0 { pick(rng, &FOLDER_MODES) } else { *mode };
            Node::Folder { mode, entries: new }
        }
        Node::File { bytes, .. } if rng.u8(..4) == 0 => {
            Node::File { mode: pick(rng, &FILE_MODES), bytes: bytes.clone() }
        }
        _ => random_node(rng, depth),
    }
}

/// Returns a workspace and a changed one.
fn random_trees(seed: u64) -> (Node, Node) {
    let mut rng = Rng::with_seed(seed);
    let root = |node: Node| match node {
        // The worker cannot change the workspace itself.
        Node::Folder { entries, .. } => Node::Folder { mode: 0o755, entries },
        other => panic!("{other:?}"),
    };
    let old = root(random_folder(&mut rng, 3));
    let new = loop {
        if let new @ Node::Folder { .. } = changed(&mut rng, &old, 3) {
            break root(new);
        }
    };
    (old, new)
}

fn check(seed: u64, prepare: impl Fn(&mut Workbench)) {
    let (old, new) = random_trees(seed);
    let mut bench = Workbench::new(&old);
    bench.worker("w1", &old, &new);
    prepare(&mut bench);
    for round in 0..2 {
        let applied = bench.run(&["apply", "w1", "--yes", "--no-sync"]);
        assert_eq!(applied.code, Some(0), "seed {seed}, round {round}: {applied:#?}");
        assert_eq!(bench.tree(), new, "seed {seed}, round {round}");
        if old != new {
            let again = bench.run(&["apply", "w1"]);
            assert!(again.assert_success().err.contains("nothing to apply"), "{again:#?}");
        }
        let undone = bench.run(&["undo", "w1", "--yes", "--no-sync"]);
        assert_eq!(undone.code, Some(0), "seed {seed}, round {round}: {undone:#?}");
        assert_eq!(bench.tree(), old, "seed {seed}, round {round}");
    }
    let again = bench.run(&["undo", "w1", "--yes"]);
    assert!(again.assert_success().err.contains("nothing to undo"), "{again:#?}");
}

/// Promise: Applying the changes of a worker gives its view of the workspace, and undoing them the
/// old workspace, byte for byte and with permissions.
#[test]
fn random_changes_are_applied_and_taken_back_exactly() {
    seeds(170).for_each(|seed| check(seed, |_| {}));
}

#[test]
fn random_changes_are_applied_and_taken_back_by_an_ordinary_user() {
    if crate::cli::program::is_root() {
        seeds(30).for_each(|seed| check(!seed, |bench| bench.give_away(true)));
    }
}
