//! The messages of thread.jsonl, each with the calls that it makes.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, VecDeque};

use jiff::Timestamp;
use serde_json::Value;

use swarmletfs_base::model::ToolCall;

/// A message. Results are not among them: they belong to their calls.
pub(super) struct ThreadMessage<'a> {
    pub(super) at: Option<Timestamp>,
    pub(super) role: String,
    pub(super) model: String,
    pub(super) text: String,
    pub(super) thinking: String,
    pub(super) calls: Vec<MadeCall<'a>>,
}

pub(super) struct MadeCall<'a> {
    pub(super) name: String,
    pub(super) arguments: Option<Value>,
    /// The call in the record; `None` if it has none for it.
    pub(super) call: Option<&'a ToolCall>,
}

/// Returns the messages in `thread`, the content of thread.jsonl, and the calls that no message
/// makes.
pub(super) fn read<'a>(
    thread: &[u8],
    calls: &'a [ToolCall],
) -> (Vec<ThreadMessage<'a>>, Vec<&'a ToolCall>) {
    let mut calls = ThreadCalls::new(calls);
    let lines = thread.split(|byte| *byte == b'\n');
    let lines = lines.filter_map(|line| serde_json::from_slice(line).ok());
    let messages = lines.filter_map(|line| message(&line, &mut calls)).collect();
    (messages, calls.unused.into_values().collect())
}

/// Returns the message of a line; `None` for a result, and for a line without words and calls.
fn message<'a>(line: &Value, calls: &mut ThreadCalls<'a>) -> Option<ThreadMessage<'a>> {
    let role = line.get("role")?.as_str()?.to_owned();
    let made = line.get("tool_calls").and_then(Value::as_array).into_iter().flatten();
    let made: Vec<MadeCall<'a>> = made.map(|made| calls.find(made)).collect();
    let text = |key: &str| line.get(key).map(words).unwrap_or_default();
    let at = line.get("time").or_else(|| line.get("timestamp"));
    let message = ThreadMessage {
        at: at.and_then(|time| time.as_str()?.parse().ok()),
        model: text("model"),
        text: text("content"),
        thinking: text("thinking"),
        calls: made,
        role,
    };
    let is_empty =
        message.text.trim().is_empty() && message.thinking.is_empty() && message.calls.is_empty();
    (message.role != "tool" && !is_empty).then_some(message)
}

/// Returns the text of a message: a string, or the strings of its blocks.
fn words(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => {
            let texts = blocks.iter().filter_map(|block| block.get("text")?.as_str());
            texts.collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}

/// The calls of a record that no message has named yet.
struct ThreadCalls<'a> {
    unused: BTreeMap<usize, &'a ToolCall>,
    /// Positions of the calls of each file and, in order, of each tool.
    places: HashMap<Cow<'a, str>, VecDeque<usize>>,
}

impl<'a> ThreadCalls<'a> {
    fn new(calls: &'a [ToolCall]) -> ThreadCalls<'a> {
        let mut places: HashMap<_, VecDeque<usize>> = HashMap::new();
        for (at, call) in calls.iter().enumerate() {
            for key in [call.path.to_text(), Cow::Borrowed(&*call.tool)] {
                places.entry(key).or_default().push_back(at);
            }
        }
        ThreadCalls { unused: calls.iter().enumerate().collect(), places }
    }

    /// Finds the call that a message makes: the call of its file, or else the next one of its tool.
    fn find(&mut self, made: &Value) -> MadeCall<'a> {
        let text = |key: &str| made.get(key).and_then(Value::as_str);
        let function = made.get("function");
        let name = text("name").or_else(|| function?.get("name")?.as_str()).unwrap_or("-");
        let arguments = [made.get("args"), made.get("arguments")].into_iter().flatten().next();
        let arguments = arguments.or_else(|| function?.get("arguments"));
        let place = self.places.get_mut(text("file").unwrap_or(name));
        let call = place.and_then(|place| self.unused.remove(&place.pop_front()?));
        MadeCall { name: name.to_owned(), arguments: arguments.cloned(), call }
    }
}
