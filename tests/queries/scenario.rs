//! Scenario: find all security findings of a swarm that analyzed a code base, with standard tools
//! and with `grep/`.
//!
//! Scenario: three workers did research, and a supervisor reads, compares and searches their
//! reports with standard tools only.

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

/// Returns a store of three completed workers, a running one, and one of another type.
fn research_store() -> TestStore {
    let store = TestStore::new();
    let report = |about: &str, body: &str| {
        format!(
            "# {about}\n\n## Summary\n\nA report on {about}.\n\n## Performance\n\n{body}\n\n## Sources\n\nPapers and code.\n"
        )
    };
    for (id, about, body) in [
        (
            "worker-abc123",
            "the file system approach",
            "Benchmarks show 74% on the question set, with plain files and grep.",
        ),
        (
            "worker-def456",
            "graph memory",
            "The graph reaches 68.5% in the same benchmark, and updates are slow.",
        ),
        (
            "worker-ghi789",
            "retrieval augmented generation",
            "No benchmark of its own was run; latency is 120 ms a query.",
        ),
    ] {
        store.worker(id, json!({"task": format!("Research {about}"), "task_type": "research", "run_id": "memory"}));
        store.write(format!("workers/{id}/outputs/report.md"), report(about, body));
        store.call(
            id,
            1,
            "web_search",
            "{\"ok\": true, \"data\": \"pages that speak of benchmarks\"}\n",
        );
    }
    store.worker(
        "worker-late",
        json!({"status": "running", "task_type": "research", "run_id": "memory"}),
    );
    store.worker("worker-code", json!({"task_type": "analysis", "run_id": "code"}));
    store
}

#[test]
fn standard_tools_browse_read_compare_and_search_research() {
    needs_fuse!();
    let store = research_store();
    let mount = Mount::new(&store.path());
    let run = |command: &str| {
        let out = shell(command, &mount.path()).output().unwrap();
        assert!(out.status.success(), "{command}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    // "Show me completed research tasks."
    let done = run("ls by/status/completed/type/research");
    assert_eq!(
        done.lines().collect::<Vec<_>>(),
        ["worker-abc123", "worker-def456", "worker-ghi789"]
    );
    // "Read the report."
    assert!(
        run("cat workers/worker-abc123/outputs/report.md")
            .starts_with("# the file system approach\n")
    );
    // "Compare all three": as a whole, and on one aspect.
    let names = done.lines().collect::<Vec<_>>().join("..");
    let compared = run(&format!("cat compare/{names}"));
    for part in ["Research graph memory", "74%", "68.5%", "120 ms"] {
        assert!(compared.contains(part), "{part}: {compared}");
    }
    let aspect = run(&format!("cat 'compare@performance benchmarks/{names}'"));
    assert!(
        aspect.contains("74%") && aspect.contains("68.5%") && aspect.len() <= compared.len() + 40,
        "{aspect}"
    );
    // "What do they say about benchmarks?" The answer names every worker with a match.
    let found = run("cat 'runs/memory/search@*.md/performance benchmarks'");
    for worker in done.lines() {
        assert!(
            found.contains(&format!("\nworkers/{worker}/outputs/report.md, bytes ")),
            "{worker}: {found}"
        );
    }
    let found = run("cat 'runs/memory/search@*.md/benchmark with slow updates'");
    assert!(
        found.find("68.5%").unwrap() < found.find("74%").unwrap(),
        "the best passage is not first: {found}"
    );
    // Focus on one of them, within a budget for each step.
    let focus = run("cat 'workers/worker-def456/summary.600@slow updates'");
    assert!(
        focus.contains("updates are slow") && focus.contains("Research graph memory"),
        "{focus}"
    );
    assert!(run("cat 'search.500/latency of a query'").len() <= 500);
}
