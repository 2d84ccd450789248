//! Counts of changed lines, as changes.diff shows them.

use swarmletfs_base::text::unified;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct LineCounts {
    pub(super) added: u64,
    pub(super) removed: u64,
    pub(super) is_binary: bool,
}

impl LineCounts {
    /// Counts the lines that differ between two contents. The outer `None` is no content, and the
    /// inner one a binary content.
    pub(super) fn between(old: Option<Option<&str>>, new: Option<Option<&str>>) -> LineCounts {
        let (old, new) = (old.unwrap_or(Some("")), new.unwrap_or(Some("")));
        let (Some(old), Some(new)) = (old, new) else {
            return LineCounts { is_binary: true, ..LineCounts::default() };
        };
        let (added, removed) = if old.is_empty() || new.is_empty() {
            (new.split_inclusive('\n').count(), old.split_inclusive('\n').count())
        } else {
            let hunks = unified::hunks(old, new);
            let sum = |count: fn(&unified::Hunk) -> usize| hunks.iter().map(count).sum::<usize>();
            (sum(|hunk| hunk.added), sum(|hunk| hunk.removed))
        };
        LineCounts { added: added as u64, removed: removed as u64, is_binary: false }
    }

    /// Returns the counts of a path whose entry of one kind gave way to one of another kind.
    pub(super) fn replaced(old: LineCounts, new: LineCounts) -> LineCounts {
        let is_binary = old.is_binary || new.is_binary;
        LineCounts { added: new.added, removed: old.removed, is_binary }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_those_of_the_diff() {
        let between = |old, new| {
            let counts = LineCounts::between(old, new);
            (counts.added, counts.removed, counts.is_binary)
        };
        assert_eq!(between(None, Some(Some("a\nb"))), (2, 0, false));
        assert_eq!(between(Some(Some("a\nb\n")), None), (0, 2, false));
        assert_eq!(between(Some(Some("a\nb\nc\n")), Some(Some("a\nx\ny\nc\n"))), (2, 1, false));
        assert_eq!(between(Some(None), Some(Some("a"))), (0, 0, true));
        assert_eq!(between(None, Some(Some(""))), (0, 0, false));
    }
}
