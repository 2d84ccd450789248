//! Dose and seed of tests with random or repeated cases. Unit tests include this file, too.
//!
//! `$SWARMLETFS_SCALE` multiplies the number of cases: 1 by default, a fraction for a quick check,
//! more for a soak. `$SWARMLETFS_SEED` chooses the cases; without it, every run has another one.

use std::cell::{Cell, RefCell};
use std::io::Write;
use std::sync::OnceLock;
use std::time::Duration;

use proptest::test_runner::{Config, RngSeed};

/// Returns `$SWARMLETFS_SCALE`.
pub fn factor() -> f64 {
    let Ok(text) = std::env::var("SWARMLETFS_SCALE") else { return 1.0 };
    let factor = text.parse().ok().filter(|factor: &f64| factor.is_finite() && *factor > 0.0);
    factor.unwrap_or_else(|| panic!("SWARMLETFS_SCALE is {text:?}, not a number above 0"))
}

/// Returns `n` multiplied by [`factor`], and at least 1.
pub fn scale(n: usize) -> usize {
    ((n as f64 * factor()).round() as usize).max(1)
}

/// Returns true if there are enough cases to expect each kind of result among them.
pub fn is_full() -> bool {
    factor() >= 1.0
}

/// Returns true if a test shall try all cases instead of a sample.
pub fn is_exhaustive() -> bool {
    factor() > 1.0
}

/// Returns a time limit multiplied by [`factor`] if that is above 1.
pub fn patience(limit: Duration) -> Duration {
    limit.mul_f64(factor().max(1.0))
}

/// Returns the seed of this run, which has 32 bits. A test that fails prints the command that
/// repeats it.
pub fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    thread_local! {
        static IS_SAID: Cell<bool> = const { Cell::new(false) };
    }
    let seed = *SEED.get_or_init(|| {
        let Ok(text) = std::env::var("SWARMLETFS_SEED") else {
            let seed = fastrand::Rng::new().u32(..).into();
            // The test harness captures `eprintln!` but not this.
            let _ = writeln!(std::io::stderr(), "SWARMLETFS_SEED={seed}");
            return seed;
        };
        let seed = text.parse::<u32>();
        seed.unwrap_or_else(|error| panic!("SWARMLETFS_SEED is {text:?}: {error}")).into()
    });
    // The harness shows this line only if the test fails. It names the thread after the test.
    if let Some(test) = std::thread::current().name()
        && !IS_SAID.replace(true)
    {
        let (package, scale) = (env!("CARGO_PKG_NAME"), factor());
        let target = if env!("CARGO_CRATE_NAME") == "main" { "--test main" } else { "--lib" };
        println!(
            "to repeat: SWARMLETFS_SEED={seed} SWARMLETFS_SCALE={scale} \
             cargo test -p {package} {target} {test}"
        );
    }
    seed
}

/// Returns as many seeds as [`scale`] gives for `n`, from [`seed`] on.
pub fn seeds(n: usize) -> std::ops::Range<u64> {
    let first = seed();
    first..first + scale(n) as u64
}

/// Returns a random part of `all` if [`factor`] is below 1, and otherwise all.
pub fn sample<T>(all: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
    let (mut rng, factor) = (rng(), factor());
    all.into_iter().filter(move |_| rng.f64() < factor)
}

/// Returns as many random items of `all` as [`scale`] gives for their number, at most all of them.
pub fn some<T>(all: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut all: Vec<T> = all.into_iter().collect();
    if !is_full() {
        rng().shuffle(&mut all);
        all.truncate(scale(all.len()));
    }
    all
}

/// Returns random numbers that follow from [`seed`], others at each call of a thread.
pub fn rng() -> fastrand::Rng {
    thread_local! {
        static RNG: RefCell<fastrand::Rng> = RefCell::new(fastrand::Rng::with_seed(seed()));
    }
    RNG.with_borrow_mut(fastrand::Rng::fork)
}

/// Returns a configuration for as many random cases as [`scale`] gives for `n`, by [`seed`].
pub fn cases(n: usize) -> Config {
    Config {
        cases: scale(n) as u32,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(seed()),
        ..Config::default()
    }
}
