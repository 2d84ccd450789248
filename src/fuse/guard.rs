//! A panic in one request is that request's EIO, and the mount goes on.

use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::io::Errno;
use tracing::error;

use crate::error::{Error, Result};

/// Calls `work`; a panic in it becomes [`Error::Io`] and a line in the log. The locks of the tree are not poisoned by
/// a panic and guard nothing that is changed in more than one step.
pub(super) fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        error!("a request panicked; it is answered with an I/O error");
        Err(Error::Io(Errno::IO))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_io_error() {
        let result: Result<()> = guarded(|| panic!("on purpose"));
        assert_eq!(result, Err(Error::Io(Errno::IO)));
    }
}
