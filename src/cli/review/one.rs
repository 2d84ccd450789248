//! `swarmletfs review WORKER`: steps through the changes of one worker, hunk by hunk.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;

use super::ReviewArgs;
use crate::approval::{
    ApplyOptions, Approval, ChangeSelection, PathRules, describe_change, describe_left_out,
};
use crate::cli::changes::{WHOLE, diff};
use crate::cli::drafts::{self, open};
use crate::cli::terminal::{Prompt, print_message, shell_quote};
use crate::cli::write_args::into_cli_error;
use crate::model::ReviewState;
use crate::name::RelPath;
use crate::text::count;
use crate::text::unified::{self, split_diff};
use swarmletfs_record::write::Store;

const CHOICES: &str = "y: take it; n: leave it; c: comment on it; a: take it and the rest of the \
                       file; d: leave it and the rest of the file; q: leave it and all others";

#[derive(Clone, Copy, PartialEq, Eq)]
enum HunkAnswer {
    Take,
    Leave,
    TakeFile,
    LeaveFile,
    LeaveAll,
}

/// Asks about each hunk, and applies the ones that are taken.
///
/// # Errors
///
/// The worker cannot be found or is running, there is nobody to ask, or the workspace or the store
/// cannot be written.
pub(super) fn review(store: &Store, arguments: &ReviewArgs) -> anyhow::Result<ExitCode> {
    let Some(worker) = &arguments.worker else { return super::list(store, arguments.json) };
    let approval = open(store, worker)?;
    let id = approval.id().display();
    if let Some(text) = &arguments.comment {
        add_comments(store, &approval, std::slice::from_ref(text))?;
        print_message(&commented(&approval, 1));
        return Ok(ExitCode::SUCCESS);
    }
    let changes = approval.changes().map_err(into_cli_error)?;
    let all = approval.select(changes, &[], PathRules::default());
    let mut selection = all.map_err(into_cli_error)?;
    describe_left_out(&selection, &[]).iter().for_each(|line| print_message(line));
    let options = ApplyOptions::default();
    let checked = approval.check(&selection, &options).map_err(into_cli_error)?;
    for conflict in &checked.conflicts {
        print_message(&format!("conflict: {}: {}", conflict.path.display(), conflict.reason));
    }
    if !checked.conflicts.is_empty() {
        print_message(&format!("such files are left; `swarmletfs rebase {id}` merges them"));
    }
    if checked.files.is_empty() {
        print_message("nothing to review");
        return Ok(ExitCode::SUCCESS);
    }
    let mut prompt = Prompt::open(&format!("review the changes of {id}"), "`changes` and `apply`")?;
    let diff = diff(store, &approval, WHOLE)?;
    let sections = split_diff(&diff);
    let mut questions =
        Questions { prompt: &mut prompt, arguments, comments: Vec::new(), for_all: None };
    let mut accepted = BTreeSet::new();
    for file in &checked.files {
        if questions.for_all.is_some() {
            break;
        }
        let path = &file.path;
        if let Some((old, new)) = approval.texts(&selection, path) {
            let taken = questions.ask_hunks(path, &unified::hunks(&old, &new))?;
            if taken.iter().all(|is_taken| *is_taken) {
                accepted.insert(path.clone());
            } else if taken.contains(&true) {
                let part = unified::take_hunks(&old, &new, |at| taken.get(at) == Some(&true));
                selection.take_part(path, part.as_bytes());
                accepted.insert(path.clone());
            }
        } else {
            let mine = sections.iter().filter(|section| section.path.as_ref() == Some(path));
            let text: Vec<u8> = mine.flat_map(|section| section.text).copied().collect();
            let is_taken = questions.ask(&describe_change(file), path, &text)?;
            if matches!(is_taken, HunkAnswer::Take | HunkAnswer::TakeFile) {
                accepted.insert(path.clone());
            }
        }
    }
    let comments = questions.comments;
    if !comments.is_empty() {
        add_comments(store, &approval, &comments)?;
    }
    let code = apply(&approval, &selection.restricted_to(&accepted), checked.files.len())?;
    if !comments.is_empty() {
        print_message(&commented(&approval, comments.len()));
    }
    Ok(code)
}

fn apply(
    approval: &Approval<'_>,
    selection: &ChangeSelection,
    reviewed: usize,
) -> anyhow::Result<ExitCode> {
    let applied = approval.apply(selection, &ApplyOptions::default()).map_err(into_cli_error)?;
    let conflicts = &applied.checked.conflicts;
    for conflict in conflicts {
        print_message(&format!("conflict: {}: {}", conflict.path.display(), conflict.reason));
    }
    if !conflicts.is_empty() {
        print_message("nothing was applied; try again");
        return Ok(ExitCode::FAILURE);
    }
    let parts = applied.checked.files.len();
    let worker = shell_quote(Path::new(approval.id().as_os_str()));
    print_message(&match applied.number {
        None => "nothing was applied".to_owned(),
        Some(_) => format!(
            "applied {parts} of {}; `swarmletfs undo {worker}` takes them back",
            count(reviewed as u64, "change")
        ),
    });
    Ok(ExitCode::SUCCESS)
}

fn add_comments(store: &Store, approval: &Approval<'_>, new: &[String]) -> anyhow::Result<()> {
    let worker = store.worker(approval.id().as_bytes()).map_err(into_cli_error)?;
    if approval.review_state().map_err(into_cli_error)? == ReviewState::Running {
        let id = approval.id().display();
        anyhow::bail!("cannot comment on {id}: it still runs; try again when it has ended");
    }
    drafts::add_comments(worker.folder(), new)
}

fn commented(approval: &Approval<'_>, comments: usize) -> String {
    let worker = shell_quote(Path::new(approval.id().as_os_str()));
    let comments = count(comments as u64, "comment");
    format!("{comments} kept; `swarmletfs run --continue {worker}` gives the agent all of them")
}

struct Questions<'a> {
    prompt: &'a mut Prompt,
    arguments: &'a ReviewArgs,
    comments: Vec<String>,
    /// The answer for all that is left.
    for_all: Option<HunkAnswer>,
}

impl Questions<'_> {
    /// Asks about each hunk of a file. Returns which of them are taken.
    fn ask_hunks(&mut self, path: &RelPath, hunks: &[unified::Hunk]) -> anyhow::Result<Vec<bool>> {
        let mut taken = Vec::new();
        let mut for_file = None;
        for (number, hunk) in hunks.iter().enumerate() {
            let answer = match for_file {
                Some(answer) => answer,
                None => {
                    let shown = path.display();
                    let header = format!("--- a/{shown}\n+++ b/{shown}\n");
                    let text = header + &hunk.text;
                    let place = format!("take hunk {} of {} of {shown}", number + 1, hunks.len());
                    self.ask(&place, path, text.as_bytes())?
                }
            };
            if matches!(answer, HunkAnswer::TakeFile | HunkAnswer::LeaveFile) {
                for_file = Some(answer);
            }
            taken.push(matches!(answer, HunkAnswer::Take | HunkAnswer::TakeFile));
        }
        Ok(taken)
    }

    fn ask(&mut self, question: &str, path: &RelPath, text: &[u8]) -> anyhow::Result<HunkAnswer> {
        if let Some(answer) = self.for_all {
            return Ok(answer);
        }
        self.arguments.diff.show_at_once(text)?;
        loop {
            match self.prompt.ask(&format!("{question}? [y,n,c,a,d,q,?] "))?.as_str() {
                "y" => return Ok(HunkAnswer::Take),
                "n" => return Ok(HunkAnswer::Leave),
                "a" => return Ok(HunkAnswer::TakeFile),
                "d" => return Ok(HunkAnswer::LeaveFile),
                // At the end of the input, too, nobody answers any longer.
                "q" | "" => {
                    self.for_all = Some(HunkAnswer::LeaveAll);
                    return Ok(HunkAnswer::LeaveAll);
                }
                "c" => {
                    let comment = self.prompt.ask("Comment [empty: none] ")?;
                    if !comment.is_empty() {
                        let quoted = String::from_utf8_lossy(text);
                        self.comments.push(quote(path, &quoted, &comment));
                    }
                }
                _ => print_message(CHOICES),
            }
        }
    }
}

/// Returns a comment below the lines that it is about.
fn quote(path: &RelPath, text: &str, comment: &str) -> String {
    let lines = text.lines().skip_while(|line| !line.starts_with("@@"));
    let lines: String = lines.map(|line| format!("> {line}\n")).collect();
    format!("{}\n{lines}{comment}", path.display())
}
