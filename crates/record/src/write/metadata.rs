//! The metadata.json of a worker, in which fields of other writers are kept, and its messages for
//! thread.jsonl, one JSON object per line.

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::dir::Dir;
use super::error::{During, Error, Result, bad_content};
use swarmletfs_base::model::Status;
use swarmletfs_base::name::Name;
use swarmletfs_trace::swarmlet::{METADATA, METADATA_MAX, own_status};

/// The fields of a worker's metadata, in the order of the file.
pub(super) type MetadataMap = Map<String, Value>;

/// Maximum length of a text, in bytes. Readers read files of up to 2 MiB.
pub(super) const TEXT_MAX: usize = 1 << 20;

/// Reads the metadata of the worker in `folder`. A worker without the file has no fields.
///
/// # Errors
///
/// The file cannot be read or is no JSON object; it is not replaced then.
pub(super) fn read(folder: &Dir) -> Result<MetadataMap> {
    let read = || folder.read(&Name::new(METADATA)?, METADATA_MAX);
    let Some(bytes) = read().during("read", folder.path(), METADATA.as_bytes())? else {
        return Ok(Map::new());
    };
    // A torn file is not replaced: the new one would lack its other fields.
    serde_json::from_slice(&bytes)
        .map_err(|_| bad_content(folder.path(), METADATA, "it is no JSON object"))
}

pub(super) fn must_be_unfinished(fields: &MetadataMap, id: &Name) -> Result<()> {
    let status = own_status(fields);
    if status.is_finished() {
        return Err(Error::Finished { worker: id.display(), status: status.to_string() });
    }
    Ok(())
}

/// Replaces the metadata of a worker by `bytes`, which [`to_bytes`] returned.
pub(super) fn write(folder: &Dir, bytes: &[u8]) -> Result<()> {
    let write = || {
        let temporary = folder.write_temporary(&mut &*bytes)?;
        temporary.replace(folder, &Name::new(METADATA)?)
    };
    write().during("write", folder.path(), METADATA.as_bytes())
}

/// Returns metadata as the bytes of its file.
///
/// # Errors
///
/// [`Error::Invalid`] if no reader would read the file.
pub(super) fn to_bytes(fields: &MetadataMap) -> Result<Vec<u8>> {
    let too_long = |reason: String| {
        let id = fields.get("worker_id").and_then(Value::as_str).unwrap_or_default();
        Error::invalid(id.as_bytes(), "a worker with these texts", reason)
    };
    let mut bytes =
        serde_json::to_vec_pretty(fields).map_err(|error| too_long(error.to_string()))?;
    bytes.push(b'\n');
    if bytes.len() as u64 > METADATA_MAX {
        let reason = "its task, error and summary need more than 2 MiB as JSON".to_owned();
        return Err(too_long(reason));
    }
    Ok(bytes)
}

/// Returns a time as the files of a store have it: UTC, in milliseconds.
pub(super) fn time(time: Timestamp) -> String {
    format!("{time:.3}")
}

pub(super) fn running() -> Value {
    Status::Running.as_str().into()
}

/// Longest line that readers read, in bytes.
const LINE_MAX: usize = 16 << 20;
/// The roles of messages that readers know.
const ROLES: [&str; 4] = ["user", "assistant", "system", "tool"];

/// Checks messages, one JSON object per line, and returns their lines as they are written: with a
/// `timestamp`, if they have none.
///
/// # Errors
///
/// [`Error::Message`] names the first line that is no message.
pub(super) fn parse_messages(text: &[u8], now: Timestamp) -> Result<Vec<u8>> {
    let mut lines = Vec::with_capacity(text.len());
    for (at, line) in text.split(|byte| *byte == b'\n').enumerate() {
        if line.trim_ascii().is_empty() {
            continue;
        }
        let fail = |reason: String| Error::Message { line: at + 1, reason };
        let message = serde_json::from_slice(line)
            .map_err(|error| fail(format!("not a JSON object on one line ({error})")))?;
        lines.extend(check_line(line.trim_ascii(), &message, now).map_err(fail)?);
    }
    if lines.is_empty() {
        return Err(Error::Message { line: 1, reason: "there is no message".into() });
    }
    Ok(lines)
}

/// Returns a message as a line.
///
/// # Errors
///
/// The reason why readers would not read it.
pub(super) fn message_line(
    message: &Map<String, Value>,
    now: Timestamp,
) -> Result<Vec<u8>, String> {
    let text = serde_json::to_vec(message).map_err(|error| error.to_string())?;
    check_line(&text, message, now)
}

/// Checks a message and returns its line: `text`, which is the object `message`, as it is, with a
/// time added to its end.
fn check_line(
    text: &[u8],
    message: &Map<String, Value>,
    now: Timestamp,
) -> Result<Vec<u8>, String> {
    let role = message.get("role").and_then(Value::as_str);
    if !role.is_some_and(|role| ROLES.contains(&role)) {
        return Err(format!("`role` is one of {}", ROLES.join(", ")));
    }
    if !matches!(message.get("content"), None | Some(Value::String(_) | Value::Null)) {
        return Err("`content` is a text".into());
    }
    if !matches!(message.get("tool_calls"), None | Some(Value::Array(_) | Value::Null)) {
        return Err("`tool_calls` is a list".into());
    }
    let mut line = text.to_vec();
    // Encoding the object again would change long numbers.
    if !message.contains_key("timestamp") && line.pop() == Some(b'}') {
        line.extend(format!(", \"timestamp\": \"{}\"}}", time(now)).into_bytes());
    }
    line.push(b'\n');
    if line.len() > LINE_MAX {
        return Err(format!("the message has {} bytes; at most {LINE_MAX} are read", line.len()));
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<String> {
        let now = "2026-01-20T10:00:00Z".parse().unwrap();
        parse_messages(text.as_bytes(), now).map(|lines| String::from_utf8(lines).unwrap())
    }

    #[test]
    fn messages_get_a_time_and_keep_everything_else() {
        let lines = parse(concat!(
            "{\"role\": \"user\", \"content\": \"hi\\n\", \"x\": [1.50]}\n\n",
            "{\"role\": \"assistant\", \"tool_calls\": [], \"timestamp\": \"then\"}",
        ));
        assert_eq!(
            lines.unwrap(),
            concat!(
                "{\"role\": \"user\", \"content\": \"hi\\n\", \"x\": [1.50], ",
                "\"timestamp\": \"2026-01-20T10:00:00.000Z\"}\n",
                "{\"role\": \"assistant\", \"tool_calls\": [], \"timestamp\": \"then\"}\n",
            )
        );
    }

    #[test]
    fn error_names_the_first_line_that_is_no_message() {
        let good = r#"{"role": "user", "content": "hi"}"#;
        for (bad, line) in [
            ("", 1),
            ("\n\n", 1),
            ("{", 1),
            ("[]", 1),
            (r#"{"role": "judge"}"#, 1),
            (r#"{"content": "hi"}"#, 1),
            (r#"{"role": "user", "content": [1]}"#, 1),
            (r#"{"role": "user", "tool_calls": {}}"#, 1),
            (&format!("{good}\n\n{{}}\n"), 3),
        ] {
            let error = parse(bad).unwrap_err();
            assert!(matches!(error, Error::Message { line: found, .. } if found == line), "{bad}");
        }
    }
}
