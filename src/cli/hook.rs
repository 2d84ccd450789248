//! `swarmletfs hook`: answers a hook of an agent's program with the verdict on a subagent that has
//! ended.
//!
//! A hook must never disturb its session. So everything runs on a thread, within a time limit, and
//! every error ends in silence and exit code 0. The input is not trusted: a path in it is used only
//! if it lies in the program's own folder, and the store opens it beneath that folder.

mod claude_code;
mod codex;
mod install;

use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};

use super::{duration, session_places};
use crate::analysis::worker_digest::{WorkerDigest, WorkerRow};
use crate::catalog::{Freshness, Source};
use crate::deadline::Deadline;
use crate::model::Worker;
use crate::name::RelPath;
use crate::output::verdict::verdict;
use crate::trace::KnownFormat;
use crate::trace::known::{CLAUDE_CODE, CODEX};
use crate::view::{Filter, View};

const CLAUDE_CODE_HELP: &str = "\
`swarmletfs hook install claude-code` puts it into the settings.

When a subagent ends, the model that started it receives at most 800 bytes: the outcome by the \
record, failed calls, calls that look like failures, doubts about the subagent's claims, the \
files that it changed, and a marker for `swarmletfs expand`. PostToolUse covers subagents that \
the model waits for, UserPromptSubmit those in the background.

Example:
  swarmletfs hook claude-code < event.json         what the hook would say to an event

The command reads the hook's JSON from stdin. For every other event, for input that it does not \
understand, and if it needs more than --max-time, it prints nothing. Exit code: 0, or 1 for a mistake \
on the command line.";

const CODEX_HELP: &str = "\
`swarmletfs hook install codex` puts it into the settings. Codex runs it once you have trusted it.

When a subagent has ended, the model that started it receives at most 800 bytes, as with Claude \
Code: with the result of its next call on subagents, such as wait_agent, or with the next prompt.

Example:
  swarmletfs hook codex < event.json               what the hook would say to an event

The command reads the hook's JSON from stdin. For every other event, for input that it does not \
understand, and if it needs more than --max-time, it prints nothing. Exit code: 0, or 1 for a mistake \
on the command line.";

const INPUT_MAX: u64 = 1 << 20;

pub(super) const HELP: &str = "\
Examples:
  swarmletfs hook install claude-code
  swarmletfs hook claude-code < event.json
  swarmletfs hook install codex";

/// The program that runs the hook.
#[derive(Debug, Subcommand)]
pub(super) enum HookCommand {
    /// Answer a hook of Claude Code, whose JSON is read from stdin
    #[command(after_help = CLAUDE_CODE_HELP)]
    ClaudeCode(HookArgs),
    /// Answer a hook of Codex CLI, whose JSON is read from stdin
    #[command(after_help = CODEX_HELP)]
    Codex(HookArgs),
    /// Put a hook into the settings of its program, or take it out
    #[command(after_help = install::HELP)]
    Install(install::InstallArgs),
}

/// Arguments of a hook.
#[derive(Debug, Args)]
pub(super) struct HookArgs {
    /// Longest time for which the session waits; after it, nothing is printed: 80ms, 2s
    #[arg(long, value_name = "TIME", default_value = "80ms", value_parser = duration::parse_duration)]
    max_time: Duration,
}

pub(super) fn run(command: &HookCommand) -> anyhow::Result<ExitCode> {
    match command {
        HookCommand::ClaudeCode(arguments) => Ok(answer_hook(&CLAUDE_CODE, arguments)),
        HookCommand::Codex(arguments) => Ok(answer_hook(&CODEX, arguments)),
        HookCommand::Install(arguments) => install::run(arguments),
    }
}

fn answer_hook(program: &'static KnownFormat, HookArgs { max_time }: &HookArgs) -> ExitCode {
    let Some(end) = Instant::now().checked_add(*max_time) else { return ExitCode::SUCCESS };
    // A panic must be silent, too.
    std::panic::set_hook(Box::new(|_| {}));
    let (sender, receiver) = mpsc::channel();
    let thread = thread::Builder::new().name("hook".into()).spawn(move || {
        if let Some(answer) = read_input().and_then(|input| answer(program, &input, end)) {
            let _ = sender.send(answer);
        }
    });
    // The thread is not joined: the end of the process ends it, even while it waits.
    if thread.is_ok()
        && let Ok(answer) = receiver.recv_timeout(end.saturating_duration_since(Instant::now()))
        // An answer that is there already is received after the end, too.
        && Instant::now() < end
    {
        // If the reader is gone, there is nobody to report the error to.
        let _ = io::stdout().write_all(answer.as_bytes());
    }
    ExitCode::SUCCESS
}

/// Reads stdin to its end. Returns `None` if it is too long or cannot be read.
fn read_input() -> Option<Vec<u8>> {
    let mut stdin = io::stdin().lock();
    let mut input = Vec::new();
    stdin.by_ref().take(INPUT_MAX + 1).read_to_end(&mut input).ok()?;
    if input.len() as u64 > INPUT_MAX {
        // A writer must not fail because its reader is gone.
        let _ = io::copy(&mut stdin, &mut io::sink());
        return None;
    }
    Some(input)
}

/// The fields of a hook's input that this program reads.
#[derive(Debug, Deserialize)]
struct HookEvent {
    hook_event_name: String,
    transcript_path: PathBuf,
    tool_response: Option<serde_json::Value>,
    prompt: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct HookAnswer<'a> {
    hook_specific_output: HookOutput<'a>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct HookOutput<'a> {
    hook_event_name: &'a str,
    additional_context: &'a str,
}

/// Returns the answer to a hook, or `None` if there is nothing to say before `end`.
fn answer(program: &'static KnownFormat, input: &[u8], end: Instant) -> Option<String> {
    let event: HookEvent = serde_json::from_slice(input).ok()?;
    let folders = session_places::folders_of(program);
    let context = folders.into_iter().find_map(|path| {
        let folder = ProgramFolder { program, path, end };
        if program.name == CODEX.name {
            codex::context(&folder, &event)
        } else {
            claude_code::context(&folder, &event)
        }
    })?;
    let output =
        HookOutput { hook_event_name: &event.hook_event_name, additional_context: &context };
    serde_json::to_string(&HookAnswer { hook_specific_output: output }).ok()
}

/// The folder of the program that runs the hook. Nothing outside of it is read.
struct ProgramFolder {
    program: &'static KnownFormat,
    path: PathBuf,
    /// End of the time that the hook has.
    end: Instant,
}

impl ProgramFolder {
    /// Returns the path from this folder to a file that the event names; `None` if it is elsewhere.
    fn beneath(&self, file: &Path) -> Option<RelPath> {
        // Either path may be spelled with links that the other resolves.
        let beneath = file.strip_prefix(&self.path).ok().map(Path::to_path_buf).or_else(|| {
            let real = self.path.canonicalize().ok()?;
            file.strip_prefix(real).ok().map(Path::to_path_buf)
        })?;
        RelPath::parse(beneath.as_os_str().as_bytes()).ok()
    }

    /// Returns the verdict on the worker of `transcript`, or `None` if it cannot be read in time.
    /// `amend` adds what the session knows about the worker, and returns true if it has ended.
    fn verdict_on(
        &self,
        transcript: RelPath,
        amend: impl FnOnce(&mut Worker) -> bool,
    ) -> Option<String> {
        let create = self.program.create_for_file?;
        let source = Source::open_transcript(&self.path, transcript, create).ok()?;
        // A worker that has written nothing for long may still run.
        let source = source.with_stale_after(Duration::MAX);
        let view = View::new(vec![source], Freshness::default(), Filter::default()).ok()?;
        let member = view.visible().members.first()?.clone();
        let fingerprint = view.fingerprint(&member, false).ok()?;
        let mut record = view.record(&member, &fingerprint, Deadline::new(&self.end)).ok()?;
        let has_ended = amend(&mut Arc::make_mut(&mut record).worker);
        if record.timed_out() || !has_ended {
            return None;
        }
        let digest = WorkerDigest::new(&view, &member, &fingerprint, &record);
        let row = WorkerRow { member, digest: Some(digest.into()), fingerprint: Some(fingerprint) };
        verdict(&view, &row, &record)
    }
}
