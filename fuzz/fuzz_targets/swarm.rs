//! Swarm of two workers in memory, for the fuzz targets.

use std::sync::Arc;
use std::time::Duration;

use swarmletfs_tree::catalog::{Freshness, Source};
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::Memory;
use swarmletfs_tree::view::{Filter, View};

/// Returns a view of two workers, `a` and `b`.
pub fn view() -> View {
    let memory = Memory::new();
    let write = |path: &str, text: &str| memory.write(&RelPath::parse(path).unwrap(), text);
    for id in ["a", "b"] {
        write(&format!("workers/{id}/metadata.json"), "{\"status\": \"success\", \"run_id\": 1, \"job_id\": 2}");
        write(&format!("workers/{id}/tool_calls/001_sh.txt"), "{\"exit_code\": 1}");
    }
    let hour = Duration::from_secs(3_600);
    let freshness = Freshness { unfinished: hour, finished: hour };
    View::new(vec![Source::from_store(Arc::new(memory), None)], freshness, Filter::default()).unwrap()
}
