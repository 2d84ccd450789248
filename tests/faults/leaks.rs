//! The kernel gives back every inode that it received.

use super::served::Served;
use crate::cli::program::is_root;
use crate::needs_fuse;

/// Promise: Inodes that came with a listing are given back like those that were looked up.
#[test]
fn inodes_that_came_with_a_listing_are_given_back() {
    needs_fuse!();
    if !is_root() {
        return;
    }
    let mut served = Served::new();
    for _ in 0..3 {
        let listed = served.shell("ls -lR \"$M\"/workers");
        assert!(listed.status.success(), "{listed:?}");
        assert!(served.held().0 > 10, "{:?}", served.held());
        served.forget();
        crate::mount::eventually("the end of all inodes", || {
            (served.held() == (0, 0)).then_some(())
        });
    }
}
