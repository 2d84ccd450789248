//! Diagnoses of failures, each with a remedy, and checks of FUSE.
//!
//! The kernel and fusermount3 report numbers and fragments. Most of them come from a few well-known
//! states of a machine or container.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::teardown::find_fusermount;
use super::terminal::escape_controls;

const DEVICE: &str = "/dev/fuse";

const CONTAINER: &str = "a container needs `--device /dev/fuse --cap-add SYS_ADMIN`";

const WITHOUT_MOUNT: &str = if cfg!(feature = "mcp") {
    "without a mount, `swarmletfs ls` and `swarmletfs mcp` read the same tree"
} else {
    "without a mount, `swarmletfs ls` reads the same tree"
};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Diagnosis {
    pub(super) message: String,
    /// The remedy, with commands in backticks; `None` if it is unknown.
    pub(super) remedy: Option<String>,
}

impl Diagnosis {
    pub(super) fn new(message: impl Into<String>, remedy: impl Into<String>) -> Diagnosis {
        Diagnosis { message: message.into(), remedy: Some(remedy.into()) }
    }

    pub(super) fn or_without_mount(self) -> Diagnosis {
        let remedy = match self.remedy {
            Some(remedy) => format!("{remedy}; {WITHOUT_MOUNT}"),
            None => WITHOUT_MOUNT.to_owned(),
        };
        Diagnosis { remedy: Some(remedy), ..self }
    }

    pub(super) fn without_remedy(message: impl Into<String>) -> Diagnosis {
        Diagnosis { message: message.into(), remedy: None }
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.remedy {
            Some(remedy) => write!(f, "{}: {remedy}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for Diagnosis {}

/// Checks that FUSE is available.
///
/// # Errors
///
/// Fails if `/dev/fuse` is missing, is another device, or cannot be opened.
pub(super) fn check_fuse() -> Result<(), Diagnosis> {
    match rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Ok(device) if is_fuse(&device) => Ok(()),
        Ok(_) => Err(Diagnosis::new(
            format!("{DEVICE} is not the FUSE device; another file is mounted over it"),
            CONTAINER,
        )),
        Err(errno) => Err(diagnose_device(errno)),
    }
}

/// Returns true for the device of FUSE. Containers hide it by mounting `/dev/null` over it, which
/// opens like any other device.
fn is_fuse(device: &OwnedFd) -> bool {
    rustix::fs::fstat(device).is_ok_and(|stat| stat.st_rdev == rustix::fs::makedev(10, 229))
}

fn diagnose_device(errno: Errno) -> Diagnosis {
    match errno {
        Errno::NOENT => Diagnosis::new(
            format!("this machine has no {DEVICE}"),
            format!("load FUSE with `modprobe fuse` as root; {CONTAINER}"),
        ),
        Errno::NODEV | Errno::NXIO => Diagnosis::new(
            format!("the kernel has no FUSE support ({DEVICE} has no driver)"),
            "load it with `modprobe fuse` as root",
        ),
        Errno::ACCESS | Errno::PERM => Diagnosis::new(
            format!("this user may not open {DEVICE}"),
            format!("run `chmod 666 {DEVICE}` as root; {CONTAINER}"),
        ),
        other => {
            Diagnosis::without_remedy(format!("cannot open {DEVICE}: {}", io::Error::from(other)))
        }
    }
}

pub(super) fn diagnose_mount(error: &io::Error) -> Diagnosis {
    let text = escape_controls(error.to_string().trim());
    let has_fusermount = find_fusermount().is_some();
    diagnose_message(error.kind(), &text, rustix::process::geteuid().is_root(), has_fusermount)
}

/// Diagnoses a failed mount by its message. `root` is true if root mounts: root needs no
/// fusermount3.
fn diagnose_message(
    kind: io::ErrorKind,
    text: &str,
    root: bool,
    has_fusermount: bool,
) -> Diagnosis {
    let lower = text.to_lowercase();
    if lower.contains("user_allow_other") {
        return Diagnosis::new(
            "--allow-other, which --owners includes, is not permitted",
            "add the line `user_allow_other` to /etc/fuse.conf as root, mount as root, or omit \
             --allow-other",
        );
    }
    if kind == io::ErrorKind::NotFound && !has_fusermount {
        return if root {
            Diagnosis::new(
                "mounting is not permitted, even as root",
                format!("{CONTAINER}, and some also `--security-opt apparmor=unconfined`"),
            )
        } else {
            Diagnosis::new(
                "fusermount3, which users other than root need to mount, is missing",
                "install the package fuse3, or mount as root",
            )
        };
    }
    if lower.contains("could not determine username") {
        return Diagnosis::new(
            format!("{text}: fusermount3 needs a name for this user in /etc/passwd"),
            "add an entry for this user",
        );
    }
    if lower.contains("no write access") {
        return Diagnosis::new(
            format!("this user may not mount there ({text})"),
            "mount on a folder of your own",
        );
    }
    if lower.contains("operation not permitted") || lower.contains("permission denied") {
        return Diagnosis::new(
            format!("mounting is not permitted ({text})"),
            format!(
                "{CONTAINER}; elsewhere mount as root, or make sure that fusermount3 is \
                 set-user-id root"
            ),
        );
    }
    if lower.contains("too many fuse filesystems") {
        return Diagnosis::new(text, "unmount one, or raise mount_max in /etc/fuse.conf as root");
    }
    Diagnosis::without_remedy(format!("cannot mount: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use io::ErrorKind::{NotFound, Other, PermissionDenied};

    #[test]
    fn every_diagnosis_has_a_remedy() {
        let allow = "fusermount3: option allow_other only allowed if 'user_allow_other' is set in \
                     /etc/fuse.conf\n";
        for (kind, text, root, has, remedy) in [
            (PermissionDenied, allow, false, true, "/etc/fuse.conf"),
            (NotFound, "No such file or directory (os error 2)", false, false, "fuse3"),
            (NotFound, "No such file or directory (os error 2)", true, false, "SYS_ADMIN"),
            (Other, "fusermount3: mount failed: Operation not permitted", true, true, "SYS_ADMIN"),
            (
                Other,
                "fusermount3: user has no write access to mountpoint /x",
                false,
                true,
                "of your own",
            ),
        ] {
            assert!(
                diagnose_message(kind, text, root, has).remedy.unwrap().contains(remedy),
                "{text}"
            );
        }
        for errno in [Errno::NOENT, Errno::NODEV, Errno::ACCESS, Errno::PERM] {
            assert!(diagnose_device(errno).remedy.unwrap().contains('`'), "{errno:?}");
        }
    }
}
