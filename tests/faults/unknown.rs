//! ENOSYS from the store's file system. Passed on to the kernel, it would disable the operation for
//! the whole mount.

use std::fs;

use rustix::io::Errno;

use super::served::Served;
use crate::cli::program::is_root;
use crate::needs_fuse;

/// Promise: A system call that the kernel does not support fails only its own request.
#[test]
fn unsupported_system_call_fails_one_request() {
    needs_fuse!();
    if !is_root() {
        return;
    }
    let mut served = Served::new();
    served.expect_warning("function not implemented");
    for path in ["supervisor/strategy.md", "workers/failed/tool_calls/002_build.txt"] {
        let right = served.read(path);
        for k in 1.. {
            served.change();
            served.forget();
            served.unknown_from(k);
            let found = fs::read(served.at(path));
            if !served.heal() {
                break;
            }
            let error = found.map_err(|error| error.raw_os_error());
            assert!(
                matches!(error, Ok(_) | Err(Some(5))),
                "{path}, call {k}: {error:?} is not {}",
                Errno::IO
            );
            assert_eq!(served.read(path), right, "{path}: wrong content after call {k}");
        }
    }
}
