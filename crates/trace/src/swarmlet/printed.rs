//! Finds a failure in the texts that a command printed, in the object that holds its result.

use serde::Deserialize;

use super::super::lenient::{MaybeObject, MaybeStr};
use swarmletfs_base::failure_signs::suspect_line;

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct Printed<'a> {
    stdout: MaybeStr<'a>,
    output: MaybeStr<'a>,
    stderr: MaybeStr<'a>,
    data: MaybeObject<PrintedData<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct PrintedData<'a> {
    stdout: MaybeStr<'a>,
    output: MaybeStr<'a>,
    stderr: MaybeStr<'a>,
}

/// Returns the line of a command's output that shows a failure. `object` is a JSON object whose
/// outcome is ok. Without an exit code and `stdout`, it is not the result of a command.
pub(super) fn suspect(object: &[u8], exit_code: Option<i64>) -> Option<String> {
    let printed: Printed<'_> = serde_json::from_slice(object).ok()?;
    let data = printed.data.0.unwrap_or_default();
    let is_command = exit_code.is_some() || printed.stdout.0.is_some() || data.stdout.0.is_some();
    let texts = [
        &printed.stdout,
        &printed.output,
        &data.stdout,
        &data.output,
        &printed.stderr,
        &data.stderr,
    ];
    texts.into_iter().filter(|_| is_command).find_map(|text| suspect_line("", text.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suspect_of(object: &str, exit_code: Option<i64>) -> Option<String> {
        suspect(object.as_bytes(), exit_code)
    }

    #[test]
    fn a_failure_is_found_in_each_text_of_a_commands_result() {
        for object in [
            r#"{"ok": true, "stdout": "FAIL: a\n"}"#,
            r#"{"ok": true, "data": {"exit_code": 0, "stdout": "x\nFAIL: a\n"}}"#,
            r#"{"ok": true, "data": {"exit_code": 0, "output": "FAIL: a"}}"#,
            r#"{"exit_code": 0, "stdout": "fine", "stderr": "FAIL: a"}"#,
            r#"{"exit_code": 0, "stdout": 3, "data": [], "output": "FAIL: a"}"#,
        ] {
            assert_eq!(suspect_of(object, Some(0)).as_deref(), Some("FAIL: a"), "{object}");
        }
    }

    #[test]
    fn results_that_are_of_no_command_are_not_searched() {
        assert_eq!(suspect_of(r#"{"ok": true, "output": "FAIL: a"}"#, None), None);
        assert_eq!(suspect_of(r#"{"ok": true, "text": "FAIL: a"}"#, Some(0)), None);
        assert_eq!(suspect_of(r#"{"stdout": "FAIL: a", "stdout": 1}"#, None), None);
        assert_eq!(suspect_of("{'stdout': 'FAIL: a'}", Some(0)), None);
    }
}
