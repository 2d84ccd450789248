//! A store in a temporary folder, and the views and trees over it.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use swarmletfs::catalog::{Freshness, Source};
use swarmletfs::tree::{Settings, Tree};
use swarmletfs::view::{Filter, View};

/// A store in a folder of its own: `path()` is the store, and what lies beside it is removed with it.
pub struct TestStore {
    dir: tempfile::TempDir,
}

impl Default for TestStore {
    fn default() -> TestStore {
        TestStore::new()
    }
}

impl TestStore {
    /// An empty store.
    pub fn new() -> TestStore {
        let store = TestStore { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(store.path()).unwrap();
        store
    }

    /// The store's folder.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// The path of something in the store; `path` may be bytes.
    pub fn at(&self, path: impl AsRef<[u8]>) -> PathBuf {
        self.path().join(Path::new(std::ffi::OsStr::from_bytes(path.as_ref())))
    }

    /// Writes a file, making the folders on the way.
    pub fn write(&self, path: impl AsRef<[u8]>, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.at(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }

    /// Writes the metadata.json of `workers/<id>`: what is given, over an id, a status and a time.
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

    /// Writes an output: `workers/<id>/tool_calls/NNN_<tool>.txt`.
    pub fn call(&self, id: &str, number: u32, tool: &str, output: impl AsRef<[u8]>) -> &TestStore {
        self.write(format!("workers/{id}/tool_calls/{number:03}_{tool}.txt"), output);
        self
    }

    /// A view, which looks again after `fresh`.
    pub fn view(&self, fresh: Duration, filter: Filter) -> View {
        let source = Source::open(&self.path()).unwrap();
        View::new(vec![source], Freshness { unfinished: fresh, finished: fresh }, filter).unwrap()
    }

    /// Waits until what was written last is past by any clock: only then it is kept for the next start.
    pub fn rest(&self) -> &TestStore {
        thread::sleep(Duration::from_secs(1));
        self
    }

    /// The tree of everything, always fresh.
    pub fn tree(&self) -> Tree {
        self.tree_of(Filter::default())
    }

    /// The tree of a narrower view, always fresh.
    pub fn tree_of(&self, filter: Filter) -> Tree {
        Tree::new(self.view(Duration::ZERO, filter), Settings::default())
    }

    /// The tree of one owner, always fresh.
    pub fn tree_of_owner(&self, owner: &str) -> Tree {
        self.tree_of(Filter { owner: Some(owner.into()), run: None })
    }
}
