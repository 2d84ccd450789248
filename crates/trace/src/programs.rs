//! Tests of the smaller readers on the shared transcript: a sample for each program, and the rules
//! that all of them keep.

mod atif;
mod cline;
mod copilot_cli;
mod crush;
mod cursor;
mod databases;
mod droid;
mod goose;
mod inspect_ai;
mod otlp;
mod pi;
mod qwen_code;

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::known::{Detected, KnownFormat, detect};
use super::scale::{is_exhaustive, rng, scale};
use super::{Format, Probe, ProbeBudget, RecordSource};
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::model::{FileEdit, Output, Record, RecordedChanges, Status, Worker};
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{Kind, Memory, Store, read_range};

/// The files of a store, of which the first is the transcript that grows.
struct ProgramSample {
    format: &'static str,
    files: Vec<(&'static str, Vec<u8>)>,
}

fn samples() -> Vec<ProgramSample> {
    vec![
        atif::sample(),
        cline::sample(),
        cline::old_sample(),
        copilot_cli::sample(),
        cursor::sample(),
        droid::sample(),
        inspect_ai::sample(),
        otlp::sample(),
        pi::sample(),
        qwen_code::sample(),
    ]
}

fn lines(records: &[Value]) -> Vec<u8> {
    records.iter().flat_map(|record| format!("{record}\n").into_bytes()).collect()
}

/// A worker as its format reads it.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    worker: Worker,
    record: Record,
    edits: Vec<FileEdit>,
    files: BTreeMap<RelPath, Vec<u8>>,
}

impl Seen {
    fn text(&self, file: &str) -> String {
        let bytes = self.files.get(&RelPath::constant(file)).map(Vec::as_slice);
        String::from_utf8_lossy(bytes.unwrap_or(b"(none)")).into_owned()
    }

    /// Returns the tool, the outcome, the exit code of each call, and whether it is open.
    fn calls(&self) -> Vec<(&str, &str, Option<i64>, bool)> {
        let calls = self.record.trace.calls.iter();
        calls
            .map(|call| (call.tool.as_str(), call.outcome.as_str(), call.exit_code, call.is_open))
            .collect()
    }

    /// Returns the tokens of the input, of the output, and those read from the cache.
    fn tokens(&self) -> Option<(u64, u64, u64)> {
        self.record.trace.tokens.map(|tokens| (tokens.input, tokens.output, tokens.cache_read))
    }

    fn status(&self) -> (Status, Option<&str>) {
        (self.worker.status, self.worker.status_source.as_deref())
    }

    fn edited(&self) -> Vec<&str> {
        self.edits.iter().map(|edit| edit.path.as_str()).collect()
    }
}

fn store(files: &[(&str, Vec<u8>)]) -> Memory {
    let store = Memory::new();
    files.iter().for_each(|(path, bytes)| store.write(&RelPath::constant(path), bytes.clone()));
    store
}

/// Reads all workers of a store, by their IDs.
fn read_all(format: &dyn Format, store: &dyn Store) -> BTreeMap<String, Seen> {
    let mut all = BTreeMap::new();
    for path in format.find_workers(store).unwrap().folders {
        let folder = format.enter(store, &path).unwrap();
        let worker = format.read_worker(&*folder, &path, None);
        let source = RecordSource { folder: &*folder, outputs: None };
        let record = format.read_record(source, &worker, Deadline::never()).unwrap();
        assert!(worker.flaws.is_empty() || record.trace.calls.is_empty(), "{worker:?}");
        let RecordedChanges::Edits(edits) = format.read_changes(source, Deadline::never()).unwrap()
        else {
            unreachable!("transcripts record edits")
        };
        let mut files = BTreeMap::new();
        see(&*folder, &RelPath::root(), &mut files);
        let seen = Seen { worker, record, edits: edits.edits, files };
        all.insert(seen.worker.id.to_text().into_owned(), seen);
    }
    all
}

fn see(folder: &dyn Store, at: &RelPath, files: &mut BTreeMap<RelPath, Vec<u8>>) {
    for entry in folder.list(at).unwrap() {
        let inner = at.join(&entry.name);
        if entry.kind == Kind::Folder {
            see(folder, &inner, files);
            continue;
        }
        let file = folder.open(&inner).unwrap_or_else(|error| panic!("{inner:?}: {error}"));
        let bytes = read_range(&*file, 0, 1 << 26);
        let bytes = bytes.unwrap_or_else(|error| panic!("{inner:?}: {error}"));
        // The size is worked out from the index, the content from the records.
        assert_eq!(folder.stat(&inner).unwrap().size, bytes.len() as u64, "{inner:?}");
        files.insert(inner, bytes);
    }
}

fn format(name: &str) -> Box<dyn Format> {
    KnownFormat::by_name(name).unwrap().create()
}

impl ProgramSample {
    fn read(&self) -> BTreeMap<String, Seen> {
        read_all(&*format(self.format), &store(&self.files))
    }

    fn read_one(&self) -> Seen {
        let mut all = self.read();
        assert_eq!(all.len(), 1, "{:?}", all.keys());
        all.pop_first().unwrap().1
    }

    fn is_document(&self) -> bool {
        self.files[0].0.ends_with(".json")
    }
}

#[test]
fn each_sample_is_recognized_by_its_own_format_only() {
    for sample in samples() {
        let store = store(&sample.files);
        let detected = detect(&store).unwrap();
        let Detected::Format(found) = detected else { panic!("{}: {detected:?}", sample.format) };
        assert_eq!(found.name, sample.format);
        let (path, budget) = (RelPath::constant(sample.files[0].0), ProbeBudget::default());
        for other in super::known::FORMATS.iter().filter(|other| other.name != sample.format) {
            // In its own directory, Claude Code's test is the name of a line's fields.
            let recognizes = other.recognizes(&Probe::new(&store, &path, &budget));
            assert!(!recognizes, "{} recognizes {}", other.name, sample.format);
        }
    }
}

#[test]
fn id_that_is_used_again_names_another_call() {
    for sample in [droid::numbered_calls(), pi::numbered_calls(), qwen_code::numbered_calls()] {
        let seen = sample.read_one();
        let outcomes: Vec<_> = seen.calls().iter().map(|call| call.1).collect();
        assert_eq!(outcomes, ["failed", "ok", "unknown"], "{}", sample.format);
        let outputs: Vec<_> = seen.files.keys().map(RelPath::to_text).collect();
        let outputs = outputs.iter().filter(|path| path.starts_with("tool_calls/00"));
        let thread = seen.text("thread.jsonl");
        for path in outputs {
            assert!(thread.contains(&**path), "{path}\n{thread}");
        }
    }
}

/// Promise: A growing transcript shows the same as one that is parsed from the start.
#[test]
fn calls_of_growing_samples_only_grow() {
    for sample in samples() {
        let (name, bytes) = (sample.files[0].0, sample.files[0].1.clone());
        let store = store(&sample.files);
        let live = format(sample.format);
        let mut before: BTreeMap<String, Seen> = BTreeMap::new();
        let step = if is_exhaustive() { 1 } else { 61 };
        let is_near_end = |at: usize| bytes[at.saturating_sub(2)..at].contains(&b'\n');
        let cuts =
            (1..=bytes.len()).filter(|at| at % step == 0 || is_near_end(*at) || *at == bytes.len());
        for end in cuts {
            store.write(&RelPath::constant(name), &bytes[..end]);
            let fresh = read_all(&*format(sample.format), &store);
            // A torn document is read again for a moment, so the other way round is enough.
            if !sample.is_document() || end == bytes.len() {
                let followed = read_all(&*live, &store);
                assert!(followed == fresh, "{name} cut at {end}");
            }
            for (id, old) in &before {
                let Some(new) = fresh.get(id) else { continue };
                let (new, old) = (&new.record.trace.calls, &old.record.trace.calls);
                assert!(new.len() >= old.len(), "{name} cut at {end}");
                for (new, old) in new.iter().zip(old) {
                    assert_eq!((&new.tool, &new.path), (&old.tool, &old.path), "{name} at {end}");
                    let is_settled = old.output != Output::Pending && !old.is_open;
                    assert!(!is_settled || new.outcome == old.outcome, "{name} cut at {end}");
                }
            }
            before = fresh;
        }
    }
}

/// Returns a value of another type, or with other content.
fn odd(random: &mut fastrand::Rng) -> Value {
    let all = [
        Value::Null,
        json!(true),
        json!(-1),
        json!(1e300),
        json!("x"),
        json!(""),
        json!([]),
        json!([{"type": "tool_use"}, 7, null]),
        json!({"a": {"b": []}}),
        json!(u64::MAX),
        json!("\u{202e}\u{0}"),
    ];
    all[random.usize(..all.len())].clone()
}

/// Replaces some values in a record by odd ones.
fn spoil(value: &mut Value, random: &mut fastrand::Rng) {
    if random.u8(..) < 24 {
        *value = odd(random);
        return;
    }
    match value {
        Value::Object(fields) => fields.values_mut().for_each(|value| spoil(value, random)),
        Value::Array(items) => items.iter_mut().for_each(|value| spoil(value, random)),
        _ => {}
    }
}

#[test]
fn values_of_wrong_types_and_torn_bytes_are_survived() {
    let mut random = rng();
    for sample in samples() {
        for _ in 0..scale(60) {
            let mut files = sample.files.clone();
            for (_, bytes) in &mut files {
                let mut spoiled = Vec::new();
                for record in serde_json::Deserializer::from_slice(bytes).into_iter::<Value>() {
                    let mut record = record.unwrap();
                    spoil(&mut record, &mut random);
                    spoiled.extend(format!("{record}\n").into_bytes());
                }
                for _ in 0..random.usize(..3) {
                    let at = random.usize(..spoiled.len());
                    spoiled[at] = random.u8(..);
                }
                *bytes = spoiled;
            }
            read_all(&*format(sample.format), &store(&files));
        }
    }
}

/// A record that repeats one thing many times costs no more than its size.
#[test]
fn long_records_are_read_in_linear_time() {
    let many = |text: &str| text.repeat(10_000);
    let texts = [
        many("<a>"),
        many("<execute_command></execute_command>"),
        many("<execute_command>"),
        format!("<apply_diff><diff>{}", many("------- SEARCH\n=======\n")),
        many("[execute_command for ''] Result:\n"),
        many("<timestamp>"),
        many("<command started in background with shellId: "),
    ];
    for text in &texts {
        for sample in samples() {
            let mut files = sample.files.clone();
            let bytes = String::from_utf8(files[0].1.clone()).unwrap();
            let word = serde_json::to_string(text).unwrap();
            let word = word.trim_matches('"');
            files[0].1 = bytes.replace("I look.", word).replace("Mend it.", word).into();
            assert!(files[0].1.len() > text.len(), "{}", sample.format);
            let seen = read_all(&*format(sample.format), &store(&files));
            assert_eq!(seen.len(), sample.read().len(), "{} {text:.20}", sample.format);
        }
    }
}
