//! The processes of a run.
//!
//! The outer stage enters the namespaces, builds the tree of mounts, and ends as the command ends.
//! The stage `init` is process 1 of the process namespace: if it ends, the kernel ends all others.
//! The stage `inner` gives up every capability, closes the last walls, and becomes the command.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use nix::sched::CloneFlags;
use nix::sys::signal::{SigSet, Signal, raise};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::{MountFlags, mount};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, Resource, Rlimit, Signal as KillSignal, WaitOptions, WaitStatus, chdir, geteuid, getppid,
    set_parent_process_death_signal, setrlimit, wait, waitpid,
};

use super::NOT_RUN;
use super::call_filter;
use super::files;
use super::limits::{self, ControlGroup};
use super::machine;
use super::mounts::{self, OWN_PROGRAM, OutsideMounts};
use super::rights;
use super::stage::{
    FailedStep, PROGRAM, Stage, StageEvent, StageFailure, StageRequest, StageSignals,
};

pub(super) fn serve_outer(descriptor: i32) -> Result<ExitCode, StageFailure> {
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
    rights::enter_namespaces(namespaces, descriptor)?;
    if request.spec.nested {
        rights::forbid_control_groups()?;
    }
    if !request.spec.network {
        rights::bring_loopback_up()?;
    }
    let shown = mounts::build(&request.spec)?;

    let (status, status_writer) = status_pipe()?;
    rights::pass_capabilities_on()?;
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

/// Serves the stage. `status` is the descriptor of the pipe to the outer stage.
pub(super) fn serve_init(descriptor: i32, status: Option<i32>) -> Result<ExitCode, StageFailure> {
    let status = status.ok_or_else(|| StageFailure::new("cannot serve `init` without a pipe"))?;
    let (queue, _) = StageSignals::new()?;
    // Opened anew, the pipe is not inherited by the command.
    let pipe = files::open_for_writing(&files::own_descriptor(status)).step("open a pipe")?;
    files::close_descriptors_except(&[descriptor, queue.number(), raw(&pipe)])
        .step("close inherited descriptors")?;
    set_parent_process_death_signal(Some(KillSignal::KILL)).step("end with the caller")?;
    // The outer stage may have ended before. Then nobody reads from the pipe.
    let mut polled = [PollFd::new(&pipe, PollFlags::empty())];
    poll(&mut polled, Some(&Timespec::default())).step("look at a pipe")?;
    if polled.iter().any(|polled| polled.revents().contains(PollFlags::ERR)) {
        return Err(StageFailure::new("cannot go on without the caller, which has ended"));
    }
    mount_proc()?;
    if geteuid().is_root() {
        machine::protect_proc()?;
    }

    let child = Stage::Inner.spawn(descriptor, None)?;
    let child = Pid::from_child(&child);
    rights::keep_no_capability()?;
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

/// Exit code if the command cannot be executed, as in env(1).
const NOT_EXECUTABLE: u8 = 126;

const NOT_FOUND: u8 = 127;

/// Serves the stage: runs the command in this process.
pub(super) fn serve_inner(descriptor: i32) -> Result<ExitCode, StageFailure> {
    let request = StageRequest::read(descriptor)?;
    rights::enter_namespaces(CloneFlags::empty(), descriptor)?;
    // The inherited directory belongs to the real workspace.
    chdir(&request.spec.directory).step("enter the workspace")?;
    files::close_descriptors_except(&[]).step("close descriptors")?;
    rights::give_up_capabilities()?;
    call_filter::install()?;
    if !request.has_group {
        // In the namespace of this process, so that only its processes count.
        limits::limit_process(&request.spec)?;
    }
    rights::restrict_by_landlock(&request.spec)?;
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
