//! Ordinary tools on the mount: each has exactly the output that it has for equal files on disk.
//!
//! There are tables of tools, and each test reports every command that failed: reading one file,
//! walking the tree, paused in the middle of a file, while files change, and while workers come and
//! go. A tool that is not installed is reported as skipped, which fails where skips are not
//! permitted. `scripts/check` installs them.

/// Python receives the file's name as `f`, its copy as `e`, a directory as `t`, and prints the
/// value of `out`.
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
mod paused;
mod reading;
mod walking;

use std::process::Command;

use super::swarm;
use crate::needs_fuse;
use crate::support::Mount;
use crate::support::tool::is_here;

/// Expected standard output of a command.
#[derive(Debug, Clone, Copy)]
enum Gives {
    /// The bytes of the file.
    TheBytes,
    /// Its output for a file on disk with equal bytes, name, mode and times.
    AsOnDisk,
}

/// A tool, a command that runs it, and its expected output. The command runs in the file's
/// directory with the file's name in `$F`. `$E` is the path of its copy on disk, and `$T` a
/// directory to write in.
type Row = (&'static str, &'static str, Gives);

/// Describes the first difference between two outputs.
fn difference(found: &[u8], expected: &[u8]) -> String {
    let at = found
        .iter()
        .zip(expected)
        .position(|(a, b)| a != b)
        .unwrap_or(found.len().min(expected.len()));
    let from =
        |bytes: &[u8]| String::from_utf8_lossy(&bytes[at..bytes.len().min(at + 80)]).into_owned();
    let (now, then) = (from(found), from(expected));
    format!(
        "{} bytes, not {}, and from byte {at} {now:?}, not {then:?}",
        found.len(),
        expected.len()
    )
}

#[test]
fn files_can_be_polled_and_locked() {
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
        .args(
            ["index.json", "workers/alpha/summary", "workers/alpha/result.txt"]
                .map(|path| mount.at(path)),
        )
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}
