//! A worker with all that its record holds, for the formats of other programs.
//!
//! A format takes what it can hold. The rest is in its own fields under the name `swarmletfs`, from
//! which the same calls, outcomes and texts can be read again.

pub mod atif;
mod otlp;
#[cfg(feature = "parquet")]
mod parquet;
mod redaction;
mod store;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value, json};

pub use self::otlp::otlp;
#[cfg(feature = "parquet")]
pub use self::parquet::ParquetTables;
pub use self::redaction::Redaction;
pub use self::store::{StoreFile, store};
use super::json::IndexRow;
use super::thread;
use swarmletfs_base::model::{Outcome, Output, Record, Tokens, ToolCall};

/// Size of a task from which on the record may hold its beginning only, in bytes.
const CUT_TASK_MIN: usize = 8_000;

/// A worker with its messages and calls, as values that a redaction can change.
#[derive(Debug, Clone, Serialize)]
pub struct ExportedWorker {
    pub id: String,
    /// The name of the format of its record.
    pub source: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    pub title: String,
    pub task: String,
    pub status: &'static str,
    pub outcome: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    #[serde(skip)]
    pub tokens: Option<Tokens>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub final_words: Option<String>,
    /// The ID of the worker at the root of its family.
    #[serde(skip)]
    pub root: String,
    #[serde(skip)]
    pub steps: Vec<ExportedStep>,
}

/// A message with the calls that it makes, or calls that no message makes.
#[derive(Debug, Clone)]
pub struct ExportedStep {
    pub at: Option<Timestamp>,
    /// `user`, `assistant` or `system`.
    pub role: String,
    pub model: String,
    pub text: String,
    /// The words of the person in the text, if the program added others.
    pub request: Option<String>,
    pub thinking: String,
    pub calls: Vec<ExportedCall>,
}

#[derive(Debug, Clone)]
pub struct ExportedCall {
    pub seq: u64,
    pub tool: String,
    pub at: Option<Timestamp>,
    pub arguments: Value,
    pub outcome: Outcome,
    pub exit_code: Option<i64>,
    pub duration_ms: Option<u64>,
    /// True if the work that it started has not ended as far as the record shows.
    pub is_open: bool,
    /// `None` if no result is recorded or can be read.
    pub output: Option<String>,
    /// True if the end of the output is left out.
    pub is_cut: bool,
}

impl ExportedCall {
    fn id(&self) -> String {
        format!("call-{}", self.seq)
    }

    fn has_result(&self) -> bool {
        self.outcome != Outcome::Unknown || self.output.is_some()
    }
}

impl ExportedWorker {
    /// Collects the facts about a worker in its record and in `thread`, which is thread.jsonl.
    /// `output` reads the output of a call, and says whether it is cut.
    pub fn new(
        row: &IndexRow,
        record: &Record,
        thread: &[u8],
        output: &mut dyn FnMut(&ToolCall) -> Option<(String, bool)>,
    ) -> ExportedWorker {
        let Record { worker, trace, .. } = record;
        let (messages, others) = thread::read(thread, &trace.calls);
        let mut steps: Vec<ExportedStep> = messages
            .into_iter()
            .map(|message| ExportedStep {
                at: message.at,
                // An error of the API stands in the name of the assistant, who did not say it.
                role: match worker.error.as_deref() == Some(message.text.trim()) {
                    true => "system".into(),
                    false => message.role,
                },
                model: message.model,
                text: message.text,
                request: None,
                thinking: message.thinking,
                calls: message
                    .calls
                    .into_iter()
                    .filter_map(|made| Some(exported(made.call?, made.arguments, output)))
                    .collect(),
            })
            .collect();
        steps.extend(others.into_iter().map(|call| ExportedStep {
            at: call.at,
            role: "assistant".into(),
            model: String::new(),
            text: String::new(),
            request: None,
            thinking: String::new(),
            calls: vec![exported(call, None, output)],
        }));
        let task = trace.task.clone().unwrap_or_else(|| worker.task.clone());
        mark_task(&mut steps, &task);
        add_final_words(&mut steps, trace.final_words.as_deref());
        let text = |text: &Option<_>| text.as_ref().map(ToString::to_string);
        ExportedWorker {
            id: row.id.clone(),
            root: row.id.clone(),
            source: row.format.to_owned(),
            parent: text(&row.parent_id),
            run: text(&row.run_id),
            owner: text(&row.owner_id),
            kind: text(&row.task_type),
            title: row.title.clone(),
            task,
            status: row.status,
            outcome: row.outcome,
            error: worker.error.clone(),
            model: text(&row.model),
            cwd: text(&row.cwd),
            branch: text(&row.branch),
            started_at: worker.started_at.timestamp(),
            finished_at: worker.finished_at.timestamp(),
            tokens: trace.tokens,
            cost_usd: trace.cost.as_ref().map(|cost| cost.total.dollars()),
            final_words: trace.final_words.clone(),
            steps,
        }
    }

    pub fn calls(&self) -> impl Iterator<Item = &ExportedCall> {
        self.steps.iter().flat_map(|step| &step.calls)
    }

    /// Returns true if the last text of the worker is not its end.
    fn has_no_final_words(&self) -> bool {
        let mut texts = self.steps.iter().filter(|step| step.role == "assistant");
        self.final_words.is_none() && texts.any(|step| !step.text.trim().is_empty())
    }

    /// Calls `change` with every text of the worker.
    fn for_each_text(&mut self, change: &mut dyn FnMut(&mut String)) {
        let optional = [
            &mut self.parent,
            &mut self.run,
            &mut self.owner,
            &mut self.kind,
            &mut self.error,
            &mut self.model,
            &mut self.cwd,
            &mut self.branch,
            &mut self.final_words,
        ];
        optional.into_iter().flatten().for_each(&mut *change);
        [&mut self.id, &mut self.root, &mut self.title, &mut self.task]
            .into_iter()
            .for_each(&mut *change);
        for step in &mut self.steps {
            [&mut step.text, &mut step.thinking, &mut step.model]
                .into_iter()
                .for_each(&mut *change);
            step.request.iter_mut().for_each(&mut *change);
            for call in &mut step.calls {
                change(&mut call.tool);
                call.output.iter_mut().for_each(&mut *change);
                change_value(&mut call.arguments, change);
            }
        }
    }

    /// Returns the worker as JSON lines: itself, then its messages and calls in order.
    pub fn lines(&self) -> Vec<Value> {
        let mut own = json!(self);
        if let Some(fields) = own.as_object_mut() {
            fields.insert("type".into(), "worker".into());
            fields.insert("tokens".into(), json!(self.tokens.map(super::json::TokenCounts::from)));
        }
        let mut lines = vec![own];
        for step in &self.steps {
            if !step.text.is_empty() || !step.thinking.is_empty() {
                lines.push(json!({"type": "message", "worker": self.id, "role": step.role,
                    "time": step.at, "model": step.model, "text": step.text,
                    "thinking": step.thinking}));
            }
            for call in &step.calls {
                lines.push(json!({"type": "call", "worker": self.id, "seq": call.seq,
                    "tool": call.tool, "time": call.at, "arguments": call.arguments,
                    "outcome": call.outcome.as_str(), "exit_code": call.exit_code,
                    "duration_ms": call.duration_ms, "open": call.is_open,
                    "output": call.output, "output_is_cut": call.is_cut}));
            }
        }
        lines
    }
}

fn change_value(value: &mut Value, change: &mut dyn FnMut(&mut String)) {
    match value {
        Value::String(text) => change(text),
        Value::Array(items) => items.iter_mut().for_each(|item| change_value(item, change)),
        Value::Object(fields) => {
            // Names can hold paths, too.
            let renamed = std::mem::take(fields).into_iter().map(|(mut name, mut value)| {
                change(&mut name);
                change_value(&mut value, change);
                (name, value)
            });
            *fields = renamed.collect();
        }
        _ => {}
    }
}

fn exported(
    call: &ToolCall,
    arguments: Option<Value>,
    output: &mut dyn FnMut(&ToolCall) -> Option<(String, bool)>,
) -> ExportedCall {
    let input = || call.input.clone().map(Value::String).unwrap_or_default();
    let is_recorded = !matches!(call.output, Output::Pending | Output::Unrecorded);
    let output = is_recorded.then(|| output(call)).flatten();
    let is_cut = output.as_ref().is_some_and(|(_, is_cut)| *is_cut);
    ExportedCall {
        seq: call.seq,
        tool: call.tool.clone(),
        at: call.at,
        arguments: arguments.unwrap_or_else(input),
        outcome: call.outcome,
        exit_code: call.exit_code,
        duration_ms: call.duration_ms,
        is_open: call.is_open,
        output: output.map(|(text, _)| text),
        is_cut,
    }
}

/// Marks the task in the message that holds it. Messages before it that look like a person's are
/// the program's.
fn mark_task(steps: &mut [ExportedStep], task: &str) {
    let holds = |step: &ExportedStep| step.role == "user" && step.text.contains(task);
    let Some(at) = steps.iter().position(holds).filter(|_| !task.is_empty()) else { return };
    for step in steps.iter_mut().take(at).filter(|step| step.role == "user") {
        step.role = "system".into();
    }
    let Some(step) = steps.get_mut(at) else { return };
    if step.text.trim() == task {
        task.clone_into(&mut step.text);
    } else if task.len() < CUT_TASK_MIN || !step.text.trim().starts_with(task) {
        step.request = Some(task.to_owned());
    }
}

/// Adds the final words as a message, if they are in a call, such as one that hands in the work.
fn add_final_words(steps: &mut Vec<ExportedStep>, words: Option<&str>) {
    let said = steps.iter().rfind(|step| step.role == "assistant" && !step.text.trim().is_empty());
    let is_said = |words: &&str| said.is_some_and(|step| step.text.trim().starts_with(words));
    let Some(words) = words.filter(|words| !is_said(words)) else { return };
    steps.push(ExportedStep {
        at: steps.last().and_then(|step| step.at),
        role: "assistant".into(),
        model: String::new(),
        text: words.to_owned(),
        request: None,
        thinking: String::new(),
        calls: Vec::new(),
    });
}

/// Returns arguments as an object, which some formats demand.
fn object(arguments: &Value) -> Map<String, Value> {
    match arguments {
        Value::Object(fields) => fields.clone(),
        Value::Null => Map::new(),
        other => Map::from_iter([("input".to_owned(), other.clone())]),
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;
    use proptest::strategy::ValueTree;

    use super::*;
    use crate::scale::cases;
    use swarmletfs_base::deadline::Deadline;
    use swarmletfs_base::model::Worker;
    use swarmletfs_base::name::RelPath;
    use swarmletfs_base::store::{Memory, read_range};
    use swarmletfs_trace::{Atif, Format, Otlp, RecordSource, Swarmlet};

    /// A call as it is read again: tool, outcome, exit code and output.
    type SeenCall = (String, Outcome, Option<i64>, String);

    fn text() -> impl Strategy<Value = String> {
        prop_oneof!["[a-z \"\\\\\n]{1,20}", Just("漢\u{202e}\u{7f}".to_owned())]
    }

    fn call() -> impl Strategy<Value = ExportedCall> {
        let outcomes = [Outcome::Ok, Outcome::Failed, Outcome::NotRun, Outcome::Unknown];
        let arguments = prop_oneof![
            text().prop_map(|text| json!({"command": text})),
            Just(json!({"path": "a", "edits": [{"old": 1}]})),
            Just(json!({})),
        ];
        let outcome = proptest::sample::select(outcomes.to_vec());
        ("[a-zA-Z_]{1,9}", outcome, option::of(1..200_i64), text(), arguments).prop_map(
            |(tool, outcome, code, output, arguments)| ExportedCall {
                seq: 0,
                tool,
                at: None,
                arguments,
                outcome,
                // A format of our own has a code for a failure only.
                exit_code: code.filter(|_| outcome == Outcome::Failed),
                duration_ms: None,
                is_open: false,
                output: Some(output),
                is_cut: false,
            },
        )
    }

    pub(super) fn worker() -> impl Strategy<Value = ExportedWorker> {
        let roles = proptest::sample::select(vec!["user", "assistant", "system"]);
        let step = (roles, text(), vec(call(), 0..4));
        (vec(step, 1..12), text()).prop_map(|(steps, task)| {
            let mut seq = 0;
            let steps = steps.into_iter().map(|(role, text, mut calls)| {
                calls.retain(|_| role == "assistant");
                for call in &mut calls {
                    seq += 1;
                    call.seq = seq;
                }
                ExportedStep {
                    at: None,
                    role: role.into(),
                    model: String::new(),
                    text,
                    request: None,
                    thinking: String::new(),
                    calls,
                }
            });
            ExportedWorker {
                id: "w1".into(),
                root: "lead".into(),
                source: "lab".into(),
                parent: Some("lead".into()),
                run: Some("run 1".into()),
                owner: None,
                kind: None,
                title: "A title".into(),
                task,
                status: "failed",
                outcome: Some("failed"),
                error: None,
                model: Some("lab-1".into()),
                cwd: Some("/shop".into()),
                branch: None,
                started_at: None,
                finished_at: None,
                tokens: Some(Tokens { input: 90, output: 20, cache_read: 10, ..Tokens::default() }),
                cost_usd: Some(0.25),
                final_words: None,
                steps: steps.collect(),
            }
        })
    }

    fn read(format: &dyn Format, store: &Memory) -> (Worker, Record, Vec<SeenCall>) {
        let path = format.find_workers(store).unwrap().folders.pop().unwrap();
        let folder = format.enter(store, &path).unwrap();
        let worker = format.read_worker(&*folder, &path, None);
        let source = RecordSource { folder: &*folder, outputs: None };
        let record = format.read_record(source, &worker, Deadline::never()).unwrap();
        let calls = record.trace.calls.iter().map(|call| {
            let bytes = read_range(&*folder.open(&call.path).unwrap(), 0, 1 << 20).unwrap();
            let output = String::from_utf8(bytes).unwrap();
            (call.tool.clone(), call.outcome, call.exit_code, output)
        });
        (worker, record.clone(), calls.collect())
    }

    fn expected(worker: &ExportedWorker) -> Vec<SeenCall> {
        let calls = worker.calls().map(|call| {
            let output = call.output.clone().unwrap_or_default();
            (call.tool.clone(), call.outcome, call.exit_code, output)
        });
        calls.collect()
    }

    proptest! {
        #![proptest_config(cases(300))]

        /// Promise: An exported trajectory is read with the same calls, outcomes and texts.
        #[test]
        fn trajectory_is_read_as_it_was_exported(worker in worker()) {
            let store = Memory::new();
            store.write(&RelPath::constant("w1.json"), atif::atif(&worker).to_string());
            let (seen, record, calls) = read(&Atif::transcripts(), &store);
            prop_assert_eq!(calls, expected(&worker));
            prop_assert_eq!(seen.status.as_str(), "failed");
            prop_assert_eq!(record.trace.final_words, None);
            prop_assert_eq!(seen.id.to_text(), "w1");
            prop_assert_eq!(seen.parent.as_deref(), Some("lead"));
            prop_assert_eq!(seen.run.as_deref(), Some("run 1"));
            prop_assert_eq!(record.trace.tokens, worker.tokens);
            prop_assert_eq!(record.trace.cost.map(|cost| cost.total.dollars()), worker.cost_usd);
        }

        /// Promise: An exported store is read with the same calls, outcomes and texts.
        #[test]
        fn store_is_read_as_it_was_exported(worker in worker()) {
            let memory = Memory::new();
            for StoreFile { path, content } in store(&worker) {
                let path = path.iter().fold(RelPath::root(), |path, name| path.join(name));
                memory.write(&path, content);
            }
            let (seen, _, calls) = read(&Swarmlet::default(), &memory);
            prop_assert_eq!(calls.len(), expected(&worker).len());
            for (seen, wanted) in calls.iter().zip(expected(&worker)) {
                prop_assert_eq!((&seen.1, seen.2, &seen.3), (&wanted.1, wanted.2, &wanted.3));
            }
            prop_assert_eq!(seen.status.as_str(), "failed");
            prop_assert_eq!((seen.parent.as_deref(), seen.run.as_deref()), (Some("lead"), Some("run 1")));
        }

        /// Promise: Exported spans are read with the same calls, outcomes and outputs.
        #[test]
        fn spans_are_read_as_they_were_exported(worker in worker()) {
            let store = Memory::new();
            store.write(&RelPath::constant("t.jsonl"), otlp(&worker).to_string() + "\n");
            let (seen, record, calls) = read(&Otlp::transcripts(), &store);
            prop_assert_eq!(calls, expected(&worker));
            prop_assert_eq!(seen.status.as_str(), "failed");
            prop_assert_eq!(record.trace.final_words, None);
            prop_assert_eq!(seen.id.to_text(), "w1");
            prop_assert_eq!(seen.parent.as_deref(), Some("lead"));
            prop_assert_eq!(seen.run.as_deref(), Some("run 1"));
            prop_assert_eq!(record.trace.tokens, worker.tokens);
        }

        #[test]
        fn spans_are_parsed_and_belong_to_their_worker(worker in worker()) {
            let request = otlp(&worker);
            let spans = request["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap();
            prop_assert_eq!(spans.len(), worker.calls().count() + 1);
            let own = spans.last().unwrap();
            for span in &spans[..spans.len() - 1] {
                prop_assert_eq!(&span["parentSpanId"], &own["spanId"]);
                prop_assert_eq!(&span["traceId"], &own["traceId"]);
            }
            prop_assert_eq!(own["traceId"].as_str().unwrap().len(), 32);
        }
    }

    /// Promise: A redacted export has no name of a home folder.
    #[test]
    fn redaction_leaves_no_name_in_any_text() {
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let mut worker = worker().new_tree(&mut runner).unwrap().current();
        let secret = "/Users/annabel/x by Annabel <annabel@lab.example> from 10.1.2.3";
        worker.for_each_text(&mut |text| text.push_str(secret));
        worker.id = "w1".into();
        let mut redaction = Redaction::default();
        redaction.learn(&mut worker);
        redaction.redact(&mut worker);
        let all = [atif::atif(&worker), otlp(&worker), Value::from(worker.lines())];
        for text in all.map(|value| value.to_string().to_lowercase()) {
            for secret in ["annabel", "lab.example", "10.1.2.3"] {
                assert!(!text.contains(secret), "{secret} in {text}");
            }
        }
        assert!(redaction.counts()["user"] > 0);
    }
}
