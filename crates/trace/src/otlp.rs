//! Spans of OpenTelemetry in the JSON of its protocol, with the attributes of its conventions for
//! generative models, of OpenInference and of others. An agent's span is a worker, and the spans of
//! tools beneath it are its calls.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::lenient::{MaybeBool, MaybeList, MaybeNumber, MaybeObject, MaybeStr, object};
use super::probe::Probe;
use super::transcript::{
    Arguments, CallPart, Container, Holds, IndexBuilder, Member, RawRecord, ResultPart, Role,
    Session, Shape, Stage, TranscriptFormat, TranscriptLocation, Transcripts, Turn, TurnEvent,
    Verdict, parse_millis,
};
use super::value::truncate;
use swarmletfs_base::model::{Outcome, Status, TASK_MAX, Tokens, Worker};
use swarmletfs_base::name::{Name, RelPath};

const SUFFIXES: [&str; 2] = [".jsonl", ".json"];
const MEMBERS: [Member; 1] = [Member::List("")];
/// Names of attributes and members by which a file is recognized.
const REQUESTS: [&[u8]; 2] = [b"\"resourceSpans\"", b"\"batches\""];
const SIGNS: [&[u8]; 5] =
    [b"\"gen_ai.", b"\"openinference.span.kind\"", b"\"traceloop.", b"\"llm.", b"\"ai.toolCall."];
const TOOL_NAMES: [&str; 3] = ["gen_ai.tool.name", "tool.name", "ai.toolCall.name"];
const ARGUMENTS: [&str; 7] = [
    "gen_ai.tool.call.arguments",
    "input.value",
    "tool.parameters",
    "gen_ai.tool.args",
    "gcp.vertex.agent.tool_call_args",
    "traceloop.entity.input",
    "tool_arguments",
];
/// The result by the conventions. It is there if the call was successful.
const RESULT: &str = "gen_ai.tool.call.result";
const RESULTS: [&str; 8] = [
    RESULT,
    "output.value",
    "gen_ai.output",
    "gcp.vertex.agent.tool_response",
    "traceloop.entity.output",
    "tool_response",
    "ai.toolCall.result",
    "swarmletfs.output",
];
const MODELS: [&str; 3] = ["gen_ai.response.model", "gen_ai.request.model", "llm.model_name"];
const INPUT_TOKENS: [&str; 3] =
    ["gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt"];
const OUTPUT_TOKENS: [&str; 3] =
    ["gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion"];
const CACHED_TOKENS: [&str; 1] = ["gen_ai.usage.cache_read.input_tokens"];
const TOOL_PREFIX: &str = "execute_tool ";

/// A record of the regrouped document: a span with the agent to which it belongs. Fields of an
/// unexpected type count as absent.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct GroupedSpan<'a> {
    worker: MaybeStr<'a>,
    parent: MaybeStr<'a>,
    trace: MaybeStr<'a>,
    kind: MaybeStr<'a>,
    span: MaybeObject<OtelSpan<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
struct OtelSpan<'a> {
    span_id: MaybeStr<'a>,
    name: MaybeStr<'a>,
    start_time_unix_nano: Option<&'a RawValue>,
    end_time_unix_nano: Option<&'a RawValue>,
    attributes: OtelAttributes<'a>,
    status: MaybeObject<OtelStatus<'a>>,
    events: MaybeList<MaybeObject<OtelEvent<'a>>>,
}

type OtelAttributes<'a> = MaybeList<MaybeObject<OtelAttribute<'a>>>;

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct OtelAttribute<'a> {
    key: MaybeStr<'a>,
    value: MaybeObject<OtelValue<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
struct OtelValue<'a> {
    string_value: MaybeStr<'a>,
    bool_value: MaybeBool,
    int_value: Option<&'a RawValue>,
    double_value: MaybeNumber,
    array_value: Option<&'a RawValue>,
    kvlist_value: Option<&'a RawValue>,
}

/// How an operation ended; the code is a number or a word.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct OtelStatus<'a> {
    code: Option<&'a RawValue>,
    message: MaybeStr<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct OtelEvent<'a> {
    name: MaybeStr<'a>,
    attributes: OtelAttributes<'a>,
}

/// A message in an attribute.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct OtelMessage<'a> {
    role: MaybeStr<'a>,
    parts: MaybeList<MaybeObject<OtelPart<'a>>>,
    /// The text in older versions.
    content: MaybeStr<'a>,
    time: MaybeStr<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct OtelPart<'a> {
    #[serde(rename = "type")]
    kind: MaybeStr<'a>,
    content: MaybeStr<'a>,
}

pub struct Otlp;

impl TranscriptFormat for Otlp {
    fn name(&self) -> &'static str {
        "otlp"
    }

    fn recognizes(&self, probe: &Probe<'_>) -> bool {
        let has = |head: &[u8], signs: &[&[u8]]| {
            signs.iter().any(|sign| memchr::memmem::find(head, sign).is_some())
        };
        SUFFIXES.iter().any(|suffix| probe.name().ends_with(suffix.as_bytes()))
            && probe.head().trim_ascii_start().first() == Some(&b'{')
            && has(probe.head(), &REQUESTS)
            && has(probe.long_head(), &SIGNS)
    }

    fn locate(&self, path: &RelPath) -> Option<TranscriptLocation> {
        let is_file = |name: &Name| {
            SUFFIXES.iter().any(|suffix| name.as_bytes().ends_with(suffix.as_bytes()))
        };
        let (file, agent) = match path.file_name()? {
            name if is_file(&name) => (path.clone(), None),
            name => (path.parent(), Some(name)),
        };
        let shape = Shape::Documents(&MEMBERS);
        let mut suffixes = SUFFIXES.iter();
        let location =
            suffixes.find_map(|suffix| TranscriptLocation::of_file(&file, suffix, shape));
        let location = location?;
        Some(TranscriptLocation {
            container: Container::Spans,
            holds: Holds::Nested,
            name: agent.clone().unwrap_or(location.name),
            agent,
            ..location
        })
    }

    fn add_record(&self, index: &mut IndexBuilder<'_>, record: RawRecord<'_>) -> bool {
        let Some(grouped) = object::<GroupedSpan<'_>>(record.text) else { return false };
        let Some(span) = &grouped.span.0 else { return false };
        let Some(number) = index.agent_conversation(grouped.worker.as_str()) else { return true };
        let model = span.first_text(&MODELS).unwrap_or_default();
        match grouped.kind.as_str() {
            "agent" => add_agent(index, number, &grouped, span),
            "model" => {
                index.set_model(number, &model);
                let has_total = index.conversation(number).is_some_and(|own| own.has_total());
                if let Some(tokens) = span.tokens().filter(|_| !has_total) {
                    index.count_tokens(number, span.span_id.as_str(), &model, tokens);
                }
            }
            _ => {}
        }
        let has_status = index.conversation(number).is_some_and(|own| own.stated.is_some());
        if !has_status {
            // The agent's own span is written when it ends.
            index.set_status(number, Status::Running, None);
        }
        if let Some(conversation) = index.conversation(number) {
            let parent = grouped.parent.as_str();
            conversation.set_family(parent, grouped.trace.as_str());
        }
        let turns = turns(&grouped, span);
        if !turns.is_empty() {
            index.add_turns(number, record.span, &turns);
        }
        if span.value("swarmletfs.no_final_words").is_some() {
            index.note_no_final_words(number);
        }
        true
    }

    fn with_turns(&self, record: RawRecord<'_>, use_turns: &mut dyn FnMut(&[Turn<'_>])) {
        let grouped = object::<GroupedSpan<'_>>(record.text);
        if let Some(grouped) = &grouped
            && let Some(span) = &grouped.span.0
        {
            use_turns(&turns(grouped, span));
        }
    }

    fn describe(&self, worker: &mut Worker, session: &Session<'_>) {
        let family = session.family();
        session.describe(worker, family.and_then(|family| family.parent.as_deref()));
        if let Some(run) = family.and_then(|family| family.run.as_deref()) {
            worker.run = Some(run.into());
        }
        worker.task_type.get_or_insert_with(|| "agent".into());
    }
}

impl Otlp {
    pub fn transcripts() -> Transcripts {
        Transcripts::new(&Otlp)
    }
}

fn add_agent(
    index: &mut IndexBuilder<'_>,
    number: usize,
    grouped: &GroupedSpan<'_>,
    span: &OtelSpan<'_>,
) {
    index.set_default_model(number, &span.first_text(&MODELS).unwrap_or_default());
    if let Some(tokens) = span.tokens() {
        index.set_total_tokens(number, tokens);
    }
    let exported = span.text("swarmletfs.status").and_then(|word| Status::from_word(&word));
    let message = span.status.0.as_ref().map(|status| status.message.as_str()).unwrap_or_default();
    let word = Some(truncate(message.to_owned(), TASK_MAX)).filter(|word| !word.is_empty());
    match (exported, span.outcome()) {
        (Some(status), _) => index.set_status(number, status, None),
        (None, Some(Outcome::Failed)) => {
            index.set_status(number, Status::Failed, word.as_deref());
        }
        (None, _) if span.end().is_none() => index.set_status(number, Status::Running, None),
        (None, _) => index.set_status(number, Status::Completed, None),
    }
    if let Some(conversation) = index.conversation(number) {
        let run = span.first_text(&["gen_ai.conversation.id", "session.id"]);
        let run = run.unwrap_or_else(|| grouped.trace.as_str().to_owned().into());
        let parent = span.text("swarmletfs.parent");
        let parent = parent.as_deref().unwrap_or(grouped.parent.as_str());
        conversation.set_family(parent, &run);
    }
}

impl<'a> OtelSpan<'a> {
    fn value(&self, name: &str) -> Option<&OtelValue<'a>> {
        value(&self.attributes, name)
    }

    fn text(&self, name: &str) -> Option<Cow<'_, str>> {
        self.value(name).map(OtelValue::text)
    }

    fn first_text(&self, names: &[&str]) -> Option<Cow<'_, str>> {
        names.iter().find_map(|name| self.text(name))
    }

    fn number(&self, names: &[&str]) -> Option<u64> {
        names.iter().find_map(|name| self.value(name)?.number()?.try_into().ok())
    }

    fn start(&self) -> Option<i64> {
        self.start_time_unix_nano.and_then(millis)
    }

    /// Returns the time of the end; `None` if it has not ended.
    fn end(&self) -> Option<i64> {
        self.end_time_unix_nano.and_then(millis)
    }

    fn tokens(&self) -> Option<Tokens> {
        let prompt = self.number(&INPUT_TOKENS);
        let output = self.number(&OUTPUT_TOKENS);
        let cached = [self.number(&CACHED_TOKENS).unwrap_or_default(), 0];
        (prompt.is_some() || output.is_some()).then(|| {
            Tokens::of_prompt(prompt.unwrap_or_default(), output.unwrap_or_default(), cached)
        })
    }

    fn outcome(&self) -> Option<Outcome> {
        let code = self.status.0.as_ref().and_then(|status| status.code);
        let code = code.map(|code| code.get().trim_matches('"')).unwrap_or_default();
        match code {
            "2" | "STATUS_CODE_ERROR" => Some(Outcome::Failed),
            _ if self.value("error.type").is_some() => Some(Outcome::Failed),
            "1" | "STATUS_CODE_OK" => Some(Outcome::Ok),
            _ => None,
        }
    }

    /// Returns the text of the exception that ended the operation.
    fn exception(&self) -> Option<Cow<'_, str>> {
        let mut events = self.events.0.iter().filter_map(|event| event.0.as_ref());
        let event = events.find(|event| event.name.as_str() == "exception")?;
        value(&event.attributes, "exception.message").map(OtelValue::text)
    }
}

fn value<'s, 'a>(attributes: &'s OtelAttributes<'a>, name: &str) -> Option<&'s OtelValue<'a>> {
    let mut all = attributes.0.iter().filter_map(|attribute| attribute.0.as_ref());
    all.find(|attribute| attribute.key.as_str() == name)?.value.0.as_ref()
}

impl OtelValue<'_> {
    fn number(&self) -> Option<i64> {
        self.int_value.and_then(|number| number.get().trim_matches('"').parse().ok())
    }

    /// Returns a text, or another value as JSON.
    fn text(&self) -> Cow<'_, str> {
        if let Some(text) = self.string_value.0.as_deref() {
            return Cow::Borrowed(text);
        }
        if let Some(flag) = self.bool_value.0 {
            return Cow::Owned(flag.to_string());
        }
        if let Some(number) = self.int_value {
            return Cow::Borrowed(number.get().trim_matches('"'));
        }
        if let Some(number) = &self.double_value.0 {
            return Cow::Owned(number.to_string());
        }
        let list = |raw: &RawValue, name: &str| {
            let value = serde_json::from_str::<Value>(raw.get()).ok()?;
            Some(plain(&Value::Object(Map::from_iter([(name.to_owned(), value)]))).to_string())
        };
        let text = self.array_value.and_then(|raw| list(raw, "arrayValue"));
        let text = text.or_else(|| self.kvlist_value.and_then(|raw| list(raw, "kvlistValue")));
        Cow::Owned(text.unwrap_or_default())
    }
}

/// Returns a value of the protocol as plain JSON.
fn plain(value: &Value) -> Value {
    let Some((kind, inner)) = value.as_object().and_then(|fields| fields.iter().next()) else {
        return Value::Null;
    };
    let items = || inner.get("values").and_then(Value::as_array).into_iter().flatten();
    match kind.as_str() {
        "arrayValue" => items().map(plain).collect(),
        "kvlistValue" => {
            let fields = items().filter_map(|item| {
                let name = item.get("key")?.as_str()?.to_owned();
                Some((name, item.get("value").map(plain).unwrap_or_default()))
            });
            Value::Object(fields.collect())
        }
        "intValue" => match inner.as_str().and_then(|number| number.parse::<i64>().ok()) {
            Some(number) => number.into(),
            None => inner.clone(),
        },
        _ => inner.clone(),
    }
}

/// Parses a number of nanoseconds, as text or as a number. Zero stands for no time.
fn millis(number: &RawValue) -> Option<i64> {
    let nanos: u64 = number.get().trim_matches('"').parse().ok()?;
    (nanos > 0).then_some((nanos / 1_000_000) as i64)
}

fn turns<'a>(grouped: &'a GroupedSpan<'_>, span: &'a OtelSpan<'_>) -> Vec<Turn<'a>> {
    match grouped.kind.as_str() {
        "agent" => agent_turns(span),
        "tool" => tool_turns(span),
        _ => Vec::new(),
    }
}

/// Returns the messages to an agent, and its own.
fn agent_turns<'a>(span: &'a OtelSpan<'_>) -> Vec<Turn<'a>> {
    let mut turns = Vec::new();
    for (names, is_input) in [
        (["gen_ai.input.messages", "input.value"], true),
        (["gen_ai.output.messages", "output.value"], false),
    ] {
        let [messages, plain] = names;
        let list = span.text(messages).unwrap_or_default();
        let list = serde_json::from_str::<MaybeList<MaybeObject<OtelMessage<'_>>>>(&list);
        let list = list.unwrap_or_default().0.into_iter().filter_map(|message| message.0);
        let mut found: Vec<Turn<'a>> =
            list.filter_map(|message| message_turn(span, &message)).collect();
        if found.is_empty()
            && let Some(text) = span.text(plain)
        {
            found.push(text_turn(
                span,
                if is_input { "user" } else { "assistant" },
                text.into_owned(),
            ));
        }
        turns.extend(found);
    }
    turns
}

fn message_turn<'a>(span: &OtelSpan<'_>, message: &OtelMessage<'_>) -> Option<Turn<'a>> {
    let parts = message.parts.0.iter().filter_map(|part| part.0.as_ref());
    let texts = parts.filter(|part| part.kind.as_str() == "text");
    let mut text = texts.map(|part| part.content.as_str()).collect::<Vec<_>>().join("\n");
    if text.is_empty() {
        text = message.content.as_str().to_owned();
    }
    if text.is_empty() {
        return None;
    }
    let turn = text_turn(span, message.role.as_str(), text);
    Some(Turn { at_ms: parse_millis(message.time.as_str()).or(turn.at_ms), ..turn })
}

fn text_turn<'a>(span: &OtelSpan<'_>, role: &str, text: String) -> Turn<'a> {
    let turn = Turn { at_ms: span.start(), ..Turn::default() };
    match role {
        "user" => Turn { request: Some(text.clone().into()), text: text.into(), ..turn },
        "assistant" => Turn { role: Role::Assistant, text: text.into(), ..turn },
        _ => Turn { role: Role::System, text: text.into(), event: TurnEvent::ProgramText, ..turn },
    }
}

/// Returns a call, and its result if it has ended.
fn tool_turns<'a>(span: &'a OtelSpan<'_>) -> Vec<Turn<'a>> {
    let id = span.span_id.as_str();
    let name = span.name.as_str();
    let name = span
        .first_text(&TOOL_NAMES)
        .unwrap_or_else(|| name.strip_prefix(TOOL_PREFIX).unwrap_or(name).into());
    let call = CallPart {
        id: id.into(),
        name,
        arguments: span.first_text(&ARGUMENTS).map_or(Arguments::None, Arguments::Text),
    };
    let made =
        Turn { role: Role::Assistant, at_ms: span.start(), calls: vec![call], ..Turn::default() };
    let is_open = span.value("swarmletfs.open").is_some();
    let end = span.end();
    // An exported call may have ended at an unknown time.
    let exported = span.text("swarmletfs.outcome");
    if end.is_none() && !is_open && exported.is_none() {
        return vec![made];
    }
    let exported = exported.map(|word| Outcome::from_word(&word).unwrap_or_default());
    let is_success = span.value(RESULT).is_some();
    let stated = span.outcome().or(is_success.then_some(Outcome::Ok));
    let took = span.start().zip(end).and_then(|(from, to)| u64::try_from(to - from).ok());
    let text = span.first_text(&RESULTS).or_else(|| span.exception());
    let message = || span.status.0.as_ref().map(|status| status.message.as_str().into());
    let result = ResultPart {
        call: id.into(),
        text: text.or_else(message).unwrap_or_default(),
        verdict: Verdict {
            outcome: exported.or(stated).unwrap_or_default(),
            exit_code: span.value("process.exit.code").and_then(OtelValue::number),
            duration_ms: took,
        },
        stage: if is_open { Stage::Started("".into()) } else { Stage::Done },
        ..ResultPart::default()
    };
    vec![made, Turn { role: Role::System, at_ms: end, results: vec![result], ..Turn::default() }]
}
