//! What tests share: stores made on the fly, the tree without a kernel, and real mounts that cannot hang the machine.

use std::io::Write;

pub mod content;
pub mod counted;
pub mod dose;
pub mod faulty;
pub mod frame;
pub mod log;
pub mod mount;
pub mod python;
pub mod schema;
pub mod seen;
pub mod store;
pub mod swarm;
pub mod through;
pub mod tool;
pub mod transcript;
pub mod user;

pub use dose::dose;
pub use mount::Mount;
pub use python::python;
pub use seen::{Seen, see, see_folder};
pub use store::TestStore;

/// Says that something is not tested here, and why; fails where a skip is not allowed.
pub fn skip(what: &str) {
    assert!(std::env::var_os("SWARMLETFS_REQUIRE_FUSE").is_none(), "a skip is not allowed here: {what}");
    // Not by a macro: what those print is seen only of a test that fails.
    let _ = writeln!(std::io::stderr(), "SKIP {what}");
}

/// Whether FUSE can be used here. Says SKIP if not, and fails where a skip is not allowed.
pub fn fuse_is_here(test: &str) -> bool {
    let opened = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    if opened.is_err() {
        skip(&format!("{test}: /dev/fuse cannot be opened"));
    }
    opened.is_ok()
}

/// Leaves a test that needs FUSE where there is none.
#[macro_export]
macro_rules! needs_fuse {
    () => {
        if !$crate::support::fuse_is_here(concat!(module_path!(), ":", line!())) {
            return;
        }
    };
}
