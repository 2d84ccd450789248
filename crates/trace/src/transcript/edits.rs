//! Reads the changes of files that a conversation records, from the records of its calls.

use super::super::json_text::json_text;
use super::format::CallRecord;
use super::index::{CallEntry, CallResult, Conversation};
use super::turn::RawRecord;
use super::virtual_dir::VirtualDir;
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::error::Result;
use swarmletfs_base::model::{
    AccessKind, FileEdit, Outcome, RecordedEdits, RecordedHunk, TextReplacement,
};
use swarmletfs_base::store::read_range;

/// Maximum number of bytes of records that are read for the changes of one conversation. If the
/// values made from a record are larger than the record, they count instead.
const BYTES_MAX: usize = 64 << 20;

/// Returns true if the conversation of `folder` changed a file, as far as it can be read until
/// `deadline` passes, or if it cannot be read whole.
///
/// # Errors
///
/// Fails if the transcript cannot be read.
pub(super) fn has_edits(folder: &VirtualDir, deadline: Deadline<'_>) -> Result<bool> {
    let (index, is_complete) = folder.index(deadline)?;
    let conversation = folder.found_conversation(&index, is_complete)?;
    Ok(!is_complete || edit_calls(folder, conversation).next().is_some())
}

/// Reads the changes of the conversation of `folder`.
///
/// # Errors
///
/// Fails if the transcript cannot be read, or changed since it was indexed.
pub(super) fn read_edits(folder: &VirtualDir, deadline: Deadline<'_>) -> Result<RecordedEdits> {
    let (index, is_complete) = folder.index(deadline)?;
    let conversation = folder.found_conversation(&index, is_complete)?;
    let file = folder.open_transcript()?;
    let mut recorded = RecordedEdits { timed_out: !is_complete, ..RecordedEdits::default() };
    let mut room = BYTES_MAX;
    for (seq, call, result) in edit_calls(folder, conversation) {
        if recorded.unread > 0 || !deadline.has_time() {
            recorded.unread += 1;
            continue;
        }
        let own_span = result.map_or(call.span, |result| result.span);
        let (span, result_span) = (call.span, call.change_record.unwrap_or(own_span));
        let records_len = span.len.saturating_add(result_span.len);
        match room.checked_sub(records_len) {
            Some(left) => room = left,
            None => {
                recorded.excess += 1;
                continue;
            }
        }
        let bytes = read_range(&*file, span.offset, span.len)?;
        let result_bytes = read_range(&*file, result_span.offset, result_span.len)?;
        let call_record =
            CallRecord { id: &call.id, record: RawRecord { span, text: &json_text(&bytes) } };
        let result = RawRecord { span: result_span, text: &json_text(&result_bytes) };
        for edit in folder.format.read_edits(&call_record, result)? {
            room = room.saturating_sub(list_sizes(&edit).saturating_sub(records_len));
            recorded.edits.push(FileEdit { seq, ..edit });
        }
    }
    Ok(recorded)
}

/// Returns the sizes of the lists of a change without their texts, in bytes. The texts are no
/// larger than the records that hold them, but a list of short texts can be.
fn list_sizes(edit: &FileEdit) -> usize {
    let lines: usize = edit.hunks.iter().map(|hunk| hunk.lines.len()).sum();
    edit.replacements.len() * size_of::<TextReplacement>()
        + edit.hunks.len() * size_of::<RecordedHunk>()
        + lines * size_of::<String>()
}

fn edit_calls<'c>(
    folder: &VirtualDir,
    conversation: &'c Conversation,
) -> impl Iterator<Item = (u64, &'c CallEntry, Option<&'c CallResult>)> {
    let has_results = folder.format.records_results();
    conversation.calls.iter().zip(1..).filter_map(move |(call, seq)| {
        let is_edit = call.files.iter().any(|file| file.kind != AccessKind::Read);
        let took_place = match call.verdict().filter(|_| is_edit) {
            Some(verdict) => !matches!(verdict.outcome, Outcome::Failed | Outcome::NotRun),
            None => is_edit && !has_results,
        };
        took_place.then_some((seq, call, call.result.as_ref()))
    })
}
