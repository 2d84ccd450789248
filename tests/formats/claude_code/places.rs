//! Tests of where transcripts lie, whose they are, and which files lie beside them.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::time::Duration;

use swarmletfs_tree::tree::{Settings, Tree};
use swarmletfs_tree::view::Filter;

use super::*;
use crate::formats::{checks, fifo};
use crate::support::TestStore;
use crate::support::transcript::{PROJECT, path};

fn agent(session: &str, id: &str) -> Transcript {
    let mut transcript = Transcript::of_agent(session, id);
    transcript.user(format!("the task of {id}")).bash("t", "ls", "files").says("I have looked.");
    transcript
}

/// Promise: Every session and every subagent is a worker, in every layout of transcripts.
#[test]
fn every_session_and_subagent_is_a_worker() {
    let store = store();
    let mut session = begun();
    session.call("toolu_task", "Task", json!({"prompt": "look", "subagent_type": "Explore"}));
    // Reported as progress.
    let uses = json!([{"type": "tool_use", "id": "p1", "name": "Grep", "input": {"pattern": "x"}}]);
    let result = json!([{"type": "tool_result", "tool_use_id": "p1", "content": "found"}]);
    session.progress("prog", "user", json!({"role": "user", "content": texts(&["search it"])}));
    session.progress(
        "prog",
        "assistant",
        json!({"id": "m", "model": "claude-small", "content": uses}),
    );
    session.progress("prog", "user", json!({"role": "user", "content": result}));
    // A side chain that names its agent.
    session.line(json!({"type": "user", "isSidechain": true, "agentId": "side", "message": {"content": "go aside"}}));
    let words = json!({"id": "m9", "content": texts(&["I went."])});
    session.line(
        json!({"type": "assistant", "isSidechain": true, "agentId": "side", "message": words}),
    );
    // Two that do not; their parent lines tell them apart.
    let old = |uuid: &str, parent: Value, kind: &str, content: Value| json!({"type": kind, "isSidechain": true, "uuid": uuid, "parentUuid": parent, "message": {"content": content}});
    session.line(old("old1", json!(null), "user", json!("the first of old")));
    session.line(old("old2", json!(null), "user", json!("the second of old")));
    session.line(old("old1b", json!("old1"), "assistant", texts(&["first here"])));
    session.line(old("old2b", json!("old2"), "assistant", texts(&["second here"])));
    let block =
        json!([{"type": "tool_result", "tool_use_id": "toolu_task", "content": "all done"}]);
    session.line(json!({"type": "user", "message": {"content": block},
        "toolUseResult": {"agentId": "prog", "status": "completed", "totalTokens": 9}}));
    session.says("All done.");
    put(&store, "s", &session);
    let put_agent =
        |at: &str, id: &str| store.write(&path(format!("{PROJECT}/{at}")), agent("s", id).bytes());
    put_agent("s/subagents/agent-own.jsonl", "own");
    let meta = json!({"agentType": "Explore", "description": "Looks around", "toolUseId": "toolu_x", "spawnDepth": 1});
    store.write(&path(format!("{PROJECT}/s/subagents/agent-own.meta.json")), meta.to_string());
    // A store of sessions without files has the metadata in the transcript.
    let line = json!({"type": "agent_metadata", "agentType": "Plan", "description": "Thinks"});
    let bytes = [format!("{line}\n").into_bytes(), agent("s", "flow").bytes().to_vec()].concat();
    store.write(&path(format!("{PROJECT}/s/subagents/workflows/wf_1/agent-flow.jsonl")), bytes);
    put_agent("agent-older.jsonl", "older");
    store.write(
        &path(format!("{PROJECT}/s/subagents/workflows/wf_1/journal.jsonl")),
        "{\"type\":\"user\"}\n",
    );

    let seen = read_once(&store);
    let workers = ["flow", "old1", "old2", "older", "own", "prog", "s", "side"];
    assert_eq!(seen.workers(), workers);
    for worker in workers {
        let index = seen.index(worker);
        assert_eq!(index["run_id"], "s", "{worker}");
        let parent = if worker == "s" { Value::Null } else { json!("s") };
        assert_eq!(index["parent_id"], parent, "{worker}");
        assert_eq!(
            index["status"],
            if worker == "prog" { "completed" } else { index["status"].as_str().unwrap() }
        );
        assert_eq!(index["cwd"], "/home/dev/app", "{worker}");
    }
    for (worker, task) in [
        ("s", "look around"),
        ("prog", "search it"),
        ("side", "go aside"),
        ("old1", "the first of old"),
        ("old2", "the second of old"),
        ("own", "the task of own"),
        ("flow", "the task of flow"),
        ("older", "the task of older"),
    ] {
        assert_eq!(seen.index(worker)["task"], task);
    }
    assert_eq!(seen.text("prog", "tool_calls/001_Grep.txt"), "found");
    assert_eq!(seen.text("old2", "result.txt"), "second here");
    assert_eq!(seen.calls("s"), ["001_Task.txt"]);
    let own = seen.index("own");
    assert_eq!((&own["task_type"], &own["summary"]), (&json!("Explore"), &json!("Looks around")));
    let flow = seen.index("flow");
    assert_eq!((&flow["task_type"], &flow["summary"]), (&json!("Plan"), &json!("Thinks")));
    assert_eq!(seen.bytes("own", "source.meta.json"), meta.to_string().as_bytes());
    // A subagent inside a session is shown with its lines, byte for byte.
    let whole = session.bytes();
    let lines: Vec<&[u8]> = whole.split_inclusive(|byte| *byte == b'\n').collect();
    for (worker, numbers) in
        [("prog", vec![2, 3, 4]), ("side", vec![5, 6]), ("old1", vec![7, 9]), ("old2", vec![8, 10])]
    {
        let theirs: Vec<u8> =
            numbers.into_iter().flat_map(|number: usize| lines[number].to_vec()).collect();
        assert_eq!(seen.bytes(worker, "source.jsonl"), theirs, "{worker}");
    }
    assert_eq!(seen.bytes("s", "source.jsonl"), whole);
    let children: Vec<&str> = workers.into_iter().filter(|worker| *worker != "s").collect();
    for child in children {
        let link = &seen.0[format!("workers/s/children/{child}").as_bytes()];
        assert_eq!(*link, crate::support::Seen::Link(format!("../../{child}").into_bytes()));
        assert!(seen.0.contains_key(format!("runs/s/workers/{child}").as_bytes()));
    }
    assert_eq!(seen.0[&b"runs/latest"[..]], crate::support::Seen::Link(b"s".to_vec()));
}

/// Promise: A subagent that is recorded twice is one worker.
///
/// Some versions record a subagent twice: in a file of its own, and as progress of its session.
#[test]
fn subagent_recorded_twice_is_one_worker() {
    for own in
        ["s/subagents/agent-a1.jsonl", "s/subagents/workflows/w/agent-a1.jsonl", "agent-a1.jsonl"]
    {
        let store = store();
        let mut session = begun();
        session.progress("a1", "user", json!({"role": "user", "content": "told in short"}));
        session.progress("a2", "user", json!({"role": "user", "content": "told here alone"}));
        put(&store, "s", &session);
        // An agent of another session is a different agent.
        let mut other = Transcript::new("other");
        other.user("look").progress("a1", "user", json!({"role": "user", "content": "another a1"}));
        put(&store, "other", &other);
        store.write(&path(format!("{PROJECT}/{own}")), agent("s", "a1").bytes());
        let seen = read_once(&store);
        let mut workers = vec!["a1", "a1~2", "a2", "other", "s"];
        if own == "agent-a1.jsonl" {
            // Only its lines name its session.
            workers.remove(1);
        }
        assert_eq!(seen.workers(), workers, "{own}");
        let tasks: Vec<Value> =
            seen.workers().iter().map(|worker| seen.index(worker)["task"].clone()).collect();
        assert!(
            tasks.contains(&json!("the task of a1")) && !tasks.contains(&json!("told in short")),
            "{own}: {tasks:?}"
        );
    }
}

/// Promise: Subagents with the same id in two sessions are two workers, each with its own parent.
#[test]
fn same_subagent_id_in_two_sessions_is_two_workers() {
    let store = store();
    for session in ["s1", "s2"] {
        let mut transcript = Transcript::new(session);
        transcript.user(format!("the task of {session}")).says("done");
        put(&store, session, &transcript);
        let place = path(format!("{PROJECT}/{session}/subagents/agent-same.jsonl"));
        store.write(&place, agent(session, "same").bytes());
    }
    let seen = read_once(&store);
    assert_eq!(seen.workers(), ["s1", "s2", "same", "same~2"]);
    assert_eq!(
        (&seen.index("same")["run_id"], &seen.index("same~2")["run_id"]),
        (&json!("s1"), &json!("s2"))
    );
    assert!(seen.has("s1", "children/same") && !seen.has("s1", "children/same~2"));
    assert!(seen.has("s2", "children/same~2") && !seen.has("s2", "children/same"));
}

/// Promise: A store of transcripts is the directory of Claude Code, its `projects`, or one project.
#[test]
fn transcript_store_is_a_root_its_projects_or_one_project() {
    let disk = TestStore::new();
    let mut session = begun();
    session.says("done");
    disk.write("claude/projects/-home-dev-app/s.jsonl", session.bytes());
    disk.write("claude/projects/-home-dev-app/s/subagents/agent-a.jsonl", agent("s", "a").bytes());
    disk.write("claude/history.jsonl", "{\"display\":\"x\"}\n");
    disk.write("claude/settings.json", "{}");
    for root in ["claude", "claude/projects", "claude/projects/-home-dev-app"] {
        let source = swarmletfs_tree::catalog::Source::open(&disk.at(root))
            .unwrap_or_else(|error| panic!("{root}: {error}"));
        assert_eq!(source.format().name(), "claude-code");
        let view =
            swarmletfs_tree::view::View::new(vec![source], Default::default(), Default::default())
                .unwrap();
        let seen = Checked::of(&swarmletfs_tree::tree::Tree::new(view, Default::default()));
        assert_eq!(seen.workers(), ["a", "s"], "{root}");
        assert!(seen.has("s", "children/a"), "{root}");
    }
}

#[test]
fn a_transcript_is_recognized_by_any_of_its_first_lines() {
    for (first, ours) in [
        (r#"{"type":"user","uuid":"u","sessionId":"s","message":{"content":"x"}}"#, true),
        (r#"{"type":"summary","summary":"x","leafUuid":"u"}"#, true),
        (r#"{"type":"file-history-snapshot","messageId":"m","snapshot":{}}"#, true),
        // The first lines of a session without a terminal.
        (
            r#"{"type":"queue-operation","operation":"enqueue","sessionId":"s","timestamp":"2026-02-01T10:00:00Z"}"#,
            true,
        ),
        (r#"{"type":"permission-mode","permissionMode":"default","sessionId":"s"}"#, true),
        (r#"{"type":"last-prompt","lastPrompt":"x","sessionId":"s"}"#, true),
        ("junk", true),
        (r#"{"type":"session_meta","payload":{"id":"x"}}"#, true),
    ] {
        let disk = TestStore::new();
        let mut session = Transcript::new("s");
        session.raw(format!("{first}\n")).user("look").says("done");
        disk.write("p/s.jsonl", session.bytes());
        let found = swarmletfs_tree::catalog::Source::open(&disk.path());
        assert_eq!(found.is_ok(), ours, "{first}");
    }
    for alone in [
        r#"{"type":"user","message":"x"}"#,
        r#"{"type":"session_meta","payload":{}}"#,
        "{}",
        "junk",
        "",
    ] {
        let disk = TestStore::new();
        disk.write("p/s.jsonl", format!("{alone}\n"));
        let opened = swarmletfs_tree::catalog::Source::open(&disk.path());
        assert!(opened.map_or(true, |source| source.format().name() != "claude-code"), "{alone}");
    }
}

/// A session on disk with a call whose result was too large for its transcript.
fn spilled(id: &str) -> (TestStore, Transcript) {
    let disk = TestStore::new();
    let mut session = begun();
    session.call(id, "Bash", json!({"command": "big"}));
    session.result(id, json!({"content": "<persisted-output>\nOutput too large (2 MB). Full output saved to: /x\n"}));
    session.bash("next", "small", "small").says("done");
    disk.write("p/s.jsonl", session.bytes());
    (disk, session)
}

fn see_disk(disk: &TestStore) -> Checked {
    Checked::of(&disk.tree())
}

/// Promise: A tool result in its own file is shown whole if that file is readable.
#[test]
fn result_in_its_own_file_is_shown_whole() {
    let large = "a line of output\n".repeat(120_000);
    let (disk, _) = spilled("toolu_1");
    let file = disk.write("p/s/tool-results/toolu_1.txt", &large);
    let seen = see_disk(&disk);
    assert_eq!(seen.text("s", "tool_calls/001_Bash.txt"), large);
    assert_eq!(seen.index("s")["source"]["truncated_outputs"], json!([]));
    // Nothing else is followed, and it affects neither the worker nor other calls.
    let outside = disk.path().parent().unwrap().join("secret");
    fs::write(&outside, "SECRET").unwrap();
    let results = disk.at("p/s/tool-results");
    type Plant<'a> = &'a dyn Fn();
    let clear = || {
        let _ = fs::remove_file(&results);
        let _ = fs::remove_dir_all(disk.at("p/s"));
        fs::create_dir_all(&results).unwrap();
    };
    let plants: [(&str, Plant<'_>); 8] = [
        ("absent", &|| {}),
        ("a link", &|| symlink(&outside, &file).unwrap()),
        ("a link into the store", &|| symlink("../../s.jsonl", &file).unwrap()),
        ("a folder", &|| fs::create_dir(&file).unwrap()),
        ("a FIFO", &|| fifo(&file)),
        ("results that are a file", &|| {
            fs::remove_dir(&results).unwrap();
            fs::write(&results, "x").unwrap();
        }),
        ("results that are a link", &|| {
            fs::remove_dir(&results).unwrap();
            fs::write(outside.parent().unwrap().join("toolu_1.txt"), "SECRET").unwrap();
            symlink(outside.parent().unwrap(), &results).unwrap();
        }),
        ("a session's folder that is a link", &|| {
            fs::remove_dir_all(disk.at("p/s")).unwrap();
            fs::create_dir_all(outside.parent().unwrap().join("elsewhere/tool-results")).unwrap();
            fs::write(
                outside.parent().unwrap().join("elsewhere/tool-results/toolu_1.txt"),
                "SECRET",
            )
            .unwrap();
            symlink(outside.parent().unwrap().join("elsewhere"), disk.at("p/s")).unwrap();
        }),
    ];
    for (what, plant) in plants {
        let _ = fs::remove_file(disk.at("p/s"));
        clear();
        plant();
        let seen = see_disk(&disk);
        assert_eq!(seen.workers(), ["s"], "{what}");
        let index = seen.index("s");
        assert!(
            seen.text("s", "tool_calls/001_Bash.txt").starts_with("<persisted-output>"),
            "{what}"
        );
        assert_eq!(seen.text("s", "tool_calls/002_Bash.txt"), "small", "{what}");
        assert_eq!(
            index["source"]["truncated_outputs"],
            json!(["tool_calls/001_Bash.txt"]),
            "{what}"
        );
        assert!(checks(&index).contains(&"truncated_at_source"), "{what}: {index:#}");
        let all: Vec<u8> = seen
            .0
            .values()
            .filter(|seen| matches!(seen, crate::support::Seen::File { .. }))
            .flat_map(|seen| seen.bytes().to_vec())
            .collect();
        assert!(memchr::memmem::find(&all, b"SECRET").is_none(), "{what}");
    }
}

/// Promise: No call id leads out of the directory of results.
#[test]
fn call_ids_stay_in_the_results_directory() {
    let long = "x".repeat(1_500);
    let middle = "x".repeat(252);
    for id in [
        "../../secret",
        "../s",
        "/etc/passwd",
        "..",
        ".",
        "",
        "a/b",
        "a\0b",
        "\u{202e}",
        "a\nb",
        &long,
        &middle,
        "x.jsonl",
    ] {
        let (disk, _) = spilled(id);
        disk.write("p/secret.txt", "SECRET");
        disk.write("p/s/s.txt", "SECRET");
        disk.write("p/s/tool-results/a/b.txt", "SECRET");
        disk.write("p/s/tool-results/other.txt", "SECRET");
        let seen = see_disk(&disk);
        let text = seen.text("s", "tool_calls/001_Bash.txt");
        assert!(text.starts_with("<persisted-output>"), "{id:?}: {text}");
        assert_eq!(seen.text("s", "tool_calls/002_Bash.txt"), "small", "{id:?}");
    }
    // Control: a file with that exact name exists.
    for id in ["...", "a b", "é", "\u{202e}", &"x".repeat(200)] {
        let (disk, _) = spilled(id);
        disk.write(format!("p/s/tool-results/{id}.txt"), "all of it");
        assert_eq!(see_disk(&disk).text("s", "tool_calls/001_Bash.txt"), "all of it", "{id:?}");
    }
}

/// Promise: Symlinks among the transcripts are not followed, and are counted.
#[test]
fn symlinks_among_transcripts_are_counted_not_followed() {
    let disk = TestStore::new();
    let elsewhere = disk.path().parent().unwrap().join("elsewhere");
    fs::create_dir_all(elsewhere.join("subagents")).unwrap();
    let mut session = begun();
    session.says("SECRET");
    fs::write(elsewhere.join("x.jsonl"), session.bytes()).unwrap();
    fs::write(elsewhere.join("subagents/agent-x.jsonl"), session.bytes()).unwrap();
    let mut own = begun();
    own.says("fine");
    disk.write("projects/p/s.jsonl", own.bytes());
    symlink(elsewhere.join("x.jsonl"), disk.at("projects/p/linked.jsonl")).unwrap();
    symlink(&elsewhere, disk.at("projects/q")).unwrap();
    symlink(elsewhere.join("subagents"), {
        fs::create_dir(disk.at("projects/p/s")).unwrap();
        disk.at("projects/p/s/subagents")
    })
    .unwrap();
    fifo(&disk.at("projects/p/pipe.jsonl"));
    fs::create_dir(disk.at("projects/p/folder.jsonl")).unwrap();
    let seen = see_disk(&disk);
    assert_eq!(seen.workers(), ["s"]);
    let skipped = seen.skipped();
    assert_eq!(skipped, json!({"links": 3, "special": 1, "not_workers": 1, "unreadable": 0}));
    let all: Vec<u8> = seen
        .0
        .values()
        .filter(|seen| matches!(seen, crate::support::Seen::File { .. }))
        .flat_map(|seen| seen.bytes().to_vec())
        .collect();
    assert!(memchr::memmem::find(&all, b"SECRET").is_none());
}

#[test]
fn the_metadata_file_of_a_subagent_may_hold_anything() {
    for meta in
        ["", "junk", "[]", "{\"agentType\": 7, \"description\": []}", "{\"agentType\": \"\"}"]
    {
        let store = store();
        store.write(&path(format!("{PROJECT}/s/subagents/agent-a.jsonl")), agent("s", "a").bytes());
        store.write(&path(format!("{PROJECT}/s/subagents/agent-a.meta.json")), meta);
        let seen = read_once(&store);
        assert_eq!(seen.index("a")["task_type"], "agent", "{meta}");
        assert_eq!(seen.text("a", "source.meta.json"), meta);
    }
}

#[test]
fn a_quoted_result_file_is_shown_only_to_its_readers() {
    use std::os::unix::fs::PermissionsExt;
    let (disk, _) = spilled("toolu_1");
    let file = disk.write("p/s/tool-results/toolu_1.txt", "Error: a secret of few\n");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let seen = see_disk(&disk);
    for made in ["evidence.txt", "index.json", "summary"] {
        let crate::support::Seen::File { attr, .. } =
            &seen.0[format!("workers/s/{made}").as_bytes()]
        else {
            panic!()
        };
        assert_eq!(attr.0 & 0o077, 0, "{made}");
    }
}

#[test]
fn a_result_file_may_change() {
    let (disk, _) = spilled("toolu_1");
    disk.write("p/s/tool-results/toolu_1.txt", "short\n");
    let tree = disk.tree();
    assert_eq!(Checked::of(&tree).text("s", "tool_calls/001_Bash.txt"), "short\n");
    disk.write("p/s/tool-results/toolu_1.txt", "written over in its place\n");
    let seen = Checked::of(&tree);
    assert_eq!(seen.text("s", "tool_calls/001_Bash.txt"), "written over in its place\n");
    fs::remove_dir_all(disk.at("p/s/tool-results")).unwrap();
    assert!(
        Checked::of(&tree).text("s", "tool_calls/001_Bash.txt").starts_with("<persisted-output>")
    );
}

/// Promise: Unread parts of a session are reported only in views that include the session.
#[test]
fn unread_session_is_reported_only_in_its_view() {
    let store = TestStore::new();
    let put = |session: &str| {
        store.write(format!("{PROJECT}/{session}.jsonl"), begun().says("Done.").bytes())
    };
    put("short");
    let long = File::options().write(true).open(put("long")).unwrap();
    // Longer than the part that is read before the first answer.
    long.set_len(64 << 20).unwrap();
    let told = |run: Option<&str>| {
        let filter = Filter { owner: None, run: run.map(str::to_owned) };
        store.view(Duration::from_secs(3_600), filter).visible().unread.len()
    };
    assert_eq!([told(None), told(Some("long")), told(Some("short"))], [1, 1, 0]);
    // The view reports the state from when the stores were opened, whatever is read meanwhile.
    let view = store.view(Duration::from_secs(3_600), Filter::default());
    let tree = Tree::new(view, Settings::default());
    for path in ["summary", "evidence.txt", "runs/long/summary"] {
        let text = crate::support::see(&tree, path).unwrap().text().to_owned();
        let first = text.lines().next().unwrap();
        let says = "incomplete: 1 session not read yet for workers inside; reading again continues";
        assert!(first.contains(says), "{path}: {text}");
    }
    let index: Value =
        serde_json::from_slice(crate::support::see(&tree, "index.json").unwrap().bytes()).unwrap();
    assert_eq!(index["complete"], json!(false));
    for path in ["workers/short/summary", "runs/short/summary"] {
        let text = crate::support::see(&tree, path).unwrap().text().to_owned();
        assert!(!text.contains("incomplete"), "{path}: {text}");
    }
}
