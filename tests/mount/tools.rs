//! Ordinary tools on the mount: each gives of it exactly what it gives of the same files on disk.
//!
//! Tables of tools, each a test that names every command that went wrong: reading one file, walking the tree, held up
//! in the middle of a file, while files change, while workers come and go. A tool that is not installed is said to be
//! skipped, and is a failure where a skip is not allowed; `scripts/check` installs them.

/// Python gets the file's name as `f`, its copy as `e`, a folder as `t`, and puts out what `out` holds.
macro_rules! python {
    ($code:literal) => {
        concat!(
            "python3 -c 'import os, sys; f, e, t = sys.argv[1:]; ",
            $code,
            r#"; sys.stdout.buffer.write(out)' "$F" "$E" "$T""#
        )
    };
}

mod changing;
mod churning;
mod held;
mod reading;
mod walking;

use std::process::Command;

use super::swarm;
use crate::needs_fuse;
use crate::support::Mount;
use crate::support::tool::is_here;

/// What a command writes to its standard output.
#[derive(Debug, Clone, Copy)]
enum Gives {
    /// The bytes of the file.
    TheBytes,
    /// What it writes of a file on disk with the same bytes, name, mode and times.
    AsOnDisk,
}

/// A tool, a command that runs it, and what that gives. The command is run in the file's folder, with the file's name
/// in `$F`; `$E` is the path of its copy on disk, and `$T` a folder to write in.
type Row = (&'static str, &'static str, Gives);

/// Where two outputs differ first.
fn difference(found: &[u8], expected: &[u8]) -> String {
    let at = found.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(found.len().min(expected.len()));
    let from = |bytes: &[u8]| String::from_utf8_lossy(&bytes[at..bytes.len().min(at + 80)]).into_owned();
    let (now, then) = (from(found), from(expected));
    format!("{} bytes, not {}, and from byte {at} {now:?}, not {then:?}", found.len(), expected.len())
}

#[test]
fn files_are_polled_and_locked_like_any_other() {
    needs_fuse!();
    let store = swarm();
    let mount = Mount::new(&store.path());
    let script = r#"
import fcntl, select, sys
for path in sys.argv[1:]:
    f = open(path, "rb")
    poll = select.poll()
    poll.register(f, select.POLLIN)
    assert poll.poll(0) == [(f.fileno(), select.POLLIN)], path
    assert select.select([f], [], [], 0)[0] == [f], path
    fcntl.flock(f, fcntl.LOCK_SH | fcntl.LOCK_NB)
    fcntl.lockf(f, fcntl.LOCK_SH | fcntl.LOCK_NB)
"#;
    if !is_here("python3") {
        return;
    }
    let out = Command::new("python3")
        .args(["-c", script])
        .args(["index.json", "workers/alpha/summary", "workers/alpha/result.txt"].map(|path| mount.at(path)))
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}
