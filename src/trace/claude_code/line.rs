//! The shape of a line of a transcript, and how it is decoded.

use std::borrow::Cow;
use std::marker::PhantomData;

use jiff::Timestamp;
use memchr::memmem;
use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::super::lenient::{Flag, Number, Object, Text, pass_over};
use super::super::value::timestamp;

/// One line. Fields of another kind than expected count as absent.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Line<'a> {
    #[serde(borrow, rename = "type")]
    pub(super) kind: Text<'a>,
    #[serde(borrow)]
    pub(super) uuid: Text<'a>,
    #[serde(borrow, rename = "parentUuid")]
    pub(super) parent_uuid: Text<'a>,
    #[serde(borrow, rename = "sessionId")]
    pub(super) session_id: Text<'a>,
    #[serde(borrow, rename = "agentId")]
    pub(super) agent_id: Text<'a>,
    #[serde(rename = "isSidechain")]
    pub(super) is_sidechain: Flag,
    #[serde(rename = "isMeta")]
    pub(super) is_meta: Flag,
    #[serde(rename = "isCompactSummary")]
    pub(super) is_compact_summary: Flag,
    #[serde(rename = "isApiErrorMessage")]
    pub(super) is_api_error: Flag,
    #[serde(borrow)]
    pub(super) timestamp: Text<'a>,
    #[serde(borrow)]
    pub(super) cwd: Text<'a>,
    #[serde(borrow, rename = "gitBranch")]
    pub(super) git_branch: Text<'a>,
    #[serde(borrow)]
    pub(super) summary: Text<'a>,
    #[serde(borrow)]
    pub(super) message: Object<Message<'a>>,
    #[serde(borrow)]
    pub(super) data: Object<Progress<'a>>,
    #[serde(borrow, rename = "toolUseResult")]
    pub(super) tool_use_result: Object<ToolUseResult<'a>>,
}

/// What a subagent did, told by the session that waits for it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Progress<'a> {
    #[serde(borrow, rename = "type")]
    pub(super) kind: Text<'a>,
    #[serde(borrow, rename = "agentId")]
    pub(super) agent_id: Text<'a>,
    /// The subagent's own line, with fewer fields.
    #[serde(borrow)]
    pub(super) message: Object<Inner<'a>>,
}

/// A subagent's own line inside of a session's.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Inner<'a> {
    #[serde(borrow, rename = "type")]
    pub(super) kind: Text<'a>,
    #[serde(borrow)]
    pub(super) timestamp: Text<'a>,
    #[serde(borrow)]
    pub(super) message: Object<Message<'a>>,
}

/// What was said.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Message<'a> {
    #[serde(borrow)]
    pub(super) id: Text<'a>,
    #[serde(borrow)]
    pub(super) model: Text<'a>,
    #[serde(borrow)]
    pub(super) content: Content<'a>,
    pub(super) usage: Object<Usage>,
}

/// Tokens, as the source counts them.
#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(default)]
pub(super) struct Usage {
    pub(super) input_tokens: Number,
    pub(super) output_tokens: Number,
    pub(super) cache_read_input_tokens: Number,
    pub(super) cache_creation_input_tokens: Number,
}

/// What is said of a tool's result beside it. It is a plain string for some tools.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ToolUseResult<'a> {
    #[serde(borrow, rename = "agentId")]
    pub(super) agent_id: Text<'a>,
    #[serde(borrow)]
    pub(super) status: Text<'a>,
}

/// A text or blocks.
#[derive(Debug, Default)]
pub(super) enum Content<'a> {
    #[default]
    None,
    Text(Cow<'a, str>),
    Blocks(Vec<Block<'a>>),
}

/// A part of a message.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Block<'a> {
    #[serde(borrow, rename = "type")]
    pub(super) kind: Text<'a>,
    #[serde(borrow)]
    pub(super) text: Text<'a>,
    #[serde(borrow)]
    pub(super) thinking: Text<'a>,
    #[serde(borrow)]
    pub(super) id: Text<'a>,
    #[serde(borrow)]
    pub(super) name: Text<'a>,
    #[serde(borrow)]
    pub(super) input: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) tool_use_id: Text<'a>,
    #[serde(borrow)]
    pub(super) content: Content<'a>,
    pub(super) is_error: Flag,
    #[serde(borrow)]
    pub(super) source: Object<Media<'a>>,
}

/// What an image or a document is.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Media<'a> {
    #[serde(borrow)]
    pub(super) media_type: Text<'a>,
    #[serde(borrow)]
    pub(super) data: Text<'a>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Content<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Content<'a>, D::Error> {
        struct Take<'a>(PhantomData<&'a ()>);
        impl<'de: 'a, 'a> Visitor<'de> for Take<'a> {
            type Value = Content<'a>;

            pass_over!(bool number unit map);

            fn visit_borrowed_str<E: serde::de::Error>(self, text: &'de str) -> Result<Content<'a>, E> {
                Ok(Content::Text(Cow::Borrowed(text)))
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Content<'a>, E> {
                Ok(Content::Text(Cow::Owned(text.to_owned())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Content<'a>, A::Error> {
                let mut blocks = Vec::new();
                while let Some(Object(block)) = seq.next_element::<Object<Block<'a>>>()? {
                    blocks.extend(block);
                }
                Ok(Content::Blocks(blocks))
            }
        }
        deserializer.deserialize_any(Take(PhantomData))
    }
}

/// Calls `take` with the line; false if it is not one JSON object. Bytes that are no UTF-8 are replaced, and so are
/// halves of characters.
pub(super) fn decode(bytes: &[u8], take: impl FnOnce(Line<'_>)) -> bool {
    let text = std::str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed);
    let text = whole_characters(text);
    match serde_json::from_str::<Object<Line<'_>>>(&text) {
        Ok(Object(Some(line))) => {
            take(line);
            true
        }
        Ok(Object(None)) | Err(_) => false,
    }
}

/// JSON in which every escape stands for a character. JavaScript cuts texts between the two halves of one and writes down
/// what is left as `\ud83d`, which no text here can hold; nothing else in the text moves.
fn whole_characters(text: Cow<'_, str>) -> Cow<'_, str> {
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
    pub(super) at: Option<i64>,
    pub(super) message: &'a Message<'a>,
    /// The subagent that said it or was told it, where a session tells of that as progress.
    pub(super) progress_of: Option<&'a str>,
}

impl Line<'_> {
    /// What was said, if the line is about that.
    pub(super) fn turn(&self) -> Option<Turn<'_>> {
        let at = millis(self.timestamp.as_str());
        let said = |kind: &str| matches!(kind, "user" | "assistant");
        match self.kind.as_str() {
            kind if said(kind) => Some(Turn { kind, at, message: self.message.0.as_ref()?, progress_of: None }),
            "progress" => {
                let data = self.data.0.as_ref().filter(|data| data.kind.as_str() == "agent_progress")?;
                let inner = data.message.0.as_ref().filter(|inner| said(inner.kind.as_str()))?;
                let agent = data.agent_id.0.as_deref().filter(|agent| !agent.is_empty())?;
                Some(Turn {
                    kind: inner.kind.as_str(),
                    at: millis(inner.timestamp.as_str()).or(at),
                    message: inner.message.0.as_ref()?,
                    progress_of: Some(agent),
                })
            }
            _ => None,
        }
    }
}

fn millis(text: &str) -> Option<i64> {
    timestamp(text).map(Timestamp::as_millisecond)
}

impl<'a> Content<'a> {
    /// The blocks; a text is one.
    pub(super) fn blocks(&self) -> &[Block<'a>] {
        match self {
            Content::Blocks(blocks) => blocks,
            Content::None | Content::Text(_) => &[],
        }
    }

    /// All that is text in it, one part to a line; what is no text is named.
    pub(super) fn text(&self) -> Cow<'_, str> {
        match self {
            Content::None => Cow::Borrowed(""),
            Content::Text(text) => Cow::Borrowed(text),
            Content::Blocks(blocks) => {
                let mut parts: Vec<Cow<'_, str>> = blocks.iter().filter_map(Block::said).collect();
                match parts.len() {
                    1 => parts.pop().unwrap_or_default(),
                    _ => Cow::Owned(parts.join("\n")),
                }
            }
        }
    }
}

impl Block<'_> {
    /// What a reader of the conversation sees of it; `None` for calls, results and thoughts.
    fn said(&self) -> Option<Cow<'_, str>> {
        match self.kind.as_str() {
            "text" => self.text.0.as_deref().map(Cow::Borrowed),
            "tool_use" | "tool_result" | "thinking" | "redacted_thinking" => None,
            // An image, a document, or what later versions bring.
            kind => {
                let media = self.source.0.as_ref();
                let what = media.map(|media| media.media_type.as_str()).filter(|what| !what.is_empty());
                let bytes = media.map_or(0, |media| media.data.as_str().len()) / 4 * 3;
                Some(Cow::Owned(match what {
                    Some(what) => format!("[{kind}: {what}, about {bytes} B]"),
                    None => format!("[{kind}]"),
                }))
            }
        }
    }
}
