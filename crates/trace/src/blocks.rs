//! Messages that consist of blocks, in the shape of Anthropic's API. Several programs record them,
//! with fields of their own around them.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::SeqAccess;
use serde_json::value::RawValue;

use super::lenient::{Lenient, MaybeBool, MaybeStr, MaybeText, deserialize_lenient, objects};
use super::transcript::{Arguments, CallPart};

/// A block of a message. Fields of an unexpected type count as absent.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct MessageBlock<'a> {
    #[serde(rename = "type")]
    pub(super) kind: MaybeStr<'a>,
    pub(super) text: MaybeStr<'a>,
    pub(super) thinking: MaybeStr<'a>,
    /// The name of `thinking` in inspect_ai.
    pub(super) reasoning: MaybeStr<'a>,
    /// ID of a call; empty in programs that write none.
    pub(super) id: MaybeStr<'a>,
    pub(super) name: MaybeStr<'a>,
    pub(super) input: Option<&'a RawValue>,
    /// The name of `input` in some programs.
    pub(super) arguments: Option<&'a RawValue>,
    pub(super) tool_use_id: MaybeStr<'a>,
    pub(super) content: Option<&'a RawValue>,
    pub(super) is_error: MaybeBool,
    /// The end of a turn, in a block of Cursor.
    pub(super) status: MaybeStr<'a>,
    pub(super) error: MaybeStr<'a>,
}

/// The content of a message: a text, or a list of blocks.
#[derive(Debug, Default)]
pub(super) struct MessageBlocks<'a>(pub(super) Vec<MessageBlock<'a>>);

deserialize_lenient!([: 'a, 'a] MessageBlocks<'a>;);

impl<'de: 'a, 'a> Lenient<'de> for MessageBlocks<'a> {
    fn from_text(text: Cow<'de, str>) -> Self {
        let kind = MaybeStr(Some(Cow::Borrowed("text")));
        MessageBlocks(vec![MessageBlock {
            kind,
            text: MaybeStr(Some(text)),
            ..MessageBlock::default()
        }])
    }

    fn from_list<A: SeqAccess<'de>>(list: A) -> Result<Self, A::Error> {
        objects(list).map(MessageBlocks)
    }
}

impl MessageBlocks<'_> {
    /// Returns the texts of the message.
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        self.of_kind(&["text"]).map(|block| block.text.as_str())
    }

    pub(super) fn text(&self) -> Cow<'_, str> {
        join_lines(self.texts())
    }

    pub(super) fn thinking(&self) -> Cow<'_, str> {
        let blocks = self.of_kind(&["thinking", "reasoning"]);
        join_lines(blocks.flat_map(|block| [block.thinking.as_str(), block.reasoning.as_str()]))
    }

    /// Returns the calls that the message makes.
    pub(super) fn calls(&self) -> impl Iterator<Item = &MessageBlock<'_>> {
        self.of_kind(&["tool_use", "toolCall"])
    }

    pub(super) fn results(&self) -> impl Iterator<Item = &MessageBlock<'_>> {
        self.of_kind(&["tool_result"])
    }

    fn of_kind(&self, kinds: &'static [&'static str]) -> impl Iterator<Item = &MessageBlock<'_>> {
        self.0.iter().filter(|block| kinds.contains(&block.kind.as_str()))
    }
}

impl MessageBlock<'_> {
    pub(super) fn arguments(&self) -> Option<&RawValue> {
        self.input.or(self.arguments)
    }

    pub(super) fn call_part(&self) -> CallPart<'_> {
        CallPart {
            id: self.id.as_str().into(),
            name: self.name.as_str().into(),
            arguments: self.arguments().map_or(Arguments::None, Arguments::Json),
        }
    }

    /// Returns the text of a result.
    pub(super) fn result_text(&self) -> Cow<'_, str> {
        self.content.map(content_text).unwrap_or_default()
    }
}

/// Returns the text of a content: a text, or the texts of its blocks. Other values are JSON.
pub(super) fn content_text(content: &RawValue) -> Cow<'_, str> {
    match serde_json::from_str::<MaybeText<'_>>(content.get()) {
        Ok(MaybeText(Some(text))) if !text.is_empty() => text,
        _ => value_text(content),
    }
}

/// Returns a string, or another value as compact JSON.
pub(super) fn value_text(json: &RawValue) -> Cow<'_, str> {
    if let Ok(MaybeStr(Some(text))) = serde_json::from_str(json.get()) {
        return text;
    }
    match serde_json::from_str::<serde_json::Value>(json.get()) {
        Ok(serde_json::Value::Null) => Cow::Borrowed(""),
        Ok(value) => Cow::Owned(value.to_string()),
        Err(_) => Cow::Borrowed(json.get()),
    }
}

/// Joins the texts that are not empty by line feeds, without a copy if there is only one.
pub(super) fn join_lines<'a>(texts: impl Iterator<Item = &'a str>) -> Cow<'a, str> {
    let mut texts = texts.filter(|text| !text.is_empty());
    let Some(first) = texts.next() else { return Cow::Borrowed("") };
    let mut all = Cow::Borrowed(first);
    for text in texts {
        let all = all.to_mut();
        all.push('\n');
        all.push_str(text);
    }
    all
}

/// Returns the text before a mark, the text from there to the next mark, and the rest.
pub(super) fn between<'a>(
    text: &'a str,
    begin: &str,
    end: &str,
) -> Option<(&'a str, &'a str, &'a str)> {
    let (before, rest) = text.split_once(begin)?;
    let (inside, after) = rest.split_once(end)?;
    Some((before, inside, after))
}

/// Parses the number after the last `prefix` in a text.
pub(super) fn number_after(text: &str, prefix: &str) -> Option<i64> {
    let (_, rest) = text.rsplit_once(prefix)?;
    let digits = rest.strip_prefix('-').unwrap_or(rest);
    let len = digits.bytes().take_while(u8::is_ascii_digit).count();
    rest.get(..rest.len() - digits.len() + len)?.parse().ok()
}
