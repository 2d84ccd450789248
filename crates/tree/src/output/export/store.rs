//! Workers as a worker artifact store.

use serde_json::{Map, Value, json};

use super::ExportedWorker;
use swarmletfs_base::model::Outcome;
use swarmletfs_base::name::{Name, to_file_name};

/// A file of a store, with its path from the root.
pub struct StoreFile {
    pub path: Vec<Name>,
    pub content: String,
}

/// Returns the files of a worker.
pub fn store(worker: &ExportedWorker) -> Vec<StoreFile> {
    let folder = [to_file_name("workers", &[]), to_file_name(&worker.id, &[])];
    let file = |names: &[&str], content: String| StoreFile {
        path: folder
            .iter()
            .cloned()
            .chain(names.iter().map(|name| to_file_name(name, &[])))
            .collect(),
        content,
    };
    let lines = |lines: Vec<Value>| lines.iter().map(|line| format!("{line}\n")).collect();
    let mut files = vec![
        file(&["metadata.json"], metadata(worker).to_string()),
        file(&["thread.jsonl"], lines(thread(worker))),
        file(&["metrics.jsonl"], lines(metrics(worker))),
    ];
    files.extend(worker.final_words.iter().map(|words| file(&["result.txt"], words.clone())));
    for call in worker.calls() {
        // A call has a file even if it has no output: the file is the call.
        let name = format!("{:03}_{}.txt", call.seq, to_file_name(&call.tool, &[]).to_text());
        files.push(file(&["tool_calls", &name], call.output.clone().unwrap_or_default()));
    }
    files
}

fn metadata(worker: &ExportedWorker) -> Value {
    let fields = [
        ("worker_id", Some(worker.id.clone())),
        ("owner_id", worker.owner.clone()),
        ("run_id", worker.run.clone()),
        ("parent_id", worker.parent.clone()),
        ("task", Some(worker.task.clone())),
        ("task_type", worker.kind.clone()),
        ("summary", Some(worker.title.clone())),
        ("status", Some(worker.status.to_owned())),
        ("error", worker.error.clone()),
        ("model", worker.model.clone()),
        ("cwd", worker.cwd.clone()),
        ("started_at", worker.started_at.map(|at| at.to_string())),
        ("finished_at", worker.finished_at.map(|at| at.to_string())),
    ];
    let fields =
        fields.into_iter().filter_map(|(name, text)| Some((name.to_owned(), text?.into())));
    Value::Object(fields.collect::<Map<String, Value>>())
}

fn thread(worker: &ExportedWorker) -> Vec<Value> {
    let line = |step: &super::ExportedStep| {
        let calls: Vec<Value> = step
            .calls
            .iter()
            .map(|call| {
                json!({"id": call.id(), "name": call.tool,
                    "args": call.arguments})
            })
            .collect();
        let mut line = json!({"role": step.role, "content": step.text});
        if let Some(fields) = line.as_object_mut() {
            fields.extend(step.at.map(|at| ("timestamp".to_owned(), json!(at))));
            for (name, text) in [("model", &step.model), ("thinking", &step.thinking)] {
                if !text.is_empty() {
                    fields.insert(name.to_owned(), json!(text));
                }
            }
            if !calls.is_empty() {
                fields.insert("tool_calls".into(), calls.into());
            }
        }
        line
    };
    worker.steps.iter().map(line).collect()
}

fn metrics(worker: &ExportedWorker) -> Vec<Value> {
    let mut lines = Vec::new();
    for call in worker.calls() {
        let mut start = json!({"event": "call_start", "seq": call.seq, "tool": call.tool,
            "input": call.arguments});
        if let Some(fields) = start.as_object_mut() {
            fields.extend(call.at.map(|at| ("start_ts".to_owned(), json!(at))));
        }
        lines.push(start);
        let success = match call.outcome {
            Outcome::Ok => Some(true),
            Outcome::Failed | Outcome::NotRun => Some(false),
            Outcome::Unknown => None,
        };
        // Without an end, the outcome is unknown.
        let Some(success) = success else { continue };
        let mut end = json!({"event": "tool_call", "seq": call.seq, "tool": call.tool,
            "success": success});
        if let Some(fields) = end.as_object_mut() {
            fields.extend(call.exit_code.map(|code| ("exit_code".to_owned(), json!(code))));
            fields.extend(call.duration_ms.map(|took| ("duration_ms".to_owned(), json!(took))));
            if call.outcome == Outcome::NotRun {
                fields.insert("not_run".into(), true.into());
            }
            if call.is_cut {
                fields.insert("truncated".into(), true.into());
            }
        }
        lines.push(end);
    }
    lines
}
