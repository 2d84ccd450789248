//! The messages of an agent, and the manifest of its session, since version 4.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::json;

use super::super::blocks::{MessageBlock, MessageBlocks, between, number_after, value_text};
use super::super::lenient::{
    MaybeBool, MaybeI64, MaybeList, MaybeNumber, MaybeObject, MaybeStr, MaybeU64, object,
};
use super::super::transcript::{
    Arguments, CallPart, IndexBuilder, RawRecord, ResultPart, Role, SessionMetadata, StatedStatus,
    Turn, TurnEvent, Verdict,
};
use super::super::value::truncate;
use swarmletfs_base::model::{Outcome, Status, TASK_MAX, Tokens};

const INPUT_END: &str = "</user_input>";
const RUN_COMMANDS: &str = "run_commands";
/// The words in the result of a call that was not allowed to run.
const REFUSALS: [&str; 3] = ["requires approval", "denied by", "user denied"];
const EXIT_CODE: &str = "Command exited with code ";

/// A message. Fields of an unexpected type count as absent.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
struct ClineMessage<'a> {
    id: MaybeStr<'a>,
    role: MaybeStr<'a>,
    content: MessageBlocks<'a>,
    /// Time in milliseconds since 1970.
    ts: MaybeI64,
    model_info: MaybeObject<ClineModelInfo<'a>>,
    metrics: MaybeObject<ClineMetrics>,
    metadata: MaybeObject<MessageMetadata>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ClineModelInfo<'a> {
    #[serde(borrow)]
    id: MaybeStr<'a>,
}

/// The tokens of an answer. The cached ones are part of the input.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ClineMetrics {
    input_tokens: MaybeU64,
    output_tokens: MaybeU64,
    cache_read_tokens: MaybeU64,
    cache_write_tokens: MaybeU64,
    /// In dollars.
    cost: MaybeNumber,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct MessageMetadata {
    /// True for words of the program, such as an error, in the name of the assistant.
    display_only: MaybeBool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
struct ClineOrigin<'a> {
    parent_thread_id: MaybeStr<'a>,
}

/// One of the operations of a call, each with its own outcome.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct ClineOperation<'a> {
    query: MaybeStr<'a>,
    result: MaybeStr<'a>,
    error: MaybeStr<'a>,
    success: MaybeBool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CommandList {
    commands: MaybeList<serde_json::Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct ClineManifest<'a> {
    status: MaybeStr<'a>,
    model: MaybeStr<'a>,
    cwd: MaybeStr<'a>,
    metadata: MaybeObject<ManifestMetadata<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct ManifestMetadata<'a> {
    title: MaybeStr<'a>,
    git: MaybeObject<ClineGit<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ClineGit<'a> {
    #[serde(borrow)]
    branch: MaybeStr<'a>,
}

pub(super) fn read_manifest(manifest: &[u8]) -> SessionMetadata {
    let manifest = serde_json::from_slice::<MaybeObject<ClineManifest<'_>>>(manifest);
    let manifest = manifest.ok().and_then(|manifest| manifest.0).unwrap_or_default();
    let status = match manifest.status.as_str() {
        "running" => Some(Status::Running),
        "completed" => Some(Status::Completed),
        "failed" => Some(Status::Failed),
        "cancelled" => Some(Status::Abandoned),
        _ => None,
    };
    let metadata = manifest.metadata.0.unwrap_or_default();
    SessionMetadata {
        status: status.map(|status| StatedStatus { status, word: None }),
        model: manifest.model.non_empty(),
        cwd: manifest.cwd.non_empty(),
        branch: metadata.git.0.and_then(|git| git.branch.non_empty()),
        title: metadata.title.non_empty().map(|title| truncate(title, TASK_MAX)),
        ..SessionMetadata::default()
    }
}

/// Adds a fact of a document to the index. Returns false if it cannot be decoded.
pub(super) fn add_fact(index: &mut IndexBuilder<'_>, name: &str, text: &str) -> bool {
    let facts = &mut index.index.facts;
    match name {
        "sessionId" => match serde_json::from_str::<MaybeStr<'_>>(text) {
            Ok(id) => IndexBuilder::set_fact(&mut facts.id, id.as_str()),
            Err(_) => return false,
        },
        _ => match serde_json::from_str::<MaybeObject<ClineOrigin<'_>>>(text) {
            Ok(origin) => {
                let parent = origin.0.unwrap_or_default().parent_thread_id;
                IndexBuilder::set_fact(&mut facts.parent, parent.as_str());
            }
            Err(_) => return false,
        },
    }
    true
}

pub(super) fn add_message(index: &mut IndexBuilder<'_>, record: RawRecord<'_>) -> bool {
    let Some(message) = object::<ClineMessage<'_>>(record.text) else { return false };
    match turn(&message) {
        Some(turn) => index.add_turns(0, record.span, &[turn]),
        None => index.count_unknown_type(message.role.as_str()),
    }
    let Some(metrics) = &message.metrics.0 else { return true };
    let (read, written) =
        (metrics.cache_read_tokens.or_zero(), metrics.cache_write_tokens.or_zero());
    let input = metrics.input_tokens.or_zero();
    let tokens = Tokens {
        // Some providers leave the cached ones out.
        input: input.checked_sub(read.saturating_add(written)).unwrap_or(input),
        output: metrics.output_tokens.or_zero(),
        cache_read: read,
        cache_creation: written,
        ..Tokens::default()
    };
    index.count_tokens(0, message.id.as_str(), message.model(), tokens);
    if let Some(cost) = metrics.cost.as_stated_cost() {
        index.index.main.cost.add(cost);
    }
    true
}

pub(super) fn with_turns(record: RawRecord<'_>, use_turns: &mut dyn FnMut(&[Turn<'_>])) {
    if let Some(turn) = object::<ClineMessage<'_>>(record.text).as_ref().and_then(turn) {
        use_turns(&[turn]);
    }
}

impl ClineMessage<'_> {
    fn model(&self) -> &str {
        self.model_info.0.as_ref().map(|model| model.id.as_str()).unwrap_or_default()
    }
}

/// Returns the turn of a message. Returns `None` if its role is unknown.
fn turn<'a>(message: &'a ClineMessage<'_>) -> Option<Turn<'a>> {
    let text = message.content.text();
    let turn = Turn { at_ms: message.ts.0, ..Turn::default() };
    let is_shown = message.metadata.0.as_ref().is_some_and(|data| data.display_only.is_set());
    match message.role.as_str() {
        "assistant" if is_shown => Some(Turn {
            role: Role::Assistant,
            is_synthetic: true,
            text,
            event: TurnEvent::ApiError,
            ..turn
        }),
        "assistant" => Some(Turn {
            role: Role::Assistant,
            model: message.model().into(),
            text,
            thinking: message.content.thinking(),
            calls: message.content.calls().map(call_part).collect(),
            ..turn
        }),
        "user" => {
            let results: Vec<ResultPart<'_>> = message.content.results().map(result_part).collect();
            let request = match between(&text, "<user_input", INPUT_END) {
                Some((_, tag, _)) => tag.split_once('>').map(|(_, text)| text.trim().to_owned()),
                None => results.is_empty().then(|| text.clone().into_owned()),
            };
            let request = request.filter(|_| !is_shown);
            Some(Turn {
                role: if request.is_some() { Role::User } else { Role::System },
                results,
                event: match &request {
                    Some(_) => TurnEvent::Message,
                    None => TurnEvent::ProgramText,
                },
                text: request.clone().map_or(text, Cow::Owned),
                request: request.map(Cow::Owned),
                ..turn
            })
        }
        _ => None,
    }
}

fn call_part<'a>(block: &'a MessageBlock<'_>) -> CallPart<'a> {
    let part = block.call_part();
    if part.name != RUN_COMMANDS {
        return part;
    }
    let list =
        block.arguments().map(|json| serde_json::from_str::<MaybeObject<CommandList>>(json.get()));
    let list = list.and_then(|list| list.ok()?.0).unwrap_or_default();
    let commands: Vec<&str> =
        list.commands.0.iter().filter_map(|command| command.as_str()).collect();
    if commands.is_empty() {
        return part;
    }
    let arguments = json!({ "command": commands.join("\n") }).to_string();
    CallPart { arguments: Arguments::Text(arguments.into()), ..part }
}

/// Returns true if the first line of an error says that the tool was not run.
fn is_refusal(error: &str) -> bool {
    let first = error.lines().next().unwrap_or_default();
    REFUSALS.iter().any(|words| first.contains(words))
}

fn result_part<'a>(block: &'a MessageBlock<'_>) -> ResultPart<'a> {
    let content = block.content.map(|content| content.get()).unwrap_or_default();
    // The list of operations, or one of them as text.
    let inner = serde_json::from_str::<MaybeStr<'_>>(content).unwrap_or_default();
    let mut operations: Vec<ClineOperation<'_>> = match &inner.0 {
        Some(text) => serde_json::from_str::<MaybeObject<ClineOperation<'_>>>(text)
            .ok()
            .and_then(|operation| operation.0)
            .into_iter()
            .collect(),
        None => serde_json::from_str::<MaybeList<MaybeObject<ClineOperation<'_>>>>(content)
            .map(|list| list.0.into_iter().filter_map(|operation| operation.0).collect())
            .unwrap_or_default(),
    };
    operations.retain(|part| {
        part.success.0.is_some() || part.error.0.is_some() || part.result.0.is_some()
    });
    let text = match operations.as_slice() {
        [] => block.content.map(value_text).unwrap_or_default(),
        parts => Cow::Owned(parts.iter().map(|part| part.text(parts.len() > 1)).collect()),
    };
    let failure = operations.iter().find(|part| part.success.0 == Some(false));
    let outcome = match (block.is_error.is_set(), failure) {
        (true, _) if is_refusal(&text) => Outcome::NotRun,
        (_, Some(part)) if part.result.0.is_none() && is_refusal(part.error.as_str()) => {
            Outcome::NotRun
        }
        (true, _) | (false, Some(_)) => Outcome::Failed,
        (false, None) => Outcome::Ok,
    };
    let exit_code = failure.and_then(|part| number_after(part.error.as_str(), EXIT_CODE));
    ResultPart {
        call: block.tool_use_id.as_str().into(),
        verdict: Verdict { exit_code, ..Verdict::from_outcome(outcome) },
        text,
        ..ResultPart::default()
    }
}

impl ClineOperation<'_> {
    /// Returns the output of the operation, after its name if there are `several`.
    fn text(&self, several: bool) -> String {
        let mut lines = vec![self.query.as_str(); usize::from(several)];
        lines.push(self.result.as_str());
        if !self.result.as_str().contains(self.error.as_str()) {
            lines.push(self.error.as_str());
        }
        lines.retain(|line| !line.is_empty());
        let text = lines.join("\n");
        if several && !text.ends_with('\n') { text + "\n" } else { text }
    }
}
