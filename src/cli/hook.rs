//! `swarmletfs hook`: answers a hook of an agent's program with the verdict on a subagent that has
//! ended.
//!
//! A hook must never disturb its session. So everything runs on a thread, within a time limit, and
//! every error ends in silence and exit code 0. The input is not trusted: a path in it is used only
//! if it lies in the program's own folder, and the store opens it beneath that folder.
//!
//! No event of Codex CLI says which subagent ended: a wait may name none, and an answer to
//! SubagentStop would reach the subagent, which would then continue. So the session's rollout says
//! which subagents were started, their own rollouts which of them ended, and reports in the
//! session's rollout which of the ends its model knows.

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

use super::{discover, duration};
use crate::analysis::worker_digest::{WorkerDigest, WorkerRow};
use crate::catalog::{Freshness, Source};
use crate::deadline::Deadline;
use crate::model::{Status, Worker};
use crate::name::{Name, RelPath};
use crate::output::verdict::{HEAD, verdict};
use crate::store::{Disk, Store};
use crate::trace::known::{CLAUDE_CODE, CODEX, COPILOT_CLI};
use crate::trace::{
    KnownFormat, ReportedEnd, ended_copilot_agent, ended_task, unreported_subagents,
};
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

const COPILOT_HELP: &str = "\
`swarmletfs hook install copilot` puts it into a file of its own among the program's hooks.

When a subagent has ended, the model that started it receives at most 800 bytes, as with Claude \
Code: with the result of its call of task, or of read_agent for one in the background.

Example:
  swarmletfs hook copilot < event.json             what the hook would say to an event

The command reads the hook's JSON from stdin. For every other event, for input that it does not \
understand, and if it needs more than --max-time, it prints nothing. Exit code: 0, or 1 for a mistake \
on the command line.";

const INPUT_MAX: u64 = 1 << 20;

pub(super) const HELP: &str = "\
Examples:
  swarmletfs hook install claude-code
  swarmletfs hook claude-code < event.json
  swarmletfs hook install codex
  swarmletfs hook install copilot";

/// The program that runs the hook.
#[derive(Debug, Subcommand)]
pub(super) enum HookCommand {
    /// Answer a hook of Claude Code, whose JSON is read from stdin
    #[command(after_help = CLAUDE_CODE_HELP)]
    ClaudeCode(HookArgs),
    /// Answer a hook of Codex CLI, whose JSON is read from stdin
    #[command(after_help = CODEX_HELP)]
    Codex(HookArgs),
    /// Answer a hook of GitHub Copilot CLI, whose JSON is read from stdin
    #[command(after_help = COPILOT_HELP)]
    Copilot(CopilotHookArgs),
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

/// Arguments of the hook of Copilot CLI.
#[derive(Debug, Args)]
pub(super) struct CopilotHookArgs {
    /// Longest time for which the session waits; after it, nothing is printed: 400ms, 2s
    ///
    /// Copilot CLI writes its events a tenth of a second after they happen.
    #[arg(long, value_name = "TIME", default_value = "400ms", value_parser = duration::parse_duration)]
    max_time: Duration,
}

pub(super) fn run(command: &HookCommand) -> anyhow::Result<ExitCode> {
    match command {
        HookCommand::ClaudeCode(arguments) => Ok(answer_hook(&CLAUDE_CODE, arguments.max_time)),
        HookCommand::Codex(arguments) => Ok(answer_hook(&CODEX, arguments.max_time)),
        HookCommand::Copilot(arguments) => Ok(answer_hook(&COPILOT_CLI, arguments.max_time)),
        HookCommand::Install(arguments) => install::run(arguments),
    }
}

fn answer_hook(program: &'static KnownFormat, max_time: Duration) -> ExitCode {
    let Some(end) = Instant::now().checked_add(max_time) else { return ExitCode::SUCCESS };
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
    if program.name == COPILOT_CLI.name {
        return answer_copilot(input, end);
    }
    let event: HookEvent = serde_json::from_slice(input).ok()?;
    let folders = discover::folders_of(program);
    let context = folders.into_iter().find_map(|path| {
        let folder = ProgramFolder { program, path, end };
        if program.name == CODEX.name {
            codex_context(&folder, &event)
        } else {
            claude_code_context(&folder, &event)
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
    /// The worker is `agent`, if the transcript holds several. `amend` adds the facts that the
    /// session knows about the worker, and returns true if it has ended.
    fn verdict_on(
        &self,
        transcript: RelPath,
        agent: Option<&str>,
        amend: impl FnOnce(&mut Worker) -> bool,
    ) -> Option<String> {
        let format = self.program.create_for_file(transcript.clone())?;
        let source = Source::open_transcript(&self.path, transcript, format).ok()?;
        // A worker that has written nothing for long may still run.
        let source = source.with_stale_after(Duration::MAX);
        let view = View::new(vec![source], Freshness::default(), Filter::default()).ok()?;
        let visible = view.visible();
        let mut members = visible.members.iter();
        let member = match agent {
            Some(agent) => members.find(|member| member.name.to_text() == agent)?,
            None => members.next()?,
        };
        let member = member.clone();
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

/// Maximum number of subagents that one answer is about. The next answer is about the others.
const SUBAGENTS_MAX: usize = 4;

/// Returns the verdicts on the subagents that ended since the last answer.
fn codex_context(folder: &ProgramFolder, event: &HookEvent) -> Option<String> {
    if !matches!(event.hook_event_name.as_str(), "PostToolUse" | "UserPromptSubmit") {
        return None;
    }
    let session = folder.beneath(&event.transcript_path)?;
    let store = Disk::open(&folder.path).ok().filter(|store| !store.is_in_own_mount())?;
    let subagents = unreported_subagents(&store, &session, HEAD)?;
    let verdicts = subagents.into_iter().filter_map(|subagent| {
        folder.verdict_on(subagent.rollout, None, |worker| {
            // The model knows a subagent by this name, not by its id.
            if let Some(path) = subagent.path {
                worker.task_type = Some(path.as_str().into());
            }
            // The word for an interruption is a source without a status.
            worker.status.is_finished()
                || worker.status == Status::Unknown && worker.status_source.is_some()
        })
    });
    let verdicts: Vec<String> = verdicts.take(SUBAGENTS_MAX).collect();
    (!verdicts.is_empty()).then(|| verdicts.join("\n"))
}

/// An event of Copilot CLI, which names neither itself nor the subagent that ended.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CopilotEvent {
    session_id: String,
    tool_name: String,
    tool_args: CopilotArguments,
    tool_result: serde_json::Value,
}

#[derive(Debug, Deserialize)]
struct CopilotArguments {
    /// The words with which `task` asks a subagent.
    prompt: Option<String>,
    /// The subagent whose answer `read_agent` reads.
    agent_id: Option<String>,
    /// `background` for a subagent that nobody waits for.
    mode: Option<String>,
}

/// The answer that Copilot CLI adds to the result of the call.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct CopilotAnswer {
    additional_context: String,
}

/// Time between two looks at the events of a session.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Returns the answer to an event after a call: the verdict on the subagent that the call waited
/// for. Its end may not be written yet, so the events are looked at until it is, or until `end`.
fn answer_copilot(input: &[u8], end: Instant) -> Option<String> {
    let event: CopilotEvent = serde_json::from_slice(input).ok()?;
    if !event.tool_result.is_object() || !is_plain(&event.session_id) {
        return None;
    }
    let ended = match (event.tool_name.as_str(), event.tool_args) {
        ("task", CopilotArguments { mode: Some(mode), .. }) if mode == "background" => return None,
        ("task", arguments) => EndedAgent::Asked(arguments.prompt?),
        ("read_agent", arguments) => {
            EndedAgent::Named(arguments.agent_id.filter(|id| is_plain(id))?)
        }
        _ => return None,
    };
    let session =
        RelPath::parse(format!("session-state/{}/events.jsonl", event.session_id)).ok()?;
    loop {
        let mut folders = discover::folders_of(&COPILOT_CLI).into_iter();
        let verdict = folders.find_map(|path| {
            let folder = ProgramFolder { program: &COPILOT_CLI, path, end };
            copilot_verdict(&folder, &session, &ended)
        });
        if let Some(verdict) = verdict {
            return serde_json::to_string(&CopilotAnswer { additional_context: verdict }).ok();
        }
        if Instant::now() + LOOK_AGAIN >= end {
            return None;
        }
        thread::sleep(LOOK_AGAIN);
    }
}

enum EndedAgent {
    /// The last one that was asked this.
    Asked(String),
    Named(String),
}

fn copilot_verdict(
    folder: &ProgramFolder,
    session: &RelPath,
    ended: &EndedAgent,
) -> Option<String> {
    let agent = match ended {
        EndedAgent::Named(agent) => agent.clone(),
        EndedAgent::Asked(prompt) => {
            let store = Disk::open(&folder.path).ok().filter(|store| !store.is_in_own_mount())?;
            let file = store.open(session).ok()?;
            ended_copilot_agent(&*file, prompt, Deadline::new(&folder.end))?
        }
    };
    folder.verdict_on(session.clone(), Some(&agent), |worker| worker.status.is_finished())
}

const ID_MAX: usize = 64;

/// Returns true if a text can be the ID of a session or a subagent.
fn is_plain(id: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (1..=ID_MAX).contains(&id.len()) && id.bytes().all(is_plain)
}

/// The result of a call that ran a subagent.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AgentResult {
    status: String,
    agent_id: String,
}

/// Returns the verdict on the subagent whose end the event reports.
fn claude_code_context(folder: &ProgramFolder, event: &HookEvent) -> Option<String> {
    let (agent, reported) = ended_agent(event)?;
    let session = folder.beneath(&event.transcript_path)?;
    transcripts(&session, &agent)?.into_iter().find_map(|transcript| {
        // The reported end wins over the subagent's own record.
        folder.verdict_on(transcript, None, |worker| {
            if let Some(reported) = &reported {
                reported.apply(worker);
            }
            true
        })
    })
}

/// Returns the id of the subagent whose end the event reports to the agent that started it, and
/// that end, if the event states a failure or a stop.
///
/// An answer to SubagentStop would reach the subagent, which would then continue. So there is none.
fn ended_agent(event: &HookEvent) -> Option<(String, Option<ReportedEnd>)> {
    let (id, reported) = match event.hook_event_name.as_str() {
        "PostToolUse" => {
            let result: AgentResult = serde_json::from_value(event.tool_response.clone()?).ok()?;
            (result.status == "completed").then_some((result.agent_id, None))?
        }
        "UserPromptSubmit" => {
            let (id, reported) = ended_task(event.prompt.as_deref()?)?;
            (id.to_owned(), reported)
        }
        _ => return None,
    };
    is_plain(&id).then_some((id, reported))
}

/// Returns the possible paths of the transcript of `agent`: in the session's own folder or, in
/// older versions, beside the transcript of the session.
///
/// Returns `None` unless `session` is a transcript in a project.
fn transcripts(session: &RelPath, agent: &str) -> Option<[RelPath; 2]> {
    let names: Vec<Name> = session.names().collect();
    let [projects, _, file] = names.as_slice() else { return None };
    let folder = Name::new(file.as_bytes().strip_suffix(b".jsonl")?).ok()?;
    let project = session.parent();
    let subagents = project.join(&folder).join(&Name::new("subagents").ok()?);
    let name = Name::new(format!("agent-{agent}.jsonl")).ok()?;
    (projects.as_bytes() == b"projects").then(|| [subagents.join(&name), project.join(&name)])
}
