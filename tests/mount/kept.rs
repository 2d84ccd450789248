//! What was read of transcripts is kept for the next start, and nowhere that it should not be.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde_json::json;

use super::eventually;
use crate::needs_fuse;
use crate::support::transcript::Transcript;
use crate::support::{Mount, TestStore};

/// A store of one session, of which it is worth to keep what was read.
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

/// All that is told of the sessions, and how many bytes its server has read for that.
fn told(mount: &Mount) -> (String, u64) {
    let files = ["workers/s/index.json", "workers/a1/index.json", "workers/s/thread.jsonl", "summary"];
    (files.map(|file| mount.text(file)).concat(), read_by(mount))
}

/// How many bytes the server of a mount has read.
fn read_by(mount: &Mount) -> u64 {
    let io = fs::read_to_string(format!("/proc/{}/io", mount.pid())).unwrap();
    io.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
}

/// The files in which something is kept, those of the index of words too.
fn kept(caches: &Path) -> Vec<PathBuf> {
    let folder = caches.join("swarmletfs");
    let files =
        [folder.join("index"), folder].into_iter().flat_map(|folder| fs::read_dir(folder).into_iter().flatten());
    let whole = |path: &PathBuf| path.is_file() && !path.file_name().unwrap().to_str().unwrap().starts_with('.');
    files.map(|file| file.unwrap().path()).filter(whole).collect()
}

#[test]
fn a_transcript_that_was_read_is_not_read_again_at_the_next_start() {
    needs_fuse!();
    let caches = tempfile::tempdir().unwrap();
    let (store, path) = long_session();
    let first = mount(&store, caches.path(), &[]);
    let (all, _) = told(&first);
    assert!(all.contains("cat 99") && all.contains("search"), "{all}");
    eventually("it is kept", || (kept(caches.path()).len() == 1).then_some(()));
    let (_, whole) = told(&mount(&store, caches.path(), &["--no-cache"]));
    drop(first);
    let thread = all.len() as u64;
    let second = mount(&store, caches.path(), &[]);
    let (again, read) = told(&second);
    assert_eq!(again, all);
    // The thread is made of the transcript's bytes in any case.
    assert!(read + (1 << 20) < whole, "{read} against {whole} without, {thread} of it told");
    drop(second);
    // What came meanwhile is read on from there.
    let mut more = Transcript::new("s");
    more.bash("new", "echo news", "news\n");
    File::options().append(true).open(&path).unwrap().write_all(&more.bytes()).unwrap();
    let (grown, read) = told(&mount(&store, caches.path(), &[]));
    assert!(grown.contains("echo news") && grown.contains("cat 99"));
    assert!(read + (1 << 20) < whole, "{read} against {whole}");
}

#[test]
fn what_is_kept_of_another_content_is_not_used() {
    needs_fuse!();
    let caches = tempfile::tempdir().unwrap();
    let (store, path) = long_session();
    let first = mount(&store, caches.path(), &[]);
    told(&first);
    eventually("it is kept", || (kept(caches.path()).len() == 1).then_some(()));
    drop(first);
    // Written over in its midst, in the same size, its time set back.
    let meta = fs::metadata(&path).unwrap();
    let bytes = fs::read(&path).unwrap();
    let at = memchr::memmem::find(&bytes, b"cat 50").unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    file.write_all_at(b"dog 50", at as u64).unwrap();
    file.set_modified(meta.modified().unwrap()).unwrap();
    let (all, _) = told(&mount(&store, caches.path(), &[]));
    assert!(all.contains("dog 50") && !all.contains("cat 50"));
    // Damaged, it is as if it were not there.
    for file in kept(caches.path()) {
        let length = fs::metadata(&file).unwrap().len();
        File::options().write(true).open(&file).unwrap().set_len(length / 2).unwrap();
    }
    assert_eq!(told(&mount(&store, caches.path(), &[])).0, all);
}

#[test]
fn nothing_is_kept_where_that_is_not_wanted() {
    needs_fuse!();
    let (store, _) = long_session();
    let caches = tempfile::tempdir().unwrap();
    told(&mount(&store, caches.path(), &["--no-cache"]));
    told(&mount(&store, caches.path(), &["-o", "no_cache"]));
    assert!(!caches.path().join("swarmletfs").exists());
    // In a store nothing is ever written.
    let mut inside = mount(&store, &store.at("caches"), &[]);
    inside.expect_warning("it lies inside the store");
    told(&inside);
    drop(inside);
    assert!(!store.at("caches").exists());
    // What others could have written is not believed.
    let open = caches.path().join("swarmletfs");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
    let mut refused = mount(&store, caches.path(), &[]);
    refused.expect_warning("try chmod 700");
    told(&refused);
    drop(refused);
    assert!(kept(caches.path()).is_empty());
    // Of a few workers whose files lie on disk as they are there is nothing that is worth to keep.
    let plain = TestStore::new();
    plain.worker("w", json!({}));
    let caches = tempfile::tempdir().unwrap();
    mount(&plain, caches.path(), &[]).text("summary");
    assert!(kept(caches.path()).is_empty());
}

/// A swarm whose outputs take reading, of which it is worth to keep how each worker ended.
fn many_workers() -> TestStore {
    let store = TestStore::new();
    for number in 0..80 {
        let id = format!("w{number:02}");
        store.worker(&id, json!({"run_id": "r"}));
        store.call(&id, 1, "sh", format!("Error: reason {number}\n{}", "and nothing more\n".repeat(4_000)));
    }
    store.rest();
    store
}

/// What is told of all workers, and how many bytes its server has read for that.
fn told_of_all(mount: &Mount) -> (String, u64) {
    (["summary", "index.json", "runs/r/summary"].map(|file| mount.text(file)).concat(), read_by(mount))
}

#[test]
fn how_workers_ended_is_not_found_out_again_at_the_next_start() {
    needs_fuse!();
    let caches = tempfile::tempdir().unwrap();
    let store = many_workers();
    let first = mount(&store, caches.path(), &[]);
    let (all, whole) = told_of_all(&first);
    assert!(all.contains("\"cause\":\"Error: reason 79\""), "{all}");
    eventually("it is kept", || (kept(caches.path()).len() == 1).then_some(()));
    drop(first);
    let (again, read) = told_of_all(&mount(&store, caches.path(), &[]));
    assert_eq!(again, all);
    assert!(read * 4 < whole, "{read} against {whole} at first");
    // A view of somebody else believes nothing of it, and neither does one after a change.
    let (others, read) = told_of_all(&mount(&store, caches.path(), &["--run", "r"]));
    assert!(others.contains("\"cause\":\"Error: reason 79\"") && read * 2 > whole, "{read} against {whole}");
    store.call("w79", 1, "sh", "Error: another reason\n");
    store.write("workers/w78/tool_calls/002_sh.txt", "{\"ok\": true}");
    let (changed, read) = told_of_all(&mount(&store, caches.path(), &[]));
    assert!(changed.contains("\"cause\":\"Error: another reason\"") && !changed.contains("reason 79"), "{changed}");
    assert!(!changed.contains("Error: reason 78") && read * 4 < whole, "{read} against {whole}");
    // Damaged, it is as if it were not there.
    for file in kept(caches.path()) {
        let length = fs::metadata(&file).unwrap().len();
        File::options().write(true).open(&file).unwrap().write_all_at(b"junk", length - 4).unwrap();
    }
    assert_eq!(told_of_all(&mount(&store, caches.path(), &[])).0, changed);
}

#[test]
fn what_was_told_by_outputs_of_another_folder_is_looked_up_again() {
    needs_fuse!();
    let caches = tempfile::tempdir().unwrap();
    let store = many_workers();
    let id = "0123456789abcdef0123456789abcdef";
    store.worker("w00", json!({"status": "failed", "config": {"owner_id": 7}}));
    store.call("w00", 1, "sh", format!("[TOOL_OUTPUT:artifact_id={id},tool=sh,bytes=9]"));
    store.write("tool_outputs/7/else.txt", "");
    let first = mount(&store, caches.path(), &[]);
    assert!(!told_of_all(&first).0.contains("the real reason"));
    eventually("it is kept", || (kept(caches.path()).len() == 1).then_some(()));
    drop(first);
    // It comes while nobody looks, and nothing in the worker's folder tells of it.
    let described = json!({"artifact_id": id, "owner_id": 7, "tool_name": "sh", "size_bytes": 9});
    store.write(format!("tool_outputs/7/{id}.json"), described.to_string());
    store.write(format!("tool_outputs/7/{id}.txt"), "Error: the real reason\n");
    let (all, _) = told_of_all(&mount(&store, caches.path(), &[]));
    assert!(all.contains("\"cause\":\"Error: the real reason\""), "{all}");
}

#[test]
fn what_workers_say_of_themselves_is_not_read_again_at_the_next_start() {
    needs_fuse!();
    let caches = tempfile::tempdir().unwrap();
    let store = TestStore::new();
    let worker = |number: usize, task: &str| {
        let notes = "not needed ".repeat(1_000);
        store.worker(&format!("w{number:03}"), json!({"run_id": "r", "task": task, "task_type": "x", "notes": notes}));
    };
    (0..300).for_each(|number| worker(number, "look around"));
    store.rest();
    let told = |mount: &Mount| {
        let listed = mount.shell("cd $M && ls runs/r/workers by/type/x && stat -c %Y workers/w299").stdout;
        (listed, read_by(mount))
    };
    let first = mount(&store, caches.path(), &[]);
    let (all, whole) = told(&first);
    eventually("it is kept", || (kept(caches.path()).len() == 1).then_some(()));
    drop(first);
    let (again, read) = told(&mount(&store, caches.path(), &[]));
    assert!(again == all && read * 4 < whole, "{read} against {whole} at first");
    // What has changed is read anew, and nothing else.
    worker(299, "look elsewhere");
    store.worker("w298", json!({"run_id": "r2"}));
    let changed = mount(&store, caches.path(), &[]);
    assert_eq!(changed.list("runs/r2/workers"), ["w298"]);
    assert!(changed.text("workers/w299/index.json").contains("look elsewhere"));
    assert!(told(&changed).1 * 4 < whole);
    drop(changed);
    // Damaged, it is as if it were not there.
    for file in kept(caches.path()) {
        let length = fs::metadata(&file).unwrap().len();
        File::options().write(true).open(&file).unwrap().write_all_at(b"junk", length - 4).unwrap();
    }
    let damaged = mount(&store, caches.path(), &[]);
    assert_eq!(damaged.list("runs/r2/workers"), ["w298"]);
    let (_, read) = told(&damaged);
    assert!(read * 2 > whole, "{read} against {whole} at first");
}
