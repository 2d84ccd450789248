//! The shape of a line of a transcript, and how it is decoded.

use std::borrow::Cow;
use std::marker::PhantomData;

use jiff::Timestamp;
use memchr::memmem;
use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::super::lenient::{MaybeBool, MaybeObject, MaybeStr, MaybeU64, ignore_kinds};
use super::super::value::parse_timestamp;

/// One line. Fields of another kind than expected count as absent.
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
    #[serde(borrow)]
    pub(super) message: MaybeObject<Message<'a>>,
    #[serde(borrow)]
    pub(super) data: MaybeObject<Progress<'a>>,
    #[serde(borrow, rename = "toolUseResult")]
    pub(super) tool_use_result: MaybeObject<ToolUseResult<'a>>,
}

/// What a subagent did, told by the session that waits for it.
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

/// A subagent's own line inside of a session's.
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

/// What was said.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Message<'a> {
    #[serde(borrow)]
    pub(super) id: MaybeStr<'a>,
    #[serde(borrow)]
    pub(super) model: MaybeStr<'a>,
    #[serde(borrow)]
    pub(super) content: MessageContent<'a>,
    pub(super) usage: MaybeObject<Usage>,
}

/// Tokens, as the source counts them.
#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(default)]
pub(super) struct Usage {
    pub(super) input_tokens: MaybeU64,
    pub(super) output_tokens: MaybeU64,
    pub(super) cache_read_input_tokens: MaybeU64,
    pub(super) cache_creation_input_tokens: MaybeU64,
}

/// What is said of a tool's result beside it. It is a plain string for some tools.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ToolUseResult<'a> {
    #[serde(borrow, rename = "agentId")]
    pub(super) agent_id: MaybeStr<'a>,
    #[serde(borrow)]
    pub(super) status: MaybeStr<'a>,
}

/// A text or blocks.
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

/// What an image or a document is.
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

            fn visit_borrowed_str<E: serde::de::Error>(self, text: &'de str) -> Result<MessageContent<'a>, E> {
                Ok(MessageContent::Text(Cow::Borrowed(text)))
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<MessageContent<'a>, E> {
                Ok(MessageContent::Text(Cow::Owned(text.to_owned())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<MessageContent<'a>, A::Error> {
                let mut blocks = Vec::new();
                while let Some(MaybeObject(block)) = seq.next_element::<MaybeObject<ContentBlock<'a>>>()? {
                    blocks.extend(block);
                }
                Ok(MessageContent::Blocks(blocks))
            }
        }
        deserializer.deserialize_any(ContentVisitor(PhantomData))
    }
}

/// Calls `on_line` with the line; false if it is not one JSON object. Bytes that are no UTF-8 are replaced, and so are
/// halves of characters.
pub(super) fn decode(bytes: &[u8], on_line: impl FnOnce(TranscriptLine<'_>)) -> bool {
    let text = std::str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed);
    let text = replace_lone_surrogates(text);
    match serde_json::from_str::<MaybeObject<TranscriptLine<'_>>>(&text) {
        Ok(MaybeObject(Some(line))) => {
            on_line(line);
            true
        }
        Ok(MaybeObject(None)) | Err(_) => false,
    }
}

/// JSON in which every escape stands for a character. JavaScript cuts texts between the two halves of one and writes down
/// what is left as `\ud83d`, which no text here can hold; nothing else in the text moves.
fn replace_lone_surrogates(text: Cow<'_, str>) -> Cow<'_, str> {
    let has = |needle: &[u8]| memmem::find(text.as_bytes(), needle).is_some();
    if !has(b"\\ud") && !has(b"\\uD") {
        return text;
    }
    let unit = |bytes: &[u8], at: usize| {
        let digits = bytes.get(at..at + 6)?.strip_prefix(b"\\u")?;
        u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    let mut bytes = text.into_owned().into_bytes();
    let mut at = 0;
    while let Some(escape) = bytes.get(at..).and_then(|rest| memchr::memchr(b'\\', rest)) {
        at += escape;
        at += match (unit(&bytes, at), unit(&bytes, at + 6)) {
            (Some(0xd800..0xdc00), Some(0xdc00..0xe000)) => 12,
            (Some(0xd800..0xe000), _) => {
                if let Some(digits) = bytes.get_mut(at + 2..at + 6) {
                    digits.copy_from_slice(b"fffd");
                }
                6
            }
            _ => 2,
        };
    }
    // ASCII took the place of ASCII.
    Cow::Owned(String::from_utf8(bytes).unwrap_or_default())
}

/// Something that was said at some time, by whomever a line is about.
pub(super) struct Turn<'a> {
    /// `user` or `assistant`.
    pub(super) kind: &'a str,
    /// When, in milliseconds since 1970.
    pub(super) at_ms: Option<i64>,
    pub(super) message: &'a Message<'a>,
    /// The subagent that said it or was told it, where a session tells of that as progress.
    pub(super) agent_id: Option<&'a str>,
}

impl TranscriptLine<'_> {
    /// What was said, if the line is about that.
    pub(super) fn turn(&self) -> Option<Turn<'_>> {
        let at_ms = parse_millis(self.timestamp.as_str());
        let is_message = |kind: &str| matches!(kind, "user" | "assistant");
        match self.kind.as_str() {
            kind if is_message(kind) => Some(Turn { kind, at_ms, message: self.message.0.as_ref()?, agent_id: None }),
            "progress" => {
                let data = self.data.0.as_ref().filter(|data| data.kind.as_str() == "agent_progress")?;
                let inner = data.message.0.as_ref().filter(|inner| is_message(inner.kind.as_str()))?;
                let agent = data.agent_id.0.as_deref().filter(|agent| !agent.is_empty())?;
                Some(Turn {
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

fn parse_millis(text: &str) -> Option<i64> {
    parse_timestamp(text).map(Timestamp::as_millisecond)
}

impl<'a> MessageContent<'a> {
    /// The blocks; a text is one.
    pub(super) fn blocks(&self) -> &[ContentBlock<'a>] {
        match self {
            MessageContent::Blocks(blocks) => blocks,
            MessageContent::None | MessageContent::Text(_) => &[],
        }
    }

    /// All that is text in it, one part to a line; what is no text is named.
    pub(super) fn text(&self) -> Cow<'_, str> {
        match self {
            MessageContent::None => Cow::Borrowed(""),
            MessageContent::Text(text) => Cow::Borrowed(text),
            MessageContent::Blocks(blocks) => {
                let mut parts: Vec<Cow<'_, str>> = blocks.iter().filter_map(ContentBlock::visible_text).collect();
                match parts.len() {
                    1 => parts.pop().unwrap_or_default(),
                    _ => Cow::Owned(parts.join("\n")),
                }
            }
        }
    }
}

impl ContentBlock<'_> {
    /// What a reader of the conversation sees of it; `None` for calls, results and thoughts.
    fn visible_text(&self) -> Option<Cow<'_, str>> {
        match self.kind.as_str() {
            "text" => self.text.0.as_deref().map(Cow::Borrowed),
            "tool_use" | "tool_result" | "thinking" | "redacted_thinking" => None,
            // An image, a document, or what later versions bring.
            kind => {
                let media = self.source.0.as_ref();
                let media_type =
                    media.map(|media| media.media_type.as_str()).filter(|media_type| !media_type.is_empty());
                let bytes = media.map_or(0, |media| media.data.as_str().len()) / 4 * 3;
                Some(Cow::Owned(match media_type {
                    Some(media_type) => format!("[{kind}: {media_type}, about {bytes} B]"),
                    None => format!("[{kind}]"),
                }))
            }
        }
    }
}
