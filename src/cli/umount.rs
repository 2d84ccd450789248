//! `swarmletfs umount`: unmounts a swarmletfs mount and no other.
//!
//! It works on dead and hung mounts. It returns when the mount has left the kernel's table. Unless
//! others still use the mount, it also waits until the process has ended and closed the store: a
//! mount leaves the table before that. To eject the store's disk or to mount again, both must have
//! happened. The processes that serve a mount are found by the number of their FUSE connection.

use std::fs;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::mountinfo::{Mount, MountTable};
use super::mountpoint::{default_for_user, is_dead, read_mount_table, resolve};
use super::probe;
use super::teardown::{UnmountMode, unmount, wait_until_unmounted};
use super::terminal::{display_path, shell_quote};

pub(super) const HELP: &str = "\
Examples:
  swarmletfs umount /mnt/swarm
  swarmletfs umount --lazy /mnt/swarm              even while files are open";

#[derive(Debug, Args)]
pub(super) struct UmountArgs {
    /// The mountpoint [default: $XDG_RUNTIME_DIR/swarm, except for root]
    mountpoint: Option<PathBuf>,

    /// Detach the mount at once, even while files are open; it ends when the last one is closed
    #[arg(long, short)]
    lazy: bool,
}

/// Time for the kernel to remove a mount, and for its process to end.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Time that pending requests may keep a mount busy; a generated file takes seconds to answer.
const BUSY_TIMEOUT: Duration = Duration::from_secs(4);
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Unmounts.
///
/// # Errors
///
/// Fails if nothing is mounted there, the mount is not swarmletfs, or it is in use.
pub(super) fn run(arguments: UmountArgs) -> anyhow::Result<()> {
    let path_arg = match arguments.mountpoint {
        Some(path) => path,
        None => default_for_user()?,
    };
    let mounts = read_mount_table()?;
    let point = match resolve(&path_arg, &mounts) {
        Ok(point) => point,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!("{} does not exist, so nothing is mounted there", display_path(&path_arg))
        }
        Err(error) => {
            return Err(error)
                .with_context(|| format!("cannot access {}", display_path(&path_arg)));
        }
    };
    let device = ours(&point, &mounts)?.device.clone();
    let servers = Server::find_all(&device);
    let mode = if arguments.lazy { UnmountMode::Detached } else { UnmountMode::Idle };
    if let Err(error) = unmount_when_idle(&point, &device, mode) {
        if error.kind() != ErrorKind::ResourceBusy {
            return Err(error).with_context(|| format!("cannot unmount {}", display_path(&point)));
        }
        if !probe::check_alive(&point).is_err_and(|error| is_dead(&error)) {
            bail!(
                "{} is in use: close its open files (`fuser -vm {1}` lists the processes), or \
                 detach it now with `swarmletfs umount --lazy {1}`",
                display_path(&point),
                shell_quote(&point),
            );
        }
        // Detaching a dead mount takes nothing from its users.
        unmount(&point, UnmountMode::Detached)
            .with_context(|| format!("cannot unmount {}", display_path(&point)))?;
    }
    if !wait_until_unmounted(&point, &device, TIMEOUT)? {
        bail!("{} is still mounted after {} seconds", display_path(&point), TIMEOUT.as_secs());
    }
    if arguments.lazy {
        // Processes that still use the mount are served until they close their files.
        return Ok(());
    }
    let end = Instant::now() + TIMEOUT;
    if let Some(server) = servers.iter().find(|server| !server.has_ended(end)) {
        bail!(
            "{} is unmounted, but its process {} still has the store open after {} seconds; to end \
             it: `kill {1}`",
            display_path(&point),
            server.pid,
            TIMEOUT.as_secs(),
        );
    }
    Ok(())
}

/// Unmounts, and retries while pending requests keep the mount busy.
fn unmount_when_idle(point: &Path, device: &str, mode: UnmountMode) -> std::io::Result<()> {
    let end = Instant::now() + BUSY_TIMEOUT;
    loop {
        match unmount(point, mode) {
            Err(error)
                if error.kind() == ErrorKind::ResourceBusy
                    && Instant::now() < end
                    && has_requests(device) =>
            {
                std::thread::sleep(RETRY_INTERVAL);
            }
            other => return other,
        }
    }
}

/// Returns the swarmletfs mount at `point`.
///
/// # Errors
///
/// Fails if there is none, with a message that names another mount there, if any.
fn ours<'a>(point: &Path, mounts: &'a MountTable) -> anyhow::Result<&'a Mount> {
    match mounts.at(point) {
        Some(mount) if mount.is_ours() => Ok(mount),
        Some(mount) => bail!(
            "the mount on {} is not swarmletfs but {} ({}): it was left alone",
            display_path(point),
            display_path(&mount.source),
            display_path(Path::new(&mount.kind)),
        ),
        None => match mounts.holder(point) {
            Some(mount) if mount.is_ours() => bail!(
                "{} lies inside the mount on {}; to unmount that: `swarmletfs umount {}`",
                display_path(point),
                display_path(&mount.point),
                shell_quote(&mount.point),
            ),
            _ => bail!("nothing is mounted on {}", display_path(point)),
        },
    }
}

const FUSE_DEVICE: &str = "/dev/fuse";
/// Field in fdinfo with the connection number; Linux has it since 6.16.
const CONNECTION_FIELD: &str = "fuse_connection:";

/// Directory in which the kernel lists FUSE connections, if it is mounted.
const CONNECTIONS_DIR: &str = "/sys/fs/fuse/connections";

/// Returns true if requests to the mount of `device` are pending, or if the kernel does not report
/// that.
fn has_requests(device: &str) -> bool {
    let Some((_, connection)) = device.split_once(':') else { return false };
    let connections = Path::new(CONNECTIONS_DIR);
    match fs::read_to_string(connections.join(connection).join("waiting")) {
        Ok(waiting) => waiting.trim() != "0",
        // If other connections are listed, this one has ended.
        Err(_) => {
            fs::read_dir(connections).is_ok_and(|mut connections| connections.next().is_none())
        }
    }
}

/// Returns true if `descriptor`, of the process in `folder`, serves the FUSE connection.
fn serves_connection(folder: &Path, descriptor: &fs::DirEntry, connection: &str) -> bool {
    if !fs::read_link(descriptor.path()).is_ok_and(|target| target == Path::new(FUSE_DEVICE)) {
        return false;
    }
    let info = fs::read_to_string(folder.join("fdinfo").join(descriptor.file_name()));
    info.unwrap_or_default()
        .lines()
        .filter_map(|line| line.strip_prefix(CONNECTION_FIELD))
        .any(|number| number.trim() == connection)
}

struct Server {
    process: OwnedFd,
    pub(super) pid: u32,
}

impl Server {
    /// Returns the processes of this program that serve the mount of `device` (`major:minor`).
    ///
    /// Processes that this user may not inspect are missing, as are all of them on older kernels.
    fn find_all(device: &str) -> Vec<Server> {
        let Some((_, connection)) = device.split_once(':') else { return Vec::new() };
        let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
        let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        pids.filter(|pid| *pid != std::process::id())
            .filter_map(|pid| Server::open_if_serving(pid, connection))
            .collect()
    }

    /// Opens the process `pid` if it is one of this program and serves the FUSE connection.
    fn open_if_serving(pid: u32, connection: &str) -> Option<Server> {
        // Opened first: afterwards the pid cannot be reused unnoticed.
        let process = pidfd_open(Pid::from_raw(pid.try_into().ok()?)?, PidfdFlags::empty()).ok()?;
        let folder = Path::new("/proc").join(pid.to_string());
        // Another program may hold an ended connection whose number was reused.
        let name = |process: &Path| fs::read(process.join("comm")).ok();
        if name(&folder)? != name(Path::new("/proc/self"))? {
            return None;
        }
        let mut descriptors = fs::read_dir(folder.join("fd")).ok()?.filter_map(Result::ok);
        descriptors
            .any(|descriptor| serves_connection(&folder, &descriptor, connection))
            .then_some(Server { process, pid })
    }

    /// Waits until the process has ended or `end` has passed. Returns true if it has ended.
    pub(super) fn has_ended(&self, end: Instant) -> bool {
        loop {
            let remaining = end.saturating_duration_since(Instant::now());
            let limit = Timespec {
                tv_sec: remaining.as_secs() as i64,
                tv_nsec: remaining.subsec_nanos().into(),
            };
            match poll(&mut [PollFd::new(&self.process, PollFlags::IN)], Some(&limit)) {
                Ok(0) => return false,
                Ok(_) => return true,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }
}
