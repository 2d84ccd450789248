//! A command of a worker, with the process that keeps it and everything that it starts.
//!
//! The keeper is another process of this program: a subreaper, which knows the processes of one
//! command although they leave its process group or become daemons.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::tools::ToolError;

/// The internal command that keeps a command; its argument is the text for sh -c. Its stdin is a
/// socket, to which it writes the end of the command: the exit code, or the negative number of a
/// signal, as a little-endian i32.
pub const COMMAND_KEEPER: &str = "__worker-command";
/// Order to a keeper: send SIGTERM to all processes.
pub const END: u8 = b't';
/// Order to a keeper: end all processes by SIGKILL.
pub const KILL: u8 = b'k';

/// This program, also where its path is hidden.
const PROGRAM: &str = "/proc/self/exe";
/// Most commands with processes in the background.
const BACKGROUND_MAX: usize = 64;
const END_SIZE: usize = 4;

#[derive(Debug)]
pub(super) struct KeptCommand {
    keeper: Child,
    socket: UnixStream,
    /// The bytes of the message about the end that have arrived.
    message: Vec<u8>,
    end: Option<CommandEnd>,
    /// True once the keeper has ended, and with it all processes of the command.
    is_gone: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CommandEnd {
    Exited(i32),
    Signaled(i32),
    /// Its keeper ended before it.
    Unknown,
}

impl KeptCommand {
    /// Starts `sh -c script` in the folder `workspace`. Returns it with its output.
    pub(super) fn start(
        workspace: &Path,
        script: &str,
    ) -> std::io::Result<(KeptCommand, Option<ChildStdout>, Option<ChildStderr>)> {
        let (socket, stdin) = UnixStream::pair()?;
        socket.set_nonblocking(true)?;
        let mut keeper = Command::new(PROGRAM)
            .args([COMMAND_KEEPER, "--", script])
            .current_dir(workspace)
            .env("PWD", workspace)
            .stdin(OwnedFd::from(stdin))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let (stdout, stderr) = (keeper.stdout.take(), keeper.stderr.take());
        let message = Vec::with_capacity(END_SIZE);
        let command = KeptCommand { keeper, socket, message, end: None, is_gone: false };
        Ok((command, stdout, stderr))
    }

    /// Checks whether the command, and all processes that it started, have ended.
    pub(super) fn update(&mut self) {
        let mut buffer = [0; END_SIZE];
        while !self.is_gone {
            match self.socket.read(&mut buffer) {
                Ok(0) => self.is_gone = true,
                Ok(size) => self.message.extend(buffer.iter().take(size)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => self.is_gone = true,
            }
        }
        if self.end.is_none() {
            self.end = match self.message.first_chunk().map(|bytes| i32::from_le_bytes(*bytes)) {
                Some(code @ 0..) => Some(CommandEnd::Exited(code)),
                Some(signal) => Some(CommandEnd::Signaled(signal.saturating_neg())),
                None => self.is_gone.then_some(CommandEnd::Unknown),
            };
        }
        if self.is_gone {
            // It closes the socket by its end.
            let _ = self.keeper.wait();
        }
    }

    /// Returns how the command ended, once it has. Processes that it started may run on.
    pub(super) fn end(&self) -> Option<CommandEnd> {
        self.end
    }

    pub(super) fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// Sends an order to the keeper: [`END`] or [`KILL`].
    pub(super) fn order(&mut self, order: u8) {
        // The command may have stopped its keeper.
        let _ = kill_process(Pid::from_child(&self.keeper), Signal::CONT);
        // A keeper that has ended closes the socket, which the next update notices.
        let _ = self.socket.write_all(&[order]);
    }

    /// Ends the keeper alone.
    pub(super) fn abandon(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
        self.is_gone = true;
        self.end = self.end.or(Some(CommandEnd::Unknown));
    }
}

/// Ended commands that left processes in the background.
#[derive(Debug, Default)]
pub(super) struct BackgroundCommands(Vec<KeptCommand>);

impl BackgroundCommands {
    /// Adds a command whose result is known, unless all its processes have ended.
    pub(super) fn keep(&mut self, command: KeptCommand) {
        self.0.push(command);
        self.forget_ended();
    }

    /// Fails if too many commands run in the background to start another one. Each takes threads of
    /// this process.
    pub(super) fn must_have_room(&mut self) -> Result<(), ToolError> {
        self.forget_ended();
        if self.0.len() < BACKGROUND_MAX {
            return Ok(());
        }
        let text = format!(
            "cannot run the command: processes of {BACKGROUND_MAX} earlier ones run in the \
             background; try finish, or a session with less of them"
        );
        Err(ToolError::new(text))
    }

    fn forget_ended(&mut self) {
        self.0.retain_mut(|command| {
            command.update();
            !command.is_gone()
        });
    }
}
