//! Exhausted resources (R22): descriptors, memory, inode numbers, space for the log. A request may
//! fail with a precise error. The mount survives, recovers as soon as there is enough, and leaks
//! nothing.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::{Child, Command, Stdio};
use std::thread;

use rustix::io::Errno;
use rustix::process::Resource;
use serde_json::json;

use super::{eventually, swarm};
use crate::cli::program::{MountSandbox, is_root, program, run, with_log};
use crate::faults::served::Served;
use crate::needs_fuse;
use crate::support::mount::PROGRAM;
use crate::support::{Mount, TestStore, scale};

/// Number of handles held at once.
const HANDLES: usize = 10_800;
/// Number of handles of one process, within the usual limit of open files.
const HANDLES_EACH: usize = 900;

/// Opens files in turn, reports how many it holds and the errors of the others, and waits to be
/// ended.
const HOLDER: &str = r#"
import os, sys
held, refused = [], set()
for number in range(int(sys.argv[1])):
    try:
        held.append(os.open(sys.argv[2 + number % len(sys.argv[2:])], os.O_RDONLY))
    except OSError as error:
        refused.add(error.errno)
print(len(held), *sorted(refused), flush=True)
sys.stdin.read()
"#;

/// A process that holds open files of a mount.
struct Holder {
    child: Child,
    held: usize,
    refused: Vec<i32>,
}

impl Holder {
    /// Starts opening files; [`Holder::wait_until_ready`] waits until all are open.
    fn start(mount: &Mount, number: usize, paths: &[&str]) -> Holder {
        let mut command = Command::new("python3");
        command
            .args(["-c", HOLDER, &number.to_string()])
            .args(paths.iter().map(|path| mount.at(path)));
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3");
        Holder { child, held: 0, refused: Vec::new() }
    }

    fn wait_until_ready(mut self) -> Holder {
        let mut line = String::new();
        BufReader::new(self.child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let mut numbers = line.split_whitespace().map(|number| number.parse::<i32>().unwrap());
        self.held = numbers.next().unwrap().try_into().unwrap();
        self.refused = numbers.collect();
        self
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Opens [`HANDLES`] handles.
fn hold_many(mount: &Mount, paths: &[&str]) -> Vec<Holder> {
    let started: Vec<Holder> =
        (0..HANDLES / HANDLES_EACH).map(|_| Holder::start(mount, HANDLES_EACH, paths)).collect();
    let holders: Vec<Holder> = started.into_iter().map(Holder::wait_until_ready).collect();
    for holder in &holders {
        assert_eq!((holder.held, &holder.refused[..]), (HANDLES_EACH, &[][..]));
    }
    holders
}

/// Waits until no file of the store is open, and returns the number of open descriptors of the
/// program.
fn idle_descriptors(mount: &Mount, store: &TestStore) -> usize {
    eventually("the release of all open files", || {
        let held = mount.descriptors();
        let open = held.iter().any(|path| path.starts_with(store.path()) && *path != store.path());
        (!open).then_some(held.len())
    })
}

const WORKER_FILE: &str = "workers/alpha/result.txt";
const WORKER_TEXT: &str = "All hosts were checked.\n";

/// Promise: Ten thousand handles can be open at once, and all are released.
#[test]
fn ten_thousand_handles_open_at_once_and_are_released() {
    needs_fuse!();
    let store = swarm();
    // A limit as a shell sets it; the program may raise it by itself.
    let mount = Mount::by(&["prlimit", "--nofile=1024:"], &store.path(), &[]);
    assert_eq!(mount.text(WORKER_FILE), WORKER_TEXT);
    let before = idle_descriptors(&mount, &store);
    let holders = hold_many(
        &mount,
        &[WORKER_FILE, "workers/beta/metadata.json", "workers/alpha/evidence.txt", "workers"],
    );
    assert!(mount.descriptors().len() > HANDLES / 3, "every own file is one descriptor");
    assert_eq!(mount.text(WORKER_FILE), WORKER_TEXT);
    assert!(mount.list("workers").contains(&"alpha".to_owned()));
    drop(holders);
    assert!(idle_descriptors(&mount, &store) <= before);
}

/// Promise: Without free descriptors, requests fail with EMFILE and the mount continues.
#[test]
fn requests_fail_with_emfile_without_descriptors() {
    needs_fuse!();
    let store = swarm();
    let mut mount = Mount::by(&["prlimit", "--nofile=64:64"], &store.path(), &[]);
    mount.expect_warning("too many open files");
    assert_eq!(mount.text(WORKER_FILE), WORKER_TEXT);
    let before = idle_descriptors(&mount, &store);
    let holder = Holder::start(&mount, 200, &[WORKER_FILE]).wait_until_ready();
    assert!((20..64).contains(&holder.held), "{} of 200 are held", holder.held);
    let exhausted = [Errno::MFILE.raw_os_error()];
    assert_eq!(holder.refused, exhausted);
    for path in [
        "workers",
        "workers/alpha/summary",
        "workers/alpha/evidence.txt",
        "workers/beta/metadata.json",
        "",
    ] {
        // Requests that need no descriptor succeed, and all others report the cause.
        let found = fs::metadata(mount.at(path)).and_then(|_| File::open(mount.at(path)));
        assert!(
            found.is_ok() || found.is_err_and(|e| exhausted.contains(&e.raw_os_error().unwrap())),
            "{path}"
        );
    }
    drop(holder);
    assert!(idle_descriptors(&mount, &store) <= before);
    for path in ["index.json", "summary", "workers/alpha/evidence.txt", "workers/beta/index.json"] {
        let text = mount.text(path);
        assert!(!text.contains("too many open files"), "{path} caches a failed read: {text}");
    }
}

#[test]
fn every_lookup_is_released() {
    needs_fuse!();
    if !is_root() {
        return;
    }
    let mut served = Served::new();
    let names = [
        "",
        "workers",
        "workers/failed/summary",
        "runs/latest",
        "supervisor/strategy.md",
        "absent",
    ];
    let lookups = scale(40_000);
    thread::scope(|scope| {
        for at in 0..4 {
            let served = &*served;
            scope.spawn(move || {
                for number in 0..lookups / 4 {
                    // The kernel looks up a generated name at every access; some names are looked
                    // up only once.
                    let budget =
                        format!("workers/plain/evidence.{}.txt", 1_000 + 4 * (number / 64) + at);
                    let path = if number % 64 == 0 { &budget } else { names[number % names.len()] };
                    let found = fs::symlink_metadata(served.at(path));
                    assert!(found.is_ok_and(|meta| meta.ino() > 0) || path == "absent", "{path}");
                }
            });
        }
    });
    let holders =
        hold_many(&served, &["workers/failed/task.txt", "workers/failed/summary", "summary"]);
    let (inodes, handles) = served.held();
    assert!(
        inodes > lookups / 100 && handles >= HANDLES,
        "{inodes} inodes and {handles} handles were held"
    );
    drop(holders);
    eventually("the release of all inodes except the root", || {
        served.forget();
        (served.held() == (0, 0)).then_some(())
    });
}

const MIB: usize = 1 << 20;

#[test]
fn little_address_space_is_enough_to_start() {
    needs_fuse!();
    // The code of a program whose libraries are not optimized takes 97 MiB of it, of a release 36.
    let (store, limit) = (swarm(), format!("--as={}", 208 * MIB));
    let mount = Mount::by(&["prlimit", &limit], &store.path(), &[]);
    assert_eq!(mount.text(WORKER_FILE), WORKER_TEXT);
    let sandbox = MountSandbox::new();
    let point = sandbox.folder("mnt");
    let mut command = with_log(program("prlimit", [&limit, PROGRAM, "mount"]), &point);
    command.arg("--store").arg(store.path()).arg(&point);
    run(command).assert_success();
    assert_eq!(fs::read_to_string(point.join(WORKER_FILE)).unwrap(), WORKER_TEXT);
}

#[test]
fn everything_is_served_in_half_a_gibibyte_of_address_space() {
    needs_fuse!();
    let store = TestStore::new();
    store.worker("w", json!({"status": "running"})).call("w", 1, "sh", "fine\n").call(
        "w",
        3,
        "sh",
        "Error: last\n",
    );
    store.call("w", 2, "log", "one line ".repeat(32 * MIB / 9));
    store.write("workers/w/thread.jsonl", "x".repeat(24 * MIB));
    store.write(
        "workers/long/metadata.json",
        json!({"worker_id": "long", "task": "y".repeat(40 * MIB)}).to_string(),
    );
    File::create(store.at("workers/w/huge")).unwrap().set_len(1 << 40).unwrap();
    let mount = Mount::by(&["prlimit", &format!("--as={}", 512 * MIB)], &store.path(), &[]);
    let pid = mount.pid();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for path in [
                    "summary",
                    "workers/long/summary",
                    "workers/w/index.json",
                    "workers/w/evidence.txt",
                ] {
                    assert!(!mount.read(path).is_empty(), "{path}");
                }
                assert!(mount.text("workers/w/evidence.8M.txt").contains("Error: last"));
                let huge = File::open(mount.at("workers/w/huge")).unwrap();
                let mut buffer = vec![1; 8 * MIB];
                huge.read_exact_at(&mut buffer, 1 << 39).unwrap();
                assert!(buffer.iter().all(|byte| *byte == 0));
            });
        }
    });
    let line = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    assert!(
        line.lines()
            .any(|line| line.starts_with("Max address space") && line.contains("536870912")),
        "{line}"
    );
    assert_eq!(mount.text("workers/w/tool_calls/001_sh.txt"), "fine\n");
}

/// Promise: A log that cannot be written has no effect on the mount.
#[test]
fn unwritable_log_has_no_effect() {
    needs_fuse!();
    let store = swarm();
    let mount = Mount::by(&["bash", "-c", "exec \"$@\" 2>/dev/full", "bash"], &store.path(), &[]);
    assert!(!mount.text("workers/alpha/metadata.json").is_empty());
    // Every refused lookup writes a line to the log. There are more of them than threads.
    mount.limit(Resource::Nofile, 3);
    for _ in 0..20 {
        let error = fs::read(mount.at(WORKER_FILE)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::MFILE.raw_os_error()));
    }
    mount.limit(Resource::Nofile, 1_000);
    assert_eq!(mount.text(WORKER_FILE), WORKER_TEXT);
}
