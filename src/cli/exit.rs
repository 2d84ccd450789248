//! How the process ends: 0 fine, 1 failed, 2 usage, 3 not in time: what `wait` waits for did not happen, or an answer is
//! incomplete.
//!
//! A failure is one sentence on stderr. What was typed wrongly is a [`Usage`] error, wherever it is found out;
//! everything else is a failure.

use std::io;
use std::process::ExitCode;

use super::terminal::{escape_controls, print_message};

/// It did not work.
const FAILED: u8 = 1;

/// It was typed wrongly.
const USAGE: u8 = 2;

/// It did not happen, or not all was read, in the time that was given.
const TIMED_OUT: u8 = 3;

/// A mistake in what was typed; the text is a sentence.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Usage(pub(super) String);

/// Says why it failed, and gives the exit code for it.
pub(super) fn report(result: anyhow::Result<ExitCode>) -> ExitCode {
    let error = match result {
        Ok(code) => return code,
        Err(error) => error,
    };
    print_message(&format!("{error:#}"));
    if error.is::<Usage>() {
        print_message("`swarmletfs --help` and `swarmletfs mount --help` tell what can be typed");
        return ExitCode::from(USAGE);
    }
    ExitCode::from(FAILED)
}

/// Returns the exit code for what did not happen, or an answer that is not complete, in the time that was given.
pub(super) fn timed_out() -> ExitCode {
    ExitCode::from(TIMED_OUT)
}

/// The exit code for help or a version that was asked for: fine, unless it could not be written.
pub(super) fn from_write(result: io::Result<()>) -> ExitCode {
    if result.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(FAILED) }
}

/// Prints what clap found wrong, or the help or version that was asked for.
pub(super) fn report_parse_error(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        return from_write(error.print());
    }
    let text = error.to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    // The text is of several lines and repeats what was typed, which may hold anything.
    let lines: Vec<String> = text.trim_end().lines().map(escape_controls).collect();
    print_message(&lines.join("\n"));
    ExitCode::from(USAGE)
}
