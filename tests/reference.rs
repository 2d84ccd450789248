//! R16: what is mounted is what must be, after every change (a reference model).
//!
//! Random operations on a store out of a small alphabet ([`ops`]); after each turn everything that can be seen, in the
//! view of everything and in one owner's, is held against a model ([`model`], [`view`]) that is worked out anew from
//! what lies in the store and shares no code with the product. What the model leaves open in a generated file is
//! covered by another comparison: a tree made just now over the same store gives the same bytes.
//!
//! `SWARMLETFS_DOSE` makes more cases and longer ones, `SWARMLETFS_SEED` others. A case that fails is printed as code:
//! it belongs into tests/regression.rs, as a test with a name.

mod by;
mod compare;
mod eyes;
mod ground;
mod held;
mod kernel;
mod model;
pub mod ops;
mod view;
mod worker;
mod world;

use std::sync::Arc;
use std::time::Duration;

use proptest::test_runner::{
    Config, FileFailurePersistence, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner,
};
use swarmletfs::catalog::{Freshness, Source};
use swarmletfs::store::Memory;
use swarmletfs::tree::{Settings, Tree};
use swarmletfs::view::{Filter, View};

use crate::support::dose;
use crate::support::dose::times;
use ops::{MINE, Op};
use world::World;

/// Operations between two looks.
pub type Turn = Vec<Op>;

/// How many cases, and of how many turns each.
#[derive(Debug, Clone, Copy)]
struct Dose {
    cases: u32,
    turns: usize,
}

/// The number that another one makes all cases others.
fn seed() -> u64 {
    let value = std::env::var("SWARMLETFS_SEED").unwrap_or_else(|_| "1".into());
    value.parse().unwrap_or_else(|_| panic!("SWARMLETFS_SEED is {value:?}, not a whole number"))
}

impl Dose {
    /// So much for every check; more of it in a soak, and longer.
    fn of(cases: usize, turns: usize) -> Dose {
        Dose { cases: dose(cases) as u32, turns: if times() > 1 { turns * 6 } else { turns } }
    }

    /// Runs random cases; the first that fails is made as small as can be and printed as code.
    fn run(self, stream: u64, case: fn(&[Turn]) -> Result<(), String>) {
        let seed = seed();
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        bytes[8..16].copy_from_slice(&stream.to_le_bytes());
        let config = Config {
            cases: self.cases,
            max_shrink_iters: 20_000,
            source_file: Some(file!()),
            failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
            ..Config::default()
        };
        let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
        let turns = proptest::collection::vec(ops::turn(), 1..=self.turns);
        let failed = runner.run(&turns, |turns| case(&turns).map_err(TestCaseError::fail));
        match failed {
            Ok(()) => {}
            Err(TestError::Fail(why, turns)) => {
                let (why, turns) = least(why.message().to_owned(), turns, case);
                panic!("{why}\nseed {seed}; the smallest case:\n{}", code(&turns));
            }
            Err(TestError::Abort(why)) => panic!("{why}"),
        }
    }
}

/// Leaves out turns and operations as long as the case fails without them: what proptest does once, until nothing more
/// can go.
fn least(mut why: String, mut turns: Vec<Turn>, case: fn(&[Turn]) -> Result<(), String>) -> (String, Vec<Turn>) {
    let without = |turns: &[Turn], turn: usize, op: Option<usize>| {
        let mut fewer = turns.to_vec();
        match op {
            Some(op) => drop(fewer[turn].remove(op)),
            None => drop(fewer.remove(turn)),
        }
        fewer
    };
    loop {
        let ops = turns.iter().enumerate().flat_map(|(at, turn)| (0..turn.len()).map(move |op| (at, Some(op))));
        let all: Vec<(usize, Option<usize>)> = (0..turns.len()).map(|at| (at, None)).chain(ops).collect();
        let smaller = all.into_iter().map(|(turn, op)| without(&turns, turn, op));
        match smaller.filter_map(|fewer| Some((case(&fewer).err()?, fewer))).next() {
            Some(found) => (why, turns) = found,
            None => return (why, turns),
        }
    }
}

/// A case as the arguments of [`replay`].
fn code(turns: &[Turn]) -> String {
    turns.iter().map(|turn| format!("    &{turn:?},\n")).collect()
}

/// A tree that always looks.
fn tree(source: Source, owner: Option<&str>) -> Tree {
    let fresh = Freshness { unfinished: Duration::ZERO, finished: Duration::ZERO };
    let filter = Filter { owner: owner.map(str::to_owned), run: None };
    Tree::new(View::over(vec![source], fresh, filter).unwrap(), Settings::default())
}

/// One case over a store in memory.
fn in_memory(turns: &[Turn]) -> Result<(), String> {
    let store = Arc::new(Memory::new());
    let open = || [None, Some(MINE)].map(|owner| tree(Source::from_store(store.clone(), None), owner));
    let trees = open();
    let mut world = World::new(&*store, [&trees[0], &trees[1]]);
    for (at, turn) in turns.iter().enumerate() {
        let said = |what: String| format!("after turn {at}, {turn:?}: {what}");
        world.turn(at, turn);
        world.check().map_err(said)?;
        if at % 8 == 7 || at + 1 == turns.len() {
            let fresh = open();
            world.check_against([&fresh[0], &fresh[1]]).map_err(said)?;
        }
        let held = trees.iter().map(|tree| tree.held().1).sum::<usize>();
        if held != world.held() {
            return Err(said(format!("{held} handles are held, and {} are open", world.held())));
        }
    }
    world.close_all();
    match trees.iter().map(Tree::held).find(|held| *held != (0, 0)) {
        Some((inodes, handles)) => Err(format!("in the end {inodes} inodes and {handles} handles are left")),
        None => Ok(()),
    }
}

/// Plays a case that was found once.
pub fn replay(turns: &[&[Op]]) {
    let turns: Vec<Turn> = turns.iter().map(|turn| turn.to_vec()).collect();
    in_memory(&turns).unwrap_or_else(|why| panic!("{why}"));
}

#[test]
fn what_is_seen_is_what_must_be_seen_after_every_change() {
    Dose::of(256, 30).run(1, in_memory);
}
