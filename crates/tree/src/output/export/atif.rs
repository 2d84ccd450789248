//! Workers as trajectories of the Agent Trajectory Interchange Format.

use serde_json::{Map, Value, json};

use super::{ExportedCall, ExportedStep, ExportedWorker, object};
use swarmletfs_base::model::Outcome;

/// The version that most readers take.
const VERSION: &str = "ATIF-v1.7";
/// The name under which the facts are that the format cannot hold.
const OWN: &str = "swarmletfs";

/// Returns the trajectory of a worker.
pub fn atif(worker: &ExportedWorker) -> Value {
    let last = worker.steps.len();
    let steps = worker.steps.iter().zip(1..);
    let steps = steps.map(|(one, id)| step(one, id, id == last && worker.has_no_final_words()));
    let steps: Vec<Value> = steps.collect();
    let mut agent = json!({"name": worker.source, "version": "unknown"});
    let mut metrics = json!({"total_steps": steps.len()});
    if let (Some(model), Some(fields)) = (&worker.model, agent.as_object_mut()) {
        fields.insert("model_name".into(), json!(model));
    }
    if let Some(fields) = metrics.as_object_mut() {
        if let Some(tokens) = worker.tokens {
            fields.insert("total_prompt_tokens".into(), json!(tokens.context()));
            fields.insert("total_completion_tokens".into(), json!(tokens.output));
            fields.insert("total_cached_tokens".into(), json!(tokens.cache_read));
        }
        if let Some(cost) = worker.cost_usd {
            fields.insert("total_cost_usd".into(), json!(cost));
        }
    }
    let mut own = json!(worker);
    if let Some(fields) = own.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    let mut trajectory = json!({
        "schema_version": VERSION,
        "trajectory_id": worker.id,
        "agent": agent,
        "steps": steps,
        "final_metrics": metrics,
        "extra": {OWN: own},
    });
    if let (Some(run), Some(fields)) = (&worker.run, trajectory.as_object_mut()) {
        fields.insert("session_id".into(), json!(run));
    }
    trajectory
}

fn step(step: &ExportedStep, id: usize, has_no_final_words: bool) -> Value {
    let source = match step.role.as_str() {
        "assistant" => "agent",
        "user" => "user",
        _ => "system",
    };
    let mut fields = Map::new();
    fields.insert("step_id".into(), json!(id));
    if let Some(at) = step.at {
        fields.insert("timestamp".into(), json!(at));
    }
    fields.insert("source".into(), json!(source));
    fields.insert("message".into(), json!(step.text));
    let request = step.request.as_ref().map(|request| ("request".to_owned(), json!(request)));
    let end = has_no_final_words.then(|| ("no_final_words".to_owned(), json!(true)));
    let own: Map<_, _> = request.into_iter().chain(end).collect();
    if !own.is_empty() {
        fields.insert("extra".into(), json!({OWN: own}));
    }
    if source != "agent" {
        return Value::Object(fields);
    }
    for (name, text) in [("model_name", &step.model), ("reasoning_content", &step.thinking)] {
        if !text.is_empty() {
            fields.insert(name.into(), json!(text));
        }
    }
    if !step.calls.is_empty() {
        let calls: Vec<Value> = step.calls.iter().map(call).collect();
        fields.insert("tool_calls".into(), json!(calls));
        let results: Vec<Value> = step.calls.iter().filter_map(result).collect();
        if !results.is_empty() {
            fields.insert("observation".into(), json!({"results": results}));
        }
    }
    Value::Object(fields)
}

fn call(call: &ExportedCall) -> Value {
    json!({"tool_call_id": call.id(), "function_name": call.tool,
        "arguments": object(&call.arguments)})
}

/// Returns the result of a call, if it has an output or an outcome.
fn result(call: &ExportedCall) -> Option<Value> {
    let mut own = json!({"outcome": call.outcome.as_str()});
    if let Some(fields) = own.as_object_mut() {
        for (name, value) in [
            ("exit_code", json!(call.exit_code)),
            ("duration_ms", json!(call.duration_ms)),
            ("open", json!(call.is_open.then_some(true))),
            ("output_is_cut", json!(call.is_cut.then_some(true))),
        ] {
            if !value.is_null() {
                fields.insert(name.into(), value);
            }
        }
    }
    call.has_result().then(|| {
        json!({"source_call_id": call.id(), "content": call.output,
            "extra": {"tool_result_is_error": call.outcome == Outcome::Failed, OWN: own}})
    })
}
