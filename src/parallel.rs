//! Maps a slice, on several threads once that takes long.

use std::panic::resume_unwind;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Time to work serially before starting threads: a map over cached data ends sooner.
const SERIAL_TIME: Duration = Duration::from_millis(1);
/// Maximum number of threads for one call, with the caller's.
const THREADS_MAX: usize = 8;
/// Number of processors. To find it, the standard library reads the limits of every control group
/// of the process, which takes longer than most maps.
static PROCESSORS: LazyLock<usize> =
    LazyLock::new(|| thread::available_parallelism().map_or(1, usize::from));

/// Maps `items` and preserves their order, in parallel once that takes long. Items are also started
/// in that order. A panic in any thread is propagated to the caller.
pub(crate) fn parallel_map<T: Sync, R: Send>(items: &[T], map: impl Fn(&T) -> R + Sync) -> Vec<R> {
    parallel_map_on(thread_count(), SERIAL_TIME, items, map)
}

/// Maps `items` like [`parallel_map`] with a `map` that hands each item to another thread and waits
/// for it. Twice as many items are in progress as there are processors, so that none is idle while
/// an item is handed over.
pub(crate) fn parallel_map_waiting<T: Sync, R: Send>(
    items: &[T],
    map: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    parallel_map_on(2 * thread_count(), SERIAL_TIME, items, map)
}

fn parallel_map_on<T: Sync, R: Send>(
    threads: usize,
    serial_time: Duration,
    items: &[T],
    map: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let mut results: Vec<R> = Vec::with_capacity(items.len());
    let started = Instant::now();
    while let Some(item) = items.get(results.len()).filter(|_| started.elapsed() < serial_time) {
        results.push(map(item));
    }
    let (_, rest) = items.split_at(results.len());
    let extra_threads = if rest.is_empty() { 0 } else { threads - 1 };
    let next = AtomicUsize::new(0);
    let map_claimed = || -> Vec<(usize, R)> {
        let claimed = std::iter::from_fn(|| {
            let at = next.fetch_add(1, Ordering::Relaxed);
            rest.get(at).map(|item| (at, item))
        });
        claimed.map(|(at, item)| (at, map(item))).collect()
    };
    let mut indexed = thread::scope(|scope| {
        // If the system refuses a thread, the threads that exist do all the work.
        let threads: Vec<_> = (0..extra_threads)
            .map_while(|_| thread::Builder::new().spawn_scoped(scope, map_claimed).ok())
            .collect();
        let mut indexed = map_claimed();
        indexed.extend(
            threads
                .into_iter()
                .flat_map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))),
        );
        indexed
    });
    indexed.sort_unstable_by_key(|(at, _)| *at);
    results.extend(indexed.into_iter().map(|(_, result)| result));
    results
}

fn thread_count() -> usize {
    (*PROCESSORS).min(THREADS_MAX)
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn every_item_is_mapped_once_and_in_order() {
        for serial_time in [Duration::ZERO, Duration::from_micros(1), Duration::MAX] {
            for count in [0, 1, 2, 1_000] {
                let items: Vec<usize> = (0..count).collect();
                let calls = AtomicUsize::new(0);
                let double = |item: &usize| {
                    calls.fetch_add(1, Ordering::Relaxed);
                    item * 2
                };
                let doubled: Vec<_> = items.iter().map(|item| item * 2).collect();
                assert_eq!(parallel_map_on(thread_count(), serial_time, &items, double), doubled);
                assert_eq!(calls.into_inner(), count);
            }
        }
    }

    /// The barrier ensures that a thread other than the caller's takes part.
    #[test]
    fn a_panic_in_any_thread_reaches_the_caller() {
        let (caller, both) = (thread::current().id(), Barrier::new(2));
        let make = |_: &()| {
            both.wait();
            assert!(thread::current().id() == caller, "on purpose");
        };
        let result =
            catch_unwind(AssertUnwindSafe(|| parallel_map_on(2, Duration::ZERO, &[(); 2], make)));
        assert!(result.is_err());
    }
}
