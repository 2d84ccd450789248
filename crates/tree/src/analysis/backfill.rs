//! Reads in the background the workers and words that requests had no time to read.

use std::sync::atomic::{AtomicBool, Ordering};

use super::analyzer::Analyzer;

impl Analyzer {
    /// Claims the pending backfill. Returns true for one caller only, until
    /// [`Analyzer::backfill`] returns false.
    pub fn claim_backfill(&self) -> bool {
        // No short circuit: each call also updates its own backlog.
        (self.cache.has_backlog() | self.index.has_backlog())
            && !self.is_backfilling.swap(true, Ordering::AcqRel)
    }

    /// Reads workers from the backlog for a short time, and words for the search index if a search
    /// left some unread. Reads each worker once. Returns true if there is more to read.
    pub fn backfill(&self) -> bool {
        let mut step = BackfillStep { is_backfilling: &self.is_backfilling, more: false };
        step.more = self.cache.backfill(&self.view)
            || self.index.catch_up(&self.view, &|member, fingerprint, deadline| {
                self.indexed(member, fingerprint, deadline)
            });
        let more = step.more;
        drop(step);
        // A request that added to the backlog just before the drop saw a backfill in progress.
        more || self.claim_backfill()
    }
}

/// One step of the backfill. Dropping the last step, also in a panic, releases the claim.
struct BackfillStep<'a> {
    is_backfilling: &'a AtomicBool,
    more: bool,
}

impl Drop for BackfillStep<'_> {
    fn drop(&mut self) {
        self.is_backfilling.store(self.more, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;
    use std::sync::Arc;

    use super::super::settings::Settings;
    use super::*;
    use crate::catalog::{Freshness, Source};
    use crate::view::{Filter, View};
    use swarmletfs_base::store::Memory;

    #[test]
    fn one_caller_claims_the_backfill_until_it_ends_or_panics() {
        let source = Source::from_store(Arc::new(Memory::new()), None);
        let view = View::new(vec![source], Freshness::default(), Filter::default()).unwrap();
        let analyzer = Analyzer::new(view, Settings::default());
        assert!(!analyzer.claim_backfill());
        analyzer.cache.mark_incomplete();
        assert!(analyzer.claim_backfill());
        // The caller that holds the claim reads this backlog too.
        analyzer.cache.mark_incomplete();
        assert!(!analyzer.claim_backfill());
        assert!(!analyzer.backfill());
        analyzer.cache.mark_incomplete();
        assert!(analyzer.claim_backfill());
        let panics = || {
            let _step = BackfillStep { is_backfilling: &analyzer.is_backfilling, more: false };
            panic!("on purpose");
        };
        assert!(catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
        assert!(analyzer.claim_backfill());
    }
}
