//! Splits that cannot panic in a release, unlike `split_at`.

/// Splits slices and texts at an index, which counts the bytes of a text.
pub trait Split {
    /// Returns the first `len` items and the rest. A value with fewer items is all in the first
    /// half, and a text is split before a character that `len` would divide.
    fn split_at_most(&self, len: usize) -> (&Self, &Self);

    /// Splits at an index that is known to be right, such as the end of a match.
    ///
    /// # Panics
    ///
    /// Only with debug assertions, as in tests, where a wrong index must show. Without them, the
    /// value is split as by [`Split::split_at_most`].
    fn split_at_known(&self, index: usize) -> (&Self, &Self);
}

impl<T> Split for [T] {
    fn split_at_most(&self, len: usize) -> (&[T], &[T]) {
        self.split_at_checked(len).unwrap_or((self, &[]))
    }

    #[track_caller]
    fn split_at_known(&self, index: usize) -> (&[T], &[T]) {
        debug_assert!(index <= self.len(), "{index} is beyond the end, {}", self.len());
        self.split_at_most(index)
    }
}

impl Split for str {
    fn split_at_most(&self, len: usize) -> (&str, &str) {
        self.split_at_checked(self.floor_char_boundary(len)).unwrap_or((self, ""))
    }

    #[track_caller]
    fn split_at_known(&self, index: usize) -> (&str, &str) {
        debug_assert!(self.is_char_boundary(index), "{index} is not between two characters");
        self.split_at_most(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_beyond_the_end_leaves_nothing() {
        assert_eq!([1, 2].split_at_most(3), (&[1, 2][..], &[][..]));
        assert_eq!("ab".split_at_most(3), ("ab", ""));
    }

    #[test]
    fn text_is_split_before_a_character_that_does_not_fit() {
        assert_eq!("aé".split_at_most(2), ("a", "é"));
    }

    #[test]
    fn known_index_splits_in_two() {
        assert_eq!([1, 2].split_at_known(1), (&[1][..], &[2][..]));
        assert_eq!("aé".split_at_known(1), ("a", "é"));
    }
}
