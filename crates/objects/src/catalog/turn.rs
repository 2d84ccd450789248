//! Which process brings a catalog up to date, where many could.
//!
//! A process that finds many announcements writes an object first, if there is none or only an old
//! one. The others find it and leave the work to that process. The object is deleted after a
//! compaction that succeeded. After one that failed it stays, so that nobody tries again until it
//! is old. It saves work and decides nothing: two compactions at once lose no row.

use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

use super::layout::{NEWS, TURN, new_id};
use crate::failure::{FailureKind, RequestFailure};
use crate::writer::{BucketWriter, PutCondition, PutError};

/// Time after which a process that took the turn counts as gone, or as failed.
const TURN_MAX: Duration = Duration::from_secs(5 * 60);
/// Maximum size of the object, in bytes.
const SIZE_MAX: u64 = 1_024;

/// Returns true if `count` announcements wait, which must be at most 1,000.
///
/// # Errors
///
/// The request fails.
pub fn have_many_announced(writer: &BucketWriter, count: usize) -> Result<bool, RequestFailure> {
    writer.has_many(NEWS, count)
}

/// The turn of this process.
pub struct CompactionTurn<'a>(&'a BucketWriter);

impl CompactionTurn<'_> {
    /// Takes the turn, with two requests at most. Returns `None` if another process has it.
    ///
    /// # Errors
    ///
    /// A request fails.
    pub fn take(writer: &BucketWriter) -> Result<Option<CompactionTurn<'_>>, RequestFailure> {
        let condition = match writer.get(TURN, SIZE_MAX)? {
            Some((turn, _)) if is_held(&turn, Timestamp::now()) => return Ok(None),
            Some((_, version)) => PutCondition::IfMatch(version),
            None => PutCondition::IfAbsent,
        };
        match writer.put(TURN, new_id().into(), &condition) {
            Ok(_) => Ok(Some(CompactionTurn(writer))),
            Err(PutError::Taken | PutError::Changed) => Ok(None),
            // A store may let many that write it at once wait for long.
            Err(PutError::Failed(failure)) if failure.kind == FailureKind::TimedOut => Ok(None),
            Err(error) => Err(error.into_failure()),
        }
    }

    /// Lets others take the turn at once.
    pub fn end(self) {
        // One that stays becomes old.
        let _ = self.0.delete([TURN.to_owned()]);
    }
}

/// Returns true if the process that wrote `turn`, the id of a time, may still be at work. Clocks
/// may differ.
fn is_held(turn: &[u8], now: Timestamp) -> bool {
    let began = Uuid::try_parse_ascii(turn).ok().and_then(|id| id.get_timestamp());
    let began = began.and_then(|began| i64::try_from(began.to_unix().0).ok());
    began.is_some_and(|began| began.abs_diff(now.as_second()) < TURN_MAX.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_held_until_it_is_old() {
        let turn = new_id();
        let now = Timestamp::now();
        let limit = TURN_MAX + Duration::from_secs(1);
        for (now, expected) in [(now, true), (now + limit, false), (now - limit, false)] {
            assert_eq!(is_held(turn.as_bytes(), now), expected, "{now}");
        }
        for other in ["", "x", "00000000000000000000000000000000", "\u{fc}"] {
            assert!(!is_held(other.as_bytes(), now), "{other}");
        }
    }
}
