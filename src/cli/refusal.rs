//! Why FUSE refuses to mount, as sentences with a cure.
//!
//! The kernel and fusermount3 give numbers and half sentences; most of them come from one of a few well-known states
//! of a machine or container.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::say::without_controls;
use super::take_down::fusermount;

const DEVICE: &str = "/dev/fuse";

/// Whether FUSE can be used at all. The error is a sentence.
pub(super) fn preflight() -> Result<(), String> {
    match rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Ok(device) if is_fuse(&device) => Ok(()),
        Ok(_) => Err(format!(
            "{DEVICE} is not FUSE here, something else lies over it: a container needs `--device {DEVICE} --cap-add \
             SYS_ADMIN`"
        )),
        Err(errno) => Err(no_device(errno)),
    }
}

/// Containers hide a device by laying `/dev/null` over it, which opens like any other.
fn is_fuse(device: &OwnedFd) -> bool {
    rustix::fs::fstat(device).is_ok_and(|stat| stat.st_rdev == rustix::fs::makedev(10, 229))
}

fn no_device(errno: Errno) -> String {
    match errno {
        Errno::NOENT => format!(
            "this machine has no {DEVICE}: load FUSE with `modprobe fuse` as root; a container needs \
             `--device {DEVICE} --cap-add SYS_ADMIN`"
        ),
        Errno::NODEV | Errno::NXIO => {
            format!("the kernel does not know FUSE ({DEVICE} leads nowhere): load it with `modprobe fuse` as root")
        }
        Errno::ACCESS | Errno::PERM => format!(
            "{DEVICE} may not be opened by this user: `chmod 666 {DEVICE}` as root permits it; a container needs \
             `--device {DEVICE} --cap-add SYS_ADMIN`"
        ),
        other => format!("{DEVICE} cannot be opened: {}", io::Error::from(other)),
    }
}

/// What a failed mount means.
pub(super) fn explain(error: &io::Error) -> String {
    let text = without_controls(error.to_string().trim());
    let has = fusermount().is_some();
    sentence(error.kind(), &text, rustix::process::geteuid().is_root(), has)
}

fn sentence(kind: io::ErrorKind, text: &str, root: bool, has_fusermount: bool) -> String {
    let lower = text.to_lowercase();
    if lower.contains("user_allow_other") {
        return "other users may not be let in: write the line `user_allow_other` into /etc/fuse.conf as root, or mount \
                as root, or leave --allow-other out"
            .into();
    }
    if kind == io::ErrorKind::NotFound && !has_fusermount {
        return if root {
            "mounting is not permitted, though this is root: a container needs `--device /dev/fuse --cap-add \
             SYS_ADMIN`, and some `--security-opt apparmor=unconfined`"
                .into()
        } else {
            "fusermount3, with which users without root mount, is missing: install the package fuse3, or mount as root"
                .into()
        };
    }
    if lower.contains("could not determine username") {
        return format!("{text}: this user's number has no name in /etc/passwd, which fusermount3 needs: give it one");
    }
    if lower.contains("no write access") {
        return format!("this user may not mount there ({text}): mount on a folder of your own");
    }
    if lower.contains("operation not permitted") || lower.contains("permission denied") {
        return format!(
            "mounting is not permitted ({text}): a container needs `--device /dev/fuse --cap-add SYS_ADMIN`; elsewhere \
             mount as root, or see that fusermount3 is set-user-id root"
        );
    }
    if lower.contains("too many fuse filesystems") {
        return format!("{text}: unmount one, or raise mount_max in /etc/fuse.conf as root");
    }
    format!("the mount failed: {text}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use io::ErrorKind::{NotFound, Other, PermissionDenied};

    #[test]
    fn every_refusal_names_a_cure() {
        let allow = "fusermount3: option allow_other only allowed if 'user_allow_other' is set in /etc/fuse.conf\n";
        for (kind, text, root, has, cure) in [
            (PermissionDenied, allow, false, true, "/etc/fuse.conf"),
            (NotFound, "No such file or directory (os error 2)", false, false, "fuse3"),
            (NotFound, "No such file or directory (os error 2)", true, false, "SYS_ADMIN"),
            (Other, "fusermount3: mount failed: Operation not permitted", true, true, "SYS_ADMIN"),
            (Other, "fusermount3: user has no write access to mountpoint /x", false, true, "of your own"),
        ] {
            assert!(sentence(kind, text, root, has).contains(cure), "{text}");
        }
        for errno in [Errno::NOENT, Errno::NODEV, Errno::ACCESS, Errno::PERM] {
            assert!(no_device(errno).contains('`'), "{errno:?}");
        }
    }
}
