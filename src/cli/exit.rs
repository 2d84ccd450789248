//! Exit codes: 0 success, 1 failure, 2 usage error, 3 out of time. A command such as grep, whose
//! code 1 means "no match", reports a failure as 2, too.
//!
//! A failure is one message on stderr. A mistake on the command line is a [`UsageError`], wherever
//! it is detected; every other error is a failure.

use std::io;
use std::process::ExitCode;

use super::terminal::{escape_controls, print_message};

const FAILED: u8 = 1;

const USAGE: u8 = 2;

/// Exit code of a failure in a command that exits with 1 for "no match" or "differs".
const TROUBLE: u8 = 2;

/// Exit code if time ran out before the event occurred or the answer was complete.
const TIMED_OUT: u8 = 3;

/// Exit code of `record` if it failed itself, as in timeout(1) and env(1). All other codes are the
/// exit codes of the command.
pub(super) const NOT_RECORDED: u8 = 125;

/// A mistake on the command line; the text is a complete message.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct UsageError(pub(super) String);

pub(super) fn report(result: anyhow::Result<ExitCode>) -> ExitCode {
    let error = match result {
        Ok(code) => return code,
        Err(error) => error,
    };
    print_message(&format!("{error:#}"));
    if error.is::<UsageError>() {
        print_message("see `swarmletfs COMMAND --help`");
        return ExitCode::from(USAGE);
    }
    ExitCode::from(FAILED)
}

/// Like [`report`], but any error gives the code for trouble.
pub(super) fn report_as_trouble(result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        report(Err(error));
        trouble()
    })
}

/// Like [`report`], but any error gives the code of a command that was not recorded.
pub(super) fn report_as_not_recorded(result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| before_command(report(Err(error))))
}

pub(super) fn trouble() -> ExitCode {
    ExitCode::from(TROUBLE)
}

/// Returns success unchanged, and turns any other code into the code of a failure, which programs
/// that run a hook do not take for a veto.
pub(super) fn not_blocking(code: ExitCode) -> ExitCode {
    if code == ExitCode::SUCCESS { code } else { ExitCode::from(FAILED) }
}

pub(super) fn not_recorded() -> ExitCode {
    ExitCode::from(NOT_RECORDED)
}

/// Returns success for success, and otherwise the code of `record` for a command that did not run.
pub(super) fn before_command(code: ExitCode) -> ExitCode {
    if code == ExitCode::SUCCESS { code } else { not_recorded() }
}

pub(super) fn timed_out() -> ExitCode {
    ExitCode::from(TIMED_OUT)
}

/// Returns the exit code of a command that only prints: success unless stdout could not be written.
pub(super) fn from_write(result: io::Result<()>) -> ExitCode {
    if result.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(FAILED) }
}

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
