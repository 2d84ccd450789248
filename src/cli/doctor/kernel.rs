//! Inspects the kernel features that a mount needs.

use std::io;

use serde::Serialize;

use super::finding::Finding;
use crate::cli::probe;

#[derive(Debug, Serialize)]
pub(super) struct Kernel {
    /// Release, as printed by `uname -r`.
    pub(super) release: String,
    /// True if `openat2` works, which keeps paths inside a store.
    openat2: bool,
    /// Landlock ABI version; 0 if there is none, null if the query failed.
    landlock_abi: Option<i32>,
}

pub(super) fn inspect() -> (Kernel, Vec<Finding>) {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let (openat2, landlock) = (probe::openat2(), probe::landlock());
    let findings = vec![
        match &openat2 {
            Ok(()) => Finding::ok("kernel", "openat2", "openat2 works: paths cannot leave a store"),
            Err(error) => Finding::note("kernel", "openat2", no_openat2(error)),
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

fn no_openat2(error: &io::Error) -> String {
    format!(
        "openat2 does not work: {error}; it is missing before Linux 5.6, and a sandbox or a \
         container may forbid it. Paths are resolved name by name instead, which is slower"
    )
}
