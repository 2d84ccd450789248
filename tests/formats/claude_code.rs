//! Tests of Claude Code transcripts, in stores in memory and on disk, read through the tree.
//!
//! A tree that is read as a whole must satisfy the invariants of every tree; see [`Checked`].

mod changes;
mod claims;
mod copies;
mod costs;
mod endings;
mod ends;
mod growth;
mod hostile;
mod ids;
mod mutants;
mod oddities;
mod places;
mod refusals;
mod requests;
mod titles;
mod token_counts;
mod waiting;
mod workflows;

use serde_json::{Value, json};
use swarmletfs_base::model::Worker;
use swarmletfs_base::store::Memory;
use swarmletfs_trace::{ClaudeCode, Format};

use crate::support::transcript::{
    Checked, PROJECT, Transcript, path, place, read_once, store, tree,
};

/// Reads a store with this transcript as its only session, `s`.
fn shown(transcript: &Transcript) -> Checked {
    shown_bytes(&transcript.bytes())
}

/// Reads a store with these bytes as the transcript of its only session, `s`.
fn shown_bytes(bytes: &[u8]) -> Checked {
    let store = store();
    store.write(&place("s"), bytes);
    let checked = read_once(&store);
    assert_eq!(checked.bytes("s", "source.jsonl"), bytes);
    checked
}

/// Writes the transcript of a session to its path.
fn put(store: &Memory, session: &str, transcript: &Transcript) {
    store.write(&place(session), transcript.bytes());
}

/// Reads the listing of the session `s`, without its record.
fn listed(store: &Memory) -> Worker {
    let (format, path) = (ClaudeCode::transcripts(), place("s"));
    let folder = format.enter(store, &path).unwrap();
    format.read_worker(&*folder, &path, None)
}

/// Returns a call from the index.
fn call(index: &Value, seq: usize) -> Value {
    index["tool_calls"][seq - 1].clone()
}

/// Creates a transcript with the task `look around`.
fn begun() -> Transcript {
    let mut transcript = Transcript::new("s");
    transcript.user("look around");
    transcript
}

/// Creates text blocks.
fn texts(all: &[&str]) -> Value {
    all.iter().map(|text| json!({"type": "text", "text": text})).collect()
}
