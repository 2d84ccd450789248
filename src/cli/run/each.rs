//! `run --each`: a worker for each line of a file, several at a time.
//!
//! Each worker is run by a process of its own, because a runner waits for all of its children and
//! receives all signals.

mod display;
mod pool;
mod table;

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use memchr::memmem;
use rustix::process::{Signal, set_parent_process_death_signal};

use super::report::Reporter;
use super::{RunArgs, recover, session};
use crate::cli::exit::{self, UsageError};
use crate::cli::terminal::{display_path, print_message};
use crate::cli::write_args;
use display::Display;
use table::Row;

/// The part of a command that is replaced by the line.
const PLACEHOLDER: &[u8] = b"{}";

/// Runs a worker for each line of the file at `tasks`, and prints a table of their ends.
///
/// # Errors
///
/// The file cannot be read or has no line, or the command has no placeholder.
pub(super) fn run(arguments: &RunArgs, tasks: &Path) -> anyhow::Result<ExitCode> {
    let has_placeholder = |word: &OsString| memmem::find(word.as_bytes(), PLACEHOLDER).is_some();
    if !arguments.command.iter().any(has_placeholder) {
        let message = "no argument of the command has {}, which each line replaces";
        return Err(UsageError(message.to_owned()).into());
    }
    let text = write_args::read_text(tasks)?;
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if lines.is_empty() {
        bail!("cannot run workers: {} has no line; write one task a line", display_path(tasks));
    }
    let jobs = match arguments.jobs {
        Some(jobs) => jobs.get(),
        None => std::thread::available_parallelism().map_or(1, usize::from),
    };
    let display = Display::new(arguments.write.quiet);
    let mut rows: Vec<Row> = lines.iter().map(|line| Row::new(line)).collect();
    pool::run(&mut rows, jobs, &display)?;
    drop(display);
    recover_killed(arguments, &mut rows);
    let mut out = io::stdout().lock();
    let printed = out.write_all(table::render(&rows).as_bytes()).and_then(|()| out.flush());
    let is_success = rows.iter().all(Row::is_completed);
    Ok(if is_success { exit::from_write(printed) } else { ExitCode::FAILURE })
}

fn recover_killed(arguments: &RunArgs, rows: &mut [Row]) {
    let reporter = Reporter::person(arguments.write.quiet);
    for row in rows.iter_mut().filter(|row| row.end.is_none()) {
        let Some(worker) = &row.worker else { continue };
        let recovered = arguments
            .write
            .with_store(|store| recover::recover(store, OsStr::new(worker), &reporter));
        match recovered {
            Ok(recovered) => row.end = Some(recovered.end),
            Err(error) => print_message(&format!("{error:#}")),
        }
    }
}

/// Runs the worker of one line, and reports it to the process that reads stdout.
pub(super) fn run_line(mut arguments: RunArgs, line: &OsStr) -> ExitCode {
    // If the other process is killed, nobody could end this one. Fails for no valid signal.
    let _ = set_parent_process_death_signal(Some(Signal::TERM));
    arguments.write.quiet = true;
    arguments.task = Some(line.to_string_lossy().into_owned());
    for word in &mut arguments.command {
        *word = fill_in(word, line);
    }
    let reporter = match take_stdout() {
        Ok(pipe) => Reporter::Process(pipe),
        Err(error) => return exit::report(Err(error)),
    };
    session::run(&arguments, &reporter).unwrap_or_else(|error| {
        reporter.failure(&error);
        exit::not_recorded()
    })
}

fn fill_in(word: &OsStr, line: &OsStr) -> OsString {
    let word = word.as_bytes();
    let mut filled = Vec::with_capacity(word.len());
    let mut copied = 0;
    for at in memmem::find_iter(word, PLACEHOLDER) {
        filled.extend(word.get(copied..at).into_iter().flatten());
        filled.extend(line.as_bytes());
        copied = at + PLACEHOLDER.len();
    }
    filled.extend(word.get(copied..).into_iter().flatten());
    OsString::from_vec(filled)
}

/// Returns the file that is stdout, and lets the command write to nowhere.
fn take_stdout() -> anyhow::Result<File> {
    let take = || {
        let pipe = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
        let nowhere = OpenOptions::new().write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdout(&nowhere)?;
        io::Result::Ok(File::from(pipe))
    };
    take().context("cannot replace stdout")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_placeholder_is_replaced_by_the_line() {
        let fill_in = |word: &str| fill_in(OsStr::new(word), OsStr::new("a {} b"));
        assert_eq!(fill_in("{}"), "a {} b");
        assert_eq!(fill_in("-p={},{}!"), "-p=a {} b,a {} b!");
        assert_eq!(fill_in("{ }"), "{ }");
        assert_eq!(fill_in(""), "");
    }
}
