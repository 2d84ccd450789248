//! File systems whose server does not answer: a process that accesses one would wait forever.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{lstat, statfs};

use super::mount_table::AttachedMounts;

/// Types of file systems that a server answers for.
const SERVED: [&str; 11] =
    ["fuse.", "fuse", "fuseblk", "nfs", "nfs4", "cifs", "smb3", "9p", "virtiofs", "ceph", "afs"];

/// Time limit for the answers of all servers.
const PATIENCE: Duration = Duration::from_secs(2);

/// Returns the mountpoints whose file systems do not answer in time.
pub(super) fn silent(table: &AttachedMounts) -> BTreeSet<PathBuf> {
    let served = table.of_types(&SERVED).map(|mount| mount.point.clone());
    let mut silent: BTreeSet<PathBuf> = served.collect();
    let (answers, answered) = mpsc::channel();
    for point in &silent {
        let (point, answers) = (point.clone(), answers.clone());
        // A thread that waits for an answer ends with this process. Without a thread, the file
        // system counts as silent.
        let _ = thread::Builder::new().spawn(move || {
            // An error is an answer, too.
            let _ = (lstat(&point), statfs(&point));
            answers.send(point)
        });
    }
    drop(answers);
    let deadline = Instant::now() + PATIENCE;
    while let Ok(point) = answered.recv_timeout(deadline.saturating_duration_since(Instant::now()))
    {
        silent.remove(&point);
    }
    silent
}
