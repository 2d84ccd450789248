//! The Agent Trajectory Interchange Format (ATIF): a document for each run of an agent, alone or in
//! the directory of a trial of Harbor. The format has no outcomes.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::blocks::{content_text, number_after};
use super::lenient::{
    MaybeBool, MaybeI64, MaybeList, MaybeNumber, MaybeObject, MaybeStr, MaybeU64, object,
};
use super::probe::Probe;
use super::transcript::{
    Arguments, CallPart, Container, Holds, IndexBuilder, Member, RawRecord, ResultPart, Role,
    Session, SessionMetadata, Shape, Stage, StatedStatus, TitleSource, TranscriptFormat,
    TranscriptLocation, Transcripts, Turn, TurnEvent, Verdict, continues, parse_millis,
};
use super::value::truncate;
use swarmletfs_base::model::{Outcome, Status, TASK_MAX, Tokens, Worker};
use swarmletfs_base::name::{Name, RelPath};

const SUFFIX: &str = ".json";
/// The directory of an agent's files in a trial of Harbor, and the file with the trial's result.
const TRIAL_AGENT: &str = "agent";
const TRIAL_RESULT: &str = "result.json";
/// The name of a trial's trajectory. A trial that is continued has further ones.
const TRAJECTORY: &str = "trajectory";
const MEMBERS: [Member; 7] = [
    Member::List("steps"),
    Member::List("subagent_trajectories"),
    Member::Value("trajectory_id"),
    Member::Value("session_id"),
    Member::Value("agent"),
    Member::Value("final_metrics"),
    Member::Value("extra"),
];
/// Beginnings of results with which some programs report a failure.
const EXIT_CODE: &str = "[exit_code] ";
const ERROR: &str = "[error]";

/// An embedded trajectory of a subagent. Fields of an unexpected type count as absent.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct Trajectory<'a> {
    trajectory_id: MaybeStr<'a>,
    session_id: MaybeStr<'a>,
    agent: MaybeObject<AtifAgent<'a>>,
    steps: MaybeList<MaybeObject<AtifStep<'a>>>,
    subagent_trajectories: MaybeList<serde::de::IgnoredAny>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct AtifAgent<'a> {
    model_name: MaybeStr<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct AtifStep<'a> {
    step_id: MaybeU64,
    timestamp: MaybeStr<'a>,
    source: MaybeStr<'a>,
    message: Option<&'a RawValue>,
    model_name: MaybeStr<'a>,
    reasoning_content: MaybeStr<'a>,
    tool_calls: MaybeList<MaybeObject<AtifToolCall<'a>>>,
    observation: MaybeObject<AtifObservation<'a>>,
    metrics: MaybeObject<AtifMetrics>,
    /// True for a step that repeats one of another trajectory.
    is_copied_context: MaybeBool,
    extra: MaybeObject<AtifExtra<'a>>,
}

impl<'a> AtifStep<'a> {
    fn exported(&self) -> Option<&Exported<'a>> {
        self.extra.0.as_ref()?.swarmletfs.0.as_ref()
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct AtifToolCall<'a> {
    tool_call_id: MaybeStr<'a>,
    function_name: MaybeStr<'a>,
    arguments: Option<&'a RawValue>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct AtifObservation<'a> {
    #[serde(borrow)]
    results: MaybeList<MaybeObject<ObservedResult<'a>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct ObservedResult<'a> {
    source_call_id: MaybeStr<'a>,
    content: Option<&'a RawValue>,
    extra: MaybeObject<AtifExtra<'a>>,
}

/// The fields that programs add to a step or a result.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct AtifExtra<'a> {
    tool_result_is_error: MaybeBool,
    is_error: MaybeBool,
    tool_metadata: MaybeObject<ToolMetadata>,
    /// The facts about a call that the format cannot hold, as swarmletfs exports them.
    swarmletfs: MaybeObject<Exported<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ToolMetadata {
    exit_code: MaybeI64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct Exported<'a> {
    outcome: MaybeStr<'a>,
    exit_code: MaybeI64,
    duration_ms: MaybeU64,
    open: MaybeBool,
    /// The words of the person in a message.
    request: MaybeStr<'a>,
    /// True for the last step of a worker that was not at its end.
    no_final_words: MaybeBool,
    /// Facts about the worker.
    status: MaybeStr<'a>,
    parent: MaybeStr<'a>,
    run: MaybeStr<'a>,
    title: MaybeStr<'a>,
    cwd: MaybeStr<'a>,
    branch: MaybeStr<'a>,
}

/// The tokens of a step. The cached ones are part of the prompt.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct AtifMetrics {
    prompt_tokens: MaybeU64,
    completion_tokens: MaybeU64,
    cached_tokens: MaybeU64,
    /// In dollars.
    cost_usd: MaybeNumber,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct FinalMetrics {
    total_prompt_tokens: MaybeU64,
    total_completion_tokens: MaybeU64,
    total_cached_tokens: MaybeU64,
    total_cost_usd: MaybeNumber,
}

/// The result of a trial of Harbor.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct AtifTrialResult<'a> {
    verifier_result: MaybeObject<VerifierResult>,
    exception_info: MaybeObject<ExceptionInfo<'a>>,
    finished_at: MaybeStr<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct VerifierResult {
    rewards: MaybeObject<BTreeMap<String, MaybeNumber>>,
    reward: MaybeNumber,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct ExceptionInfo<'a> {
    exception_type: MaybeStr<'a>,
}

pub struct Atif;

impl TranscriptFormat for Atif {
    fn name(&self) -> &'static str {
        "atif"
    }

    fn recognizes(&self, probe: &Probe<'_>) -> bool {
        let is_own = |head: &[u8]| {
            let found = memchr::memmem::find(head, b"\"schema_version\"");
            let rest = found.and_then(|at| head.get(at..(at + 40).min(head.len())));
            rest.is_some_and(|rest| memchr::memmem::find(rest, b"\"ATIF-v").is_some())
        };
        probe.name().ends_with(SUFFIX.as_bytes())
            && probe.head().trim_ascii_start().first() == Some(&b'{')
            && (is_own(probe.head()) || is_own(&probe.tail()))
    }

    fn locate(&self, path: &RelPath) -> Option<TranscriptLocation> {
        let is_file = |name: &Name| name.as_bytes().ends_with(SUFFIX.as_bytes());
        let (file, agent) = match path.file_name()? {
            name if is_file(&name) => (path.clone(), None),
            name => (path.parent(), Some(name)),
        };
        if file.file_name().is_some_and(|name| continues(&name)) {
            return None;
        }
        let location = TranscriptLocation::of_file(&file, SUFFIX, Shape::Documents(&MEMBERS))?;
        let location = TranscriptLocation { container: Container::Continued, ..location };
        let location = match location.folder.parent().file_name() {
            // A trial has a directory, and its job one above it.
            Some(trial) if is_called(location.folder_name(), TRIAL_AGENT) => {
                let part = location.name.to_text().strip_prefix(TRAJECTORY).map(str::to_owned);
                let name = match part? {
                    part if part.is_empty() => trial.clone(),
                    part => Name::new(format!("{}{part}", trial.to_text())).ok()?,
                };
                let location = TranscriptLocation { name, ..location.above()? };
                let result = Some(RelPath::from(Name::new(TRIAL_RESULT).ok()?));
                let metadata = result.filter(|_| location.name == trial);
                TranscriptLocation { metadata, ..location }
            }
            _ => location,
        };
        let session = Some(location.name.clone());
        let name = agent.clone().unwrap_or(location.name);
        Some(TranscriptLocation { holds: Holds::OneAndNested, session, name, agent, ..location })
    }

    fn add_record(&self, index: &mut IndexBuilder<'_>, record: RawRecord<'_>) -> bool {
        let text = record.text;
        match MEMBERS.get(usize::from(record.span.part)) {
            Some(Member::List("steps")) => {
                let Some(step) = object::<AtifStep<'_>>(text) else { return false };
                if index.index.main.stated.is_none() {
                    index.set_status(0, Status::Unknown, None);
                }
                add_step(index, 0, &step);
                let model = index.index.main.model.clone();
                index.add_turns(0, record.span, &turns(&step, 0));
                if step.exported().is_some_and(|own| own.no_final_words.is_set()) {
                    index.note_no_final_words(0);
                }
                // The agent's model comes before the models of its steps.
                index.set_model(0, model.as_deref().unwrap_or_default());
            }
            Some(Member::List(_)) => {
                let Some(trajectory) = object::<Trajectory<'_>>(text) else { return false };
                return add_subagent(index, record, &trajectory);
            }
            Some(Member::Value(name @ ("trajectory_id" | "session_id"))) => {
                let Ok(id) = serde_json::from_str::<MaybeStr<'_>>(text) else { return false };
                // Several trajectories may have one session. The first file of a trajectory that
                // goes on in others names it.
                if *name == "trajectory_id" && index.index.documents <= 1 {
                    index.index.facts.id = None;
                }
                IndexBuilder::set_fact(&mut index.index.facts.id, id.as_str());
            }
            Some(Member::Value("agent")) => {
                let Some(agent) = object::<AtifAgent<'_>>(text) else { return false };
                index.set_default_model(0, agent.model_name.as_str());
            }
            Some(Member::Value("extra")) => {
                let Some(extra) = object::<AtifExtra<'_>>(text) else { return false };
                extra.swarmletfs.0.iter().for_each(|own| add_exported(index, own));
            }
            Some(Member::Value(_)) => {
                let Some(metrics) = object::<FinalMetrics>(text) else { return false };
                add_final_metrics(index, &metrics);
            }
            Some(Member::Nested(..)) | None => return false,
        }
        true
    }

    fn states_calls_once(&self) -> bool {
        true
    }

    fn with_turns(&self, record: RawRecord<'_>, use_turns: &mut dyn FnMut(&[Turn<'_>])) {
        match MEMBERS.get(usize::from(record.span.part)) {
            Some(Member::List("steps")) => {
                if let Some(step) = object::<AtifStep<'_>>(record.text) {
                    use_turns(&turns(&step, 0));
                }
            }
            _ => {
                if let Some(trajectory) = object::<Trajectory<'_>>(record.text) {
                    use_turns(&all_turns(&trajectory));
                }
            }
        }
    }

    fn read_metadata(&self, metadata: &[u8]) -> SessionMetadata {
        let result = serde_json::from_slice::<MaybeObject<AtifTrialResult<'_>>>(metadata);
        let result = result.ok().and_then(|result| result.0).unwrap_or_default();
        SessionMetadata { status: trial_status(&result), ..SessionMetadata::default() }
    }

    fn describe(&self, worker: &mut Worker, session: &Session<'_>) {
        let location = session.location;
        let is_trial = location.metadata.is_some();
        let own = worker.id.clone();
        let root = session.indexes[0].facts.id.clone();
        let root = root.filter(|_| !is_trial);
        let root = root.or_else(|| Some(location.session.as_ref()?.to_text().into_owned()));
        let facts = &session.indexes[0].facts;
        let parent = if location.agent.is_some() { root.as_ref() } else { facts.parent.as_ref() };
        session.describe(worker, parent.map(String::as_str));
        if let Some(run) = facts.root.as_deref().filter(|_| location.agent.is_none()) {
            worker.run = Some(run.into());
        }
        // A summary that the agent of a trial asked for is there, too.
        let is_part = !is_trial && is_called(location.transcript.names().next(), TRIAL_AGENT);
        if (is_trial || is_part) && location.agent.is_none() {
            worker.id = own;
            worker.task_type = Some(if is_trial { "trial" } else { "agent" }.into());
        }
        if is_part && location.agent.is_none() {
            worker.parent = location.folder.file_name().map(|trial| trial.to_text().into());
        }
        // The result is the trial's, which says more than the trajectory.
        let stated = session.stated.status.as_ref().filter(|_| location.agent.is_none());
        if let Some(StatedStatus { status, word }) = stated {
            worker.status = *status;
            worker.status_source = word.as_deref().map(Into::into);
        }
        if is_trial || is_part {
            let job = location.folder.parent().file_name();
            worker.run = job.map(|job| job.to_text().into()).or(worker.run.take());
        }
    }
}

impl Atif {
    pub fn transcripts() -> Transcripts {
        Transcripts::new(&Atif)
    }
}

fn is_called(name: Option<Name>, wanted: &str) -> bool {
    name.is_some_and(|name| name.as_bytes() == wanted.as_bytes())
}

/// Returns the status of a trial: an exception, or a reward of 0, is a failure.
fn trial_status(result: &AtifTrialResult<'_>) -> Option<StatedStatus> {
    let stated =
        |status, word: String| Some(StatedStatus { status, word: Some(truncate(word, TASK_MAX)) });
    if let Some(exception) = &result.exception_info.0 {
        return stated(Status::Failed, exception.exception_type.as_str().to_owned());
    }
    let verifier = result.verifier_result.0.as_ref();
    let rewards = verifier.and_then(|verifier| verifier.rewards.0.as_ref());
    let one = verifier.and_then(|verifier| Some(("reward", verifier.reward.0.as_ref()?)));
    let all = rewards.into_iter().flatten();
    let all = all.filter_map(|(name, reward)| Some((name.as_str(), reward.0.as_ref()?)));
    let all: Vec<_> = all.chain(one).collect();
    let words: Vec<String> = all.iter().map(|(name, reward)| format!("{name} {reward}")).collect();
    let is_positive = |(_, reward): &(&str, &serde_json::Number)| {
        reward.as_f64().is_some_and(|reward| reward > 0.0)
    };
    match all.as_slice() {
        [] if result.finished_at.0.is_some() => stated(Status::Unknown, "not verified".into()),
        [] => Some(StatedStatus { status: Status::Running, word: None }),
        all if all.iter().all(is_positive) => stated(Status::Completed, words.join(", ")),
        _ => stated(Status::Failed, words.join(", ")),
    }
}

fn add_final_metrics(index: &mut IndexBuilder<'_>, metrics: &FinalMetrics) {
    let output = metrics.total_completion_tokens.or_zero();
    let cached = [metrics.total_cached_tokens.or_zero(), 0];
    let tokens = Tokens::of_prompt(metrics.total_prompt_tokens.or_zero(), output, cached);
    // Steps may lack a part of the total.
    if tokens != Tokens::default() {
        index.set_total_tokens(0, tokens);
        index.states_total = true;
    }
    if let Some(cost) = metrics.total_cost_usd.as_stated_cost() {
        index.index.main.cost.replace(cost);
    }
}

/// Adds the facts about a worker that swarmletfs exported.
fn add_exported(index: &mut IndexBuilder<'_>, own: &Exported<'_>) {
    let facts = &mut index.index.facts;
    for (fact, text) in [
        (&mut facts.parent, &own.parent),
        (&mut facts.root, &own.run),
        (&mut facts.cwd, &own.cwd),
        (&mut facts.branch, &own.branch),
    ] {
        IndexBuilder::set_fact(fact, text.as_str());
    }
    let title = own.title.non_empty().map(|title| truncate(title, TASK_MAX));
    index.set_title(TitleSource::Generated, title);
    if let Some(status) = Status::from_word(own.status.as_str()) {
        index.set_status(0, status, None);
    }
}

fn add_subagent(
    index: &mut IndexBuilder<'_>,
    record: RawRecord<'_>,
    trajectory: &Trajectory<'_>,
) -> bool {
    let ids = [trajectory.trajectory_id.as_str(), trajectory.session_id.as_str()];
    let id = ids.into_iter().find(|id| !id.is_empty()).map(str::to_owned);
    let id = id.unwrap_or_else(|| format!("subagent-{}", index.index.agents.len() + 1));
    let Some(number) = index.agent_conversation(&id) else { return true };
    index.set_status(number, Status::Unknown, None);
    let agent = trajectory.agent.0.as_ref();
    index.set_default_model(number, agent.map_or("", |agent| agent.model_name.as_str()));
    index.add_turns(number, record.span, &all_turns(trajectory));
    for step in trajectory.steps.0.iter().filter_map(|step| step.0.as_ref()) {
        add_step(index, number, step);
    }
    // The subagents of a subagent would need another place in the same record.
    for _ in &trajectory.subagent_trajectories.0 {
        index.count_unknown_type("trajectory in an embedded trajectory");
    }
    true
}

fn add_step(index: &mut IndexBuilder<'_>, number: usize, step: &AtifStep<'_>) {
    let Some(metrics) = step.metrics.0.as_ref().filter(|_| !step.is_copied_context.is_set()) else {
        return;
    };
    let output = metrics.completion_tokens.or_zero();
    let cached = [metrics.cached_tokens.or_zero(), 0];
    let tokens = Tokens::of_prompt(metrics.prompt_tokens.or_zero(), output, cached);
    // The total may come before the steps.
    let is_counted = number == 0 && index.states_total;
    if tokens != Tokens::default() && !is_counted {
        index.count_tokens(number, "", step.model_name.as_str(), tokens);
    }
    let cost = metrics.cost_usd.as_stated_cost();
    if let (Some(cost), Some(conversation)) = (cost, index.conversation(number)) {
        conversation.cost.add(cost);
    }
}

fn all_turns<'a>(trajectory: &'a Trajectory<'_>) -> Vec<Turn<'a>> {
    let steps = trajectory.steps.0.iter().filter_map(|step| step.0.as_ref()).zip(1..);
    steps.flat_map(|(step, number)| turns(step, number)).collect()
}

/// Returns the turns of a step: its message with its calls, and their results. `number` counts the
/// steps of a record that holds several.
fn turns<'a>(step: &'a AtifStep<'_>, number: u64) -> Vec<Turn<'a>> {
    if step.is_copied_context.is_set() {
        return Vec::new();
    }
    let number = step.step_id.0.unwrap_or(number);
    let text = step.message.map(content_text).unwrap_or_default();
    let turn = Turn { at_ms: parse_millis(step.timestamp.as_str()), ..Turn::default() };
    let calls: Vec<&AtifToolCall<'_>> =
        step.tool_calls.0.iter().filter_map(|call| call.0.as_ref()).collect();
    let ids = call_ids(number, &calls);
    let message = match step.source.as_str() {
        "user" => {
            let request = step.exported().and_then(|own| own.request.0.as_deref());
            let request = request.map(Cow::Borrowed);
            Turn { request: Some(request.unwrap_or_else(|| text.clone())), text, ..turn }
        }
        "agent" => Turn {
            role: Role::Assistant,
            model: step.model_name.as_str().into(),
            text,
            thinking: step.reasoning_content.as_str().into(),
            calls: calls
                .iter()
                .zip(&ids)
                .map(|(call, id)| CallPart {
                    id: id.clone().into(),
                    name: call.function_name.as_str().into(),
                    arguments: call.arguments.map_or(Arguments::None, Arguments::Json),
                })
                .collect(),
            ..turn
        },
        _ => Turn { role: Role::System, text, event: TurnEvent::ProgramText, ..turn },
    };
    let at_ms = message.at_ms;
    let results = results(step, &calls, &ids);
    let observed = (!results.is_empty()).then(|| Turn {
        role: Role::System,
        at_ms,
        results,
        ..Turn::default()
    });
    std::iter::once(message).chain(observed).collect()
}

/// Returns an ID for each call that no call of another step has.
fn call_ids(step: u64, calls: &[&AtifToolCall<'_>]) -> Vec<String> {
    let mut known = HashSet::new();
    let ids = calls.iter().map(|call| call.tool_call_id.as_str()).enumerate();
    ids.map(|(at, id)| match !id.is_empty() && known.insert(id) {
        true => format!("{step}/{id}"),
        false => format!("{step}/{id}#{at}"),
    })
    .collect()
}

/// Returns a result for each call of the step that has one. Results without an ID belong to the
/// next call without a result, and several results of a call are joined.
fn results<'a>(
    step: &'a AtifStep<'_>,
    calls: &[&AtifToolCall<'_>],
    ids: &[String],
) -> Vec<ResultPart<'a>> {
    let mut found: BTreeMap<usize, ResultPart<'a>> = BTreeMap::new();
    let mut by_id: HashMap<&str, VecDeque<usize>> = HashMap::new();
    for (at, call) in calls.iter().enumerate() {
        by_id.entry(call.tool_call_id.as_str()).or_default().push_back(at);
    }
    let mut next = 0;
    let observation = step.observation.0.iter().flat_map(|observation| &observation.results.0);
    for result in observation.filter_map(|result| result.0.as_ref()) {
        let id = result.source_call_id.as_str();
        while found.contains_key(&next) {
            next += 1;
        }
        let at = match by_id.get_mut(id).filter(|_| !id.is_empty()) {
            Some(named) => {
                // The last call with the ID takes all further results.
                while named.len() > 1 && named.front().is_some_and(|at| found.contains_key(at)) {
                    named.pop_front();
                }
                named.front().copied()
            }
            None => Some(next).filter(|_| id.is_empty()),
        };
        let Some((at, id)) = at.and_then(|at| Some((at, ids.get(at)?))) else { continue };
        let part = result_part(step, result, id.clone());
        match found.get_mut(&at) {
            Some(known) => known.text.to_mut().push_str(&part.text),
            None => drop(found.insert(at, part)),
        }
    }
    found.into_values().collect()
}

fn result_part<'a>(
    step: &'a AtifStep<'_>,
    result: &'a ObservedResult<'_>,
    id: String,
) -> ResultPart<'a> {
    let text = result.content.map(content_text).unwrap_or_default();
    let extra = result.extra.0.as_ref();
    let exported = extra.and_then(|extra| extra.swarmletfs.0.as_ref());
    let verdict = exported.map(|own| Verdict {
        outcome: Outcome::from_word(own.outcome.as_str()).unwrap_or_default(),
        exit_code: own.exit_code.0,
        duration_ms: own.duration_ms.0,
    });
    let stated = step.extra.0.as_ref().and_then(|extra| extra.tool_metadata.0.as_ref());
    let code = stated.and_then(|stated| stated.exit_code.0).filter(|code| *code != 0);
    let first = text.lines().next().unwrap_or_default();
    let printed = number_after(first, EXIT_CODE).filter(|_| first.starts_with(EXIT_CODE));
    let is_error =
        extra.is_some_and(|extra| extra.tool_result_is_error.is_set() || extra.is_error.is_set());
    let hint = match code {
        _ if exported.is_some() => None,
        Some(code) => Some(format!("exit code {code}")),
        None if printed.is_some_and(|code| code != 0) || first.starts_with(ERROR) => {
            Some(first.to_owned())
        }
        None => is_error.then(|| "marked as an error".to_owned()),
    };
    let is_open = exported.is_some_and(|own| own.open.is_set());
    ResultPart {
        call: id.into(),
        verdict: verdict.unwrap_or_default(),
        stage: if is_open { Stage::Started("".into()) } else { Stage::Done },
        hint: hint.map(Cow::Owned),
        text,
        ..ResultPart::default()
    }
}
