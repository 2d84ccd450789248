//! The state of the files of many workers, as far as there is time to look at all.

use std::sync::Arc;

use super::Renderer;
use super::fragments::Stamped;
use crate::catalog::Fingerprint;
use crate::error::{Error, Result};
use crate::spread::spread;
use crate::store::Time;
use crate::view::Member;

impl Renderer {
    /// Returns when each worker last wrote; where there was no time to look, what listing tells. `None` for those whose files
    /// cannot be looked at.
    pub fn last_writes(&self, members: &[Arc<Member>]) -> Vec<Option<Time>> {
        let last_write = |(member, stamp): (Arc<Member>, Result<Arc<Fingerprint>>)| match stamp {
            Ok(stamp) => Some(stamp.last_write()),
            Err(Error::Late) => Some(member.entry.last_write()),
            Err(_) => None,
        };
        self.stamps_in_time(members).0.into_iter().map(last_write).collect()
    }

    /// The state of the files of each. Where there is no time to look at all of them again, the state in which some were
    /// seen last, or none; the rest is then looked at behind the requests that wait.
    pub(super) fn stamps(&self, members: &[Arc<Member>]) -> Stamped {
        let (stamped, is_all) = self.stamps_in_time(members);
        if !is_all {
            self.fragments.fall_behind();
        }
        stamped
    }

    /// The same, and whether there was time for all of them; nobody looks at the rest.
    fn stamps_in_time(&self, members: &[Arc<Member>]) -> (Stamped, bool) {
        let clock = self.settings.clock(5);
        let in_time = || clock.may_go_on();
        // Those of whom nothing is known yet come first.
        let mut order: Vec<(usize, &Arc<Member>)> = members.iter().enumerate().collect();
        order.sort_by_cached_key(|(_, member)| self.view.last_fingerprint(member).is_some());
        let stamps = spread(&order, |(_, member)| match in_time() {
            true => self.view.fingerprint(member, false),
            false => self.view.last_fingerprint(member).ok_or(Error::Late),
        });
        let is_all = in_time();
        let mut stamped: Vec<_> = order.into_iter().zip(stamps).collect();
        stamped.sort_unstable_by_key(|((at, _), _)| *at);
        (stamped.into_iter().map(|((_, member), stamp)| (member.clone(), stamp)).collect(), is_all)
    }
}

/// Takes the workers, and the state of their files, into a key.
pub(super) fn hash_all(hash: &mut blake3::Hasher, stamped: &Stamped) {
    for (member, stamp) in stamped {
        hash.update(member.name.as_bytes());
        hash.update(&[0]);
        hash.update(&member.entry.key());
        hash.update(&stamp.as_ref().map(|stamp| stamp.version).unwrap_or_default());
    }
}
