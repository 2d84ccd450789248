//! The records of removed workers: an id that has one is never given again.

use super::dir::Dir;
use super::error::{During, Error, Result};
use super::hashing::entry_of;
use super::lines::to_document;
use crate::audit::AuditPath;
use swarmletfs_base::error::{Error as PathError, Result as PathResult};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{Kind, is_temporary};
use swarmletfs_trace::swarmlet::{TOMBSTONE_MAX, TOMBSTONES, Tombstone};

pub(super) fn exists(root: &Dir, id: &Name) -> Result<bool> {
    let find = || {
        let path = RelPath::constant(TOMBSTONES).join(&Tombstone::file_name(id)?);
        match root.kind(&path) {
            Err(PathError::NotADirectory | PathError::Escape) => Ok(false),
            kind => Ok(kind?.is_some()),
        }
    };
    match find() {
        // Such an id is too long for a tombstone, so no worker with this id was removed.
        Err(PathError::InvalidName | PathError::NameTooLong) => Ok(false),
        found => found.during("read", root.path(), TOMBSTONES.as_bytes()),
    }
}

/// Fails if a worker of the id `id` was removed.
///
/// # Errors
///
/// [`Error::Removed`] if it was, also if its record is damaged.
pub(super) fn must_be_new(root: &Dir, id: &Name) -> Result<()> {
    if !exists(root, id)? {
        return Ok(());
    }
    let tombstone = read(root, id).ok().flatten();
    let when = tombstone.map_or_else(
        || "earlier".to_owned(),
        |tombstone| format!("on {}", tombstone.removed_at.strftime("%Y-%m-%d")),
    );
    Err(Error::Removed { worker: id.display(), when })
}

/// Reads the record of the removed worker `id`. Returns `None` if there is none or it is damaged.
pub(super) fn read(root: &Dir, id: &Name) -> PathResult<Option<Tombstone>> {
    let folder = root.enter(&RelPath::constant(TOMBSTONES))?;
    let json = folder.read(&Tombstone::file_name(id)?, TOMBSTONE_MAX)?;
    Ok(json.and_then(|json| Tombstone::parse(&json)))
}

pub(super) fn open_folder(root: &Dir) -> PathResult<Dir> {
    let path = RelPath::constant(TOMBSTONES);
    if root.kind(&path)?.is_none() {
        // Everyone who records workers may remove them.
        root.create_dir_alike(&Name::new(TOMBSTONES)?)?;
        root.sync()?;
    }
    root.enter(&path)
}

pub(super) fn write(folder: &Dir, id: &Name, tombstone: &Tombstone) -> Result<AuditPath> {
    let write = || {
        let name = Tombstone::file_name(id)?;
        let json = to_document(tombstone)?;
        folder.write_temporary(&mut json.as_slice())?.replace(folder, &name)?;
        Ok(entry_of(&format!("{TOMBSTONES}/{}", name.to_text()), &json))
    };
    write().during("write the tombstone in", folder.path(), id.as_bytes())
}

/// Lists the workers that have a record. Other files are left out.
pub(super) fn list(root: &Dir) -> Result<Vec<Name>> {
    let path = RelPath::constant(TOMBSTONES);
    let list = || match root.kind(&path)? {
        Some(Kind::Folder) => root.enter(&path)?.list(),
        _ => Ok(Vec::new()),
    };
    let names = list().during("list", root.path(), TOMBSTONES.as_bytes())?;
    Ok(names.iter().filter(|name| !is_temporary(name)).filter_map(Tombstone::worker_of).collect())
}
