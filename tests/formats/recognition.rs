//! Recognition of a store or a single transcript by its contents, and what it costs.

use std::os::unix::fs::symlink;
use std::sync::Arc;

use serde_json::json;
use swarmletfs_base::store::{Memory, Store};
use swarmletfs_trace::KnownFormat;
use swarmletfs_trace::known::{Detected, detect};
use swarmletfs_tree::catalog::Source;
use swarmletfs_tree::tree::Tree;
use swarmletfs_tree::view::View;

use super::{fifo, listed};
use crate::support::TestStore;
use crate::support::intercept::InterceptedStore;
use crate::support::open_counter::{OpenCounter, OpenLog};
use crate::support::transcript::{Transcript, path};

/// Returns a transcript of one short session.
fn session(id: &str) -> Vec<u8> {
    Transcript::new(id).user("look around").says("done").bytes()
}

/// Detects the format of a store, and returns its name, or `None` if it has none.
fn format_of(store: &dyn Store) -> Option<&'static str> {
    match detect(store).unwrap() {
        Detected::Format(format) => Some(format.name),
        Detected::OneWorker | Detected::Unknown { .. } => None,
    }
}

/// Wraps a store so that opened files are counted by name.
fn counted(store: &Arc<Memory>) -> (InterceptedStore<OpenCounter>, Arc<OpenLog>) {
    let log = Arc::new(OpenLog::default());
    (InterceptedStore::new(OpenCounter(log.clone()), store.clone()), log)
}

fn tree(source: Source) -> Tree {
    let view = View::new(vec![source], Default::default(), Default::default()).unwrap();
    Tree::new(view, Default::default())
}

/// Returns the error from opening a path as a store of a format.
fn error(path: &std::path::Path, format: Option<&str>) -> String {
    let format = format.map(|name| KnownFormat::by_name(name).unwrap());
    match Source::open_as(path, format) {
        Ok(source) => panic!("{path:?} is a store of {}", source.format().name()),
        Err(error) => error.to_string(),
    }
}

/// Promise: A store is recognized by its contents, and each file is opened at most once for all
/// formats.
#[test]
fn each_file_is_opened_at_most_once() {
    let store = Arc::new(Memory::new());
    let long = json!({"type": "odd", "filler": "x".repeat(9_000)}).to_string() + "\n";
    for at in 0..300 {
        store.write(&path(format!("p/a{at}.jsonl")), "{\"type\":\"other\"}\n");
        store.write(&path(format!("p/c{at}.json")), "{\"type\":\"other\"}\n");
        store.write(&path(format!("p/b{at}.jsonl")), long.repeat(3));
    }
    let (counting, log) = counted(&store);
    assert_eq!(format_of(&counting), None);
    for at in 0..300 {
        assert_eq!(log.opened(&format!("a{at}.jsonl")), 1);
        assert!(log.opened(&format!("c{at}.json")) <= 1);
        assert_eq!(log.opened(&format!("b{at}.jsonl")), 1);
    }
    store.write(&path("p/c.jsonl"), session("c"));
    assert_eq!(format_of(&counted(&store).0), Some("claude-code"));
}

/// Promise: Files that no format could have written by their names are not opened.
#[test]
fn unrelated_files_are_not_opened() {
    let store = Arc::new(Memory::new());
    let names: Vec<String> =
        (0..500).flat_map(|at| [format!("{at}.md"), format!("{at}.txt")]).collect();
    names.iter().for_each(|name| store.write(&path(format!("data/{name}")), "{\"type\":\"user\"}"));
    let (counting, log) = counted(&store);
    assert_eq!(format_of(&counting), None);
    assert!(names.iter().all(|name| log.opened(name) == 0));
}

#[test]
fn a_store_of_very_many_files_is_not_read_to_its_end() {
    let store = Arc::new(Memory::new());
    let count = 20_100;
    (0..count).for_each(|at| store.write(&path(format!("p/{at:06}.jsonl")), "{}\n"));
    let (counting, log) = counted(&store);
    let found = detect(&counting).unwrap();
    assert!(matches!(found, Detected::Unknown { searched_all: false }), "{found:?}");
    let opened: u64 = (0..count).map(|at| log.opened(&format!("{at:06}.jsonl"))).sum();
    assert_eq!(opened, 20_000);
}

#[test]
fn a_transcript_with_a_long_first_line_is_recognized() {
    let store = Arc::new(Memory::new());
    let mut long = Transcript::new("s");
    long.line(json!({"type": "odd", "filler": "x".repeat(100_000)})).user("look").says("done");
    store.write(&path("p/s.jsonl"), long.bytes());
    let (counting, log) = counted(&store);
    assert_eq!(format_of(&counting), Some("claude-code"));
    assert_eq!(log.opened("s.jsonl"), 1);
}

#[test]
fn transcripts_where_the_format_does_not_look_are_not_recognized() {
    let store = Memory::new();
    store.write(&path("a/b/c/s.jsonl"), session("s"));
    store.write(&path(".hidden/s.jsonl"), session("s"));
    assert_eq!(format_of(&store), None);
    store.put(&path("projects"), swarmletfs_base::store::Kind::Folder);
    assert_eq!(format_of(&store), Some("claude-code"), "its directory of sessions is prepared");
}

#[test]
fn a_store_of_workers_with_transcripts_in_it_is_one_of_workers() {
    let disk = TestStore::new();
    disk.worker("w", json!({}));
    disk.write("projects/p/s.jsonl", session("s"));
    let source = Source::open(&disk.path()).unwrap();
    assert_eq!(source.format().name(), "swarmlet");
    assert_eq!(listed(&tree(source)), ["w"]);
}

/// Promise: `--format` forces a format, and no other one is tried.
#[test]
fn a_forced_format_is_the_only_one_that_is_tried() {
    let disk = TestStore::new();
    disk.worker("w", json!({}));
    disk.write("projects/p/s.jsonl", session("s"));
    let forced = |name| Source::open_as(&disk.path(), KnownFormat::by_name(name)).unwrap();
    assert_eq!(listed(&tree(forced("claude-code"))), ["s"]);
    assert_eq!(listed(&tree(forced("swarmlet"))), ["w"]);
    let sessions = error(&disk.at("workers"), Some("claude-code"));
    assert!(sessions.ends_with("expected transcripts of Claude Code"), "{sessions}");
    let workers = error(&disk.at("projects"), Some("swarmlet"));
    assert!(
        workers.contains("expected folders with a metadata.json") && !workers.contains("Claude"),
        "{workers}"
    );
}

/// Promise: A single transcript can be a store.
#[test]
fn a_single_transcript_is_a_store_of_one_worker() {
    let disk = TestStore::new();
    for id in ["s", "other"] {
        disk.write(format!("projects/p/{id}.jsonl"), session(id));
    }
    symlink("projects/p/s.jsonl", disk.at("link")).unwrap();
    for name in ["projects/p/s.jsonl", "link"] {
        for format in [None, KnownFormat::by_name("claude-code")] {
            let source = Source::open_as(&disk.at(name), format).unwrap();
            assert_eq!(source.format().name(), "claude-code");
            let tree = tree(source);
            assert_eq!(listed(&tree), ["s"], "{name}");
            assert_eq!(super::text(&tree, "s", "task.txt"), "look around");
        }
    }
}

#[test]
fn a_file_that_is_no_transcript_is_an_error_that_names_what_is() {
    let disk = TestStore::new();
    disk.write("notes.jsonl", "{\"type\":\"note\"}\n");
    disk.write("s.jsonl", session("s"));
    disk.write("s.txt", session("s"));
    fifo(&disk.at("pipe"));
    for name in ["notes.jsonl", "s.txt"] {
        let error = error(&disk.at(name), None);
        assert!(error.contains("it is a file; expected a transcript of "), "{error}");
    }
    let forced = error(&disk.at("s.jsonl"), Some("swarmlet"));
    assert!(forced.contains("it is a file; expected folders with a metadata.json"), "{forced}");
    assert!(error(&disk.at("pipe"), None).contains("neither a folder nor a regular file"));
    assert!(error(&disk.at("s.jsonl/x"), None).contains("it is not a folder"));
}
