//! requests.txt: the messages of a conversation's user, with their times.
//!
//! Messages that the program writes in the user's name are left out and counted.

use std::collections::VecDeque;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::turn::{ProgramTexts, Span, Turn};
use swarmletfs_base::digest::digest;
use swarmletfs_base::split::Split;
use swarmletfs_base::text::clean::{cleaned, escape_markers, removed_note};
use swarmletfs_base::text::count;

/// Maximum length of a request's text, in bytes; the rest is left out.
const TEXT_MAX: usize = 64 << 10;
/// Total length of all requests beyond which further ones are only counted, in bytes.
const TOTAL_MAX: u64 = 16 << 20;
const QUEUED_MAX: usize = 100;
/// Indentation of the text, which distinguishes it from the head of a request.
const INDENT: &str = "    ";
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Requests {
    places: Vec<RequestPlace>,
    bytes: u64,
    hash: u64,
    excess: u64,
    /// The queued messages that the assistant has not received.
    queued: VecDeque<QueuedMessage>,
    left_out: ProgramTexts,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct RequestPlace {
    span: Span,
    part: RequestPart,
    at_ms: Option<i64>,
    /// Length of the request in the generated file, in bytes.
    bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RequestPart {
    /// The message with this number in the record.
    Message { number: usize },
    /// The user's words in a refusal of a call: the result with this number in the record.
    Refusal { result: usize },
}

/// A message that the user wrote while the assistant worked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct QueuedMessage {
    span: Span,
    at_ms: Option<i64>,
    /// The text, truncated as by [`queued_text`].
    text: String,
}

pub(crate) fn request_text(turns: &[Turn<'_>], part: RequestPart) -> String {
    let text = match part {
        RequestPart::Message { number } => {
            turns.iter().filter_map(|turn| turn.request.as_ref()).nth(number)
        }
        RequestPart::Refusal { result } => {
            let mut results = turns.iter().flat_map(|turn| &turn.results);
            results.nth(result).and_then(|result| result.refusal.as_ref())
        }
    };
    text.map(|text| text.clone().into_owned()).unwrap_or_default()
}

/// Returns the beginning of a queued message, up to the maximum length of a request.
pub(crate) fn queued_text(message: &str) -> &str {
    message.split_at_most(TEXT_MAX).0
}

impl Requests {
    pub(crate) fn add(&mut self, span: Span, part: RequestPart, at_ms: Option<i64>, text: &str) {
        let mut place = RequestPlace { span, part, at_ms, bytes: 0 };
        let section = section(self.places.len() + 1, place, text);
        place.bytes = section.len() as u64;
        if self.bytes + place.bytes > TOTAL_MAX {
            self.excess += 1;
            return;
        }
        self.bytes += place.bytes;
        self.change_hash(section.as_bytes());
        self.places.push(place);
    }

    fn change_hash(&mut self, change: &[u8]) {
        let mut hash = blake3::Hasher::new();
        hash.update(&self.hash.to_le_bytes()).update(change);
        self.hash = u64::from_le_bytes(digest(&hash));
    }

    /// Applies the change `operation` to the queue of messages that the user writes while the
    /// assistant works. If a message is added, it is `message`, from the line at `span`.
    ///
    /// `left_out` returns the counts for a text that the program wrote or that is one of its
    /// commands.
    ///
    /// A dequeued message appears again as a message of the user. A removed one was given to the
    /// assistant between two calls, and appears nowhere else.
    pub(crate) fn change_queue(
        &mut self,
        operation: &str,
        message: &str,
        span: Span,
        at_ms: Option<i64>,
        left_out: impl Fn(&str) -> Option<ProgramTexts>,
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
                {
                    match left_out(&text) {
                        Some(counts) => self.note_left_out(counts),
                        // The record of a queued message holds no other one.
                        None => self.add(span, RequestPart::Message { number: 0 }, at_ms, &text),
                    }
                }
            }
            "popAll" => self.queued.clear(),
            _ => {}
        }
    }

    pub(crate) fn note_left_out(&mut self, left_out: ProgramTexts) {
        self.left_out.commands += left_out.commands;
        self.left_out.outputs += left_out.outputs;
        self.left_out.reminders += left_out.reminders;
    }

    /// Counts a message that the program marks as its own.
    pub(crate) fn note_program_message(&mut self) {
        self.left_out.reminders += 1;
    }

    pub(crate) fn weight(&self) -> usize {
        let queued: usize = self.queued.iter().map(|message| 100 + message.text.len()).sum();
        queued + self.places.len() * size_of::<RequestPlace>()
    }

    pub(crate) fn file_size(&self) -> u64 {
        self.bytes + self.last_line().len() as u64
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn truncate(&mut self, count: usize) {
        let removed = self.places.iter().skip(count);
        self.bytes -= removed.map(|place| place.bytes).sum::<u64>();
        self.places.truncate(count);
        self.change_hash(&count.to_le_bytes());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Returns the content of requests.txt. `read` returns the text of the request in a part of the
    /// line at a span.
    ///
    /// # Errors
    ///
    /// Returns the errors of `read`.
    pub(crate) fn render<E>(
        &self,
        read: impl Fn(Span, &[RequestPart]) -> Result<Vec<String>, E>,
    ) -> Result<Vec<u8>, E> {
        let mut out = String::new();
        let mut numbers = 1..;
        for places in self.places.chunk_by(|a, b| a.span == b.span) {
            let Some(first) = places.first() else { continue };
            let parts: Vec<RequestPart> = places.iter().map(|place| place.part).collect();
            for (place, text) in places.iter().zip(read(first.span, &parts)?) {
                out.push_str(&section(numbers.next().unwrap_or_default(), *place, &text));
            }
        }
        out.push_str(&self.last_line());
        Ok(out.into_bytes())
    }

    pub(crate) fn version(&self) -> u64 {
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

fn section(number: usize, place: RequestPlace, text: &str) -> String {
    let time = place
        .at_ms
        .and_then(|at| Timestamp::from_millisecond(at).ok())
        .map_or_else(|| "time unknown".into(), |time| time.to_string());
    let (shown, rest) = text.trim().split_at_most(TEXT_MAX);
    let cleaned = cleaned(shown.as_bytes());
    let mut head = format!("request {number}, {time}");
    if matches!(place.part, RequestPart::Refusal { .. }) {
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
