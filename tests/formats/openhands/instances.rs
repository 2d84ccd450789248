//! Evaluations: a file with an instance per line.

use super::*;

fn instance(id: &str, history: Value) -> Value {
    json!({"instance_id": id, "test_result": {"git_patch": "diff"}, "instruction": "Fix the issue.",
        "metadata": {"agent_class": "CodeActAgent", "llm_config": {"model": "configured"}}, "history": history,
        "metrics": {"accumulated_cost": 0.1, "accumulated_token_usage": {"prompt_tokens": 50, "completion_tokens": 7}},
        "error": null})
}

fn lines(instances: &[Value]) -> String {
    instances.iter().map(|instance| format!("{instance}\n")).collect()
}

fn write(store: &Memory, text: impl Into<Vec<u8>>) {
    store.write(&path("run1/output.jsonl"), text);
}

/// Promise: Each instance in an `output.jsonl` of OpenHands is a worker. One that repeats an ID
/// gets the number of its line.
#[test]
fn every_instance_is_a_worker() {
    let store = store();
    let mut new = Events::begun();
    new.run("a", "x", "", 0).finish("New.");
    let old = json!(old_conversation());
    write(
        &store,
        lines(&[
            instance("a__b-1", old.clone()),
            instance("a__b-2", json!(new.0)),
            instance("a__b-1", old),
        ]),
    );
    let all = read(&*store);
    let names: Vec<&str> = all.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        ["run1/output.jsonl/a__b-1", "run1/output.jsonl/a__b-1~3", "run1/output.jsonl/a__b-2"]
    );
    let first = &all[names[0]];
    assert_eq!(first.outcomes(), ["failed"]);
    assert_eq!(
        (first.worker.id.to_text(), first.worker.run.as_deref()),
        ("a__b-1".into(), Some("run1"))
    );
    assert_eq!(first.worker.model.as_deref(), Some("claude-large"));
    assert_eq!(first.record.trace.tokens.unwrap().input, 50);
    assert_eq!(first.worker.status.as_str(), "completed");
    assert_eq!(first.text("source.jsonl").lines().count(), 6);
    let second = &all[names[2]];
    assert_eq!((second.outcomes(), second.text("result.txt")), (vec!["ok", "ok"], "New."));
    assert_eq!(second.worker.model.as_deref(), Some("configured"));
}

#[test]
fn error_of_a_line_and_a_missing_end_are_told() {
    let store = store();
    let unfinished = json!(old_conversation()[..5]);
    let mut failed = instance("f", unfinished.clone());
    failed["error"] = json!("AgentStuckInLoopError: stuck\nmore");
    let silent = instance("s", unfinished);
    let empty = instance("e", json!([]));
    write(&store, lines(&[failed, silent, empty]));
    let all = read(&*store);
    let failed = &all["run1/output.jsonl/f"].worker;
    assert_eq!(
        (failed.status.as_str(), failed.status_source.as_deref()),
        ("failed", Some("AgentStuckInLoopError: stuck"))
    );
    assert_eq!(all["run1/output.jsonl/s"].worker.status.as_str(), "unknown");
    let empty = &all["run1/output.jsonl/e"];
    assert_eq!((empty.text("task.txt"), empty.outcomes().len()), ("Fix the issue.", 0));
}

/// Promise: The oldest evaluations, whose histories are pairs without IDs, are read by order.
#[test]
fn history_of_pairs_is_read() {
    let store = store();
    let run = |command: &str, code: i64| {
        json!([{"source": "agent", "action": "run", "args": {"command": command, "thought": "t"}},
            {"observation": "run", "content": command, "extras": {"exit_code": code}}])
    };
    let history = json!([
        [{"source": "user", "action": "message", "args": {"content": "do it"}}, {"observation": "null", "content": ""}],
        run("one", 0), run("two", 5),
        [{"source": "agent", "action": "finish", "args": {"thought": "Done."}}, {"observation": "null", "content": ""}],
    ]);
    write(&store, lines(&[instance("i", history)]));
    let shown = read_one(&*store);
    assert_eq!(shown.outcomes(), ["ok", "failed"]);
    assert_eq!(shown.text("tool_calls/002_run.txt"), "two");
    assert_eq!((shown.text("task.txt"), shown.text("result.txt")), ("do it", "Done."));
}

#[test]
fn members_may_come_in_any_order() {
    let store = store();
    let history = json!(old_conversation());
    let line = format!(
        "{{\"history\":{history},\"metrics\":{{\"accumulated_token_usage\":{{\"prompt_tokens\":3}}}},\"instruction\":\"x\",\"instance_id\":\"late\"}}\n"
    );
    write(&store, line);
    let all = read(&*store);
    assert_eq!(all["run1/output.jsonl/late"].outcomes(), ["failed"]);
}

#[test]
fn line_that_is_cut_off_costs_only_itself() {
    let store = store();
    let [a, b, c] = ["a", "b", "c"].map(|id| instance(id, json!(old_conversation())).to_string());
    let cut = b.find("history").unwrap() + 300;
    write(&store, format!("{a}\n{}\n\n{c}\n[1]\n5\n", &b[..cut]));
    let all = read(&*store);
    assert!(
        all.contains_key("run1/output.jsonl/a") && all.contains_key("run1/output.jsonl/c"),
        "{:?}",
        all.keys()
    );
    assert_eq!(all["run1/output.jsonl/c"].outcomes(), ["failed"]);
    // The last event that is there is an answer, which does not say how the instance ended.
    let answered =
        json!([{"id": 1, "source": "agent", "action": "message", "args": {"content": "I look"}}]);
    let answered = instance("d", answered).to_string();
    let cut = answered.find("I look").unwrap() + "I look\"}}".len();
    for end in ["", "\n"] {
        write(&store, format!("{a}\n{},{{\"id\":2,\"so{end}", &answered[..cut]));
        let torn = &read(&*store)["run1/output.jsonl/d"];
        assert_eq!(
            (torn.worker.status.as_str(), torn.worker.status_source.as_deref()),
            ("unknown", Some("its record is torn"))
        );
        assert_eq!(torn.record.trace.bad_lines.len(), end.len());
    }
}

/// Promise: A file of instances is read on at its first new line.
#[test]
fn added_instances_are_read_without_the_others() {
    let store = store();
    let live = OpenHands::transcripts();
    let mut text = String::new();
    for at in 0..5 {
        let line = lines(&[instance(&format!("i{at}"), json!(old_conversation()))]);
        for part in [&line[..line.len() / 2], &line[line.len() / 2..]] {
            text.push_str(part);
            write(&store, text.clone());
            assert_same(
                &read_with(&live, &*store),
                &read(&*store),
                &format!("{} bytes", text.len()),
            );
        }
    }
}
