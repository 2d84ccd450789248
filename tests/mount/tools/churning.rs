//! Tools that walk while workers and files come and go. Permanent files are visited exactly once,
//! and the tools complain about nothing but the temporary ones.

use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use serde_json::json;

use crate::mount::{PATIENCE, swarm};
use crate::needs_fuse;
use crate::support::tool::{is_here, shell};
use crate::support::{Mount, Seen, TestStore, patience, scale, see_folder};

/// Part of the name of every temporary file or worker.
const PASSING: &str = "passing";
/// Number of temporary workers and files that exist at a time.
const PRESENT: usize = 8;
/// Walks per tool.
const TIMES: usize = 4;

/// A tool, and a command that prints the path of every file in the tree, among other paths.
const WALKS: &[(&str, &str)] = &[
    ("find", "find ."),
    ("grep", "grep -rc '' . | sed 's/:[0-9]*$//'"),
    ("rg", "rg --no-config --files"),
    ("fdfind", "fdfind"),
    ("du", "du -a . | cut -f 2-"),
    ("tree", "tree -afi --noreport | sed 's/ -> .*//'"),
    ("tar", "tar -cf - . | tar -tf -"),
    ("git", "git grep --no-index -c '' | sed 's/:[0-9]*$//'"),
    (
        "python3",
        r#"python3 -c 'import os; [print(at + "/" + name) for at, _, files in os.walk(".") for name in files]'"#,
    ),
];
/// Permitted messages about other files. git requests the size of a path before it opens it.
const SAYINGS: [&str; 3] = ["file changed as we read it", "due to previous errors", "short read"];

/// Creates the `n`-th worker and the `n`-th file of another worker, and removes old ones.
fn pass(store: &TestStore, n: usize) {
    let name = |n: usize| format!("{PASSING}-{n}");
    let waiting = |n| format!("waiting/{}", name(n));
    let (worker, file) =
        (|n| format!("workers/{}", name(n)), |n| format!("workers/gamma/logs/{}", name(n)));
    store.write(
        waiting(n) + "/metadata.json",
        json!({"worker_id": name(n), "run_id": "r1", "status": "success"}).to_string(),
    );
    store.write(waiting(n) + &format!("/tool_calls/001_{PASSING}.txt"), "here today\n");
    fs::rename(store.at(waiting(n)), store.at(worker(n))).unwrap();
    store.write(file(n), "here today\n");
    if let Some(old) = n.checked_sub(PRESENT) {
        fs::rename(store.at(worker(old)), store.at(waiting(old))).unwrap();
        fs::remove_dir_all(store.at(waiting(old))).unwrap();
        fs::remove_file(store.at(file(old))).unwrap();
    }
}

#[test]
fn stable_entries_are_visited_once_during_changes() {
    needs_fuse!();
    let store = swarm();
    // More names than one read returns.
    for n in 0..300 {
        store.write(format!("workers/gamma/logs/{n}-{}", "x".repeat(80)), "stays\n");
    }
    let (mut files, mut all) = (BTreeSet::new(), BTreeSet::new());
    for (path, seen) in see_folder(&store.tree(), "").unwrap() {
        let path = String::from_utf8(path).unwrap();
        if matches!(seen, Seen::File { .. }) {
            files.insert(path.clone());
        }
        all.insert(path);
    }
    let mount = Mount::new(&store.path());
    let (done, begun) = (AtomicBool::new(false), Instant::now());
    // Failures of one walk, and true if a temporary file was visited.
    let walk = |command: &str| -> (Vec<String>, bool) {
        let out = shell(command, &mount.path()).output().unwrap();
        let text = String::from_utf8(out.stdout).unwrap();
        let path =
            |line: &str| line.strip_prefix("./").unwrap_or(line).trim_end_matches('/').to_owned();
        let (passing, stable): (Vec<String>, Vec<String>) =
            text.lines().map(path).partition(|path| path.contains(PASSING));
        let once = |path: &&String| stable.iter().filter(|other| other == path).count() == 1;
        let mut wrong: Vec<String> = files.iter().filter(|path| !once(path)).cloned().collect();
        wrong.extend(
            stable
                .iter()
                .filter(|path| !all.contains(*path) && !matches!(path.as_str(), "" | "."))
                .cloned(),
        );
        let complaint = String::from_utf8_lossy(&out.stderr).into_owned();
        let known = |line: &&str| {
            !line.contains(PASSING) && !SAYINGS.iter().any(|saying| line.contains(saying))
        };
        wrong.extend(complaint.lines().filter(known).map(str::to_owned));
        (wrong, !passing.is_empty())
    };
    let wrong = thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0.. {
                pass(&store, n);
                mount.read(&format!("workers/gamma/evidence.{}.txt", 1_000 + n));
                // One walk per change, so that temporary files exist for a few walks.
                mount.shell("find \"$M\" >/dev/null 2>&1");
                if done.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let mut wrong = Vec::new();
        for (tool, command) in WALKS.iter().filter(|(tool, _)| is_here(tool)) {
            let mut disturbed = 0;
            for times in 1.. {
                let (these, passing) = walk(command);
                disturbed += usize::from(passing);
                let late = begun.elapsed() > patience(PATIENCE * 2);
                if !these.is_empty() || late {
                    wrong.push(format!(
                        "{tool}: {command}\n    {times} walks, {disturbed} of them visited a temporary file; {these:?}"
                    ));
                }
                if times >= scale(TIMES) && disturbed > 0 || !these.is_empty() || late {
                    break;
                }
            }
        }
        done.store(true, Ordering::Relaxed);
        wrong
    });
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}
