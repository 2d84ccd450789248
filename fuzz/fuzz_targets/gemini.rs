//! A session of Gemini CLI with any bytes is read without a failure, as a log and as a document,
//! and what is stated about a file is what its content is.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{Kind, Memory, Store, read_range};
use swarmletfs_trace::{Format, GeminiCli, RecordSource};

fuzz_target!(|input: &[u8]| {
    for name in ["session-x.jsonl", "session-x.json"] {
        let path = RelPath::parse(format!("app/chats/{name}")).unwrap();
        let store = Arc::new(Memory::new());
        store.write(&path, input);
        let format = GeminiCli::transcripts();
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
