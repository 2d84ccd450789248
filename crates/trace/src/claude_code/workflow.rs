//! Records of workflows: the journal of a run, and the state in which it ended.

use serde::Deserialize;

use super::super::lenient::{MaybeObject, MaybeStr};
use super::super::transcript::{IndexBuilder, Member, RawRecord, ReportedEnd};
use super::super::value::truncate;
use super::layout::STATE;
use super::schema::decode;
use swarmletfs_base::model::Status;

/// Maximum length of the message of a failure, in bytes.
const MESSAGE_MAX: usize = 300;

/// An agent in the state of a run.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct AgentState<'a> {
    #[serde(rename = "agentId")]
    id: MaybeStr<'a>,
    label: MaybeStr<'a>,
    state: MaybeStr<'a>,
    error: MaybeStr<'a>,
}

/// Adds a record of a journal or a state to the index. Returns false if it cannot be decoded.
pub(super) fn add_record(index: &mut IndexBuilder<'_>, record: RawRecord<'_>) -> bool {
    if index.reads_documents() {
        return add_state(index, record);
    }
    decode(record.text, |line| {
        let agent = line.agent_id.as_str();
        let end = match line.kind.as_str() {
            "started" => None,
            "result" => Some(end(Status::Completed, "completed", "")),
            "failed" => Some(end(Status::Failed, "failed", "")),
            _ => return,
        };
        let end = end.map(|end| ReportedEnd {
            result: line.returned_text().map(|text| IndexBuilder::unread_text(record.span, &text)),
            ..end
        });
        index.note_end(agent, end);
    })
}

/// Adds a member of the state of a run. The program writes the ID of its task before the others.
fn add_state(index: &mut IndexBuilder<'_>, record: RawRecord<'_>) -> bool {
    let member = STATE.get(usize::from(record.span.part));
    if let Some(Member::List(_)) = member {
        let agent = serde_json::from_str::<MaybeObject<AgentState<'_>>>(record.text);
        let Ok(MaybeObject(agent)) = agent else { return false };
        agent.into_iter().for_each(|agent| add_agent(index, &agent));
        return true;
    }
    let Ok(value) = serde_json::from_str::<MaybeStr<'_>>(record.text) else { return false };
    let facts = &mut index.index.facts;
    if member == Some(&Member::Value("taskId")) {
        IndexBuilder::set_fact(&mut facts.id, value.as_str());
    }
    let Some(task) = facts.id.clone() else { return true };
    let known = index.index.ends.get(&task).cloned();
    let known = known.unwrap_or_else(|| end(Status::Unknown, "", ""));
    let new = match member {
        Some(Member::Value("error")) => {
            ReportedEnd { message: end(known.status, "", value.as_str()).message, ..known }
        }
        Some(Member::Value("status")) => {
            let status = match value.as_str() {
                "completed" => Status::Completed,
                "failed" => Status::Failed,
                "killed" | "stopped" => Status::Abandoned,
                _ => Status::Unknown,
            };
            ReportedEnd { message: known.message, ..end(status, value.as_str(), "") }
        }
        _ => known,
    };
    index.note_end(&task, Some(new));
    true
}

fn add_agent(index: &mut IndexBuilder<'_>, agent: &AgentState<'_>) {
    let task = index.index.facts.id.clone().unwrap_or_default();
    let run = index.index.ends.get(&task).cloned();
    let end = match (agent.state.as_str(), run.as_ref()) {
        ("done", _) => end(Status::Completed, "completed", ""),
        ("error", _) => end(Status::Failed, "failed", agent.error.as_str()),
        (_, Some(run)) if run.status == Status::Abandoned => end(run.status, &run.word, ""),
        _ => return,
    };
    if let Some(run) = run.filter(|run| end.status == Status::Failed && run.message.is_empty()) {
        let failure = format!("[{}] failed: {}", agent.label.as_str(), end.message);
        index.note_end(&task, Some(ReportedEnd { message: truncate(failure, MESSAGE_MAX), ..run }));
    }
    index.note_end(agent.id.as_str(), Some(end));
}

fn end(status: Status, word: &str, message: &str) -> ReportedEnd {
    let [word, message] = [word, message].map(|text| truncate(text.to_owned(), MESSAGE_MAX));
    ReportedEnd { status, word, message, result: None }
}
