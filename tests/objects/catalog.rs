//! The catalog of an object store: the same tree with it as without, whatever happens to it.

mod broken;
mod concurrent;
mod ended;
mod flood;
mod providers;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{Kind, Store, read_range};
use swarmletfs_objects::{
    Bucket, BucketWriter, Bytes, CatalogError, CatalogReport, Compaction, ObjectSettings,
    PutCondition, WholeSearch, WorkerNews, announce,
};
use swarmletfs_tree::catalog::{Freshness, Source};
use swarmletfs_tree::render::list::WorkerQuery;
use swarmletfs_tree::tree::{Settings, Tree};
use swarmletfs_tree::view::{Filter, View};

use super::same_tree::{contents, swarm};
use super::server::{Server, new_prefix, server, settings_for, url};
use super::tree;
use crate::support::python::python;
use crate::support::{patience, rng, scale, see_folder};

const MANIFEST: &str = "catalog/v1/manifest.json";
/// Size of the largest file that a test reads, in bytes.
const SIZE_MAX: usize = 4 << 20;

/// Returns the entries of workers in the index.json of the swarm, as the program computes them.
fn describe(bucket: Bucket) -> Result<Vec<Map<String, Value>>, String> {
    let source = Source::from_store(Arc::new(bucket), None);
    let fresh = Freshness { unfinished: Duration::MAX, finished: Duration::MAX };
    let view = View::new(vec![source], fresh, Filter::default()).map_err(|why| why.to_string())?;
    let tree = Tree::new(view, Settings::default());
    let (board, _) = tree.renderer().board(&WorkerQuery::default()).unwrap();
    let entry = |row| match serde_json::to_value(row).unwrap() {
        Value::Object(entry) => entry,
        other => panic!("{other}"),
    };
    Ok(board.iter().map(entry).collect())
}

/// A store in the object store of the tests, and its address or that of a proxy before it.
struct TestBucket {
    url: String,
    prefix: String,
    settings: ObjectSettings,
    writer: BucketWriter,
}

impl TestBucket {
    fn new(server: &Server) -> TestBucket {
        TestBucket::at(&server.address(), new_prefix())
    }

    fn at(address: &str, prefix: String) -> TestBucket {
        TestBucket::with(url(&prefix), prefix, settings_for(address))
    }

    fn with(url: String, prefix: String, settings: ObjectSettings) -> TestBucket {
        let settings = ObjectSettings {
            refresh: Duration::from_millis(1),
            deadline: Duration::from_secs(5),
            ..settings
        };
        let writer = BucketWriter::open(Path::new(&url), &settings).unwrap();
        TestBucket { url, prefix, settings, writer }
    }

    fn put(&self, key: &str, text: &str) {
        let bytes = Bytes::copy_from_slice(text.as_bytes());
        self.writer.put(key, bytes, &PutCondition::Always).unwrap();
    }

    /// Writes a worker with three files, as any tool may do.
    fn put_worker(&self, id: &str, status: &str) {
        let metadata = json!({"worker_id": id, "status": status, "task": format!("Task of {id}")});
        self.put(&format!("workers/{id}/metadata.json"), &metadata.to_string());
        self.put(&format!("workers/{id}/result.txt"), "It is done.\n");
        self.put(&format!("workers/{id}/tool_calls/001_sh.txt"), "output\n");
    }

    fn delete_worker(&self, id: &str) {
        let listed = self.writer.list(&format!("workers/{id}/")).unwrap();
        self.writer.delete(listed.into_iter().map(|entry| entry.key)).unwrap();
    }

    fn announce(&self, news: WorkerNews, id: &str) {
        announce(&self.writer, news, id).unwrap();
    }

    fn compact(&self, whole: WholeSearch) -> Result<CatalogReport, CatalogError> {
        Compaction::new(&self.writer, &self.settings, &describe).run(whole)
    }

    /// Looks at announced workers only.
    fn compact_news(&self) -> CatalogReport {
        self.compact(WholeSearch::IfOlder(Duration::MAX)).unwrap()
    }

    fn compact_all(&self) -> CatalogReport {
        self.compact(WholeSearch::Always).unwrap()
    }

    fn open(&self, catalog: bool) -> Bucket {
        let settings = ObjectSettings { catalog, ..self.settings.clone() };
        swarmletfs_objects::open(Path::new(&self.url), &settings).unwrap()
    }

    /// Asserts that a reader with the catalog sees the objects that are there.
    fn assert_right(&self, why: &str) {
        let [with, without] = [true, false].map(|catalog| files(&self.open(catalog)));
        assert_eq!(with, without, "{why}");
    }

    fn keys(&self, prefix: &str) -> Vec<String> {
        self.writer.list(prefix).unwrap().into_iter().map(|entry| entry.key).collect()
    }
}

/// Returns all files of a store and their contents.
fn files(store: &dyn Store) -> BTreeMap<String, Vec<u8>> {
    fn add(store: &dyn Store, path: &RelPath, all: &mut BTreeMap<String, Vec<u8>>) {
        for entry in store.list(path).unwrap() {
            let path = path.join(&entry.name);
            match entry.kind {
                Kind::Folder => add(store, &path, all),
                _ => {
                    let bytes = read_range(&*store.open(&path).unwrap(), 0, SIZE_MAX).unwrap();
                    all.insert(path.display(), bytes);
                }
            }
        }
    }
    let mut all = BTreeMap::new();
    add(store, &RelPath::root(), &mut all);
    all
}

/// Promise: The catalog of an object store changes nothing in the tree: each path has the same
/// bytes as without it.
#[test]
fn the_tree_with_a_catalog_is_that_without() {
    let Some(server) = server() else { return };
    let bucket = TestBucket::new(server);
    server.copy(&swarm().path(), &bucket.prefix);
    // A worker in the root, and objects that look like those of the catalog.
    bucket.put("catalog/metadata.json", r#"{"worker_id": "catalog", "status": "completed"}"#);
    bucket.put("workers/a-b/metadata.json", r#"{"worker_id": "a-b", "status": "running"}"#);
    let report = bucket.compact_all();
    assert!(report.is_whole && report.workers >= 6 && report.files == 1, "{report:?}");
    assert_eq!(bucket.compact_all().rows, 0);
    let [with, without] = [true, false].map(|catalog| bucket.open(catalog));
    assert_eq!(with.catalog().unwrap().workers, report.workers);
    let [with, without] =
        [with, without].map(|bucket| contents(see_folder(&tree(bucket), "").unwrap()));
    let names = |tree: &BTreeMap<String, Vec<u8>>| tree.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&with), names(&without));
    for (path, bytes) in &with {
        assert!(*bytes == without[path], "{path}");
    }
    assert!(with.contains_key("workers/catalog/metadata.json"), "{:?}", names(&with));
    assert!(!with.keys().any(|path| path.contains("manifest")), "{:?}", names(&with));
}

/// Promise: With a catalog, workers are listed without a request for each of them.
#[test]
fn a_catalog_saves_a_request_for_each_worker() {
    const WORKERS: usize = 60;
    let Some(server) = server() else { return };
    let bucket = TestBucket::new(server);
    (0..WORKERS).for_each(|at| bucket.put_worker(&format!("w{at}"), "completed"));
    bucket.compact_all();
    let opened = bucket.open(true);
    // The tree reads the metadata of all workers.
    let tree = tree(opened.clone());
    assert_eq!(tree.view().visible().members.len(), WORKERS);
    let requests = opened.requests();
    assert!(requests.lists + requests.reads <= 5, "{requests:?}");
}

/// Promise: A worker that a recorder announced is shown before the catalog has a row for it.
#[test]
fn announced_workers_are_shown_at_once() {
    let Some(server) = server() else { return };
    let bucket = TestBucket::new(server);
    bucket.put_worker("old", "completed");
    bucket.compact_all();
    let opened = bucket.open(true);
    let sees = |path: &str| opened.stat(&RelPath::parse(path).unwrap()).is_ok();
    let wait = |path: &str, expected: bool| {
        let begun = Instant::now();
        while sees(path) != expected {
            assert!(begun.elapsed() < patience(Duration::from_secs(20)), "{path}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    bucket.announce(WorkerNews::Opened, "new");
    bucket.put_worker("new", "running");
    wait("workers/new/result.txt", true);
    bucket.assert_right("opened");
    bucket.put("workers/new/tool_calls/002_sh.txt", "more");
    wait("workers/new/tool_calls/002_sh.txt", true);
    bucket.put_worker("new", "completed");
    bucket.announce(WorkerNews::Closed, "new");
    bucket.assert_right("closed");
    let report = bucket.compact_news();
    assert_eq!((report.workers, report.news, report.is_whole), (2, 2, false));
    bucket.assert_right("compacted");
    assert_eq!(bucket.keys("catalog/v1/new/"), [""; 0]);
    bucket.delete_worker("old");
    bucket.announce(WorkerNews::Removed, "old");
    wait("workers/old", false);
    let report = bucket.compact_news();
    assert_eq!((report.workers, report.removed), (1, 1));
    wait("workers/new/result.txt", true);
    bucket.assert_right("removed");
    // The file without the old row is the only one that is named.
    let kept = bucket.open(true).catalog().unwrap();
    assert_eq!((kept.workers, kept.news), (1, 0));
}

/// Promise: An object that changed without an announcement gives its old bytes, its new ones or an
/// error: never a mix.
#[test]
fn an_outdated_row_gives_an_error_or_the_new_bytes() {
    let Some(server) = server() else { return };
    let bucket = TestBucket::new(server);
    bucket.put_worker("w", "completed");
    bucket.compact_all();
    let path = RelPath::parse("workers/w/result.txt").unwrap();
    bucket.put("workers/w/result.txt", "It is not done at all.\n");
    let opened = bucket.open(true);
    let begun = Instant::now();
    loop {
        match opened.open(&path).and_then(|file| read_range(&*file, 0, 99)) {
            Ok(bytes) => {
                assert_eq!(bytes, b"It is not done at all.\n");
                break;
            }
            Err(_) => assert!(begun.elapsed() < patience(Duration::from_secs(20))),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    // The program that lists all finds the rest.
    bucket.put_worker("foreign", "completed");
    let report = bucket.compact_all();
    assert_eq!((report.workers, report.rows), (2, 2));
    bucket.assert_right("compacted");
}

/// Promise: A long-lived reader of a store with a catalog finds changes that nobody announced.
#[test]
fn foreign_changes_are_found_in_the_background() {
    let Some(server) = server() else { return };
    let bucket = TestBucket::new(server);
    bucket.put_worker("a", "completed");
    bucket.put_worker("gone", "completed");
    bucket.compact_all();
    let settings =
        ObjectSettings { whole_refresh: Duration::from_millis(100), ..bucket.settings.clone() };
    let opened = swarmletfs_objects::open(Path::new(&url(&bucket.prefix)), &settings).unwrap();
    assert!(opened.catalog().is_some());
    bucket.put_worker("foreign", "completed");
    bucket.delete_worker("gone");
    let sees = |id: &str| opened.stat(&RelPath::parse(format!("workers/{id}")).unwrap()).is_ok();
    let begun = Instant::now();
    while !sees("foreign") || sees("gone") {
        assert!(begun.elapsed() < patience(Duration::from_secs(20)));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(files(&opened), files(&bucket.open(false)));
    // A compaction brings the same.
    bucket.compact_all();
    assert_eq!(files(&opened), files(&bucket.open(false)));
}

#[test]
fn any_order_of_changes_and_compactions_shows_what_is_there() {
    let Some(server) = server() else { return };
    let mut rng = rng();
    for _ in 0..scale(4) {
        let bucket = TestBucket::new(server);
        bucket.put("supervisor/notes/a.md", "a");
        // A compaction of no worker is an error.
        bucket.put_worker("first", "completed");
        let mut is_foreign = false;
        for step in 0..30 {
            let id = format!("w{}", rng.u8(0..6));
            let status = if rng.bool() { "running" } else { "completed" };
            let action = rng.u8(0..10);
            match action {
                0..=3 => {
                    bucket.announce(WorkerNews::Opened, &id);
                    bucket.put_worker(&id, status);
                }
                4 => {
                    bucket.put(&format!("workers/{id}/notes/{step}"), "note");
                    bucket.announce(WorkerNews::Closed, &id);
                }
                5 => {
                    bucket.delete_worker(&id);
                    bucket.announce(WorkerNews::Removed, &id);
                }
                6 | 7 => drop(bucket.compact_news()),
                8 => {
                    bucket.put_worker(&id, status);
                    is_foreign = true;
                }
                _ => {
                    bucket.compact_all();
                    is_foreign = false;
                }
            }
            if !is_foreign {
                bucket.assert_right(&format!("step {step}: action {action} of {id}"));
            }
        }
        bucket.compact_all();
        bucket.assert_right("the end");
        // The first object of an announced worker may still come.
        let left = bucket.keys("catalog/v1/new/");
        assert!(left.iter().all(|key| key.contains("-opened-") || key.contains("-removed-")));
    }
}

/// Promise: The files of a catalog are Parquet that other programs read.
#[test]
fn duckdb_reads_the_catalog() {
    let Some(server) = server() else { return };
    let Some(python) = python() else { return };
    let bucket = TestBucket::new(server);
    for (id, status) in [("a", "completed"), ("b", "failed"), ("c", "completed")] {
        bucket.put_worker(id, status);
    }
    bucket.compact_all();
    let folder = tempfile::tempdir().unwrap();
    for (at, key) in bucket.keys("catalog/v1/workers/").iter().enumerate() {
        let (bytes, _) = bucket.writer.get(key, 1 << 20).unwrap().unwrap();
        fs::write(folder.path().join(format!("{at}.parquet")), bytes).unwrap();
    }
    let query = "import duckdb, sys\n\
        rows = duckdb.sql(f\"SELECT status, count(*), min(task), \
        sum(json_array_length(objects)) FROM '{sys.argv[1]}/*.parquet' \
        GROUP BY status ORDER BY status\").fetchall()\n\
        print(rows)";
    let output = Command::new(python).args(["-c", query]).arg(folder.path()).output().unwrap();
    let expected = "[('completed', 2, 'Task of a', 6), ('failed', 1, 'Task of b', 3)]\n";
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!((&*out.replace("Decimal('", "").replace("')", ""), &*err), (expected, ""));
}
