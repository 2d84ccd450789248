//! The schema of events. A field of an unexpected type counts as absent.

use std::borrow::Cow;

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::MapAccess;
use serde::de::value::MapAccessDeserializer;
use serde_json::Number;
use serde_json::value::RawValue;

use super::super::lenient::{
    Lenient, MaybeBool, MaybeI64, MaybeList, MaybeNumber, MaybeObject, MaybeStr, MaybeText,
    MaybeU64, deserialize_lenient, object,
};
use super::super::transcript::{Role, Turn, parse_millis};
use super::super::value::parse_utc;

/// The work of a command that goes on after its result.
pub(super) const SHELL: &str = "shell";

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct Event<'a> {
    pub(super) id: Word<'a>,
    pub(super) timestamp: MaybeStr<'a>,
    /// The author: `agent`, `user`, `environment` or `hook`.
    pub(super) source: MaybeStr<'a>,

    /// The type of a version 1 event.
    pub(super) kind: MaybeStr<'a>,
    /// The event before this one.
    pub(super) parent_id: MaybeStr<'a>,
    /// The type of a version 0 event, or the action of a version 1 event.
    pub(super) action: WordOr<'a, EventFields<'a>>,
    /// The type of a version 0 event, or the result of a version 1 event.
    pub(super) observation: WordOr<'a, Observation<'a>>,

    /// The event that a version 0 observation results from.
    pub(super) cause: Word<'a>,
    pub(super) message: MaybeStr<'a>,
    pub(super) args: Option<&'a RawValue>,
    /// The text of a version 0 observation, or the parts of a call of another agent.
    pub(super) content: MaybeText<'a>,
    pub(super) extras: MaybeObject<Extras<'a>>,
    pub(super) tool_call_metadata: MaybeObject<ToolCallMetadata<'a>>,
    pub(super) llm_metrics: MaybeObject<Metrics<'a>>,

    pub(super) llm_message: MaybeObject<Message<'a>>,
    pub(super) tool_name: MaybeStr<'a>,
    pub(super) tool_call_id: MaybeStr<'a>,
    pub(super) tool_call: MaybeObject<StatedCall<'a>>,
    /// The words of the agent before a call.
    pub(super) thought: MaybeText<'a>,
    pub(super) reasoning_content: MaybeStr<'a>,
    /// The event with the call of a result.
    pub(super) action_id: MaybeStr<'a>,
    pub(super) error: MaybeStr<'a>,
    pub(super) rejection_reason: MaybeStr<'a>,
    /// `user`, or `hook` for a program of the user.
    pub(super) rejection_source: MaybeStr<'a>,
    /// The name of a value of the conversation's state.
    pub(super) key: MaybeStr<'a>,
    pub(super) value: Option<&'a RawValue>,
    pub(super) code: MaybeStr<'a>,
    pub(super) detail: MaybeStr<'a>,
    pub(super) summary: MaybeStr<'a>,

    /// The name of a call of another agent.
    pub(super) title: MaybeStr<'a>,
    pub(super) status: MaybeStr<'a>,
    pub(super) raw_input: Option<&'a RawValue>,
    pub(super) raw_output: Option<&'a RawValue>,
    pub(super) is_error: MaybeBool,
}

impl Event<'_> {
    /// Returns the time in milliseconds since 1970. A time without a zone counts as UTC.
    pub(super) fn at_ms(&self) -> Option<i64> {
        let text = self.timestamp.as_str();
        parse_millis(text).or_else(|| parse_utc(text).map(Timestamp::as_millisecond))
    }

    /// Returns a turn of the event that has nothing to read.
    pub(super) fn silent_turn<'a>(&self) -> Turn<'a> {
        Turn { role: Role::System, at_ms: self.at_ms(), ..Turn::default() }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct Observation<'a> {
    pub(super) kind: MaybeStr<'a>,
    pub(super) content: MaybeText<'a>,
    /// The text in older versions.
    pub(super) output: MaybeText<'a>,
    pub(super) is_error: MaybeBool,
    /// True, or the message of an error, in older versions.
    pub(super) error: BoolOrText<'a>,
    pub(super) exit_code: MaybeI64,
    pub(super) metadata: MaybeObject<CommandMetadata>,
    pub(super) path: MaybeStr<'a>,
    pub(super) file_path: MaybeStr<'a>,
    pub(super) prev_exist: MaybeBool,
    pub(super) is_new_file: MaybeBool,
    pub(super) old_content: MaybeStr<'a>,
    pub(super) new_content: MaybeStr<'a>,
    pub(super) commit: MaybeObject<Commit<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Commit<'a> {
    #[serde(borrow)]
    pub(super) changes: JsonEntries<'a, MaybeObject<PatchedFile<'a>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct PatchedFile<'a> {
    pub(super) old_content: MaybeStr<'a>,
    pub(super) new_content: MaybeStr<'a>,
    pub(super) move_path: MaybeStr<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct Extras<'a> {
    pub(super) agent_state: MaybeStr<'a>,
    pub(super) metadata: MaybeObject<CommandMetadata>,
    /// The exit code in older versions.
    pub(super) exit_code: MaybeI64,
    pub(super) path: MaybeStr<'a>,
    pub(super) prev_exist: MaybeBool,
    pub(super) old_content: MaybeStr<'a>,
    pub(super) new_content: MaybeStr<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct CommandMetadata {
    pub(super) exit_code: MaybeI64,
}

/// Details of the answer that made a version 0 call. The answer itself repeats the event.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct ToolCallMetadata<'a> {
    pub(super) function_name: MaybeStr<'a>,
    pub(super) model_response: MaybeObject<ModelResponse<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ModelResponse<'a> {
    #[serde(borrow)]
    pub(super) model: MaybeStr<'a>,
}

/// The costs of a conversation so far.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Metrics<'a> {
    #[serde(borrow)]
    pub(super) model_name: MaybeStr<'a>,
    pub(super) accumulated_token_usage: MaybeObject<AccumulatedTokens>,
    /// The cost in dollars.
    pub(super) accumulated_cost: MaybeNumber,
}

/// Token counts. The count of the prompt includes the cache.
#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(default)]
pub(super) struct AccumulatedTokens {
    pub(super) prompt_tokens: MaybeU64,
    pub(super) completion_tokens: MaybeU64,
    pub(super) cache_read_tokens: MaybeU64,
    pub(super) cache_write_tokens: MaybeU64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct Message<'a> {
    pub(super) content: MaybeText<'a>,
    pub(super) reasoning_content: MaybeStr<'a>,
}

/// A call as the model made it.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct StatedCall<'a> {
    pub(super) name: MaybeStr<'a>,
    /// The arguments as JSON text.
    pub(super) arguments: MaybeStr<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct Arguments<'a> {
    pub(super) content: MaybeStr<'a>,
    pub(super) thought: MaybeStr<'a>,
    pub(super) final_thought: MaybeStr<'a>,
    pub(super) summary: MaybeStr<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct InstanceMetadata<'a> {
    pub(super) llm_config: MaybeObject<ModelResponse<'a>>,
    pub(super) llm: MaybeObject<ModelResponse<'a>>,
}

/// A string or a non-negative number, as text.
#[derive(Debug, Default)]
pub(super) struct Word<'a>(pub(super) Option<Cow<'a, str>>);

impl Word<'_> {
    pub(super) fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }
}

impl<'de: 'a, 'a> Lenient<'de> for Word<'a> {
    fn from_text(text: Cow<'de, str>) -> Self {
        Word(Some(text))
    }

    fn from_number(number: Number) -> Self {
        Word(number.as_u64().map(|number| number.to_string().into()))
    }
}

#[derive(Debug, Default)]
pub(super) enum WordOr<'a, T> {
    #[default]
    None,
    Word(Cow<'a, str>),
    Object(T),
}

impl<T> WordOr<'_, T> {
    pub(super) fn word(&self) -> &str {
        match self {
            WordOr::Word(word) => word,
            WordOr::None | WordOr::Object(_) => "",
        }
    }

    pub(super) fn object(&self) -> Option<&T> {
        match self {
            WordOr::Object(object) => Some(object),
            WordOr::None | WordOr::Word(_) => None,
        }
    }
}

impl<'de: 'a, 'a, T: Deserialize<'de>> Lenient<'de> for WordOr<'a, T> {
    fn from_text(text: Cow<'de, str>) -> Self {
        WordOr::Word(text)
    }

    fn from_object<A: MapAccess<'de>>(map: A) -> Result<Self, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(WordOr::Object)
    }
}

/// A flag, or a text that is the reason for it.
#[derive(Debug, Default)]
pub(super) struct BoolOrText<'a> {
    pub(super) is_set: bool,
    pub(super) text: Cow<'a, str>,
}

impl<'de: 'a, 'a> Lenient<'de> for BoolOrText<'a> {
    fn from_bool(is_set: bool) -> Self {
        BoolOrText { is_set, text: Cow::Borrowed("") }
    }

    fn from_text(text: Cow<'de, str>) -> Self {
        BoolOrText { is_set: !text.is_empty(), text }
    }
}

/// The entries of an object in their order; empty for any other type.
#[derive(Debug)]
pub(super) struct JsonEntries<'a, T>(pub(super) Vec<(Cow<'a, str>, T)>);

impl<T> Default for JsonEntries<'_, T> {
    fn default() -> Self {
        JsonEntries(Vec::new())
    }
}

impl<'de: 'a, 'a, T: Deserialize<'de>> Lenient<'de> for JsonEntries<'a, T> {
    fn from_object<A: MapAccess<'de>>(mut map: A) -> Result<Self, A::Error> {
        let mut entries = Vec::new();
        while let Some((name, value)) = map.next_entry::<MaybeStr<'de>, T>()? {
            entries.push((name.0.unwrap_or_default(), value));
        }
        Ok(JsonEntries(entries))
    }
}

deserialize_lenient! {
    [: 'a, 'a] Word<'a>;
    [: 'a, 'a, T: Deserialize<'de>] WordOr<'a, T>;
    [: 'a, 'a] BoolOrText<'a>;
    [: 'a, 'a, T: Deserialize<'de>] JsonEntries<'a, T>;
}

/// The fields of an object, not decoded.
pub(super) type EventFields<'a> = JsonEntries<'a, &'a RawValue>;

impl<'a> EventFields<'a> {
    /// Returns the string in the field `name`; empty if it has none.
    pub(super) fn text(&self, name: &str) -> Cow<'a, str> {
        let field = self.0.iter().find(|(other, _)| other == name);
        let text =
            field.and_then(|(_, value)| serde_json::from_str::<MaybeStr<'a>>(value.get()).ok());
        text.and_then(|text| text.0).unwrap_or_default()
    }
}

/// Decodes a record and calls `use_events` with its events. Returns `None` if the record is no JSON
/// object. A list of events, as older evaluations have, is several events.
pub(super) fn decode<T>(text: &str, use_events: impl FnOnce(&[Event<'_>]) -> T) -> Option<T> {
    if text.trim_start().starts_with('[') {
        let events: MaybeList<MaybeObject<Event<'_>>> = serde_json::from_str(text).ok()?;
        let events: Vec<Event<'_>> = events.0.into_iter().filter_map(|event| event.0).collect();
        return (!events.is_empty()).then(|| use_events(&events));
    }
    let event = object::<Event<'_>>(text)?;
    Some(use_events(&[event]))
}
