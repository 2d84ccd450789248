//! Sessions through the kernel: files generated from a transcript that grows under its readers.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::eventually;
use super::freshness::Tail;
use crate::needs_fuse;
use crate::support::transcript::Transcript;
use crate::support::{Mount, TestStore, scale};

/// Returns a store with a session, and the path of its transcript.
fn session(transcript: &Transcript) -> (TestStore, PathBuf) {
    let store = TestStore::new();
    let path = store.write("projects/-p/s.jsonl", transcript.bytes());
    (store, path)
}

fn new_transcript() -> Transcript {
    let mut transcript = Transcript::new("s");
    transcript.user("look around").bash("t0", "ls", "a file\n");
    transcript
}

/// Returns the lines that `write` adds to a transcript.
fn added_lines(write: impl FnOnce(&mut Transcript)) -> Vec<u8> {
    let mut transcript = Transcript::new("s");
    write(&mut transcript);
    transcript.bytes()
}

fn append(path: &Path, bytes: &[u8]) {
    File::options().append(true).open(path).unwrap().write_all(bytes).unwrap();
}

#[test]
fn session_is_read_through_the_kernel_like_any_worker() {
    needs_fuse!();
    let mut transcript = new_transcript();
    transcript.progress("a1", "user", json!({"content": "search"}));
    transcript
        .call("big", "Bash", json!({"command": "big"}))
        .result("big", json!({"content": "<persisted-output>"}));
    transcript.says("done");
    let (store, path) = session(&transcript);
    let large = "all of it\n".repeat(50_000);
    store.write("projects/-p/s/tool-results/big.txt", &large);
    let mount = Mount::new(&store.path());
    let files = mount.shell(r#"cd "$M" && find . -type f -print0 | xargs -0 -n1 sh -c 'test $(stat -c %s "$0") = $(cat "$0" | wc -c) || echo "$0"'"#);
    assert_eq!((String::from_utf8_lossy(&files.stdout), files.status.success()), ("".into(), true));
    assert_eq!(mount.read("workers/s/source.jsonl"), fs::read(&path).unwrap());
    assert_eq!(mount.text("workers/s/tool_calls/002_Bash.txt"), large);
    assert_eq!(mount.list("workers/s/tool_calls"), ["001_Bash.txt", "002_Bash.txt"]);
    assert_eq!(mount.text("workers/s/children/a1/task.txt"), "search");
    assert_eq!(mount.text("runs/latest/workers/a1/task.txt"), "search");
    let same = mount.shell(r#"cd "$M/workers/s" && jq -c . thread.jsonl >/dev/null && cmp source.jsonl ../../runs/s/workers/s/source.jsonl"#);
    assert!(same.status.success(), "{}", String::from_utf8_lossy(&same.stderr));
    // Generated files have the permissions of their transcript.
    for file in ["task.txt", "thread.jsonl", "tool_calls/001_Bash.txt", "source.jsonl"] {
        let meta = fs::metadata(mount.at(&format!("workers/s/{file}"))).unwrap();
        assert_eq!(meta.mode() & 0o777, fs::metadata(&path).unwrap().mode() & 0o444, "{file}");
    }
}

/// Promise: `tail -f` follows a conversation.
#[test]
fn tail_follows_a_conversation() {
    needs_fuse!();
    let (store, path) = session(&new_transcript());
    let mount = Mount::new(&store.path());
    let (source, thread) = ("workers/s/source.jsonl", "workers/s/thread.jsonl");
    let tails = [Tail::follow(&mount, "-f", &[source]), Tail::follow(&mount, "-f", &[thread])];
    for tail in &tails {
        (0..3).for_each(|_| drop(tail.next()));
    }
    for n in 0..3 {
        let line = added_lines(|transcript| {
            transcript.says(&format!("word {n}"));
        });
        // The first half of a line is not part of the conversation yet.
        let (first, rest) = line.split_at(line.len() / 2);
        append(&path, first);
        append(&path, rest);
        assert_eq!(tails[0].next().into_bytes(), line.trim_ascii_end());
        let message: Value = serde_json::from_str(&tails[1].next()).unwrap();
        assert_eq!(message["content"], format!("word {n}"));
    }
}

/// Promise: A mount notices that a session becomes abandoned although no file changes.
#[test]
fn mount_notices_that_a_session_becomes_abandoned() {
    needs_fuse!();
    let (store, path) = session(Transcript::live("s").user("look around"));
    let file = File::options().append(true).open(&path).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(3_600 - 5)).unwrap();
    let mount = Mount::new(&store.path());
    let status = || {
        let index: Value = serde_json::from_slice(&mount.read("workers/s/index.json")).unwrap();
        index["status"].as_str().unwrap().to_owned()
    };
    assert_eq!(status(), "running");
    eventually("abandoned", || (status() == "abandoned").then_some(()));
    assert_eq!(mount.list("by/status/abandoned"), ["s"]);
    // A session that is written again is running again.
    append(&path, &Transcript::live("s").user("go on").bytes());
    eventually("running", || (status() == "running").then_some(()));
    eventually("listed", || mount.list("by/status/abandoned").is_empty().then_some(()));
    let mount = Mount::with(&store.path(), &["-o", "stale=0"]);
    assert!(mount.text("workers/s/summary").contains("abandoned"));
}

/// Promise: Readers of a growing session see a part of it, never a mix.
#[test]
fn readers_of_a_growing_session_see_no_mix() {
    needs_fuse!();
    const LINES: usize = 150;
    let (store, path) = session(&new_transcript());
    let mount = Mount::new(&store.path());
    let (ended, seen) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut transcript = new_transcript();
    let lines = scale(LINES).max(LINES);
    for n in 1..=lines {
        transcript.bash(
            &format!("t{n}"),
            &format!("echo {n}"),
            &format!("output {n}\n").repeat(1 + n % 50),
        );
    }
    transcript.says("All is said.");
    let all = transcript.bytes();
    thread::scope(|scope| {
        for reader in 0..4 {
            let (mount, all, ended, seen) = (&mount, &all, &ended, &seen);
            scope.spawn(move || {
                let held = File::open(mount.at("workers/s/source.jsonl")).unwrap();
                while !ended.load(Ordering::Relaxed) {
                    match reader {
                        0 => {
                            let bytes = mount.read("workers/s/source.jsonl");
                            assert!(
                                all.starts_with(&bytes),
                                "source.jsonl has bytes that were never written"
                            );
                        }
                        1 => {
                            // The kernel reads up to the size that it last received, so the last
                            // line may be missing or cut.
                            let text = mount.text("workers/s/thread.jsonl");
                            let whole = text.rfind('\n').map_or("", |end| &text[..end]);
                            for (at, line) in whole.lines().enumerate() {
                                let line: Value = serde_json::from_str(line)
                                    .unwrap_or_else(|error| panic!("line {at}: {error}"));
                                let role = ["assistant", "tool"][(at + 1) % 2];
                                assert_eq!(
                                    line["role"],
                                    if at == 0 { "user" } else { role },
                                    "line {at}: {line}"
                                );
                            }
                        }
                        2 => {
                            let index: Value =
                                serde_json::from_slice(&mount.read("workers/s/index.json"))
                                    .unwrap();
                            let calls = index["tool_calls"].as_array().unwrap();
                            for (at, call) in calls.iter().enumerate() {
                                let output = if at == 0 {
                                    "a file\n".into()
                                } else {
                                    format!("output {at}\n").repeat(1 + at % 50)
                                };
                                let done = call["outcome"] == "ok";
                                assert_eq!(
                                    call["bytes"],
                                    if done { output.len() } else { 0 },
                                    "{call}"
                                );
                            }
                            seen.fetch_max(calls.len(), Ordering::Relaxed);
                        }
                        _ => {
                            let mut bytes = vec![0; 4_096];
                            let size = held.metadata().unwrap().len();
                            let at = size.saturating_sub(4_096);
                            let n =
                                std::os::unix::fs::FileExt::read_at(&held, &mut bytes, at).unwrap();
                            assert!(
                                all[at as usize..].starts_with(&bytes[..n]),
                                "the open handle reads other bytes"
                            );
                        }
                    }
                }
            });
        }
        let from = new_transcript().bytes().len();
        for piece in all[from..].chunks(701) {
            append(&path, piece);
            if piece[0] % 8 == 0 {
                // Waits until a reader has continued.
                let calls = seen.load(Ordering::Relaxed);
                eventually("progress of a reader", || {
                    (seen.load(Ordering::Relaxed) > calls || calls > lines / 2).then_some(())
                });
            }
        }
        let last = eventually("the last words", || {
            let index: Value = serde_json::from_slice(&mount.read("workers/s/index.json")).unwrap();
            (index["final_words"] == "All is said.").then_some(index)
        });
        assert_eq!(last["calls"]["total"], lines + 1);
        ended.store(true, Ordering::Relaxed);
    });
    // Each file has a second of its own: one may still end at the size that the kernel holds.
    eventually("the end of source.jsonl", || {
        (mount.read("workers/s/source.jsonl") == all).then_some(())
    });
}

/// Promise: The end of a file that grows is never shown as zeros.
///
/// The kernel fills the rest of the last page with zeros. It must not show them once the size has
/// grown, not even before it drops the page.
#[test]
fn end_of_a_growing_file_is_never_zeros() {
    needs_fuse!();
    const PIECE: &[u8] = b"{\"type\":\"progress\",\"data\":\"one more line\"}\n";
    // Larger files are read by the kernel itself.
    const SIZE: usize = 100 << 10;
    let (store, path) = session(&new_transcript());
    let mount = Mount::new(&store.path());
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        for reader in 0..4 {
            let (mount, ended) = (&mount, &ended);
            scope.spawn(move || {
                let at = mount.at("workers/s/source.jsonl");
                let held = File::open(&at).unwrap();
                while !ended.load(Ordering::Relaxed) {
                    if reader == 0 {
                        // Tells the kernel the new size.
                        drop(File::open(&at).unwrap());
                        continue;
                    }
                    let mut bytes = [b' '; 4_096];
                    let end = held.metadata().unwrap().len().saturating_sub(4_096);
                    std::os::unix::fs::FileExt::read_at(&held, &mut bytes, end).unwrap();
                    assert!(!bytes.contains(&0), "zeros at the end, from {end} on");
                }
            });
        }
        let mut size = new_transcript().bytes().len();
        while size < SIZE {
            append(&path, PIECE);
            size += PIECE.len();
            drop(File::open(mount.at("workers/s/source.jsonl")).unwrap());
        }
        ended.store(true, Ordering::Relaxed);
    });
}

#[test]
fn overwritten_replaced_and_removed_transcripts_are_current() {
    needs_fuse!();
    let (store, path) = session(&new_transcript());
    let mount = Mount::new(&store.path());
    let text = |file: &str| fs::read_to_string(mount.at(&format!("workers/s/{file}"))).ok();
    assert_eq!(text("tool_calls/001_Bash.txt").unwrap(), "a file\n");
    let await_output = |output: &str| {
        let what = format!(
            "{output:?} in place of {:?}",
            fs::read_to_string(mount.at("workers/s/tool_calls/001_Bash.txt"))
        );
        eventually(&what, || (text("tool_calls/001_Bash.txt")? == output).then_some(()));
        eventually("its size in the index", || {
            text("index.json")?.contains(&format!("\"bytes\": {}", output.len())).then_some(())
        });
        let file = fs::read(&path).unwrap();
        eventually("the source", || {
            (fs::read(mount.at("workers/s/source.jsonl")).ok()? == file).then_some(())
        });
    };
    let with = |output: &str| {
        let mut transcript = Transcript::new("s");
        transcript.user("look around").bash("t0", "ls", output);
        transcript.bytes()
    };
    // In place with equal length; shorter; longer, with another beginning.
    for output in ["b file\n", "c\n", "a much longer file than any that was there before\n", ""] {
        fs::write(&path, with(output)).unwrap();
        await_output(output);
    }
    let fresh = store.write("projects/-p/tmp", with("replaced\n"));
    fs::rename(&fresh, &path).unwrap();
    await_output("replaced\n");
    fs::remove_file(&path).unwrap();
    eventually("the removal of the worker", || {
        (!mount.list("workers").contains(&"s".into())).then_some(())
    });
    eventually("the removal of the worker", || {
        fs::metadata(mount.at("workers/s/summary")).is_err().then_some(())
    });
    fs::write(&path, with("and back\n")).unwrap();
    await_output("and back\n");
}
