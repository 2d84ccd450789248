//! requests.txt: the messages of a conversation's user, with their times.
//!
//! Messages that the program writes in the user's name are left out and counted.

use std::borrow::Cow;
use std::collections::VecDeque;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::schema::{MessageContent, Span, Turn};
use crate::digest::digest;
use crate::text::clean::{cleaned, escape_markers, removed_note};
use crate::text::count;

/// Maximum length of a request's text, in bytes; the rest is left out.
const TEXT_MAX: usize = 64 << 10;
/// Total length of all requests beyond which further ones are only counted, in bytes.
const TOTAL_MAX: u64 = 16 << 20;
/// Maximum number of queued messages.
const QUEUED_MAX: usize = 100;
/// Indentation of the text, which distinguishes it from the head of a request.
const INDENT: &str = "    ";
/// Prefixes of commands that run in the program or its shell.
const COMMAND_PREFIXES: [&str; 2] = ["<command-", "<bash-input>"];
/// Prefixes of the output of commands and hooks.
const OUTPUT_PREFIXES: [&str; 4] =
    ["<local-command-std", "<bash-stdout>", "<bash-stderr>", "<user-prompt-submit-hook>"];
/// Prefixes of other texts that the program writes.
const REMINDER_PREFIXES: [&str; 4] = [
    "<system-reminder>",
    "<local-command-caveat>",
    "<task-notification>",
    "Caveat: The messages below",
];

/// The requests of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Requests {
    /// The lines that hold the requests, with their times in milliseconds since 1970.
    lines: Vec<(Span, Option<i64>)>,
    /// Length of the requests in the generated file, in bytes.
    bytes: u64,
    /// Hash of the requests in the generated file.
    hash: u64,
    /// Number of requests beyond the limit.
    excess: u64,
    /// The queued messages that the assistant has not received.
    queued: VecDeque<QueuedMessage>,
    left_out: LeftOut,
}

/// A message that the user wrote while the assistant worked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct QueuedMessage {
    span: Span,
    at_ms: Option<i64>,
    /// The text, truncated as by [`queued_text`].
    text: String,
}

/// Numbers of texts that the program wrote in the user's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct LeftOut {
    commands: u64,
    outputs: u64,
    reminders: u64,
}

impl LeftOut {
    /// Counts `text` if the program wrote it. Returns true if it did.
    fn count(&mut self, text: &str) -> bool {
        let text = text.trim_start();
        let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| text.starts_with(prefix));
        let counter = if starts(&COMMAND_PREFIXES) {
            &mut self.commands
        } else if starts(&OUTPUT_PREFIXES) {
            &mut self.outputs
        } else if starts(&REMINDER_PREFIXES) {
            &mut self.reminders
        } else {
            return false;
        };
        *counter += 1;
        true
    }
}

/// Returns true if a queued message is a command of the program, such as `/help`.
fn is_command(text: &str) -> bool {
    let word = text.split_whitespace().next().and_then(|word| word.strip_prefix('/'));
    word.is_some_and(|word| !word.is_empty() && !word.contains(['/', '.']))
}

/// Returns the text that the user wrote in a message. Counts the program's texts in `left_out`.
pub(super) fn user_text<'a>(turn: &'a Turn<'_>, left_out: &mut LeftOut) -> Cow<'a, str> {
    match &turn.message.content {
        MessageContent::Blocks(blocks) => {
            let texts = blocks.iter().filter_map(|block| block.visible_text());
            let own: Vec<Cow<'_, str>> = texts.filter(|text| !left_out.count(text)).collect();
            Cow::Owned(own.join("\n"))
        }
        content if left_out.count(&content.text()) => Cow::Borrowed(""),
        content => content.text(),
    }
}

/// Returns the beginning of a queued message.
pub(super) fn queued_text(message: &str) -> &str {
    message.split_at(message.floor_char_boundary(TEXT_MAX)).0
}

impl Requests {
    /// Adds the request in the line at `span`.
    pub(super) fn add(&mut self, span: Span, at_ms: Option<i64>, text: &str) {
        let section = section(self.lines.len() + 1, at_ms, text);
        if self.bytes + section.len() as u64 > TOTAL_MAX {
            self.excess += 1;
            return;
        }
        self.bytes += section.len() as u64;
        let mut hash = blake3::Hasher::new();
        hash.update(&self.hash.to_le_bytes()).update(section.as_bytes());
        self.hash = u64::from_le_bytes(digest(&hash));
        self.lines.push((span, at_ms));
    }

    /// Applies the change `operation` of the queue of messages that the user writes while the
    /// assistant works. `message` in the line at `span` is the message that is added to it.
    ///
    /// A dequeued message appears again as a message of the user. A removed one was given to the
    /// assistant between two calls, and appears nowhere else.
    pub(super) fn change_queue(
        &mut self,
        operation: &str,
        message: &str,
        span: Span,
        at_ms: Option<i64>,
    ) {
        match operation {
            "enqueue" if self.queued.len() < QUEUED_MAX => {
                let text = queued_text(message).to_owned();
                self.queued.push_back(QueuedMessage { span, at_ms, text });
            }
            "dequeue" => drop(self.queued.pop_front()),
            "remove" => {
                if let Some(QueuedMessage { span, at_ms, text }) = self.queued.pop_front()
                    && !text.trim().is_empty()
                    && !self.left_out.count(&text)
                {
                    match is_command(&text) {
                        true => self.left_out.commands += 1,
                        false => self.add(span, at_ms, &text),
                    }
                }
            }
            "popAll" => self.queued.clear(),
            _ => {}
        }
    }

    /// Adds the counts of `left_out`.
    pub(super) fn note_left_out(&mut self, left_out: LeftOut) {
        self.left_out.commands += left_out.commands;
        self.left_out.outputs += left_out.outputs;
        self.left_out.reminders += left_out.reminders;
    }

    /// Counts a message that the program marks as its own.
    pub(super) fn note_program_message(&mut self) {
        self.left_out.reminders += 1;
    }

    /// Returns the approximate memory use, in bytes.
    pub(super) fn weight(&self) -> usize {
        let queued: usize = self.queued.iter().map(|message| 100 + message.text.len()).sum();
        queued + self.lines.len() * size_of::<(Span, Option<i64>)>()
    }

    /// Returns the size of requests.txt, in bytes.
    pub(super) fn file_size(&self) -> u64 {
        self.bytes + self.last_line().len() as u64
    }

    /// Returns true if there is no request.
    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Returns the content of requests.txt. `read` returns the text of the request in the line at a
    /// span.
    ///
    /// # Errors
    ///
    /// Those of `read`.
    pub(super) fn render<E>(&self, read: impl Fn(Span) -> Result<String, E>) -> Result<Vec<u8>, E> {
        let mut out = String::new();
        for (at, (span, at_ms)) in self.lines.iter().enumerate() {
            out.push_str(&section(at + 1, *at_ms, &read(*span)?));
        }
        out.push_str(&self.last_line());
        Ok(out.into_bytes())
    }

    /// Returns a hash of requests.txt.
    pub(super) fn version(&self) -> u64 {
        let mut hash = blake3::Hasher::new();
        hash.update(&self.hash.to_le_bytes()).update(self.last_line().as_bytes());
        u64::from_le_bytes(digest(&hash))
    }

    /// Returns the last line of requests.txt: the numbers of requests and of texts left out.
    fn last_line(&self) -> String {
        let LeftOut { commands, outputs, reminders } = self.left_out;
        let counts = [
            (self.excess, "further request"),
            (commands, "command"),
            (outputs, "output of commands and hooks"),
            (reminders, "message of the program"),
        ];
        let counts: Vec<String> = counts
            .iter()
            .filter(|(some, _)| *some > 0)
            .map(|(some, what)| match *what {
                "output of commands and hooks" if *some > 1 => {
                    format!("{some} outputs of commands and hooks")
                }
                "message of the program" if *some > 1 => format!("{some} messages of the program"),
                what => count(*some, what),
            })
            .collect();
        let left_out = if counts.is_empty() {
            String::new()
        } else {
            format!("; left out: {}", counts.join(", "))
        };
        format!("[{}{left_out}]\n", count(self.lines.len() as u64, "request"))
    }
}

/// Returns the part of requests.txt about one request.
fn section(number: usize, at_ms: Option<i64>, text: &str) -> String {
    let time = at_ms
        .and_then(|at| Timestamp::from_millisecond(at).ok())
        .map_or_else(|| "time unknown".into(), |time| time.to_string());
    let (shown, rest) = text.trim().split_at(text.trim().floor_char_boundary(TEXT_MAX));
    let cleaned = cleaned(shown.as_bytes());
    let mut head = format!("request {number}, {time}");
    if !rest.is_empty() {
        head.push_str(&format!(", first {} of {} B", shown.len(), text.trim().len()));
    }
    if cleaned.hidden > 0 {
        head.push_str(&format!(", {}", removed_note(cleaned.hidden)));
    }
    let mut out = format!("[{head}]\n");
    for line in escape_markers(&cleaned.text).lines() {
        if !line.is_empty() {
            out.push_str(INDENT);
            out.push_str(line);
        }
        out.push('\n');
    }
    out.push('\n');
    out
}
