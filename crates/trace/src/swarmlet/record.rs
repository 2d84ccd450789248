//! Builds a worker's record from its files: calls with outcomes, inputs and durations, the last
//! message, and substitutes in the layout without calls.

use super::super::RecordSource;
use super::super::bounded::BoundedValue;
use super::super::input::InputLine;
use super::super::value::{scalar_text, truncate};
use super::layout::{CALLS, CHANGES_FILE, TASK, path};
use super::metadata::{self, ReadWorker};
use super::metrics::{self, CallFiles, RecordedCall};
use super::outcome::{self, OutputVerdict};
use super::{thread, workspace};
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::error::Result;
use swarmletfs_base::model::{LooseFile, Outcome, Output, Record, ToolCall, Trace, Worker};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{DirEntry, File, FileOpener, Kind, Store, read_range, read_whole};

pub const RESULT: &str = "result.txt";
const NO_RESULT: [&str; 3] = ["(No result generated)", "(Critical error)", "(No output)"];
/// Files to show if no calls are recorded, most informative first. Other logs follow the first.
const LOOSE: [&str; 4] =
    ["logs/errors.log", "result.txt", "outputs/report.md", "outputs/data.json"];
pub const LOGS: &str = "logs";
/// The output of the command that is the worker itself, in the directory of its logs.
pub const EXECUTION_LOG: &str = "execution.log";
/// Directories in which a worker keeps files of its own.
const OWN_FOLDERS: [&str; 3] = ["outputs", LOGS, "context"];
/// The list of tool names, in the layout without calls.
pub const TOOLS_USED: &str = "tools_used.json";
/// Maximum length of the task in a generated file, in bytes.
const TASK_MAX: usize = 8_192;
/// Maximum length of a tool name in that list, in bytes.
const TOOL_NAME_MAX: usize = 200;
const TOOLS_MAX: usize = 200;

/// Reads the files of a worker. A file that cannot be read is noted, and the others are still read.
pub(super) fn read_record(
    source: RecordSource<'_>,
    read: ReadWorker,
    deadline: Deadline<'_>,
) -> Record {
    let ReadWorker { worker, metadata, registration } = read;
    let folder = source.folder;
    let opener = FileOpener::default();
    let mut read_errors = ReadErrors::default();
    let listed = read_errors.ok_or_note(CALLS, call_files(folder));
    let mut trace =
        Trace { records_calls: listed.is_some(), own_folders: &OWN_FOLDERS, ..Trace::default() };
    let listed = listed.unwrap_or_default();
    let mut files = CallFiles::default();
    listed.iter().for_each(|file| files.add(file.seq, &file.tool));
    let (records, metrics) = read_errors
        .ok_or_note(metrics::FILE, metrics::read(folder, &files, deadline))
        .unwrap_or_default();
    let records = metrics::with_metadata(records, &metadata, &files);
    // Outputs come before the thread, because outcomes matter more than inputs.
    let mut unread = 0;
    for (file, record) in listed.into_iter().zip(records) {
        let has_time = deadline.has_time();
        unread += u64::from(!has_time && !record.is_open());
        let truncated = record.truncated;
        let call = build_call((source, &opener), &worker, file, record, has_time, &mut read_errors);
        trace.truncated.extend(truncated.then(|| call.path.clone()));
        trace.calls.push(call);
    }
    let mut thread = read_errors
        .ok_or_note(thread::FILE, thread::read(folder, &files.counts, deadline))
        .unwrap_or_default();
    for (call, (key, nth)) in trace.calls.iter_mut().zip(files.places()) {
        let inputs = thread.inputs.get_mut(key);
        let input = inputs.and_then(|inputs| inputs.get_mut(nth)).and_then(Option::take);
        // The metrics name the call exactly, so their input wins.
        if let Some(input) = input.filter(|_| call.input.is_none()) {
            set_input(call, input);
        }
    }
    trace.unanswered = thread.unanswered;
    if trace.calls.is_empty() {
        trace.loose = loose_files(folder, &mut read_errors);
        trace.tools_used =
            read_errors.ok_or_note(TOOLS_USED, read_tools_used(folder)).unwrap_or_default();
    }
    let run = read_errors.ok_or_note(CHANGES_FILE, workspace::run_facts(folder, &registration));
    let run = run.unwrap_or_default();
    if run.is_forged {
        read_errors.0.push((path(CHANGES_FILE), "the runner did not write it".into()));
    }
    // The command of such a worker may know nothing of records.
    trace.is_plain_command = run.has_changes;
    (trace.workspace_files, trace.command) = (run.files, run.command);
    let result = read_errors.ok_or_note(RESULT, read_result(folder));
    // The last message of a partly read thread may not be the last one.
    let last_words =
        thread.last_words.filter(|_| worker.status.is_finished() && thread.lines.partial.is_none());
    trace.final_words = result.unwrap_or(last_words);
    let mut own_task =
        || read_errors.ok_or_note(TASK, metadata::task_file(folder, TASK_MAX)).flatten();
    let task = metadata::task(&metadata)
        .or_else(|| if registration.is_binding() { None } else { own_task() })
        // While the metadata is torn, the file can only extend the task that was read before.
        .filter(|task| {
            !worker.is_torn() || !worker.task.is_empty() && task.starts_with(&worker.task)
        });
    trace.task = task.map(|task| truncate(task, TASK_MAX));
    for (file, lines) in [(metrics::FILE, metrics), (thread::FILE, thread.lines)] {
        trace.bad_lines.extend((lines.bad > 0).then_some((file, lines.bad)));
        trace.partial_reads.extend(lines.partial.map(|partial| (file, partial)));
    }
    trace.unreadable = read_errors.0;
    Record { worker, trace, unread }
}

#[derive(Default)]
struct ReadErrors(Vec<(RelPath, String)>);

impl ReadErrors {
    /// Returns the value read from `file`. Returns `None` on an error, which is noted unless the
    /// file is missing.
    fn ok_or_note<T>(&mut self, file: &str, result: Result<T>) -> Option<T> {
        self.ok_or_note_path(&path(file), result)
    }

    fn ok_or_note_path<T>(&mut self, file: &RelPath, result: Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                if !error.is_not_a_file() {
                    self.0.push((file.clone(), error.to_string()));
                }
                None
            }
        }
    }
}

struct CallFile {
    seq: u64,
    tool: String,
    name: Name,
    kind: Kind,
}

/// Lists the calls' files by number.
fn call_files(folder: &dyn Store) -> Result<Vec<CallFile>> {
    let mut files: Vec<CallFile> =
        folder.list(&path(CALLS))?.into_iter().filter_map(parse_call_file).collect();
    files.sort_by(|a, b| a.seq.cmp(&b.seq).then_with(|| a.name.cmp(&b.name)));
    Ok(files)
}

/// Splits `NNN_<tool>.txt` into a number of any length and the tool's name, which may contain `_`.
/// Returns `None` for any other name.
pub fn split_call_name(name: &str) -> Option<(&str, &str)> {
    let (number, tool) = name.strip_suffix(".txt")?.split_once('_')?;
    let is_number = (1..=18).contains(&number.len()) && number.bytes().all(|b| b.is_ascii_digit());
    is_number.then_some((number, tool))
}

fn parse_call_file(entry: DirEntry) -> Option<CallFile> {
    let text = entry.name.to_text().into_owned();
    let (number, tool) = split_call_name(&text)?;
    Some(CallFile {
        seq: number.parse().ok()?,
        tool: tool.to_owned(),
        name: entry.name,
        kind: entry.kind,
    })
}

/// Builds a call from its output's file and its record. Reads the output if it `has_time`.
fn build_call(
    (source, opener): (RecordSource<'_>, &FileOpener),
    worker: &Worker,
    file: CallFile,
    record: RecordedCall,
    has_time: bool,
    read_errors: &mut ReadErrors,
) -> ToolCall {
    let path = path(CALLS).join(&file.name);
    let unjudged = |output| (OutputVerdict::new(Outcome::Unknown), output, 0);
    let is_open = record.is_open();
    let (verdict, output, bytes) = match file.kind {
        // The rest of the output may change its meaning, so it is not judged yet.
        Kind::File if is_open => {
            let size = opener.stat_without_acl(source.folder, &path).map(|meta| meta.size);
            let bytes = read_errors.ok_or_note_path(&path, size).unwrap_or_default();
            (OutputVerdict::new(Outcome::Unknown), Output::InPlace, bytes)
        }
        Kind::File if has_time => match opener
            .open(source.folder, &path)
            .and_then(|file| judge_file(&*file))
        {
            Ok((verdict, bytes)) => match &verdict.stub {
                Some(stub) => {
                    let found = read_errors
                        .ok_or_note_path(&path, outcome::find_output(source, worker, stub))
                        .flatten();
                    let (output, bytes) = match found {
                        Some((path, bytes)) => (Output::OutOfBand(path), bytes),
                        None => (Output::Unreadable("stored out of band".into()), stub.bytes),
                    };
                    let verdict = read_errors
                        .ok_or_note_path(&path, judge_out_of_band(source, verdict.clone(), &output))
                        .unwrap_or(verdict);
                    (verdict, output, bytes)
                }
                None => (verdict, Output::InPlace, bytes),
            },
            Err(error) => {
                let reason = error.to_string();
                read_errors.ok_or_note_path::<()>(&path, Err(error));
                unjudged(Output::Unreadable(reason))
            }
        },
        Kind::File => (
            OutputVerdict::new(Outcome::Unknown),
            Output::InPlace,
            opener.stat_without_acl(source.folder, &path).map_or(0, |meta| meta.size),
        ),
        Kind::Folder => unjudged(Output::Unreadable("a folder, not a file".into())),
        Kind::Link => unjudged(Output::Unreadable("a link, which is not read".into())),
        Kind::Special => unjudged(Output::Unreadable("a special file, which is not opened".into())),
    };
    let outcome = record.outcome().unwrap_or(verdict.outcome);
    let mut call = ToolCall {
        output,
        at: record.started_at,
        outcome,
        is_open,
        suspect: verdict.suspect.filter(|_| outcome == Outcome::Ok),
        exit_code: record.exit_code.or(verdict.exit_code),
        duration_ms: record.duration_ms,
        bytes,
        ..ToolCall::new(file.seq, file.tool, path)
    };
    if let Some(input) = record.input {
        set_input(&mut call, input);
    }
    call
}

fn set_input(call: &mut ToolCall, input: InputLine) {
    (call.is_command, call.subject) = (!input.command.is_empty(), input.command);
    call.input = Some(input.line);
}

/// Judges an output by its head, or as a whole if that may tell more. Also returns its size in
/// bytes.
fn judge_file(file: &dyn File) -> Result<(OutputVerdict, u64)> {
    let size = match file.size_at_open() {
        Some(size) => size,
        None => file.stat_without_acl()?.size,
    };
    // Most outputs are small. One read is enough if it does not look for a later end.
    let head_bytes =
        usize::try_from(size).map_or(outcome::HEAD_BYTES, |size| size.min(outcome::HEAD_BYTES));
    let head = read_range(file, 0, head_bytes)?;
    let is_read_whole = size > head.len() as u64
        && size <= outcome::WHOLE_MAX
        && outcome::needs_whole_output(&head);
    if is_read_whole {
        let all = read_range(file, 0, usize::try_from(size).unwrap_or(outcome::HEAD_BYTES))?;
        return Ok((outcome::judge(&all), size));
    }
    Ok((outcome::judge(&head), size))
}

/// Judges the out-of-band output if its stub states no outcome.
fn judge_out_of_band(
    source: RecordSource<'_>,
    stub: OutputVerdict,
    output: &Output,
) -> Result<OutputVerdict> {
    match (output, source.outputs) {
        (Output::OutOfBand(path), Some(store)) if stub.outcome == Outcome::Unknown => {
            judge_file(&*store.open(path)?)
                .map(|(verdict, _)| OutputVerdict { stub: None, ..verdict })
        }
        _ => Ok(stub),
    }
}

/// Reads the worker's result. Returns `None` if the file is empty or holds a placeholder.
fn read_result(folder: &dyn Store) -> Result<Option<String>> {
    let file = folder.open(&path(RESULT))?;
    let bytes = read_range(&*file, 0, thread::WORDS_MAX + 4)?;
    let text = String::from_utf8_lossy(&bytes);
    // A character truncated by the read is dropped.
    let is_cut = bytes.len() == thread::WORDS_MAX + 4;
    let text = if is_cut {
        text.trim_end_matches(char::REPLACEMENT_CHARACTER).trim()
    } else {
        text.trim()
    };
    let is_empty = text.is_empty() || NO_RESULT.contains(&text);
    Ok((!is_empty).then(|| truncate(text.to_owned(), thread::WORDS_MAX)))
}

fn loose_files(folder: &dyn Store, read_errors: &mut ReadErrors) -> Vec<LooseFile> {
    let mut paths: Vec<RelPath> = LOOSE.iter().map(|file| path(file)).collect();
    let mut logs: Vec<RelPath> = read_errors
        .ok_or_note(LOGS, folder.list(&path(LOGS)))
        .unwrap_or_default()
        .into_iter()
        .filter(|entry| entry.kind == Kind::File)
        .map(|entry| path(LOGS).join(&entry.name))
        .filter(|path| !paths.contains(path))
        .collect();
    logs.sort();
    let rest = paths.split_off(1);
    let found = paths.into_iter().chain(logs).chain(rest).filter_map(|path| {
        let meta = read_errors.ok_or_note_path(&path, folder.stat(&path))?;
        (meta.kind == Kind::File && meta.size > 0).then_some(LooseFile { path, bytes: meta.size })
    });
    found.collect()
}

/// Reads tool names: a list of strings or of objects with `tool` or `name`, at the top or under
/// `tools`.
fn read_tools_used(folder: &dyn Store) -> Result<Vec<String>> {
    let bytes = read_whole(folder, &path(TOOLS_USED), metadata::SIZE_MAX)?;
    let known: Option<BoundedValue> = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let value = known.map(|known| known.value);
    let list = value
        .as_ref()
        .and_then(|value| value.as_array().or_else(|| value.get("tools")?.as_array()));
    let names = list.into_iter().flatten().filter_map(|item| {
        scalar_text(Some(item))
            .or_else(|| scalar_text(item.get("tool")))
            .or_else(|| scalar_text(item.get("name")))
    });
    Ok(names.map(|name| truncate(name, TOOL_NAME_MAX)).take(TOOLS_MAX).collect())
}
