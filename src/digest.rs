//! What tells contents and states apart: the beginning of a hash.

use blake3::Hasher;

/// The first `N` bytes of a hash.
pub(crate) fn digest<const N: usize>(hash: &Hasher) -> [u8; N] {
    let mut first = [0; N];
    hash.finalize_xof().fill(&mut first);
    first
}
