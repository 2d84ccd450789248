//! A conversation as a worker: from both ends of its transcript what listing tells, from all of it the record.

use jiff::Timestamp;
use serde::Deserialize;

use super::super::lenient::Text;
use super::super::value::{cut, shortened};
use super::facts::{Call, Chain, End, Facts, Span};
use super::folder::{CALLS, Folder, SOURCE};
use super::read::{Reader, Whose};
use crate::error::{Error, Result};
use crate::model::{Flaw, Outcome, Output, Partly, Record, Status, TASK_MAX, ToolCall, Trace, When, Word, Worker};
use crate::name::{Name, RelPath, to_file_name};
use crate::store::{File, read_range};

/// How much of each end of a transcript is read to tell what is listed, in bytes: at first, and at most where that does
/// not suffice. What is not larger than the first of both together is read whole.
const END: u64 = 16 << 10;
const END_MAX: u64 = 4 << 20;
/// The longest word that is kept, in bytes.
const WORD_MAX: usize = 200;

/// What a program says about a subagent beside its transcript.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct About<'a> {
    #[serde(borrow, rename = "agentType")]
    agent_type: Text<'a>,
    #[serde(borrow)]
    description: Text<'a>,
}

/// Both ends of a conversation.
struct Ends {
    head: Facts,
    tail: Facts,
}

/// What listing tells of the worker `folder`, which lies at `path` in its store.
pub(super) fn listed(folder: &Folder, path: &RelPath) -> Result<Worker> {
    if folder.place().agent.is_some() {
        let (facts, whole) = folder.facts(&|| true)?;
        let chain = facts.chain(folder.place().agent.as_ref()).ok_or(Error::NotFound)?;
        return Ok(Worker { whole, ..worker(folder, path, &facts, chain, chain) });
    }
    if let Some(ends) = ends(&*folder.open_transcript()?, folder.place().whose)? {
        return Ok(worker(folder, path, &ends.head, &ends.head.own, &ends.tail.own));
    }
    let (facts, whole) = folder.facts(&|| true)?;
    Ok(Worker { whole, ..worker(folder, path, &facts, &facts.own, &facts.own) })
}

/// A worker whose transcript cannot be read just now.
pub(super) fn unread(path: &RelPath, error: &Error) -> Worker {
    let name = super::layout::Place::of(path).and_then(|place| place.name());
    let flaws = vec![Flaw::BadTranscript(error.to_string())];
    Worker { flaws, whole: false, ..Worker::named(name.unwrap_or_else(|| to_file_name("", &[])), path.clone()) }
}

/// Reads both ends, each until it tells what is wanted; `None` where the last does not tell how it ended, as when it is
/// one huge line.
fn ends(file: &dyn File, whose: Whose) -> Result<Option<Ends>> {
    let size = file.stat_without_acl()?.size;
    let mut length = END;
    loop {
        if size <= 2 * length {
            let all = lines(file, whose, 0, size)?;
            return Ok(Some(Ends { head: all.clone(), tail: all }));
        }
        let (head, tail) = (lines(file, whose, 0, length)?, lines(file, whose, size - length, length)?);
        let ended = tail.own.end != End::Nothing;
        if ended && head.own.task.is_some() || length >= END_MAX {
            return Ok(ended.then_some(Ends { head, tail }));
        }
        length *= 4;
    }
}

/// What the whole lines in a part of a transcript tell.
fn lines(file: &dyn File, whose: Whose, from: u64, length: u64) -> Result<Facts> {
    let bytes = read_range(file, from, usize::try_from(length).unwrap_or(usize::MAX))?;
    let mut reader = Reader::new(Facts::default(), whose);
    let mut at = from;
    for (number, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let span = Span { at, len: line.len() };
        at += line.len() as u64;
        // The first of a later part begins somewhere before it.
        if (from == 0 || number > 0) && !line.trim_ascii().is_empty() {
            reader.facts.lines += 1;
            reader.facts.bad += u64::from(!reader.take(span, line) && line.ends_with(b"\n"));
        }
    }
    Ok(reader.facts)
}

/// The worker that `facts` tell of: how it began stands in `first`, how it ended in `last`.
fn worker(folder: &Folder, path: &RelPath, facts: &Facts, first: &Chain, last: &Chain) -> Worker {
    let place = folder.place();
    let name = place.name().unwrap_or_else(|| to_file_name("", &[]));
    let mut worker = Worker::named(name.clone(), path.clone());
    let session = place.session.as_ref().map(|session| session.to_text().into_owned());
    let session = session.or_else(|| facts.session.clone());
    let is_session = place.whose == Whose::Session && place.agent.is_none();
    if is_session {
        worker.run = Some(name.to_text().into());
    } else {
        worker.run = session.map(Word::from);
        worker.parent.clone_from(&worker.run);
    }
    let about = if is_session { None } else { about(folder) };
    let (agent_type, description) = about.unwrap_or_default();
    worker.task_type =
        Some(agent_type.map_or_else(|| if is_session { "session".into() } else { "agent".into() }, Word::from));
    worker.summary = if is_session { facts.title.clone() } else { description };
    worker.cwd = facts.cwd.as_deref().map(Word::from);
    worker.tags = facts
        .branch
        .iter()
        .filter(|branch| !branch.is_empty())
        .map(|branch| shortened(branch, WORD_MAX).into())
        .collect();
    worker.task = first.task().map(|said| cut(said.head.trim().to_owned(), TASK_MAX)).unwrap_or_default();
    worker.model = last.model.as_deref().or(first.model.as_deref()).map(Word::from);
    worker.created_at = when(first.first);
    worker.started_at = when(first.first);
    (worker.status, worker.status_source) = status(last);
    if let End::Failed(text) = &last.end {
        worker.error = Some(cut(text.trim().to_owned(), TASK_MAX));
    }
    if worker.status.is_finished() {
        worker.finished_at = when(last.last);
        let took = first.first.zip(last.last).and_then(|(from, to)| to.checked_sub(from));
        worker.duration_ms = took.and_then(|took| u64::try_from(took).ok());
    }
    if facts.lines > 0 && facts.lines == facts.bad {
        worker.flaws.push(Flaw::BadTranscript("no line of it could be read".into()));
    } else if facts.lines > 0 && first.lines.is_empty() && last.lines.is_empty() {
        worker.flaws.push(Flaw::NoMessages);
    }
    worker
}

/// How far a conversation is. Its program writes no status: who has answered has finished, until it is asked again.
fn status(chain: &Chain) -> (Status, Option<Word>) {
    let reported = chain.reported.as_deref();
    match (&chain.end, reported) {
        (_, Some(word @ ("failed" | "error"))) => (Status::Failed, Some(word.into())),
        (_, Some("completed")) | (End::Said, _) => (Status::Completed, None),
        (End::Failed(_), _) => (Status::Failed, Some("api error".into())),
        (End::Interrupted, _) => (Status::Unknown, Some("interrupted".into())),
        (End::Asked | End::Called, _) => (Status::Running, None),
        (End::Nothing, _) => (Status::Created, None),
    }
}

/// What kind of subagent it is, and what its parent calls its task.
fn about(folder: &Folder) -> Option<(Option<String>, Option<String>)> {
    let file = folder.beside(&folder.about()?).ok()?;
    let bytes = read_range(&*file, 0, END as usize).ok()?;
    let about: About<'_> = serde_json::from_slice(&bytes).ok()?;
    let word = |text: &Text<'_>| text.some().map(|text| shortened(&text, WORD_MAX));
    Some((word(&about.agent_type), about.description.some().map(|text| cut(text, TASK_MAX))))
}

fn when(at: Option<i64>) -> When {
    at.and_then(|at| Timestamp::from_millisecond(at).ok()).map_or(When::Absent, When::At)
}

/// The record of the worker `folder`, read until `go_on` says no.
pub(super) fn record(folder: &Folder, path: &RelPath, go_on: &dyn Fn() -> bool) -> Result<Record> {
    let (facts, whole) = folder.facts(go_on)?;
    let chain = facts.chain(folder.place().agent.as_ref()).ok_or(Error::NotFound)?;
    let mut worker = if whole { worker(folder, path, &facts, chain, chain) } else { listed(folder, path)? };
    worker.whole = true;
    let mut trace = Trace { records_calls: true, tokens: chain.all_tokens(), ..Trace::default() };
    for (at, call) in chain.calls.iter().enumerate() {
        let made = tool_call(folder, &facts, at, call, &mut trace)?;
        trace.calls.push(made);
    }
    let pending = chain.calls.iter().filter(|call| call.done.is_none());
    pending.for_each(|call| trace.unanswered.add(call.tool.clone()));
    trace.task = chain.task().map(|said| said.head.trim().to_owned()).filter(|task| !task.is_empty());
    trace.final_words = chain.final_words().map(|said| said.head.trim().to_owned());
    trace.words_with_parent = folder.place().agent.is_some() && trace.final_words.is_none() && chain.reported.is_some();
    if folder.place().agent.is_none() {
        trace.bad_lines.extend((facts.bad > 0).then_some((SOURCE, facts.bad)));
        trace.unused.lines = facts.lines;
        trace.unused.kinds.clone_from(&facts.unknown);
        trace.unused.more_agents = facts.more_agents;
    } else {
        trace.unused.lines = chain.lines.len() as u64;
    }
    trace.unused.stray_results = chain.stray_results;
    trace.unused.more_calls = chain.more_calls;
    if !whole || facts.too_long {
        trace.partly.push((SOURCE, Partly { bytes: facts.read, late: !whole }));
    }
    Ok(Record { worker, trace, unread: 0 })
}

fn tool_call(folder: &Folder, facts: &Facts, at: usize, call: &Call, trace: &mut Trace) -> Result<ToolCall> {
    let name = call.file_name(at);
    let path = RelPath::from(Name::new(CALLS)?).join(&name);
    let mut made = ToolCall {
        seq: at as u64 + 1,
        tool: call.tool.clone(),
        path: path.clone(),
        output: Output::Pending,
        outcome: Outcome::Unknown,
        cancelled: false,
        exit_code: None,
        duration_ms: None,
        bytes: 0,
        input: call.input.clone(),
    };
    let Some(done) = &call.done else { return Ok(made) };
    made.output = Output::InPlace;
    made.outcome = if done.failed { Outcome::Failed } else { Outcome::Ok };
    made.cancelled = done.cancelled;
    made.exit_code = done.exit_code;
    made.duration_ms = call.at.zip(done.at).and_then(|(from, to)| u64::try_from(to.checked_sub(from)?).ok());
    let spilled = folder.spilled(facts, call, done)?;
    made.bytes = spilled.as_ref().map_or(done.bytes, |(_, meta)| meta.size);
    if done.truncated || done.spilled && spilled.is_none() {
        trace.truncated.push(path);
    }
    Ok(made)
}
