//! Workers as spans of OpenTelemetry, in the JSON of its protocol, with the attributes of its
//! conventions for generative models.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{ExportedCall, ExportedWorker};
use swarmletfs_base::model::Outcome;

const KIND_INTERNAL: u8 = 1;
const STATUS_OK: u8 = 1;
const STATUS_ERROR: u8 = 2;
const TRACE_ID: usize = 32;
const SPAN_ID: usize = 16;

/// Returns a request with the spans of a worker: one for itself, and one for each of its calls.
/// Its family is the trace.
pub fn otlp(worker: &ExportedWorker) -> Value {
    let trace = hash(&worker.root, TRACE_ID);
    let own = hash(&worker.id, SPAN_ID);
    let times = || worker.calls().filter_map(|call| call.at);
    let begin = worker.started_at.or_else(|| times().min());
    let last = worker.steps.iter().filter_map(|step| step.at).chain(times()).max();
    let end = worker.finished_at.or(last).or(begin);
    let mut attributes = vec![
        text("gen_ai.operation.name", "invoke_agent"),
        text("gen_ai.agent.id", &worker.id),
        text("gen_ai.agent.name", worker.kind.as_deref().unwrap_or("agent")),
        text("swarmletfs.source", &worker.source),
        text("swarmletfs.status", worker.status),
        text("swarmletfs.title", &worker.title),
        text("gen_ai.input.messages", &messages(worker, true)),
        text("gen_ai.output.messages", &messages(worker, false)),
    ];
    for (name, value) in [
        ("gen_ai.conversation.id", &worker.run),
        ("gen_ai.request.model", &worker.model),
        ("swarmletfs.outcome", &worker.outcome.map(str::to_owned)),
        ("swarmletfs.parent", &worker.parent),
        ("swarmletfs.owner", &worker.owner),
        ("swarmletfs.cwd", &worker.cwd),
        ("swarmletfs.branch", &worker.branch),
        ("swarmletfs.error", &worker.error),
    ] {
        attributes.extend(value.as_deref().map(|value| text(name, value)));
    }
    attributes.extend(worker.has_no_final_words().then(|| flag("swarmletfs.no_final_words")));
    if let Some(tokens) = worker.tokens {
        attributes.extend([
            number("gen_ai.usage.input_tokens", tokens.context()),
            number("gen_ai.usage.output_tokens", tokens.output),
            number("gen_ai.usage.cache_read.input_tokens", tokens.cache_read),
        ]);
    }
    if let Some(cost) = worker.cost_usd {
        attributes.push(json!({"key": "swarmletfs.cost_usd", "value": {"doubleValue": cost}}));
    }
    let status = match worker.outcome {
        Some("ok") => json!({"code": STATUS_OK}),
        Some("failed") => json!({"code": STATUS_ERROR, "message": worker.error}),
        _ => json!({}),
    };
    let mut span = json!({
        "traceId": trace,
        "spanId": own,
        "name": format!("invoke_agent {}", worker.kind.as_deref().unwrap_or("agent")),
        "kind": KIND_INTERNAL,
        "startTimeUnixNano": nanos(begin),
        "endTimeUnixNano": nanos(end),
        "attributes": attributes,
        "status": status,
    });
    if let (Some(parent), Some(fields)) = (&worker.parent, span.as_object_mut()) {
        fields.insert("parentSpanId".into(), json!(hash(parent, SPAN_ID)));
    }
    let calls = worker.calls().map(|call| call_span(worker, call, &trace, &own, begin));
    let spans: Vec<Value> = calls.chain(std::iter::once(span)).collect();
    json!({"resourceSpans": [{
        "resource": {"attributes": [text("service.name", &worker.source)]},
        "scopeSpans": [{"scope": {"name": "swarmletfs"}, "spans": spans}],
    }]})
}

fn call_span(
    worker: &ExportedWorker,
    call: &ExportedCall,
    trace: &str,
    parent: &str,
    begin: Option<Timestamp>,
) -> Value {
    let has_result = call.has_result();
    let at = call.at.or(begin);
    let took = jiff::SignedDuration::from_millis(
        i64::try_from(call.duration_ms.unwrap_or_default()).unwrap_or(i64::MAX),
    );
    let end = at.and_then(|at| at.checked_add(took).ok()).filter(|_| !call.is_open && has_result);
    let mut attributes = vec![
        text("gen_ai.operation.name", "execute_tool"),
        text("gen_ai.tool.name", &call.tool),
        text("gen_ai.tool.call.id", &call.id()),
        text("gen_ai.tool.call.arguments", &call.arguments.to_string()),
        number("swarmletfs.seq", call.seq),
    ];
    attributes.extend(has_result.then(|| text("swarmletfs.outcome", call.outcome.as_str())));
    // The conventions have a result for a success only.
    let output = match call.outcome {
        Outcome::Ok => "gen_ai.tool.call.result",
        _ => "swarmletfs.output",
    };
    attributes.extend(call.output.as_deref().map(|value| text(output, value)));
    attributes.extend(
        call.exit_code.map(
            |code| json!({"key": "process.exit.code", "value": {"intValue": code.to_string()}}),
        ),
    );
    attributes.extend(call.is_open.then(|| flag("swarmletfs.open")));
    attributes.extend(call.is_cut.then(|| flag("swarmletfs.output_is_cut")));
    let status = match call.outcome {
        Outcome::Ok => json!({"code": STATUS_OK}),
        Outcome::Failed => {
            attributes.push(text("error.type", "tool_error"));
            json!({"code": STATUS_ERROR})
        }
        Outcome::Unknown | Outcome::NotRun => json!({}),
    };
    json!({
        "traceId": trace,
        "spanId": hash(&format!("{}\n{}", worker.id, call.seq), SPAN_ID),
        "parentSpanId": parent,
        "name": format!("execute_tool {}", call.tool),
        "kind": KIND_INTERNAL,
        "startTimeUnixNano": nanos(at),
        "endTimeUnixNano": nanos(end),
        "attributes": attributes,
        "status": status,
    })
}

/// Returns the messages to the agent, or its own, as JSON in a text.
fn messages(worker: &ExportedWorker, to_agent: bool) -> String {
    let steps = worker.steps.iter().filter(|step| (step.role == "assistant") != to_agent);
    let messages: Vec<Value> = steps
        .map(|step| {
            let mut parts = Vec::new();
            if !step.thinking.is_empty() {
                parts.push(json!({"type": "reasoning", "content": step.thinking}));
            }
            if !step.text.is_empty() {
                parts.push(json!({"type": "text", "content": step.text}));
            }
            parts.extend(step.calls.iter().map(|call| {
                json!({"type": "tool_call", "id": call.id(), "name": call.tool,
                    "arguments": call.arguments})
            }));
            json!({"role": step.role, "parts": parts, "time": step.at})
        })
        .collect();
    Value::Array(messages).to_string()
}

fn text(name: &str, value: &str) -> Value {
    json!({"key": name, "value": {"stringValue": value}})
}

fn number(name: &str, value: u64) -> Value {
    json!({"key": name, "value": {"intValue": value.to_string()}})
}

fn flag(name: &str) -> Value {
    json!({"key": name, "value": {"boolValue": true}})
}

fn nanos(at: Option<Timestamp>) -> String {
    at.map_or(0, Timestamp::as_nanosecond).max(0).to_string()
}

/// Returns the first `len` digits of a hash.
fn hash(text: &str, len: usize) -> String {
    let digits = blake3::hash(text.as_bytes()).to_hex();
    digits.chars().take(len).collect()
}
