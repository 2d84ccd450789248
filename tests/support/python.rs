//! A Python with the packages of tests/requirements.txt.

use std::path::{Path, PathBuf};
use std::process::Command;

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

/// Any interpreter: that of [`python`], or else the one that `python3` stands for. Says SKIP where there is none.
pub fn any_python() -> Option<PathBuf> {
    let made = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("python/bin/python");
    let found = [made, "python3".into()].into_iter().find(|python| Command::new(python).arg("-V").output().is_ok());
    if found.is_none() {
        skip("no python3");
    }
    found
}
