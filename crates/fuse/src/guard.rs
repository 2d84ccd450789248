//! Contains panics: the request gets EIO, the mount continues, and the log gets one line.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tracing::error;

/// Calls `work`. Returns `None` if it panics; dropping a reply that `work` held sends EIO. The
/// locks of the tree are not poisoned by a panic, and no data behind them changes in more than one
/// step.
pub fn catch_panic<T>(work: impl FnOnce() -> T) -> Option<T> {
    // The panic hook of the program has logged the panic.
    catch_unwind(AssertUnwindSafe(work)).ok()
}

/// Logs every panic of this process in one line instead of printing it to standard error. Programs
/// call this once.
pub fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let at = panic.location().map(ToString::to_string).unwrap_or_default();
        // A message built at run time may quote a worker that the reader of the log may not see.
        match panic.payload().downcast_ref::<&'static str>() {
            Some(message) => error!("panicked at {at}: {message}"),
            None => error!("panicked at {at}"),
        }
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_caught() {
        assert_eq!(catch_panic(|| panic!("on purpose")), None::<()>);
        assert_eq!(catch_panic(|| 7), Some(7));
    }
}
