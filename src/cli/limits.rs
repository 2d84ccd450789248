//! The limits that the system sets this process: what it may raise it raises, and with what is short it makes do.

use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

/// How the system's allocator is told how many heaps to have.
const HEAPS: &str = "MALLOC_ARENA_MAX";

/// Lets this process have as many files open as it may: every file of a worker that is open through the mount is one.
pub(super) fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        warn!("no more than {:?} files can be open at once: {error}", limit.current);
    }
}

/// Where the address space is limited, starts this program again with few heaps. glibc gives every thread one of its
/// own, and to each 64 MiB of address space: together more than a common limit.
pub(super) fn make_do_with_address_space() {
    if getrlimit(Resource::As).current.is_none() || std::env::var_os(HEAPS).is_some() {
        return;
    }
    if let Ok(program) = std::env::current_exe() {
        let mut arguments = std::env::args_os();
        let mut command = Command::new(program);
        command.arg0(arguments.next().unwrap_or_default()).args(arguments).env(HEAPS, "2");
        // Returns only if it failed; then it goes on as it is.
        let _ = command.exec();
    }
}
