//! Spans of OpenTelemetry, regrouped as one document: a list of records, each with the agent to
//! which its span belongs.
//!
//! A program writes a span when it ends, so children come before their parents, and the agent of a
//! call may come last. The whole file is read again when it has changed.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::super::lenient::{MaybeList, MaybeObject, MaybeStr, object};
use super::cached_transcript::TranscriptVersion;
use swarmletfs_base::error::Result;
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{File, Meta, copy_from, read_range};

/// Maximum number of bytes read from a file. A longer one is a torn document.
const FILE_MAX: usize = 64 << 20;
/// Maximum number of files whose regrouped spans are kept.
const CACHED_MAX: usize = 4;
/// Maximum number of spans between a call and its agent.
const DEPTH_MAX: usize = 1_000;

/// A request of the protocol, or an answer of Tempo. Fields of an unexpected type count as absent.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
struct TraceRequest<'a> {
    resource_spans: MaybeList<MaybeObject<ResourceSpans<'a>>>,
    batches: MaybeList<MaybeObject<ResourceSpans<'a>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
struct ResourceSpans<'a> {
    scope_spans: MaybeList<MaybeObject<ScopeSpans<'a>>>,
    /// The name of `scopeSpans` in older versions.
    instrumentation_library_spans: MaybeList<MaybeObject<ScopeSpans<'a>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ScopeSpans<'a> {
    #[serde(borrow)]
    spans: MaybeList<&'a RawValue>,
}

/// The part of a span that tells its place in its trace.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
struct SpanHead<'a> {
    trace_id: MaybeStr<'a>,
    span_id: MaybeStr<'a>,
    parent_span_id: MaybeStr<'a>,
    start_time_unix_nano: Option<&'a RawValue>,
    attributes: MaybeList<MaybeObject<SpanAttribute<'a>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct SpanAttribute<'a> {
    key: MaybeStr<'a>,
    value: MaybeObject<AttributeText<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
struct AttributeText<'a> {
    string_value: MaybeStr<'a>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SpanKind {
    Agent,
    Tool,
    Model,
    Other,
}

impl SpanKind {
    fn as_str(self) -> &'static str {
        match self {
            SpanKind::Agent => "agent",
            SpanKind::Tool => "tool",
            SpanKind::Model => "model",
            SpanKind::Other => "other",
        }
    }
}

struct PlacedSpan<'a> {
    trace: String,
    id: String,
    parent: String,
    start: u64,
    kind: SpanKind,
    /// The ID of the worker, if swarmletfs exported it.
    worker: Option<String>,
    raw: &'a RawValue,
}

/// The regrouped files of one store, the most recently read at the end.
#[derive(Default)]
pub(super) struct SpanGroups(Mutex<VecDeque<Regrouped>>);

/// A file in one version, and its records.
type Regrouped = (RelPath, TranscriptVersion, Arc<[u8]>);

/// A file of spans that reads as its records.
pub(super) struct SpanFile {
    file: Box<dyn File>,
    path: RelPath,
    groups: Arc<SpanGroups>,
}

impl SpanFile {
    pub(super) fn new(file: Box<dyn File>, path: RelPath, groups: Arc<SpanGroups>) -> SpanFile {
        SpanFile { file, path, groups }
    }
}

impl File for SpanFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let version = TranscriptVersion::new(self.file.meta()?);
        let mut held = self.groups.0.lock();
        let at = held.iter().position(|(path, of, _)| *path == self.path && *of == version);
        let known = at.and_then(|at| held.remove(at));
        drop(held);
        let bytes = match known {
            Some((.., bytes)) => bytes,
            None => regroup(&read_range(&*self.file, 0, FILE_MAX + 1)?).into(),
        };
        let read = copy_from(&bytes, offset, buffer);
        let mut held = self.groups.0.lock();
        held.retain(|(path, ..)| *path != self.path);
        held.push_back((self.path.clone(), version, bytes));
        if held.len() > CACHED_MAX {
            held.pop_front();
        }
        Ok(read)
    }

    fn meta(&self) -> Result<Meta> {
        self.file.meta()
    }
}

/// Returns the records of the spans in a file. The list has no end if the file is too long.
fn regroup(bytes: &[u8]) -> Vec<u8> {
    let is_cut = bytes.len() > FILE_MAX;
    let spans = read_spans(bytes);
    let by_id: HashMap<&str, &PlacedSpan<'_>> =
        spans.iter().map(|span| (span.id.as_str(), span)).collect();
    let mut top_agents: HashMap<&str, Vec<&PlacedSpan<'_>>> = HashMap::new();
    for span in spans.iter().filter(|span| span.kind == SpanKind::Agent) {
        // Another agent may still come above one that has a parent.
        if span.parent.is_empty() {
            top_agents.entry(&span.trace).or_default().push(span);
        }
    }
    // The spans of each worker, and the worker that started it.
    let mut workers: BTreeMap<(u64, String), Vec<&PlacedSpan<'_>>> = BTreeMap::new();
    let mut parents: HashMap<String, String> = HashMap::new();
    for span in spans.iter().filter(|span| span.kind != SpanKind::Other) {
        let above = agent_above(span, &by_id);
        let only_top = top_agents.get(span.trace.as_str()).filter(|agents| agents.len() == 1);
        let only_top = only_top.and_then(|agents| agents.first().copied());
        let agent = match span.kind {
            SpanKind::Agent => Some(span),
            _ => above.or(only_top),
        };
        if span.kind == SpanKind::Agent
            && let Some(above) = above
        {
            parents.insert(worker_id(span), worker_id(above));
        }
        let (start, worker) = match agent {
            Some(agent) => (agent.start, worker_id(agent)),
            None => root_of(span, &by_id),
        };
        workers.entry((start, worker)).or_default().push(span);
    }
    let mut records = Vec::new();
    for ((_, worker), mut own) in workers {
        own.sort_by_key(|span| (span.kind != SpanKind::Agent, span.start));
        for span in own {
            let head = json!({"worker": worker, "parent": parents.get(&worker),
                "trace": span.trace, "kind": span.kind.as_str()});
            let head = head.to_string();
            let head = head.strip_suffix('}').unwrap_or(&head);
            records.push(format!("{head},\"span\":{}}}", span.raw.get()));
        }
    }
    let end = if is_cut { "" } else { "]" };
    format!("[{}{end}\n", records.join(",\n")).into_bytes()
}

/// Returns the spans of a file, each once: a span that was sent again counts as it was last.
fn read_spans(bytes: &[u8]) -> Vec<PlacedSpan<'_>> {
    let mut spans: Vec<PlacedSpan<'_>> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    let Ok(text) = std::str::from_utf8(bytes).or_else(|error| {
        // The rest of a file that is torn inside a character.
        std::str::from_utf8(bytes.get(..error.valid_up_to()).unwrap_or_default())
    }) else {
        return spans;
    };
    let requests = serde_json::Deserializer::from_str(text).into_iter::<&RawValue>();
    // What follows a torn request cannot be read.
    for request in requests.map_while(|request| request.ok()) {
        let request: TraceRequest<'_> = object(request.get()).unwrap_or_default();
        let resources = request.resource_spans.0.into_iter().chain(request.batches.0);
        let scopes = resources.filter_map(|resource| resource.0).flat_map(|resource| {
            resource.scope_spans.0.into_iter().chain(resource.instrumentation_library_spans.0)
        });
        for raw in scopes.filter_map(|scope| scope.0).flat_map(|scope| scope.spans.0) {
            let Some(span) = placed(raw) else { continue };
            match places.get(&span.id).and_then(|at| spans.get_mut(*at)) {
                Some(known) => *known = span,
                None => {
                    places.insert(span.id.clone(), spans.len());
                    spans.push(span);
                }
            }
        }
    }
    spans
}

fn placed(raw: &RawValue) -> Option<PlacedSpan<'_>> {
    let head = object::<SpanHead<'_>>(raw.get())?;
    let id = head.span_id.non_empty()?;
    let attribute = |name: &str| {
        let mut all = head.attributes.0.iter().filter_map(|attribute| attribute.0.as_ref());
        let found = all.find(|attribute| attribute.key.as_str() == name)?;
        Some(found.value.0.as_ref()?.string_value.as_str().to_owned())
    };
    let operation = attribute("gen_ai.operation.name").unwrap_or_default();
    let inference = attribute("openinference.span.kind").unwrap_or_default();
    let loop_kind = attribute("traceloop.span.kind").unwrap_or_default();
    let is_one_of = |words: [&str; 3]| {
        [&operation, &inference, &loop_kind].into_iter().zip(words).any(|(word, kind)| word == kind)
    };
    let kind = match operation.as_str() {
        _ if is_one_of(["invoke_agent", "AGENT", "agent"]) => SpanKind::Agent,
        _ if is_one_of(["execute_tool", "TOOL", "tool"]) => SpanKind::Tool,
        "chat" | "text_completion" | "generate_content" | "call_llm" => SpanKind::Model,
        _ if inference == "LLM" || attribute("gen_ai.response.model").is_some() => SpanKind::Model,
        _ if attribute("ai.toolCall.name").is_some() => SpanKind::Tool,
        _ => SpanKind::Other,
    };
    let is_exported = attribute("swarmletfs.source").is_some();
    Some(PlacedSpan {
        trace: head.trace_id.as_str().to_lowercase(),
        parent: head.parent_span_id.as_str().to_lowercase(),
        id: id.to_lowercase(),
        start: head.start_time_unix_nano.and_then(nanos).unwrap_or_default(),
        worker: if is_exported { attribute("gen_ai.agent.id") } else { None },
        kind,
        raw,
    })
}

/// Parses a number of nanoseconds, as text or as a number.
fn nanos(number: &RawValue) -> Option<u64> {
    number.get().trim_matches('"').parse().ok()
}

fn worker_id(agent: &PlacedSpan<'_>) -> String {
    agent.worker.clone().unwrap_or_else(|| agent.id.clone())
}

/// Returns the nearest agent above a span, as far as the file has the spans between.
fn agent_above<'s, 'a>(
    span: &PlacedSpan<'a>,
    by_id: &HashMap<&str, &'s PlacedSpan<'a>>,
) -> Option<&'s PlacedSpan<'a>> {
    let mut parent = by_id.get(span.parent.as_str()).copied();
    for _ in 0..DEPTH_MAX {
        let above = parent?;
        if above.kind == SpanKind::Agent {
            return Some(above);
        }
        parent = by_id.get(above.parent.as_str()).copied();
    }
    None
}

/// Returns the start and the ID of the span at the root of a trace without an agent.
fn root_of(span: &PlacedSpan<'_>, by_id: &HashMap<&str, &PlacedSpan<'_>>) -> (u64, String) {
    let (mut start, mut id, mut parent) = (span.start, &span.id, &span.parent);
    for _ in 0..DEPTH_MAX {
        let Some(above) = by_id.get(parent.as_str()) else { break };
        (start, id, parent) = (above.start, &above.id, &above.parent);
    }
    match parent.is_empty() {
        true => (start, id.clone()),
        // The root is not there yet; all spans of the trace have it.
        false => (0, span.trace.clone()),
    }
}
