//! Searches a store for the leftovers of a crashed recorder, repairs them on request, and finds
//! workers of `run` whose runner was killed, so that nobody ended them.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{Finding, with_more};
use crate::cli::terminal::shell_quote;
use crate::deadline::Deadline;
use crate::draft::{Draft, DraftState};
use crate::model::EXAMPLES_MAX;
use crate::name::Name;
use crate::text::count;
use swarmletfs_record::write::{Leftover, Leftovers, Result, Store};

const TOPIC: &str = "recording";
const SEARCH_TIME: Duration = Duration::from_secs(5);
/// Time limit to repair all stores. A repair waits for the disk.
const REPAIR_TIME: Duration = Duration::from_secs(30);

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct RecordingFacts {
    new_workers: usize,
    temporary_files: usize,
    /// Number of calls without an end whose recorder is gone.
    open_calls: usize,
    /// Number of workers of `run` whose runner is gone.
    lost_runners: usize,
    not_searched: u64,
    repaired: usize,
}

/// Searches stores, all within the same time.
pub(super) struct RecordingInspection {
    search_end: Instant,
    repair_end: Instant,
    repairs: bool,
}

impl RecordingInspection {
    pub(super) fn start(repairs: bool) -> RecordingInspection {
        let now = Instant::now();
        RecordingInspection {
            search_end: now + SEARCH_TIME,
            repair_end: now + SEARCH_TIME + REPAIR_TIME,
            repairs,
        }
    }

    /// Searches the store at `path`. Returns no facts if it cannot be searched.
    pub(super) fn inspect(&self, path: &Path) -> (Option<RecordingFacts>, Vec<Finding>) {
        let searched = Store::open(path).and_then(|store| {
            let deadline = Deadline::new(&self.search_end);
            let leftovers = store.leftovers(deadline)?;
            let lost_runners = find_lost_runners(&store, deadline)?;
            let damaged = store.damaged_tombstones(deadline)?;
            Ok((store, leftovers, lost_runners, damaged))
        });
        let (store, leftovers, lost_runners, damaged) = match searched {
            Ok(searched) => searched,
            // The store of another user can be read and yet not be recorded to.
            Err(error) => {
                let message = format!("it is unknown whether a recorder left something: {error}");
                return (None, vec![Finding::note(TOPIC, "not_searched", message)]);
            }
        };
        let mut facts = RecordingFacts::new(&leftovers, &lost_runners);
        let mut findings: Vec<Finding> =
            lost_runner_finding(&lost_runners, path).into_iter().collect();
        findings.extend(damaged_tombstones(&damaged));
        if !self.repairs || leftovers.found.is_empty() {
            findings.push(facts.finding(&leftovers.found, path));
            return (Some(facts), findings);
        }
        findings.extend(self.repair(&store, &leftovers.found, &mut facts));
        if let Some(clause) = facts.not_searched() {
            findings.push(Finding::ok(TOPIC, "left_behind", clause));
        }
        (Some(facts), findings)
    }

    /// Repairs `leftovers` until the time is over. Returns a finding on each.
    fn repair(
        &self,
        store: &Store,
        leftovers: &[Leftover],
        facts: &mut RecordingFacts,
    ) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (number, leftover) in leftovers.iter().enumerate() {
            if Instant::now() >= self.repair_end {
                let rest = leftovers.len() - number;
                let message = format!("no time was left to repair {rest} more");
                let cure = "`swarmletfs doctor --repair` continues";
                findings.push(Finding::note(TOPIC, "left_behind", message).with_remedy(cure));
                break;
            }
            let described = describe(leftover);
            findings.push(match store.repair(leftover) {
                Ok(true) => {
                    facts.repaired += 1;
                    let done = match leftover {
                        Leftover::OpenCall { .. } => "ended",
                        Leftover::NewWorker(_) | Leftover::TemporaryFile(_) => "removed",
                    };
                    Finding::ok(TOPIC, "repaired", format!("{done} {described}"))
                }
                Ok(false) => {
                    let message = format!("left alone: {described} is gone or in use by now");
                    Finding::ok(TOPIC, "repaired", message)
                }
                Err(error) => {
                    let message = format!("{described} is not repaired: {error}");
                    Finding::problem(TOPIC, "not_repaired", message)
                }
            });
        }
        let warnings: BTreeSet<String> = store.take_warnings().into_iter().collect();
        findings.extend(
            warnings.iter().map(|warning| Finding::note(TOPIC, "not_logged", warning.as_str())),
        );
        findings
    }
}

impl RecordingFacts {
    fn new(leftovers: &Leftovers, lost_runners: &[Name]) -> RecordingFacts {
        let mut facts = RecordingFacts {
            not_searched: leftovers.unread,
            lost_runners: lost_runners.len(),
            ..RecordingFacts::default()
        };
        for leftover in &leftovers.found {
            *match leftover {
                Leftover::NewWorker(_) => &mut facts.new_workers,
                Leftover::TemporaryFile(_) => &mut facts.temporary_files,
                Leftover::OpenCall { .. } => &mut facts.open_calls,
            } += 1;
        }
        facts
    }

    fn not_searched(&self) -> Option<String> {
        let workers = count(self.not_searched, "worker");
        (self.not_searched > 0).then(|| format!("{workers} could not be searched"))
    }

    /// Returns the finding on the leftovers of the store at `path` that were not repaired.
    fn finding(&self, leftovers: &[Leftover], path: &Path) -> Finding {
        let not_searched =
            self.not_searched().map(|clause| format!("; {clause}")).unwrap_or_default();
        if leftovers.is_empty() {
            let message = format!("no recorder left anything behind{not_searched}");
            return Finding::ok(TOPIC, "left_behind", message);
        }
        let workers: BTreeSet<_> = leftovers.iter().filter_map(worker).collect();
        let workers = count(workers.len(), "worker");
        let mut parts = Vec::new();
        if self.new_workers > 0 {
            let wholly = "not created wholly";
            parts.push(format!("{} {wholly}", count(self.new_workers, "worker")));
        }
        if self.temporary_files > 0 {
            parts.push(count(self.temporary_files, "temporary file"));
        }
        if self.open_calls > 0 {
            let calls = count(self.open_calls, "call");
            parts.push(format!("{calls} of {workers} whose recorder is gone"));
        }
        let examples = leftovers.iter().take(EXAMPLES_MAX).map(example);
        let message = format!(
            "recorders that ended early left {}: {}{not_searched}",
            parts.join(", "),
            with_more(examples, leftovers.len() as u64)
        );
        Finding::note(TOPIC, "left_behind", message).with_remedy(format!(
            "`swarmletfs doctor --repair --store {}` removes what is temporary and ends the calls",
            shell_quote(path)
        ))
    }
}

fn damaged_tombstones(ids: &[Name]) -> Option<Finding> {
    let (number, verb) = (count(ids.len(), "tombstone"), if ids.len() == 1 { "is" } else { "are" });
    let message = format!("{number} {verb} damaged: {}", names(ids));
    (!ids.is_empty()).then(|| Finding::note(TOPIC, "damaged_tombstones", message))
}

fn names(ids: &[Name]) -> String {
    with_more(ids.iter().take(EXAMPLES_MAX).map(Name::display), ids.len() as u64)
}

/// Returns the id of the worker with an open call.
fn worker(leftover: &Leftover) -> Option<&Name> {
    match leftover {
        Leftover::OpenCall { worker, .. } => Some(worker),
        Leftover::NewWorker(_) | Leftover::TemporaryFile(_) => None,
    }
}

/// Returns a leftover as an example: its path, from the root of the store or with its worker.
fn example(leftover: &Leftover) -> String {
    match leftover {
        Leftover::NewWorker(path) | Leftover::TemporaryFile(path) => path.display(),
        Leftover::OpenCall { worker, call } => {
            format!("{}/{}", worker.display(), call.display())
        }
    }
}

fn describe(leftover: &Leftover) -> String {
    match leftover {
        Leftover::NewWorker(path) => {
            format!("the unfinished folder of a worker {}", path.display())
        }
        Leftover::TemporaryFile(path) => format!("the temporary file {}", path.display()),
        Leftover::OpenCall { worker, call } => {
            format!("the call {} of worker {}", call.display(), worker.display())
        }
    }
}

const LOST_TOPIC: &str = "run";

/// Returns the workers of `run` in a store that have no end and no runner.
///
/// # Errors
///
/// The drafts cannot be listed.
fn find_lost_runners(store: &Store, deadline: Deadline<'_>) -> Result<Vec<Name>> {
    let mut workers = Draft::list(store)?;
    workers.sort();
    // A draft that cannot be read is of another user, or of another version of this program.
    workers.retain(|worker| deadline.has_time() && is_lost(store, worker).unwrap_or(false));
    Ok(workers)
}

/// Returns true if the worker has a draft that is in use and has no runner.
fn is_lost(store: &Store, worker: &Name) -> Result<bool> {
    let Some(draft) = Draft::open(store, worker)? else { return Ok(false) };
    Ok(draft.record().state == DraftState::Running && draft.try_lock()?.is_some())
}

fn lost_runner_finding(workers: &[Name], path: &Path) -> Option<Finding> {
    let first = workers.first()?;
    let names = names(workers);
    let workers = count(workers.len(), "worker");
    let message = format!("{workers} whose runner ended early: {names}");
    Some(Finding::note(LOST_TOPIC, "lost_runners", message).with_remedy(format!(
        "`swarmletfs run --store {} --recover {}` records its changes, and that it failed",
        shell_quote(path),
        shell_quote(Path::new(first.as_os_str()))
    )))
}
