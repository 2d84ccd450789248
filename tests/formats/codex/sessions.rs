//! Facts about sessions: status, task, requests, tokens, parents, forks, resumes.

use super::*;
use crate::formats::rows;

/// Promise: The status of a session of Codex is that of its last turn.
#[test]
fn the_last_event_of_a_turn_is_the_status() {
    let mut rollout = Rollout::begun();
    assert_eq!(index_of(&rollout)["status"], "running");
    rollout.says("Done.").complete();
    assert_eq!(index_of(&rollout)["status"], "completed");
    rollout.event("task_started", json!({}));
    assert_eq!(index_of(&rollout)["status"], "running");
    rollout.event("turn_aborted", json!({"reason": "interrupted"}));
    let index = index_of(&rollout);
    assert_eq!(
        (&index["status"], &index["status_source"]),
        (&json!("unknown"), &json!("interrupted"))
    );
    rollout.event("turn_started", json!({}));
    let error = json!({"message": "stream disconnected", "codex_error_info": "other"});
    rollout.event("turn_complete", json!({"last_agent_message": null, "error": error}));
    let index = index_of(&rollout);
    assert_eq!(
        (&index["status"], &index["error"]),
        (&json!("failed"), &json!("stream disconnected"))
    );
    let mut rollout = Rollout::begun();
    rollout.event("error", json!({"message": "quota"})).complete();
    let index = index_of(&rollout);
    assert_eq!((&index["status"], &index["error"]), (&json!("failed"), &json!("quota")));
}

#[test]
fn the_status_is_listed_however_far_it_is_from_the_end() {
    let mut rollout = Rollout::begun();
    for number in 0..400 {
        rollout.command(&format!("c{number}"), "ls", 0, &"x".repeat(300)).says("I go on.");
    }
    assert!(rollout.bytes().len() > 200_000);
    assert_eq!(rows(&tree_of(&rollout))[ID]["status"], "running");
    rollout.complete();
    assert_eq!(rows(&tree_of(&rollout))[ID]["status"], "completed");
}

#[test]
fn texts_of_the_program_are_no_requests() {
    let mut rollout = Rollout::new();
    rollout.item(
        "message",
        json!({"role": "developer", "content": [{"type": "input_text", "text": "Rules."}]}),
    );
    rollout.user("<environment_context>\n  <cwd>/app</cwd>\n</environment_context>");
    rollout.user("# AGENTS.md instructions for /app\n\nx");
    rollout.item(
        "message",
        json!({"role": "user", "content": [
        {"type": "input_text", "text": "<user_instructions>x</user_instructions>"},
        {"type": "input_text", "text": "Fix the build."},
        {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]}),
    );
    rollout.event("user_message", json!({"message": "Fix the build."}));
    rollout.user("<user_shell_command>ls</user_shell_command>").says("Yes.");
    rollout.user("<subagent_notification>{}</subagent_notification>").user("And the tests.");
    rollout.line(
        "compacted",
        json!({"message": "SUMMARY", "replacement_history": [
        {"type": "function_call", "name": "shell", "arguments": "{}", "call_id": "copied"}]}),
    );
    let tree = tree_of(&rollout);
    let requests = text(&tree, ID, "requests.txt");
    assert!(
        requests.contains("    Fix the build.") && requests.contains("    And the tests."),
        "{requests}"
    );
    assert!(requests.contains("[2 requests; left out: 1 command"), "{requests}");
    assert!(!requests.contains("AGENTS.md") && !requests.contains("base64"), "{requests}");
    assert!(index(&tree, ID)["task"].as_str().unwrap().contains("Fix the build."));
    assert_eq!(calls(&index(&tree, ID)), []);
}

/// Promise: A turn of Codex that was taken back leaves its calls, and no request.
#[test]
fn rolled_back_turns_take_their_requests_back_but_not_their_calls() {
    let mut rollout = Rollout::begun();
    rollout.command("a", "ls", 0, "x").says("One.").complete();
    rollout.user("Wrong way.").command("b", "rm", 1, "no").says("Two.").complete();
    rollout.event("thread_rolled_back", json!({"num_turns": 1}));
    let tree = tree_of(&rollout);
    assert!(!text(&tree, ID, "requests.txt").contains("Wrong way."));
    assert_eq!(outcomes(&rollout), ["ok", "failed"]);
    assert!(crate::support::see(&tree, format!("workers/{ID}/result.txt")).is_err());
    rollout.user("This way.").says("Three.").complete();
    let tree = tree_of(&rollout);
    assert_eq!(text(&tree, ID, "result.txt"), "Three.");
    assert!(text(&tree, ID, "requests.txt").contains("This way."));
}

#[test]
fn the_last_total_counts_the_tokens() {
    let mut rollout = Rollout::begun();
    for (input, cached, output) in [(100, 0, 10), (350, 200, 40)] {
        let usage =
            json!({"input_tokens": input, "cached_input_tokens": cached, "output_tokens": output});
        rollout.event("token_count", json!({"info": {"total_token_usage": usage}}));
    }
    rollout.event("token_count", json!({"info": null}));
    let tokens = &index_of(&rollout)["tokens"];
    assert_eq!(
        (&tokens["input"], &tokens["cache_read"], &tokens["output"]),
        (&json!(150), &json!(200), &json!(40)),
        "{tokens:#}"
    );
}

#[test]
fn the_message_at_the_end_of_a_turn_is_the_result_if_there_is_no_other() {
    let mut rollout = Rollout::begun();
    rollout.command("a", "ls", 0, "x");
    rollout.event("task_complete", json!({"last_agent_message": "All is well."}));
    assert_eq!(text(&tree_of(&rollout), ID, "result.txt"), "All is well.");
    let mut rollout = Rollout::begun();
    rollout.says("All is well.").command("a", "ls", 0, "x");
    rollout.event("task_complete", json!({"last_agent_message": "All is well."}));
    let tree = tree_of(&rollout);
    assert_eq!(text(&tree, ID, "result.txt"), "All is well.");
    assert_eq!(text(&tree, ID, "thread.jsonl").matches("All is well.").count(), 1);
}

/// Promise: A subagent of Codex names its parent, and belongs to the run of the first session.
#[test]
fn subagents_have_a_parent_and_forks_have_none() {
    let store = Arc::new(Memory::new());
    store.write(&path(place(ID)), Rollout::begun().bytes());
    let child = |number: u8, meta: Value| {
        let id = format!("0199cccc-0000-7000-8000-00000000000{number}");
        let mut all = json!({"id": id, "session_id": ID, "cwd": "/app"});
        all.as_object_mut().unwrap().extend(meta.as_object().unwrap().clone());
        let mut rollout = Rollout::default();
        rollout.line("session_meta", all);
        // A fork holds the facts of its original.
        rollout.line("session_meta", json!({"id": ID, "cwd": "/elsewhere"})).user("Look.");
        store.write(&path(place(&id)), rollout.bytes());
        id
    };
    let spawned = child(
        1,
        json!({"parent_thread_id": ID, "agent_role": "worker", "agent_nickname": "Kant", "agent_path": "/root/disk"}),
    );
    let nested = child(
        2,
        json!({"source": {"subagent": {"thread_spawn": {"parent_thread_id": spawned,
        "depth": 2, "agent_role": null}}}}),
    );
    let review = child(3, json!({"source": {"subagent": "review"}}));
    let fork = child(4, json!({"session_id": null, "forked_from_id": ID}));
    let tree = tree(&store);
    let field = |id: &str, name: &str| index(&tree, id)[name].clone();
    assert_eq!(field(&spawned, "parent_id"), ID);
    assert_eq!(
        (field(&spawned, "task_type"), field(&spawned, "title")),
        (json!("worker"), json!("disk"))
    );
    assert_eq!(field(&nested, "parent_id"), spawned);
    assert_eq!((field(&nested, "run_id"), field(&nested, "cwd")), (json!(ID), json!("/app")));
    assert_eq!(
        (field(&review, "task_type"), field(&review, "parent_id")),
        (json!("review"), Value::Null)
    );
    assert_eq!((field(&fork, "run_id"), field(&fork, "parent_id")), (json!(fork), Value::Null));
    assert_eq!(field(&fork, "continues"), ID);
}

#[test]
fn what_a_subagent_copied_from_its_parent_is_not_its_own() {
    let mut rollout = Rollout::default();
    rollout.line(
        "session_meta",
        json!({"id": ID, "parent_thread_id": OTHER_ID,
        "subagent_history_start_ordinal": 7}),
    );
    rollout.line("session_meta", json!({"id": OTHER_ID}));
    rollout.event("task_started", json!({})).user("Of the parent.");
    rollout.command("p1", "make", 1, "no").complete();
    rollout.user("FORKED: review").command("own", "ls", 9, "x").says("Reviewed.");
    let index = index_of(&rollout);
    assert_eq!(index["task"], "FORKED: review");
    assert_eq!(calls(&index), [("exec_command".into(), "failed".into(), Some(9))]);
    assert_eq!(index["continues"], OTHER_ID);
    let tree = tree_of(&rollout);
    for file in ["thread.jsonl", "requests.txt", "source.jsonl"] {
        assert!(!text(&tree, ID, file).contains("Of the parent."), "{file}");
    }
}

/// Older versions do not state where a copied history ends. It is written at once.
#[test]
fn copied_history_without_a_mark_ends_before_the_first_later_turn() {
    let mut copied = Rollout::default();
    copied.line("session_meta", json!({"id": OTHER_ID})).event("task_started", json!({}));
    copied.user("Of the parent.").command("p1", "make", 1, "no").complete();
    copied.event("token_count", usage(10_000, 500));
    let written_at = |mut line: Value| {
        line["timestamp"] = json!("2026-11-01T10:00:01.000Z");
        line.as_object_mut().unwrap().remove("ordinal");
        format!("{line}\n")
    };
    let mut rollout = Rollout::default();
    rollout.line("session_meta", json!({"id": ID, "forked_from_id": OTHER_ID}));
    let lines = copied.bytes();
    let lines = lines.split_inclusive(|byte| *byte == b'\n');
    for line in lines {
        rollout.raw(written_at(serde_json::from_slice(line).unwrap()));
    }
    let mut own = Rollout::begun();
    own.command("own", "ls", 0, "x").event("token_count", usage(10_400, 520));
    own.says("Reviewed.").complete();
    let own = String::from_utf8(own.bytes()).unwrap();
    rollout.raw(own.replace("T10:00", "T11:00").split_once('\n').unwrap().1);
    let index = index_of(&rollout);
    assert_eq!((&index["task"], &index["continues"]), (&json!("Fix it."), &json!(OTHER_ID)));
    assert_eq!(calls(&index), [("exec_command".into(), "ok".into(), Some(0))]);
    assert_eq!((&index["tokens"]["input"], &index["tokens"]["output"]), (&json!(400), &json!(20)));
    assert_eq!(index["status"], "completed");
}

/// The total of a fork begins with the tokens of its original.
#[test]
fn tokens_of_a_fork_are_its_own() {
    let mut rollout = Rollout::default();
    rollout.line(
        "session_meta",
        json!({"id": ID, "forked_from_id": OTHER_ID,
        "forked_from_ordinal_exclusive": 39}),
    );
    rollout.event("task_started", json!({})).user("Go on.");
    for (total, output) in [(600, 120), (700, 140)] {
        let mut info = usage(total, output);
        info["info"]["last_token_usage"] = usage(100, 20)["info"]["total_token_usage"].clone();
        rollout.event("token_count", info);
    }
    let index = index_of(&rollout);
    assert_eq!((&index["tokens"]["input"], &index["tokens"]["output"]), (&json!(200), &json!(40)));
}

/// Returns the event of a total of tokens.
fn usage(input: u64, output: u64) -> Value {
    let total = json!({"input_tokens": input, "cached_input_tokens": 0, "output_tokens": output,
        "total_tokens": input + output});
    json!({"info": {"total_token_usage": total}})
}

#[test]
fn a_resumed_session_goes_on_in_its_file() {
    let mut rollout = Rollout::begun();
    rollout.says("One.").complete();
    rollout.line("session_meta", json!({"id": ID, "cwd": "/other"}));
    rollout.event("task_started", json!({})).user("Once more.").command("a", "ls", 7, "x");
    let index = index_of(&rollout);
    assert_eq!((&index["status"], &index["cwd"]), (&json!("running"), &json!("/app")));
    assert_eq!(calls(&index).len(), 1);
}

#[test]
fn the_task_of_another_agent_is_a_task_and_its_answer_a_report() {
    let mut rollout = Rollout::new();
    let message = |kind: &str| {
        json!([
        {"type": "input_text", "text": format!("Message Type: {kind}\nPayload:\nrun the tests")},
        {"type": "encrypted_content", "encrypted_content": "SECRET"}])
    };
    rollout.item("agent_message", json!({"author": "/root", "content": message("NEW_TASK")}));
    rollout.item("reasoning", json!({"summary": [], "encrypted_content": "SECRET"}));
    rollout.item("agent_message", json!({"author": "/root/a", "content": message("FINAL_ANSWER")}));
    let tree = tree_of(&rollout);
    let index = index(&tree, ID);
    assert_eq!(
        (&index["task"], &index["title"]),
        (&json!("run the tests"), &json!("run the tests"))
    );
    assert!(!text(&tree, ID, "thread.jsonl").contains("SECRET"));
}

#[test]
fn unknown_types_are_counted_and_known_ones_are_not() {
    let mut rollout = Rollout::begun();
    rollout.line("world_state", json!({})).event("context_compacted", json!({}));
    rollout.line("telepathy", json!({})).event("hologram", json!({})).item("dream", json!({}));
    rollout.raw("{\"type\":\"message\"}\n{}\nno JSON\n[]\n");
    let source = index_of(&rollout)["source"].clone();
    assert_eq!(source["unparsable_lines"], 2, "{source:#}");
    let unknown = source.to_string();
    for kind in ["telepathy", "hologram", "dream", "(none)"] {
        assert!(unknown.contains(kind), "{kind}: {source:#}");
    }
    assert!(!unknown.contains("world_state") && !unknown.contains("context_compacted"));
}
