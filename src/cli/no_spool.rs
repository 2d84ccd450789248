//! Refuses to record into an object store, in a build without them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::object_facts::FlushedSpool;
use super::object_stores::refuse;
use crate::name::RelPath;
use crate::store::Time;
use swarmletfs_record::write::{NewWorkerCheck, NotePlace, SpaceLimit};

pub(super) use NoSpool as SpoolSession;

/// No build without object stores has one.
pub(super) enum NoSpool {}

/// A note of a supervisor in an object store.
pub(super) struct ListedNote {
    pub(super) key: String,
    pub(super) size: u64,
    pub(super) modified: Time,
}

impl NoSpool {
    pub(super) fn begin(url: &Path, _space_max: u64, _quiet: bool) -> anyhow::Result<NoSpool> {
        refuse(url)
    }

    pub(super) fn store_path(&self) -> PathBuf {
        match *self {}
    }

    pub(super) fn space(&self) -> Arc<SpaceLimit> {
        match *self {}
    }

    pub(super) fn check_new_workers(&self) -> NewWorkerCheck {
        match *self {}
    }

    pub(super) fn explain(&self, _error: anyhow::Error) -> anyhow::Error {
        match *self {}
    }

    pub(super) fn finish(self) {
        match self {}
    }
}

pub(super) fn flush(url: Option<&Path>) -> anyhow::Result<Vec<FlushedSpool>> {
    url.map_or(Ok(Vec::new()), refuse)
}

pub(super) fn annotate(url: &str, _id: &[u8], _notes: &str) -> anyhow::Result<()> {
    refuse(Path::new(url))
}

pub(super) fn write_note(
    url: &str,
    _path: &RelPath,
    _content: &[u8],
    _place: NotePlace,
) -> anyhow::Result<()> {
    refuse(Path::new(url))
}

pub(super) fn list_notes(url: &str) -> anyhow::Result<Vec<ListedNote>> {
    refuse(Path::new(url))
}
