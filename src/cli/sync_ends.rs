//! The places that `sync` copies to.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context, bail};

use super::terminal::display_path;
use crate::error::{Error as PathError, Result as PathResult};
use crate::name::{Name, RelPath};
use crate::store::{Disk, Kind, Store as _, Time, is_temporary};
use swarmletfs_record::write::{Dir, Durability, Lock, from_io};

const DEPTH_MAX: usize = 64;
const COMPARED_AT_ONCE: usize = 256 << 10;

/// A file that is in the target already.
#[derive(Debug, Clone)]
pub(super) struct FoundCopy {
    pub(super) size: u64,
    pub(super) modified: Time,
    /// Time at which it was written, if a copy gets the time of its source.
    pub(super) copied: Option<Time>,
    /// True if it is continued by parts, which a copy of the whole file replaces.
    pub(super) is_in_parts: bool,
    /// Only object stores have one.
    #[cfg_attr(not(feature = "object-store"), expect(dead_code))]
    pub(super) etag: Option<String>,
}

/// A place that files are copied to.
pub(super) trait SyncTarget: Send + Sync {
    /// Lists the files that are there, by their paths.
    ///
    /// # Errors
    ///
    /// The place cannot be read.
    fn list(&self) -> anyhow::Result<BTreeMap<String, FoundCopy>>;

    /// Returns true if a file can have this path here.
    fn can_name(&self, path: &RelPath) -> bool;

    /// Returns true if `copy` has the bytes of `source`, as far as the listing tells; `None` if it
    /// does not.
    fn has_content(&self, copy: &FoundCopy, source: &mut dyn Read) -> Option<io::Result<bool>>;

    /// Reads the copy at `path` and returns true if it has the bytes of `source`.
    ///
    /// # Errors
    ///
    /// One of them cannot be read.
    fn compare(&self, path: &RelPath, source: &mut dyn Read) -> Result<bool, CopyError>;

    /// Writes a file from all bytes of `source`. Readers see the old file or the new one.
    ///
    /// # Errors
    ///
    /// `source` cannot be read, or the file cannot be written.
    fn put(&self, path: &RelPath, source: &mut dyn Read, modified: Time) -> Result<(), CopyError>;

    /// Announces that files of the worker `id` changed, to readers that would not notice.
    ///
    /// # Errors
    ///
    /// The announcement cannot be written.
    fn announce(&self, id: &Name) -> Result<(), CopyError>;
}

/// A folder that files are copied to.
#[derive(Debug)]
pub(super) struct FolderTarget {
    /// `None` if it is missing and nothing shall be written.
    folder: Option<Dir>,
    _lock: Option<Lock>,
}

impl FolderTarget {
    /// Opens the folder, and makes it if it is missing, unless nothing shall be written.
    ///
    /// # Errors
    ///
    /// It cannot be written, or another process copies to it.
    pub(super) fn open(path: &Path, is_dry: bool) -> anyhow::Result<FolderTarget> {
        must_be_folder(path)?;
        if is_dry && !path.exists() {
            return Ok(FolderTarget { folder: None, _lock: None });
        }
        let shown = display_path(path);
        let opened = match is_dry {
            true => Dir::open(path, Durability::None),
            false => Dir::create(path, Durability::Full),
        };
        let folder = opened.with_context(|| format!("cannot write {shown}"))?;
        let lock = match is_dry {
            true => None,
            false => folder.try_lock().with_context(|| format!("cannot lock {shown}"))?,
        };
        if lock.is_none() && !is_dry {
            bail!("cannot copy to {shown}: another process writes it; try again when it has ended");
        }
        Ok(FolderTarget { folder: Some(folder), _lock: lock })
    }

    /// Opens the directory of `path`, and makes it if it is missing.
    fn parent(&self, path: &RelPath) -> PathResult<Dir> {
        let folder = self.folder.as_ref().ok_or(PathError::NotFound)?;
        let mut parent = folder.enter(&RelPath::root())?;
        for name in path.parent().names() {
            parent = parent.enter_or_create(&name)?;
        }
        Ok(parent)
    }
}

impl SyncTarget for FolderTarget {
    fn list(&self) -> anyhow::Result<BTreeMap<String, FoundCopy>> {
        let mut copies = BTreeMap::new();
        let Some(folder) = &self.folder else { return Ok(copies) };
        let cannot = || format!("cannot read {}", display_path(folder.path()));
        let disk = Disk::open(folder.path()).with_context(cannot)?;
        let mut folders = vec![RelPath::root()];
        while let Some(folder) = folders.pop() {
            if folder.depth() > DEPTH_MAX {
                continue;
            }
            for entry in disk.list(&folder).with_context(cannot)? {
                let path = folder.join(&entry.name);
                match entry.kind {
                    Kind::Folder => folders.push(path),
                    Kind::File => {
                        let Ok(meta) = disk.stat(&path) else { continue };
                        let copy = FoundCopy {
                            size: meta.size,
                            modified: meta.mtime,
                            copied: Some(meta.ctime),
                            is_in_parts: false,
                            etag: None,
                        };
                        copies.insert(path.to_text().into_owned(), copy);
                    }
                    Kind::Link | Kind::Special => {}
                }
            }
        }
        Ok(copies)
    }

    fn can_name(&self, path: &RelPath) -> bool {
        // Readers would take it for a file that is being written.
        !path.names().any(|name| is_temporary(&name))
    }

    fn has_content(&self, _copy: &FoundCopy, _source: &mut dyn Read) -> Option<io::Result<bool>> {
        None
    }

    fn compare(&self, path: &RelPath, source: &mut dyn Read) -> Result<bool, CopyError> {
        let open = || {
            let name = path.file_name().ok_or(PathError::InvalidName)?;
            self.parent(path)?.open_workspace_file(&RelPath::from(name))
        };
        let compared =
            open().and_then(|mut copy| have_same_bytes(source, &mut copy).map_err(from_io));
        compared.map_err(|error| CopyError::File(error.to_string()))
    }

    fn put(&self, path: &RelPath, source: &mut dyn Read, modified: Time) -> Result<(), CopyError> {
        let mut put = || -> PathResult<()> {
            let name: Name = path.file_name().ok_or(PathError::InvalidName)?;
            let parent = self.parent(path)?;
            let temporary = parent.write_temporary(source)?;
            temporary.set_modified(modified.to_system())?;
            temporary.replace(&parent, &name)
        };
        put().map_err(|error| match error.errno() {
            rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT | rustix::io::Errno::ROFS => {
                CopyError::Fatal(anyhow::anyhow!("cannot write {}: {error}", path.display()))
            }
            _ => CopyError::File(error.to_string()),
        })
    }

    fn announce(&self, _id: &Name) -> Result<(), CopyError> {
        Ok(())
    }
}

/// Why a file was not copied.
#[derive(Debug)]
pub(super) enum CopyError {
    /// It is not there any more.
    Gone,
    /// It cannot be read, or its copy cannot be written.
    File(String),
    /// No other file could be copied either.
    Fatal(anyhow::Error),
}

/// Returns true if both readers have the same bytes.
pub(super) fn have_same_bytes(a: &mut dyn Read, b: &mut dyn Read) -> io::Result<bool> {
    loop {
        let (mut left, mut right) = (Vec::new(), Vec::new());
        a.take(COMPARED_AT_ONCE as u64).read_to_end(&mut left)?;
        b.take(COMPARED_AT_ONCE as u64).read_to_end(&mut right)?;
        if left != right {
            return Ok(false);
        }
        if left.is_empty() {
            return Ok(true);
        }
    }
}

/// Refuses to copy to a path that is something else than a folder.
fn must_be_folder(path: &Path) -> anyhow::Result<()> {
    if path.exists() && !path.is_dir() {
        bail!("cannot copy to {}: it is not a folder; try another one", display_path(path));
    }
    Ok(())
}
