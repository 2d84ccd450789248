//! How a call ended, read from its output alone (the rules of the format, in their order).
//!
//! What a program recorded about a call elsewhere wins over all of this; see [`super::record`]. Nothing is ok only
//! because nothing was recognised.

use std::sync::LazyLock;

use py_literal::Value as Python;
use regex::bytes::Regex;
use serde_json::Value;

use crate::model::Outcome;

/// A larger output is judged by its beginning only, in bytes.
pub(super) const WHOLE_MAX: u64 = 16 << 20;
/// How much of a large output is looked at, in bytes.
pub(super) const HEAD: usize = 64 << 10;
/// A larger Python literal is plain text, in bytes: its parser is slow.
const PYTHON_MAX: usize = 1 << 20;
/// A Python literal with more brackets open at once is plain text: its parser recurses.
const PYTHON_DEPTH_MAX: usize = 64;

/// What an output tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Judged {
    pub(super) outcome: Outcome,
    pub(super) exit_code: Option<i64>,
    pub(super) stub: Option<Stub>,
}

/// A note in place of an output that was stored out of band.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stub {
    /// 32 hexadecimal digits.
    pub(super) artifact: String,
    /// Size of the output in bytes, as the note says.
    pub(super) bytes: u64,
}

static STUB: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(r"^\s*\[TOOL_OUTPUT:artifact_id=([0-9a-fA-F]{32}),(?:tool=[^\]]*?,)?bytes=([0-9]{1,18})\]").ok()
});

impl Judged {
    fn of(outcome: Outcome) -> Judged {
        Judged { outcome, exit_code: None, stub: None }
    }
}

/// Whether the first bytes of an output call for the whole of it.
pub(super) fn wants_whole(head: &[u8]) -> bool {
    head.trim_ascii_start().first() == Some(&b'{')
}

/// Judges an output; `bytes` is all of it, or its head where it is larger than [`WHOLE_MAX`].
pub(super) fn judge(bytes: &[u8]) -> Judged {
    let text = bytes.trim_ascii();
    if text.first() == Some(&b'{') {
        let object = serde_json::from_slice::<Value>(text).ok().or_else(|| python(text));
        return object.as_ref().map_or(Judged::of(Outcome::Unknown), judge_object);
    }
    if text.starts_with(b"<tool-error>") || text.starts_with(b"Error:") {
        return Judged::of(Outcome::Failed);
    }
    if let Some(found) = STUB.as_ref().and_then(|stub| stub.captures(text)) {
        let part = |i| found.get(i).map(|part| String::from_utf8_lossy(part.as_bytes()).into_owned());
        let failed = memchr::memmem::find(text, b"Tool error detected:").is_some();
        return Judged {
            outcome: if failed { Outcome::Failed } else { Outcome::Unknown },
            exit_code: None,
            stub: part(1).map(|artifact| Stub {
                artifact: artifact.to_ascii_lowercase(),
                bytes: part(2).and_then(|bytes| bytes.parse().ok()).unwrap_or(0),
            }),
        };
    }
    Judged::of(Outcome::Unknown)
}

fn judge_object(object: &Value) -> Judged {
    let Value::Object(fields) = object else { return Judged::of(Outcome::Unknown) };
    let data = fields.get("data");
    let find = |key: &str| data.and_then(|data| data.get(key)).filter(|v| v.is_number()).or_else(|| fields.get(key));
    let exit_code = find("exit_code").and_then(number);
    let ok = fields.get("ok");
    let status_code = find("status_code").and_then(number);
    let outcome = if ok.is_some_and(is_falsy) {
        Outcome::Failed
    } else if let Some(code) = exit_code {
        if code == 0 { Outcome::Ok } else { Outcome::Failed }
    } else if status_code.is_some_and(|code| code == 0 || code >= 400) {
        Outcome::Failed
    } else if ok == Some(&Value::Bool(true)) {
        Outcome::Ok
    } else {
        Outcome::Unknown
    };
    Judged { outcome, exit_code, stub: None }
}

/// A whole number; a fraction counts as the number it is nearest to away from zero, so that 0.5 is not 0.
fn number(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| value.as_f64().map(|n| if n > 0.0 { n.ceil() as i64 } else { n.floor() as i64 }))
}

fn is_falsy(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

/// A Python dictionary literal, as older stores have it.
fn python(text: &[u8]) -> Option<Value> {
    if text.len() > PYTHON_MAX || depth(text) > PYTHON_DEPTH_MAX {
        return None;
    }
    let literal: Python = std::str::from_utf8(text).ok()?.parse().ok()?;
    matches!(literal, Python::Dict(_)).then(|| to_json(literal))
}

/// The most brackets open at once; more than there really are where strings hold some, which errs to safety.
fn depth(text: &[u8]) -> usize {
    let (mut open, mut most) = (0_usize, 0);
    for byte in text {
        match byte {
            b'(' | b'[' | b'{' => open += 1,
            b')' | b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        most = most.max(open);
    }
    most
}

fn to_json(value: Python) -> Value {
    match value {
        Python::String(text) => Value::String(text),
        Python::Integer(n) => i64::try_from(n).map_or(Value::from(-1), Value::from),
        Python::Float(n) => Value::from(n),
        Python::Boolean(b) => Value::Bool(b),
        Python::None => Value::Null,
        Python::Tuple(items) | Python::List(items) | Python::Set(items) => {
            Value::Array(items.into_iter().map(to_json).collect())
        }
        Python::Dict(pairs) => Value::Object(
            pairs
                .into_iter()
                .filter_map(|(key, value)| match key {
                    Python::String(key) => Some((key, to_json(value))),
                    _ => None,
                })
                .collect(),
        ),
        Python::Bytes(_) | Python::Complex(_) => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> (Outcome, Option<i64>) {
        let judged = judge(text.as_bytes());
        (judged.outcome, judged.exit_code)
    }

    #[test]
    fn json_objects_are_judged_by_ok_then_by_exit_code() {
        assert_eq!(of(r#"{"ok": true, "data": {"exit_code": 0}}"#), (Outcome::Ok, Some(0)));
        assert_eq!(of(r#"{"ok": true, "data": {"exit_code": 1}}"#), (Outcome::Failed, Some(1)));
        assert_eq!(of(r#"{"ok": true, "exit_code": 1}"#), (Outcome::Failed, Some(1)));
        assert_eq!(of(r#"{"ok": false, "data": {"exit_code": 0}}"#), (Outcome::Failed, Some(0)));
        assert_eq!(of(r#"{"exit_code": -1}"#), (Outcome::Failed, Some(-1)));
        assert_eq!(of(r#"{"exit_code": 0}"#), (Outcome::Ok, Some(0)));
        assert_eq!(of(r#"{"ok": true}"#), (Outcome::Ok, None));
        for falsy in ["false", "0", "null", "\"\"", "[]", "{}"] {
            assert_eq!(of(&format!("{{\"ok\": {falsy}}}")).0, Outcome::Failed, "{falsy}");
        }
        assert_eq!(of(r#"{"ok": true, "data": "text"}"#), (Outcome::Ok, None));
    }

    #[test]
    fn python_literals_are_judged_the_same() {
        assert_eq!(of("{'ok': False, 'error': None}"), (Outcome::Failed, None));
        assert_eq!(of("{'ok': True, 'data': {'exit_code': 0, 'stdout': 'it\\'s'}}"), (Outcome::Ok, Some(0)));
        assert_eq!(of("{'ok': True, 'data': {'exit_code': 2}}"), (Outcome::Failed, Some(2)));
    }

    #[test]
    fn deep_literals_are_plain_text() {
        let deep = format!("{{'a': {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(of(&deep).0, Outcome::Unknown);
        let deep = format!("{{\"a\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(of(&deep).0, Outcome::Unknown);
    }

    #[test]
    fn error_texts_fail_without_an_exit_code() {
        assert_eq!(of("<tool-error>no route</tool-error>"), (Outcome::Failed, None));
        assert_eq!(of("Error: no such host"), (Outcome::Failed, None));
        assert_eq!(of("no Error: here"), (Outcome::Unknown, None));
    }

    #[test]
    fn http_results_fail_at_0_and_from_400() {
        for (code, outcome) in
            [(0, Outcome::Failed), (404, Outcome::Failed), (500, Outcome::Failed), (200, Outcome::Unknown)]
        {
            assert_eq!(of(&format!("{{\"status_code\": {code}}}")).0, outcome, "{code}");
        }
        assert_eq!(of(r#"{"ok": true, "data": {"status_code": 503}}"#).0, Outcome::Failed);
        assert_eq!(of(r#"{"ok": true, "data": {"status_code": 200}}"#).0, Outcome::Ok);
    }

    #[test]
    fn stubs_are_recognised() {
        let id = "0123456789abcdef0123456789abcdef";
        let judged = judge(format!("[TOOL_OUTPUT:artifact_id={id},tool=ssh_exec,bytes=12]").as_bytes());
        assert_eq!(judged.stub, Some(Stub { artifact: id.into(), bytes: 12 }));
        assert_eq!(judged.outcome, Outcome::Unknown);
        let judged =
            judge(format!("[TOOL_OUTPUT:artifact_id={id},tool=x,bytes=12]\nTool error detected: no").as_bytes());
        assert_eq!(judged.outcome, Outcome::Failed);
        assert_eq!(judge(b"[TOOL_OUTPUT:artifact_id=../../etc,tool=x,bytes=1]").stub, None);
    }

    #[test]
    fn valid_json_that_is_no_object_is_plain_text() {
        for text in ["4", "[]", "null", "true", "\"x\"", "", "{", "{}", "{1, 2}"] {
            assert_eq!(of(text), (Outcome::Unknown, None), "{text}");
        }
    }
}
