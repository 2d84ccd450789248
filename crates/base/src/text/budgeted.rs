//! Fills a page under a budget.

/// Returns the number of leading items of `sizes` that fit in `room`.
pub fn count_fitting(sizes: impl ExactSizeIterator<Item = usize>, room: usize) -> usize {
    count_fitting_with_rest(sizes, room, |_| 0)
}

/// Returns the number of leading items of `sizes` that fit in `room` together with the line that
/// counts the others. `rest` returns the size of that line from their number.
pub fn count_fitting_with_rest(
    sizes: impl ExactSizeIterator<Item = usize>,
    room: usize,
    rest: impl Fn(usize) -> usize,
) -> usize {
    let (mut used, mut left) = (0, sizes.len());
    let fitting = sizes.take_while(|size| {
        (used, left) = (used + size, left - 1);
        used + rest(left) <= room
    });
    fitting.count()
}
