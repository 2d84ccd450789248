//! Settings of generated files, and the clock that limits a render.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::missing::Missing;
use super::prose::ProseWriter;
use swarmletfs_base::deadline::{Deadline, TimeLimit};
use swarmletfs_base::digest::Key;
use swarmletfs_base::model::Prices;
use swarmletfs_base::name::Name;
use swarmletfs_base::text::budget::Budget;

/// Default time that a render may spend reading. After it, the file lists the parts not read.
pub const DEADLINE: Duration = Duration::from_secs(2);

/// Time that a part of an answer may take to return after its deadline.
pub const PART_GRACE: Duration = Duration::from_millis(500);

/// The subject of a task on a thread that can be abandoned. While an abandoned task runs, no other
/// starts on its subject.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Subject {
    Worker(Name),
    Answer(Key),
}

/// A hundred years: longer than any render takes.
const UNLIMITED: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// Time to write the results, granted even after the deadline.
const GRACE: Duration = Duration::from_millis(500);

#[derive(Debug, Clone)]
pub struct Settings {
    /// Size of evidence.txt when its name has none. The default is 16,000 bytes for a worker and
    /// 28,000 for many.
    pub budget: Option<Budget>,
    /// Time that a render may spend reading. After it, the file lists the parts not read.
    pub deadline: Duration,
    pub control: Option<Arc<Control>>,
    /// Prices of language models, for costs that records do not state.
    pub prices: Option<Arc<Prices>>,
    /// The language model to ask, if there is one.
    pub prose: Option<Arc<dyn ProseWriter>>,
    /// Number of trees that share the memory for caches.
    pub trees: usize,
}

impl Settings {
    /// Returns settings without a deadline. Only `control` stops renders.
    pub fn without_deadline(control: Arc<Control>) -> Settings {
        Settings { deadline: UNLIMITED, control: Some(control), ..Settings::default() }
    }

    /// Returns the maximum size of a file: `requested`, else the budget of the settings, else
    /// `default`.
    pub fn budget_or(&self, default: Budget, requested: Option<Budget>) -> Budget {
        requested.or(self.budget).unwrap_or(default)
    }

    /// Returns the time allowed for one worker of many, and for retries while files change.
    pub fn patience(&self) -> Duration {
        self.deadline / 4
    }

    /// Starts a clock that runs out after `tenths` tenths of the deadline.
    pub fn clock(&self, tenths: u32) -> Clock<'_> {
        let end = Instant::now() + self.deadline.saturating_mul(tenths) / 10;
        Clock {
            end,
            control: self.control.as_deref(),
            grace: None,
            ran_out: AtomicBool::new(false),
        }
    }

    /// Returns a clock that has run out, so that a render leaves out all that it would have to
    /// read.
    pub fn expired_clock(&self) -> Clock<'_> {
        Clock { ran_out: AtomicBool::new(true), ..self.clock(0) }
    }

    /// Extends `clock`, so that a render can write its results even after the deadline.
    pub fn grant<'a>(&self, clock: Clock<'a>) -> Clock<'a> {
        Clock { grace: Some(Instant::now() + GRACE.min(self.deadline / 4)), ..clock }
    }

    pub fn start_stage(&self, total: usize) {
        if let Some(control) = &self.control {
            control.start_stage(total as u64);
        }
    }

    pub fn count_one(&self) {
        if let Some(control) = &self.control {
            control.count_one();
        }
    }

    pub fn note_missing(&self, missing: Option<&Missing>) {
        if missing.is_some() {
            self.note_incomplete();
        }
    }

    pub fn note_incomplete(&self) {
        if let Some(control) = &self.control {
            control.note_incomplete();
        }
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            budget: None,
            deadline: DEADLINE,
            control: None,
            prices: None,
            prose: None,
            trees: 1,
        }
    }
}

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

    pub fn until(end: Option<Instant>) -> Control {
        Control { end, ..Control::new(move || end.is_none_or(|end| Instant::now() < end)) }
    }

    pub fn may_continue(&self) -> bool {
        (self.may_continue)()
    }

    /// Returns true unless `control` stops renders.
    pub fn permits(control: Option<&Arc<Control>>) -> bool {
        control.is_none_or(|control| control.may_continue())
    }

    pub fn is_incomplete(&self) -> bool {
        self.incomplete.load(Ordering::Relaxed)
    }

    pub fn note_incomplete(&self) {
        self.incomplete.store(true, Ordering::Relaxed);
    }

    pub fn start_stage(&self, total: u64) {
        self.done.store(0, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
    }

    pub fn count_one(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of workers read in this stage, and the number to read.
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

pub struct Clock<'a> {
    end: Instant,
    control: Option<&'a Control>,
    /// End of the granted extra time.
    grace: Option<Instant>,
    ran_out: AtomicBool,
}

impl Clock<'_> {
    /// Returns true while there is time left. A caller that receives false leaves something out, so
    /// the clock records it.
    pub fn has_time(&self) -> bool {
        let now = Instant::now();
        let is_in_time = now < self.end && self.control.is_none_or(Control::may_continue);
        let has_time = is_in_time || self.grace.is_some_and(|grace| now < grace);
        if !has_time {
            self.ran_out.store(true, Ordering::Relaxed);
        }
        has_time
    }

    pub fn deadline(&self) -> Deadline<'_> {
        Deadline::new(self)
    }

    /// Returns the time at which the clock runs out, for callers that cannot poll it.
    pub fn end(&self) -> Instant {
        let control = self.control.and_then(|control| control.end);
        control.map_or(self.end, |end| end.min(self.end))
    }

    /// Returns true if [`Clock::has_time`] has returned false.
    pub fn ran_out(&self) -> bool {
        self.ran_out.load(Ordering::Relaxed)
    }
}

impl TimeLimit for Clock<'_> {
    fn has_time(&self) -> bool {
        Clock::has_time(self)
    }

    fn time_left(&self) -> Option<Duration> {
        Some(self.end().saturating_duration_since(Instant::now()))
    }
}
