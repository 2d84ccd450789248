//! The cache of parsed transcripts and digests on disk: reused at the next start, and written
//! nowhere else.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde_json::json;

use super::eventually;
use crate::needs_fuse;
use crate::support::transcript::Transcript;
use crate::support::{Mount, TestStore};

/// Returns a store with one session that is long enough to be cached.
fn long_session() -> (TestStore, PathBuf) {
    let mut transcript = Transcript::new("s");
    transcript.user("look around").progress("a1", "user", json!({"content": "search"}));
    for n in 0..100 {
        transcript.bash(&format!("t{n}"), &format!("cat {n}"), &"x".repeat(20_000));
    }
    let store = TestStore::new();
    let path = store.write("projects/-p/s.jsonl", transcript.bytes());
    (store, path)
}

fn mount(store: &TestStore, caches: &Path, arguments: &[&str]) -> Mount {
    let caches = format!("XDG_CACHE_HOME={}", caches.display());
    Mount::by(&["env", &caches], &store.path(), arguments)
}

/// Returns everything generated about the sessions, and how many bytes the server has read for it.
fn read_generated(mount: &Mount) -> (String, u64) {
    let files =
        ["workers/s/index.json", "workers/a1/index.json", "workers/s/thread.jsonl", "summary"];
    (files.map(|file| mount.text(file)).concat(), bytes_read(mount))
}

/// Returns how many bytes the server of a mount has read.
fn bytes_read(mount: &Mount) -> u64 {
    let io = fs::read_to_string(format!("/proc/{}/io", mount.pid())).unwrap();
    io.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
}

/// Returns all cache files, those of the search index included.
fn cache_files(caches: &Path) -> Vec<PathBuf> {
    let folder = caches.join("swarmletfs");
    let files = [folder.join("index"), folder]
        .into_iter()
        .flat_map(|folder| fs::read_dir(folder).into_iter().flatten());
    let whole = |path: &PathBuf| {
        path.is_file() && !path.file_name().unwrap().to_str().unwrap().starts_with('.')
    };
    files.map(|file| file.unwrap().path()).filter(whole).collect()
}

/// Promise: A transcript that was parsed is not parsed again after a restart.
#[test]
fn parsed_transcript_is_cached_across_restarts() {
    needs_fuse!();
    let caches = tempfile::tempdir().unwrap();
    let (store, path) = long_session();
    let first = mount(&store, caches.path(), &[]);
    let (all, _) = read_generated(&first);
    assert!(all.contains("cat 99") && all.contains("search"), "{all}");
    eventually("the cache file", || (cache_files(caches.path()).len() == 1).then_some(()));
    let (_, whole) = read_generated(&mount(&store, caches.path(), &["--no-cache"]));
    drop(first);
    let thread = all.len() as u64;
    let second = mount(&store, caches.path(), &[]);
    let (again, read) = read_generated(&second);
    assert_eq!(again, all);
    // The conversation needs the transcript's bytes in any case.
    assert!(
        read + (1 << 20) < whole,
        "{read} bytes were read, {whole} without a cache; the thread has {thread}"
    );
    drop(second);
    // Lines that arrived meanwhile are read from there on.
    let mut more = Transcript::new("s");
    more.bash("new", "echo news", "news\n");
    File::options().append(true).open(&path).unwrap().write_all(&more.bytes()).unwrap();
    let (grown, read) = read_generated(&mount(&store, caches.path(), &[]));
    assert!(grown.contains("echo news") && grown.contains("cat 99"));
    assert!(read + (1 << 20) < whole, "{read} against {whole}");
}

/// Promise: A cached transcript is not used for other content.
#[test]
fn cached_transcript_is_not_used_for_other_content() {
    needs_fuse!();
    let caches = tempfile::tempdir().unwrap();
    let (store, path) = long_session();
    let first = mount(&store, caches.path(), &[]);
    read_generated(&first);
    eventually("the cache file", || (cache_files(caches.path()).len() == 1).then_some(()));
    drop(first);
    // Overwritten in the middle with equal size, and with its mtime restored.
    let meta = fs::metadata(&path).unwrap();
    let bytes = fs::read(&path).unwrap();
    let at = memchr::memmem::find(&bytes, b"cat 50").unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    file.write_all_at(b"dog 50", at as u64).unwrap();
    file.set_modified(meta.modified().unwrap()).unwrap();
    let (all, _) = read_generated(&mount(&store, caches.path(), &[]));
    assert!(all.contains("dog 50") && !all.contains("cat 50"));
    // A damaged cache file counts as missing.
    for file in cache_files(caches.path()) {
        let length = fs::metadata(&file).unwrap().len();
        File::options().write(true).open(&file).unwrap().set_len(length / 2).unwrap();
    }
    assert_eq!(read_generated(&mount(&store, caches.path(), &[])).0, all);
}

/// Promise: Nothing is cached if the cache is disabled.
#[test]
fn nothing_is_cached_if_disabled() {
    needs_fuse!();
    let (store, _) = long_session();
    let caches = tempfile::tempdir().unwrap();
    read_generated(&mount(&store, caches.path(), &["--no-cache"]));
    read_generated(&mount(&store, caches.path(), &["-o", "no_cache"]));
    assert!(!caches.path().join("swarmletfs").exists());
    // Nothing is ever written to a store.
    let mut inside = mount(&store, &store.at("caches"), &[]);
    inside.expect_warning("it lies inside the store");
    read_generated(&inside);
    drop(inside);
    assert!(!store.at("caches").exists());
    // A cache that others can write is not trusted.
    let open = caches.path().join("swarmletfs");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
    let mut refused = mount(&store, caches.path(), &[]);
    refused.expect_warning("try chmod 700");
    read_generated(&refused);
    drop(refused);
    assert!(cache_files(caches.path()).is_empty());
    // A few workers with plain files on disk are not worth caching.
    let plain = TestStore::new();
    plain.worker("w", json!({}));
    let caches = tempfile::tempdir().unwrap();
    mount(&plain, caches.path(), &[]).text("summary");
    assert!(cache_files(caches.path()).is_empty());
}

/// Returns a store with enough output that the outcomes are worth caching.
fn many_workers() -> TestStore {
    let store = TestStore::new();
    for number in 0..80 {
        let id = format!("w{number:02}");
        store.worker(&id, json!({"run_id": "r"}));
        store.call(
            &id,
            1,
            "sh",
            format!("Error: reason {number}\n{}", "and nothing more\n".repeat(4_000)),
        );
    }
    store.rest();
    store
}

/// Returns the index of all workers, and how many bytes the server has read for it.
fn read_index(mount: &Mount) -> (String, u64) {
    (
        ["summary", "index.json", "runs/r/summary"].map(|file| mount.text(file)).concat(),
        bytes_read(mount),
    )
}

/// Promise: The outcomes of workers are not computed again after a restart.
#[test]
fn outcomes_are_cached_across_restarts() {
    needs_fuse!();
    let caches = tempfile::tempdir().unwrap();
    let store = many_workers();
    let first = mount(&store, caches.path(), &[]);
    let (all, whole) = read_index(&first);
    assert!(all.contains("\"cause\":\"Error: reason 79\""), "{all}");
    eventually("the cache file", || (cache_files(caches.path()).len() == 1).then_some(()));
    drop(first);
    let (again, read) = read_index(&mount(&store, caches.path(), &[]));
    assert_eq!(again, all);
    assert!(read * 4 < whole, "{read} against {whole} at first");
    // Neither another owner's view nor a view after a change uses the cache.
    let (others, read) = read_index(&mount(&store, caches.path(), &["--run", "r"]));
    assert!(
        others.contains("\"cause\":\"Error: reason 79\"") && read * 2 > whole,
        "{read} against {whole}"
    );
    store.call("w79", 1, "sh", "Error: another reason\n");
    store.write("workers/w78/tool_calls/002_sh.txt", "{\"ok\": true}");
    let (changed, read) = read_index(&mount(&store, caches.path(), &[]));
    assert!(
        changed.contains("\"cause\":\"Error: another reason\"") && !changed.contains("reason 79"),
        "{changed}"
    );
    assert!(!changed.contains("Error: reason 78") && read * 4 < whole, "{read} against {whole}");
    // A damaged cache file counts as missing.
    for file in cache_files(caches.path()) {
        let length = fs::metadata(&file).unwrap().len();
        File::options().write(true).open(&file).unwrap().write_all_at(b"junk", length - 4).unwrap();
    }
    assert_eq!(read_index(&mount(&store, caches.path(), &[])).0, changed);
}

/// Promise: An outcome that depends on outputs outside the worker's directory is computed again.
#[test]
fn outcome_from_stored_outputs_is_computed_again() {
    needs_fuse!();
    let caches = tempfile::tempdir().unwrap();
    let store = many_workers();
    let id = "0123456789abcdef0123456789abcdef";
    store.worker("w00", json!({"status": "failed", "config": {"owner_id": 7}}));
    store.call("w00", 1, "sh", format!("[TOOL_OUTPUT:artifact_id={id},tool=sh,bytes=9]"));
    store.write("tool_outputs/7/else.txt", "");
    let first = mount(&store, caches.path(), &[]);
    assert!(!read_index(&first).0.contains("the real reason"));
    eventually("the cache file", || (cache_files(caches.path()).len() == 1).then_some(()));
    drop(first);
    // The directory appears without a request, and nothing in the worker's directory shows it.
    let described = json!({"artifact_id": id, "owner_id": 7, "tool_name": "sh", "size_bytes": 9});
    store.write(format!("tool_outputs/7/{id}.json"), described.to_string());
    store.write(format!("tool_outputs/7/{id}.txt"), "Error: the real reason\n");
    let (all, _) = read_index(&mount(&store, caches.path(), &[]));
    assert!(all.contains("\"cause\":\"Error: the real reason\""), "{all}");
}

#[test]
fn metadata_is_cached_across_restarts() {
    needs_fuse!();
    let caches = tempfile::tempdir().unwrap();
    let store = TestStore::new();
    let worker = |number: usize, task: &str| {
        let notes = "not needed ".repeat(1_000);
        store.worker(
            &format!("w{number:03}"),
            json!({"run_id": "r", "task": task, "task_type": "x", "notes": notes}),
        );
    };
    (0..300).for_each(|number| worker(number, "look around"));
    store.rest();
    let list_workers = |mount: &Mount| {
        let listed =
            mount.shell("cd $M && ls runs/r/workers by/type/x && stat -c %Y workers/w299").stdout;
        (listed, bytes_read(mount))
    };
    let first = mount(&store, caches.path(), &[]);
    let (all, whole) = list_workers(&first);
    eventually("the cache file", || (cache_files(caches.path()).len() == 1).then_some(()));
    drop(first);
    let (again, read) = list_workers(&mount(&store, caches.path(), &[]));
    assert!(again == all && read * 4 < whole, "{read} against {whole} at first");
    // Only changed files are read again.
    worker(299, "look elsewhere");
    store.worker("w298", json!({"run_id": "r2"}));
    let changed = mount(&store, caches.path(), &[]);
    assert_eq!(changed.list("runs/r2/workers"), ["w298"]);
    assert!(changed.text("workers/w299/index.json").contains("look elsewhere"));
    assert!(list_workers(&changed).1 * 4 < whole);
    drop(changed);
    // A damaged cache file counts as missing.
    for file in cache_files(caches.path()) {
        let length = fs::metadata(&file).unwrap().len();
        File::options().write(true).open(&file).unwrap().write_all_at(b"junk", length - 4).unwrap();
    }
    let damaged = mount(&store, caches.path(), &[]);
    assert_eq!(damaged.list("runs/r2/workers"), ["w298"]);
    let (_, read) = list_workers(&damaged);
    assert!(read * 2 > whole, "{read} against {whole} at first");
}
