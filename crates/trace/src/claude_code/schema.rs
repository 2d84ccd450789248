//! The schema of transcript lines, and their decoder.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::SeqAccess;
use serde_json::value::RawValue;

use super::super::lenient::{
    Lenient, MaybeBool, MaybeI64, MaybeList, MaybeNumber, MaybeObject, MaybeStr, MaybeU64,
    deserialize_lenient, objects,
};
use super::super::transcript::parse_millis;
use super::super::value::shorten;
use super::texts::Notification;
use swarmletfs_base::model::{Outcome, StatedCost, Tokens};

/// The model name of messages that no model wrote.
const SYNTHETIC_MODEL: &str = "<synthetic>";

const HTTP_ERROR_MIN: i64 = 400;
/// Maximum length of the name of a model, in bytes.
const MODEL_MAX: usize = 200;
/// Maximum number of models whose cost is kept.
const MODELS_MAX: usize = 20;

/// A line of a transcript. Fields of an unexpected type count as absent.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
pub(super) struct TranscriptLine<'a> {
    #[serde(rename = "type")]
    pub(super) kind: MaybeStr<'a>,
    pub(super) uuid: MaybeStr<'a>,
    pub(super) parent_uuid: MaybeStr<'a>,
    pub(super) session_id: MaybeStr<'a>,
    /// The session that sent the request of an assistant's record. In a copy of a session, the
    /// original.
    #[serde(rename = "requestSessionId")]
    request_session: MaybeStr<'a>,
    /// The original of a record that `/branch` copied.
    #[serde(rename = "forkedFrom")]
    original: MaybeObject<OriginalRecord<'a>>,
    /// The session that started this fork.
    #[serde(rename = "parentSessionId")]
    pub(super) parent_session: MaybeStr<'a>,
    /// The session that goes on with this one.
    #[serde(rename = "continuedInSessionId")]
    pub(super) continued_in: MaybeStr<'a>,
    pub(super) agent_id: MaybeStr<'a>,
    pub(super) is_sidechain: MaybeBool,
    pub(super) is_meta: MaybeBool,
    pub(super) is_compact_summary: MaybeBool,
    #[serde(rename = "isApiErrorMessage")]
    pub(super) is_api_error: MaybeBool,
    pub(super) timestamp: MaybeStr<'a>,
    pub(super) cwd: MaybeStr<'a>,
    pub(super) git_branch: MaybeStr<'a>,
    pub(super) summary: MaybeStr<'a>,
    /// The ID of the last line that a summary is about.
    #[serde(rename = "leafUuid")]
    pub(super) leaf: MaybeStr<'a>,
    pub(super) ai_title: MaybeStr<'a>,
    pub(super) custom_title: MaybeStr<'a>,
    pub(super) message: MaybeObject<Message<'a>>,
    pub(super) data: MaybeObject<Progress<'a>>,
    /// Reason why the call of a result was refused.
    #[serde(rename = "toolDenialKind")]
    pub(super) denial: MaybeStr<'a>,
    /// True if a call ran although its result was refused.
    #[serde(rename = "toolDenialAfterRun")]
    pub(super) is_denied_after_run: MaybeBool,
    #[serde(rename = "permissionDecision")]
    pub(super) permission: MaybeObject<PermissionDecision<'a>>,
    /// The origin of a user's message that no person wrote.
    pub(super) origin: MaybeObject<Origin<'a>>,
    /// The change of the queue of messages that the user writes while the assistant works.
    pub(super) operation: MaybeStr<'a>,
    /// The queued message.
    pub(super) content: MaybeStr<'a>,
    #[serde(rename = "toolDenialBeforeRun")]
    pub(super) is_denied_before_run: MaybeBool,
    /// `system` for a message that the program wrote.
    #[serde(rename = "promptSource")]
    pub(super) source: MaybeStr<'a>,
    pub(super) attachment: MaybeObject<Attachment<'a>>,
    pub(super) tool_use_result: MaybeObject<ToolUseResult<'a>>,
    /// The cost of the process and its subagents so far.
    #[serde(rename = "totalCostUSD")]
    total_cost: MaybeNumber,
    /// The start of the process, in milliseconds since 1970.
    #[serde(rename = "startTime")]
    pub(super) process_start: MaybeI64,
    model_usage: MaybeObject<BTreeMap<String, MaybeObject<ModelUsage>>>,
    #[serde(rename = "hasUnknownModelCost")]
    has_unknown_cost: MaybeBool,
    /// The result of an agent, in the journal of a workflow.
    result: Option<&'a RawValue>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct OriginalRecord<'a> {
    #[serde(borrow, rename = "sessionId")]
    session: MaybeStr<'a>,
}

/// Data that the program gave to the assistant beside the messages.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct Attachment<'a> {
    #[serde(rename = "commandMode")]
    mode: MaybeStr<'a>,
    prompt: MaybeStr<'a>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Permission {
    Unknown,
    /// The call was refused or stopped, and may have begun.
    Unclear,
    Given,
    Refused,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PermissionDecision<'a> {
    /// `accept` or `reject`.
    #[serde(borrow)]
    pub(super) decision: MaybeStr<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Origin<'a> {
    #[serde(borrow)]
    pub(super) kind: MaybeStr<'a>,
}

/// Progress of a subagent, reported by the session that waits for it.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct Progress<'a> {
    #[serde(rename = "type")]
    pub(super) kind: MaybeStr<'a>,
    #[serde(rename = "agentId")]
    pub(super) agent_id: MaybeStr<'a>,
    /// The subagent's own line, with fewer fields.
    pub(super) message: MaybeObject<AgentLine<'a>>,
}

/// A subagent's line inside a session's line.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct AgentLine<'a> {
    #[serde(rename = "type")]
    pub(super) kind: MaybeStr<'a>,
    pub(super) timestamp: MaybeStr<'a>,
    pub(super) message: MaybeObject<Message<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct Message<'a> {
    pub(super) id: MaybeStr<'a>,
    pub(super) model: MaybeStr<'a>,
    pub(super) content: MessageContent<'a>,
    pub(super) usage: MaybeObject<TokenUsage>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct TokenUsage {
    input_tokens: MaybeU64,
    output_tokens: MaybeU64,
    cache_read_input_tokens: MaybeU64,
    cache_creation_input_tokens: MaybeU64,
    cache_creation: MaybeObject<CacheCreation>,
}

/// The tokens written to the cache, by the time for which it keeps them.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CacheCreation {
    ephemeral_1h_input_tokens: MaybeU64,
}

impl TokenUsage {
    pub(super) fn tokens(&self) -> Tokens {
        let hour = self
            .cache_creation
            .0
            .as_ref()
            .map(|created| created.ephemeral_1h_input_tokens.or_zero());
        Tokens {
            input: self.input_tokens.or_zero(),
            output: self.output_tokens.or_zero(),
            cache_read: self.cache_read_input_tokens.or_zero(),
            cache_creation: self.cache_creation_input_tokens.or_zero(),
            cache_creation_1h: hour.unwrap_or_default(),
        }
    }
}

/// The tokens and the cost of one model in a process and its subagents.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ModelUsage {
    input_tokens: MaybeU64,
    output_tokens: MaybeU64,
    cache_read_input_tokens: MaybeU64,
    cache_creation_input_tokens: MaybeU64,
    #[serde(rename = "costUSD")]
    cost: MaybeNumber,
}

impl ModelUsage {
    fn tokens(&self) -> u64 {
        let kinds = [
            self.input_tokens,
            self.output_tokens,
            self.cache_read_input_tokens,
            self.cache_creation_input_tokens,
        ];
        kinds.iter().filter_map(|count| count.0).fold(0, u64::saturating_add)
    }
}

/// Details of a tool's result. Some tools write a plain string instead.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
pub(super) struct ToolUseResult<'a> {
    pub(super) agent_id: MaybeStr<'a>,
    pub(super) status: MaybeStr<'a>,
    /// `create` if a call wrote a file that did not exist.
    #[serde(rename = "type")]
    pub(super) kind: MaybeStr<'a>,
    pub(super) file_path: MaybeStr<'a>,
    pub(super) content: MaybeStr<'a>,
    #[serde(rename = "structuredPatch")]
    pub(super) patch: MaybeList<MaybeObject<PatchHunk<'a>>>,
    exit_code: MaybeNumber,
    /// The status of an HTTP answer.
    code: MaybeNumber,
    success: MaybeBool,
    interrupted: MaybeBool,
    /// True for the receipt of a subagent in the background.
    is_async: MaybeBool,
    /// The ID of a command that goes on in the background.
    #[serde(rename = "backgroundTaskId")]
    background_task: MaybeStr<'a>,
    /// The ID of a workflow or a monitor that was started.
    #[serde(rename = "taskId")]
    started_task: MaybeStr<'a>,
    /// Maximum duration of a started monitor, in milliseconds.
    #[serde(rename = "timeoutMs")]
    timeout: MaybeNumber,
    /// The ID of a subagent that had ended and goes on.
    pub(super) revived_agent_id: MaybeStr<'a>,
    /// The command in the background that a call looked at.
    #[serde(rename = "shellId")]
    shell: MaybeStr<'a>,
    stdout: MaybeStr<'a>,
    stderr: MaybeStr<'a>,
    /// The path of the file that holds the whole output, on the machine where it was written.
    #[serde(rename = "persistedOutputPath")]
    output_path: MaybeStr<'a>,
    task: MaybeObject<WatchedTask<'a>>,
    /// The ID of the task that a call stopped.
    #[serde(rename = "task_id")]
    stopped_task: MaybeStr<'a>,
    /// The same in older versions.
    #[serde(rename = "shell_id")]
    stopped_shell: MaybeStr<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct WatchedTask<'a> {
    #[serde(rename = "task_id")]
    id: MaybeStr<'a>,
    status: MaybeStr<'a>,
    #[serde(rename = "exitCode")]
    exit_code: MaybeNumber,
    output: MaybeStr<'a>,
}

impl ToolUseResult<'_> {
    /// Returns the ID of the work that goes on after this result, if there is any; empty if the
    /// result does not name it.
    pub(super) fn started_work(&self) -> Option<&str> {
        let ids = [&self.background_task, &self.revived_agent_id];
        if let Some(id) = ids.into_iter().map(MaybeStr::as_str).find(|id| !id.is_empty()) {
            return Some(id);
        }
        let is_monitor = !self.started_task.as_str().is_empty() && self.timeout.0.is_some();
        let is_receipt =
            self.is_async.is_set() || self.status.as_str() == "async_launched" || is_monitor;
        let ids = [self.started_task.as_str(), self.agent_id.as_str()];
        let id = ids.into_iter().find(|id| !id.is_empty());
        is_receipt.then(|| id.unwrap_or_default())
    }

    /// Returns the ID, the status, the exit code and the output of the work in the background that
    /// the call looked at.
    pub(super) fn watched_work(&self) -> Option<(&str, &str, Option<i64>, &str)> {
        if let Some(task) = &self.task.0 {
            let (status, output) = (task.status.as_str(), task.output.as_str());
            return Some((task.id.as_str(), status, task.exit_code.as_i64(), output));
        }
        let id = Some(self.shell.as_str()).filter(|id| !id.is_empty())?;
        let outputs = [self.stderr.as_str(), self.stdout.as_str()];
        let output = outputs.into_iter().find(|output| !output.is_empty()).unwrap_or_default();
        Some((id, self.status.as_str(), self.exit_code.as_i64(), output))
    }

    /// Returns the name of the file that holds the whole output; empty if there is none.
    pub(super) fn spilled_file(&self) -> &str {
        self.output_path.as_str().rsplit(['/', '\\']).next().unwrap_or_default()
    }

    pub(super) fn stopped_task(&self) -> Option<&str> {
        let ids = [self.stopped_task.as_str(), self.stopped_shell.as_str()];
        ids.into_iter().find(|id| !id.is_empty())
    }

    pub(super) fn own_exit_code(&self) -> Option<i64> {
        self.exit_code.as_i64().filter(|_| self.watched_work().is_none())
    }

    /// Returns the outcome of a call whose result is not marked as an error.
    pub(super) fn outcome(&self) -> Outcome {
        let code = self.code.as_i64().unwrap_or_default();
        let failed = self.own_exit_code().is_some_and(|code| code != 0)
            || self.success.0 == Some(false)
            || code >= HTTP_ERROR_MIN;
        match self.status.as_str() {
            _ if failed => Outcome::Failed,
            _ if self.interrupted.is_set() => Outcome::Unknown,
            // The status belongs to the watched task.
            _ if self.watched_work().is_some() => Outcome::Ok,
            "failed" | "error" => Outcome::Failed,
            "killed" | "stopped" | "cancelled" | "interrupted" => Outcome::Unknown,
            _ => Outcome::Ok,
        }
    }
}

/// A hunk of a recorded diff. Its lines are made for display: tabs may have become spaces.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PatchHunk<'a> {
    #[serde(rename = "oldStart")]
    pub(super) old_start: MaybeU64,
    #[serde(borrow)]
    pub(super) lines: MaybeList<MaybeStr<'a>>,
}

#[derive(Debug, Default)]
pub(super) enum MessageContent<'a> {
    #[default]
    None,
    Text(Cow<'a, str>),
    Blocks(Vec<ContentBlock<'a>>),
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct ContentBlock<'a> {
    #[serde(rename = "type")]
    pub(super) kind: MaybeStr<'a>,
    pub(super) text: MaybeStr<'a>,
    pub(super) thinking: MaybeStr<'a>,
    pub(super) id: MaybeStr<'a>,
    pub(super) name: MaybeStr<'a>,
    pub(super) input: Option<&'a RawValue>,
    pub(super) tool_use_id: MaybeStr<'a>,
    pub(super) content: MessageContent<'a>,
    pub(super) is_error: MaybeBool,
    pub(super) source: MaybeObject<Media<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct Media<'a> {
    pub(super) media_type: MaybeStr<'a>,
    pub(super) data: MaybeStr<'a>,
}

deserialize_lenient!([: 'a, 'a] MessageContent<'a>;);

impl<'de: 'a, 'a> Lenient<'de> for MessageContent<'a> {
    fn from_text(text: Cow<'de, str>) -> Self {
        MessageContent::Text(text)
    }

    fn from_list<A: SeqAccess<'de>>(list: A) -> Result<Self, A::Error> {
        objects(list).map(MessageContent::Blocks)
    }
}

/// Decodes a line and calls `on_line` with it. Returns false if the line is not a JSON object.
pub(super) fn decode(text: &str, on_line: impl FnOnce(&TranscriptLine<'_>)) -> bool {
    match serde_json::from_str::<MaybeObject<TranscriptLine<'_>>>(text) {
        Ok(MaybeObject(Some(line))) => {
            on_line(&line);
            true
        }
        Ok(MaybeObject(None)) | Err(_) => false,
    }
}

pub(super) struct LineMessage<'a> {
    /// `user` or `assistant`.
    pub(super) kind: &'a str,
    pub(super) at_ms: Option<i64>,
    pub(super) message: &'a Message<'a>,
    /// The subagent that this progress report is about, if the line is one.
    pub(super) agent_id: Option<&'a str>,
}

impl TranscriptLine<'_> {
    /// Returns the cost so far of the process that wrote the record.
    pub(super) fn stated_cost(&self) -> Option<StatedCost> {
        let models = || {
            let all = self.model_usage.0.iter().flatten();
            all.filter_map(|(model, usage)| Some((model, usage.0.as_ref()?)))
        };
        let by_model = models().take(MODELS_MAX);
        Some(StatedCost {
            total: self.total_cost.as_usd()?,
            by_model: by_model
                .filter_map(|(model, usage)| {
                    Some((shorten(model, MODEL_MAX), usage.cost.as_usd()?))
                })
                .collect(),
            tokens: models().map(|(_, usage)| usage.tokens()).fold(0, u64::saturating_add),
            includes_children: true,
            is_partial: self.has_unknown_cost.is_set(),
        })
    }

    /// Returns the session from which this record was copied, if the record states it.
    pub(super) fn copied_from(&self) -> Option<&str> {
        let original = self.original.0.as_ref().map(|original| original.session.as_str());
        let sources = [original.unwrap_or_default(), self.request_session.as_str()];
        let own = self.session_id.as_str();
        sources.into_iter().find(|id| !id.is_empty() && !own.is_empty() && *id != own)
    }

    /// Returns the result of an agent in the journal of a workflow: a text, or any other value as
    /// JSON.
    pub(super) fn returned_text(&self) -> Option<Cow<'_, str>> {
        let json = self.result?.get();
        let text = serde_json::from_str(json).map_or(Cow::Borrowed(json), Cow::Owned);
        Some(text).filter(|text: &Cow<'_, str>| !text.trim().is_empty())
    }

    pub(super) fn permission_to_run(&self) -> Permission {
        let permission = self.permission.0.as_ref().map(|permission| permission.decision.as_str());
        match (permission, self.denial.as_str()) {
            _ if self.is_denied_before_run.is_set() => Permission::Refused,
            _ if self.is_denied_after_run.is_set() => Permission::Given,
            (Some("reject"), _) => Permission::Refused,
            (Some("accept"), _) => Permission::Given,
            (_, "") => Permission::Unknown,
            (_, "permission-rule") => Permission::Refused,
            // The program also writes these for calls that were stopped.
            _ => Permission::Unclear,
        }
    }

    /// Returns true if the program, or another agent, wrote a user's message.
    pub(super) fn is_of_program(&self) -> bool {
        let origin = self.origin.0.as_ref().map(|origin| origin.kind.as_str());
        origin.is_some_and(|kind| !matches!(kind, "" | "human")) || self.source.as_str() == "system"
    }

    /// Returns the report on work in the background that the line holds outside of a message.
    pub(super) fn queued_report(&self) -> Option<&str> {
        let attachment = self.attachment.0.as_ref();
        let text = match self.kind.as_str() {
            "queue-operation" => self.content.as_str(),
            "attachment" if attachment?.mode.as_str() == "task-notification" => {
                attachment?.prompt.as_str()
            }
            _ => return None,
        };
        Notification::parse_all(text).next().map(|_| text)
    }

    pub(super) fn line_message(&self) -> Option<LineMessage<'_>> {
        let at_ms = parse_millis(self.timestamp.as_str());
        let is_message = |kind: &str| matches!(kind, "user" | "assistant");
        match self.kind.as_str() {
            kind if is_message(kind) => {
                Some(LineMessage { kind, at_ms, message: self.message.0.as_ref()?, agent_id: None })
            }
            "progress" => {
                let data =
                    self.data.0.as_ref().filter(|data| data.kind.as_str() == "agent_progress")?;
                let inner =
                    data.message.0.as_ref().filter(|inner| is_message(inner.kind.as_str()))?;
                let agent = data.agent_id.0.as_deref().filter(|agent| !agent.is_empty())?;
                Some(LineMessage {
                    kind: inner.kind.as_str(),
                    at_ms: parse_millis(inner.timestamp.as_str()).or(at_ms),
                    message: inner.message.0.as_ref()?,
                    agent_id: Some(agent),
                })
            }
            _ => None,
        }
    }
}

impl Message<'_> {
    pub(super) fn is_synthetic(&self) -> bool {
        self.model.as_str() == SYNTHETIC_MODEL
    }
}

impl<'a> MessageContent<'a> {
    /// Returns the blocks, or an empty slice for a plain text.
    pub(super) fn blocks(&self) -> &[ContentBlock<'a>] {
        match self {
            MessageContent::Blocks(blocks) => blocks,
            MessageContent::None | MessageContent::Text(_) => &[],
        }
    }

    /// Returns the text of all blocks, one block per line. Other media are named in brackets.
    pub(super) fn text(&self) -> Cow<'_, str> {
        match self {
            MessageContent::None => Cow::Borrowed(""),
            MessageContent::Text(text) => Cow::Borrowed(text),
            MessageContent::Blocks(blocks) => {
                let mut parts: Vec<Cow<'_, str>> =
                    blocks.iter().filter_map(ContentBlock::visible_text).collect();
                match parts.as_mut_slice() {
                    [part] => std::mem::take(part),
                    _ => Cow::Owned(parts.join("\n")),
                }
            }
        }
    }
}

impl ContentBlock<'_> {
    /// Returns the text that a reader of the conversation sees. Returns `None` for calls, results
    /// and thoughts.
    pub(super) fn visible_text(&self) -> Option<Cow<'_, str>> {
        match self.kind.as_str() {
            "text" => self.text.0.as_deref().map(Cow::Borrowed),
            "tool_use" | "tool_result" | "thinking" | "redacted_thinking" => None,
            // An image, a document, or a type from a later version.
            kind => {
                let media = self.source.0.as_ref();
                let media_type = media
                    .map(|media| media.media_type.as_str())
                    .filter(|media_type| !media_type.is_empty());
                let bytes = media.map_or(0, |media| media.data.as_str().len()) / 4 * 3;
                Some(Cow::Owned(match media_type {
                    Some(media_type) => format!("[{kind}: {media_type}, about {bytes} B]"),
                    None => format!("[{kind}]"),
                }))
            }
        }
    }
}
