//! Scale of randomized tests: the default of every check, or more for a soak.

/// Returns `n` multiplied by [`factor`].
pub fn scale(n: usize) -> usize {
    n * factor()
}

/// Returns `$SWARMLETFS_SCALE`, a whole number that is 1 by default. Watchdogs multiply their
/// timeouts by it.
pub fn factor() -> usize {
    match std::env::var("SWARMLETFS_SCALE") {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("SWARMLETFS_SCALE is {text:?}, not a whole number")),
        Err(_) => 1,
    }
}
