//! What can be called: names, descriptions, arguments and answers.
//!
//! Each tool is a function from its arguments to an answer. What is wrong with arguments is said with what helps, as an
//! answer: a model reads it and tries again.

mod asked;
mod files;
mod workers;

use std::any::Any;
use std::sync::{Arc, LazyLock};

use rmcp::handler::server::tool::schema_for_type;
use rmcp::model::{ContentBlock, JsonObject, Tool, ToolAnnotations};
use rmcp::schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::slice::{MAX, Slice, sentence};
use crate::error::Error;
use crate::render::{Budget, printable_json};
use crate::tree::Tree;

/// A list is at most so large, in bytes; a cursor leads on.
const LIST_MAX: usize = 24_000;

/// Something that can be called.
pub(super) struct Called {
    /// What clients are told of it.
    pub(super) described: Tool,
    /// Calls it.
    pub(super) call: Box<Call>,
}

/// What a tool answers: a text, and what is to be said of it.
#[derive(Debug, Default)]
pub(super) struct Answer {
    text: String,
    note: Option<String>,
}

impl Answer {
    /// A text that speaks for itself.
    fn of(text: impl Into<String>) -> Answer {
        Answer { text: text.into(), note: None }
    }

    /// Bytes of a generated file, which are text.
    fn of_bytes(bytes: &[u8]) -> Answer {
        Answer::of(String::from_utf8_lossy(bytes))
    }

    /// As a client is given it: the text exactly, and the note beside it.
    pub(super) fn content(self) -> Vec<ContentBlock> {
        let text = (!self.text.is_empty() || self.note.is_none()).then_some(self.text);
        text.into_iter().chain(self.note).map(ContentBlock::text).collect()
    }
}

impl From<Slice> for Answer {
    fn from(slice: Slice) -> Answer {
        Answer { text: slice.text, note: slice.note }
    }
}

/// Why a tool cannot answer: a sentence that says what helps.
#[derive(Debug)]
pub(super) struct Fault(String);

impl Fault {
    /// The sentence.
    fn new(text: impl Into<String>) -> Fault {
        Fault(text.into())
    }

    /// What is said of an error at a path.
    fn at(path: &str) -> impl Fn(Error) -> Fault {
        move |error| Fault(sentence(path, &error))
    }

    pub(super) fn content(self) -> Vec<ContentBlock> {
        vec![ContentBlock::text(self.0)]
    }
}

type Done = Result<Answer, Fault>;
type Call = dyn Fn(&Tree, JsonObject) -> Done + Send + Sync;

/// All tools.
pub(super) fn all() -> &'static [Called] {
    static ALL: LazyLock<Vec<Called>> =
        LazyLock::new(|| [workers::tools(), files::tools(), asked::tools()].into_iter().flatten().collect());
    &ALL
}

fn tool<A: DeserializeOwned + JsonSchema + Any>(
    name: &'static str,
    description: &'static str,
    call: fn(&Tree, A) -> Done,
) -> Called {
    let mut schema = JsonObject::clone(&schema_for_type::<A>());
    // The name of a type here is nothing to a model.
    schema.remove("title");
    schema.remove("description");
    let annotations = ToolAnnotations::new().read_only(true).idempotent(true).open_world(false);
    let described = Tool::new(name, description, Arc::new(schema)).with_annotations(annotations);
    let call = move |tree: &Tree, arguments: JsonObject| {
        let arguments = serde_json::from_value(Value::Object(arguments));
        call(tree, arguments.map_err(|error| Fault::new(format!("{name}: {error}")))?)
    };
    Called { described, call: Box::new(call) }
}

/// A name as one part of a path: what would be another path, or another folder, is the name of nothing.
fn part(name: &str) -> String {
    match name {
        // No name holds a NUL.
        "" | "." | ".." => "\0".into(),
        name => name.replace('/', "%2F"),
    }
}

/// What was given: a model that leaves an argument out may send it empty.
fn given(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

/// A path that was given; the root where there is none.
fn given_path(path: Option<String>) -> String {
    given(path).unwrap_or_else(|| ".".into())
}

/// A worker's id, which may be given as the path of its folder.
fn worker_id(text: &str) -> &str {
    let id = text.strip_prefix("workers/").unwrap_or(text);
    id.strip_suffix('/').unwrap_or(id)
}

/// The budget that arguments ask for. Errors: both units at once, or too much.
fn budget(bytes: Option<u32>, tokens: Option<u32>) -> Result<Option<Budget>, Fault> {
    if bytes.is_some_and(|bytes| bytes as usize > MAX) || tokens.is_some_and(|tokens| tokens as usize > MAX / 4) {
        return Err(Fault::new(format!("at most {MAX} bytes or {} tokens can be asked for here", MAX / 4)));
    }
    let size = match (bytes, tokens) {
        (Some(_), Some(_)) => return Err(Fault::new("give either bytes or tokens, not both")),
        (Some(bytes), None) => bytes.to_string(),
        (None, Some(tokens)) => format!("{tokens}tok"),
        (None, None) => return Ok(None),
    };
    Budget::parse(&size).map(Some).map_err(Fault::new)
}

/// Returns `value` as JSON in which no name can move a cursor or hide a text.
fn json<T: serde::Serialize>(value: &T) -> String {
    printable_json(&serde_json::to_string(value).unwrap_or_default())
}

/// A list as JSON: an object with `name`, an entry a line, as many as fit. `cursor` is what leads on behind the last of them.
fn list<T: serde::Serialize>(
    name: &str,
    entries: impl Iterator<Item = T>,
    left: impl Fn(usize) -> usize,
    cursor: impl Fn(usize) -> Value,
) -> String {
    let mut out = format!("{{\"{name}\":[");
    let mut shown = 0;
    let mut is_cut = false;
    for entry in entries {
        let line = json(&entry);
        // One is shown in any case: else no cursor would lead on.
        if shown > 0 && out.len() + line.len() > LIST_MAX {
            is_cut = true;
            break;
        }
        out.push_str(if shown == 0 { "\n" } else { ",\n" });
        out.push_str(&line);
        shown += 1;
    }
    let more = left(shown);
    let tail = match is_cut || more > 0 {
        true => format!("\n],\"omitted\":{more},\"next_cursor\":{}}}", json(&cursor(shown))),
        false => "\n]}".to_owned(),
    };
    out + &tail
}
