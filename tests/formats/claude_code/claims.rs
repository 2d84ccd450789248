//! Files that the final words of a transcript claim to have been written.

use serde_json::json;

use super::*;
use crate::support::see;

/// Returns the files that the summary of session `s` reports as claimed but missing.
fn missing(transcript: &Transcript) -> Vec<String> {
    let store = store();
    put(&store, "s", transcript);
    let seen = see(&tree(&store), "workers/s/index.json").unwrap();
    let index: Value = serde_json::from_slice(seen.bytes()).unwrap();
    let checks = index["checks"].as_array().cloned().unwrap_or_default();
    let missing = checks.iter().filter(|check| check["name"] == "claimed_file_missing");
    missing.map(|check| check["file"].as_str().unwrap().to_owned()).collect()
}

/// Returns a transcript with one call and its result, and final words that claim a report.
fn claiming(tool: &str, input: Value, result: Value) -> Transcript {
    let mut transcript = begun();
    transcript.call("t1", tool, input).result("t1", result);
    transcript.says("All tests pass. I wrote report.md.");
    transcript
}

#[test]
fn a_file_that_no_call_wrote_is_a_missing_claim() {
    let ok = json!({"content": "done"});
    let failed = json!({"content": "no such directory", "is_error": true});
    let write = json!({"file_path": "/home/dev/app/docs/report.md", "content": "# Report"});
    for (tool, input, result) in [
        ("Bash", json!({"command": "sh test.sh"}), ok.clone()),
        ("Read", json!({"file_path": "/home/dev/app/a.rs"}), ok.clone()),
        ("Write", write.clone(), failed.clone()),
    ] {
        assert_eq!(missing(&claiming(tool, input.clone(), result)), ["report.md"], "{input}");
    }
    for (tool, input, result) in [
        ("Write", write, ok.clone()),
        ("Bash", json!({"command": "sh make.sh > docs/report.md"}), ok.clone()),
        // A command can write before it fails.
        ("Bash", json!({"command": "sh make.sh > report.md; false"}), failed),
        // A file that a call did not name, but listed.
        ("Bash", json!({"command": "make all; ls"}), json!({"content": "a.rs\nreport.md"})),
        // The record holds the beginning of this command only.
        ("Bash", json!({"command": format!("echo {} > report.md", "x ".repeat(2_000))}), ok),
    ] {
        assert!(missing(&claiming(tool, input.clone(), result)).is_empty(), "{input}");
    }
}

#[test]
fn a_file_that_is_only_mentioned_is_no_claim() {
    for words in ["I did not write report.md.", "See report.md.", "Next, write report.md."] {
        let mut transcript = begun();
        transcript.bash("t1", "sh test.sh", "ok").says(words);
        assert!(missing(&transcript).is_empty(), "{words}");
    }
}
