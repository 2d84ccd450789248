//! The states of the files of many workers.

use std::sync::Arc;

use crate::catalog::Fingerprint;
use crate::error::Result;
use crate::view::Member;

/// Workers, each with the state of its files or the reason why that is unknown.
pub(crate) type WorkerStates = Vec<(Arc<Member>, Result<Arc<Fingerprint>>)>;

/// Hashes the workers and the states of their files.
pub(crate) fn hash_all(hash: &mut blake3::Hasher, states: &WorkerStates) {
    for (member, stamp) in states {
        hash.update(member.name.as_bytes());
        hash.update(&[0]);
        hash.update(&member.entry.key());
        hash.update(&stamp.as_ref().map(|stamp| stamp.version).unwrap_or_default());
    }
}
