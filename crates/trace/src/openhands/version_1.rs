//! Turns and facts from the events of version 1.

use memchr::memmem;

use super::super::lenient::{MaybeStr, object};
use super::super::transcript::{
    Arguments, CallPart, Ending, IndexBuilder, ResultPart, Role, Stage, Turn, TurnEvent, Verdict,
};
use super::arguments::call_arguments;
use super::edits::patched_files;
use super::metadata::{ConversationState, Stats, status};
use super::schema::{Event, EventFields, Observation, SHELL};
use swarmletfs_base::model::Outcome;

const SILENT_KINDS: [&str; 9] = [
    "SystemPromptEvent",
    "ConversationStateUpdateEvent",
    "PauseEvent",
    "InterruptEvent",
    "CondensationRequest",
    "TokenEvent",
    "StreamingDeltaEvent",
    "LLMCompletionLogEvent",
    "HookExecutionEvent",
];
const TURN_KINDS: [&str; 9] = [
    "MessageEvent",
    "ActionEvent",
    "ObservationEvent",
    "UserRejectObservation",
    "AgentErrorEvent",
    "ACPToolCallEvent",
    "ConversationErrorEvent",
    "Condensation",
    "CondensationSummaryEvent",
];
/// The parent of an event that begins another conversation in the same directory.
const ROOT: &str = "__root__";
const FINISH: &str = "finish";
/// Note by which the program marks a result that it truncated.
const TRUNCATION_NOTE: &str = "<response clipped>";
/// The ID of results that name no call.
const NO_CALL: &str = "(none)";

pub(super) fn is_known_kind(kind: &str) -> bool {
    SILENT_KINDS.contains(&kind) || TURN_KINDS.contains(&kind)
}

/// Rewinds the conversation to the parent of an event, unless that is the previous event.
pub(super) fn rewind_to_parent(index: &mut IndexBuilder<'_>, number: usize, event: &Event<'_>) {
    match event.parent_id.as_str() {
        "" => {}
        ROOT => index.truncate_messages(number, 0),
        parent => index.continue_after(number, parent),
    }
}

/// Returns the turns of an event. Only the first has the event's ID.
pub(super) fn turns<'a>(event: &'a Event<'_>) -> Vec<Turn<'a>> {
    let silent = || event.silent_turn();
    let mut turns = match event.kind.as_str() {
        "MessageEvent" => vec![message_turn(event)],
        "ActionEvent" => action_turns(event),
        "ObservationEvent" => vec![result_turn(event, observation_result(event))],
        "UserRejectObservation" => vec![result_turn(event, rejection(event))],
        "AgentErrorEvent" => {
            let text = event.error.as_str();
            let verdict = Verdict::from_outcome(Outcome::Failed);
            let result = ResultPart { text: text.into(), verdict, ..ResultPart::default() };
            vec![result_turn(event, result)]
        }
        "ACPToolCallEvent" => other_agent_turns(event),
        "ConversationErrorEvent" => {
            let words = [event.code.as_str(), event.detail.as_str()];
            let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
            vec![Turn {
                role: Role::Assistant,
                is_synthetic: true,
                text: words.join(": ").into(),
                event: TurnEvent::ApiError,
                ..silent()
            }]
        }
        "Condensation" | "CondensationSummaryEvent" => vec![Turn {
            role: Role::User,
            text: event.summary.as_str().into(),
            event: TurnEvent::Compaction,
            ..silent()
        }],
        _ => vec![silent()],
    };
    if let Some(first) = turns.first_mut() {
        first.id = event.id.as_str().into();
    }
    turns
}

fn message_turn<'a>(event: &'a Event<'_>) -> Turn<'a> {
    let message = event.llm_message.0.as_ref();
    let text = message.map_or("", |message| message.content.as_str());
    let turn = Turn { text: text.into(), ..event.silent_turn() };
    match event.source.as_str() {
        "agent" => Turn {
            role: Role::Assistant,
            thinking: message.map_or("", |message| message.reasoning_content.as_str()).into(),
            ..turn
        },
        "user" => Turn { role: Role::User, request: Some(text.into()), ..turn },
        _ => Turn { role: Role::User, event: TurnEvent::ProgramText, ..turn },
    }
}

/// Returns the turn of a call. A call that finishes the conversation adds a turn with the agent's
/// final message.
fn action_turns<'a>(event: &'a Event<'_>) -> Vec<Turn<'a>> {
    let action = event.action.object();
    let kind = action.map(|action| action.text("kind")).unwrap_or_default();
    let call = event.tool_call.0.as_ref();
    let named = [event.tool_name.as_str(), call.map_or("", |call| call.name.as_str())];
    let name = named.into_iter().find(|name| !name.is_empty()).map_or(kind, Into::into);
    let mut turn = Turn {
        role: Role::Assistant,
        text: event.thought.as_str().into(),
        thinking: event.reasoning_content.as_str().into(),
        ..event.silent_turn()
    };
    if !name.is_empty() {
        // The action holds the program's defaults too.
        let text = call.map_or("", |call| call.arguments.as_str());
        let arguments = match serde_json::from_str::<EventFields<'_>>(text) {
            Ok(fields) if !fields.0.is_empty() => call_arguments(&name, &fields),
            _ => action.map_or(Arguments::None, |action| call_arguments(&name, action)),
        };
        let id = [event.tool_call_id.as_str(), event.id.as_str()];
        let id = id.into_iter().find(|id| !id.is_empty()).unwrap_or_default();
        turn.calls.push(CallPart { id: id.into(), name, arguments });
    }
    let words = action.filter(|_| event.tool_name.as_str() == FINISH);
    let words = words.map(|action| action.text("message")).unwrap_or_default();
    let mut turns = vec![turn];
    if !words.is_empty() {
        turns.push(Turn { role: Role::Assistant, text: words, ..event.silent_turn() });
    }
    turns
}

/// Returns the turn of a result, with the ID of the call that it answers.
fn result_turn<'a>(event: &'a Event<'_>, result: ResultPart<'a>) -> Turn<'a> {
    let ids = [event.tool_call_id.as_str(), event.action_id.as_str()];
    let call = ids.into_iter().find(|id| !id.is_empty()).unwrap_or(NO_CALL);
    Turn { results: vec![ResultPart { call: call.into(), ..result }], ..event.silent_turn() }
}

fn observation_result<'a>(event: &'a Event<'_>) -> ResultPart<'a> {
    let Some(observation) = event.observation.object() else { return ResultPart::default() };
    let texts =
        [observation.content.as_str(), observation.output.as_str(), &observation.error.text];
    let text = texts.into_iter().find(|text| !text.is_empty()).unwrap_or_default();
    ResultPart {
        text: text.into(),
        verdict: verdict(observation),
        stage: if is_running(observation) { Stage::Started(SHELL.into()) } else { Stage::Done },
        truncated: memmem::find(text.as_bytes(), TRUNCATION_NOTE.as_bytes()).is_some(),
        files: patched_files(observation),
        ..ResultPart::default()
    }
}

fn exit_code(observation: &Observation<'_>) -> Option<i64> {
    let details = observation.metadata.0.as_ref();
    observation.exit_code.0.or_else(|| details?.exit_code.0)
}

fn is_running(observation: &Observation<'_>) -> bool {
    let is_error = observation.is_error.is_set() || observation.error.is_set;
    !is_error && exit_code(observation) == Some(-1)
}

fn verdict(observation: &Observation<'_>) -> Verdict {
    let is_error = observation.is_error.is_set() || observation.error.is_set;
    match exit_code(observation) {
        Some(code) if !(-1..=0).contains(&code) => Verdict::from_exit_code(code),
        _ if is_error => Verdict::from_outcome(Outcome::Failed),
        Some(0) => Verdict::from_exit_code(0),
        // The command is still running.
        Some(_) => Verdict::default(),
        None if observation.is_error.0 == Some(false) => Verdict::from_outcome(Outcome::Ok),
        None => Verdict::default(),
    }
}

fn rejection<'a>(event: &'a Event<'_>) -> ResultPart<'a> {
    let reason = event.rejection_reason.as_str();
    let is_user = event.rejection_source.as_str() != "hook";
    ResultPart {
        text: reason.into(),
        verdict: Verdict::from_outcome(Outcome::NotRun),
        refusal: is_user.then(|| reason.into()),
        ..ResultPart::default()
    }
}

/// Returns the turns of a call by an agent of another program, which the event reports several
/// times as it proceeds.
fn other_agent_turns<'a>(event: &'a Event<'_>) -> Vec<Turn<'a>> {
    let call = CallPart {
        id: event.tool_call_id.as_str().into(),
        name: event.title.as_str().into(),
        arguments: event.raw_input.map_or(Arguments::None, Arguments::Json),
    };
    let turn = Turn { role: Role::Assistant, calls: vec![call], ..event.silent_turn() };
    let failed = event.is_error.is_set() || event.status.as_str() == "failed";
    let outcome = match event.status.as_str() {
        _ if failed => Outcome::Failed,
        "completed" => Outcome::Ok,
        _ => return vec![turn],
    };
    let output = event.raw_output.map(|output| {
        let text = serde_json::from_str::<MaybeStr<'a>>(output.get()).ok().and_then(|text| text.0);
        text.unwrap_or_else(|| output.get().into())
    });
    let text = output.unwrap_or_else(|| event.content.as_str().into());
    let result = ResultPart { text, verdict: Verdict::from_outcome(outcome), ..Default::default() };
    vec![turn, result_turn(event, result)]
}

pub(super) fn add_facts(index: &mut IndexBuilder<'_>, number: usize, event: &Event<'_>) {
    let kind = event.kind.as_str();
    if TURN_KINDS.contains(&kind) {
        // A state counts until the next message.
        index.clear_status(number);
    }
    match kind {
        "ConversationStateUpdateEvent" => add_state(index, number, event),
        "InterruptEvent" => set_ending(index, number, Ending::Interrupted),
        "ObservationEvent" if event.tool_name.as_str() == FINISH => {
            let has_answered = index
                .conversation(number)
                .is_some_and(|conversation| conversation.last_text.is_some());
            if has_answered {
                set_ending(index, number, Ending::Answered);
            }
        }
        _ => {}
    }
}

fn set_ending(index: &mut IndexBuilder<'_>, number: usize, ending: Ending) {
    if let Some(conversation) = index.conversation(number) {
        conversation.ending = ending;
    }
}

fn add_state(index: &mut IndexBuilder<'_>, number: usize, event: &Event<'_>) {
    let Some(value) = event.value else { return };
    match event.key.as_str() {
        "execution_status" | "agent_status" => {
            let word = serde_json::from_str::<MaybeStr<'_>>(value.get()).unwrap_or_default();
            set_status(index, number, word.as_str());
        }
        "stats" => add_stats(index, number, object(value.get()).as_ref()),
        "full_state" => {
            let Some(state) = object::<ConversationState<'_>>(value.get()) else { return };
            add_stats(index, number, state.stats.0.as_ref());
            if let Some(model) = state.model() {
                index.set_default_model(number, model);
            }
            set_status(index, number, state.status());
        }
        _ => {}
    }
}

fn set_status(index: &mut IndexBuilder<'_>, number: usize, word: &str) {
    match status(word) {
        Some(status) => index.set_status(number, status, Some(word)),
        None => index.clear_status(number),
    }
}

fn add_stats(index: &mut IndexBuilder<'_>, number: usize, stats: Option<&Stats<'_>>) {
    let Some(stats) = stats else { return };
    if let Some(model) = stats.model() {
        index.set_default_model(number, model);
    }
    let tokens = stats.tokens_by_model();
    if !tokens.is_empty() {
        index.set_tokens_by_model(number, tokens);
    }
    if let Some((cost, conversation)) = stats.cost().zip(index.conversation(number)) {
        conversation.cost.replace(cost);
    }
}
