//! Resource limits of this process: open files and the allocator's arenas.

use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

const ARENA_COUNT: &str = "MALLOC_ARENA_MAX";
/// Size in bytes from which an allocation gets its own mapping, which is returned to the system
/// when freed. Slightly above 1 MiB, so that the 1 MiB segments of the index, which are built
/// repeatedly, stay below it.
const MMAP_THRESHOLD: (&str, &str) = ("MALLOC_MMAP_THRESHOLD_", "1114112");
/// Free bytes kept at the end of a heap. With glibc's default, they would be returned and requested
/// again with each render.
const TRIM_THRESHOLD: (&str, &str) = ("MALLOC_TRIM_THRESHOLD_", "4194304");
/// Address space limit in bytes below which only one arena is used. A second arena reserves 64 MiB,
/// which the buffers of the serving threads then lack.
const SMALL_ADDRESS_SPACE: u64 = 1 << 30;

/// Raises the limit on open files to its maximum: each worker file open through the mount needs one
/// descriptor.
pub(super) fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        warn!("no more than {:?} files can be open at once: {error}", limit.current);
    }
}

/// Restarts this program with few malloc arenas and a fixed mmap threshold.
///
/// glibc gives each thread its own arena, and each arena keeps its peak memory. Together they hold
/// up to half as much again as is in use, and reserve 64 MiB of address space each, more than a
/// common limit allows.
///
/// By default, freeing a large mapping also raises the threshold, so later large allocations go to
/// the heaps and fragment them: a fifth of the memory for 100,000 workers. Both settings can only
/// be given to a new process.
pub(super) fn reexec_with_few_arenas() {
    if std::env::var_os(ARENA_COUNT).is_some() {
        return;
    }
    if let Ok(program) = std::env::current_exe() {
        let mut arguments = std::env::args_os();
        let mut command = Command::new(program);
        let short =
            getrlimit(Resource::As).current.is_some_and(|limit| limit < SMALL_ADDRESS_SPACE);
        let heaps = (ARENA_COUNT, if short { "1" } else { "2" });
        // Variables that the user set are kept.
        let unset = [heaps, MMAP_THRESHOLD, TRIM_THRESHOLD]
            .into_iter()
            .filter(|(name, _)| std::env::var_os(name).is_none());
        command.arg0(arguments.next().unwrap_or_default()).args(arguments).envs(unset);
        // `exec` returns only on failure; the program then continues with the defaults.
        let _ = command.exec();
    }
}
