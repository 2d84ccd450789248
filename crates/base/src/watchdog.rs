//! Runs work that may never return on threads that can be detached.
//!
//! Every parser of worker content is bounded by the size of its input. This is the second line of
//! defense. A caller whose deadline passes continues without a result and detaches the thread,
//! which runs on. Meanwhile no further work starts on the same subject, so one worker blocks no
//! others and occupies a bounded number of threads. Work that still runs [`OVERDUE`] after its
//! deadline is abandoned: its thread gets the lowest priority, and [`Watchdog::overdue`] reports
//! it.

use std::collections::HashMap;
use std::hash::Hash;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{getpriority_process, setpriority_process};
use rustix::thread::{Pid, gettid};

use crate::deadline::Deadline;
use crate::error::Error;

/// Time since the missed deadline after which work that still runs is abandoned.
pub const OVERDUE: Duration = Duration::from_secs(5);
/// Maximum number of detached threads that run at a time, over all subjects. At that number, new
/// work is refused as [`Unfinished::Late`] until one of them returns.
const DETACHED_MAX: usize = 64;
/// Interval at which a waiting caller checks its deadline.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum number of idle threads that are kept for further work. Beyond it, a thread ends with its
/// work.
const IDLE_MAX: usize = 16;
/// Time after which an idle thread ends.
const IDLE_TIME: Duration = Duration::from_secs(10);
/// Nice value of a thread whose work was abandoned.
const LOWEST_PRIORITY: i32 = 19;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfinished {
    /// The work, or earlier work on its subject, missed its deadline and still runs.
    Late,
    /// The work, or earlier work on its subject, was abandoned.
    Abandoned,
}

impl From<Unfinished> for Error {
    fn from(unfinished: Unfinished) -> Error {
        match unfinished {
            Unfinished::Late => Error::Late,
            Unfinished::Abandoned => Error::Abandoned,
        }
    }
}

/// Runs work on threads that can be detached. Clones share all threads.
pub struct Watchdog<K> {
    shared: Arc<WatchdogState<K>>,
}

impl<K> Clone for Watchdog<K> {
    fn clone(&self) -> Watchdog<K> {
        Watchdog { shared: self.shared.clone() }
    }
}

struct WatchdogState<K> {
    idle: Mutex<Vec<IdleThread>>,
    /// Subjects of the detached threads that still run.
    detached: Mutex<HashMap<K, DetachedThreads>>,
    next_thread: AtomicU64,
}

struct IdleThread {
    thread: u64,
    work: mpsc::Sender<Task>,
}

/// Work for a thread, and the thread's own sender, which it offers again once it is idle.
struct Task {
    work: Box<dyn FnOnce() + Send>,
    sender: mpsc::Sender<Task>,
}

struct DetachedThreads {
    threads: Vec<Pid>,
    /// Time at which the first of them missed its deadline.
    since: Instant,
    is_reported: bool,
}

impl DetachedThreads {
    fn state(&self) -> Unfinished {
        if self.since.elapsed() >= OVERDUE { Unfinished::Abandoned } else { Unfinished::Late }
    }
}

enum TaskProgress {
    Waiting,
    Running(Pid),
    Detached(Pid),
    Ended,
}

impl<K> Default for Watchdog<K> {
    fn default() -> Watchdog<K> {
        let (idle, detached, next_thread) = (Mutex::default(), Mutex::default(), AtomicU64::new(0));
        Watchdog { shared: Arc::new(WatchdogState { idle, detached, next_thread }) }
    }
}

impl<K: Clone + Eq + Hash + Send + 'static> Watchdog<K> {
    /// Runs `work` on another thread and returns its result.
    ///
    /// `work` receives a deadline that passes when `deadline` does, and should return within
    /// `grace` after that. If it does not, its thread is detached and runs on, and this returns; it
    /// checks the time every 20 ms. Only if the system refuses a thread, the caller's own thread
    /// runs `work`, without a limit. A panic in `work` is propagated to the caller.
    ///
    /// # Errors
    ///
    /// - [`Unfinished::Late`] if `work` takes longer, if earlier work on `subject` did and still
    ///   runs, or if 64 threads are detached.
    /// - [`Unfinished::Abandoned`] if the work on `subject` still runs [`OVERDUE`] after its
    ///   deadline.
    pub fn run<R: Send + 'static>(
        &self,
        subject: &K,
        grace: Duration,
        deadline: Deadline<'_>,
        work: impl FnOnce(Deadline<'_>) -> R + Send + 'static,
    ) -> Result<R, Unfinished> {
        self.may_start(subject)?;
        let progress = Arc::new(Mutex::new(TaskProgress::Waiting));
        let mut stopped = (!deadline.has_time()).then(Instant::now);
        let stop = Arc::new(AtomicBool::new(stopped.is_some()));
        let (sender, result) = mpsc::sync_channel(1);
        let job = {
            let (progress, stop) = (progress.clone(), stop.clone());
            let (shared, subject) = (Arc::downgrade(&self.shared), subject.clone());
            move || {
                *progress.lock() = TaskProgress::Running(gettid());
                let outcome = catch_unwind(AssertUnwindSafe(|| {
                    work(Deadline::new(&|| !stop.load(Ordering::Relaxed)))
                }));
                // Sent first, so that a caller that finds the work ended also finds its result.
                let _ = sender.send(outcome);
                let before = std::mem::replace(&mut *progress.lock(), TaskProgress::Ended);
                if let (TaskProgress::Detached(thread), Some(shared)) = (before, shared.upgrade()) {
                    shared.returned(&subject, thread);
                }
            }
        };
        if let Err(job) = self.start(Box::new(job)) {
            // No thread is available, so the caller's thread runs the work.
            job();
        }
        loop {
            match result.recv_timeout(CHECK_INTERVAL) {
                Ok(outcome) => return Ok(outcome.unwrap_or_else(|panic| resume_unwind(panic))),
                Err(RecvTimeoutError::Disconnected) => {
                    resume_unwind(Box::new("a thread ended without a result"))
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            match stopped {
                None if !deadline.has_time() => {
                    stop.store(true, Ordering::Relaxed);
                    stopped = Some(Instant::now());
                }
                Some(at) if at.elapsed() >= grace => {
                    let mut progress = progress.lock();
                    let thread = match &*progress {
                        // The thread is about to start or to send its result.
                        TaskProgress::Waiting | TaskProgress::Ended | TaskProgress::Detached(_) => {
                            continue;
                        }
                        TaskProgress::Running(thread) => *thread,
                    };
                    *progress = TaskProgress::Detached(thread);
                    return Err(self.shared.detach(subject, thread, at));
                }
                _ => {}
            }
        }
    }

    /// Waits, until `deadline` passes, for detached work on `subject` to end.
    ///
    /// # Errors
    ///
    /// [`Unfinished`] if it does not end in time, or was abandoned.
    pub fn wait(&self, subject: &K, deadline: Deadline<'_>) -> Result<(), Unfinished> {
        while let Err(unfinished) = self.may_start(subject) {
            if unfinished == Unfinished::Abandoned || !deadline.has_time() {
                return Err(unfinished);
            }
            thread::sleep(CHECK_INTERVAL);
        }
        Ok(())
    }

    /// Returns the subjects whose work was abandoned since the last call, and lowers the priority
    /// of their threads.
    pub fn overdue(&self) -> Vec<K> {
        let mut subjects = self.shared.detached.lock();
        let mut overdue = Vec::new();
        for (subject, detached) in &mut *subjects {
            if detached.is_reported || detached.state() != Unfinished::Abandoned {
                continue;
            }
            detached.is_reported = true;
            for thread in &detached.threads {
                // The thread may be ending right now.
                let _ = setpriority_process(Some(*thread), LOWEST_PRIORITY);
            }
            overdue.push(subject.clone());
        }
        overdue
    }

    /// Fails if a thread is detached on `subject`, or too many are detached on others.
    fn may_start(&self, subject: &K) -> Result<(), Unfinished> {
        let subjects = self.shared.detached.lock();
        match subjects.get(subject) {
            Some(detached) => Err(detached.state()),
            None if subjects.values().map(|detached| detached.threads.len()).sum::<usize>()
                >= DETACHED_MAX =>
            {
                Err(Unfinished::Late)
            }
            None => Ok(()),
        }
    }

    /// Hands `work` to an idle thread or to a new one. Returns it if the system refuses a thread.
    fn start(&self, work: Box<dyn FnOnce() + Send>) -> Result<(), Box<dyn FnOnce() + Send>> {
        // A thread inherits the priority of its creator and could not raise it again.
        let is_slow = getpriority_process(None).is_ok_and(|priority| priority > 0);
        let idle = if is_slow { None } else { self.shared.idle.lock().pop() };
        let Some(IdleThread { work: sender, .. }) = idle else {
            return self.start_thread(work, !is_slow);
        };
        let task = Task { work, sender: sender.clone() };
        match sender.send(task) {
            Ok(()) => Ok(()),
            Err(mpsc::SendError(task)) => self.start_thread(task.work, true),
        }
    }

    /// Runs `work` on a new thread, which is kept for further work if `keep` is true. Returns
    /// `work` if the system refuses a thread.
    fn start_thread(
        &self,
        work: Box<dyn FnOnce() + Send>,
        keep: bool,
    ) -> Result<(), Box<dyn FnOnce() + Send>> {
        let (sender, tasks) = mpsc::channel();
        let number = self.shared.next_thread.fetch_add(1, Ordering::Relaxed);
        let shared = if keep { Arc::downgrade(&self.shared) } else { Weak::new() };
        let first = Task { work, sender: sender.clone() };
        // Sent before the thread starts, so that it can be taken back.
        let _ = sender.send(first);
        let tasks = Arc::new(Mutex::new(tasks));
        let tasks_of_thread = tasks.clone();
        drop(sender);
        let started = thread::Builder::new()
            .name("record".into())
            .spawn(move || serve(number, &tasks_of_thread.lock(), &shared));
        match started {
            Ok(_) => Ok(()),
            Err(_) => match tasks.lock().try_recv() {
                Ok(task) => Err(task.work),
                Err(_) => Ok(()),
            },
        }
    }
}

impl<K: Eq + Hash + Clone> WatchdogState<K> {
    /// Records that `thread` was detached. Its work missed its deadline at `since`.
    fn detach(&self, subject: &K, thread: Pid, since: Instant) -> Unfinished {
        let mut subjects = self.detached.lock();
        let detached = subjects.entry(subject.clone()).or_insert(DetachedThreads {
            threads: Vec::new(),
            since,
            is_reported: false,
        });
        detached.threads.push(thread);
        detached.state()
    }

    fn returned(&self, subject: &K, thread: Pid) {
        let mut subjects = self.detached.lock();
        if let Some(detached) = subjects.get_mut(subject) {
            detached.threads.retain(|other| *other != thread);
            if detached.threads.is_empty() {
                subjects.remove(subject);
            }
        }
    }
}

/// Runs the tasks that a thread receives, and offers the thread again after each.
fn serve<K>(thread: u64, tasks: &mpsc::Receiver<Task>, shared: &Weak<WatchdogState<K>>) {
    let Ok(mut task) = tasks.recv() else { return };
    loop {
        (task.work)();
        let is_slow = getpriority_process(None).is_ok_and(|priority| priority > 0);
        let Some(shared) = shared.upgrade().filter(|_| !is_slow) else { return };
        {
            let mut idle = shared.idle.lock();
            if idle.len() >= IDLE_MAX {
                return;
            }
            idle.push(IdleThread { thread, work: task.sender });
        }
        // Once the watchdog is dropped, so is this thread's sender, and the thread ends.
        let weak = Arc::downgrade(&shared);
        drop(shared);
        task = match next_task(thread, tasks, &weak) {
            Some(task) => task,
            None => return,
        };
    }
}

/// Waits for the next task. Returns `None` if none arrives for a while or the watchdog is gone.
fn next_task<K>(
    thread: u64,
    tasks: &mpsc::Receiver<Task>,
    shared: &Weak<WatchdogState<K>>,
) -> Option<Task> {
    match tasks.recv_timeout(IDLE_TIME) {
        Ok(task) => return Some(task),
        Err(RecvTimeoutError::Disconnected) => return None,
        Err(RecvTimeoutError::Timeout) => {}
    }
    let shared = shared.upgrade()?;
    let mut idle = shared.idle.lock();
    if let Some(at) = idle.iter().position(|idle| idle.thread == thread) {
        idle.remove(at);
        return None;
    }
    drop(idle);
    drop(shared);
    // Another thread has just taken the sender, so a task will arrive.
    tasks.recv().ok()
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    const GRACE: Duration = Duration::from_millis(100);

    /// A gate that blocks work until the test opens it.
    #[derive(Clone, Default)]
    struct Gate(Arc<(Mutex<bool>, parking_lot::Condvar)>);

    impl Gate {
        fn open(&self) {
            *self.0.0.lock() = true;
            self.0.1.notify_all();
        }

        fn wait(&self) {
            let mut is_open = self.0.0.lock();
            while !*is_open {
                self.0.1.wait(&mut is_open);
            }
        }
    }

    #[test]
    fn work_returns_its_result_and_its_panic_reaches_the_caller() {
        let watchdog = Watchdog::default();
        for number in 0..100 {
            assert_eq!(watchdog.run(&"a", GRACE, Deadline::never(), move |_| number), Ok(number));
        }
        let run =
            || watchdog.run(&"a", GRACE, Deadline::never(), |_| -> u8 { panic!("on purpose") });
        assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
        assert_eq!(watchdog.run(&"a", GRACE, Deadline::never(), |_| 1), Ok(1));
    }

    #[test]
    fn work_learns_that_its_time_is_over_and_may_return_a_partial_result() {
        let watchdog = Watchdog::default();
        let until_stopped = |deadline: Deadline<'_>| {
            while deadline.has_time() {
                thread::yield_now();
            }
            "a part"
        };
        assert_eq!(watchdog.run(&"a", GRACE, Deadline::passed(), until_stopped), Ok("a part"));
    }

    #[test]
    fn late_work_is_detached_and_blocks_its_subject_until_it_returns() {
        let (watchdog, gate) = (Watchdog::default(), Gate::default());
        let stuck = gate.clone();
        assert_eq!(
            watchdog.run(&"bad", GRACE, Deadline::passed(), move |_| stuck.wait()),
            Err(Unfinished::Late)
        );
        // No work is started on it, and other subjects are served.
        assert_eq!(
            watchdog.run(&"bad", GRACE, Deadline::passed(), |_| panic!("started")),
            Err::<(), _>(Unfinished::Late)
        );
        assert_eq!(watchdog.run(&"good", GRACE, Deadline::never(), |_| 2), Ok(2));
        assert!(watchdog.overdue().is_empty());
        gate.open();
        // Once the detached work has ended, new work may start.
        assert_eq!(watchdog.wait(&"bad", Deadline::never()), Ok(()));
        assert_eq!(watchdog.run(&"bad", GRACE, Deadline::never(), |_| 3), Ok(3));
    }

    #[test]
    fn work_that_is_seconds_late_is_abandoned() {
        let (watchdog, gate) = (Watchdog::default(), Gate::default());
        let stuck = gate.clone();
        let waits = move |_: Deadline<'_>| stuck.wait();
        assert_eq!(
            watchdog.run(&"bad", OVERDUE, Deadline::passed(), waits),
            Err(Unfinished::Abandoned)
        );
        assert_eq!((watchdog.overdue(), watchdog.overdue()), (vec!["bad"], vec![]));
        gate.open();
    }

    #[test]
    fn detached_threads_are_bounded() {
        let (watchdog, gate) = (Watchdog::default(), Gate::default());
        thread::scope(|scope| {
            for number in 0..DETACHED_MAX {
                let (watchdog, stuck) = (watchdog.clone(), gate.clone());
                scope.spawn(move || {
                    assert_eq!(
                        watchdog.run(&number, GRACE, Deadline::passed(), move |_| stuck.wait()),
                        Err(Unfinished::Late)
                    );
                });
            }
        });
        assert_eq!(
            watchdog.run(&1_000, GRACE, Deadline::passed(), |_| panic!("started")),
            Err::<(), _>(Unfinished::Late)
        );
        gate.open();
        assert_eq!(watchdog.wait(&1_000, Deadline::never()), Ok(()));
        assert_eq!(watchdog.run(&1_000, GRACE, Deadline::never(), |_| ()), Ok(()));
    }

    #[test]
    fn concurrent_callers_have_a_thread_each_and_threads_end_with_the_watchdog() {
        let watchdog: Watchdog<usize> = Watchdog::default();
        let all = Arc::new(Barrier::new(8));
        let alive = Arc::new(());
        thread::scope(|scope| {
            for number in 0..8 {
                let (watchdog, all, alive) = (watchdog.clone(), all.clone(), alive.clone());
                scope.spawn(move || {
                    let wait = move |_: Deadline<'_>| {
                        all.wait();
                        drop(alive);
                    };
                    watchdog.run(&number, GRACE, Deadline::never(), wait).unwrap();
                });
            }
        });
        let shared = Arc::downgrade(&watchdog.shared);
        drop(watchdog);
        while shared.strong_count() > 0 {
            thread::yield_now();
        }
        assert_eq!(Arc::strong_count(&alive), 1);
    }
}
