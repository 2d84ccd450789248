//! Workers without tool_calls/, which are shown by their logs, result, report and data.

use super::*;

fn store_with(files: &[(&str, &str)]) -> TestStore {
    let store = TestStore::new();
    store.worker("w", json!({"status": "failed"}));
    for (path, text) in files {
        store.write(format!("workers/w/{path}"), text);
    }
    store
}

#[test]
fn files_are_ordered_by_relevance() {
    let store = store_with(&[
        ("outputs/data.json", "{\"n\": 1}"),
        ("outputs/report.md", "# report"),
        ("result.txt", "the result"),
        ("logs/execution.log", "began"),
        ("logs/audit.log", "audited"),
        ("logs/errors.log", "it broke"),
        ("context/research.md", "not evidence"),
        ("thread.jsonl", "{}"),
    ]);
    let report = hold(&evidence(&store.tree(), "workers/w/", 16_000), 16_000).unwrap();
    let order: Vec<&str> = report.sections.iter().map(|section| section.path.as_str()).collect();
    let expected = [
        "logs/errors.log",
        "logs/audit.log",
        "logs/execution.log",
        "result.txt",
        "outputs/report.md",
        "outputs/data.json",
    ];
    assert_eq!(order, expected);
    assert_eq!(report.counted, "Calls: 0 | Files: 6");
    assert_eq!((report.whole, report.cut, report.listed), (6, 0, 0));
    assert_eq!(report.section("logs/errors.log").body, "it broke\n");
}

#[test]
fn empty_calls_directory_does_not_hide_other_files() {
    let store = store_with(&[("logs/errors.log", "it broke\n")]);
    std::fs::create_dir(store.at("workers/w/tool_calls")).unwrap();
    assert!(evidence(&store.tree(), "workers/w/", 16_000).contains("\nit broke\n"));
}

#[test]
fn calls_are_the_evidence_if_there_are_any() {
    let store = store_with(&[("logs/errors.log", "it broke\n")]);
    store.call("w", 1, "x", "the call");
    let report = hold(&evidence(&store.tree(), "workers/w/", 16_000), 16_000).unwrap();
    assert_eq!(report.sections.len(), 1);
    assert_eq!(report.calls(), 1);
}

#[test]
fn large_files_are_cut_and_share_the_budget() {
    let log = format!(
        "{}ERROR: it broke here\n{}",
        "going on\n".repeat(9_000),
        "going on\n".repeat(9_000)
    );
    let store = store_with(&[
        ("logs/errors.log", "the short log"),
        ("logs/execution.log", &log),
        ("outputs/report.md", &log),
    ]);
    let tree = store.tree();
    for budget in [1_000, 4_000, 16_000] {
        let report = hold(&evidence(&tree, "workers/w/", budget), budget).unwrap();
        assert_eq!(report.whole + report.cut + report.listed, 3);
        assert_eq!(report.section("logs/errors.log").body, "the short log\n");
        assert!(
            report.section("logs/execution.log").body.contains("ERROR: it broke here"),
            "{budget}: {report:#?}"
        );
    }
    for budget in 0..300 {
        hold(&evidence(&tree, "workers/w/", budget), budget);
    }
}

#[test]
fn evidence_of_an_empty_worker_says_so() {
    let report = hold(&evidence(&store_with(&[]).tree(), "workers/w/", 16_000), 16_000).unwrap();
    assert_eq!(report.counted, "Calls: 0 | Files: 0");
    assert!(report.sections.is_empty());
}

#[test]
fn odd_files_hide_nothing_else() {
    let store = store_with(&[("result.txt", "the result\n")]);
    std::fs::create_dir_all(store.at("workers/w/logs/errors.log")).unwrap();
    std::fs::create_dir_all(store.at("workers/w/outputs")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", store.at("workers/w/outputs/report.md")).unwrap();
    crate::formats::fifo(&store.at("workers/w/logs/pipe.log"));
    let text = evidence(&store.tree(), "workers/w/", 16_000);
    hold(&text, 16_000);
    assert!(text.contains("\nthe result\n") && !text.contains("root:x:"), "{text}");
}
