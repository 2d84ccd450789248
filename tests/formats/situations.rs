//! Situations through which the real programs were driven, as fixtures of our own: Claude Code
//! 2.1.332 and Codex CLI 0.171.0. A table states what each worker did.

use std::sync::Arc;

use super::codex::{self, ID, OTHER_ID, Rollout};
use super::*;
use crate::support::transcript::{self, PROJECT, Transcript, path};
use swarmletfs_base::store::Memory;

/// The truth about a worker: its ID, parent, status and outcome, the outcomes of its calls, and its
/// output tokens.
type Truth = (&'static str, &'static str, &'static str, &'static str, &'static str, u64);

/// The files of a store, by their paths.
type Files = Vec<(String, Vec<u8>)>;

type Situation = (&'static str, Files, &'static [Truth]);

const REFUSED: &str = "The user doesn't want to proceed with this tool use. The tool use was \
                       rejected (eg. if it was a file edit, the new_string was NOT written to the \
                       file).";

fn session() -> Transcript {
    let mut session = Transcript::new("s");
    session.user("Do it.");
    session
}

/// Appends the result of the call `t` with these fields of its line.
fn result<'a>(session: &'a mut Transcript, text: &str, fields: Value) -> &'a mut Transcript {
    let is_error = fields["is_error"].clone();
    let block = json!({"type": "tool_result", "tool_use_id": "t", "content": text,
        "is_error": is_error == true});
    let mut line = fields;
    line["type"] = json!("user");
    line["message"] = json!({"role": "user", "content": [block]});
    session.line(line)
}

/// Returns a session that called `tool`, with this result and a last answer.
fn called(tool: &str, text: &str, fields: Value) -> Transcript {
    let mut session = session();
    session.call("t", tool, json!({"command": "make"}));
    result(&mut session, text, fields).says("Done.");
    session
}

/// Returns a session whose command went to the background and ended as reported.
fn in_background(text: &str, details: Value, status: &str, summary: &str) -> Transcript {
    let mut session = called("Bash", text, json!({"toolUseResult": details}));
    let report = format!(
        "<task-notification>\n<task-id>b1</task-id>\n<tool-use-id>t</tool-use-id>\n\
         <status>{status}</status>\n<summary>{summary}</summary>\n</task-notification>"
    );
    session.line(json!({"type": "queue-operation", "operation": "enqueue", "content": report}));
    session.line(json!({"type": "user", "origin": {"kind": "task-notification"},
        "promptSource": "system", "message": {"content": report}}));
    session.says("I see.");
    session
}

fn at(file: &str, transcript: &Transcript) -> (String, Vec<u8>) {
    let bytes = String::from_utf8(transcript.bytes()).unwrap().replace("2.1.29", "2.1.332");
    (format!("{PROJECT}/{file}"), bytes.into_bytes())
}

fn alone(session: &Transcript) -> Files {
    vec![at("s.jsonl", session)]
}

fn copied(mark: fn(&mut Value)) -> Files {
    let original = called("Bash", "Exit code 2", json!({"is_error": true}));
    let mut copy = original.copied("f", |line| {
        mark(line);
        if line["type"] == "assistant" {
            line["requestSessionId"] = json!("s");
        }
    });
    copy.user("Go on.").bash("own", "make", "done").says("Done.");
    vec![at("s.jsonl", &original), at("f.jsonl", &copy)]
}

fn background() -> Vec<Situation> {
    let receipt = "Command running in background with ID: b1. Output is being written to: /t/b1";
    let moved = "Command did not complete within its 2s timeout and was moved to the background \
                 (ID: b1).";
    let details = json!({"backgroundTaskId": "b1"});
    let timeout = json!({"backgroundTaskId": "b1", "timedOutAfterMs": 2000});
    let command = "Background command \"make\"";
    let mut stopped = called("Bash", receipt, json!({"toolUseResult": details}));
    stopped.call("t2", "TaskStop", json!({"task_id": "b1"}));
    stopped
        .line(json!({"type": "user", "toolUseResult": {"task_id": "b1"}, "message": {"content": [
        {"type": "tool_result", "tool_use_id": "t2", "content": "stopped"}]}}));
    stopped.says("Stopped it.");
    let report = |status: &str, end: &str| {
        alone(&in_background(receipt, details.clone(), status, &format!("{command} {end}")))
    };
    vec![
        (
            "in the background, ok",
            report("completed", "completed (exit code 0)"),
            &[("s", "", "completed", "ok", "ok", 17)],
        ),
        (
            "in the background, failed",
            report("failed", "failed with exit code 3"),
            &[("s", "", "completed", "failed", "failed", 17)],
        ),
        (
            "in the background, killed",
            report("killed", "was stopped"),
            &[("s", "", "completed", "unknown", "unknown", 17)],
        ),
        (
            "in the background, stopped by the agent",
            alone(&stopped),
            &[("s", "", "completed", "ok", "unknown ok", 24)],
        ),
        (
            "moved to the background",
            alone(&in_background(moved, timeout, "failed", "failed with exit code 3")),
            &[("s", "", "completed", "failed", "failed", 17)],
        ),
        (
            "in the background, never ended",
            alone(&called("Bash", receipt, json!({"toolUseResult": details}))),
            &[("s", "", "completed", "unknown", "unknown", 12)],
        ),
    ]
}

fn refusals() -> Vec<Situation> {
    let refused = |fields: Value| {
        let mut all = json!({"is_error": true});
        all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        all
    };
    let rule = json!({"toolDenialKind": "permission-rule",
        "permissionDecision": {"decision": "reject", "reasonCode": "rule:userSettings"}});
    let file = json!({"permissionDecision": {"decision": "reject"}});
    let hook = json!({"toolDenialKind": "permission-rule",
        "permissionDecision": {"decision": "reject", "source": "hook"}});
    let person = json!({"toolDenialKind": "user-rejected", "toolDenialBeforeRun": true});
    let mut cut_off = session();
    cut_off.call("t", "Bash", json!({"command": "make"}));
    result(&mut cut_off, REFUSED, refused(json!({"toolDenialKind": "user-rejected"})));
    cut_off.user("[Request interrupted by user for tool use]");
    let truth: &[Truth] = &[("s", "", "completed", "unknown", "not_run", 12)];
    let text = "<tool_use_error>File is in a directory that is denied by your permission settings.";
    vec![
        ("rule", alone(&called("Bash", "Permission to use Bash", refused(rule))), truth),
        ("rule for a file", alone(&called("Edit", text, refused(file))), truth),
        ("hook", alone(&called("Bash", "PreToolUse:Bash hook error: no", refused(hook))), truth),
        ("refused by its person", alone(&called("Bash", REFUSED, refused(person.clone()))), truth),
        (
            "blocked by the program",
            alone(&called("Bash", "<tool_use_error>Blocked: standalone sleep", refused(json!({})))),
            truth,
        ),
        ("stopped while it ran", alone(&cut_off), &[("s", "", "unknown", "unknown", "unknown", 7)]),
        ("question, declined", alone(&called("AskUserQuestion", REFUSED, refused(person))), truth),
    ]
}

fn ways_of_a_session() -> Vec<Situation> {
    let mut asking = session();
    asking.call("t", "AskUserQuestion", json!({"questions": [{"question": "Which?"}]}));
    let mut answered = asking.clone();
    result(&mut answered, "Answered.", json!({"toolUseResult": {"answers": {"Which?": "A"}}}));
    let mut planning = session();
    planning.bash("a", "ls", "x").call("t", "ExitPlanMode", json!({"plan": "Do it."}));
    let mut approved = planning.clone();
    result(&mut approved, "User has approved your plan.", json!({})).says("Done.");
    let mut killed = session();
    killed.call("t", "Bash", json!({"command": "sleep 60"}));
    let mut continued = killed.clone();
    continued.user("Go on.").bash("b", "make", "done").says("Done.");
    let mut compacted = session();
    compacted.bash("a", "make", "done");
    compacted.line(json!({"type": "system", "subtype": "compact_boundary"}));
    compacted.line(json!({"type": "user", "isCompactSummary": true,
        "message": {"content": "This session is being continued."}}));
    compacted.bash("b", "make", "done").says("Done.");
    let mut api_error = session();
    api_error.line(json!({"type": "assistant", "isApiErrorMessage": true, "message": {
        "model": "<synthetic>", "content": [{"type": "text", "text": "API Error: 500"}]}}));
    let spilled = json!({"toolUseResult": {"stdout": "1\n",
        "persistedOutputPath": "/h/s/tool-results/x.txt", "persistedOutputSize": 4}});
    let text = "<persisted-output>\nOutput too large. Full output saved to: /h/x.txt";
    let mut spilled = alone(&called("Bash", text, spilled));
    spilled.push((format!("{PROJECT}/s/tool-results/x.txt"), b"1\n2\n".to_vec()));
    let mut edits = ["s", "f"].map(Transcript::new);
    for session in &mut edits {
        session.user("Do it.").call(
            "t",
            "Edit",
            json!({"file_path": "/home/dev/app/a.js",
            "old_string": "a", "new_string": "b"}),
        );
        result(session, "It has been updated.", json!({})).says("Done.");
    }
    let of_copies: &[Truth] =
        &[("f", "", "completed", "ok", "ok", 12), ("s", "", "completed", "failed", "failed", 12)];
    vec![
        ("question, open", alone(&asking), &[("s", "", "waiting", "unknown", "unknown", 7)]),
        ("question, answered", alone(&answered), &[("s", "", "running", "unknown", "ok", 7)]),
        ("plan, open", alone(&planning), &[("s", "", "waiting", "unknown", "ok unknown", 14)]),
        ("plan, approved", alone(&approved), &[("s", "", "completed", "ok", "ok ok", 19)]),
        ("killed in a call", alone(&killed), &[("s", "", "running", "unknown", "unknown", 7)]),
        (
            "killed, then continued",
            alone(&continued),
            &[("s", "", "completed", "unknown", "unknown ok", 19)],
        ),
        ("compacted", alone(&compacted), &[("s", "", "completed", "ok", "ok ok", 19)]),
        ("API error", alone(&api_error), &[("s", "", "failed", "failed", "", 0)]),
        ("spilled output", spilled, &[("s", "", "completed", "ok", "ok", 12)]),
        (
            "two sessions at once",
            vec![at("s.jsonl", &edits[0]), at("f.jsonl", &edits[1])],
            &[("f", "", "completed", "ok", "ok", 12), ("s", "", "completed", "ok", "ok", 12)],
        ),
        ("/bg", copied(|line| line["sessionKind"] = json!("bg")), of_copies),
        (
            "/branch",
            copied(|line| line["forkedFrom"] = json!({"sessionId": "s", "messageUuid": "u1"})),
            of_copies,
        ),
        ("--fork-session", copied(|_| ()), of_copies),
    ]
}

/// Nested subagents, of which the last one fails, and a fork.
fn subagents() -> Situation {
    let started = |transcript: &mut Transcript, agent: &str| {
        transcript.call("t", "Agent", json!({"prompt": "Look."}));
        let details = json!({"isAsync": true, "status": "async_launched", "agentId": agent});
        result(transcript, "Async agent launched successfully.", json!({"toolUseResult": details}));
        let report = format!(
            "<task-notification>\n<task-id>{agent}</task-id>\n<tool-use-id>t</tool-use-id>\n\
             <status>completed</status>\n<summary>Agent \"x\" finished</summary>\n\
             </task-notification>"
        );
        transcript.line(json!({"type": "user", "origin": {"kind": "task-notification"},
            "message": {"content": report}}));
        transcript.says("Done.");
    };
    let (mut first, mut outer, mut inner) =
        (session(), Transcript::of_agent("s", "a1"), Transcript::of_agent("s", "a2"));
    started(&mut first, "a1");
    started(outer.user("Look."), "a2");
    inner.user("Look.").call("t", "Bash", json!({"command": "make"}));
    result(&mut inner, "Exit code 2", json!({"is_error": true})).says("I looked.");
    let mut fork = Transcript::of_agent("s", "a3");
    fork.line(json!({"type": "fork-context-ref", "parentSessionId": "s", "uuid": null}));
    fork.call("t", "Agent", json!({"prompt": "Look."})).user(json!([
        {"type": "tool_result", "tool_use_id": "t", "content": "Fork started — that fork is you."},
        {"type": "text", "text":
            "<fork-boilerplate>\nYou are a fork.\n</fork-boilerplate>\n\nYour directive: Look."}]));
    fork.bash("own", "ls", "x").says("I looked.");
    let mut files = vec![at("s.jsonl", &first)];
    for (id, agent, metadata) in [
        ("a1", &outer, json!({})),
        ("a2", &inner, json!({"parentAgentId": "a1", "spawnDepth": 2})),
        ("a3", &fork, json!({"isFork": true, "toolUseId": "t"})),
    ] {
        files.push(at(&format!("s/subagents/agent-{id}.jsonl"), agent));
        let file = format!("{PROJECT}/s/subagents/agent-{id}.meta.json");
        files.push((file, metadata.to_string().into_bytes()));
    }
    let truth: &[Truth] = &[
        ("a1", "s", "completed", "ok", "ok", 12),
        ("a2", "a1", "completed", "failed", "failed", 12),
        ("a3", "s", "completed", "ok", "ok", 12),
        ("s", "", "completed", "ok", "ok", 12),
    ];
    ("nested subagents and a fork", files, truth)
}

/// Returns what of a swarm differs from the truth.
fn differences(tree: &Tree, name: &str, truth: &[Truth]) -> Option<String> {
    let mut seen = Vec::new();
    for id in rows(tree).into_keys() {
        let index = index(tree, &id);
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let calls = index["tool_calls"].as_array().unwrap();
        let outcomes: Vec<String> = calls.iter().map(|call| word(&call["outcome"])).collect();
        let tokens = index["tokens"]["output"].as_u64().unwrap_or_default();
        let [parent, status, outcome] =
            ["parent_id", "status", "outcome"].map(|field| word(&index[field]));
        seen.push((id, parent, status, outcome, outcomes.join(" "), tokens));
    }
    let owned = truth.iter().map(|(id, parent, status, outcome, calls, tokens)| {
        let [id, parent, status, outcome, calls] =
            [id, parent, status, outcome, calls].map(|word| (*word).to_owned());
        (id, parent, status, outcome, calls, *tokens)
    });
    let truth: Vec<_> = owned.collect();
    (seen != truth).then(|| format!("{name}: {seen:#?} instead of {truth:#?}"))
}

#[test]
fn situations_of_claude_code_are_read() {
    let situations = background().into_iter().chain(refusals()).chain(ways_of_a_session());
    let mut wrong = Vec::new();
    for (name, files, truth) in situations.chain([subagents()]) {
        let store = transcript::store();
        for (file, bytes) in files {
            store.write(&path(file), bytes);
        }
        let tree = transcript::tree(&store);
        wrong.extend(differences(&tree, name, truth));
        if name == "spilled output" {
            assert_eq!(text(&tree, "s", "tool_calls/001_Bash.txt"), "1\n2\n");
        }
        if name == "two sessions at once" {
            let summary = see(&tree, "summary").unwrap().text().to_owned();
            assert!(summary.contains("edited by two at once"), "{summary}");
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Appends a message and its tokens, as the newest version counts them.
fn counted(rollout: &mut Rollout, total: u64) -> &mut Rollout {
    let tokens = |output| json!({"input_tokens": 100, "output_tokens": output});
    rollout.event(
        "token_count",
        json!({"info": {"last_token_usage": tokens(20),
        "total_token_usage": tokens(total)}}),
    )
}

#[test]
fn situations_of_codex_are_read() {
    let begun = || {
        let mut rollout = Rollout::begun();
        counted(&mut rollout, 20);
        rollout
    };
    let ended = |mut rollout: Rollout| {
        rollout.says("Done.").complete();
        rollout
    };
    let mut exec = begun();
    exec.command("a", "make", 2, "no").command("b", "ls", 0, "x");
    let mut interrupted = begun();
    interrupted.call("a", "exec_command", json!({"cmd": "sleep 60"}));
    interrupted.output("a", "Wall time: 3.0 seconds\naborted by user");
    interrupted.event("turn_aborted", json!({"reason": "interrupted"}));
    interrupted.operation("CommandExecution", "a", json!({"exit_code": -1, "status": "failed"}));
    let mut code = begun();
    code.custom("w", "exec", "await tools.exec_command({cmd: 'make'})");
    code.operation(
        "CommandExecution",
        "exec-1",
        json!({"command": ["make"], "exit_code": 2,
        "status": "failed", "aggregated_output": "no\n"}),
    );
    code.output("w", "Script completed\nWall time 0.1 seconds\nOutput:\nno\n");
    let mut cell = begun();
    cell.custom("w", "exec", "slow()").output("w", "Script running with cell ID 5\nOutput:\n");
    let mut compacted = begun();
    compacted.command("a", "ls", 0, "x").line("compacted", json!({"message": "So far."}));
    compacted.operation("ContextCompaction", "c", json!({}));
    counted(&mut compacted, 60).command("b", "ls", 0, "x");
    let mut api_error = begun();
    api_error.event("task_complete", json!({"turn_id": "t1", "error": {"message": "500"}}));
    let of = |text: String, meta: &Value| {
        let line = json!({"timestamp": "2026-11-01T10:00:00.000Z", "type": "session_meta",
            "ordinal": 0, "payload": meta});
        format!("{line}\n{}", text.split_once('\n').unwrap().1)
    };
    let (mut child, mut fork) = (begun(), Rollout::begun());
    child.command("c", "make", 2, "no").command("d", "make", 0, "done");
    counted(&mut fork, 60).command("e", "ls", 0, "x");
    let text = |rollout: &Rollout| String::from_utf8(rollout.bytes()).unwrap();
    let child = of(
        text(&ended(child)),
        &json!({"id": OTHER_ID, "session_id": ID,
        "parent_thread_id": ID, "agent_path": "/root/disk", "cwd": "/app"}),
    );
    let fork = of(
        text(&ended(fork)),
        &json!({"id": OTHER_ID, "session_id": OTHER_ID,
        "forked_from_id": ID, "forked_from_ordinal_exclusive": 9, "cwd": "/app"}),
    );
    let file = |id: &str| codex::place(id);
    let archived = file(ID).replace("sessions/2026/11/01", "archived_sessions");
    let plain = |rollout: &Rollout| vec![(file(ID), rollout.bytes())];
    let other = |text: String| {
        vec![(file(ID), ended(exec.clone()).bytes()), (file(OTHER_ID), text.into_bytes())]
    };
    let session: Truth = (ID, "", "completed", "failed", "failed ok", 20);
    let situations: Vec<(&str, Files, Vec<Truth>)> = vec![
        ("exec", plain(&ended(exec.clone())), vec![session]),
        ("archived", vec![(archived, ended(exec.clone()).bytes())], vec![session]),
        ("interrupted", plain(&interrupted), vec![(ID, "", "unknown", "failed", "failed", 20)]),
        ("code mode", plain(&ended(code)), vec![(ID, "", "completed", "failed", "ok failed", 20)]),
        (
            "yielded cell",
            plain(&ended(cell)),
            vec![(ID, "", "completed", "unknown", "unknown", 20)],
        ),
        ("compacted", plain(&ended(compacted)), vec![(ID, "", "completed", "ok", "ok ok", 60)]),
        ("API error", plain(&api_error), vec![(ID, "", "failed", "failed", "", 20)]),
        (
            "subagent",
            other(child),
            vec![session, (OTHER_ID, ID, "completed", "ok", "failed ok", 20)],
        ),
        ("fork", other(fork), vec![session, (OTHER_ID, "", "completed", "ok", "ok", 20)]),
    ];
    let mut wrong = Vec::new();
    for (name, files, truth) in situations {
        let store = Arc::new(Memory::new());
        for (file, bytes) in files {
            let bytes = String::from_utf8(bytes).unwrap().replace("0.169.0", "0.171.0");
            store.write(&path(file), bytes);
        }
        wrong.extend(differences(&codex::tree(&store), name, &truth));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
