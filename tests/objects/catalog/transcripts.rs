//! Contents of transcripts in the catalog: the same tree with fewer requests.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use swarmletfs_objects::WholeSearch;

use super::super::recorder::Machine;
use super::super::same_tree::{contents, put_parts};
use super::super::server::{Server, server};
use super::super::tree;
use super::{MANIFEST, TestBucket, files};
use crate::support::see_folder;
use crate::support::transcript::{PROJECT, Transcript};

/// Number of sessions, each in a transcript.
const SESSIONS: usize = 40;
/// Number of calls of the session in parts.
const CALLS: usize = 30;
/// Maximum number of requests before contents come from the catalog, and for the catalog itself.
const FIRST_MAX: u64 = 60;

fn session(at: usize, result: &str) -> Vec<u8> {
    let mut transcript = Transcript::new(&format!("0a{at:04x}"));
    transcript.user(format!("Find cause {at}")).says("I look.");
    transcript.bash("t1", "df", result);
    transcript.bytes()
}

fn put_session(server: &Server, bucket: &TestBucket, at: usize, result: &str) {
    let key = format!("{}/{PROJECT}/0a{at:04x}.jsonl", bucket.prefix);
    server.put(&key, session(at, result));
}

/// Asserts that the files are the same with the catalog and without. Returns the number of objects
/// that each reader has read.
fn assert_same(bucket: &TestBucket, why: &str) -> [u64; 2] {
    let [with, without] = [true, false].map(|catalog| bucket.open(catalog));
    assert_eq!(files(&with), files(&without), "{why}");
    [with, without].map(|opened| opened.requests().reads)
}

/// Promise: With a catalog, small transcripts and the parts of sessions are read without a request
/// for each of them, and show the same bytes.
#[test]
fn transcripts_in_a_catalog_have_the_same_tree_with_fewer_reads() {
    let Some(server) = server() else { return };
    let bucket = TestBucket::new(server);
    (0..SESSIONS).for_each(|at| put_session(server, &bucket, at, "full"));
    let mut parts = Transcript::new("1b");
    parts.user("Count");
    for call in 0..CALLS {
        parts.bash(&format!("t{call}"), "df", &format!("disk {call}"));
    }
    put_parts(server, &format!("{}/{PROJECT}/1b", bucket.prefix), &parts.bytes());
    let large = format!("{}/{PROJECT}/2c.jsonl", bucket.prefix);
    server.put(&large, session(0xffff, &"a long line\n".repeat(20_000)));
    let report = bucket.compact_all();
    let transcripts = SESSIONS + (CALLS * 2 + 1).div_ceil(2);
    assert_eq!((report.workers, report.transcripts, report.files), (0, transcripts, 1));
    assert_eq!(bucket.compact_all().rows, 0);
    let opened = bucket.open(true);
    assert_eq!(opened.catalog().unwrap().transcripts, transcripts);
    let [with, without] = [true, false]
        .map(|catalog| contents(see_folder(&tree(bucket.open(catalog)), "workers").unwrap()));
    let names = |tree: &BTreeMap<String, Vec<u8>>| tree.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&with), names(&without));
    for (path, bytes) in &with {
        assert!(*bytes == without[path], "{path}");
    }
    let [with, without] = assert_same(&bucket, "made");
    assert!(with < FIRST_MAX && without > transcripts as u64, "{with} and {without} reads");
    // Nobody announces a transcript: new, changed and removed ones are listed.
    put_session(server, &bucket, SESSIONS, "new");
    put_session(server, &bucket, 1, "changed");
    server.delete(&format!("{}/{PROJECT}/0a0002.jsonl", bucket.prefix));
    let [with, _] = assert_same(&bucket, "changed");
    assert!(with < FIRST_MAX + 5, "{with} reads");
    assert_eq!(bucket.compact(WholeSearch::IfOlder(std::time::Duration::MAX)).unwrap().rows, 0);
    let report = bucket.compact_all();
    // A file with a transcript that was changed or deleted is written again without it.
    let numbers = (report.rows, report.files, report.written, report.transcripts);
    assert_eq!(numbers, (2, 1, 1, transcripts), "{report:?}");
    assert_same(&bucket, "compacted");
    put_session(server, &bucket, SESSIONS + 1, "one more");
    let report = bucket.compact_all();
    assert_eq!((report.rows, report.files, report.written), (1, 2, 1), "{report:?}");
    (0..SESSIONS).for_each(|at| put_session(server, &bucket, at, "again"));
    let report = bucket.compact_all();
    assert_eq!((report.rows, report.files), (SESSIONS, 2), "{report:?}");
    assert_same(&bucket, "replaced");
}

/// Promise: A file of the catalog with contents of transcripts that is damaged or gone is not used,
/// and shows nothing wrong.
#[test]
fn damaged_contents_of_transcripts_are_not_used() {
    let Some(server) = server() else { return };
    let bucket = TestBucket::new(server);
    (0..SESSIONS).for_each(|at| put_session(server, &bucket, at, "full"));
    bucket.compact_all();
    let [key] = <[String; 1]>::try_from(bucket.keys("catalog/v1/transcripts/")).unwrap();
    let file = bucket.writer.get(&key, 1 << 20).unwrap().unwrap().0;
    let key = format!("{}/{key}", bucket.prefix);
    let expected = files(&bucket.open(false));
    for bytes in [&file[..file.len() / 2], b"", &file[1..]] {
        server.put(&key, bytes);
        assert_eq!(files(&bucket.open(true)), expected);
    }
    server.delete(&key);
    assert_same(&bucket, "gone");
    let report = bucket.compact_all();
    assert_eq!((report.transcripts, report.rows), (SESSIONS, SESSIONS));
    let [with, _] = assert_same(&bucket, "made again");
    assert!(with < FIRST_MAX, "{with} reads");
    // A manifest of an earlier version has no such files.
    let (json, _) = bucket.writer.get(MANIFEST, 1 << 20).unwrap().unwrap();
    let mut json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    json.as_object_mut().unwrap().remove("transcripts");
    bucket.put(MANIFEST, &json.to_string());
    assert!(bucket.open(true).catalog().is_some());
    assert_same(&bucket, "without transcripts");
}

/// Prints the time of the first and the second list of many small transcripts, and of a search.
#[test]
#[ignore = "only in scripts/check --all"]
fn many_small_transcripts_are_listed_sooner() {
    const MANY: usize = 2_000;
    let Some(server) = server() else { return };
    let bucket = TestBucket::new(server);
    (0..MANY).for_each(|at| put_session(server, &bucket, at, &"a line of output\n".repeat(400)));
    let url = super::url(&bucket.prefix);
    let machine = Machine::new(server);
    let run = |name: &str, cache: &Path, arguments: &[&str]| {
        let mut command = machine.command(&[arguments, &["--store", &url]].concat());
        let begun = Instant::now();
        let output = command.env("XDG_CACHE_HOME", cache).output().unwrap();
        println!("{name}: {:.1?}", begun.elapsed());
        String::from_utf8(output.stdout).unwrap()
    };
    let commands: [&[&str]; 3] = [&["ls", "workers"], &["cat", "summary"], &["search", "cause 77"]];
    let mut shown = Vec::new();
    for catalog in [false, true] {
        if catalog {
            let begun = Instant::now();
            let report = bucket.compact_all();
            println!(
                "catalog: {:.1?}, {report:?}, {:?}",
                begun.elapsed(),
                bucket.writer.requests()
            );
        }
        for command in commands {
            let cache = tempfile::tempdir().unwrap();
            let first = run(&format!("{command:?}, first, {catalog}"), cache.path(), command);
            let again = run(&format!("{command:?}, again, {catalog}"), cache.path(), command);
            if command[0] == "search" {
                std::fs::remove_dir_all(cache.path().join("swarmletfs/objects")).unwrap();
                println!(
                    "{:?}",
                    std::process::Command::new("du").arg("-sm").arg(cache.path()).output()
                );
                run("search with the index and without blocks", cache.path(), command);
            }
            assert_eq!(first, again);
            shown.push(first);
        }
        let opened = bucket.open(catalog);
        let tree = tree(opened.clone());
        assert_eq!(tree.view().visible().members.len(), MANY);
        println!("{:?}", opened.requests());
    }
    assert_eq!(shown[..commands.len()], shown[commands.len()..]);
}
