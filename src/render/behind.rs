//! What was not read in time is read on behind the requests that wait.

use std::sync::atomic::{AtomicBool, Ordering};

use super::Renderer;

impl Renderer {
    /// Whether a file about many workers waits for [`Renderer::catch_up`], to be called until it has caught up. Says so
    /// to one, until that is so.
    pub fn is_behind(&self) -> bool {
        // Both are asked: each takes note of it.
        (self.fragments.is_behind() | self.index.is_behind()) && !self.catching_up.swap(true, Ordering::AcqRel)
    }

    /// Reads for a moment what files about many workers are made of, and their words where somebody searched for some;
    /// each worker once. Whether there is more of it.
    pub fn catch_up(&self) -> bool {
        let mut step = Step { catching_up: &self.catching_up, more: false };
        step.more = self.fragments.catch_up(&self.view)
            || self.index.catch_up(&self.view, &|member, stamp, go_on| self.words(member, stamp, go_on));
        let more = step.more;
        drop(step);
        // Who fell behind just before that was told that somebody reads on.
        more || self.is_behind()
    }
}

/// A moment of reading on. Where it is the last, or ends by a panic, somebody else may begin.
struct Step<'a> {
    catching_up: &'a AtomicBool,
    more: bool,
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        self.catching_up.store(self.more, Ordering::Release);
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
        let source = Source::from_store(Arc::new(Memory::new()), None);
        let view = View::over(vec![source], Freshness::default(), Filter::default()).unwrap();
        let renderer = Renderer::new(view, Settings::default());
        assert!(!renderer.is_behind());
        renderer.fragments.fall_behind();
        assert!(renderer.is_behind());
        // The one who reads on does this, too.
        renderer.fragments.fall_behind();
        assert!(!renderer.is_behind());
        assert!(!renderer.catch_up());
        renderer.fragments.fall_behind();
        assert!(renderer.is_behind());
        let panics = || {
            let _step = Step { catching_up: &renderer.catching_up, more: false };
            panic!("on purpose");
        };
        assert!(catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
        assert!(renderer.is_behind());
    }
}
