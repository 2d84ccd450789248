//! The stage `inner`: gives up every capability, closes the last walls, and becomes the command.

use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use nix::sched::CloneFlags;
use rustix::process::chdir;

use super::cause::{FailedStep, StageFailure};
use super::mounts::OWN_PROGRAM;
use super::stage::{PROGRAM, StageRequest};
use super::{call_filter, files, identity, landlock, limits, privileges};

/// Exit code if the command cannot be executed, as in env(1).
const NOT_EXECUTABLE: u8 = 126;

const NOT_FOUND: u8 = 127;

/// Serves the stage: runs the command in this process.
pub(super) fn serve(descriptor: i32) -> Result<ExitCode, StageFailure> {
    let request = StageRequest::read(descriptor)?;
    identity::enter(CloneFlags::empty(), descriptor)?;
    // The inherited directory belongs to the real workspace.
    chdir(&request.spec.directory).step("enter the workspace")?;
    files::close_descriptors_except(&[]).step("close descriptors")?;
    privileges::give_up()?;
    call_filter::install()?;
    if !request.has_group {
        // In the namespace of this process, so that only its processes count.
        limits::limit_process(&request.spec)?;
    }
    landlock::restrict(&request.spec)?;
    request.signal_mask().thread_set_mask().step("restore the signal mask")?;
    let Some((program, arguments)) = request.command.split_first() else {
        return Err(StageFailure::new("cannot run nothing; try `-- COMMAND`"));
    };
    let program = if program == PROGRAM { OsStr::new(OWN_PROGRAM) } else { program };
    let error = Command::new(program).args(arguments).exec();
    let program = swarmletfs_base::name::printable(program.as_encoded_bytes());
    let code = match error.kind() {
        io::ErrorKind::NotFound => NOT_FOUND,
        _ => NOT_EXECUTABLE,
    };
    Err(StageFailure::of_command(format!("cannot run {program}: {error}"), code))
}
