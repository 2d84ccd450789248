//! Events of Claude Code.

use serde::Deserialize;

use super::{HookEvent, ProgramFolder};
use crate::name::{Name, RelPath};
use crate::trace::{ReportedEnd, ended_task};

const ID_MAX: usize = 64;

/// The result of a call that ran a subagent.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AgentResult {
    status: String,
    agent_id: String,
}

/// Returns the verdict on the subagent whose end the event reports.
pub(super) fn context(folder: &ProgramFolder, event: &HookEvent) -> Option<String> {
    let (agent, reported) = ended_agent(event)?;
    let session = folder.beneath(&event.transcript_path)?;
    transcripts(&session, &agent)?.into_iter().find_map(|transcript| {
        // The reported end wins over the subagent's own record.
        folder.verdict_on(transcript, |worker| {
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
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    ((1..=ID_MAX).contains(&id.len()) && id.bytes().all(is_plain)).then_some((id, reported))
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
