//! Command line tools run in a shell, and copies of a tree on disk for them to read.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};

use super::{Seen, skip};

/// Tools whose absence is not reported as a skip: they are too large to install for a test.
const OPTIONAL: [&str; 1] = ["node"];
/// Search path with the system's tools only.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Path of the shell. The standard library would look for a name in the new `$PATH`, and for that
/// it forks, which takes milliseconds in a process with the memory of all tests.
const SHELL: &str = "/bin/bash";

/// Returns true if `tool` can be run. Otherwise reports a skip, or fails if skips are forbidden.
pub fn is_here(tool: &str) -> bool {
    let there = Command::new(SHELL)
        .args(["-c", "command -v -- \"$0\"", tool])
        .env("PATH", PATH)
        .output()
        .unwrap();
    if !there.status.success() && !OPTIONAL.contains(&tool) {
        skip(&format!("{tool} is not installed"));
    }
    there.status.success()
}

/// Returns a shell that runs `command` in `folder`, stops at the first error, and ignores the
/// user's configuration.
pub fn shell(command: &str, folder: &Path) -> Command {
    let mut shell = Command::new(SHELL);
    shell
        .args(["-c", &format!("set -euo pipefail\n{command}")])
        .current_dir(folder)
        .stdin(Stdio::null());
    shell.env_clear().envs([
        ("PATH", PATH),
        ("LC_ALL", "C.UTF-8"),
        ("TZ", "UTC"),
        ("HOME", "/nonexistent"),
    ]);
    shell.env("GIT_CONFIG_NOSYSTEM", "1");
    shell
}

/// Writes a tree to `folder`, with modes, owners and times.
pub fn lay_out(seen: &BTreeMap<Vec<u8>, Seen>, folder: &Path) {
    // Forward, directories come before their entries. In reverse, later writes do not change their
    // times and modes.
    for (path, seen) in seen {
        let path = folder.join(OsStr::from_bytes(path));
        match seen {
            Seen::File { bytes, .. } => fs::write(path, bytes).unwrap(),
            Seen::Link(target) => symlink(OsStr::from_bytes(target), path).unwrap(),
            Seen::Folder { .. } => fs::create_dir_all(path).unwrap(),
        }
    }
    for (path, seen) in seen.iter().rev() {
        let path = folder.join(OsStr::from_bytes(path));
        let (Seen::File { attr, mtime, .. } | Seen::Folder { attr, mtime }) = seen else {
            continue;
        };
        let time = Timespec { tv_sec: mtime.0, tv_nsec: mtime.1.into() };
        chown(&path, Some(attr.1), Some(attr.2)).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(attr.0)).unwrap();
        let times = Timestamps { last_access: time, last_modification: time };
        utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
}
