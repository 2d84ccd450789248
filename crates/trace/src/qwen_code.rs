//! The format of Qwen Code: a log of JSON lines for each session, and one for each subagent with a
//! file beside it that describes it.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::blocks::{between, join_lines, value_text};
use super::file_tools::{self, FileTool, FileTools};
use super::lenient::{MaybeBool, MaybeI64, MaybeList, MaybeObject, MaybeStr, MaybeU64, object};
use super::probe::Probe;
use super::transcript::{
    Arguments, CallPart, CallRecord, IndexBuilder, RawRecord, ResultPart, Role, Session,
    SessionMetadata, Shape, Stage, StatedStatus, TranscriptFormat, TranscriptLocation, Turn,
    TurnEvent, Verdict, parse_millis, shorten_id,
};
use super::value::truncate;
use swarmletfs_base::error::Result;
use swarmletfs_base::model::{FileAccess, FileEdit, Outcome, Status, TASK_MAX, Tokens, Worker};
use swarmletfs_base::name::{Name, RelPath};

const SUFFIX: &str = ".jsonl";
const METADATA_SUFFIX: &str = ".meta.json";
/// The directory of sessions, in a project's directory.
const CHATS: &str = "chats";
/// The directory of subagents, with a directory for each session.
const SUBAGENTS: &str = "subagents";
const AGENT_PREFIX: &str = "agent-";
/// The beginnings of the results of calls whose work goes on in the background, and of its ID.
const RECEIPTS: [(&str, &str); 2] =
    [("Background shell started.", "id: "), ("Background agent launched", "task_id: ")];
/// The subtype of a message that reports on work in the background.
const NOTIFICATION: &str = "notification";
/// Names of fields at the beginning of a line.
const SIGNS: [&[u8]; 3] = [b"\"uuid\"", b"\"sessionId\"", b"\"parts\""];
const TOOLS: &FileTools = &[
    ("read_file", FileTool::Read),
    ("write_file", FileTool::Write),
    ("edit", FileTool::Replace),
    ("replace", FileTool::Replace),
];

/// A line. Fields of an unexpected type count as absent.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
struct QwenSessionLine<'a> {
    uuid: MaybeStr<'a>,
    session_id: MaybeStr<'a>,
    timestamp: MaybeStr<'a>,
    #[serde(rename = "type")]
    kind: MaybeStr<'a>,
    subtype: MaybeStr<'a>,
    provenance: MaybeStr<'a>,
    cwd: MaybeStr<'a>,
    git_branch: MaybeStr<'a>,
    message: MaybeObject<QwenMessage<'a>>,
    model: MaybeStr<'a>,
    usage_metadata: MaybeObject<QwenUsage>,
    tool_call_result: MaybeObject<QwenCallResult<'a>>,
    system_payload: MaybeObject<QwenPayload<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct QwenMessage<'a> {
    parts: Option<MaybeList<MaybeObject<QwenPart<'a>>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
struct QwenPart<'a> {
    text: MaybeStr<'a>,
    thought: MaybeBool,
    function_call: MaybeObject<FunctionCall<'a>>,
    function_response: MaybeObject<QwenFunctionResponse<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct FunctionCall<'a> {
    id: MaybeStr<'a>,
    name: MaybeStr<'a>,
    args: Option<&'a RawValue>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct QwenFunctionResponse<'a> {
    id: MaybeStr<'a>,
    response: MaybeObject<QwenResponse<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct QwenResponse<'a> {
    output: Option<&'a RawValue>,
    error: Option<&'a RawValue>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
struct QwenCallResult<'a> {
    status: MaybeStr<'a>,
    error_type: MaybeStr<'a>,
    execution_status: MaybeStr<'a>,
    duration_ms: MaybeU64,
    result_display: MaybeObject<QwenDisplay<'a>>,
}

/// The form of a result that the program shows: the end of a command, or a changed file.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
struct QwenDisplay<'a> {
    exit_code: MaybeI64,
    file_path: MaybeStr<'a>,
    original_content: MaybeStr<'a>,
    new_content: MaybeStr<'a>,
}

/// The tokens of an answer. The cached ones are part of the prompt.
#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct QwenUsage {
    prompt_token_count: MaybeU64,
    candidates_token_count: MaybeU64,
    cached_content_token_count: MaybeU64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
struct QwenPayload<'a> {
    ui_event: MaybeObject<UiEvent<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct UiEvent<'a> {
    #[serde(rename = "event.name")]
    name: MaybeStr<'a>,
    error: MaybeStr<'a>,
    error_message: MaybeStr<'a>,
    subagent_id: MaybeStr<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
struct QwenAgentMetadata<'a> {
    description: MaybeStr<'a>,
    parent_session_id: MaybeStr<'a>,
    parent_agent_id: MaybeStr<'a>,
    status: MaybeStr<'a>,
    persisted_cli_flags: MaybeObject<Flags<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct Flags<'a> {
    model: MaybeStr<'a>,
}

pub struct QwenCode;

impl TranscriptFormat for QwenCode {
    fn name(&self) -> &'static str {
        "qwen-code"
    }

    fn recognizes(&self, probe: &Probe<'_>) -> bool {
        let is_own = |line: &QwenSessionLine<'_>| {
            let parts = line.message.0.as_ref().map(|message| message.parts.is_some());
            // A record of the program has no message.
            let is_system = line.kind.as_str() == "system" && !line.subtype.as_str().is_empty();
            let is_known = parts == Some(true) || (is_system && line.provenance.0.is_some());
            line.uuid.0.is_some() && line.session_id.0.is_some() && is_known
        };
        probe.name().ends_with(SUFFIX.as_bytes())
            && (probe.first_lines(3).iter().any(is_own) || probe.has_long_line_with(&SIGNS))
    }

    fn locate(&self, path: &RelPath) -> Option<TranscriptLocation> {
        let location = TranscriptLocation::of_file(path, SUFFIX, Shape::Lines)?;
        let is_called = |name: Option<Name>, wanted: &str| {
            name.is_some_and(|name| name.as_bytes() == wanted.as_bytes())
        };
        let agent = location.name.as_bytes().strip_prefix(AGENT_PREFIX.as_bytes());
        match agent.and_then(|agent| Name::new(agent).ok()) {
            Some(agent) if is_called(location.folder.parent().file_name(), SUBAGENTS) => {
                let session = location.folder_name();
                let location = location.with_metadata(METADATA_SUFFIX).above()?;
                let location = location.above()?;
                Some(TranscriptLocation { session, name: agent, ..location })
            }
            _ if is_called(location.folder_name(), CHATS) => location.above(),
            _ => Some(location),
        }
    }

    fn add_record(&self, index: &mut IndexBuilder<'_>, record: RawRecord<'_>) -> bool {
        let Some(line) = object::<QwenSessionLine<'_>>(record.text) else { return false };
        match line.kind.as_str() {
            "user" | "assistant" | "tool_result" | "system" => {}
            other => index.count_unknown_type(other),
        }
        let facts = &mut index.index.facts;
        IndexBuilder::set_fact(&mut facts.id, line.session_id.as_str());
        IndexBuilder::set_fact(&mut facts.cwd, line.cwd.as_str());
        IndexBuilder::set_fact(&mut facts.branch, line.git_branch.as_str());
        if let Some(turn) = turn(&line) {
            index.add_turns(0, record.span, &[turn]);
        }
        if let Some(usage) = line.usage_metadata.0 {
            let output = usage.candidates_token_count.or_zero();
            let cached = [usage.cached_content_token_count.or_zero(), 0];
            let tokens = Tokens::of_prompt(usage.prompt_token_count.or_zero(), output, cached);
            index.count_tokens(0, line.uuid.as_str(), line.model.as_str(), tokens);
        }
        true
    }

    fn with_turns(&self, record: RawRecord<'_>, use_turns: &mut dyn FnMut(&[Turn<'_>])) {
        if let Some(turn) = object::<QwenSessionLine<'_>>(record.text).as_ref().and_then(turn) {
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
        match tool {
            "ask_user_question" => Some("question"),
            "exit_plan_mode" => Some("approval of its plan"),
            _ => None,
        }
    }

    fn read_metadata(&self, metadata: &[u8]) -> SessionMetadata {
        let Some(agent) = agent_metadata(metadata) else { return SessionMetadata::default() };
        let status = match agent.status.as_str() {
            "completed" => Some(Status::Completed),
            "failed" | "error" => Some(Status::Failed),
            "cancelled" => Some(Status::Abandoned),
            _ => None,
        };
        SessionMetadata {
            status: status.map(|status| StatedStatus { status, word: agent.status.non_empty() }),
            model: agent.persisted_cli_flags.0.and_then(|flags| flags.model.non_empty()),
            title: agent.description.non_empty().map(|text| truncate(text, TASK_MAX)),
            ..SessionMetadata::default()
        }
    }

    fn describe(&self, worker: &mut Worker, session: &Session<'_>) {
        let Some(folder) = &session.location.session else {
            return session.describe(worker, None);
        };
        let own = worker.id.clone();
        let metadata = session.metadata.and_then(agent_metadata).unwrap_or_default();
        let stated = [metadata.parent_agent_id.as_str(), metadata.parent_session_id.as_str()];
        let folder = folder.to_text();
        let parent = stated.into_iter().find(|id| !id.is_empty()).unwrap_or(&folder);
        session.describe(worker, Some(parent));
        // Its records name the session.
        worker.id = own;
        worker.run = Some((&*folder).into());
    }

    fn read_edits(&self, call: &CallRecord<'_>, result: RawRecord<'_>) -> Result<Vec<FileEdit>> {
        let edits = file_tools::read_edits(self, TOOLS, call)?;
        // The display holds the actual change; the arguments hold the requested one.
        let done = object::<QwenSessionLine<'_>>(result.text).unwrap_or_default();
        let is_own = done.responses().any(|response| shorten_id(response.id.as_str()) == call.id);
        let display = done.tool_call_result.0.filter(|_| is_own);
        let display = display.and_then(|result| result.result_display.0).unwrap_or_default();
        Ok(match display.new_content.0 {
            Some(after) => vec![FileEdit {
                path: display.file_path.as_str().to_owned(),
                created: display.original_content.as_str().is_empty(),
                before: display.original_content.non_empty(),
                after: Some(after.into_owned()),
                ..FileEdit::default()
            }],
            None => edits,
        })
    }
}

fn agent_metadata(metadata: &[u8]) -> Option<QwenAgentMetadata<'_>> {
    serde_json::from_slice::<MaybeObject<QwenAgentMetadata<'_>>>(metadata).ok()?.0
}

impl QwenSessionLine<'_> {
    fn parts(&self) -> impl Iterator<Item = &QwenPart<'_>> {
        let parts = self.message.0.iter().flat_map(|message| &message.parts);
        parts.flat_map(|parts| &parts.0).filter_map(|part| part.0.as_ref())
    }

    fn responses(&self) -> impl Iterator<Item = &QwenFunctionResponse<'_>> {
        self.parts().filter_map(|part| part.function_response.0.as_ref())
    }

    fn text(&self, is_thought: bool) -> Cow<'_, str> {
        let parts = self.parts().filter(|part| part.thought.is_set() == is_thought);
        join_lines(parts.map(|part| part.text.as_str()))
    }
}

fn call_part<'a>(call: &'a FunctionCall<'_>) -> CallPart<'a> {
    CallPart {
        id: call.id.as_str().into(),
        name: call.name.as_str().into(),
        arguments: call.args.map_or(Arguments::None, Arguments::Json),
    }
}

fn turn<'a>(line: &'a QwenSessionLine<'_>) -> Option<Turn<'a>> {
    let turn = Turn { at_ms: parse_millis(line.timestamp.as_str()), ..Turn::default() };
    let text = line.text(false);
    match line.kind.as_str() {
        "system" => return system_turn(line, turn),
        "assistant" => {
            return Some(Turn {
                role: Role::Assistant,
                model: line.model.as_str().into(),
                text,
                thinking: line.text(true),
                calls: line
                    .parts()
                    .filter_map(|part| part.function_call.0.as_ref())
                    .map(call_part)
                    .collect(),
                ..turn
            });
        }
        "user" | "tool_result" => {}
        _ => return None,
    }
    if line.subtype.as_str() == NOTIFICATION {
        let results = reported_end(&text).into_iter().collect();
        return Some(Turn { role: Role::System, results, text, event: TurnEvent::Report, ..turn });
    }
    let results: Vec<ResultPart<'_>> =
        line.responses().map(|response| result_part(line, response)).collect();
    // Older versions and subagents do not state who wrote a message.
    let is_request = results.is_empty() && matches!(line.provenance.as_str(), "" | "real_user");
    Some(Turn {
        role: if is_request { Role::User } else { Role::System },
        results,
        request: is_request.then(|| text.clone()),
        event: if is_request { TurnEvent::Message } else { TurnEvent::ProgramText },
        text,
        ..turn
    })
}

fn system_turn<'a>(line: &'a QwenSessionLine<'_>, turn: Turn<'a>) -> Option<Turn<'a>> {
    if line.subtype.as_str() == "chat_compression" {
        let text = "The conversation was compressed.".into();
        return Some(Turn { role: Role::System, text, event: TurnEvent::Compaction, ..turn });
    }
    let event = line.system_payload.0.as_ref()?.ui_event.0.as_ref()?;
    // A session also logs the errors of its subagents.
    let is_own = event.subagent_id.0.is_none();
    (is_own && event.name.as_str() == "qwen-code.api_error").then(|| Turn {
        role: Role::Assistant,
        is_synthetic: true,
        text: join_lines([event.error_message.as_str(), event.error.as_str()].into_iter().take(2)),
        event: TurnEvent::ApiError,
        ..turn
    })
}

fn result_part<'a>(
    line: &'a QwenSessionLine<'_>,
    response: &'a QwenFunctionResponse<'_>,
) -> ResultPart<'a> {
    let empty = QwenResponse::default();
    let QwenResponse { output, error } = response.response.0.as_ref().unwrap_or(&empty);
    let text = output.or(*error).map(value_text).unwrap_or_default();
    let stated = line.tool_call_result.0.as_ref();
    let display = stated.and_then(|result| result.result_display.0.as_ref());
    let exit_code = display.and_then(|display| display.exit_code.0);
    let words = stated.map(|result| {
        (result.status.as_str(), result.error_type.as_str(), result.execution_status.as_str())
    });
    let (status, error_type, execution) = words.unwrap_or_default();
    let not_started = execution == "not_started";
    let receipt = RECEIPTS.iter().find(|(begin, _)| text.starts_with(begin)).map(|(_, id)| {
        let id = text.lines().find_map(|line| line.strip_prefix(id)).unwrap_or_default();
        // A remark in brackets may follow.
        let id = id.split_once(' ').map_or(id, |(id, _)| id);
        Stage::Started(Cow::Owned(id.to_owned()))
    });
    let outcome = match status {
        "success" if receipt.is_some() => Outcome::Unknown,
        _ if error_type == "execution_denied" => Outcome::NotRun,
        "cancelled" if not_started => Outcome::NotRun,
        "cancelled" => Outcome::Unknown,
        "error" => Outcome::Failed,
        "success" if exit_code.is_some_and(|code| code != 0) => Outcome::Failed,
        "success" => Outcome::Ok,
        // The records of subagents have no status.
        _ if error.is_some() => Outcome::Failed,
        _ if receipt.is_some() => Outcome::Unknown,
        _ if output.is_some() => Outcome::Ok,
        _ => Outcome::Unknown,
    };
    let is_cut_off = status == "cancelled" && !not_started;
    ResultPart {
        call: response.id.as_str().into(),
        verdict: Verdict {
            exit_code,
            duration_ms: stated.and_then(|result| result.duration_ms.0),
            outcome,
        },
        stage: match receipt {
            Some(stage) if outcome == Outcome::Unknown => stage,
            _ if is_cut_off => Stage::CutOff,
            _ => Stage::Done,
        },
        text,
        ..ResultPart::default()
    }
}

/// Returns the end of work in the background that a message of the program reports.
fn reported_end(text: &str) -> Option<ResultPart<'static>> {
    let field = |name: &str| {
        between(text, &format!("<{name}>"), &format!("</{name}>")).map(|(_, inside, _)| inside)
    };
    let exit_code = field("exit-code").and_then(|code| code.parse().ok());
    let outcome = match field("status")? {
        "failed" => Outcome::Failed,
        "completed" if exit_code.is_some_and(|code| code != 0) => Outcome::Failed,
        "completed" => Outcome::Ok,
        "cancelled" => Outcome::Unknown,
        // A monitor reports while it runs.
        _ => return None,
    };
    let output = between(text, "<output-tail ", "</output-tail>");
    let output = output.and_then(|(_, inside, _)| inside.split_once('>')).map(|(_, output)| output);
    let texts = [field("summary"), field("result"), output];
    Some(ResultPart {
        call: field("tool-use-id").unwrap_or_default().to_owned().into(),
        verdict: Verdict { exit_code, ..Verdict::from_outcome(outcome) },
        stage: Stage::Reported(field("task-id").unwrap_or_default().to_owned().into()),
        text: join_lines(texts.into_iter().flatten()).into_owned().into(),
        ..ResultPart::default()
    })
}
