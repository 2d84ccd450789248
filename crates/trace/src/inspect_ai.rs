//! The format of inspect_ai's logs of evaluations: each sample is a worker, and the evaluation is
//! its run.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::blocks::{MessageBlocks, content_text, value_text};
use super::lenient::{MaybeBool, MaybeList, MaybeNumber, MaybeObject, MaybeStr, MaybeU64, object};
use super::probe::Probe;
use super::transcript::{
    Arguments, CallPart, Container, IndexBuilder, RawRecord, ResultPart, Role, Session,
    TranscriptFormat, TranscriptLocation, Turn, TurnEvent, Verdict, ZIP_MAGIC, parse_millis,
};
use super::value::truncate;
use swarmletfs_base::model::{Outcome, Status, TASK_MAX, Tokens, Worker};
use swarmletfs_base::name::RelPath;

const ARCHIVE: &[u8] = b".eval";
const DOCUMENT: &[u8] = b".json";

/// A line of a sample. Fields of an unexpected type count as absent.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct SampleLine<'a> {
    #[serde(rename = "type")]
    kind: MaybeStr<'a>,
    at: MaybeStr<'a>,
    run: MaybeStr<'a>,
    model: MaybeStr<'a>,
    /// True for a message of the sample's input.
    request: MaybeBool,
    message: MaybeObject<SampleMessage<'a>>,
    call: MaybeObject<SampleCall<'a>>,
    error: MaybeObject<SampleError<'a>>,
    limit: MaybeObject<SampleLimit<'a>>,
    scores: MaybeObject<BTreeMap<String, MaybeObject<SampleScore<'a>>>>,
    usage: MaybeObject<BTreeMap<String, MaybeObject<SampleUsage>>>,
    completion: MaybeStr<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct SampleMessage<'a> {
    role: MaybeStr<'a>,
    content: Option<&'a RawValue>,
    tool_calls: MaybeList<MaybeObject<SampleCall<'a>>>,
    tool_call_id: MaybeStr<'a>,
    function: MaybeStr<'a>,
    error: MaybeObject<SampleError<'a>>,
}

/// A call in a message, or the event of a call.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct SampleCall<'a> {
    id: MaybeStr<'a>,
    function: MaybeStr<'a>,
    arguments: Option<&'a RawValue>,
    result: Option<&'a RawValue>,
    error: MaybeObject<SampleError<'a>>,
    failed: MaybeBool,
    pending: MaybeBool,
    truncated: Option<&'a RawValue>,
    timestamp: MaybeStr<'a>,
    completed: MaybeStr<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct SampleError<'a> {
    #[serde(rename = "type")]
    kind: MaybeStr<'a>,
    message: MaybeStr<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct SampleLimit<'a> {
    #[serde(rename = "type")]
    kind: MaybeStr<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct SampleScore<'a> {
    value: Option<&'a RawValue>,
}

/// The tokens of a model.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct SampleUsage {
    input_tokens: MaybeU64,
    output_tokens: MaybeU64,
    total_tokens: MaybeU64,
    input_tokens_cache_read: MaybeU64,
    input_tokens_cache_write: MaybeU64,
    /// In dollars.
    total_cost: MaybeNumber,
}

impl SampleUsage {
    /// Returns the tokens. The cached ones are part of the input or beside it, as the total shows.
    fn tokens(&self) -> Tokens {
        let (input, output) = (self.input_tokens.or_zero(), self.output_tokens.or_zero());
        let read = self.input_tokens_cache_read.or_zero();
        let written = self.input_tokens_cache_write.or_zero();
        let holds_cached = self.total_tokens.or_zero() <= input.saturating_add(output);
        let cached = if holds_cached { read.saturating_add(written) } else { 0 };
        Tokens {
            input: input.saturating_sub(cached),
            output,
            cache_read: read,
            cache_creation: written,
            ..Tokens::default()
        }
    }
}

pub struct InspectAi;

impl TranscriptFormat for InspectAi {
    fn name(&self) -> &'static str {
        "inspect-ai"
    }

    fn recognizes(&self, probe: &Probe<'_>) -> bool {
        let has = |bytes: &[u8], word: &[u8]| memchr::memmem::find(bytes, word).is_some();
        if probe.name().ends_with(ARCHIVE) {
            let journal = b"_journal/";
            return probe.head().starts_with(ZIP_MAGIC)
                && (has(probe.head(), journal) || has(&probe.tail(), b"header.json"));
        }
        probe.name().ends_with(DOCUMENT)
            && probe.head().trim_ascii_start().first() == Some(&b'{')
            && has(probe.head(), b"\"eval\"")
            && has(probe.head(), b"\"run_id\"")
            && has(probe.long_head(), b"\"plan\"")
    }

    fn must_be_recognized(&self, path: &RelPath) -> bool {
        is_log(path)
    }

    fn locate(&self, path: &RelPath) -> Option<TranscriptLocation> {
        TranscriptLocation::in_container(path, is_log, Container::Samples)
    }

    fn states_status(&self) -> bool {
        true
    }

    fn states_calls_once(&self) -> bool {
        true
    }

    fn add_record(&self, index: &mut IndexBuilder<'_>, record: RawRecord<'_>) -> bool {
        let Some(line) = object::<SampleLine<'_>>(record.text) else { return false };
        if line.kind.as_str() == "sample" {
            IndexBuilder::set_fact(&mut index.index.facts.root, line.run.as_str());
            index.set_default_model(0, line.model.as_str());
        }
        let mut span = record.span;
        // Otherwise a call handed it in.
        let is_said = index.index.main.last_text.as_ref().is_some_and(|text| {
            line.kind.as_str() == "end" && text.head.trim() == line.completion.as_str().trim()
        });
        span.part = u8::from(is_said);
        index.add_turns(0, span, &turns(&line, is_said));
        match line.kind.as_str() {
            "end" => add_end(index, &line),
            "sample" | "message" | "call" => {}
            kind => index.count_unknown_type(kind),
        }
        true
    }

    fn with_turns(&self, record: RawRecord<'_>, use_turns: &mut dyn FnMut(&[Turn<'_>])) {
        if let Some(line) = object::<SampleLine<'_>>(record.text) {
            use_turns(&turns(&line, record.span.part > 0));
        }
    }

    fn describe(&self, worker: &mut Worker, session: &Session<'_>) {
        let own = worker.id.clone();
        session.describe(worker, None);
        worker.id = own;
        let run = session.indexes[0].facts.root.as_deref();
        worker.run = run.map(Into::into).or(worker.run.take());
        worker.task_type = Some("sample".into());
    }
}

fn is_log(path: &RelPath) -> bool {
    [ARCHIVE, DOCUMENT].iter().any(|suffix| path.as_bytes().ends_with(suffix))
}

fn add_end(index: &mut IndexBuilder<'_>, line: &SampleLine<'_>) {
    let usage = line.usage.0.iter().flatten();
    let usage = usage.filter_map(|(model, usage)| Some((model, usage.0.as_ref()?)));
    let mut tokens = BTreeMap::new();
    for (model, usage) in usage {
        tokens.insert(model.clone(), usage.tokens());
        if let (Some(cost), Some(own)) = (usage.total_cost.as_stated_cost(), index.conversation(0))
        {
            own.cost.add(cost);
        }
    }
    if !tokens.is_empty() {
        index.set_tokens_by_model(0, tokens);
    }
    // The evaluation states the end, and the agent claims nothing by it.
    if let Some(own) = index.conversation(0) {
        own.is_stated_by_other = true;
    }
    let word = |text: &str| truncate(text.to_owned(), TASK_MAX);
    if let Some(error) = &line.error.0 {
        let first = error.message.as_str().lines().next().unwrap_or_default();
        index.set_status(0, Status::Failed, Some(&word(first)));
    } else if let Some(limit) = &line.limit.0 {
        index.set_status(0, Status::Failed, Some(&word(&format!("{} limit", limit.kind.as_str()))));
    } else {
        let scores = line.scores.0.iter().flatten().filter_map(|(name, score)| {
            let value = value_text(score.0.as_ref()?.value?);
            Some(format!("{name} {value}"))
        });
        let scores = word(&scores.collect::<Vec<_>>().join(", "));
        index.set_status(
            0,
            Status::Completed,
            Some(&scores).filter(|scores| !scores.is_empty()).map(String::as_str),
        );
    }
}

/// Returns the turns of a line. `is_said` tells that the assistant said the completion.
fn turns<'a>(line: &'a SampleLine<'_>, is_said: bool) -> Vec<Turn<'a>> {
    let turn = || Turn { at_ms: parse_millis(line.at.as_str()), ..Turn::default() };
    let program = || Turn { role: Role::System, ..turn() };
    let (message, call) = (line.message.0.as_ref(), line.call.0.as_ref());
    match line.kind.as_str() {
        "message" => {
            message.map(|message| message_turn(line, message, call, turn())).into_iter().collect()
        }
        "call" => {
            let Some(call) = call else { return Vec::new() };
            let began = parse_millis(call.timestamp.as_str());
            let made = Turn {
                role: Role::Assistant,
                at_ms: began,
                calls: vec![call_part(call)],
                ..turn()
            };
            let ended = (!call.pending.is_set()).then(|| {
                let text = call.result.map(content_text).unwrap_or_default();
                Turn { results: vec![result(&call.id, text, None, Some(call))], ..program() }
            });
            [made].into_iter().chain(ended).collect()
        }
        "end" if !is_said && !line.completion.as_str().trim().is_empty() => {
            let text = line.completion.as_str().into();
            vec![Turn { text, event: TurnEvent::Submission, ..program() }]
        }
        "sample" | "end" => vec![program()],
        _ => Vec::new(),
    }
}

fn message_turn<'a>(
    line: &'a SampleLine<'_>,
    message: &'a SampleMessage<'_>,
    call: Option<&'a SampleCall<'_>>,
    turn: Turn<'a>,
) -> Turn<'a> {
    let text = message.content.map(content_text).unwrap_or_default();
    match message.role.as_str() {
        "user" if line.request.is_set() => Turn { request: Some(text.clone()), text, ..turn },
        "assistant" => {
            let blocks =
                message.content.and_then(|content| serde_json::from_str(content.get()).ok());
            let blocks: MessageBlocks<'_> = blocks.unwrap_or_default();
            Turn {
                role: Role::Assistant,
                text: blocks.text().into_owned().into(),
                thinking: blocks.thinking().into_owned().into(),
                calls: message
                    .tool_calls
                    .0
                    .iter()
                    .filter_map(|call| call.0.as_ref())
                    .map(call_part)
                    .collect(),
                ..turn
            }
        }
        "tool" => {
            let results = match call.is_some_and(|call| call.pending.is_set()) {
                true => Vec::new(),
                false => {
                    let mut result =
                        result(&message.tool_call_id, text, message.error.0.as_ref(), call);
                    if result.call.is_empty() {
                        result.tool = message.function.as_str();
                    }
                    vec![result]
                }
            };
            Turn { role: Role::System, results, ..turn }
        }
        _ => Turn { role: Role::System, text, event: TurnEvent::ProgramText, ..turn },
    }
}

fn call_part<'a>(call: &'a SampleCall<'_>) -> CallPart<'a> {
    CallPart {
        id: call.id.as_str().into(),
        name: call.function.as_str().into(),
        arguments: call.arguments.map_or(Arguments::None, Arguments::Json),
    }
}

fn result<'a>(
    id: &'a MaybeStr<'_>,
    text: Cow<'a, str>,
    error: Option<&'a SampleError<'_>>,
    call: Option<&'a SampleCall<'_>>,
) -> ResultPart<'a> {
    let error = error.or_else(|| call?.error.0.as_ref());
    let is_failed = error.is_some() || call.is_some_and(|call| call.failed.is_set());
    let is_refused = error.is_some_and(|error| error.kind.as_str() == "approval");
    let took = call.and_then(|call| {
        let from = parse_millis(call.timestamp.as_str())?;
        u64::try_from(parse_millis(call.completed.as_str())?.checked_sub(from)?).ok()
    });
    let message = || error.map(|error| error.message.as_str().into()).unwrap_or_default();
    ResultPart {
        call: id.as_str().into(),
        text: if text.is_empty() { message() } else { text },
        verdict: Verdict {
            outcome: match (is_refused, is_failed) {
                (true, _) => Outcome::NotRun,
                (_, true) => Outcome::Failed,
                _ => Outcome::Ok,
            },
            exit_code: None,
            duration_ms: took,
        },
        truncated: call.is_some_and(|call| call.truncated.is_some_and(|raw| raw.get() != "null")),
        refusal: error.filter(|_| is_refused).map(|error| error.message.as_str().into()),
        ..ResultPart::default()
    }
}
