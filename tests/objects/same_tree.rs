//! A store in an object store has the tree and the bytes of a folder with the same content.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use serde_json::json;
use swarmletfs_base::error::Error;
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{Kind, Store, Time};
use swarmletfs_objects::{Bucket, ObjectSettings};

use super::server::{EMPTY_BUCKET, SECRET_KEY, Server, new_prefix, server, shown, url};
use super::tree;
use crate::cli::program::{run, swarmletfs};
use crate::needs_fuse;
use crate::support::mount::PROGRAM;
use crate::support::swarm::Swarm;
use crate::support::transcript::{PROJECT, Transcript};
use crate::support::{Mount, Seen, TestStore, patience, see, see_folder};

/// A swarm with every kind of file: outputs of several blocks, an owner, a run, notes, and outputs
/// that are stored out of band.
pub fn swarm() -> TestStore {
    let store = TestStore::new();
    Swarm { workers: 4, calls: 3, bytes: 2_000, seed: 7 }.make(&store.path()).unwrap();
    store.worker(
        "large",
        json!({"owner_id": "7", "run_id": "48", "status": "failed", "error": "full"}),
    );
    let lines: String = (0..60_000).map(|at| format!("line {at} of a log\n")).collect();
    store.call("large", 1, "sh", format!("{lines}error: No space left on device\n"));
    store.call("large", 2, "empty", "");
    store.write("workers/large/notes/a name with + and % ü.md", "text");
    store.write("supervisor/strategy.md", "# Strategy\n");
    store.write("tool_outputs/out-1.txt", "output beside the worker\n");
    store
}

/// Gives what is in `folder` the times that it has in `bucket`, beneath `path`.
fn take_times(folder: &Path, bucket: &Bucket, path: &RelPath) {
    for entry in bucket.list(path).unwrap() {
        let path = path.join(&entry.name);
        if entry.kind == Kind::Folder {
            take_times(folder, bucket, &path);
        }
        let Time { secs, nanos } = bucket.stat(&path).unwrap().mtime;
        let time = SystemTime::UNIX_EPOCH + Duration::new(secs.try_into().unwrap(), nanos);
        let file = File::open(folder.join(path.as_os_str())).unwrap();
        file.set_modified(time).unwrap();
    }
}

fn names_in(bucket: &Bucket, folder: &str) -> Vec<String> {
    let entries = bucket.list(&RelPath::parse(folder).unwrap()).unwrap();
    entries.into_iter().map(|entry| entry.name.display()).collect()
}

/// Returns the contents of the files and links of a tree.
pub fn contents(seen: BTreeMap<Vec<u8>, Seen>) -> BTreeMap<String, Vec<u8>> {
    let content = |seen| match seen {
        Seen::File { bytes, .. } => bytes,
        Seen::Link(target) => target,
        Seen::Folder { .. } => b"a folder".to_vec(),
    };
    seen.into_iter().map(|(path, seen)| (shown(&path), content(seen))).collect()
}

fn assert_same_tree(store: &TestStore, server: &Server) {
    let prefix = new_prefix();
    server.copy(&store.path(), &prefix);
    assert_has_tree(store, server.open(&prefix, &server.settings()).unwrap());
}

/// Asserts that `bucket` shows the tree of the folder of `store`, whose files it has.
pub fn assert_has_tree(store: &TestStore, bucket: Bucket) {
    // The fraction of a second of a directory's time may lie in the future.
    store.rest();
    take_times(&store.path(), &bucket, &RelPath::root());
    let of_folder = contents(see_folder(&store.tree(), "").unwrap());
    let of_objects = contents(see_folder(&tree(bucket), "").unwrap());
    let [names, others] = [&of_folder, &of_objects].map(|tree| tree.keys().collect::<Vec<_>>());
    assert_eq!(names, others);
    for (path, bytes) in &of_folder {
        let other = &of_objects[path];
        assert!(
            bytes == other,
            "{path}: {} and {}",
            String::from_utf8_lossy(bytes),
            String::from_utf8_lossy(other)
        );
    }
    assert!(of_folder.len() > 50, "{names:?}");
}

/// Promise: A store in an object store has the same names and bytes as a folder with the same
/// content.
#[test]
fn artifacts_have_the_tree_of_a_folder() {
    let Some(server) = server() else { return };
    assert_same_tree(&swarm(), server);
}

#[test]
fn transcripts_have_the_tree_of_a_folder() {
    let Some(server) = server() else { return };
    let store = TestStore::new();
    for session in ["0a1b", "2c3d"] {
        let mut transcript = Transcript::new(session);
        transcript.user("Find the cause").says("I look.").bash("t1", "df", "disk is full");
        store.write(format!("{PROJECT}/{session}.jsonl"), transcript.bytes());
        let agent = Transcript::of_agent(session, "1f").user("Count").says("12").bytes();
        store.write(format!("{PROJECT}/{session}/subagents/agent-1f.jsonl"), agent);
    }
    assert_same_tree(&store, server);
}

/// Writes a transcript as the parts of the Claude Agent SDK, two lines in each.
fn put_parts(server: &Server, folder: &str, transcript: &[u8]) {
    let lines: Vec<&[u8]> = transcript.split_inclusive(|byte| *byte == b'\n').collect();
    for (at, lines) in lines.chunks(2).enumerate() {
        server.put(
            &format!("{folder}/part-{:013}-00af0{at:x}.jsonl", 1_768_000_000_000 + at),
            lines.concat(),
        );
    }
}

/// Promise: The parts of a session that the Claude Agent SDK writes to S3 are shown as its
/// transcript.
#[test]
fn sessions_in_parts_have_the_tree_of_their_transcripts() {
    let Some(server) = server() else { return };
    let (whole, parts) = (new_prefix(), new_prefix());
    let mut transcript = Transcript::new("0a1b");
    transcript.user("Find the cause").says("I look.");
    for call in 0..200 {
        transcript.bash(&format!("t{call}"), "df", &format!("disk {call} is full"));
    }
    let agent = Transcript::of_agent("0a1b", "1f").user("Count").says("12").bytes();
    server.put(&format!("{whole}/{PROJECT}/0a1b.jsonl"), transcript.bytes());
    server.put(&format!("{whole}/{PROJECT}/0a1b/subagents/agent-1f.jsonl"), &agent);
    put_parts(server, &format!("{parts}/{PROJECT}/0a1b"), &transcript.bytes());
    put_parts(server, &format!("{parts}/{PROJECT}/0a1b/subagents%2Fagent-1f"), &agent);
    let [whole, joined] = [&whole, &parts].map(|prefix| {
        let bucket = server.open(prefix, &server.settings()).unwrap();
        let (before, names) = (bucket.requests(), names_in(&bucket, ""));
        assert_eq!(names, ["projects"]);
        let shown = contents(see_folder(&tree(bucket.clone()), "workers").unwrap());
        (shown, bucket.requests().reads - before.reads)
    });
    let files = |tree: &BTreeMap<String, Vec<u8>>, name: &str| {
        let files = tree.iter().filter(|(path, _)| path.ends_with(name));
        files.map(|(path, bytes)| (path.clone(), bytes.clone())).collect::<Vec<_>>()
    };
    for name in ["source.jsonl", "thread.jsonl", "tool_calls/150_Bash.txt", "task.txt"] {
        assert!(!files(&whole.0, name).is_empty(), "{name}");
        assert!(files(&whole.0, name) == files(&joined.0, name), "{name}");
    }
    assert_eq!(files(&joined.0, "source.jsonl").len(), 2);
    let count = transcript.bytes().split(|byte| *byte == b'\n').count() as u64 / 2;
    assert!(joined.1 <= count + 10, "{} reads of {count} parts", joined.1);
    // A program that is not sure about an append repeats it.
    let again: Vec<u8> = transcript
        .bytes()
        .split_inclusive(|byte| *byte == b'\n')
        .take(50)
        .flatten()
        .copied()
        .collect();
    server.put(
        &format!("{parts}/{PROJECT}/0a1b/part-{:013}-00af00.jsonl", 1_769_000_000_000_u64),
        again,
    );
    let repeated = server.open(&parts, &server.settings()).unwrap();
    let repeated = contents(see_folder(&tree(repeated), "workers").unwrap());
    let names = |tree: &BTreeMap<String, Vec<u8>>| tree.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&repeated), names(&joined.0));
    assert!(files(&repeated, "thread.jsonl") == files(&joined.0, "thread.jsonl"));
}

/// Thousands of parts are the usual form of a long session.
#[test]
#[ignore = "only in scripts/check --all"]
fn a_session_in_thousands_of_parts_is_read_once() {
    const CALLS: usize = 5_000;
    let Some(server) = server() else { return };
    let (prefix, mut transcript) = (new_prefix(), Transcript::new("0a1b"));
    transcript.user("Find the cause");
    for call in 0..CALLS {
        let id = format!("t{call}");
        transcript.bash(&id, "df", &format!("disk {call} is full{}", " ".repeat(500)));
    }
    let folder = format!("{prefix}/{PROJECT}/0a1b");
    let before = transcript.bytes();
    put_parts(server, &folder, &before);
    let begun = Instant::now();
    let settings = ObjectSettings { refresh: Duration::from_millis(100), ..server.settings() };
    let bucket = server.open(&prefix, &settings).unwrap();
    let tree = tree(bucket.clone());
    let text = |path: &str| see(&tree, path).unwrap().text().to_owned();
    assert!(text("workers/0a1b/summary").contains("Find the cause"));
    let first = begun.elapsed();
    let reads = bucket.requests().reads;
    assert!(reads <= CALLS as u64 + 10, "{reads} reads");
    // A further part costs a read, and the parts before it none.
    transcript.bash("last", "df", "the last disk");
    let next = transcript.bytes().split_off(before.len());
    server.put(&format!("{folder}/part-1769000000000-000000.jsonl"), next);
    let begun = Instant::now();
    let last = || see(&tree, "workers/0a1b/tool_calls/5001_Bash.txt");
    while !last().is_ok_and(|output| output.text().contains("the last disk")) {
        assert!(begun.elapsed() < patience(Duration::from_secs(30)));
    }
    let again = begun.elapsed();
    assert_eq!(bucket.requests().reads, reads + 1);
    println!("{CALLS} parts: {first:?} from nothing, {again:?} with one more");
}

#[test]
fn names_and_directories_follow_from_keys() {
    let Some(server) = server() else { return };
    let prefix = new_prefix();
    for key in ["a/b/c.txt", "a/b-c", "a/empty", "z"] {
        server.put(&format!("{prefix}/{key}"), if key == "a/empty" { "" } else { key });
    }
    let bucket = server.open(&prefix, &server.settings()).unwrap();
    let path = |text: &str| RelPath::parse(text).unwrap();
    let kinds = |folder: &str| {
        let mut all: Vec<_> = bucket
            .list(&path(folder))
            .unwrap()
            .into_iter()
            .map(|e| (e.name.display(), e.kind))
            .collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    };
    assert_eq!(kinds(""), [("a".to_owned(), Kind::Folder), ("z".to_owned(), Kind::File)]);
    let expected = [("b", Kind::Folder), ("b-c", Kind::File), ("empty", Kind::File)];
    assert_eq!(kinds("a"), expected.map(|(name, kind)| (name.to_owned(), kind)));
    assert_eq!(bucket.open(&path("a/b")).err(), Some(Error::IsADirectory));
    assert_eq!(bucket.open(&path("a/none")).err(), Some(Error::NotFound));
    assert_eq!(bucket.enter(&path("z")).err(), Some(Error::NotADirectory));
    let inner = bucket.enter(&path("a")).unwrap();
    assert_eq!(inner.stat(&path("b-c")).unwrap(), bucket.stat(&path("a/b-c")).unwrap());
    assert_eq!(inner.identity().unwrap(), bucket.stat(&path("a")).unwrap().identity);
    assert_eq!(inner.open(&path("empty")).unwrap().read_at(&mut [0; 9], 0), Ok(0));
    assert_eq!(inner.stat(&path("b")).unwrap().mode, 0o555);
}

#[test]
fn a_mount_and_commands_read_an_object_store() {
    needs_fuse!();
    let Some(server) = server() else { return };
    let (store, prefix) = (swarm(), new_prefix());
    server.copy(&store.path(), &prefix);
    let url = url(&prefix);
    let mount = Mount::of(|point| {
        let mut command = std::process::Command::new(PROGRAM);
        server.configure(&mut command);
        command.args(["mount", "--foreground", "--quiet", "--store", &url]).arg(point);
        command
    });
    let output = "workers/large/tool_calls/001_sh.txt";
    assert_eq!(mount.read(output), fs::read(store.at(output)).unwrap());
    assert!(mount.text("workers/large/evidence.4k.txt").contains("No space left on device"));
    let command = |arguments: &[&str]| {
        let mut command = swarmletfs(arguments.iter().copied().chain(["--store", &url]));
        server.configure(&mut command);
        let output = run(command);
        output.assert_success();
        output.out
    };
    for file in ["summary", "workers/large/index.json"] {
        assert_eq!(command(&["cat", file]), mount.text(file), "{file}");
    }
    assert!(command(&["ls", "workers"]).contains("large"));
    assert!(command(&["grep", "No space left"]).contains("large"));
    let doctor = command(&["doctor"]);
    assert!(doctor.contains(&url) && doctor.contains("object stores: "), "{doctor}");
    // Reads the cached parts of objects.
    assert_eq!(command(&["cat", output]).into_bytes(), fs::read(store.at(output)).unwrap());
}

#[test]
fn errors_say_what_is_wrong_and_what_to_try() {
    let Some(server) = server() else { return };
    let command = |url: &str, variables: &[(&str, &str)], arguments: &[&str]| {
        let mut command = swarmletfs(arguments.iter().copied().chain(["--store", url]));
        server.configure(&mut command);
        command.envs(variables.iter().copied());
        run(command)
    };
    let wrong_key = ("AWS_SECRET_ACCESS_KEY", "another secret");
    let closed = ("AWS_ENDPOINT_URL", "http://127.0.0.1:9");
    let empty = format!("s3://{EMPTY_BUCKET}");
    for (url, variables, named) in [
        ("s3://none/a", &[][..], &["there is no such bucket", "check its name"][..]),
        (&empty, &[], &["there is no object beneath it"]),
        ("s3://swarm/none", &[], &["there is no object beneath it", "check the prefix"]),
        ("s3://swarm/ready", &[wrong_key], &["the secret key is wrong", "check the credentials"]),
        (
            "s3://swarm/ready",
            &[("AWS_ACCESS_KEY_ID", "nobody")],
            &["the access key is unknown", "check the credentials"],
        ),
        ("s3://swarm/ready", &[closed], &["it cannot be reached", "check the network"]),
        ("s3://", &[], &["it names no bucket", "s3://BUCKET/PREFIX"]),
    ] {
        let cannot = format!("cannot read {url}");
        let output = command(url, variables, &["ls"]);
        output.assert_failure(1, &[&[&*cannot], named].concat());
        assert!(!output.err.contains(SECRET_KEY));
    }
    let named = ["an object store is never deleted from", "a rule of the provider"];
    command(&url("a"), &[], &["gc", "--older-than", "1d"]).assert_failure(1, &named);
    // The URL would be a relative path.
    let folder = tempfile::tempdir().unwrap();
    let mut init = swarmletfs(["init", &url("a")]);
    init.current_dir(folder.path());
    run(init).assert_failure(1, &["an object store is no folder", "swarmletfs sync"]);
}
