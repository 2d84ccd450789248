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
use swarmletfs_base::split::Split;
use swarmletfs_base::store::{File, Meta, copy_from, read_range};

/// Maximum number of bytes read from a file. A longer one is a torn document.
const FILE_MAX: usize = 64 << 20;
/// Maximum number of files whose regrouped spans are kept.
const CACHED_MAX: usize = 4;
/// Maximum number of bytes, beyond the length of a file, that are parsed to find the request
/// after a torn one.
const PARSED_AGAIN_MAX: usize = 64 << 20;
/// A record that stands for a part of the file that is no request. It counts as one that cannot be
/// read.
const LOST: &str = "null";

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
        let held = self.groups.0.lock();
        let known = held.iter().find(|(path, of, _)| *path == self.path && *of == version);
        let known = known.map(|(.., bytes)| bytes.clone());
        drop(held);
        let bytes = match known {
            Some(bytes) => bytes,
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

/// Returns the records of the spans in a file. The list has no end if the file is torn or too long.
fn regroup(bytes: &[u8]) -> Vec<u8> {
    let requests = read_requests(bytes);
    let spans = read_spans(&requests.texts);
    let places = places(&spans);
    let mut top_agents: HashMap<&str, Vec<&PlacedSpan<'_>>> = HashMap::new();
    for span in spans.iter().filter(|span| span.kind == SpanKind::Agent) {
        // Another agent may still come above one that has a parent.
        if span.parent.is_empty() {
            top_agents.entry(&span.trace).or_default().push(span);
        }
    }
    // An ID is unique in its trace only.
    let mut first_traces: HashMap<&str, &str> = HashMap::new();
    for span in &spans {
        first_traces.entry(&span.id).or_insert(&span.trace);
    }
    let worker_id = |span: &PlacedSpan<'_>| match &span.worker {
        Some(worker) => worker.clone(),
        None if first_traces.get(&*span.id) == Some(&&*span.trace) => span.id.clone(),
        None => format!("{}-{}", span.trace, span.id),
    };
    // The spans of each worker, and the worker that started it.
    let mut workers: BTreeMap<(u64, String), Vec<&PlacedSpan<'_>>> = BTreeMap::new();
    let mut parents: HashMap<String, String> = HashMap::new();
    for (span, place) in spans.iter().zip(places) {
        let above = place.agent.and_then(|at| spans.get(at));
        let root = place.root.and_then(|at| spans.get(at));
        let only_top = top_agents.get(span.trace.as_str()).filter(|agents| agents.len() == 1);
        let only_top = only_top.and_then(|agents| agents.first().copied());
        let agent = match span.kind {
            SpanKind::Other => continue,
            SpanKind::Agent => Some(span),
            SpanKind::Tool | SpanKind::Model => above.or(only_top),
        };
        if span.kind == SpanKind::Agent
            && let Some(above) = above
        {
            parents.insert(worker_id(span), worker_id(above));
        }
        let (start, worker) = match agent.or(root) {
            Some(top) => (top.start, worker_id(top)),
            // The root is not there yet; all spans of the trace have it.
            None => (0, span.trace.clone()),
        };
        workers.entry((start, worker)).or_default().push(span);
    }
    let mut records = vec![LOST.to_owned(); requests.lost];
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
    let end = if requests.is_torn || bytes.len() > FILE_MAX { "" } else { "]" };
    format!("[{}{end}\n", records.join(",\n")).into_bytes()
}

/// The spans above a span, as far as the file has them.
#[derive(Debug, Clone, Copy, Default)]
struct SpanPlace {
    /// The nearest agent.
    agent: Option<usize>,
    /// The span at the root of the trace, maybe the span itself.
    root: Option<usize>,
}

/// Returns the place of each span. Spans that are above each other have no root.
fn places(spans: &[PlacedSpan<'_>]) -> Vec<SpanPlace> {
    let numbers: HashMap<(&str, &str), usize> =
        spans.iter().enumerate().map(|(at, span)| ((&*span.trace, &*span.id), at)).collect();
    let above = |span: &PlacedSpan<'_>| numbers.get(&(&*span.trace, &*span.parent)).copied();
    let mut places: Vec<Option<SpanPlace>> = vec![None; spans.len()];
    for at in 0..spans.len() {
        let (mut path, mut next) = (Vec::new(), Some(at));
        while let Some(at) = next
            && let Some(place @ None) = places.get_mut(at)
        {
            *place = Some(SpanPlace::default());
            path.push(at);
            next = spans.get(at).and_then(above);
        }
        for at in path.into_iter().rev() {
            let Some(span) = spans.get(at) else { continue };
            let place = match above(span) {
                None => SpanPlace { agent: None, root: span.parent.is_empty().then_some(at) },
                Some(parent) => {
                    let known = places.get(parent).copied().flatten().unwrap_or_default();
                    let is_agent =
                        spans.get(parent).is_some_and(|span| span.kind == SpanKind::Agent);
                    SpanPlace { agent: if is_agent { Some(parent) } else { known.agent }, ..known }
                }
            };
            if let Some(own) = places.get_mut(at) {
                *own = Some(place);
            }
        }
    }
    places.into_iter().map(Option::unwrap_or_default).collect()
}

/// Returns the spans of requests, each once: a span that was sent again counts as it was last.
fn read_spans<'a>(requests: &[&'a str]) -> Vec<PlacedSpan<'a>> {
    let mut spans: Vec<PlacedSpan<'_>> = Vec::new();
    let mut numbers: HashMap<(String, String), usize> = HashMap::new();
    for request in requests {
        let request: TraceRequest<'_> = object(request).unwrap_or_default();
        let resources = request.resource_spans.0.into_iter().chain(request.batches.0);
        let scopes = resources.filter_map(|resource| resource.0).flat_map(|resource| {
            resource.scope_spans.0.into_iter().chain(resource.instrumentation_library_spans.0)
        });
        for raw in scopes.filter_map(|scope| scope.0).flat_map(|scope| scope.spans.0) {
            let Some(span) = placed(raw) else { continue };
            let key = (span.trace.clone(), span.id.clone());
            match numbers.get(&key).and_then(|at| spans.get_mut(*at)) {
                Some(known) => *known = span,
                None => {
                    numbers.insert(key, spans.len());
                    spans.push(span);
                }
            }
        }
    }
    spans
}

/// The JSON texts of a file.
#[derive(Default)]
struct FileRequests<'a> {
    texts: Vec<&'a str>,
    /// Number of parts between them that are none.
    lost: usize,
    /// True if the file ends inside one.
    is_torn: bool,
}

/// Finds the JSON texts of a file. A killed program leaves a torn request, after which the next one
/// begins on a line of its own.
fn read_requests(bytes: &[u8]) -> FileRequests<'_> {
    let (mut found, mut rest, mut parsed) = (FileRequests::default(), bytes, 0);
    loop {
        let mut values = serde_json::Deserializer::from_slice(rest).into_iter::<&RawValue>();
        let error = loop {
            match values.next() {
                Some(Ok(request)) => found.texts.push(request.get()),
                Some(Err(error)) => break error,
                None => return found,
            }
        };
        let (_, begun) = rest.split_at_known(values.byte_offset().min(rest.len()));
        let begun = begun.trim_ascii_start();
        let Some(end) = memchr::memchr(b'\n', begun) else {
            found.is_torn = true;
            return found;
        };
        found.lost += 1;
        parsed += match error.is_eof() {
            true => begun.len(),
            false => memchr::memchr_iter(b'\n', rest).nth(error.line()).unwrap_or(rest.len()),
        };
        if parsed > PARSED_AGAIN_MAX + bytes.len() {
            return found;
        }
        (_, rest) = begun.split_at_known(end + 1);
    }
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
