//! Calls of tools: their results, outcomes and files.

use std::borrow::Cow;

use serde_json::Value;

use super::super::transcript::{Arguments, CallPart, ResultPart, Stage, Verdict};
use super::schema::{CallMetadata, CallTime, Notice, OpencodeBlock, OpencodeEditedFile, ToolState};
use swarmletfs_base::model::{AccessKind, FileAccess, Outcome};

/// The tool that version 1 calls instead of one that does not exist, or with arguments that cannot
/// be parsed. It completes, and its arguments name the tool.
const INVALID: &str = "invalid";
/// The beginnings of errors of calls that a person or a rule refused, so that they never ran.
const REFUSALS: [&str; 4] = [
    "The user declined this tool call",
    "The user rejected permission to use this specific tool call",
    "The user has specified a rule which prevents you from using this specific tool call",
    "The user dismissed this question",
];
/// The error of a refusal without words, which ends the run in version 1.
const FINAL_REFUSAL: &str = "The user rejected permission to use this specific tool call.";
const FEEDBACK: &str = "with the following feedback: ";
/// The beginning of the types of errors of version 2 that say the same.
const PERMISSION: &str = "permission.";
/// Words at the end of the output of a command that version 1 ended. No field says so.
const TIMED_OUT: &str = "terminated command after exceeding timeout";

pub(super) fn call_part<'a>(block: &'a OpencodeBlock<'_>) -> CallPart<'a> {
    let arguments = block.state.0.as_ref().and_then(|state| state.input);
    CallPart {
        id: block.id().into(),
        name: tool(block),
        arguments: arguments.map_or(Arguments::None, Arguments::Json),
    }
}

fn tool<'a>(block: &'a OpencodeBlock<'_>) -> Cow<'a, str> {
    let name = block.tool();
    if name == INVALID
        && let Some(input) = block.state.0.as_ref().and_then(|state| state.input)
        && let Ok(input) = serde_json::from_str::<Value>(input.get())
        && let Some(tool) = input.get("tool").and_then(Value::as_str)
    {
        return tool.to_owned().into();
    }
    name.into()
}

/// Returns the result of a call, unless it still runs.
pub(super) fn result_part<'a>(block: &'a OpencodeBlock<'_>) -> Option<ResultPart<'a>> {
    let state = block.state.0.as_ref()?;
    let no_metadata = CallMetadata::default();
    let metadata = state.metadata.0.as_ref().unwrap_or(&no_metadata);
    let text = output(state);
    let (verdict, stage) = match state.status.as_str() {
        "completed" => completed(block, metadata),
        "error" if is_refused(state) => (Verdict::from_outcome(Outcome::NotRun), Stage::Done),
        "error" => {
            let verdict = Verdict::from_outcome(Outcome::Failed);
            (Verdict { exit_code: metadata.exit.0, ..verdict }, Stage::Done)
        }
        _ => return None,
    };
    let is_command = metadata.exit.0.is_none() && verdict.outcome == Outcome::Ok;
    let hint = is_command.then(|| text.lines().rfind(|line| line.contains(TIMED_OUT)));
    let refusal = state.error.message.split_once(FEEDBACK).map(|(_, words)| words.into());
    let time = call_time(block);
    let took = time.begin_ms().zip(time.end_ms());
    let took = took.and_then(|(from, to)| u64::try_from(to.checked_sub(from)?).ok());
    let is_over = stage == Stage::Done && verdict.outcome != Outcome::NotRun;
    Some(ResultPart {
        call: block.id().into(),
        hint: hint.flatten().map(|line| Cow::Owned(line.to_owned())),
        verdict: Verdict { duration_ms: took.filter(|_| is_over), ..verdict },
        stage,
        truncated: metadata.truncated.is_set(),
        refusal: refusal.filter(|_| verdict.outcome == Outcome::NotRun),
        files: changes(metadata).filter_map(changed_file).collect(),
        text,
        ..ResultPart::default()
    })
}

/// Returns the times of a call. In version 1, they are in its state.
pub(super) fn call_time(block: &OpencodeBlock<'_>) -> CallTime {
    let of_state = block.state.0.as_ref().and_then(|state| state.time.0.as_ref());
    block.time.0.as_ref().or(of_state).map_or_else(CallTime::default, |time| *time)
}

fn completed(block: &OpencodeBlock<'_>, metadata: &CallMetadata<'_>) -> (Verdict, Stage<'static>) {
    let is_failed = block.tool() == INVALID || metadata.timeout.is_set() || metadata.error.is_set();
    if is_failed {
        let verdict = Verdict::from_outcome(Outcome::Failed);
        return (Verdict { exit_code: metadata.exit.0, ..verdict }, Stage::Done);
    }
    if metadata.status.as_str() == "running" {
        let work = [&metadata.shell_id, &metadata.session_id];
        let work = work.into_iter().map(|id| id.as_str()).find(|id| !id.is_empty());
        return (Verdict::default(), Stage::Started(work.unwrap_or_default().to_owned().into()));
    }
    let verdict = metadata.exit.0.map(Verdict::from_exit_code);
    (verdict.unwrap_or_else(|| Verdict::from_outcome(Outcome::Ok)), Stage::Done)
}

fn is_refused(state: &ToolState<'_>) -> bool {
    state.error.kind.starts_with(PERMISSION)
        || REFUSALS.iter().any(|refusal| state.error.message.starts_with(refusal))
}

/// Returns the text of the refusal that ended the run with this call.
pub(super) fn final_refusal<'a>(block: &'a OpencodeBlock<'_>) -> Option<&'a str> {
    let message = &*block.state.0.as_ref()?.error.message;
    (message.trim_end() == FINAL_REFUSAL).then_some(message)
}

fn output<'a>(state: &'a ToolState<'_>) -> Cow<'a, str> {
    if state.status.as_str() == "error" {
        return (&*state.error.message).into();
    }
    let contents = state.content.0.iter().filter_map(|content| content.0.as_ref());
    let mut texts = contents.map(|content| content.text.as_str()).filter(|text| !text.is_empty());
    let Some(first) = texts.next() else { return state.output.as_str().into() };
    let mut all = Cow::Borrowed(first);
    for text in texts {
        let is_line = all.ends_with('\n');
        let all = all.to_mut();
        all.push_str(if is_line { "" } else { "\n" });
        all.push_str(text);
    }
    all
}

/// Returns the report of the end of work in the background.
pub(super) fn report<'a>(notice: &'a Notice<'_>, text: &'a str) -> Option<ResultPart<'a>> {
    let work = [&notice.shell_id, &notice.child_id].into_iter().map(|id| id.as_str());
    let work = work.into_iter().find(|id| !id.is_empty())?;
    let verdict = match (notice.exit.0, notice.state.as_str()) {
        _ if notice.timeout.is_set() => Verdict::from_outcome(Outcome::Failed),
        (Some(exit_code), _) => Verdict::from_exit_code(exit_code),
        (None, "completed") => Verdict::from_outcome(Outcome::Ok),
        (None, "error") => Verdict::from_outcome(Outcome::Failed),
        // It was stopped, or its program ended.
        (None, _) => Verdict::default(),
    };
    let stage = Stage::Reported(work.into());
    Some(ResultPart { text: text.into(), verdict, stage, ..ResultPart::default() })
}

/// Returns the changes of files that a result states.
pub(super) fn changes<'a>(
    metadata: &'a CallMetadata<'_>,
) -> impl Iterator<Item = &'a OpencodeEditedFile<'a>> {
    let listed = metadata.files.0.iter().filter_map(|file| file.0.as_ref());
    let is_listed = !metadata.files.0.is_empty();
    listed.chain(metadata.filediff.0.as_ref().filter(move |_| !is_listed))
}

fn changed_file(change: &OpencodeEditedFile<'_>) -> Option<FileAccess> {
    Some(FileAccess {
        path: change.move_path.non_empty().or_else(|| change.path())?,
        kind: if change.is_created() { AccessKind::Created } else { AccessKind::Edited },
        added: change.additions.0.unwrap_or_default(),
        removed: change.deletions.0.unwrap_or_default(),
    })
}

/// Returns the path in the arguments of a tool for files.
pub(super) fn path_argument(arguments: &Value) -> Option<&str> {
    ["path", "filePath"].iter().find_map(|name| arguments.get(*name)).and_then(Value::as_str)
}

/// Returns the file that a call reads or changes, by its arguments.
pub(super) fn accessed_file(tool: &str, arguments: &Value) -> Option<FileAccess> {
    let lines = |name: &str| {
        let text = arguments.get(name).and_then(Value::as_str);
        text.map_or(0, |text| text.lines().count() as u64)
    };
    let path = path_argument(arguments)?.to_owned();
    let (kind, added, removed) = match tool {
        "read" => (AccessKind::Read, 0, 0),
        "write" => (AccessKind::Edited, lines("content"), 0),
        "edit" | "multiedit" => (AccessKind::Edited, lines("newString"), lines("oldString")),
        _ => return None,
    };
    Some(FileAccess { path, kind, added, removed })
}
