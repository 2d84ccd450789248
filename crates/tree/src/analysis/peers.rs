//! Reasons for attention that follow from other workers: a failed child, and waste.

use std::collections::HashMap;

use jiff::Timestamp;

use super::attention::{Attention, AttentionLevel, AttentionReason, ReasonKind};
use super::spending::WorkerCost;
use super::worker_digest::{WorkerDigest, WorkerRow, parents};
use swarmletfs_base::model::{Outcome, Prices};
use swarmletfs_base::text::rounded;

/// Minimum number of workers that have a median.
const PEERS_MIN: usize = 8;
/// Factor over the median of its peers from which a worker wastes something.
const WASTE_FACTOR: u64 = 3;
/// Numbers below which nothing is wasted: of failed calls, of edits of one file, of tokens in the
/// context, and of thousandths of a dollar.
const FAILED_MIN: u64 = 15;
const EDITS_MIN: u64 = 25;
const CONTEXT_MIN: u64 = 150_000;
const COST_MIN: u64 = 10_000;

/// A number of which a worker can use more than its peers.
struct Effort<'a> {
    name: &'static str,
    min: u64,
    number: Box<dyn Fn(&WorkerDigest) -> u64 + 'a>,
    show: fn(u64) -> String,
}

/// Returns the attention that each worker of a file about many needs: its own reasons, and those
/// that follow from the others.
pub fn among_peers(rows: &[WorkerRow], prices: Option<&Prices>) -> Vec<Attention> {
    let own = rows.iter().map(|row| row.digest.as_ref().map(|digest| digest.attention.clone()));
    let mut found: Vec<Attention> = own.map(Option::unwrap_or_default).collect();
    for (child, parent) in failed_children(rows) {
        let cause = child.failure_cause().unwrap_or_default();
        let line = format!("{} failed: {cause}", child.member.name.display());
        let reason = AttentionReason::new(ReasonKind::ChildFailed, AttentionLevel::High, &line);
        let since = child.worker().last_message;
        if let Some(attention) = found.get_mut(parent) {
            attention.add(AttentionReason { since, ..reason });
        }
    }
    for Effort { name, min, number, show } in efforts(prices) {
        let of = |row: &WorkerRow| row.digest.as_deref().map(&number);
        // Workers that do nothing of the kind are no peers.
        let mut all: Vec<u64> = rows.iter().filter_map(of).filter(|number| *number > 0).collect();
        all.sort_unstable();
        let median = match all.get(all.len() / 2) {
            Some(median) if all.len() >= PEERS_MIN => *median,
            _ => continue,
        };
        let limit = min.max(median.saturating_mul(WASTE_FACTOR));
        for (row, attention) in rows.iter().zip(&mut found) {
            if let Some(number) = of(row).filter(|number| *number > limit) {
                let (number, median) = (show(number), show(median));
                let line = format!("{number} {name}; the median is {median}");
                let reason = AttentionReason::new(ReasonKind::Waste, AttentionLevel::Low, &line);
                attention.add(AttentionReason { since: row.worker().last_message, ..reason });
            }
        }
    }
    found
}

fn efforts(prices: Option<&Prices>) -> [Effort<'_>; 4] {
    [
        Effort {
            name: "failed calls",
            min: FAILED_MIN,
            number: Box::new(|digest| digest.failed as u64),
            show: |number| number.to_string(),
        },
        Effort {
            name: "edits of one file",
            min: EDITS_MIN,
            number: Box::new(|digest| {
                digest.files.iter().map(|file| file.edits).max().unwrap_or_default()
            }),
            show: |number| number.to_string(),
        },
        Effort {
            name: "tokens in a request",
            min: CONTEXT_MIN,
            number: Box::new(|digest| digest.peak_context.unwrap_or_default()),
            show: rounded,
        },
        Effort {
            name: "of cost",
            min: COST_MIN,
            number: Box::new(move |digest| {
                let cost = WorkerCost::find(digest, prices);
                // The cast saturates.
                cost.map_or(0, |cost| (cost.usd.dollars() * 1e3) as u64)
            }),
            show: |thousandths| format!("${:.2}", thousandths as f64 / 1e3),
        },
    ]
}

/// Returns each failed worker whose parent is among `rows`, with the position of the parent. The
/// parent made a failure good if a check of its own was green afterwards, or another worker that it
/// started afterwards is ok.
fn failed_children(rows: &[WorkerRow]) -> Vec<(&WorkerRow, usize)> {
    let mut last_ok: HashMap<usize, Timestamp> = HashMap::new();
    let children = rows.iter().zip(parents(rows));
    let children: Vec<(&WorkerRow, usize)> =
        children.filter_map(|(row, parent)| Some((row, parent?))).collect();
    for (row, parent) in &children {
        if row.outcome() == Some(Outcome::Ok)
            && let Some(start) = row.worker().started_at.timestamp()
        {
            let last = last_ok.entry(*parent).or_insert(start);
            *last = (*last).max(start);
        }
    }
    let failed = children.into_iter().filter(|(row, _)| row.outcome() == Some(Outcome::Failed));
    failed
        .filter(|(row, parent)| {
            let digest = rows.get(*parent).and_then(|row| row.digest.as_ref());
            let good =
                digest.and_then(|digest| digest.last_green).max(last_ok.get(parent).copied());
            good.zip(row.worker().last_message).is_none_or(|(good, failed)| good < failed)
        })
        .collect()
}
