//! Transcripts while they are written: cut anywhere, grown in pieces of any size, written over.
//!
//! What a format shows that was there all the while is held against what one shows that sees the store for the first
//! time. Both are asked at the format, which is fast enough for every byte.

use std::collections::BTreeMap;
use std::sync::Arc;

use fastrand::Rng;
use swarmletfs::cache::DiskCache;
use swarmletfs::model::{Outcome, Record, Worker};
use swarmletfs::name::RelPath;
use swarmletfs::store::{File, Kind, Meta, Store, read_range};
use swarmletfs::trace::{ClaudeCode, Format, Place};

use super::*;
use crate::support::scale;
use crate::support::transcript::{PROJECT, path};

/// A worker as it is shown.
#[derive(Debug, Clone, PartialEq)]
struct Shown {
    worker: Worker,
    record: Record,
    files: BTreeMap<RelPath, (Meta, Vec<u8>)>,
}

impl Shown {
    fn bytes(&self, file: &str) -> &[u8] {
        &self.files[&path(file)].1
    }
}

/// All that a format shows of a store, by path.
fn look(format: &ClaudeCode, store: &dyn Store) -> BTreeMap<RelPath, Shown> {
    let mut paths = format.find(store).unwrap().folders;
    paths.sort();
    let of = |path: &RelPath| {
        let folder = format.enter(store, path).unwrap();
        format.glance(&*folder, path).unwrap()?;
        let worker = format.worker(&*folder, path, None);
        let place = Place { folder: &*folder, outputs: None };
        let record = format.record(place, &worker, &|| true).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        let mut files = BTreeMap::new();
        see(&*folder, &RelPath::root(), &mut files);
        Some(Shown { worker, record, files })
    };
    paths.iter().filter_map(|path| Some((path.clone(), of(path)?))).collect()
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

/// What differs, in few words.
#[track_caller]
fn same(live: &BTreeMap<RelPath, Shown>, fresh: &BTreeMap<RelPath, Shown>, when: &str) {
    assert_eq!(live.keys().collect::<Vec<_>>(), fresh.keys().collect::<Vec<_>>(), "{when}");
    for (path, fresh) in fresh {
        let live = &live[path];
        assert_eq!(live.worker, fresh.worker, "{when}: {path:?}");
        assert_eq!(live.record, fresh.record, "{when}: {path:?}");
        for (file, (meta, bytes)) in &fresh.files {
            let (live_meta, live_bytes) = live.files.get(file).unwrap_or_else(|| panic!("{when}: no {file:?}"));
            assert_eq!(live_meta, meta, "{when}: {path:?}: {file:?}");
            assert!(live_bytes == bytes, "{when}: {path:?}: {file:?}: {}", live_bytes.escape_ascii());
        }
        assert_eq!(live.files.len(), fresh.files.len(), "{when}: {path:?}");
    }
}

/// A little of everything.
fn rich() -> Transcript {
    let mut t = Transcript::lean("s");
    t.line(json!({"type": "summary", "summary": "Before", "leafUuid": "x"}));
    t.line(json!({"type": "user", "isMeta": true, "message": {"content": "Caveat"}}));
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
    let uses = ["b", "c"].map(|id| json!({"type": "tool_use", "id": id, "name": "Read", "input": {"file_path": "/b"}}));
    t.message("m1", json!(uses), usage);
    t.result("c", json!({"content": "Exit code 3\nno", "is_error": true}));
    t.progress("p", "user", json!({"content": [{"type": "tool_result", "tool_use_id": "pa", "content": "hit"}]}));
    t.call("a", "Bash", json!({"command": "again"}));
    t.result("b", json!({"content": "<persisted-output>\nsaved"}));
    // Two writers at once.
    t.raw("{\"type\":\"user\",\"uuid\":\"g\",\"message\":{\"content\":\"glued\"}}{\"type\":\"system\"}\n");
    t.says("Done.").user("[Request interrupted by user]");
    t
}

/// Subagents of the oldest form, which only what was said before tells apart.
fn oldest() -> Transcript {
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

/// Where a transcript is cut: at every byte around the ends of its lines, and in between at every byte with a larger dose.
fn cuts(bytes: &[u8]) -> Vec<usize> {
    let near = |at: usize| bytes[at.saturating_sub(2)..(at + 3).min(bytes.len())].contains(&b'\n');
    let step = if scale(1) > 1 { 1 } else { 29 };
    (0..bytes.len()).filter(|at| at % step == 0 || near(*at)).collect()
}

#[test]
fn a_transcript_cut_at_any_byte_shows_a_part_of_what_the_whole_shows() {
    for transcript in [rich(), oldest()] {
        let bytes = transcript.bytes();
        let (store, of_session) = (store(), place("s"));
        store.write(&of_session, bytes.clone());
        let all = look(&ClaudeCode::default(), &*store);
        for end in cuts(&bytes) {
            store.write(&of_session, &bytes[..end]);
            let part = look(&ClaudeCode::default(), &*store);
            for (path, part) in &part {
                let all = all.get(path).unwrap_or_else(|| panic!("cut at {end}: {path:?} is not in the whole"));
                if end > 0 && bytes[end - 1] == b'}' {
                    // A line without its end may be taken for one that more was glued to.
                    continue;
                }
                for file in ["source.jsonl", "thread.jsonl"] {
                    assert!(all.bytes(file).starts_with(part.bytes(file)), "cut at {end}: {path:?} {file}");
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
                assert!(part.record.trace.calls.len() <= all.record.trace.calls.len(), "cut at {end}");
                let whole_task = [json!(""), json!(all.worker.task)].contains(&json!(part.worker.task));
                assert!(whole_task || transcript.bytes()[..end].ends_with(b"\n"), "cut at {end}: {}", part.worker.task);
            }
        }
    }
}

#[test]
fn a_transcript_cut_anywhere_leaves_the_tree_whole() {
    let bytes = rich().bytes();
    let lines = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').flat_map(|(at, _)| [at, at + 1]);
    let ends: Vec<usize> = lines.chain((0..bytes.len()).step_by(997)).collect();
    let (store, of_session) = (store(), place("s"));
    store.write(&of_session, "");
    let live = tree(&store);
    for end in ends {
        store.write(&of_session, &bytes[..end]);
        let (live, fresh) = (Checked::of(&live), Checked::of(&tree(&store)));
        assert_eq!(live.bytes("s", "source.jsonl"), &bytes[..end]);
        for (path, seen) in &fresh.0 {
            assert!(live.0.get(path) == Some(seen), "cut at {end}: {}", path.escape_ascii());
        }
        assert_eq!(live.0.len(), fresh.0.len(), "cut at {end}");
    }
}

/// Files that are held open all the while.
struct Held {
    files: Vec<(RelPath, &'static str, Box<dyn File>)>,
}

impl Held {
    fn new() -> Held {
        Held { files: Vec::new() }
    }

    /// Opens the two files that grow of every worker that is new.
    fn open(&mut self, format: &ClaudeCode, store: &dyn Store, shown: &BTreeMap<RelPath, Shown>) {
        for worker in shown.keys() {
            for name in ["source.jsonl", "thread.jsonl"] {
                if !self.files.iter().any(|(path, held, _)| path == worker && *held == name) {
                    let file = format.enter(store, worker).unwrap().open(&path(name)).unwrap();
                    self.files.push((worker.clone(), name, file));
                }
            }
        }
    }

    fn check(&self, shown: &BTreeMap<RelPath, Shown>, when: &str) {
        for (worker, name, file) in &self.files {
            let now = &shown[worker];
            assert_eq!(whole(&**file), now.bytes(name), "{when}: {name} of {worker:?}, held open");
            assert_eq!(file.meta().unwrap().size, now.bytes(name).len() as u64, "{when}: {name} of {worker:?}");
        }
    }
}

/// A folder in which a format keeps what it read, asked by one after the other.
struct Restarted(tempfile::TempDir);

impl Restarted {
    fn new() -> Restarted {
        Restarted(tempfile::tempdir().unwrap())
    }

    /// A format that remembers nothing but what is kept. What it read is kept once it is dropped.
    fn format(&self) -> ClaudeCode {
        ClaudeCode::keeping(Arc::new(DiskCache::open(&self.0.path().join("cache"), 1 << 30).unwrap()), 1)
    }
}

/// Grows a transcript in pieces of the sizes that `next` gives.
fn grow(transcript: &Transcript, what: &str, mut next: impl FnMut() -> usize) {
    let bytes = transcript.bytes();
    let (store, of_session) = (store(), place("s"));
    store.write(&path(format!("{PROJECT}/s/tool-results/b.txt")), "all of it\n");
    store.write(&of_session, "");
    let (live, restarted) = (ClaudeCode::default(), Restarted::new());
    let mut held = Held::new();
    let (mut end, mut compared) = (0, cuts(&bytes));
    compared.push(bytes.len());
    while end < bytes.len() {
        end = (end + next()).min(bytes.len());
        store.write(&of_session, &bytes[..end]);
        if compared.binary_search(&end).is_err() {
            // Looked at all the same, since that is what is gone on from.
            look_lightly(&live, &*store);
            continue;
        }
        let fresh = look(&ClaudeCode::default(), &*store);
        let when = format!("{what}, {end} bytes");
        same(&look(&live, &*store), &fresh, &when);
        same(&look(&restarted.format(), &*store), &fresh, &format!("{when}, restarted"));
        held.check(&fresh, &when);
        held.open(&live, &*store, &fresh);
    }
}

#[test]
fn a_transcript_that_grows_shows_what_one_that_is_read_anew_shows() {
    for (name, transcript) in [("rich", rich()), ("oldest", oldest())] {
        for step in [1, 7, 100] {
            grow(&transcript, &format!("{name} by {step}"), || step);
        }
        for seed in 0..scale(2) as u64 {
            let mut rng = Rng::with_seed(seed);
            grow(&transcript, &format!("{name} with seed {seed}"), || rng.usize(1..900));
        }
        // Whole lines, and a line's end by itself.
        let bytes = transcript.bytes();
        let mut ends = bytes.split_inclusive(|byte| *byte == b'\n').flat_map(|line| [line.len() - 1, 1]);
        grow(&transcript, &format!("{name} by lines"), || ends.next().unwrap());
    }
}

#[test]
fn a_line_longer_than_is_read_counts_once_however_it_comes() {
    let huge = [b"{\"a\":\"".to_vec(), b"x".repeat(17 << 20), b"\"}\n".to_vec()].concat();
    let mut transcript = begun();
    transcript.says("before");
    let before = transcript.bytes();
    let (store, of_session) = (store(), place("s"));
    let live = ClaudeCode::default();
    let mut after = Transcript::new("s");
    after.user("after");
    let all = [before.clone(), huge.clone(), after.bytes()].concat();
    for end in [before.len(), before.len() + (9 << 20), all.len() - after.bytes().len() - 1, all.len() - 20, all.len()]
    {
        store.write(&of_session, &all[..end]);
        let fresh = look_lightly(&ClaudeCode::default(), &*store);
        let live = look_lightly(&live, &*store);
        assert_eq!(live, fresh, "{end} bytes");
        assert!(fresh.trace.unused.lines >= fresh.trace.bad_lines.iter().map(|(_, lines)| lines).sum::<u64>());
    }
    let last = look_lightly(&live, &*store);
    assert_eq!((last.trace.unused.lines, last.trace.bad_lines), (4, vec![("source.jsonl", 1)]));
    // Alone it is a transcript of which nothing could be read.
    store.write(&of_session, huge);
    assert!(!look_lightly(&live, &*store).worker.flaws.is_empty());
}

/// The record of the session alone.
fn look_lightly(format: &ClaudeCode, store: &dyn Store) -> Record {
    let path = place("s");
    let folder = format.enter(store, &path).unwrap();
    let worker = format.worker(&*folder, &path, None);
    let record = format.record(Place { folder: &*folder, outputs: None }, &worker, &|| true).unwrap();
    assert_eq!(worker.status, record.worker.status, "what is listed is what is told");
    record
}

#[test]
fn what_is_listed_of_a_long_transcript_is_what_is_told_of_it() {
    let store = store();
    let long = "x".repeat(5 << 20);
    let mut transcript = begun();
    transcript.says("before").call("a", "Read", json!({}));
    transcript.result("a", json!({"content": long})).call("b", "Read", json!({"x": long}));
    let bytes = transcript.bytes();
    let ends: Vec<usize> = memchr::memchr_iter(b'\n', &bytes).map(|at| at + 1).collect();
    for end in ends {
        store.write(&place("s"), &bytes[..end]);
        look_lightly(&ClaudeCode::default(), &*store);
    }
}

#[test]
fn a_transcript_that_is_written_over_shows_what_one_that_is_read_anew_shows() {
    let pieces: Vec<Vec<u8>> = [rich(), oldest()]
        .iter()
        .flat_map(|t| t.bytes().split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect::<Vec<_>>())
        .collect();
    for seed in 0..scale(10) as u64 {
        let mut rng = Rng::with_seed(seed);
        let (store, of_session) = (store(), place("s"));
        let (live, restarted) = (ClaudeCode::default(), Restarted::new());
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
                    let mut lines: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
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
            let fresh = look(&ClaudeCode::default(), &*store);
            same(&look(&live, &*store), &fresh, &when);
            same(&look(&restarted.format(), &*store), &fresh, &format!("{when}, restarted"));
        }
    }
}
