//! Truncated hashes that identify contents and states.

use blake3::Hasher;

/// Returns the first `N` bytes of a hash.
pub(crate) fn digest<const N: usize>(hash: &Hasher) -> [u8; N] {
    let mut first = [0; N];
    hash.finalize_xof().fill(&mut first);
    first
}
