//! The format of Droid, Factory's agent: a log of JSON lines for each session, and its settings
//! with the tokens beside it.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;

use super::blocks::{MessageBlock, MessageBlocks, join_lines, number_after};
use super::file_tools::{self, FileTool, FileTools};
use super::lenient::{MaybeBool, MaybeObject, MaybeStr, MaybeU64, object};
use super::probe::Probe;
use super::transcript::{
    CallRecord, IndexBuilder, RawRecord, ResultPart, Role, SessionMetadata, Shape, Stage,
    TitleSource, TranscriptFormat, TranscriptLocation, Turn, TurnEvent, Verdict, parse_millis,
};
use swarmletfs_base::error::Result;
use swarmletfs_base::model::{FileAccess, FileEdit, Outcome, Status, Tokens};
use swarmletfs_base::name::RelPath;

const SUFFIX: &str = ".jsonl";
const SETTINGS_SUFFIX: &str = ".settings.json";
/// The beginning of the IDs of messages that the program adds for the model.
const CONTEXT_PREFIX: &str = "context-";
const REMINDER: &str = "<system-reminder>";
/// The beginning of a message that tells the user of an error of the API.
const API_ERROR: &str = "BYOK Error:";
/// The words in the result of a call that was not allowed to run.
const REFUSED: &str = "insufficient permission to proceed";
/// The beginning of the result of a command that goes on in the background.
const STARTED: &str = "Background process started (PID:";
/// The beginning of the result of a command that took too long. Its flag says that it is no error.
const TIMED_OUT: &str = "Command timed out after ";
const EXIT_CODE: &str = "Error: Command failed (exit code: ";
const TOOLS: &FileTools = &[
    ("Read", FileTool::Read),
    ("Edit", FileTool::Replace),
    ("MultiEdit", FileTool::Replace),
    ("Create", FileTool::Create),
    ("ApplyPatch", FileTool::Patch),
];

/// A line. Fields of an unexpected type count as absent.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
struct DroidSessionLine<'a> {
    #[serde(rename = "type")]
    kind: MaybeStr<'a>,
    id: MaybeStr<'a>,
    timestamp: MaybeStr<'a>,
    message: MaybeObject<DroidMessage<'a>>,
    visibility: MaybeStr<'a>,
    title: MaybeStr<'a>,
    is_session_title_manually_set: MaybeBool,
    cwd: MaybeStr<'a>,
    /// The end of a turn of the agent.
    reason: MaybeStr<'a>,
    summary_text: MaybeStr<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
struct DroidMessage<'a> {
    role: MaybeStr<'a>,
    content: MessageBlocks<'a>,
    model_id: MaybeStr<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
struct DroidSettings<'a> {
    model: MaybeStr<'a>,
    token_usage: MaybeObject<DroidTokenUsage>,
}

#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct DroidTokenUsage {
    input_tokens: MaybeU64,
    output_tokens: MaybeU64,
    cache_creation_tokens: MaybeU64,
    cache_read_tokens: MaybeU64,
}

pub struct Droid;

impl TranscriptFormat for Droid {
    fn name(&self) -> &'static str {
        "droid"
    }

    fn recognizes(&self, probe: &Probe<'_>) -> bool {
        probe.name().ends_with(SUFFIX.as_bytes())
            && probe
                .first_lines::<DroidSessionLine<'_>>(1)
                .iter()
                .any(|line| line.kind.as_str() == "session_start" && line.id.0.is_some())
    }

    fn locate(&self, path: &RelPath) -> Option<TranscriptLocation> {
        let location = TranscriptLocation::of_file(path, SUFFIX, Shape::Lines)?;
        Some(location.with_metadata(SETTINGS_SUFFIX))
    }

    fn states_status(&self) -> bool {
        true
    }

    fn add_record(&self, index: &mut IndexBuilder<'_>, record: RawRecord<'_>) -> bool {
        let Some(line) = object::<DroidSessionLine<'_>>(record.text) else { return false };
        match line.kind.as_str() {
            "session_start" => add_facts(index, &line),
            "message" | "compaction_state" => {
                let turn = turn(&line);
                // A text of the program does not open a turn of the agent.
                let is_text = |turn: &Turn<'_>| {
                    turn.event == TurnEvent::ProgramText && turn.results.is_empty()
                };
                if line.kind.as_str() == "message" && !turn.as_ref().is_some_and(is_text) {
                    index.set_status(0, Status::Running, None);
                }
                turn.into_iter().for_each(|turn| index.add_turns(0, record.span, &[turn]));
            }
            "agent_turn_outcome" => {
                let reason = line.reason.as_str();
                let is_stopped =
                    ["cancel", "abort", "interrupt"].iter().any(|word| reason.contains(word));
                match reason {
                    "completed" => index.set_status(0, Status::Completed, None),
                    _ if is_stopped => index.set_status(0, Status::Unknown, Some(reason)),
                    _ => index.set_status(0, Status::Failed, Some(reason)),
                }
            }
            "todo_state" => {}
            other => index.count_unknown_type(other),
        }
        true
    }

    fn with_turns(&self, record: RawRecord<'_>, use_turns: &mut dyn FnMut(&[Turn<'_>])) {
        if let Some(turn) = object::<DroidSessionLine<'_>>(record.text).as_ref().and_then(turn) {
            use_turns(&[turn]);
        }
    }

    fn states_calls_once(&self) -> bool {
        true
    }

    fn accessed_files(&self, tool: &str, arguments: &Value) -> Vec<FileAccess> {
        file_tools::accessed_files(TOOLS, tool, arguments)
    }

    fn asks_person_for(&self, tool: &str) -> Option<&'static str> {
        (tool == "AskUser").then_some("question")
    }

    fn read_metadata(&self, metadata: &[u8]) -> SessionMetadata {
        let settings = serde_json::from_slice::<MaybeObject<DroidSettings<'_>>>(metadata);
        let settings = settings.ok().and_then(|settings| settings.0).unwrap_or_default();
        let model = settings.model.non_empty();
        let tokens = settings.token_usage.0.map(|usage| Tokens {
            input: usage.input_tokens.or_zero(),
            output: usage.output_tokens.or_zero(),
            cache_read: usage.cache_read_tokens.or_zero(),
            cache_creation: usage.cache_creation_tokens.or_zero(),
            ..Tokens::default()
        });
        let tokens = tokens.filter(|tokens| *tokens != Tokens::default());
        SessionMetadata {
            tokens_by_model: tokens
                .map(|tokens| (model.clone().unwrap_or_default(), tokens))
                .into_iter()
                .collect(),
            model,
            ..SessionMetadata::default()
        }
    }

    fn read_edits(&self, call: &CallRecord<'_>, _result: RawRecord<'_>) -> Result<Vec<FileEdit>> {
        file_tools::read_edits(self, TOOLS, call)
    }
}

fn add_facts(index: &mut IndexBuilder<'_>, line: &DroidSessionLine<'_>) {
    IndexBuilder::set_fact(&mut index.index.facts.id, line.id.as_str());
    IndexBuilder::set_fact(&mut index.index.facts.cwd, line.cwd.as_str());
    let source = match line.is_session_title_manually_set.is_set() {
        true => TitleSource::User,
        false => TitleSource::Generated,
    };
    index.set_title(source, line.title.non_empty());
}

fn turn<'a>(line: &'a DroidSessionLine<'_>) -> Option<Turn<'a>> {
    let at_ms = parse_millis(line.timestamp.as_str());
    if line.kind.as_str() == "compaction_state" {
        let text = line.summary_text.as_str().into();
        let event = TurnEvent::Compaction;
        return Some(Turn { role: Role::System, at_ms, text, event, ..Turn::default() });
    }
    let message = line.message.0.as_ref()?;
    let text = message.content.text();
    if message.role.as_str() == "assistant" {
        return Some(Turn {
            role: Role::Assistant,
            at_ms,
            model: message.model_id.as_str().into(),
            text,
            thinking: message.content.thinking(),
            calls: message.content.calls().map(MessageBlock::call_part).collect(),
            ..Turn::default()
        });
    }
    if line.visibility.0.is_some() && text.starts_with(API_ERROR) {
        return Some(Turn {
            role: Role::Assistant,
            is_synthetic: true,
            at_ms,
            text,
            event: TurnEvent::ApiError,
            ..Turn::default()
        });
    }
    let is_reminder = |text: &&str| text.trim_start().starts_with(REMINDER);
    let own = join_lines(message.content.texts().filter(|text| !is_reminder(text)));
    let is_context = line.id.as_str().starts_with(CONTEXT_PREFIX) || own.trim().is_empty();
    let is_request = !is_context && message.role.as_str() == "user";
    Some(Turn {
        role: if is_context { Role::System } else { Role::User },
        at_ms,
        results: message.content.results().map(result_part).collect(),
        text,
        event: if is_request { TurnEvent::Message } else { TurnEvent::ProgramText },
        request: is_request.then_some(own),
        ..Turn::default()
    })
}

fn result_part<'a>(block: &'a MessageBlock<'_>) -> ResultPart<'a> {
    let text = block.result_text();
    let is_receipt = text.starts_with(STARTED);
    let outcome = match block.is_error.0 {
        Some(true) if text.lines().next().is_some_and(|line| line.contains(REFUSED)) => {
            Outcome::NotRun
        }
        Some(true) => Outcome::Failed,
        Some(false) if !is_receipt => Outcome::Ok,
        _ => Outcome::Unknown,
    };
    let exit_code = text.strip_prefix(EXIT_CODE).and_then(|_| number_after(&text, EXIT_CODE));
    let hint = text.lines().next().filter(|line| line.starts_with(TIMED_OUT));
    ResultPart {
        call: block.tool_use_id.as_str().into(),
        verdict: Verdict {
            exit_code: exit_code.filter(|_| outcome == Outcome::Failed),
            ..Verdict::from_outcome(outcome)
        },
        // No record states the end, nor an ID for it.
        stage: if is_receipt { Stage::Started(Cow::Borrowed("")) } else { Stage::Done },
        hint: hint.map(|line| Cow::Owned(line.to_owned())),
        text,
        ..ResultPart::default()
    }
}
