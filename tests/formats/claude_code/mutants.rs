//! Tests of randomly damaged transcripts: the tree stays consistent and nothing panics.

use std::panic::{AssertUnwindSafe, catch_unwind};

use fastrand::Rng;

use super::*;
use crate::support::seeds;
use crate::support::transcript::{PROJECT, path};

/// Number of damaged transcripts.
const TRIED: usize = 60;

/// Tokens with a meaning in a transcript.
const TOKENS: [&str; 44] = [
    "\"type\":\"user\"",
    "\"type\":\"assistant\"",
    "\"type\":\"progress\"",
    "\"type\":\"tool_use\"",
    "\"type\":\"tool_result\"",
    "\"type\":\"text\"",
    "\"type\":\"summary\"",
    "\"type\":\"agent_progress\"",
    "\"message\":",
    "\"content\":",
    "\"data\":",
    "\"id\":\"a\"",
    "\"tool_use_id\":\"a\"",
    "\"agentId\":\"p\"",
    "\"isSidechain\":true",
    "\"isMeta\":true",
    "\"is_error\":true",
    "\"uuid\":\"u1\"",
    "\"parentUuid\":\"u1\"",
    "\"input\":{}",
    "\"usage\":{\"input_tokens\":1}",
    "\"timestamp\":\"2026-02-01T10:00:00Z\"",
    "\"timestamp\":\"-9999-01-01T00:00:00Z\"",
    "<persisted-output>",
    "Exit code 1",
    "[Request interrupted by user",
    " truncated]",
    "null",
    "true",
    "1e999",
    "-0",
    "18446744073709551616",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\\",
    "\\ud83d",
    "\n",
    "\r\n",
    "\u{0}",
];

fn whole() -> Vec<u8> {
    let mut t = begun();
    t.bash("a", "ls", "one\ntwo").progress("p", "user", json!({"content": "go"}));
    let uses = json!([{"type": "tool_use", "id": "pa", "name": "Grep", "input": {"pattern": "x"}}]);
    t.progress("p", "assistant", json!({"id": "m", "content": uses}));
    t.progress(
        "p",
        "user",
        json!({"content": [{"type": "tool_result", "tool_use_id": "pa", "content": "hit"}]}),
    );
    t.line(
        json!({"type": "user", "isSidechain": true, "uuid": "o1", "parentUuid": null, "message": {"content": "old"}}),
    );
    t.call("b", "Bash", json!({"command": "big"}))
        .result("b", json!({"content": "<persisted-output>\nsaved"}));
    t.call("c", "Bash", json!({}))
        .result("c", json!({"content": "Exit code 1", "is_error": true}))
        .says("Done.");
    t.bytes()
}

fn damage(bytes: &mut Vec<u8>, rng: &mut Rng) {
    let at = rng.usize(..=bytes.len());
    let to = (at + rng.usize(..200)).min(bytes.len());
    match rng.u8(..9) {
        0 if at < bytes.len() => bytes[at] = rng.u8(..),
        1 => drop(bytes.drain(at..to)),
        2 => {
            let part = bytes[at..to].to_vec();
            let into = rng.usize(..=bytes.len());
            bytes.splice(into..into, part);
        }
        3 => bytes.truncate(at),
        4 => {
            let mut lines: Vec<Vec<u8>> =
                bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
            rng.shuffle(&mut lines);
            *bytes = lines.concat();
        }
        5 => {
            // Replace one value with another.
            let values: Vec<usize> = memchr::memchr_iter(b':', bytes).collect();
            if let Some(from) = rng.choice(&values) {
                let end = memchr::memchr2(b',', b'}', &bytes[*from..])
                    .map_or(bytes.len(), |end| from + end);
                let token = *rng.choice(&TOKENS).unwrap();
                bytes.splice(from + 1..end, token.bytes());
            }
        }
        _ => {
            let token = *rng.choice(&TOKENS).unwrap();
            bytes.splice(at..at, token.bytes());
        }
    }
}

#[test]
fn a_damaged_transcript_is_shown_as_far_as_it_is_readable() {
    for seed in seeds(TRIED) {
        let mut rng = Rng::with_seed(seed);
        let mut bytes = whole();
        let store = store();
        store.write(&path(format!("{PROJECT}/s/tool-results/b.txt")), "all of it\n");
        store.write(&place("s"), bytes.clone());
        let live = tree(&store);
        for _ in 0..rng.usize(1..8) {
            for _ in 0..rng.usize(1..6) {
                damage(&mut bytes, &mut rng);
            }
            store.write(&place("s"), bytes.clone());
            let looked = catch_unwind(AssertUnwindSafe(|| {
                let (live, fresh) = (Checked::of(&live), read_once(&store));
                assert_eq!(live.bytes("s", "source.jsonl"), bytes);
                assert!(live.0 == fresh.0, "what was there all the while shows something else");
            }));
            assert!(looked.is_ok(), "seed {seed}: {}", bytes.escape_ascii());
        }
    }
}
