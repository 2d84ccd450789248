//! Runs work that may never return on threads that can be left behind.
//!
//! Every parser of worker content is bounded by the size of its input. This is the second line of defense: a caller whose
//! time is over goes on without a result, and the thread goes on by itself. While it does, no further work is started on
//! the same subject, so one worker holds up nobody else and occupies a bounded number of threads. Work that still runs
//! [`OVERDUE`] after its deadline is given up: its thread gets the lowest priority, and [`Watchdog::overdue`] reports it.

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

/// Work that runs for this long after its deadline is given up.
pub(crate) const OVERDUE: Duration = Duration::from_secs(5);
/// Most threads that may be left behind at a time; with more, no work is started.
const LEFT_BEHIND_MAX: usize = 64;
/// Interval at which a caller that waits checks its deadline.
const CHECK: Duration = Duration::from_millis(20);
/// Most threads that are kept for further work, and the time for which each is.
const IDLE_MAX: usize = 16;
const IDLE: Duration = Duration::from_secs(10);
/// Priority of a thread whose work was given up.
const LOWEST: i32 = 19;

/// Why there is no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unfinished {
    /// The work, or earlier work on its subject, did not end in time and goes on.
    Late,
    /// The work, or earlier work on its subject, was given up.
    GivenUp,
}

/// Runs work on threads that can be given up. Clones share their threads and what they left behind.
pub(crate) struct Watchdog<K> {
    shared: Arc<Shared<K>>,
}

impl<K> Clone for Watchdog<K> {
    fn clone(&self) -> Watchdog<K> {
        Watchdog { shared: self.shared.clone() }
    }
}

struct Shared<K> {
    /// Threads that wait for work, the latest last.
    idle: Mutex<Vec<Idle>>,
    /// Subjects of threads that were left behind and still run.
    left_behind: Mutex<HashMap<K, LeftBehind>>,
    next_thread: AtomicU64,
}

struct Idle {
    thread: u64,
    work: mpsc::Sender<Task>,
}

/// Work for a thread, and the thread's own sender, which it offers again when it is idle.
struct Task {
    work: Box<dyn FnOnce() + Send>,
    sender: mpsc::Sender<Task>,
}

/// The threads left behind on one subject.
struct LeftBehind {
    threads: Vec<Pid>,
    /// When the time of the first was over.
    since: Instant,
    is_reported: bool,
}

impl LeftBehind {
    fn state(&self) -> Unfinished {
        if self.since.elapsed() >= OVERDUE { Unfinished::GivenUp } else { Unfinished::Late }
    }
}

/// State of a piece of work, shared by its thread and its caller.
enum Progress {
    Waiting,
    Running(Pid),
    LeftBehind(Pid),
    Ended,
}

impl<K: Clone + Eq + Hash + Send + 'static> Watchdog<K> {
    /// Creates a watchdog without threads.
    pub(crate) fn new() -> Watchdog<K> {
        let (idle, left_behind, next_thread) = (Mutex::default(), Mutex::default(), AtomicU64::new(0));
        Watchdog { shared: Arc::new(Shared { idle, left_behind, next_thread }) }
    }

    /// Runs `work` on another thread and returns its result. `work` receives a function that returns true while there
    /// is time; it should return within `grace` after that returns false, which it does from when `in_time` does. A panic
    /// in `work` is the caller's.
    ///
    /// # Errors
    /// [`Unfinished`] if `work` runs for longer than that, or if earlier work on `subject` did and has not returned yet.
    pub(crate) fn run<R: Send + 'static>(
        &self,
        subject: &K,
        grace: Duration,
        in_time: &dyn Fn() -> bool,
        work: impl FnOnce(&(dyn Fn() -> bool + Sync)) -> R + Send + 'static,
    ) -> Result<R, Unfinished> {
        self.may_start(subject)?;
        let progress = Arc::new(Mutex::new(Progress::Waiting));
        let mut stopped = (!in_time()).then(Instant::now);
        let stop = Arc::new(AtomicBool::new(stopped.is_some()));
        let (sender, result) = mpsc::sync_channel(1);
        let job = {
            let (progress, stop) = (progress.clone(), stop.clone());
            let (shared, subject) = (Arc::downgrade(&self.shared), subject.clone());
            move || {
                *progress.lock() = Progress::Running(gettid());
                let made = catch_unwind(AssertUnwindSafe(|| work(&|| !stop.load(Ordering::Relaxed))));
                // Sent first: a caller that finds the work ended finds its result, too.
                let _ = sender.send(made);
                let before = std::mem::replace(&mut *progress.lock(), Progress::Ended);
                if let (Progress::LeftBehind(thread), Some(shared)) = (before, shared.upgrade()) {
                    shared.returned(&subject, thread);
                }
            }
        };
        if let Err(job) = self.start(Box::new(job)) {
            // Without a thread to spare the caller's own has to do.
            job();
        }
        loop {
            match result.recv_timeout(CHECK) {
                Ok(made) => return Ok(made.unwrap_or_else(|panic| resume_unwind(panic))),
                Err(RecvTimeoutError::Disconnected) => resume_unwind(Box::new("a thread ended without a result")),
                Err(RecvTimeoutError::Timeout) => {}
            }
            match stopped {
                None if !in_time() => {
                    stop.store(true, Ordering::Relaxed);
                    stopped = Some(Instant::now());
                }
                Some(at) if at.elapsed() >= grace => {
                    let mut progress = progress.lock();
                    let thread = match &*progress {
                        // A thread is about to start or to send its result.
                        Progress::Waiting | Progress::Ended | Progress::LeftBehind(_) => continue,
                        Progress::Running(thread) => *thread,
                    };
                    *progress = Progress::LeftBehind(thread);
                    return Err(self.shared.leave_behind(subject, thread, at));
                }
                _ => {}
            }
        }
    }

    /// Waits while `in_time` returns true for earlier work on `subject` that was left behind.
    ///
    /// # Errors
    /// [`Unfinished`] if it does not return, or was given up.
    pub(crate) fn wait(&self, subject: &K, in_time: &dyn Fn() -> bool) -> Result<(), Unfinished> {
        while let Err(unfinished) = self.may_start(subject) {
            if unfinished == Unfinished::GivenUp || !in_time() {
                return Err(unfinished);
            }
            thread::sleep(CHECK);
        }
        Ok(())
    }

    /// Returns the subjects whose work was given up since this was called last, and slows their threads down.
    pub(crate) fn overdue(&self) -> Vec<K> {
        let mut all = self.shared.left_behind.lock();
        let is_new = |left: &LeftBehind| !left.is_reported && left.state() == Unfinished::GivenUp;
        let report = |(subject, left): (&K, &mut LeftBehind)| {
            left.is_reported = true;
            for thread in &left.threads {
                // It may be ending just now.
                let _ = setpriority_process(Some(*thread), LOWEST);
            }
            subject.clone()
        };
        all.iter_mut().filter(|(_, left)| is_new(left)).map(report).collect()
    }

    /// Fails if a thread was left behind on `subject`, or too many were on others.
    fn may_start(&self, subject: &K) -> Result<(), Unfinished> {
        let all = self.shared.left_behind.lock();
        match all.get(subject) {
            Some(left) => Err(left.state()),
            None if all.values().map(|left| left.threads.len()).sum::<usize>() >= LEFT_BEHIND_MAX => {
                Err(Unfinished::Late)
            }
            None => Ok(()),
        }
    }

    /// Hands `work` to an idle thread or to a new one. Returns it if the system gives no thread.
    fn start(&self, work: Box<dyn FnOnce() + Send>) -> Result<(), Box<dyn FnOnce() + Send>> {
        // A thread inherits its starter's priority and could not raise it again.
        let is_slow = getpriority_process(None).is_ok_and(|priority| priority > 0);
        let idle = if is_slow { None } else { self.shared.idle.lock().pop() };
        let Some(Idle { work: sender, .. }) = idle else { return self.start_thread(work, !is_slow) };
        let task = Task { work, sender: sender.clone() };
        match sender.send(task) {
            Ok(()) => Ok(()),
            Err(mpsc::SendError(task)) => self.start_thread(task.work, true),
        }
    }

    fn start_thread(&self, work: Box<dyn FnOnce() + Send>, keep: bool) -> Result<(), Box<dyn FnOnce() + Send>> {
        let (sender, tasks) = mpsc::channel();
        let number = self.shared.next_thread.fetch_add(1, Ordering::Relaxed);
        let shared = if keep { Arc::downgrade(&self.shared) } else { Weak::new() };
        let first = Task { work, sender: sender.clone() };
        // Sent before the thread starts, so that it can be taken back.
        let _ = sender.send(first);
        let tasks = Arc::new(Mutex::new(tasks));
        let of_thread = tasks.clone();
        drop(sender);
        let serve = move || serve(number, &of_thread.lock(), &shared);
        match thread::Builder::new().name("record".into()).spawn(serve) {
            Ok(_) => Ok(()),
            Err(_) => match tasks.lock().try_recv() {
                Ok(task) => Err(task.work),
                Err(_) => Ok(()),
            },
        }
    }
}

impl<K: Eq + Hash + Clone> Shared<K> {
    /// Notes that `thread` was left behind; the time of its work was over at `since`.
    fn leave_behind(&self, subject: &K, thread: Pid, since: Instant) -> Unfinished {
        let mut all = self.left_behind.lock();
        let new = || LeftBehind { threads: Vec::new(), since, is_reported: false };
        let left = all.entry(subject.clone()).or_insert_with(new);
        left.threads.push(thread);
        left.state()
    }

    fn returned(&self, subject: &K, thread: Pid) {
        let mut all = self.left_behind.lock();
        if let Some(left) = all.get_mut(subject) {
            left.threads.retain(|other| *other != thread);
            if left.threads.is_empty() {
                all.remove(subject);
            }
        }
    }
}

/// Does the work that a thread is sent, and offers the thread again after each piece.
fn serve<K>(thread: u64, tasks: &mpsc::Receiver<Task>, shared: &Weak<Shared<K>>) {
    let Ok(mut task) = tasks.recv() else { return };
    loop {
        (task.work)();
        let slowed = getpriority_process(None).is_ok_and(|priority| priority > 0);
        let Some(shared) = shared.upgrade().filter(|_| !slowed) else { return };
        {
            let mut idle = shared.idle.lock();
            if idle.len() >= IDLE_MAX {
                return;
            }
            idle.push(Idle { thread, work: task.sender });
        }
        // Once the watchdog is gone, so is the sender that it holds, and this thread ends.
        let weak = Arc::downgrade(&shared);
        drop(shared);
        task = match next(thread, tasks, &weak) {
            Some(task) => task,
            None => return,
        };
    }
}

/// Waits for the next task. Returns `None` if none came for a while, or the watchdog is gone.
fn next<K>(thread: u64, tasks: &mpsc::Receiver<Task>, shared: &Weak<Shared<K>>) -> Option<Task> {
    match tasks.recv_timeout(IDLE) {
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
    // Somebody took the sender just before: a task is under way.
    tasks.recv().ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    const GRACE: Duration = Duration::from_millis(100);

    /// A gate that work waits at until the test opens it.
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
    fn work_returns_its_result_and_its_panic_is_the_callers() {
        let watchdog = Watchdog::new();
        for number in 0..100 {
            assert_eq!(watchdog.run(&"a", GRACE, &|| true, move |_| number), Ok(number));
        }
        let run = || watchdog.run(&"a", GRACE, &|| true, |_| -> u8 { panic!("on purpose") });
        assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
        assert_eq!(watchdog.run(&"a", GRACE, &|| true, |_| 1), Ok(1));
    }

    #[test]
    fn work_is_told_when_its_time_is_over_and_may_still_return_what_it_has() {
        let watchdog = Watchdog::new();
        let until_told = |in_time: &(dyn Fn() -> bool + Sync)| {
            while in_time() {
                thread::yield_now();
            }
            "a part"
        };
        assert_eq!(watchdog.run(&"a", GRACE, &|| false, until_told), Ok("a part"));
    }

    #[test]
    fn work_that_does_not_return_in_time_is_left_behind_and_its_subject_left_alone_until_it_does() {
        let (watchdog, gate) = (Watchdog::new(), Gate::default());
        let stuck = gate.clone();
        assert_eq!(watchdog.run(&"bad", GRACE, &|| false, move |_| stuck.wait()), Err(Unfinished::Late));
        // Nothing is started on it, and other subjects are served.
        assert_eq!(watchdog.run(&"bad", GRACE, &|| false, |_| panic!("started")), Err::<(), _>(Unfinished::Late));
        assert_eq!(watchdog.run(&"good", GRACE, &|| true, |_| 2), Ok(2));
        assert!(watchdog.overdue().is_empty());
        gate.open();
        // Once it has, it may be started again.
        assert_eq!(watchdog.wait(&"bad", &|| true), Ok(()));
        assert_eq!(watchdog.run(&"bad", GRACE, &|| true, |_| 3), Ok(3));
    }

    #[test]
    fn work_that_does_not_return_for_seconds_is_given_up() {
        let (watchdog, gate) = (Watchdog::new(), Gate::default());
        let stuck = gate.clone();
        let waits = move |_: &(dyn Fn() -> bool + Sync)| stuck.wait();
        assert_eq!(watchdog.run(&"bad", OVERDUE, &|| false, waits), Err(Unfinished::GivenUp));
        assert_eq!((watchdog.overdue(), watchdog.overdue()), (vec!["bad"], vec![]));
        gate.open();
    }

    #[test]
    fn threads_that_are_left_behind_are_bounded() {
        let (watchdog, gate) = (Watchdog::new(), Gate::default());
        thread::scope(|scope| {
            for number in 0..LEFT_BEHIND_MAX {
                let (watchdog, stuck) = (watchdog.clone(), gate.clone());
                scope.spawn(move || {
                    assert_eq!(watchdog.run(&number, GRACE, &|| false, move |_| stuck.wait()), Err(Unfinished::Late));
                });
            }
        });
        assert_eq!(watchdog.run(&1_000, GRACE, &|| false, |_| panic!("started")), Err::<(), _>(Unfinished::Late));
        gate.open();
        assert_eq!(watchdog.wait(&1_000, &|| true), Ok(()));
        assert_eq!(watchdog.run(&1_000, GRACE, &|| true, |_| ()), Ok(()));
    }

    #[test]
    fn callers_at_once_have_a_thread_each_and_all_threads_end_with_the_watchdog() {
        let watchdog: Watchdog<usize> = Watchdog::new();
        let all = Arc::new(Barrier::new(8));
        let alive = Arc::new(());
        thread::scope(|scope| {
            for number in 0..8 {
                let (watchdog, all, alive) = (watchdog.clone(), all.clone(), alive.clone());
                scope.spawn(move || {
                    let wait = move |_: &(dyn Fn() -> bool + Sync)| {
                        all.wait();
                        drop(alive);
                    };
                    watchdog.run(&number, GRACE, &|| true, wait).unwrap();
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
