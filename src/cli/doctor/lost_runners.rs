//! Finds workers of `run` whose runner was killed, so that nobody ended them.

use std::path::Path;

use super::finding::Finding;
use crate::cli::terminal::shell_quote;
use crate::deadline::Deadline;
use crate::draft::{Draft, DraftState};
use crate::model::EXAMPLES_MAX;
use crate::name::Name;
use crate::text::count;
use swarmletfs_record::write::{Result, Store};

const TOPIC: &str = "run";

/// Returns the workers of `run` in a store that have no end and no runner.
///
/// # Errors
///
/// The drafts cannot be listed.
pub(super) fn find(store: &Store, deadline: Deadline<'_>) -> Result<Vec<Name>> {
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

pub(super) fn finding(workers: &[Name], path: &Path) -> Option<Finding> {
    let first = workers.first()?;
    let mut names: Vec<String> = workers.iter().take(EXAMPLES_MAX).map(Name::display).collect();
    if let more @ 1.. = workers.len().saturating_sub(EXAMPLES_MAX) {
        names.push(format!("and {more} more"));
    }
    let workers = count(workers.len(), "worker");
    let message = format!("{workers} whose runner ended early: {}", names.join(", "));
    Some(Finding::note(TOPIC, "lost_runners", message).with_remedy(format!(
        "`swarmletfs run --store {} --recover {}` records its changes, and that it failed",
        shell_quote(path),
        shell_quote(Path::new(first.as_os_str()))
    )))
}
