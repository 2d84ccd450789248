//! The records of workers outside of their directories.
//!
//! The registry holds the workers in a sandbox, see [`swarmletfs_trace::swarmlet::RegistryRecord`].
//! Only a process outside of the sandbox reaches it. A record is replaced under the lock of the
//! registry, never under the lock of the worker's directory, which the worker can hold.
//!
//! A removed worker leaves a tombstone: an id that has one is never given again.

use super::dir::{Dir, Durability, Lock};
use super::error::{During, Error, Result, bad_content};
use super::lines::{self, MetadataMap, TEXT_MAX, entry_of, to_document};
use crate::audit::AuditPath;
use swarmletfs_base::error::{Error as PathError, Result as PathResult};
use swarmletfs_base::name::{Name, RelPath, printable};
use swarmletfs_base::store::{Kind, is_temporary};
use swarmletfs_trace::swarmlet::{
    FolderId, REGISTRY, REGISTRY_MAX, RegistryRecord, TASK, TOMBSTONE_MAX, TOMBSTONES, Tombstone,
};

/// Makes the record of the worker `id` from its metadata.json, and replaces the record of an
/// earlier worker. No process has run in its sandbox yet.
///
/// # Errors
///
/// The metadata cannot be read, or the store cannot be written.
pub(super) fn register(root: &Dir, id: &Name, folder: &Dir) -> Result<()> {
    let fields = lines::read(folder)?;
    let read_task = || folder.read(&Name::new(TASK)?, TEXT_MAX as u64);
    let task = read_task().during("read", folder.path(), TASK.as_bytes())?;
    let task = task.map(|task| String::from_utf8_lossy(&task).trim_end().to_owned());
    let write = || {
        let registry = create(root)?;
        let _lock = registry.lock()?;
        let record = RegistryRecord::new(id_of(&registry)?, id_of(folder)?, fields, task);
        put(&registry, id, &record)
    };
    write().during("make a record of a worker in", root.path(), REGISTRY.as_bytes())
}

/// Changes the record of the worker `id`, whose directory is `folder`. Returns false if it has
/// none, as inside of a sandbox.
///
/// # Errors
///
/// The record is damaged, or the store cannot be written.
pub(super) fn update(
    root: &Dir,
    id: &Name,
    folder: &Dir,
    change: impl FnOnce(&mut RegistryRecord),
) -> Result<bool> {
    // Most workers have no record, and need no lock.
    let Some(registry) = open_for(root, id)? else { return Ok(false) };
    let _lock = registry.lock().during("lock", registry.path(), b"")?;
    let Some(mut record) = read(&registry, id, folder)? else { return Ok(false) };
    change(&mut record);
    // A change that does not wait for the disk does not wait for the record either.
    let write = || match folder.durability() {
        Durability::Full => put(&registry, id, &record),
        Durability::None => put(&registry.without_sync()?, id, &record),
    };
    write().during("write", registry.path(), id.as_bytes())?;
    Ok(true)
}

/// Returns the record of the worker `id`, whose directory is `folder`, if it has one.
///
/// # Errors
///
/// The record is damaged, or cannot be read.
pub(super) fn find(root: &Dir, id: &Name, folder: &Dir) -> Result<Option<RegistryRecord>> {
    match open_for(root, id)? {
        Some(registry) => read(&registry, id, folder),
        None => Ok(None),
    }
}

/// Returns the metadata of the worker `id`. The fields of its record replace the fields that the
/// worker could write itself.
///
/// # Errors
///
/// The metadata of a worker without a record, or the record, cannot be read.
pub(super) fn metadata(root: &Dir, id: &Name, folder: &Dir) -> Result<MetadataMap> {
    let Some(record) = find(root, id, folder)? else { return lines::read(folder) };
    // The worker may have damaged its file.
    let mut fields = lines::read(folder).unwrap_or_default();
    record.correct(&mut fields);
    Ok(fields)
}

/// Writes the record of a copy of a worker, whose directory is `folder`. The caller holds the lock
/// of the `registry`.
pub(super) fn put_copy(
    registry: &Dir,
    id: &Name,
    folder: &Dir,
    record: RegistryRecord,
) -> Result<()> {
    let write = || put(registry, id, &record.for_copy(id_of(registry)?, id_of(folder)?));
    write().during("write", registry.path(), id.as_bytes())
}

pub(super) fn lock(root: &Dir) -> Result<(Dir, Lock)> {
    let open = || {
        let registry = create(root)?;
        let lock = registry.lock()?;
        Ok((registry, lock))
    };
    open().during("open", root.path(), REGISTRY.as_bytes())
}

/// Removes the records of the workers for which `is_gone` returns true. An error keeps the record.
pub(super) fn remove(root: &Dir, is_gone: impl Fn(&Name) -> PathResult<bool>) -> Result<()> {
    let remove = || {
        let Some(registry) = open(root)? else { return Ok(()) };
        let _lock = registry.lock()?;
        for file in registry.list()?.iter().filter(|file| !is_temporary(file)) {
            if RegistryRecord::worker_of(file).is_some_and(|id| is_gone(&id).unwrap_or(false)) {
                registry.remove_all(file)?;
            }
        }
        registry.sync()
    };
    remove().during("remove what is left in", root.path(), REGISTRY.as_bytes())
}

pub(super) fn remove_one(root: &Dir, id: &Name) -> Result<()> {
    let Some(registry) = open_for(root, id)? else { return Ok(()) };
    let remove = || {
        let _lock = registry.lock()?;
        registry.remove_all(&RegistryRecord::file_name(id)?)?;
        registry.sync()
    };
    remove().during("remove", registry.path(), id.as_bytes())
}

pub(super) fn open(root: &Dir) -> PathResult<Option<Dir>> {
    match root.enter(&RelPath::constant(REGISTRY)) {
        Ok(registry) => Ok(Some(registry)),
        Err(PathError::NotFound | PathError::NotADirectory | PathError::Escape) => Ok(None),
        Err(error) => Err(error),
    }
}

fn open_for(root: &Dir, id: &Name) -> Result<Option<Dir>> {
    // Such an id is too long for a record.
    let Ok(file) = RegistryRecord::file_name(id) else { return Ok(None) };
    let open = || {
        let Some(registry) = open(root)? else { return Ok(None) };
        Ok(registry.kind(&file.into())?.map(|_| registry))
    };
    open().during("open", root.path(), REGISTRY.as_bytes())
}

fn create(root: &Dir) -> PathResult<Dir> {
    if let Some(registry) = open(root)? {
        return Ok(registry);
    }
    // Of two processes that make it, one would give it its permissions while the other uses it.
    let _lock = root.lock()?;
    // Everyone who records workers may run them.
    root.create_dir_alike(&Name::new(REGISTRY)?)?;
    root.sync()?;
    root.enter(&RelPath::constant(REGISTRY))
}

fn read(registry: &Dir, id: &Name, folder: &Dir) -> Result<Option<RegistryRecord>> {
    let read = || {
        let json = registry.read(&RegistryRecord::file_name(id)?, REGISTRY_MAX)?;
        Ok::<_, PathError>((json, id_of(registry)?, id_of(folder)?))
    };
    let (json, own, about) = read().during("read", registry.path(), id.as_bytes())?;
    let Some(json) = json else { return Ok(None) };
    let damaged = || -> Error { bad_content(registry.path(), &id.display(), "it is damaged") };
    let record = RegistryRecord::parse(&json).ok_or_else(damaged)?;
    Ok(record.is_about(own, about).then_some(record))
}

fn put(registry: &Dir, id: &Name, record: &RegistryRecord) -> PathResult<()> {
    let json = to_document(record)?;
    let temporary = registry.write_temporary(&mut json.as_slice())?;
    temporary.replace(registry, &RegistryRecord::file_name(id)?)
}

fn id_of(folder: &Dir) -> PathResult<FolderId> {
    folder
        .identity()
        .map(|identity| FolderId { inode: identity.inode(), created: identity.created() })
}

pub(super) fn tombstone_exists(root: &Dir, id: &Name) -> Result<bool> {
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
    if !tombstone_exists(root, id)? {
        return Ok(());
    }
    let tombstone = read_tombstone(root, id).ok().flatten();
    let when = tombstone.map_or_else(
        || "earlier".to_owned(),
        |tombstone| format!("on {}", tombstone.removed_at.strftime("%Y-%m-%d")),
    );
    Err(Error::Removed { worker: id.display(), when })
}

/// Returns the error for the worker `id`, which does not exist. It says whether the worker was
/// removed, when, by which rule, and where its copy is.
pub(super) fn absence(root: &Dir, id: &Name) -> Error {
    let worker = id.display();
    if !tombstone_exists(root, id).unwrap_or_default() {
        let store = printable(root.path().as_os_str().as_encoded_bytes());
        return Error::NoWorker { worker, store };
    }
    let Some(tombstone) = read_tombstone(root, id).ok().flatten() else {
        let rest = "the record of its removal is damaged".to_owned();
        return Error::Gone { worker, when: "earlier".to_owned(), rest };
    };
    let day = tombstone.removed_at.strftime("%Y-%m-%d");
    let when = format!("on {day} ({})", printable(tombstone.rule.as_bytes()));
    let rest = match &tombstone.archived_to {
        Some(archive) => format!("try `--store {}`", printable(archive.as_bytes())),
        None => "there is no copy".to_owned(),
    };
    Error::Gone { worker, when, rest }
}

/// Reads the record of the removed worker `id`. Returns `None` if there is none or it is damaged.
pub(super) fn read_tombstone(root: &Dir, id: &Name) -> PathResult<Option<Tombstone>> {
    let folder = root.enter(&RelPath::constant(TOMBSTONES))?;
    let json = folder.read(&Tombstone::file_name(id)?, TOMBSTONE_MAX)?;
    Ok(json.and_then(|json| Tombstone::parse(&json)))
}

pub(super) fn open_tombstones(root: &Dir) -> PathResult<Dir> {
    let path = RelPath::constant(TOMBSTONES);
    if root.kind(&path)?.is_none() {
        // Everyone who records workers may remove them.
        root.create_dir_alike(&Name::new(TOMBSTONES)?)?;
        root.sync()?;
    }
    root.enter(&path)
}

pub(super) fn write_tombstone(folder: &Dir, id: &Name, tombstone: &Tombstone) -> Result<AuditPath> {
    let write = || {
        let name = Tombstone::file_name(id)?;
        let json = to_document(tombstone)?;
        folder.write_temporary(&mut json.as_slice())?.replace(folder, &name)?;
        Ok(entry_of(&format!("{TOMBSTONES}/{}", name.to_text()), &json))
    };
    write().during("write the tombstone in", folder.path(), id.as_bytes())
}

/// Lists the workers that have a record. Other files are left out.
pub(super) fn list_tombstones(root: &Dir) -> Result<Vec<Name>> {
    let path = RelPath::constant(TOMBSTONES);
    let list = || match root.kind(&path)? {
        Some(Kind::Folder) => root.enter(&path)?.list(),
        _ => Ok(Vec::new()),
    };
    let names = list().during("list", root.path(), TOMBSTONES.as_bytes())?;
    Ok(names.iter().filter(|name| !is_temporary(name)).filter_map(Tombstone::worker_of).collect())
}
