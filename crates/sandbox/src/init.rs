//! The stage `init`: process 1 of the process namespace. If it ends, the kernel ends all others.

use std::path::Path;
use std::process::ExitCode;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::{MountFlags, mount};
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, geteuid, set_parent_process_death_signal, wait,
};

use super::cause::{FailedStep, StageFailure};
use super::signals::StageSignals;
use super::stage::Stage;
use super::{devices, files, privileges};

/// Serves the stage. `status` is the descriptor of the pipe to the outer stage.
pub(super) fn serve(descriptor: i32, status: Option<i32>) -> Result<ExitCode, StageFailure> {
    let status = status.ok_or_else(|| StageFailure::new("cannot serve `init` without a pipe"))?;
    let (queue, _) = StageSignals::new()?;
    // Opened anew, the pipe is not inherited by the command.
    let pipe = files::open_for_writing(&files::own_descriptor(status)).step("open a pipe")?;
    files::close_descriptors_except(&[descriptor, queue.number(), raw(&pipe)])
        .step("close inherited descriptors")?;
    set_parent_process_death_signal(Some(Signal::KILL)).step("end with the caller")?;
    // The outer stage may have ended before. Then nobody reads from the pipe.
    let mut polled = [PollFd::new(&pipe, PollFlags::empty())];
    poll(&mut polled, Some(&Timespec::default())).step("look at a pipe")?;
    if polled.iter().any(|polled| polled.revents().contains(PollFlags::ERR)) {
        return Err(StageFailure::new("cannot go on without the caller, which has ended"));
    }
    mount_proc()?;
    if geteuid().is_root() {
        devices::protect_proc()?;
    }

    let child = Stage::Inner.spawn(descriptor, None)?;
    let child = Pid::from_child(&child);
    privileges::keep_none()?;
    loop {
        queue.wait_for_event(child.as_raw_pid(), None)?;
        while let Ok(Some((pid, ended))) = wait(WaitOptions::NOHANG) {
            if pid == child
                && let Some(code) = encode(ended)
            {
                files::write_all(&pipe, &code.to_le_bytes()).step("pass the end on")?;
                return Ok(ExitCode::SUCCESS);
            }
        }
    }
}

fn raw(descriptor: &impl std::os::fd::AsRawFd) -> i32 {
    descriptor.as_raw_fd()
}

/// Returns the exit code, or the negative signal.
fn encode(ended: WaitStatus) -> Option<i32> {
    ended.exit_status().or_else(|| ended.terminating_signal().map(|signal| -signal))
}

fn mount_proc() -> Result<(), StageFailure> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", Path::new("/proc"), "proc", flags, None).step_with("mount /proc", |_| {
        Some(
            "the container hides parts of /proc; try to start it with unmasked paths, for \
             example `--security-opt systempaths=unconfined`",
        )
    })
}
