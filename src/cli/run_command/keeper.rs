//! The process that keeps one command of a worker's tools, and everything that the command starts.
//!
//! It is a subreaper. Its stdin is a socket to the server of the tools: it writes how the command
//! ended, and reads [`END`] and [`KILL`]. It ends with the last process beneath it.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Pid, Signal, WaitOptions, set_dumpable_behavior, wait};

use super::descendants::Descendants;
use crate::mcp::{END, KILL};

/// Time between two rounds of SIGKILL, for processes that are started meanwhile.
const KILL_INTERVAL: Duration = Duration::from_millis(50);

/// Runs `sh -c script`, and waits for all processes that it leaves.
///
/// # Errors
///
/// The command cannot be started.
pub(crate) fn keep_command(script: &OsStr) -> anyhow::Result<ExitCode> {
    // The command must not reach the socket through /proc.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).context("cannot protect this process")?;
    let descendants = Descendants::new().context("cannot find the processes of a command")?;
    let stdin = std::io::stdin().as_fd().try_clone_to_owned().context("cannot open the socket")?;
    let server = UnixStream::from(stdin);
    let mut reader = server.try_clone().context("cannot open the socket")?;
    let command = Command::new("sh")
        .arg("-c")
        .arg(script)
        .stdin(Stdio::null())
        .process_group(0)
        .spawn()
        .context("cannot run sh")?;
    // The output ends with the processes that write to it.
    rustix::stdio::dup2_stdout(&server).context("cannot close stdout")?;
    rustix::stdio::dup2_stderr(&server).context("cannot close stderr")?;
    thread::Builder::new()
        .spawn(move || follow_orders(&mut reader, &descendants))
        .context("cannot start a thread")?;
    wait_for_all(Pid::from_child(&command), server);
    Ok(ExitCode::SUCCESS)
}

/// Waits for all processes, and sends the server the end of `command`: its exit code, or the
/// negative number of a signal, as a little-endian i32.
fn wait_for_all(command: Pid, mut server: UnixStream) {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, ended))) if pid == command => {
                let code = ended.exit_status();
                let code = code.or_else(|| ended.terminating_signal().map(|signal| -signal));
                // Without a server, nobody reads the code.
                let _ = server.write_all(&code.unwrap_or_default().to_le_bytes());
            }
            Ok(_) | Err(Errno::INTR) => {}
            // There are no more children.
            Err(_) => return,
        }
    }
}

/// Ends the processes as the server orders it, until the server has ended.
fn follow_orders(server: &mut UnixStream, descendants: &Descendants) {
    let mut order = [0];
    while server.read_exact(&mut order).is_ok() {
        match order {
            // A stopped process gets the signal only when it continues.
            [END] => drop(descendants.signal_all(&[Signal::TERM, Signal::CONT])),
            [KILL] => loop {
                // A process that cannot be found now gets the signal in the next round.
                descendants.signal_all(&[Signal::KILL]);
                thread::sleep(KILL_INTERVAL);
            },
            _ => {}
        }
    }
}
