//! Trajectories in the Agent Trajectory Interchange Format, alone and in trials of Harbor.

use super::*;

fn user(number: u64, text: &str) -> Value {
    json!({"step_id": number, "timestamp": time(number), "source": "user", "message": text})
}

fn time(number: u64) -> String {
    format!("2026-01-20T10:00:{number:02}Z")
}

fn agent(number: u64, text: &str, calls: Value, results: Value) -> Value {
    json!({"step_id": number, "timestamp": time(number), "source": "agent", "message": text,
        "model_name": "lab-2", "reasoning_content": "Hm.", "tool_calls": calls,
        "observation": {"results": results},
        "metrics": {"prompt_tokens": 100, "completion_tokens": 20, "cached_tokens": 7, "cost_usd": 0.25}})
}

fn call(id: Option<&str>, tool: &str) -> Value {
    json!({"tool_call_id": id, "function_name": tool, "arguments": {"command": "make"}})
}

fn result(id: Option<&str>, content: Value) -> Value {
    json!({"source_call_id": id, "content": content})
}

fn document(id: &str, steps: &[Value]) -> Value {
    json!({"schema_version": "ATIF-v1.7", "session_id": "run", "trajectory_id": id,
        "agent": {"name": "lab", "version": "1", "model_name": "lab-1"}, "steps": steps})
}

fn steps() -> Vec<Value> {
    let mut copied = agent(2, "Copied.", json!([call(Some("x"), "bash")]), json!([]));
    copied["is_copied_context"] = json!(true);
    let mut errors = json!([result(Some("c"), json!("red"))]);
    errors[0]["extra"] = json!({"tool_result_is_error": true});
    vec![
        user(1, "Mend it."),
        copied,
        agent(
            3,
            "I look.",
            json!([call(Some("a"), "bash"), call(Some("a"), "read"), call(None, "ls")]),
            json!([
                result(Some("a"), json!("one ")),
                result(None, json!([{"type": "text", "text": "two"}])),
                result(None, json!("three"))
            ]),
        ),
        agent(
            4,
            "",
            json!([call(Some("a"), "bash")]),
            json!([result(Some("a"), json!("[exit_code] 2\nred")), result(Some("a"), json!("!"))]),
        ),
        agent(5, "", json!([call(Some("c"), "bash"), call(Some("d"), "bash")]), errors),
        agent(6, "Mended.", json!([]), json!([])),
    ]
}

pub(super) fn sample() -> ProgramSample {
    let mut document = document("t1", &steps());
    let child = [
        user(1, "Check it."),
        agent(
            2,
            "Checked.",
            json!([call(Some("a"), "bash")]),
            json!([result(Some("a"), json!("ok"))]),
        ),
    ];
    document["subagent_trajectories"] = json!([self::document("t2", &child)]);
    ProgramSample { format: "atif", files: vec![("t.json", document.to_string().into())] }
}

#[test]
fn calls_have_no_outcome_but_hints() {
    let all = sample().read();
    let seen = &all["t1"];
    let unknown = ["bash", "read", "ls", "bash", "bash", "bash"];
    assert_eq!(seen.calls(), unknown.map(|tool| (tool, "unknown", None, false)));
    let outputs = ["one ", "two", "three", "[exit_code] 2\nred!", "red"];
    for (number, (output, tool)) in outputs.iter().zip(unknown).enumerate() {
        assert_eq!(seen.text(&format!("tool_calls/{:03}_{tool}.txt", number + 1)), *output);
    }
    let suspects: Vec<Option<&str>> =
        seen.record.trace.calls.iter().map(|call| call.suspect.as_deref()).collect();
    let expected = [None, None, None, Some("[exit_code] 2"), Some("marked as an error"), None];
    assert_eq!(suspects, expected);
    assert_eq!(seen.record.trace.unanswered.total(), 1);
    assert_eq!(seen.tokens(), Some((93 * 4, 80, 28)));
    assert_eq!(seen.record.trace.cost.as_ref().unwrap().total.to_string(), "$1.00");
    assert_eq!(
        (seen.text("task.txt"), seen.text("result.txt")),
        ("Mend it.".into(), "Mended.".into())
    );
    assert_eq!(
        (seen.status(), seen.worker.model.as_deref()),
        ((Status::Unknown, None), Some("lab-1"))
    );
    let child = &all["t2"];
    assert_eq!(
        (child.worker.parent.as_deref(), child.text("result.txt")),
        (Some("t1"), "Checked.".into())
    );
    assert_eq!(child.calls(), [("bash", "unknown", None, false)]);
}

#[test]
fn totals_win_over_the_sums_of_steps() {
    for order in [["steps", "final_metrics"], ["final_metrics", "steps"]] {
        let whole = document("t1", &steps());
        let metrics = json!({"total_prompt_tokens": 1_000, "total_completion_tokens": 200, "total_cost_usd": 2.5});
        let mut ordered = json!({"schema_version": "ATIF-v1.8", "trajectory_id": "t1"});
        for name in order {
            ordered[name] = if name == "steps" { whole["steps"].clone() } else { metrics.clone() };
        }
        let sample =
            ProgramSample { format: "atif", files: vec![("t.json", ordered.to_string().into())] };
        let seen = sample.read_one();
        assert_eq!(seen.tokens(), Some((1_000, 200, 0)), "{order:?}");
    }
}

#[test]
fn trial_has_the_status_of_its_result() {
    let trial = |result: Value| {
        let sample = ProgramSample {
            format: "atif",
            files: vec![
                (
                    "jobs/job1/task__abc/agent/trajectory.json",
                    document("t1", &steps()).to_string().into(),
                ),
                ("jobs/job1/task__abc/result.json", result.to_string().into()),
            ],
        };
        sample.read_one()
    };
    for (result, status, source) in [
        (
            json!({"verifier_result": {"rewards": {"reward": 1.0}}}),
            Status::Completed,
            Some("reward 1.0"),
        ),
        (
            json!({"verifier_result": {"rewards": {"reward": 1, "style": 0}}}),
            Status::Failed,
            Some("reward 1, style 0"),
        ),
        (
            json!({"exception_info": {"exception_type": "AgentTimeoutError"}}),
            Status::Failed,
            Some("AgentTimeoutError"),
        ),
        (json!({"finished_at": "2026-01-20T10:00:09Z"}), Status::Unknown, Some("not verified")),
        (json!({}), Status::Running, None),
    ] {
        let seen = trial(result.clone());
        assert_eq!(seen.status(), (status, source), "{result}");
        let worker = &seen.worker;
        assert_eq!(
            (worker.id.to_text().as_ref(), worker.run.as_deref()),
            ("task__abc", Some("job1"))
        );
    }
}

/// A trajectory that goes on in another file is one worker, and a summary is a child of its trial.
#[test]
fn files_of_a_trial_are_read_together() {
    let folder = "jobs/job1/task__abc/agent/";
    let mut first = document("t1", &steps());
    first["continued_trajectory_ref"] = json!("trajectory.cont-1.json");
    first["final_metrics"] = json!({"total_prompt_tokens": 1_000, "total_completion_tokens": 200});
    let mut copied = agent(1, "Mended.", json!([]), json!([]));
    copied["is_copied_context"] = json!(true);
    let last = [copied, agent(2, "All is well.", json!([call(Some("c"), "bash")]), json!([]))];
    let second = document("t1-cont-1", &last);
    let summary = document("s1", &[user(1, "Sum up."), agent(2, "Much.", json!([]), json!([]))]);
    let files = [
        ("trajectory.json", first),
        ("trajectory.cont-1.json", second),
        ("trajectory.summarization-1-summary.json", summary),
    ];
    let memory = Memory::new();
    let live = format("atif");
    for (number, (name, content)) in files.iter().enumerate() {
        let path = RelPath::parse(format!("{folder}{name}")).unwrap();
        memory.write(&path, content.to_string());
        // The parts come one after the other.
        let all = read_all(&*live, &memory);
        assert_eq!(all, read_all(&*format("atif"), &memory));
        assert_eq!(all["task__abc"].calls().len(), if number == 0 { 6 } else { 7 });
    }
    let all = read_all(&*live, &memory);
    assert_eq!(all.keys().collect::<Vec<_>>(), ["task__abc", "task__abc.summarization-1-summary"]);
    let trial = &all["task__abc"];
    assert_eq!(trial.text("result.txt"), "All is well.");
    assert_eq!(trial.tokens(), Some((1_093, 220, 7)), "the second file states no total");
    let summary = &all["task__abc.summarization-1-summary"].worker;
    assert_eq!(summary.parent.as_deref(), Some("task__abc"));
    assert_eq!((summary.run.as_deref(), summary.status), (Some("job1"), Status::Unknown));
}
