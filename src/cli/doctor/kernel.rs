//! Inspects the kernel features that a mount needs.

use std::io;

use rustix::io::Errno;
use serde::Serialize;

use super::finding::Finding;
use crate::cli::diagnosis::Diagnosis;
use crate::cli::probe;

/// Facts about the kernel.
#[derive(Debug, Serialize)]
pub(super) struct Kernel {
    /// Release, as printed by `uname -r`.
    pub(super) release: String,
    /// True if `openat2` works, which keeps paths inside a store.
    openat2: bool,
    /// Landlock ABI version; 0 if there is none, null if the query failed.
    landlock_abi: Option<i32>,
}

/// Queries the kernel for openat2 and landlock. Returns the facts and the findings.
pub(super) fn inspect() -> (Kernel, Vec<Finding>) {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let (openat2, landlock) = (probe::openat2(), probe::landlock());
    let findings = vec![
        match &openat2 {
            Ok(()) => Finding::ok("kernel", "openat2", "openat2 works: paths cannot leave a store"),
            Err(error) => Finding::problem("kernel", "openat2", no_openat2(error)),
        },
        match &landlock {
            Ok(version @ 1..) => Finding::ok(
                "kernel",
                "landlock",
                format!("landlock is available, version {version}"),
            ),
            Ok(_) => Finding::note(
                "kernel",
                "landlock",
                "this kernel has no landlock, or it is disabled",
            ),
            Err(error) => {
                Finding::note("kernel", "landlock", format!("cannot query landlock: {error}"))
            }
        },
    ];
    (Kernel { release, openat2: openat2.is_ok(), landlock_abi: landlock.ok() }, findings)
}

fn no_openat2(error: &io::Error) -> Diagnosis {
    let message = "openat2, which opens every file of a store, does not work";
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        // Without an errno, the probe was killed for the call.
        Some(Errno::NOSYS | Errno::PERM) | None => Diagnosis::new(
            format!("{message}: the kernel is older than 5.6, or a container forbids it"),
            "update the kernel or the container's runtime; \
             `--security-opt seccomp=unconfined` lets a container use it",
        ),
        Some(_) => Diagnosis::without_remedy(format!("{message}: {error}")),
    }
}
