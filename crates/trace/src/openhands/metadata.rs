//! The files beside a directory of events: `base_state.json` of version 1, `metadata.json` of
//! version 0.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::super::lenient::{MaybeObject, MaybeStr, MaybeU64};
use super::super::transcript::{IndexBuilder, SessionMetadata, StatedStatus};
use super::super::value::truncate;
use super::schema::{AccumulatedTokens, JsonEntries, Metrics, ModelResponse};
use swarmletfs_base::model::{StatedCost, Status, TASK_MAX, Tokens};

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct ConversationState<'a> {
    execution_status: MaybeStr<'a>,
    /// The name of `execution_status` in older versions.
    agent_status: MaybeStr<'a>,
    agent: MaybeObject<Agent<'a>>,
    workspace: MaybeObject<Workspace<'a>>,
    pub(super) stats: MaybeObject<Stats<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Agent<'a> {
    #[serde(borrow)]
    llm: MaybeObject<ModelResponse<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Workspace<'a> {
    #[serde(borrow)]
    working_dir: MaybeStr<'a>,
}

/// The costs of a conversation, by the use of the model.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Stats<'a> {
    #[serde(borrow)]
    usage_to_metrics: JsonEntries<'a, MaybeObject<Metrics<'a>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct StatedConversation<'a> {
    title: MaybeStr<'a>,
    llm_model: MaybeStr<'a>,
    selected_branch: MaybeStr<'a>,
    prompt_tokens: MaybeU64,
    completion_tokens: MaybeU64,
}

impl ConversationState<'_> {
    pub(super) fn status(&self) -> &str {
        let words = [self.execution_status.as_str(), self.agent_status.as_str()];
        words.into_iter().find(|word| !word.is_empty()).unwrap_or_default()
    }

    pub(super) fn model(&self) -> Option<&str> {
        let model = self.agent.0.as_ref()?.llm.0.as_ref()?.model.as_str();
        Some(model).filter(|model| !model.is_empty())
    }
}

impl Stats<'_> {
    fn metrics(&self) -> impl Iterator<Item = &Metrics<'_>> {
        self.usage_to_metrics.0.iter().filter_map(|(_, metrics)| metrics.0.as_ref())
    }

    /// Returns the cost of all uses, if it is stated.
    pub(super) fn cost(&self) -> Option<StatedCost> {
        let costs = self.metrics().filter_map(|metrics| metrics.accumulated_cost.as_stated_cost());
        costs.reduce(|mut sum, cost| {
            sum += &cost;
            sum
        })
    }

    /// Returns the model of the first use.
    pub(super) fn model(&self) -> Option<&str> {
        self.metrics().map(|metrics| metrics.model_name.as_str()).find(|model| !model.is_empty())
    }

    pub(super) fn tokens_by_model(&self) -> BTreeMap<String, Tokens> {
        let mut all: BTreeMap<String, Tokens> = BTreeMap::new();
        for metrics in self.metrics() {
            let usage = metrics.accumulated_token_usage.0.map(tokens);
            let Some(usage) = usage.filter(|usage| *usage != Tokens::default()) else { continue };
            *all.entry(metrics.model_name.as_str().to_owned()).or_default() += usage;
        }
        all
    }
}

/// Returns token counts without those that the prompt and the cache have in common.
pub(super) fn tokens(usage: AccumulatedTokens) -> Tokens {
    let cached = [usage.cache_read_tokens.or_zero(), usage.cache_write_tokens.or_zero()];
    Tokens::of_prompt(usage.prompt_tokens.or_zero(), usage.completion_tokens.or_zero(), cached)
}

/// Sets the tokens of a conversation from its costs so far.
pub(super) fn add_metrics(
    index: &mut IndexBuilder<'_>,
    number: usize,
    metrics: Option<&Metrics<'_>>,
) {
    if let Some(usage) = metrics.and_then(|metrics| metrics.accumulated_token_usage.0) {
        index.set_total_tokens(number, tokens(usage));
    }
    let cost = metrics.and_then(|metrics| metrics.accumulated_cost.as_stated_cost());
    if let Some((cost, conversation)) = cost.zip(index.conversation(number)) {
        conversation.cost.replace(cost);
    }
}

/// Returns the status that a word means, or `None` if the messages decide.
pub(super) fn status(word: &str) -> Option<Status> {
    match word {
        "finished" => Some(Status::Completed),
        "error" | "stuck" => Some(Status::Failed),
        "waiting_for_confirmation" => Some(Status::Waiting),
        "running" | "paused" => Some(Status::Running),
        _ => None,
    }
}

/// Decodes the file beside a directory of events, of either version.
pub(super) fn read(bytes: &[u8]) -> SessionMetadata {
    let state: ConversationState<'_> = serde_json::from_slice(bytes).unwrap_or_default();
    let conversation: StatedConversation<'_> = serde_json::from_slice(bytes).unwrap_or_default();
    let stats = state.stats.0.as_ref();
    let mut tokens_by_model = stats.map(Stats::tokens_by_model).unwrap_or_default();
    let cost = stats.and_then(Stats::cost);
    let model = state.model().or_else(|| stats?.model()).map(str::to_owned);
    let model = model.or_else(|| conversation.llm_model.non_empty());
    let usage = AccumulatedTokens {
        prompt_tokens: conversation.prompt_tokens,
        completion_tokens: conversation.completion_tokens,
        ..AccumulatedTokens::default()
    };
    let tokens = tokens(usage);
    if tokens_by_model.is_empty() && tokens != Tokens::default() {
        tokens_by_model.insert(model.clone().unwrap_or_default(), tokens);
    }
    let word = state.status();
    SessionMetadata {
        final_words: None,
        status: status(word).map(|status| StatedStatus { status, word: Some(word.to_owned()) }),
        cwd: state.workspace.0.as_ref().and_then(|workspace| workspace.working_dir.non_empty()),
        branch: conversation.selected_branch.non_empty(),
        title: conversation.title.non_empty().map(|title| truncate(title, TASK_MAX)),
        model,
        tokens_by_model,
        cost,
    }
}
