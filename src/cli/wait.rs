//! `swarmletfs wait`: sleeps until an event has occurred in a view, and prints it; and `swarmletfs
//! since`: prints the changes since a cursor, as `since/CURSOR` in a mounted tree.
//!
//! `wait` polls once a second, or less often so that polling takes at most a twentieth of the time.
//! Files of finished workers are polled more rarely. A full snapshot is taken only after a change
//! was detected. A signal ends the process as usual.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use clap::{Args, ValueEnum};

use super::read_session::{ReadSession, TimeArgs};
use super::store_selection::StoreSelection;
use super::terminal::print_message;
use super::view_args::ViewArgs;
use super::{duration, exit};
use crate::analysis::attention::AttentionLevel;
use crate::analysis::digest_cache::DigestResult;
use crate::analysis::settings::Settings;
use crate::catalog::Freshness;
use crate::query::since::{ViewSnapshot, state_hash};
use crate::query::wait::{WaitCondition, status_line, timeout_report};
use crate::render::Renderer;
use crate::route::cursor::Cursor;
use crate::view::Member;
use swarmletfs_base::deadline::Deadline;

pub(super) const HELP: &str = "\
Prints what happened since the start, or since --since, in the format of `swarmletfs since`; the \
last line is the next cursor. When the time is over, it prints the workers that have not \
finished, and the cursor from the start.

A change is noticed within about a second, or a few seconds in a store of thousands of workers; \
a finished worker that resumes, within a minute. While there is no worker, it waits. --until \
failed returns at once if a worker has the status failed already; with --since, only workers that \
changed since then count. An abandoned session counts as finished; the first line names it.

Examples:
  swarmletfs wait --timeout 10m
  swarmletfs wait --until failed
  swarmletfs wait --until any --since $CURSOR

Exit code: 0 if the event occurred, 1 if waiting failed, 2 for a usage error, 3 if the time ran \
out.";

/// Arguments of `wait`.
#[derive(Debug, Args)]
pub(super) struct WaitArgs {
    /// The event to wait for
    #[arg(long, value_enum, default_value = "finished")]
    until: UntilArg,

    /// Maximum time to wait: 30s, 5m, 1h30m, or whole seconds [default: no limit]
    #[arg(long, value_name = "TIME", value_parser = duration::parse_duration)]
    timeout: Option<Duration>,

    /// Count changes since this cursor, so that none is lost between two waits [default: now]
    #[arg(long, value_name = "CURSOR", value_parser = Cursor::parse)]
    since: Option<Cursor>,

    #[command(flatten)]
    view: ViewArgs,
}

const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Ratio of the sleep to the cost of the last poll.
const REST_FACTOR: u32 = 20;
/// Ratio of the sleep to the cost of a thorough poll, which includes the files of finished workers.
const THOROUGH_REST_FACTOR: u32 = 40;

/// Values of `--until`.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum UntilArg {
    /// All workers of the view have finished, successfully or not, or were abandoned, and there is
    /// at least one
    Finished,
    /// A worker has the status failed
    Failed,
    /// A worker waits for a person: for an answer, or for permission
    Waiting,
    /// A worker needs a person: it waits, failed, claims what its record contradicts, or left a
    /// check red
    Attention,
    /// Anything changed: a worker, a file, or the set of workers
    Any,
}

impl From<UntilArg> for WaitCondition {
    fn from(until: UntilArg) -> WaitCondition {
        match until {
            UntilArg::Finished => WaitCondition::Finished,
            UntilArg::Failed => WaitCondition::Failed,
            UntilArg::Waiting => WaitCondition::Waiting,
            UntilArg::Attention => WaitCondition::Attention,
            UntilArg::Any => WaitCondition::Any,
        }
    }
}

/// An event to wait for.
#[derive(Debug, Clone, Copy)]
pub struct WaitRequest {
    /// The event.
    pub until: WaitCondition,
    /// Cursor after which changes count; `None` for the start of the wait.
    pub since: Option<Cursor>,
    /// Maximum time to wait.
    pub timeout: Option<Duration>,
}

/// The end of a wait, with its report.
pub enum WaitEnd {
    /// The event occurred.
    Occurred(Vec<u8>),
    /// The time is over.
    TimedOut(String),
    /// The caller stopped the wait.
    Stopped,
}

pub(super) fn run(arguments: &WaitArgs) -> anyhow::Result<ExitCode> {
    let request = WaitRequest {
        until: arguments.until.into(),
        since: arguments.since,
        timeout: arguments.timeout,
    };
    let selection = StoreSelection::from_args(&arguments.view)?;
    let sleep = |rest| {
        thread::sleep(rest);
        true
    };
    let begin = |line: &str| arguments.view.quiet.inform(line);
    match wait(&selection, request, begin, sleep)? {
        WaitEnd::Occurred(report) => Ok(print_changes(&report)),
        WaitEnd::TimedOut(report) => {
            print_message("the time is over, and the event has not occurred");
            let printed = print_changes(report.as_bytes());
            Ok(if printed == ExitCode::SUCCESS { exit::timed_out() } else { printed })
        }
        WaitEnd::Stopped => Ok(ExitCode::FAILURE),
    }
}

/// Waits for an event. Calls `begin` once with a line on the progress of the workers, and `sleep`
/// between polls, which stops the wait by returning false.
///
/// # Errors
///
/// Fails if a store cannot be read.
pub(super) fn wait(
    selection: &StoreSelection,
    request: WaitRequest,
    begin: impl FnOnce(&str),
    sleep: impl Fn(Duration) -> bool,
) -> anyhow::Result<WaitEnd> {
    let start = Instant::now();
    // A deadline beyond the clock's range never passes.
    let end = request.timeout.and_then(|timeout| start.checked_add(timeout));
    let freshness = Freshness { unfinished: POLL_INTERVAL, ..Freshness::default() };
    let open =
        || Ok::<_, anyhow::Error>(Renderer::new(selection.open(freshness)?, Settings::default()));
    let mut renderer = open()?;
    let until = request.until;
    let since_cursor = request.since.filter(|cursor| *cursor != Cursor::Now);
    // Read before the cursor: a change in between then counts as new.
    let state = state_hash(renderer.view(), true);
    let (cursor, mut last_state) = match since_cursor {
        Some(cursor) => (cursor, None),
        None => (
            ViewSnapshot::take(renderer.view()).cursor(),
            (until == WaitCondition::Any).then_some(state),
        ),
    };
    begin(&until.progress_line(&renderer.view().visible()));
    let (mut cost, mut next_thorough) = (Duration::ZERO, Instant::now());
    loop {
        let poll_start = Instant::now();
        let is_thorough = poll_start >= next_thorough;
        if renderer.view().is_replaced() {
            // The replacement may not be a valid store yet; the old one then stays in use.
            if let Ok(another) = open() {
                (renderer, last_state) = (another, None);
            }
        }
        if needs_snapshot(until, &renderer, since_cursor, &mut last_state, is_thorough) {
            let snapshot = ViewSnapshot::take(renderer.view());
            if until
                .is_met(&snapshot, since_cursor, cursor, |members| needs_person(&renderer, members))
            {
                return Ok(WaitEnd::Occurred(report(&renderer, until, &snapshot, cursor)?));
            }
        }
        let now = Instant::now();
        let remaining = end.map(|end| end.saturating_duration_since(now));
        if remaining.is_some_and(|remaining| remaining.is_zero()) {
            let view = renderer.view();
            let missed = timeout_report(view, &view.visible(), cursor, SystemTime::now());
            return Ok(WaitEnd::TimedOut(missed));
        }
        if is_thorough {
            next_thorough = now + (now - poll_start) * THOROUGH_REST_FACTOR;
        } else {
            cost = now - poll_start;
        }
        let rest = POLL_INTERVAL.max(cost * REST_FACTOR);
        if !sleep(remaining.map_or(rest, |remaining| remaining.min(rest))) {
            return Ok(WaitEnd::Stopped);
        }
    }
}

/// Returns true if a full snapshot may show the event.
///
/// For an event that any change may cause, compares the state of the view with `last_state`, which
/// is then replaced. A thorough check also covers the files of finished workers.
fn needs_snapshot(
    until: WaitCondition,
    renderer: &Renderer,
    since_cursor: Option<Cursor>,
    last_state: &mut Option<u64>,
    is_thorough: bool,
) -> bool {
    if !until.may_hold(&renderer.view().visible()) {
        return false;
    }
    let reads_records = matches!(until, WaitCondition::Any | WaitCondition::Attention);
    if reads_records || since_cursor.is_some() {
        let state = Some(state_hash(renderer.view(), is_thorough));
        return std::mem::replace(last_state, state) != state;
    }
    true
}

/// Returns true if one of `members` needs a person, by its own record.
fn needs_person(renderer: &Renderer, members: &[Arc<Member>]) -> bool {
    let analyzer = renderer.analyzer();
    let digests = analyzer.digests(&analyzer.states(members), false, Deadline::never());
    let mut digests = digests.iter().filter_map(DigestResult::digest);
    digests.any(|digest| digest.attention.level() == AttentionLevel::High)
}

fn report(
    renderer: &Renderer,
    until: WaitCondition,
    snapshot: &ViewSnapshot,
    cursor: Cursor,
) -> anyhow::Result<Vec<u8>> {
    let head = if until == WaitCondition::Any { String::new() } else { status_line(snapshot) };
    let answer = renderer.since(snapshot, cursor).context("cannot read the store")?;
    Ok([head.as_bytes(), &answer].concat())
}

pub(super) const SINCE_HELP: &str = "\
Prints one line per worker, oldest change first: new, changed or finished (now or earlier), its \
status and name, the time of its last write, and its new or changed files. The last line is the \
next cursor: CURSOR=$(swarmletfs since now), and later `swarmletfs since $CURSOR`.

The answer has at most 16000 bytes. Omitted changes are counted, and the next cursor covers \
them. A change may be reported twice, but is never lost. No mount is needed; in a mounted tree, \
since/CURSOR has the same content.

Examples:
  swarmletfs since 0                               everything so far
  CURSOR=$(swarmletfs since now)
  swarmletfs since $CURSOR                         changes from then on

Exit code: 0 if everything was read, 1 if a store cannot be read, 2 for a usage error, 3 if \
--max-time ended before all sessions were searched for workers, as the first line then says.";

/// Arguments of `since`.
#[derive(Debug, Args)]
pub(super) struct SinceArgs {
    /// The last line of an earlier answer; `now` for a cursor only, `0` for everything
    #[arg(value_parser = Cursor::parse)]
    cursor: Cursor,

    #[command(flatten)]
    view: ViewArgs,

    #[command(flatten)]
    time: TimeArgs,
}

pub(super) fn run_since(arguments: &SinceArgs) -> anyhow::Result<ExitCode> {
    let mut session = ReadSession::start(&arguments.time);
    let view = session.view(&StoreSelection::from_args(&arguments.view)?)?;
    let renderer = Renderer::new(view, session.settings());
    let answer = renderer
        .since(&ViewSnapshot::take(renderer.view()), arguments.cursor)
        .context("cannot read the store")?;
    drop(session.take_progress());
    Ok(session.exit_code(print_changes(&answer)))
}

fn print_changes(answer: &[u8]) -> ExitCode {
    let mut out = io::stdout().lock();
    exit::from_write(out.write_all(answer).and_then(|()| out.flush()))
}
