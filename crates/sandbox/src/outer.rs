//! The outer stage: enters the namespaces, builds the tree of mounts, and ends as the command ends.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::ExitCode;

use nix::sched::CloneFlags;
use nix::sys::signal::{SigSet, Signal, raise};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, Resource, Rlimit, Signal as KillSignal, WaitOptions, getppid,
    set_parent_process_death_signal, setrlimit, waitpid,
};

use super::cause::{FailedStep, StageFailure};
use super::limits::ControlGroup;
use super::signals::{StageEvent, StageSignals};
use super::stage::{Stage, StageRequest};
use super::watch::OutsideMounts;
use super::{NOT_RUN, files, identity, loopback, mounts, privileges};

pub(super) fn serve(descriptor: i32) -> Result<ExitCode, StageFailure> {
    let (queue, mask) = StageSignals::new()?;
    files::close_descriptors_except(&[descriptor, queue.number()])
        .step("close inherited descriptors")?;
    let mut request = StageRequest::read(descriptor)?;
    request.blocked_signals = mask.iter().map(|signal| signal as i32).collect();
    end_with_parent(request.parent)?;
    let mut namespaces =
        CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWIPC;
    if !request.spec.network {
        namespaces |= CloneFlags::CLONE_NEWNET;
    }
    let group = ControlGroup::enter(&request.spec)?;
    request.has_group = group.is_some();
    request.write(descriptor)?;
    let outside = OutsideMounts::open().step("watch the mounts")?;
    identity::enter(namespaces, descriptor)?;
    if request.spec.nested {
        identity::forbid_control_groups()?;
    }
    if !request.spec.network {
        loopback::bring_up()?;
    }
    let shown = mounts::build(&request.spec)?;

    let (status, status_writer) = status_pipe()?;
    privileges::pass_on()?;
    let child = Stage::Init.spawn(descriptor, Some(status_writer.as_raw_fd()))?;
    drop(status_writer);
    let child = Pid::from_child(&child);
    let own_end = loop {
        let event = queue.wait_for_event(child.as_raw_pid(), Some(outside.as_fd()))?;
        if event == StageEvent::Watched {
            outside.release(&shown);
            continue;
        }
        if let Some((_, ended)) =
            waitpid(Some(child), WaitOptions::NOHANG).step("wait for the sandbox")?
        {
            break ended;
        }
    };
    // Left before this process ends itself by a signal.
    drop(group);
    let mut code = [0; 4];
    let end = match rustix::io::read(&status, &mut code) {
        Ok(4) => End::of_command(i32::from_le_bytes(code)),
        // The stage failed before the command ran, or was killed.
        _ => match (own_end.exit_status(), own_end.terminating_signal()) {
            (Some(code), _) => End::Exit(code),
            (None, signal) => End::Signal(signal.unwrap_or_default()),
        },
    };
    Ok(end.pass_on())
}

enum End {
    Exit(i32),
    Signal(i32),
}

impl End {
    /// Decodes the status that the stage `init` has written: an exit code, or a negative signal.
    fn of_command(status: i32) -> End {
        if status < 0 { End::Signal(-status) } else { End::Exit(status) }
    }

    /// Ends this process by the signal, or returns the exit code.
    fn pass_on(self) -> ExitCode {
        match self {
            End::Exit(code) => ExitCode::from(u8::try_from(code).unwrap_or(NOT_RUN)),
            End::Signal(number) => {
                // Only the command itself should leave a core dump.
                let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
                if let Ok(signal) = Signal::try_from(number) {
                    // The process handles only SIGCHLD, so this ends it.
                    let _ = raise(signal);
                    let _ = SigSet::from(signal).thread_unblock();
                }
                // Reached for signals that are ignored, as a shell reports them.
                ExitCode::from(u8::try_from(number.saturating_add(128)).unwrap_or(NOT_RUN))
            }
        }
    }
}

/// Makes the kernel kill this process when the process that started it ends.
fn end_with_parent(parent: i32) -> Result<(), StageFailure> {
    set_parent_process_death_signal(Some(KillSignal::KILL)).step("end with the caller")?;
    // The caller may have ended before.
    if getppid().is_none_or(|now| now.as_raw_pid() != parent) {
        return Err(StageFailure::new("cannot go on without the caller, which has ended"));
    }
    Ok(())
}

/// Returns a pipe whose second end is inherited.
fn status_pipe() -> Result<(OwnedFd, OwnedFd), StageFailure> {
    let make = || {
        let (reader, writer) = pipe_with(PipeFlags::empty())?;
        rustix::io::fcntl_setfd(&reader, rustix::io::FdFlags::CLOEXEC)?;
        rustix::io::Result::Ok((reader, writer))
    };
    let (reader, writer) = make().step("make a pipe")?;
    // The reader must not wait for a process that was killed.
    rustix::fs::fcntl_setfl(reader.as_fd(), rustix::fs::OFlags::NONBLOCK).step("make a pipe")?;
    Ok((reader, writer))
}
