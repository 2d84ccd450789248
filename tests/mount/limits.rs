//! What runs out (R22): descriptors, memory, room for the log. A request may fail by name; the mount does not, and is
//! right again as soon as there is enough.

use std::fs;

use rustix::io::Errno;
use rustix::process::Resource;

use super::swarm;
use crate::needs_fuse;
use crate::support::Mount;

#[test]
fn a_log_that_cannot_be_written_changes_nothing() {
    needs_fuse!();
    let store = swarm();
    let mount = Mount::by(&["bash", "-c", "exec \"$@\" 2>/dev/full", "bash"], &store.path(), &[]);
    assert!(!mount.text("workers/alpha/metadata.json").is_empty());
    // Every refusal is worth a line in the log; there are more of them than threads.
    mount.limit(Resource::Nofile, 3);
    for _ in 0..20 {
        let error = fs::read(mount.at("workers/alpha/result.txt")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::MFILE.raw_os_error()));
    }
    mount.limit(Resource::Nofile, 1_000);
    assert_eq!(mount.text("workers/alpha/result.txt"), "All hosts were checked.\n");
}
