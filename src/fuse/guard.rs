//! A panic in one request is that request's EIO, and the mount goes on. What it was is one line in the log.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tracing::error;

/// Calls `work`; a panic in it ends there, and gives `None`. A reply that `work` held answers EIO when it is dropped.
/// The locks of the tree are not poisoned by a panic and guard nothing that is changed in more than one step.
pub fn catch_panic<T>(work: impl FnOnce() -> T) -> Option<T> {
    // What it was is told by the hook that the program has set.
    catch_unwind(AssertUnwindSafe(work)).ok()
}

/// Has every panic of this process told in one line of the log instead of on standard error. For programs, once.
pub fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let at = panic.location().map(ToString::to_string).unwrap_or_default();
        // What was put together at run time may quote a worker, whom the reader of the log may not know.
        match panic.payload().downcast_ref::<&'static str>() {
            Some(what) => error!("panicked at {at}: {what}"),
            None => error!("panicked at {at}"),
        }
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_goes_no_further() {
        assert_eq!(catch_panic(|| panic!("on purpose")), None::<()>);
        assert_eq!(catch_panic(|| 7), Some(7));
    }
}
