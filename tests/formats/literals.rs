//! Compares the outcomes of dictionaries as Python's `repr()` prints them with CPython. Text that
//! CPython refuses is plain text.

use std::path::Path;
use std::process::Command;

use super::*;
use crate::support::python::any_python;
use crate::support::{scale, seed};

/// Number of generated texts.
const TEXTS: usize = 6_000;
/// Number of texts that are outputs of one worker.
const CALLS: usize = 200;

/// Promise: Python dictionaries, as `repr()` prints them, give the outcome that CPython reads.
#[test]
fn printed_python_dictionaries_give_the_outcome_that_cpython_reads() {
    let Some(python) = any_python() else { return };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats/literals.py");
    let made = Command::new(python)
        .arg(script)
        .args([seed().to_string(), scale(TEXTS).to_string()])
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let lines = std::str::from_utf8(&made.stdout).unwrap().lines();
    let cases: Vec<Value> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
    for part in cases.chunks(CALLS) {
        let found = outcomes(part.iter().map(|case| case["text"].as_str().unwrap()));
        for (case, found) in part.iter().zip(found) {
            let wanted = (case["outcome"].as_str().unwrap().to_owned(), case["exit_code"].as_i64());
            // Other text that CPython accepts may be plain text.
            let is_plain = case["printed"] == false && found == ("unknown".to_owned(), None);
            assert!(found == wanted || is_plain, "{case}: {found:?}");
        }
    }
}
