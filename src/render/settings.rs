//! What can be set of generated files, and the clock that their renders look at.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{Budget, Scope};

/// How long one render may look into outputs before the file says what was not read, unless something else is set.
pub const DEADLINE: Duration = Duration::from_secs(2);

/// Longer than any render takes: a hundred years.
const UNLIMITED: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// Time that a render may take to show what it has found in any case.
const GRACE: Duration = Duration::from_millis(500);

/// Returns true while there is time left.
pub(super) type Deadline<'a> = &'a (dyn Fn() -> bool + Sync);

/// What can be set of generated files.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The size of evidence.txt where no size is asked for; without it 16,000 bytes for a worker and 28,000 for more.
    pub budget: Option<Budget>,
    /// How long one render may look into outputs before the file says what was not read.
    pub deadline: Duration,
    /// Stops renders before their deadline, and follows how far they are.
    pub control: Option<Arc<Control>>,
}

impl Settings {
    /// Returns settings under which renders have no deadline of their own: only `control` stops them.
    pub fn without_deadline(control: Arc<Control>) -> Settings {
        Settings { budget: None, deadline: UNLIMITED, control: Some(control) }
    }

    /// How large a file about `scope` may be, for which one may have `asked`.
    pub(super) fn budget_for_scope(&self, scope: &Scope, asked: Option<Budget>) -> Budget {
        self.budget_or(if matches!(scope, Scope::Worker(_)) { Budget::WORKER } else { Budget::SWARM }, asked)
    }

    /// How large a file may be that has `default` where nothing is set and nothing `asked`.
    pub(super) fn budget_or(&self, default: Budget, asked: Option<Budget>) -> Budget {
        asked.or(self.budget).unwrap_or(default)
    }

    /// How long one worker of many may take, or what changes again and again.
    pub(super) fn patience(&self) -> Duration {
        self.deadline / 4
    }

    /// Starts the clock of a render, which may run for `tenths` of the deadline.
    pub(super) fn clock(&self, tenths: u32) -> Clock<'_> {
        let end = Instant::now() + self.deadline.saturating_mul(tenths) / 10;
        Clock { end, control: self.control.as_deref(), grace: None, ran_out: AtomicBool::new(false) }
    }

    /// Returns a clock that has run out: whatever is left is left out.
    pub(super) fn expired_clock(&self) -> Clock<'_> {
        Clock { ran_out: AtomicBool::new(true), ..self.clock(0) }
    }

    /// Grants a render time to show what it has found, even if the time to find it has run out.
    pub(super) fn grant<'a>(&self, clock: Clock<'a>) -> Clock<'a> {
        Clock { grace: Some(Instant::now() + GRACE.min(self.deadline / 4)), ..clock }
    }

    /// Tells whoever controls renders that `total` workers are to be read.
    pub(super) fn expect(&self, total: usize) {
        if let Some(control) = &self.control {
            control.expect(total as u64);
        }
    }

    /// Tells whoever controls renders that one more worker was read.
    pub(super) fn count_one(&self) {
        if let Some(control) = &self.control {
            control.count_one();
        }
    }

    /// Tells whoever controls renders that an answer is incomplete.
    pub(super) fn note_incomplete(&self) {
        if let Some(control) = &self.control {
            control.note_incomplete();
        }
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { budget: None, deadline: DEADLINE, control: None }
    }
}

/// Stops renders from outside, and follows how far they are.
pub struct Control {
    may_continue: Box<dyn Fn() -> bool + Send + Sync>,
    end: Option<Instant>,
    incomplete: AtomicBool,
    done: AtomicU64,
    total: AtomicU64,
}

impl Control {
    /// Creates a control under which renders stop once `may_continue` returns false.
    pub fn new(may_continue: impl Fn() -> bool + Send + Sync + 'static) -> Control {
        let (incomplete, done, total) = Default::default();
        Control { may_continue: Box::new(may_continue), end: None, incomplete, done, total }
    }

    /// Creates a control under which renders stop at `end`, if there is one.
    pub fn until(end: Option<Instant>) -> Control {
        Control { end, ..Control::new(move || end.is_none_or(|end| Instant::now() < end)) }
    }

    /// Returns true while there is time left.
    pub fn may_continue(&self) -> bool {
        (self.may_continue)()
    }

    /// Returns true unless there is a `control` under which renders are to stop.
    pub(super) fn permits(control: Option<&Arc<Control>>) -> bool {
        control.is_none_or(|control| control.may_continue())
    }

    /// Returns true if an answer was given that is incomplete for lack of time.
    pub fn is_incomplete(&self) -> bool {
        self.incomplete.load(Ordering::Relaxed)
    }

    /// Notes that an answer is incomplete for lack of time.
    pub fn note_incomplete(&self) {
        self.incomplete.store(true, Ordering::Relaxed);
    }

    /// Begins a stage in which `total` workers are read.
    pub fn expect(&self, total: u64) {
        self.done.store(0, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
    }

    /// Counts one more worker as read.
    pub fn count_one(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how many workers were read in this stage, and how many are to be read.
    pub fn progress(&self) -> (u64, u64) {
        let total = self.total.load(Ordering::Relaxed);
        (self.done.load(Ordering::Relaxed).min(total), total)
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").field("incomplete", &self.incomplete).finish_non_exhaustive()
    }
}

/// Measures one render, and remembers whether it was cut off.
pub(super) struct Clock<'a> {
    end: Instant,
    control: Option<&'a Control>,
    /// WaitCondition then it may go on in any case.
    grace: Option<Instant>,
    ran_out: AtomicBool,
}

impl Clock<'_> {
    /// Returns true while there is time left. Whoever gets a false leaves something out.
    pub(super) fn has_time(&self) -> bool {
        let now = Instant::now();
        let is_in_time = now < self.end && self.control.is_none_or(Control::may_continue);
        let may = is_in_time || self.grace.is_some_and(|grace| now < grace);
        if !may {
            self.ran_out.store(true, Ordering::Relaxed);
        }
        may
    }

    /// Returns when it stops, for what cannot ask it again and again.
    pub(super) fn end(&self) -> Instant {
        let control = self.control.and_then(|control| control.end);
        control.map_or(self.end, |end| end.min(self.end))
    }

    /// Returns true if the render was told to stop.
    pub(super) fn ran_out(&self) -> bool {
        self.ran_out.load(Ordering::Relaxed)
    }
}
