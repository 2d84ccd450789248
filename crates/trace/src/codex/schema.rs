//! The schema of rollout lines, and their decoder. One struct holds the fields of all records, so
//! that a line is decoded in one pass. Fields of an unexpected type count as absent.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, SeqAccess};
use serde_json::value::RawValue;

use super::super::lenient::{
    Lenient, MaybeBool, MaybeI64, MaybeObject, MaybeStr, MaybeU64, deserialize_lenient, objects,
};

/// Types of the items that the oldest versions write as lines of their own.
pub(super) const BARE_TYPES: [&str; 9] = [
    "message",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "local_shell_call",
    "web_search_call",
    "reasoning",
    "compacted",
];

/// A line. The oldest versions write the payload as the line itself.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct Line<'a> {
    pub(super) timestamp: MaybeStr<'a>,
    pub(super) ordinal: MaybeU64,
    #[serde(rename = "type")]
    pub(super) kind: MaybeStr<'a>,
    pub(super) record_type: MaybeStr<'a>,
    pub(super) payload: MaybeObject<Payload<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct Payload<'a> {
    #[serde(rename = "type")]
    pub(super) kind: MaybeStr<'a>,
    pub(super) id: MaybeStr<'a>,
    pub(super) call_id: MaybeStr<'a>,

    // The session.
    pub(super) session_id: MaybeStr<'a>,
    pub(super) cwd: MaybeStr<'a>,
    pub(super) git: MaybeObject<Git<'a>>,
    pub(super) forked_from_id: MaybeStr<'a>,
    pub(super) parent_thread_id: MaybeStr<'a>,
    pub(super) thread_source: MaybeStr<'a>,
    pub(super) source: MaybeObject<SessionSource<'a>>,
    pub(super) agent_role: MaybeStr<'a>,
    /// The names of the agent and of those above it, such as `/root/disk`.
    pub(super) agent_path: MaybeStr<'a>,
    pub(super) subagent_history_start_ordinal: MaybeU64,
    pub(super) thread_name: MaybeStr<'a>,
    pub(super) model: MaybeStr<'a>,

    // Messages.
    pub(super) role: MaybeStr<'a>,
    pub(super) content: Content<'a>,
    pub(super) summary: Content<'a>,
    pub(super) message: MaybeStr<'a>,

    // Calls and their outputs.
    pub(super) name: MaybeStr<'a>,
    pub(super) namespace: MaybeStr<'a>,
    pub(super) arguments: Option<&'a RawValue>,
    pub(super) input: MaybeStr<'a>,
    pub(super) action: Option<&'a RawValue>,
    pub(super) output: Content<'a>,
    pub(super) status: MaybeStr<'a>,

    // Turns.
    pub(super) reason: MaybeStr<'a>,
    pub(super) last_agent_message: MaybeStr<'a>,
    pub(super) num_turns: MaybeU64,
    pub(super) info: MaybeObject<TokenInfo>,

    // Operations.
    pub(super) thread_id: MaybeStr<'a>,
    pub(super) item: MaybeObject<Box<Payload<'a>>>,
    pub(super) command: Option<&'a RawValue>,
    pub(super) aggregated_output: MaybeStr<'a>,
    pub(super) stdout: MaybeStr<'a>,
    pub(super) stderr: MaybeStr<'a>,
    pub(super) exit_code: MaybeI64,
    pub(super) success: MaybeBool,
    pub(super) duration: MaybeObject<Duration>,
    pub(super) changes: Option<&'a RawValue>,
    pub(super) server: MaybeStr<'a>,
    pub(super) tool: MaybeStr<'a>,
    pub(super) invocation: MaybeObject<Invocation<'a>>,
    pub(super) result: MaybeObject<McpResult<'a>>,
    pub(super) error: ErrorText<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Git<'a> {
    #[serde(borrow)]
    pub(super) branch: MaybeStr<'a>,
}

/// The origin of a session that no person started.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct SessionSource<'a> {
    #[serde(borrow)]
    pub(super) subagent: Subagent<'a>,
}

/// The kind of a subagent: a word, or an object with its parent.
#[derive(Debug, Default)]
pub(super) struct Subagent<'a> {
    pub(super) kind: MaybeStr<'a>,
    pub(super) spawn: Option<ThreadSpawn<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct ThreadSpawn<'a> {
    pub(super) parent_thread_id: MaybeStr<'a>,
    pub(super) agent_role: MaybeStr<'a>,
    /// The names of the agent and of those above it, such as `/root/disk`.
    pub(super) agent_path: MaybeStr<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct SubagentObject<'a> {
    #[serde(borrow)]
    thread_spawn: MaybeObject<ThreadSpawn<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct TokenInfo {
    pub(super) total_token_usage: MaybeObject<RolloutTokens>,
    /// The tokens of the last response.
    pub(super) last_token_usage: MaybeObject<RolloutTokens>,
}

/// Token counts as stated by the source. The cached ones are part of the input.
#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(default)]
pub(super) struct RolloutTokens {
    pub(super) input_tokens: MaybeU64,
    pub(super) cached_input_tokens: MaybeU64,
    pub(super) cache_write_input_tokens: MaybeU64,
    pub(super) output_tokens: MaybeU64,
}

#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(default)]
pub(super) struct Duration {
    secs: MaybeU64,
    nanos: MaybeU64,
}

impl Duration {
    pub(super) fn millis(self) -> Option<u64> {
        let nanos = self.nanos.0.unwrap_or_default();
        self.secs.0?.checked_mul(1_000)?.checked_add(nanos / 1_000_000)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct Invocation<'a> {
    pub(super) server: MaybeStr<'a>,
    pub(super) tool: MaybeStr<'a>,
    pub(super) arguments: Option<&'a RawValue>,
}

/// The result of an MCP server's tool, or the error of calling it.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct McpResult<'a> {
    #[serde(rename = "Ok")]
    pub(super) ok: MaybeObject<ToolOutput<'a>>,
    #[serde(rename = "Err")]
    pub(super) err: MaybeStr<'a>,
    pub(super) content: Content<'a>,
    #[serde(rename = "isError")]
    pub(super) is_error: MaybeBool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ToolOutput<'a> {
    #[serde(borrow)]
    pub(super) content: Content<'a>,
    #[serde(rename = "isError")]
    pub(super) is_error: MaybeBool,
}

/// An error: its message, alone or in an object.
#[derive(Debug, Default)]
pub(super) struct ErrorText<'a>(pub(super) Option<Cow<'a, str>>);

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ErrorObject<'a> {
    #[serde(borrow)]
    message: MaybeStr<'a>,
}

/// A text, a list of parts, or an object that holds either of them.
#[derive(Debug, Default)]
pub(super) enum Content<'a> {
    #[default]
    None,
    Text(Cow<'a, str>),
    Parts(Vec<ContentPart<'a>>),
    Object(Box<ContentObject<'a>>),
}

/// An output with the flag of its success.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ContentObject<'a> {
    #[serde(borrow)]
    content: PlainContent<'a>,
    pub(super) success: MaybeBool,
}

#[derive(Debug, Default)]
struct PlainContent<'a>(Vec<ContentPart<'a>>);

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct ContentPart<'a> {
    #[serde(rename = "type")]
    pub(super) kind: MaybeStr<'a>,
    pub(super) text: MaybeStr<'a>,
}

impl<'a> Content<'a> {
    /// Returns the parts; none for a plain text.
    pub(super) fn parts(&self) -> &[ContentPart<'a>] {
        match self {
            Content::None | Content::Text(_) => &[],
            Content::Parts(parts) => parts,
            Content::Object(object) => &object.content.0,
        }
    }

    /// Returns the texts, joined by `separator`. Media have none.
    pub(super) fn text(&self, separator: &str) -> Cow<'_, str> {
        if let Content::Text(text) = self {
            return Cow::Borrowed(text);
        }
        let mut texts = self.parts().iter().filter_map(|part| part.text.0.as_deref());
        match (texts.next(), texts.next()) {
            (None, _) => Cow::Borrowed(""),
            (Some(only), None) => Cow::Borrowed(only),
            (Some(first), Some(second)) => {
                let all = [first, second].into_iter().chain(texts);
                Cow::Owned(all.collect::<Vec<_>>().join(separator))
            }
        }
    }

    pub(super) fn success(&self) -> Option<bool> {
        match self {
            Content::Object(object) => object.success.0,
            Content::None | Content::Text(_) | Content::Parts(_) => None,
        }
    }
}

deserialize_lenient! {
    [: 'a, 'a] Content<'a>;
    [: 'a, 'a] PlainContent<'a>;
    [: 'a, 'a] Subagent<'a>;
    [: 'a, 'a] ErrorText<'a>;
    [: 'a, 'a] StatedChanges<'a>;
}

impl<'de: 'a, 'a> Lenient<'de> for Content<'a> {
    fn from_text(text: Cow<'de, str>) -> Self {
        Content::Text(text)
    }

    fn from_list<A: SeqAccess<'de>>(list: A) -> Result<Self, A::Error> {
        objects(list).map(Content::Parts)
    }

    fn from_object<A: MapAccess<'de>>(map: A) -> Result<Self, A::Error> {
        ContentObject::deserialize(MapAccessDeserializer::new(map))
            .map(|object| Content::Object(Box::new(object)))
    }
}

impl<'de: 'a, 'a> Lenient<'de> for PlainContent<'a> {
    fn from_text(text: Cow<'de, str>) -> Self {
        PlainContent(vec![ContentPart { kind: MaybeStr::default(), text: MaybeStr(Some(text)) }])
    }

    fn from_list<A: SeqAccess<'de>>(list: A) -> Result<Self, A::Error> {
        objects(list).map(PlainContent)
    }
}

impl<'de: 'a, 'a> Lenient<'de> for Subagent<'a> {
    fn from_text(text: Cow<'de, str>) -> Self {
        Subagent { kind: MaybeStr(Some(text)), spawn: None }
    }

    fn from_object<A: MapAccess<'de>>(map: A) -> Result<Self, A::Error> {
        let object = SubagentObject::deserialize(MapAccessDeserializer::new(map))?;
        let spawn = object.thread_spawn.0.unwrap_or_default();
        Ok(Subagent { kind: MaybeStr::default(), spawn: Some(spawn) })
    }
}

impl<'de: 'a, 'a> Lenient<'de> for ErrorText<'a> {
    fn from_text(text: Cow<'de, str>) -> Self {
        ErrorText(Some(text))
    }

    fn from_object<A: MapAccess<'de>>(map: A) -> Result<Self, A::Error> {
        let object = ErrorObject::deserialize(MapAccessDeserializer::new(map))?;
        Ok(ErrorText(Some(object.message.0.unwrap_or_default())))
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct StatedChange<'a> {
    /// `add`, `update` or `delete`.
    #[serde(rename = "type")]
    pub(super) kind: MaybeStr<'a>,
    /// The whole content that was added or deleted.
    pub(super) content: MaybeStr<'a>,
    pub(super) unified_diff: MaybeStr<'a>,
    pub(super) move_path: MaybeStr<'a>,
}

/// The changes of an operation, by the paths of the files, in their order.
#[derive(Debug, Default)]
pub(super) struct StatedChanges<'a>(pub(super) Vec<(Cow<'a, str>, StatedChange<'a>)>);

impl<'de: 'a, 'a> Lenient<'de> for StatedChanges<'a> {
    fn from_object<A: MapAccess<'de>>(mut map: A) -> Result<Self, A::Error> {
        let mut changes = Vec::new();
        while let Some((path, change)) =
            map.next_entry::<MaybeStr<'a>, MaybeObject<StatedChange<'a>>>()?
        {
            changes.extend(path.0.zip(change.0));
        }
        Ok(StatedChanges(changes))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RecordKind<'a> {
    SessionMeta,
    TurnContext,
    /// A message, a call, an output or a thought.
    Item,
    Event,
    /// A summary of the conversation so far.
    Compacted,
    Ignored,
    Unknown(&'a str),
}

impl<'a> Line<'a> {
    /// Returns the kind of the line. `payload` is the payload of the line, or the line itself.
    pub(super) fn record_kind<'s>(&'s self, payload: &Payload<'_>) -> RecordKind<'s> {
        if self.payload.0.is_none() {
            return match self.kind.as_str() {
                "session_meta" => RecordKind::SessionMeta,
                "" if !self.record_type.as_str().is_empty() => RecordKind::Ignored,
                "" if payload.id.0.is_some() => RecordKind::SessionMeta,
                "" => RecordKind::Unknown("(none)"),
                "compacted" => RecordKind::Compacted,
                kind if BARE_TYPES.contains(&kind) => RecordKind::Item,
                kind => RecordKind::Unknown(kind),
            };
        }
        match self.kind.as_str() {
            "session_meta" => RecordKind::SessionMeta,
            "turn_context" => RecordKind::TurnContext,
            "response_item" | "inter_agent_communication" => RecordKind::Item,
            "event_msg" => RecordKind::Event,
            "compacted" => RecordKind::Compacted,
            "world_state" | "token_usage_record" | "inter_agent_communication_metadata" => {
                RecordKind::Ignored
            }
            "" => RecordKind::Unknown("(none)"),
            kind => RecordKind::Unknown(kind),
        }
    }
}

/// Decodes a line and calls `on_line` with it and its payload. Returns false if the line is not a
/// JSON object.
pub(super) fn decode(text: &str, on_line: impl FnOnce(&Line<'_>, &Payload<'_>)) -> bool {
    let Ok(MaybeObject(Some(line))) = serde_json::from_str::<MaybeObject<Line<'_>>>(text) else {
        return false;
    };
    if let Some(payload) = &line.payload.0 {
        on_line(&line, payload);
        return true;
    }
    match serde_json::from_str::<Payload<'_>>(text) {
        Ok(payload) => on_line(&line, &payload),
        Err(_) => return false,
    }
    true
}
