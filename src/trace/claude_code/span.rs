//! Positions in a transcript.

use serde::{Deserialize, Serialize};

/// The position of a line in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Span {
    pub(super) offset: u64,
    pub(super) len: usize,
}
