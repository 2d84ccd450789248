//! Rollouts while they are written: cut anywhere, grown in pieces of any size.

use std::collections::BTreeMap;

use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::model::{Outcome, Output, Record};
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{Kind, read_range};
use swarmletfs_trace::{Format, RecordSource, Transcripts};

use super::*;
use crate::support::{is_exhaustive, rng};

/// The record of the only session, and the bytes of its files.
type Shown = (Record, BTreeMap<RelPath, Vec<u8>>);

/// Reads the only session as `format` shows it. `None` if there is none.
fn read(format: &Transcripts, store: &dyn Store) -> Option<Shown> {
    let found = format.find_workers(store).unwrap().folders;
    let [at] = found.as_slice() else { return None };
    let folder = format.enter(store, at).unwrap();
    format.folder_state(&*folder, at).unwrap()?;
    let worker = format.read_worker(&*folder, at, None);
    let source = RecordSource { folder: &*folder, outputs: None };
    let record = format.read_record(source, &worker, Deadline::never()).unwrap();
    assert_eq!(worker, record.worker, "the listing differs from the record");
    let mut files = BTreeMap::new();
    collect(&*folder, &RelPath::root(), &mut files);
    format.read_changes(source, Deadline::never()).unwrap();
    Some((record, files))
}

fn collect(folder: &dyn Store, at: &RelPath, files: &mut BTreeMap<RelPath, Vec<u8>>) {
    for entry in folder.list(at).unwrap() {
        let inner = at.join(&entry.name);
        if entry.kind == Kind::Folder {
            collect(folder, &inner, files);
            continue;
        }
        let file = folder.open(&inner).unwrap_or_else(|error| panic!("{inner:?}: {error}"));
        let bytes = read_range(&*file, 0, 1 << 20).unwrap();
        assert_eq!(folder.stat(&inner).unwrap().size, bytes.len() as u64, "{inner:?}");
        files.insert(inner, bytes);
    }
}

/// Creates a rollout with records of every kind.
pub fn all_kinds() -> Rollout {
    let mut rollout = Rollout::new();
    rollout.event("task_started", json!({}));
    rollout.line("turn_context", json!({"model": "gpt-5.5"}));
    rollout.user("<environment_context>x</environment_context>").user("Go 漢.");
    rollout.item("reasoning", json!({"summary": [{"type": "summary_text", "text": "hm"}]}));
    rollout.says("I look.").command("a", "ls", 0, "one\n").command("b", "make", 2, "no\n");
    rollout.call("c", "exec_command", json!({"cmd": "sleep"}));
    rollout.operation(
        "CommandExecution",
        "c",
        json!({"exit_code": 3, "aggregated_output": "late"}),
    );
    rollout.output("c", ran(3, "late"));
    rollout.custom("p", "apply_patch", "*** Begin Patch\n*** Add File: a.txt\n+x\n*** End Patch");
    rollout.operation(
        "FileChange",
        "p",
        json!({"status": "completed",
        "changes": {"/app/a.txt": {"type": "add", "content": "x\n"}}}),
    );
    rollout.output("p", "Exit code: 0\nOutput:\nSuccess.");
    rollout.raw("junk\n\n{\"type\":\"telepathy\"}\r\n");
    rollout.custom("w", "exec", "run()");
    rollout.operation(
        "CommandExecution",
        "exec-1",
        json!({"exit_code": 6, "aggregated_output": "x"}),
    );
    rollout.output("w", json!([{"type": "input_text", "text": "Script completed\nOutput:\n"}]));
    rollout.item("web_search_call", json!({"status": "completed", "action": {"query": "q"}}));
    rollout.line("compacted", json!({"message": "So far."}));
    rollout.event(
        "token_count",
        json!({"info": {"total_token_usage": {"input_tokens": 9, "output_tokens": 2}}}),
    );
    rollout.output("stray", "x").says("Done.");
    rollout.event("task_complete", json!({"last_agent_message": "Done."}));
    rollout.event("task_started", json!({})).user("More.").call("z", "shell", json!({}));
    rollout.event("turn_aborted", json!({"reason": "interrupted"}));
    rollout.event("thread_rolled_back", json!({"num_turns": 1}));
    rollout
}

/// Returns offsets around the ends of lines, and some in between.
fn cuts(bytes: &[u8]) -> Vec<usize> {
    let near = |at: usize| bytes[at.saturating_sub(2)..(at + 3).min(bytes.len())].contains(&b'\n');
    let step = if is_exhaustive() { 1 } else { 37 };
    (0..=bytes.len()).filter(|at| at % step == 0 || near(*at) || *at == bytes.len()).collect()
}

fn is_pending(output: &Output) -> bool {
    matches!(output, Output::Pending)
}

/// Promise: A transcript cut at any byte shows a part of what the whole transcript shows.
#[test]
fn a_rollout_cut_at_any_byte_shows_a_part() {
    let bytes = all_kinds().bytes();
    let (store, at) = (Arc::new(Memory::new()), path(place(ID)));
    store.write(&at, bytes.clone());
    let (whole, _) = read(&Codex::transcripts(), &*store).unwrap();
    let mut before: Vec<(String, Outcome)> = Vec::new();
    for end in cuts(&bytes) {
        store.write(&at, &bytes[..end]);
        let (part, files) = read(&Codex::transcripts(), &*store).unwrap();
        assert_eq!(files[&path("source.jsonl")], &bytes[..end]);
        let calls = &part.trace.calls;
        assert!(calls.len() >= before.len(), "cut at {end}");
        for (cut, call) in calls.iter().zip(&whole.trace.calls) {
            assert_eq!((&cut.tool, &cut.input, &cut.path), (&call.tool, &call.input, &call.path));
            if !is_pending(&cut.output) {
                assert_eq!(cut.outcome, call.outcome, "cut at {end}: {:?}", cut.path);
            }
        }
        for (known, call) in before.iter().zip(calls) {
            assert_eq!(known.0, call.tool, "cut at {end}");
            assert!(known.1 == Outcome::Unknown || known.1 == call.outcome, "cut at {end}");
        }
        before = calls.iter().map(|call| (call.tool.clone(), call.outcome)).collect();
    }
    assert_eq!(before.len(), whole.trace.calls.len());
}

/// Promise: A growing transcript shows the same as one that is parsed from the start.
#[test]
fn a_growing_rollout_equals_one_parsed_from_the_start() {
    let bytes = all_kinds().bytes();
    let mut rng = rng();
    for step in [0, 1, 13, 400] {
        let (store, at) = (Arc::new(Memory::new()), path(place(ID)));
        store.write(&at, "");
        let live = Codex::transcripts();
        let mut end = 0;
        while end < bytes.len() {
            end = (end + if step == 0 { rng.usize(1..900) } else { step }).min(bytes.len());
            store.write(&at, &bytes[..end]);
            if step == 1 && end % 41 != 0 {
                continue;
            }
            let fresh = read(&Codex::transcripts(), &*store);
            assert!(read(&live, &*store) == fresh, "step {step}, {end} bytes");
        }
    }
}
