//! The format of pi, and of programs that are made of it (omp, OpenClaw): a log of JSON lines for
//! each session. A subagent of omp has a log of its own, in a directory named after its parent's.

use serde::Deserialize;
use serde_json::Value;

use super::blocks::{MessageBlock, MessageBlocks, number_after};
use super::file_tools::{self, FileTool, FileTools};
use super::lenient::{
    MaybeBool, MaybeI64, MaybeNumber, MaybeObject, MaybeStr, MaybeText, MaybeU64, object,
};
use super::probe::Probe;
use super::transcript::{
    CallRecord, IndexBuilder, RawRecord, ResultPart, Role, Session, Shape, TitleSource,
    TranscriptFormat, TranscriptLocation, Turn, TurnEvent, Verdict, parse_millis,
};
use swarmletfs_base::error::Result;
use swarmletfs_base::model::{FileAccess, FileEdit, Outcome, Tokens, Worker};
use swarmletfs_base::name::RelPath;

const SUFFIX: &str = ".jsonl";
/// Maximum number of folders in a session's folder above a subagent.
const LEVELS_MAX: usize = 4;
/// The last line of the output of a command that failed.
const EXIT_CODE: &str = "Command exited with code ";
const TOOLS: &FileTools =
    &[("read", FileTool::Read), ("write", FileTool::Write), ("edit", FileTool::Replace)];
/// Types of lines that say nothing of the conversation.
const OTHER_TYPES: [&str; 8] = [
    "model_change",
    "thinking_level_change",
    "custom",
    "label",
    "session_init",
    "mode_change",
    "ttsr_injection",
    "leaf",
];

/// A line. Fields of an unexpected type count as absent.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
struct PiSessionLine<'a> {
    #[serde(rename = "type")]
    kind: MaybeStr<'a>,
    id: MaybeStr<'a>,
    timestamp: MaybeStr<'a>,
    cwd: MaybeStr<'a>,
    /// The path of the session of which this one is a branch.
    parent_session: MaybeStr<'a>,
    branched_from: MaybeStr<'a>,
    title: MaybeStr<'a>,
    name: MaybeStr<'a>,
    message: MaybeObject<PiMessage<'a>>,
    summary: MaybeStr<'a>,
    content: MaybeText<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
struct PiMessage<'a> {
    role: MaybeStr<'a>,
    content: MessageBlocks<'a>,
    model: MaybeStr<'a>,
    usage: MaybeObject<PiUsage>,
    stop_reason: MaybeStr<'a>,
    error_message: MaybeStr<'a>,
    tool_call_id: MaybeStr<'a>,
    is_error: MaybeBool,
    details: MaybeObject<PiDetails>,
    /// A command that the user ran.
    command: MaybeStr<'a>,
    output: MaybeStr<'a>,
}

#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PiDetails {
    exit_code: MaybeI64,
}

/// The tokens of an answer. The cached ones are not part of the input.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PiUsage {
    input: MaybeU64,
    output: MaybeU64,
    cache_read: MaybeU64,
    cache_write: MaybeU64,
    cost: MaybeObject<Cost>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Cost {
    /// In dollars.
    total: MaybeNumber,
}

pub struct Pi;

impl TranscriptFormat for Pi {
    fn name(&self) -> &'static str {
        "pi"
    }

    fn recognizes(&self, probe: &Probe<'_>) -> bool {
        // omp writes a title before it.
        probe.name().ends_with(SUFFIX.as_bytes())
            && probe.first_lines::<PiSessionLine<'_>>(2).iter().any(is_session)
    }

    fn locate(&self, path: &RelPath) -> Option<TranscriptLocation> {
        let location = TranscriptLocation::of_file(path, SUFFIX, Shape::Lines)?;
        // Subagents are in the folder of their session; their own ones, in a folder in it.
        let (mut nested, mut folder) = (Some(location.clone()), path.parent());
        for _ in 0..LEVELS_MAX {
            nested = nested.and_then(TranscriptLocation::above);
            let Some(level) = nested.clone() else { break };
            let name = folder.file_name();
            let session = name.filter(|name| session_id(&name.to_text()).is_some());
            if session.is_some() {
                return Some(TranscriptLocation { session, ..level });
            }
            folder = folder.parent();
        }
        Some(location)
    }

    fn add_record(&self, index: &mut IndexBuilder<'_>, record: RawRecord<'_>) -> bool {
        let Some(line) = object::<PiSessionLine<'_>>(record.text) else { return false };
        match line.kind.as_str() {
            "session" => add_facts(index, &line),
            "title" => index.set_title(TitleSource::Generated, line.title.non_empty()),
            "session_info" => index.set_title(TitleSource::User, line.name.non_empty()),
            "message" | "compaction" | "branch_summary" | "custom_message" => {
                add_message(index, record, &line);
            }
            other if OTHER_TYPES.contains(&other) => {}
            other => index.count_unknown_type(other),
        }
        true
    }

    fn with_turns(&self, record: RawRecord<'_>, use_turns: &mut dyn FnMut(&[Turn<'_>])) {
        if let Some(line) = object::<PiSessionLine<'_>>(record.text) {
            use_turns(&turns(&line));
        }
    }

    fn states_calls_once(&self) -> bool {
        true
    }

    fn accessed_files(&self, tool: &str, arguments: &Value) -> Vec<FileAccess> {
        file_tools::accessed_files(TOOLS, tool, arguments)
    }

    fn asks_person_for(&self, tool: &str) -> Option<&'static str> {
        (tool == "ask").then_some("question")
    }

    fn may_begin_with_copies(&self) -> bool {
        true
    }

    fn describe(&self, worker: &mut Worker, session: &Session<'_>) {
        let folder = session.location.session.as_ref().map(|name| name.to_text());
        session.describe(worker, folder.as_deref().and_then(session_id));
        if folder.is_some() {
            // The file is named after the agent.
            let name = session.location.name.to_text();
            worker.summary.get_or_insert_with(|| name.into_owned());
        }
    }

    fn read_edits(&self, call: &CallRecord<'_>, _result: RawRecord<'_>) -> Result<Vec<FileEdit>> {
        file_tools::read_edits(self, TOOLS, call)
    }
}

fn is_session(line: &PiSessionLine<'_>) -> bool {
    line.kind.as_str() == "session" && line.id.0.is_some() && line.cwd.0.is_some()
}

/// Returns the ID in the name of a session's file, `<time>_<id>`.
fn session_id(name: &str) -> Option<&str> {
    let (time, id) = name.split_once('_')?;
    let is_time = time.len() >= 10 && time.starts_with(|c: char| c.is_ascii_digit());
    (is_time && time.contains('T') && !id.is_empty()).then_some(id)
}

fn add_facts(index: &mut IndexBuilder<'_>, line: &PiSessionLine<'_>) {
    let facts = &mut index.index.facts;
    IndexBuilder::set_fact(&mut facts.id, line.id.as_str());
    IndexBuilder::set_fact(&mut facts.cwd, line.cwd.as_str());
    let origin = [line.parent_session.as_str(), line.branched_from.as_str()];
    let origin = origin.into_iter().find(|path| !path.is_empty());
    if let Some(file) = origin.and_then(|path| path.rsplit('/').next()) {
        let stem = file.strip_suffix(SUFFIX).unwrap_or(file);
        IndexBuilder::set_fact(&mut facts.forked_from, session_id(stem).unwrap_or(stem));
        // Records before the session itself are copies.
        facts.copied_at_ms = parse_millis(line.timestamp.as_str());
    }
}

fn add_message(index: &mut IndexBuilder<'_>, record: RawRecord<'_>, line: &PiSessionLine<'_>) {
    let at_ms = parse_millis(line.timestamp.as_str());
    let began = index.index.facts.copied_at_ms.filter(|began| at_ms.is_some_and(|at| at < *began));
    index.add_turns(0, record.span, &turns(line));
    if let Some(source) = index.index.facts.forked_from.clone().filter(|_| began.is_some()) {
        return index.skip_copied(record.span, &source);
    }
    let Some(message) = &line.message.0 else { return };
    index.set_default_model(0, message.model.as_str());
    let Some(usage) = &message.usage.0 else { return };
    let tokens = Tokens {
        input: usage.input.or_zero(),
        output: usage.output.or_zero(),
        cache_read: usage.cache_read.or_zero(),
        cache_creation: usage.cache_write.or_zero(),
        ..Tokens::default()
    };
    index.count_tokens(0, line.id.as_str(), message.model.as_str(), tokens);
    let cost = usage.cost.0.as_ref().and_then(|cost| cost.total.as_stated_cost());
    if let Some(cost) = cost {
        index.index.main.cost.add(cost);
    }
}

fn turns<'a>(line: &'a PiSessionLine<'_>) -> Vec<Turn<'a>> {
    let stop = line.message.0.as_ref().map(|message| message.stop_reason.as_str());
    let interruption = (stop == Some("aborted")).then(|| Turn {
        role: Role::System,
        at_ms: parse_millis(line.timestamp.as_str()),
        text: "aborted".into(),
        event: TurnEvent::Interruption,
        ..Turn::default()
    });
    turn(line).into_iter().chain(interruption).collect()
}

fn turn<'a>(line: &'a PiSessionLine<'_>) -> Option<Turn<'a>> {
    let at_ms = parse_millis(line.timestamp.as_str());
    let of_program = |text: &'a str, event| {
        Some(Turn { role: Role::System, at_ms, text: text.into(), event, ..Turn::default() })
    };
    match line.kind.as_str() {
        "compaction" => return of_program(line.summary.as_str(), TurnEvent::Compaction),
        "branch_summary" => return of_program(line.summary.as_str(), TurnEvent::ProgramText),
        "custom_message" => return of_program(line.content.as_str(), TurnEvent::ProgramText),
        "message" => {}
        _ => return None,
    }
    let message = line.message.0.as_ref()?;
    let text = message.content.text();
    match message.role.as_str() {
        "assistant" => Some(assistant_turn(message, at_ms)),
        "user" => Some(Turn { at_ms, request: Some(text.clone()), text, ..Turn::default() }),
        "toolResult" => {
            Some(Turn { at_ms, results: vec![result_part(message)], ..Turn::default() })
        }
        // Its output belongs to the user, who may have hidden it from the assistant.
        "bashExecution" => of_program(message.output.as_str(), TurnEvent::ProgramText),
        _ => Some(Turn {
            role: Role::System,
            at_ms,
            text,
            event: TurnEvent::ProgramText,
            ..Turn::default()
        }),
    }
}

fn assistant_turn<'a>(message: &'a PiMessage<'_>, at_ms: Option<i64>) -> Turn<'a> {
    let turn = Turn { role: Role::Assistant, at_ms, ..Turn::default() };
    let error = message.error_message.as_str();
    match message.stop_reason.as_str() {
        "error" => Turn {
            is_synthetic: true,
            text: if error.is_empty() { message.content.text() } else { error.into() },
            event: TurnEvent::ApiError,
            ..turn
        },
        _ => Turn {
            model: message.model.as_str().into(),
            text: message.content.text(),
            thinking: message.content.thinking(),
            calls: message.content.calls().map(MessageBlock::call_part).collect(),
            ..turn
        },
    }
}

fn result_part<'a>(message: &'a PiMessage<'_>) -> ResultPart<'a> {
    let text = message.content.text();
    let stated = message.details.0.and_then(|details| details.exit_code.0);
    let last = text.trim_end().lines().next_back().unwrap_or_default();
    let printed = last.strip_prefix(EXIT_CODE).and_then(|_| number_after(last, EXIT_CODE));
    let outcome = match (stated, message.is_error.0) {
        (Some(code), _) => Verdict::from_exit_code(code).outcome,
        (None, Some(true)) => Outcome::Failed,
        (None, Some(false)) => Outcome::Ok,
        (None, None) => Outcome::Unknown,
    };
    ResultPart {
        call: message.tool_call_id.as_str().into(),
        verdict: Verdict {
            exit_code: stated.or(printed.filter(|_| outcome == Outcome::Failed)),
            ..Verdict::from_outcome(outcome)
        },
        text,
        ..ResultPart::default()
    }
}
