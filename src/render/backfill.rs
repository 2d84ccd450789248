//! What was not read in time is read on behind the requests that wait.

use std::sync::atomic::{AtomicBool, Ordering};

use super::Renderer;

impl Renderer {
    /// Whether a file about many workers waits for [`Renderer::catch_up`], to be called until it has caught up. Says so
    /// to one, until that is so.
    pub fn claim_backfill(&self) -> bool {
        // Both are asked: each takes note of it.
        (self.digests.has_backlog() | self.index.is_behind()) && !self.is_backfilling.swap(true, Ordering::AcqRel)
    }

    /// Reads for a moment what files about many workers are made of, and their words where somebody searched for some;
    /// each worker once. Whether there is more of it.
    pub fn backfill(&self) -> bool {
        let mut step = Step { is_backfilling: &self.is_backfilling, more: false };
        step.more = self.digests.backfill(&self.view)
            || self.index.catch_up(&self.view, &|member, stamp, has_time| self.indexed(member, stamp, has_time));
        let more = step.more;
        drop(step);
        // Who fell behind just before that was told that somebody reads on.
        more || self.claim_backfill()
    }
}

/// A moment of reading on. Where it is the last, or ends by a panic, somebody else may begin.
struct Step<'a> {
    is_backfilling: &'a AtomicBool,
    more: bool,
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        self.is_backfilling.store(self.more, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;
    use std::sync::Arc;

    use super::super::Settings;
    use super::*;
    use crate::catalog::{Freshness, Source};
    use crate::store::Memory;
    use crate::view::{Filter, View};

    #[test]
    fn one_reads_on_at_a_time_and_another_where_it_has_ended() {
        let source = Source::over(Arc::new(Memory::new()), None);
        let view = View::over(vec![source], Freshness::default(), Filter::default()).unwrap();
        let renderer = Renderer::new(view, Settings::default());
        assert!(!renderer.claim_backfill());
        renderer.digests.mark_incomplete();
        assert!(renderer.claim_backfill());
        // The one who reads on does this, too.
        renderer.digests.mark_incomplete();
        assert!(!renderer.claim_backfill());
        assert!(!renderer.backfill());
        renderer.digests.mark_incomplete();
        assert!(renderer.claim_backfill());
        let panics = || {
            let _step = Step { is_backfilling: &renderer.is_backfilling, more: false };
            panic!("on purpose");
        };
        assert!(catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
        assert!(renderer.claim_backfill());
    }
}
