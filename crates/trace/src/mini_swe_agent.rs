//! The format of mini-swe-agent: a JSON document for each instance, rewritten after every step.
//!
//! A `mini-swe-agent-1` document states a call as a block of code in a message, and its result is
//! the next message. `mini-swe-agent-1.1` has fields for both. The oldest form is a bare list of
//! messages.

use std::sync::LazyLock;

use memchr::memmem;
use regex::Regex;
use serde::Deserialize;
use serde_json::json;

use super::instances;
use super::lenient::{MaybeList, MaybeNumber, MaybeObject, MaybeStr, MaybeText, MaybeU64, object};
use super::probe::Probe;
use super::transcript::{
    Arguments, CallPart, IndexBuilder, Member, RawRecord, ResultPart, Role, Session, Span,
    TranscriptFormat, TranscriptLocation, Transcripts, Turn, TurnEvent, Verdict,
};
use swarmletfs_base::model::{Status, Tokens, Worker};
use swarmletfs_base::name::RelPath;

const SUFFIXES: [&str; 2] = [".traj.json", ".traj"];
/// The parts of a document that hold records. A bare list has the name `""`.
const MEMBERS: [Member; 3] = [Member::Value("info"), Member::List("messages"), Member::List("")];
/// The only tool.
const TOOL: &str = "bash";
/// A block of code that is a call, if it is the only one of a message.
static CALL_BLOCK: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"(?s)```(?:mswea_bash_command|bash)[ \t\r]*\n(.*?)\n```").ok());
/// Texts in the command that hands in the work.
const SUBMIT_COMMANDS: [&str; 2] =
    ["COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT", "MINI_SWE_AGENT_FINAL_OUTPUT"];
/// Names of members by which a document is recognized. In a text, their quotes would be escaped.
const SIGNS: [&[u8]; 2] = [b"\"mini_version\"", b"\"trajectory_format\""];
/// Texts in the instructions by which a bare list is recognized.
const LIST_SIGNS: [&[u8]; 2] = [b"bash code block", b"```mswea_bash_command"];

/// The meaning of a message. It depends on earlier messages, so it is kept in the span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Meaning {
    /// The message itself states its meaning.
    Stated,
    Task,
    /// The result of the call before it.
    Result,
    /// The result of the call that handed in the work.
    Submission,
}

impl Meaning {
    fn from_part(part: u8) -> Meaning {
        let all = [Meaning::Task, Meaning::Result, Meaning::Submission];
        all.into_iter().find(|meaning| *meaning as u8 == part).unwrap_or(Meaning::Stated)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct RunMessage<'a> {
    role: MaybeStr<'a>,
    content: MaybeText<'a>,
    tool_call_id: MaybeStr<'a>,
    extra: MaybeObject<Extra<'a>>,
}

/// The fields that the program adds to a message of the model's interface.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct Extra<'a> {
    /// The calls. Absent in old documents.
    actions: Option<MaybeList<MaybeObject<CommandAction<'a>>>>,
    raw_output: MaybeStr<'a>,
    returncode: MaybeNumber,
    submission: MaybeStr<'a>,
    /// Time in seconds since 1970.
    timestamp: MaybeNumber,
    response: MaybeObject<Response<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct CommandAction<'a> {
    command: MaybeStr<'a>,
    tool_call_id: MaybeStr<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct Response<'a> {
    id: MaybeStr<'a>,
    model: MaybeStr<'a>,
    usage: MaybeObject<Usage>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Usage {
    prompt_tokens: MaybeU64,
    completion_tokens: MaybeU64,
    prompt_tokens_details: MaybeObject<PromptTokens>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PromptTokens {
    cached_tokens: MaybeU64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct RunInfo<'a> {
    exit_status: MaybeStr<'a>,
    config: MaybeObject<Config<'a>>,
    model_stats: MaybeObject<RunStats>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RunStats {
    /// The cost of the run in dollars.
    instance_cost: MaybeNumber,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct Config<'a> {
    model: MaybeObject<RunModel<'a>>,
    environment: MaybeObject<EnvironmentConfig<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RunModel<'a> {
    #[serde(borrow)]
    model_name: MaybeStr<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct EnvironmentConfig<'a> {
    #[serde(borrow)]
    cwd: MaybeStr<'a>,
}

pub struct MiniSweAgent;

impl MiniSweAgent {
    pub fn transcripts() -> Transcripts {
        Transcripts::new(&MiniSweAgent)
    }
}

impl TranscriptFormat for MiniSweAgent {
    fn name(&self) -> &'static str {
        "mini-swe-agent"
    }

    fn recognizes(&self, probe: &Probe<'_>) -> bool {
        let has = |text: &[u8], signs: &[&[u8]]| {
            signs.iter().any(|sign| memmem::find(text, sign).is_some())
        };
        if !SUFFIXES.iter().any(|suffix| probe.name().ends_with(suffix.as_bytes())) {
            return false;
        }
        match probe.head().trim_ascii_start().first() {
            // The name of the format is behind all messages.
            Some(b'{') => has(&probe.tail(), &SIGNS) || has(probe.long_head(), &SIGNS),
            Some(b'[') => has(probe.head(), &[b"\"role\""]) && has(probe.long_head(), &LIST_SIGNS),
            _ => false,
        }
    }

    fn locate(&self, path: &RelPath) -> Option<TranscriptLocation> {
        instances::locate(path, &SUFFIXES, &MEMBERS)
    }

    fn add_record(&self, index: &mut IndexBuilder<'_>, record: RawRecord<'_>) -> bool {
        match MEMBERS.get(usize::from(record.span.part)) {
            Some(Member::Value(_)) => add_info(index, record),
            Some(Member::List(name)) => add_message(index, record, name.is_empty()),
            Some(Member::Nested(..)) | None => false,
        }
    }

    fn with_turns(&self, record: RawRecord<'_>, use_turns: &mut dyn FnMut(&[Turn<'_>])) {
        if let Some(message) = object::<RunMessage<'_>>(record.text)
            && let Some(turn) = turn(&message, Meaning::from_part(record.span.part))
        {
            use_turns(&[turn]);
        }
    }

    fn describe(&self, worker: &mut Worker, session: &Session<'_>) {
        instances::describe(worker, session.location);
    }
}

fn add_info(index: &mut IndexBuilder<'_>, record: RawRecord<'_>) -> bool {
    let Some(info) = object::<RunInfo<'_>>(record.text) else { return false };
    match info.exit_status.as_str() {
        "" => index.set_status(0, Status::Running, None),
        "Submitted" => index.set_status(0, Status::Completed, None),
        word => index.set_status(0, Status::Failed, Some(word)),
    }
    let config = info.config.0.unwrap_or_default();
    index.set_model(0, config.model.0.unwrap_or_default().model_name.as_str());
    let environment = config.environment.0.unwrap_or_default();
    IndexBuilder::set_fact(&mut index.index.facts.cwd, environment.cwd.as_str());
    if let Some(cost) = info.model_stats.0.and_then(|stats| stats.instance_cost.as_stated_cost()) {
        index.index.main.cost.replace(cost);
    }
    true
}

fn add_message(index: &mut IndexBuilder<'_>, record: RawRecord<'_>, is_bare: bool) -> bool {
    let Some(message) = object::<RunMessage<'_>>(record.text) else { return false };
    if index.index.main.stated.is_none() {
        // A bare list says nothing about how the run ended.
        index.set_status(0, if is_bare { Status::Unknown } else { Status::Running }, None);
    }
    let meaning = meaning(index, &message);
    match turn(&message, meaning) {
        Some(turn) => {
            count_tokens(index, &message);
            let span = Span { part: meaning as u8, ..record.span };
            index.add_turns(0, span, &[turn]);
        }
        None => index.count_unknown_type(message.role.as_str()),
    }
    true
}

/// Returns the meaning of a message after those in the index.
fn meaning(index: &IndexBuilder<'_>, message: &RunMessage<'_>) -> Meaning {
    let conversation = &index.index.main;
    if message.role.as_str() != "user" || message.extra.0.is_some() {
        return Meaning::Stated;
    }
    let open_call = conversation.calls.last().filter(|call| call.result.is_none());
    match open_call.filter(|call| call.id.is_empty()) {
        Some(call) => {
            let hands_in =
                call.command().is_some_and(|text| SUBMIT_COMMANDS.iter().any(|s| text.contains(s)));
            match exit_code(message.content.as_str()) {
                None if hands_in => Meaning::Submission,
                _ => Meaning::Result,
            }
        }
        None if conversation.task.is_none() => Meaning::Task,
        None => Meaning::Stated,
    }
}

/// Returns the turn of a message. Returns `None` if its role is unknown.
fn turn<'a>(message: &'a RunMessage<'_>, meaning: Meaning) -> Option<Turn<'a>> {
    let text = message.content.as_str();
    let extra = message.extra.0.as_ref();
    let mut turn = Turn {
        role: Role::System,
        at_ms: extra.and_then(|extra| extra.timestamp.as_millis()),
        ..Turn::default()
    };
    match (message.role.as_str(), meaning) {
        ("assistant", _) => {
            turn.role = Role::Assistant;
            turn.text = text.into();
            turn.calls = calls(text, extra);
        }
        ("system", _) => {
            turn.text = text.into();
            turn.event = TurnEvent::ProgramText;
        }
        ("exit", _) => {
            let submission = extra.map_or("", |extra| extra.submission.as_str());
            (turn.text, turn.event) = match submission {
                "" => (text.into(), TurnEvent::ProgramText),
                submission => (submission.into(), TurnEvent::Submission),
            };
        }
        ("user", Meaning::Task) => {
            turn.role = Role::User;
            turn.text = text.into();
            turn.request = Some(text.into());
        }
        ("user", Meaning::Result) => turn.results = vec![result(message, text)],
        ("user", Meaning::Submission) => {
            turn.results = vec![result(message, text)];
            turn.text = text.into();
            turn.event = TurnEvent::Submission;
        }
        ("tool", _) => turn.results = vec![result(message, text)],
        ("user", _) if extra.is_some_and(|extra| extra.returncode.0.is_some()) => {
            turn.results = vec![result(message, text)];
        }
        // The program refuses an answer, or reports an interruption.
        ("user", _) => {
            turn.text = text.into();
            turn.event = TurnEvent::Report;
        }
        _ => return None,
    }
    Some(turn)
}

fn calls<'a>(text: &'a str, extra: Option<&'a Extra<'_>>) -> Vec<CallPart<'a>> {
    let call = |id: &'a str, command: &str| CallPart {
        id: id.into(),
        name: TOOL.into(),
        arguments: Arguments::Text(json!({ "command": command }).to_string().into()),
    };
    if let Some(actions) = extra.and_then(|extra| extra.actions.as_ref()) {
        let actions = actions.0.iter().filter_map(|action| action.0.as_ref());
        return actions
            .map(|action| call(action.tool_call_id.as_str(), action.command.as_str()))
            .collect();
    }
    let blocks = CALL_BLOCK.iter().flat_map(|pattern| pattern.captures_iter(text));
    let commands: Vec<&str> =
        blocks.filter_map(|block| block.get(1)).map(|block| block.as_str()).take(2).collect();
    match commands.as_slice() {
        [command] => vec![call("", command.trim())],
        _ => Vec::new(),
    }
}

fn result<'a>(message: &'a RunMessage<'_>, text: &'a str) -> ResultPart<'a> {
    let extra = message.extra.0.as_ref();
    let output = extra.and_then(|extra| extra.raw_output.0.as_deref());
    let stated = extra.and_then(|extra| extra.returncode.as_i64());
    let exit_code = stated.or_else(|| exit_code(text));
    ResultPart {
        call: message.tool_call_id.as_str().into(),
        text: output.unwrap_or(text).into(),
        verdict: exit_code.map(Verdict::from_exit_code).unwrap_or_default(),
        ..ResultPart::default()
    }
}

/// Parses `<returncode>N</returncode>` at the beginning of a result.
fn exit_code(text: &str) -> Option<i64> {
    let (code, _) = text.strip_prefix("<returncode>")?.split_once("</returncode>")?;
    code.trim().parse().ok()
}

fn count_tokens(index: &mut IndexBuilder<'_>, message: &RunMessage<'_>) {
    let response = message.extra.0.as_ref().and_then(|extra| extra.response.0.as_ref());
    let Some(response) = response else { return };
    let Some(usage) = &response.usage.0 else { return };
    let input = usage.prompt_tokens.0.unwrap_or_default();
    let cached = usage.prompt_tokens_details.0.as_ref().and_then(|details| details.cached_tokens.0);
    let cached = [cached.unwrap_or_default().min(input), 0];
    let tokens = Tokens::of_prompt(input, usage.completion_tokens.0.unwrap_or_default(), cached);
    index.count_tokens(0, response.id.as_str(), response.model.as_str(), tokens);
}
