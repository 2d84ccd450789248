//! The subagents of a session that its model has not read a report on yet.

use jiff::{Timestamp, ToSpan};
use memchr::memmem;
use serde::Deserialize;

use super::layout::rollout_id;
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{Kind, Store, read_range};

/// Number of bytes at the end of a rollout that are searched for subagents.
const TAIL_MAX: usize = 4 << 20;
/// The rollouts of one day are in `sessions/YEAR/MONTH/DAY`.
const DAY: &str = "sessions/%Y/%m/%d";
/// Length of the time in an ID, in hexadecimal digits. It is in milliseconds.
const TIME_DIGITS: usize = 12;

/// A subagent, which may still be running.
#[derive(Debug, PartialEq, Eq)]
pub struct UnreportedSubagent {
    pub rollout: RelPath,
    /// The name by which the session knows it, such as `/root/disk`. Old versions use the ID.
    pub path: Option<String>,
}

#[derive(Debug, Deserialize)]
struct SessionLine {
    payload: SessionPayload,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct SessionPayload {
    role: String,
    content: Vec<RolloutText>,
    thread_id: String,
    item: SubagentItem,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RolloutText {
    text: String,
}

/// An operation on subagents. Old versions name them as receivers.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct SubagentItem {
    #[serde(rename = "type")]
    kind: String,
    tool: String,
    agent_thread_id: String,
    agent_path: String,
    receiver_thread_ids: Vec<String>,
}

/// Returns the subagents that the session of `rollout` started or gave more work, and on which no
/// later report of a hook is in the rollout. The latest one is the last.
///
/// A line of a hook that begins with `report` and the ID of a subagent is a report on it.
/// Returns `None` if `rollout` is not the path of a rollout, or cannot be read.
pub fn unreported_subagents(
    store: &dyn Store,
    rollout: &RelPath,
    report: &str,
) -> Option<Vec<UnreportedSubagent>> {
    let session = rollout_id(rollout)?;
    let file = store.open(rollout).ok()?;
    let size = file.stat_without_acl().ok()?.size;
    let tail = read_range(&*file, size.saturating_sub(TAIL_MAX as u64), TAIL_MAX).ok()?;
    let mut open: Vec<(String, String)> = Vec::new();
    let marks = ["SubAgentActivity", "CollabAgentToolCall", report].map(memmem::Finder::new);
    let is_relevant = |line: &&[u8]| marks.iter().any(|mark| mark.find(line).is_some());
    for line in tail.split(|byte| *byte == b'\n').filter(is_relevant) {
        let Ok(SessionLine { payload }) = serde_json::from_slice(line) else { continue };
        let item = payload.item;
        let ids = match &*item.kind {
            "SubAgentActivity" => vec![item.agent_thread_id],
            // A wait and a close give no work.
            "CollabAgentToolCall" if !matches!(&*item.tool, "wait" | "close_agent") => {
                item.receiver_thread_ids
            }
            _ => Vec::new(),
        };
        // A subagent may begin with a copy of its parent's history.
        for id in ids.into_iter().filter(|_| payload.thread_id == session) {
            open.retain(|(known, _)| *known != id);
            open.push((id, item.agent_path.clone()));
        }
        if payload.role == "developer" {
            let lines = payload.content.iter().flat_map(|part| part.text.lines());
            let ids = lines.filter_map(|line| line.strip_prefix(report)?.split(' ').next());
            ids.for_each(|id| open.retain(|(known, _)| known != id));
        }
    }
    let found = open.into_iter().filter_map(|(id, path)| {
        let path = Some(path).filter(|path| !path.is_empty());
        Some(UnreportedSubagent { rollout: find_rollout(store, &id)?, path })
    });
    Some(found.collect())
}

/// Returns the path of the rollout of the session `id`, whose beginning is a time.
fn find_rollout(store: &dyn Store, id: &str) -> Option<RelPath> {
    let digits: String = id.chars().filter(|digit| *digit != '-').take(TIME_DIGITS).collect();
    let time = Timestamp::from_millisecond(i64::from_str_radix(&digits, 16).ok()?).ok()?;
    // The folder has the local date, which may be another one.
    [0, -24, 24].into_iter().find_map(|hours| {
        let day = time.checked_add(hours.hours()).ok()?;
        let folder = RelPath::parse(day.strftime(DAY).to_string()).ok()?;
        let entries = store.list(&folder).ok()?;
        let files = entries.into_iter().filter(|entry| entry.kind == Kind::File);
        let mut paths = files.map(|file| folder.join(&file.name));
        paths.find(|path| rollout_id(path).as_deref() == Some(id))
    })
}
