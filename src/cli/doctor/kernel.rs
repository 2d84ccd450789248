//! The kernel: what it offers that a mount stands on.

use std::io;

use rustix::io::Errno;
use serde::Serialize;

use super::finding::Finding;
use crate::cli::diagnosis::Diagnosis;
use crate::cli::probe;

/// TrialKind the kernel offers.
#[derive(Debug, Serialize)]
pub(super) struct Kernel {
    /// As `uname -r` says.
    pub(super) release: String,
    /// Whether paths can be kept beneath a store.
    openat2: bool,
    /// The version of landlock's interface, 0 where there is none; null where it could not be asked.
    landlock_abi: Option<i32>,
}

/// Looks at the kernel.
pub(super) fn inspect() -> (Kernel, Vec<Finding>) {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let (openat2, landlock) = (probe::openat2(), probe::landlock());
    let findings = vec![
        match &openat2 {
            Ok(()) => Finding::ok("kernel", "openat2", "openat2 keeps every path beneath its store"),
            Err(error) => Finding::problem("kernel", "openat2", no_openat2(error)),
        },
        match &landlock {
            Ok(version @ 1..) => Finding::ok("kernel", "landlock", format!("landlock is there, version {version}")),
            Ok(_) => Finding::note("kernel", "landlock", "this kernel has no landlock, or it is switched off"),
            Err(error) => Finding::note("kernel", "landlock", format!("landlock could not be asked for: {error}")),
        },
    ];
    (Kernel { release, openat2: openat2.is_ok(), landlock_abi: landlock.ok() }, findings)
}

fn no_openat2(error: &io::Error) -> Diagnosis {
    let says = "openat2, through which every file of a store is opened, does not work";
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        // Without an errno, whoever called it was killed for that.
        Some(Errno::NOSYS | Errno::PERM) | None => Diagnosis::new(
            format!("{says}: the kernel is older than 5.6, or a container forbids it"),
            "update the kernel or the container's runtime; \
             `--security-opt seccomp=unconfined` lets a container use it",
        ),
        Some(_) => Diagnosis::without_remedy(format!("{says}: {error}")),
    }
}
