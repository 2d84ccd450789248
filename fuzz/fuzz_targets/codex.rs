//! A rollout of Codex with any content can be listed and read, and so can the changes that it
//! records. If the first byte of the input is odd, the rest arrives in two pieces.
#![no_main]

use libfuzzer_sys::fuzz_target;
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{Memory, read_range};
use swarmletfs_trace::{Codex, Format, RecordSource};

const PATH: &str =
    "sessions/2026/11/01/rollout-2026-11-01T10-00-00-0199aaaa-0000-7000-8000-000000000001.jsonl";

fuzz_target!(|input: &[u8]| {
    let Some((way, text)) = input.split_first() else { return };
    let (store, path) = (Memory::new(), RelPath::parse(PATH).unwrap());
    let format = Codex::transcripts();
    let half = if way % 2 == 1 { text.len() / 2 } else { text.len() };
    let mut calls = 0;
    for end in [half, text.len()] {
        store.write(&path, &text[..end]);
        let found = format.find_workers(&store).unwrap();
        assert_eq!(found.folders, [path.clone()]);
        let folder = format.enter(&store, &path).unwrap();
        let worker = format.read_worker(&*folder, &path, None);
        let source = RecordSource { folder: &*folder, outputs: None };
        let record = format.read_record(source, &worker, Deadline::never()).unwrap();
        // A line without its end may turn out to be another one.
        assert!(record.trace.calls.len() >= calls || !text[..half].ends_with(b"\n"));
        calls = record.trace.calls.len();
        for call in &record.trace.calls {
            let file = folder.open(&call.path).unwrap();
            let bytes = read_range(&*file, 0, 1 << 20).unwrap();
            assert_eq!(bytes.len() as u64, call.bytes);
        }
        format.read_changes(source, Deadline::never()).unwrap();
    }
});
