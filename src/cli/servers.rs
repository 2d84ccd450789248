//! Finds the processes that serve a mount, by the number of their FUSE connection.
//!
//! A mount leaves the kernel's table before its process has closed the store. To eject the store's
//! disk or to mount again, both must have happened.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

const FUSE_DEVICE: &str = "/dev/fuse";
/// Field in fdinfo with the connection number; Linux has it since 6.16.
const CONNECTION_FIELD: &str = "fuse_connection:";

/// Directory in which the kernel lists FUSE connections, if it is mounted.
const CONNECTIONS_DIR: &str = "/sys/fs/fuse/connections";

/// Returns true if requests to the mount of `device` are pending, or if the kernel does not report
/// that.
pub(super) fn has_requests(device: &str) -> bool {
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

pub(super) struct Server {
    process: OwnedFd,
    pub(super) pid: u32,
}

impl Server {
    /// Returns the processes of this program that serve the mount of `device` (`major:minor`).
    ///
    /// Processes that this user may not inspect are missing, as are all of them on older kernels.
    pub(super) fn find_all(device: &str) -> Vec<Server> {
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
