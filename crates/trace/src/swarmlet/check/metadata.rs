//! Checks metadata.json and tools_used.json.

use serde_json::value::RawValue;

use super::super::super::check::{problem, quote};
use super::super::super::value::scalar_text;
use super::super::layout::{METADATA, path};
use super::super::metadata::SIZE_MAX;
use super::super::record::TOOLS_USED;
use super::super::status::{self, StatusWord, WORDS};
use super::document::{ANY, FileRemarks, JsonType, KnownKeys, ObjectFields, SCALAR, line_in};
use super::names::most_similar;
use swarmletfs_base::model::{RemarkSubject, Remarks, Status, TraceTime, Worker};
use swarmletfs_base::store::{Store, read_whole};

const FIELDS: KnownKeys = KnownKeys {
    keys: &[
        ("worker_id", SCALAR),
        ("task", SCALAR),
        ("status", SCALAR),
        ("created_at", SCALAR),
        ("started_at", SCALAR),
        ("finished_at", SCALAR),
        ("error", SCALAR),
        ("summary", SCALAR),
        ("supervisor_notes", SCALAR),
        ("task_type", SCALAR),
        ("parent_thread_id", SCALAR),
        ("parent_id", SCALAR),
        ("model", SCALAR),
        ("cwd", SCALAR),
        ("owner_id", SCALAR),
        ("run_id", SCALAR),
        ("job_id", SCALAR),
        ("exit_code", &[JsonType::Number, JsonType::Text]),
        ("duration_ms", &[JsonType::Number]),
        ("completion_time_ms", &[JsonType::Number]),
        ("tags", &[JsonType::List]),
        ("tool_calls", &[JsonType::List]),
        ("config", &[JsonType::Object]),
    ],
    aliases: &[("title", "summary")],
    ignored: &[],
    is_open: false,
};
/// The fields of a worker in `config`, which may have any others.
const CONFIG_FIELDS: KnownKeys = KnownKeys { is_open: true, ..FIELDS };
/// The record of a call, in metadata.json and metrics.jsonl.
pub(super) const CALL_FIELDS: KnownKeys = KnownKeys {
    keys: &[
        ("event", &[JsonType::Text]),
        ("seq", &[JsonType::Number]),
        ("tool", &[JsonType::Text]),
        ("input", ANY),
        ("success", &[JsonType::Bool]),
        ("exit_code", &[JsonType::Number]),
        ("duration_ms", &[JsonType::Number]),
        // A number is allowed, but not read.
        ("start_ts", &[JsonType::Text, JsonType::Number]),
        ("truncated", &[JsonType::Bool]),
    ],
    aliases: &[("name", "tool"), ("ok", "success")],
    ignored: &["end_ts", "error"],
    is_open: false,
};

pub(super) fn check(folder: &dyn Store, worker: &Worker, remarks: &mut Remarks) {
    let path = path(METADATA);
    // The worker's flaws say why a file cannot be read or parsed.
    let Ok(Some(bytes)) = read_whole(folder, &path, SIZE_MAX) else { return };
    let Some(fields) = ObjectFields::parse(&bytes) else { return };
    let mut remarks = FileRemarks::new(&path, remarks);
    let subject = |value: &RawValue| line_in(&bytes, value);
    let whole = RemarkSubject::Content;
    remarks.check_fields(&fields, &FIELDS, &[], "", &subject, whole);
    let config =
        fields.get("config").and_then(|config| ObjectFields::parse(config.get().as_bytes()));
    if let Some(config) = &config {
        remarks.check_fields(config, &CONFIG_FIELDS, &[], "config.", &subject, whole);
    }
    let find = |key: &str| {
        let own = fields.get(key).and_then(|value| Some((value, text(value)?)));
        own.or_else(|| {
            let value = config.as_ref()?.get(key)?;
            Some((value, text(value)?))
        })
    };
    check_status(find("status"), find("exit_code"), &mut remarks, &subject);
    for (key, time) in [
        ("created_at", &worker.created_at),
        ("started_at", &worker.started_at),
        ("finished_at", &worker.finished_at),
    ] {
        if let (TraceTime::Unparsed(_), Some((value, word))) = (time, find(key)) {
            remarks.problem("time", subject(value), || {
                let word = quote(&word);
                format!("{key} {word} is not a time; expected a form of 2026-01-20T10:00:00Z")
            });
        }
    }
    let calls = fields
        .get("tool_calls")
        .and_then(|calls| serde_json::from_str::<Vec<&RawValue>>(calls.get()).ok());
    for call in calls.unwrap_or_default() {
        match ObjectFields::parse(call.get().as_bytes()) {
            Some(record) => {
                let missing: &[&str] =
                    if record.has_any(&["tool", "name"]) { &[] } else { &["tool"] };
                let place = subject(call);
                remarks.check_fields(
                    &record,
                    &CALL_FIELDS,
                    missing,
                    "tool_calls.",
                    &subject,
                    place,
                );
            }
            None => remarks.problem("wrong_type", subject(call), || {
                "an item of tool_calls is not an object".into()
            }),
        }
    }
    remarks.finish();
}

/// Returns the text of a scalar, as the reader of the metadata sees it.
fn text(value: &RawValue) -> Option<String> {
    scalar_text(serde_json::from_str(value.get()).ok().as_ref())
}

type Found<'a> = Option<(&'a RawValue, String)>;

fn check_status(
    word: Found<'_>,
    code: Found<'_>,
    remarks: &mut FileRemarks<'_>,
    subject: &dyn Fn(&RawValue) -> RemarkSubject,
) {
    let exit_code: Option<i64> = code.as_ref().and_then(|(_, text)| text.parse().ok());
    if let (Some((value, text)), None) = (&code, exit_code) {
        remarks.problem("wrong_type", subject(value), || {
            format!("exit_code {} is not a whole number", quote(text))
        });
    }
    match (word, code.filter(|_| exit_code.is_some()), exit_code) {
        (Some((value, word)), code, exit_code) => {
            match StatusWord::parse(&word) {
                None => remarks.problem("status", subject(value), || unknown_status(&word)),
                Some(StatusWord { is_documented: false, .. }) => {
                    remarks.note("accepted_status", subject(value), || {
                        let status = status::with_exit_code(&word, exit_code);
                        format!("status {} is read as {status}", quote(&word))
                    });
                }
                Some(_) => {}
            }
            let status = status::with_exit_code(&word, exit_code);
            if let (Some((value, _)), Some(exit_code)) = (code, exit_code)
                && status.is_finished()
                && StatusWord::parse(&word).is_some()
                && (status == Status::Completed) != (exit_code == 0)
            {
                remarks.problem("status", subject(value), || {
                    let word = quote(&word);
                    format!("exit_code {exit_code} contradicts status {word}, which is used")
                });
            }
        }
        (None, Some((value, _)), Some(exit_code)) => {
            remarks.note("accepted_status", subject(value), || {
                let status = status::from_exit_code(exit_code);
                format!("without a status, exit_code {exit_code} is read as {status}")
            });
        }
        (None, ..) => {}
    }
}

/// Returns the remark on an unrecognized status, with the one that was probably meant.
pub(super) fn unknown_status(word: &str) -> String {
    let words = || WORDS.iter().map(|(known, _)| *known);
    let known = match most_similar(word, words()) {
        Some(meant) => format!("{meant} is"),
        None => format!("{} are", words().collect::<Vec<_>>().join(", ")),
    };
    format!("status {} is not known; {known}", quote(word))
}

pub(super) fn check_tools_used(folder: &dyn Store, remarks: &mut Remarks) {
    let path = path(TOOLS_USED);
    let subject = RemarkSubject::Content;
    let bytes = match read_whole(folder, &path, SIZE_MAX) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => {
            return remarks.add(problem("too_long"), &path, subject, || {
                format!("larger than {SIZE_MAX} bytes, so it is not read")
            });
        }
        Err(_) => return,
    };
    let list = match ObjectFields::parse(&bytes) {
        Some(fields) => fields.get("tools").map(|tools| tools.get().as_bytes()),
        None => Some(bytes.as_slice()),
    };
    let items = list.and_then(|list| serde_json::from_slice::<Vec<&RawValue>>(list).ok());
    let Some(items) = items else {
        return remarks.add(problem("wrong_type"), &path, subject, || {
            "expected a list of the names of tools".into()
        });
    };
    for item in items {
        let is_name = match JsonType::from_value(item) {
            JsonType::Text | JsonType::Number => true,
            JsonType::Object => ObjectFields::parse(item.get().as_bytes())
                .is_some_and(|fields| fields.has_any(&["tool", "name"])),
            _ => false,
        };
        if !is_name {
            remarks.add(problem("wrong_type"), &path, line_in(&bytes, item), || {
                "an item is not the name of a tool".into()
            });
        }
    }
}
