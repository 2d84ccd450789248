//! Reads a session with any bytes as a whole.

use std::sync::Arc;

use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{Kind, Memory, Store, read_range};
use swarmletfs_trace::{KnownFormat, RecordSource};

/// Reads `bytes` as the session of the format `name` at `path`. Each file of the worker must have
/// its stated size.
pub fn read_session(name: &str, path: &str, bytes: &[u8]) {
    let path = RelPath::parse(path).unwrap();
    let store = Arc::new(Memory::new());
    store.write(&path, bytes);
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
