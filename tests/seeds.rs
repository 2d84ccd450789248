//! Seeds and doses of random tests: each run has other cases, and says how to repeat them.

use std::process::{Command, Output};

/// A test with random cases, of which this runs one.
const TEST: &str = "reference::tree_matches_the_reference_model_after_every_change";

fn run(seed: Option<&str>, scale: &str) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", TEST, "--show-output"]);
    command.env_remove("SWARMLETFS_SEED").env("SWARMLETFS_SCALE", scale);
    command.envs(seed.map(|seed| ("SWARMLETFS_SEED", seed))).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn random_test_prints_the_command_that_repeats_it() {
    let done = run(Some("7"), "0.001");
    assert!(done.status.success(), "{done:?}");
    let line = format!(
        "to repeat: SWARMLETFS_SEED=7 SWARMLETFS_SCALE=0.001 \
         cargo test -p swarmletfs --test main {TEST}\n"
    );
    assert!(text(&done.stdout).contains(&line), "{done:?}");
    assert!(!text(&done.stderr).contains("SWARMLETFS_SEED"), "{done:?}");
}

#[test]
fn random_test_has_another_seed_in_each_run_and_prints_it() {
    let seed = || {
        let done = run(None, "0.001");
        assert!(done.status.success(), "{done:?}");
        let said = text(&done.stderr);
        let line = said.lines().find_map(|line| line.strip_prefix("SWARMLETFS_SEED="));
        let seed = line.unwrap_or_else(|| panic!("{done:?}")).to_owned();
        assert!(text(&done.stdout).contains(&format!("SWARMLETFS_SEED={seed} ")), "{done:?}");
        seed
    };
    assert_ne!(seed(), seed());
}

#[test]
fn wrong_seed_or_scale_fails() {
    for (seed, scale) in [("x", "1"), ("4294967296", "1"), ("7", "0"), ("7", "-1"), ("7", "NaN")] {
        let done = run(Some(seed), scale);
        assert!(!done.status.success(), "{seed}, {scale}: {done:?}");
    }
}
