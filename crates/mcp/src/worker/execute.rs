//! The tool that runs shell commands in the view of the workspace.
//!
//! The output is recorded while it is produced. Background processes of a command run until the
//! session ends, unless the command timed out or was canceled: then all that it started ends.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use rmcp::model::JsonObject;
use rmcp::schemars::{self, JsonSchema};
use serde::{Deserialize, Serialize};

use super::session::{CommandEnd, END, KILL, KeptCommand, RecordedWork};
use super::{ToolRun, WorkerTool};
use crate::slice::NotedText;
use crate::tools::{ToolError, ToolResult, json, parse_arguments};
use swarmletfs_base::split::Split;
use swarmletfs_record::write::{Call, CallEnd};

const NAME: &str = "execute";
/// Default time limit of a command, in seconds.
const TIMEOUT_DEFAULT: u64 = 600;
/// Longest time limit of a command, in seconds.
const TIMEOUT_MAX: u64 = 24 * 3_600;
/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
/// Time without output after which the output of a command that has ended counts as read, although
/// processes that it left hold it open.
const QUIET: Duration = Duration::from_millis(200);
/// Longest time to read on after the end of a command.
const READ_ON_MAX: Duration = Duration::from_secs(2);
/// Interval between two checks of the command.
const INTERVAL: Duration = Duration::from_millis(20);
/// Size of the returned beginning, and of the returned end, of a stream, in bytes.
const KEPT: usize = 16 << 10;
/// Most output of a command that is recorded, in bytes.
const RECORDED_MAX: u64 = 64 << 20;
const CHUNK: usize = 64 << 10;
/// Chunks that may wait to be recorded.
const QUEUE: usize = 16;
/// Exit code of a command that was ended by its time limit, as in timeout(1).
const TIMED_OUT: i64 = 124;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
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
    WorkerTool::new::<ExecuteInput>(
        NAME,
        "Runs a command by sh -c at the root of the workspace. Returns a JSON object with stdout, \
         stderr and exit_code. Nothing outside of the workspace can be written.",
        false,
        execute,
    )
}

fn execute(run: &ToolRun<'_>, arguments: JsonObject) -> ToolResult {
    run.session.record_running(NAME, arguments, |call, arguments| {
        execute_recorded(run, call, arguments).unwrap_or_else(|error| RecordedWork {
            end: CallEnd::success(false).error(error.0.clone()),
            result: Err(error),
            write_error: None,
        })
    })
}

fn execute_recorded(
    run: &ToolRun<'_>,
    call: &mut Call,
    arguments: JsonObject,
) -> Result<RecordedWork, ToolError> {
    let input: ExecuteInput = parse_arguments(NAME, arguments)?;
    let limit = input.timeout.unwrap_or(TIMEOUT_DEFAULT);
    if !(1..=TIMEOUT_MAX).contains(&limit) {
        let text = format!("cannot use {limit} as timeout; try 1 to {TIMEOUT_MAX} seconds");
        return Err(ToolError::new(text));
    }
    let limit = Duration::from_secs(limit);
    run.session.background().must_have_room()?;
    let (command, output) = start(run, &input.command)?;
    let mut execution = Execution::new(command, limit);
    execution.read(&output, call, run.is_canceled);
    let (exit_code, error) = execution.describe_end(limit);
    let end = CallEnd::exit_code(exit_code).error(error.clone().unwrap_or_default());
    let is_whole = execution.record_error.is_none() && !execution.is_record_cut;
    let result = ExecuteOutput {
        stdout: execution.streams.0.text(),
        stderr: execution.streams.1.text(),
        exit_code,
    };
    run.session.background().keep(execution.command);
    let note = error.map(|error| format!("[... the command {error} ...]"));
    Ok(RecordedWork {
        result: json(&result).map(|text| NotedText { text, note }),
        end: if is_whole { end } else { end.truncated() },
        write_error: execution.record_error,
    })
}

#[derive(Clone, Copy)]
enum StreamName {
    Stdout,
    Stderr,
}

type Chunk = (StreamName, Vec<u8>);

/// Starts a command, and threads that send its output.
fn start(run: &ToolRun<'_>, script: &str) -> Result<(KeptCommand, Receiver<Chunk>), ToolError> {
    let cannot = |error: std::io::Error| {
        let text = format!("cannot run the command: {error}; try a shorter one, or try it again");
        ToolError::new(text)
    };
    let (mut command, stdout, stderr) =
        KeptCommand::start(&run.session.workspace, script).map_err(cannot)?;
    // Bounded, so that a command waits while its output is recorded.
    let (chunks, output) = mpsc::sync_channel(QUEUE);
    let stdout = stdout.map(|pipe| (StreamName::Stdout, Box::new(pipe) as Box<Pipe>));
    let stderr = stderr.map(|pipe| (StreamName::Stderr, Box::new(pipe) as Box<Pipe>));
    for (stream, pipe) in stdout.into_iter().chain(stderr) {
        let chunks = chunks.clone();
        let started = thread::Builder::new().spawn(move || copy(stream, pipe, &chunks));
        if let Err(error) = started {
            command.order(KILL);
            run.session.background().keep(command);
            return Err(cannot(error));
        }
    }
    Ok((command, output))
}

type Pipe = dyn Read + Send;

/// Sends the output of a pipe until its end. Output without a receiver is dropped: a closed pipe
/// would end a process in the background.
fn copy(stream: StreamName, mut pipe: Box<Pipe>, chunks: &mpsc::SyncSender<Chunk>) {
    let mut buffer = vec![0; CHUNK];
    loop {
        match pipe.read(&mut buffer) {
            Ok(0) => return,
            Ok(size) => {
                let chunk = buffer.split_at_known(size).0.to_vec();
                let _ = chunks.send((stream, chunk));
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

struct Execution {
    command: KeptCommand,
    deadline: Instant,
    /// Time of SIGKILL, once SIGTERM was sent.
    kill_at: Option<Instant>,
    is_killed: bool,
    timed_out: bool,
    was_canceled: bool,
    streams: (KeptOutput, KeptOutput),
    recorded: u64,
    is_record_cut: bool,
    record_error: Option<String>,
}

impl Execution {
    fn new(command: KeptCommand, limit: Duration) -> Execution {
        Execution {
            command,
            deadline: Instant::now() + limit,
            kill_at: None,
            is_killed: false,
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
        while !self.has_ended() || (is_open && !is_read(last, ended)) {
            match output.recv_timeout(INTERVAL) {
                Ok((stream, bytes)) => {
                    self.keep(stream, &bytes, call);
                    last = Instant::now();
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    is_open = false;
                    // The command may run on without its output.
                    thread::sleep(if self.has_ended() { Duration::ZERO } else { INTERVAL });
                }
            }
            if !self.has_ended() {
                self.command.update();
                (last, ended) = (Instant::now(), Instant::now());
                self.check_time(is_canceled);
            }
        }
    }

    /// Returns true if the command has ended. After a timeout or a cancellation, all processes that
    /// it started must have ended, too.
    fn has_ended(&self) -> bool {
        match self.kill_at {
            None => self.command.end.is_some(),
            Some(_) => self.command.is_gone,
        }
    }

    fn check_time(&mut self, is_canceled: &dyn Fn() -> bool) {
        let now = Instant::now();
        match self.kill_at {
            None if self.has_ended() => {}
            None if now >= self.deadline || is_canceled() => {
                self.timed_out = now >= self.deadline;
                self.was_canceled = !self.timed_out;
                self.command.order(END);
                self.kill_at = Some(now + GRACE);
            }
            Some(kill_at) if now >= kill_at && !self.is_killed => {
                self.command.order(KILL);
                self.is_killed = true;
            }
            Some(kill_at) if now >= kill_at + GRACE => self.command.abandon(),
            None | Some(_) => {}
        }
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

    /// Returns the exit code, and the cause if the command did not end by itself.
    fn describe_end(&self, limit: Duration) -> (i64, Option<String>) {
        if self.timed_out {
            return (TIMED_OUT, Some(format!("timed out after {limit:?}")));
        }
        match self.command.end {
            Some(CommandEnd::Signaled(signal)) if self.was_canceled => {
                (128 + i64::from(signal), canceled())
            }
            Some(CommandEnd::Signaled(signal)) => {
                (128 + i64::from(signal), Some(format!("was ended by signal {signal}")))
            }
            Some(CommandEnd::Exited(code)) if self.was_canceled => (code.into(), canceled()),
            Some(CommandEnd::Exited(code)) => (code.into(), None),
            None | Some(CommandEnd::Unknown) => {
                (-1, Some("was lost, since something ended the process that keeps it".to_owned()))
            }
        }
    }
}

fn canceled() -> Option<String> {
    Some("was canceled".to_owned())
}

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
        let (head, rest) = bytes.split_at_most(room);
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
