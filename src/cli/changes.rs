//! `swarmletfs changes`: shows the changes of a worker in its view of a workspace.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use super::drafts::open;
use super::exit::UsageError;
use super::pager::{self, DiffArgs};
use super::run::with_drafts;
use super::terminal::{escape_controls, print_message, shell_quote};
use super::tree_commands::cat;
use super::write_args::{WriteArgs, into_cli_error};
use crate::approval::{
    Approval, ChangeSelection, PathRules, UnappliedChange, describe_left_out, has_changed,
};
use crate::model::{ChangedFile, ChangedPath, WorkspaceChanges};
use crate::name::{Name, RelPath};
use crate::route::CHANGES;
use crate::text::{count, left_out_as_ignored, unified};
use swarmletfs_record::write::Store;

pub(super) const HELP: &str = "\
Prints workers/WORKER/changes.diff of the tree: a diff that `git apply` and `patch -p1` accept. On \
a terminal it is colored and shown in $SWARMLETFS_PAGER, $GIT_PAGER, $PAGER or less, and control \
characters in it are escaped. With PATH, only the changes of these files and folders. Without \
WORKER, lists the drafts as `swarmletfs review` does.

Examples:
  swarmletfs changes w1
  swarmletfs changes w1 src --stat
  swarmletfs changes w1 > w1.diff

Exit code: 0 if the changes were shown, 1 if not, 2 for a usage error.";

/// Arguments of `changes`.
#[derive(Debug, Args)]
pub(super) struct ChangesArgs {
    /// The worker [default: list the drafts, as `review` does]
    #[arg(value_name = "WORKER")]
    pub(super) worker: Option<OsString>,

    /// Files and folders, by their paths in the workspace [default: all]
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,

    /// Print the number of changed lines of each file
    #[arg(long, requires = "worker", conflicts_with_all = ["json", "name_only"])]
    stat: bool,

    /// Print the names of the changed files
    #[arg(long, requires = "worker", conflicts_with = "json")]
    name_only: bool,

    /// Print changes.json, and in `left_out` what `swarmletfs apply` leaves out
    #[arg(long)]
    pub(super) json: bool,

    #[command(flatten)]
    diff: DiffArgs,

    #[command(flatten)]
    pub(super) write: WriteArgs,
}

pub(super) fn run(worker: &OsString, arguments: &ChangesArgs) -> anyhow::Result<ExitCode> {
    with_drafts(&arguments.write, |store| show(store, worker, arguments))
}

fn show(store: &Store, worker: &OsString, arguments: &ChangesArgs) -> anyhow::Result<ExitCode> {
    let approval = open(store, worker)?;
    // The changes can be shown without it, so an error is only a message.
    match approval.recover() {
        Ok(recovered) => recovered.iter().for_each(|command| print_message(&command.to_string())),
        Err(error) => print_message(&error.to_string()),
    }
    let mut changes = approval.changes().map_err(into_cli_error)?;
    let paths = parse_paths(&approval, &arguments.paths)?;
    let is_named = |file: &ChangedFile| {
        file.path.parse().is_ok_and(|path| paths.iter().any(|named| path.is_within(named)))
    };
    if !paths.is_empty() {
        refuse_ignored(&approval, &changes, &paths, "show")?;
        for path in &paths {
            if !has_changed(&changes, path) {
                let worker = approval.id().display();
                let message =
                    format!("cannot show {}: {worker} has not changed it", path.display());
                return Err(UsageError(message).into());
            }
        }
    }
    let selection = approval.select(changes.clone(), &paths, PathRules::default());
    let selection = selection.unwrap_or_else(|error| {
        print_message(&error.to_string());
        ChangeSelection::default()
    });
    if !paths.is_empty() {
        changes.files.retain(is_named);
    }
    if arguments.json {
        let left_out = selection.left_out().iter().map(LeftOutChange::new).collect();
        let json = serde_json::to_vec_pretty(&ShownChanges { changes: &changes, left_out })?;
        return pager::print(&[&json, &b"\n"[..]].concat());
    }
    for line in describe_left_out(&selection, &paths) {
        print_message(&format!("`swarmletfs apply`: {line}"));
    }
    let moved = selection.moved();
    for (old, new) in moved.iter().take(LISTED_MAX) {
        print_message(&format!("moved: {} -> {}", old.display(), new.display()));
    }
    if moved.len() > LISTED_MAX {
        print_message(&format!("moved: {}", count((moved.len() - LISTED_MAX) as u64, "more file")));
    }
    if let Some(kept) = &changes.commits {
        let id = shell_quote(Path::new(approval.id().as_os_str()));
        let commits = count(kept.count, "commit");
        print_message(&format!("{commits}: `swarmletfs apply --commits {id}`, or --branch NAME"));
        for commit in kept.commits.iter().take(LISTED_MAX) {
            print_message(&escape_controls(&format!("  {}", commit.subject)));
        }
        if !kept.branches.is_empty() {
            let branches = escape_controls(&kept.branches.join(", "));
            print_message(&format!("other branches with commits: {branches}"));
        }
    }
    if arguments.name_only {
        return pager::print(names(&changes).as_bytes());
    }
    if arguments.stat {
        return pager::print(stat(&changes).as_bytes());
    }
    let name = if paths.is_empty() { CHANGES } else { WHOLE };
    let diff = diff(store, &approval, name)?;
    let sections = unified::split_diff(&diff).into_iter().filter(|section| {
        let path = section.path.as_ref();
        paths.is_empty() || path.is_some_and(|path| paths.iter().any(|named| path.is_within(named)))
    });
    let shown: Vec<u8> = sections.flat_map(|section| section.text).copied().collect();
    arguments.diff.show(&shown)
}

/// Most commits and moved files that are named.
const LISTED_MAX: usize = 10;

/// The content of changes.json, and the changes that `apply` leaves out.
#[derive(Serialize)]
struct ShownChanges<'a> {
    #[serde(flatten)]
    changes: &'a WorkspaceChanges,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    left_out: Vec<LeftOutChange<'a>>,
}

#[derive(Serialize)]
struct LeftOutChange<'a> {
    #[serde(flatten)]
    path: ChangedPath,
    reason: &'a str,
}

impl LeftOutChange<'_> {
    fn new(change: &UnappliedChange) -> LeftOutChange<'_> {
        LeftOutChange { path: ChangedPath::new(&change.path), reason: &change.reason }
    }
}

/// Rejects paths that have no changes because they are ignored.
///
/// # Errors
///
/// Fails with a usage error if one of `paths` is ignored.
pub(super) fn refuse_ignored(
    approval: &Approval<'_>,
    changes: &WorkspaceChanges,
    paths: &[RelPath],
    action: &str,
) -> anyhow::Result<()> {
    let Some(path) = approval.first_ignored(changes, paths) else { return Ok(()) };
    let message = format!(
        "cannot {action} {}: it is ignored by .gitignore, or git's own, so its changes are left \
         out; try `swarmletfs run --all-changes`",
        path.display()
    );
    Err(UsageError(message).into())
}

/// Parses paths of a workspace: relative to it, or absolute ones within it.
///
/// # Errors
///
/// A path leads elsewhere: a usage error.
pub(super) fn parse_paths(
    approval: &Approval<'_>,
    typed: &[OsString],
) -> anyhow::Result<Vec<RelPath>> {
    let parse = |path: &OsString| approval.parse_path(path.as_bytes()).map_err(into_cli_error);
    typed.iter().map(parse).collect()
}

/// The file with the diff of a worker's changes in the largest budget, so that hardly any is cut.
pub(super) const WHOLE: &str = "changes.64M.diff";

pub(super) fn diff(store: &Store, approval: &Approval<'_>, name: &str) -> anyhow::Result<Vec<u8>> {
    read_diff(store, approval.id(), name)
}

/// Returns the diff of all changes of `worker` from its file `name`; empty if no diff can show one.
///
/// # Errors
///
/// The store cannot be read.
pub(super) fn read_diff(store: &Store, worker: &Name, name: &str) -> anyhow::Result<Vec<u8>> {
    let path = [b"workers/", worker.as_bytes(), b"/", name.as_bytes()].concat();
    cat::read(store.root().path(), &path)
}

fn names(changes: &WorkspaceChanges) -> String {
    let line = |file: &ChangedFile| {
        let path = file.path.parse().map(|path| path.display());
        format!("{}\n", path.unwrap_or_else(|_| escape_controls(file.path.as_text())))
    };
    changes.files.iter().map(line).collect()
}

fn stat(changes: &WorkspaceChanges) -> String {
    let names: Vec<String> = names(changes).lines().map(str::to_owned).collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let (mut out, mut added, mut removed) = (String::new(), 0, 0);
    for (name, file) in names.iter().zip(&changes.files) {
        let lines = if file.is_binary {
            "binary".to_owned()
        } else {
            format!("+{} -{}", file.added, file.removed)
        };
        let refused = match &file.refused {
            Some(reason) => format!("  cannot be applied: {}", escape_controls(reason)),
            None => String::new(),
        };
        let kind = serde_json::to_value(file.kind).unwrap_or_default();
        let kind = kind.as_str().unwrap_or_default();
        out.push_str(&format!("{name:width$}  {kind:8}  {lines}{refused}\n"));
        added += file.added;
        removed += file.removed;
    }
    let files = count(changes.file_count(), "file");
    out.push_str(&format!("{files}, +{added} -{removed}\n"));
    out.extend(left_out_as_ignored(changes.ignored).map(|text| text + "\n"));
    out
}
