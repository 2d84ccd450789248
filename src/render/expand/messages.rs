//! Lists of messages in JSON: where in them the results of tools are.
//!
//! One message is held at a time. Its bytes are given on as they were read; only strings in results of tools are looked
//! into, in the letters in which they are written: nothing that a marker is made of has to be escaped in JSON.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;
use std::io::{self, BufReader, Read, Write};
use std::ops::Range;

use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::weave::Weaver;
use super::{ExpandError, Form, scan};

/// Where in the blocks of a result its texts are: what else there is names, counts or refers.
const TEXTS: [&str; 5] = ["text", "content", "output", "stdout", "stderr"];
/// Deeper blocks are not looked into.
const DEPTH_MAX: usize = 16;
/// Where a request holds its messages, if it is no bare list.
const LISTS: [&str; 2] = ["messages", "input"];
const EXPECTED: &str = "a list of messages, or an object with one under `messages` or `input`";

/// Gives on all messages of `input`, or what it was before an error.
pub(super) fn all<W: Write>(form: Form, input: &mut impl Read, weaver: &mut Weaver<'_, W>) -> Result<(), ExpandError> {
    let read = RefCell::new(Vec::new());
    let mut tap = Tap { input: BufReader::new(input), read: &read };
    let mut list = List { form, read: &read, weaver, failed: None, is_found: false };
    let mut json = serde_json::Deserializer::from_reader(&mut tap);
    let parsed = Place { list: &mut list, is_root: true }.deserialize(&mut json).and_then(|()| json.end());
    let List { weaver, failed, is_found, .. } = list;
    drop(json);
    // What was read and not yet given on: the end of the list, or what it became where it is no JSON.
    let mut rest = read.take();
    rest.extend_from_slice(tap.input.buffer());
    weaver.outside(&rest)?;
    match (failed, parsed) {
        (Some(error), _) => Err(error),
        (None, Err(error)) if error.is_io() => Err(ExpandError::Read(error.into())),
        (None, Err(error)) => Err(ExpandError::Messages(error.to_string())),
        (None, Ok(())) if !is_found => Err(ExpandError::Messages("there is no list of messages in it".into())),
        (None, Ok(())) => Ok(()),
    }
}

/// Remembers what is read through it.
struct Tap<'a, R> {
    input: BufReader<R>,
    read: &'a RefCell<Vec<u8>>,
}

impl<R: Read> Read for Tap<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let length = self.input.read(into)?;
        self.read.borrow_mut().extend_from_slice(into.get(..length).unwrap_or_default());
        Ok(length)
    }
}

/// What is done with the messages of a list.
struct List<'a, 'r, W> {
    form: Form,
    read: &'a RefCell<Vec<u8>>,
    weaver: &'a mut Weaver<'r, W>,
    /// What went wrong that is not of the JSON.
    failed: Option<ExpandError>,
    is_found: bool,
}

/// Where a list of messages may be: at the root, or within an object there.
struct Place<'a, 'b, 'r, W> {
    list: &'a mut List<'b, 'r, W>,
    is_root: bool,
}

impl<W> Place<'_, '_, '_, W> {
    /// Something else than a list. Within a request it is no matter of ours.
    fn other<E: Error>(&self, what: Unexpected<'_>) -> Result<(), E> {
        if self.is_root { Err(E::invalid_type(what, &EXPECTED)) } else { Ok(()) }
    }
}

impl<'de, W: Write> DeserializeSeed<'de> for Place<'_, '_, '_, W> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de, W: Write> Visitor<'de> for Place<'_, '_, '_, W> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(EXPECTED)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut messages: A) -> Result<(), A::Error> {
        self.list.is_found = true;
        while let Some(message) = messages.next_element::<Box<RawValue>>()? {
            let read = self.list.read.take();
            if let Err(error) = give(self.list.form, &read, &message, self.list.weaver) {
                self.list.failed = Some(error);
                return Err(A::Error::custom("it cannot be given on"));
            }
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        while let Some(key) = members.next_key::<String>()? {
            if self.is_root && LISTS.contains(&key.as_str()) {
                members.next_value_seed(Place { list: &mut *self.list, is_root: false })?;
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

/// Gives on a message, and what was read before it.
fn give<W: Write>(form: Form, read: &[u8], message: &RawValue, weaver: &mut Weaver<'_, W>) -> Result<(), ExpandError> {
    let raw = message.get();
    let Some(before) = read.strip_suffix(raw.as_bytes()) else {
        // Behind a number a byte more is read. It holds no result.
        return weaver.outside(read);
    };
    weaver.outside(before)?;
    let mut done = 0;
    for span in results(form, message) {
        let between = raw.as_bytes().get(done..span.start).unwrap_or_default();
        weaver.outside(between)?;
        scan(raw.as_bytes().get(span.clone()).unwrap_or_default(), true, weaver)?;
        done = span.end;
    }
    let rest = raw.as_bytes().get(done..).unwrap_or_default();
    weaver.outside(rest)
}

/// The members of an object, as they are written.
struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> Members<'a> {
    /// Those of `json`; none if that is no object.
    fn of(json: &'a RawValue) -> Members<'a> {
        serde_json::from_str(json.get()).unwrap_or(Members(Vec::new()))
    }

    /// Returns the member of this name. JSON does not forbid several, and readers take the last.
    fn get(&self, name: &str) -> Option<&'a RawValue> {
        self.0.iter().rfind(|(key, _)| key == name).map(|(_, value)| *value)
    }

    /// Returns the text of the member of this name.
    fn text(&self, name: &str) -> Option<Cow<'a, str>> {
        serde_json::from_str(self.get(name)?.get()).ok()
    }
}

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Members<'de>, D::Error> {
        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Members<'de>, A::Error> {
                let mut all = Vec::new();
                while let Some((key, value)) = members.next_entry::<String, &'de RawValue>()? {
                    all.push((Cow::Owned(key), value));
                }
                Ok(Members(all))
            }
        }
        json.deserialize_map(All)
    }
}

/// The strings in the results of tools in a message: where they are in it, without their quotes.
fn results(form: Form, message: &RawValue) -> Vec<Range<usize>> {
    let members = Members::of(message);
    let is = |name: &str, values: &[&str]| members.text(name).is_some_and(|text| values.contains(&&*text));
    let of_role = || is("role", &["tool", "function"]).then(|| members.get("content")).flatten();
    let contents: Vec<&RawValue> = match form {
        Form::Text => Vec::new(),
        Form::OpenAi => {
            // In the responses interface every kind of call has its own kind of output.
            let is_output =
                members.text("type").is_some_and(|kind| kind.ends_with("_call_output") || kind == "mcp_call");
            let output = members.get("output").filter(|_| is_output);
            of_role().into_iter().chain(output).collect()
        }
        Form::Anthropic => {
            let blocks = members.get("content").into_iter().flat_map(elements);
            let result = |block: &Members<'_>| block.text("type").is_some_and(|kind| kind.ends_with("tool_result"));
            blocks.map(Members::of).filter(result).filter_map(|block| block.get("content")).collect()
        }
        Form::LangChain => {
            let is_tool = is("type", &["tool", "function", "ToolMessageChunk", "FunctionMessageChunk"]);
            let is_class = |id: &RawValue| {
                let id: Vec<Cow<'_, str>> = serde_json::from_str(id.get()).unwrap_or_default();
                id.last().is_some_and(|class| class.contains("ToolMessage") || class.contains("FunctionMessage"))
            };
            let inner = match (is_tool, members.get("id").is_some_and(is_class)) {
                (true, _) => Some("data"),
                (false, true) => Some("kwargs"),
                (false, false) => None,
            };
            let within = inner.and_then(|name| Members::of(members.get(name)?).get("content"));
            let plain = members.get("content").filter(|_| is_tool).or_else(of_role);
            plain.into_iter().chain(within).collect()
        }
    };
    let whole = message.get();
    let mut spans: Vec<Range<usize>> =
        contents.into_iter().flat_map(texts).filter_map(|text| span(whole, text)).collect();
    spans.sort_by_key(|span| span.start);
    spans
}

/// The texts of a content: itself, or those in its blocks.
fn texts(content: &RawValue) -> Vec<&RawValue> {
    texts_within(content, DEPTH_MAX)
}

fn texts_within(content: &RawValue, depth: usize) -> Vec<&RawValue> {
    if content.get().starts_with('"') {
        return vec![content];
    }
    let Some(depth) = depth.checked_sub(1) else { return Vec::new() };
    let members = Members::of(content);
    let inner = elements(content).into_iter().chain(TEXTS.iter().filter_map(|name| members.get(name)));
    inner.flat_map(|inner| texts_within(inner, depth)).collect()
}

/// The elements of a list; none if it is none.
fn elements(list: &RawValue) -> Vec<&RawValue> {
    serde_json::from_str(list.get()).unwrap_or_default()
}

/// Where in `whole` the string `part` is, without its quotes.
fn span(whole: &str, part: &RawValue) -> Option<Range<usize>> {
    let start = (part.get().as_ptr() as usize).checked_sub(whole.as_ptr() as usize)?;
    (part.get().len() >= 2).then(|| start + 1..start + part.get().len() - 1)
}
