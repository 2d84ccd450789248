//! Reads thread.jsonl, the messages of a worker: the inputs of its calls and its last message.

use std::collections::HashMap;

use serde_json::Value;

use super::super::bounded;
use super::super::input::{InputBudget, InputLine, tool_key};
use super::super::jsonl::{self, LineStats};
use super::super::value::truncate;
use super::layout::path;
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::error::Result;
use swarmletfs_base::model::UnansweredCalls;
use swarmletfs_base::store::Store;

pub const FILE: &str = "thread.jsonl";
/// Maximum length of the last message, in bytes.
pub(super) const WORDS_MAX: usize = 4_096;
/// Maximum length of a tool name, in bytes; file names are no longer.
const NAME_MAX: usize = 255;

#[derive(Debug, Default)]
pub(super) struct Thread {
    /// Inputs of each tool's calls, in order: the n-th belongs to the tool's n-th file. There are
    /// at most as many inputs as files.
    pub(super) inputs: HashMap<String, Vec<Option<InputLine>>>,
    pub(super) unanswered: UnansweredCalls,
    pub(super) last_words: Option<String>,
    pub(super) lines: LineStats,
    input_budget: InputBudget,
}

/// Reads the thread in `folder` until `deadline` passes. `files` is the number of files of each
/// tool.
///
/// # Errors
///
/// Fails if the file cannot be read.
pub(super) fn read(
    folder: &dyn Store,
    files: &HashMap<String, usize>,
    deadline: Deadline<'_>,
) -> Result<Thread> {
    let mut thread = Thread::default();
    let file = folder.open(&path(FILE))?;
    let lines = jsonl::for_each(&*file, deadline, |line| {
        let Ok(message) = bounded::parse_object(line) else { return false };
        if message.get("role").is_some_and(|role| role == "assistant") {
            thread.add_assistant_message(message.get("content"), message.get("tool_calls"), files);
        }
        true
    })?;
    thread.lines = lines;
    Ok(thread)
}

impl Thread {
    fn add_assistant_message(
        &mut self,
        content: Option<&Value>,
        calls: Option<&Value>,
        files: &HashMap<String, usize>,
    ) {
        if let Some(words) =
            content.and_then(Value::as_str).map(str::trim).filter(|words| !words.is_empty())
        {
            self.last_words = Some(truncate(words.to_owned(), WORDS_MAX));
        }
        for call in calls.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default() {
            // Besides {name, args}, accept the form of the chat APIs: {function: {name,
            // arguments}}.
            let body = call.get("function").unwrap_or(call);
            let Some(name) = body.get("name").and_then(Value::as_str) else { continue };
            let name = truncate(name.to_owned(), NAME_MAX);
            let key = tool_key(&name);
            let answered = self.inputs.get(&key).map_or(0, Vec::len);
            if files.get(&key).is_none_or(|files| answered >= *files) {
                self.unanswered.add(name);
                continue;
            }
            let arguments =
                body.get("args").or_else(|| body.get("arguments")).unwrap_or(&Value::Null);
            let input =
                InputLine::new(arguments).map(|input| self.input_budget.truncate_line(input));
            self.inputs.entry(key).or_default().push(input);
        }
    }
}
