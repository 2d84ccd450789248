//! Store in a temporary directory, with views and trees over it.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use swarmletfs_base::store::TICK_MAX;
use swarmletfs_tree::catalog::{Freshness, Source};
use swarmletfs_tree::tree::{Settings, Tree};
use swarmletfs_tree::view::{Filter, View};

/// A store in a temporary directory. `path()` is the store; its siblings are removed with it.
pub struct TestStore {
    dir: tempfile::TempDir,
}

impl Default for TestStore {
    fn default() -> TestStore {
        TestStore::new()
    }
}

impl TestStore {
    /// Creates an empty store.
    pub fn new() -> TestStore {
        let store = TestStore { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(store.path()).unwrap();
        store
    }

    /// Returns the store's directory.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// Returns the path of an entry in the store; `path` may be bytes.
    pub fn at(&self, path: impl AsRef<[u8]>) -> PathBuf {
        self.path().join(Path::new(std::ffi::OsStr::from_bytes(path.as_ref())))
    }

    /// Writes a file and creates its parent directories.
    pub fn write(&self, path: impl AsRef<[u8]>, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.at(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }

    /// Writes the metadata.json of `workers/<id>`: a default id, task, status and time, overridden
    /// by `metadata`.
    pub fn worker(&self, id: &str, metadata: Value) -> &TestStore {
        let mut all = json!({
            "worker_id": id, "task": format!("task of {id}"), "status": "success",
            "created_at": "2026-01-20T10:00:00+00:00",
        });
        for (key, value) in metadata.as_object().unwrap() {
            all[key] = value.clone();
        }
        self.write(format!("workers/{id}/metadata.json"), serde_json::to_vec_pretty(&all).unwrap());
        self
    }

    /// Writes the output `workers/<id>/tool_calls/NNN_<tool>.txt`.
    pub fn call(&self, id: &str, number: u32, tool: &str, output: impl AsRef<[u8]>) -> &TestStore {
        self.write(format!("workers/{id}/tool_calls/{number:03}_{tool}.txt"), output);
        self
    }

    /// Opens a view whose data may be `fresh` old.
    pub fn view(&self, fresh: Duration, filter: Filter) -> View {
        let source = Source::open(&self.path()).unwrap();
        View::new(vec![source], Freshness { unfinished: fresh, finished: fresh }, filter).unwrap()
    }

    /// Waits until the last write is older than a clock tick; only then its results are cached on
    /// disk.
    pub fn rest(&self) -> &TestStore {
        thread::sleep(TICK_MAX);
        self
    }

    /// Opens the tree of the whole store, without caching.
    pub fn tree(&self) -> Tree {
        self.tree_of(Filter::default())
    }

    /// Opens the tree of a filtered view, without caching.
    pub fn tree_of(&self, filter: Filter) -> Tree {
        Tree::new(self.view(Duration::ZERO, filter), Settings::default())
    }

    /// Opens the tree of one owner, without caching.
    pub fn tree_of_owner(&self, owner: &str) -> Tree {
        self.tree_of(Filter { owner: Some(owner.into()), run: None })
    }
}
