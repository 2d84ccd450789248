//! Starts the command, and receives the signals of the event loop through a descriptor.
//!
//! They are blocked, so that they cannot end us before the command has ended. They stay blocked
//! after that, so that the caller can complete the record.
//!
//! The standard library would let the command inherit our signal mask. Unblocking the signals while
//! it starts could end us in between. `posix_spawn` sets the mask in the new process alone.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawnp};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::stat::Mode;
use rustix::fs::{Access, access};
use rustix::process::Pid;

use super::CommandSpec;

/// `POSIX_SPAWN_SETSID` of `<spawn.h>`, with the same value in glibc and musl. nix lacks it.
const POSIX_SPAWN_SETSID: i32 = 0x80;

/// The shell that runs a script without a `#!` line, as execvp(3) does.
const SHELL: &str = "/bin/sh";

/// Directories to search without `$PATH`, as execvp(3) has them.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

pub(super) enum ChildStreams {
    /// stdin is inherited, stdout and stderr are these.
    Pipes { stdout: OwnedFd, stderr: OwnedFd },
    /// The command leads a session of its own.
    Session {
        terminal: Option<CString>,
        /// The numbers of the streams that are the terminal. The others are inherited.
        replaced: Vec<i32>,
    },
}

/// Starts the command of `spec`, found in `$PATH`, in our process group or in a session of its own
/// on a terminal. It gets the signal mask `mask`, and SIGPIPE ends it, which our runtime ignores.
///
/// # Errors
///
/// Fails with the error of exec, such as `NotFound`.
pub(super) fn spawn(spec: &CommandSpec, streams: &ChildStreams, mask: &SigSet) -> io::Result<Pid> {
    let (attributes, actions) = prepare(streams, mask)?;
    let arguments = spec.command.iter().map(|argument| c_string(argument));
    let arguments: Vec<CString> = arguments.collect::<Result<_, _>>()?;
    let environment: Vec<CString> = spec
        .environment
        .iter()
        .map(|(name, value)| {
            c_string(OsStr::from_bytes(&[name.as_bytes(), b"=", value.as_bytes()].concat()))
        })
        .collect::<Result<_, _>>()?;
    let Some(program) = arguments.first() else { return Err(io::ErrorKind::InvalidInput.into()) };
    let run = |program: &CString, arguments: &[CString]| {
        posix_spawnp(program, &actions, &attributes, arguments, &environment)
    };
    let pid = match run(program, &arguments) {
        Err(Errno::ENOEXEC) => {
            let shell = c_string(OsStr::new(SHELL))?;
            let script = find_program(OsStr::from_bytes(program.to_bytes()));
            let script = c_string(script.ok_or(Errno::ENOEXEC)?.as_os_str())?;
            let rest = arguments.iter().skip(1).cloned();
            run(&shell, &[shell.clone(), script].into_iter().chain(rest).collect::<Vec<_>>())
        }
        result => result,
    }?;
    Pid::from_raw(pid.as_raw()).ok_or_else(|| io::ErrorKind::Other.into())
}

/// Returns the path of the file that runs as `name`: the first in `$PATH` that is executable,
/// unless `name` is a path itself.
pub(crate) fn find_program(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(name.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    std::env::split_paths(&path)
        // An empty entry is the current directory.
        .map(|dir| if dir.as_os_str().is_empty() { ".".into() } else { dir })
        .map(|dir: PathBuf| dir.join(name))
        .find(|file| file.is_file() && access(file, Access::EXEC_OK).is_ok())
}

fn prepare(
    streams: &ChildStreams,
    mask: &SigSet,
) -> nix::Result<(PosixSpawnAttr, PosixSpawnFileActions)> {
    let mut flags =
        PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK | PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF;
    let mut actions = PosixSpawnFileActions::init()?;
    match streams {
        ChildStreams::Pipes { stdout, stderr } => {
            actions.add_dup2(stdout.as_raw_fd(), 1)?;
            actions.add_dup2(stderr.as_raw_fd(), 2)?;
        }
        ChildStreams::Session { terminal, replaced } => {
            flags |= PosixSpawnFlags::from_bits_retain(POSIX_SPAWN_SETSID);
            // The first terminal that the leader of a new session opens becomes its controlling
            // terminal.
            for (path, number) in
                terminal.iter().flat_map(|path| replaced.iter().map(move |number| (path, number)))
            {
                actions.add_open(*number, path.as_c_str(), OFlag::O_RDWR, Mode::empty())?;
            }
        }
    }
    let mut attributes = PosixSpawnAttr::init()?;
    attributes.set_flags(flags)?;
    attributes.set_sigmask(mask)?;
    attributes.set_sigdefault(&SigSet::from(Signal::SIGPIPE))?;
    Ok((attributes, actions))
}

fn c_string(text: &OsStr) -> io::Result<CString> {
    CString::new(text.to_os_string().into_vec()).map_err(io::Error::from)
}

const PASSED: [Signal; 6] = [
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGINT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

#[derive(Debug, Clone, Copy)]
pub(super) struct ReceivedSignal {
    pub(super) signal: Signal,
    /// True if the kernel sent it, for a key or a hangup of the terminal. The kernel sends these
    /// to the whole foreground process group, so the command has received it, too.
    pub(super) is_from_kernel: bool,
}

pub(super) struct SignalQueue {
    fd: SignalFd,
    /// The mask before, which the command gets.
    pub(super) original_mask: SigSet,
}

impl SignalQueue {
    /// Blocks the signals that are passed on, SIGCHLD, and for a session of the command SIGWINCH
    /// and SIGCONT.
    ///
    /// # Errors
    ///
    /// Fails if no descriptor is left.
    pub(super) fn new(has_session: bool) -> anyhow::Result<SignalQueue> {
        let mut mask = SigSet::from_iter(PASSED);
        mask.add(Signal::SIGCHLD);
        if has_session {
            mask.extend([Signal::SIGWINCH, Signal::SIGCONT]);
        }
        // While SIGCHLD is ignored, which a process can inherit, the exit status of a child is
        // lost. A handler ends that. It never runs, because the signal is blocked.
        signal_hook::flag::register(Signal::SIGCHLD as i32, Arc::new(AtomicBool::new(false)))
            .context("cannot handle SIGCHLD")?;
        let original_mask = SigSet::thread_get_mask().context("cannot read the signal mask")?;
        mask.thread_block().context("cannot block signals")?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        let fd = SignalFd::with_flags(&mask, flags).context("cannot receive signals")?;
        Ok(SignalQueue { fd, original_mask })
    }

    pub(super) fn next(&self) -> Option<ReceivedSignal> {
        let info = self.fd.read_signal().ok()??;
        let number = i32::try_from(info.ssi_signo).ok()?;
        let signal = Signal::try_from(number).ok()?;
        // SI_USER, SI_QUEUE and SI_TKILL, by which processes send signals, are at most 0.
        Some(ReceivedSignal { signal, is_from_kernel: info.ssi_code > 0 })
    }
}

impl AsFd for SignalQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
