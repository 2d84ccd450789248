//! thread.jsonl: the messages. Only what the calls were made with is taken from it, and the last words.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::Value;

use super::super::jsonl;
use super::input::{one_line, tool_key};
use super::layout::path;
use super::value::cut;
use crate::error::Result;
use crate::store::Store;

/// The file's name.
pub(super) const FILE: &str = "thread.jsonl";
/// The longest last words that are kept, in bytes.
pub(super) const WORDS_MAX: usize = 4_096;

/// What a thread tells.
#[derive(Debug, Default)]
pub(super) struct Thread {
    /// Inputs of each tool's calls, in order: the n-th belongs to the tool's n-th file.
    pub(super) inputs: HashMap<String, Vec<Option<String>>>,
    /// The tools' own names behind the keys of `inputs`.
    pub(super) names: HashMap<String, String>,
    /// The last thing the assistant said.
    pub(super) last_words: Option<String>,
    /// Lines that could not be read.
    pub(super) bad: u64,
}

#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    role: Value,
    #[serde(default)]
    content: Value,
    #[serde(default)]
    tool_calls: Value,
}

/// Reads the thread in `folder`.
pub(super) fn read(folder: &dyn Store) -> Result<Thread> {
    let mut thread = Thread::default();
    let file = folder.open(&path(FILE))?;
    let bad = jsonl::for_each(&*file, |message: Message| {
        if message.role != "assistant" {
            return;
        }
        if let Some(words) = message.content.as_str().map(str::trim).filter(|words| !words.is_empty()) {
            thread.last_words = Some(cut(words.to_owned(), WORDS_MAX));
        }
        let calls = message.tool_calls.as_array().map(Vec::as_slice).unwrap_or_default();
        for call in calls {
            // Beside {name, args} there is the form of the chat APIs: {function: {name, arguments}}.
            let body = call.get("function").unwrap_or(call);
            let Some(name) = body.get("name").and_then(Value::as_str) else { continue };
            let arguments = body.get("args").or_else(|| body.get("arguments")).unwrap_or(&Value::Null);
            let key = tool_key(name);
            thread.names.entry(key.clone()).or_insert_with(|| cut(name.to_owned(), 200));
            thread.inputs.entry(key).or_default().push(one_line(arguments));
        }
    })?;
    thread.bad = bad;
    Ok(thread)
}
