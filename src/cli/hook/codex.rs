//! Events of Codex CLI.
//!
//! No event says which subagent ended: a wait may name none, and an answer to SubagentStop would
//! reach the subagent, which would then continue. So the session's rollout says which subagents
//! were started, their own rollouts which of them ended, and reports in the session's rollout which
//! of the ends its model knows.

use super::{HookEvent, ProgramFolder};
use crate::model::Status;
use crate::output::verdict::HEAD;
use crate::store::Disk;
use crate::trace::unreported_subagents;

/// Maximum number of subagents that one answer is about. The next answer is about the others.
const SUBAGENTS_MAX: usize = 4;

/// Returns the verdicts on the subagents that ended since the last answer.
pub(super) fn context(folder: &ProgramFolder, event: &HookEvent) -> Option<String> {
    if !matches!(event.hook_event_name.as_str(), "PostToolUse" | "UserPromptSubmit") {
        return None;
    }
    let session = folder.beneath(&event.transcript_path)?;
    let store = Disk::open(&folder.path).ok().filter(|store| !store.is_in_own_mount())?;
    let subagents = unreported_subagents(&store, &session, HEAD)?;
    let verdicts = subagents.into_iter().filter_map(|subagent| {
        folder.verdict_on(subagent.rollout, |worker| {
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
