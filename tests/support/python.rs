//! A Python with the packages of tests/requirements.txt.

use std::path::{Path, PathBuf};

use super::skip;

/// The interpreter that scripts/check made beside what Cargo builds. Says SKIP where there is none, and fails where a skip
/// is not allowed.
pub fn python() -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let python = target.join("python/bin/python");
    if !python.exists() {
        skip("no Python with the packages of tests/requirements.txt: scripts/check makes it");
        return None;
    }
    Some(python)
}
