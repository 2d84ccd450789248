//! Asks a model by a command: the prompt is its input, its output the answer.
//!
//! The command is a line for the shell, in a process group of its own. The group is ended when the
//! command ends, when its time is over, and when it says too much.

use std::io::{self, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::{ANSWER_MAX, Said};

/// Part of the errors that is kept, in bytes.
const ERRORS_MAX: usize = 1_000;
/// Time that the output of an ended command has to arrive.
const REST_TIME: Duration = Duration::from_secs(2);

enum CommandEvent {
    Ended(io::Result<ExitStatus>),
    /// The output, at most one byte more than an answer may have.
    Output(Vec<u8>),
    /// The end of stderr.
    Errors(Vec<u8>),
}

/// Runs the command `line` for at most `time_max`.
///
/// # Errors
///
/// The reason why there is no answer, with the end of the command's stderr.
pub(super) fn ask(line: &str, prompt: &str, time_max: Duration) -> Result<Said, String> {
    let deadline = Instant::now() + time_max;
    let mut command = Command::new("sh");
    command.arg("-c").arg(line).process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().map_err(|error| format!("cannot run sh: {error}"))?;
    let group = Pid::from_raw(child.id().cast_signed());
    let (events, received) = channel();
    attend(child, group, prompt.to_owned(), &events).inspect_err(|_| kill(group))?;
    let mut end = ReceivedEvents::default();
    let in_time = end.receive(&received, deadline);
    if !in_time && end.status.is_none() {
        // Not reaped yet, so the number is still its own.
        kill(group);
        end.receive(&received, Instant::now() + REST_TIME);
    }
    end.answer(in_time, time_max)
}

/// Starts the threads that give the command its prompt, and that send its events.
///
/// # Errors
///
/// A thread cannot be started.
fn attend(
    mut child: Child,
    group: Option<Pid>,
    prompt: String,
    events: &Sender<CommandEvent>,
) -> Result<(), String> {
    if let Some(input) = child.stdin.take() {
        spawn(move || feed(input, &prompt))?;
    }
    // The asker may not wait any more.
    if let Some(output) = child.stdout.take() {
        let events = events.clone();
        spawn(move || _ = events.send(CommandEvent::Output(read_output(output))))?;
    }
    if let Some(errors) = child.stderr.take() {
        let events = events.clone();
        spawn(move || _ = events.send(CommandEvent::Errors(read_errors(errors))))?;
    }
    let events = events.clone();
    spawn(move || _ = events.send(CommandEvent::Ended(wait(child, group))))
}

fn spawn(work: impl FnOnce() + Send + 'static) -> Result<(), String> {
    let thread = thread::Builder::new().name("model-command".into()).spawn(work);
    thread.map(drop).map_err(|error| format!("cannot start a thread: {error}"))
}

fn feed(mut input: ChildStdin, prompt: &str) {
    // A command may end before it has read everything.
    let _ = input.write_all(prompt.as_bytes());
}

fn read_output(output: ChildStdout) -> Vec<u8> {
    let mut bytes = Vec::new();
    // An error ends the output.
    let _ = output.take(ANSWER_MAX as u64 + 1).read_to_end(&mut bytes);
    bytes
}

fn read_errors(mut errors: ChildStderr) -> Vec<u8> {
    let (mut kept, mut part) = (Vec::new(), [0; 4_096]);
    while let Ok(read @ 1..) = errors.read(&mut part) {
        kept.extend_from_slice(part.get(..read).unwrap_or(&part));
        kept.drain(..kept.len().saturating_sub(ERRORS_MAX));
    }
    kept
}

/// Waits for the end of the command, and then ends its group.
fn wait(mut child: Child, group: Option<Pid>) -> io::Result<ExitStatus> {
    if let Some(pid) = group {
        // The number stays its own until it is reaped.
        let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        kill(group);
    }
    child.wait()
}

fn kill(group: Option<Pid>) {
    if let Some(group) = group {
        // A group that is gone needs no end.
        let _ = kill_process_group(group, Signal::KILL);
    }
}

#[derive(Default)]
struct ReceivedEvents {
    status: Option<io::Result<ExitStatus>>,
    output: Option<Vec<u8>>,
    errors: Option<Vec<u8>>,
}

impl ReceivedEvents {
    /// Receives events until all have come, the output is too long, or `deadline` passes. Returns
    /// false in the latter cases.
    fn receive(&mut self, received: &Receiver<CommandEvent>, mut deadline: Instant) -> bool {
        while self.status.is_none() || self.output.is_none() || self.errors.is_none() {
            let left = deadline.saturating_duration_since(Instant::now());
            match received.recv_timeout(left) {
                Ok(CommandEvent::Ended(status)) => {
                    self.status = Some(status);
                    deadline = deadline.min(Instant::now() + REST_TIME);
                }
                Ok(CommandEvent::Output(output)) => {
                    let is_flood = output.len() > ANSWER_MAX;
                    self.output = Some(output);
                    if is_flood {
                        return false;
                    }
                }
                Ok(CommandEvent::Errors(errors)) => self.errors = Some(errors),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return false,
            }
        }
        true
    }

    fn answer(self, in_time: bool, time_max: Duration) -> Result<Said, String> {
        let errors = String::from_utf8_lossy(&self.errors.unwrap_or_default()).trim().to_owned();
        let with_errors = |why: String| match errors.is_empty() {
            true => why,
            false => format!("{why}: {errors}"),
        };
        let output = self.output.unwrap_or_default();
        if output.len() > ANSWER_MAX {
            return Err(with_errors(format!("the command said more than {ANSWER_MAX} bytes")));
        }
        match self.status {
            Some(Ok(status)) if status.success() && in_time => {
                Ok(Said { text: String::from_utf8_lossy(&output).into_owned(), tokens: None })
            }
            Some(Ok(status)) if in_time => Err(with_errors(match status.code() {
                Some(code) => format!("the command exited with {code}"),
                None => {
                    format!("signal {} ended the command", status.signal().unwrap_or_default())
                }
            })),
            Some(Err(error)) => Err(format!("cannot wait for the command: {error}")),
            _ => Err(with_errors(format!(
                "the command did not answer within {} s",
                time_max.as_secs_f64()
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(line: &str, time: Duration) -> Result<String, String> {
        ask(line, "the prompt\n", time).map(|said| said.text)
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn output_of_the_command_is_the_answer() {
        assert_eq!(answer("tr a-z A-Z", LONG), Ok("THE PROMPT\n".into()));
        assert_eq!(answer("echo unread", LONG), Ok("unread\n".into()));
        assert_eq!(answer("printf 'a\\377'", LONG), Ok("a\u{fffd}".into()));
    }

    #[test]
    fn failures_are_told_with_the_errors_of_the_command() {
        let failed = answer("echo no key >&2; exit 3", LONG).unwrap_err();
        assert_eq!(failed, "the command exited with 3: no key");
        let failed = answer("kill -9 $$", LONG).unwrap_err();
        assert_eq!(failed, "signal 9 ended the command");
        let failed = answer("yes | head -c 100000", LONG).unwrap_err();
        assert_eq!(failed, format!("the command said more than {ANSWER_MAX} bytes"));
        let failed = answer("yes | head -c 100000 >&2; yes", LONG).unwrap_err();
        assert!(failed.starts_with("the command said more"), "{failed}");
        assert!(failed.len() < ERRORS_MAX + 100, "{failed}");
    }

    #[test]
    fn command_and_its_children_end_with_its_time() {
        let folder = tempfile::tempdir().unwrap();
        let alive = folder.path().join("alive");
        let line = format!("mkfifo {0}; echo here >&2; sleep 600 >{0} & cat {0}", alive.display());
        let start = Instant::now();
        let failed = answer(&line, Duration::from_millis(500)).unwrap_err();
        assert_eq!(failed, "the command did not answer within 0.5 s: here");
        assert!(start.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn children_that_a_command_leaves_end_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        let line =
            format!("mkfifo {0}; exec 3<>{0}; (sleep 600 & echo $!); echo done", fifo.display());
        let said = answer(&line, LONG).unwrap();
        let child = said.lines().next().unwrap();
        let start = Instant::now();
        loop {
            let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
            // Gone, or dead and not yet reaped by its new parent. A kill takes a moment.
            if stat.is_empty() || stat.contains(") Z ") || stat.contains(") X ") {
                break;
            }
            assert!(start.elapsed() < LONG, "{stat}");
            std::thread::yield_now();
        }
        assert!(said.ends_with("done\n"));
    }
}
