//! `swarmletfs mcp --as supervisor`: creating workers, and asking a person to apply their changes.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use serde_json::{Value, json};

use super::http::{Server, TOKEN};
use super::process::{ProcessClient, texts};
use super::roles;
use crate::support::draft::{Node, Workbench, file, folder};
use crate::support::mount::PROGRAM;

fn trees() -> (Node, Node) {
    let old = folder([("a", file("a\n")), ("b", file("b\n"))]);
    let new = folder([("a", file("a2\n")), ("b", file("b2\n")), ("c", file("c\n"))]);
    (old, new)
}

fn bench() -> Workbench {
    Workbench::with_worker(trees())
}

fn command(bench: &Workbench, options: &[&str]) -> Command {
    let mut command = bench.command(&["mcp", "--as", "supervisor", "--no-cache"]);
    command.args(options);
    command
}

fn client(bench: &Workbench) -> ProcessClient {
    ProcessClient::start(command(bench, &[]), true)
}

fn accepted() -> Value {
    json!({"action": "accept", "content": {"apply": true}})
}

/// Returns the lines of the log of changes about an action.
fn logged(bench: &Workbench, action: &str) -> Vec<Value> {
    let listed = bench.run(&["audit", "--json"]);
    let lines = listed.assert_success().out.lines();
    let entries = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
    entries.filter(|entry| entry["action"] == action).collect()
}

/// Promise: `apply_changes` applies changes only after the person behind the client said yes.
///
/// A client of the official Python SDK, by both ways of the protocol to ask.
#[test]
fn only_a_yes_of_the_person_applies_changes() {
    let (old, new) = trees();
    let refusals = [
        ("unticked", "without a yes"),
        ("decline", "the person declined"),
        ("cancel", "the question was canceled"),
        ("late", "nobody answered in time"),
    ];
    for mode in ["auto", "legacy"] {
        let bench = bench();
        let store = bench.store.to_str().unwrap();
        let command = [
            PROGRAM,
            "mcp",
            "--as",
            "supervisor",
            "--no-cache",
            "--answer-timeout",
            "1",
            "--store",
            store,
        ];
        let session = |answer: Value| {
            let calls = json!([{"tool": "apply_changes", "arguments": {"worker": "w1"}}]);
            json!({
                "command": command, "mode": mode, "answer": answer, "delay": 1.2, "calls": calls,
            })
        };
        let answers = refusals.iter().map(|(answer, _)| json!(answer));
        let answers = [Value::Null].into_iter().chain(answers);
        let Some(done) = roles(answers.map(session).collect()) else { return };
        let names = |session: &Value| session["tools"].as_array().unwrap().clone();
        assert!(!names(&done[0]).contains(&json!("apply_changes")), "{mode}: {}", done[0]);
        assert!(done[0]["results"][0]["texts"][0].as_str().unwrap().contains("unknown tool"));
        for ((answer, reason), session) in refusals.iter().zip(&done[1..]) {
            assert!(names(session).contains(&json!("apply_changes")), "{mode}: {session}");
            let result = &session["results"][0];
            let text = result["texts"][0].as_str().unwrap();
            assert!(text.starts_with("nothing was applied") && text.contains(reason), "{text}");
            assert_eq!((&result["error"], bench.tree()), (&json!(true), old.clone()), "{answer}");
            let question = session["questions"][0]["message"].as_str().unwrap();
            assert!(question.contains("-a\n+a2\n") && question.contains("+c\n"), "{question}");
        }
        assert_eq!(logged(&bench, "apply").len(), refusals.len());
        let done = roles(vec![session(json!("yes"))]).unwrap();
        let result = &done[0]["results"][0];
        assert_eq!((&result["error"], bench.tree()), (&json!(false), new.clone()), "{result}");
        let entry = logged(&bench, "apply").pop().unwrap();
        assert_eq!(
            (&entry["role"], &entry["result"]),
            (&json!("supervisor"), &json!("ok")),
            "{entry}"
        );
        bench.run(&["undo", "w1", "--yes"]).assert_success();
        assert_eq!(bench.tree(), old);
    }
}

/// Promise: A client that cannot ask the person is not offered `apply_changes`.
#[test]
fn client_that_cannot_ask_is_not_offered_apply_changes() {
    let bench = bench();
    let mut client = ProcessClient::start(command(&bench, &[]), false);
    let tools = client.tools();
    assert!(tools.contains(&"changes".to_owned()) && !tools.contains(&"apply_changes".to_owned()));
    let answer =
        client.ask("tools/call", json!({"name": "apply_changes", "arguments": {"worker": "w1"}}));
    assert!(answer["error"]["message"].as_str().unwrap().contains("unknown tool"), "{answer}");
    client.end();
    // Nor is anybody who only reads.
    let mut reader = ProcessClient::start(bench.command(&["mcp", "--no-cache"]), true);
    let tools = reader.tools();
    for name in ["create_worker", "annotate_worker", "changes", "apply_changes", "write_file"] {
        assert!(!tools.contains(&name.to_owned()), "{name}");
    }
    assert_eq!(bench.tree(), trees().0);
}

/// Promise: What is applied is the diff that the person saw, or nothing.
#[test]
fn changes_that_differ_from_the_question_are_not_applied() {
    let bench = bench();
    let mut client = client(&bench);
    let old = bench.tree();
    // The answer comes after the change of the worker's files, or of the workspace.
    client.answers = [None].into();
    let arguments = json!({"name": "apply_changes", "arguments": {"worker": "w1"}});
    let id = client.begin("tools/call", arguments.clone());
    client.wait_for_question();
    let changed = folder([("a", file("evil\n")), ("b", file("b2\n"))]);
    bench.worker("w2", &old, &changed);
    for name in ["changes.json", "changes/a"] {
        let (from, to) = (bench.worker_folder("w2"), bench.worker_folder("w1"));
        fs::copy(from.join(name), to.join(name)).unwrap();
    }
    client.reply_to_last(accepted());
    let (text, is_error) = texts(&client.wait(id));
    assert!(is_error && text.contains("not those that the person saw"), "{text}");
    assert_eq!(bench.tree(), old);

    client.answers = [None].into();
    let id = client.begin("tools/call", arguments);
    client.wait_for_question();
    fs::write(bench.at("b"), "other\n").unwrap();
    client.reply_to_last(accepted());
    let (text, is_error) = texts(&client.wait(id));
    assert!(is_error && text.contains("conflict: b: "), "{text}");
    assert_eq!(fs::read_to_string(bench.at("a")).unwrap(), "a\n");
}

/// Promise: A question shows the diff with control characters escaped, and names what it leaves
/// out.
#[test]
fn question_is_bounded_and_escaped() {
    let long: String = (0..5_000).map(|line| format!("line {line}\n")).collect();
    let old = folder([("a", file("a\n"))]);
    let new = folder([
        ("a", file("a\u{1b}[2K\u{202e}b\r\n")),
        ("long", file(&long)),
        ("zero", Node::File { mode: 0o755, bytes: vec![0, 1, 2] }),
        (".git", folder([("config", file("[core]\n"))])),
    ]);
    let bench = Workbench::new(&old);
    bench.worker("w1", &old, &new);
    bench.edit_change("w1", "long", |change| {
        (change["added"], change["removed"]) = (5_000.into(), 0.into());
    });
    bench.edit_change("w1", "zero", |change| change["is_binary"] = true.into());
    let mut client = client(&bench);
    client.answers = [Some(json!({"action": "decline"}))].into();
    client.error("apply_changes", json!({"worker": "w1"}));
    let question = client.questions.pop().unwrap();
    assert!(question.len() < 24_000, "{}", question.len());
    assert!(!question.contains(['\u{1b}', '\u{202e}', '\r']), "{question}");
    assert!(question.contains("+a\\u{1b}[2K\\u{202e}b\\u{d}\n"), "{question}");
    for part in [
        "Apply 3 changes of worker w1 to ",
        "\nreplace a\nadd long\nadd zero\n",
        "left out: .git/config: ",
        "of long",
        "not shown: ",
        "shown as binary: add zero",
    ] {
        assert!(question.contains(part), "{part}: {question}");
    }
    assert_eq!(bench.tree(), old);
}

/// Promise: A question says in its second line how to see all of it, since a client may show only
/// its first lines.
#[test]
fn question_says_early_how_to_see_all_of_it() {
    let bench = bench();
    let mut client = client(&bench);
    client.answers = [Some(json!({"action": "decline"}))].into();
    client.error("apply_changes", json!({"worker": "w1"}));
    let lines: Vec<&str> = client.questions[0].lines().take(4).collect();
    let [first, second, third, _] = lines.as_slice() else { panic!("{lines:?}") };
    assert!(first.starts_with("Apply 3 changes of worker w1 to "), "{lines:?}");
    assert_eq!(*second, "To see all of it: `swarmletfs changes w1`");
    assert_eq!(*third, "replace a");
}

/// Promise: A question names every change that a yes applies, or it is not asked.
#[test]
fn question_names_every_change_or_is_not_asked() {
    let old = folder([]);
    let many = |count: usize| {
        let files =
            (0..count).map(|number| (format!("{number:03}"), file("x\n".repeat(50).as_str())));
        Node::Folder { mode: 0o755, entries: files.collect() }
    };
    for (count, is_asked) in [(60, true), (61, false)] {
        let bench = Workbench::with_worker((old.clone(), many(count)));
        let mut client = client(&bench);
        client.answers = [Some(json!({"action": "decline"}))].into();
        let error = client.error("apply_changes", json!({"worker": "w1"}));
        assert_eq!(client.questions.len(), usize::from(is_asked), "{error}");
        for question in &client.questions {
            for number in 0..count {
                let name = format!("{number:03}");
                assert!(question.contains(&format!("add {name}\n")), "{name}: {question}");
                let is_shown = question.contains(&format!("+++ b/{name}\n"));
                let is_named = question.contains(&format!(" of {name}\n"));
                assert!(is_shown || is_named, "{name}: {question}");
            }
        }
        assert!(is_asked || error.contains("61 changes at once: a question names at most 60"));
        assert_eq!(bench.tree(), old);
    }
}

#[test]
fn named_paths_are_applied_alone() {
    let bench = bench();
    let mut client = client(&bench);
    let error = client.error("apply_changes", json!({"worker": "w1", "paths": ["/etc/passwd"]}));
    assert!(error.contains("not in the workspace"), "{error}");
    let error = client.error("apply_changes", json!({"worker": "w2"}));
    assert!(error.contains("cannot find the worker w2"), "{error}");
    client.answers = [Some(accepted())].into();
    let text = client.text("apply_changes", json!({"worker": "w1", "paths": ["a"]}));
    assert!(text.starts_with("applied 1 change to "), "{text}");
    let expected = folder([("a", file("a2\n")), ("b", file("b\n"))]);
    assert_eq!(bench.tree(), expected);
    assert!(!client.questions[0].contains("b2"), "{}", client.questions[0]);
}

#[test]
fn question_ends_with_the_client_and_with_the_call() {
    let bench = bench();
    let old = bench.tree();
    let arguments = json!({"name": "apply_changes", "arguments": {"worker": "w1"}});
    let mut client = client(&bench);
    client.answers = [None, None].into();
    let id = client.begin("tools/call", arguments.clone());
    client.wait_for_question();
    client.notify("notifications/cancelled", json!({"requestId": id}));
    client.ask("ping", json!({}));
    // A late answer changes nothing.
    client.reply_to_last(accepted());
    client.ask("ping", json!({}));
    assert_eq!(bench.tree(), old);
    client.begin("tools/call", arguments);
    client.wait_for_question();
    client.end();
    assert_eq!(bench.tree(), old);
}

/// Promise: A supervisor that is limited to an owner or a run changes no other workers.
#[test]
fn limited_supervisor_changes_no_other_workers() {
    let bench = bench();
    let limits = ["--owner", "7", "--run", "48"];
    let mut client = ProcessClient::start(command(&bench, &limits), true);
    for tool in ["changes", "apply_changes"] {
        let error = client.error(tool, json!({"worker": "w1"}));
        assert!(error.contains("w1") && error.contains("try list_workers"), "{error}");
    }
    let error = client.error("annotate_worker", json!({"worker": "w1", "text": "mine"}));
    assert!(error.contains("cannot find the worker w1"), "{error}");
    let error = client.error("create_worker", json!({"task": "x", "run": "49"}));
    assert!(error.contains("cannot create a worker of another run"), "{error}");
    // A taken id would tell about a worker that is hidden.
    for id in ["w1", "mine"] {
        let error = client.error("create_worker", json!({"task": "x", "id": id}));
        assert_eq!(
            error,
            "cannot choose an id in a view of an owner; leave out id to get a new one"
        );
    }
    let made = client.text("create_worker", json!({"task": "x"}));
    let made: Value = serde_json::from_str(&made).unwrap();
    let folder = bench.worker_folder(made["worker_id"].as_str().unwrap());
    let metadata = fs::read(folder.join("metadata.json")).unwrap();
    let metadata: Value = serde_json::from_slice(&metadata).unwrap();
    let limits = (&metadata["owner_id"], &metadata["run_id"]);
    assert_eq!(limits, (&json!("7"), &json!("48")), "{metadata}");
}

/// Promise: What a supervisor changes by a tool is in the log of changes, with its role, and its
/// next read shows it.
#[test]
fn supervisor_creates_and_annotates_workers() {
    let bench = bench();
    let mut client = client(&bench);
    let made = client.text(
        "create_worker",
        json!({
            "task": "Check the backups", "id": "w2", "type": "ops", "parent": "w1", "run": "48",
            "job": "3", "model": "m", "tags": ["nightly", "db"],
        }),
    );
    let made: Value = serde_json::from_str(&made).unwrap();
    assert_eq!(made, json!({"worker_id": "w2", "path": "workers/w2"}));
    let metadata = fs::read(bench.worker_folder("w2").join("metadata.json")).unwrap();
    let metadata: Value = serde_json::from_slice(&metadata).unwrap();
    for (key, value) in [
        ("task", json!("Check the backups")),
        ("task_type", json!("ops")),
        ("parent_id", json!("w1")),
        ("run_id", json!("48")),
        ("job_id", json!("3")),
        ("model", json!("m")),
        ("tags", json!(["nightly", "db"])),
        ("status", json!("running")),
    ] {
        assert_eq!(metadata[key], value, "{key}");
    }
    let error = client.error("create_worker", json!({"task": "x", "id": "w2"}));
    assert!(error.contains("the id is taken"), "{error}");
    let error = client.error("create_worker", json!({"task": "x", "id": "../w3"}));
    assert!(error.contains("cannot use"), "{error}");
    client.text("create_worker", json!({"task": "x", "id": "a-long-name"}));
    // What the supervisor has written, it reads at once.
    let text = client.text("annotate_worker", json!({"worker": "a-lo", "text": "a late one"}));
    assert_eq!(text, "a-long-name is annotated");
    assert!(client.text("summarize", json!({"worker": "a-long-name"})).contains("a late one"));
    assert!(!client.text("summarize", json!({"worker": "w1"})).contains("the best one"));
    client.text("annotate_worker", json!({"worker": "w1", "text": "the best one"}));
    assert!(client.text("summarize", json!({"worker": "w1"})).contains("the best one"));
    let metadata = fs::read_to_string(bench.worker_folder("w1").join("metadata.json")).unwrap();
    assert!(metadata.contains("the best one"), "{metadata}");
    let diff = client.text("changes", json!({"worker": "w1"}));
    assert!(diff.contains("-a\n+a2\n"), "{diff}");
    let diff = client.text("changes", json!({"worker": "w1", "bytes": 300}));
    assert!(diff.len() <= 300, "{diff}");
    let error = client.error("changes", json!({"worker": "w1", "bytes": 300, "tokens": 300}));
    assert!(error.contains("not both"), "{error}");
    for (action, worker) in [("create", "w2"), ("annotate", "w1")] {
        let logged = logged(&bench, action);
        let entry = logged.iter().find(|entry| entry["worker"] == worker).unwrap();
        assert_eq!(entry["role"], "supervisor", "{entry}");
    }
}

#[test]
fn person_is_asked_over_http_by_the_protocol_without_sessions_only() {
    let (_, new) = trees();
    let bench = bench();
    let server = Server::start_command(command(&bench, &["--http", "127.0.0.1:0"]));
    let session = |mode: &str| {
        let calls = json!([{"tool": "apply_changes", "arguments": {"worker": "w1"}}]);
        json!({
            "url": server.url(), "token": TOKEN, "mode": mode, "answer": "yes", "calls": calls,
        })
    };
    let Some(done) = roles(vec![session("legacy"), session("auto")]) else { return };
    let [legacy, auto] = done.try_into().unwrap();
    let offers =
        |session: &Value| session["tools"].as_array().unwrap().contains(&json!("apply_changes"));
    assert_eq!((offers(&legacy), offers(&auto)), (false, true));
    assert_eq!(legacy["results"][0]["error"], true, "{legacy}");
    assert_eq!((&auto["results"][0]["error"], bench.tree()), (&json!(false), new), "{auto}");
}

/// Promise: A question that is answered by a repeated call is answered once, and only for the call
/// that asked it.
#[test]
fn question_is_answered_once_and_by_its_own_call() {
    let bench = bench();
    let (old, new) = trees();
    let mut client = ProcessClient::spawn(command(&bench, &[]));
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
    });
    let call =
        |arguments: Value| json!({"name": "apply_changes", "arguments": arguments, "_meta": meta});
    let mut call_again = |arguments: Value, state: Option<&Value>| {
        let mut params = call(arguments);
        if let Some(state) = state {
            params["requestState"] = state.clone();
            params["inputResponses"] = json!({"apply": accepted()});
        }
        client.ask("tools/call", params)["result"].clone()
    };
    let all = json!({"worker": "w1"});
    let first = call_again(json!({"worker": "w1", "paths": ["a"]}), None);
    assert_eq!(first["resultType"], "input_required", "{first}");
    // A yes to one question does not apply other changes, and uses the question up.
    for arguments in [all.clone(), json!({"worker": "w1", "paths": ["a"]})] {
        let refused = call_again(arguments, Some(&first["requestState"]));
        let text = refused["content"][0]["text"].as_str().unwrap();
        assert!(text.contains("no such question waits"), "{refused}");
    }
    let refused = call_again(all.clone(), Some(&json!("guessed")));
    assert_eq!((&refused["isError"], bench.tree()), (&json!(true), old), "{refused}");
    let asked = call_again(all.clone(), None);
    let done = call_again(all.clone(), Some(&asked["requestState"]));
    assert_eq!((&done["isError"], bench.tree()), (&json!(false), new), "{done}");
    let refused = call_again(all, Some(&asked["requestState"]));
    assert_eq!(refused["isError"], true, "{refused}");
}

/// Promise: A supervisor writes notes beneath `supervisor/` only, whole or not at all, and reads
/// them at once.
#[test]
fn notes_are_written_beneath_their_folder() {
    let bench = bench();
    let outside = bench.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let mut client = client(&bench);
    for (path, content) in
        [("strategy.md", "Plan\n"), ("deep/er/map.json", "{}"), ("strategy.md", "")]
    {
        let text = client.text("write_note", json!({"path": path, "content": content}));
        assert_eq!(text, format!("wrote supervisor/{path}"));
        assert_eq!(client.text("read_note", json!({"path": path})), content);
        let tree = client.text("read_file", json!({"path": format!("supervisor/{path}")}));
        assert_eq!(tree, content);
    }
    symlink(&outside, bench.store.join("supervisor/out")).unwrap();
    symlink(outside.join("file"), bench.store.join("supervisor/link")).unwrap();
    fs::write(outside.join("file"), "secret").unwrap();
    let long = "x".repeat(300);
    for path in [
        "../workers/w1/result.txt",
        "/etc/passwd",
        "",
        ".",
        "a//b",
        "out/file",
        "link",
        "deep",
        ".swarmletfs-x",
        &long,
    ] {
        let error = client.error("write_note", json!({"path": path, "content": "evil"}));
        assert!(error.starts_with("cannot "), "{path}: {error}");
        let error = client.error("read_note", json!({"path": path}));
        assert!(!error.contains("secret"), "{path}: {error}");
    }
    assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "secret");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
    assert!(!bench.worker_folder("w1").join("result.txt").exists());
    let logged = logged(&bench, "note");
    assert_eq!(logged.len(), 13);
    let entry = &logged[1];
    assert_eq!(
        (&entry["role"], &entry["paths"][0]["path"], &entry["result"]),
        (&json!("supervisor"), &json!("supervisor/deep/er/map.json"), &json!("ok")),
        "{entry}"
    );
    let mut limited = ProcessClient::start(command(&bench, &["--owner", "7"]), true);
    for (tool, arguments) in [
        ("write_note", json!({"path": "a", "content": ""})),
        ("read_note", json!({"path": "strategy.md"})),
    ] {
        assert!(limited.error(tool, arguments).contains("they are about all workers"));
    }
}
