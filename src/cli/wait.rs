//! `swarmletfs wait`: sleeps until what is asked has happened in a view, and says what it was.
//!
//! It looks once a second, or so rarely that looking takes a twentieth of the time: at what a mount would look at, and all
//! the more rarely at the files of workers that have finished. Everything is looked at anew only if something is known to
//! have changed. A signal ends it as it ends any program.

use std::process::ExitCode;
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::ValueEnum;
use jiff::SignedDuration;

use super::open::Wanted;
use super::say::say;
use super::{WaitArgs, exit, since};
use crate::catalog::Freshness;
use crate::render::since::{Cursor, ViewSnapshot, state_hash};
use crate::render::wait::{WaitCondition, status_line, timeout_report};
use crate::render::{Renderer, Settings};

/// How often it is looked, at most.
const INTERVAL: Duration = Duration::from_secs(1);
/// How many times as long as a look takes it is slept.
const REST: u32 = 20;
/// The same of a look at the files of finished workers.
const REST_CLOSELY: u32 = 40;

/// What can be typed behind `--until`.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum Asked {
    /// All workers of the view have finished, well or not, and there is one
    Finished,
    /// A worker has failed, by its status
    Failed,
    /// Something changed: a worker, a file, who is there
    Any,
}

impl From<Asked> for WaitCondition {
    fn from(asked: Asked) -> WaitCondition {
        match asked {
            Asked::Finished => WaitCondition::Finished,
            Asked::Failed => WaitCondition::Failed,
            Asked::Any => WaitCondition::Any,
        }
    }
}

/// Waits. Errors: a store that cannot be found or read.
pub(super) fn run(arguments: &WaitArgs) -> anyhow::Result<ExitCode> {
    let begun = Instant::now();
    // One that is later than any time never comes.
    let end = arguments.timeout.and_then(|timeout| begun.checked_add(timeout));
    let wanted = Wanted::choose(&arguments.view)?;
    let freshness = Freshness { unfinished: INTERVAL, ..Freshness::default() };
    let open = || Ok::<_, anyhow::Error>(Renderer::new(wanted.view(freshness)?, Settings::default()));
    let mut renderer = open()?;
    let until = WaitCondition::from(arguments.until);
    let given = arguments.since.filter(|cursor| *cursor != Cursor::Now);
    // Looked at before the cursor is made: what changes in between is another state.
    let state = state_hash(renderer.view(), true);
    let (cursor, mut seen) = match given {
        Some(cursor) => (cursor, None),
        None => (ViewSnapshot::take(renderer.view()).cursor(), (until == WaitCondition::Any).then_some(state)),
    };
    say(&until.progress_line(&renderer.view().visible()));
    let (mut cost, mut closely_at) = (Duration::ZERO, Instant::now());
    loop {
        let looked = Instant::now();
        let closely = looked >= closely_at;
        if renderer.view().is_replaced() {
            // What stands in its place cannot be a store yet; then what was is still shown.
            if let Ok(another) = open() {
                (renderer, seen) = (another, None);
            }
        }
        if may_be(until, &renderer, given, &mut seen, closely) {
            let look = ViewSnapshot::take(renderer.view());
            if until.is_met(&look, given, cursor) {
                return happened(&renderer, until, &look, cursor);
            }
        }
        let now = Instant::now();
        let left = end.map(|end| end.saturating_duration_since(now));
        if left.is_some_and(|left| left.is_zero()) {
            let view = renderer.view();
            let missed = timeout_report(view, &view.visible(), cursor);
            say("the time is over, and it has not happened");
            let printed = since::print(missed.as_bytes());
            return Ok(if printed == ExitCode::SUCCESS { exit::timed_out() } else { printed });
        }
        if closely {
            closely_at = now + (now - looked) * REST_CLOSELY;
        } else {
            cost = now - looked;
        }
        let rest = INTERVAL.max(cost * REST);
        thread::sleep(left.map_or(rest, |left| left.min(rest)));
    }
}

/// Whether it is worth to look at everything.
fn may_be(
    until: WaitCondition,
    renderer: &Renderer,
    given: Option<Cursor>,
    seen: &mut Option<u64>,
    closely: bool,
) -> bool {
    if !until.may_hold(&renderer.view().visible()) {
        return false;
    }
    if until == WaitCondition::Any || given.is_some() {
        let state = Some(state_hash(renderer.view(), closely));
        return std::mem::replace(seen, state) != state;
    }
    true
}

fn happened(
    renderer: &Renderer,
    until: WaitCondition,
    look: &ViewSnapshot,
    cursor: Cursor,
) -> anyhow::Result<ExitCode> {
    let head = if until == WaitCondition::Any { String::new() } else { status_line(look) };
    let answer = renderer.since(look, cursor).context("cannot read the store")?;
    Ok(since::print(&[head.as_bytes(), &answer].concat()))
}

/// A time to wait: `30s`, `5m`, `1h 30m`, or whole seconds.
pub(super) fn timeout(text: &str) -> Result<Duration, String> {
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        return text.parse().map(Duration::from_secs).map_err(|_| "more seconds than can be counted".into());
    }
    let parsed = SignedDuration::from_str(text).ok().and_then(|duration| Duration::try_from(duration).ok());
    parsed.ok_or_else(|| "not a time as in 30s, 5m, 1h or 1h30m, nor a whole number of seconds".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit_or_are_seconds() {
        for (text, seconds) in
            [("30s", 30), ("5m", 300), ("1h", 3_600), ("1h30m", 5_400), ("1h 30m", 5_400), ("7", 7), ("0", 0)]
        {
            assert_eq!(timeout(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        assert_eq!(timeout("500ms"), Ok(Duration::from_millis(500)));
        for text in ["", "soon", "-1", "-5s", "5x", "1.5", "99999999999999999999"] {
            assert!(timeout(text).is_err(), "{text}");
        }
    }
}
