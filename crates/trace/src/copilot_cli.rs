//! The format of GitHub Copilot CLI: a log of JSON lines for each session, which holds its
//! subagents as well.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};

use serde::Deserialize;
use serde::de::MapAccess;
use serde::de::value::MapAccessDeserializer;
use serde_json::Value;
use serde_json::value::RawValue;

use super::blocks::{between, number_after};
use super::file_tools::{self, FileTool, FileTools};
use super::json_text::json_text;
use super::jsonl;
use super::lenient::{
    Lenient, MaybeBool, MaybeI64, MaybeList, MaybeObject, MaybeStr, MaybeU64, deserialize_lenient,
    object,
};
use super::probe::Probe;
use super::transcript::{
    Arguments, CallPart, CallRecord, Holds, IndexBuilder, RawRecord, ResultPart, Role, Session,
    Shape, Stage, TitleSource, TranscriptFormat, TranscriptLocation, Turn, TurnEvent, Verdict,
    parse_millis,
};
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::error::Result;
use swarmletfs_base::model::{AccessKind, FileAccess, FileEdit, Outcome, Status, Tokens, Worker};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::File;

const FILE: &str = "events.jsonl";
const SUFFIX: &str = ".jsonl";
/// The name of the session's own agent in the totals of tokens.
const MAIN: &str = "main";
/// The last line of the output of a command, and the number of its shell in it.
const ENDED: (&str, &str) = ("<shellId: ", " completed with exit code ");
/// The result of a command that goes on in the background.
const STARTED: (&str, &str) = ("<command started in background with shellId: ", ">");
/// The heading of the text that hooks add to a result, for the model.
const GUIDANCE: &str = " Additional guidance from postToolUse hooks:\n";
const GUIDANCE_BEGIN: &str = "\n\nTool \"";
/// The codes of errors of calls that were not allowed to run.
const REFUSALS: [&str; 2] = ["denied", "rejected"];
/// The beginnings of the types of events that say nothing of the conversation.
const OTHER_TYPES: [&str; 22] = [
    "assistant.",
    "auto_",
    "capabilities.",
    "command",
    "custom_agents",
    "elicitation.",
    "exit_plan",
    "external_tool.",
    "hook.",
    "mcp",
    "model.",
    "pending_",
    "permission.",
    "plan.",
    "sampling.",
    "session.",
    "skill",
    "subagent.",
    "system.",
    "tool.",
    "tools.",
    "user_input.",
];
const TOOLS: &FileTools = &[
    ("view", FileTool::Read),
    ("edit", FileTool::Replace),
    ("create", FileTool::Create),
    ("str_replace", FileTool::Replace),
    ("apply_patch", FileTool::Patch),
];

/// An event. Fields of an unexpected type count as absent.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
struct EventLine<'a> {
    #[serde(rename = "type")]
    kind: MaybeStr<'a>,
    timestamp: MaybeStr<'a>,
    agent_id: MaybeStr<'a>,
    data: MaybeObject<EventData<'a>>,
}

/// The fields of all types of events that are read.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
struct EventData<'a> {
    session_id: MaybeStr<'a>,
    context: MaybeObject<Context<'a>>,
    title: MaybeStr<'a>,
    content: MaybeStr<'a>,
    reasoning_text: MaybeStr<'a>,
    model: MaybeStr<'a>,
    tool_requests: MaybeList<MaybeObject<ToolRequest<'a>>>,
    /// The author of a user's message, if it is not the user.
    source: MaybeStr<'a>,
    tool_call_id: MaybeStr<'a>,
    success: MaybeBool,
    result: MaybeObject<CopilotToolResult<'a>>,
    error: ErrorValue<'a>,
    shell_execution: MaybeObject<ShellExecution>,
    file_edits: MaybeList<MaybeObject<CopilotEditedFile<'a>>>,
    tool_telemetry: MaybeObject<Telemetry<'a>>,
    usage: MaybeObject<CopilotUsage<'a>>,
    accounting_snapshot: MaybeObject<CopilotSnapshot>,
    model_metrics: ModelMetricsMap,
    kind: MaybeObject<NoticeKind<'a>>,
    message: MaybeStr<'a>,
    reason: MaybeStr<'a>,
    summary_content: MaybeStr<'a>,
    selected_model: MaybeStr<'a>,
    agent_display_name: MaybeStr<'a>,
    cancelled: MaybeBool,
}

/// A code and a message, or a message.
#[derive(Debug, Default)]
struct ErrorValue<'a>(CopilotErrorFields<'a>);

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct CopilotErrorFields<'a> {
    message: MaybeStr<'a>,
    code: MaybeStr<'a>,
}

deserialize_lenient!([: 'a, 'a] ErrorValue<'a>;);

impl<'de: 'a, 'a> Lenient<'de> for ErrorValue<'a> {
    fn from_text(text: Cow<'de, str>) -> Self {
        ErrorValue(CopilotErrorFields {
            message: MaybeStr(Some(text)),
            ..CopilotErrorFields::default()
        })
    }

    fn from_object<A: MapAccess<'de>>(map: A) -> Result<Self, A::Error> {
        CopilotErrorFields::deserialize(MapAccessDeserializer::new(map)).map(ErrorValue)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct Context<'a> {
    cwd: MaybeStr<'a>,
    branch: MaybeStr<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
struct ToolRequest<'a> {
    tool_call_id: MaybeStr<'a>,
    name: MaybeStr<'a>,
    /// An object, or a text for tools that take one.
    arguments: Option<&'a RawValue>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CopilotToolResult<'a> {
    #[serde(borrow)]
    content: MaybeStr<'a>,
}

#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ShellExecution {
    exit_code: MaybeI64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct CopilotEditedFile<'a> {
    path: MaybeStr<'a>,
    kind: MaybeStr<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
struct Telemetry<'a> {
    properties: MaybeObject<AgentStart<'a>>,
    restricted_properties: MaybeObject<AgentStart<'a>>,
}

/// The call of the tool that starts agents.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct AgentStart<'a> {
    execution_mode: MaybeStr<'a>,
    agent_id: MaybeStr<'a>,
}

/// A message of the program: the end of work in the background.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
struct NoticeKind<'a> {
    #[serde(rename = "type")]
    kind: MaybeStr<'a>,
    shell_id: MaybeStr<'a>,
    exit_code: MaybeI64,
    agent_id: MaybeStr<'a>,
    status: MaybeStr<'a>,
}

/// The tokens of an answer. The cached ones are part of the input.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
struct CopilotUsage<'a> {
    model: MaybeStr<'a>,
    #[serde(flatten)]
    counts: CopilotTokenCounts,
    api_call_id: MaybeStr<'a>,
}

#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct CopilotTokenCounts {
    input_tokens: MaybeU64,
    output_tokens: MaybeU64,
    cache_read_tokens: MaybeU64,
    cache_write_tokens: MaybeU64,
}

type ModelMetricsMap = MaybeObject<BTreeMap<String, MaybeObject<ModelMetrics>>>;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct CopilotSnapshot {
    agent_metrics: MaybeObject<BTreeMap<String, MaybeObject<AgentMetrics>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct AgentMetrics {
    model_metrics: ModelMetricsMap,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ModelMetrics {
    usage: MaybeObject<CopilotTokenCounts>,
}

pub struct CopilotCli;

impl TranscriptFormat for CopilotCli {
    fn name(&self) -> &'static str {
        "copilot-cli"
    }

    fn recognizes(&self, probe: &Probe<'_>) -> bool {
        probe.name().ends_with(SUFFIX.as_bytes())
            && probe.first_lines::<EventLine<'_>>(1).iter().any(|line| {
                let has_session =
                    line.data.0.as_ref().is_some_and(|data| data.session_id.0.is_some());
                line.kind.as_str() == "session.start" && has_session
            })
    }

    fn locate(&self, path: &RelPath) -> Option<TranscriptLocation> {
        let is_file = |name: &Name| name.as_bytes().ends_with(SUFFIX.as_bytes());
        let (file, agent) = match path.file_name()? {
            name if is_file(&name) => (path.clone(), None),
            name => (path.parent(), Some(name)),
        };
        let location = TranscriptLocation::of_file(&file, SUFFIX, Shape::Lines)?;
        // A session has a directory of its own; in older versions, a file.
        let location = match location.folder_name() {
            Some(name) if location.transcript.as_bytes() == FILE.as_bytes() => {
                TranscriptLocation { name, ..location }.above()?
            }
            _ => location,
        };
        let session = Some(location.name.clone());
        let name = agent.clone().unwrap_or(location.name);
        Some(TranscriptLocation { holds: Holds::OneAndNested, session, name, agent, ..location })
    }

    fn add_record(&self, index: &mut IndexBuilder<'_>, record: RawRecord<'_>) -> bool {
        let Some(event) = object::<EventLine<'_>>(record.text) else { return false };
        let empty = EventData::default();
        let data = event.data.0.as_ref().unwrap_or(&empty);
        let Some(number) = conversation(index, event.agent_id.as_str()) else { return true };
        match event.kind.as_str() {
            "session.start" => add_facts(index, data),
            "subagent.started" => index.set_default_model(number, data.model.as_str()),
            "session.title_changed" => {
                index.set_title(TitleSource::Generated, data.title.non_empty())
            }
            "session.usage_record" => {
                if let Some(usage) = &data.usage.0 {
                    let (id, model) = (usage.api_call_id.as_str(), usage.model.as_str());
                    index.count_tokens(number, id, model, usage.counts.tokens());
                }
            }
            "session.shutdown" => add_totals(index, data),
            "subagent.completed" if data.cancelled.is_set() => {
                index.set_status(number, Status::Abandoned, Some("cancelled"));
            }
            "subagent.completed" => index.set_status(number, Status::Completed, None),
            "subagent.failed" => {
                let error = data.error.0.message.as_str();
                index.set_status(
                    number,
                    Status::Failed,
                    Some(error).filter(|text| !text.is_empty()),
                );
            }
            other => {
                let is_known = OTHER_TYPES.iter().any(|prefix| other.starts_with(prefix));
                let turns = turns(&event);
                if !turns.is_empty() {
                    // A subagent can be called again. A notice of the program does not do that.
                    if other != "system.notification" {
                        index.clear_status(number);
                    }
                    index.add_turns(number, record.span, &turns);
                } else if !is_known {
                    index.count_unknown_type(other);
                }
            }
        }
        true
    }

    fn with_turns(&self, record: RawRecord<'_>, use_turns: &mut dyn FnMut(&[Turn<'_>])) {
        if let Some(event) = object::<EventLine<'_>>(record.text) {
            use_turns(&turns(&event));
        }
    }

    fn states_calls_once(&self) -> bool {
        true
    }

    fn accessed_files(&self, tool: &str, arguments: &Value) -> Vec<FileAccess> {
        file_tools::accessed_files(TOOLS, tool, arguments)
    }

    fn asks_person_for(&self, tool: &str) -> Option<&'static str> {
        (tool == "ask_user").then_some("question")
    }

    fn describe(&self, worker: &mut Worker, session: &Session<'_>) {
        let location = session.location;
        let own = location.session.as_ref().filter(|_| location.agent.is_some());
        let own = own.map(|name| name.to_text());
        session.describe(worker, own.as_deref());
    }

    fn read_edits(&self, call: &CallRecord<'_>, _result: RawRecord<'_>) -> Result<Vec<FileEdit>> {
        file_tools::read_edits(self, TOOLS, call)
    }
}

/// Returns the number of the conversation of an agent; the session's own for no agent.
fn conversation(index: &mut IndexBuilder<'_>, agent: &str) -> Option<usize> {
    if agent.is_empty() { Some(0) } else { index.agent_conversation(agent) }
}

fn add_facts(index: &mut IndexBuilder<'_>, data: &EventData<'_>) {
    index.set_default_model(0, data.selected_model.as_str());
    let facts = &mut index.index.facts;
    IndexBuilder::set_fact(&mut facts.id, data.session_id.as_str());
    if let Some(context) = &data.context.0 {
        IndexBuilder::set_fact(&mut facts.cwd, context.cwd.as_str());
        IndexBuilder::set_fact(&mut facts.branch, context.branch.as_str());
    }
}

impl CopilotTokenCounts {
    fn tokens(self) -> Tokens {
        let cached = [self.cache_read_tokens.or_zero(), self.cache_write_tokens.or_zero()];
        Tokens::of_prompt(self.input_tokens.or_zero(), self.output_tokens.or_zero(), cached)
    }
}

/// Adds the totals of tokens of a session whose answers state none, as in older versions.
fn add_totals(index: &mut IndexBuilder<'_>, data: &EventData<'_>) {
    let by_model = |metrics: &ModelMetricsMap| -> BTreeMap<String, Tokens> {
        let metrics = metrics.0.iter().flatten();
        let counts =
            metrics.filter_map(|(model, metrics)| Some((model, metrics.0.as_ref()?.usage.0?)));
        counts.map(|(model, counts)| (model.clone(), counts.tokens())).collect()
    };
    let snapshot = data.accounting_snapshot.0.iter();
    let metrics = snapshot.flat_map(|snapshot| snapshot.agent_metrics.0.iter().flatten());
    let by_agent = metrics.filter_map(|(agent, metrics)| {
        Some((agent.as_str(), by_model(&metrics.0.as_ref()?.model_metrics)))
    });
    let mut agents: Vec<_> = by_agent.collect();
    if agents.is_empty() {
        agents.push((MAIN, by_model(&data.model_metrics)));
    }
    for (agent, tokens) in agents.into_iter().filter(|(_, tokens)| !tokens.is_empty()) {
        let number = if agent == MAIN { Some(0) } else { index.find_agent(agent) };
        let number = number.filter(|number| !index.has_counted_tokens(*number));
        number.into_iter().for_each(|number| index.set_tokens_by_model(number, tokens.clone()));
    }
}

/// Returns the turns of an event: at most one, and the end of work in the background that its
/// result reports as well.
fn turns<'a>(event: &'a EventLine<'_>) -> Vec<Turn<'a>> {
    let Some(data) = &event.data.0 else { return Vec::new() };
    let turn = Turn { at_ms: parse_millis(event.timestamp.as_str()), ..Turn::default() };
    let of_program = |text: &'a str, event| Turn {
        role: Role::System,
        text: text.into(),
        event,
        ..Turn::default()
    };
    let content = data.content.as_str();
    let turn = match event.kind.as_str() {
        "assistant.message" => Turn {
            role: Role::Assistant,
            model: data.model.as_str().into(),
            text: content.into(),
            thinking: data.reasoning_text.as_str().into(),
            calls: data
                .tool_requests
                .0
                .iter()
                .filter_map(|call| call.0.as_ref())
                .map(call_part)
                .collect(),
            ..turn
        },
        "user.message" => {
            // A subagent's messages come from the agent that started it.
            let source = data.source.as_str();
            let is_request = source.is_empty() || source == "user" || source.starts_with("agent-");
            Turn {
                role: if is_request { Role::User } else { Role::System },
                text: content.into(),
                request: is_request.then(|| content.into()),
                event: if is_request { TurnEvent::Message } else { TurnEvent::ProgramText },
                ..turn
            }
        }
        "tool.execution_complete" => Turn { results: results(data), ..turn },
        "system.notification" => Turn {
            results: data.kind.0.iter().filter_map(reported_end).collect(),
            at_ms: turn.at_ms,
            ..of_program(content, TurnEvent::Report)
        },
        "abort" => {
            let reason = data.reason.as_str();
            let text = if reason.is_empty() { "aborted" } else { reason };
            Turn { at_ms: turn.at_ms, ..of_program(text, TurnEvent::Interruption) }
        }
        "session.error" => Turn {
            role: Role::Assistant,
            is_synthetic: true,
            text: data.message.as_str().into(),
            event: TurnEvent::ApiError,
            ..turn
        },
        "session.compaction_complete" => {
            let text = data.summary_content.as_str();
            Turn { at_ms: turn.at_ms, ..of_program(text, TurnEvent::Compaction) }
        }
        _ => return Vec::new(),
    };
    vec![turn]
}

fn call_part<'a>(request: &'a ToolRequest<'_>) -> CallPart<'a> {
    CallPart {
        id: request.tool_call_id.as_str().into(),
        name: request.name.as_str().into(),
        arguments: request.arguments.map_or(Arguments::None, Arguments::Json),
    }
}

/// Returns the result of a call, and the end of a command in the background that it shows.
fn results<'a>(data: &'a EventData<'_>) -> Vec<ResultPart<'a>> {
    let content = data.result.0.as_ref().map(|result| result.content.as_str()).unwrap_or_default();
    let content = without_guidance(content);
    let last = content.trim_end().lines().next_back().unwrap_or_default();
    let ended = last.strip_prefix(ENDED.0).and_then(|rest| rest.split_once(ENDED.1));
    let shell = ended.map(|(shell, _)| shell);
    let printed = ended.and_then(|_| number_after(last, ENDED.1));
    let stated = data.shell_execution.0.and_then(|shell| shell.exit_code.0);
    let error = &data.error.0;
    let telemetry = data.tool_telemetry.0.as_ref();
    let start = telemetry.and_then(|telemetry| telemetry.properties.0.as_ref());
    let is_background = start.is_some_and(|start| start.execution_mode.as_str() == "background");
    let agent = telemetry.and_then(|telemetry| telemetry.restricted_properties.0.as_ref());
    let started = match between(content, STARTED.0, STARTED.1) {
        Some((_, shell, _)) => Some(shell),
        None => agent.filter(|_| is_background).map(|agent| agent.agent_id.as_str()),
    };
    let outcome = match (data.success.0, stated) {
        (Some(false), _) if REFUSALS.contains(&error.code.as_str()) => Outcome::NotRun,
        (Some(false), _) => Outcome::Failed,
        (_, Some(code)) => Verdict::from_exit_code(code).outcome,
        (Some(true), None) if started.is_some() => Outcome::Unknown,
        (Some(true), None) => Outcome::Ok,
        (None, None) => Outcome::Unknown,
    };
    let text = match shell {
        Some(_) => content.trim_end().strip_suffix(last).unwrap_or(content),
        None if content.is_empty() => error.message.as_str(),
        None => content,
    };
    let is_doubtful = stated.is_none() && printed.is_some_and(|code| code != 0);
    let own = ResultPart {
        call: data.tool_call_id.as_str().into(),
        text: text.into(),
        verdict: Verdict { exit_code: stated, ..Verdict::from_outcome(outcome) },
        stage: match started.filter(|_| outcome == Outcome::Unknown) {
            Some(id) => Stage::Started(id.into()),
            None => Stage::Done,
        },
        hint: is_doubtful.then(|| last.into()),
        files: data
            .file_edits
            .0
            .iter()
            .filter_map(|file| file.0.as_ref())
            .map(edited_file)
            .collect(),
        ..ResultPart::default()
    };
    let end = shell.zip(stated.or(printed)).map(|(shell, code)| ResultPart {
        text: text.into(),
        verdict: Verdict::from_exit_code(code),
        stage: Stage::Reported(shell.into()),
        ..ResultPart::default()
    });
    [own].into_iter().chain(end).collect()
}

/// Returns a result without the text that hooks added to it.
fn without_guidance(content: &str) -> &str {
    let Some((before, _)) = content.rsplit_once(GUIDANCE) else { return content };
    before.rsplit_once(GUIDANCE_BEGIN).map_or(content, |(own, _)| own)
}

/// Returns the ID of the last subagent that was asked `prompt` and has ended, by the events of its
/// session in `file`. Reads them until `deadline` passes.
pub fn ended_copilot_agent(
    file: &dyn File,
    prompt: &str,
    deadline: Deadline<'_>,
) -> Option<String> {
    let (mut ended, mut asked) = (HashSet::new(), None);
    let read = jsonl::for_each(file, deadline, |line| {
        let line = json_text(line);
        let Some(event) = object::<EventLine<'_>>(&line) else { return false };
        let agent = event.agent_id.as_str();
        match (event.kind.as_str(), &event.data.0) {
            ("user.message", Some(data)) => {
                ended.remove(agent);
                if data.content.as_str().trim() == prompt.trim() {
                    asked = Some(agent.to_owned());
                }
            }
            ("subagent.completed" | "subagent.failed", _) => {
                ended.insert(agent.to_owned());
            }
            _ => {}
        }
        true
    });
    read.ok()?;
    asked.filter(|agent| !agent.is_empty() && ended.contains(agent))
}

fn edited_file(file: &CopilotEditedFile<'_>) -> FileAccess {
    FileAccess {
        path: file.path.as_str().to_owned(),
        kind: match file.kind.as_str() {
            "create" => AccessKind::Created,
            _ => AccessKind::Edited,
        },
        added: 0,
        removed: 0,
    }
}

/// Returns the end that a message of the program reports.
fn reported_end<'a>(notice: &'a NoticeKind<'_>) -> Option<ResultPart<'a>> {
    let (id, verdict) = match notice.kind.as_str() {
        "shell_completed" | "shell_detached_completed" => {
            (&notice.shell_id, Verdict::from_exit_code(notice.exit_code.0?))
        }
        "agent_completed" | "agent_idle" => {
            let has_failed = notice.status.as_str() == "failed";
            let outcome = if has_failed { Outcome::Failed } else { Outcome::Ok };
            (&notice.agent_id, Verdict::from_outcome(outcome))
        }
        _ => return None,
    };
    Some(ResultPart {
        verdict,
        stage: Stage::Reported(id.as_str().into()),
        ..ResultPart::default()
    })
}
