//! The format of Cursor CLI: a log of JSON lines for each conversation. It holds the words and the
//! calls of the agent, but neither results nor times.

use serde::Deserialize;
use serde_json::Value;

use jiff::civil::DateTime;
use jiff::tz::Offset;

use super::blocks::{MessageBlocks, between};
use super::file_tools::{self, FileTool, FileTools};
use super::lenient::{MaybeObject, MaybeStr, MaybeU64, object};
use super::probe::Probe;
use super::transcript::{
    CallPart, CallRecord, IndexBuilder, RawRecord, ResultPart, Role, Session, Shape, Span,
    TranscriptFormat, TranscriptLocation, Turn, Verdict, parse_millis,
};
use swarmletfs_base::error::Result;
use swarmletfs_base::model::{FileAccess, FileEdit, Outcome, Status, Tokens, Worker};
use swarmletfs_base::name::RelPath;

const SUFFIX: &str = ".jsonl";
const SUBAGENTS: &str = "subagents";
/// The text that stands for a hidden thought.
const REDACTED: &str = "[REDACTED]";
/// The words of a turn that its user stopped.
const ABORTED: &str = "User aborted request";
/// The beginning of a line, and a later part of it.
const LONG_SIGNS: [&[u8]; 2] = [b"{\"role\":\"user\"", b"\"content\":"];
const TOOLS: &FileTools = &[
    ("Read", FileTool::Read),
    ("ReadFile", FileTool::Read),
    ("Write", FileTool::Write),
    ("write", FileTool::Write),
    ("StrReplace", FileTool::Replace),
    ("EditFile", FileTool::Replace),
    ("ApplyPatch", FileTool::Patch),
    ("functions.ApplyPatch", FileTool::Patch),
    ("Delete", FileTool::Delete),
];

/// A line: a message, or the end of a turn. Fields of an unexpected type count as absent.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct CursorTranscriptLine<'a> {
    #[serde(rename = "type")]
    kind: MaybeStr<'a>,
    uuid: MaybeStr<'a>,
    role: MaybeStr<'a>,
    timestamp: MaybeStr<'a>,
    message: MaybeObject<CursorMessage<'a>>,
    status: MaybeStr<'a>,
    error: MaybeStr<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct CursorMessage<'a> {
    content: Option<MessageBlocks<'a>>,
    model: MaybeStr<'a>,
    usage: MaybeObject<CursorUsage>,
}

#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(default)]
struct CursorUsage {
    input_tokens: MaybeU64,
    output_tokens: MaybeU64,
    cache_read_input_tokens: MaybeU64,
    cache_creation_input_tokens: MaybeU64,
}

pub struct CursorCli;

impl TranscriptFormat for CursorCli {
    fn name(&self) -> &'static str {
        "cursor"
    }

    fn recognizes(&self, probe: &Probe<'_>) -> bool {
        let is_own = |line: &CursorTranscriptLine<'_>| {
            let has_content =
                line.message.0.as_ref().is_some_and(|message| message.content.is_some());
            // Other programs state a type.
            line.kind.0.is_none()
                && line.uuid.0.is_none()
                && matches!(line.role.as_str(), "user" | "assistant")
                && has_content
        };
        let is_long =
            || probe.head().starts_with(LONG_SIGNS[0]) && probe.has_long_line_with(&LONG_SIGNS);
        probe.name().ends_with(SUFFIX.as_bytes())
            && (probe.first_lines(1).iter().any(is_own) || is_long())
    }

    fn locate(&self, path: &RelPath) -> Option<TranscriptLocation> {
        let location = TranscriptLocation::of_file(path, SUFFIX, Shape::Lines)?;
        if location.folder_name()?.as_bytes() != SUBAGENTS.as_bytes() {
            return Some(location);
        }
        let location = location.above()?;
        let session = location.folder.file_name();
        Some(TranscriptLocation { session, ..location })
    }

    fn states_status(&self) -> bool {
        true
    }

    fn records_results(&self) -> bool {
        false
    }

    fn add_record(&self, index: &mut IndexBuilder<'_>, record: RawRecord<'_>) -> bool {
        let Some(line) = decode(record.text) else { return false };
        let blocks = line.message.0.iter().filter_map(|message| message.content.as_ref());
        let ends = blocks.flat_map(|blocks| &blocks.0);
        let ends = ends.filter(|block| block.kind.as_str() == "turn_ended");
        let ends = ends.map(|block| (block.status.as_str(), block.error.as_str()));
        match line.role.as_str() {
            "user" | "assistant" => {
                // Nothing else tells whether the agent still works.
                index.set_status(0, Status::Unknown, None);
                index.add_turns(0, record.span, &[turn(&line, record.span)]);
                count_tokens(index, &line);
            }
            _ if line.kind.as_str() == "turn_ended" => {
                add_end(index, line.status.as_str(), line.error.as_str());
            }
            _ => index.count_unknown_type(line.kind.as_str()),
        }
        ends.for_each(|(status, error)| add_end(index, status, error));
        true
    }

    fn with_turns(&self, record: RawRecord<'_>, use_turns: &mut dyn FnMut(&[Turn<'_>])) {
        if let Some(line) = decode(record.text) {
            use_turns(&[turn(&line, record.span)]);
        }
    }

    fn accessed_files(&self, tool: &str, arguments: &Value) -> Vec<FileAccess> {
        file_tools::accessed_files(TOOLS, tool, arguments)
    }

    fn describe(&self, worker: &mut Worker, session: &Session<'_>) {
        let parent = session.location.session.as_ref().map(|name| name.to_text());
        session.describe(worker, parent.as_deref());
    }

    fn read_edits(&self, call: &CallRecord<'_>, _result: RawRecord<'_>) -> Result<Vec<FileEdit>> {
        file_tools::read_edits(self, TOOLS, call)
    }
}

fn decode(text: &str) -> Option<CursorTranscriptLine<'_>> {
    object(text)
}

fn add_end(index: &mut IndexBuilder<'_>, status: &str, error: &str) {
    match status {
        "success" => index.set_status(0, Status::Completed, None),
        "error" if error.contains(ABORTED) => {
            index.set_status(0, Status::Unknown, Some("interrupted"));
        }
        "error" => {
            index.set_status(0, Status::Failed, Some(error).filter(|error| !error.is_empty()))
        }
        other => index.set_status(0, Status::Unknown, Some(other)),
    }
}

fn count_tokens(index: &mut IndexBuilder<'_>, line: &CursorTranscriptLine<'_>) {
    let Some(message) = &line.message.0 else { return };
    let Some(usage) = message.usage.0 else { return };
    let tokens = Tokens {
        input: usage.input_tokens.or_zero(),
        output: usage.output_tokens.or_zero(),
        cache_read: usage.cache_read_input_tokens.or_zero(),
        cache_creation: usage.cache_creation_input_tokens.or_zero(),
        ..Tokens::default()
    };
    index.count_tokens(0, "", message.model.as_str(), tokens);
}

fn turn<'a>(line: &'a CursorTranscriptLine<'_>, span: Span) -> Turn<'a> {
    let Some(message) = &line.message.0 else { return Turn::default() };
    let Some(blocks) = &message.content else { return Turn::default() };
    let text = blocks.text();
    if line.role.as_str() == "user" {
        let timestamp = between(&text, "<timestamp>", "</timestamp>");
        let at = timestamp.map(|(_, time, _)| time);
        let query = between(&text, "<user_query>", "</user_query>").map(|(_, query, _)| query);
        let request = match query.or(timestamp.map(|(_, _, after)| after)) {
            Some(request) => request.trim().to_owned(),
            None => text.clone().into_owned(),
        };
        return Turn {
            at_ms: at.and_then(written_time).or_else(|| parse_millis(line.timestamp.as_str())),
            results: blocks.results().map(result_part).collect(),
            text: request.clone().into(),
            request: (!request.is_empty()).then(|| request.into()),
            ..Turn::default()
        };
    }
    let text = match text.trim_end().strip_suffix(REDACTED) {
        Some(text) => text.trim_end().to_owned().into(),
        None => text,
    };
    let calls = blocks.calls().zip(1..).map(|(block, number)| {
        let part = block.call_part();
        match part.id.is_empty() {
            // Calls without IDs are told apart by their places.
            true => CallPart { id: format!("{}-{number}", span.offset).into(), ..part },
            false => part,
        }
    });
    Turn {
        role: Role::Assistant,
        at_ms: parse_millis(line.timestamp.as_str()),
        model: message.model.as_str().into(),
        results: blocks.results().map(result_part).collect(),
        text,
        thinking: blocks.thinking(),
        calls: calls.collect(),
        ..Turn::default()
    }
}

/// Parses a time such as `Wednesday, Sep 16, 2026, 3:37 PM (UTC-4)`.
fn written_time(text: &str) -> Option<i64> {
    let (time, zone) = text.trim().rsplit_once(" (UTC")?;
    let (_, date) = time.split_once(", ")?;
    let time = DateTime::strptime("%b %d, %Y, %I:%M %p", date).ok()?;
    let zone = zone.trim_end_matches(')');
    let (hours, minutes) = zone.split_once(':').unwrap_or((zone, "0"));
    let hours: i32 = if hours.is_empty() { 0 } else { hours.parse().ok()? };
    let minutes: i32 = minutes.parse().ok()?;
    let sign = if zone.starts_with('-') { -1 } else { 1 };
    let minutes = minutes.checked_mul(60 * sign)?;
    let offset = Offset::from_seconds(hours.checked_mul(3_600)?.checked_add(minutes)?);
    Some(offset.ok()?.to_timestamp(time).ok()?.as_millisecond())
}

fn result_part<'a>(block: &'a super::blocks::MessageBlock<'_>) -> ResultPart<'a> {
    let outcome = match block.is_error.0 {
        Some(true) => Outcome::Failed,
        Some(false) => Outcome::Ok,
        None => Outcome::Unknown,
    };
    ResultPart {
        call: block.tool_use_id.as_str().into(),
        text: block.result_text(),
        verdict: Verdict::from_outcome(outcome),
        ..ResultPart::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_their_zones() {
        for (text, time) in [
            ("Wednesday, Sep 16, 2026, 3:37 PM (UTC-4)", Some("2026-09-16T19:37:00Z")),
            ("Friday, Jan 1, 2027, 12:05 AM (UTC+5:30)", Some("2026-12-31T18:35:00Z")),
            ("Friday, Jan 1, 2027, 12:05 AM (UTC-3:30)", Some("2027-01-01T03:35:00Z")),
            ("Friday, Jan 1, 2027, 12:05 PM (UTC)", Some("2027-01-01T12:05:00Z")),
            ("Friday, Jan 1, 2027, 12:05 PM (UTC+99999999999)", None),
            ("Friday, Jan 1, 2027, 12:05 PM (UTC+2147483647)", None),
            ("Friday, Jan 1, 2027, 12:05 PM (UTC+596523:35791394)", None),
            ("yesterday", None),
        ] {
            assert_eq!(written_time(text), time.and_then(parse_millis), "{text}");
        }
    }
}
