//! Truncated hashes that identify contents and states.

use blake3::Hasher;

/// A hash of the inputs of something derived, such as a generated file.
pub(crate) type Key = [u8; 16];

/// Returns the first `N` bytes of a hash.
pub(crate) fn digest<const N: usize>(hash: &Hasher) -> [u8; N] {
    let mut first = [0; N];
    hash.finalize_xof().fill(&mut first);
    first
}
