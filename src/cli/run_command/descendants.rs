//! The processes that the command started, directly or not.
//!
//! We are a subreaper: a process whose parent ends becomes our child, also if it left its session
//! or became a daemon. So all of them are found by the parents that /proc states.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt::Write as _;
use std::fs;
use std::io;

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
};

/// Maximum number of scans in a row that look for processes that were started meanwhile.
const SCANS_MAX: usize = 100;

const NAMED_MAX: usize = 5;

/// A process that has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: Pid,
    parent: i32,
    name: String,
}

pub(super) struct Descendants {
    own: Pid,
    /// Children that we had before. A shell that replaces itself with us by exec leaves us the
    /// other processes that it started, such as a `>(tee log)` that we write to.
    earlier: HashSet<Pid>,
}

impl Descendants {
    /// Makes us the subreaper of the processes to come.
    ///
    /// # Errors
    ///
    /// Fails if we have children already, and /proc cannot be read.
    pub(super) fn new() -> io::Result<Descendants> {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        let mut descendants =
            Descendants { own: rustix::process::getpid(), earlier: HashSet::new() };
        if has_children() {
            descendants.earlier = descendants.list()?.iter().map(|process| process.pid).collect();
        }
        Ok(descendants)
    }

    pub(super) fn forget(&mut self, pid: Pid) {
        self.earlier.remove(&pid);
    }

    /// Returns the processes that have not ended, parents first.
    ///
    /// # Errors
    ///
    /// Fails if /proc cannot be read.
    pub(super) fn list(&self) -> io::Result<Vec<Process>> {
        if !has_children() {
            return Ok(Vec::new());
        }
        let mut by_parent: BTreeMap<i32, Vec<Process>> = BTreeMap::new();
        for process in all_processes()? {
            by_parent.entry(process.parent).or_default().push(process);
        }
        let mut found: Vec<Process> = Vec::new();
        let mut parents = vec![self.own.as_raw_pid()];
        while let Some(parent) = parents.pop() {
            let children = by_parent.remove(&parent).unwrap_or_default();
            let children = children.into_iter().filter(|child| !self.earlier.contains(&child.pid));
            for child in children {
                parents.push(child.pid.as_raw_pid());
                found.push(child);
            }
        }
        Ok(found)
    }

    /// Sends `signals` once to each process, also to those that are started meanwhile. Returns the
    /// processes that received them: none if /proc cannot be read.
    pub(super) fn signal_all(&self, signals: &[Signal]) -> HashSet<Pid> {
        let (mut seen, mut signaled) = (HashSet::new(), HashSet::new());
        for _ in 0..SCANS_MAX {
            let Ok(processes) = self.list() else { break };
            let parents: BTreeSet<i32> =
                processes.iter().map(|process| process.pid.as_raw_pid()).collect();
            let mut found_new = false;
            for process in processes.iter().filter(|process| seen.insert(process.pid)) {
                found_new = true;
                if self.signal(process, signals, &parents) {
                    signaled.insert(process.pid);
                }
            }
            if !found_new {
                break;
            }
        }
        signaled
    }

    /// Signals a process, unless it has ended and another one has its id. Returns true if it did.
    fn signal(&self, process: &Process, signals: &[Signal], parents: &BTreeSet<i32>) -> bool {
        // The descriptor holds one process. If that one still has a parent among ours, it is the
        // one that was listed, or another descendant.
        let Ok(fd) = pidfd_open(process.pid, PidfdFlags::empty()) else { return false };
        let is_ours = read_process(process.pid).is_some_and(|now| {
            now.parent == self.own.as_raw_pid() || parents.contains(&now.parent)
        });
        if is_ours {
            for signal in signals {
                // It may end at any time.
                let _ = pidfd_send_signal(&fd, *signal);
            }
        }
        is_ours
    }

    /// Returns the processes that hold one of these files open, or may do so. A file is given as
    /// the target of a link in /proc/PID/fd.
    ///
    /// # Errors
    ///
    /// Fails if /proc cannot be read.
    pub(super) fn holders(&self, links: &[String]) -> io::Result<Vec<Process>> {
        let mut holders = self.list()?;
        holders.retain(|process| {
            // The descriptors of another user's process cannot be read.
            let Ok(fds) = fs::read_dir(format!("/proc/{}/fd", process.pid)) else { return true };
            fds.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok())
                .any(|target| links.iter().any(|link| target.as_os_str() == link.as_str()))
        });
        Ok(holders)
    }
}

pub(super) fn names(processes: &[Process]) -> String {
    let mut text = String::new();
    for process in processes.iter().take(NAMED_MAX) {
        let separator = if text.is_empty() { "" } else { ", " };
        let _ = write!(text, "{separator}{} ({})", process.pid, process.name);
    }
    let more = processes.len().saturating_sub(NAMED_MAX);
    if more > 0 {
        let _ = write!(text, " and {more} more");
    }
    text
}

/// Returns true if we have a child, ended or not.
fn has_children() -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    waitid(rustix::process::WaitId::All, options).is_ok()
}

/// Lists the processes in /proc that have not ended.
fn all_processes() -> io::Result<Vec<Process>> {
    let mut processes = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let pid = entry?.file_name().to_str().and_then(|name| name.parse().ok());
        processes.extend(pid.and_then(Pid::from_raw).and_then(read_process));
    }
    Ok(processes)
}

/// Reads /proc/PID/stat. Returns `None` if the process has ended.
fn read_process(pid: Pid) -> Option<Process> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    parse_stat(pid, &String::from_utf8_lossy(&stat))
}

/// Parses `PID (NAME) STATE PARENT …`; the name may hold any character. Returns `None` for a
/// process that has ended.
fn parse_stat(pid: Pid, stat: &str) -> Option<Process> {
    let (before, after) = stat.rsplit_once(')')?;
    let (_, name) = before.split_once('(')?;
    let mut fields = after.split_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let has_ended = matches!(state, "Z" | "X" | "x");
    (!has_ended).then(|| Process { pid, parent, name: crate::name::printable(name.as_bytes()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_is_parsed_for_any_name() {
        let pid = Pid::from_raw(7).unwrap();
        let parsed = |stat| parse_stat(pid, stat).map(|process| (process.parent, process.name));
        assert_eq!(parsed("7 (sh) S 1 7 7 0"), Some((1, "sh".to_owned())));
        assert_eq!(parsed("7 (a) Z (b) R 31 7"), Some((31, "a) Z (b".to_owned())));
        assert_eq!(parsed("7 (sh) Z 1 7"), None);
        assert_eq!(parsed("7 (sh"), None);
        assert_eq!(parsed(""), None);
    }

    #[test]
    fn message_names_a_few_processes() {
        let process =
            |pid| Process { pid: Pid::from_raw(pid).unwrap(), parent: 1, name: format!("p{pid}") };
        let many: Vec<Process> = (1..=7).map(process).collect();
        assert_eq!(names(&many[..2]), "1 (p1), 2 (p2)");
        assert_eq!(names(&many), "1 (p1), 2 (p2), 3 (p3), 4 (p4), 5 (p5) and 2 more");
    }
}
