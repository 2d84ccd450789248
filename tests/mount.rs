//! The tree through the kernel: real mounts, ordinary tools, and changes underneath.
//!
//! A file per family: what the tree holds, tools on a generated file, snapshots, changes under readers, freshness,
//! special files, and that nothing can be changed. Nothing here measures time: what takes a moment is awaited.

mod at_random;
pub mod attributes;
mod broken;
mod bytes;
mod change;
mod death;
mod fresh;
mod full;
mod kept;
mod limits;
mod listing;
mod passed;
pub mod readonly;
mod replaced;
mod sessions;
mod snapshots;
mod special;
mod stalled;
mod ticks;
mod tools;
mod torn;
mod tree;
mod watched;

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use super::support::{Mount, TestStore};

/// No machine should need longer than this to show a change that is due within a second.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Polls until `look` finds something.
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "not seen within {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// How many answers the server of a mount has given.
fn answers(mount: &Mount) -> u64 {
    let io = std::fs::read_to_string(format!("/proc/{}/io", mount.pid())).unwrap();
    io.lines().find_map(|line| line.strip_prefix("syscw: ")).unwrap().parse().unwrap()
}

/// What one handle tells of a file.
struct Snapshot {
    /// The size that fstat tells before anything is read.
    size: u64,
    /// The number of its inode.
    number: u64,
    /// All of its bytes.
    bytes: Vec<u8>,
}

impl Snapshot {
    /// Opens `path` and reads all of it.
    fn of(path: &Path) -> std::io::Result<Snapshot> {
        let mut file = std::fs::File::open(path)?;
        let meta = file.metadata()?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(Snapshot { size: meta.len(), number: meta.ino(), bytes })
    }
}

/// Three workers in two runs, the store's own index, and the supervisor's notes.
pub fn swarm() -> TestStore {
    let store = TestStore::new();
    let failing: String = (0..900).map(|n| format!("line {n}: checked host-{n}\n")).collect();
    store.worker("alpha", json!({"run_id": "r1", "job_id": "7"}));
    store.write("workers/alpha/result.txt", "All hosts were checked.\n");
    store.call("alpha", 1, "ssh_exec", r#"{"ok": true, "data": {"exit_code": 0, "stdout": "fine"}}"#);
    store.call("alpha", 2, "ssh_exec", format!("{failing}Error: disk full\n"));
    store.call("alpha", 3, "grep_logs", "Error: no such file\n");
    store.worker("beta", json!({"run_id": "r1", "status": "failed", "error": "timeout after 300 s"}));
    store.call("beta", 1, "sql", "<tool-error>connection refused</tool-error>\n");
    store.worker("gamma", json!({"run_id": "r2", "status": "running", "task": "line one\nline two \u{fffd} ünï"}));
    store.call("gamma", 1, "sql", "1\n2\n3\n");
    store.write("workers/index.json", r#"{"workers":[]}"#);
    store.write("supervisor/strategy.md", "# Strategy\n");
    store
}
