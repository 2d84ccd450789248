//! The same done for many workers, by several threads where that takes long.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// For so long one thread works by itself: most often everything is known already.
const ALONE: Duration = Duration::from_millis(1);
/// The most threads that work for one file.
const THREADS_MAX: usize = 8;

/// What `make` makes of each of `items`, in their order; they are begun in that order too. `None` for one whose thread
/// came to a bad end.
pub(super) fn spread<T: Sync, R: Send>(items: &[T], make: impl Fn(&T) -> R + Sync) -> Vec<Option<R>> {
    spread_after(ALONE, items, make)
}

fn spread_after<T: Sync, R: Send>(alone: Duration, items: &[T], make: impl Fn(&T) -> R + Sync) -> Vec<Option<R>> {
    let mut made: Vec<Option<R>> = Vec::with_capacity(items.len());
    let begun = Instant::now();
    while let Some(item) = items.get(made.len()).filter(|_| begun.elapsed() < alone) {
        made.push(Some(make(item)));
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
    let found = thread::scope(|scope| {
        // Where the system gives no thread, those that there are do all of it.
        let start = |_| thread::Builder::new().spawn_scoped(scope, some).ok();
        let started: Vec<_> = (0..more).map_while(start).collect();
        let mut found = some();
        found.extend(started.into_iter().filter_map(|thread| thread.join().ok()).flatten());
        found
    });
    let before = made.len();
    made.resize_with(items.len(), || None);
    for (at, one) in found {
        if let Some(slot) = made.get_mut(before + at) {
            *slot = Some(one);
        }
    }
    made
}

fn threads() -> usize {
    thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_made_once_and_stands_in_its_place() {
        for alone in [Duration::ZERO, Duration::from_micros(1), Duration::MAX] {
            for count in [0, 1, 2, 1_000] {
                let items: Vec<usize> = (0..count).collect();
                let made = AtomicUsize::new(0);
                let double = |item: &usize| {
                    made.fetch_add(1, Ordering::Relaxed);
                    item * 2
                };
                let doubled: Vec<_> = items.iter().map(|item| Some(item * 2)).collect();
                assert_eq!(spread_after(alone, &items, double), doubled);
                assert_eq!(made.into_inner(), count);
            }
        }
    }
}
