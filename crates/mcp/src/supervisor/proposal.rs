//! The changes of a worker as a question to a person, and their application after a yes.

use std::path::{Path, PathBuf};

use super::{ApplyInput, Supervisor, find_worker, with_warnings};
use crate::tools::{ToolError, ToolResult};
use swarmletfs_base::name::{Name, RelPath, printable, printable_path};
use swarmletfs_base::split::Split;
use swarmletfs_base::text::budget::{Demand, allocate};
use swarmletfs_base::text::unified::{self, Section};
use swarmletfs_base::text::{count, left_out_as_ignored};
use swarmletfs_tree::tree::Tree;
use swarmletfs_workspace::approval::{
    ApplyOptions, Approval, ChangeSelection, Checked, PathRules, describe_change, relevant_diff,
    unseen_changes,
};

/// Largest part of a diff in a question, in bytes.
const DIFF_MAX: usize = 16_000;
/// Smallest part of a file's diff that is worth showing, in bytes.
const PART_MIN: usize = 500;
/// Most lines in a list of a question or an error; more are counted.
const LINES_MAX: usize = 60;

pub(super) struct Proposal {
    worker: Name,
    workspace: PathBuf,
    selection: ChangeSelection,
    message: String,
    /// Hash of the changes, of the whole diff, and of the lines about changes that it does not
    /// show. The message shows them in part.
    shown: blake3::Hash,
    /// Named paths that are not applied.
    left_out: Vec<String>,
}

impl Proposal {
    pub(super) fn message(&self) -> &str {
        &self.message
    }
}

/// Checks the changes of a worker, and makes the question about them.
///
/// # Errors
///
/// There is nothing to apply, or it cannot be applied.
pub(super) fn prepare(
    supervisor: &Supervisor,
    tree: &Tree,
    input: &ApplyInput,
) -> Result<Proposal, ToolError> {
    let worker = find_worker(tree, &input.worker)?;
    let store = supervisor.open()?;
    let approval = Approval::open(&store, worker.as_bytes()).map_err(into_tool_error)?;
    let workspace = approval.workspace().map_err(into_tool_error)?;
    let (selection, left_out) = select(&approval, input)?;
    let checked = approval.check(&selection, &ApplyOptions::default()).map_err(into_tool_error)?;
    if !checked.conflicts.is_empty() {
        let error = describe_conflicts(&approval, &checked);
        approval.log_conflicts("apply", checked);
        return Err(error);
    }
    if checked.files.is_empty() {
        let lines = [&["nothing to apply".to_owned()], &left_out[..]].concat();
        return Err(ToolError::new(bounded_list(&lines)));
    }
    let diff = (supervisor.read_diff)(&store, &worker).map_err(ToolError::new)?;
    let sections = unified::split_diff(&diff);
    let unseen = unseen_changes(&checked, &selection, &sections);
    let shown = ShownChanges {
        files: checked.files.iter().map(describe_change).collect(),
        unseen,
        left_out: left_out.clone(),
        diff: relevant_diff(&checked, &sections),
    };
    if shown.files.len() > LINES_MAX {
        let (changes, worker) = (shown.files.len(), worker.display());
        let text = format!(
            "cannot ask about {changes} changes at once: a question names at most {LINES_MAX}; try \
             some of the paths, or `swarmletfs apply {worker}` in a terminal"
        );
        return Err(ToolError::new(text));
    }
    let accepted = checked.files.iter().map(|file| file.path.clone()).collect();
    Ok(Proposal {
        message: shown.question(&worker, &workspace, &describe_running(tree, &checked.running)),
        shown: shown.hash(),
        selection: selection.restricted_to(&accepted),
        worker,
        workspace,
        left_out,
    })
}

/// Selects the changes of the paths in `input`. Returns them, and lines about the omitted ones.
///
/// # Errors
///
/// A path leads out of the workspace or has no changes, or the changes cannot be read.
fn select(
    approval: &Approval<'_>,
    input: &ApplyInput,
) -> Result<(ChangeSelection, Vec<String>), ToolError> {
    let paths = input.paths.iter().map(|path| approval.parse_path(path.as_bytes()));
    let paths = paths.collect::<Result<Vec<RelPath>, _>>().map_err(into_tool_error)?;
    let changes = approval.changes().map_err(into_tool_error)?;
    if let Some(path) = approval.first_ignored(&changes, &paths) {
        let path = path.display();
        let text = format!("cannot apply {path}: it is ignored, so its changes are not recorded");
        return Err(ToolError::new(text));
    }
    let ignored = left_out_as_ignored(changes.ignored).filter(|_| paths.is_empty());
    let selection =
        approval.select(changes, &paths, PathRules::default()).map_err(into_tool_error)?;
    let left_out = selection.left_out().iter();
    let left_out = left_out
        .map(|left_out| format!("left out: {}: {}", left_out.path.display(), left_out.reason));
    let left_out = left_out.chain(ignored).collect();
    Ok((selection, left_out))
}

struct ShownChanges {
    /// A line for each change, at most [`LINES_MAX`].
    files: Vec<String>,
    /// Lines about changes that the diff does not show.
    unseen: Vec<String>,
    left_out: Vec<String>,
    diff: Vec<u8>,
}

impl ShownChanges {
    fn hash(&self) -> blake3::Hash {
        let mut hash = blake3::Hasher::new();
        for line in self.files.iter().chain(&self.unseen).chain(&self.left_out) {
            hash.update(line.as_bytes()).update(b"\n");
        }
        hash.update(&self.diff).finalize()
    }

    /// Returns the question. `running` are lines about other workers on the workspace: they may
    /// begin and end while the person reads, so the hash does not cover them.
    fn question(&self, worker: &Name, workspace: &Path, running: &[String]) -> String {
        let notes = [self.left_out.as_slice(), running].concat();
        let changes = count(self.files.len() as u64, "change");
        let (worker, workspace) = (worker.display(), printable_path(workspace));
        // A client may show only the first lines; Claude Code shows three in a terminal.
        let mut parts = vec![format!(
            "Apply {changes} of worker {worker} to {workspace}?\n\
             To see all of it: `swarmletfs changes {worker}`\n{}",
            // Nothing that is applied may be cut off here.
            escaped_list(&self.files)
        )];
        parts.extend((!self.unseen.is_empty()).then(|| escaped_list(&self.unseen)));
        parts.extend((!notes.is_empty()).then(|| bounded_list(&notes)));
        parts.push(bounded_diff(&unified::split_diff(&self.diff)));
        parts.join("\n\n")
    }
}

/// Returns lines about the workers that run on the workspace. Workers that the served view hides
/// are not named.
fn describe_running(tree: &Tree, running: &[Name]) -> Vec<String> {
    let is_shown = |worker: &&Name| find_worker(tree, &worker.to_text()).is_ok();
    let (shown, hidden): (Vec<&Name>, Vec<&Name>) = running.iter().partition(is_shown);
    let mut names: Vec<String> = shown.into_iter().map(Name::display).collect();
    names.extend((!hidden.is_empty()).then(|| "a worker of someone else".to_owned()));
    let describe = |name| format!("{name} runs on this workspace, and may see what is applied");
    names.into_iter().map(describe).collect()
}

/// Applies the changes that a person has accepted, if they are still as they were shown.
///
/// # Errors
///
/// Something changed since the question, or the workspace cannot be written. Nothing was applied
/// then, unless the error says otherwise.
pub(super) fn carry_out(
    supervisor: &Supervisor,
    tree: &Tree,
    input: &ApplyInput,
    accepted: &Proposal,
) -> ToolResult {
    let now = prepare(supervisor, tree, input)?;
    if now.worker != accepted.worker || now.shown != accepted.shown {
        let reason = "the changes are not those that the person saw any more";
        log_refusal(supervisor, accepted, reason);
        return Err(ToolError::new(format!("nothing was applied: {reason}; try again")));
    }
    let store = supervisor.open()?;
    let approval = Approval::open(&store, accepted.worker.as_bytes()).map_err(into_tool_error)?;
    // The selection of the question: it is compared with changes.json and the contents once more.
    let applied =
        approval.apply(&accepted.selection, &ApplyOptions::default()).map_err(into_tool_error)?;
    if !applied.checked.conflicts.is_empty() {
        return Err(describe_conflicts(&approval, &applied.checked));
    }
    tree.refresh(&accepted.worker);
    let (files, worker) = (applied.checked.files.len() as u64, accepted.worker.display());
    let mut lines = vec![format!(
        "applied {} to {}; `swarmletfs undo {worker}` takes it back",
        count(files, "change"),
        printable_path(&accepted.workspace)
    )];
    lines.extend(accepted.left_out.iter().cloned());
    Ok(with_warnings(bounded_list(&lines), &store))
}

/// Adds to the log of changes that nothing was applied.
pub(super) fn log_refusal(supervisor: &Supervisor, proposal: &Proposal, reason: &str) {
    // Without a store there is no log.
    let Ok(store) = supervisor.open() else { return };
    if let Ok(approval) = Approval::open(&store, proposal.worker.as_bytes()) {
        approval.log_refusal("apply", reason);
    }
}

fn into_tool_error(error: swarmletfs_record::write::Error) -> ToolError {
    ToolError::new(error.to_string())
}

fn describe_conflicts(approval: &Approval<'_>, checked: &Checked) -> ToolError {
    let worker = approval.id().display();
    let conflicts = count(checked.conflicts.len() as u64, "conflict");
    let mut lines = vec![format!(
        "cannot apply the changes of {worker}: {conflicts}, so nothing was changed; try only the \
         other paths, or `swarmletfs apply --merge`"
    )];
    let conflicts = checked.conflicts.iter();
    lines.extend(
        conflicts
            .map(|conflict| format!("conflict: {}: {}", conflict.path.display(), conflict.reason)),
    );
    ToolError::new(bounded_list(&lines))
}

/// Joins lines, without control characters.
fn escaped_list(lines: &[String]) -> String {
    let lines: Vec<String> = lines.iter().map(|line| printable(line.as_bytes())).collect();
    lines.join("\n")
}

/// Joins lines, without control characters. Lines beyond `LINES_MAX` are counted.
fn bounded_list(lines: &[String]) -> String {
    let (shown, more) = lines.split_at_most(LINES_MAX);
    let mut text = escaped_list(shown);
    if !more.is_empty() {
        text.push_str(&format!("\n... and {} more", more.len()));
    }
    text
}

/// Returns the escaped diff as far as it fits, with a note on the rest.
fn bounded_diff(sections: &[Section<'_>]) -> String {
    let texts: Vec<String> =
        sections.iter().map(|section| unified::paint_diff(section.text, false)).collect();
    let demands: Vec<Demand> =
        texts.iter().map(|text| Demand { need: text.len(), weight: 1 }).collect();
    let (mut out, mut missing) = (String::new(), Vec::new());
    for ((section, text), share) in sections.iter().zip(&texts).zip(allocate(&demands, DIFF_MAX)) {
        if share >= text.len() {
            out.push_str(text);
            continue;
        }
        let part = text.split_at_most(share).0;
        let part = part.rfind('\n').map_or("", |end| part.split_at_known(end + 1).0);
        if part.len() >= PART_MIN {
            out.push_str(part);
            // The next file would look as if it continued this one.
            out.push_str("[... the diff of this file goes on ...]\n");
        }
        let shown = if part.len() < PART_MIN { 0 } else { part.lines().count() };
        let lines = count((text.lines().count() - shown) as u64, "line");
        let name = section.path.as_ref().map_or_else(|| "the diff".to_owned(), RelPath::display);
        missing.push(format!("not shown: {lines} of {name}"));
    }
    if !missing.is_empty() {
        out.push_str(&format!("\n{}\n", escaped_list(&missing)));
    }
    out
}
