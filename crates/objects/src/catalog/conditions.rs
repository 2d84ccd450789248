//! Finds out whether a store honors the conditions of writes.
//!
//! Some stores ignore the headers `If-None-Match` and `If-Match`, or the header of Google,
//! `x-goog-if-generation-match`. There two compactions would replace each other's manifest, so none
//! may write one.

use bytes::Bytes;

use super::layout::{PROBES, new_id};
use crate::failure::RequestFailure;
use crate::writer::{BucketWriter, PutCondition, PutError, StoredVersion};

/// Text of the error of a store that knows no conditions.
const NOT_IMPLEMENTED: &str = "NotImplemented";

/// The answer of a store to conditions of writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConditionSupport {
    Honored,
    Ignored,
}

/// Writes an object that no reader sees under several conditions, and deletes it.
///
/// # Errors
///
/// A request fails; the credentials may not allow to write.
pub fn find_conditions(writer: &BucketWriter) -> Result<ConditionSupport, RequestFailure> {
    let key = format!("{PROBES}{}", new_id());
    let honored = are_honored(writer, &key);
    // A probe that stays is removed by a later compaction.
    let _ = writer.delete([key]);
    match honored {
        Ok(true) => Ok(ConditionSupport::Honored),
        Ok(false) => Ok(ConditionSupport::Ignored),
        Err(failure) if failure.to_string().contains(NOT_IMPLEMENTED) => {
            Ok(ConditionSupport::Ignored)
        }
        Err(failure) => Err(failure),
    }
}

fn are_honored(writer: &BucketWriter, key: &str) -> Result<bool, RequestFailure> {
    let put = |text: &'static str, condition: &PutCondition| match writer.put(
        key,
        Bytes::from_static(text.as_bytes()),
        condition,
    ) {
        Ok(version) => Ok(Some(version)),
        Err(PutError::Failed(failure)) => Err(failure),
        Err(PutError::Taken | PutError::Changed | PutError::Source(_)) => Ok(None),
    };
    let Some(version) = put("first", &PutCondition::IfAbsent)? else { return Ok(false) };
    let other = PutCondition::IfMatch(StoredVersion {
        etag: "\"00000000000000000000000000000000\"".to_owned(),
        generation: Some("1".to_owned()),
    });
    Ok(put("second", &PutCondition::IfAbsent)?.is_none()
        && put("third", &other)?.is_none()
        && put("fourth", &PutCondition::IfMatch(version))?.is_some())
}
