//! Events of version 0: actions, and the observations that they cause.

use std::borrow::Cow;

use memchr::memmem;

use super::super::lenient::object;
use super::super::transcript::{
    Arguments as CallArguments, CallPart, Ending, IndexBuilder, ResultPart, Role, Stage, Turn,
    TurnEvent, Verdict,
};
use super::arguments::{THINK, call_arguments};
use super::metadata::add_metrics;
use super::schema::{Arguments, Event, EventFields, SHELL};
use swarmletfs_base::model::{Outcome, Status};

const SILENT_ACTIONS: [&str; 7] =
    ["system", "change_agent_state", "recall", "null", "condensation_request", "start", "send_pr"];
const SILENT_OBSERVATIONS: [&str; 4] = ["null", "agent_state_changed", "recall", "condense"];
/// The beginning of the result of a file tool that failed. The record states no outcome.
pub(super) const ERROR_PREFIX: &str = "ERROR:";
const FILE_OBSERVATIONS: [&str; 3] = ["edit", "read", "write"];
/// The note of the program that it omitted a part of a result.
const TRUNCATION_NOTE: &str = "[... Observation truncated due to length ...]";
/// The ID of results that name no call.
const NO_CALL: &str = "(none)";

pub(super) fn turn<'a>(event: &'a Event<'_>) -> Turn<'a> {
    if event.action.word().is_empty() { observation_turn(event) } else { action_turn(event) }
}

fn action_turn<'a>(event: &'a Event<'_>) -> Turn<'a> {
    let silent = event.silent_turn();
    let action = event.action.word();
    let is_user = event.source.as_str() == "user";
    let args = event.args.and_then(|args| object::<Arguments<'a>>(args.get())).unwrap_or_default();
    let answer =
        || Turn { role: Role::Assistant, model: model(event).into(), ..event.silent_turn() };
    match action {
        "message" => {
            let text = non_empty([args.content.0, Some(event.message.as_str().into())]);
            if is_user {
                return Turn { role: Role::User, request: Some(text.clone()), text, ..silent };
            }
            Turn { text, ..answer() }
        }
        "condensation" => Turn {
            role: Role::User,
            text: args.summary.0.unwrap_or_default(),
            event: TurnEvent::Compaction,
            ..silent
        },
        // Actions that the user takes by hand are no calls.
        _ if is_user || SILENT_ACTIONS.contains(&action) => silent,
        "finish" => {
            let message = Some(event.message.as_str().into());
            let text = non_empty([args.final_thought.0, args.thought.0, message]);
            Turn { text, ..answer() }
        }
        _ => {
            let name = tool(event);
            let fields = event
                .args
                .and_then(|args| serde_json::from_str::<EventFields<'_>>(args.get()).ok());
            let arguments =
                fields.map_or(CallArguments::None, |fields| call_arguments(name, &fields));
            let call = CallPart { id: event.id.as_str().into(), name: name.into(), arguments };
            let thought = args.thought.0.filter(|_| name != THINK);
            Turn { text: thought.unwrap_or_default(), calls: vec![call], ..answer() }
        }
    }
}

fn non_empty<'a, const N: usize>(texts: [Option<Cow<'a, str>>; N]) -> Cow<'a, str> {
    texts.into_iter().flatten().find(|text| !text.trim().is_empty()).unwrap_or_default()
}

fn model<'a>(event: &'a Event<'_>) -> &'a str {
    let details = event.tool_call_metadata.0.as_ref();
    let response = details.and_then(|details| details.model_response.0.as_ref());
    response.map_or("", |response| response.model.as_str())
}

fn tool<'a>(event: &'a Event<'_>) -> &'a str {
    let details = event.tool_call_metadata.0.as_ref();
    let name = details.map_or("", |details| details.function_name.as_str());
    if name.is_empty() { event.action.word() } else { name }
}

fn observation_turn<'a>(event: &'a Event<'_>) -> Turn<'a> {
    let silent = event.silent_turn();
    let (observation, text) = (event.observation.word(), event.content.as_str());
    if SILENT_OBSERVATIONS.contains(&observation) {
        return silent;
    }
    let cause = event.cause.as_str();
    if observation == "error" && cause.is_empty() && event.id.0.is_some() {
        return Turn { role: Role::User, text: text.into(), event: TurnEvent::Report, ..silent };
    }
    let call = match (cause, &event.id.0) {
        // The oldest events have no IDs.
        ("", None) => "",
        ("", Some(_)) => NO_CALL,
        (cause, _) => cause,
    };
    let result = ResultPart {
        call: call.into(),
        text: text.into(),
        verdict: verdict(event),
        stage: if is_running(event) { Stage::Started(SHELL.into()) } else { Stage::Done },
        truncated: memmem::find(text.as_bytes(), TRUNCATION_NOTE.as_bytes()).is_some(),
        hint: error_hint(event).map(Into::into),
        refusal: (observation == "user_rejected").then(|| text.into()),
        ..ResultPart::default()
    };
    Turn { results: vec![result], ..silent }
}

fn exit_code(event: &Event<'_>) -> Option<i64> {
    let extras = event.extras.0.as_ref();
    let details = extras.and_then(|extras| extras.metadata.0.as_ref());
    details.and_then(|details| details.exit_code.0).or_else(|| extras?.exit_code.0)
}

/// Returns true if a command goes on, or timed out.
fn is_running(event: &Event<'_>) -> bool {
    event.observation.word() != "error" && exit_code(event) == Some(-1)
}

fn verdict(event: &Event<'_>) -> Verdict {
    match event.observation.word() {
        "error" => return Verdict::from_outcome(Outcome::Failed),
        "user_rejected" => return Verdict::from_outcome(Outcome::NotRun),
        _ => {}
    }
    match exit_code(event) {
        // The command is still running, or it timed out.
        None | Some(-1) => Verdict::default(),
        Some(code) => Verdict::from_exit_code(code),
    }
}

/// Returns the reason of a file tool that failed, as its text states it.
fn error_hint<'a>(event: &'a Event<'_>) -> Option<&'a str> {
    let is_file_tool = FILE_OBSERVATIONS.contains(&event.observation.word());
    let reason = event.content.as_str().strip_prefix(ERROR_PREFIX).filter(|_| is_file_tool)?;
    Some(reason.lines().find(|line| !line.trim().is_empty()).unwrap_or(ERROR_PREFIX))
}

pub(super) fn add_facts(index: &mut IndexBuilder<'_>, number: usize, event: &Event<'_>) {
    add_metrics(index, number, event.llm_metrics.0.as_ref());
    if error_hint(event).is_some() {
        // The call changed no file.
        index.set_files(number, event.cause.as_str(), Vec::new());
    }
    let is_state = event.observation.word() == "agent_state_changed";
    let state = event.extras.0.as_ref().filter(|_| is_state);
    match state.map(|state| state.agent_state.as_str()) {
        Some(state) => set_state(index, number, state),
        // A state counts until the next message.
        None if !SILENT_OBSERVATIONS.contains(&event.observation.word())
            && !SILENT_ACTIONS.contains(&event.action.word()) =>
        {
            index.clear_status(number);
        }
        None => {}
    }
}

fn set_state(index: &mut IndexBuilder<'_>, number: usize, state: &str) {
    let ending = index.conversation(number).map(|conversation| conversation.ending.clone());
    let is_answered = ending == Some(Ending::Answered);
    let status = match state {
        "finished" => Status::Completed,
        // The program waits for the first message too.
        "awaiting_user_input" if ending != Some(Ending::Empty) => Status::Completed,
        "error" | "rejected" => Status::Failed,
        "awaiting_user_confirmation" => Status::Waiting,
        "running" | "rate_limited" | "user_confirmed" | "user_rejected" => Status::Running,
        // The program stops an agent that has finished when it closes the conversation.
        "stopped" | "paused" if !is_answered => Status::Unknown,
        _ => return index.clear_status(number),
    };
    index.set_status(number, status, Some(state));
}
