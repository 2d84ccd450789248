//! `run --continue` and `rebase`: a worker goes on with the changes of another one, in a new view
//! of the workspace as it is now.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;
use clap::{Args, FromArgMatches, ValueEnum};

use super::each::{fill_in, has_placeholder};
use super::environment::Preset;
use super::report::Reporter;
use super::{PROGRAM, RunArgs, StartPlace, session, with_drafts};
use crate::approval::Approval;
use crate::catalog::Freshness;
use crate::cli::drafts::{self, open};
use crate::cli::exit;
use crate::cli::record::command_line;
use crate::cli::store_selection::StoreSelection;
use crate::cli::terminal::shell_quote;
use crate::cli::write_args::{MergeWay, WriteArgs, into_cli_error};
use crate::deadline::Deadline;
use crate::model::CallKind;
use crate::name::Name;
use swarmletfs_record::write::Store;

/// Text above the comments in a prompt.
const PROMPT: &str = "Your earlier changes are in the workspace. A reviewer commented on them: \
                      change what the comments ask for, and nothing else.";
/// Options after which known programs take their prompt.
const PROMPT_OPTIONS: [&str; 3] = ["-p", "--print", "--prompt"];
/// Programs whose last argument is their prompt, unless it follows one of those options.
const AGENTS: [&str; 8] =
    ["claude", "codex", "gemini", "opencode", "copilot", "cursor-agent", "aider", "qwen"];
/// Most checks of a worker that are run again.
const CHECKS_MAX: usize = 3;

/// Runs a worker that goes on with the changes of the worker `id`.
///
/// # Errors
///
/// The changes conflict with the workspace, no command or comment is known, or it was not run.
pub(super) fn run(
    mut arguments: RunArgs,
    id: &OsStr,
    use_of_comments: CommentUse,
    reporter: &Reporter,
) -> anyhow::Result<ExitCode> {
    let here = StartPlace::find(Path::new("."))?.workspace;
    arguments.write = arguments.write.resolved(&here)?;
    let write = arguments.write.clone();
    with_drafts(&write, |store| {
        let approval = open(store, &id.to_owned())?;
        let worker = store.worker(approval.id().as_bytes()).map_err(into_cli_error)?;
        let comments = drafts::read_comments(worker.folder())?;
        if use_of_comments == CommentUse::Prompt {
            take_command(&approval, &mut arguments, comments.as_deref())?;
        }
        let next = adopt(store, &approval, &mut arguments)?;
        let place = StartPlace::find(&arguments.workspace)?;
        let previous = session::Previous { approval, merging: MergeWay::merging(arguments.merge) };
        let code = session::run_in(store, &arguments, &place, reporter, Some(&previous))?;
        if let Some(comments) = comments
            && drafts::read_comments(worker.folder())?.as_deref() == Some(&*comments)
        {
            if use_of_comments == CommentUse::Keep {
                let next = next.as_deref().map(|id| store.worker(id)).transpose();
                // Without a new worker, the comments stay where they are.
                let Ok(Some(next)) = next else { return Ok(code) };
                drafts::add_comments(next.folder(), &[comments.trim_end().to_owned()])?;
            }
            drafts::remove_comments(worker.folder())?;
        }
        Ok(code)
    })
}

/// The use of the comments on the worker before.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CommentUse {
    /// The command receives them.
    Prompt,
    /// They are comments on the new worker.
    Keep,
}

/// Takes the arguments that are not given from the worker before. Returns the ID of the new one.
fn adopt(
    store: &Store,
    approval: &Approval<'_>,
    arguments: &mut RunArgs,
) -> anyhow::Result<Option<String>> {
    let record = approval.draft_record().map_err(into_cli_error)?;
    arguments.workspace = record.workspace();
    let hidden = record.hidden().into_iter().map(|path| record.workspace().join(path));
    arguments.access.hide.extend(hidden);
    arguments.all_changes |= record.all_changes;
    arguments.durable |= record.is_durable;
    if arguments.access.preset == Preset::None
        && let Some(preset) = &record.preset
    {
        arguments.access.preset = Preset::from_str(preset, false).unwrap_or(Preset::None);
    }
    let task = arguments.task.take();
    arguments.task = task.or_else(|| Some(command_line(&arguments.command)));
    let worker = store.worker(approval.id().as_bytes()).map_err(into_cli_error)?;
    let registered = worker.registry_record().map_err(into_cli_error)?;
    if let Some(record) = &registered {
        arguments.worker.inherit(record.metadata());
    }
    let next = next_id(store, approval.id(), record.continues.is_some());
    arguments.worker.continue_as(&approval.id().to_text(), next.clone());
    Ok(next)
}

/// Puts the comments into the command: the given one, or else the one of the worker before. They
/// are the task, unless another one is given.
fn take_command(
    approval: &Approval<'_>,
    arguments: &mut RunArgs,
    comments: Option<&str>,
) -> anyhow::Result<()> {
    let record = approval.draft_record().map_err(into_cli_error)?;
    let id = shell_quote(Path::new(approval.id().as_os_str()));
    let prompt = comments.map(|comments| format!("{PROMPT}\n\n{}\n", comments.trim_end()));
    if arguments.command.is_empty() {
        let Some(prompt) = &prompt else {
            bail!(
                "cannot continue {id}: nobody commented on it; try `swarmletfs review {id}`, or \
                 give a command after --"
            );
        };
        arguments.command = add_prompt(record.command(), prompt).ok_or_else(|| {
            anyhow::anyhow!(
                "cannot continue {id}: no argument of its command is known as the prompt; try \
                 `swarmletfs run --continue {id} -- COMMAND {{}}`"
            )
        })?;
    } else {
        match &prompt {
            None if has_placeholder(&arguments.command) => {
                bail!("cannot fill {{}} in: nobody commented on {id}");
            }
            None => {}
            Some(prompt) => {
                for word in &mut arguments.command {
                    *word = fill_in(word, OsStr::new(prompt));
                }
            }
        }
    }
    arguments.task = arguments.task.take().or(prompt);
    Ok(())
}

/// Adds `prompt` to the prompt in the command of a known program.
fn add_prompt(mut command: Vec<OsString>, prompt: &str) -> Option<Vec<OsString>> {
    let program = Path::new(command.first()?).file_name()?.to_str()?;
    if !AGENTS.contains(&program) {
        return None;
    }
    let is_option = |word: &OsString| word.as_bytes().starts_with(b"-");
    let named = command.iter().position(|word| PROMPT_OPTIONS.iter().any(|it| word == it));
    let named =
        named.map(|at| at + 1).filter(|at| command.get(*at).is_some_and(|it| !is_option(it)));
    let last = command.len().checked_sub(1).filter(|at| *at > 0);
    let word = command.get_mut(named.or(last)?).filter(|word| !is_option(word))?;
    word.push("\n\n");
    word.push(prompt);
    Some(command)
}

/// Returns the first free id of the form `w1-2`.
fn next_id(store: &Store, id: &Name, is_continued: bool) -> Option<String> {
    let text = id.to_text();
    let root = text.rsplit_once('-').filter(|_| is_continued).map_or(&*text, |(root, _)| root);
    let mut ids = (2..10_000).map(|number| format!("{root}-{number}"));
    ids.find(|id| matches!(store.worker(id), Err(swarmletfs_record::write::Error::NoWorker { .. })))
}

pub(crate) const REBASE_HELP: &str = "\
Makes a new draft with the changes of the worker on the workspace as it is now: files that others \
changed meanwhile are merged. If one cannot be merged, nothing is made, and the message names it. \
Then runs the checks again that the worker ran last, in the new draft: each --check, or else \
the last tests, lints and builds of its record. The new draft is that of a new worker, such as w1-2; \
`apply`, `changes` and `review` of the old one lead to it until it is discarded.

Examples:
  swarmletfs rebase w1
  swarmletfs rebase w1 --check 'make test'

Exit code: 0 if the checks are green, that of the first red one, 125 if nothing was made, 2 for a \
usage error.";

/// Arguments of `rebase`.
#[derive(Debug, Args)]
pub(crate) struct RebaseArgs {
    /// The worker
    #[arg(value_name = "WORKER")]
    worker: OsString,

    /// Run this shell command as a check; can be given several times [default: the worker's own]
    #[arg(long, value_name = "CMD")]
    check: Vec<String>,

    /// Merge files that others changed, too; with =markers, keep both sides of a conflict, between
    /// conflict markers
    #[arg(long, value_enum, value_name = "WAY", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "clean", default_value = "clean")]
    merge: Option<MergeWay>,

    #[command(flatten)]
    write: WriteArgs,
}

/// Brings the draft of a worker onto the workspace of now.
pub(crate) fn rebase(arguments: &RebaseArgs) -> ExitCode {
    exit::report_as_not_recorded(try_rebase(arguments))
}

fn try_rebase(arguments: &RebaseArgs) -> anyhow::Result<ExitCode> {
    let here = StartPlace::find(Path::new("."))?.workspace;
    let write = arguments.write.resolved(&here)?;
    let reporter = Reporter::person(write.quiet);
    let (worker, checks) = write.with_store(|store| {
        let worker = open(store, &arguments.worker)?.id().clone();
        let own = || last_checks(store, &worker);
        let checks = if arguments.check.is_empty() { own() } else { arguments.check.clone() };
        Ok((worker, checks))
    })?;
    if checks.is_empty() {
        reporter.notice("no check of the worker is known, so none is run; try --check CMD");
    }
    // The checks are a call of the worker. The first red one ends it.
    let script = match checks.as_slice() {
        [] => "true".to_owned(),
        [check] => check.clone(),
        checks => checks.iter().map(|check| format!("(\n{check}\n) || exit\n")).collect(),
    };
    let task = format!("Rebase {}", worker.to_text());
    let mut line: Vec<OsString> = ["run", "--task", &task, "--"].map(OsString::from).to_vec();
    let recorded = [PROGRAM, "record", "--", "sh", "-c", &script];
    let plain = recorded.into_iter().skip(if checks.is_empty() { 3 } else { 0 });
    line.extend(plain.map(OsString::from));
    let parsed = RunArgs::augment_args(clap::Command::new("run")).try_get_matches_from(line)?;
    let mut run_arguments = RunArgs::from_arg_matches(&parsed)?;
    run_arguments.write = write;
    run_arguments.merge = arguments.merge;
    run(run_arguments, worker.as_os_str(), CommentUse::Keep, &reporter)
}

/// Returns the commands of the last checks in the record of a worker.
fn last_checks(store: &Store, worker: &Name) -> Vec<String> {
    let read = || {
        let selection = StoreSelection::only(store.root().path().to_path_buf());
        let view = selection.open(Freshness::default()).ok()?;
        let visible = view.visible();
        let member = visible.members.iter().find(|it| it.entry.id.0 == *worker)?;
        let fingerprint = view.fingerprint(member, true).ok()?;
        let record = view.record(member, &fingerprint, Deadline::never()).ok()?;
        let checks =
            record.trace.calls.iter().rev().filter(|call| {
                call.is_command && call.kind() == CallKind::Check && !call.is_misuse
            });
        let mut commands: Vec<String> = Vec::new();
        for call in checks {
            let command = call.input.as_ref().and_then(|input| input.get(call.subject.clone()));
            commands.extend(
                command.filter(|it| !commands.iter().any(|known| known == it)).map(str::to_owned),
            );
            if commands.len() == CHECKS_MAX {
                break;
            }
        }
        commands.reverse();
        Some(commands)
    };
    read().unwrap_or_default()
}
