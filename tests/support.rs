//! Shared test helpers: generated stores, access to the tree without a kernel, and real mounts with
//! a watchdog.

use std::io::Write;

pub mod content;
pub mod draft;
pub mod fault_injection;
pub mod frame;
pub mod intercept;
pub mod log;
pub mod mount;
pub mod open_counter;
pub mod python;
pub mod scale;
pub mod seen;
pub mod store;
pub mod swarm;
pub mod terminal;
pub mod tool;
pub mod transcript;
pub mod user;

pub use mount::Mount;
pub use python::python;
pub use scale::{cases, is_exhaustive, is_full, patience, rng, sample, scale, seed, seeds, some};
pub use seen::{Seen, see, see_folder};
pub use store::TestStore;

/// Reports a skipped test with its reason. Fails if skips are forbidden.
pub fn skip(what: &str) {
    assert!(
        std::env::var_os("SWARMLETFS_REQUIRE_FUSE").is_none(),
        "a skip is not allowed here: {what}"
    );
    // The test harness captures `eprintln!` but not this.
    let _ = writeln!(std::io::stderr(), "SKIP {what}");
}

/// Returns true if FUSE is available. Otherwise reports a skip, or fails if skips are forbidden.
pub fn fuse_is_here(test: &str) -> bool {
    let opened = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    if opened.is_err() {
        skip(&format!("{test}: /dev/fuse cannot be opened"));
    }
    opened.is_ok()
}

/// Returns from a test if FUSE is not available.
#[macro_export]
macro_rules! needs_fuse {
    () => {
        if !$crate::support::fuse_is_here(concat!(module_path!(), ":", line!())) {
            return;
        }
    };
}
