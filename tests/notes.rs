//! The supervisor's notes: `swarmletfs note`, and a mount in which they can be written.

mod commands;
mod hostile;
mod survival;
mod ways;

use crate::support::{Mount, TestStore};

/// Returns a store with a worker.
fn store() -> TestStore {
    let store = TestStore::new();
    store.worker("w1", serde_json::json!({}));
    store.write("workers/w1/tool_calls/001_sh.txt", "output\n");
    store
}

/// Mounts `store` with its notes.
fn mount(store: &TestStore) -> Mount {
    Mount::with(&store.path(), &["--notes"])
}
