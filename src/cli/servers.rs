//! The processes that serve a mount, found by the kernel's number of its connection.
//!
//! A mount is gone from the kernel's table before its process has closed the store. Whoever unmounts, to eject the disk
//! that the store is on or to mount again, needs both.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// The device that a process serves mounts through.
const FUSE: &str = "/dev/fuse";
/// The line of fdinfo that names the connection; Linux has it since 6.16.
const CONNECTION: &str = "fuse_connection:";

/// Folder in which the kernel lists FUSE connections, if it is mounted.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// Returns true if requests to the mount of `device` wait for their answers, or the kernel does not tell.
pub(super) fn has_requests(device: &str) -> bool {
    let Some((_, connection)) = device.split_once(':') else { return false };
    let connections = Path::new(CONNECTIONS);
    match fs::read_to_string(connections.join(connection).join("waiting")) {
        Ok(waiting) => waiting.trim() != "0",
        // Of others it tells: this one has ended.
        Err(_) => fs::read_dir(connections).is_ok_and(|mut all| all.next().is_none()),
    }
}

/// A process that serves a mount.
pub(super) struct Server {
    process: OwnedFd,
    pub(super) pid: u32,
}

impl Server {
    /// Returns the processes of this program that serve the mount of `device` (`major:minor`), as far as this user may
    /// look at them and the kernel tells.
    pub(super) fn all_of(device: &str) -> Vec<Server> {
        let Some((_, connection)) = device.split_once(':') else { return Vec::new() };
        let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
        let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        pids.filter(|pid| *pid != std::process::id()).filter_map(|pid| Server::if_it_serves(pid, connection)).collect()
    }

    fn if_it_serves(pid: u32, connection: &str) -> Option<Server> {
        // Opened first: from then on the number cannot become another process's unnoticed.
        let process = pidfd_open(Pid::from_raw(pid.try_into().ok()?)?, PidfdFlags::empty()).ok()?;
        let folder = Path::new("/proc").join(pid.to_string());
        // Another program may hold a connection that ended, whose number was given to a new one.
        let name = |process: &Path| fs::read(process.join("comm")).ok();
        if name(&folder)? != name(Path::new("/proc/self"))? {
            return None;
        }
        let serves = |entry: fs::DirEntry| {
            let is_fuse = fs::read_link(entry.path()).is_ok_and(|target| target == Path::new(FUSE));
            is_fuse && {
                let info = fs::read_to_string(folder.join("fdinfo").join(entry.file_name())).unwrap_or_default();
                info.lines().filter_map(|line| line.strip_prefix(CONNECTION)).any(|number| number.trim() == connection)
            }
        };
        let serves = fs::read_dir(folder.join("fd")).ok()?.filter_map(Result::ok).any(serves);
        serves.then_some(Server { process, pid })
    }

    /// Waits until the process has ended, no longer than until `end`. Returns true if it has.
    pub(super) fn has_ended(&self, end: Instant) -> bool {
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let limit = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            match poll(&mut [PollFd::new(&self.process, PollFlags::IN)], Some(&limit)) {
                Ok(0) => return false,
                Ok(_) => return true,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }
}
