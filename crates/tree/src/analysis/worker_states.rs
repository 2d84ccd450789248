//! The states of the files of many workers.

use std::sync::Arc;

use crate::catalog::Fingerprint;
use crate::view::Member;
use swarmletfs_base::error::Result;

/// Workers, each with the state of its files or the reason why the state is unknown.
pub type WorkerStates = Vec<(Arc<Member>, Result<Arc<Fingerprint>>)>;

/// Adds the states on which an answer about these workers depends to `hash`. All errors hash alike.
pub fn hash_states(hash: &mut blake3::Hasher, states: &WorkerStates) {
    for (member, fingerprint) in states {
        hash.update(member.name.as_bytes());
        // Ends the name; the rest has a fixed length.
        hash.update(&[0]);
        hash.update(&member.entry.key());
        hash.update(
            &fingerprint.as_ref().map(|fingerprint| fingerprint.version).unwrap_or_default(),
        );
    }
}
