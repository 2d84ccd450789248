//! Helpers for file metadata: existence checks and hashes that detect changes.

use swarmletfs_base::error::Result;
use swarmletfs_base::store::{Kind, Meta};

/// Turns the error of a missing file into `None`.
///
/// # Errors
///
/// Returns all other errors unchanged.
pub(super) fn if_exists(meta: Result<Meta>) -> Result<Option<Meta>> {
    match meta {
        Ok(meta) => Ok(Some(meta)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the metadata of a regular file or directory. Treats symlinks and special files as
/// missing.
///
/// # Errors
///
/// Fails if the file exists but its metadata cannot be read.
pub(super) fn if_file_or_folder(meta: Result<Meta>) -> Result<Option<Meta>> {
    Ok(if_exists(meta)?.filter(|meta| matches!(meta.kind, Kind::File | Kind::Folder)))
}

/// Adds to `hash` everything that identifies a state of a file and its visibility: its type as the
/// store reports it, its links and its permissions.
pub(super) fn hash_meta(hash: &mut blake3::Hasher, meta: Option<&Meta>) {
    let Some(meta) = meta else {
        hash.update(&[0]);
        return;
    };
    hash.update(&[1]);
    let kind = match meta.kind {
        Kind::File => 0,
        Kind::Folder => 1,
        Kind::Link => 2,
        Kind::Special => 3,
    };
    for number in [kind, meta.nlink, meta.mode, meta.uid, meta.gid] {
        hash.update(&number.to_le_bytes());
    }
    hash.update(&meta.identity.ino.to_le_bytes());
    hash.update(&meta.size.to_le_bytes());
    for time in [meta.mtime, meta.ctime] {
        hash.update(&time.secs.to_le_bytes());
        hash.update(&time.nanos.to_le_bytes());
    }
}
