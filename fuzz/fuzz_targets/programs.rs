//! Sessions of the programs with small readers, with any bytes, are read without a failure, and
//! what is stated about a file is what its content is.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{Kind, Memory, Store, read_range};
use swarmletfs_trace::{KnownFormat, RecordSource};

/// The formats, each with the path of a session.
const FORMATS: [(&str, &str); 8] = [
    ("atif", "t.json"),
    ("cline", "s/s.messages.json"),
    ("cline", "s/api_conversation_history.json"),
    ("copilot-cli", "session-state/s/events.jsonl"),
    ("cursor", "s/s.jsonl"),
    ("droid", "s/s.jsonl"),
    ("pi", "s/s.jsonl"),
    ("qwen-code", "p/chats/s.jsonl"),
];

fuzz_target!(|input: &[u8]| {
    for (name, path) in FORMATS {
        let path = RelPath::parse(path).unwrap();
        let store = Arc::new(Memory::new());
        store.write(&path, input);
        let format = KnownFormat::by_name(name).unwrap().create();
        format.detect(&*store).unwrap();
        format.find_workers(&*store).unwrap();
        // The file is read even if it is not recognized.
        let folder = format.enter(&*store, &path).unwrap();
        let worker = format.read_worker(&*folder, &path, None);
        let source = RecordSource { folder: &*folder, outputs: None };
        format.read_record(source, &worker, Deadline::never()).unwrap();
        format.read_changes(source, Deadline::never()).unwrap();
        read_all(&*folder, &RelPath::root());
    }
});

fn read_all(folder: &dyn Store, at: &RelPath) {
    for entry in folder.list(at).unwrap() {
        let path = at.join(&entry.name);
        if entry.kind == Kind::Folder {
            read_all(folder, &path);
            continue;
        }
        let size = folder.stat(&path).unwrap().size;
        let bytes = read_range(&*folder.open(&path).unwrap(), 0, 1 << 24).unwrap();
        assert_eq!(bytes.len() as u64, size, "{path:?}");
    }
}
