//! Changes of objects without a spool: of workers that have ended, and of a supervisor's notes.
//!
//! They need a connection. An object that is changed is replaced only if nobody else changed it
//! since it was read; otherwise the change is made again.

use anyhow::{Context, anyhow, bail};
use serde_json::{Map, Value};

use super::upload::writer;
use crate::cli::object_stores::announce;
use crate::cli::spools::WORKERS;
use crate::cli::spools::progress::METADATA;
use crate::name::{Name, RelPath};
use crate::objects::{BucketWriter, Bytes, KeyEntry, PutCondition, PutError, WorkerNews};
use crate::trace::swarmlet::{METADATA_MAX, SUPERVISOR, SUPERVISOR_NOTES, own_status};
use std::time::Duration;
use swarmletfs_record::write::{NotePlace, to_document};

const DEADLINE: Duration = Duration::from_secs(10);
/// Number of times that a change is made, if others change the object, too.
const ATTEMPTS: usize = 16;
/// Maximum size of a note, in bytes.
const NOTE_MAX: u64 = 64 << 20;

/// Changes the object `key`. `change` returns its new bytes from the old ones.
fn change_object(
    bucket: &BucketWriter,
    key: &str,
    size_max: u64,
    change: impl Fn(Option<Bytes>) -> anyhow::Result<Bytes>,
) -> anyhow::Result<()> {
    for _ in 0..ATTEMPTS {
        let (old, condition) = match bucket.get(key, size_max)? {
            Some((old, version)) => (Some(old), PutCondition::IfMatch(version)),
            None => (None, PutCondition::IfAbsent),
        };
        match bucket.put(key, change(old)?, &condition) {
            Ok(_) => return Ok(()),
            Err(PutError::Taken | PutError::Changed) => {}
            Err(error) => return Err(error.into()),
        }
    }
    bail!("others change it all the time; try again")
}

/// Returns the error for a worker that is not in the spool of this machine.
pub(super) fn explain_absence(bucket: &BucketWriter, worker: &str) -> anyhow::Error {
    let url = bucket.url();
    let found = bucket.get(&format!("{WORKERS}/{worker}/{METADATA}"), METADATA_MAX);
    match found {
        Ok(None) => anyhow!("cannot find worker {worker} in {url}; try `swarmletfs ls workers`"),
        Ok(Some((bytes, _))) => {
            let fields: Map<String, Value> = serde_json::from_slice(&bytes).unwrap_or_default();
            let status = own_status(&fields);
            match status.is_finished() {
                true => anyhow!(
                    "cannot change worker {worker}: it has finished ({status}); try a new worker"
                ),
                false => anyhow!(
                    "cannot change worker {worker} of {url}: another machine, or another user, \
                     records it; try there"
                ),
            }
        }
        Err(failure) => anyhow!(
            "cannot find worker {worker} in the spool of {url}, and the object store cannot be \
             asked: {failure}; {}",
            failure.cure()
        ),
    }
}

/// Sets the notes of a supervisor on a worker that lies in the object store at `url`.
///
/// # Errors
///
/// There is no such worker, or the object store cannot be written.
pub(crate) fn annotate(url: &str, id: &[u8], notes: &str) -> anyhow::Result<()> {
    let bucket = writer(url, DEADLINE)?;
    let name = Name::new(id).with_context(|| "cannot use the id of the worker")?;
    let id = name.display();
    let key = format!("{WORKERS}/{}/{METADATA}", name.to_text());
    let notes = Some(notes).filter(|notes| !notes.trim().is_empty());
    change_object(&bucket, &key, METADATA_MAX, |old| {
        let Some(old) = old else { return Err(explain_absence(&bucket, &id)) };
        let mut fields: Map<String, Value> =
            serde_json::from_slice(&old).context("its metadata is no JSON object")?;
        match notes {
            None => fields.remove(SUPERVISOR_NOTES),
            Some(notes) => fields.insert(SUPERVISOR_NOTES.into(), notes.into()),
        };
        Ok(to_document(&fields)?.into())
    })
    .and_then(|()| Ok(announce(&bucket, WorkerNews::Closed, &name)?))
    .with_context(|| format!("cannot set the notes on worker {id}"))
}

/// Writes the note `path` of a supervisor to the object store at `url`. Returns the path.
///
/// # Errors
///
/// The path leads elsewhere, or the object store cannot be written.
pub(crate) fn write_note(
    url: &str,
    path: &RelPath,
    content: &[u8],
    place: NotePlace,
) -> anyhow::Result<()> {
    let bucket = writer(url, DEADLINE)?;
    let key = format!("{SUPERVISOR}/{}", path.to_text());
    let write = || match place {
        NotePlace::Whole => {
            let bytes = Bytes::copy_from_slice(content);
            bucket.put(&key, bytes, &PutCondition::Always).map(drop).map_err(Into::into)
        }
        NotePlace::End => change_object(&bucket, &key, NOTE_MAX, |old| {
            Ok([old.as_deref().unwrap_or_default(), content].concat().into())
        }),
    };
    write().with_context(|| format!("cannot write {key} of {url}"))
}

/// Lists the notes of a supervisor in the object store at `url`, with their paths in `supervisor`.
///
/// # Errors
///
/// The object store cannot be read.
pub(crate) fn list_notes(url: &str) -> anyhow::Result<Vec<KeyEntry>> {
    let bucket = writer(url, DEADLINE)?;
    let prefix = format!("{SUPERVISOR}/");
    let listed = bucket.list(&prefix).with_context(|| format!("cannot list the notes of {url}"))?;
    let notes = listed.into_iter().filter_map(|note| {
        let path = note.key.strip_prefix(&*prefix)?.to_owned();
        Some(KeyEntry { key: path, ..note })
    });
    Ok(notes.collect())
}
