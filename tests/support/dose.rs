//! How much is tried: what every check has time for, or more.

/// `n`, times what `$SWARMLETFS_DOSE` says: a whole number, 1 if it is not set. A soak sets it.
pub fn dose(n: usize) -> usize {
    n * times()
}

/// What `$SWARMLETFS_DOSE` says; watchdogs take so many times as long.
pub fn times() -> usize {
    match std::env::var("SWARMLETFS_DOSE") {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("SWARMLETFS_DOSE is {text:?}, not a whole number")),
        Err(_) => 1,
    }
}
