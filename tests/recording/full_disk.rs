//! A disk with room for only k blocks, for every k.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags};

use super::store::{
    assert_readable, assert_whole, assert_writable, ended_calls, make_store, metadata, outputs,
    record, worker, worker_lines,
};
use crate::cli::program::{CommandOutput, is_root, run, swarmletfs};

/// Size of the disk, in bytes.
const SIZE: u64 = 512 << 10;
/// Free blocks with which every command succeeds.
const BLOCKS_MAX: u64 = 40;
/// Text of the error of a full disk.
const FULL: &str = "no space left on device";

/// A small disk with a store.
struct SmallDisk {
    dir: tempfile::TempDir,
}

impl SmallDisk {
    fn new() -> SmallDisk {
        let dir = tempfile::tempdir().unwrap();
        let options = CString::new(format!("size={SIZE}")).unwrap();
        let options = options.as_c_str();
        rustix::mount::mount("tmpfs", dir.path(), "tmpfs", MountFlags::empty(), options).unwrap();
        let disk = SmallDisk { dir };
        make_store(&disk.store());
        disk.record(&["worker", "message", "w1"], message("first")).assert_success();
        disk.record(&["worker", "put", "w1", "outputs/old.md"], "old\n").assert_success();
        disk.record(&["worker", "record", "w1", "--tool", "sh"], "output\n").assert_success();
        disk
    }

    fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    fn record(&self, arguments: &[&str], stdin: impl AsRef<[u8]>) -> CommandOutput {
        record(&self.store(), arguments, stdin)
    }

    /// Fills the disk until `free` blocks are free.
    fn fill(&self, free: u64) {
        let path = self.dir.path().join("filler");
        let mut filler = File::options().create(true).append(true).open(path).unwrap();
        let block = rustix::fs::statvfs(self.dir.path()).unwrap().f_bsize;
        let bytes = vec![1; usize::try_from(block).unwrap()];
        let error = (0..).find_map(|_| filler.write_all(&bytes).err()).unwrap();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        let size = filler.metadata().unwrap().len();
        filler.set_len((size / block - free) * block).unwrap();
        assert_eq!(rustix::fs::statvfs(self.dir.path()).unwrap().f_bfree, free);
    }

    fn make_room(&self) {
        // A process that another test is about to start may still hold the file.
        fs::write(self.dir.path().join("filler"), "").unwrap();
    }

    /// Asserts that everything that was recorded before is there.
    fn assert_nothing_lost(&self) {
        let store = self.store();
        let first = &worker_lines(&store, "w1", "thread.jsonl")[0];
        assert_eq!(first["content"], "first");
        assert_eq!(outputs(&store, "w1")[&1].1, b"output\n");
        assert_eq!(ended_calls(&store, "w1")[&1]["tool"], "sh");
        assert_eq!(metadata(&store, "w1")["task"], "Check the backups");
        let old = fs::read_to_string(worker(&store, "w1").join("outputs/old.md")).unwrap();
        assert!(old == "old\n" || old == long("new"), "{old}");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.dir.path(), UnmountFlags::DETACH);
    }
}

fn message(content: &str) -> String {
    format!("{}\n", serde_json::json!({"role": "user", "content": content}))
}

/// Returns a text of several blocks.
fn long(what: &str) -> String {
    format!("{what} {}\n", "x".repeat(99)).repeat(100)
}

/// A command on a full disk.
struct Attempt {
    arguments: &'static [&'static str],
    stdin: String,
    /// Part of the path that its error names.
    named: &'static str,
    is_done: fn(&Path) -> bool,
}

fn attempts() -> [Attempt; 5] {
    [
        Attempt {
            arguments: &["worker", "create", "--id", "w2", "--task", "Another task"],
            stdin: String::new(),
            named: "workers",
            is_done: |store| worker(store, "w2").join("metadata.json").exists(),
        },
        Attempt {
            arguments: &["worker", "record", "w1", "--tool", "df", "--exit", "0"],
            stdin: long("output"),
            named: "w1",
            is_done: |store| {
                let outputs = outputs(store, "w1");
                let ended = ended_calls(store, "w1");
                let mut ended = ended.iter().filter(|(_, call)| call["tool"] == "df");
                ended.any(|(seq, _)| outputs[seq].1 == long("output").as_bytes())
            },
        },
        Attempt {
            arguments: &["worker", "message", "w1"],
            stdin: message(&long("message")),
            named: "w1/thread.jsonl",
            is_done: |store| {
                let lines = worker_lines(store, "w1", "thread.jsonl");
                lines.get(1).is_some_and(|line| line["content"] == long("message"))
            },
        },
        Attempt {
            arguments: &["worker", "put", "w1", "outputs/old.md"],
            stdin: long("new"),
            named: "w1/outputs/old.md",
            is_done: |store| {
                fs::read(worker(store, "w1").join("outputs/old.md")).unwrap()
                    == long("new").as_bytes()
            },
        },
        Attempt {
            arguments: &["worker", "finish", "w1", "--result", "-"],
            stdin: long("result"),
            named: "w1/",
            is_done: |store| metadata(store, "w1")["status"] == "completed",
        },
    ]
}

/// Promise: A full disk loses nothing that was acknowledged.
#[test]
fn full_disk_loses_nothing_and_the_error_says_so() {
    if !is_root() {
        return;
    }
    let (mut failures, mut commands) = (0, 0);
    for attempt in attempts() {
        for free in 0.. {
            assert!(free <= BLOCKS_MAX, "{:?} fails with {free} blocks", attempt.arguments);
            let disk = SmallDisk::new();
            disk.fill(free);
            let done = disk.record(attempt.arguments, &attempt.stdin);
            commands += 1;
            let is_done = (attempt.is_done)(&disk.store());
            if done.code == Some(0) {
                assert!(is_done, "acknowledged and not done: {done:#?}");
            } else {
                done.assert_failure(1, &["cannot ", FULL, attempt.named]);
                assert!(!is_done, "done and not acknowledged: {done:#?}");
                failures += 1;
            }
            disk.assert_nothing_lost();
            assert_whole(&disk.store());
            disk.make_room();
            if !is_done {
                let again = disk.record(attempt.arguments, &attempt.stdin);
                again.assert_success();
                assert!((attempt.is_done)(&disk.store()), "not done with room: {again:#?}");
            }
            disk.assert_nothing_lost();
            assert_whole(&disk.store());
            assert_writable(&disk.store());
            if done.code == Some(0) {
                assert_readable(&disk.store());
                break;
            }
        }
    }
    eprintln!("{commands} commands on a full disk; {failures} failed");
    assert!(failures >= 10, "{failures}");
}

/// Pads the log of changes, so that its next entry needs a new block.
fn pad_log(store: &Path) -> PathBuf {
    let log = fs::read_dir(store.join("audit")).unwrap().next().unwrap().unwrap().path();
    let size = fs::metadata(&log).unwrap().len();
    let last = "{\"time\":\"2026-01-20T10:00:00Z\",\"uid\":0,\"pid\":1,\"program\":\"";
    let end = "\",\"action\":\"put\",\"result\":\"ok\"}\n";
    let room = usize::try_from(size.next_multiple_of(4096) - size).unwrap();
    let room = if room < 200 { room + 4096 } else { room };
    let padding = "x".repeat(room - last.len() - end.len());
    let mut file = File::options().append(true).open(&log).unwrap();
    file.write_all(format!("{last}{padding}{end}").as_bytes()).unwrap();
    log
}

/// Promise: A log of changes that cannot be written prevents no change.
#[test]
fn log_of_changes_on_a_full_disk_is_a_warning() {
    if !is_root() {
        return;
    }
    let disk = SmallDisk::new();
    let log = pad_log(&disk.store());
    let logged = fs::read(&log).unwrap();
    disk.fill(0);
    let done = disk.record(&["worker", "message", "w1"], message("short"));
    done.assert_success();
    assert!(done.err.contains("cannot write the log of changes") && done.err.contains(FULL));
    assert_eq!(worker_lines(&disk.store(), "w1", "thread.jsonl")[1]["content"], "short");
    assert_eq!(fs::read(&log).unwrap(), logged);
    // Empty directories take no block, so that only the log of the new store needs one.
    let mut init = swarmletfs(["init"]);
    init.arg(disk.dir.path().join("new"));
    let made = run(init);
    made.assert_success();
    assert!(made.err.contains("cannot write the log of changes") && made.err.contains(FULL));
    assert!(disk.dir.path().join("new/workers").is_dir());
    disk.make_room();
    let done = disk.record(&["worker", "message", "w1"], message("again"));
    assert_eq!(done.assert_success().err, "");
    assert!(fs::read(&log).unwrap().len() > logged.len());
    assert_whole(&disk.store());
}

/// Promise: An output that was not recorded wholly is marked as truncated.
#[test]
fn output_that_a_full_disk_cut_is_marked_as_truncated() {
    if !is_root() {
        return;
    }
    let disk = SmallDisk::new();
    let store = disk.store();
    disk.fill(2);
    let mut command = swarmletfs(["record", "--worker", "w1", "--store"]);
    command.arg(&store).args(["--", "seq", "100000"]);
    let done = run(command);
    assert_eq!(done.code, Some(125), "{done:#?}");
    assert!(done.out.ends_with("\n100000\n"), "the command went on");
    let message = done.err.to_lowercase();
    assert!(message.contains("the recording is not complete: ") && message.contains(FULL));
    disk.make_room();
    let end = &ended_calls(&store, "w1")[&2];
    assert_eq!((&end["exit_code"], &end["truncated"]), (&0.into(), &true.into()));
    let summary = run({
        let mut command = swarmletfs(["cat", "workers/w1/summary", "--store"]);
        command.arg(&store);
        command
    });
    let expected = "truncated_at_source: an output was truncated before it was recorded";
    assert!(summary.out.contains(expected), "{summary:#?}");
    assert_whole(&store);
}
