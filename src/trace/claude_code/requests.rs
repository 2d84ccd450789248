//! requests.txt: the messages of a conversation's user, with their times.
//!
//! Messages that the program writes in the user's name are left out and counted.

use std::borrow::Cow;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::schema::{MessageContent, Turn};
use super::span::Span;
use crate::text::count;

/// Maximum length of a request's text, in bytes; the rest is left out.
const TEXT_MAX: usize = 64 << 10;
/// Total length of all requests beyond which further ones are only counted, in bytes.
const TOTAL_MAX: u64 = 16 << 20;
/// Indentation of the text, so that no text can pass for the head of a request.
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
    /// The lines that hold them, with their times in milliseconds since 1970.
    pub(super) lines: Vec<(Span, Option<i64>)>,
    /// Length of the requests in the generated file, in bytes.
    bytes: u64,
    /// Number of requests beyond the limit.
    excess: u64,
    left_out: LeftOut,
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

/// Returns the text that the user wrote in a message, and counts in `left_out` the texts that the
/// program wrote.
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

impl Requests {
    /// Adds the request in the line at `span`.
    pub(super) fn add(&mut self, span: Span, at_ms: Option<i64>, text: &str) {
        let section = section(self.lines.len() + 1, at_ms, text);
        if self.bytes + section.len() as u64 > TOTAL_MAX {
            self.excess += 1;
            return;
        }
        self.bytes += section.len() as u64;
        self.lines.push((span, at_ms));
    }

    /// Counts a message that the program wrote, of which `left_out` are counted already.
    pub(super) fn note_left_out(&mut self, left_out: LeftOut) {
        self.left_out.commands += left_out.commands;
        self.left_out.outputs += left_out.outputs;
        self.left_out.reminders += left_out.reminders;
    }

    /// Counts a message that the program marks as its own.
    pub(super) fn note_program_message(&mut self) {
        self.left_out.reminders += 1;
    }

    /// Returns the size of requests.txt, in bytes.
    pub(super) fn file_size(&self) -> u64 {
        self.bytes + self.last_line().len() as u64
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

/// Returns the content of requests.txt. `read` returns the text of the message at a span.
///
/// # Errors
/// Those of `read`.
pub(super) fn file<E>(
    requests: &Requests,
    read: impl Fn(Span) -> Result<String, E>,
) -> Result<Vec<u8>, E> {
    let mut out = String::new();
    for (at, (span, at_ms)) in requests.lines.iter().enumerate() {
        out.push_str(&section(at + 1, *at_ms, &read(*span)?));
    }
    out.push_str(&requests.last_line());
    Ok(out.into_bytes())
}

/// Returns the part of requests.txt about one request.
fn section(number: usize, at_ms: Option<i64>, text: &str) -> String {
    let time = at_ms
        .and_then(|at| Timestamp::from_millisecond(at).ok())
        .map_or_else(|| "time unknown".into(), |time| time.to_string());
    let (shown, rest) = text.trim().split_at(text.trim().floor_char_boundary(TEXT_MAX));
    let cut = if rest.is_empty() {
        String::new()
    } else {
        format!(", first {} of {} B", shown.len(), shown.len() + rest.len())
    };
    let mut out = format!("[request {number}, {time}{cut}]\n");
    for line in shown.lines() {
        if !line.is_empty() {
            out.push_str(INDENT);
            out.push_str(line);
        }
        out.push('\n');
    }
    out.push('\n');
    out
}
