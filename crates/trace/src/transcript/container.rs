//! Opens the transcript at a location as one file, in any stored form.

use std::sync::Arc;

use super::archive::{ArchiveFile, Archives};
use super::continued_file::{self, ContinuedFile};
use super::database::{DatabaseFile, Databases};
use super::folder_file::{FolderFile, FolderListings};
use super::location::{Container, TranscriptLocation};
use super::samples::EvalLogs;
use super::spans::{SpanFile, SpanGroups};
use swarmletfs_base::error::Result;
use swarmletfs_base::store::{File, Meta, Store};

/// Cached state of the transcripts in a store that are not regular files.
#[derive(Default)]
pub(super) struct Containers {
    listings: Arc<FolderListings>,
    archives: Arc<Archives>,
    spans: Arc<SpanGroups>,
    pub(super) databases: Arc<Databases>,
    pub(super) logs: EvalLogs,
}

pub(super) fn open(
    folder: &dyn Store,
    location: &TranscriptLocation,
    containers: &Containers,
) -> Result<Box<dyn File>> {
    match location.container {
        Container::File => folder.open(&location.transcript),
        Container::Continued => Ok(Box::new(ContinuedFile::new(folder, &location.transcript)?)),
        Container::Zstd => {
            let (file, path) = (folder.open(&location.transcript)?, location.path());
            Ok(Box::new(ArchiveFile::new(file, path, containers.archives.clone())))
        }
        Container::Spans => {
            let (file, path) = (folder.open(&location.transcript)?, location.path());
            Ok(Box::new(SpanFile::new(file, path, containers.spans.clone())))
        }
        Container::Folder => Ok(Box::new(FolderFile::new(folder, location, &containers.listings)?)),
        Container::Database(layout) => {
            Ok(Box::new(DatabaseFile::new(folder, location, layout, &containers.databases)?))
        }
        Container::Samples => Ok(Box::new(containers.logs.open(folder, location)?)),
    }
}

/// Returns the metadata of the transcript at `location` in the form of a regular file. The size of
/// a compressed transcript is its compressed size.
///
/// # Errors
///
/// Fails if the metadata cannot be read.
pub(super) fn meta(
    folder: &dyn Store,
    location: &TranscriptLocation,
    containers: &Containers,
) -> Result<Meta> {
    match location.container {
        Container::File | Container::Zstd | Container::Spans => folder.stat(&location.transcript),
        Container::Continued => continued_file::meta(folder, &location.transcript),
        Container::Folder => FolderFile::new(folder, location, &containers.listings)?.meta(),
        Container::Database(layout) => containers.databases.meta(folder, location, layout),
        Container::Samples => containers.logs.meta(folder, location),
    }
}
