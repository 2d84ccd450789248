//! Attention: who needs a person, and why.

use std::time::Duration;

use serde_json::Value;
use swarmletfs_tree::catalog::{Freshness, Source};
use swarmletfs_tree::tree::Settings;
use swarmletfs_tree::view::{Filter, View};

use super::*;
use crate::support::transcript::{self, Transcript, place, tree_with_stale_after};

const REFUSED: &str =
    "The user doesn't want to proceed with this tool use. STOP what you are doing.";

/// Returns the level and the kinds of reasons of a session that is not written any more.
fn attention(make: impl Fn(&mut Transcript)) -> (String, Vec<String>, String) {
    let store = transcript::store();
    let mut session = Transcript::new("s");
    session.user("Do it.").bash("first", "echo ok", "ok\n");
    make(&mut session);
    store.write(&place("s"), session.bytes());
    let tree = tree_with_stale_after(&store, Duration::from_nanos(1));
    let text = see(&tree, "workers/s/index.json").unwrap().text().to_owned();
    let index: Value = serde_json::from_str(&text).unwrap();
    let reasons = index["attention"]["reasons"].as_array().unwrap();
    let kinds = reasons.iter().map(|reason| reason["kind"].as_str().unwrap().to_owned());
    let level = index["attention"]["level"].as_str().unwrap().to_owned();
    assert!(see(&tree, format!("by/attention/{level}/s")).is_ok(), "{index:#}");
    (level, kinds.collect(), see(&tree, "summary").unwrap().text().to_owned())
}

fn failed(session: &mut Transcript, id: &str, command: &str, output: &str) {
    session.call(id, "Bash", json!({"command": command}));
    session.result(id, json!({"content": output, "is_error": true}));
}

/// Promise: Each reason for attention follows from the record alone, and the summary names it.
#[test]
fn each_reason_follows_from_the_record() {
    type Case = (&'static str, &'static [&'static str], &'static str, fn(&mut Transcript));
    let cases: [Case; 12] = [
        ("none", &[], "nobody is at work", |session| {
            session.says("Done.");
        }),
        ("high", &["waits"], "needs you (1)", |session| {
            session.says("Done.\n\nReady to commit?");
        }),
        ("high", &["waits"], "a call of Bash has no result", |session| {
            session.call("c", "Bash", json!({"command": "make"}));
        }),
        ("high", &["waits"], "its user refused a call of Bash", |session| {
            failed(session, "c", "make", REFUSED);
            session.user("[Request interrupted by user for tool use]");
        }),
        ("high", &["failed"], "failed or red at the end (1)", |session| {
            failed(session, "c", "./run it", "Exit code 1\nno");
            session.says("I see.");
        }),
        ("high", &["contradicted"], "said done, but (1)", |session| {
            session.says("All tests pass.");
        }),
        ("high", &["contradicted"], "said done, but (1)", |session| {
            session.says("Lint is clean.");
        }),
        ("high", &["red_at_end"], "failed or red at the end (1)", |session| {
            failed(session, "c", "cargo test", "Exit code 1\n1 failed");
            session.bash("d", "echo", "x").says("I see.");
        }),
        ("high", &["open_failure"], "failed or red at the end (1)", |session| {
            failed(session, "c", "git push", "Exit code 1\nrejected");
            session.bash("d", "echo", "x").says("I see.");
        }),
        ("low", &["red_at_end"], "red at end: ", |session| {
            failed(session, "c", "gh pr checks 1", "Exit code 1\nlint fail 1m");
            session.bash("d", "git push", "pushed").says("I see.");
        }),
        ("low", &["loop"], "loop: 6 times: Bash date", |session| {
            (0..6).for_each(|at| {
                session.bash(&format!("l{at}"), "date", "x");
            });
            session.says("I see.");
        }),
        ("low", &["cut"], "it stopped before it answered the last result", |session| {
            session.bash("c", "ls", "a");
        }),
    ];
    for (level, kinds, line, make) in cases {
        let (found, reasons, summary) = attention(make);
        assert_eq!(
            (found.as_str(), reasons),
            (level, kinds.iter().map(|kind| (*kind).to_owned()).collect()),
            "{summary}"
        );
        assert!(summary.contains(line), "{line} is missing in {summary}");
    }
}

/// Promise: A refused call whose work no later call did is worth a look, and a refused plan is not.
#[test]
fn a_refused_call_is_named_until_its_work_is_done() {
    let refused = |tool: &'static str, input: Value, later: &'static str| {
        attention(move |session| {
            session.call("c", tool, input.clone());
            session.result(
                "c",
                json!({"content": "Permission to use it has been denied.", "is_error": true,
                "toolDenialKind": "permission-rule"}),
            );
            session.bash("d", later, "ok\n").says("I see.");
        })
    };
    let tests = json!({"command": "make test-integration"});
    let unanswered = refused("Bash", tests.clone(), "echo").2;
    assert!(unanswered.contains("denied by rule: Permission to use it"), "{unanswered}");
    assert_eq!(refused("Bash", tests.clone(), "echo").1, ["denied"]);
    assert_eq!(refused("Bash", tests, "make test-integration").1, [""; 0]);
    assert_eq!(refused("ExitPlanMode", json!({"plan": "x"}), "echo").1, [""; 0]);
}

/// Promise: An index says who refused a call.
#[test]
fn an_index_says_who_refused() {
    for (text, by) in [
        (REFUSED, json!("user")),
        ("PreToolUse:Bash hook error: no", json!("hook")),
        ("Permission to use Bash with command x has been denied.", json!("rule")),
        ("Cancelled: parallel tool call Bash errored", Value::Null),
    ] {
        let store = transcript::store();
        let mut session = Transcript::new("s");
        session.user("Do it.").call("c", "Bash", json!({"command": "make test"}));
        let block = json!([{"type": "tool_result", "tool_use_id": "c", "content": text,
            "is_error": true}]);
        session.line(json!({"type": "user", "message": {"role": "user", "content": block},
            "toolDenialBeforeRun": true}));
        session.bash("d", "echo", "ok\n").says("I see.");
        store.write(&place("s"), session.bytes());
        let tree = tree_with_stale_after(&store, Duration::from_nanos(1));
        let text = see(&tree, "workers/s/index.json").unwrap().text().to_owned();
        let index: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(index["attention"]["reasons"][0]["by"], by, "{index:#}");
    }
}

/// Promise: The changes since a cursor name the workers that need a person first, and say why.
#[test]
fn changes_say_who_needs_a_person() {
    let store = transcript::store();
    let mut session = Transcript::new("s");
    session.user("Do it.");
    failed(&mut session, "c", "cargo test", "Exit code 1\n1 test failed");
    session.bash("d", "echo", "x").says("I see.");
    store.write(&place("s"), session.bytes());
    let mut other = Transcript::new("t");
    other.user("Do it.").bash("c", "ls", "a").says("Done.");
    store.write(&place("t"), other.bytes());
    let tree = tree_with_stale_after(&store, Duration::from_nanos(1));
    let text = see(&tree, "since/0").unwrap().text().to_owned();
    let second = text.lines().nth(1).unwrap_or_default();
    assert!(second.starts_with("needs a person: s: red_at_end: "), "{text}");
    assert!(second.ends_with("1 test failed"), "{text}");
    assert!(text.contains("Z; attention high: red_at_end; 8 files: "), "{text}");
    assert_eq!(text.matches("attention").count(), 1, "{text}");
}

/// Promise: A failed worker is a reason for its parent, unless the parent made that good.
#[test]
fn a_failed_child_is_a_reason_for_its_parent() {
    let reasons = |later: Option<&str>| {
        let store = TestStore::new();
        let at = |minute: u32| format!("2026-01-20T10:{minute:02}:00Z");
        store.worker("parent", json!({"created_at": at(0), "started_at": at(0)}));
        store.call("parent", 1, "sh", "{\"ok\": true}");
        for (id, status, minute) in [("bad", Some("failed"), 1), ("good", later, 5)] {
            if let Some(status) = status {
                store.worker(
                    id,
                    json!({"status": status, "parent_id": "parent", "error": "no disk",
                    "created_at": at(minute), "started_at": at(minute), "finished_at": at(minute)}),
                );
                store.call(id, 1, "sh", "{\"ok\": true}");
            }
        }
        let text = see(&store.tree(), "index.json").unwrap().text().to_owned();
        let index: Value = serde_json::from_str(&text).unwrap();
        let rows = index["workers"].as_array().unwrap();
        let row = rows.iter().find(|row| row["id"] == "parent").unwrap();
        let reasons = row["attention"]["reasons"].as_array().unwrap();
        reasons.iter().map(|reason| reason["kind"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(reasons(None), ["child_failed"]);
    assert_eq!(reasons(Some("failed")), ["child_failed", "child_failed"]);
}

/// Two stores may have workers of one ID.
#[test]
fn a_failed_child_is_a_reason_for_the_parent_in_its_own_store() {
    let stores = [TestStore::new(), TestStore::new()];
    for store in &stores {
        store.worker("lead", json!({})).call("lead", 1, "sh", "{\"ok\": true}");
    }
    let child = json!({"status": "failed", "parent_id": "lead", "error": "no disk"});
    stores[1].worker("child", child).call("child", 1, "sh", "{\"ok\": true}");
    let sources = stores.iter().map(|store| Source::open(&store.path()).unwrap()).collect();
    let view = View::new(sources, Freshness::default(), Filter::default()).unwrap();
    let tree = Tree::new(view, Settings::default());
    let index: Value = serde_json::from_str(see(&tree, "index.json").unwrap().text()).unwrap();
    let rows = index["workers"].as_array().unwrap();
    let reasons = |id: &str| {
        let row = rows.iter().find(|row| row["id"] == id).unwrap();
        row["attention"]["reasons"].as_array().map_or(0, Vec::len)
    };
    assert_eq!((reasons("lead"), reasons("lead~2")), (0, 1), "{index:#}");
}

/// Promise: Waste is over three times the median of at least eight workers.
#[test]
fn waste_is_measured_against_peers() {
    let wasteful = |peers: usize| {
        let store = transcript::store();
        for number in 0..=peers {
            let name = format!("s{number}");
            let mut session = Transcript::new(&name);
            session.user("Do it.").bash("ok", "echo", "x");
            for at in 0..(if number == 0 { 20 } else { 2 }) {
                let (id, command) = (format!("c{at}"), format!("./try {at}"));
                failed(&mut session, &id, &command, "Exit code 1\nno");
                session.bash(&format!("again {at}"), &command, "fine");
            }
            session.says("I see.");
            store.write(&place(&name), session.bytes());
        }
        let summary = see(&transcript::tree(&store), "summary").unwrap().text().to_owned();
        summary.contains("waste: 20 failed calls; the median is 2")
    };
    assert!(wasteful(8) && !wasteful(6));
}

#[test]
fn waste_of_context_and_cost_is_measured_against_peers() {
    let session = |name: &str, usd: f64, context: u64| {
        let mut session = Transcript::new(name);
        let usage = json!({"input_tokens": context, "output_tokens": 50});
        session.user("Do it.").message("m", json!([{"type": "text", "text": "I see."}]), usage);
        session.line(json!({"type": "cost-state", "totalCostUSD": usd, "startTime": 1}));
        session
    };
    let store = transcript::store();
    for at in 0..8 {
        let name = format!("s{at}");
        store.write(&place(&name), session(&name, 1.5, 40_000).bytes());
    }
    store.write(&place("dear"), session("dear", 12.0, 170_000).bytes());
    let index = see(&transcript::tree(&store), "index.json").unwrap().text().to_owned();
    let index: Value = serde_json::from_str(&index).unwrap();
    let with_reasons = index["workers"].as_array().unwrap().iter().filter_map(|row| {
        let reasons = row["attention"]["reasons"].as_array().unwrap();
        let lines: Vec<&str> =
            reasons.iter().map(|reason| reason["line"].as_str().unwrap()).collect();
        (!lines.is_empty()).then(|| (row["id"].as_str().unwrap(), lines))
    });
    assert_eq!(
        with_reasons.collect::<Vec<_>>(),
        [(
            "dear",
            vec![
                "170k tokens in a request; the median is 40k",
                "$12.00 of cost; the median is $1.50"
            ]
        )]
    );
}

#[test]
fn a_worker_that_says_it_waits_needs_a_person_also_without_a_question() {
    let store = TestStore::new();
    store.worker("w", json!({"status": "waiting"}));
    store.worker("child", json!({"status": "needs_input", "parent_id": "w"}));
    let tree = store.tree();
    for id in ["w", "child"] {
        assert!(see(&tree, format!("by/attention/high/{id}")).is_ok(), "{id}");
    }
    let summary = see(&tree, "summary").unwrap().text().to_owned();
    assert!(summary.contains("needs you (2)"), "{summary}");
}
