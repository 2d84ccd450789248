//! Transcripts of Claude Code, through the core: stores in memory and on disk, read as the tree.
//!
//! Whatever is looked at as a whole is held against what must hold of every tree; see [`Checked`].

mod growth;
mod hostile;
mod ids;
mod mutants;
mod oddities;
mod places;

use serde_json::{Value, json};
use swarmletfs::store::Memory;

use crate::support::transcript::{Checked, Transcript, place, store, tree};

/// What is shown of one session, `s`, whose transcript is this.
fn shown(transcript: &Transcript) -> Checked {
    shown_bytes(&transcript.bytes())
}

/// The same of these bytes.
fn shown_bytes(bytes: &[u8]) -> Checked {
    let store = store();
    store.write(&place("s"), bytes);
    let checked = Checked::of(&tree(&store));
    assert_eq!(checked.bytes("s", "source.jsonl"), bytes);
    checked
}

/// Puts the transcript of a session where it belongs.
fn put(store: &Memory, session: &str, transcript: &Transcript) {
    store.write(&place(session), transcript.bytes());
}

/// A call as the index has it.
fn call(index: &Value, seq: usize) -> Value {
    index["tool_calls"][seq - 1].clone()
}

/// A transcript with the task `look around`.
fn begun() -> Transcript {
    let mut transcript = Transcript::new("s");
    transcript.user("look around");
    transcript
}

/// Blocks of text.
fn texts(all: &[&str]) -> Value {
    all.iter().map(|text| json!({"type": "text", "text": text})).collect()
}
