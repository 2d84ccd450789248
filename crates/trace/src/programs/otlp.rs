//! Spans of OpenTelemetry, as a file exporter writes them.

use super::*;

fn attribute(name: &str, value: Value) -> Value {
    let kind = if name.ends_with("_tokens") { "intValue" } else { "stringValue" };
    json!({"key": name, "value": {kind: value}})
}

fn span(id: &str, parent: &str, start: u64, status: Value, attributes: &[(&str, Value)]) -> Value {
    let attributes: Vec<Value> =
        attributes.iter().map(|(name, value)| attribute(name, value.clone())).collect();
    let nanos = |seconds: u64| format!("{}000000000", 1_789_898_400 + seconds);
    json!({"traceId": "AB07", "spanId": id, "parentSpanId": parent, "name": "x",
        "startTimeUnixNano": nanos(start), "endTimeUnixNano": nanos(start + 2),
        "attributes": attributes, "status": status})
}

fn agent(id: &str, parent: &str, status: Value, more: &[(&str, Value)]) -> Value {
    let mut all = vec![("gen_ai.operation.name", json!("invoke_agent"))];
    all.extend(more.iter().cloned());
    span(id, parent, 0, status, &all)
}

fn tool(id: &str, parent: &str, start: u64, status: Value, more: &[(&str, Value)]) -> Value {
    let mut all =
        vec![("gen_ai.operation.name", json!("execute_tool")), ("gen_ai.tool.name", json!("bash"))];
    all.extend(more.iter().cloned());
    span(id, parent, start, status, &all)
}

fn request(spans: &[Value]) -> Value {
    json!({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]})
}

fn file(requests: &[Value]) -> ProgramSample {
    ProgramSample { format: "otlp", files: vec![("traces.jsonl", lines(requests))] }
}

pub(super) fn sample() -> ProgramSample {
    let messages = |role: &str, text: &str| {
        json!(json!([{"role": role, "parts": [{"type": "text", "content": text}]}]).to_string())
    };
    let arguments = ("gen_ai.tool.call.arguments", json!("{\"command\":\"make\"}"));
    let chat =
        [("gen_ai.operation.name", json!("chat")), ("gen_ai.response.model", json!("lab-2"))];
    file(&[
        request(&[
            span("a1", "a0", 1, json!({}), &chat),
            tool("a2", "a1", 2, json!({}), &[("gen_ai.tool.call.result", json!("one")), arguments]),
            tool(
                "a3",
                "a0",
                3,
                json!({"code": 2, "message": "exit 2"}),
                &[("error.type", json!("E"))],
            ),
        ]),
        // Sent again; the last one counts.
        request(&[tool("a3", "a0", 3, json!({"code": 2, "message": "exit 3"}), &[])]),
        request(&[
            tool("b2", "b0", 5, json!({}), &[("swarmletfs.output", json!("?"))]),
            agent("b0", "a4", json!({"code": 2, "message": "max turns"}), &[]),
            tool("a4", "a0", 4, json!({"code": 1}), &[]),
        ]),
        request(&[agent(
            "a0",
            "",
            json!({}),
            &[
                ("gen_ai.conversation.id", json!("run 1")),
                ("gen_ai.usage.input_tokens", json!("900")),
                ("gen_ai.usage.output_tokens", json!("80")),
                ("gen_ai.input.messages", messages("user", "Mend it.")),
                ("gen_ai.output.messages", messages("assistant", "I look.")),
            ],
        )]),
    ])
}

#[test]
fn spans_of_tools_are_the_calls_of_the_nearest_agent() {
    let all = sample().read();
    let seen = &all["a0"];
    let calls =
        [("bash", "ok", None, false), ("bash", "failed", None, false), ("bash", "ok", None, false)];
    assert_eq!(seen.calls(), calls);
    assert_eq!(seen.text("tool_calls/001_bash.txt"), "one");
    assert_eq!(seen.text("tool_calls/002_bash.txt"), "exit 3");
    assert_eq!(
        (seen.text("task.txt"), seen.text("result.txt")),
        ("Mend it.".into(), "I look.".into())
    );
    assert_eq!((seen.status(), seen.tokens()), ((Status::Completed, None), Some((900, 80, 0))));
    let worker = &seen.worker;
    assert_eq!((worker.model.as_deref(), worker.run.as_deref()), (Some("lab-2"), Some("run 1")));
    let child = &all["b0"];
    assert_eq!(child.calls(), [("bash", "unknown", None, false)]);
    assert_eq!(
        (child.worker.parent.as_deref(), child.status()),
        (Some("a0"), (Status::Failed, Some("max turns")))
    );
}

#[test]
fn call_whose_agent_has_not_ended_is_shown_and_its_worker_runs() {
    let call = |id: &str| tool(id, "a0", 2, json!({}), &[]);
    let mut running = call("a2");
    running["endTimeUnixNano"] = json!("0");
    let seen = file(&[request(&[call("a1"), running])]).read_one();
    assert_eq!(seen.calls().len(), 2);
    assert_eq!((seen.status(), seen.record.trace.unanswered.total()), ((Status::Running, None), 1));
    // The agent is not in the file, but it is the only one above.
    let top = agent("c0", "", json!({}), &[]);
    let seen = file(&[request(&[call("a1"), top])]).read_one();
    assert_eq!((seen.worker.id.to_text().as_ref(), seen.calls().len()), ("c0", 1));
}

#[test]
fn spans_that_are_above_each_other_end() {
    let seen = file(&[request(&[
        tool("a1", "a2", 1, json!({}), &[]),
        tool("a2", "a1", 2, json!({}), &[]),
    ])])
    .read();
    let calls: usize = seen.values().map(|seen| seen.calls().len()).sum();
    assert_eq!(calls, 2);
}

#[test]
fn what_follows_a_torn_request_is_read_and_the_loss_is_told() {
    let ended = request(&[agent("a0", "", json!({}), &[])]);
    let failed = request(&[tool("a1", "a0", 2, json!({"code": 2}), &[])]);
    for torn in
        ["{\"resourceSpans\":[{\"sco", "{\"resourceSpans\":[", "[[", "\u{1}", "{\"a\":\"\\u"]
    {
        let text = format!("{ended}\n{torn}\n{failed}\n");
        let files = vec![("traces.jsonl", text.into_bytes())];
        let seen = ProgramSample { format: "otlp", files }.read_one();
        assert_eq!(seen.calls(), [("bash", "failed", None, false)], "{torn}");
        assert_eq!(seen.record.trace.bad_lines.len(), 1, "{torn}");
        assert!(!seen.record.trace.unused.is_torn, "{torn}");
    }
    // A request that is still being written.
    let files = vec![("traces.jsonl", format!("{ended}\n{{\"resourceSpans\":").into_bytes())];
    let trace = ProgramSample { format: "otlp", files }.read_one().record.trace;
    assert_eq!((trace.bad_lines.len(), trace.unused.is_torn), (0, true));
}

#[test]
fn equal_ids_in_two_traces_are_two_spans() {
    let mut other = agent("a0", "", json!({"code": 2}), &[]);
    other["traceId"] = json!("CD08");
    let all = file(&[request(&[agent("a0", "", json!({}), &[]), other])]).read();
    assert_eq!(all["a0"].status().0, Status::Completed);
    assert_eq!(all["cd08-a0"].status().0, Status::Failed);
}

#[test]
fn several_requests_of_one_record_are_told_apart() {
    let messages = json!([
        {"role": "user", "parts": [{"type": "text", "content": "one"}]},
        {"role": "assistant", "parts": [{"type": "text", "content": "right"}]},
        {"role": "user", "parts": [{"type": "text", "content": "a longer one"}]},
        {"role": "assistant", "parts": [{"type": "text", "content": "wrong"}]}
    ]);
    let input = ("gen_ai.input.messages", json!(messages.to_string()));
    let seen = file(&[request(&[agent("a0", "", json!({}), &[input])])]).read_one();
    let requests = seen.text("requests.txt");
    assert!(
        requests.contains("    one\n") && requests.contains("    a longer one\n"),
        "{requests}"
    );
    assert_eq!(seen.text("result.txt"), "wrong");
    assert_eq!(seen.text("task.txt"), "one");
}
