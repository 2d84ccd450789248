//! The same done for many workers, by several threads where that takes long.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// For so long one thread works by itself: most often everything is known already.
const SERIAL_TIME: Duration = Duration::from_millis(1);
/// The most threads that work for one file.
const THREADS_MAX: usize = 8;

/// What `make` makes of each of `items`, in their order; they are begun in that order too. A panic in any thread is the
/// caller's: whoever asked is told, however many worked for it.
pub(crate) fn parallel_map<T: Sync, R: Send>(items: &[T], make: impl Fn(&T) -> R + Sync) -> Vec<R> {
    parallel_map_after(SERIAL_TIME, items, make)
}

fn parallel_map_after<T: Sync, R: Send>(serial_time: Duration, items: &[T], make: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let mut made: Vec<R> = Vec::with_capacity(items.len());
    let begun = Instant::now();
    while let Some(item) = items.get(made.len()).filter(|_| begun.elapsed() < serial_time) {
        made.push(make(item));
    }
    let rest = items.get(made.len()..).unwrap_or_default();
    let more = if rest.is_empty() { 0 } else { threads() - 1 };
    let next = AtomicUsize::new(0);
    let some = || -> Vec<(usize, R)> {
        let take = || {
            let at = next.fetch_add(1, Ordering::Relaxed);
            rest.get(at).map(|item| (at, item))
        };
        std::iter::from_fn(take).map(|(at, item)| (at, make(item))).collect()
    };
    let mut found = thread::scope(|scope| {
        // Where the system gives no thread, those that there are do all of it.
        let start = |_| thread::Builder::new().spawn_scoped(scope, some).ok();
        let started: Vec<_> = (0..more).map_while(start).collect();
        let mut found = some();
        found.extend(started.into_iter().flat_map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))));
        found
    });
    found.sort_unstable_by_key(|(at, _)| *at);
    made.extend(found.into_iter().map(|(_, one)| one));
    made
}

fn threads() -> usize {
    thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX)
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn everything_is_made_once_and_stands_in_its_place() {
        for serial_time in [Duration::ZERO, Duration::from_micros(1), Duration::MAX] {
            for count in [0, 1, 2, 1_000] {
                let items: Vec<usize> = (0..count).collect();
                let made = AtomicUsize::new(0);
                let double = |item: &usize| {
                    made.fetch_add(1, Ordering::Relaxed);
                    item * 2
                };
                let doubled: Vec<_> = items.iter().map(|item| item * 2).collect();
                assert_eq!(parallel_map_after(serial_time, &items, double), doubled);
                assert_eq!(made.into_inner(), count);
            }
        }
    }
    /// A barrier makes sure that another thread than the caller's meets it.
    #[test]
    fn a_panic_in_any_thread_is_the_callers() {
        if threads() < 2 {
            return;
        }
        let (caller, both) = (thread::current().id(), Barrier::new(2));
        let make = |_: &()| {
            both.wait();
            assert!(thread::current().id() == caller, "on purpose");
        };
        let made = catch_unwind(AssertUnwindSafe(|| parallel_map_after(Duration::ZERO, &[(); 2], make)));
        assert!(made.is_err());
    }
}
