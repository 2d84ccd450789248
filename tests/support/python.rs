//! Python interpreter with the packages of tests/requirements.txt.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::skip;

/// Returns the interpreter that scripts/check installed in the target directory. Without one,
/// reports a skip, or fails if skips are forbidden.
pub fn python() -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let python = target.join("python/bin/python");
    if !python.exists() {
        skip("no Python with the packages of tests/requirements.txt: scripts/check installs it");
        return None;
    }
    Some(python)
}

/// Returns the interpreter of [`python`], or else `python3`. Without one, reports a skip.
pub fn any_python() -> Option<PathBuf> {
    let made = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("python/bin/python");
    let found = [made, "python3".into()]
        .into_iter()
        .find(|python| Command::new(python).arg("-V").output().is_ok());
    if found.is_none() {
        skip("no python3");
    }
    found
}
