//! The processes of a run, and the limits of their number and memory.
//!
//! The outer stage enters the namespaces, builds the tree of mounts, and ends as the command ends.
//! The stage `init` is process 1 of the process namespace: if it ends, the kernel ends all others.
//! The stage `inner` gives up every capability, enters the last isolation, and becomes the command.
//!
//! A control group limits all processes together. It can be made only where the system has
//! delegated a part of its tree to the user. Otherwise each process is limited by itself. The
//! number of processes is then limited as the kernel counts them for the user in the namespace of
//! the sandbox.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use nix::sched::CloneFlags;
use nix::sys::signal::{SigSet, Signal, raise};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, mkdirat, openat, stat, unlinkat};
use rustix::mount::{MountFlags, mount};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, Resource, Rlimit, Signal as KillSignal, WaitOptions, WaitStatus, chdir, geteuid, getpid,
    getppid, getrlimit, set_parent_process_death_signal, setrlimit, wait, waitpid,
};

use super::files::LeftFiles;
use super::mounts::{self, OWN_PROGRAM, OutsideMounts};
use super::stage::{
    FailedStep, PROGRAM, SandboxSpec, Stage, StageEvent, StageFailure, StageRequest, StageSignals,
};
use super::{NOT_RUN, files, machine, rights, stage};

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
                let left = LeftFiles::find(mounts::TEMPORARY.map(|(folder, _)| folder));
                // Without it, nothing is known of such files.
                let _ = stage::report_left(descriptor, &left);
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
    rights::install()?;
    if !request.has_group {
        // In the namespace of this process, so that only its processes count.
        limit_process(&request.spec)?;
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

const ROOT: &str = "/sys/fs/cgroup";

const MAGIC: rustix::fs::FsWord = 0x6367_7270;

/// Processes of the sandbox itself in the group: `outer` and `init`.
const OWN_PROCESSES: u64 = 2;

/// Maximum size of the file that names the group of a process, in bytes.
const GROUP_MAX: u64 = 64 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitMethod {
    /// By a control group, for all processes together.
    ControlGroup,
    /// By limits of each process. They do not limit the number of root's processes.
    Process,
}

/// A control group of the sandbox. When dropped, it is removed, after this process has left it.
pub(super) struct ControlGroup {
    parent: OwnedFd,
    name: String,
    /// The file that moves this process back to its previous group.
    before: Option<OwnedFd>,
}

/// Returns the method by which limits work here. To find out, this makes a control group, which is
/// removed at once.
pub fn probe_limits() -> LimitMethod {
    match ControlGroup::make() {
        Some(_) => LimitMethod::ControlGroup,
        None => LimitMethod::Process,
    }
}

impl ControlGroup {
    /// Makes a group with the limits of `spec` and enters it. Returns `None` without limits, or if
    /// no group can be made.
    pub(super) fn enter(spec: &SandboxSpec) -> Result<Option<ControlGroup>, StageFailure> {
        if spec.max_memory.is_none() && spec.max_processes.is_none() {
            return Ok(None);
        }
        let Some((mut group, before)) = ControlGroup::make() else {
            if geteuid().is_root() && spec.max_processes.is_some() {
                return Err(StageFailure::new(
                    "cannot limit the number of processes: root has no limit without a control \
                     group; try `--as USER`",
                ));
            }
            return Ok(None);
        };
        let before = files::open_for_writing(&before.join("cgroup.procs"));
        group.before = Some(before.step("open a control group")?);
        let processes = spec.max_processes.map(|max| max.saturating_add(OWN_PROCESSES));
        for (file, limit) in [("memory.max", spec.max_memory), ("pids.max", processes)] {
            if let Some(limit) = limit {
                group.write(file, &limit.to_string()).step("set the limits")?;
            }
        }
        if spec.max_memory.is_some() {
            // Kernels without swap have no such file.
            let _ = group.write("memory.swap.max", "0");
        }
        group.write("cgroup.procs", &getpid().as_raw_pid().to_string()).step("set the limits")?;
        Ok(Some(group))
    }

    /// Makes a group. Returns it, and the path of the present group.
    fn make() -> Option<(ControlGroup, PathBuf)> {
        let own = own_group()?;
        // A group with processes cannot pass controllers on to groups beneath it, but the one
        // above it may.
        [own.as_path(), own.parent()?].into_iter().filter(|path| path.starts_with(ROOT)).find_map(
            |parent| {
                let name = format!("swarmletfs-{}", getpid().as_raw_pid());
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let folder = openat(CWD, parent, flags, Mode::empty()).ok()?;
                rustix::fs::fstatfs(&folder).ok().filter(|stat| stat.f_type == MAGIC)?;
                mkdirat(&folder, &name, Mode::from_raw_mode(0o755)).ok()?;
                let group = ControlGroup { parent: folder, name, before: None };
                let has = |file: &str| stat(parent.join(&group.name).join(file)).is_ok();
                (has("memory.max") && has("pids.max")).then(|| (group, own.clone()))
            },
        )
    }

    fn write(&self, file: &str, text: &str) -> std::io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let path = Path::new(&self.name).join(file);
        files::write_all(openat(&self.parent, path, flags, Mode::empty())?, text.as_bytes())
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = files::write_all(before, getpid().as_raw_pid().to_string().as_bytes());
        }
        // A group that cannot be removed is empty and does no harm.
        let _ = unlinkat(&self.parent, &self.name, AtFlags::REMOVEDIR);
    }
}

/// Limits this process and its children, where no control group does.
fn limit_process(spec: &SandboxSpec) -> Result<(), StageFailure> {
    let limits = [(Resource::As, spec.max_memory), (Resource::Nproc, spec.max_processes)];
    for (resource, limit) in limits {
        let Some(limit) = limit else { continue };
        let maximum = getrlimit(resource).maximum.map_or(limit, |maximum| maximum.min(limit));
        setrlimit(resource, Rlimit { current: Some(maximum), maximum: Some(maximum) })
            .step("set the limits")?;
    }
    Ok(())
}

fn own_group() -> Option<PathBuf> {
    let text = files::read(Path::new("/proc/self/cgroup"), GROUP_MAX).ok()?;
    let path = text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"0::/"))?;
    Some(Path::new(ROOT).join(OsString::from_vec(path.to_vec())))
}
