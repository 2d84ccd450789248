//! Builds workers from conversations. A listing reads both ends of a transcript, a record reads all
//! of it.

use jiff::Timestamp;

use super::super::value::{shorten, truncate};
use super::builder::{HEAD_MAX, IndexBuilder};
use super::format::{Session, SessionMetadata, TranscriptFormat};
use super::index::{CallEntry, Conversation, Ending, ReportedEnd, StatedStatus, TranscriptIndex};
use super::location::{Container, Holds, Shape, TranscriptLocation};
use super::reader::{add_line, extend};
use super::thread::CALLS;
use super::turn::Span;
use super::virtual_dir::VirtualDir;
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::failure_signs::suspect_line;
use swarmletfs_base::model::{
    Flaw, LastStep, Outcome, Output, PartialRead, Record, SharedStr, Status, TASK_MAX, Tokens,
    ToolCall, Trace, TraceTime, WaitReason, Worker,
};
use swarmletfs_base::name::{Name, RelPath, to_file_name};
use swarmletfs_base::store::{File, read_range};

/// Number of bytes read at each end of a transcript for a listing, at first. A file of at most
/// twice this size is read whole.
const END_BYTES: u64 = 16 << 10;
const END_BYTES_MAX: u64 = 4 << 20;
/// Minimum length of a worker's texts from which missing tokens are detected, in bytes.
const PARTIAL_BYTES_MIN: u64 = 200;
/// A token holds at most this many bytes on average. With more, tokens are missing.
const TOKEN_BYTES_MAX: u64 = 12;
/// A call takes at least this many tokens on average. With fewer, tokens are missing.
const CALL_TOKENS_MIN: u64 = 10;
const BRANCH_MAX: usize = 200;
/// Number of bytes at the end of an output in a file of its own that are searched for a failure.
const SPILLED_END: u64 = 16 << 10;
/// Maximum length of the question for which a worker waits, in bytes.
const REQUEST_MAX: usize = 400;
/// Number of calls at the end of a conversation that may ask a person at once.
const OPEN_MAX: usize = 100;

struct HeadAndTail {
    head: TranscriptIndex,
    tail: TranscriptIndex,
}

/// Facts about a worker from other files: the file beside its transcript, and the transcript of the
/// worker that started it.
struct MetadataFile {
    bytes: Option<Vec<u8>>,
    stated: SessionMetadata,
    end: Option<ReportedEnd>,
    job_end: Option<ReportedEnd>,
}

impl MetadataFile {
    /// Reads both files, the transcript of the starter until `deadline` passes. For `None`, uses
    /// only the part of that transcript that was read before.
    fn read(folder: &VirtualDir, deadline: Option<Deadline<'_>>) -> MetadataFile {
        let bytes = folder.read_metadata();
        let stated = bytes.as_deref().map(|bytes| folder.format.read_metadata(bytes));
        let end = folder.reported_end(deadline);
        let job_end = folder.job_end();
        MetadataFile { bytes, stated: stated.unwrap_or_default(), end, job_end }
    }
}

pub(super) fn read_listing(folder: &VirtualDir, path: &RelPath) -> Result<Worker> {
    let location = &folder.location;
    let metadata = MetadataFile::read(folder, None);
    let is_whole = location.agent.is_none() && location.shape == Shape::Lines;
    if is_whole && folder.copied_from(&|| metadata.bytes.clone()).is_none() {
        let (file, container) = folder.open_container()?;
        if container != Container::Zstd
            && let Some(ends) = read_ends(&*file, folder.format, location)?
        {
            return Ok(build_worker(
                folder,
                path,
                [&ends.head, &ends.tail],
                [&ends.head.main, &ends.tail.main],
                &metadata,
            ));
        }
    }
    let (index, is_complete) = folder.index(Deadline::never())?;
    let conversation = folder.conversation(&index)?;
    let worker = build_worker(folder, path, [&index; 2], [conversation; 2], &metadata);
    Ok(Worker { is_complete, ..worker })
}

pub(super) fn unreadable_worker(name: Option<Name>, path: &RelPath, error: &Error) -> Worker {
    let flaws = vec![Flaw::BadTranscript(error.to_string())];
    Worker {
        flaws,
        is_complete: false,
        ..Worker::new(name.unwrap_or_else(|| to_file_name("", &[])), path.clone())
    }
}

/// Reads both ends of a transcript, and more of them until they contain the task, the ending or
/// stated status, and the last model. Returns `None` if the tail never shows how the conversation
/// ended, for example in one huge line.
fn read_ends(
    file: &dyn File,
    format: &dyn TranscriptFormat,
    location: &TranscriptLocation,
) -> Result<Option<HeadAndTail>> {
    let size = file.stat_without_acl()?.size;
    let mut length = END_BYTES;
    loop {
        if size <= 2 * length {
            let all = index_range(file, format, location, 0, size)?;
            return Ok(Some(HeadAndTail { head: all.clone(), tail: all }));
        }
        let (head, tail) = (
            index_range(file, format, location, 0, length)?,
            index_range(file, format, location, size - length, length)?,
        );
        if head.facts.forked_from.is_some() {
            // The copied part may be long, and the own part begins after it.
            return Ok(None);
        }
        let ended = tail.main.ending != Ending::Empty
            && (tail.main.stated.is_some() || !format.states_status());
        // The file beside a directory of records names the model.
        let knows_model = tail.main.model.is_some() || location.container == Container::Folder;
        // The first answer shows whether the beginning is copied.
        let is_begun = head.main.task.is_some()
            && (head.main.model.is_some() || location.container == Container::Folder);
        if ended && knows_model && is_begun || length >= END_BYTES_MAX {
            return Ok(ended.then_some(HeadAndTail { head, tail }));
        }
        length *= 4;
    }
}

/// Indexes the complete lines in the `length` bytes of a transcript from offset `from` on.
fn index_range(
    file: &dyn File,
    format: &dyn TranscriptFormat,
    location: &TranscriptLocation,
    from: u64,
    length: u64,
) -> Result<TranscriptIndex> {
    let bytes = read_range(file, from, usize::try_from(length).unwrap_or(usize::MAX))?;
    let add = |builder: &mut IndexBuilder<'_>| {
        let mut at = from;
        for (number, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
            let span = Span { offset: at, len: line.len(), part: 0 };
            at += line.len() as u64;
            // The first line of a later part is incomplete.
            if (from == 0 || number > 0) && !line.trim_ascii().is_empty() {
                let is_bad = !add_line(builder, format, span, line) && line.ends_with(b"\n");
                builder.index.bad_lines += u64::from(is_bad);
            }
        }
    };
    Ok(extend(TranscriptIndex::default(), format, location, add).0)
}

fn build_worker(
    folder: &VirtualDir,
    path: &RelPath,
    [first_index, last_index]: [&TranscriptIndex; 2],
    [first, last]: [&Conversation; 2],
    metadata: &MetadataFile,
) -> Worker {
    let (location, stated) = (&folder.location, &metadata.stated);
    let mut worker = Worker::new(location.name.clone(), path.clone());
    let cwd = first_index.facts.cwd.as_deref().or(stated.cwd.as_deref());
    worker.cwd = cwd.map(SharedStr::from);
    let branch = first_index.facts.branch.as_deref().or(stated.branch.as_deref());
    worker.branch = branch.map(|branch| shorten(branch, BRANCH_MAX).into());
    worker.tags = worker.branch.iter().cloned().collect();
    worker.task = first
        .task()
        .map(|text| truncate(text.head.trim().to_owned(), TASK_MAX))
        .unwrap_or_default();
    let model = last.model.as_deref().or(first.model.as_deref()).or(stated.model.as_deref());
    worker.model = model.map(SharedStr::from);
    worker.continues = first_index.facts.forked_from.as_deref().map(SharedStr::from);
    worker.created_at = trace_time(first.first_ms);
    worker.started_at = trace_time(first.first_ms);
    worker.last_message = trace_time(last.last_ms).timestamp();
    // The end of a document is there, if it is one of many.
    let has_end = !last_index.too_long || matches!(location.shape, Shape::DocumentLines(_));
    (worker.status, worker.status_source) = match has_end {
        true => status(last, stated.status.as_ref()),
        false => (Status::Unknown, Some("its end was not read".into())),
    };
    let asking = asking_call(folder.format, last);
    if let Some((call, need)) = asking.filter(|_| worker.status == Status::Running) {
        worker.status = Status::Waiting;
        worker.waiting = Some(WaitReason {
            since: trace_time(call.at_ms).timestamp(),
            request: match &call.input {
                Some(input) => format!("{need}: {}", shorten(input, REQUEST_MAX)),
                None => need.into(),
            },
        });
    }
    if let Ending::ApiError(text) = &last.ending {
        worker.error = Some(truncate(text.trim().to_owned(), TASK_MAX));
    }
    let is_open = matches!(worker.status, Status::Running | Status::Waiting);
    let job_end = metadata.job_end.as_ref().filter(|_| is_open);
    if let Some(end) = metadata.end.as_ref().or(job_end) {
        end.apply(&mut worker);
        worker.waiting = None;
    }
    let session = Session {
        location,
        indexes: [first_index, last_index],
        metadata: metadata.bytes.as_deref(),
        stated,
    };
    folder.format.describe(&mut worker, &session);
    if worker.status.is_finished() {
        worker.finished_at = trace_time(last.last_ms);
        let took = first.first_ms.zip(last.last_ms).and_then(|(from, to)| to.checked_sub(from));
        worker.duration_ms = took.and_then(|took| u64::try_from(took).ok());
    }
    if first_index.line_count > 0 && first_index.line_count == first_index.bad_lines {
        worker.flaws.push(Flaw::BadTranscript("no line could be parsed".into()));
    } else if first_index.line_count > 0 && first.lines.is_empty() && last.lines.is_empty() {
        worker.flaws.push(Flaw::NoMessages);
    }
    worker
}

/// Returns the status of a conversation, and the word that states it. The records take precedence
/// over the `default`. If neither states one, an assistant that has answered is finished until the
/// next message.
fn status(
    conversation: &Conversation,
    default: Option<&StatedStatus>,
) -> (Status, Option<SharedStr>) {
    if let Some(stated) = conversation.stated.as_ref().or(default) {
        return (stated.status, stated.word.as_deref().map(SharedStr::from));
    }
    match &conversation.ending {
        Ending::Answered => (Status::Completed, None),
        Ending::ApiError(_) => (Status::Failed, Some("api error".into())),
        Ending::Continued(id) => (Status::Unknown, Some(format!("continued in {id}").into())),
        Ending::Left => (Status::Abandoned, Some("left by its user".into())),
        Ending::Interrupted => (Status::Unknown, Some("interrupted".into())),
        Ending::AwaitingReply | Ending::CalledTool => (Status::Running, None),
        Ending::Empty => (Status::Created, None),
    }
}

/// Returns the last call that asks a person and has no result, and what it needs.
fn asking_call<'a>(
    format: &dyn TranscriptFormat,
    conversation: &'a Conversation,
) -> Option<(&'a CallEntry, &'static str)> {
    let last = conversation.calls.iter().rev().take(OPEN_MAX);
    let mut open = last.filter(|call| call.verdict().is_none());
    open.find_map(|call| Some((call, format.asks_person_for(&call.tool)?)))
}

fn trace_time(at: Option<i64>) -> TraceTime {
    at.and_then(|at| Timestamp::from_millisecond(at).ok()).map_or(TraceTime::Absent, TraceTime::At)
}

pub(super) fn read_record(
    folder: &VirtualDir,
    path: &RelPath,
    deadline: Deadline<'_>,
) -> Result<Record> {
    let (index, is_complete) = folder.index(deadline)?;
    let conversation = folder.found_conversation(&index, is_complete)?;
    let metadata = MetadataFile::read(folder, Some(deadline));
    let mut worker = if is_complete && !index.too_long {
        build_worker(folder, path, [&index; 2], [conversation; 2], &metadata)
    } else {
        read_listing(folder, path)?
    };
    worker.is_complete = true;
    let mut tokens_by_model = conversation.tokens_by_model();
    if tokens_by_model.is_empty() {
        tokens_by_model.clone_from(&metadata.stated.tokens_by_model);
    }
    // Answers that name no model are of the one in the metadata.
    if let Some(model) = &metadata.stated.model
        && let Some(unnamed) = tokens_by_model.remove("")
    {
        *tokens_by_model.entry(model.clone()).or_default() += unnamed;
    }
    let is_stated = conversation.stated.is_some() || metadata.stated.status.is_some();
    let tokens = (!tokens_by_model.is_empty()).then(|| {
        let mut all = Tokens::default();
        tokens_by_model.values().for_each(|tokens| all += *tokens);
        all
    });
    let mut trace = Trace {
        records_calls: true,
        status_is_derived: !is_stated || conversation.is_stated_by_other,
        tokens_are_partial: tokens.is_some_and(|tokens| are_partial(tokens, conversation)),
        cost: conversation
            .cost
            .total(tokens.unwrap_or_default().total())
            .or_else(|| metadata.stated.cost.clone()),
        context: conversation.context.clone(),
        tokens,
        tokens_by_model,
        ..Trace::default()
    };
    let open = conversation.calls.iter().filter(|call| call.is_open());
    let tasks: Vec<&str> = open.filter_map(|call| call.task.as_deref()).collect();
    let ends = folder.ended_work(&tasks, deadline);
    for (at, call) in conversation.calls.iter().enumerate() {
        let mut tool_call = tool_call(folder, &index, at, call, &mut trace)?;
        let end = call.task.as_ref().filter(|_| call.is_open()).and_then(|task| ends.get(task));
        end.into_iter().for_each(|end| end_call(&mut tool_call, end));
        trace.calls.push(tool_call);
    }
    // The call that hands in the work ends the conversation and needs no result.
    let handed_in = conversation.calls.last().filter(|_| conversation.submission.is_some());
    let unanswered = conversation.calls.iter().filter(|call| call.verdict().is_none());
    for call in unanswered.filter(|_| folder.format.records_results()) {
        if handed_in.is_none_or(|last| !std::ptr::eq(last, call)) {
            trace.unanswered.add(call.tool.clone());
        }
    }
    trace.task =
        conversation.task().map(|text| text.head.trim().to_owned()).filter(|task| !task.is_empty());
    trace.final_words = match conversation.final_words() {
        Some(text) => Some(text.head.trim().to_owned()),
        None => returned_words(folder, deadline)?.or_else(|| metadata.stated.final_words.clone()),
    };
    trace.final_words_in_parent = folder.location.agent.is_some()
        && trace.final_words.is_none()
        && conversation.is_stated_by_other;
    trace.last_step = last_step(conversation);
    let source = folder.location.source_name();
    trace.unused.source = source;
    let location = &folder.location;
    let is_nested = location.agent.is_some() && location.holds == Holds::Nested;
    // A document among several is on a line of its own. If the line is torn, it is still being
    // written.
    let is_among_others = matches!(location.shape, Shape::DocumentLines(_));
    let is_main = location.agent.is_none();
    trace.unused.is_torn = index.is_torn && (is_main || is_nested && !is_among_others);
    trace.unused.lines = if is_main { index.line_count } else { conversation.lines.len() as u64 };
    // Nobody else reports the losses of a file that holds only nested workers.
    if is_main || is_nested {
        let bad = if is_among_others { conversation.bad_records } else { index.bad_lines };
        trace.bad_lines.extend((bad > 0).then_some((source, bad)));
        trace.unused.kinds.clone_from(&index.unknown_types);
        trace.unused.excess_agent_lines = index.excess_agent_lines;
    }
    trace.unused.orphan_results = conversation.orphan_results;
    trace.unused.excess_calls = conversation.excess_calls;
    if !is_complete || index.too_long {
        trace
            .partial_reads
            .push((source, PartialRead { bytes: index.bytes_read, timed_out: !is_complete }));
    }
    Ok(Record { worker, trace, unread: 0 })
}

/// Ends a call whose work in the background has ended by another record. Without a success or a
/// failure, the call stays open.
fn end_call(call: &mut ToolCall, end: &ReportedEnd) {
    call.outcome = match end.status {
        Status::Completed => Outcome::Ok,
        Status::Failed => Outcome::Failed,
        _ => return,
    };
    call.is_open = false;
    if call.outcome == Outcome::Ok {
        call.suspect = Some(end.message.clone()).filter(|message| !message.is_empty());
    }
}

fn last_step(conversation: &Conversation) -> LastStep {
    let last = conversation.calls.last();
    let is_refused = last
        .and_then(|call| call.result.as_ref())
        .is_some_and(|result| result.denial.is_some() || result.verdict.outcome == Outcome::NotRun);
    match conversation.ending {
        Ending::CalledTool => LastStep::Call,
        Ending::AwaitingReply => LastStep::Result,
        Ending::Interrupted if is_refused => LastStep::Refusal,
        Ending::Interrupted => LastStep::Interruption,
        _ => LastStep::Other,
    }
}

/// Returns the beginning of the text that the worker returned by the record of another one.
fn returned_words(folder: &VirtualDir, deadline: Deadline<'_>) -> Result<Option<String>> {
    let Some((record, text)) = folder.returned(deadline) else { return Ok(None) };
    let text = String::from_utf8_lossy(&record.read_text(&text)?).into_owned();
    Ok(Some(truncate(text.trim().to_owned(), HEAD_MAX)))
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
    let Some(verdict) = call.verdict() else {
        if !folder.format.records_results() {
            tool_call.output = Output::Unrecorded;
            tool_call.files.clone_from(&call.files);
        }
        return Ok(tool_call);
    };
    tool_call.output = Output::InPlace;
    tool_call.outcome = verdict.outcome;
    tool_call.is_open = call.is_open();
    tool_call.exit_code = verdict.exit_code;
    tool_call.duration_ms = verdict.duration_ms;
    if tool_call.outcome != Outcome::Failed && tool_call.outcome != Outcome::NotRun {
        tool_call.files.clone_from(&call.files);
    }
    let Some(result) = &call.result else { return Ok(tool_call) };
    if tool_call.outcome != Outcome::Failed {
        tool_call.suspect.clone_from(&result.suspect);
    }
    tool_call.is_misuse = result.is_misuse && tool_call.looks_failed();
    tool_call.denial.clone_from(&result.denial);
    let took = call.at_ms.zip(result.at_ms).and_then(|(from, to)| to.checked_sub(from));
    let took = took.and_then(|took| u64::try_from(took).ok());
    tool_call.duration_ms = tool_call.duration_ms.or(took);
    let spilled = folder.spilled_result(index, call, result)?;
    tool_call.bytes = spilled.as_ref().map_or(result.bytes, |(_, meta)| meta.size);
    if let Some((file, _)) = spilled.as_ref().filter(|_| tool_call.suspect.is_none())
        && let Some(command) = call.command().filter(|_| verdict.outcome == Outcome::Ok)
    {
        // The transcript holds the beginning of the output only.
        let end = folder.read_end(file, SPILLED_END).unwrap_or_default();
        tool_call.suspect = suspect_line(command, &String::from_utf8_lossy(&end));
    }
    if result.truncated || result.spilled.is_some() && spilled.is_none() {
        trace.truncated.push(path);
    }
    Ok(tool_call)
}
