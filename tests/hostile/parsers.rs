//! R36: every parser of worker content takes time proportional to its input.
//!
//! Random structures that are nested, truncated or repeated are read in every way in which content
//! reaches a parser. The CPU time of the thread counts, so a busy machine fails nothing. A debug
//! build may take the deadline of a page and one second more, which is what a reader may have to
//! wait. An optimized build may take what the fuzz target allows.
//!
//! Sessions that are small on disk, or whose records are large: the work on them is in proportion
//! to their size, however often their parts are read.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use super::Dice;
use crate::formats::{codex, text};
use crate::support::content::{WAYS, Way, allowed, read};
use crate::support::intercept::{InterceptedStore, Interceptor};
use crate::support::transcript::{self, Transcript, path};
use crate::support::{TestStore, scale, see, seed};
use swarmletfs_base::error::Result;
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{File, Memory, Meta, Store};
use swarmletfs_tree::tree::Tree;

/// Number of structures read in each way.
const STRUCTURES: usize = 2_000;
/// Maximum time for a page: outputs are read for two seconds, and the answer follows within one
/// more.
const PAGE: Duration = Duration::from_secs(3);
/// Maximum length of a structure, in bytes.
const LONGEST: usize = 64 << 10;
/// The seeds of the fuzz target.
const SEEDS: &str = "fuzz/seeds/content";

/// Opening tokens, each with its closing token.
const JSON: &[(&str, &str)] = &[
    ("{\"a\":", "}"),
    ("{\"data\":", "}"),
    ("{\"ok\":false,\"data\":{\"exit_code\":", "}}"),
    ("{\"config\":{\"owner_id\":", "}}"),
    ("{\"id\":", "}"),
    ("{\"owner_id\":1,\"owner_id\":", "}"),
    ("{\"workers\":[", "]}"),
    ("[", "]"),
    ("[{\"tool\":\"sh\",\"id\":", "}]"),
    ("\"", "\""),
    ("\"{\\\"a\\\":", "}\""),
    ("\"\\ud83d", "\""),
    ("1,", "2"),
    ("1e99999", ""),
    ("18446744073709551616", ""),
    ("{\"role\":\"tool\",\"content\":\"[EVIDENCE:run_id=-,job_id=-,worker_id=w", "]\"}"),
];
const PYTHON: &[(&str, &str)] = &[
    ("{'a':", "}"),
    ("{'ok': False, 'data': {'exit_code':", "}}"),
    ("[", "]"),
    ("(", ")"),
    ("(", ",)"),
    ("{", "}"),
    ("set(", ")"),
    ("'", "'"),
    ("'''", "'''"),
    ("b\"", "\""),
    ("b'': b'', ", ""),
    ("{b'': b'', 'a': ", "}"),
    ("r'\\", "'"),
    ("\\", "\n"),
    ("#", "\n"),
    ("1+", "2j"),
    ("-", "1"),
    ("1_", "1"),
    ("0x", "f"),
    ("'\\N{", "}'"),
    ("\"it's\", ", "None"),
];
const LINES: &[(&str, &str)] = &[
    ("{\"role\":\"assistant\",\"content\":\"", "\"}\n"),
    ("{\"role\":\"assistant\",\"tool_calls\":[{\"name\":\"sh\",\"args\":", "}]}\n"),
    (
        "{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"sh\",\"arguments\":\"{",
        "}\"}}]}\n",
    ),
    ("{\"event\":\"tool_call\",\"tool\":\"sh\",\"exit_code\":", "}\n"),
    ("{\"event\":", "}\n"),
    ("[", "]"),
    ("{\"a\":", "}"),
    ("\n", "\n"),
    ("\r", "\n"),
    (" ", "\n"),
    ("\0", "\n"),
];
const TRANSCRIPT: &[(&str, &str)] = &[
    ("{\"type\":\"user\",\"message\":{\"content\":\"", "\"}}\n"),
    ("{\"type\":\"user\",\"message\":{\"content\":[", "]}}\n"),
    ("{\"type\":\"tool_result\",\"tool_use_id\":\"a\",\"content\":[", "]},"),
    ("{\"type\":\"text\",\"text\":\"", "\"},"),
    (
        "{\"type\":\"assistant\",\"message\":{\"content\":[{\"type\":\"tool_use\",\"id\":\"a\",\"input\":",
        "}]}}\n",
    ),
    (
        "{\"type\":\"progress\",\"data\":{\"type\":\"agent_progress\",\"agentId\":\"x\",\"message\":",
        "}}\n",
    ),
    ("{\"type\":\"user\",\"isSidechain\":true,\"uuid\":\"", "\",\"message\":{}}\n"),
    ("{\"type\":\"user\",\"timestamp\":\"2026-", "\",\"message\":{}}\n"),
    ("{\"command\":", "}"),
    ("[", "]"),
    ("\\ud83d", ""),
    ("\n", "\n"),
];
const WORDS: &[(&str, &str)] = &[
    ("2026-01-20", "T10:00:00Z"),
    ("T10:00:00", "+01:00"),
    (".1234567890", "Z"),
    ("[Europe/Paris", "]"),
    ("[u-ca=", "]"),
    ("[!", "]"),
    ("-", "-"),
    ("+", ":"),
    ("00", "00"),
    ("{\"a\":", "}"),
    ("[EVIDENCE:", "]"),
    ("\u{1b}[", "m"),
    ("\u{202e}", " "),
];
const MARKERS: &[(&str, &str)] = &[
    ("[EVIDENCE:run_id=-,job_id=-,worker_id=w", "]"),
    ("[EVIDENCE:run_id=", ",job_id=1,worker_id=w]"),
    ("[EVIDENCE:run_id=1,job_id=", "]"),
    ("[EVIDENCE:run_id=1,job_id=1,worker_id=", "]"),
    ("[evidence:", "]"),
    ("[EVIDENCE", ":"),
    ("[TOOL_OUTPUT:artifact_id=", "]"),
    ("[...", "...]"),
    ("[", "]"),
    ("`outputs/", ".md`"),
    ("../", "/x"),
    ("%41", "%"),
    ("a:", "."),
];
const TERMINAL: &[(&str, &str)] = &[
    ("\u{1b}[", "m"),
    ("\u{1b}[31", "m"),
    ("\u{1b}[1;", "H"),
    ("\u{1b}]0;", "\u{7}"),
    ("\u{1b}P", "\u{1b}\\"),
    ("\u{1b}", "c"),
    ("9%\r", "100%\n"),
    ("\r\r", "\n"),
    ("\n", "\n"),
    ("\t", "\n"),
    ("error: ", "\n"),
    ("  at f(a.rs:1", ")\n"),
    ("File \"a.py\", line ", "\n"),
    ("no errors, 0 failed, ", "error\n"),
    ("exit code ", "1\n"),
    ("漢😀", "é"),
];

/// Returns the tokens of content read in this way.
fn words(way: Way, dice: &mut Dice) -> &'static [(&'static str, &'static str)] {
    let all: &[&[(&str, &str)]] = match way {
        Way::Output => &[JSON, PYTHON, PYTHON, TERMINAL],
        Way::Metadata | Way::Index => &[JSON],
        Way::Lines => &[LINES, JSON],
        Way::Transcript => &[TRANSCRIPT, JSON],
        Way::Words => &[WORDS, JSON, PYTHON, MARKERS],
        Way::Result => &[MARKERS, TERMINAL, WORDS],
        Way::Text => &[MARKERS, JSON],
    };
    dice.pick::<&[(&str, &str)]>(all)
}

/// Creates a structure that is nested, truncated, repeated, or several of these.
fn structure(way: Way, dice: &mut Dice) -> Vec<u8> {
    // Small structures find as many bugs, so most are small.
    let length = (LONGEST >> dice.below(12)).max(16);
    let words = words(way, dice);
    let mut text = Vec::new();
    while text.len() < length {
        let room = length - text.len();
        let (open, close) = *dice.pick(words);
        let (inner, _) = *dice.pick(words);
        let most = (room / (open.len() + close.len()).max(1)).max(1);
        let times = 1 + dice.below(most);
        match dice.below(5) {
            0 => {
                text.extend(open.repeat(times).bytes());
                text.extend(inner.bytes());
                text.extend(close.repeat(times).bytes());
            }
            1 => text.extend(open.repeat(times).bytes()),
            2 => text.extend(format!("{open}{inner}{close}").repeat(times / 2 + 1).bytes()),
            3 => text.extend([open, close].concat().bytes()),
            _ => text.extend(open.bytes().chain(inner.bytes())),
        }
        if dice.once_in(4) {
            break;
        }
    }
    match dice.below(4) {
        0 => text.truncate(dice.below(text.len())),
        1 => {
            let at = dice.below(text.len());
            text[at] = *dice.pick(b"\0\x1b\xff\\\"'{[(,:]})\n\r ");
        }
        _ => {}
    }
    text.truncate(LONGEST);
    text
}

/// Reads content and asserts the time limit for each page.
#[track_caller]
fn check(way: Way, content: &[u8]) {
    for (page, took) in read(way, content) {
        let most = if cfg!(debug_assertions) { PAGE } else { allowed(content.len()) };
        let begin = String::from_utf8_lossy(&content[..content.len().min(200)]);
        assert!(
            took <= most,
            "{page} took {took:?} for {} bytes as {way:?}: {begin}",
            content.len()
        );
    }
}

/// Reads random structures in one way.
fn check_all(way: Way) {
    let mut dice = Dice::new(seed());
    for _ in 0..scale(STRUCTURES) {
        check(way, &structure(way, &mut dice));
    }
}

/// Promise: Reading an output takes time in proportion to its size.
#[test]
fn output_takes_time_in_proportion_to_its_size() {
    check_all(Way::Output);
}

/// Promise: Reading metadata takes time in proportion to its size.
#[test]
fn metadata_takes_time_in_proportion_to_its_size() {
    check_all(Way::Metadata);
}

/// Promise: Reading an index takes time in proportion to its size.
#[test]
fn index_takes_time_in_proportion_to_its_size() {
    check_all(Way::Index);
}

/// Promise: Reading a thread or metrics takes time in proportion to its size.
#[test]
fn thread_and_metrics_take_time_in_proportion_to_their_size() {
    check_all(Way::Lines);
}

/// Promise: Reading a transcript takes time in proportion to its size.
#[test]
fn transcript_takes_time_in_proportion_to_its_size() {
    check_all(Way::Transcript);
}

/// Promise: Parsing a time or a word takes time in proportion to its size.
#[test]
fn times_and_words_take_time_in_proportion_to_their_size() {
    check_all(Way::Words);
}

/// Promise: Reading final words takes time in proportion to their size.
#[test]
fn final_words_take_time_in_proportion_to_their_size() {
    check_all(Way::Result);
}

/// Promise: Expanding markers takes time in proportion to the size of the text.
#[test]
fn text_with_markers_takes_time_in_proportion_to_its_size() {
    check_all(Way::Text);
}

#[test]
fn fuzz_seeds_take_no_longer_than_their_size_allows() {
    let mut count = 0;
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(SEEDS)).unwrap() {
        let seed = fs::read(entry.unwrap().path()).unwrap();
        let (way, content) = seed.split_first().unwrap();
        check(WAYS[usize::from(*way) % WAYS.len()], content);
        count += 1;
    }
    assert!(count >= WAYS.len());
}

/// Returns `failed`, the outcome of a call with this output, and its time, measured as for
/// [`Way::Output`].
fn outcome(output: &str) -> Value {
    check(Way::Output, output.as_bytes());
    let store = TestStore::new();
    store.worker("w", json!({})).call("w", 1, "sh", output);
    let index: Value =
        serde_json::from_slice(see(&store.tree(), "workers/w/index.json").unwrap().bytes())
            .unwrap();
    index["tool_calls"][0]["outcome"].clone()
}

/// Promise: A hostile output of 121 bytes does not hang its page.
///
/// This output took a page 3.7 seconds, and twice as long with every level.
#[test]
fn hostile_output_of_121_bytes_does_not_hang_its_page() {
    let output = format!("{}1{}", "{'a':".repeat(20), "}".repeat(20));
    assert_eq!(output.len(), 121);
    assert_eq!(outcome(&output), "unknown");
    let output = format!("{{'ok': False, 'a': {}1{}}}", "{'a':".repeat(60), "}".repeat(60));
    assert_eq!(outcome(&output), "failed");
}

/// Promise: A truncated JSON tree does not hang its page.
#[test]
fn truncated_json_tree_does_not_hang_its_page() {
    let level = |n: usize| format!("{{\"type\":\"folder\",\"name\":\"d{n}\",\"in\":[");
    let tree: String = (0..22).map(level).collect();
    assert!(tree.len() > 700);
    assert_eq!(outcome(&tree), "unknown");
    assert_eq!(outcome(&format!("{tree}{}", "]}".repeat(22))), "unknown");
    assert_eq!(outcome(&format!("{{'ok': False, 'tree': {tree}{}}}", "]}".repeat(22))), "failed");
}

/// Number of outputs in a session.
const OUTPUTS: usize = 200;
/// Length of an output, in bytes.
const OUTPUT: usize = 20_000;
/// The longest session may be read this many times, for all that is asked of it.
const READS_MAX: u64 = 20;

/// Counts the bytes that are read of files.
#[derive(Clone, Default)]
struct ByteCounter(Arc<AtomicU64>);

struct CountedFile(Box<dyn File>, ByteCounter);

impl Interceptor for ByteCounter {
    fn open(&self, store: &dyn Store, path: &RelPath) -> Result<Box<dyn File>> {
        Ok(Box::new(CountedFile(store.open(path)?, self.clone())))
    }
}

impl File for CountedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let n = self.0.read_at(buffer, offset)?;
        self.1.0.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }

    fn meta(&self) -> Result<Meta> {
        self.0.meta()
    }
}

/// Returns an output, each with a word of its own.
fn output(number: usize) -> String {
    format!("{}\nneedle{number}end\n", "7".repeat(OUTPUT))
}

/// Asks for everything about the session `id` of a file of this size, and returns how many times
/// as many bytes were read.
fn times_read(tree: &Tree, id: &str, size: usize, counter: &ByteCounter) -> u64 {
    let found = see(tree, "grep/needle1end").unwrap();
    assert!(found.text().contains("needle1end"), "{}", found.text());
    let others = see(tree, format!("workers/{id}/grep/needle[0-9]+end")).unwrap();
    assert!(others.text().contains(&format!("{OUTPUTS} lines")), "{}", others.text());
    let found = see(tree, format!("search/needle{}end", OUTPUTS - 1)).unwrap();
    assert!(found.text().contains(&format!("needle{}end", OUTPUTS - 1)), "{}", found.text());
    for page in ["summary", "evidence.txt", "index.json", "thread.jsonl", "requests.txt"] {
        assert!(!text(tree, id, page).is_empty(), "{page}");
    }
    counter.0.load(Ordering::Relaxed) / size as u64
}

#[test]
fn compressed_session_is_decompressed_once() {
    let mut rollout = codex::Rollout::begun();
    for number in 0..OUTPUTS {
        rollout.command(&number.to_string(), "seq", 0, &output(number));
    }
    let bytes = zstd::encode_all(&*rollout.complete().bytes(), 3).unwrap();
    let (store, counter) = (Memory::new(), ByteCounter::default());
    store.write(&path(format!("{}.zst", codex::place(codex::ID))), bytes.clone());
    let store = Arc::new(InterceptedStore::new(counter.clone(), Arc::new(store)));
    let times = times_read(&codex::tree(&store), codex::ID, bytes.len(), &counter);
    assert!(times < READS_MAX, "read {times} times");
}

#[test]
fn record_of_many_results_is_decoded_once() {
    let mut transcript = Transcript::new("s");
    transcript.user("look around");
    let parts = |part: &dyn Fn(usize) -> serde_json::Value| -> Vec<serde_json::Value> {
        (0..OUTPUTS).map(part).collect()
    };
    let uses = parts(&|number| {
        json!({"type": "tool_use", "id": number.to_string(), "name": "Bash",
            "input": {"command": "seq"}})
    });
    let results = parts(
        &|number| json!({"type": "tool_result", "tool_use_id": number.to_string(), "content": output(number)}),
    );
    for (kind, content) in [("assistant", uses), ("user", results)] {
        let line = json!({"type": kind, "message": {"role": kind, "content": content}});
        transcript.raw(format!("{line}\n"));
    }
    let bytes = transcript.says("done").bytes();
    let (store, counter) = (transcript::store(), ByteCounter::default());
    store.write(&transcript::place("s"), bytes.clone());
    let store = Arc::new(InterceptedStore::new(counter.clone(), store));
    let times = times_read(&transcript::tree(&store), "s", bytes.len(), &counter);
    assert!(times < READS_MAX, "read {times} times");
}
