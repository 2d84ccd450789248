//! Tests of sessions and subagents whose records begin with those of another session.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::error::Error;
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{DirEntry, File, Meta, Store, read_range};
use swarmletfs_trace::{Format, RecordSource, Transcripts};
use swarmletfs_tree::catalog::{Freshness, Source};
use swarmletfs_tree::tree::{Settings, Tree};
use swarmletfs_tree::view::{Filter, View};

use super::*;
use crate::formats::copied_corpus::Sums;
use crate::support::intercept::{InterceptedStore, Interceptor};
use crate::support::{Seen, scale};

/// A way to copy a session, with the marks that the program leaves on the lines.
type Way = (&'static str, fn(&mut Value));

const WAYS: [Way; 3] = [
    ("/bg", |line| {
        line["sessionKind"] = json!("bg");
        mark_answer(line);
    }),
    ("/branch", |line| {
        line["forkedFrom"] = json!({"sessionId": "s", "messageUuid": line["uuid"]});
        mark_answer(line);
    }),
    ("--fork-session", mark_answer),
];

/// Names the original in a line of the assistant.
fn mark_answer(line: &mut Value) {
    if line["type"] == "assistant" {
        line["requestSessionId"] = json!("s");
    }
}

/// Returns a session that failed a test, edited a file, and answered.
fn original() -> Transcript {
    let mut transcript = Transcript::new("s");
    transcript.user("Fix the flaky test.");
    transcript.call("t1", "Bash", json!({"command": "npm test"}));
    transcript.result("t1", json!({"content": "Exit code 1\n1 failed", "is_error": true}));
    transcript.call(
        "t2",
        "Edit",
        json!({"file_path": "/home/dev/app/a.js", "old_string": "a", "new_string": "b"}),
    );
    transcript.result("t2", json!({"content": "The file /home/dev/app/a.js has been updated."}));
    transcript.says("Edited.");
    transcript
}

fn seen(transcripts: &[(&str, &Transcript)]) -> Checked {
    let store = store();
    for (session, transcript) in transcripts {
        store.write(&place(session), transcript.bytes());
    }
    read_once(&store)
}

#[test]
fn copy_of_a_session_shows_its_own_part_only() {
    let original = original();
    for (way, mark) in WAYS {
        let mut copy = original.copied("f", mark);
        copy.user("Go on.").bash("t3", "npm test", "3 passed").says("Done.");
        let checked = seen(&[("s", &original), ("f", &copy)]);
        let (own, source) = (checked.index("f"), checked.index("s"));
        assert_eq!(own["continues"], "s", "{way}");
        assert_eq!(own["calls"]["total"], 1, "{way}");
        assert_eq!(own["outcome"], "ok", "{way}");
        assert_eq!(own["tokens"]["output"], 12, "{way}");
        assert_eq!(own["title"], "Go on.", "{way}");
        assert_eq!(own["started_at"], "2026-02-01T10:00:06Z", "{way}");
        assert!(own["files_edited"].is_null(), "{way}");
        assert!(checked.text("f", "requests.txt").ends_with("[1 request]\n"), "{way}");
        assert!(!checked.text("f", "source.jsonl").contains("flaky"), "{way}");
        assert_eq!(own["source"]["results_without_calls"], 0, "{way}");
        let summary = std::str::from_utf8(checked.0[&b"summary"[..]].bytes()).unwrap();
        assert!(!summary.contains("edited by two"), "{way}: {summary}");
        let link = &checked.0[&b"workers/f/continues"[..]];
        assert_eq!(*link, Seen::Link(b"../s".to_vec()), "{way}");
        assert!(source["continues"].is_null() && !checked.has("s", "continues"), "{way}");
        assert_eq!(source["calls"]["total"], 2, "{way}");
    }
}

/// Copies add nothing to any sum, however much of a session was copied and whatever it held.
#[test]
fn copies_without_an_own_part_add_nothing() {
    let original = original();
    let bytes = original.bytes();
    let lines: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
    let sums = |transcripts: &[(&str, &Transcript)]| {
        let store = store();
        for (session, transcript) in transcripts {
            put(&store, session, transcript);
        }
        Sums::read(&tree(&store))
    };
    let whole = sums(&[("s", &original)]);
    for (way, mark) in WAYS {
        for count in 2..=lines.len() {
            let mut part = Transcript::new("s");
            part.raw(lines[..count].concat());
            let copy = part.copied("f", mark);
            assert_eq!(sums(&[("s", &original), ("f", &copy)]), whole, "{way}, {count} lines");
            let checked = seen(&[("s", &original), ("f", &copy)]);
            assert_eq!(checked.index("f")["title"], "Fix the flaky test.", "{way}, {count} lines");
            assert_eq!(checked.index("f")["continues"], "s", "{way}, {count} lines");
        }
    }
}

#[test]
fn copy_without_its_original_has_no_link() {
    let mut copy = original().copied("f", mark_answer);
    copy.user("Go on.").says("Done.");
    let checked = seen(&[("f", &copy)]);
    assert_eq!(checked.index("f")["continues"], "s");
    assert!(!checked.has("f", "continues"));
}

/// A record of the own session is no copy, and a claim to continue oneself is none.
#[test]
fn session_that_names_itself_is_no_copy() {
    let own = original().copied("s", mark_answer);
    let checked = seen(&[("s", &own)]);
    assert!(checked.index("s")["continues"].is_null());
    assert_eq!(checked.index("s")["calls"]["total"], 2);
}

/// Sessions in a ring, each of which claims to continue the next one, are read, and end.
#[test]
fn sessions_that_continue_each_other_are_read() {
    let original = original();
    for ring in [&["s", "f"][..], &["s", "f", "g"], &["s"]] {
        let store = store();
        for (at, id) in ring.iter().enumerate() {
            let next = ring[(at + 1) % ring.len()];
            let mut session = original.copied(id, |line| {
                line["forkedFrom"] = json!({"sessionId": next, "messageUuid": "u1"});
            });
            session.user(format!("I am {id}.")).bash(&format!("own{at}"), "make", "done");
            put(&store, id, session.says("Done."));
        }
        let checked = read_once(&store);
        for (at, id) in ring.iter().enumerate() {
            let next = ring[(at + 1) % ring.len()];
            let index = checked.index(id);
            // A session that names itself is no copy.
            let (continues, calls) = match ring.len() {
                1 => (Value::Null, 3),
                _ => (json!(next), 1),
            };
            assert_eq!(index["continues"], continues, "{ring:?}");
            assert_eq!(index["calls"]["total"], calls, "{ring:?}");
            assert_eq!(checked.has(id, "continues"), ring.len() > 1, "{ring:?}");
        }
    }
}

/// An original outside the view leaves no trace: the view shows the same with and without it,
/// whatever it holds.
#[test]
fn original_outside_the_view_leaves_no_trace() {
    let mut copy = original().copied("f", mark_answer);
    copy.user("Go on.").says("Done.");
    let shown = [None, Some(original()), Some(begun())].map(|other| {
        let store = store();
        put(&store, "f", &copy);
        if let Some(other) = other {
            put(&store, "s", &other);
            let agent = path(format!("{PROJECT}/s/subagents/agent-a.jsonl"));
            store.write(&agent, Transcript::of_agent("s", "a").user("Look.").bytes());
        }
        let filter = Filter { run: Some("f".into()), ..Filter::default() };
        let source = Source::from_store(store, None);
        let source = source.with_format(Box::new(ClaudeCode::transcripts()));
        let source = source.with_stale_after(Duration::MAX);
        let view = View::new(vec![source], Freshness::default(), filter).unwrap();
        Checked::of(&Tree::new(view, Settings::default()))
    });
    assert_eq!(shown[0].workers(), ["f"]);
    for other in &shown[1..] {
        assert!(!other.has("f", "continues"));
        for file in ["summary", "requests.txt", "thread.jsonl", "source.jsonl"] {
            assert_eq!(other.bytes("f", file), shown[0].bytes("f", file), "{file}");
        }
        let names = |checked: &Checked| checked.0.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(other), names(&shown[0]));
    }
}

/// IDs that another session has, too, hide nothing: neither records, calls nor messages.
#[test]
fn ids_of_another_session_hide_nothing() {
    let original = original();
    let twin = original.copied("f", |_| ());
    let checked = seen(&[("s", &original), ("f", &twin)]);
    for id in ["s", "f"] {
        let index = checked.index(id);
        assert!(index["continues"].is_null(), "{id}");
        assert_eq!((&index["calls"]["total"], &index["calls"]["failed"]), (&json!(2), &json!(1)));
    }
    // A fork repeats only records that are equal, not those with an ID of its session.
    let mut own = Transcript::of_agent("s", "a");
    own.user("Check the config.").bash("own1", "npm test", "3 passed").says("Fine.");
    let index = fork(&own).index("a");
    assert_eq!((&index["calls"]["total"], &index["outcome"]), (&json!(1), &json!("ok")));
    // Two sessions of the ID that a copy names: the link leads to one that the view has.
    let store = store();
    put(&store, "s", &original);
    store.write(&path("projects/-other/s.jsonl"), original.bytes());
    put(&store, "f", &original.copied("f", mark_answer));
    let checked = read_once(&store);
    assert_eq!(checked.workers(), ["f", "s", "s~2"]);
    assert_eq!(checked.0[&b"workers/f/continues"[..]], Seen::Link(b"../s".to_vec()));
    assert_eq!(checked.index("s~2")["calls"]["total"], 2);
}

/// Counts the calls of a store.
#[derive(Clone, Default)]
struct CallCounter(Arc<AtomicU64>);

impl Interceptor for CallCounter {
    fn stat(&self, store: &dyn Store, path: &RelPath) -> Result<Meta, Error> {
        self.0.fetch_add(1, Ordering::Relaxed);
        store.stat(path)
    }

    fn list(&self, store: &dyn Store, path: &RelPath) -> Result<Vec<DirEntry>, Error> {
        self.0.fetch_add(1, Ordering::Relaxed);
        store.list(path)
    }

    fn open(&self, store: &dyn Store, path: &RelPath) -> Result<Box<dyn File>, Error> {
        self.0.fetch_add(1, Ordering::Relaxed);
        store.open(path)
    }
}

/// Lists a store with `count` copies of one session. Returns the number of calls of the store.
fn calls_to_list_copies(count: usize, are_agents: bool) -> u64 {
    let (store, original) = (store(), original());
    put(&store, "s", &original);
    for number in 0..count {
        let id = format!("f{number}");
        if !are_agents {
            let mut copy = original.copied(&id, mark_answer);
            put(&store, &id, copy.user("Go on.").says("Done."));
            continue;
        }
        let mut copy = original.copied("s", |line| line["isSidechain"] = json!(true));
        copy.line(json!({"type": "user", "isSidechain": true, "uuid": id.clone(),
            "message": {"content": "Go on."}}));
        let file = |end: &str| path(format!("{PROJECT}/s/subagents/agent-{id}{end}"));
        store.write(&file(".jsonl"), copy.bytes());
        store.write(&file(".meta.json"), r#"{"isFork": true}"#);
    }
    let counter = CallCounter::default();
    let counted = InterceptedStore::new(counter.clone(), store);
    let source = Source::from_store(Arc::new(counted), None);
    let source = source.with_format(Box::new(ClaudeCode::transcripts()));
    let settings = Settings { deadline: Duration::from_secs(3_600), ..Settings::default() };
    let view = View::new(vec![source], Freshness::default(), Filter::default()).unwrap();
    let rows = crate::formats::rows(&Tree::new(view, settings));
    assert_eq!(rows.len(), count + 1);
    assert!(rows.iter().all(|(id, row)| id == "s" || row["continues"] == "s"));
    counter.0.load(Ordering::Relaxed)
}

/// The cost of many copies of one session is proportional to their number.
#[test]
fn many_copies_of_a_session_take_calls_in_proportion() {
    let few = scale::scale(500).max(50);
    for are_agents in [false, true] {
        let [few, many] = [few, 10 * few].map(|count| calls_to_list_copies(count, are_agents));
        assert!(many <= 11 * few, "{few} calls, and {many} for ten times as many");
    }
}

#[test]
fn session_that_goes_on_elsewhere_is_not_running() {
    let mut transcript = original();
    transcript.user("Once more.").call("t3", "Bash", json!({"command": "npm test"}));
    transcript.line(json!({"type": "continued-in", "continuedInSessionId": "f", "uuid": null}));
    let index = seen(&[("s", &transcript)]).index("s");
    assert_eq!(
        (&index["status"], &index["status_source"]),
        (&json!("unknown"), &json!("continued in f"))
    );
    let mut answered = original();
    answered.line(json!({"type": "continued-in", "continuedInSessionId": "f", "uuid": null}));
    assert_eq!(seen(&[("s", &answered)]).index("s")["status"], "completed");
}

/// Writes a session with a subagent that is a fork, and returns what is seen of the fork.
fn fork(records: &Transcript) -> Checked {
    let mut session = original();
    session.call("t9", "Agent", json!({"subagent_type": "fork", "prompt": "Check the config."}));
    let store = store();
    store.write(&place("s"), session.bytes());
    let file = |name: &str| path(format!("{PROJECT}/s/subagents/{name}"));
    store.write(&file("agent-a.jsonl"), records.bytes());
    let metadata = json!({"agentType": "fork", "description": "check", "isFork": true});
    store.write(&file("agent-a.meta.json"), metadata.to_string());
    read_once(&store)
}

/// Older versions repeat all records of the session.
#[test]
fn fork_that_repeats_the_records_of_its_session_shows_its_own() {
    let mut records = original().copied("s", |line| {
        line["agentId"] = json!("a");
        line["isSidechain"] = json!(true);
    });
    let mut own = Transcript::of_agent("s", "a");
    own.user("Check the config.").bash("a1", "cat config.json", "{}").says("Fine.");
    records.raw(own.bytes());
    let checked = fork(&records);
    let index = checked.index("a");
    assert_eq!((&index["continues"], &index["parent_id"]), (&json!("s"), &json!("s")));
    assert_eq!((&index["calls"]["total"], &index["outcome"]), (&json!(1), &json!("ok")));
    assert_eq!(
        (&index["task"], &index["tokens"]["output"]),
        (&json!("Check the config."), &json!(12))
    );
}

/// Newer ones repeat the call that started the fork, and its result.
#[test]
fn fork_that_repeats_its_call_does_not_count_it() {
    let mut records = Transcript::of_agent("s", "a");
    records.line(json!({"type": "fork-context-ref", "parentSessionId": "s", "uuid": null}));
    records.call("t9", "Agent", json!({"subagent_type": "fork", "prompt": "Check the config."}));
    records.user(json!([
        {"type": "tool_result", "tool_use_id": "t9", "content": "Fork started — that fork is you."},
        {"type": "text", "text": "<fork-boilerplate>\nYou are a fork.\n</fork-boilerplate>\n\nYour directive: Check the config."},
    ]));
    records.bash("a1", "cat config.json", "{}").says("Fine.");
    let checked = fork(&records);
    let index = checked.index("a");
    assert_eq!(index["continues"], "s");
    assert_eq!((&index["calls"]["total"], &index["outcome"]), (&json!(1), &json!("ok")));
    assert_eq!(
        (&index["task"], &index["tokens"]["output"]),
        (&json!("Check the config."), &json!(12))
    );
    assert_eq!(index["source"]["results_without_calls"], 0);
}

/// The words of a fork's first message, in any other place, hide no record before them.
#[test]
fn words_of_a_fork_elsewhere_hide_nothing() {
    let words = "<fork-boilerplate>\nYou are a fork.\n</fork-boilerplate>\n\nYour directive: Rest.";
    let mut session = original();
    session.call("t3", "Bash", json!({"command": "npm test"}));
    session.user(json!([
        {"type": "tool_result", "tool_use_id": "t3", "content": "Exit code 1", "is_error": true},
        {"type": "text", "text": words},
    ]));
    session.user(words).says("Done.");
    let index = shown(&session).index("s");
    assert_eq!((&index["calls"]["total"], &index["calls"]["failed"]), (&json!(3), &json!(2)));
    assert_eq!(index["task"], "Fix the flaky test.");

    let mut agent = Transcript::of_agent("s", "a");
    agent.user("Check the config.").call("a1", "Bash", json!({"command": "make"}));
    agent.result("a1", json!({"content": "Exit code 2", "is_error": true}));
    agent.user(words).says("Done.");
    assert_eq!(fork(&agent).index("a")["calls"]["failed"], 1);
}

/// A fork whose copied records are still being written when it is first read.
#[test]
fn fork_that_is_written_meanwhile_shows_its_own() {
    let mut session = original();
    session.call("t9", "Agent", json!({"subagent_type": "fork", "prompt": "Check the config."}));
    let store = store();
    store.write(&place("s"), session.bytes());
    let file = |name: &str| path(format!("{PROJECT}/s/subagents/{name}"));
    store.write(&file("agent-a.meta.json"), json!({"isFork": true}).to_string());
    let copied = original().copied("s", |line| line["agentId"] = json!("a")).bytes();
    let mut own = Transcript::of_agent("s", "a");
    own.user("Check the config.").bash("a1", "cat config.json", "{}").says("Fine.");
    let whole = [copied.clone(), own.bytes()].concat();
    let thread = |format: &Transcripts| {
        let workers = format.find_workers(&*store).unwrap().folders;
        let fork = workers.iter().find(|path| path.to_text().contains("agent-a")).unwrap();
        let folder = format.enter(&*store, fork).unwrap();
        let worker = format.read_worker(&*folder, fork, None);
        let source = RecordSource { folder: &*folder, outputs: None };
        let record = format.read_record(source, &worker, Deadline::never()).unwrap();
        (record.trace.calls.len(), folder.open(&path("thread.jsonl")).unwrap())
    };
    let text = |file: &dyn File| read_range(file, 0, 1 << 20).unwrap();
    let first_line = copied.iter().position(|byte| *byte == b'\n').unwrap();
    for end in [first_line, first_line + 1, copied.len() - 1, copied.len()] {
        store.write(&file("agent-a.jsonl"), &whole[..end]);
        let live = ClaudeCode::transcripts();
        let (calls, held) = thread(&live);
        assert_eq!((calls, text(&*held).len()), (0, 0), "cut at {end}");
        store.write(&file("agent-a.jsonl"), whole.clone());
        let (_, fresh) = thread(&ClaudeCode::transcripts());
        assert_eq!(text(&*held), text(&*fresh), "open since {end}");
        assert_eq!(thread(&live).0, 1, "followed from {end}");
    }
}
