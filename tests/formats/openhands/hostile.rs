//! Events that no program writes: wrong types, sizes, depths and IDs.

use std::time::{Duration, Instant};

use super::reading::{PLACES, read_all};
use super::*;
use crate::support::{patience, rng, scale, see_folder};

/// Returns values of every type.
fn odd_values() -> Vec<Value> {
    vec![
        Value::Null,
        json!(true),
        json!(-1),
        json!(1.5),
        json!(u64::MAX),
        json!(""),
        json!("x"),
        json!([]),
        json!([1, {"text": 5}, null, {"text": "t"}]),
        json!({}),
        json!({"content": 1, "kind": [], "exit_code": "1", "llm": 5}),
    ]
}

#[test]
fn fields_of_any_type_are_read() {
    let mut events = Events::begun();
    events.run("a", "x", "", 0).finish("Done.").state("stats", json!({}));
    let mut all: Vec<Value> = Vec::new();
    for event in events.0.iter().chain(&old_conversation()) {
        for key in event.as_object().unwrap().keys() {
            for odd in odd_values() {
                let mut changed = event.clone();
                changed[key] = odd;
                all.push(changed);
            }
        }
    }
    for store in [all.clone(), all.into_iter().rev().collect()].map(|all| {
        let store = store();
        store.write(&path("c.json"), json!(all).to_string());
        store.write(
            &path("c.jsonl"),
            all.iter().map(|event| format!("{event}\n")).collect::<String>(),
        );
        let instance =
            json!({"instance_id": "i", "instruction": "x", "metadata": {}, "history": all});
        store.write(&path("output.jsonl"), format!("{instance}\n"));
        Events(all).write(&store, "c");
        store
    }) {
        assert_eq!(read(&*store).len(), 4);
        see_folder(&tree(&store), "").unwrap();
    }
}

#[test]
fn instances_of_any_type_are_read() {
    let store = store();
    let whole = json!({"instance_id": "i", "instruction": "x", "metadata": {}, "history": [], "metrics": {}, "error": "x"});
    let mut text = format!("{whole}\n");
    for key in whole.as_object().unwrap().keys() {
        for odd in odd_values() {
            let mut changed = whole.clone();
            changed[key] = odd;
            text += &format!("{changed}\n");
        }
    }
    for id in
        ["a/b", "..", ".", "a\0b", "\u{202e}x", "document-3", "i~2", "i~3", &"x".repeat(1_000)]
    {
        let mut changed = whole.clone();
        changed["instance_id"] = json!(id);
        text += &format!("{changed}\n{changed}{changed}\n");
    }
    store.write(&path("output.jsonl"), text);
    assert!(read(&*store).len() > 60);
    see_folder(&tree(&store), "").unwrap();
}

#[test]
fn ids_of_any_kind_are_shown_and_found() {
    let mut events = Events::begun();
    for id in ["", "../../x", "a\nb", "é漢", "(none)", "__root__", &"x".repeat(2_000)] {
        events.run(id, id, id, 0);
        let last = events.0.len() - 1;
        events.0[last]["id"] = json!(id);
        events.0[last]["parent_id"] = json!(id);
        events.call(id, id, json!({(id): id})).result(
            id,
            id,
            id,
            json!({"path": id, "new_content": id}),
        );
    }
    let store = store();
    events.write(&store, "c");
    see_folder(&tree(&store), "").unwrap();
}

#[test]
fn deep_and_long_events_are_read_in_time() {
    let store = store();
    let mut events = Events::begun();
    events.run("a", "x", &"y".repeat(2 << 20), 1).says("agent", &"z".repeat(3 << 20));
    let deep = format!(
        "{{\"kind\":\"MessageEvent\",\"llm_message\":{}1{}}}",
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    store.write(&path("c.jsonl"), format!("{}{deep}\n{{\"kind\":", events.lines()));
    let started = Instant::now();
    let shown = read_one(&*store);
    assert_eq!(shown.outcomes(), ["failed"]);
    assert_eq!(shown.text("tool_calls/001_terminal.txt").len(), 2 << 20);
    assert!(started.elapsed() < patience(Duration::from_secs(20)), "{:?}", started.elapsed());
}

#[test]
fn many_events_and_branches_take_time_in_proportion() {
    let mut events = Events::begun();
    for at in 0..scale(20_000) {
        events.call(&format!("c{at}"), "x", json!({}));
        let parent = if at % 2 == 0 { 1 } else { at };
        let (last, parent) = (events.0.len() - 1, events.0[parent]["id"].clone());
        events.0[last]["parent_id"] = parent;
    }
    let store = store();
    store.write(&path("c.jsonl"), events.lines());
    let started = Instant::now();
    read_one(&*store);
    assert!(started.elapsed() < patience(Duration::from_secs(30)), "{:?}", started.elapsed());
}

/// Returns the inputs from which fuzzing starts.
fn seeds() -> Vec<Vec<u8>> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds/openhands");
    let files = std::fs::read_dir(folder).unwrap();
    let mut seeds: Vec<Vec<u8>> =
        files.map(|file| std::fs::read(file.unwrap().path()).unwrap()).collect();
    seeds.sort();
    seeds
}

#[test]
fn mutated_conversations_are_read_in_every_place() {
    let seeds = seeds();
    assert!(seeds.len() >= 7);
    let mut random = rng();
    for seed in &seeds {
        let (place, bytes) = seed.split_first().unwrap();
        assert!(read_all(PLACES[usize::from(*place)], bytes) >= 2);
        for _ in 0..scale(60) {
            let mut bytes = bytes.to_vec();
            for _ in 0..random.usize(1..4) {
                let at = random.usize(..bytes.len());
                let other = random.choice(&seeds).unwrap();
                match random.u8(..5) {
                    0 => bytes[at] = random.u8(..),
                    1 => bytes.truncate(at.max(1)),
                    2 => drop(bytes.remove(at)),
                    3 => bytes[at] = *random.choice(b"{}[]\",:0\n").unwrap(),
                    _ => {
                        let part = &other[random.usize(..other.len())..];
                        bytes.splice(at..at, part.iter().copied());
                    }
                }
                if bytes.is_empty() {
                    break;
                }
            }
            read_all(PLACES[random.usize(..PLACES.len())], &bytes);
        }
    }
}
