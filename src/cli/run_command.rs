//! Runs a command and records its output while it goes to our stdout and stderr.
//!
//! One thread waits for everything in one epoll loop (`session`). The modules beneath:
//!
//! - `streams`: pipes and terminals that the command writes to, and why their order is exact; our
//!   stdout and stderr, and the recorded part of the output
//! - `spawn`: the command starts as if we were not there, and gets our signals
//! - `descendants`: the processes that the command started
//! - `keeper`: the process that keeps a command of a worker's tools
//!
//! Without a terminal of its own, the command stays in our process group, and keeps stdin and every
//! other descriptor. So job control, a job server of make and the terminal work as without us.

mod descendants;
#[cfg(feature = "mcp")]
mod keeper;
mod session;
mod spawn;
mod streams;

#[cfg(feature = "mcp")]
pub(super) use keeper::keep_command;
pub(super) use spawn::find_program;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::time::Duration;

/// Exit code of a command that was ended by its time limit, as timeout(1) has it.
const TIMED_OUT: u8 = 124;

/// Exit code if the command exists but cannot be run, as shells have it.
const CANNOT_RUN: u8 = 126;

/// Exit code if the command does not exist, as shells have it.
pub(super) const NOT_FOUND: u8 = 127;

#[derive(Debug)]
pub(super) struct CommandSpec {
    /// The program, which is searched in `$PATH`, and its arguments.
    pub(super) command: Vec<OsString>,
    pub(super) environment: BTreeMap<OsString, OsString>,
    /// Time after which the command and all its descendants are ended.
    pub(super) timeout: Option<Duration>,
    pub(super) streams: StreamMode,
    /// Maximum number of bytes of output to record. The middle of a longer output is omitted.
    pub(super) max_bytes: Option<u64>,
    /// Prints no hint about processes that outlive the command.
    pub(super) quiet: bool,
}

/// The standard streams and the session of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamMode {
    /// It inherits stdin and our session, and its output is recorded.
    Recorded,
    /// It has a terminal of its own, whose output is recorded.
    Terminal,
    /// It has a session of its own, and a terminal of its own in place of each of our streams that
    /// is one. It inherits the other streams.
    Apart,
}

impl StreamMode {
    /// Returns the mode that the option `--tty` stands for.
    pub(super) fn of_option(tty: bool) -> StreamMode {
        if tty { StreamMode::Terminal } else { StreamMode::Recorded }
    }
}

/// Receives the output of a command, in order.
pub(super) trait Sink {
    /// Appends `bytes`.
    ///
    /// # Errors
    ///
    /// After an error, nothing more is written. The command goes on, and [`Ended::sink_error`] has
    /// the error.
    fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()>;
}

#[derive(Debug)]
pub(super) struct Ended {
    /// The code to exit with: the command's, 128 + N after signal N, 124 after the time limit, 126
    /// or 127 if it could not be run.
    pub(super) exit_code: u8,
    pub(super) signal: Option<i32>,
    /// True if the time limit ended the command, or processes that outlived it.
    pub(super) timed_out: bool,
    pub(super) spawn_error: Option<io::Error>,
    /// Time from the start of the command to its end. After the time limit, to the end of all its
    /// processes.
    pub(super) duration: Duration,
    /// True if output could not be written to our stdout or stderr, as a message has said. A
    /// reader that closed them does not count.
    pub(super) lost_output: bool,
    pub(super) sink_error: Option<anyhow::Error>,
}

/// Runs a command to its end. Its output goes to our stdout and stderr, and to `sink`.
///
/// The signals that are passed to the command stay blocked in this thread.
///
/// # Errors
///
/// Fails if the command cannot be started for want of descriptors, terminals or the like. A
/// command that does not exist is no error: see [`Ended::spawn_error`].
pub(super) fn run(spec: &CommandSpec, sink: &mut dyn Sink) -> anyhow::Result<Ended> {
    session::run(spec, sink)
}
