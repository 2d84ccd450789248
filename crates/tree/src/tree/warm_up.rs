//! Does work in advance that would delay the first report of a mount.
//!
//! The patterns that judge outputs are compiled when they are first used, which takes longer than a
//! small report does. So the reports of a made-up worker are rendered once, while nobody waits.

use std::sync::Arc;

use super::{ROOT, Tree};
use crate::analysis::settings::Settings;
use crate::catalog::{Freshness, Source};
use crate::route::Report;
use crate::view::{Filter, View};
use swarmletfs_base::error::Result;
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::Memory;

/// Files of the made-up worker: a success that claims too much, a failed call, and a call that
/// looks failed, with a line of each form.
const FILES: [(&str, &str); 4] = [
    ("metadata.json", r#"{"worker_id": "w", "task": "Run the tests", "status": "success"}"#),
    ("result.txt", "All tests pass. I fixed the error and wrote src/a.rs."),
    (
        "tool_calls/001_run_command.txt",
        r#"{"ok": false, "exit_code": 1, "stdout": "src/a.rs:3:1: error: no such field\n"}"#,
    ),
    (
        "tool_calls/002_run_command.txt",
        concat!(
            r#"{"ok": true, "exit_code": 0, "stdout": "running 2 tests\ntest a::b ... FAILED\n"#,
            r#"src/a.c:3:1: error: no x\nTraceback (most recent call last):\n"#,
            r#"  File \"a.py\", line 3, in f\nValueError: no\nbash: line 1: x: command not found\n"#,
            r#"The deploy failed: permission denied\n=== 1 failed, 3 passed in 0.1s ===\n"}"#,
        ),
    ),
];

/// Renders the reports of a made-up worker, and returns their bytes.
///
/// # Errors
///
/// None is expected, since the files are in memory.
pub fn warm_up() -> Result<Vec<Vec<u8>>> {
    let store = Memory::new();
    for (path, text) in FILES {
        store.write(&RelPath::parse(format!("workers/w/{path}"))?, text);
    }
    let sources = vec![Source::from_store(Arc::new(store), None)];
    let view = View::new(sources, Freshness::default(), Filter::default())?;
    let tree = Tree::new(view, Settings::default());
    let workers = tree.lookup(ROOT, b"workers")?.ino;
    let worker = tree.lookup(workers, b"w")?.ino;
    let report = |(name, _): (&str, Report)| {
        let opened = tree.open(tree.lookup(worker, name.as_bytes())?.ino)?;
        tree.read(opened.fh, 0, usize::MAX, <[u8]>::to_vec)
    };
    Report::LISTED.into_iter().map(report).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reports_of_the_made_up_worker_judge_each_call() {
        let reports = warm_up().unwrap();
        let [evidence, index, summary] = reports.try_into().unwrap();
        let [evidence, index, summary] =
            [evidence, index, summary].map(|bytes| String::from_utf8(bytes).unwrap());
        assert!(evidence.contains("[FAILED]") && evidence.contains("[SUSPECT]"), "{evidence}");
        assert!(index.contains("\"suspect\""), "{index}");
        assert!(summary.contains("src/a.rs"), "{summary}");
    }
}
