//! `swarmletfs record`: runs a command and records it as a call of a worker.
//!
//! The command and the recording are independent: a recording that fails, as on a full disk, does
//! not end the command.

use std::borrow::Cow;
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use serde_json::json;

use super::duration::parse_duration;
use super::exit;
use super::run_command::{self, CommandSpec, Ended, Sink, StreamMode};
use super::terminal::print_message;
use super::write_args::{WriteArgs, into_cli_error, open_worker, parse_size};
use swarmletfs_record::write::{Call, CallEnd, Store};

pub(super) const HELP: &str = "\
The output goes to stdout and stderr as it comes, and in its order to a new call of the worker, \
which readers can follow. Signals are passed on. The exit code is that of the command.

Examples:
  swarmletfs record -- pg_restore --list x.dump
  swarmletfs record --timeout 10m --max-bytes 10M -- make test 2>&1 | tail
  swarmletfs record --tty --tool shell -- vim notes.md

The recording ends when the output does. A process that the command leaves in the background holds \
it open, as with `| tee`; --timeout ends it, too.

Exit code: that of the command, 128 + N if signal N ended it, 124 after --timeout, 126 if it cannot \
be run, 127 if it does not exist, and 125 if it cannot be recorded: before it runs, or if it \
succeeded and its output could not be recorded or passed on wholly.";

const COMMAND_MAX: usize = 64 << 10;

/// Arguments of `record`.
#[derive(Debug, Args)]
pub(super) struct RecordArgs {
    /// The worker [default: $SWARMLET_WORKER]
    #[arg(long, value_name = "ID")]
    worker: Option<OsString>,

    /// The name of the tool [default: the name of the command]
    #[arg(long, value_name = "NAME")]
    tool: Option<String>,

    /// End the command and all processes that it started after this time: 30s, 5m, 1h30m, or whole
    /// seconds
    #[arg(long, value_name = "TIME", value_parser = parse_timeout)]
    timeout: Option<Duration>,

    /// Record at most this much of the output, its beginning and its end: bytes, optionally with k,
    /// M or G
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    max_bytes: Option<u64>,

    /// Run the command on a terminal of its own, connected to this one
    #[arg(long)]
    tty: bool,

    #[command(flatten)]
    write: WriteArgs,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Parses a time limit, which cannot be zero.
pub(super) fn parse_timeout(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        Duration::ZERO => {
            Err("a command needs some time; for no limit, leave the option out".into())
        }
        limit => Ok(limit),
    }
}

pub(super) fn run(arguments: RecordArgs) -> ExitCode {
    exit::report_as_not_recorded(record(arguments))
}

struct CallSink(Call);

impl Sink for CallSink {
    fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let path = self.0.path();
        self.0.write_all(bytes).with_context(|| format!("cannot write {}", path.display()))
    }
}

fn record(arguments: RecordArgs) -> anyhow::Result<ExitCode> {
    let write = arguments.write.clone();
    let (ended, recorded) = write.with_store(|store| record_in(store, arguments))?;
    let is_whole = recorded.is_ok() && !ended.lost_output;
    if let Err(error) = recorded {
        print_message(&format!("{:#}", error.context("the recording is not complete")));
    }
    let has_hidden_failure = ended.exit_code == 0 && !is_whole;
    Ok(if has_hidden_failure { exit::not_recorded() } else { ExitCode::from(ended.exit_code) })
}

/// Returns the end of the command, and the first error of the recording.
///
/// # Errors
///
/// The call cannot be begun, or the command cannot be started for want of terminals or the like.
fn record_in(store: &Store, arguments: RecordArgs) -> anyhow::Result<(Ended, anyhow::Result<()>)> {
    let RecordArgs { worker, tool, timeout, max_bytes, tty, write, command } = arguments;
    let worker = open_worker(store, worker.as_ref())?;
    let tool = tool.unwrap_or_else(|| command_name(&command));
    let input = json!({"command": command_line(&command)});
    let call = worker.begin_call(&tool, Some(input)).map_err(into_cli_error)?;
    let mut sink = CallSink(call);
    let spec = CommandSpec {
        command,
        environment: std::env::vars_os().collect(),
        timeout,
        streams: StreamMode::of_option(tty),
        max_bytes,
        quiet: write.quiet,
    };
    let mut ended = match run_command::run(&spec, &mut sink) {
        Ok(ended) => ended,
        Err(error) => {
            let end = CallEnd::success(false).error(format!("cannot be run: {error:#}"));
            // If this fails, too, the first error is the one to report.
            let _ = sink.0.end(end);
            return Err(error);
        }
    };
    let recorded = sink.0.end(call_end(&ended, timeout)).map_err(into_cli_error);
    let recorded = ended.sink_error.take().map_or(recorded.map(drop), Err);
    Ok((ended, recorded))
}

/// Converts the end of a command into the end of its call.
fn call_end(ended: &Ended, timeout: Option<Duration>) -> CallEnd {
    let error = match (ended, timeout) {
        (Ended { spawn_error: Some(error), .. }, _) => format!("cannot be run: {error}"),
        (Ended { timed_out: true, .. }, Some(limit)) => format!("timed out after {limit:?}"),
        (Ended { signal: Some(signal), .. }, _) => format!("ended by signal {signal}"),
        _ => String::new(),
    };
    let end = CallEnd::exit_code(ended.exit_code.into()).duration(ended.duration);
    match &ended.sink_error {
        Some(lost) => {
            let error = format!("{error}; the recording is not complete: {lost:#}");
            end.error(error.trim_start_matches("; ")).truncated()
        }
        None => end.error(error),
    }
}

/// Returns the name of a command without its path.
fn command_name(command: &[OsString]) -> String {
    let name = command.first().and_then(|program| Path::new(program).file_name());
    name.unwrap_or_default().to_string_lossy().into_owned()
}

/// Returns a command as a line for a shell.
pub(super) fn command_line(command: &[OsString]) -> String {
    let words = command.iter().map(|word| String::from_utf8_lossy(word.as_bytes()));
    let words: Vec<Cow<'_, str>> = words.collect();
    // Only a NUL cannot be quoted, and no argument holds one.
    let mut line = shlex::try_join(words.iter().map(AsRef::as_ref)).unwrap_or_default();
    line.truncate(line.floor_char_boundary(COMMAND_MAX));
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_can_be_pasted_into_a_shell() {
        let command = ["/bin/sh", "-c", "echo 'a b' > x", "é"].map(OsString::from);
        assert_eq!(command_line(&command), r#"/bin/sh -c "echo 'a b' > x" 'é'"#);
        assert_eq!(command_name(&command), "sh");
        assert_eq!(command_line(&["x".repeat(100_000).into()]).len(), COMMAND_MAX);
    }
}
