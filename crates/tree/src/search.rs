//! Search in the files of workers, independent of how results are rendered.

pub mod glob;
pub mod ranked;
pub mod regex;

/// Number of leading bytes that decide whether a file is binary.
const BINARY_PREFIX: usize = 8_000;

/// Returns true if a file with this beginning is binary by git's rule: a NUL near the start.
pub fn is_binary(beginning: &[u8]) -> bool {
    memchr::memchr(0, beginning.get(..BINARY_PREFIX).unwrap_or(beginning)).is_some()
}
