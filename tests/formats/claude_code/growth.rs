//! Tests of transcripts while they are written: truncated anywhere, grown in pieces of any size,
//! overwritten.
//!
//! Compares a format that follows the store with one that reads the store for the first time. Both
//! are called directly, which is fast enough to test every byte.

use std::collections::BTreeMap;
use std::sync::Arc;

use fastrand::Rng;
use swarmletfs_base::cache::DiskCache;
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::model::{Outcome, Record, Worker};
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{File, Kind, Meta, Store, read_range};
use swarmletfs_trace::{ClaudeCode, Format, RecordSource, Transcripts};

use super::*;
use crate::support::transcript::{PROJECT, path};
use crate::support::{is_exhaustive, seeds};

/// A worker as a format reads it.
#[derive(Debug, Clone, PartialEq)]
struct WorkerView {
    worker: Worker,
    record: Record,
    files: BTreeMap<RelPath, (Meta, Vec<u8>)>,
}

impl WorkerView {
    fn bytes(&self, file: &str) -> &[u8] {
        &self.files[&path(file)].1
    }
}

/// Reads everything that a format shows of a store, by path.
fn read_all(format: &Transcripts, store: &dyn Store) -> BTreeMap<RelPath, WorkerView> {
    let mut paths = format.find_workers(store).unwrap().folders;
    paths.sort();
    let view = |path: &RelPath| {
        let folder = format.enter(store, path).unwrap();
        format.folder_state(&*folder, path).unwrap()?;
        let worker = format.read_worker(&*folder, path, None);
        let source = RecordSource { folder: &*folder, outputs: None };
        let record = format
            .read_record(source, &worker, Deadline::never())
            .unwrap_or_else(|error| panic!("{path:?}: {error}"));
        let mut files = BTreeMap::new();
        see(&*folder, &RelPath::root(), &mut files);
        Some(WorkerView { worker, record, files })
    };
    paths.iter().filter_map(|path| Some((path.clone(), view(path)?))).collect()
}

fn see(folder: &dyn Store, at: &RelPath, files: &mut BTreeMap<RelPath, (Meta, Vec<u8>)>) {
    for entry in folder.list(at).unwrap() {
        let inner = at.join(&entry.name);
        let meta = folder.stat(&inner).unwrap_or_else(|error| panic!("{inner:?}: {error}"));
        assert_eq!(meta.kind, entry.kind, "{inner:?}");
        if meta.kind == Kind::Folder {
            see(folder, &inner, files);
            continue;
        }
        let file = folder.open(&inner).unwrap_or_else(|error| panic!("{inner:?}: {error}"));
        let bytes = whole(&*file);
        assert_eq!((meta.size, file.meta().unwrap()), (bytes.len() as u64, meta), "{inner:?}");
        files.insert(inner, (meta, bytes));
    }
}

fn whole(file: &dyn File) -> Vec<u8> {
    read_range(file, 0, 1 << 20).unwrap()
}

/// Asserts that both are equal, and describes the differences briefly.
#[track_caller]
fn assert_same(
    live: &BTreeMap<RelPath, WorkerView>,
    fresh: &BTreeMap<RelPath, WorkerView>,
    when: &str,
) {
    assert_eq!(live.keys().collect::<Vec<_>>(), fresh.keys().collect::<Vec<_>>(), "{when}");
    for (path, fresh) in fresh {
        let live = &live[path];
        assert_eq!(live.worker, fresh.worker, "{when}: {path:?}");
        assert_eq!(live.record, fresh.record, "{when}: {path:?}");
        for (file, (meta, bytes)) in &fresh.files {
            let (live_meta, live_bytes) =
                live.files.get(file).unwrap_or_else(|| panic!("{when}: no {file:?}"));
            assert_eq!(live_meta, meta, "{when}: {path:?}: {file:?}");
            assert!(
                live_bytes == bytes,
                "{when}: {path:?}: {file:?}: {}",
                live_bytes.escape_ascii()
            );
        }
        assert_eq!(live.files.len(), fresh.files.len(), "{when}: {path:?}");
    }
}

/// Creates a transcript with lines of every kind.
pub(super) fn transcript_with_every_line_type() -> Transcript {
    let mut t = Transcript::lean("s");
    t.line(json!({"type": "summary", "summary": "Before", "leafUuid": "x"}));
    t.line(json!({"type": "user", "isMeta": true, "uuid": "x", "message": {"content": "Caveat"}}));
    t.user("look around").call("a", "Bash", json!({"command": "ls"}));
    t.result("a", json!({"content": texts(&["one", "漢"])}));
    t.raw("junk\n\n{\"type\":\"telepathy\"}\r\n")
        .raw(b"{\"type\":\"user\",\"message\":{\"content\":\"caf\xe9 \\ud83d\"}}\n");
    t.progress("p", "user", json!({"content": "go"}));
    let uses = json!([{"type": "tool_use", "id": "pa", "name": "Grep", "input": {"pattern": "x"}}]);
    t.progress("p", "assistant", json!({"id": "m", "content": uses}));
    t.result("never", json!({"content": "stray"}));
    let usage = json!({"input_tokens": 1, "output_tokens": 2});
    t.message("m1", json!([{"type": "thinking", "thinking": "hm"}]), usage.clone());
    let uses = ["b", "c"].map(
        |id| json!({"type": "tool_use", "id": id, "name": "Read", "input": {"file_path": "/b"}}),
    );
    t.message("m1", json!(uses), usage);
    t.result("c", json!({"content": "Exit code 3\nno", "is_error": true}));
    t.progress(
        "p",
        "user",
        json!({"content": [{"type": "tool_result", "tool_use_id": "pa", "content": "hit"}]}),
    );
    t.call("a", "Bash", json!({"command": "again"}));
    t.result("b", json!({"content": "<persisted-output>\nsaved"}));
    // Two concurrent writers.
    t.raw("{\"type\":\"user\",\"uuid\":\"g\",\"message\":{\"content\":\"glued\"}}{\"type\":\"system\"}\n");
    t.says("Done.").user("[Request interrupted by user]");
    let enqueue = json!({"type": "queue-operation", "operation": "enqueue", "content": "also x"});
    t.line(enqueue).line(json!({"type": "queue-operation", "operation": "remove"}));
    t.line(json!({"type": "user", "isCompactSummary": true, "message": {"content": "so far"}}));
    t.user("go\non\u{200b}").call("d", "Bash", json!({"command": "rm -r /"}));
    t.line(json!({"type": "user", "toolDenialKind": "user-rejected", "message": {"content": [
        {"type": "tool_result", "tool_use_id": "d", "content": "no", "is_error": true}]}}));
    t.user("<command-name>/exit</command-name>");
    t
}

/// Creates subagents of the oldest form, which can only be told apart by earlier lines.
fn transcript_with_oldest_subagents() -> Transcript {
    let mut t = Transcript::lean("s");
    t.user("look around");
    let side = |uuid: &str, parent: &str, kind: &str, content: &str| json!({"type": kind, "isSidechain": true, "uuid": uuid, "parentUuid": parent, "message": {"content": texts(&[content])}});
    t.call("task", "Task", json!({"prompt": "x"}));
    t.line(side("o1", "", "user", "first")).line(side("o2", "gone", "user", "second"));
    t.line(side("o1b", "o1", "assistant", "one")).line(side("o2b", "o2", "assistant", "two"));
    t.line(side("o1c", "o1b", "assistant", "more"));
    t.result("task", json!({"content": "all"})).says("Done.");
    t
}

/// Returns offsets at which a transcript is truncated: every byte around the ends of lines, and
/// more in between at a larger scale.
fn cuts(bytes: &[u8]) -> Vec<usize> {
    let near = |at: usize| bytes[at.saturating_sub(2)..(at + 3).min(bytes.len())].contains(&b'\n');
    let step = if is_exhaustive() { 1 } else { 29 };
    (0..bytes.len()).filter(|at| at % step == 0 || near(*at)).collect()
}

/// Promise: A transcript cut at any byte shows a part of what the whole transcript shows.
#[test]
fn transcript_cut_at_any_byte_shows_a_part() {
    for transcript in [transcript_with_every_line_type(), transcript_with_oldest_subagents()] {
        let bytes = transcript.bytes();
        let (store, of_session) = (store(), place("s"));
        store.write(&of_session, bytes.clone());
        let all = read_all(&ClaudeCode::transcripts(), &*store);
        for end in cuts(&bytes) {
            store.write(&of_session, &bytes[..end]);
            let part = read_all(&ClaudeCode::transcripts(), &*store);
            for (path, part) in &part {
                let all = all
                    .get(path)
                    .unwrap_or_else(|| panic!("cut at {end}: {path:?} is not in the whole"));
                if end > 0 && bytes[end - 1] == b'}' {
                    // A line without its end may look like one that was glued to another.
                    continue;
                }
                for file in ["source.jsonl", "thread.jsonl"] {
                    assert!(
                        all.bytes(file).starts_with(part.bytes(file)),
                        "cut at {end}: {path:?} {file}"
                    );
                }
                for (cut, call) in part.record.trace.calls.iter().zip(&all.record.trace.calls) {
                    assert_eq!(
                        (&cut.tool, &cut.input, &cut.path),
                        (&call.tool, &call.input, &call.path),
                        "cut at {end}"
                    );
                    if cut.outcome != Outcome::Unknown {
                        assert_eq!(cut, call, "cut at {end}");
                        let file = call.path.to_text();
                        assert_eq!(part.bytes(&file), all.bytes(&file), "cut at {end}");
                    }
                }
                assert!(
                    part.record.trace.calls.len() <= all.record.trace.calls.len(),
                    "cut at {end}"
                );
                let whole_task =
                    [json!(""), json!(all.worker.task)].contains(&json!(part.worker.task));
                assert!(
                    whole_task || transcript.bytes()[..end].ends_with(b"\n"),
                    "cut at {end}: {}",
                    part.worker.task
                );
            }
        }
    }
}

#[test]
fn a_truncated_transcript_leaves_the_tree_consistent() {
    let bytes = transcript_with_every_line_type().bytes();
    let lines = bytes
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b'\n')
        .flat_map(|(at, _)| [at, at + 1]);
    let ends: Vec<usize> = lines.chain((0..bytes.len()).step_by(997)).collect();
    let (store, of_session) = (store(), place("s"));
    store.write(&of_session, "");
    let live = tree(&store);
    for end in ends {
        store.write(&of_session, &bytes[..end]);
        let (live, fresh) = (Checked::of(&live), read_once(&store));
        assert_eq!(live.bytes("s", "source.jsonl"), &bytes[..end]);
        for (path, seen) in &fresh.0 {
            assert!(live.0.get(path) == Some(seen), "cut at {end}: {}", path.escape_ascii());
        }
        assert_eq!(live.0.len(), fresh.0.len(), "cut at {end}");
    }
}

/// Files that stay open during the test.
struct OpenFiles {
    files: Vec<(RelPath, &'static str, Box<dyn File>)>,
}

impl OpenFiles {
    fn new() -> OpenFiles {
        OpenFiles { files: Vec::new() }
    }

    /// Opens both growing files of every new worker.
    fn open(
        &mut self,
        format: &Transcripts,
        store: &dyn Store,
        shown: &BTreeMap<RelPath, WorkerView>,
    ) {
        for worker in shown.keys() {
            for name in ["source.jsonl", "thread.jsonl"] {
                if !self.files.iter().any(|(path, held, _)| path == worker && *held == name) {
                    let file = format.enter(store, worker).unwrap().open(&path(name)).unwrap();
                    self.files.push((worker.clone(), name, file));
                }
            }
        }
    }

    fn check(&self, shown: &BTreeMap<RelPath, WorkerView>, when: &str) {
        for (worker, name, file) in &self.files {
            let now = &shown[worker];
            assert_eq!(whole(&**file), now.bytes(name), "{when}: {name} of {worker:?}, held open");
            assert_eq!(
                file.meta().unwrap().size,
                now.bytes(name).len() as u64,
                "{when}: {name} of {worker:?}"
            );
        }
    }
}

/// The cache directory of a format that is restarted repeatedly.
struct CacheFolder(tempfile::TempDir);

impl CacheFolder {
    fn new() -> CacheFolder {
        CacheFolder(tempfile::tempdir().unwrap())
    }

    /// Creates a format that knows only the cached data. Its own data is cached when it is dropped.
    fn format(&self) -> Transcripts {
        ClaudeCode::transcripts().with_cache(
            Arc::new(DiskCache::open(&self.0.path().join("cache"), 1 << 30).unwrap()),
            1,
        )
    }
}

/// Grows a transcript in pieces of the sizes that `next` returns.
fn grow(transcript: &Transcript, what: &str, mut next: impl FnMut() -> usize) {
    let bytes = transcript.bytes();
    let (store, of_session) = (store(), place("s"));
    store.write(&path(format!("{PROJECT}/s/tool-results/b.txt")), "all of it\n");
    store.write(&of_session, "");
    let (live, cache_folder) = (ClaudeCode::transcripts(), CacheFolder::new());
    let mut held = OpenFiles::new();
    let (mut end, mut compared) = (0, cuts(&bytes));
    compared.push(bytes.len());
    while end < bytes.len() {
        end = (end + next()).min(bytes.len());
        store.write(&of_session, &bytes[..end]);
        if compared.binary_search(&end).is_err() {
            // Read anyway, because the next read resumes from here.
            read_session(&live, &*store);
            continue;
        }
        let fresh = read_all(&ClaudeCode::transcripts(), &*store);
        let when = format!("{what}, {end} bytes");
        assert_same(&read_all(&live, &*store), &fresh, &when);
        assert_same(
            &read_all(&cache_folder.format(), &*store),
            &fresh,
            &format!("{when}, cache_folder"),
        );
        held.check(&fresh, &when);
        held.open(&live, &*store, &fresh);
    }
}

/// Promise: A growing transcript shows the same as one that is parsed from the start.
#[test]
fn growing_transcript_equals_one_parsed_from_the_start() {
    for (name, transcript) in [
        ("rich", transcript_with_every_line_type()),
        ("oldest", transcript_with_oldest_subagents()),
    ] {
        let steps: &[usize] = if is_exhaustive() { &[1, 7, 100] } else { &[7, 100] };
        for &step in steps {
            grow(&transcript, &format!("{name} by {step}"), || step);
        }
        for seed in seeds(2) {
            let mut rng = Rng::with_seed(seed);
            grow(&transcript, &format!("{name} with seed {seed}"), || rng.usize(1..900));
        }
        // Whole lines, and the end of a line by itself.
        let bytes = transcript.bytes();
        let mut ends =
            bytes.split_inclusive(|byte| *byte == b'\n').flat_map(|line| [line.len() - 1, 1]);
        grow(&transcript, &format!("{name} by lines"), || ends.next().unwrap());
    }
}

#[test]
fn overlong_line_counts_once_in_every_encoding() {
    let huge = [b"{\"a\":\"".to_vec(), b"x".repeat(17 << 20), b"\"}\n".to_vec()].concat();
    let mut transcript = begun();
    transcript.says("before");
    let before = transcript.bytes();
    let (store, of_session) = (store(), place("s"));
    let live = ClaudeCode::transcripts();
    let mut after = Transcript::new("s");
    after.user("after");
    let all = [before.clone(), huge.clone(), after.bytes()].concat();
    for end in [
        before.len(),
        before.len() + (9 << 20),
        all.len() - after.bytes().len() - 1,
        all.len() - 20,
        all.len(),
    ] {
        store.write(&of_session, &all[..end]);
        let fresh = read_session(&ClaudeCode::transcripts(), &*store);
        let live = read_session(&live, &*store);
        assert_eq!(live, fresh, "{end} bytes");
        assert!(
            fresh.trace.unused.lines
                >= fresh.trace.bad_lines.iter().map(|(_, lines)| lines).sum::<u64>()
        );
    }
    let last = read_session(&live, &*store);
    assert_eq!((last.trace.unused.lines, last.trace.bad_lines), (4, vec![("source.jsonl", 1)]));
    // Alone, it is a transcript without readable lines.
    store.write(&of_session, huge);
    assert!(!read_session(&live, &*store).worker.flaws.is_empty());
}

/// Reads the record of the session only.
fn read_session(format: &Transcripts, store: &dyn Store) -> Record {
    let path = place("s");
    let folder = format.enter(store, &path).unwrap();
    let worker = format.read_worker(&*folder, &path, None);
    let record = format
        .read_record(RecordSource { folder: &*folder, outputs: None }, &worker, Deadline::never())
        .unwrap();
    assert_eq!(worker.status, record.worker.status, "what is listed is what is told");
    record
}

#[test]
fn the_listing_of_a_long_transcript_agrees_with_its_record() {
    let store = store();
    let long = "x".repeat(5 << 20);
    let mut transcript = begun();
    transcript.says("before").call("a", "Read", json!({}));
    transcript.result("a", json!({"content": long})).call("b", "Read", json!({"x": long}));
    let bytes = transcript.bytes();
    let ends: Vec<usize> = memchr::memchr_iter(b'\n', &bytes).map(|at| at + 1).collect();
    for end in ends {
        store.write(&place("s"), &bytes[..end]);
        read_session(&ClaudeCode::transcripts(), &*store);
    }
}

#[test]
fn an_overwritten_transcript_is_read_again() {
    let pieces: Vec<Vec<u8>> =
        [transcript_with_every_line_type(), transcript_with_oldest_subagents()]
            .iter()
            .flat_map(|t| {
                t.bytes()
                    .split_inclusive(|byte| *byte == b'\n')
                    .map(<[u8]>::to_vec)
                    .collect::<Vec<_>>()
            })
            .collect();
    for seed in seeds(10) {
        let mut rng = Rng::with_seed(seed);
        let (store, of_session) = (store(), place("s"));
        let (live, cache_folder) = (ClaudeCode::transcripts(), CacheFolder::new());
        let mut bytes: Vec<u8> = Vec::new();
        for step in 0..30 {
            let what = rng.u8(..10);
            match what {
                0..4 => bytes.extend_from_slice(&pieces[rng.usize(..pieces.len())]),
                4 => bytes.truncate(rng.usize(..=bytes.len())),
                5 if !bytes.is_empty() => {
                    let at = rng.usize(..bytes.len());
                    bytes[at] = rng.u8(..);
                }
                6 => bytes = pieces[rng.usize(..pieces.len())].clone(),
                7 => {
                    let mut lines: Vec<&[u8]> =
                        bytes.split_inclusive(|byte| *byte == b'\n').collect();
                    rng.shuffle(&mut lines);
                    bytes = lines.concat();
                }
                8 => {
                    let piece = &pieces[rng.usize(..pieces.len())];
                    bytes.extend_from_slice(&piece[..rng.usize(..piece.len())]);
                }
                _ => {}
            }
            match rng.u8(..6) {
                0 => store.replace(&of_session, bytes.clone()),
                1 => store.remove(&of_session),
                _ => store.write(&of_session, bytes.clone()),
            }
            let when = format!("seed {seed}, step {step}, change {what}");
            let fresh = read_all(&ClaudeCode::transcripts(), &*store);
            assert_same(&read_all(&live, &*store), &fresh, &when);
            assert_same(
                &read_all(&cache_folder.format(), &*store),
                &fresh,
                &format!("{when}, cache_folder"),
            );
        }
    }
}
