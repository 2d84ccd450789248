//! What tests share: stores made on the fly, the tree without a kernel, and real mounts that cannot hang the machine.

pub mod counted;
pub mod dose;
pub mod faulty;
pub mod log;
pub mod mount;
pub mod schema;
pub mod seen;
pub mod store;
pub mod user;

pub use dose::dose;
pub use mount::Mount;
pub use seen::{Seen, see, see_folder};
pub use store::TestStore;

/// Whether FUSE can be used here. Says SKIP if not, and fails where a skip is not allowed.
pub fn fuse_is_here(test: &str) -> bool {
    let opened = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    if opened.is_ok() {
        return true;
    }
    assert!(std::env::var_os("SWARMLETFS_REQUIRE_FUSE").is_none(), "{test}: /dev/fuse cannot be opened");
    eprintln!("SKIP {test}: /dev/fuse cannot be opened");
    false
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
