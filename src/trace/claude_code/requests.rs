//! requests.txt: the messages of a conversation's user, with their times.
//!
//! Messages that the program writes in the user's name are left out and counted.

use std::borrow::Cow;
use std::collections::VecDeque;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::schema::{MessageContent, Span, TranscriptLine, Turn};
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
const REMINDER_PREFIXES: [&str; 6] = [
    "<system-reminder>",
    "<ide_opened_file>",
    "<ide_selection>",
    "<local-command-caveat>",
    "<task-notification>",
    "Caveat: The messages below",
];

/// The prefix of the result of a call that the user refused.
pub(super) const REFUSED_PREFIX: &str = "The user doesn't want to";
/// The text between the program's part of such a result and what the user said.
const REFUSAL_WORDS_START: &str = "the user said:\n";

/// The requests of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Requests {
    /// The places of the requests, in order.
    places: Vec<RequestPlace>,
    /// Length of the requests in the generated file, in bytes.
    bytes: u64,
    /// Hash of the requests in the generated file.
    hash: u64,
    /// Number of requests beyond the limit.
    excess: u64,
    /// The queued messages that the assistant has not received.
    queued: VecDeque<QueuedMessage>,
    left_out: ProgramTexts,
}

/// The place of a request in the transcript.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct RequestPlace {
    /// The line that holds it.
    span: Span,
    part: RequestPart,
    /// Time in milliseconds since 1970.
    at_ms: Option<i64>,
}

/// The part of a line that is a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum RequestPart {
    /// The message, also a queued one.
    Message,
    /// The user's words in a refusal of a call: the result with this index among the blocks.
    Refusal { block: usize },
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
pub(super) struct ProgramTexts {
    commands: u64,
    outputs: u64,
    reminders: u64,
}

impl ProgramTexts {
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
pub(super) fn user_text<'a>(turn: &'a Turn<'_>, left_out: &mut ProgramTexts) -> Cow<'a, str> {
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

/// Returns what the user said while refusing a call, in the text of its result.
pub(super) fn refusal_words(result: &str) -> Option<&str> {
    let (_, words) = result.strip_prefix(REFUSED_PREFIX)?.split_once(REFUSAL_WORDS_START)?;
    Some(words).filter(|words| !words.trim().is_empty())
}

/// Returns the text of a request in its line.
pub(super) fn request_text(line: &TranscriptLine<'_>, part: RequestPart) -> String {
    match (line.turn(), part) {
        (Some(turn), RequestPart::Message) => {
            user_text(&turn, &mut ProgramTexts::default()).into_owned()
        }
        (Some(turn), RequestPart::Refusal { block }) => {
            let block = turn.message.content.blocks().get(block);
            let text = block.map(|block| block.content.text()).unwrap_or_default();
            refusal_words(&text).unwrap_or_default().to_owned()
        }
        (None, _) => queued_text(line.content.as_str()).to_owned(),
    }
}

/// Returns the beginning of a queued message.
fn queued_text(message: &str) -> &str {
    message.split_at(message.floor_char_boundary(TEXT_MAX)).0
}

impl Requests {
    /// Adds the request in a part of the line at `span`.
    pub(super) fn add(&mut self, span: Span, part: RequestPart, at_ms: Option<i64>, text: &str) {
        let place = RequestPlace { span, part, at_ms };
        let section = section(self.places.len() + 1, place, text);
        if self.bytes + section.len() as u64 > TOTAL_MAX {
            self.excess += 1;
            return;
        }
        self.bytes += section.len() as u64;
        let mut hash = blake3::Hasher::new();
        hash.update(&self.hash.to_le_bytes()).update(section.as_bytes());
        self.hash = u64::from_le_bytes(digest(&hash));
        self.places.push(place);
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
                        false => self.add(span, RequestPart::Message, at_ms, &text),
                    }
                }
            }
            "popAll" => self.queued.clear(),
            _ => {}
        }
    }

    /// Adds the counts of `left_out`.
    pub(super) fn note_left_out(&mut self, left_out: ProgramTexts) {
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
        queued + self.places.len() * size_of::<RequestPlace>()
    }

    /// Returns the size of requests.txt, in bytes.
    pub(super) fn file_size(&self) -> u64 {
        self.bytes + self.last_line().len() as u64
    }

    /// Returns true if there is no request.
    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Returns the content of requests.txt. `read` returns the text of the request in a part of the
    /// line at a span.
    ///
    /// # Errors
    ///
    /// Those of `read`.
    pub(super) fn render<E>(
        &self,
        read: impl Fn(Span, RequestPart) -> Result<String, E>,
    ) -> Result<Vec<u8>, E> {
        let mut out = String::new();
        for (at, place) in self.places.iter().enumerate() {
            out.push_str(&section(at + 1, *place, &read(place.span, place.part)?));
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
        let ProgramTexts { commands, outputs, reminders } = self.left_out;
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
        format!("[{}{left_out}]\n", count(self.places.len() as u64, "request"))
    }
}

/// Returns the part of requests.txt about one request.
fn section(number: usize, place: RequestPlace, text: &str) -> String {
    let time = place
        .at_ms
        .and_then(|at| Timestamp::from_millisecond(at).ok())
        .map_or_else(|| "time unknown".into(), |time| time.to_string());
    let (shown, rest) = text.trim().split_at(text.trim().floor_char_boundary(TEXT_MAX));
    let cleaned = cleaned(shown.as_bytes());
    let mut head = format!("request {number}, {time}");
    if place.part != RequestPart::Message {
        head.push_str(", when refusing a call");
    }
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
