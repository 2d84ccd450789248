//! Trees of contents: files under the paths that they have in the workspace.

use std::io::Read;

use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{Kind, OpenFile};
use swarmletfs_record::write::Dir;

/// Writes the file `path` beneath `root`. Removes any other entry that has its name or the name of
/// a parent, since a worker may have put it there.
pub(super) fn put(root: &Dir, path: &RelPath, content: &mut dyn Read) -> Result<()> {
    let name = path.file_name().ok_or(Error::InvalidName)?;
    let parent = path.parent().names().try_fold(None, |parent: Option<Dir>, name| {
        enter_or_replace(parent.as_ref().unwrap_or(root), &name).map(Some)
    })?;
    let parent = parent.as_ref().unwrap_or(root);
    let temporary = parent.write_temporary(content)?;
    if parent.kind(&RelPath::from(name.clone()))?.is_some_and(|kind| kind != Kind::File) {
        parent.remove_all(&name)?;
    }
    temporary.replace(parent, &name)
}

/// Opens the directory `name`. Creates it in place of any other entry with this name.
pub(super) fn enter_or_replace(parent: &Dir, name: &Name) -> Result<Dir> {
    let kind = parent.kind(&RelPath::from(name.clone()))?;
    if kind.is_some_and(|kind| kind != Kind::Folder) {
        parent.remove_all(name)?;
    }
    parent.enter_or_create(name)
}

pub(super) fn open(root: &Dir, path: &RelPath) -> Result<Option<OpenFile>> {
    let name = path.file_name().ok_or(Error::InvalidName)?;
    match root.enter(&path.parent()) {
        Ok(parent) => parent.open_to_read(&name),
        Err(Error::NotFound | Error::NotADirectory) => Ok(None),
        Err(error) => Err(error),
    }
}

pub(super) fn remove(root: &Dir, path: &RelPath) -> Result<()> {
    let name = path.file_name().ok_or(Error::InvalidName)?;
    match root.enter(&path.parent()) {
        Ok(parent) => parent.remove_all(&name),
        Err(Error::NotFound | Error::NotADirectory) => Ok(()),
        Err(error) => Err(error),
    }
}
