//! `cost`: sums without double counting, prices, groups and filters.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::look;
use crate::support::transcript::{PROJECT, Transcript};

/// Writes three sessions: `stated` states the cost of itself and its subagent, `priced` of the same
/// day states none, and `failed` of another project did not finish its work.
fn sessions() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join(PROJECT);
    fs::create_dir_all(root.join("stated/subagents")).unwrap();
    let write = |name: &str, transcript: &Transcript| {
        fs::write(root.join(format!("{name}.jsonl")), transcript.bytes()).unwrap();
    };
    let usage = json!({"input_tokens": 1_000_000, "output_tokens": 1_000});
    let text = json!([{"type": "text", "text": "Done."}]);
    let mut stated = Transcript::new("stated");
    stated.user("Ask another.").call("t", "Task", json!({"prompt": "Look."}));
    stated.result("t", json!({"content": "Seen."})).message("m", text.clone(), usage.clone());
    stated.line(json!({"type": "cost-state", "totalCostUSD": 4.5, "startTime": 1,
        "modelUsage": {"claude-large": {"inputTokens": 9_000_000, "costUSD": 4.5}}}));
    write("stated", &stated);
    let mut agent = Transcript::of_agent("stated", "a1");
    agent.user("Look.").message("m", text.clone(), usage.clone());
    write("stated/subagents/agent-a1", &agent);
    let mut priced = Transcript::new("priced");
    priced.user("Do it.").message("m", text.clone(), usage.clone());
    write("priced", &priced);
    let mut failed = Transcript::new("failed");
    failed.line(
        json!({"type": "user", "cwd": "/home/dev/other", "timestamp": "2026-02-02T10:00:00Z",
        "message": {"role": "user", "content": "Test it."}}),
    );
    failed.line(json!({"type": "assistant", "cwd": "/home/dev/other", "message": {"id": "m", "model": "claude-small",
        "role": "assistant", "usage": usage, "content": [{"type": "tool_use", "id": "c",
        "name": "Bash", "input": {"command": "cargo test"}}]}}));
    failed.result("c", json!({"content": "Exit code 1\n1 failed", "is_error": true}));
    failed.says("It fails.");
    write("failed", &failed);
    (folder, root)
}

fn costs(folder: &TempDir, options: &[&str]) -> Value {
    let answer = look(folder.path(), "cost", ["--json"].iter().chain(options));
    assert_eq!(answer.code, Some(0), "{answer:?}");
    answer.json()
}

/// Returns the prices of one model, as the option for them.
fn prices(folder: &TempDir, text: &str) -> String {
    let file = folder.path().join("prices.json");
    fs::write(&file, text).unwrap();
    format!("--prices={}", file.display())
}

const LARGE: &str = r#"{"claude-l*": {"input": 2, "output": 0}}"#;

/// Returns name, workers, stated and computed dollars of each group.
fn groups(costs: &Value) -> Vec<(String, u64, f64, f64)> {
    let groups = costs["groups"].as_array().unwrap().iter().map(|group| {
        let name = group["name"].as_str().unwrap_or("-").to_owned();
        let usd = |field: &str| (group[field].as_f64().unwrap() * 100.0).round() / 100.0;
        (name, group["workers"].as_u64().unwrap(), usd("stated_usd"), usd("computed_usd"))
    });
    groups.collect()
}

/// Promise: A cost that includes those of other workers is counted once.
#[test]
fn costs_are_summed_once() {
    let (folder, _) = sessions();
    let all = costs(&folder, &[]);
    assert_eq!(all["total"]["usd"], 4.5, "{all}");
    assert_eq!(all["total"]["unknown_workers"], 2);
    assert_eq!(all["total"]["complete"], false);
    assert_eq!(all["failed"]["usd"], Value::Null);
    let prices = prices(&folder, LARGE);
    let priced = costs(&folder, &[&prices]);
    // The subagent's tokens have a price as well, and are in the stated cost of its session.
    assert_eq!(
        (&priced["total"]["usd"], &priced["total"]["computed_usd"]),
        (&json!(6.5), &json!(2.0))
    );
    let group =
        |name: &str, workers, stated, computed| (name.to_owned(), workers, stated, computed);
    for (by, expected) in [
        (
            "worker",
            vec![
                group("stated", 2, 4.5, 0.0),
                group("priced", 1, 0.0, 2.0),
                group("failed", 1, 0.0, 0.0),
            ],
        ),
        ("day", vec![group("2026-02-02", 1, 0.0, 0.0), group("2026-02-01", 3, 4.5, 2.0)]),
        ("project", vec![group("app", 3, 4.5, 2.0), group("other", 1, 0.0, 0.0)]),
        ("model", vec![group("claude-large", 4, 4.5, 2.0), group("claude-small", 1, 0.0, 0.0)]),
    ] {
        assert_eq!(groups(&costs(&folder, &[&prices, "--by", by])), expected, "{by}");
    }
    let only = costs(&folder, &[&prices, "--project", "other", "--outcome", "failed"]);
    assert_eq!(groups(&only), [group("failed", 1, 0.0, 0.0)]);
    assert_eq!(only["total"]["unknown_workers"], 1);
}

#[test]
fn workers_that_name_each_other_as_parents_hide_no_cost() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join(PROJECT).join("s/subagents");
    fs::create_dir_all(&root).unwrap();
    for (agent, parent, usd) in [("a1", "a2", 1.0), ("a2", "a1", 2.0), ("a3", "a3", 4.0)] {
        let mut record = Transcript::of_agent("s", agent);
        record.user("Look.").says("Seen.");
        record.line(json!({"type": "cost-state", "totalCostUSD": usd, "startTime": 1}));
        fs::write(root.join(format!("agent-{agent}.jsonl")), record.bytes()).unwrap();
        let meta = json!({"parentAgentId": parent}).to_string();
        fs::write(root.join(format!("agent-{agent}.meta.json")), meta).unwrap();
    }
    let all = costs(&folder, &[]);
    // The cost of the first in the ring includes the other one.
    let group = |name: &str, workers, stated| (name.to_owned(), workers, stated, 0.0);
    assert_eq!(groups(&all), [group("a3", 1, 4.0), group("a1", 2, 1.0)], "{all}");
    assert_eq!(all["total"]["usd"], 5.0, "{all}");
}

#[test]
fn table_of_costs_marks_what_is_computed_and_what_is_missing() {
    let (folder, _) = sessions();
    let prices = prices(&folder, LARGE);
    let answer = look(folder.path(), "cost", [&prices]);
    let lines = answer.assert_success().lines();
    assert!(
        lines[0].starts_with(
            "total    $4.50 stated of 1 worker, $2.00 computed from prices of 1 worker, unknown of 1, "
        ),
        "{answer:?}"
    );
    assert!(lines.iter().any(|line| line.starts_with("stated") && line.contains("  $4.50")));
    assert!(lines.iter().any(|line| line.starts_with("priced") && line.contains("  ~$2.00")));
    assert_eq!(lines.last(), Some(&"~ computed from prices"), "{answer:?}");
}

#[test]
fn bad_prices_are_named() {
    let (folder, _) = sessions();
    let bad = prices(&folder, r#"{"a": {"input": 1, "output": 2, "cached": 3}}"#);
    let absent = format!("--prices={}", folder.path().join("none").display());
    for (option, reason) in [(&bad, "unknown field `cached`"), (&absent, "No such file")] {
        let done = super::swarmletfs(["cost", option]).output().unwrap();
        let error = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(1), "{error}");
        assert!(error.starts_with("swarmletfs: cannot use the prices in "), "{error}");
        assert!(error.contains(reason), "{error}");
    }
}
