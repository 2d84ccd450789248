//! Token counts of a summary, rounded for people.

use std::collections::BTreeMap;

use crate::analysis::spending::WorkerCost;
use crate::analysis::worker_digest::{WorkerDigest, WorkerRow};
use swarmletfs_base::model::{Prices, Record, Tokens};
use swarmletfs_base::text::clean::one_line;
use swarmletfs_base::text::{count, rounded};

/// Maximum number of language models with a line of their own.
const MODELS_MAX: usize = 8;
/// Maximum length of the name of a language model, in bytes.
const MODEL_MAX: usize = 100;
const INCOMPLETE: &str = "incomplete in the record";

pub(super) fn worker(Record { worker, trace, .. }: &Record) -> String {
    let Some(tokens) = trace.tokens else { return String::new() };
    let only_model = match trace.tokens_by_model.len() {
        0 => worker.model.as_deref(),
        1 => trace.tokens_by_model.keys().next().map(String::as_str),
        _ => None,
    };
    let model = only_model.map(|model| format!(" of {}", one_line(model, MODEL_MAX)));
    let incomplete =
        if trace.tokens_are_partial { format!(", {INCOMPLETE}") } else { String::new() };
    let total = format!("{}{}{incomplete}", counts(tokens), model.unwrap_or_default());
    total + &by_model(&trace.tokens_by_model)
}

/// Describes the cost of a worker; empty if it is not known.
pub(super) fn cost(digest: &WorkerDigest, prices: Option<&Prices>) -> String {
    let Some(cost) = WorkerCost::find(digest, prices) else { return String::new() };
    let at_least = if cost.is_partial { "at least " } else { "" };
    let source = if cost.is_computed { "computed from prices" } else { "stated" };
    let children = match cost.includes_children {
        true => ", with the workers that it started",
        false => "",
    };
    format!("{at_least}{} {source}{children}", cost.usd)
}

/// Describes the context that a worker used; empty if the record says nothing about it.
pub(super) fn context(digest: &WorkerDigest) -> String {
    let peak = digest.peak_context.map(|peak| format!("largest request {} tokens", rounded(peak)));
    let compactions =
        (digest.compactions > 0).then(|| format!("compacted {}", times(digest.compactions)));
    peak.into_iter().chain(compactions).collect::<Vec<_>>().join(", ")
}

fn times(n: u64) -> String {
    if n == 1 { "once".into() } else { format!("{n} times") }
}

/// Returns the total tokens of the workers that record them; empty if none does.
pub fn swarm(rows: &[WorkerRow]) -> String {
    let digests = || rows.iter().filter_map(|row| row.digest.as_ref());
    let counted: Vec<Tokens> = digests().filter_map(|digest| digest.tokens).collect();
    if counted.is_empty() {
        return String::new();
    }
    let mut total = Tokens::default();
    counted.iter().for_each(|tokens| total += *tokens);
    let mut models: BTreeMap<String, Tokens> = BTreeMap::new();
    for (model, tokens) in digests().flat_map(|digest| &digest.tokens_by_model) {
        *models.entry(model.clone()).or_default() += *tokens;
    }
    let partial = digests().filter(|digest| digest.tokens_are_partial).count();
    let incomplete =
        if partial > 0 { format!(", {INCOMPLETE} of {partial}") } else { String::new() };
    let workers = count(counted.len(), "worker");
    format!("{}, of {workers}{incomplete}", counts(total)) + &by_model(&models)
}

/// Returns a line for each model, the one with the most output first; empty for a single model.
fn by_model(models: &BTreeMap<String, Tokens>) -> String {
    let used = models.iter().filter(|(_, tokens)| **tokens != Tokens::default());
    let mut sorted: Vec<(&String, &Tokens)> = used.collect();
    if sorted.len() < 2 {
        return String::new();
    }
    sorted.sort_by_key(|(_, tokens)| std::cmp::Reverse(tokens.output));
    let lines = sorted.iter().take(MODELS_MAX).map(|(model, tokens)| {
        format!("\n         {}: {}", one_line(model, MODEL_MAX), counts(**tokens))
    });
    let more = sorted.len().saturating_sub(MODELS_MAX);
    let more = (more > 0).then(|| format!("\n         and {}", count(more, "more model")));
    lines.chain(more).collect()
}

/// Formats numbers of tokens. The tokens of the cache are left out if there are none.
pub fn counts(Tokens { input, output, cache_read, cache_creation, .. }: Tokens) -> String {
    let cache = [(cache_read, "read from cache"), (cache_creation, "written to cache")];
    let cache = cache.into_iter().filter(|(n, _)| *n > 0);
    let parts = [(input, "in"), (output, "out")].into_iter().chain(cache);
    parts.map(|(n, text)| format!("{} {text}", rounded(n))).collect::<Vec<_>>().join(", ")
}
