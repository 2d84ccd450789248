//! Limits of memory and processes.
//!
//! A control group limits all processes together. It can be made only where the system has
//! delegated a part of its tree to the user. Otherwise each process is limited by itself. The
//! number of processes is then limited as the kernel counts them for the user in the namespace of
//! the sandbox.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, mkdirat, openat, stat, unlinkat};
use rustix::process::{Resource, Rlimit, geteuid, getpid, getrlimit, setrlimit};

use super::files;
use super::spec::SandboxSpec;
use super::stage::{FailedStep, StageFailure};

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
pub(super) fn limit_process(spec: &SandboxSpec) -> Result<(), StageFailure> {
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
