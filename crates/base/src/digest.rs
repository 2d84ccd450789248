//! Truncated hashes that identify contents and states.

use std::hash::{self, Hash};

use blake3::Hasher;

/// A hash of the inputs of something derived, such as a generated file.
pub type Key = [u8; 16];

pub fn digest<const N: usize>(hash: &Hasher) -> [u8; N] {
    let mut first = [0; N];
    hash.finalize_xof().fill(&mut first);
    first
}

pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Updates `hasher` with `value`. The result must not outlive the process: it depends on the
/// compiler.
pub fn hash_value(hasher: &mut Hasher, value: &impl Hash) {
    value.hash(&mut StdHasher(hasher));
}

struct StdHasher<'a>(&'a mut Hasher);

impl hash::Hasher for StdHasher<'_> {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        u64::from_le_bytes(digest(self.0))
    }
}
