//! Sessions that are small on disk, or whose records are large: the work on them is in proportion
//! to their size, however often their parts are read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::json;
use swarmletfs_base::error::Result;
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{File, Memory, Meta, Store};
use swarmletfs_tree::tree::Tree;

use crate::formats::{codex, text};
use crate::support::intercept::{InterceptedStore, Interceptor};
use crate::support::see;
use crate::support::transcript::{self, Transcript, path};

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
