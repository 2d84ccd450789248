//! Documents while they are rewritten: every step, cut anywhere, and torn for a moment.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use swarmletfs_base::store::Memory;

use super::*;
use crate::support::is_exhaustive;

/// Returns the documents that a program writes one after another.
pub fn versions(program: Program) -> Vec<Value> {
    match program {
        Program::Mini => {
            let messages = super::mini_swe_agent::messages();
            let versions = (1..=messages.len()).map(|count| {
                let word = if count == messages.len() { json!("Submitted") } else { Value::Null };
                super::mini_swe_agent::document(word, &messages[..count])
            });
            versions.collect()
        }
        Program::Swe => {
            let steps = super::swe_agent::steps();
            let versions = (1..=steps.len()).map(|count| {
                let word = if count == steps.len() { json!("submitted") } else { Value::Null };
                let mut document = super::swe_agent::document(word, &steps[..count]);
                if count < steps.len() {
                    document["info"]["submission"] = Value::Null;
                }
                document
            });
            versions.collect()
        }
    }
}

/// Asserts that `part` shows nothing that `all` does not show, except for calls that wait.
fn assert_part(part: &Seen, all: &Seen, when: &str) {
    assert!(part.calls().len() <= all.calls().len(), "{when}");
    for (call, whole) in part.calls().iter().zip(all.calls()) {
        assert_eq!(
            (&call.tool, &call.input, &call.path),
            (&whole.tool, &whole.input, &whole.path),
            "{when}"
        );
        if call.output != Output::Pending {
            assert_eq!((call.outcome, call.bytes), (whole.outcome, whole.bytes), "{when}");
            let file = call.path.to_text();
            assert!(part.files[&*file] == all.files[&*file], "{when}");
        }
    }
}

/// Reads a document that is cut at every `step`th byte, and checks that calls only grow.
pub fn cut(program: Program, bytes: &[u8], step: usize) {
    let all = shown_bytes(program, bytes.to_vec());
    let mut before = 0;
    for end in (0..bytes.len()).step_by(step) {
        let part = shown_bytes(program, bytes[..end].to_vec());
        assert_part(&part, &all, &format!("cut at {end}"));
        assert!(part.calls().len() >= before, "cut at {end}");
        before = part.calls().len();
        assert!(part.record.trace.unused.is_torn, "cut at {end}");
    }
}

#[test]
fn document_cut_at_any_byte_shows_a_part() {
    for program in [Program::Mini, Program::Swe] {
        let bytes = serde_json::to_vec_pretty(versions(program).last().unwrap()).unwrap();
        cut(program, &bytes, if is_exhaustive() { 1 } else { 7 });
    }
}

#[test]
fn rewritten_document_is_followed() {
    for program in [Program::Mini, Program::Swe] {
        let (store, live, place) = (Memory::new(), program.format(), program.place());
        let versions = versions(program);
        let last = shown(program, versions.last().unwrap());
        let mut calls = 0;
        for (at, version) in versions.iter().enumerate() {
            let bytes = serde_json::to_vec_pretty(version).unwrap();
            // Some programs write a new file and rename it.
            if at % 2 == 0 {
                store.write(&place, bytes)
            } else {
                store.replace(&place, bytes)
            }
            let seen = read_all(&live, &store).remove(&place).unwrap();
            let fresh = read_one(&program.format(), &store, &place);
            assert_eq!(seen, fresh, "{program:?} {at}");
            assert!(seen.calls().len() >= calls);
            calls = seen.calls().len();
            assert_part(&seen, &last, &format!("{program:?} {at}"));
        }
        assert_eq!(calls, last.calls().len());
    }
}

/// Promise: A document that is torn for a moment, while its program rewrites it, shows no fewer
/// calls than before.
#[test]
fn document_that_is_torn_for_a_moment_is_read_when_it_is_whole() {
    for program in [Program::Mini, Program::Swe] {
        let versions = versions(program);
        let bytes: Vec<Vec<u8>> =
            versions.iter().map(|version| serde_json::to_vec_pretty(version).unwrap()).collect();
        let (store, live, place) = (Memory::new(), program.format(), program.place());
        store.write(&place, bytes[bytes.len() - 2].clone());
        let before = read_one(&live, &store, &place);
        let last = bytes.last().unwrap();
        for half in [&last[..0], &last[..last.len() / 2]] {
            store.write(&place, half);
            let seen = thread::scope(|scope| {
                scope.spawn(|| {
                    thread::sleep(Duration::from_millis(60));
                    store.write(&place, last.clone());
                });
                read_one(&live, &store, &place)
            });
            assert_eq!(seen, shown_at(program, last, &place));
            assert!(seen.calls().len() >= before.calls().len());
        }
    }
}

fn shown_at(program: Program, bytes: &[u8], place: &RelPath) -> Seen {
    let store = Memory::new();
    // The same number of writes gives the same times.
    (0..5).for_each(|_| store.write(place, bytes));
    read_one(&program.format(), &store, place)
}

#[test]
fn document_that_stays_torn_is_read_soon_and_once() {
    let (store, live, place) = (Memory::new(), Program::Mini.format(), Program::Mini.place());
    let bytes = serde_json::to_vec(versions(Program::Mini).last().unwrap()).unwrap();
    store.write(&place, bytes.clone());
    read_one(&live, &store, &place);
    store.write(&place, &bytes[..bytes.len() / 2]);
    let start = Instant::now();
    let torn = read_one(&live, &store, &place);
    assert!(torn.record.trace.unused.is_torn);
    assert!(start.elapsed() < Duration::from_secs(5));
    let start = Instant::now();
    assert_eq!(read_one(&live, &store, &place), torn);
    assert!(start.elapsed() < Duration::from_millis(250), "{:?}", start.elapsed());
}
