//! The tool that runs shell commands in the view of the workspace.
//!
//! The output is recorded while it is produced. Background processes of a command run until the
//! session ends, unless the command was ended by its time or by the client: then they end, too.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use rmcp::model::JsonObject;
use rmcp::schemars::JsonSchema;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};

use super::processes::{CommandMark, MARKER};
use super::session::noting_record;
use super::{ToolRun, WorkerFn, WorkerTool, definition};
use crate::mcp::slice::NotedText;
use crate::mcp::tools::{ToolError, ToolResult, json, parse_arguments};
use crate::write::{Call, CallEnd};

const NAME: &str = "execute";
/// Time limit of a command, by default.
const TIMEOUT_DEFAULT: u64 = 600;
/// Longest time limit of a command.
const TIMEOUT_MAX: u64 = 24 * 3_600;
/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
/// Time without output after which the output of a command that has ended counts as read, although
/// processes that it left hold it open.
const QUIET: Duration = Duration::from_millis(200);
/// Longest time to read on after the end of a command.
const READ_ON_MAX: Duration = Duration::from_secs(2);
/// Time between two looks at the command.
const INTERVAL: Duration = Duration::from_millis(20);
/// Beginning and end of a stream that are returned, each, in bytes.
const KEPT: usize = 16 << 10;
/// Most output of a command that is recorded, in bytes.
const RECORDED_MAX: u64 = 64 << 20;
/// Amount of output that is read at once, in bytes.
const CHUNK: usize = 64 << 10;
/// Chunks that may wait to be recorded.
const QUEUE: usize = 16;
/// Exit code of a command that was ended by its time limit, as timeout(1) has it.
const TIMED_OUT: i64 = 124;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(crate = "rmcp::schemars")]
struct ExecuteInput {
    /// The command, for sh -c
    command: String,
    /// Time limit in seconds [default: 600]
    timeout: Option<u64>,
}

#[derive(Serialize)]
struct ExecuteOutput {
    stdout: String,
    stderr: String,
    exit_code: i64,
}

pub(super) fn tool() -> WorkerTool {
    WorkerTool {
        definition: definition::<ExecuteInput>(
            NAME,
            "Runs a command by sh -c at the root of the workspace. Returns a JSON object with \
             stdout, stderr and exit_code. Nothing outside of the workspace can be written.",
            false,
        ),
        call: WorkerFn::Recording(execute),
    }
}

fn execute(run: &ToolRun<'_>, arguments: JsonObject) -> ToolResult {
    let mut call = run.session.begin(NAME, &arguments)?;
    let begun = parse_arguments(NAME, arguments).and_then(|input: ExecuteInput| {
        let limit = input.timeout.unwrap_or(TIMEOUT_DEFAULT);
        if !(1..=TIMEOUT_MAX).contains(&limit) {
            let text = format!("cannot use {limit} as timeout; try 1 to {TIMEOUT_MAX} seconds");
            return Err(ToolError::new(text));
        }
        Ok((start(run, &input.command)?, Duration::from_secs(limit)))
    });
    let (started, limit) = match begun {
        Ok(begun) => begun,
        Err(error) => {
            let end = CallEnd::success(false).error(error.0.clone());
            return noting_record(Err(error), None, call.end(end).err());
        }
    };
    let Started { child, mark, output } = started;
    let mut execution = Execution::new(child, mark, limit);
    execution.read(&output, &mut call, run.is_canceled);
    execution.end_others();
    let (exit_code, error) = execution.describe_end(limit);
    let end = CallEnd::exit_code(exit_code).error(error.clone().unwrap_or_default());
    let is_whole = execution.record_error.is_none() && !execution.is_record_cut;
    let ended = call.end(if is_whole { end } else { end.truncated() });
    let result = ExecuteOutput {
        stdout: execution.streams.0.text(),
        stderr: execution.streams.1.text(),
        exit_code,
    };
    let note = error.map(|error| format!("[... the command {error} ...]"));
    let result = json(&result).map(|text| NotedText { text, note });
    noting_record(result, execution.record_error, ended.err())
}

/// One of the two streams of a command.
#[derive(Clone, Copy)]
enum StreamName {
    Stdout,
    Stderr,
}

type Chunk = (StreamName, Vec<u8>);

/// A command that was started.
struct Started {
    child: Child,
    mark: CommandMark,
    output: Receiver<Chunk>,
}

/// Starts a command in a process group of its own.
fn start(run: &ToolRun<'_>, command: &str) -> Result<Started, ToolError> {
    let cannot = |error: std::io::Error| ToolError::new(format!("cannot run sh: {error}"));
    let mark = CommandMark::new().map_err(|error| cannot(error.into()))?;
    let mut child = Command::new("sh")
        .arg("-c")
        .arg(command)
        .current_dir(run.session.workspace())
        .env("PWD", run.session.workspace())
        .env(MARKER, mark.value())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(cannot)?;
    // Bounded, so that a command waits while its output is recorded.
    let (chunks, output) = mpsc::sync_channel(QUEUE);
    let stdout = child.stdout.take().map(|pipe| (StreamName::Stdout, Box::new(pipe) as Box<Pipe>));
    let stderr = child.stderr.take().map(|pipe| (StreamName::Stderr, Box::new(pipe) as Box<Pipe>));
    for (stream, pipe) in stdout.into_iter().chain(stderr) {
        let chunks = chunks.clone();
        let started = thread::Builder::new().spawn(move || copy(stream, pipe, &chunks));
        if let Err(error) = started {
            end_group(&child, Signal::KILL);
            let _ = child.wait();
            return Err(cannot(error));
        }
    }
    Ok(Started { child, mark, output })
}

type Pipe = dyn Read + Send;

/// Sends what a pipe has until its end. If nobody receives it any more, it is dropped: a process in
/// the background would be ended by a closed pipe.
fn copy(stream: StreamName, mut pipe: Box<Pipe>, chunks: &mpsc::SyncSender<Chunk>) {
    let mut buffer = vec![0; CHUNK];
    loop {
        match pipe.read(&mut buffer) {
            Ok(0) => return,
            Ok(size) => {
                let chunk = buffer.split_at(size).0.to_vec();
                let _ = chunks.send((stream, chunk));
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// Sends a signal to the process group of a command.
fn end_group(child: &Child, signal: Signal) {
    // The group may have no process any more.
    let _ = kill_process_group(Pid::from_child(child), signal);
}

/// A command that runs.
struct Execution {
    child: Child,
    mark: CommandMark,
    deadline: Instant,
    /// Time of SIGKILL, once the command was told to end.
    kill_at: Option<Instant>,
    status: Option<ExitStatus>,
    timed_out: bool,
    was_canceled: bool,
    /// stdout and stderr.
    streams: (KeptOutput, KeptOutput),
    recorded: u64,
    is_record_cut: bool,
    record_error: Option<String>,
}

impl Execution {
    fn new(child: Child, mark: CommandMark, limit: Duration) -> Execution {
        Execution {
            child,
            mark,
            deadline: Instant::now() + limit,
            kill_at: None,
            status: None,
            timed_out: false,
            was_canceled: false,
            streams: Default::default(),
            recorded: 0,
            is_record_cut: false,
            record_error: None,
        }
    }

    /// Reads the output to its end, and ends the command when its time is over.
    fn read(&mut self, output: &Receiver<Chunk>, call: &mut Call, is_canceled: &dyn Fn() -> bool) {
        let (mut last, mut ended) = (Instant::now(), Instant::now());
        let mut is_open = true;
        let is_read = |last: Instant, ended: Instant| {
            last.elapsed() >= QUIET || ended.elapsed() >= READ_ON_MAX
        };
        while self.status.is_none() || (is_open && !is_read(last, ended)) {
            match output.recv_timeout(INTERVAL) {
                Ok((stream, bytes)) => {
                    self.keep(stream, &bytes, call);
                    last = Instant::now();
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    is_open = false;
                    // The command may run on without its output.
                    thread::sleep(if self.status.is_none() { INTERVAL } else { Duration::ZERO });
                }
            }
            if self.status.is_none() {
                self.status = self.child.try_wait().ok().flatten();
                (last, ended) = (Instant::now(), Instant::now());
                self.check_time(is_canceled);
            }
        }
    }

    fn check_time(&mut self, is_canceled: &dyn Fn() -> bool) {
        let now = Instant::now();
        match self.kill_at {
            Some(kill_at) if now >= kill_at => {
                end_group(&self.child, Signal::KILL);
                self.mark.signal_all(Signal::KILL);
            }
            Some(_) => {}
            None if now >= self.deadline || is_canceled() => {
                self.timed_out = now >= self.deadline;
                self.was_canceled = !self.timed_out;
                end_group(&self.child, Signal::TERM);
                self.mark.signal_all(Signal::TERM);
                self.kill_at = Some(now + GRACE);
            }
            None => {}
        }
    }

    /// Ends the processes that a command left which was told to end, once their time is over.
    fn end_others(&self) {
        let Some(kill_at) = self.kill_at else { return };
        while Instant::now() < kill_at && self.mark.has_process() {
            thread::sleep(INTERVAL);
        }
        end_group(&self.child, Signal::KILL);
        self.mark.signal_all(Signal::KILL);
    }

    fn keep(&mut self, stream: StreamName, bytes: &[u8], call: &mut Call) {
        match stream {
            StreamName::Stdout => self.streams.0.add(bytes),
            StreamName::Stderr => self.streams.1.add(bytes),
        }
        self.recorded += bytes.len() as u64;
        if self.recorded > RECORDED_MAX {
            self.is_record_cut = true;
        } else if self.record_error.is_none()
            && let Err(error) = call.write_all(bytes)
        {
            self.record_error = Some(error.to_string());
        }
    }

    /// Returns the exit code, and what ended the command if it did not end by itself.
    fn describe_end(&self, limit: Duration) -> (i64, Option<String>) {
        if self.timed_out {
            return (TIMED_OUT, Some(format!("timed out after {limit:?}")));
        }
        let signal = self.status.and_then(|status| status.signal());
        let code = self.status.and_then(|status| status.code()).map_or(-1, i64::from);
        match signal {
            Some(signal) if self.was_canceled => (128 + i64::from(signal), canceled()),
            Some(signal) => {
                (128 + i64::from(signal), Some(format!("was ended by signal {signal}")))
            }
            None if self.was_canceled => (code, canceled()),
            None => (code, None),
        }
    }
}

fn canceled() -> Option<String> {
    Some("was canceled".to_owned())
}

/// The beginning and the end of a stream.
#[derive(Default)]
struct KeptOutput {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    /// Number of bytes between them.
    omitted: u64,
}

impl KeptOutput {
    fn add(&mut self, bytes: &[u8]) {
        let room = KEPT - self.head.len();
        let (head, rest) = bytes.split_at(bytes.len().min(room));
        self.head.extend_from_slice(head);
        self.tail.extend(rest);
        let over = self.tail.len().saturating_sub(KEPT);
        self.tail.drain(..over);
        self.omitted += over as u64;
    }

    fn text(&self) -> String {
        let tail: Vec<u8> = self.tail.iter().copied().collect();
        if self.omitted == 0 {
            return String::from_utf8_lossy(&[&self.head[..], &tail[..]].concat()).into_owned();
        }
        let (head, tail) = (String::from_utf8_lossy(&self.head), String::from_utf8_lossy(&tail));
        format!("{head}\n[... {} B omitted ...]\n{tail}", self.omitted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beginning_and_end_of_a_long_output_are_kept() {
        let mut kept = KeptOutput::default();
        kept.add(b"begin\n");
        assert_eq!(kept.text(), "begin\n");
        for _ in 0..100 {
            kept.add(&[b'x'; 1_000]);
        }
        kept.add(b"\nend");
        let text = kept.text();
        assert!(text.starts_with("begin\nxxx") && text.ends_with("xxx\nend"), "{text}");
        let omitted = 6 + 100_000 + 4 - 2 * KEPT;
        assert!(text.contains(&format!("\n[... {omitted} B omitted ...]\n")), "{text}");
    }
}
