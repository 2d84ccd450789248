//! Comparison of the tree with a reference model after every change (R16).
//!
//! A case applies random operations from a small alphabet ([`ops`]) to a store. After each turn,
//! the whole view and the view of one owner are compared with a model ([`model`], [`view`]). The
//! model is computed from the store alone and shares no code with the program. It does not
//! determine every byte of a generated file, so a new tree over the same store must also give the
//! same bytes.
//!
//! `SWARMLETFS_SCALE` changes the number and length of cases, `SWARMLETFS_SEED` the cases. A
//! failing case is printed as code, to be added to tests/regression.rs as a named test.

mod compare;
mod harness;
mod kernel;
mod model;
mod mutable_store;
mod observer;
pub mod ops;
mod view;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use crate::support::{is_exhaustive, is_full, scale, seed};
use harness::Harness;
use ops::{MINE, Op};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use swarmletfs_base::store::Memory;
use swarmletfs_tree::catalog::{Freshness, Source};
use swarmletfs_tree::tree::{Settings, Tree};
use swarmletfs_tree::view::{Filter, View};

/// Operations between two comparisons.
pub type Turn = Vec<Op>;

/// Number of cases, the maximum number of turns of each, and the seed of all.
#[derive(Debug, Clone, Copy)]
struct CaseCount {
    cases: u32,
    turns: usize,
    seed: u64,
}

impl CaseCount {
    /// Scales the number and length of cases.
    fn scaled(cases: usize, turns: usize) -> CaseCount {
        CaseCount {
            cases: scale(cases) as u32,
            turns: match (is_exhaustive(), is_full()) {
                (true, _) => turns * 6,
                (false, true) => turns,
                (false, false) => turns / 3,
            },
            seed: seed(),
        }
    }

    /// Runs random cases. Shrinks the first failing case and prints it as code.
    fn run(self, stream: u64, case: fn(&[Turn]) -> Result<(), String>) {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&self.seed.to_le_bytes());
        bytes[8..16].copy_from_slice(&stream.to_le_bytes());
        let config = Config {
            cases: self.cases,
            max_shrink_iters: 20_000,
            // Failing cases become tests of regression.rs. A file of them would be run by the next
            // test, whatever its seed.
            failure_persistence: None,
            ..Config::default()
        };
        let mut runner =
            TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
        let turns = proptest::collection::vec(ops::turn(), 1..=self.turns);
        let failed = runner.run(&turns, |turns| case(&turns).map_err(TestCaseError::fail));
        match failed {
            Ok(()) => {}
            Err(TestError::Fail(why, turns)) => {
                let (why, turns) = shrink(why.message().to_owned(), turns, case);
                panic!("{why}\nthe smallest case:\n{}", code(&turns));
            }
            Err(TestError::Abort(why)) => panic!("{why}"),
        }
    }
}

/// Removes turns and operations while the case still fails. proptest makes only one pass.
fn shrink(
    mut why: String,
    mut turns: Vec<Turn>,
    case: fn(&[Turn]) -> Result<(), String>,
) -> (String, Vec<Turn>) {
    let without = |turns: &[Turn], turn: usize, op: Option<usize>| {
        let mut fewer = turns.to_vec();
        match op {
            Some(op) => drop(fewer[turn].remove(op)),
            None => drop(fewer.remove(turn)),
        }
        fewer
    };
    loop {
        let ops = turns
            .iter()
            .enumerate()
            .flat_map(|(at, turn)| (0..turn.len()).map(move |op| (at, Some(op))));
        let all: Vec<(usize, Option<usize>)> =
            (0..turns.len()).map(|at| (at, None)).chain(ops).collect();
        let smaller = all.into_iter().map(|(turn, op)| without(&turns, turn, op));
        match smaller.filter_map(|fewer| Some((case(&fewer).err()?, fewer))).next() {
            Some(found) => (why, turns) = found,
            None => return (why, turns),
        }
    }
}

/// Formats a case as the arguments of [`replay`].
fn code(turns: &[Turn]) -> String {
    turns.iter().map(|turn| format!("    &{turn:?},\n")).collect()
}

/// Opens a tree without caching.
fn tree(source: Source, owner: Option<&str>) -> Tree {
    let fresh = Freshness { unfinished: Duration::ZERO, finished: Duration::ZERO };
    let filter = Filter { owner: owner.map(str::to_owned), run: None };
    Tree::new(View::new(vec![source], fresh, filter).unwrap(), Settings::default())
}

/// Runs one case over a store in memory.
fn in_memory(turns: &[Turn]) -> Result<(), String> {
    let store = Arc::new(Memory::new());
    let open =
        || [None, Some(MINE)].map(|owner| tree(Source::from_store(store.clone(), None), owner));
    let trees = open();
    let mut harness = Harness::new(&*store, [&trees[0], &trees[1]]);
    for (at, turn) in turns.iter().enumerate() {
        let in_turn = |what: String| format!("after turn {at}, {turn:?}: {what}");
        harness.turn(at, turn);
        harness.check().map_err(in_turn)?;
        if at % 8 == 7 || at + 1 == turns.len() {
            let fresh = open();
            harness.check_against([&fresh[0], &fresh[1]]).map_err(in_turn)?;
        }
        let held = trees.iter().map(|tree| tree.open_counts().1).sum::<usize>();
        if held != harness.open_count() {
            return Err(in_turn(format!(
                "{held} handles are open in the tree, and {} in the test",
                harness.open_count()
            )));
        }
    }
    harness.close_all();
    match trees.iter().map(Tree::open_counts).find(|held| *held != (0, 0)) {
        Some((inodes, handles)) => Err(format!("{inodes} inodes and {handles} handles leaked")),
        None => Ok(()),
    }
}

/// Runs a recorded case.
pub fn replay(turns: &[&[Op]]) {
    let turns: Vec<Turn> = turns.iter().map(|turn| turn.to_vec()).collect();
    in_memory(&turns).unwrap_or_else(|why| panic!("{why}"));
}

/// Promise: After every change, the tree shows what the reference model predicts.
#[test]
fn tree_matches_the_reference_model_after_every_change() {
    CaseCount::scaled(128, 30).run(1, in_memory);
}

/// As many other cases, so that two processors share them.
#[test]
fn tree_matches_the_reference_model_in_other_cases() {
    CaseCount::scaled(128, 30).run(3, in_memory);
}
