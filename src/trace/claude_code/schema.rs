//! The schema of transcript lines, and their decoder.

use std::borrow::Cow;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::super::lenient::{MaybeBool, MaybeList, MaybeObject, MaybeStr, MaybeU64, ignore_kinds};
use super::super::transcript::parse_millis;

/// The model name of messages that no model wrote.
const SYNTHETIC_MODEL: &str = "<synthetic>";

/// A line of a transcript. Fields of an unexpected type count as absent.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct TranscriptLine<'a> {
    #[serde(borrow, rename = "type")]
    pub(super) kind: MaybeStr<'a>,
    #[serde(borrow)]
    pub(super) uuid: MaybeStr<'a>,
    #[serde(borrow, rename = "parentUuid")]
    pub(super) parent_uuid: MaybeStr<'a>,
    #[serde(borrow, rename = "sessionId")]
    pub(super) session_id: MaybeStr<'a>,
    #[serde(borrow, rename = "agentId")]
    pub(super) agent_id: MaybeStr<'a>,
    #[serde(rename = "isSidechain")]
    pub(super) is_sidechain: MaybeBool,
    #[serde(rename = "isMeta")]
    pub(super) is_meta: MaybeBool,
    #[serde(rename = "isCompactSummary")]
    pub(super) is_compact_summary: MaybeBool,
    #[serde(rename = "isApiErrorMessage")]
    pub(super) is_api_error: MaybeBool,
    #[serde(borrow)]
    pub(super) timestamp: MaybeStr<'a>,
    #[serde(borrow)]
    pub(super) cwd: MaybeStr<'a>,
    #[serde(borrow, rename = "gitBranch")]
    pub(super) git_branch: MaybeStr<'a>,
    #[serde(borrow)]
    pub(super) summary: MaybeStr<'a>,
    /// The ID of the last line that a summary is about.
    #[serde(borrow, rename = "leafUuid")]
    pub(super) leaf: MaybeStr<'a>,
    #[serde(borrow, rename = "aiTitle")]
    pub(super) ai_title: MaybeStr<'a>,
    #[serde(borrow, rename = "customTitle")]
    pub(super) custom_title: MaybeStr<'a>,
    #[serde(borrow)]
    pub(super) message: MaybeObject<Message<'a>>,
    #[serde(borrow)]
    pub(super) data: MaybeObject<Progress<'a>>,
    /// Reason why the call of a result was refused.
    #[serde(borrow, rename = "toolDenialKind")]
    pub(super) denial: MaybeStr<'a>,
    /// True if a call ran although its result was refused.
    #[serde(rename = "toolDenialAfterRun")]
    pub(super) is_denied_after_run: MaybeBool,
    /// The decision on the permission of the call of a result.
    #[serde(borrow, rename = "permissionDecision")]
    pub(super) permission: MaybeObject<PermissionDecision<'a>>,
    /// The origin of a user's message that no person wrote.
    #[serde(borrow)]
    pub(super) origin: MaybeObject<Origin<'a>>,
    /// The change of the queue of messages that the user writes while the assistant works.
    #[serde(borrow)]
    pub(super) operation: MaybeStr<'a>,
    /// The queued message.
    #[serde(borrow)]
    pub(super) content: MaybeStr<'a>,
    #[serde(borrow, rename = "toolUseResult")]
    pub(super) tool_use_result: MaybeObject<ToolUseResult<'a>>,
}

/// The decision on the permission of a call.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PermissionDecision<'a> {
    /// `accept` or `reject`.
    #[serde(borrow)]
    pub(super) decision: MaybeStr<'a>,
}

/// The origin of a message.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Origin<'a> {
    #[serde(borrow)]
    pub(super) kind: MaybeStr<'a>,
}

/// Progress of a subagent, reported by the session that waits for it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Progress<'a> {
    #[serde(borrow, rename = "type")]
    pub(super) kind: MaybeStr<'a>,
    #[serde(borrow, rename = "agentId")]
    pub(super) agent_id: MaybeStr<'a>,
    /// The subagent's own line, with fewer fields.
    #[serde(borrow)]
    pub(super) message: MaybeObject<AgentLine<'a>>,
}

/// A subagent's line inside a session's line.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct AgentLine<'a> {
    #[serde(borrow, rename = "type")]
    pub(super) kind: MaybeStr<'a>,
    #[serde(borrow)]
    pub(super) timestamp: MaybeStr<'a>,
    #[serde(borrow)]
    pub(super) message: MaybeObject<Message<'a>>,
}

/// A message of a user or an assistant.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Message<'a> {
    #[serde(borrow)]
    pub(super) id: MaybeStr<'a>,
    #[serde(borrow)]
    pub(super) model: MaybeStr<'a>,
    #[serde(borrow)]
    pub(super) content: MessageContent<'a>,
    pub(super) usage: MaybeObject<TokenUsage>,
}

/// Token counts, as stated by the source.
#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(default)]
pub(super) struct TokenUsage {
    pub(super) input_tokens: MaybeU64,
    pub(super) output_tokens: MaybeU64,
    pub(super) cache_read_input_tokens: MaybeU64,
    pub(super) cache_creation_input_tokens: MaybeU64,
}

/// Details of a tool's result. Some tools write a plain string instead.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ToolUseResult<'a> {
    #[serde(borrow, rename = "agentId")]
    pub(super) agent_id: MaybeStr<'a>,
    #[serde(borrow)]
    pub(super) status: MaybeStr<'a>,
    /// `create` if a call wrote a file that did not exist.
    #[serde(borrow, rename = "type")]
    pub(super) kind: MaybeStr<'a>,
    /// The changed file.
    #[serde(borrow, rename = "filePath")]
    pub(super) file_path: MaybeStr<'a>,
    /// The content of a written file.
    #[serde(borrow)]
    pub(super) content: MaybeStr<'a>,
    #[serde(borrow, rename = "structuredPatch")]
    pub(super) patch: MaybeList<MaybeObject<PatchHunk<'a>>>,
}

/// A hunk of a recorded diff. Its lines are made for display: tabs may have become spaces.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PatchHunk<'a> {
    #[serde(borrow)]
    pub(super) lines: MaybeList<MaybeStr<'a>>,
}

/// A text or a list of blocks.
#[derive(Debug, Default)]
pub(super) enum MessageContent<'a> {
    #[default]
    None,
    Text(Cow<'a, str>),
    Blocks(Vec<ContentBlock<'a>>),
}

/// A part of a message.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ContentBlock<'a> {
    #[serde(borrow, rename = "type")]
    pub(super) kind: MaybeStr<'a>,
    #[serde(borrow)]
    pub(super) text: MaybeStr<'a>,
    #[serde(borrow)]
    pub(super) thinking: MaybeStr<'a>,
    #[serde(borrow)]
    pub(super) id: MaybeStr<'a>,
    #[serde(borrow)]
    pub(super) name: MaybeStr<'a>,
    #[serde(borrow)]
    pub(super) input: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) tool_use_id: MaybeStr<'a>,
    #[serde(borrow)]
    pub(super) content: MessageContent<'a>,
    pub(super) is_error: MaybeBool,
    #[serde(borrow)]
    pub(super) source: MaybeObject<Media<'a>>,
}

/// The source of an image or a document.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Media<'a> {
    #[serde(borrow)]
    pub(super) media_type: MaybeStr<'a>,
    #[serde(borrow)]
    pub(super) data: MaybeStr<'a>,
}

impl<'de: 'a, 'a> Deserialize<'de> for MessageContent<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<MessageContent<'a>, D::Error> {
        struct ContentVisitor<'a>(PhantomData<&'a ()>);
        impl<'de: 'a, 'a> Visitor<'de> for ContentVisitor<'a> {
            type Value = MessageContent<'a>;

            ignore_kinds!(bool number unit map);

            fn visit_borrowed_str<E: serde::de::Error>(
                self,
                text: &'de str,
            ) -> Result<MessageContent<'a>, E> {
                Ok(MessageContent::Text(Cow::Borrowed(text)))
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<MessageContent<'a>, E> {
                Ok(MessageContent::Text(Cow::Owned(text.to_owned())))
            }

            fn visit_seq<A: SeqAccess<'de>>(
                self,
                mut seq: A,
            ) -> Result<MessageContent<'a>, A::Error> {
                let mut blocks = Vec::new();
                while let Some(MaybeObject(block)) =
                    seq.next_element::<MaybeObject<ContentBlock<'a>>>()?
                {
                    blocks.extend(block);
                }
                Ok(MessageContent::Blocks(blocks))
            }
        }
        deserializer.deserialize_any(ContentVisitor(PhantomData))
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

/// A message with its time and speaker.
pub(super) struct LineMessage<'a> {
    /// `user` or `assistant`.
    pub(super) kind: &'a str,
    /// Time in milliseconds since 1970.
    pub(super) at_ms: Option<i64>,
    pub(super) message: &'a Message<'a>,
    /// The subagent that this progress report is about, if the line is one.
    pub(super) agent_id: Option<&'a str>,
}

impl TranscriptLine<'_> {
    /// Returns true if the call of the line's result ran, and `None` if the line does not say.
    pub(super) fn call_ran(&self) -> Option<bool> {
        let permission = self.permission.0.as_ref().map(|permission| permission.decision.as_str());
        if self.is_denied_after_run.is_set() {
            Some(true)
        } else if !self.denial.as_str().is_empty() {
            Some(false)
        } else {
            permission.filter(|decision| *decision == "accept").map(|_| true)
        }
    }

    /// Returns true if the program wrote a user's message to report an event.
    pub(super) fn is_notification(&self) -> bool {
        self.origin.0.as_ref().is_some_and(|origin| origin.kind.as_str() == "task-notification")
    }

    /// Returns the message, if the line holds one.
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
    /// Returns true if no model wrote the message.
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
