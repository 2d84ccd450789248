//! The log of a worker: its messages and calls in their order, as text for people.

use jiff::Timestamp;

use super::summary::call_row;
use super::thread::{self, MadeCall, ThreadMessage};
use swarmletfs_base::model::{Record, Status};
use swarmletfs_base::text::clean::{cleaned, one_line};
use swarmletfs_base::text::utc;

const INDENT: &str = "    ";
/// Maximum length of a role or the name of a tool, in bytes.
const WORD_MAX: usize = 100;

/// Renders the messages in `thread`, the content of thread.jsonl, and the calls of a worker. A call
/// is below the message that makes it, or else before the first message that is later.
pub fn log(record: &Record, thread: &[u8]) -> String {
    let Record { worker, trace, .. } = record;
    let (messages, others) = thread::read(thread, &trace.calls);
    let shown = messages
        .iter()
        .filter(|message| !(message.text.trim().is_empty() && message.calls.is_empty()));
    let shown: Vec<&ThreadMessage<'_>> = shown.collect();
    let has = |role: &str| shown.iter().any(|message| message.role == role);
    let mut out = String::new();
    let task = trace.task.as_deref().unwrap_or(&worker.task);
    if !has("user") && !task.is_empty() {
        push(&mut out, None, "task", &indented(task));
    }
    let mut others = others.into_iter().peekable();
    for message in shown.iter().copied() {
        while let Some(call) =
            others.next_if(|call| call.at.zip(message.at).is_some_and(|(call, next)| call < next))
        {
            push(&mut out, call.at, "call", &call_row(call, worker.status));
        }
        let rows = message.calls.iter().map(|made| made_row(made, worker.status));
        let body = indented(&message.text) + &rows.collect::<String>();
        push(&mut out, message.at, &message.role, &body);
    }
    for call in others {
        push(&mut out, call.at, "call", &call_row(call, worker.status));
    }
    if let Some(words) = trace.final_words.as_deref().filter(|_| !has("assistant")) {
        push(&mut out, None, "final words", &indented(words));
    }
    out
}

/// Cleans and indents a text; heads of messages are not indented.
fn indented(text: &str) -> String {
    let text = cleaned(text.trim().as_bytes()).text;
    text.lines().map(|line| format!("{INDENT}{line}").trim_end().to_owned() + "\n").collect()
}

fn push(out: &mut String, at: Option<Timestamp>, title: &str, body: &str) {
    let time = at.map(|at| format!("[{}] ", utc(at.into()))).unwrap_or_default();
    let gap = if out.is_empty() { "" } else { "\n" };
    out.push_str(&format!("{gap}{time}{}\n{body}", one_line(title, WORD_MAX)));
}

fn made_row(made: &MadeCall<'_>, status: Status) -> String {
    match made.call {
        Some(call) => call_row(call, status),
        None => format!("  unknown {}, no result is recorded\n", one_line(&made.name, WORD_MAX)),
    }
}
