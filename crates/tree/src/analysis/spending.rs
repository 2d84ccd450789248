//! Costs of workers: those that their records state, and those that a list of prices gives.
//!
//! Nothing is counted twice: the cost that a program states for a session includes the workers that
//! the session started.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::worker_digest::{WorkerDigest, WorkerRow, parents};
use swarmletfs_base::model::{Prices, Usd};
use swarmletfs_base::text::count;

/// Maximum number of levels between a worker and one whose cost includes it.
const DEPTH_MAX: usize = 100;

/// The cost of one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerCost {
    pub usd: Usd,
    /// True if it follows from a list of prices, false if the record states it.
    pub is_computed: bool,
    /// True if the record leaves out some of it, so that this is the least that it was.
    pub is_partial: bool,
    /// True if it includes the workers that this one started.
    pub includes_children: bool,
}

impl WorkerCost {
    /// Returns the cost that the record states, or else the cost of all its tokens by `prices`, if
    /// each of its models has a price.
    pub fn find(digest: &WorkerDigest, prices: Option<&Prices>) -> Option<WorkerCost> {
        if let Some(stated) = &digest.cost {
            return Some(WorkerCost {
                usd: stated.total,
                is_computed: false,
                is_partial: stated.is_partial,
                includes_children: stated.includes_children,
            });
        }
        let by_model = &digest.tokens_by_model;
        let prices = prices.filter(|_| digest.tokens.is_some_and(|tokens| tokens.total() > 0))?;
        let usd = by_model
            .iter()
            .map(|(model, tokens)| prices.cost(model, *tokens))
            .sum::<Option<Usd>>()?;
        let is_partial = digest.tokens_are_partial;
        Some(WorkerCost { usd, is_computed: true, is_partial, includes_children: false })
    }
}

/// The cost of several workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CostSum {
    pub stated: Usd,
    pub computed: Usd,
    /// Numbers of workers whose cost is stated, and computed.
    pub stated_workers: usize,
    pub computed_workers: usize,
    /// Number of workers whose cost is known in part.
    pub partial: usize,
    /// Number of workers that used tokens and whose cost is not known.
    pub unknown: usize,
}

impl CostSum {
    fn add(&mut self, cost: WorkerCost) {
        let (amount, number) = match cost.is_computed {
            true => (&mut self.computed, &mut self.computed_workers),
            false => (&mut self.stated, &mut self.stated_workers),
        };
        *amount += cost.usd;
        *number += 1;
        self.partial += usize::from(cost.is_partial);
    }

    pub fn total(&self) -> Usd {
        [self.stated, self.computed].into_iter().sum()
    }

    pub fn is_known(&self) -> bool {
        self.stated_workers + self.computed_workers > 0
    }

    pub fn is_complete(&self) -> bool {
        self.partial + self.unknown == 0
    }

    /// Formats the total for a column or a line: `$1.20`, `>$1.20` if there was more that is not
    /// known, and `~` for an amount that was computed. Empty if nothing is known.
    pub fn short(&self) -> String {
        if !self.is_known() {
            return String::new();
        }
        let computed = if self.computed_workers > 0 { "~" } else { "" };
        let more = if self.is_complete() { "" } else { ">" };
        format!("{more}{computed}{}", self.total())
    }

    /// Formats the total with its sources; empty if nothing is known.
    pub fn describe(&self) -> String {
        let workers = |workers| count(workers, "worker");
        let parts = [
            (self.stated_workers > 0)
                .then(|| format!("{} stated of {}", self.stated, workers(self.stated_workers))),
            (self.computed_workers > 0).then(|| {
                format!(
                    "{} computed from prices of {}",
                    self.computed,
                    workers(self.computed_workers)
                )
            }),
            (self.partial > 0).then(|| format!("incomplete of {}", self.partial)),
            (self.unknown > 0).then(|| format!("unknown of {}", self.unknown)),
        ];
        match self.is_known() {
            true => parts.into_iter().flatten().collect::<Vec<_>>().join(", "),
            false => String::new(),
        }
    }
}

/// The costs of workers that are listed together.
pub struct Spending<'a> {
    rows: &'a [WorkerRow],
    costs: Vec<Option<WorkerCost>>,
    /// The position of the worker that started each one, if it is listed.
    parents: Vec<Option<usize>>,
    children: HashMap<usize, Vec<usize>>,
}

impl<'a> Spending<'a> {
    pub fn new(rows: &'a [WorkerRow], prices: Option<&Prices>) -> Spending<'a> {
        let mut parents = parents(rows);
        // Records can name each other as parents. The first of a ring then has none.
        for at in 0..parents.len() {
            if above(&parents, at).any(|parent| parent == at)
                && let Some(parent) = parents.get_mut(at)
            {
                *parent = None;
            }
        }
        let mut children: HashMap<usize, Vec<usize>> = HashMap::new();
        for (at, parent) in parents.iter().enumerate() {
            if let Some(parent) = parent {
                children.entry(*parent).or_default().push(at);
            }
        }
        let costs = rows.iter().map(|row| WorkerCost::find(row.digest.as_deref()?, prices));
        Spending { rows, costs: costs.collect(), parents, children }
    }

    pub fn row(&self, at: usize) -> Option<&'a WorkerRow> {
        self.rows.get(at)
    }

    /// Returns the positions of the worker that started the one at `at`, of the one that started
    /// that, and so on.
    pub fn above(&self, at: usize) -> impl Iterator<Item = usize> {
        above(&self.parents, at)
    }

    fn cost(&self, at: usize) -> Option<WorkerCost> {
        self.costs.get(at).copied().flatten()
    }

    /// Returns the positions of the workers that no listed worker started.
    pub fn roots(&self) -> impl Iterator<Item = usize> {
        let all = self.parents.iter().enumerate();
        all.filter(|(_, parent)| parent.is_none()).map(|(at, _)| at)
    }

    /// Returns the positions of a worker and of all workers below it.
    pub fn family(&self, at: usize) -> Vec<usize> {
        let (mut found, mut seen) = (vec![at], HashSet::from([at]));
        let mut next = 0;
        while let Some(&worker) = found.get(next) {
            next += 1;
            let children = self.children.get(&worker).into_iter().flatten();
            found.extend(children.filter(|child| seen.insert(**child)));
        }
        found
    }

    /// Returns the sum of the workers at these positions.
    pub fn sum(&self, workers: &[usize]) -> CostSum {
        let members: HashSet<usize> = workers.iter().copied().collect();
        let mut sum = CostSum::default();
        for &at in workers.iter().filter(|at| !self.is_included(**at, &members)) {
            match self.cost(at) {
                Some(cost) => sum.add(cost),
                None => sum.unknown += usize::from(self.used_tokens(at)),
            }
        }
        sum
    }

    /// Returns the stated or computed cost of each language model, as far as it is known by model.
    pub fn by_model(&self, prices: Option<&Prices>) -> BTreeMap<&'a str, CostSum> {
        let all: HashSet<usize> = (0..self.rows.len()).collect();
        let mut sums: BTreeMap<&str, CostSum> = BTreeMap::new();
        for (at, row) in self.rows.iter().enumerate() {
            let Some(digest) = row.digest.as_deref() else { continue };
            let of_model = |usd, is_computed, is_partial| WorkerCost {
                usd,
                is_computed,
                is_partial,
                includes_children: false,
            };
            if let Some(stated) = &digest.cost {
                let only = digest.tokens_by_model.keys().next();
                let only = only.filter(|_| digest.tokens_by_model.len() == 1);
                let whole = only.filter(|_| stated.by_model.is_empty());
                let whole = whole.map(|model| (model, stated.total));
                let parts = stated.by_model.iter().map(|(model, cost)| (model, *cost)).chain(whole);
                for (model, cost) in parts {
                    let cost = of_model(cost, false, stated.is_partial);
                    sums.entry(model).or_default().add(cost);
                }
                continue;
            }
            let is_included = self.is_included(at, &all);
            for (model, tokens) in &digest.tokens_by_model {
                let sum = sums.entry(model).or_default();
                match prices.and_then(|prices| prices.cost(model, *tokens)) {
                    _ if is_included || tokens.total() == 0 => {}
                    None => sum.unknown += 1,
                    Some(cost) => sum.add(of_model(cost, true, digest.tokens_are_partial)),
                }
            }
        }
        sums
    }

    fn used_tokens(&self, at: usize) -> bool {
        let digest = self.rows.get(at).and_then(|row| row.digest.as_ref());
        digest.is_some_and(|digest| digest.tokens.is_some_and(|tokens| tokens.total() > 0))
    }

    /// Returns true if the cost of one of `members` includes the worker at `at`.
    fn is_included(&self, at: usize, members: &HashSet<usize>) -> bool {
        self.above(at).any(|above| {
            members.contains(&above) && self.cost(above).is_some_and(|cost| cost.includes_children)
        })
    }
}

fn above(parents: &[Option<usize>], at: usize) -> impl Iterator<Item = usize> {
    let parent = |at: usize| parents.get(at).copied().flatten();
    std::iter::successors(parent(at), move |at| parent(*at)).take(DEPTH_MAX)
}
