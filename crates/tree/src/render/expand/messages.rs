//! Finds the tool results in JSON lists of messages.
//!
//! One message is held at a time, and its bytes are copied unchanged. Markers are looked for in the
//! raw strings of tool results: no character of a marker has to be escaped in JSON.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;
use std::io::{self, BufReader, Read, Write};
use std::ops::Range;

use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::expander::MarkerExpander;
use super::{ExpandError, InputFormat, scan};
use swarmletfs_base::split::Split;

/// Members with text in the blocks of a result. Other members are names, numbers or references.
const TEXTS: [&str; 5] = ["text", "content", "output", "stdout", "stderr"];
/// Depth of nested blocks that are searched.
const DEPTH_MAX: usize = 16;
/// Members of a request that hold its messages.
const LISTS: [&str; 2] = ["messages", "input"];
const EXPECTED: &str = "a list of messages, or an object with one under `messages` or `input`";

/// Passes all messages of `input` to `expander`. After an error, the text read so far is passed.
pub(super) fn expand_messages<W: Write>(
    format: InputFormat,
    input: &mut impl Read,
    expander: &mut MarkerExpander<'_, W>,
) -> Result<(), ExpandError> {
    let read = RefCell::new(Vec::new());
    let mut recorder = RecordingReader { input: BufReader::new(input), read: &read };
    let mut list = MessageList { format, read: &read, expander, failed: None, is_found: false };
    let mut json = serde_json::Deserializer::from_reader(&mut recorder);
    let parsed = ListVisitor { list: &mut list, is_root: true }
        .deserialize(&mut json)
        .and_then(|()| json.end());
    let MessageList { expander, failed, is_found, .. } = list;
    drop(json);
    // The end of the list, or the text from a syntax error on, was read but not passed yet.
    let mut rest = read.take();
    rest.extend_from_slice(recorder.input.buffer());
    expander.outside(&rest)?;
    match (failed, parsed) {
        (Some(error), _) => Err(error),
        (None, Err(error)) if error.is_io() => Err(ExpandError::Read(error.into())),
        (None, Err(error)) => Err(ExpandError::Messages(error.to_string())),
        (None, Ok(())) if !is_found => {
            Err(ExpandError::Messages("it contains no list of messages".into()))
        }
        (None, Ok(())) => Ok(()),
    }
}

struct RecordingReader<'a, R> {
    input: BufReader<R>,
    read: &'a RefCell<Vec<u8>>,
}

impl<R: Read> Read for RecordingReader<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let length = self.input.read(into)?;
        self.read.borrow_mut().extend_from_slice(into.split_at_known(length).0);
        Ok(length)
    }
}

struct MessageList<'a, 'r, W> {
    format: InputFormat,
    read: &'a RefCell<Vec<u8>>,
    expander: &'a mut MarkerExpander<'r, W>,
    /// An error other than a JSON error.
    failed: Option<ExpandError>,
    is_found: bool,
}

/// Visits a value that may be a list of messages: the root, or a member of the root object.
struct ListVisitor<'a, 'b, 'r, W> {
    list: &'a mut MessageList<'b, 'r, W>,
    is_root: bool,
}

impl<W> ListVisitor<'_, '_, '_, W> {
    /// Handles a value that is not a list: an error at the root, ignored within a request.
    fn other<E: Error>(&self, what: Unexpected<'_>) -> Result<(), E> {
        if self.is_root { Err(E::invalid_type(what, &EXPECTED)) } else { Ok(()) }
    }
}

impl<'de, W: Write> DeserializeSeed<'de> for ListVisitor<'_, '_, '_, W> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de, W: Write> Visitor<'de> for ListVisitor<'_, '_, '_, W> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(EXPECTED)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut messages: A) -> Result<(), A::Error> {
        self.list.is_found = true;
        while let Some(message) = messages.next_element::<Box<RawValue>>()? {
            let read = self.list.read.take();
            if let Err(error) =
                expand_message(self.list.format, &read, &message, self.list.expander)
            {
                self.list.failed = Some(error);
                return Err(A::Error::custom("it cannot be expanded"));
            }
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        while let Some(key) = members.next_key::<String>()? {
            if self.is_root && LISTS.contains(&key.as_str()) {
                members.next_value_seed(ListVisitor { list: &mut *self.list, is_root: false })?;
            } else {
                members.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.other(Unexpected::Str(text))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        self.other(Unexpected::Bool(value))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<(), E> {
        self.other(Unexpected::Unsigned(number))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<(), E> {
        self.other(Unexpected::Signed(number))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<(), E> {
        self.other(Unexpected::Float(number))
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.other(Unexpected::Unit)
    }
}

/// Passes a message and the text before it to `expander`. `read` ends with the message.
fn expand_message<W: Write>(
    format: InputFormat,
    read: &[u8],
    message: &RawValue,
    expander: &mut MarkerExpander<'_, W>,
) -> Result<(), ExpandError> {
    let raw = message.get();
    let Some(before) = read.strip_suffix(raw.as_bytes()) else {
        // The parser reads one byte past a number, which is no tool result anyway.
        return expander.outside(read);
    };
    expander.outside(before)?;
    let (mut done, mut rest) = (0, raw.as_bytes());
    for span in results(format, message) {
        let (between, from_result) = rest.split_at_known(span.start - done);
        let (result, after) = from_result.split_at_known(span.len());
        expander.outside(between)?;
        scan(result, true, expander)?;
        (done, rest) = (span.end, after);
    }
    expander.outside(rest)
}

/// The members of a JSON object, in order and with duplicates.
struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> Members<'a> {
    /// Parses an object. Any other value has no members.
    fn parse(json: &'a RawValue) -> Members<'a> {
        serde_json::from_str(json.get()).unwrap_or(Members(Vec::new()))
    }

    /// Returns the member of this name. Of duplicates it returns the last, as most parsers do.
    fn get(&self, name: &str) -> Option<&'a RawValue> {
        self.0.iter().rfind(|(key, _)| key == name).map(|(_, value)| *value)
    }

    fn text(&self, name: &str) -> Option<Cow<'a, str>> {
        serde_json::from_str(self.get(name)?.get()).ok()
    }
}

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Members<'de>, D::Error> {
        struct MembersVisitor;
        impl<'de> Visitor<'de> for MembersVisitor {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut members: A,
            ) -> Result<Members<'de>, A::Error> {
                let mut all = Vec::new();
                while let Some((key, value)) = members.next_entry::<String, &'de RawValue>()? {
                    all.push((Cow::Owned(key), value));
                }
                Ok(Members(all))
            }
        }
        json.deserialize_map(MembersVisitor)
    }
}

/// Returns the byte ranges of the strings in a message's tool results, without their quotes.
fn results(format: InputFormat, message: &RawValue) -> Vec<Range<usize>> {
    let members = Members::parse(message);
    let is = |name: &str, values: &[&str]| {
        members.text(name).is_some_and(|text| values.contains(&&*text))
    };
    let tool_role_content =
        || is("role", &["tool", "function"]).then(|| members.get("content")).flatten();
    let contents: Vec<&RawValue> = match format {
        InputFormat::Text => Vec::new(),
        InputFormat::OpenAi => {
            // In the Responses API every kind of call has its own kind of output.
            let is_output = members
                .text("type")
                .is_some_and(|kind| kind.ends_with("_call_output") || kind == "mcp_call");
            let output = members.get("output").filter(|_| is_output);
            tool_role_content().into_iter().chain(output).collect()
        }
        InputFormat::Anthropic => {
            let blocks = members.get("content").into_iter().flat_map(elements);
            let results = blocks.map(Members::parse).filter(|block| {
                block.text("type").is_some_and(|kind| kind.ends_with("tool_result"))
            });
            results.filter_map(|result| result.get("content")).collect()
        }
        InputFormat::LangChain => {
            let is_tool =
                is("type", &["tool", "function", "ToolMessageChunk", "FunctionMessageChunk"]);
            let inner = match is_tool {
                true => Some("data"),
                false => members.get("id").filter(|id| is_tool_class(id)).map(|_| "kwargs"),
            };
            let inner_content =
                inner.and_then(|name| Members::parse(members.get(name)?).get("content"));
            let content = members.get("content").filter(|_| is_tool).or_else(tool_role_content);
            content.into_iter().chain(inner_content).collect()
        }
    };
    let whole = message.get();
    let mut spans: Vec<Range<usize>> = contents
        .into_iter()
        .flat_map(|content| texts(content, DEPTH_MAX))
        .filter_map(|text| span(whole, text))
        .collect();
    spans.sort_by_key(|span| span.start);
    spans
}

/// Returns true if `id`, the path of a LangChain class, names a tool message.
fn is_tool_class(id: &RawValue) -> bool {
    let id: Vec<Cow<'_, str>> = serde_json::from_str(id.get()).unwrap_or_default();
    id.last()
        .is_some_and(|class| class.contains("ToolMessage") || class.contains("FunctionMessage"))
}

/// Returns the strings of a content: the content itself, or the strings in its blocks down to
/// `depth` levels.
fn texts(content: &RawValue, depth: usize) -> Vec<&RawValue> {
    if content.get().starts_with('"') {
        return vec![content];
    }
    let Some(depth) = depth.checked_sub(1) else { return Vec::new() };
    let members = Members::parse(content);
    let inner =
        elements(content).into_iter().chain(TEXTS.iter().filter_map(|name| members.get(name)));
    inner.flat_map(|inner| texts(inner, depth)).collect()
}

/// Returns the elements of a list. Any other value has none.
fn elements(list: &RawValue) -> Vec<&RawValue> {
    serde_json::from_str(list.get()).unwrap_or_default()
}

/// Returns the byte range of the string `part` in `whole`, without its quotes.
fn span(whole: &str, part: &RawValue) -> Option<Range<usize>> {
    let start = (part.get().as_ptr() as usize).checked_sub(whole.as_ptr() as usize)?;
    (part.get().len() >= 2).then(|| start + 1..start + part.get().len() - 1)
}
