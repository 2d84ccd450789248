//! Changes under readers (R13): every read of a generated file returns one complete version.
//!
//! A writer replaces a worker's metadata and outputs in the three ways that programs use: it
//! renames a new file over the old one, truncates and writes in one to seven pieces, or appends.
//! Every line of a body contains its version. Torn bodies exist on disk for moments. A generated
//! file must then show the last complete one.
//!
//! Metadata that stays torn while its worker runs, over many scans of the store (R14 through the
//! kernel).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Snapshot, eventually};
use crate::needs_fuse;
use crate::support::frame::check_frame;
use crate::support::{Mount, TestStore, patience, scale, see};
use swarmletfs_base::error::Error;
use swarmletfs_tree::tree::{Settings, Tree};
use swarmletfs_tree::view::Filter;

/// Number of changes.
const CHANGES: usize = 10_000;
/// Number of concurrent readers.
const READERS: usize = 8;
/// The writer continues until every generated file was read in this many versions.
const VERSIONS: usize = 4;
const WORKERS: [&str; 4] = ["w0", "w1", "w2", "w3"];

/// Returns a checksum that shows that a version was not mixed.
fn checksum(version: u64) -> u64 {
    version.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23) ^ 0x5bd1_e995
}

fn with_checksum(version: u64) -> String {
    format!("v{version}-{:016x}", checksum(version))
}

/// Parses the version in `text` and verifies its checksum.
fn parse_version(text: &str) -> Result<u64, String> {
    let (version, sum) = text
        .strip_prefix('v')
        .and_then(|rest| rest.split_once('-'))
        .ok_or(format!("no version: {text}"))?;
    let version: u64 = version.parse().map_err(|_| format!("no version: {text}"))?;
    if format!("{:016x}", checksum(version)) == sum {
        Ok(version)
    } else {
        Err(format!("torn: {text}"))
    }
}

fn metadata(id: &str, version: u64) -> Vec<u8> {
    let mark = with_checksum(version);
    let body = json!({
        "worker_id": id, "status": "running", "created_at": "2026-01-20T10:00:00Z", "task": mark, "error": mark,
        "summary": mark, "padding": "p".repeat((version * 37 % 6_000) as usize),
    });
    serde_json::to_vec_pretty(&body).unwrap()
}

/// Returns the output of a failed call, up to 8 KB. Every other line is its version.
fn output(version: u64) -> Vec<u8> {
    let lines = 20 + version * 7 % 400;
    let body = (0..lines / 2)
        .map(|n| format!("line {n} of it\n{}\n", with_checksum(version)))
        .collect::<String>();
    ("Error: it failed\n".to_owned() + &body).into_bytes()
}

fn by_rename(path: &Path, body: &[u8]) {
    let fresh = path.with_extension("tmp");
    fs::write(&fresh, body).unwrap();
    fs::rename(&fresh, path).unwrap();
}

fn in_pieces(path: &Path, body: &[u8], pieces: u64) {
    let mut file = File::options().write(true).truncate(true).open(path).unwrap();
    for piece in body.chunks(body.len() / pieces as usize + 1) {
        file.write_all(piece).unwrap();
    }
}

fn by_append(path: &Path, text: &[u8]) {
    File::options().append(true).open(path).unwrap().write_all(text).unwrap();
}

/// Returns a store of four workers. Their first call is only replaced by rename, their second in
/// every way.
fn store() -> TestStore {
    let store = TestStore::new();
    for id in WORKERS {
        store.write(format!("workers/{id}/metadata.json"), metadata(id, 0));
        store.call(id, 1, "renamed", output(0)).call(id, 2, "anyhow", output(0));
    }
    store
}

/// Makes the `n`-th change.
fn change(store: &TestStore, n: u64) {
    let id = WORKERS[(n % 4) as usize];
    let record = store.at(format!("workers/{id}/metadata.json"));
    let renamed = store.at(format!("workers/{id}/tool_calls/001_renamed.txt"));
    let anyhow = store.at(format!("workers/{id}/tool_calls/002_anyhow.txt"));
    match n / 4 % 7 {
        0 => by_rename(&record, &metadata(id, n)),
        1 => in_pieces(&record, &metadata(id, n), 1 + n / 28 % 7),
        2 => by_append(&record, b" \n"),
        3 | 6 => by_rename(&renamed, &output(n)),
        4 => in_pieces(&anyhow, &output(n), 1 + n / 28 % 7),
        _ => by_append(&anyhow, (with_checksum(n) + "\n").as_bytes()),
    }
}

/// Checks one version of an index.json, of all workers or of one.
fn check_index(bytes: &[u8]) -> Result<(), String> {
    let index: Value =
        serde_json::from_slice(bytes).map_err(|error| format!("not JSON: {error}"))?;
    match index["workers"].as_array() {
        Some(rows) => {
            if rows.len() != WORKERS.len() {
                return Err(format!("{} workers", rows.len()));
            }
            rows.iter().try_for_each(|row| {
                parse_version(row["task"].as_str().unwrap_or_default()).map(drop)
            })
        }
        None => {
            let marks =
                ["task", "summary", "error"].map(|key| index[key].as_str().unwrap_or_default());
            marks.into_iter().try_for_each(|mark| parse_version(mark).map(drop))
        }
    }
}

/// Checks one version of evidence.txt. The frame is complete and of one version, and so is every
/// output that was never torn on disk.
fn check_evidence(bytes: &[u8]) -> Result<(), String> {
    let text = check_frame(bytes)?;
    // Sections begin after an empty line.
    for section in text.split("\n\n").filter(|section| section.contains("001_renamed.txt (")) {
        let versions: BTreeSet<&str> =
            section.lines().filter(|line| parse_version(line).is_ok()).collect();
        if versions.len() > 1 {
            return Err(format!("two versions of one output: {versions:?}"));
        }
    }
    Ok(())
}

fn check_summary(bytes: &[u8]) -> Result<(), String> {
    let text = str::from_utf8(bytes).map_err(|error| error.to_string())?;
    if text.is_empty() || !text.ends_with('\n') { Err("torn".into()) } else { Ok(()) }
}

fn check(path: &str, bytes: &[u8]) -> Result<(), String> {
    match path.rsplit('/').next().unwrap() {
        "index.json" => check_index(bytes),
        "summary" => check_summary(bytes),
        _ => check_evidence(bytes),
    }
}

fn paths() -> Vec<String> {
    let mut paths: Vec<String> =
        ["index.json", "summary", "evidence.txt"].map(str::to_owned).to_vec();
    for id in WORKERS {
        paths.extend(
            ["index.json", "summary", "evidence.txt", "evidence.9000.txt"]
                .map(|name| format!("workers/{id}/{name}")),
        );
    }
    paths
}

/// Results of the readers for each file: the hash of its bytes by inode number.
type SeenVersions = Mutex<Vec<BTreeMap<u64, blake3::Hash>>>;

/// Promise: Readers during constant changes see the old or the new version, never a mix.
#[test]
fn readers_during_changes_see_no_mixed_version() {
    needs_fuse!();
    let store = store();
    let mount = Mount::new(&store.path());
    let paths = paths();
    let seen_versions: SeenVersions = Mutex::new(vec![BTreeMap::new(); paths.len()]);
    let (done, changes, wanted) =
        (AtomicBool::new(false), AtomicU64::new(0), scale(CHANGES) as u64);
    let wrong: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let enough = || seen_versions.lock().unwrap().iter().all(|versions| versions.len() >= VERSIONS);
    thread::scope(|scope| {
        scope.spawn(|| {
            let begun = Instant::now();
            let mut n = 1;
            while n <= wanted || !enough() {
                change(&store, n);
                changes.store(n, Ordering::Relaxed);
                n += 1;
                if begun.elapsed() > patience(Duration::from_secs(60))
                    || !wrong.lock().unwrap().is_empty()
                {
                    break;
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        for reader in 0..READERS {
            let (mount, paths, seen_versions, done, wrong) =
                (&mount, &paths, &seen_versions, &done, &wrong);
            scope.spawn(move || {
                for turn in (reader * 3).. {
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                    let at = turn % paths.len();
                    let path = mount.at(&paths[at]);
                    let report =
                        |what: String| wrong.lock().unwrap().push(format!("{}: {what}", paths[at]));
                    match Snapshot::open(&path) {
                        Ok(Snapshot { size, number, bytes }) => {
                            if size != bytes.len() as u64 {
                                report(format!(
                                    "fstat reports {size} bytes, but {} were read",
                                    bytes.len()
                                ));
                            }
                            if let Err(what) = check(&paths[at], &bytes) {
                                report(what);
                            }
                            let hash = blake3::hash(&bytes);
                            if *seen_versions.lock().unwrap()[at].entry(number).or_insert(hash)
                                != hash
                            {
                                report(format!("inode {number} has two contents"));
                            }
                        }
                        Err(error) => report(error.to_string()),
                    }
                    read_worker_file(mount, WORKERS[turn % 4], &report);
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(
        wrong.is_empty(),
        "{} wrong reads after {} changes: {:#?}",
        wrong.len(),
        changes.into_inner(),
        &wrong[..wrong.len().min(8)]
    );
    assert!(changes.into_inner() >= wanted);
    assert!(
        enough(),
        "{:?}",
        seen_versions.lock().unwrap().iter().map(BTreeMap::len).collect::<Vec<_>>()
    );
    settle(&store, &mount);
}

/// Reads a file that is only replaced by rename. Every read must return one whole version.
fn read_worker_file(mount: &Mount, id: &str, report: &dyn Fn(String)) {
    let path = mount.at(&format!("workers/{id}/tool_calls/001_renamed.txt"));
    match Snapshot::open(&path) {
        Ok(Snapshot { bytes, .. }) => {
            let text = String::from_utf8_lossy(&bytes);
            let version = text.lines().next_back().map_or(Err("empty".into()), parse_version);
            match version {
                Ok(version) if bytes == output(version) => {}
                Ok(version) => {
                    report(format!("own file of {id}: not the whole of version {version}"))
                }
                Err(what) => report(format!("own file of {id}: {what}")),
            }
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            report(format!("own file of {id} is gone"))
        }
        Err(error) => report(format!("own file of {id}: {error}")),
    }
}

/// Checks that the mount equals the disk once all changes have ended.
fn settle(store: &TestStore, mount: &Mount) {
    for id in WORKERS {
        for file in ["metadata.json", "tool_calls/001_renamed.txt", "tool_calls/002_anyhow.txt"] {
            let path = format!("workers/{id}/{file}");
            let expected = fs::read(store.at(&path)).unwrap();
            super::eventually(&path, || (mount.read(&path) == expected).then_some(()));
        }
        let record: Value = serde_json::from_slice(
            &fs::read(store.at(format!("workers/{id}/metadata.json"))).unwrap(),
        )
        .unwrap();
        let path = format!("workers/{id}/index.json");
        super::eventually(&path, || {
            let index: Value = serde_json::from_slice(&mount.read(&path)).unwrap();
            (index["task"] == record["task"] && index["summary"] == record["summary"]).then_some(())
        });
    }
}

#[test]
fn library_reads_during_changes_see_no_mixed_version() {
    let store = store();
    let tree = store.tree();
    let done = AtomicBool::new(false);
    let wrong: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let reads = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1..=2_000 {
                change(&store, n);
            }
            done.store(true, Ordering::Relaxed);
        });
        for reader in 0..3 {
            let (tree, done, wrong, reads) = (&tree, &done, &wrong, &reads);
            scope.spawn(move || {
                let paths = paths();
                for turn in (reader * 5).. {
                    if done.load(Ordering::Relaxed) && turn > 200
                        || !wrong.lock().unwrap().is_empty()
                    {
                        break;
                    }
                    let path = &paths[turn % paths.len()];
                    match see(tree, path) {
                        Ok(seen) => {
                            reads.fetch_add(1, Ordering::Relaxed);
                            if let Err(what) = check(path, seen.bytes()) {
                                wrong.lock().unwrap().push(format!("{path}: {what}"));
                            }
                        }
                        Err(Error::Stale) => {}
                        Err(error) => wrong.lock().unwrap().push(format!("{path}: {error}")),
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{:#?}", &wrong[..wrong.len().min(8)]);
    assert!(reads.into_inner() > 300);
}

/// Promise: An inode number always leads to the same bytes.
#[test]
fn inode_number_always_leads_to_the_same_bytes() {
    needs_fuse!();
    let store = store();
    let mount = Mount::new(&store.path());
    let path = mount.at("workers/w0/evidence.txt");
    let mut seen: Vec<(u64, Vec<u8>)> = Vec::new();
    let begun = Instant::now();
    let mut n = 0;
    while seen.len() < 5 {
        assert!(begun.elapsed() < super::PATIENCE, "only {} versions", seen.len());
        change(&store, n);
        n += 4;
        let Snapshot { number, bytes, .. } = Snapshot::open(&path).unwrap();
        match seen.iter().find(|(known, _)| *known == number) {
            Some((_, known)) => assert!(*known == bytes, "inode {number} has two contents"),
            None => {
                assert!(
                    seen.iter().all(|(_, known)| *known != bytes),
                    "the same bytes have two inode numbers"
                );
                seen.push((number, bytes));
            }
        }
    }
}

/// Returns a tree that caches for an hour, so that the test controls what happens within the cache
/// time.
fn slow_tree(store: &TestStore) -> Tree {
    let hour = Duration::from_secs(3_600);
    Tree::new(store.view(hour, Filter::default()), Settings::default())
}

/// Promise: An index file describes one version of each record.
#[test]
fn index_describes_one_version_of_each_record() {
    let store = store();
    let tree = slow_tree(&store);
    by_rename(&store.at("workers/w0/metadata.json"), &metadata("w0", 7));
    let index: Value =
        serde_json::from_slice(see(&tree, "workers/w0/index.json").unwrap().bytes()).unwrap();
    assert_eq!(
        index["task"], index["summary"],
        "the task and the summary belong to different versions"
    );
}

#[test]
fn evidence_states_the_size_of_the_shown_bytes() {
    let store = store();
    let tree = slow_tree(&store);
    assert!(see(&tree, "workers/w0/index.json").is_ok());
    by_rename(&store.at("workers/w0/tool_calls/001_renamed.txt"), &output(9));
    let seen = see(&tree, "workers/w0/evidence.txt").unwrap();
    let section = seen.text().split("001_renamed.txt (").nth(1).unwrap();
    let stated = section.split(' ').next().unwrap();
    let shown = section.lines().find(|line| parse_version(line).is_ok()).unwrap();
    let of_that_version = output(parse_version(shown).unwrap()).len();
    assert_eq!(
        stated,
        of_that_version.to_string(),
        "the size and the bytes belong to different versions"
    );
}

/// Returns a worker's row in the index of all workers.
fn row(mount: &Mount, id: &str) -> Option<Value> {
    let index: Value = serde_json::from_slice(&mount.read("index.json")).unwrap();
    index["workers"].as_array().unwrap().iter().find(|row| row["id"] == id).cloned()
}

/// Returns all generated files of a worker.
fn generated(mount: &Mount, id: &str) -> Vec<Vec<u8>> {
    ["index.json", "summary", "evidence.txt"]
        .map(|name| mount.read(&format!("workers/{id}/{name}")))
        .to_vec()
}

fn is_torn(row: &Value) -> bool {
    row["check_names"].as_array().is_some_and(|names| names.contains(&json!("bad_metadata")))
}

#[test]
fn worker_with_torn_metadata_is_unchanged_and_marked() {
    needs_fuse!();
    let store = TestStore::new();
    let running = json!({"status": "running", "run_id": 48, "config": {"owner_id": 7}});
    store.worker("w", running.clone()).worker("other", running);
    store.call("w", 1, "x", "out\n").call("other", 1, "x", "Error: no disk\n");
    let path = store.at("workers/w/metadata.json");
    let whole = fs::read(&path).unwrap();
    let mounts = [Mount::new(&store.path()), Mount::with(&store.path(), &["--owner", "7"])];
    let good: Vec<Value> = mounts.iter().map(|mount| row(mount, "w").unwrap()).collect();
    let others: Vec<_> = mounts.iter().map(|mount| generated(mount, "other")).collect();
    let mut damaged = whole.clone();
    damaged[0] ^= 0x20;
    let mut number = 0;
    for torn in [&whole[..0], &whole[..whole.len() / 2], &whole[..whole.len() - 1], &damaged] {
        fs::write(&path, torn).unwrap();
        let torn_row =
            |mount: &Mount| row(mount, "w").is_some_and(|row| is_torn(&row)).then_some(());
        mounts.iter().for_each(|mount| eventually("the mark of torn metadata", || torn_row(mount)));
        // Each new worker that becomes visible proves another scan of the whole store.
        for _ in 0..3 {
            number += 1;
            let new = format!("new-{number}");
            store.worker(&new, json!({"config": {"owner_id": 7}}));
            for ((mount, good), others) in mounts.iter().zip(&good).zip(&others) {
                eventually(&new, || row(mount, &new));
                let row = row(mount, "w").expect("it vanished");
                for key in ["status", "task", "owner_id", "run_id", "created_at", "path"] {
                    assert_eq!(row[key], good[key], "{key}");
                }
                assert!(is_torn(&row), "not marked: {row}");
                assert!(mount.text("workers/w/summary").contains("status   running"));
                assert!(mount.list("workers/w").contains(&"metadata.json".to_owned()));
                assert_eq!(generated(mount, "other"), *others, "another worker");
            }
        }
        fs::write(&path, &whole).unwrap();
        for mount in &mounts {
            eventually("the whole record", || row(mount, "w").filter(|row| !is_torn(row)));
            eventually("its bytes", || {
                (mount.read("workers/w/metadata.json") == whole).then_some(())
            });
        }
    }
}
