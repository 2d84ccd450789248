//! Derives the outcome of a call from its output, by the rules of the format in their order.
//!
//! A record that the program made of a call overrides these rules; see [`super::record`]. An
//! unrecognized output is never ok.
//!
//! A stub in the call's own file names an output out of band:
//! `<data>/tool_outputs/<owner>/<id>.txt`.

use std::sync::LazyLock;

use regex::bytes::Regex;

use super::literal::Literal;
use super::{printed, python};
use crate::value::scalar_text;
use crate::{RecordSource, bounded};
use swarmletfs_base::error::Result;
use swarmletfs_base::model::{Outcome, Worker};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::read_whole;

/// Maximum size of an output that is judged as a whole, in bytes. A larger one is judged by its
/// head.
pub(super) const WHOLE_MAX: u64 = 16 << 20;
/// Size of the head of an output, in bytes.
pub(super) const HEAD_BYTES: usize = 64 << 10;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OutputVerdict {
    pub(super) outcome: Outcome,
    pub(super) exit_code: Option<i64>,
    pub(super) stub: Option<Stub>,
    /// Line of a command's output that shows a failure although the outcome is ok.
    pub(super) suspect: Option<String>,
}

/// A note in place of an out-of-band output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stub {
    /// Artifact ID: 32 hexadecimal digits.
    pub(super) artifact: String,
    pub(super) bytes: u64,
}

static STUB: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(
        r"^\s*\[TOOL_OUTPUT:artifact_id=([0-9a-fA-F]{32}),(?:tool=[^\]]*?,)?bytes=([0-9]{1,18})\]",
    )
    .ok()
});

impl OutputVerdict {
    pub(super) fn new(outcome: Outcome) -> OutputVerdict {
        OutputVerdict { outcome, exit_code: None, stub: None, suspect: None }
    }
}

pub(super) fn needs_whole_output(head: &[u8]) -> bool {
    head.trim_ascii_start().first() == Some(&b'{')
}

/// Judges an output. `bytes` is the whole output, or the head of one larger than [`WHOLE_MAX`].
pub(super) fn judge(bytes: &[u8]) -> OutputVerdict {
    let text = bytes.trim_ascii();
    if text.first() == Some(&b'{') {
        let object = serde_json::from_slice::<Literal>(text)
            .ok()
            .or_else(|| serde_json::from_slice(&python::to_json(text)?).ok());
        let verdict = object.as_ref().map_or(OutputVerdict::new(Outcome::Unknown), judge_object);
        let suspect = (verdict.outcome == Outcome::Ok)
            .then(|| printed::suspect(text, verdict.exit_code))
            .flatten();
        return OutputVerdict { suspect, ..verdict };
    }
    if text.starts_with(b"<tool-error>") || text.starts_with(b"Error:") {
        return OutputVerdict::new(Outcome::Failed);
    }
    if let Some(found) = STUB.as_ref().and_then(|stub| stub.captures(text)) {
        let part =
            |i| found.get(i).map(|part| String::from_utf8_lossy(part.as_bytes()).into_owned());
        let failed = memchr::memmem::find(text, b"Tool error detected:").is_some();
        return OutputVerdict {
            outcome: if failed { Outcome::Failed } else { Outcome::Unknown },
            exit_code: None,
            suspect: None,
            stub: part(1).map(|artifact| Stub {
                artifact: artifact.to_ascii_lowercase(),
                bytes: part(2).and_then(|bytes| bytes.parse().ok()).unwrap_or(0),
            }),
        };
    }
    OutputVerdict::new(Outcome::Unknown)
}

fn judge_object(object: &Literal) -> OutputVerdict {
    let Literal::Object(fields) = object else { return OutputVerdict::new(Outcome::Unknown) };
    let inner = match fields.data.as_deref() {
        Some(Literal::Object(inner)) => Some(inner),
        _ => None,
    };
    let exit_code = inner.and_then(|inner| inner.exit_code.as_deref()?.as_integer());
    let exit_code = exit_code.or_else(|| fields.exit_code.as_deref()?.as_integer());
    let status_code = inner.and_then(|inner| inner.status_code.as_deref()?.as_integer());
    let status_code = status_code.or_else(|| fields.status_code.as_deref()?.as_integer());
    let ok = fields.ok.as_deref();
    // An unreadable exit code might not be 0.
    let codes = [inner.and_then(|inner| inner.exit_code.as_deref()), fields.exit_code.as_deref()];
    let has_unreadable_code = codes.into_iter().flatten().any(Literal::is_not_a_number);
    let failed = ok.is_some_and(Literal::is_falsy)
        || exit_code.is_some_and(|code| code != 0)
        || status_code.is_some_and(|code| code == 0 || code >= 400);
    let outcome = if failed {
        Outcome::Failed
    } else if has_unreadable_code {
        Outcome::Unknown
    } else if ok == Some(&Literal::Bool(true)) || exit_code == Some(0) {
        Outcome::Ok
    } else {
        Outcome::Unknown
    };
    OutputVerdict { exit_code, ..OutputVerdict::new(outcome) }
}

/// Maximum size of a description that is read, in bytes.
pub(super) const DESCRIPTION_MAX: u64 = 1 << 20;

/// Returns the path of the output behind `stub`, and its size in bytes. Returns `None` unless its
/// description names the worker's own owner.
///
/// # Errors
///
/// Fails if the output exists but cannot be read.
pub(super) fn find_output(
    source: RecordSource<'_>,
    worker: &Worker,
    stub: &Stub,
) -> Result<Option<(RelPath, u64)>> {
    let (Some(outputs), Some(owner)) = (source.outputs, &worker.owner) else { return Ok(None) };
    let file = |suffix: &str| -> Result<RelPath> {
        let folder = RelPath::from(Name::new(&*owner.0)?);
        Ok(folder.join(&Name::new(format!("{}.{suffix}", stub.artifact))?))
    };
    let (Ok(description), Ok(body)) = (file("json"), file("txt")) else { return Ok(None) };
    let Some(description) = read_whole(outputs, &description, DESCRIPTION_MAX)? else {
        return Ok(None);
    };
    let description = bounded::parse_object(&description).unwrap_or_default();
    if scalar_text(description.get("owner_id")).as_deref() != Some(&*owner.0) {
        return Ok(None);
    }
    let bytes = outputs.open(&body)?.stat_without_acl()?.size;
    Ok(Some((body, bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge_text(text: &str) -> (Outcome, Option<i64>) {
        let verdict = judge(text.as_bytes());
        (verdict.outcome, verdict.exit_code)
    }

    #[test]
    fn json_objects_are_judged_by_ok_then_by_exit_code() {
        assert_eq!(judge_text(r#"{"ok": true, "data": {"exit_code": 0}}"#), (Outcome::Ok, Some(0)));
        assert_eq!(
            judge_text(r#"{"ok": true, "data": {"exit_code": 1}}"#),
            (Outcome::Failed, Some(1))
        );
        assert_eq!(judge_text(r#"{"ok": true, "exit_code": 1}"#), (Outcome::Failed, Some(1)));
        assert_eq!(
            judge_text(r#"{"ok": false, "data": {"exit_code": 0}}"#),
            (Outcome::Failed, Some(0))
        );
        assert_eq!(
            judge_text(r#"{"ok": true, "data": {"exit_code": "1"}}"#),
            (Outcome::Unknown, None)
        );
        assert_eq!(judge_text(r#"{"ok": true, "exit_code": 1e300}"#), (Outcome::Unknown, None));
        assert_eq!(judge_text(r#"{"ok": true, "exit_code": null}"#), (Outcome::Ok, None));
        assert_eq!(judge_text(r#"{"exit_code": -1}"#), (Outcome::Failed, Some(-1)));
        assert_eq!(judge_text(r#"{"exit_code": 0}"#), (Outcome::Ok, Some(0)));
        assert_eq!(judge_text(r#"{"ok": true}"#), (Outcome::Ok, None));
        for falsy in ["false", "0", "null", "\"\"", "[]", "{}"] {
            assert_eq!(judge_text(&format!("{{\"ok\": {falsy}}}")).0, Outcome::Failed, "{falsy}");
        }
        assert_eq!(judge_text(r#"{"ok": true, "data": "text"}"#), (Outcome::Ok, None));
    }

    #[test]
    fn python_dictionaries_are_judged_like_json() {
        assert_eq!(judge_text("{'ok': False, 'error': None}"), (Outcome::Failed, None));
        assert_eq!(
            judge_text("{'ok': True, 'data': {'exit_code': 0, 'stdout': 'it\\'s'}}"),
            (Outcome::Ok, Some(0))
        );
        assert_eq!(
            judge_text("{'ok': True, 'data': {'exit_code': 2}}"),
            (Outcome::Failed, Some(2))
        );
    }

    #[test]
    fn deep_values_are_plain_text() {
        let deep = format!("{{'a': {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(judge_text(&deep).0, Outcome::Unknown);
        let deep = format!("{{\"a\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(judge_text(&deep).0, Outcome::Unknown);
    }

    #[test]
    fn python_dictionaries_of_any_number_of_values_are_read() {
        let list = |n: usize| format!("{{'ok': False, 'a': [0{}]}}", ", 0".repeat(n));
        assert_eq!(judge_text(&list(500_000)).0, Outcome::Failed);
        // Minutes, if each value were compared with the text behind it.
        let bytes = format!("{{'ok': False, 'a': [b''{}]}}", ", b''".repeat(500_000));
        assert_eq!(judge_text(&bytes).0, Outcome::Failed);
        let text = |part: &str| format!("{{'ok': False, 'a': '{}'}}", part.repeat(100_000));
        assert_eq!(judge_text(&text(r#"[a, b: \' " {c}] "#)).0, Outcome::Failed);
    }

    #[test]
    fn invalid_exit_codes_leave_the_outcome_unknown() {
        for code in ["1e+300", "inf", "nan", "10000000000000000000000", "'1'"] {
            assert_eq!(
                judge_text(&format!("{{'ok': True, 'exit_code': {code}}}")),
                (Outcome::Unknown, None),
                "{code}"
            );
        }
    }

    #[test]
    fn error_texts_fail_without_an_exit_code() {
        assert_eq!(judge_text("<tool-error>no route</tool-error>"), (Outcome::Failed, None));
        assert_eq!(judge_text("Error: no such host"), (Outcome::Failed, None));
        assert_eq!(judge_text("no Error: here"), (Outcome::Unknown, None));
    }

    #[test]
    fn http_results_fail_at_0_and_from_400() {
        for (code, outcome) in [
            (0, Outcome::Failed),
            (404, Outcome::Failed),
            (500, Outcome::Failed),
            (200, Outcome::Unknown),
        ] {
            assert_eq!(judge_text(&format!("{{\"status_code\": {code}}}")).0, outcome, "{code}");
        }
        assert_eq!(judge_text(r#"{"ok": true, "data": {"status_code": 503}}"#).0, Outcome::Failed);
        assert_eq!(judge_text(r#"{"exit_code": 0, "status_code": 500}"#).0, Outcome::Failed);
        assert_eq!(judge_text(r#"{"ok": true, "data": {"status_code": 200}}"#).0, Outcome::Ok);
    }

    #[test]
    fn stubs_are_recognized() {
        let id = "0123456789abcdef0123456789abcdef";
        let verdict =
            judge(format!("[TOOL_OUTPUT:artifact_id={id},tool=ssh_exec,bytes=12]").as_bytes());
        assert_eq!(verdict.stub, Some(Stub { artifact: id.into(), bytes: 12 }));
        assert_eq!(verdict.outcome, Outcome::Unknown);
        let verdict = judge(
            format!("[TOOL_OUTPUT:artifact_id={id},tool=x,bytes=12]\nTool error detected: no")
                .as_bytes(),
        );
        assert_eq!(verdict.outcome, Outcome::Failed);
        assert_eq!(judge(b"[TOOL_OUTPUT:artifact_id=../../etc,tool=x,bytes=1]").stub, None);
    }

    #[test]
    fn json_other_than_objects_is_plain_text() {
        for text in ["4", "[]", "null", "true", "\"x\"", "", "{", "{}", "{1, 2}"] {
            assert_eq!(judge_text(text), (Outcome::Unknown, None), "{text}");
        }
    }
}
