//! Tests through the kernel: real mounts, ordinary tools, and changes in the store.
//!
//! There is a file per topic. These tests measure no times: they wait until a change is visible.

mod attach;
pub mod attributes;
mod bytes;
mod change;
mod clock_ticks;
mod death;
mod disk_cache;
mod failing_disk;
mod freshness;
mod limits;
mod listing;
mod owners;
mod passthrough;
mod random_changes;
pub mod readonly;
mod replaced_store;
mod sessions;
mod snapshots;
mod special;
mod stalled;
mod tools;
mod tree;
mod watched;

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use super::support::{Mount, TestStore};

/// Timeout for a change that is due within a second, generous for slow machines.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Polls until `look` returns a value. Panics after [`PATIENCE`].
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

/// Returns how many replies the server of a mount has sent.
fn reply_count(mount: &Mount) -> u64 {
    let io = std::fs::read_to_string(format!("/proc/{}/io", mount.pid())).unwrap();
    io.lines().find_map(|line| line.strip_prefix("syscw: ")).unwrap().parse().unwrap()
}

/// A file as seen through one handle.
struct Snapshot {
    /// Size from fstat before the first read.
    size: u64,
    /// Inode number.
    number: u64,
    /// All bytes.
    bytes: Vec<u8>,
}

impl Snapshot {
    /// Opens `path` and reads all of it.
    fn open(path: &Path) -> std::io::Result<Snapshot> {
        let mut file = std::fs::File::open(path)?;
        let meta = file.metadata()?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(Snapshot { size: meta.len(), number: meta.ino(), bytes })
    }
}

/// Returns a store with three workers in two runs, its own index, and the supervisor's notes.
pub fn swarm() -> TestStore {
    let store = TestStore::new();
    let failing: String = (0..900).map(|n| format!("line {n}: checked host-{n}\n")).collect();
    store.worker("alpha", json!({"run_id": "r1", "job_id": "7"}));
    store.write("workers/alpha/result.txt", "All hosts were checked.\n");
    store.call(
        "alpha",
        1,
        "ssh_exec",
        r#"{"ok": true, "data": {"exit_code": 0, "stdout": "fine"}}"#,
    );
    store.call("alpha", 2, "ssh_exec", format!("{failing}Error: disk full\n"));
    store.call("alpha", 3, "grep_logs", "Error: no such file\n");
    store.worker(
        "beta",
        json!({"run_id": "r1", "status": "failed", "error": "timeout after 300 s"}),
    );
    store.call("beta", 1, "sql", "<tool-error>connection refused</tool-error>\n");
    store.worker(
        "gamma",
        json!({"run_id": "r2", "status": "running", "task": "line one\nline two \u{fffd} ünï"}),
    );
    store.call("gamma", 1, "sql", "1\n2\n3\n");
    store.write("workers/index.json", r#"{"workers":[]}"#);
    store.write("supervisor/strategy.md", "# Strategy\n");
    store
}
