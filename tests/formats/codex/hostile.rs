//! Rollouts that no program writes: wrong types, forged outcomes, excessive sizes.

use std::time::{Duration, Instant};

use super::growth::all_kinds;
use super::*;
use crate::support::{rng, scale};

#[test]
fn a_value_of_any_type_in_any_field_costs_no_more_than_its_line() {
    let bytes = all_kinds().bytes();
    let lines: Vec<Value> = bytes
        .split(|byte| *byte == b'\n')
        .filter_map(|line| serde_json::from_slice(line).ok())
        .collect();
    let odd = [
        json!(null),
        json!(true),
        json!(-1.5),
        json!(u64::MAX),
        json!("x"),
        json!([[{}]]),
        json!({"a": []}),
    ];
    let mut rng = rng();
    for _ in 0..scale(60) {
        let mut rollout = Rollout::default();
        for line in &lines {
            let mut line = line.clone();
            if rng.u8(..3) == 0 {
                replace_one(&mut line, &odd[rng.usize(..odd.len())], &mut rng);
            }
            rollout.raw(format!("{line}\n"));
        }
        let tree = tree_of(&rollout);
        for name in crate::formats::listed(&tree) {
            index(&tree, &name);
            text(&tree, &name, "thread.jsonl");
        }
    }
}

/// Replaces a random value inside `value`.
fn replace_one(value: &mut Value, odd: &Value, rng: &mut fastrand::Rng) {
    let inner: Vec<&mut Value> = match value {
        Value::Object(fields) => fields.iter_mut().map(|(_, value)| value).collect(),
        Value::Array(items) => items.iter_mut().collect(),
        _ => Vec::new(),
    };
    let count = inner.len();
    match inner.into_iter().nth(rng.usize(..count.max(1))) {
        Some(inner) if rng.bool() => replace_one(inner, odd, rng),
        Some(inner) => *inner = odd.clone(),
        None => *value = odd.clone(),
    }
}

#[test]
fn outputs_cannot_forge_an_outcome() {
    let mut rollout = Rollout::begun();
    rollout.command(
        "a",
        "cat log",
        0,
        "Process exited with code 1\nExit code: 9\nOutput:\nScript failed\n",
    );
    rollout.command("b", "cat log", 1, "Exit code: 0\nScript completed\n");
    rollout.call("c", "shell", json!({})).output("c", "{\"output\":\"x\",\"metadata\":{}}");
    rollout
        .call("d", "shell", json!({}))
        .output("d", "{\"output\":7,\"metadata\":{\"exit_code\":0}}");
    assert_eq!(outcomes(&rollout), ["ok", "failed", "unknown", "unknown"]);
}

#[test]
fn the_first_of_two_results_counts_and_repeated_calls_are_one() {
    let mut rollout = Rollout::begun();
    rollout.command("a", "ls", 0, "alpha").call("a", "exec_command", json!({"cmd": "again"}));
    rollout.output("a", ran(1, "beta")).output("missing", "orphan").output("", "nameless");
    rollout.call("b", "exec_command", json!({"cmd": "open"})).output("", "nameless");
    assert_eq!(outcomes(&rollout), ["ok", "unknown"]);
    assert!(output(&rollout, "001_exec_command.txt").ends_with("alpha"));
    assert_eq!(output(&rollout, "002_exec_command.txt"), "");
}

#[test]
fn long_lines_deep_values_and_many_records_are_read_in_time() {
    let mut rollout = Rollout::begun();
    rollout.command("long", "seq", 3, &"7\n".repeat(1 << 20));
    let deep = format!("{}{}", "[".repeat(5_000), "]".repeat(5_000));
    rollout.raw(format!(
        "{{\"type\":\"response_item\",\"payload\":{{\"type\":\"function_call\",\
        \"name\":\"x\",\"call_id\":\"deep\",\"arguments\":{deep}}}}}\n"
    ));
    rollout.item("function_call", json!({"name": "x", "call_id": "deep2", "arguments": deep}));
    for number in 0..scale(20_000) {
        rollout.command(&number.to_string(), "ls", 0, "x");
    }
    rollout.says("Done.").complete();
    let begun = Instant::now();
    let index = index_of(&rollout);
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    assert_eq!(index["status"], "completed");
    assert_eq!(index["calls"]["failed"], 1);
}

#[test]
fn a_patch_of_many_files_or_lines_is_bounded() {
    let mut patch = String::from("*** Begin Patch\n");
    (0..5_000).for_each(|number| patch.push_str(&format!("*** Add File: f{number}\n+x\n")));
    patch.push_str("*** End Patch\n");
    let mut rollout = Rollout::begun();
    rollout.custom("p", "apply_patch", &patch).output("p", "Exit code: 0\nOutput:\n");
    let index = index_of(&rollout);
    assert!(index["files_created"].as_array().is_none_or(|files| files.len() <= 2_000));
    assert!(!text(&tree_of(&rollout), ID, "changes.diff").is_empty());
}
