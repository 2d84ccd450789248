//! Scenario: find all security findings of a swarm that analyzed a code base, with standard tools
//! and with `grep/`.

use std::collections::BTreeSet;

use serde_json::json;

use super::lines_of;
use crate::needs_fuse;
use crate::support::tool::shell;
use crate::support::{Mount, TestStore};

/// Returns a store of three workers, each with findings as JSON and as text.
fn store() -> TestStore {
    let store = TestStore::new();
    for (id, task) in [
        ("worker-auth", "the authentication module"),
        ("worker-db", "the database layer"),
        ("worker-api", "the API endpoints"),
    ] {
        store.worker(
            id,
            json!({"task": format!("Analyze {task}"), "task_type": "analysis", "run_id": 12}),
        );
        store.write(format!("workers/{id}/logs/run.log"), "security scan begun\n");
    }
    let files = [
        (
            "worker-auth/outputs/analysis.json",
            "{\n  \"findings\": [\n    {\"severity\": \"high\", \"kind\": \"Vulnerability\", \"text\": \"tokens never expire\"},\n    {\"severity\": \"low\", \"kind\": \"style\", \"text\": \"long function\"}\n  ]\n}\n",
        ),
        (
            "worker-auth/outputs/recommendations.md",
            "# Recommendations\n\nRotate keys. A known exploit reads them from the log.\n",
        ),
        (
            "worker-db/outputs/schema_analysis.json",
            "{\n  \"note\": \"no SECURITY review of the schema was made\"\n}\n",
        ),
        ("worker-db/outputs/query_performance.md", "# Performance\n\nAn index is missing.\n"),
        ("worker-api/outputs/endpoint_coverage.json", "{\n  \"covered\": 0.92\n}\n"),
        (
            "worker-api/outputs/rest_compliance.md",
            "PUT is not idempotent.\nA vulnerability: the debug endpoint is open.\n",
        ),
    ];
    for (path, text) in files {
        store.write(format!("workers/{path}"), text);
    }
    store
}

/// Promise: Standard tools and queries find the same findings.
#[test]
fn standard_tools_and_queries_find_all_findings() {
    needs_fuse!();
    let store = store();
    let mount = Mount::new(&store.path());
    let run = |command: &str| {
        let out = shell(command, &mount.path()).output().unwrap();
        assert!(out.status.success(), "{command}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    let by_tools = run(
        "grep -rniE 'vulnerability|security|exploit' workers/*/outputs --include='*.md' --include='*.json'",
    );
    let by_tools: BTreeSet<String> = by_tools.lines().map(str::to_owned).collect();
    let answer = run("cat 'grep.i@*.{md,json}/vulnerability|security|exploit'");
    assert_eq!(by_tools.len(), 4);
    assert_eq!(lines_of(&answer), by_tools, "{answer}");
    // The workers with findings, and the location of a finding.
    let workers = run(
        "cut -d: -f1 'grep.i@*.{md,json}/vulnerability|security|exploit' | grep ^workers | cut -d/ -f2 | sort -u",
    );
    assert_eq!(workers, "worker-api\nworker-auth\nworker-db\n");
    assert_eq!(run("ls by/type/analysis/status/completed"), "worker-api\nworker-auth\nworker-db\n");
    assert_eq!(
        run("cat 'by/type/analysis/worker-auth/grep/never expire' | tail -n 1")
            .matches("workers/worker-auth/outputs/analysis.json:3:")
            .count(),
        1
    );
    assert_eq!(run("cat 'runs/latest/grep@*.md/idempotent' | wc -l"), "2\n");
}
