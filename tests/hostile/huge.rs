//! R10: whatever the size and shape of workers' files, memory stays within a limit, incomplete
//! reads are reported, and other workers are served as before.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::mount::eventually;
use crate::needs_fuse;
use crate::support::{Mount, TestStore};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const TIB: u64 = 1 << 40;
/// Maximum growth of the memory beyond that of the idle program, in bytes.
const BOUND: u64 = 64 << 20;
/// All generated files of a directory.
const ALL: [&str; 3] = ["index.json", "summary", "evidence.txt"];

/// Creates the file at a path.
type CreateFile<'a> = &'a dyn Fn(&Path);

/// A mounted store of one plain worker, whose program is idle after answering everything once.
struct IdleMount {
    store: TestStore,
    mount: Mount,
    /// Memory of the idle program, in bytes.
    idle: u64,
}

impl IdleMount {
    fn new() -> IdleMount {
        let store = TestStore::new();
        store.worker("plain", json!({"owner_id": "A", "status": "failed"}));
        store.call("plain", 1, "sh", "fine\n").call("plain", 2, "sh", "Error: not fine\n");
        let mount = Mount::new(&store.path());
        for name in ALL {
            mount.read(&format!("workers/plain/{name}"));
            mount.read(name);
        }
        let idle = memory(&mount, "VmRSS");
        fs::write(format!("/proc/{}/clear_refs", mount.pid()), "5").unwrap();
        IdleMount { store, mount, idle }
    }

    /// Creates a worker with these files, and moves it into the store atomically.
    fn put(&self, worker: &str, files: &[(&str, CreateFile<'_>)]) {
        let folder: PathBuf = self.store.path().parent().unwrap().join(worker);
        fs::create_dir(&folder).unwrap();
        fs::write(
            folder.join("metadata.json"),
            json!({"owner_id": "A", "status": "completed"}).to_string(),
        )
        .unwrap();
        for (name, make) in files {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            make(&path);
        }
        fs::create_dir_all(self.store.at("workers")).unwrap();
        fs::rename(folder, self.store.at(format!("workers/{worker}"))).unwrap();
    }

    /// Reads these generated files of a worker as soon as it is listed, and those of the swarm.
    fn read(&self, worker: &str, names: &[&str]) {
        eventually("the worker in the list", || {
            self.mount.list("workers").contains(&worker.into()).then_some(())
        });
        for name in names {
            assert!(!self.mount.read(&format!("workers/{worker}/{name}")).is_empty());
        }
        assert!(self.mount.text("summary").contains("workers  "));
        assert!(self.mount.text("index.json").contains(&format!("\"id\":\"{worker}\"")));
    }

    /// Asserts that memory stayed within the limit and that other workers are served as before.
    #[track_caller]
    fn check(&self) {
        let over = memory(&self.mount, "VmHWM").saturating_sub(self.idle);
        assert!(over <= BOUND, "{} MiB over the {} MiB of idleness", over >> 20, self.idle >> 20);
        eprintln!("{} MiB over the {} MiB of idleness", over >> 20, self.idle >> 20);
        assert!(self.mount.text("workers/plain/evidence.txt").contains("Error: not fine"));
        let index: Value = serde_json::from_slice(&self.mount.read("index.json")).unwrap();
        let plain =
            index["workers"].as_array().unwrap().iter().find(|row| row["id"] == "plain").unwrap();
        assert_eq!(plain["outcome"], "failed");
    }

    fn index(&self, worker: &str) -> Value {
        serde_json::from_slice(&self.mount.read(&format!("workers/{worker}/index.json"))).unwrap()
    }

    /// Returns the message of a check about a file.
    fn check_message(&self, worker: &str, name: &str, file: &str) -> Option<String> {
        let index = self.index(worker);
        let checks = index["checks"].as_array().unwrap();
        let found = checks.iter().find(|check| check["name"] == name && check["file"] == file);
        found.map(|check| check["says"].as_str().unwrap().to_owned())
    }
}

fn memory(mount: &Mount, key: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", mount.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}

/// Writes `part` repeatedly between `head` and `tail`.
fn repeated(path: &Path, head: &str, part: &str, times: usize, tail: &str) {
    let mut file = BufWriter::with_capacity(MIB, File::create(path).unwrap());
    let block = part.repeat((64 * KIB / part.len()).max(1));
    let in_block = block.len() / part.len();
    file.write_all(head.as_bytes()).unwrap();
    (0..times / in_block).for_each(|_| file.write_all(block.as_bytes()).unwrap());
    (0..times % in_block).for_each(|_| file.write_all(part.as_bytes()).unwrap());
    file.write_all(tail.as_bytes()).unwrap();
}

/// Creates a sparse file with data only at these offsets.
fn sparse(path: &Path, size: u64, islands: &[(u64, &[u8])]) {
    let file = File::create(path).unwrap();
    file.set_len(size).unwrap();
    islands.iter().for_each(|(at, bytes)| file.write_all_at(bytes, *at).unwrap());
}

/// Promise: Reads at offsets around every power of two return the right bytes.
#[test]
fn offsets_around_every_power_of_two_are_exact() {
    needs_fuse!();
    let idle = IdleMount::new();
    let text: Vec<u8> = (0..=255).collect();
    let middles = [1_u64 << 31, 1 << 32, TIB / 2, TIB];
    let islands: Vec<(u64, &[u8])> =
        middles.iter().map(|middle| (middle - 128, &text[..])).collect();
    idle.put("huge", &[("data.bin", &|path| sparse(path, TIB + 1_000, &islands))]);
    idle.read("huge", &ALL);
    let at_source = File::open(idle.store.at("workers/huge/data.bin")).unwrap();
    let mounted = File::open(idle.mount.at("workers/huge/data.bin")).unwrap();
    assert_eq!(mounted.metadata().unwrap().len(), TIB + 1_000);
    let (mut wanted, mut found) = ([0; 300], [1; 300]);
    for middle in middles {
        for at in [
            middle - 300,
            middle - 129,
            middle - 1,
            middle,
            middle + 1,
            middle + 700,
            middle + 999,
            middle + 1_000,
        ] {
            let read = (
                at_source.read_at(&mut wanted, at).unwrap(),
                mounted.read_at(&mut found, at).unwrap(),
            );
            assert_eq!(read.0, read.1, "at {at}");
            assert_eq!(wanted[..read.0], found[..read.0], "at {at}");
        }
    }
    idle.check();
}

/// Promise: Endless logs are searched until the deadline, and the answer says how far.
#[test]
fn endless_logs_are_searched_until_the_deadline() {
    needs_fuse!();
    let idle = IdleMount::new();
    let line = vec![b'x'; 64 * KIB];
    idle.put(
        "huge",
        &[
            ("tool_calls/001_line.txt", &|path| {
                sparse(path, TIB, &[(0, &line), (TIB - 20, b"\nError: at the end\n")])
            }),
            ("tool_calls/002_zeros.txt", &|path| sparse(path, TIB, &[])),
            ("tool_calls/003_sh.txt", &|path| fs::write(path, "Error: the other call\n").unwrap()),
        ],
    );
    idle.read("huge", &["evidence.txt"]);
    let evidence = idle.mount.text("workers/huge/evidence.txt");
    assert!(evidence.contains(
        "tool_calls/001_line.txt (1099511627776 B, outcome unknown, searched from byte "
    ));
    for shown in ["\nError: at the end\n", "(binary, not shown)", "\nError: the other call\n"] {
        assert!(evidence.contains(shown), "{shown:?} is not in {evidence}");
    }
    idle.check();
}

/// Promise: Metadata over its size limit is unreadable, and its worker is listed.
#[test]
fn oversized_metadata_is_unreadable_and_its_worker_listed() {
    needs_fuse!();
    let idle = IdleMount::new();
    let hostile: [(&str, CreateFile<'_>, &str); 5] = [
        ("zeros", &|path| sparse(path, 200_000_000, &[]), "larger than 2097152 bytes"),
        (
            "text",
            &|path| repeated(path, "{\"task\": \"", "a task\\n", 25_000_000, "\"}"),
            "larger than 2097152 bytes",
        ),
        (
            "lists",
            &|path| repeated(path, "{\"tags\":[", "[0],", MIB / 2 - 10, "0]}"),
            "larger than 20000 values",
        ),
        (
            "objects",
            &|path| repeated(path, "{\"tags\":[", "{\"id\":0},", MIB / 5, "0]}"),
            "larger than 20000 values",
        ),
        (
            "deep",
            &|path| repeated(path, "{\"config\":", "[", 100_000, ""),
            "not JSON: recursion limit exceeded",
        ),
    ];
    for (worker, make, _) in hostile {
        idle.put(worker, &[("metadata.json", make)]);
    }
    for (worker, _, says) in hostile {
        idle.read(worker, &ALL);
        let said = idle.check_message(worker, "bad_metadata", "metadata.json").unwrap();
        assert!(said.contains(says), "{worker}: {said}");
    }
    idle.check();
}

#[test]
fn unread_metadata_fields_cost_no_memory() {
    needs_fuse!();
    let idle = IdleMount::new();
    let parts = ["[0],", "{\"a\":{}},", "\"\",", "0,"];
    for (number, part) in parts.iter().enumerate() {
        let make = |path: &Path| {
            repeated(
                path,
                "{\"history\":[",
                part,
                MIB / part.len(),
                "0],\"status\":\"completed\"}",
            );
        };
        idle.put(&format!("padded-{number}"), &[("metadata.json", &make)]);
    }
    // Values kept for every worker are short, however long the source is.
    let words = ["status", "worker_id", "task_type", "model", "run_id", "error", "task", "summary"];
    for word in words {
        let head = format!("{{\"{word}\":\"");
        let make = |path: &Path| repeated(path, &head, "a word ", MIB / 4, "\"}");
        idle.put(&format!("wordy-{word}"), &[("metadata.json", &make)]);
    }
    for (number, part) in parts.iter().enumerate() {
        idle.read(&format!("padded-{number}"), &ALL);
        assert_eq!(idle.index(&format!("padded-{number}"))["status"], "completed", "{part}");
    }
    for word in words {
        idle.read(&format!("wordy-{word}"), &["summary"]);
        let index = idle.mount.read(&format!("workers/wordy-{word}/index.json"));
        assert!(index.len() < 20_000, "{word}: {} B", index.len());
    }
    idle.check();
}

#[test]
fn a_huge_thread_is_read_until_time_runs_out_and_the_extent_reported() {
    needs_fuse!();
    let idle = IdleMount::new();
    let call = json!({"role": "assistant", "content": "words", "tool_calls": [{"name": "sh", "args": {"c": "ls -l"}}]});
    idle.put(
        "huge",
        &[
            ("tool_calls/001_sh.txt", &|path| fs::write(path, "Error: the output\n").unwrap()),
            ("thread.jsonl", &|path| repeated(path, "", &format!("{call}\n"), 1_000_000, "")),
        ],
    );
    idle.read("huge", &["index.json"]);
    let index = idle.index("huge");
    assert_eq!(
        index["tool_calls"][0]["outcome"], "failed",
        "what decides is read before the thread"
    );
    assert_eq!(index["tool_calls"][0]["input"], "ls -l");
    match idle.check_message("huge", "not_read_in_time", "thread.jsonl") {
        Some(says) => {
            assert!(
                says.starts_with("only its first ") && says.ends_with(" bytes were read in time"),
                "{says}"
            )
        }
        None => {
            assert!(
                idle.check_message("huge", "call_without_result", "thread.jsonl")
                    .unwrap()
                    .contains("sh (999999)")
            )
        }
    }
    idle.check();
}

#[test]
fn metrics_are_kept_only_for_calls_with_a_file() {
    needs_fuse!();
    let idle = IdleMount::new();
    let line = "{\"event\":\"tool_call\",\"tool\":\"sh\",\"success\":false}\n";
    idle.put(
        "huge",
        &[
            ("tool_calls/001_sh.txt", &|path| fs::write(path, "the output\n").unwrap()),
            ("metrics.jsonl", &|path| repeated(path, "", line, 2_000_000, "")),
        ],
    );
    idle.read("huge", &["index.json"]);
    assert_eq!(idle.index("huge")["tool_calls"][0]["outcome"], "failed");
    idle.check();
}

/// Promise: JSON lines that are huge, deep or full of values are skipped and counted, and all
/// others are read.
#[test]
fn excessive_json_lines_are_counted_and_others_read() {
    needs_fuse!();
    let idle = IdleMount::new();
    let last = "{\"role\":\"assistant\",\"content\":\"the last words\"}\n";
    let lines: [(&str, &str, &str, usize); 4] = [
        ("values", "{\"role\":\"assistant\",\"content\":[", "[0],", MIB),
        (
            "arguments",
            "{\"role\":\"assistant\",\"tool_calls\":[{\"name\":\"sh\",\"args\":[",
            "{\"a\":0},",
            MIB / 2,
        ),
        ("deep", "{\"role\":\"assistant\",\"content\":", "[", 100_000),
        ("long", "{\"role\":\"assistant\",\"content\":\"", "content\\n", 2 * MIB),
    ];
    for (worker, head, part, times) in lines {
        idle.put(
            worker,
            &[("thread.jsonl", &|path| repeated(path, head, part, times, &format!("\n{last}")))],
        );
        idle.put(
            &format!("m-{worker}"),
            &[("metrics.jsonl", &|path| repeated(path, head, part, times, "\n"))],
        );
    }
    for (worker, ..) in lines {
        idle.read(worker, &["index.json"]);
        assert_eq!(
            idle.check_message(worker, "bad_lines", "thread.jsonl").as_deref(),
            Some("1 line could not be read"),
            "{worker}"
        );
        assert_eq!(idle.index(worker)["final_words"], "the last words", "{worker}");
        idle.read(&format!("m-{worker}"), &["index.json"]);
        assert!(
            idle.check_message(&format!("m-{worker}"), "bad_lines", "metrics.jsonl").is_some(),
            "{worker}"
        );
    }
    idle.check();
}

/// Promise: Outputs of any JSON shape are judged and quoted within the limits.
#[test]
fn outputs_of_any_json_shape_are_judged_within_limits() {
    needs_fuse!();
    let idle = IdleMount::new();
    let shapes: [(&str, &str, &str, usize, &str); 9] = [
        ("newlines", "", "\n", MIB, ""),
        ("short-lines", "", "a\n", MIB, ""),
        ("progress", "", "9%\r", MIB / 3, ""),
        ("json", "{\"ok\": false, \"a\":[", "[0],", MIB, "0]}"),
        ("json-deep", "{\"ok\": false, \"a\":", "[", 100_000, ""),
        ("python", "{'ok': False, 'a':[", "0,", MIB / 2 - 20, "0]}"),
        ("python-lists", "{'ok': False, 'a':[", "[],", MIB / 3 - 20, "0]}"),
        ("python-deep", "{'ok': False, 'a':", "[", 100_000, ""),
        ("python-text", "{'ok': False, 'a': '", "it is, or [seems]: {so}\\n", MIB / 30, "'}"),
    ];
    for (worker, head, part, times, tail) in shapes {
        idle.put(
            worker,
            &[("tool_calls/001_sh.txt", &|path| repeated(path, head, part, times, tail))],
        );
    }
    for (worker, ..) in shapes {
        idle.read(worker, &ALL);
        let outcome = if matches!(worker, "json" | "python" | "python-lists" | "python-text") {
            "failed"
        } else {
            "unknown"
        };
        assert_eq!(idle.index(worker)["tool_calls"][0]["outcome"], outcome, "{worker}");
    }
    idle.check();
}

#[test]
fn other_files_of_any_shape_are_read_within_the_memory_limit() {
    needs_fuse!();
    let idle = IdleMount::new();
    let deep = |path: &Path| repeated(path, "", "[", 100_000, "");
    let many = |path: &Path| repeated(path, "[", "{\"tool\":\"a\"},", MIB / 7, "\"b\"]");
    let zeros = |path: &Path| sparse(path, TIB, &[]);
    idle.put("deep", &[("tools_used.json", &deep)]);
    idle.put("many", &[("tools_used.json", &many)]);
    let loose = [
        "result.txt",
        "task.txt",
        "logs/errors.log",
        "logs/other.log",
        "outputs/report.md",
        "outputs/data.json",
    ];
    let mut all: Vec<(&str, CreateFile<'_>)> =
        loose.iter().map(|name| (*name, &zeros as CreateFile<'_>)).collect();
    all.extend([
        ("tools_used.json", &zeros as CreateFile<'_>),
        ("thread.jsonl", &zeros),
        ("metrics.jsonl", &zeros),
    ]);
    idle.put("zeros", &all);
    for worker in ["deep", "many", "zeros"] {
        idle.read(worker, &["index.json", "evidence.txt"]);
    }
    for (file, read) in [("thread.jsonl", 256 * MIB), ("metrics.jsonl", 256 * MIB)] {
        // This much of the longest file is read; if time ran out first, that is reported.
        let says = idle
            .check_message("zeros", "not_read_whole", file)
            .or_else(|| idle.check_message("zeros", "not_read_in_time", file));
        let says = says.unwrap_or_else(|| panic!("nothing is said of {file}"));
        let bytes: usize = says.split(' ').nth(3).unwrap().parse().unwrap();
        assert!(bytes <= read, "{file}: {says}");
    }
    idle.check();
}

/// Promise: An index of any shape hides no worker, and its entries apply to workers that exist.
#[test]
fn index_of_any_shape_hides_no_worker() {
    needs_fuse!();
    for path in ["workers/index.json", "index.json"] {
        let idle = IdleMount::new();
        if path == "index.json" {
            idle.store.write("bare/metadata.json", json!({"owner_id": "A"}).to_string());
        }
        let (worker, write) = (if path == "index.json" { "bare" } else { "huge" }, |text: &str| {
            fs::write(idle.store.at("new"), text).unwrap();
            fs::rename(idle.store.at("new"), idle.store.at(path)).unwrap();
        });
        idle.put("huge", &[]);
        write(&"[".repeat(100_000));
        idle.read(worker, &ALL);
        let mut many: String =
            (0..150_000).map(|number| format!("{{\"id\":\"{number}\"}},")).collect();
        many = format!(
            "[{many}{}{{\"id\":\"{worker}\",\"task\":\"from the index\"}}]",
            "[[0]],".repeat(100_000)
        );
        write(&many);
        eventually("what the index says", || {
            idle.mount
                .text(&format!("workers/{worker}/summary"))
                .contains("from the index")
                .then_some(())
        });
        idle.check();
    }
}
