//! The tools: names, descriptions, arguments and results.
//!
//! Each tool is a function from its arguments to a result. Invalid arguments get an error message
//! with a hint as the result, so that a model can read it and try again.

mod files;
mod workers;

use std::any::Any;
use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use globset::{GlobBuilder, GlobMatcher};
use rmcp::handler::server::tool::schema_for_type;
use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use rmcp::schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::slice::{MAX, NotedText, error_message};
use swarmletfs_base::error::Error;
use swarmletfs_base::text::budget::Budget;
use swarmletfs_base::text::json::printable as printable_json;
use swarmletfs_tree::output::marker::Marker;
use swarmletfs_tree::query::AnswerPage;
use swarmletfs_tree::tree::Tree;

pub(super) use workers::worker_file;

/// Largest list, in bytes. A cursor continues a longer one.
const LIST_MAX: usize = 24_000;

pub(super) struct ToolEntry {
    pub(super) definition: Tool,
    pub(super) call: Box<ToolFn>,
}

/// An error message of a tool, with a hint.
#[derive(Debug)]
pub(super) struct ToolError(pub(super) String);

impl ToolError {
    pub(super) fn new(text: impl Into<String>) -> ToolError {
        ToolError(text.into())
    }

    pub(super) fn at(path: &str) -> impl Fn(Error) -> ToolError {
        move |error| ToolError(error_message(path, &error))
    }
}

/// The output of a tool, which clients receive in one or two blocks.
pub(super) type ToolResult = Result<NotedText, ToolError>;
type ToolFn = dyn Fn(&Tree, JsonObject) -> ToolResult + Send + Sync;

pub(super) fn all() -> &'static [ToolEntry] {
    static ALL: LazyLock<Vec<ToolEntry>> = LazyLock::new(|| {
        [workers::tools(), files::tools(), files::search_tools()].into_iter().flatten().collect()
    });
    &ALL
}

/// Creates a tool that only reads.
fn tool<A: DeserializeOwned + JsonSchema + Any>(
    name: &'static str,
    description: &'static str,
    call: fn(&Tree, A) -> ToolResult,
) -> ToolEntry {
    let annotations = ToolAnnotations::new().read_only(true).idempotent(true).open_world(false);
    let definition = definition::<A>(name, description, annotations);
    let call = move |tree: &Tree, arguments| call(tree, parse_arguments(name, arguments)?);
    ToolEntry { definition, call: Box::new(call) }
}

/// Returns the definition of a tool. The schema of its arguments is derived from `A`.
pub(super) fn definition<A: JsonSchema + Any>(
    name: &'static str,
    description: &'static str,
    annotations: ToolAnnotations,
) -> Tool {
    let mut schema = JsonObject::clone(&schema_for_type::<A>());
    // The name of the Rust type is of no use to a model.
    schema.remove("title");
    schema.remove("description");
    Tool::new(name, description, Arc::new(schema)).with_annotations(annotations)
}

pub(super) fn parse_arguments<A: DeserializeOwned>(
    name: &str,
    mut arguments: JsonObject,
) -> Result<A, ToolError> {
    // Some clients send null for an argument that is left out.
    arguments.retain(|_, value| !value.is_null());
    let arguments = serde_json::from_value(Value::Object(arguments));
    arguments.map_err(|error| ToolError::new(format!("{name}: {error}")))
}

/// Returns the page of an answer as the output of a tool, or as an error if it refuses the query.
fn page_output(page: AnswerPage) -> ToolResult {
    match page.error {
        Some(_) => Err(ToolError::new(page.text)),
        None => Ok(NotedText::new(page.text)),
    }
}

/// Escapes a name for use as one component of a path. A name that would lead to another directory
/// becomes one that cannot exist.
pub(super) fn path_component(name: &str) -> String {
    match name {
        // No file name contains a NUL.
        "" | "." | ".." => "\0".into(),
        name => name.replace('/', "%2F"),
    }
}

/// Returns `None` for an empty argument: a model may send one instead of leaving it out.
pub(super) fn non_empty(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

/// Compiles a pattern of paths, in which `*` and `?` match no slash.
pub(super) fn compile_glob(pattern: &str) -> Result<GlobMatcher, ToolError> {
    let glob = GlobBuilder::new(pattern).literal_separator(true).backslash_escape(true).build();
    Ok(glob.map_err(|error| ToolError::new(error.to_string()))?.compile_matcher())
}

pub(super) fn path_or_root(path: Option<String>) -> String {
    non_empty(path).unwrap_or_else(|| ".".into())
}

/// Returns the id of a worker, which may be given as the path of its directory or as a marker.
pub(super) fn worker_id(text: &str) -> Cow<'_, str> {
    if let Some(id) = Marker::worker_in(text.trim()) {
        return id.into();
    }
    let id = text.strip_prefix("workers/").unwrap_or(text);
    id.strip_suffix('/').unwrap_or(id).into()
}

/// Returns the budget in the arguments, in bytes or tokens.
///
/// # Errors
///
/// Both units are given, or the budget is too large.
pub(super) fn budget(bytes: Option<u32>, tokens: Option<u32>) -> Result<Option<Budget>, ToolError> {
    if bytes.is_some_and(|bytes| bytes as usize > MAX)
        || tokens.is_some_and(|tokens| tokens as usize > MAX / 4)
    {
        return Err(ToolError::new(format!(
            "the budget is at most {MAX} bytes or {} tokens",
            MAX / 4
        )));
    }
    let size = match (bytes, tokens) {
        (Some(_), Some(_)) => return Err(ToolError::new("give either bytes or tokens, not both")),
        (Some(bytes), None) => bytes.to_string(),
        (None, Some(tokens)) => format!("{tokens}tok"),
        (None, None) => return Ok(None),
    };
    Budget::parse(&size).map(Some).map_err(ToolError::new)
}

/// Serializes `value` as JSON with control and invisible characters escaped.
pub(super) fn json<T: serde::Serialize>(value: &T) -> Result<String, ToolError> {
    serde_json::to_string(value)
        .map(|json| printable_json(&json))
        .map_err(|error| ToolError::new(error.to_string()))
}

/// Formats a list as a JSON object: the entries that fit under `name`, one per line. `cursor`
/// returns the cursor after the first so many entries, and `left` the number of entries after them.
fn list<T: serde::Serialize>(
    name: &str,
    entries: impl Iterator<Item = T>,
    left: impl Fn(usize) -> usize,
    cursor: impl Fn(usize) -> Value,
) -> Result<String, ToolError> {
    let mut out = format!("{{\"{name}\":[");
    let mut shown = 0;
    let mut is_cut = false;
    for entry in entries {
        let line = json(&entry)?;
        // Show at least one entry: otherwise the cursor would not advance.
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
        true => format!("\n],\"omitted\":{more},\"next_cursor\":{}}}", json(&cursor(shown))?),
        false => "\n]}".to_owned(),
    };
    Ok(out + &tail)
}
