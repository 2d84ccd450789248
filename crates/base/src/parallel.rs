//! Maps a slice, on several threads once that takes long.

use std::panic::resume_unwind;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::deadline::Deadline;
use crate::split::Split;

/// Time to work serially before starting threads: a map over cached data ends sooner.
const SERIAL_TIME: Duration = Duration::from_millis(1);
/// Minimum time for one item while others wait.
const SHARE_MIN: Duration = Duration::from_millis(50);
/// Maximum number of threads for one call, with the caller's.
const THREADS_MAX: usize = 8;
/// Number of processors. To find it, the standard library reads the limits of every control group
/// of the process, which takes longer than most maps.
static PROCESSORS: LazyLock<usize> =
    LazyLock::new(|| thread::available_parallelism().map_or(1, usize::from));

/// Maps `items` and preserves their order, in parallel once that takes long. Items are also started
/// in that order. A panic in any thread is propagated to the caller.
pub fn parallel_map<T: Sync, R: Send>(items: &[T], map: impl Fn(&T) -> R + Sync) -> Vec<R> {
    parallel_map_on(thread_count(), SERIAL_TIME, items, map)
}

/// Maps `items`, which mostly wait for something, and preserves their order. Several are in
/// progress at once, however many processors there are.
pub fn parallel_waits<T: Sync, R: Send>(items: &[T], map: impl Fn(&T) -> R + Sync) -> Vec<R> {
    parallel_map_on(THREADS_MAX, Duration::ZERO, items, map)
}

/// Maps `items` and preserves their order, until `deadline` passes. `map` may hand an item to
/// another thread and wait for it, so twice as many items are in progress as there are processors.
///
/// No item takes the time of the others: each gets an equal share of it. An item whose share ran
/// out, and whose result `is_cut`, is mapped again for longer once all others are mapped.
pub fn parallel_rounds<T: Sync, R: Send>(
    items: &[T],
    deadline: Deadline<'_>,
    map: impl Fn(&T, Deadline<'_>) -> R + Sync,
    is_cut: impl Fn(&R) -> bool,
) -> Vec<R> {
    let threads = 2 * thread_count();
    let mut share = deadline.time_left().map(|left| share_of(left, threads, items.len()));
    // Also returns true if the share ran out. One beyond the range of the clock has no end.
    let map_within = |item: &T, share: Option<Duration>| {
        let end = share.and_then(|share| Instant::now().checked_add(share));
        let is_within = || end.is_none_or(|end| Instant::now() < end);
        let result = map(item, Deadline::new(&|| deadline.has_time() && is_within()));
        (result, !is_within())
    };
    let mut results = parallel_map_on(threads, SERIAL_TIME, items, |item| map_within(item, share));
    loop {
        let mut cut: Vec<_> = items
            .iter()
            .zip(&mut results)
            .filter(|(_, (result, ran_out))| *ran_out && is_cut(result))
            .collect();
        let left = deadline.time_left().filter(|_| !cut.is_empty() && deadline.has_time());
        let Some(left) = left else { break };
        // At least twice as long, so that each round gets further.
        let doubled = share.unwrap_or_default().saturating_mul(2);
        share = Some(share_of(left, threads, cut.len()).max(doubled));
        let again: Vec<&T> = cut.iter().map(|(item, _)| *item).collect();
        let mapped = parallel_map_on(threads, SERIAL_TIME, &again, |item| map_within(item, share));
        for ((_, result), again) in cut.iter_mut().zip(mapped) {
            **result = again;
        }
    }
    results.into_iter().map(|(result, _)| result).collect()
}

/// Returns the share of an item in half the time that is left.
fn share_of(left: Duration, threads: usize, items: usize) -> Duration {
    let (threads, items) = (threads as u32, u32::try_from(items.max(1)).unwrap_or(u32::MAX));
    (left / 2).saturating_mul(threads).checked_div(items).unwrap_or(left).max(SHARE_MIN)
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
    let (_, rest) = items.split_at_known(results.len());
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

    /// As many items that never end as there are threads would block all others.
    #[test]
    fn slow_items_take_no_time_of_others_and_are_mapped_again() {
        let slow = 2 * thread_count();
        let items: Vec<usize> = (0..slow + 36).collect();
        let is_slow = |item: &usize| *item < slow;
        let end = Instant::now() + Duration::from_secs(60);
        let (calls, all_are_known) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let map = |item: &usize, deadline: Deadline<'_>| {
            if !is_slow(item) {
                all_are_known.fetch_add(1, Ordering::Relaxed);
                return Some(*item);
            }
            calls.fetch_add(1, Ordering::Relaxed);
            while deadline.has_time() && all_are_known.load(Ordering::Relaxed) < 36 {
                thread::yield_now();
            }
            deadline.has_time().then_some(*item)
        };
        let mapped = parallel_rounds(&items, Deadline::new(&end), map, Option::is_none);
        assert_eq!(mapped, items.iter().copied().map(Some).collect::<Vec<_>>());
        assert!(calls.into_inner() > slow);
    }

    #[test]
    fn rounds_end_with_the_deadline_and_keep_the_last_results() {
        let end = Instant::now() + Duration::from_millis(300);
        let map = |item: &usize, deadline: Deadline<'_>| {
            while deadline.has_time() && *item == 1 {
                thread::yield_now();
            }
            (*item, deadline.has_time())
        };
        let mapped = parallel_rounds(&[0, 1], Deadline::new(&end), map, |(_, whole)| !whole);
        assert_eq!(mapped, [(0, true), (1, false)]);
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
