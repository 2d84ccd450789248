//! Documents that are rewritten while they are mounted.

use std::fs::{self, File};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::Program;
use super::growth::versions;
use crate::mount::eventually;
use crate::needs_fuse;
use crate::support::{Mount, TestStore};

/// Rewrites a file in place and slowly, so that readers meet it empty and torn.
fn rewrite_slowly(path: &std::path::Path, bytes: &[u8]) {
    let mut file = File::create(path).unwrap();
    for part in bytes.chunks(bytes.len() / 4 + 1) {
        thread::sleep(Duration::from_millis(5));
        file.write_all(part).unwrap();
    }
}

#[test]
fn rewritten_documents_are_followed_through_a_mount() {
    needs_fuse!();
    for program in [Program::Mini, Program::Swe] {
        let store = TestStore::new();
        let versions: Vec<Vec<u8>> = versions(program)
            .iter()
            .map(|version| serde_json::to_vec_pretty(version).unwrap())
            .collect();
        let path = store.write(program.place().as_bytes(), &versions[0]);
        let mount = Mount::new(&store.path());
        assert_eq!(mount.read("workers/i/source.json"), versions[0]);
        let calls = || {
            let index: Value = serde_json::from_slice(&mount.read("workers/i/index.json")).unwrap();
            index["tool_calls"].as_array().unwrap().len()
        };
        // Readers never see fewer calls while the document is rewritten.
        let done = AtomicBool::new(false);
        let last = thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut most = 0;
                while !done.load(Ordering::Relaxed) {
                    let now = calls();
                    assert!(now >= most, "{program:?}: {now} calls after {most}");
                    most = now;
                    thread::sleep(Duration::from_millis(1));
                }
                most
            });
            for version in &versions[1..] {
                rewrite_slowly(&path, version);
                thread::sleep(Duration::from_millis(100));
            }
            let wanted = if program == Program::Mini { 4 } else { 3 };
            eventually("all calls", || (calls() == wanted).then_some(()));
            done.store(true, Ordering::Relaxed);
            reader.join().unwrap()
        });
        assert!(last > 0);
        let status = || mount.text("workers/i/summary").contains("completed").then_some(());
        eventually("completed", status);
        assert!(mount.text("workers/i/result.txt").starts_with("diff --git"));
        let whole = fs::read(&path).unwrap();
        eventually("source.json", || (mount.read("workers/i/source.json") == whole).then_some(()));
        assert_eq!(mount.list("runs/run1/workers"), ["i"]);
    }
}
