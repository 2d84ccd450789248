//! Synthetic swarm on disk whose every byte follows from its shape and seed, so that a reader can
//! verify it.
//!
//! Each file has any number of versions and states its version and path in its text. A reader that
//! knows the shape can generate that version and compare, even while a writer replaces the file.
//! Shared by the tests, `benches/` and `examples/load`.

use std::fmt::Write;
use std::fs::{self, File, FileTimes};
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use fastrand::Rng;
use serde_json::{Value, json};

/// Start of the swarm, 2026-01-20T00:00:00Z, in seconds since 1970.
const BEGUN: u64 = 1_768_867_200;
const TOOLS: [&str; 5] = ["ssh_exec", "run_command", "web_fetch", "sql_query", "grep_logs"];
const PROGRAMS: [&str; 8] =
    ["api", "billing", "cron", "kernel", "ledger", "nginx", "queue", "sshd"];
const EVENTS: [&str; 8] = [
    "accepted connection from",
    "closed session of",
    "finished request of",
    "flushed buffer for",
    "renewed lease of",
    "sent reply to",
    "started job for",
    "wrote checkpoint of",
];
const TROUBLES: [&str; 4] = [
    "ERROR: No space left on device",
    "WARN: slow query",
    "error: connection refused",
    "FATAL: timeout exceeded",
];
/// One of this many workers is still running and may be rewritten; another one has failed.
const RUNNING_EVERY: usize = 3;

/// The shape of a swarm.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Swarm {
    /// Number of workers.
    pub(crate) workers: usize,
    /// Number of tool calls of each worker.
    pub(crate) calls: usize,
    /// Approximate size of an output, in bytes.
    pub(crate) bytes: usize,
    /// Seed of the content.
    pub(crate) seed: u64,
}

/// A file of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// metadata.json.
    Metadata,
    /// task.txt.
    Task,
    /// result.txt.
    Result,
    /// thread.jsonl, which only grows: version `n` has `n` more lines than version 0.
    Thread,
    /// The n-th output, from 1.
    Call(usize),
}

impl Part {
    /// Returns the path relative to the worker's directory.
    pub(crate) fn path(self) -> String {
        match self {
            Part::Metadata => "metadata.json".into(),
            Part::Task => "task.txt".into(),
            Part::Result => "result.txt".into(),
            Part::Thread => "thread.jsonl".into(),
            Part::Call(call) => format!("tool_calls/{call:03}_{}.txt", tool(call)),
        }
    }
}

fn tool(call: usize) -> &'static str {
    TOOLS.get(call % TOOLS.len()).unwrap_or(&"sh")
}

impl Swarm {
    /// Returns the id of a worker, which is the name of its directory.
    pub(crate) fn id(&self, worker: usize) -> String {
        format!("worker-{worker:05}")
    }

    /// Returns all files of a worker.
    pub(crate) fn parts(&self) -> impl Iterator<Item = Part> {
        let fixed = [Part::Metadata, Part::Task, Part::Result, Part::Thread];
        fixed.into_iter().chain((1..=self.calls).map(Part::Call))
    }

    /// Returns true if the worker is running, so that its files may change.
    pub(crate) fn is_running(&self, worker: usize) -> bool {
        worker.is_multiple_of(RUNNING_EVERY)
    }

    /// Returns the bytes of a version of a file.
    pub(crate) fn bytes(&self, worker: usize, part: Part, version: u64) -> Vec<u8> {
        let mark = format!("version {version} of {}/{}", self.id(worker), part.path());
        let mut rng = self.rng(&mark);
        match part {
            Part::Metadata => self.metadata(worker, version, &mark),
            Part::Task => format!("{mark}\n{}\n", task(worker)).into_bytes(),
            Part::Result => format!("{mark}\n{}", log(&mut rng, 300)).into_bytes(),
            Part::Thread => {
                let lines = 1 + 2 * self.calls as u64 + version;
                (0..lines).map(|line| self.message(worker, line)).collect::<String>().into_bytes()
            }
            Part::Call(call) => {
                let bytes = if version == 0 {
                    self.bytes
                } else {
                    self.bytes / 2 + rng.usize(..=self.bytes)
                };
                output(worker, call, &format!("{mark}\n{}", log(&mut rng, bytes)))
            }
        }
    }

    /// Checks that `bytes` are one whole version of this file, or a prefix of thread.jsonl.
    pub(crate) fn check(&self, worker: usize, part: Part, bytes: &[u8]) -> Result<(), String> {
        if part == Part::Thread {
            let mut rest = bytes;
            for line in 0.. {
                let line = self.message(worker, line);
                match rest.strip_prefix(line.as_bytes()) {
                    Some(after) => rest = after,
                    None if line.as_bytes().starts_with(rest) => return Ok(()),
                    None => return Err(format!("differs after byte {}", bytes.len() - rest.len())),
                }
            }
        }
        let version =
            version_in(bytes).ok_or_else(|| format!("no version in its {} bytes", bytes.len()))?;
        let right = self.bytes(worker, part, version) == bytes;
        if right {
            Ok(())
        } else {
            Err(format!("{} bytes, not the whole of version {version}", bytes.len()))
        }
    }

    /// Returns the line to append to a thread.jsonl with the content `bytes`.
    pub(crate) fn next_message(&self, worker: usize, bytes: &[u8]) -> Vec<u8> {
        let lines = bytes.iter().filter(|b| **b == b'\n').count();
        self.message(worker, lines as u64).into_bytes()
    }

    /// Writes version 0 of every file into the directory `store`.
    pub(crate) fn make(&self, store: &Path) -> io::Result<()> {
        let mut listed = Vec::new();
        for worker in 0..self.workers {
            let folder = store.join("workers").join(self.id(worker));
            fs::create_dir_all(folder.join("tool_calls"))?;
            for part in self.parts() {
                let path = folder.join(part.path());
                fs::write(&path, self.bytes(worker, part, 0))?;
                let file = File::options().write(true).open(&path)?;
                file.set_times(FileTimes::new().set_modified(self.made(worker, part)))?;
            }
            listed.push(json!({
                "id": self.id(worker), "task": task(worker), "status": self.status(worker),
                "path": format!("workers/{}", self.id(worker)), "created_at": stamp(worker as u64), "tags": ["made-up"],
            }));
        }
        let index = json!({"workers": listed, "total_workers": self.workers});
        fs::create_dir_all(store.join("workers"))?;
        fs::write(store.join("workers/index.json"), serde_json::to_vec_pretty(&index)?)
    }

    /// Returns the mtime of version 0 of a file.
    pub(crate) fn made(&self, worker: usize, part: Part) -> SystemTime {
        let later = match part {
            Part::Call(call) => call as u64,
            _ => 0,
        };
        SystemTime::UNIX_EPOCH + Duration::from_secs(BEGUN + 60 * worker as u64 + later)
    }

    fn status(&self, worker: usize) -> &'static str {
        match worker % RUNNING_EVERY {
            0 => "running",
            1 => "success",
            _ => "failed",
        }
    }

    fn rng(&self, mark: &str) -> Rng {
        let hash = blake3::hash(format!("{} {mark}", self.seed).as_bytes());
        let (first, _) = hash.as_bytes().split_first_chunk().unwrap_or((&[0; 8], &[]));
        Rng::with_seed(u64::from_le_bytes(*first))
    }

    fn metadata(&self, worker: usize, version: u64, mark: &str) -> Vec<u8> {
        let status = self.status(worker);
        let finished = status != "running";
        let body = json!({
            "worker_id": self.id(worker), "task": task(worker), "task_type": mark,
            "config": {"model": "large-2", "owner_id": worker % 8 + 1, "execution_mode": "local"},
            "status": status, "created_at": stamp(worker as u64), "started_at": stamp(worker as u64 + 1),
            "finished_at": finished.then(|| stamp(worker as u64 + 600)), "duration_ms": finished.then_some(599_000),
            "run_id": worker / 100 + 1, "job_id": worker + 1,
            "error": (status == "failed").then_some("TimeoutError: stopped after 600 s"),
            "summary": format!("Seen so far: {mark}"),
            "notes": "n".repeat((version * 37 % 3_000) as usize),
        });
        serde_json::to_vec_pretty(&body).unwrap_or_default()
    }

    /// Returns a line of thread.jsonl: the task, then each call and its result, then any number of
    /// further messages.
    fn message(&self, worker: usize, line: u64) -> String {
        let call = line.div_ceil(2) as usize;
        let message = match line {
            0 => json!({"role": "user", "content": task(worker)}),
            _ if call > self.calls => {
                json!({"role": "assistant", "content": format!("Step {line} is done.")})
            }
            _ if line % 2 == 1 => {
                let args = json!({"host": format!("host-{}", worker % 50), "command": format!("check --part {call}")});
                json!({"role": "assistant", "content": "",
                    "tool_calls": [{"id": format!("call_{call}"), "name": tool(call), "args": args}]})
            }
            _ => json!({"role": "tool", "name": tool(call), "tool_call_id": format!("call_{call}"),
                "content": format!("(in {})", Part::Call(call).path())}),
        };
        format!("{message}\n")
    }
}

/// Returns the version that a file states.
pub(crate) fn version_in(bytes: &[u8]) -> Option<u64> {
    let at = memchr::memmem::find(bytes, b"version ")? + b"version ".len();
    let digits = bytes.get(at..)?.split(|b| !b.is_ascii_digit()).next()?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn task(worker: usize) -> String {
    format!(
        "Check host-{} and say what fills its disk, what failed overnight and what is to be done",
        worker % 50
    )
}

fn stamp(second: u64) -> Value {
    let (hours, minutes, seconds) = (second / 3_600 % 24, second / 60 % 60, second % 60);
    json!(format!("2026-01-20T{hours:02}:{minutes:02}:{seconds:02}.000000+00:00"))
}

/// Returns an output like those of real tools: every third is plain text, the others are JSON with
/// an exit code. Some report a failure.
fn output(worker: usize, call: usize, text: &str) -> Vec<u8> {
    let failed = (worker + call).is_multiple_of(9);
    if call % 3 == 1 {
        return if failed { format!("Error: it failed\n{text}") } else { text.to_owned() }
            .into_bytes();
    }
    let (code, complaint) = if failed { (1, "error: it failed\n") } else { (0, "") };
    let body =
        json!({"ok": true, "data": {"exit_code": code, "stdout": text, "stderr": complaint}});
    body.to_string().into_bytes()
}

/// Returns at least `bytes` bytes of log lines; one line in two hundred reports a problem.
fn log(rng: &mut Rng, bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + 100);
    let mut second = rng.u32(..40_000);
    while text.len() < bytes {
        second += rng.u32(..3);
        let (hours, minutes, seconds) = (second / 3_600 % 24, second / 60 % 60, second % 60);
        let (program, pid, host) =
            (rng.choice(PROGRAMS).unwrap_or_default(), rng.u16(..), rng.u8(..));
        let event = if rng.u8(..200) == 0 { rng.choice(TROUBLES) } else { rng.choice(EVENTS) }
            .unwrap_or_default();
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{hours:02}:{minutes:02}:{seconds:02} {program}[{pid}]: {event} 10.0.4.{host}"
        );
    }
    text
}
