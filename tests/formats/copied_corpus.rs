//! Sums over many sessions of Claude Code and Codex, with copies of them made in every way.
//!
//! Each copy goes on with a part of its own; until then it would show the task of its original,
//! which a search finds. The same sessions are also read with these parts as sessions by
//! themselves, so that nothing is copied. Both swarms have the same sums.

use std::sync::Arc;
use std::time::Duration;

use super::codex::{self, Rollout};
use super::*;
use crate::support::scale;
use crate::support::transcript::{PROJECT, Transcript, path, place};
use swarmletfs_base::store::Memory;
use swarmletfs_trace::{ClaudeCode, Codex};
use swarmletfs_tree::catalog::{Freshness, Source};
use swarmletfs_tree::tree::{Settings, Tree};
use swarmletfs_tree::view::{Filter, View};

/// Words that commands and messages of the sessions hold.
const WORDS: [&str; 3] = ["walnut", "chestnut", "hazelnut"];

/// The sums of a swarm.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Sums {
    calls: u64,
    failed: u64,
    tokens: [u64; 3],
    files: usize,
    requests: usize,
    /// Passages with each word.
    hits: Vec<String>,
    overlaps: usize,
}

impl Sums {
    pub fn read(tree: &Tree) -> Sums {
        let mut sums = Sums::default();
        for id in rows(tree).into_keys() {
            let row = index(tree, &id);
            let number = |value: &Value| value.as_u64().unwrap_or_default();
            sums.calls += number(&row["calls"]["total"]);
            sums.failed += number(&row["calls"]["failed"]);
            for (sum, kind) in sums.tokens.iter_mut().zip(["input", "output", "cache_read"]) {
                *sum += number(&row["tokens"][kind]);
            }
            sums.files += row["files_edited"].as_array().map_or(0, Vec::len);
            let requests = see(tree, format!("workers/{id}/requests.txt"));
            let count =
                |text: &str| text.lines().filter(|line| line.starts_with("[request ")).count();
            sums.requests += requests.map_or(0, |requests| count(requests.text()));
        }
        for word in WORDS {
            let found = see(tree, format!("search/{word}")).unwrap().text().to_owned();
            let head = found.lines().next().unwrap();
            // The selection of the best ones depends on the other texts.
            let (passages, _) = head.split_once([',', ';']).unwrap();
            sums.hits.push(passages.to_owned());
        }
        let summary = see(tree, "summary").unwrap().text().to_owned();
        sums.overlaps = summary.lines().filter(|line| line.contains("edited by ")).count();
        sums
    }
}

/// Two stores of the same work, of which only the first one holds copies.
#[derive(Default)]
struct Swarms {
    claude_code: [Arc<Memory>; 2],
    codex: [Arc<Memory>; 2],
}

impl Swarms {
    fn sums(&self, number: usize) -> Sums {
        let source = |store: &Arc<Memory>, format: Box<dyn swarmletfs_trace::Format>| {
            let source = Source::from_store(store.clone(), None).with_format(format);
            source.with_stale_after(Duration::MAX)
        };
        let sources = vec![
            source(&self.claude_code[number], Box::new(ClaudeCode::transcripts())),
            source(&self.codex[number], Box::new(Codex::transcripts())),
        ];
        let fresh = Freshness { unfinished: Duration::ZERO, finished: Duration::ZERO };
        let settings = Settings { deadline: Duration::from_secs(600), ..Settings::default() };
        Sums::read(&Tree::new(View::new(sources, fresh, Filter::default()).unwrap(), settings))
    }

    /// Writes a file of Claude Code: one with a copy, and one with its own part only.
    fn put(&self, file: &str, whole: &[u8], own: &[u8]) {
        for (store, bytes) in self.claude_code.iter().zip([whole, own]) {
            store.write(&path(file), bytes);
        }
    }

    /// Adds a session, and copies of it.
    fn add_claude_code(&self, id: &str, rng: &mut fastrand::Rng) {
        let mut session = Transcript::new(id);
        work(&mut session, id, rng);
        let mut copies = vec![(id.to_owned(), session.clone())];
        for (way, mark) in ["bg", "branch", "fork"].into_iter().zip(WAYS) {
            // A copy can be copied, too.
            let (source, transcript) = copies[rng.usize(..copies.len())].clone();
            let copy = format!("{id}-{way}");
            let mut whole = transcript.copied(&copy, |line| mark(line, &source));
            let before = whole.bytes().len();
            work(&mut whole, &copy, rng);
            let bytes = whole.bytes();
            self.put(&format!("{PROJECT}/{copy}.jsonl"), &bytes, &bytes[before..]);
            copies.push((copy, whole));
        }
        // Subagents that are forks: older versions repeat all records, newer ones their call.
        for is_old in [true, false] {
            let agent = format!("{id}agent{is_old}");
            let mut own = Transcript::of_agent(id, &agent);
            let call = json!({"subagent_type": "fork", "prompt": "Do it."});
            let mut whole = session.copied(id, |line| {
                line["agentId"] = json!(agent);
                line["isSidechain"] = json!(true);
            });
            if !is_old {
                whole = Transcript::of_agent(id, &agent);
                whole
                    .line(json!({"type": "fork-context-ref", "parentSessionId": id, "uuid": null}));
                whole.call("t9", "Agent", call.clone()).user(json!([
                    {"type": "tool_result", "tool_use_id": "t9",
                     "content": "Fork started — that fork is you."},
                    {"type": "text", "text": "<fork-boilerplate>\nYou are a fork.\n\
                     </fork-boilerplate>\n\nYour directive: Do it."}]));
                own.user("Do it.");
            }
            let mut part = Transcript::of_agent(id, &agent);
            work(&mut part, &agent, rng);
            whole.raw(part.bytes());
            own.raw(part.bytes());
            let file = |end: &str| format!("{PROJECT}/{id}/subagents/agent-{agent}{end}");
            self.put(&file(".jsonl"), &whole.bytes(), &own.bytes());
            self.claude_code[0].write(&path(file(".meta.json")), r#"{"isFork": true}"#);
        }
        // The session itself goes on in its file.
        session.line(json!({"type": "continued-in", "continuedInSessionId": format!("{id}-bg")}));
        work(&mut session, &format!("{id}-resumed"), rng);
        self.put(&format!("{PROJECT}/{id}.jsonl"), &session.bytes(), &session.bytes());
    }

    /// Adds a rollout, and copies of it.
    fn add_codex(&self, number: u64, rng: &mut fastrand::Rng) {
        let id = |copy: u64| format!("0199aaaa-0000-7000-8000-{number:06}{copy:06}");
        let original = Turns::random(rng);
        let whole = original.lines(&id(0), "T10:", Totals::default());
        let begun = json!({"id": id(0), "session_id": id(0), "cwd": "/app"});
        let session = [meta(&begun), whole.clone()].concat();
        // It was archived, or compressed.
        let [copies, plain] = &self.codex;
        plain.write(&path(codex::place(&id(0))), session.as_str());
        if rng.bool() {
            let name = codex::place(&id(0));
            let name = name.rsplit('/').next().unwrap();
            copies.write(&path(format!("archived_sessions/{name}")), session.as_str());
        } else {
            let file = codex::place(&id(0));
            let compressed = zstd::encode_all(session.as_bytes(), 3).unwrap();
            copies.write(&path(format!("{file}.zst")), compressed);
            copies.write(&path(file), session.as_str());
        }
        let lines = whole.lines().count() as u64;
        for (copy, mut begun) in [
            // An old fork, a subagent with its parent's history, and a fork that copies nothing.
            json!({"forked_from_id": id(0)}),
            json!({"parent_thread_id": id(0), "subagent_history_start_ordinal": lines + 2}),
            json!({"forked_from_id": id(0), "forked_from_ordinal_exclusive": lines}),
        ]
        .into_iter()
        .enumerate()
        {
            let own = id(copy as u64 + 1);
            begun["id"] = json!(own);
            begun["cwd"] = json!("/app");
            let turns = Turns::random(rng);
            let copied = match copy {
                0 => at_once(&[meta(&json!({"id": id(0)})), whole.clone()].concat()),
                1 => [meta(&json!({"id": id(0)})), whole.clone()].concat(),
                _ => String::new(),
            };
            // The counter of a subagent goes on, or begins anew.
            let is_anew = copy == 1 && rng.bool();
            let before = if is_anew { Totals::default() } else { original.totals() };
            let numbered = turns.lines(&own, "T11:", before);
            let numbered = numbered_from(&numbered, lines + 2);
            let file = path(codex::place(&own));
            copies.write(&file, [meta(&begun), copied, numbered].concat());
            let begun = json!({"id": own, "cwd": "/app"});
            let alone = turns.lines(&own, "T11:", Totals::default());
            plain.write(&file, [meta(&begun), alone].concat());
        }
    }
}

/// The marks that the program leaves on the lines of a copy of a session: of a session in the
/// background, of a branch, and of a fork.
const WAYS: [fn(&mut Value, &str); 3] = [
    |line, source| {
        line["sessionKind"] = json!("bg");
        mark_answer(line, source);
    },
    |line, source| {
        line["forkedFrom"] = json!({"sessionId": source, "messageUuid": line["uuid"]});
        mark_answer(line, source);
    },
    mark_answer,
];

fn mark_answer(line: &mut Value, source: &str) {
    if line["type"] == "assistant" {
        line["requestSessionId"] = json!(source);
    }
}

/// Appends a turn with random calls, whose IDs begin with `id`. It ends with an answer. No text
/// repeats one of another session: the builder counts the IDs of records from 1 in each.
fn work(transcript: &mut Transcript, id: &str, rng: &mut fastrand::Rng) {
    let word = |rng: &mut fastrand::Rng| WORDS[rng.usize(..WORDS.len())];
    transcript.user(format!("Crack the {}, {id}.", word(rng)));
    for number in 0..rng.usize(1..8) {
        let call = format!("toolu_{id}_{number}");
        match rng.u8(..6) {
            0 => transcript.bash(&call, &format!("grep {}", word(rng)), "found"),
            1 => {
                transcript.call(&call, "Bash", json!({"command": "npm test"}));
                transcript.result(&call, json!({"content": "Exit code 1\nno", "is_error": true}))
            }
            2 => {
                let file = format!("/home/dev/app/{}.js", word(rng));
                transcript.call(
                    &call,
                    "Edit",
                    json!({"file_path": file, "old_string": "a",
                    "new_string": "b"}),
                );
                transcript.result(&call, json!({"content": "It has been updated."}))
            }
            3 => {
                let task = format!("b{number}");
                let end = format!(
                    "<task-notification>\n<task-id>{task}</task-id>\n\
                    <tool-use-id>{call}</tool-use-id>\n<status>failed</status>\n\
                    <summary>Command failed with exit code 2</summary>\n</task-notification>"
                );
                transcript.call(&call, "Bash", json!({"command": "make"}));
                transcript.result(
                    &call,
                    json!({"content":
                    format!("Command running in background with ID: {task}.")}),
                );
                transcript.line(json!({"type": "user", "message": {"content": end}}));
                transcript.says(&format!("{call} failed."))
            }
            4 => transcript.line(json!({"type": "user", "isCompactSummary": true,
                "message": {"content": format!("The work until {call}.")}})),
            _ => transcript.says(&format!("I see the {} after {call}.", word(rng))),
        };
    }
    transcript.says(&format!("{id} is done."));
}

/// The tokens of a rollout: input and output.
#[derive(Debug, Clone, Copy, Default)]
struct Totals(u64, u64);

/// The turns of a rollout: the kind of each step, and a word.
struct Turns(Vec<(u8, &'static str)>);

impl Turns {
    fn random(rng: &mut fastrand::Rng) -> Turns {
        let count = rng.usize(1..8);
        let step = |_| (rng.u8(..4), WORDS[rng.usize(..WORDS.len())]);
        Turns((0..count).map(step).collect())
    }

    /// Returns the tokens of each step.
    fn tokens(&self) -> impl Iterator<Item = Totals> {
        (1..).zip(&self.0).map(|(at, (kind, word))| {
            Totals(100 * at + word.len() as u64, 20 * at + u64::from(*kind))
        })
    }

    fn totals(&self) -> Totals {
        self.tokens().fold(Totals::default(), |sum, step| Totals(sum.0 + step.0, sum.1 + step.1))
    }

    /// Returns the lines of the turns after the first one, at `hour`. The totals begin with
    /// `before`.
    fn lines(&self, id: &str, hour: &str, before: Totals) -> String {
        let mut rollout = Rollout::new();
        rollout.event("task_started", json!({"turn_id": "t1"}));
        rollout.line("turn_context", json!({"model": "gpt-5.5", "cwd": "/app"}));
        rollout.user(&format!("Crack the {}.", self.0[0].1));
        let Totals(mut input, mut output) = before;
        for (number, ((kind, word), step)) in self.0.iter().zip(self.tokens()).enumerate() {
            let call = format!("call_{id}_{number}");
            match kind {
                0 => rollout.command(&call, &format!("grep {word}"), 0, "found"),
                1 => rollout.command(&call, "npm test", 1, "no"),
                2 => {
                    let file = format!("/app/{word}.js");
                    rollout.custom(&call, "apply_patch", "*** Begin Patch\n*** End Patch");
                    rollout.operation(
                        "FileChange",
                        &call,
                        json!({"status": "completed",
                        "changes": {file: {"type": "add", "content": "b\n"}}}),
                    );
                    rollout.output(&call, "Success.")
                }
                _ => rollout.says(&format!("I see the {word}.")),
            };
            (input, output) = (input + step.0, output + step.1);
            let tokens = |input, output| json!({"input_tokens": input, "output_tokens": output});
            rollout.event(
                "token_count",
                json!({"info": {"last_token_usage": tokens(step.0, step.1),
                "total_token_usage": tokens(input, output)}}),
            );
        }
        rollout.says("Done.").complete();
        let text = String::from_utf8(rollout.bytes()).unwrap();
        let text = text.replace("T10:", hour).replace(codex::ID, id);
        text.split_once('\n').unwrap().1.to_owned()
    }
}

/// Returns the line of a session's facts.
fn meta(facts: &Value) -> String {
    let line = json!({"timestamp": "2026-11-01T10:00:00.000Z", "ordinal": 0,
        "type": "session_meta", "payload": facts});
    format!("{line}\n")
}

/// Returns lines as an old version copies them: with one time, and without numbers.
fn at_once(lines: &str) -> String {
    let copied = |line: &str| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        line["timestamp"] = json!("2026-11-01T10:30:00.000Z");
        line.as_object_mut().unwrap().remove("ordinal");
        format!("{line}\n")
    };
    lines.lines().map(copied).collect()
}

fn numbered_from(lines: &str, first: u64) -> String {
    let numbered = |(number, line): (usize, &str)| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        line["ordinal"] = json!(first + number as u64);
        format!("{line}\n")
    };
    lines.lines().enumerate().map(numbered).collect()
}

/// Copies, made in every way, leave the sums of a swarm as they are.
#[test]
fn copies_of_a_corpus_leave_its_sums() {
    for seed in scale::seeds(8) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let swarms = Swarms::default();
        for number in 0..rng.u64(1..4) {
            swarms.add_claude_code(&format!("session{number}"), &mut rng);
            swarms.add_codex(number, &mut rng);
        }
        let [copied, plain] = [0, 1].map(|number| swarms.sums(number));
        assert!(plain.calls > 0 && plain.tokens[0] > 0, "{plain:#?}");
        assert_eq!(copied, plain, "seed {seed}");
    }
}

/// The control: without their marks, copies count twice.
#[test]
fn copies_without_marks_count_twice() {
    let mut rng = scale::rng();
    let mut session = Transcript::new("s");
    work(&mut session, "s", &mut rng);
    let swarms = Swarms::default();
    for store in &swarms.claude_code {
        store.write(&place("s"), session.bytes());
    }
    swarms.claude_code[0].write(&place("f"), session.copied("f", |_| ()).bytes());
    assert_eq!(swarms.sums(0).calls, 2 * swarms.sums(1).calls);
}
