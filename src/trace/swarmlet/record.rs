//! A worker's record, put together from its files: calls with outcomes, inputs and durations, last words, and what
//! stands for the calls in the layout that has none.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::super::Place;
use super::super::input::tool_key;
use super::super::known::Known;
use super::super::value::{cut, string};
use super::layout::{CALLS, TASK, path};
use super::metadata;
use super::metrics::{self, ByTool};
use super::outcome::{self, Judged};
use super::{outputs, thread};
use crate::error::Result;
use crate::model::{LooseFile, Outcome, Output, Record, ToolCall, Trace, Worker};
use crate::name::{Name, RelPath};
use crate::store::{DirEntry, Kind, Store, read_range, read_whole};

/// The worker's own final result.
const RESULT: &str = "result.txt";
/// Results that say that there is none.
const NO_RESULT: [&str; 3] = ["(No result generated)", "(Critical error)", "(No output)"];
/// What stands for calls where none are recorded, most telling first; between the first and the second, other logs.
const LOOSE: [&str; 4] = ["logs/errors.log", "result.txt", "outputs/report.md", "outputs/data.json"];
const LOGS: &str = "logs";
/// Folders in which a worker keeps files of its own.
const OWN_FOLDERS: [&str; 3] = ["outputs", LOGS, "context"];
/// The names of the tools, where calls are not recorded.
const TOOLS_USED: &str = "tools_used.json";
/// The longest task that a generated file quotes, in bytes.
const TASK_MAX: usize = 8_192;
/// How many tools are named.
const TOOLS_MAX: usize = 200;

/// Looks into the files of `worker`, whose metadata.json is `metadata`. A file that is there and cannot be read costs
/// what it would have told, and is named; the others are read all the same.
pub(super) fn record(
    place: Place<'_>,
    worker: Worker,
    metadata: &Map<String, Value>,
    go_on: &dyn Fn() -> bool,
) -> Record {
    let folder = place.folder;
    let mut unreadable = Unreadable::default();
    let listed = unreadable.of(CALLS, call_files(folder));
    let mut trace = Trace { records_calls: listed.is_some(), own_folders: &OWN_FOLDERS, ..Trace::default() };
    // Each file with its tool's key, and which of the tool's files it is.
    let mut files: HashMap<String, usize> = HashMap::new();
    let numbered: Vec<(CallFile, String, usize)> = listed
        .unwrap_or_default()
        .into_iter()
        .map(|file| {
            let key = tool_key(&file.tool);
            let count = files.entry(key.clone()).or_default();
            *count += 1;
            (file, key, *count - 1)
        })
        .collect();
    let (recorded, metrics) = unreadable.of(metrics::FILE, metrics::read(folder, &files, go_on)).unwrap_or_default();
    let recorded = metrics::with_metadata(recorded, metadata, &files);
    // The outputs before the thread: how the calls ended matters more than what they were made with.
    let mut unread = 0;
    let mut nths = Vec::with_capacity(numbered.len());
    for (file, key, nth) in numbered {
        let look = go_on();
        unread += u64::from(!look);
        trace.calls.push(call(place, &worker, file, (&recorded, &key, nth), look, &mut unreadable));
        nths.push((key, nth));
    }
    let mut thread = unreadable.of(thread::FILE, thread::read(folder, &files, go_on)).unwrap_or_default();
    for (call, (key, nth)) in trace.calls.iter_mut().zip(nths) {
        call.input = thread.inputs.get_mut(&key).and_then(|inputs| inputs.get_mut(nth)).and_then(Option::take);
    }
    trace.unanswered = thread.unanswered;
    if trace.calls.is_empty() {
        trace.loose = loose_files(folder, &mut unreadable);
        trace.tools_used = unreadable.of(TOOLS_USED, tools_used(folder)).unwrap_or_default();
    }
    let words = unreadable.of(RESULT, result(folder));
    // The last of a thread that was read in part only is not its last.
    let last_words = thread.last_words.filter(|_| worker.status.is_finished() && thread.lines.partly.is_none());
    trace.final_words = words.unwrap_or(last_words);
    let in_file = || unreadable.of(TASK, metadata::task_file(folder, TASK_MAX)).flatten();
    // While the metadata is torn, the file says more only of the task that was read before.
    let is_kept = |task: &String| !worker.is_torn() || !worker.task.is_empty() && task.starts_with(&worker.task);
    let task = metadata::task(metadata).or_else(in_file).filter(is_kept);
    trace.task = task.map(|task| cut(task, TASK_MAX));
    for (file, lines) in [(metrics::FILE, metrics), (thread::FILE, thread.lines)] {
        trace.bad_lines.extend((lines.bad > 0).then_some((file, lines.bad)));
        trace.partly.extend(lines.partly.map(|partly| (file, partly)));
    }
    trace.unreadable = unreadable.0;
    Record { worker, trace, unread }
}

/// Files that are there and could not be read.
#[derive(Default)]
struct Unreadable(Vec<(RelPath, String)>);

impl Unreadable {
    /// What was read of `file`; `None` if it is not there, or there and unreadable, which is noted.
    fn of<T>(&mut self, file: &str, result: Result<T>) -> Option<T> {
        self.at(&path(file), result)
    }

    fn at<T>(&mut self, file: &RelPath, result: Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                if !error.is_absence() {
                    self.0.push((file.clone(), error.to_string()));
                }
                None
            }
        }
    }
}

/// A file in `tool_calls/` that is named like a call's output.
struct CallFile {
    seq: u64,
    tool: String,
    name: Name,
    kind: Kind,
}

/// The calls' files by number.
fn call_files(folder: &dyn Store) -> Result<Vec<CallFile>> {
    let mut files: Vec<CallFile> = folder.list(&path(CALLS))?.into_iter().filter_map(call_file).collect();
    files.sort_by(|a, b| a.seq.cmp(&b.seq).then_with(|| a.name.cmp(&b.name)));
    Ok(files)
}

/// `NNN_<tool>.txt`: a number, the tool's name (which may hold `_`), always `.txt`.
fn call_file(entry: DirEntry) -> Option<CallFile> {
    let text = entry.name.to_text().into_owned();
    let (number, tool) = text.strip_suffix(".txt")?.split_once('_')?;
    if number.is_empty() || number.len() > 18 || !number.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    Some(CallFile { seq: number.parse().ok()?, tool: tool.to_owned(), name: entry.name, kind: entry.kind })
}

fn call(
    place: Place<'_>,
    worker: &Worker,
    file: CallFile,
    (recorded, key, nth): (&ByTool, &str, usize),
    look: bool,
    unreadable: &mut Unreadable,
) -> ToolCall {
    let path = path(CALLS).join(&file.name);
    let (judged, output, bytes) = match file.kind {
        Kind::File if look => match read(place.folder, &path) {
            Ok((judged, bytes)) => match &judged.stub {
                Some(stub) => {
                    let found = unreadable.at(&path, outputs::find(place, worker, stub)).flatten();
                    let (output, bytes) = match found {
                        Some((path, bytes)) => (Output::StoredOut(path), bytes),
                        None => (Output::Unreadable("stored out of band".into()), stub.bytes),
                    };
                    let judged = unreadable.at(&path, stored_out(place, judged.clone(), &output)).unwrap_or(judged);
                    (judged, output, bytes)
                }
                None => (judged, Output::InPlace, bytes),
            },
            Err(error) => {
                let reason = error.to_string();
                unreadable.at::<()>(&path, Err(error));
                (unknown(), Output::Unreadable(reason), 0)
            }
        },
        Kind::File => (unknown(), Output::InPlace, place.folder.stat(&path).map_or(0, |meta| meta.size)),
        Kind::Folder => (unknown(), Output::Unreadable("a folder, not a file".into()), 0),
        Kind::Link => (unknown(), Output::Unreadable("a link, which is not read".into()), 0),
        Kind::Special => (unknown(), Output::Unreadable("a special file, which is not opened".into()), 0),
    };
    let record = recorded.get(key).and_then(|records| records.get(nth)).cloned().unwrap_or_default();
    ToolCall {
        seq: file.seq,
        tool: file.tool,
        path,
        output,
        outcome: record.outcome().unwrap_or(judged.outcome),
        cancelled: false,
        exit_code: record.exit_code.or(judged.exit_code),
        duration_ms: record.duration_ms,
        bytes,
        input: None,
    }
}

fn unknown() -> Judged {
    Judged { outcome: Outcome::Unknown, exit_code: None, stub: None }
}

/// Judges an output by its beginning, or by all of it where that could tell more. Also its size in bytes.
fn read(store: &dyn Store, path: &RelPath) -> Result<(Judged, u64)> {
    let file = store.open(path)?;
    let size = file.stat_without_acl()?.size;
    let head = read_range(&*file, 0, outcome::HEAD)?;
    let whole = size > head.len() as u64 && size <= outcome::WHOLE_MAX && outcome::wants_whole(&head);
    if whole {
        let all = read_range(&*file, 0, usize::try_from(size).unwrap_or(outcome::HEAD))?;
        return Ok((outcome::judge(&all), size));
    }
    Ok((outcome::judge(&head), size))
}

/// What the stub says stands; where it says nothing, the output behind it is judged.
fn stored_out(place: Place<'_>, stub: Judged, output: &Output) -> Result<Judged> {
    match (output, place.outputs) {
        (Output::StoredOut(path), Some(store)) if stub.outcome == Outcome::Unknown => {
            read(store, path).map(|(judged, _)| Judged { stub: None, ..judged })
        }
        _ => Ok(stub),
    }
}

/// The worker's own result; `None` if the file says that there is none.
fn result(folder: &dyn Store) -> Result<Option<String>> {
    let file = folder.open(&path(RESULT))?;
    let bytes = read_range(&*file, 0, thread::WORDS_MAX + 4)?;
    let text = String::from_utf8_lossy(&bytes);
    // A character torn by the end of what was read is no part of the words.
    let torn = bytes.len() == thread::WORDS_MAX + 4;
    let text = if torn { text.trim_end_matches(char::REPLACEMENT_CHARACTER).trim() } else { text.trim() };
    let empty = text.is_empty() || NO_RESULT.contains(&text);
    Ok((!empty).then(|| cut(text.to_owned(), thread::WORDS_MAX)))
}

fn loose_files(folder: &dyn Store, unreadable: &mut Unreadable) -> Vec<LooseFile> {
    let mut paths: Vec<RelPath> = LOOSE.iter().map(|file| path(file)).collect();
    let mut logs: Vec<RelPath> = unreadable
        .of(LOGS, folder.list(&path(LOGS)))
        .unwrap_or_default()
        .into_iter()
        .filter(|entry| entry.kind == Kind::File)
        .map(|entry| path(LOGS).join(&entry.name))
        .filter(|path| !paths.contains(path))
        .collect();
    logs.sort();
    let rest = paths.split_off(1);
    let found = paths.into_iter().chain(logs).chain(rest).filter_map(|path| {
        let meta = unreadable.at(&path, folder.stat(&path))?;
        (meta.kind == Kind::File && meta.size > 0).then_some(LooseFile { path, bytes: meta.size })
    });
    found.collect()
}

/// Names of tools: a list of strings or of objects with `tool` or `name`, bare or under `tools`.
fn tools_used(folder: &dyn Store) -> Result<Vec<String>> {
    let bytes = read_whole(folder, &path(TOOLS_USED), metadata::SIZE_MAX)?;
    let known: Option<Known> = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let value = known.map(|known| known.value);
    let list = value.as_ref().and_then(|value| value.as_array().or_else(|| value.get("tools")?.as_array()));
    let name =
        |item: &Value| string(Some(item)).or_else(|| string(item.get("tool"))).or_else(|| string(item.get("name")));
    let names = list.map(Vec::as_slice).unwrap_or_default().iter().filter_map(name);
    Ok(names.map(|name| cut(name, 200)).take(TOOLS_MAX).collect())
}
