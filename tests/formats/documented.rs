//! docs/FORMATS.md and the schemas in docs/schema: the examples on the page make a store that is
//! understood, and the schemas accept them and nothing wrong.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use jsonschema::Validator;

use super::*;
use crate::cli::program::{run, swarmletfs};
use crate::support::mount::PROGRAM;
use crate::support::swarm::Swarm;
use crate::support::tool::shell;

fn docs(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(path)
}

/// A fenced block of a page.
struct Block {
    language: String,
    /// The path in backticks on the last line before the block, if that line has nothing else.
    path: Option<String>,
    text: String,
}

/// Returns the fenced blocks of FORMATS.md.
fn blocks() -> Vec<Block> {
    let page = fs::read_to_string(docs("FORMATS.md")).unwrap();
    let mut blocks = Vec::new();
    let mut before = "";
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let text: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            let path = before.strip_prefix('`').and_then(|path| path.strip_suffix('`'));
            blocks.push(Block {
                language: language.into(),
                path: path.filter(|path| !path.contains('`')).map(str::to_owned),
                text: text.join("\n") + "\n",
            });
        }
        before = if line.is_empty() { before } else { line };
    }
    blocks
}

/// Returns the example files of FORMATS.md by path.
fn examples() -> BTreeMap<String, String> {
    let files = blocks().into_iter().filter_map(|block| Some((block.path?, block.text)));
    files.collect()
}

/// Runs `validate --json` on a path. Returns its exit code and its report.
fn validate(path: &Path) -> (Option<i32>, Value) {
    let done = run(swarmletfs(["validate".as_ref(), "--json".as_ref(), path.as_os_str()]));
    let report: Value =
        serde_json::from_str(&done.out).unwrap_or_else(|error| panic!("{error}: {done:#?}"));
    (done.code, report)
}

/// Promise: A store that is written as docs/FORMATS.md shows is understood completely.
#[test]
fn examples_on_the_page_make_a_store_that_is_understood() {
    let store = TestStore::new();
    let examples = examples();
    assert!(examples.len() >= 12, "{:?}", examples.keys());
    for (path, text) in &examples {
        store.write(path, text);
    }
    let (code, report) = validate(&store.path());
    assert_eq!((code, &report["notes"]), (Some(0), &json!(0)), "{report:#}");
    assert_eq!(
        report["contents"],
        json!({
            "workers": 2, "status": {"completed": 1, "failed": 1}, "calls": 3,
            "outcomes": {"ok": 2, "failed": 1}, "messages": 3,
        })
    );
    let tree = store.tree();
    let index = index(&tree, "cloud-12");
    assert_eq!(index["summary"], "Old logs filled the disk of db1.");
    assert_eq!(index["duration_ms"], 8500);
    let calls = index["tool_calls"].as_array().unwrap();
    assert_eq!(calls[0]["input"], "df -h /");
    assert_eq!(calls[2]["outcome"], "ok");
    assert_eq!(calls[2]["bytes"], 25, "the out-of-band output is read");
    assert!(super::text(&tree, "cloud-13", "changes.diff").contains("\n-weekly\n+daily\n"));
    let other = super::index(&tree, "cloud-13");
    assert_eq!(other["summary"], "It may not delete old logs.", "from the index");
}

#[test]
fn five_lines_of_shell_make_a_store() {
    let script = blocks().into_iter().find(|block| block.language == "sh").unwrap().text;
    assert_eq!(script.lines().count(), 5, "{script}");
    let dir = tempfile::tempdir().unwrap();
    let program = Path::new(PROGRAM).parent().unwrap().to_str().unwrap();
    let done = run(shell(&format!("PATH={program}:$PATH\n{script}"), dir.path()));
    assert_eq!(done.code, Some(0), "{done:#?}");
    assert!(done.out.contains("calls: 1 (1 ok)\n"), "{done:#?}");
    assert!(done.out.contains("not understood: 0\nnotes: 0\n"), "{done:#?}");
}

/// Returns the validator of a schema in docs/schema.
fn schema(name: &str) -> Validator {
    let text = fs::read(docs(&format!("schema/{name}.schema.json"))).unwrap();
    jsonschema::validator_for(&serde_json::from_slice(&text).unwrap()).unwrap()
}

/// Returns the schema of a file of a store, and true if it describes a line.
fn schema_of(path: &str) -> Option<(&'static str, bool)> {
    let name = path.rsplit('/').next().unwrap();
    match name {
        "metadata.json" => Some(("metadata", false)),
        "changes.json" => Some(("changes", false)),
        "index.json" => Some(("store-index", false)),
        "metrics.jsonl" => Some(("metrics", true)),
        "thread.jsonl" => Some(("thread", true)),
        "tools_used.json" => Some(("tools_used", false)),
        _ if path.starts_with("tool_outputs/") && name.ends_with(".json") => {
            Some(("tool_output", false))
        }
        _ => None,
    }
}

/// Returns the violations of the schema of a file.
fn faults(path: &str, text: &str) -> Vec<String> {
    let Some((name, is_lines)) = schema_of(path) else { return Vec::new() };
    let schema = schema(name);
    let documents: Vec<&str> = if is_lines { text.lines().collect() } else { vec![text] };
    let values = documents.iter().map(|document| serde_json::from_str::<Value>(document).unwrap());
    values.flat_map(|value| faults_of(&schema, &value)).collect()
}

fn faults_of(schema: &Validator, value: &Value) -> Vec<String> {
    schema.iter_errors(value).map(|error| format!("{}: {error}", error.instance_path())).collect()
}

#[test]
fn schemas_accept_the_examples_and_the_files_of_a_generated_swarm() {
    let mut checked = BTreeMap::new();
    for (path, text) in examples() {
        assert_eq!(faults(&path, &text), Vec::<String>::new(), "{path}");
        *checked.entry(schema_of(&path).map(|(name, _)| name)).or_insert(0) += 1;
    }
    assert_eq!(checked.keys().flatten().count(), 7, "{checked:?}");
    let output = examples()["workers/cloud-12/tool_calls/002_sql.txt"].clone();
    let output = serde_json::from_str(&output).unwrap();
    assert_eq!(faults_of(&schema("tool_call"), &output), Vec::<String>::new());

    let store = TestStore::new();
    let swarm = Swarm { workers: 3, calls: 3, bytes: 400, seed: 2 };
    swarm.make(&store.path()).unwrap();
    let (code, report) = validate(&store.path());
    assert_eq!(code, Some(0), "{report:#}");
    for worker in 0..swarm.workers {
        for file in ["metadata.json", "thread.jsonl", "metrics.jsonl", "tools_used.json"] {
            let path = format!("workers/{}/{file}", swarm.id(worker));
            if let Ok(text) = fs::read_to_string(store.at(&path)) {
                assert_eq!(faults(&path, &text), Vec::<String>::new(), "{path}");
            }
        }
    }
}

#[test]
fn schemas_reject_wrong_files() {
    let wrong = [
        ("metadata", json!([])),
        ("metadata", json!({"status": "done"})),
        ("metadata", json!({"status": 1})),
        ("metadata", json!({"task": ["x"]})),
        ("metadata", json!({"created_at": "yesterday"})),
        ("metadata", json!({"created_at": 1_768_903_200})),
        ("metadata", json!({"duration_ms": "5"})),
        ("metadata", json!({"duration_ms": -1})),
        ("metadata", json!({"exit_code": "1"})),
        ("metadata", json!({"exit_code": 1.5})),
        ("metadata", json!({"tags": "x"})),
        ("metadata", json!({"config": []})),
        ("metadata", json!({"config": {"status": "done"}})),
        ("metadata", json!({"tool_calls": [{"success": true}]})),
        ("metadata", json!({"tool_calls": 3})),
        ("store-index", json!({})),
        ("store-index", json!([{"task": "x"}])),
        ("store-index", json!({"workers": [{"id": "a", "status": "done"}]})),
        ("store-index", json!({"workers": {}})),
        ("metrics", json!({"tool": "x", "success": true})),
        ("metrics", json!({"event": "tool_call", "name": "x", "ok": true})),
        ("metrics", json!({"event": "tool_call", "tool": "x"})),
        ("metrics", json!({"event": "tool_call", "tool": "x", "success": true, "seq": "1"})),
        ("metrics", json!({"event": "tool_call", "tool": "x", "success": true, "seq": -1})),
        ("metrics", json!({"event": "call_start", "tool": "x"})),
        ("metrics", json!({"event": "call_start", "seq": 1})),
        ("metadata", json!({"tool_calls": [{"tool": "x", "seq": 1.5}]})),
        ("metrics", json!({"event": "tool_call", "tool": "x", "success": "yes"})),
        ("thread", json!({"content": "x"})),
        ("thread", json!({"role": "robot"})),
        ("thread", json!({"role": "assistant", "content": [{"type": "text"}]})),
        ("thread", json!({"role": "assistant", "tool_calls": [{"args": {}}]})),
        ("tools_used", json!("x")),
        ("tools_used", json!([1])),
        ("tools_used", json!([{"title": "x"}])),
        ("tool_output", json!({"artifact_id": "0123456789abcdef0123456789abcdef"})),
        ("tool_output", json!({"owner_id": "7", "artifact_id": "1"})),
        ("changes", json!({"version": 2, "files": []})),
        ("changes", changes(json!([{"path": "a", "kind": "moved", "base": "none"}]))),
        ("changes", changes(json!([{"path": "a", "kind": "deleted", "base": "none"}]))),
        (
            "changes",
            changes(json!([{
                "path": "a", "kind": "added", "base": "none",
                "new": {"type": "link", "mode": "0777"},
            }])),
        ),
        ("tool_call", json!({"stdout": "x"})),
        ("tool_call", json!({"ok": "yes"})),
        ("tool_call", json!({"data": {"exit_code": "1"}})),
    ];
    for (name, value) in wrong {
        assert!(!faults_of(&schema(name), &value).is_empty(), "{name} accepts {value}");
    }
}

/// Returns a changes.json with these changes.
fn changes(files: Value) -> Value {
    json!({
        "version": 1, "workspace": "/w", "engine": "copy", "is_final": true, "files": files,
        "started_at": "2026-01-20T10:00:00Z", "scanned_at": "2026-01-20T10:00:00Z",
    })
}

#[test]
fn page_links_every_schema_of_its_files() {
    let page = fs::read_to_string(docs("FORMATS.md")).unwrap();
    for entry in fs::read_dir(docs("schema")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let is_linked = page.contains(&format!("(schema/{name})"));
        assert!(is_linked || name == "validate.schema.json", "{name} is not linked");
    }
}
