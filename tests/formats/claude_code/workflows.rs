//! Tests of workflows: their agents, the journal of a run, and the state in which it ended.
//!
//! The records are shaped like those of Claude Code 2.1.331.

use super::*;

const RUN: &str = "wf_1";

/// A session that started a workflow, and the records of its run.
struct Workflow {
    store: std::sync::Arc<Memory>,
    session: Transcript,
}

impl Workflow {
    /// Creates a session whose call `t1` started the task `w1`.
    fn started() -> Workflow {
        let mut session = begun();
        session.call("t1", "Workflow", json!({"script": "agent('Look.')"}));
        session.line(json!({"type": "user", "toolUseResult": {"status": "async_launched",
            "taskId": "w1", "taskType": "local_workflow", "runId": RUN}, "message": {"content": [
            {"type": "tool_result", "tool_use_id": "t1", "is_error": false,
             "content": "Workflow launched in background. Task ID: w1\nRun ID: wf_1"}]}}));
        session.says("It runs.");
        Workflow { store: store(), session }
    }

    /// Writes an agent of the phase `Look` with this transcript.
    fn agent(
        &self,
        id: &str,
        records: impl FnOnce(&mut Transcript) -> &mut Transcript,
    ) -> &Workflow {
        let mut transcript = Transcript::of_agent("s", id);
        transcript.user(format!("[Workflow harness — computed task] Text:\n  Look at {id}."));
        records(&mut transcript);
        let file = |end: &str| format!("{PROJECT}/s/subagents/workflows/{RUN}/agent-{id}{end}");
        self.store.write(&path(file(".jsonl")), transcript.bytes());
        let metadata = json!({"agentType": "workflow-subagent", "description": id,
            "workflowPhase": "Look", "inWorkflowRun": true});
        self.store.write(&path(file(".meta.json")), metadata.to_string());
        self
    }

    fn journal(&self, lines: &[Value]) -> &Workflow {
        let file = path(format!("{PROJECT}/s/subagents/workflows/{RUN}/journal.jsonl"));
        let lines = lines.iter().map(|line| format!("{line}\n"));
        self.store.write(&file, lines.collect::<String>());
        self
    }

    /// Writes the state of the run, with the members in the order of the program.
    fn state(&self, status: &str, error: Option<&str>, agents: Value) -> &Workflow {
        let error = error.map(|error| format!(r#","error":{}"#, json!(error)));
        let state = format!(
            r#"{{"runId":"{RUN}","taskId":"w1","script":"x","result":null{},"status":"{status}","workflowProgress":{agents}}}"#,
            error.unwrap_or_default(),
        );
        self.store.write(&path(format!("{PROJECT}/s/workflows/{RUN}.json")), state);
        self
    }

    fn seen(&self) -> Checked {
        put(&self.store, "s", &self.session);
        let seen = read_once(&self.store);
        for worker in seen.workers() {
            let (index, row) = (seen.index(&worker), seen.row(&worker));
            assert_eq!((&index["status"], &index["tags"]), (&row["status"], &row["tags"]));
        }
        seen
    }
}

fn journaled(kind: &str, agent: &str) -> Value {
    json!({"type": kind, "key": "v2:1", "agentId": agent, "label": agent, "phase": "Look"})
}

fn returned(agent: &str, result: Value) -> Value {
    json!({"type": "result", "key": "v2:1", "agentId": agent, "result": result})
}

/// Returns the result that ends the turn of an agent with a schema. No answer follows.
fn returns_structure(agent: &mut Transcript) -> &mut Transcript {
    agent.call("a1", "StructuredOutput", json!({"free": 5}));
    agent.result("a1", json!({"content": "Structured output provided successfully"}))
}

/// Promise: The agents of a workflow are workers of its session, with the phase as a tag and the
/// end that the journal of the run reports.
#[test]
fn agent_of_a_workflow_has_the_end_in_the_journal() {
    let workflow = Workflow::started();
    workflow.agent("disk", |agent| agent.bash("a1", "df", "90%").says("Full."));
    workflow.agent("memory", returns_structure);
    workflow.agent("net", |agent| agent.bash("a1", "ip a", "eth0"));
    workflow.agent("cpu", |agent| agent.bash("a1", "nproc", "2"));
    let begun = ["disk", "memory", "net", "cpu"].map(|agent| journaled("started", agent));
    workflow.journal(&[&[json!({"type": "launched"})][..], &begun].concat());
    let seen = workflow.seen();
    assert_eq!(seen.workers(), ["cpu", "disk", "memory", "net", "s"]);
    for agent in ["disk", "memory", "net", "cpu"] {
        let index = seen.index(agent);
        assert_eq!((&index["parent_id"], &index["run_id"]), (&json!("s"), &json!("s")), "{agent}");
        assert_eq!(index["tags"], json!(["main", "Look"]), "{agent}");
        assert_eq!(index["task"], format!("Look at {agent}."));
        let status = if agent == "disk" { "completed" } else { "running" };
        assert_eq!(index["status"], status, "{agent}");
    }
    assert!(seen.0.contains_key(&b"by/tag/Look/cpu"[..]));
    assert!(!seen.has("memory", "result.txt"));

    let ends = [
        returned("memory", json!({"free": 5})),
        returned("disk", json!("Something else.")),
        journaled("failed", "net"),
    ];
    workflow.journal(&[&begun[..], &ends].concat());
    let seen = workflow.seen();
    for (agent, status, outcome) in [
        ("disk", "completed", "ok"),
        ("memory", "completed", "ok"),
        ("net", "failed", "failed"),
        ("cpu", "running", "unknown"),
    ] {
        let index = seen.index(agent);
        let seen = (&index["status"], &index["outcome"]);
        assert_eq!(seen, (&json!(status), &json!(outcome)), "{agent}");
    }
    // The agent's own words come first.
    assert_eq!(seen.text("disk", "result.txt"), "Full.");
    assert_eq!(seen.text("memory", "result.txt"), r#"{"free":5}"#);
    assert!(seen.text("memory", "summary").contains(r#"{"free":5}"#));
    assert!(!seen.has("net", "result.txt") && !seen.has("cpu", "result.txt"));
    // It was started again.
    workflow.journal(&[&begun[..], &ends, &[journaled("started", "net")]].concat());
    assert_eq!(workflow.seen().index("net")["status"], "running");
}

/// A result in the journal is whole, however long it is and whatever it holds.
#[test]
fn result_in_the_journal_is_whole() {
    let long = "The disk is full. \n\u{7}é\"".repeat(4_000);
    for (result, text) in [(json!(long), Some(long.as_str())), (json!(""), None)] {
        let workflow = Workflow::started();
        workflow.agent("memory", returns_structure);
        workflow.journal(&[returned("memory", result)]);
        let seen = workflow.seen();
        assert_eq!(seen.index("memory")["status"], "completed");
        assert_eq!(
            seen.has("memory", "result.txt").then(|| seen.text("memory", "result.txt")),
            text
        );
    }
}

/// Promise: The call that started a workflow ends with the report to the session, or else with the
/// state of the run, and never with its receipt.
#[test]
fn call_of_a_workflow_ends_with_its_state() {
    let done = json!([{"type": "workflow_phase", "index": 1},
        {"type": "workflow_agent", "agentId": "disk", "state": "done"}]);
    let failed = json!([{"type": "workflow_agent", "agentId": "disk", "label": "disk",
        "state": "error", "error": "API Error: 400"}]);
    for (status, error, agents, outcome, open) in [
        ("completed", None, &done, "ok", false),
        ("completed", None, &failed, "ok", false),
        ("failed", Some("Error: no good"), &failed, "failed", false),
        ("killed", Some("Error: Workflow aborted"), &done, "unknown", true),
        ("running", None, &done, "unknown", true),
    ] {
        let mut workflow = Workflow::started();
        workflow.agent("disk", |agent| agent.bash("a1", "df", "90%"));
        workflow.journal(&[journaled("started", "disk")]);
        let index = workflow.seen().index("s");
        assert_eq!(
            (&call(&index, 1)["outcome"], &call(&index, 1)["open"]),
            (&json!("unknown"), &json!(true))
        );
        workflow.state(status, error, agents.clone());
        let seen = workflow.seen();
        let start = call(&seen.index("s"), 1);
        assert_eq!((&start["outcome"], start["open"] == true), (&json!(outcome), open), "{status}");
        let is_partial = status == "completed" && *agents == failed;
        let suspect = is_partial.then_some("[disk] failed: API Error: 400");
        assert_eq!(start["suspect"].as_str(), suspect, "{status}");
        let agent = seen.index("disk");
        if *agents == failed {
            assert_eq!(
                (&agent["status"], &agent["error"]),
                (&json!("failed"), &json!("API Error: 400"))
            );
        } else {
            assert_eq!(agent["status"], "completed");
        }
        // The report wins.
        let report = "<task-notification>\n<task-id>w1</task-id>\n<tool-use-id>t1</tool-use-id>\n\
            <status>completed</status>\n<summary>Dynamic workflow \"x\" completed</summary>\n\
            </task-notification>";
        workflow.session.line(json!({"type": "user", "origin": {"kind": "task-notification"},
            "message": {"content": report}}));
        let start = call(&workflow.seen().index("s"), 1);
        assert_eq!((&start["outcome"], start["open"] == true), (&json!("ok"), false), "{status}");
    }
}

/// Agents that were at work when their workflow was stopped are stopped, too.
#[test]
fn agent_of_a_killed_workflow_is_abandoned() {
    let mut workflow = Workflow::started();
    workflow.agent("net", |agent| {
        agent.call("a1", "Bash", json!({"command": "sleep 60"})).result(
            "a1",
            json!({
            "content": "The user doesn't want to proceed with this tool use.", "is_error": true}),
        );
        agent.user("[Request interrupted by user for tool use]")
    });
    workflow.agent("disk", |agent| agent.says("Fine."));
    workflow.session.call("t2", "TaskStop", json!({"task_id": "w1"}));
    workflow.session.line(json!({"type": "user", "message": {"content": [
        {"type": "tool_result", "tool_use_id": "t2", "content": "stopped"}]},
        "toolUseResult": {"task_id": "w1", "task_type": "local_workflow"}}));
    workflow.session.says("Stopped it.");
    assert_eq!(workflow.seen().index("net")["status"], "unknown");
    workflow.state(
        "killed",
        Some("Error: Workflow aborted"),
        json!([
        {"type": "workflow_agent", "agentId": "net", "state": "progress"},
        {"type": "workflow_agent", "agentId": "disk", "state": "done"}]),
    );
    let seen = workflow.seen();
    let net = seen.index("net");
    assert_eq!((&net["status"], &net["status_source"]), (&json!("abandoned"), &json!("killed")));
    assert_eq!(seen.index("disk")["status"], "completed");
    // The agent itself stopped the work.
    assert_eq!(seen.index("s")["outcome"], "ok");
}

/// Neither file is a worker, and no content of theirs reaches another session.
#[test]
fn records_of_a_workflow_are_no_workers() {
    let workflow = Workflow::started();
    workflow.agent("disk", |agent| agent.bash("a1", "df", "90%"));
    let line = json!({"type": "user", "agentId": "ghost", "isSidechain": true, "uuid": "g",
        "message": {"content": "I am no worker."}});
    for (journal, state) in [
        (format!("{line}\n[]\nnonsense\n"), "[1, 2".to_owned()),
        (json!({"type": "result", "agentId": 7, "result": 8}).to_string(), "{}".to_owned()),
        (String::new(), r#"{"taskId": 1, "status": {}, "workflowProgress": [1, null, {}]}"#.into()),
        ("\0\0\0".into(), r#"{"taskId": "disk", "status": "odd", "workflowProgress": {}}"#.into()),
        (
            format!("{}\n{}\n", returned("other", json!("x")), journaled("failed", "s")),
            json!({"taskId": "w2", "status": "failed", "workflowProgress": [
                {"agentId": "other", "state": "error"}, {"agentId": "s", "state": "error"}]})
            .to_string(),
        ),
    ] {
        let folder = format!("{PROJECT}/s");
        workflow
            .store
            .write(&path(format!("{folder}/subagents/workflows/{RUN}/journal.jsonl")), journal);
        workflow.store.write(&path(format!("{folder}/workflows/{RUN}.json")), state.as_str());
        workflow.store.write(&place("other"), begun().bytes());
        let seen = workflow.seen();
        assert_eq!(seen.workers(), ["disk", "other", "s"], "{state}");
        for worker in ["disk", "other"] {
            assert_eq!(seen.index(worker)["status"], "running", "{state}");
        }
        assert_eq!(seen.index("s")["status"], "completed", "{state}");
        assert_eq!(call(&seen.index("s"), 1)["open"], true, "{state}");
    }
}

/// A subagent has no fields beside its result that name the task.
#[test]
fn receipt_of_a_workflow_without_fields_is_no_end() {
    let mut transcript = begun();
    transcript.call("t1", "Workflow", json!({"name": "checks"}));
    transcript
        .result("t1", json!({"content": "Workflow launched in background. Task ID: w1\nRun"}));
    transcript.says("It runs.");
    assert_eq!(call(&shown(&transcript).index("s"), 1)["open"], true);
}
