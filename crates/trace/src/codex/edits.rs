//! Decodes the changes of files from the records of calls and operations.

use super::super::bounded;
use super::super::transcript::{CallRecord, RawRecord, shorten_id};
use super::operation::Operation;
use super::patch;
use super::schema::{Payload, decode};
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::model::FileEdit;

/// Reads the changes that a call made, without its number. `result` is the record that states
/// them, if there is one.
///
/// # Errors
///
/// Fails with [`Error::Stale`] if the records do not hold the call any more.
pub(super) fn read_edits(call: &CallRecord<'_>, result: RawRecord<'_>) -> Result<Vec<FileEdit>> {
    let mut edits = None;
    // The operation holds the actual change; the arguments hold the requested one.
    decode(result.text, |_, payload| {
        let operation = Operation::new(payload).filter(|op| shorten_id(op.id) == call.id);
        let changes = operation.and_then(|operation| operation.changes());
        edits = changes.map(|changes| patch::stated_edits(&changes));
    });
    if let Some(edits) = edits {
        return Ok(edits);
    }
    decode(call.record.text, |_, payload| {
        if shorten_id(payload.call_id.as_str()) == call.id {
            edits = Some(asked_edits(payload));
        } else if Operation::new(payload).is_some_and(|op| shorten_id(op.id) == call.id) {
            edits = Some(Vec::new());
        }
    });
    edits.ok_or(Error::Stale)
}

fn asked_edits(call: &Payload<'_>) -> Vec<FileEdit> {
    if let Some(input) = call.input.0.as_deref() {
        if call.name.as_str() == patch::SCRIPT_TOOL {
            let patch = patch::patch_of_script(input);
            return patch.map(|patch| patch::edits(&patch)).unwrap_or_default();
        }
        return patch::edits(input);
    }
    let arguments = super::decode::arguments_text(call);
    let arguments = arguments.as_deref().and_then(bounded::parse_any);
    let patch = arguments.as_ref().and_then(patch::patch_text);
    patch.map(patch::edits).unwrap_or_default()
}
