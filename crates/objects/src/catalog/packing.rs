//! Keeps the files with contents of transcripts: adds missing contents, and writes a file with an
//! outdated one again. So nothing is kept of a transcript that was deleted.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use object_store::path::Path;
use tokio::task::JoinSet;
use tracing::warn;

use super::files::{FILE_ROWS, READ_MAX, RowWriter, SMALL_FILES_MAX, reader};
use super::layout::TRANSCRIPTS;
use super::manifest::RowFile;
use super::problem::{CatalogError, CatalogProblem};
use super::rows::KnownContents;
use super::transcripts::{self, is_small_transcript, may_have_content};
use crate::ObjectSettings;
use crate::connection::ObjectVersion;
use crate::failure::{FailureKind, RequestFailure};
use crate::key_tree::ListedObject;
use crate::writer::BucketWriter;

/// Number of objects that are read at once.
const BATCH: usize = 500;
/// Size of a row beside its path and its content, in bytes.
const ROW_SIZE: usize = 100;

/// The files with contents of transcripts after a compaction.
#[derive(Clone, Default)]
pub(super) struct PackedTranscripts {
    pub(super) files: Vec<RowFile>,
    pub(super) replaced: Vec<String>,
    /// Number of files that were written.
    pub(super) written: usize,
    /// Number of contents that were added.
    pub(super) added: usize,
}

/// Path and ETag of an object.
type ContentVersion = (Arc<str>, Option<Arc<str>>);

fn version(object: &ListedObject) -> ContentVersion {
    (object.path.clone(), object.etag.clone())
}

/// Brings the files `known` up to date with the listed `objects`.
///
/// # Errors
///
/// A request fails.
pub(super) fn pack_transcripts(
    writer: &BucketWriter,
    settings: &ObjectSettings,
    known: &[RowFile],
    objects: Vec<ListedObject>,
    now: Timestamp,
) -> Result<PackedTranscripts, CatalogError> {
    let wanted = objects.into_iter().filter(is_small_transcript);
    let mut missing: HashMap<ContentVersion, ListedObject> =
        wanted.map(|object| (version(&object), object)).collect();
    let is_small = |file: &RowFile| file.rows < FILE_ROWS / 2;
    let merges = known.iter().filter(|file| is_small(file)).count() > SMALL_FILES_MAX;
    let (mut files, mut replaced, mut added) = (Vec::new(), Vec::new(), 0);
    let mut rows = RowWriter::new(writer, TRANSCRIPTS, now, transcripts::encode);
    let mut add = |(object, content): (ListedObject, Bytes)| {
        let size = ROW_SIZE + object.path.len() + content.len();
        rows.add((object, content), size)
    };
    for file in known {
        let mut live = match read(writer, settings, file) {
            Ok(contents) => contents,
            Err(CatalogProblem::Request(failure)) if failure.kind != FailureKind::Gone => {
                return Err(failure.into());
            }
            Err(problem) => {
                warn!("{} of {} is made again: {problem}", file.key, writer.url());
                Vec::new()
            }
        };
        live.retain(|(object, _)| missing.remove(&version(object)).is_some());
        if live.len() == file.rows && !(merges && is_small(file)) {
            files.push(file.clone());
            continue;
        }
        replaced.push(file.key.clone());
        live.into_iter().try_for_each(&mut add)?;
    }
    let mut missing: Vec<ListedObject> = missing.into_values().collect();
    missing.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    for batch in missing.chunks(BATCH) {
        for row in read_objects(writer, batch)? {
            added += 1;
            add(row)?;
        }
    }
    let written = rows.finish()?;
    let count = written.len();
    files.extend(written);
    Ok(PackedTranscripts { files, replaced, written: count, added })
}

fn read(
    writer: &BucketWriter,
    settings: &ObjectSettings,
    file: &RowFile,
) -> Result<KnownContents, CatalogProblem> {
    let (reader, file) = (reader(writer, settings), file.clone());
    let connection = reader.connection.clone();
    // A damaged file is no failure of a request.
    let read = connection.wait(READ_MAX, async move {
        match reader.read_transcripts(&file).await {
            Err(CatalogProblem::Request(failure)) => Err(failure),
            read => Ok(read),
        }
    });
    read?
}

/// Reads the objects that are still the versions that were listed. Leaves out those that are no
/// text, or whose ETag looks like another hash.
fn read_objects(
    writer: &BucketWriter,
    objects: &[ListedObject],
) -> Result<KnownContents, CatalogError> {
    let (connection, url) = writer.shared_parts();
    let wanted: Vec<(ListedObject, Arc<ObjectVersion>)> = objects
        .iter()
        .filter_map(|object| {
            let version = ObjectVersion {
                key: Path::parse(format!("{}{}", url.prefix, object.path)).ok()?,
                size: object.size,
                etag: object.etag.as_deref().map(str::to_owned),
                modified: object.modified,
            };
            Some((object.clone(), Arc::new(version)))
        })
        .collect();
    let reader = connection.clone();
    let mut read = connection.wait(READ_MAX, async move {
        let mut reads = JoinSet::new();
        for (object, version) in wanted {
            let reader = reader.clone();
            reads.spawn(async move { (object, reader.read(&version, 0..version.size).await) });
        }
        let mut contents = KnownContents::new();
        while let Some(read) = reads.join_next().await {
            match read
                .map_err(|error| RequestFailure::new(FailureKind::Other, error.to_string()))?
            {
                (object, Ok(content)) => contents.push((object, content)),
                (_, Err(failure)) if failure.kind == FailureKind::Gone => {}
                (_, Err(failure)) => return Err(failure),
            }
        }
        Ok(contents)
    })?;
    read.retain(|(object, content)| {
        std::str::from_utf8(content).is_ok() && may_have_content(object, content)
    });
    Ok(read)
}
