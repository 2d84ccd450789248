//! The schema of the records of a session, and their decoder.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, SeqAccess};
use serde_json::value::RawValue;

use super::super::lenient::{
    Lenient, MaybeBool, MaybeList, MaybeObject, MaybeStr, MaybeU64, check_length,
    deserialize_lenient, object,
};

/// A line of a log, or a message of a document. Fields of an unexpected type count as absent.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
pub(super) struct LogRecord<'a> {
    /// The message that is removed, with all after it.
    #[serde(rename = "$rewindTo")]
    pub(super) rewind_to: MaybeStr<'a>,
    #[serde(rename = "$set")]
    pub(super) changes: MaybeObject<LogMetadata<'a>>,
    session_id: MaybeStr<'a>,
    project_hash: MaybeStr<'a>,
    start_time: MaybeStr<'a>,
    last_updated: MaybeStr<'a>,
    kind: MaybeStr<'a>,
    summary: MaybeStr<'a>,
    directories: MaybeList<MaybeStr<'a>>,
    messages: Option<&'a RawValue>,
    pub(super) id: MaybeStr<'a>,
    pub(super) timestamp: MaybeStr<'a>,
    #[serde(rename = "type")]
    pub(super) message_type: MaybeStr<'a>,
    pub(super) content: PartList<'a>,
    /// The message as the user typed it, if the program completed it.
    pub(super) display_content: PartList<'a>,
    pub(super) model: MaybeStr<'a>,
    pub(super) thoughts: MaybeList<MaybeObject<Thought<'a>>>,
    pub(super) tokens: MaybeObject<MessageTokenCounts>,
    pub(super) tool_calls: MaybeList<MaybeObject<ToolCallRecord<'a>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
pub(super) struct LogMetadata<'a> {
    pub(super) session_id: MaybeStr<'a>,
    pub(super) start_time: MaybeStr<'a>,
    pub(super) last_updated: MaybeStr<'a>,
    /// `main` or `subagent`.
    pub(super) kind: MaybeStr<'a>,
    pub(super) summary: MaybeStr<'a>,
    pub(super) directories: MaybeList<MaybeStr<'a>>,
    pub(super) messages: Option<&'a RawValue>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct Thought<'a> {
    pub(super) subject: MaybeStr<'a>,
    pub(super) description: MaybeStr<'a>,
}

/// The token counts of a message. The cached ones are part of the input.
#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(default)]
pub(super) struct MessageTokenCounts {
    pub(super) input: MaybeU64,
    pub(super) output: MaybeU64,
    pub(super) cached: MaybeU64,
    pub(super) thoughts: MaybeU64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct ToolCallRecord<'a> {
    pub(super) id: MaybeStr<'a>,
    pub(super) name: MaybeStr<'a>,
    pub(super) args: Option<&'a RawValue>,
    pub(super) result: PartList<'a>,
    pub(super) status: MaybeStr<'a>,
    /// Time of the result.
    pub(super) timestamp: MaybeStr<'a>,
    #[serde(rename = "resultDisplay")]
    pub(super) display: MaybeObject<DisplayedFile<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct DisplayedFile<'a> {
    #[serde(borrow, rename = "filePath")]
    pub(super) path: MaybeStr<'a>,
    #[serde(rename = "isNewFile")]
    pub(super) is_new: MaybeBool,
    #[serde(rename = "diffStat")]
    pub(super) stat: MaybeObject<DiffStat>,
}

/// The numbers of lines that the model changed, and the user in the model's proposal.
#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(default)]
pub(super) struct DiffStat {
    pub(super) model_added_lines: MaybeU64,
    pub(super) model_removed_lines: MaybeU64,
    pub(super) user_added_lines: MaybeU64,
    pub(super) user_removed_lines: MaybeU64,
}

/// The parts of a message or a result: a text, a part, or a list of both.
#[derive(Debug, Default)]
pub(super) struct PartList<'a>(pub(super) Vec<MessagePart<'a>>);

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct MessagePart<'a> {
    pub(super) text: MaybeStr<'a>,
    pub(super) thought: MaybeBool,
    #[serde(rename = "functionResponse")]
    pub(super) response: MaybeObject<FunctionResponse<'a>>,
}

/// The result of a call, as the model received it.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct FunctionResponse<'a> {
    /// The ID of the call.
    pub(super) id: MaybeStr<'a>,
    pub(super) response: Option<&'a RawValue>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct ResponseFields<'a> {
    output: Option<&'a RawValue>,
    error: Option<&'a RawValue>,
}

deserialize_lenient!([: 'a, 'a] PartList<'a>;);

impl<'de: 'a, 'a> Lenient<'de> for PartList<'a> {
    fn from_text(text: Cow<'de, str>) -> Self {
        PartList(vec![MessagePart { text: MaybeStr(Some(text)), ..MessagePart::default() }])
    }

    fn from_object<A: MapAccess<'de>>(map: A) -> Result<Self, A::Error> {
        MessagePart::deserialize(MapAccessDeserializer::new(map)).map(|part| PartList(vec![part]))
    }

    fn from_list<A: SeqAccess<'de>>(mut list: A) -> Result<Self, A::Error> {
        let mut parts = Vec::new();
        while let Some(PartList(nested)) = list.next_element::<PartList<'a>>()? {
            parts.extend(nested);
            check_length(&parts)?;
        }
        Ok(PartList(parts))
    }
}

impl<'a> PartList<'a> {
    /// Returns the texts without thoughts and results, joined.
    pub(super) fn text(&self) -> Cow<'_, str> {
        let texts = self.0.iter().filter(|part| !part.thought.is_set());
        join(texts.filter_map(|part| part.text.0.as_deref()).map(Cow::Borrowed))
    }

    pub(super) fn has_response(&self) -> bool {
        self.0.iter().any(|part| part.response.0.is_some())
    }

    /// Returns the results of the call with an ID and the texts beside them, joined. A list can
    /// also hold the results of the other calls of the message.
    pub(super) fn result_text(&self, id: &str) -> Cow<'_, str> {
        let responses = || self.0.iter().filter_map(|part| part.response.0.as_ref());
        let has_own = responses().any(|response| response.id.as_str() == id);
        let texts = self.0.iter().filter_map(|part| match &part.response.0 {
            Some(response) if has_own && response.id.as_str() != id => None,
            Some(response) => response.response.map(response_text),
            None => part.text.0.as_deref().map(Cow::Borrowed),
        });
        join(texts)
    }

    /// Returns true if the result holds output of the tool, not only an error.
    pub(super) fn has_output(&self) -> bool {
        let responses = self.0.iter().filter_map(|part| part.response.0.as_ref()?.response);
        responses.into_iter().any(|response| {
            let fields = serde_json::from_str::<MaybeObject<ResponseFields<'_>>>(response.get());
            fields.is_ok_and(|fields| fields.0.is_some_and(|fields| fields.output.is_some()))
        })
    }
}

/// Joins texts, without a copy if there is only one.
fn join<'a>(mut texts: impl Iterator<Item = Cow<'a, str>>) -> Cow<'a, str> {
    let Some(mut all) = texts.next() else { return Cow::Borrowed("") };
    for text in texts {
        all.to_mut().push_str(&text);
    }
    all
}

/// Returns the text of a response: its output and its error, or all of it as JSON.
fn response_text(response: &RawValue) -> Cow<'_, str> {
    let fields = serde_json::from_str::<MaybeObject<ResponseFields<'_>>>(response.get());
    match fields.ok().and_then(|fields| fields.0) {
        Some(ResponseFields { output: Some(output), error: Some(error) }) => {
            Cow::Owned([json_value_text(output), json_value_text(error)].join("\n"))
        }
        Some(
            ResponseFields { output: Some(text), .. } | ResponseFields { error: Some(text), .. },
        ) => json_value_text(text),
        _ => json_value_text(response),
    }
}

/// Returns a string, or another value as compact JSON.
fn json_value_text(json: &RawValue) -> Cow<'_, str> {
    if let Ok(MaybeStr(Some(text))) = serde_json::from_str(json.get()) {
        return text;
    }
    match serde_json::from_str::<serde_json::Value>(json.get()) {
        Ok(value) => Cow::Owned(value.to_string()),
        Err(_) => Cow::Borrowed(json.get()),
    }
}

/// Decodes a record. Returns `None` if it is not a JSON object.
pub(super) fn decode(text: &str) -> Option<LogRecord<'_>> {
    object(text)
}

impl<'a> LogRecord<'a> {
    /// Takes the metadata at the top level, if the record holds metadata.
    pub(super) fn take_metadata(&mut self) -> Option<LogMetadata<'a>> {
        if self.session_id.0.is_none() || self.project_hash.0.is_none() {
            return None;
        }
        Some(LogMetadata {
            session_id: std::mem::take(&mut self.session_id),
            start_time: std::mem::take(&mut self.start_time),
            last_updated: std::mem::take(&mut self.last_updated),
            kind: std::mem::take(&mut self.kind),
            summary: std::mem::take(&mut self.summary),
            directories: std::mem::take(&mut self.directories),
            messages: self.messages.take(),
        })
    }
}
