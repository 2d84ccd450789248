//! The metadata.json of a worker, as it is written. Fields of other writers are kept.

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
