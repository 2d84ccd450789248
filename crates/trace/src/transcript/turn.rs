//! The neutral form of a transcript's records: messages, calls and results.
//!
//! A format decodes a record into turns, and does so again when a text of the record is read. Both
//! times it must return equal turns, so a turn depends on nothing but its record.

use std::borrow::Cow;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::super::value::parse_timestamp;
use swarmletfs_base::model::{FileAccess, Outcome};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Span {
    pub(crate) offset: u64,
    pub(crate) len: usize,
    /// Number that the format needs to decode the record again. In a document, the member of the
    /// document's shape; the format may replace it before it adds the record to the index.
    pub(crate) part: u8,
}

/// A record: a line of a transcript, or a value in a document.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawRecord<'a> {
    pub(crate) span: Span,
    /// The JSON text of the record. Invalid UTF-8 and lone surrogates are replaced.
    pub(crate) text: &'a str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Role {
    #[default]
    User,
    Assistant,
    /// The program, or instructions to the model. Not part of the thread's requests.
    System,
}

impl Role {
    /// Returns the role as generated files spell it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::System => "system",
        }
    }
}

/// One step of a conversation. The parts are in this order: results of earlier calls, the message,
/// and the calls that the message makes. A record that also holds the results of its own calls is
/// several turns.
#[derive(Debug, Default)]
pub(crate) struct Turn<'a> {
    /// The ID of the message, if the format writes a message several times as it grows. A later
    /// record with the ID repeats the message; only its new parts are shown.
    pub(crate) id: Cow<'a, str>,
    pub(crate) role: Role,
    /// Time in milliseconds since 1970.
    pub(crate) at_ms: Option<i64>,
    /// The model that wrote the message; empty if unknown.
    pub(crate) model: Cow<'a, str>,
    /// True if the program wrote the message in the assistant's name.
    pub(crate) is_synthetic: bool,
    pub(crate) results: Vec<ResultPart<'a>>,
    pub(crate) text: Cow<'a, str>,
    pub(crate) thinking: Cow<'a, str>,
    pub(crate) calls: Vec<CallPart<'a>>,
    /// The text of the message that a person wrote; `None` for texts of the program.
    pub(crate) request: Option<Cow<'a, str>>,
    pub(crate) left_out: ProgramTexts,
    pub(crate) event: TurnEvent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum TurnEvent {
    #[default]
    Message,
    /// A text that the program adds for the model. Nobody answers it.
    ProgramText,
    /// A report of the program, which the assistant answers.
    Report,
    Interruption,
    /// A summary of the conversation so far, which continues where it was.
    Compaction,
    /// A command by name only. The next message of the user describes the task better.
    Command,
    Farewell,
    ApiError,
    /// The work that the assistant handed in, such as a diff. It is the result of the conversation.
    Submission,
}

#[derive(Debug, Default)]
pub(crate) struct CallPart<'a> {
    /// The ID by which results name the call; empty if the format has none.
    pub(crate) id: Cow<'a, str>,
    pub(crate) name: Cow<'a, str>,
    pub(crate) arguments: Arguments<'a>,
}

#[derive(Debug, Default)]
pub(crate) enum Arguments<'a> {
    #[default]
    None,
    Json(&'a RawValue),
    /// A text. If it holds a JSON object, the object is used.
    Text(Cow<'a, str>),
}

impl Arguments<'_> {
    pub(crate) fn as_text(&self) -> Option<&str> {
        match self {
            Arguments::None => None,
            Arguments::Json(json) => Some(json.get()),
            Arguments::Text(text) => Some(text),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct ResultPart<'a> {
    /// The ID of the call. If empty, the result belongs to the first call without a result.
    pub(crate) call: Cow<'a, str>,
    /// The tool of the call, if a result without an ID states it: the result belongs to the first
    /// call of the tool without a result, in the last message with calls.
    pub(crate) tool: &'a str,
    /// The output, without wrappers of the program.
    pub(crate) text: Cow<'a, str>,
    pub(crate) verdict: Verdict,
    pub(crate) stage: Stage<'a>,
    /// True if the record states that a part of the output was omitted.
    pub(crate) truncated: bool,
    /// The name of the file that holds the whole output. Empty if the call names it.
    pub(crate) spilled: Option<Cow<'a, str>>,
    /// A line of the output that suggests a failure and is not part of the verdict.
    pub(crate) hint: Option<Cow<'a, str>>,
    /// The words of the user who refused the call.
    pub(crate) refusal: Option<Cow<'a, str>>,
    /// The files that the call changed, if the result states more than the arguments.
    pub(crate) files: Vec<FileAccess>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum Stage<'a> {
    /// The work is done, or failed, or was never begun.
    #[default]
    Done,
    /// The call was refused or stopped, and the record does not state whether it had begun. It
    /// counts as having changed no file.
    CutOff,
    /// The result is the receipt of a start. The work goes on under this ID; empty if the record
    /// names none.
    Started(Cow<'a, str>),
    /// A later report on the work with this ID, which an earlier call started. The report belongs
    /// to the call that it names, or else to the last one that started work with the ID.
    ///
    /// With an unknown outcome, the work was cut off.
    Reported(Cow<'a, str>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Verdict {
    pub(crate) outcome: Outcome,
    pub(crate) exit_code: Option<i64>,
    pub(crate) duration_ms: Option<u64>,
}

impl Default for Verdict {
    fn default() -> Verdict {
        Verdict { outcome: Outcome::Unknown, exit_code: None, duration_ms: None }
    }
}

impl Verdict {
    pub(crate) fn from_outcome(outcome: Outcome) -> Verdict {
        Verdict { outcome, ..Verdict::default() }
    }

    /// Creates the verdict of a process: any exit code but 0 is a failure.
    pub(crate) fn from_exit_code(exit_code: i64) -> Verdict {
        let outcome = if exit_code == 0 { Outcome::Ok } else { Outcome::Failed };
        Verdict { outcome, exit_code: Some(exit_code), duration_ms: None }
    }
}

/// Numbers of texts that the program wrote in the user's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct ProgramTexts {
    pub(crate) commands: u64,
    pub(crate) outputs: u64,
    pub(crate) reminders: u64,
}

/// Parses a timestamp with an offset as milliseconds since 1970.
pub(crate) fn parse_millis(text: &str) -> Option<i64> {
    parse_timestamp(text).map(Timestamp::as_millisecond)
}
