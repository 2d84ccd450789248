//! The states of the files of many workers, read within a time limit.

use std::sync::Arc;

use super::analyzer::Analyzer;
use crate::catalog::Fingerprint;
use crate::error::{Error, Result};
use crate::parallel::parallel_map;
use crate::store::Time;
use crate::view::Member;

/// Workers, each with the state of its files or the reason why that is unknown.
pub(crate) type WorkerStates = Vec<(Arc<Member>, Result<Arc<Fingerprint>>)>;

impl Analyzer {
    /// Returns the time of each worker's last write, or `None` if its files cannot be read. When
    /// time runs out, the catalog's listing supplies the time.
    pub fn last_writes(&self, members: &[Arc<Member>]) -> Vec<Option<Time>> {
        let (states, _) = self.states_in_time(members);
        let last_writes = states.into_iter().map(|(member, stamp)| match stamp {
            Ok(stamp) => Some(stamp.last_write()),
            Err(Error::Late) => Some(member.entry.last_write()),
            Err(_) => None,
        });
        last_writes.collect()
    }

    /// Returns the state of each worker's files. When time runs out, the rest have their last known
    /// state or [`Error::Late`], and the backfill reads them.
    pub(crate) fn states(&self, members: &[Arc<Member>]) -> WorkerStates {
        let (states, is_complete) = self.states_in_time(members);
        if !is_complete {
            self.cache.mark_incomplete();
        }
        states
    }

    /// Returns the state of each worker's files, and true if there was time to read all of them.
    /// Does not schedule a backfill.
    fn states_in_time(&self, members: &[Arc<Member>]) -> (WorkerStates, bool) {
        let clock = self.settings.clock(5);
        let in_time = || clock.has_time();
        // Workers without a known state come first.
        let mut order: Vec<(usize, &Arc<Member>)> = members.iter().enumerate().collect();
        order.sort_by_cached_key(|(_, member)| self.view.last_fingerprint(member).is_some());
        let stamps = parallel_map(&order, |(_, member)| match in_time() {
            true => self.view.fingerprint(member, false),
            false => self.view.last_fingerprint(member).ok_or(Error::Late),
        });
        let is_complete = in_time();
        let mut states: Vec<_> = order.into_iter().zip(stamps).collect();
        states.sort_unstable_by_key(|((at, _), _)| *at);
        (states.into_iter().map(|((_, member), stamp)| (member.clone(), stamp)).collect(), is_complete)
    }
}

/// Hashes the workers and the states of their files.
pub(crate) fn hash_all(hash: &mut blake3::Hasher, states: &WorkerStates) {
    for (member, stamp) in states {
        hash.update(member.name.as_bytes());
        hash.update(&[0]);
        hash.update(&member.entry.key());
        hash.update(&stamp.as_ref().map(|stamp| stamp.version).unwrap_or_default());
    }
}
