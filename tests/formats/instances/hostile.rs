//! Documents that nobody would write: large, deep, damaged.

use std::panic::catch_unwind;
use std::time::{Duration, Instant};

use fastrand::Rng;
use serde_json::{Value, json};

use super::*;
use crate::support::{see_folder, seeds};

/// Tokens with a meaning in a document.
const TOKENS: [&str; 22] = [
    "\"role\":\"assistant\"",
    "\"role\":\"user\"",
    "\"role\":\"tool\"",
    "\"content\":",
    "\"extra\":{}",
    "\"returncode\":0",
    "\"messages\":[",
    "\"trajectory\":[",
    "\"info\":{",
    "\"exit_status\":\"submitted\"",
    "\"action\":\"str_replace_editor create /a --file_text 'x'\"",
    "\"observation\":\"File created successfully at: /a\"",
    "NaN",
    "-Infinity",
    "\\ud83d",
    "1e999",
    "{",
    "}",
    "[",
    "]",
    "\"",
    "\u{0}",
];

#[test]
fn damaged_document_is_shown_as_far_as_it_is_readable() {
    for (program, seed) in
        [Program::Mini, Program::Swe].into_iter().flat_map(|p| seeds(60).map(move |s| (p, s)))
    {
        let mut rng = Rng::with_seed(seed);
        let whole = super::growth::versions(program).pop().unwrap();
        let mut bytes = serde_json::to_vec(&whole).unwrap();
        for _ in 0..rng.usize(1..6) {
            let at = rng.usize(..=bytes.len());
            let end = (at + rng.usize(..100)).min(bytes.len());
            match rng.u8(..4) {
                0 if at < bytes.len() => bytes[at] = rng.u8(..),
                1 => drop(bytes.drain(at..end)),
                _ => {
                    let token = *rng.choice(&TOKENS).unwrap();
                    bytes.splice(at..at, token.bytes());
                }
            }
        }
        let seen = catch_unwind(|| shown_bytes(program, bytes.clone()));
        let seen = seen.unwrap_or_else(|_| panic!("{program:?} {seed}: {}", bytes.escape_ascii()));
        let store = Arc::new(Memory::new());
        store.write(&program.place(), bytes);
        let tree = tree(program, &store);
        // A damaged document may not be recognized.
        if let Ok(shown) = see_folder(&tree, "workers/i") {
            let calls = shown.keys().filter(|path| path.starts_with(b"workers/i/tool_calls/"));
            assert_eq!(calls.count(), seen.calls().len(), "{program:?} {seed}");
        }
    }
}

/// Returns a document with `count` steps of this record.
fn many(program: Program, record: &Value, count: usize) -> Vec<u8> {
    let record = record.to_string();
    let records = vec![record.as_str(); count].join(",\n");
    let (list, rest) = match program {
        Program::Mini => ("messages", "\"trajectory_format\": \"mini-swe-agent-1.1\""),
        Program::Swe => ("trajectory", "\"info\": {\"exit_status\": \"submitted\"}"),
    };
    format!("{{\"{list}\": [{records}], {rest}}}").into_bytes()
}

#[test]
fn many_records_take_time_in_proportion() {
    let mini = [
        json!({"role": "assistant", "content": "```bash\nls\n```"}),
        json!({"role": "user", "content": "more"}),
        super::mini_swe_agent::call(0.0, json!("x"), &[("a", "ls"), ("b", "ls")]),
        super::mini_swe_agent::result(0.0, "a", 0, "x"),
    ];
    let swe = [super::swe_agent::step("ls", "x", "y"), super::swe_agent::step("", "", "")];
    let records = mini.into_iter().map(|r| (Program::Mini, r));
    for (program, record) in records.chain(swe.into_iter().map(|r| (Program::Swe, r))) {
        let start = Instant::now();
        let store = Memory::new();
        store.write(&program.place(), many(program, &record, 20_000));
        let format = program.format();
        let folder = format.enter(&store, &program.place()).unwrap();
        let worker = format.read_worker(&*folder, &program.place(), None);
        assert!(worker.is_complete);
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "{program:?} {:?}: {record:.60}",
            start.elapsed()
        );
    }
}

#[test]
fn large_and_deep_values_cost_only_themselves() {
    let large = "x".repeat(2 << 20);
    let mut messages = super::mini_swe_agent::messages();
    messages.push(super::mini_swe_agent::call(10.0, json!(large), &[("l", &large)]));
    messages.push(super::mini_swe_agent::result(11.0, "l", 0, &large));
    messages.push(json!({"role": "exit", "content": large, "extra": {"submission": large}}));
    let document = super::mini_swe_agent::document(json!("Submitted"), &messages);
    let seen = shown(Program::Mini, &document);
    assert_eq!((seen.calls().len(), seen.calls()[4].bytes), (5, large.len() as u64));
    assert_eq!(seen.files["result.txt"].len(), large.len());

    let mut steps = super::swe_agent::steps();
    steps[1]["observation"] = json!(large);
    steps[1]["action"] = json!(format!("cat {large}"));
    let document = super::swe_agent::document(Value::Null, &steps);
    assert_eq!(shown(Program::Swe, &document).calls()[1].bytes, large.len() as u64);

    // A record longer than 16 MiB is left out and counted.
    steps[1]["query"] = json!("y".repeat(17 << 20));
    let document = super::swe_agent::document(Value::Null, &steps).to_string();
    let seen = shown_bytes(Program::Swe, document.into_bytes());
    assert_eq!(seen.record.trace.bad_lines, [("source.json", 1)]);
    assert_eq!(seen.calls().len(), 3);

    let deep = format!("{}{}", "[".repeat(5_000), "]".repeat(5_000));
    for program in [Program::Mini, Program::Swe] {
        let whole = super::growth::versions(program).pop().unwrap().to_string();
        let with = whole.replace("\"extra", &format!("\"deep\": {deep}, \"extra"));
        let seen = shown_bytes(
            program,
            with.replace("\"thought", &format!("\"d\": {deep}, \"thought")).into_bytes(),
        );
        assert_eq!(seen.calls().len(), shown_bytes(program, whole.into_bytes()).calls().len());
    }
}
