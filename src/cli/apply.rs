//! `swarmletfs apply`, `undo` and `discard`: decisions of a person about the changes of a worker.
//!
//! `apply` brings them into the workspace, after the person has seen them, `undo` restores the
//! files that the last `apply` replaced, and `discard` drops the draft of the worker.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use super::changes::{WHOLE, diff, parse_paths, refuse_ignored};
use super::drafts::open;
use super::pager::{self, DiffArgs};
use super::run::with_drafts;
use super::terminal::{Prompt, display_path, escape_controls, print_message, shell_quote};
use super::write_args::{MergeWay, WriteArgs, into_cli_error};
use crate::approval::{
    ApplyOptions, Approval, BranchMove, ChangeSelection, Checked, CommitTarget, PathRules,
    describe_change, describe_left_out, describe_move, relevant_diff, unseen_changes,
};
use crate::model::CommitLine;
use crate::name::RelPath;
use crate::text::unified::{self, Section};
use crate::text::{count, left_out_as_ignored};
use crate::trace::swarmlet::CHANGES;
use swarmletfs_record::write::Store;

pub(super) const HELP: &str = "\
Shows the diff, asks, and applies it: all or nothing. Each file of the workspace must be as the \
worker found it; one that is as the worker left it is skipped. Otherwise nothing is applied, and \
the conflicts are listed. With --merge, files that others changed, too, are merged as by \
`git merge-file`; the first one that cannot be merged ends it. With --merge=markers, both sides are \
kept there, between conflict markers.

With --commits, the commits that the worker made in its view come onto the current branch, with \
their authors and messages, and the files with them; --branch makes a branch of the commits, and \
changes no file. No hook of git runs. If the branch moved meanwhile, the commits are made anew on \
top of it. If git finds a conflict, or the index has changes, nothing is changed.

With PATH, only the changes of these files and folders are applied. Left out, counted and named are \
files that programs run unasked: those of git, also in a folder that becomes a repository, unless \
--git-dir is given; and those that shells, editors, agents and hooks run, such as .envrc, .vscode \
and .husky, unless --with-programs is given. Devices, FIFOs, sockets and setuid bits are always \
left out. `swarmletfs undo` takes the changes back.

Examples:
  swarmletfs apply w1
  swarmletfs apply w1 src --interactive
  swarmletfs apply w1 --merge --yes
  swarmletfs apply w1 --commits
  swarmletfs apply w1 --branch fix-12

Exit code: 0 if the changes were applied or there is nothing to apply, 1 for a conflict, a no or a \
failure, 2 for a usage error.";

/// Arguments of `apply`.
#[derive(Debug, Default, Args)]
pub(super) struct ApplyArgs {
    /// The worker
    #[arg(value_name = "WORKER")]
    worker: OsString,

    /// Files and folders, by their paths in the workspace [default: all]
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,

    /// Apply without showing the diff and asking
    #[arg(long, short, conflicts_with = "interactive")]
    yes: bool,

    /// Ask about each file
    #[arg(long, short)]
    interactive: bool,

    /// Merge files that others changed, too; with =markers, keep both sides of a conflict, between
    /// conflict markers
    #[arg(long, value_enum, value_name = "WAY", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "clean")]
    merge: Option<MergeWay>,

    /// Bring the worker's commits onto the current branch, too
    #[arg(long, conflicts_with_all = ["paths", "interactive"])]
    commits: bool,

    /// Make a new branch of the worker's commits, and change no file
    #[arg(long, value_name = "NAME", conflicts_with_all = ["paths", "interactive", "merge"])]
    branch: Option<String>,

    /// Apply changes of .git and of other repositories, too: git runs programs that they name
    #[arg(long)]
    git_dir: bool,

    /// Apply files, too, that other programs run unasked, such as .envrc and .vscode
    #[arg(long)]
    with_programs: bool,

    /// Print what would be applied, and change nothing
    #[arg(long, conflicts_with_all = ["yes", "interactive"])]
    dry_run: bool,

    #[command(flatten)]
    diff: DiffArgs,

    #[command(flatten)]
    write: WriteArgs,
}

impl ApplyArgs {
    /// Returns the arguments that apply all changes of a worker of `store`, after a question.
    pub(super) fn asking(worker: OsString, store: PathBuf) -> ApplyArgs {
        let write = WriteArgs::for_store(store);
        ApplyArgs { worker, write, ..ApplyArgs::default() }
    }

    fn options(&self) -> ApplyOptions {
        let commits = match &self.branch {
            Some(name) => Some(CommitTarget::Branch(name.clone())),
            None => self.commits.then_some(CommitTarget::Head),
        };
        ApplyOptions { merging: MergeWay::merging(self.merge), commits }
    }
}

/// Applies the changes.
///
/// # Errors
///
/// The worker cannot be found or is running, there is nobody to ask, or the workspace or the store
/// cannot be written.
pub(super) fn run(arguments: &ApplyArgs) -> anyhow::Result<ExitCode> {
    with_drafts(&arguments.write, |store| apply(store, arguments))
}

fn apply(store: &Store, arguments: &ApplyArgs) -> anyhow::Result<ExitCode> {
    let approval = open(store, &arguments.worker)?;
    let workspace = approval.workspace().map_err(into_cli_error)?;
    let paths = parse_paths(&approval, &arguments.paths)?;
    let rules =
        PathRules { allows_git: arguments.git_dir, allows_programs: arguments.with_programs };
    let changes = approval.changes().map_err(into_cli_error)?;
    refuse_ignored(&approval, &changes, &paths, "apply")?;
    let mut options = arguments.options();
    if paths.is_empty()
        && options.commits.is_none()
        && let Some(text) = left_out_as_ignored(changes.ignored)
    {
        print_notice(arguments, &text);
    }
    if options.commits == Some(CommitTarget::Head) && changes.commits.is_none() {
        print_notice(arguments, "the worker made no commits; its files are applied");
        options.commits = None;
    }
    let mut selection = approval.select(changes, &paths, rules).map_err(into_cli_error)?;
    if arguments.branch.is_some() {
        selection = selection.restricted_to(&BTreeSet::new());
    }
    // A file that was named and is left out is no success.
    let is_named = |path: &RelPath| paths.contains(path);
    describe_left_out(&selection, &paths).iter().for_each(|line| print_message(line));
    let lacks_named = selection.left_out().iter().any(|left_out| is_named(&left_out.path));
    let done_code = if lacks_named { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    let cure = if arguments.merge.is_some() { MERGE_CURE } else { CURE };
    if !arguments.yes {
        let mut checked = approval.check(&selection, &options).map_err(into_cli_error)?;
        // A merge ends at its first conflict, so each check may find another one.
        while arguments.interactive && !checked.conflicts.is_empty() {
            let paths = checked.conflicts.iter().map(|conflict| conflict.path.clone()).collect();
            let Some(rest) = selection.without(&paths) else { break };
            if !skip_conflicts(&checked, &approval)? {
                break;
            }
            selection = rest;
            checked = approval.check(&selection, &options).map_err(into_cli_error)?;
        }
        if let Some(code) = report_conflicts(&checked, &approval, "apply", cure) {
            show_place(store, &approval);
            if !arguments.dry_run {
                approval.log_conflicts("apply", checked);
            }
            return Ok(code);
        }
        warn(&checked, arguments);
        if checked.files.is_empty() && checked.commits.is_none() {
            print_notice(arguments, "nothing to apply");
            return Ok(done_code);
        }
        if arguments.dry_run {
            let commits = describe_commits(checked.commits.as_ref(), &selection);
            let files = checked.files.iter().map(describe_change);
            let lines: String = commits.into_iter().chain(files).map(|line| line + "\n").collect();
            pager::print(lines.as_bytes())?;
            return Ok(done_code);
        }
        for line in describe_commits(checked.commits.as_ref(), &selection) {
            print_message(&line);
        }
        let Some(accepted) = ask(store, &approval, arguments, (&selection, &checked), &workspace)?
        else {
            print_message("nothing was applied");
            return Ok(ExitCode::FAILURE);
        };
        selection = selection.restricted_to(&accepted);
    }
    let applied = approval.apply(&selection, &options).map_err(into_cli_error)?;
    if let Some(code) = report_conflicts(&applied.checked, &approval, "apply", cure) {
        show_place(store, &approval);
        return Ok(code);
    }
    if arguments.yes {
        warn(&applied.checked, arguments);
    }
    if applied.number.is_none() {
        print_notice(arguments, "nothing to apply");
        return Ok(done_code);
    }
    let worker = shell_quote(Path::new(approval.id().as_os_str()));
    for file in applied.checked.files.iter().filter(|file| file.conflicts > 0) {
        let (conflicts, path) = (count(file.conflicts, "conflict"), file.path.display());
        print_message(&format!("{conflicts} between markers in {path}"));
    }
    let changes = applied.checked.files.len();
    let commits = applied.checked.commits.as_ref().map(describe_move);
    // A new branch comes without files.
    let files = (changes > 0 || commits.is_none()).then(|| {
        let changes = count(changes as u64, "change");
        format!("{changes} to {}{}", display_path(&workspace), already_there(&applied.checked))
    });
    let is_one = changes == 1 && commits.is_none();
    let placed = applied.checked.commits.as_ref().filter(|_| arguments.branch.is_some());
    let left = placed.zip(selection.source());
    let left = left.map_or(0, |(placed, all)| placed.without_commit(all).len());
    if left > 0 {
        let files = count(left as u64, "changed file");
        print_notice(
            arguments,
            &format!("{files} in no commit; `swarmletfs apply {worker}` applies the files"),
        );
    }
    let parts: Vec<String> = commits.into_iter().chain(files).collect();
    print_notice(
        arguments,
        &format!(
            "applied {}; `swarmletfs undo {worker}` takes {} back",
            parts.join(", and "),
            if is_one { "it" } else { "them" }
        ),
    );
    Ok(done_code)
}

/// Returns lines about the commits that are placed: their number and place, and each of them.
fn describe_commits(planned: Option<&BranchMove>, selection: &ChangeSelection) -> Vec<String> {
    let Some(planned) = planned else { return Vec::new() };
    let kept = selection.source().and_then(|changes| changes.commits.as_ref());
    let listed = kept.map_or(&[][..], |kept| &kept.commits);
    let commit = |commit: &CommitLine| {
        let id = commit.id.get(..SHORT_ID).unwrap_or(&commit.id);
        escape_controls(&format!("  {id} {}", commit.subject))
    };
    [describe_move(planned)].into_iter().chain(listed.iter().map(commit)).collect()
}

/// Number of digits of a commit's id in a list.
const SHORT_ID: usize = 10;

/// Shows the changes and asks about them. Returns the accepted ones; `None` for a no.
fn ask(
    store: &Store,
    approval: &Approval<'_>,
    arguments: &ApplyArgs,
    (selection, checked): (&ChangeSelection, &Checked),
    workspace: &Path,
) -> anyhow::Result<Option<BTreeSet<RelPath>>> {
    let mut prompt =
        Prompt::open(&format!("apply the changes of {}", approval.id().display()), YES)?;
    let diff = diff(store, approval, WHOLE)?;
    let sections = unified::split_diff(&diff);
    let unseen = unseen_changes(checked, selection, &sections);
    if arguments.interactive {
        unseen.iter().for_each(|line| print_message(line));
        return choose(&mut prompt, checked, &sections, &arguments.diff);
    }
    if !checked.files.is_empty() {
        arguments.diff.show(&relevant_diff(checked, &sections))?;
    }
    unseen.iter().for_each(|line| print_message(line));
    let changes = count(checked.files.len() as u64, "change");
    let question = match &checked.commits {
        Some(planned) if checked.files.is_empty() => format!("Apply {}?", describe_move(planned)),
        _ => format!("Apply {changes} to {}?", display_path(workspace)),
    };
    let files = checked.files.iter().map(|file| file.path.clone());
    Ok(prompt.confirm(&question)?.then(|| files.collect()))
}

fn skip_conflicts(checked: &Checked, approval: &Approval<'_>) -> anyhow::Result<bool> {
    let mut prompt =
        Prompt::open(&format!("apply the changes of {}", approval.id().display()), YES)?;
    for conflict in &checked.conflicts {
        print_message(&format!("conflict: {}: {}", conflict.path.display(), conflict.reason));
    }
    let conflicts = count(checked.conflicts.len() as u64, "conflict");
    prompt.confirm(&format!("Skip {conflicts} and go on?"))
}

/// The option that asks nothing.
const YES: &str = "--yes";

const CURE: &str = "try --merge, or only the other paths: name them, or use --interactive";

/// The remedy for conflicts of `apply --merge`.
const MERGE_CURE: &str = "try --merge=markers, which keeps both sides, or only the other paths: name \
                          them, or use --interactive";

/// Prints where the worker's versions of the files are.
fn show_place(store: &Store, approval: &Approval<'_>) {
    let worker = Path::new("workers").join(approval.id().as_os_str());
    let folder = store.root().path().join(worker).join(CHANGES);
    print_message(&format!("the worker's versions are in {}", display_path(&folder)));
}

fn print_notice(arguments: &ApplyArgs, text: &str) {
    if !arguments.write.quiet {
        print_message(text);
    }
}

/// Returns the part of a message about changes that the workspace had already.
fn already_there(checked: &Checked) -> String {
    match checked.done as u64 {
        0 => String::new(),
        done => format!(" ({} had been made already)", count(done, "change")),
    }
}

fn warn(checked: &Checked, arguments: &ApplyArgs) {
    for worker in &checked.running {
        let worker = worker.display();
        print_notice(
            arguments,
            &format!("warning: {worker} runs on this workspace, and may see what is applied"),
        );
    }
    for folder in &checked.kept {
        let folder = folder.display();
        print_notice(arguments, &format!("the folder {folder} stays: others have entries in it"));
    }
}

/// Prints the conflicts. Returns the exit code if there is one.
fn report_conflicts(
    checked: &Checked,
    approval: &Approval<'_>,
    action: &str,
    cure: &str,
) -> Option<ExitCode> {
    if checked.conflicts.is_empty() {
        return None;
    }
    for conflict in &checked.conflicts {
        print_message(&format!("conflict: {}: {}", conflict.path.display(), conflict.reason));
    }
    let conflicts = count(checked.conflicts.len() as u64, "conflict");
    let worker = approval.id().display();
    print_message(&format!(
        "cannot {action} the changes of {worker}: {conflicts}, so nothing was changed; {cure}"
    ));
    Some(ExitCode::FAILURE)
}

/// Asks about each change. Returns the accepted ones; `None` if there is none.
fn choose(
    prompt: &mut Prompt,
    checked: &Checked,
    sections: &[Section<'_>],
    shown: &DiffArgs,
) -> anyhow::Result<Option<BTreeSet<RelPath>>> {
    // A file in place of a link, or the reverse, has a section for each.
    let mut texts: BTreeMap<&RelPath, Vec<u8>> = BTreeMap::new();
    for section in sections {
        let Some(path) = &section.path else { continue };
        texts.entry(path).or_default().extend_from_slice(section.text);
    }
    let mut accepted = BTreeSet::new();
    let mut for_the_rest = None;
    for file in &checked.files {
        let text = texts.get(&file.path);
        while for_the_rest.is_none() {
            if let Some(text) = text {
                shown.show_at_once(text)?;
            }
            let question = format!("{}? [y,n,a,d,q,?] ", capitalized(&describe_change(file)));
            match prompt.ask(&question)?.as_str() {
                "y" => drop(accepted.insert(file.path.clone())),
                "n" => {}
                "a" => for_the_rest = Some(true),
                "d" => for_the_rest = Some(false),
                // At the end of the input, too, nobody answers any longer.
                "q" | "" => return Ok(None),
                _ => {
                    print_message(CHOICES);
                    continue;
                }
            }
            break;
        }
        if for_the_rest == Some(true) {
            accepted.insert(file.path.clone());
        }
    }
    Ok(Some(accepted).filter(|accepted| !accepted.is_empty()))
}

const CHOICES: &str = "y: apply this change; n: do not; a: apply this and all others; d: apply \
                       neither this nor the others; q: apply nothing at all";

fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|first| first.to_uppercase().chain(chars).collect()).unwrap_or_default()
}

pub(super) const UNDO_HELP: &str = "\
Takes back the last `swarmletfs apply` of the worker that was not taken back yet: all or nothing. \
Each file must be as it was applied; otherwise nothing is changed, and the conflicts are listed. \
The changes can be applied again.

Examples:
  swarmletfs undo w1
  swarmletfs undo w1 --yes

Exit code: 0 if the changes were taken back or there is nothing to undo, 1 for a conflict, a no or \
a failure, 2 for a usage error.";

/// Arguments of `undo`.
#[derive(Debug, Args)]
pub(super) struct UndoArgs {
    /// The worker
    #[arg(value_name = "WORKER")]
    worker: OsString,

    /// Take the changes back without asking
    #[arg(long, short)]
    yes: bool,

    #[command(flatten)]
    write: WriteArgs,
}

/// Takes the changes back.
///
/// # Errors
///
/// The worker cannot be found or is running, there is nobody to ask, or the workspace or the store
/// cannot be written.
pub(super) fn run_undo(arguments: &UndoArgs) -> anyhow::Result<ExitCode> {
    with_drafts(&arguments.write, |store| undo(store, arguments))
}

const UNDO_CURE: &str = "try to move the changed files away";

/// Opens the worker `id`, or the last one that went on for it and whose changes were applied.
fn open_to_undo<'a>(store: &'a Store, id: &OsString) -> anyhow::Result<Approval<'a>> {
    let mut found = Approval::open(store, id.as_bytes()).map_err(into_cli_error)?;
    let mut next = found.continued_in().map_err(into_cli_error)?;
    while let Some(id) = next {
        let later = Approval::open(store, id.as_bytes()).map_err(into_cli_error)?;
        next = later.continued_in().map_err(into_cli_error)?;
        if later.is_applied().map_err(into_cli_error)? {
            print_message(&format!("{} went on for it, and is taken", later.id().display()));
            found = later;
        }
    }
    Ok(found)
}

fn undo(store: &Store, arguments: &UndoArgs) -> anyhow::Result<ExitCode> {
    let approval = open_to_undo(store, &arguments.worker)?;
    let workspace = approval.workspace().map_err(into_cli_error)?;
    if !arguments.yes {
        let checked = approval.check_undo().map_err(into_cli_error)?;
        if let Some(code) = report_conflicts(&checked, &approval, "undo", UNDO_CURE) {
            approval.log_conflicts("undo", checked);
            return Ok(code);
        }
        if !checked.files.is_empty() || checked.commits.is_some() {
            let action = format!("undo the changes of {}", approval.id().display());
            let mut prompt = Prompt::open(&action, YES)?;
            if let Some(made) = &checked.commits {
                print_message(&format!("move the branch {} back", made.branch()));
            }
            checked.files.iter().for_each(|file| print_message(&describe_change(file)));
            let changes = count(checked.files.len() as u64, "change");
            let question = format!("Make {changes} in {}?", display_path(&workspace));
            if !prompt.confirm(&question)? {
                print_message("nothing was changed");
                return Ok(ExitCode::FAILURE);
            }
        }
    }
    let undone = approval.undo().map_err(into_cli_error)?;
    if let Some(code) = report_conflicts(&undone.checked, &approval, "undo", UNDO_CURE) {
        return Ok(code);
    }
    if !arguments.write.quiet {
        for folder in &undone.checked.kept {
            let folder = folder.display();
            print_message(&format!("the folder {folder} stays: others have entries in it"));
        }
        let changes = count(undone.checked.files.len() as u64, "change");
        print_message(&match undone.number {
            Some(_) => {
                let commits = undone.checked.commits.as_ref();
                let branch = commits.map(|made| format!("moved {} back, and ", made.branch()));
                let (branch, place) = (branch.unwrap_or_default(), display_path(&workspace));
                format!("{branch}took back {changes} in {place}")
            }
            None => "nothing to undo".to_owned(),
        });
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) const DISCARD_HELP: &str = "\
Removes what the worker wrote in its view of the workspace. Its changes cannot be applied any \
more. The record of the worker stays, with its changes as `swarmletfs changes` shows them, and changes \
that were applied can still be taken back.

Example:
  swarmletfs discard w1

Exit code: 0 if the draft was discarded, 1 for a no or a failure, 2 for a usage error.";

/// Arguments of `discard`.
#[derive(Debug, Args)]
pub(super) struct DiscardArgs {
    /// The worker
    #[arg(value_name = "WORKER")]
    worker: OsString,

    /// Discard without asking
    #[arg(long, short)]
    yes: bool,

    #[command(flatten)]
    write: WriteArgs,
}

/// Discards the draft.
///
/// # Errors
///
/// The worker cannot be found, is running or has no draft, there is nobody to ask, or the store
/// cannot be written.
pub(super) fn run_discard(arguments: &DiscardArgs) -> anyhow::Result<ExitCode> {
    with_drafts(&arguments.write, |store| discard(store, arguments))
}

fn discard(store: &Store, arguments: &DiscardArgs) -> anyhow::Result<ExitCode> {
    let approval = open(store, &arguments.worker)?;
    // Found before the question: a worker without a draft has nothing to discard.
    approval.check_discard().map_err(into_cli_error)?;
    let worker = approval.id().display();
    if !arguments.yes {
        let mut prompt = Prompt::open(&format!("discard the changes of {worker}"), YES)?;
        if !prompt.confirm(&format!("Discard the draft of {worker}?"))? {
            print_message("nothing was discarded");
            return Ok(ExitCode::FAILURE);
        }
    }
    let was_kept = approval.discard().map_err(into_cli_error)?;
    if !arguments.write.quiet {
        let text = if was_kept { "discarded the draft of" } else { "nothing to discard:" };
        print_message(&format!("{text} {worker}"));
    }
    Ok(ExitCode::SUCCESS)
}
