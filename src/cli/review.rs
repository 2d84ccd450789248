//! `swarmletfs review`: lists the drafts of a store and the decision about each, or steps through
//! the changes of one.

mod one;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::SystemTime;

use clap::Args;
use serde::Serialize;

use super::pager;
use super::pager::DiffArgs;
use super::run::with_drafts;
use super::store_selection::StoreSelection;
use super::terminal::{escape_controls, print_message, table};
use super::write_args::{WriteArgs, into_cli_error};
use crate::analysis::attention::ReasonKind;
use crate::analysis::worker_digest::WorkerDigest;
use crate::approval::{ApplyOptions, Approval, PathRules};
use crate::catalog::Freshness;
use crate::draft::Draft;
use crate::model::{ReviewState, WorkspaceChanges};
use crate::name::{Name, RelPath};
use crate::store::Time;
use crate::text::clean::one_line;
use crate::text::{age, count};
use crate::view::View;
use swarmletfs_record::write::{self, Store};

pub(super) const HELP: &str = "\
Lists the drafts of the store: first those whose changes nobody applied or discarded, newest first. \
`checks` is green or red as the worker's record last shows it. `conflicts` counts the changes that \
cannot be applied, because the workspace changed meanwhile; `also in` names the other drafts that \
wait and change the same files.

With WORKER, shows its changes one hunk at a time and asks: take or leave it, or comment on it. \
What was taken is applied at the end, as by `swarmletfs apply`: all or nothing. Comments go to \
comments.txt in the worker's directory; `swarmletfs run --continue WORKER` starts the agent again in \
the same draft, with them in its prompt.

--json prints an array of objects: id, title, state (waiting, partly_applied, taken_back, running, \
applied, continued, discarded, empty or unknown), workspace, files, added, removed, checks, \
ended_at, conflicts, and overlaps (ids).

Examples:
  swarmletfs review
  swarmletfs review w1
  swarmletfs review w1 --comment 'Keep the old name of the option'
  swarmletfs review --json | jq -r '.[] | select(.state == \"waiting\") | .id'

Exit code: 0 if the drafts were listed or the changes were reviewed, 1 if not, 2 for a usage error.";

/// Maximum length of a title, in bytes.
const TITLE_MAX: usize = 60;

/// Maximum number of other drafts that the table names in a row.
const OVERLAPS_MAX: usize = 3;

/// Arguments of `review`.
#[derive(Debug, Args)]
pub(super) struct ReviewArgs {
    /// The worker whose changes are reviewed [default: list the drafts]
    #[arg(value_name = "WORKER")]
    worker: Option<OsString>,

    /// Print JSON: an array of objects
    #[arg(long, conflicts_with = "worker")]
    json: bool,

    /// Keep a comment for the agent, and ask nothing
    #[arg(long, value_name = "TEXT", requires = "worker")]
    comment: Option<String>,

    #[command(flatten)]
    diff: DiffArgs,

    #[command(flatten)]
    write: WriteArgs,
}

/// Lists the drafts, or reviews one.
///
/// # Errors
///
/// The store cannot be read or written, or there is nobody to ask.
pub(super) fn run(arguments: &ReviewArgs) -> anyhow::Result<ExitCode> {
    with_drafts(&arguments.write, |store| one::review(store, arguments))
}

/// Lists the drafts.
///
/// # Errors
///
/// The store cannot be read.
pub(super) fn list_all(write: &WriteArgs, as_json: bool) -> anyhow::Result<ExitCode> {
    with_drafts(write, |store| list(store, as_json))
}

#[derive(Debug, Serialize)]
struct DraftRow {
    id: String,
    title: String,
    state: ReviewState,
    workspace: String,
    files: u64,
    added: u64,
    removed: u64,
    /// `green` or `red`, as last seen; `None` without a check.
    checks: Option<&'static str>,
    /// When its changes were found last.
    ended_at: Option<String>,
    /// Number of changes that conflict with the workspace.
    conflicts: usize,
    /// The other open drafts that change the same files.
    overlaps: Vec<String>,
    #[serde(skip)]
    ended: Option<Time>,
    #[serde(skip)]
    paths: Vec<RelPath>,
}

fn list(store: &Store, as_json: bool) -> anyhow::Result<ExitCode> {
    let view = StoreSelection::only(store.root().path().to_path_buf()).open(Freshness::default())?;
    let ids = Draft::list(store).map_err(into_cli_error)?;
    let mut rows: Vec<DraftRow> = Vec::new();
    let mut code = ExitCode::SUCCESS;
    for id in ids {
        match DraftRow::read(store, &view, &id) {
            Ok(row) => rows.extend(row),
            Err(error) => {
                print_message(&format!("{}: {error}", id.display()));
                code = ExitCode::FAILURE;
            }
        }
    }
    let mut editors: BTreeMap<(String, RelPath), Vec<String>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.state.is_open()) {
        for path in &row.paths {
            let place = (row.workspace.clone(), path.clone());
            editors.entry(place).or_default().push(row.id.clone());
        }
    }
    for row in rows.iter_mut().filter(|row| row.state.is_open()) {
        let places = row.paths.iter().map(|path| (row.workspace.clone(), path.clone()));
        let others = places.filter_map(|place| editors.get(&place)).flatten();
        row.overlaps = others.filter(|id| **id != row.id).cloned().collect();
        row.overlaps.sort_unstable();
        row.overlaps.dedup();
    }
    rows.sort_by(|a, b| (a.state, b.ended, &a.id).cmp(&(b.state, a.ended, &b.id)));
    if as_json {
        let json = serde_json::to_vec_pretty(&rows)?;
        pager::print(&[&json, &b"\n"[..]].concat())?;
        return Ok(code);
    }
    if rows.is_empty() && code == ExitCode::SUCCESS {
        print_message("no draft; `swarmletfs run` runs a command in a view of a workspace");
        return Ok(code);
    }
    let now = SystemTime::now();
    let heading =
        ["id", "state", "files", "lines", "checks", "ended", "conflicts", "also in", "title"];
    let shown = rows.iter().filter(|row| row.state != ReviewState::Empty);
    let mut text = table(heading.map(str::to_owned), shown.map(|row| row.cells(now)));
    match rows.iter().filter(|row| row.state == ReviewState::Empty).count() {
        0 => {}
        empty => text.push_str(&format!("{} without changes\n", count(empty, "draft"))),
    }
    pager::print(text.as_bytes())?;
    Ok(code)
}

impl DraftRow {
    /// Reads the row of a worker; `None` if it is not in the store any more.
    fn read(store: &Store, view: &View, id: &Name) -> write::Result<Option<DraftRow>> {
        let approval = match Approval::open(store, id.as_bytes()) {
            Err(write::Error::NoWorker { .. } | write::Error::Gone { .. }) => return Ok(None),
            approval => approval?,
        };
        let state = approval.keep_review_state()?;
        let changes = approval.changes().ok();
        let ended = changes.as_ref().filter(|changes| changes.is_final);
        let ended = ended.map(|changes| changes.scanned_at);
        let (title, checks) = shown(view, id).unwrap_or_default();
        let files = changes.iter().flat_map(|changes| &changes.files);
        let sum = |lines: fn(&WorkspaceChanges) -> u64| changes.as_ref().map_or(0, lines);
        let paths = files.filter(|file| !file.is_folder());
        let paths: Vec<RelPath> = paths.filter_map(|file| file.path.parse().ok()).collect();
        let row = DraftRow {
            id: id.display(),
            title,
            state,
            workspace: super::terminal::display_path(&approval.workspace()?),
            files: sum(WorkspaceChanges::file_count),
            added: sum(|changes| changes.files.iter().map(|file| file.added).sum()),
            removed: sum(|changes| changes.files.iter().map(|file| file.removed).sum()),
            checks,
            ended_at: ended.map(|time| time.to_string()),
            conflicts: 0,
            overlaps: Vec::new(),
            ended: ended.map(Time::from),
            paths,
        };
        let Some(changes) = changes.filter(|_| state.is_open()) else { return Ok(Some(row)) };
        let selection = approval.select(changes, &[], PathRules::default())?;
        // A missing workspace conflicts with everything.
        let conflicts = approval
            .check(&selection, &ApplyOptions::default())
            .map(|checked| checked.conflicts.len());
        Ok(Some(DraftRow { conflicts: conflicts.unwrap_or(row.paths.len()), ..row }))
    }

    fn cells(&self, now: SystemTime) -> [String; 9] {
        let lines = format!("+{} -{}", self.added, self.removed);
        let conflicts = if self.conflicts > 0 { self.conflicts.to_string() } else { "-".into() };
        let named = self.overlaps.iter().take(OVERLAPS_MAX).map(String::as_str);
        let more = self.overlaps.len().saturating_sub(OVERLAPS_MAX);
        let more = (more > 0).then(|| format!("{more} more"));
        let overlaps = named.chain(more.as_deref()).collect::<Vec<_>>().join(", ");
        let overlaps = if overlaps.is_empty() { "-".into() } else { overlaps };
        let ended = self.ended.and_then(|ended| age(ended, now)).unwrap_or_else(|| "-".into());
        [
            self.id.clone(),
            self.state.as_str().to_owned(),
            self.files.to_string(),
            lines,
            self.checks.unwrap_or("-").to_owned(),
            ended,
            conflicts,
            overlaps,
            escape_controls(&self.title),
        ]
    }
}

/// Returns the title of a worker, and the state of its checks.
fn shown(view: &View, id: &Name) -> Option<(String, Option<&'static str>)> {
    let visible = view.visible();
    let member = visible.members.iter().find(|member| member.entry.id.0 == *id)?;
    let title = one_line(member.entry.worker().title(), TITLE_MAX);
    let digest = WorkerDigest::read(view, member).ok()?;
    let is_red = digest.attention.reasons.iter().any(|it| it.kind == ReasonKind::RedAtEnd);
    Some((title, if is_red { Some("red") } else { digest.last_green.map(|_| "green") }))
}
