//! The format of SWE-agent: a JSON document for each instance, rewritten after every step. A step
//! holds a call, its result, and often the whole prompt of the model.

mod editor;

use std::borrow::Cow;

use memchr::memmem;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use self::editor::EditorCommand;
use super::instances;
use super::lenient::{
    MaybeBool, MaybeList, MaybeNumber, MaybeObject, MaybeStr, MaybeText, MaybeU64, object,
};
use super::probe::Probe;
use super::transcript::{
    Arguments, CallPart, CallRecord, IndexBuilder, Member, RawRecord, ResultPart, Role, Session,
    Span, TranscriptFormat, TranscriptLocation, Transcripts, Turn, TurnEvent, Verdict,
};
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::model::{FileEdit, Status, Tokens, Worker};
use swarmletfs_base::name::RelPath;

const SUFFIX: &str = ".traj";
/// The parts of a document that hold records.
const MEMBERS: [Member; 5] = [
    ATTEMPT[0],
    ATTEMPT[1],
    ATTEMPT[2],
    ATTEMPT[3],
    // A run that tries several times. The rest of its document repeats the best attempt.
    Member::Nested("attempts", &ATTEMPT),
];
const ATTEMPT: [Member; 4] = [
    Member::List("trajectory"),
    Member::List("history"),
    Member::Value("info"),
    Member::Value("replay_config"),
];
/// The beginning of the word for a run that handed in its work.
const SUBMITTED: &str = "submitted";

/// The kind of a record. It is kept in the span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum TrajectoryRecord {
    Step,
    /// The first step, whose prompt holds the task.
    FirstStep,
    Task,
    Info,
    /// A step of one of several attempts.
    AttemptStep,
    /// The first step of one of several attempts.
    FirstAttemptStep,
}

impl TrajectoryRecord {
    fn from_part(part: u8) -> TrajectoryRecord {
        let all = [
            TrajectoryRecord::FirstStep,
            TrajectoryRecord::Task,
            TrajectoryRecord::Info,
            TrajectoryRecord::AttemptStep,
            TrajectoryRecord::FirstAttemptStep,
        ];
        all.into_iter().find(|kind| *kind as u8 == part).unwrap_or(TrajectoryRecord::Step)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct Step<'a> {
    action: MaybeStr<'a>,
    observation: MaybeText<'a>,
    response: MaybeStr<'a>,
    thought: MaybeStr<'a>,
    /// Duration of the action in seconds.
    execution_time: MaybeNumber,
    /// The state of the environment: an object, or its JSON as a string.
    state: Option<&'a RawValue>,
    /// The prompt of the model: a list of messages.
    query: Option<&'a RawValue>,
    /// The name of the prompt in version 1.0.
    messages: Option<&'a RawValue>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StepState<'a> {
    #[serde(borrow)]
    working_dir: MaybeStr<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct PromptMessage<'a> {
    role: MaybeStr<'a>,
    content: MaybeText<'a>,
    is_demo: MaybeBool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct TrajectoryInfo<'a> {
    exit_status: MaybeStr<'a>,
    submission: MaybeStr<'a>,
    model_stats: MaybeObject<ModelStats>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ModelStats {
    tokens_sent: MaybeU64,
    tokens_received: MaybeU64,
    /// The cost of the run in dollars.
    instance_cost: MaybeNumber,
}

/// The configuration of the run: an object, or its JSON as a string.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ReplayConfig<'a> {
    #[serde(borrow)]
    agent: MaybeObject<AgentConfig<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct AgentConfig<'a> {
    #[serde(borrow)]
    model: MaybeObject<AgentModel<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct AgentModel<'a> {
    #[serde(borrow)]
    name: MaybeStr<'a>,
}

pub struct SweAgent;

impl SweAgent {
    pub fn transcripts() -> Transcripts {
        Transcripts::new(&SweAgent)
    }
}

impl TranscriptFormat for SweAgent {
    fn name(&self) -> &'static str {
        "swe-agent"
    }

    fn recognizes(&self, probe: &Probe<'_>) -> bool {
        // The names of members. In a text, their quotes would be escaped.
        let is_run = |head: &[u8]| {
            let has = |sign: &str| memmem::find(head, sign.as_bytes()).is_some();
            let is_empty = has("\"history\"") && has("\"info\"");
            has("\"trajectory\"") && (has("\"action\"") || has("\"observation\"") || is_empty)
        };
        probe.name().ends_with(SUFFIX.as_bytes())
            && probe.head().trim_ascii_start().starts_with(b"{")
            && (is_run(probe.head()) || is_run(probe.long_head()))
    }

    fn locate(&self, path: &RelPath) -> Option<TranscriptLocation> {
        instances::locate(path, &[SUFFIX], &MEMBERS)
    }

    fn add_record(&self, index: &mut IndexBuilder<'_>, record: RawRecord<'_>) -> bool {
        let part = usize::from(record.span.part);
        let (member, is_attempt) = match part.checked_sub(MEMBERS.len()) {
            Some(part) => (ATTEMPT.get(part), true),
            None => (MEMBERS.get(part), false),
        };
        match member {
            Some(Member::List("trajectory")) => add_step(index, record, is_attempt),
            Some(Member::List(_)) => add_history(index, record),
            Some(Member::Value("info")) => add_info(index, record, is_attempt),
            Some(Member::Value(_)) => add_config(index, record.text),
            Some(Member::Nested(..)) | None => false,
        }
    }

    fn with_turns(&self, record: RawRecord<'_>, use_turns: &mut dyn FnMut(&[Turn<'_>])) {
        let kind = TrajectoryRecord::from_part(record.span.part);
        match kind {
            TrajectoryRecord::Step
            | TrajectoryRecord::FirstStep
            | TrajectoryRecord::AttemptStep
            | TrajectoryRecord::FirstAttemptStep => {
                if let Some(step) = object::<Step<'_>>(record.text) {
                    use_turns(&step_turns(&step, kind));
                }
            }
            TrajectoryRecord::Task => {
                if let Some(message) = object::<PromptMessage<'_>>(record.text) {
                    use_turns(&[task_turn(message.content.as_str().into())]);
                }
            }
            TrajectoryRecord::Info => {
                if let Some(info) = object::<TrajectoryInfo<'_>>(record.text) {
                    use_turns(&[submission_turn(info.submission.as_str())]);
                }
            }
        }
    }

    fn describe(&self, worker: &mut Worker, session: &Session<'_>) {
        instances::describe(worker, session.location);
    }

    fn read_edits(&self, call: &CallRecord<'_>, _result: RawRecord<'_>) -> Result<Vec<FileEdit>> {
        let step: Step<'_> = object(call.record.text).ok_or(Error::Stale)?;
        let command = EditorCommand::parse(step.action.as_str(), step.observation.as_str());
        Ok(command.map(EditorCommand::into_edit).into_iter().collect())
    }
}

/// Returns the JSON of a value that may be a string of JSON.
fn embedded_json(text: &str) -> Cow<'_, str> {
    serde_json::from_str::<String>(text).map_or(Cow::Borrowed(text), Cow::Owned)
}

fn add_step(index: &mut IndexBuilder<'_>, record: RawRecord<'_>, is_attempt: bool) -> bool {
    let first = index.index.main.lines.first().map(|line| line.span.part);
    let first = first.map(TrajectoryRecord::from_part);
    let has_attempts = first.map(|first| first == TrajectoryRecord::FirstAttemptStep);
    if has_attempts.is_some_and(|has_attempts| has_attempts != is_attempt) {
        // It repeats a step.
        return true;
    }
    let Some(step) = object::<Step<'_>>(record.text) else { return false };
    if index.index.main.stated.is_none() {
        index.set_status(0, Status::Running, None);
    }
    if index.index.facts.cwd.is_none()
        && let Some(json) = step.state.map(|state| embedded_json(state.get()))
        && let Some(state) = object::<StepState<'_>>(&json)
    {
        IndexBuilder::set_fact(&mut index.index.facts.cwd, state.working_dir.as_str());
    }
    let kind = match (is_attempt, first) {
        (false, None) => TrajectoryRecord::FirstStep,
        (false, Some(_)) => TrajectoryRecord::Step,
        (true, None) => TrajectoryRecord::FirstAttemptStep,
        (true, Some(_)) => TrajectoryRecord::AttemptStep,
    };
    let span = Span { part: kind as u8, ..record.span };
    index.add_turns(0, span, &step_turns(&step, kind));
    true
}

/// Sets the task, unless the first step held it. The rest of the history repeats the steps.
fn add_history(index: &mut IndexBuilder<'_>, record: RawRecord<'_>) -> bool {
    if index.index.main.task.is_some() {
        return true;
    }
    let Some(message) = object::<PromptMessage<'_>>(record.text) else { return false };
    if message.is_task() {
        let span = Span { part: TrajectoryRecord::Task as u8, ..record.span };
        index.set_task(0, span, message.content.as_str());
    }
    true
}

/// Adds the facts about a run. The facts about an attempt do not describe the whole run.
fn add_info(index: &mut IndexBuilder<'_>, record: RawRecord<'_>, is_attempt: bool) -> bool {
    let Some(info) = object::<TrajectoryInfo<'_>>(record.text) else { return false };
    match info.exit_status.as_str() {
        _ if is_attempt => {}
        "" => index.set_status(0, Status::Running, None),
        SUBMITTED => index.set_status(0, Status::Completed, None),
        // The run reached a limit, and its work was handed in nevertheless.
        word if word.starts_with(SUBMITTED) => {
            index.set_status(0, Status::Completed, Some(word));
        }
        word => index.set_status(0, Status::Failed, Some(word)),
    }
    let cost = info.model_stats.0.as_ref().and_then(|stats| stats.instance_cost.as_stated_cost());
    match cost {
        Some(cost) if is_attempt => index.index.main.cost.add(cost),
        Some(cost) => index.index.main.cost.replace(cost),
        None => {}
    }
    if let Some(stats) = &info.model_stats.0
        && let (Some(input), Some(output)) = (stats.tokens_sent.0, stats.tokens_received.0)
    {
        let mut tokens = Tokens { input, output, ..Tokens::default() };
        let before = index.index.main.recent_messages.last().filter(|_| is_attempt);
        if let Some(before) = before.map(|before| before.tokens) {
            tokens += before;
        }
        index.set_total_tokens(0, tokens);
    }
    if !info.submission.as_str().is_empty() {
        let span = Span { part: TrajectoryRecord::Info as u8, ..record.span };
        index.add_turns(0, span, &[submission_turn(info.submission.as_str())]);
    }
    true
}

fn add_config(index: &mut IndexBuilder<'_>, text: &str) -> bool {
    let json = embedded_json(text);
    let Some(config) = object::<ReplayConfig<'_>>(&json) else { return false };
    let model = config.agent.0.and_then(|agent| agent.model.0).unwrap_or_default();
    index.set_model(0, model.name.as_str());
    true
}

impl PromptMessage<'_> {
    /// Returns true if the message may be the task.
    fn is_task(&self) -> bool {
        self.role.as_str() == "user" && !self.is_demo.is_set()
    }
}

/// Returns the turns of a step: the task if it is the first, the call, and the result.
fn step_turns<'a>(step: &'a Step<'_>, kind: TrajectoryRecord) -> Vec<Turn<'a>> {
    let mut turns = Vec::new();
    if matches!(kind, TrajectoryRecord::FirstStep | TrajectoryRecord::FirstAttemptStep)
        && let Some(prompt) = step.query.or(step.messages)
        && let Ok(messages) =
            serde_json::from_str::<MaybeList<MaybeObject<PromptMessage<'_>>>>(prompt.get())
        && let Some(task) = messages.0.into_iter().filter_map(|m| m.0).find(PromptMessage::is_task)
    {
        turns.push(task_turn(task.content.0.unwrap_or_default()));
    }
    let (action, thought) = (step.action.as_str().trim(), step.thought.as_str());
    let text = if thought.trim().is_empty() { step.response.as_str() } else { thought };
    let call = action.split_whitespace().next().map(|tool| CallPart {
        id: Cow::Borrowed(""),
        name: tool.into(),
        arguments: Arguments::Text(json!({ "command": action }).to_string().into()),
    });
    let (has_call, observation) = (call.is_some(), step.observation.as_str());
    let calls = call.into_iter().collect();
    turns.push(Turn { role: Role::Assistant, text: text.into(), calls, ..Turn::default() });
    let mut answer = Turn { role: Role::System, ..Turn::default() };
    if has_call {
        let duration_ms = step.execution_time.as_millis().and_then(|ms| u64::try_from(ms).ok());
        let command = EditorCommand::parse(action, observation);
        answer.results.push(ResultPart {
            text: observation.into(),
            verdict: Verdict { duration_ms, ..Verdict::default() },
            files: command.map(|command| command.accessed_file()).into_iter().collect(),
            ..ResultPart::default()
        });
    } else {
        answer.text = observation.into();
        answer.event = TurnEvent::Report;
    }
    turns.push(answer);
    turns
}

fn task_turn(text: Cow<'_, str>) -> Turn<'_> {
    Turn { text: text.clone(), request: Some(text), ..Turn::default() }
}

fn submission_turn(text: &str) -> Turn<'_> {
    Turn { role: Role::System, text: text.into(), event: TurnEvent::Submission, ..Turn::default() }
}
