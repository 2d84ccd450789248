//! Facts about the compared workers: shared facts once, the others per worker.

use std::collections::BTreeMap;

use crate::analysis::worker_digest::WorkerDigest;
use swarmletfs_base::model::{ChangeKind, Outcome, Record, Trace};
use swarmletfs_base::text::clean::one_line;
use swarmletfs_base::text::{count, duration, rounded};

/// Labels of facts that have a line of their own; the others share a line.
const LONG_LABELS: [&str; 4] = ["deleted", "task", "error", "cause"];
const BRIEF_LABELS: [&str; 2] = ["status", "outcome"];
const TOOLS_MAX: usize = 12;
const DELETED_MAX: usize = 12;
/// Maximum length of a fact in bytes, longest first; tried in order until all facts fit.
const FACT_MAX: [usize; 4] = [400, 160, 80, 40];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fact {
    /// Label: `status`, `outcome`, `took`, `calls`, `tools`, `tokens`, `model`, `type`, `checks`,
    /// `changes`, `deleted`, `task`, `error` or `cause`.
    pub label: &'static str,
    pub value: String,
}

#[derive(Debug, Default)]
pub struct WorkerFacts {
    pub shared: Vec<Fact>,
    /// Other facts of each worker, in the order of the workers.
    pub per_worker: Vec<Vec<Fact>>,
}

impl WorkerFacts {
    /// Separates the facts that all workers share from the others.
    pub fn new(all: Vec<Vec<Fact>>) -> WorkerFacts {
        let first = all.first().cloned().unwrap_or_default();
        let shared: Vec<Fact> =
            first.into_iter().filter(|fact| all.iter().all(|facts| facts.contains(fact))).collect();
        let per_worker = all
            .into_iter()
            .map(|mut facts| {
                facts.retain(|fact| !shared.contains(fact));
                facts
            })
            .collect();
        WorkerFacts { shared, per_worker }
    }

    /// Returns the facts as text in at most `room` bytes, with the workers named by `paths`.
    pub fn text(&self, paths: &[String], room: usize) -> String {
        let selections: [fn(&Fact) -> bool; 3] =
            [|_| true, |fact| !is_long(fact), |fact| BRIEF_LABELS.contains(&fact.label)];
        let mut texts = selections
            .into_iter()
            .flat_map(|is_included| FACT_MAX.map(|max| (max, is_included)))
            .map(|(max, is_included)| self.lines(paths, max, is_included));
        let short = "[... facts about the workers do not fit ...]\n".to_owned();
        let fitting = texts.find(|text| text.len() <= room);
        fitting.or_else(|| Some(short).filter(|text| text.len() <= room)).unwrap_or_default()
    }

    fn lines(&self, paths: &[String], max: usize, is_included: fn(&Fact) -> bool) -> String {
        let all = match paths.len() {
            2 => "both".to_owned(),
            many => format!("all {many}"),
        };
        let subjects =
            std::iter::once((&all, &self.shared)).chain(paths.iter().zip(&self.per_worker));
        subjects.map(|(subject, facts)| lines_of(subject, facts, max, is_included)).collect()
    }
}

fn is_long(fact: &Fact) -> bool {
    LONG_LABELS.contains(&fact.label)
}

/// Returns the included facts about `subject` as lines, each fact cut to `max` bytes.
fn lines_of(subject: &str, facts: &[Fact], max: usize, is_included: fn(&Fact) -> bool) -> String {
    let (long, short): (Vec<&Fact>, Vec<&Fact>) =
        facts.iter().filter(|fact| is_included(fact)).partition(|fact| is_long(fact));
    let short: Vec<String> = short
        .into_iter()
        .map(|fact| format!("{} {}", fact.label, one_line(&fact.value, max)))
        .collect();
    let mut out =
        if short.is_empty() { String::new() } else { format!("{subject}: {}\n", short.join("; ")) };
    for fact in long {
        out.push_str(&format!("{subject}: {}: {}\n", fact.label, one_line(&fact.value, max)));
    }
    out
}

pub(super) fn facts(record: &Record, digest: Option<&WorkerDigest>) -> Vec<Fact> {
    let Record { worker, trace, unread } = record;
    let tokens = trace
        .tokens
        .map(|tokens| format!("{} in, {} out", rounded(tokens.input), rounded(tokens.output)));
    let checks = digest.map(|digest| {
        let mut names: Vec<&str> = digest.checks.iter().map(|check| &*check.name).collect();
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
        ("changes", digest.map(changes)),
        ("deleted", Some(deleted(trace))),
        ("task", Some(trace.task.clone().unwrap_or_else(|| worker.task.clone()))),
        ("error", worker.error.clone()),
        ("cause", digest.map(|digest| digest.cause.clone())),
    ];
    let [max, ..] = FACT_MAX;
    let facts = facts.into_iter().filter_map(|(label, value)| {
        let value = one_line(&value?, max);
        (!value.is_empty()).then_some(Fact { label, value })
    });
    facts.collect()
}

/// Returns one fact: the record cannot be read, with the reason.
pub(super) fn unreadable(reason: &str) -> Vec<Fact> {
    vec![Fact { label: "record", value: one_line(&format!("cannot be read: {reason}"), 200) }]
}

fn changes(digest: &WorkerDigest) -> String {
    match digest.files_changed() {
        0 => String::new(),
        files => count(files, "file"),
    }
}

/// Formats the files of its workspace that the worker deleted: no file of its directory shows them.
fn deleted(trace: &Trace) -> String {
    let files = trace.workspace_files.iter().filter(|file| file.kind == ChangeKind::Deleted);
    let names: Vec<&str> = files.map(|file| file.path.as_str()).take(DELETED_MAX + 1).collect();
    let more = if names.len() > DELETED_MAX { ", …" } else { "" };
    names.iter().take(DELETED_MAX).copied().collect::<Vec<_>>().join(", ") + more
}

/// Formats the number of calls, with the counts of failed, unknown and unread ones. Returns `None`
/// if calls are not recorded.
fn calls(trace: &Trace, unread: u64) -> Option<String> {
    if trace.calls.is_empty() {
        return trace.records_calls.then(|| "0".to_owned());
    }
    let mut parts = Vec::new();
    for outcome in [Outcome::Failed, Outcome::Unknown] {
        let count = trace.count(outcome);
        parts.extend((count > 0).then(|| format!("{count} {outcome}")));
    }
    parts.extend((unread > 0).then(|| format!("{unread} not read in time")));
    let more = if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) };
    Some(format!("{}{more}", trace.calls.len()))
}

fn tools(trace: &Trace) -> String {
    let mut used: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for call in &trace.calls {
        let (calls, failed) = used.entry(&call.tool).or_default();
        *calls += 1;
        *failed += usize::from(call.outcome == Outcome::Failed);
    }
    let mut used: Vec<(&str, (usize, usize))> = used.into_iter().collect();
    used.sort_by_key(|(_, (calls, _))| std::cmp::Reverse(*calls));
    let named = used.iter().take(TOOLS_MAX).map(|(tool, (calls, failed))| {
        let failed = if *failed > 0 { format!(" ({failed} failed)") } else { String::new() };
        format!("{tool} {calls}{failed}")
    });
    let mut named: Vec<String> = named.collect();
    named.extend(trace.tools_used.iter().take(TOOLS_MAX - named.len().min(TOOLS_MAX)).cloned());
    let more = (used.len() + trace.tools_used.len()).saturating_sub(named.len());
    named.extend((more > 0).then(|| count(more, "more tool")));
    named.join(", ")
}
