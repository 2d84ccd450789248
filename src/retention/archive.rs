//! Copies of workers that are removed, in a store that can be mounted.

use std::path::{Path, PathBuf};

use crate::error::{Error as PathError, Result as PathResult};
use crate::name::{Name, RelPath, printable_path};
use crate::store::Kind;
use swarmletfs_record::write::{
    Dir, During, Error, HashingReader, Result, Store, set_file_attributes,
};

const DEPTH_MAX: usize = 64;
/// Permissions that are copied. A copy may belong to another user.
const MODE: u32 = 0o1777;

pub(crate) struct Archive {
    store: Store,
    path: PathBuf,
}

impl Archive {
    /// Opens the archive at `path` for the workers of `source`, and makes it if it is missing.
    ///
    /// # Errors
    ///
    /// The path holds something else than a store, is `source`, or cannot be written.
    pub(crate) fn open(path: &Path, source: &Store) -> Result<Archive> {
        let store = Store::init(path)?;
        let identity = |store: &Store| store.root().identity();
        let is_same = identity(&store)
            .and_then(|archive| Ok(archive == identity(source)?))
            .during("open", path, b"")?;
        if is_same {
            return Err(Error::Store {
                store: printable_path(path),
                reason: "an archive cannot be the store itself".to_owned(),
                cure: "try another folder".to_owned(),
            });
        }
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        Ok(Archive { store, path })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Copies the worker `id` of `source`, waits for the disk, and compares the copy with the
    /// worker by content. An equal copy that is there already is enough.
    ///
    /// # Errors
    ///
    /// The worker holds something that cannot be copied, the archive has another worker of this id,
    /// or a copy cannot be read, written or is not equal.
    pub(super) fn copy(&self, source: &Store, id: &Name) -> Result<()> {
        let worker = source.worker(id.as_bytes())?;
        let (from, record) = (worker.folder(), worker.registry_record()?);
        let compare = |copy: &Dir| match is_equal(from, copy, DEPTH_MAX) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::Approval {
                action: format!("archive worker {}", id.display()),
                reason: format!("{} differs from the worker", printable_path(copy.path())),
                cure: "try another archive".to_owned(),
            }),
            Err(error) => Err(error).during("compare the copy", copy.path(), b""),
        };
        if let Some(existing) = self.store.find_worker(id)? {
            compare(existing.folder())?;
            if let Some(record) = record {
                self.store.add_record_of_copy(id, existing.folder(), record)?;
            }
            // Another program may have made the copy.
            let synced = self.store.root().sync_file_system();
            return synced.during("write", &self.path, b"");
        }
        let fill = |to: &Dir| {
            let copy = || {
                // Private files are in folders that get their permissions only when they are full.
                to.set_own_mode(0o700)?;
                copy_folder(from, to, DEPTH_MAX)
            };
            copy().during("copy to", to.path(), b"")?;
            compare(to)?;
            let open = || to.set_own_mode(from.own_mode()? & MODE);
            open().during("copy to", to.path(), b"")
        };
        self.store.add_copy(id, record, fill).map(drop)
    }
}

/// Copies the entries of `from` into the empty directory `to`, and waits for the disk. Links are
/// copied, not followed.
///
/// # Errors
///
/// An entry is a device, FIFO or socket, a file with several names, or cannot be read or written.
fn copy_folder(from: &Dir, to: &Dir, depth: usize) -> PathResult<()> {
    let depth = depth.checked_sub(1).ok_or(PathError::Io(rustix::io::Errno::LOOP))?;
    for name in from.list()? {
        let stat = from.entry_stat(&name)?;
        let path = RelPath::from(name.clone());
        match stat.kind {
            Kind::File => {
                let mut source = from.open_to_read(&name)?.ok_or(PathError::NotFound)?;
                to.write_temporary(&mut source)?.replace(to, &name)?;
                let copy = to.open_to_read(&name)?.ok_or(PathError::NotFound)?;
                set_file_attributes(&copy, stat.mode & MODE, &stat)?;
            }
            Kind::Link => to.create_link(&name, &from.link_target(&path)?, &stat)?,
            Kind::Folder => {
                let made = to.create_dir(&name)?;
                copy_folder(&from.enter(&path)?, &made, depth)?;
                made.set_attributes(stat.mode & MODE, &stat)?;
            }
            Kind::Special => return Err(PathError::Special),
        }
    }
    to.sync()
}

/// Returns true if two directories hold the same names with the same contents.
fn is_equal(one: &Dir, other: &Dir, depth: usize) -> PathResult<bool> {
    let depth = depth.checked_sub(1).ok_or(PathError::Io(rustix::io::Errno::LOOP))?;
    let (mut names, mut other_names) = (one.list()?, other.list()?);
    names.sort();
    other_names.sort();
    if names != other_names {
        return Ok(false);
    }
    for name in names {
        let path = RelPath::from(name.clone());
        let (kind, other_kind) = (one.entry_stat(&name)?.kind, other.entry_stat(&name)?.kind);
        let is_equal = kind == other_kind
            && match kind {
                Kind::File => hash(one, &name)? == hash(other, &name)?,
                Kind::Link => one.link_target(&path)? == other.link_target(&path)?,
                Kind::Folder => is_equal(&one.enter(&path)?, &other.enter(&path)?, depth)?,
                Kind::Special => false,
            };
        if !is_equal {
            return Ok(false);
        }
    }
    Ok(true)
}

fn hash(folder: &Dir, name: &Name) -> PathResult<(u64, String)> {
    let file = folder.open_to_read(name)?.ok_or(PathError::NotFound)?;
    let mut reader = HashingReader::new(file);
    std::io::copy(&mut reader, &mut std::io::sink()).map_err(swarmletfs_record::write::from_io)?;
    Ok(reader.into_hash())
}
