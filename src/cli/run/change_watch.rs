//! Searches for changes while a command runs, in a thread of its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::signal::{SigSet, SigmaskHow};

use crate::deadline::Deadline;
use crate::draft::ChangeSearch;

const PAUSE_MIN: Duration = Duration::from_secs(2);

/// Length of a pause, in times of the search before it, so that searches of a large workspace take
/// a small share of the time.
const PAUSE_FACTOR: u32 = 4;

/// Calls `run` and returns its result. Meanwhile `search` looks for changes now and then.
///
/// # Errors
///
/// Fails if no thread can be started.
pub(super) fn watch_during<T>(
    search: &mut ChangeSearch,
    run: impl FnOnce() -> T,
) -> anyhow::Result<T> {
    let has_ended = AtomicBool::new(false);
    let (end, ended) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let has_ended = &has_ended;
        let watcher = move || watch(search, &ended, has_ended);
        // The signals of this process are for the thread that runs the command. A new thread
        // begins with the mask of the one that starts it.
        let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK);
        let mask = mask.context("cannot block signals")?;
        let started = thread::Builder::new().spawn_scoped(scope, watcher);
        mask.thread_set_mask().context("cannot unblock signals")?;
        started.context("cannot start a thread")?;
        let result = run();
        has_ended.store(true, Ordering::Relaxed);
        drop(end);
        Ok(result)
    })
}

fn watch(search: &mut ChangeSearch, ended: &Receiver<()>, has_ended: &AtomicBool) {
    let has_time = || !has_ended.load(Ordering::Relaxed);
    let mut pause = PAUSE_MIN;
    while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        let begun = Instant::now();
        // The last search reports an error that persists.
        if let Err(error) = search.update(Deadline::new(&has_time)) {
            tracing::debug!("a search for changes failed: {error}");
        }
        pause = PAUSE_MIN.max(begun.elapsed() * PAUSE_FACTOR);
    }
}
