//! The state of the files of many workers, as far as there is time to look at all.

use std::sync::Arc;
use std::time::Instant;

use super::Renderer;
use super::fragments::Stamped;
use crate::catalog::Stamp;
use crate::error::{Error, Result};
use crate::spread::spread;
use crate::store::Time;
use crate::view::Member;

impl Renderer {
    /// The newest change of any file of each. Where there is no time to look at all of them, as it was seen last, or what
    /// listing tells.
    pub fn newest_of(&self, members: &[Arc<Member>]) -> Vec<Time> {
        let newest = |(member, stamp): (Arc<Member>, Result<Arc<Stamp>>)| match stamp {
            Ok(stamp) => stamp.newest,
            Err(_) => member.entry.newest(),
        };
        self.stamps(members).into_iter().map(newest).collect()
    }

    /// The state of the files of each. Where there is no time to look at all of them again, the state in which some were
    /// seen last, or none; the rest is then looked at behind the requests that wait.
    pub(super) fn stamps(&self, members: &[Arc<Member>]) -> Stamped {
        let begun = Instant::now();
        let in_time = || begun.elapsed() < self.settings.deadline / 2;
        // Those of whom nothing is known yet come first.
        let mut order: Vec<(usize, &Arc<Member>)> = members.iter().enumerate().collect();
        order.sort_by_cached_key(|(_, member)| self.view.last_stamp(member).is_some());
        let stamps = spread(&order, |(_, member)| match in_time() {
            true => self.view.stamp(member, false),
            false => self.view.last_stamp(member).ok_or(Error::Late),
        });
        if !in_time() {
            self.fragments.fall_behind();
        }
        let mut stamped: Vec<_> = order.into_iter().zip(stamps).collect();
        stamped.sort_unstable_by_key(|((at, _), _)| *at);
        stamped.into_iter().map(|((_, member), stamp)| (member.clone(), stamp)).collect()
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
