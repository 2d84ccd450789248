//! Threads that read attributes of the files that they list, such as the threads of `ls -l` and
//! `grep -r`. They receive attributes with each listing, which saves a lookup of each file. Other
//! threads, such as the threads of `find`, receive attributes of directories only, since they
//! request no others.

use std::sync::atomic::{AtomicU32, Ordering};

/// Number of threads to remember. Of several threads with the same remainder, only the last one is
/// remembered.
const THREADS: usize = 64;

const NO_THREAD: u32 = u32::MAX;

/// The threads that looked up files last. The kernel reports 0 for all threads of other PID
/// namespaces: they count as one.
pub(super) struct AttrReaders([AtomicU32; THREADS]);

impl Default for AttrReaders {
    fn default() -> AttrReaders {
        AttrReaders([const { AtomicU32::new(NO_THREAD) }; THREADS])
    }
}

impl AttrReaders {
    /// Records that a thread, by the number that the kernel reports, looked up a file.
    pub(super) fn note(&self, thread: u32) {
        self.slot(thread).inspect(|slot| slot.store(thread, Ordering::Relaxed));
    }

    pub(super) fn contains(&self, thread: u32) -> bool {
        self.slot(thread).is_some_and(|slot| slot.load(Ordering::Relaxed) == thread)
    }

    fn slot(&self, thread: u32) -> Option<&AtomicU32> {
        self.0.get(thread as usize % THREADS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_thread_of_each_slot_is_known() {
        let readers = AttrReaders::default();
        assert!(!readers.contains(5) && !readers.contains(0));
        readers.note(5);
        readers.note(6);
        assert!(readers.contains(5) && readers.contains(6));
        readers.note(5 + THREADS as u32);
        assert!(!readers.contains(5) && readers.contains(6));
    }
}
