//! Bytes of a conversation in every place that they can have, read as a whole. Shared by the tests
//! and the fuzz target.

use std::sync::Arc;

use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{Kind, Memory, Store, read_range};
use swarmletfs_trace::{Format, OpenHands, RecordSource};

/// The files that the bytes can be.
pub const PLACES: [&str; 6] = [
    "c/events/event-00000-00000000.json",
    "c/base_state.json",
    "sessions/s/metadata.json",
    "c.jsonl",
    "c.json",
    "output.jsonl",
];
/// An event that makes a directory a conversation.
const EVENT: &str = r#"{"id":"e","timestamp":"2026-01-28T14:33:09","source":"user","llm_message":{"content":"x"},"kind":"MessageEvent"}"#;

/// Reads everything of a store that has `bytes` as the file at `place`. Returns the number of
/// workers.
pub fn read_all(place: &str, bytes: &[u8]) -> usize {
    let store = Arc::new(Memory::new());
    let path = |text: &str| RelPath::parse(text).unwrap();
    for folder in ["c/events/event-00001-00000001.json", "sessions/s/events/0.json"] {
        store.write(&path(folder), EVENT);
    }
    store.write(&path(place), bytes);
    let format = OpenHands::transcripts();
    format.detect(&*store).unwrap();
    let found = format.find_workers(&*store).unwrap().folders;
    for path in &found {
        let folder = format.enter(&*store, path).unwrap();
        format.folder_state(&*folder, path).unwrap();
        let worker = format.read_worker(&*folder, path, None);
        let source = RecordSource { folder: &*folder, outputs: None };
        format.read_record(source, &worker, Deadline::never()).unwrap();
        format.read_changes(source, Deadline::never()).unwrap();
        read_folder(&*folder, &RelPath::root());
    }
    found.len()
}

/// Reads all files of a worker. Each must have its stated size.
fn read_folder(folder: &dyn Store, at: &RelPath) {
    for entry in folder.list(at).unwrap() {
        let path = at.join(&entry.name);
        match entry.kind {
            Kind::Folder => read_folder(folder, &path),
            _ => {
                let size = folder.stat(&path).unwrap().size;
                let file = folder.open(&path).unwrap();
                let bytes = read_range(&*file, 0, usize::MAX >> 1).unwrap();
                assert_eq!(bytes.len() as u64, size, "{path:?}");
            }
        }
    }
}
