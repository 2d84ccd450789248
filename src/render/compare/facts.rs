//! What is known of the workers compared: what all share is said once, the rest of each.

use std::collections::BTreeMap;

use super::super::text::{count, duration, one_line};
use super::super::worker_digest::WorkerDigest;
use crate::model::{Outcome, Record, Trace};

/// Facts that are short stand together on a line; each of the others has one of its own.
const LONG: [&str; 3] = ["task", "error", "cause"];
/// Where there is hardly any room, these are told before all else.
const FIRST: [&str; 2] = ["status", "outcome"];
/// How many tools are named.
const TOOLS_MAX: usize = 12;
/// How much is said of one fact, in bytes, and of one where there is less and less room.
const FACT_MAX: [usize; 4] = [400, 160, 80, 40];

/// Something that is known of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fact {
    /// What: `status`, `outcome`, `took`, `calls`, `tools`, `tokens`, `model`, `type`, `checks`, `task`, `error`, `cause`.
    pub label: &'static str,
    /// What it is.
    pub value: String,
}

/// What is known of workers.
#[derive(Debug, Default)]
pub struct Facts {
    /// What holds for all.
    pub shared: Vec<Fact>,
    /// What else holds for each, in their order.
    pub of: Vec<Vec<Fact>>,
}

impl Facts {
    /// What all share, and the rest.
    pub(super) fn of(all: Vec<Vec<Fact>>) -> Facts {
        let first = all.first().cloned().unwrap_or_default();
        let is_shared = |fact: &Fact| all.iter().all(|facts| facts.contains(fact));
        let shared: Vec<Fact> = first.into_iter().filter(is_shared).collect();
        let of = all.into_iter().map(|mut facts| {
            facts.retain(|fact| !shared.contains(fact));
            facts
        });
        let of = of.collect();
        Facts { shared, of }
    }

    /// As text in at most `room` bytes, of workers that are at `places`.
    pub(super) fn text(&self, places: &[String], room: usize) -> String {
        let all = match places.len() {
            2 => "both".to_owned(),
            many => format!("all {many}"),
        };
        let written = |max: usize, is_told: &dyn Fn(&Fact) -> bool| {
            let mut out = block(&all, &self.shared, max, is_told);
            let each = places.iter().zip(&self.of).map(|(place, facts)| block(place, facts, max, is_told));
            each.for_each(|block| out.push_str(&block));
            out
        };
        let is_short = |fact: &Fact| !is_long(fact);
        let is_first = |fact: &Fact| FIRST.contains(&fact.label);
        let kinds: [&dyn Fn(&Fact) -> bool; 3] = [&|_| true, &is_short, &is_first];
        let mut texts = kinds
            .into_iter()
            .flat_map(|is_told| FACT_MAX.map(|max| (max, is_told)))
            .map(|(max, is_told)| written(max, is_told));
        let short = "[... what is known of the workers does not fit ...]\n".to_owned();
        let fitting = texts.find(|text| text.len() <= room);
        fitting.or_else(|| Some(short).filter(|text| text.len() <= room)).unwrap_or_default()
    }
}

fn is_long(fact: &Fact) -> bool {
    LONG.contains(&fact.label)
}

fn block(who: &str, facts: &[Fact], max: usize, is_told: &dyn Fn(&Fact) -> bool) -> String {
    let facts = || facts.iter().filter(|fact| is_told(fact));
    let said = |fact: &Fact| format!("{} {}", fact.label, one_line(&fact.value, max));
    let short: Vec<String> = facts().filter(|fact| !is_long(fact)).map(said).collect();
    let mut out = if short.is_empty() { String::new() } else { format!("{who}: {}\n", short.join("; ")) };
    for fact in facts().filter(|fact| is_long(fact)) {
        out.push_str(&format!("{who}: {}: {}\n", fact.label, one_line(&fact.value, max)));
    }
    out
}

/// What a worker's record tells.
pub(super) fn facts(record: &Record, fragment: Option<&WorkerDigest>) -> Vec<Fact> {
    let Record { worker, trace, unread } = record;
    let tokens = trace.tokens.map(|tokens| format!("{} in, {} out", tokens.input, tokens.output));
    let checks = fragment.map(|fragment| {
        let mut names: Vec<&str> = fragment.checks.iter().map(|check| &*check.name).collect();
        names.dedup();
        names.join(", ")
    });
    let facts = [
        ("status", Some(worker.status.to_string())),
        ("outcome", Some(record.outcome().to_string())),
        ("took", worker.duration_ms.map(duration)),
        ("calls", calls(trace, *unread)),
        ("tools", Some(tools(trace))),
        ("tokens", tokens),
        ("model", worker.model.as_deref().map(str::to_owned)),
        ("type", worker.task_type.as_deref().map(str::to_owned)),
        ("checks", checks),
        ("task", Some(trace.task.clone().unwrap_or_else(|| worker.task.clone()))),
        ("error", worker.error.clone()),
        ("cause", fragment.map(|fragment| fragment.cause.clone())),
    ];
    let known = |(label, value): (&'static str, Option<String>)| {
        let value = one_line(&value?, FACT_MAX.into_iter().max()?);
        (!value.is_empty()).then_some(Fact { label, value })
    };
    facts.into_iter().filter_map(known).collect()
}

/// That nothing can be told of a worker, and why.
pub(super) fn unreadable(reason: &str) -> Vec<Fact> {
    vec![Fact { label: "record", value: one_line(&format!("cannot be read: {reason}"), 200) }]
}

fn calls(trace: &Trace, unread: u64) -> Option<String> {
    if trace.calls.is_empty() {
        return trace.records_calls.then(|| "0".to_owned());
    }
    let of = |outcome: Outcome| trace.count(outcome);
    let mut parts = Vec::new();
    for outcome in [Outcome::Failed, Outcome::Unknown] {
        parts.extend((of(outcome) > 0).then(|| format!("{} {outcome}", of(outcome))));
    }
    parts.extend((unread > 0).then(|| format!("{unread} not read in time")));
    let more = if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) };
    Some(format!("{}{more}", trace.calls.len()))
}

/// The tools and how often each was called and failed, the most used first.
fn tools(trace: &Trace) -> String {
    let mut used: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for call in &trace.calls {
        let (calls, failed) = used.entry(&call.tool).or_default();
        *calls += 1;
        *failed += usize::from(call.outcome == Outcome::Failed);
    }
    let mut used: Vec<(&str, (usize, usize))> = used.into_iter().collect();
    used.sort_by_key(|(_, (calls, _))| std::cmp::Reverse(*calls));
    let said = |(tool, (calls, failed)): &(&str, (usize, usize))| {
        let failed = if *failed > 0 { format!(" ({failed} failed)") } else { String::new() };
        format!("{tool} {calls}{failed}")
    };
    let mut named: Vec<String> = used.iter().take(TOOLS_MAX).map(said).collect();
    named.extend(trace.tools_used.iter().take(TOOLS_MAX - named.len().min(TOOLS_MAX)).cloned());
    let more = (used.len() + trace.tools_used.len()).saturating_sub(named.len());
    named.extend((more > 0).then(|| count(more, "more tool")));
    named.join(", ")
}
