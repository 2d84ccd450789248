//! Paths of the files that a worker may put into its directory.

use super::error::{Error, Result};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::is_temporary;
use swarmletfs_trace::swarmlet::{
    APPLIED, BASE, CALLS, CHANGES, CHANGES_FILE, METADATA, METRICS, RESULT, TASK, THREAD,
    TOOLS_USED,
};
use swarmletfs_tree::route::shown_path::is_generated;

/// Deepest path that readers show, in components.
const DEPTH_MAX: usize = 60;
/// Longest name on disk, in bytes.
const NAME_MAX: usize = 255;
/// Files that have a command of their own, and the command.
const MANAGED: [(&str, &str); 11] = [
    (METADATA, "`worker finish`"),
    (TASK, "`worker create --task`"),
    (RESULT, "`worker finish --result`"),
    (THREAD, "`worker message`"),
    (METRICS, "`worker record`"),
    (TOOLS_USED, "`worker record`"),
    (CALLS, "`worker record`"),
    (CHANGES_FILE, "`run`"),
    (CHANGES, "`run`"),
    (BASE, "`run`"),
    (APPLIED, "`apply`"),
];

/// Folders in which a worker keeps files of its own.
const FOLDERS: [&str; 3] = ["outputs", "logs", "context"];

/// Checks the path of a file, relative to the worker's directory.
///
/// # Errors
///
/// [`Error::Invalid`] if the path leads elsewhere, or to a file that has a meaning of its own.
pub(super) fn parse(path: &[u8]) -> Result<RelPath> {
    let invalid = |reason: String| Err(Error::invalid(path, "a path in a worker's folder", reason));
    let Ok(parsed) = RelPath::parse(path) else {
        let reason = "a path is relative, without `..`, `.` or empty names, as outputs/report.md";
        return invalid(reason.into());
    };
    let Some(first) = parsed.names().next() else {
        return invalid("the path is empty; try outputs/report.md".into());
    };
    if parsed.depth() > DEPTH_MAX || parsed.names().any(|name| name.as_bytes().len() > NAME_MAX) {
        return invalid(format!(
            "a path has at most {DEPTH_MAX} names of at most {NAME_MAX} bytes"
        ));
    }
    if parsed.names().any(|name| is_temporary(&name)) {
        return invalid("this beginning of a name marks files that are being written".into());
    }
    if let Some((_, command)) = MANAGED.iter().find(|(name, _)| is_called(&first, name)) {
        return invalid(format!("this name is part of the record; {command} writes it"));
    }
    if parsed.depth() == 1 && FOLDERS.iter().any(|name| is_called(&first, name)) {
        return invalid(
            "this is the name of a folder; try a path in it, as outputs/report.md".into(),
        );
    }
    if is_generated(&first) {
        return invalid("readers see a generated file of this name; try outputs/NAME".into());
    }
    Ok(parsed)
}

fn is_called(name: &Name, text: &str) -> bool {
    name.as_bytes() == text.as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_lead_elsewhere_or_mean_something_are_refused() {
        for good in [&b"outputs/report.md"[..], b"x", b"a/b/c", b"notes.txt", b"outputs/\xff\n"] {
            assert_eq!(parse(good).unwrap().as_bytes(), good);
        }
        let (long, deep) = ("x".repeat(256), "a/".repeat(60) + "a");
        for bad in [
            "",
            "/",
            "outputs",
            "logs",
            "context",
            "/etc/passwd",
            "..",
            "../w2/metadata.json",
            "outputs/../../w2",
            "a//b",
            "a/",
            "./a",
            "a\0",
            "metadata.json",
            "metadata.json/x",
            "metrics.jsonl",
            "thread.jsonl",
            "result.txt",
            "task.txt",
            "tool_calls/001_x.txt",
            "tools_used.json",
            "summary",
            "index.json",
            "evidence.txt",
            "evidence.4k.txt",
            "changes.diff",
            "children",
            "grep",
            ".swarmletfs-tmp-1",
            "outputs/.swarmletfs-x",
            &long,
            &deep,
        ] {
            assert!(matches!(parse(bad.as_bytes()), Err(Error::Invalid { .. })), "{bad:?}");
        }
    }
}
