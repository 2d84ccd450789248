//! The processes of one command, also those that have left its process group.
//!
//! A command gets a variable with a random value, which its processes inherit. A process that
//! leaves the group and removes or overwrites the variable is not found; it ends with the session.

use std::io::Read;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::digest::to_hex;
use crate::error::Result as PathResult;
use crate::name::RelPath;
use crate::write::{Dir, Durability};

/// The variable that marks the processes of a command.
pub(super) const MARKER: &str = "SWARMLETFS_COMMAND";

/// Most bytes of the environment of a process that are read. Linux limits a value to 128 KiB, and
/// new variables of a shell come after those that it was given.
const ENVIRONMENT_MAX: u64 = 8 << 20;
/// Most looks for processes that were started while others were signaled.
const LOOKS_MAX: usize = 20;

/// The mark of a command.
pub(super) struct CommandMark(String);

impl CommandMark {
    /// Returns a mark that no other command has.
    ///
    /// # Errors
    ///
    /// The system has no random numbers.
    pub(super) fn new() -> Result<CommandMark, Errno> {
        let mut random = [0; 16];
        getrandom(&mut random, GetRandomFlags::empty())?;
        Ok(CommandMark(to_hex(&random)))
    }

    /// Returns the value of [`MARKER`].
    pub(super) fn value(&self) -> &str {
        &self.0
    }

    /// Returns true if a marked process has not ended.
    pub(super) fn has_process(&self) -> bool {
        let Ok(proc) = open_proc() else { return false };
        all_processes(&proc).into_iter().any(|pid| self.is_on(&proc, pid))
    }

    /// Sends `signal` to all marked processes, also to those that are started meanwhile.
    pub(super) fn signal_all(&self, signal: Signal) {
        // Without /proc, only the process group is ended.
        let Ok(proc) = open_proc() else { return };
        let mut signaled: Vec<Pid> = Vec::new();
        for _ in 0..LOOKS_MAX {
            let before = signaled.len();
            for pid in all_processes(&proc) {
                // The descriptor holds one process; its id may be that of another one later.
                let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
                if !signaled.contains(&pid) && self.is_on(&proc, pid) {
                    // It may end at any time.
                    let _ = pidfd_send_signal(&process, signal);
                    signaled.push(pid);
                }
            }
            if signaled.len() == before {
                break;
            }
        }
    }

    /// Returns true if the process has the mark. One that has ended has none.
    fn is_on(&self, proc: &Dir, pid: Pid) -> bool {
        let entry = format!("{MARKER}={}", self.0);
        environment(proc, pid).split(|byte| *byte == 0).any(|other| other == entry.as_bytes())
    }
}

fn open_proc() -> PathResult<Dir> {
    Dir::open(Path::new("/proc"), Durability::None)
}

/// Lists the processes of this namespace.
fn all_processes(proc: &Dir) -> Vec<Pid> {
    let names = proc.list().unwrap_or_else(|_| Vec::new());
    let pids = names.iter().filter_map(|name| name.as_os_str().to_str()?.parse().ok());
    pids.filter_map(Pid::from_raw).collect()
}

/// Returns the environment of a process, as far as it can be read.
fn environment(proc: &Dir, pid: Pid) -> Vec<u8> {
    let mut bytes = Vec::new();
    let opened = RelPath::parse(format!("{pid}/environ")).and_then(|path| proc.view_file(&path));
    if let Ok(file) = opened {
        // What was read before an error counts.
        let _ = file.take(ENVIRONMENT_MAX).read_to_end(&mut bytes);
    }
    bytes
}
