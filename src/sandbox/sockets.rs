//! Sockets of the file system, through which a command could act outside of its sandbox: a
//! container daemon, the buses of D-Bus, an agent for keys, systemd.
//!
//! Read-only mounts and Landlock do not keep a process from connecting to a socket, so each one
//! that is bound when the command starts is covered, except for those of name services. Directories
//! in which services make sockets later are covered as a whole.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, lstat};

use super::cause::{FailedStep, StageFailure};
use super::files;

/// Maximum size of the table of sockets, in bytes.
const TABLE_MAX: u64 = 64 << 20;

/// Directories that are covered as a whole.
const DIRECTORIES: [&str; 7] = [
    "/run/user",
    "/run/dbus",
    "/run/docker",
    "/run/containerd",
    "/run/podman",
    "/run/crio",
    "/run/lxd",
];

/// Sockets of name services: users, groups and hosts could not be looked up without them.
const NAME_SERVICES: [&str; 5] = [
    "/run/nscd",
    "/run/systemd/resolve",
    "/run/systemd/userdb",
    "/var/lib/sss/pipes",
    "/run/avahi-daemon",
];

/// Returns the directories that are covered as a whole.
pub(super) fn directories() -> impl Iterator<Item = &'static Path> {
    let is_directory = |path: &&Path| {
        lstat(*path).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_dir())
    };
    DIRECTORIES.iter().map(Path::new).filter(is_directory)
}

/// Returns the paths of all bound sockets of this network namespace that can be found, except for
/// those of name services.
pub(super) fn bound() -> Result<BTreeSet<PathBuf>, StageFailure> {
    let table = files::read(Path::new("/proc/net/unix"), TABLE_MAX).step("list the sockets")?;
    Ok(parse(&table)
        .filter(|path| !NAME_SERVICES.iter().any(|service| path.starts_with(service)))
        .filter(|path| {
            lstat(path).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_socket())
        })
        .collect())
}

/// Parses `address: references protocol flags type state inode path`. Abstract sockets begin with
/// `@`; a relative path says nothing.
fn parse(table: &[u8]) -> impl Iterator<Item = PathBuf> {
    table.split(|byte| *byte == b'\n').filter_map(|line| {
        let start = line.windows(2).position(|pair| pair == b" /")?;
        Some(PathBuf::from(OsString::from_vec(line.get(start + 1..)?.to_vec())))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read_and_abstract_names_are_not() {
        let table = b"Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 29726 /run/a b.sock
0000000000000000: 00000003 00000000 00000000 0001 03 27
0000000000000000: 00000002 00000000 00010000 0001 01 33 @/tmp/x
0000000000000000: 00000002 00000000 00010000 0001 01 34 relative
";
        assert_eq!(parse(table).collect::<Vec<_>>(), [Path::new("/run/a b.sock")]);
    }
}
