//! What stat tells, as formats ask for it: is it there, and has it changed.

use crate::error::Result;
use crate::store::{Kind, Meta};

/// Turns "is not there" into `None`; other errors stay.
pub(super) fn found(meta: Result<Meta>) -> Result<Option<Meta>> {
    match meta {
        Ok(meta) => Ok(Some(meta)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// The same for what is read: a link or a special file in the place is not there either.
pub(super) fn present(meta: Result<Meta>) -> Result<Option<Meta>> {
    Ok(found(meta)?.filter(|meta| matches!(meta.kind, Kind::File | Kind::Folder)))
}

/// Adds to `hash` what tells one state of a file from another, and what decides who is shown it: its kind as the view's
/// store presents it, its links and its rights.
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
