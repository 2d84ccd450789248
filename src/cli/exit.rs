//! Exit codes: 0 success, 1 failure, 2 usage error, 3 out of time.
//!
//! A failure is one message on stderr. A mistake on the command line is a [`Usage`] error, wherever
//! it is detected; everything else is a failure.

use std::io;
use std::process::ExitCode;

use super::terminal::{escape_controls, print_message};

/// Exit code of a failure.
const FAILED: u8 = 1;

/// Exit code of a usage error.
const USAGE: u8 = 2;

/// Exit code for trouble in a command whose code 1 is a negative answer, as in grep and diff.
const TROUBLE: u8 = 2;

/// Exit code for an event that did not occur, or an answer that is incomplete, within the given
/// time.
const TIMED_OUT: u8 = 3;

/// A mistake on the command line; the text is a complete message.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Usage(pub(super) String);

/// Prints the error, if any, and returns the exit code.
pub(super) fn report(result: anyhow::Result<ExitCode>) -> ExitCode {
    let error = match result {
        Ok(code) => return code,
        Err(error) => error,
    };
    print_message(&format!("{error:#}"));
    if error.is::<Usage>() {
        print_message("see `swarmletfs --help` and `swarmletfs mount --help`");
        return ExitCode::from(USAGE);
    }
    ExitCode::from(FAILED)
}

/// Prints the error, if any, and returns the exit code, which is that of trouble for an error.
pub(super) fn report_as_trouble(result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        report(Err(error));
        trouble()
    })
}

/// Returns the exit code for trouble in a command whose code 1 is a negative answer.
pub(super) fn trouble() -> ExitCode {
    ExitCode::from(TROUBLE)
}

/// Returns the exit code of a command that ran out of time.
pub(super) fn timed_out() -> ExitCode {
    ExitCode::from(TIMED_OUT)
}

/// Returns the exit code of a command that only prints: success unless stdout could not be written.
pub(super) fn from_write(result: io::Result<()>) -> ExitCode {
    if result.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(FAILED) }
}

/// Prints clap's parse error, help or version, and returns the exit code.
pub(super) fn report_parse_error(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        return from_write(error.print());
    }
    let text = error.to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    // The message has several lines and repeats the arguments, which may hold any characters.
    let lines: Vec<String> = text.trim_end().lines().map(escape_controls).collect();
    print_message(&lines.join("\n"));
    ExitCode::from(USAGE)
}
