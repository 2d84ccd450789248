//! The limits that the system sets this process: what it may raise it raises, and with what is short it makes do.

use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

/// How the system's allocator is told how many heaps to have,
const ARENA_COUNT: &str = "MALLOC_ARENA_MAX";
/// from how many bytes on something is given memory of its own, which goes back once it is not needed: what is made again
/// and again stays below, such as the MiB in which a part of the index is built,
const MMAP_THRESHOLD: (&str, &str) = ("MALLOC_MMAP_THRESHOLD_", "1114112");
/// and how many bytes may lie idle at the end of a heap, which otherwise go back and are fetched again with every render.
const TRIM_THRESHOLD: (&str, &str) = ("MALLOC_TRIM_THRESHOLD_", "4194304");
/// In less address space than this, in bytes, there is one heap: whichever thread is the first to want a second one takes
/// 64 MiB for it, which then lack the buffers of the threads that serve.
const SMALL_ADDRESS_SPACE: u64 = 1 << 30;

/// Lets this process have as many files open as it may: every file of a worker that is open through the mount is one.
pub(super) fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        warn!("no more than {:?} files can be open at once: {error}", limit.current);
    }
}

/// Starts this program again with few heaps that are given nothing of more than a MiB. glibc gives every thread one of its
/// own, of which each keeps what it was used for once: together up to half as much again as what is in use, and 64 MiB of
/// address space each, which is more than a common limit. And with each large thing that is given back, larger ones go to the heaps
/// from then on, and leave holes there: a fifth of what 100,000 workers take. That can be told only to a process that begins.
pub(super) fn reexec_with_few_arenas() {
    if std::env::var_os(ARENA_COUNT).is_some() {
        return;
    }
    if let Ok(program) = std::env::current_exe() {
        let mut arguments = std::env::args_os();
        let mut command = Command::new(program);
        let short = getrlimit(Resource::As).current.is_some_and(|limit| limit < SMALL_ADDRESS_SPACE);
        let heaps = (ARENA_COUNT, if short { "1" } else { "2" });
        // Who sets one of them for this program means it.
        let unset =
            [heaps, MMAP_THRESHOLD, TRIM_THRESHOLD].into_iter().filter(|(name, _)| std::env::var_os(name).is_none());
        command.arg0(arguments.next().unwrap_or_default()).args(arguments).envs(unset);
        // Returns only if it failed; then it goes on as it is.
        let _ = command.exec();
    }
}
