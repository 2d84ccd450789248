//! Builds workers from conversations. A listing reads both ends of a transcript, a record reads all
//! of it.

use jiff::Timestamp;
use serde::Deserialize;

use super::super::lenient::MaybeStr;
use super::super::value::{shorten, truncate};
use super::index::{CallEntry, CallResult, Conversation, Ending, TranscriptIndex};
use super::layout::{CALLS, SOURCE, TranscriptKind};
use super::parser::TranscriptParser;
use super::schema::Span;
use super::virtual_dir::VirtualDir;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::model::{
    Flaw, Outcome, Output, PartialRead, Record, SharedStr, Status, TASK_MAX, Tokens, ToolCall,
    Trace, TraceTime, Worker,
};
use crate::name::{Name, RelPath, to_file_name};
use crate::store::{File, read_range};

/// Number of bytes read at each end of a transcript for a listing, at first. A file of at most
/// twice this size is read whole.
const END_BYTES: u64 = 16 << 10;
/// Number of bytes read at each end of a transcript for a listing, at most.
const END_BYTES_MAX: u64 = 4 << 20;
/// Minimum length of all that a worker wrote that says whether its tokens are complete, in bytes.
const PARTIAL_BYTES_MIN: u64 = 200;
/// A token holds at most this many bytes on average. With more, tokens are missing.
const TOKEN_BYTES_MAX: u64 = 12;
/// A call takes at least this many tokens on average. With fewer, tokens are missing.
const CALL_TOKENS_MIN: u64 = 10;
/// Maximum length of a short value, in bytes.
const WORD_MAX: usize = 200;

/// The metadata file of a subagent.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct AgentMetadata<'a> {
    #[serde(borrow, rename = "agentType")]
    agent_type: MaybeStr<'a>,
    #[serde(borrow)]
    description: MaybeStr<'a>,
}

/// Indexes of both ends of a transcript.
struct HeadAndTail {
    head: TranscriptIndex,
    tail: TranscriptIndex,
}

/// Reads the listing of the worker `folder`, which lies at `path` in its store.
pub(super) fn read_listing(folder: &VirtualDir, path: &RelPath) -> Result<Worker> {
    if folder.location().agent.is_none()
        && let Some(ends) = read_ends(&*folder.open_transcript()?, folder.location().kind)?
    {
        return Ok(build_worker(folder, path, &ends.head, &ends.head.main, &ends.tail.main));
    }
    let (index, is_complete) = folder.index(Deadline::never())?;
    let conversation = folder.conversation(&index)?;
    Ok(Worker { is_complete, ..build_worker(folder, path, &index, conversation, conversation) })
}

/// Creates a worker whose transcript cannot be read.
pub(super) fn unreadable_worker(path: &RelPath, error: &Error) -> Worker {
    let name = super::layout::TranscriptLocation::from_path(path)
        .and_then(|location| location.worker_name());
    let flaws = vec![Flaw::BadTranscript(error.to_string())];
    Worker {
        flaws,
        is_complete: false,
        ..Worker::new(name.unwrap_or_else(|| to_file_name("", &[])), path.clone())
    }
}

/// Reads both ends of a transcript, and more of them until they contain the task, the ending and
/// the last model. Returns `None` if the tail never shows how the conversation ended, for example
/// in one huge line.
fn read_ends(file: &dyn File, kind: TranscriptKind) -> Result<Option<HeadAndTail>> {
    let size = file.stat_without_acl()?.size;
    let mut length = END_BYTES;
    loop {
        if size <= 2 * length {
            let all = index_range(file, kind, 0, size)?;
            return Ok(Some(HeadAndTail { head: all.clone(), tail: all }));
        }
        let (head, tail) =
            (index_range(file, kind, 0, length)?, index_range(file, kind, size - length, length)?);
        let ended = tail.main.ending != Ending::Empty;
        let knows_model = tail.main.model.is_some();
        if ended && knows_model && head.main.task.is_some() || length >= END_BYTES_MAX {
            return Ok(ended.then_some(HeadAndTail { head, tail }));
        }
        length *= 4;
    }
}

/// Indexes the complete lines in the `length` bytes of a transcript from offset `from` on.
fn index_range(
    file: &dyn File,
    kind: TranscriptKind,
    from: u64,
    length: u64,
) -> Result<TranscriptIndex> {
    let bytes = read_range(file, from, usize::try_from(length).unwrap_or(usize::MAX))?;
    let mut parser = TranscriptParser::new(TranscriptIndex::default(), kind);
    let mut at = from;
    for (number, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let span = Span { offset: at, len: line.len() };
        at += line.len() as u64;
        // The first line of a later part is incomplete.
        if (from == 0 || number > 0) && !line.trim_ascii().is_empty() {
            parser.index.line_count += 1;
            parser.index.bad_lines +=
                u64::from(!parser.parse_line(span, line) && line.ends_with(b"\n"));
        }
    }
    Ok(parser.index)
}

/// Builds a worker. `first` holds the beginning of the conversation, `last` its end.
fn build_worker(
    folder: &VirtualDir,
    path: &RelPath,
    index: &TranscriptIndex,
    first: &Conversation,
    last: &Conversation,
) -> Worker {
    let location = folder.location();
    let name = location.worker_name().unwrap_or_else(|| to_file_name("", &[]));
    let mut worker = Worker::new(name.clone(), path.clone());
    let session = location.session.as_ref().map(|session| session.to_text().into_owned());
    let session = session.or_else(|| index.session.clone());
    let is_session = location.kind == TranscriptKind::Session && location.agent.is_none();
    if is_session {
        worker.run = Some(name.to_text().into());
    } else {
        worker.run = session.map(SharedStr::from);
        worker.parent.clone_from(&worker.run);
    }
    let metadata = if is_session { None } else { read_agent_metadata(folder) };
    let (agent_type, description) = metadata.unwrap_or_default();
    worker.task_type = Some(agent_type.map_or_else(
        || if is_session { "session".into() } else { "agent".into() },
        SharedStr::from,
    ));
    worker.summary =
        if is_session { index.title.as_ref().map(|title| title.text.clone()) } else { description };
    worker.cwd = index.cwd.as_deref().map(SharedStr::from);
    worker.tags = index
        .branch
        .iter()
        .filter(|branch| !branch.is_empty())
        .map(|branch| shorten(branch, WORD_MAX).into())
        .collect();
    worker.branch = worker.tags.first().cloned();
    worker.task = first
        .task()
        .map(|text| truncate(text.head.trim().to_owned(), TASK_MAX))
        .unwrap_or_default();
    worker.model = last.model.as_deref().or(first.model.as_deref()).map(SharedStr::from);
    worker.created_at = trace_time(first.first_ms);
    worker.started_at = trace_time(first.first_ms);
    worker.last_message = trace_time(last.last_ms).timestamp();
    (worker.status, worker.status_source) = status(last);
    if let Ending::ApiError(text) = &last.ending {
        worker.error = Some(truncate(text.trim().to_owned(), TASK_MAX));
    }
    if worker.status.is_finished() {
        worker.finished_at = trace_time(last.last_ms);
        let took = first.first_ms.zip(last.last_ms).and_then(|(from, to)| to.checked_sub(from));
        worker.duration_ms = took.and_then(|took| u64::try_from(took).ok());
    }
    if index.line_count > 0 && index.line_count == index.bad_lines {
        worker.flaws.push(Flaw::BadTranscript("no line could be parsed".into()));
    } else if index.line_count > 0 && first.lines.is_empty() && last.lines.is_empty() {
        worker.flaws.push(Flaw::NoMessages);
    }
    worker
}

/// Derives the status of a conversation, and the word that states it. The program records none: an
/// assistant that has answered is finished until the next message.
fn status(conversation: &Conversation) -> (Status, Option<SharedStr>) {
    let reported = conversation.reported_status.as_deref();
    match (&conversation.ending, reported) {
        (_, Some(word @ ("failed" | "error"))) => (Status::Failed, Some(word.into())),
        (_, Some("completed")) | (Ending::Answered, _) => (Status::Completed, None),
        (Ending::ApiError(_), _) => (Status::Failed, Some("api error".into())),
        (Ending::Left, _) => (Status::Abandoned, Some("left by its user".into())),
        (Ending::Interrupted, _) => (Status::Unknown, Some("interrupted".into())),
        (Ending::AwaitingReply | Ending::CalledTool, _) => (Status::Running, None),
        (Ending::Empty, _) => (Status::Created, None),
    }
}

/// Returns the type of a subagent and the parent's description of its task.
fn read_agent_metadata(folder: &VirtualDir) -> Option<(Option<String>, Option<String>)> {
    let file = folder.open_sibling(&folder.agent_metadata_path()?).ok()?;
    let bytes = read_range(&*file, 0, END_BYTES as usize).ok()?;
    let metadata: AgentMetadata<'_> = serde_json::from_slice(&bytes).ok()?;
    let agent_type = metadata.agent_type.non_empty().map(|text| shorten(&text, WORD_MAX));
    let description = metadata.description.non_empty().map(|text| truncate(text, TASK_MAX));
    Some((agent_type, description))
}

fn trace_time(at: Option<i64>) -> TraceTime {
    at.and_then(|at| Timestamp::from_millisecond(at).ok()).map_or(TraceTime::Absent, TraceTime::At)
}

/// Reads the record of the worker `folder`, until `deadline` passes.
pub(super) fn read_record(
    folder: &VirtualDir,
    path: &RelPath,
    deadline: Deadline<'_>,
) -> Result<Record> {
    let (index, is_complete) = folder.index(deadline)?;
    let conversation = folder.conversation(&index)?;
    let mut worker = if is_complete {
        build_worker(folder, path, &index, conversation, conversation)
    } else {
        read_listing(folder, path)?
    };
    worker.is_complete = true;
    let tokens_by_model = conversation.tokens_by_model();
    let tokens = (!tokens_by_model.is_empty()).then(|| {
        let mut all = Tokens::default();
        tokens_by_model.values().for_each(|tokens| all += *tokens);
        all
    });
    let mut trace = Trace {
        records_calls: true,
        status_is_derived: true,
        tokens_are_partial: tokens.is_some_and(|tokens| are_partial(tokens, conversation)),
        tokens,
        tokens_by_model,
        ..Trace::default()
    };
    for (at, call) in conversation.calls.iter().enumerate() {
        let call = tool_call(folder, &index, at, call, &mut trace)?;
        trace.calls.push(call);
    }
    for call in conversation.calls.iter().filter(|call| call.result.is_none()) {
        trace.unanswered.add(call.tool.clone());
    }
    trace.task =
        conversation.task().map(|text| text.head.trim().to_owned()).filter(|task| !task.is_empty());
    trace.final_words = conversation.final_words().map(|text| text.head.trim().to_owned());
    trace.final_words_in_parent = folder.location().agent.is_some()
        && trace.final_words.is_none()
        && conversation.reported_status.is_some();
    if folder.location().agent.is_none() {
        trace.bad_lines.extend((index.bad_lines > 0).then_some((SOURCE, index.bad_lines)));
        trace.unused.lines = index.line_count;
        trace.unused.kinds.clone_from(&index.unknown_types);
        trace.unused.excess_agent_lines = index.excess_agent_lines;
    } else {
        trace.unused.lines = conversation.lines.len() as u64;
    }
    trace.unused.orphan_results = conversation.orphan_results;
    trace.unused.excess_calls = conversation.excess_calls;
    if !is_complete || index.too_long {
        trace
            .partial_reads
            .push((SOURCE, PartialRead { bytes: index.bytes_read, timed_out: !is_complete }));
    }
    Ok(Record { worker, trace, unread: 0 })
}

/// Returns true if a conversation holds more than its tokens allow.
fn are_partial(tokens: Tokens, conversation: &Conversation) -> bool {
    let written = conversation.written_bytes;
    let calls = conversation.calls.len() as u64 + conversation.excess_calls;
    written >= PARTIAL_BYTES_MIN && tokens.output.saturating_mul(TOKEN_BYTES_MAX) < written
        || tokens.output < calls.saturating_mul(CALL_TOKENS_MIN)
}

fn tool_call(
    folder: &VirtualDir,
    index: &TranscriptIndex,
    at: usize,
    call: &CallEntry,
    trace: &mut Trace,
) -> Result<ToolCall> {
    let name = call.file_name(at);
    let path = RelPath::from(Name::new(CALLS)?).join(&name);
    let mut tool_call = ToolCall {
        output: Output::Pending,
        at: call.at_ms.and_then(|at| Timestamp::from_millisecond(at).ok()),
        input: call.input.clone(),
        subject: 0..call.subject_len,
        is_command: call.is_command,
        ..ToolCall::new(at as u64 + 1, call.tool.clone(), path.clone())
    };
    let Some(result) = &call.result else { return Ok(tool_call) };
    tool_call.output = Output::InPlace;
    tool_call.outcome = match result {
        CallResult { not_run: true, .. } => Outcome::NotRun,
        CallResult { failed: true, .. } => Outcome::Failed,
        _ => Outcome::Ok,
    };
    tool_call.suspect.clone_from(&result.suspect);
    tool_call.file = call.file.clone().filter(|_| tool_call.outcome == Outcome::Ok);
    tool_call.exit_code = result.exit_code;
    tool_call.duration_ms = call
        .at_ms
        .zip(result.at_ms)
        .and_then(|(from, to)| u64::try_from(to.checked_sub(from)?).ok());
    let spilled = folder.spilled_result(index, call, result)?;
    tool_call.bytes = spilled.as_ref().map_or(result.bytes, |(_, meta)| meta.size);
    if result.truncated || result.spilled && spilled.is_none() {
        trace.truncated.push(path);
    }
    Ok(tool_call)
}
