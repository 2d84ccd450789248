//! Arbitrary documents of mini-swe-agent and SWE-agent: whatever is listed can be read, with the
//! stated size. The first byte of the input selects the format.
#![no_main]

use libfuzzer_sys::fuzz_target;
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{Kind, Memory, Store, read_range};
use swarmletfs_trace::{Format, MiniSweAgent, RecordSource, SweAgent};

fuzz_target!(|input: &[u8]| {
    let Some((selector, document)) = input.split_first() else { return };
    let format = match selector % 2 {
        0 => MiniSweAgent::transcripts(),
        _ => SweAgent::transcripts(),
    };
    let (store, path) = (Memory::new(), RelPath::parse("run/i/i.traj").unwrap());
    store.write(&path, document);
    let folder = format.enter(&store, &path).unwrap();
    let worker = format.read_worker(&*folder, &path, None);
    let source = RecordSource { folder: &*folder, outputs: None };
    let record = format.read_record(source, &worker, Deadline::never()).unwrap();
    format.read_changes(source, Deadline::never()).unwrap();
    let (mut calls, mut folders) = (0, vec![RelPath::root()]);
    while let Some(at) = folders.pop() {
        for entry in folder.list(&at).unwrap() {
            let inner = at.join(&entry.name);
            if entry.kind == Kind::Folder {
                folders.push(inner);
                continue;
            }
            calls += usize::from(!at.is_root());
            let bytes = read_range(&*folder.open(&inner).unwrap(), 0, 1 << 20).unwrap();
            assert_eq!(folder.stat(&inner).unwrap().size, bytes.len() as u64, "{inner:?}");
        }
    }
    assert_eq!(record.trace.calls.len(), calls);
});
