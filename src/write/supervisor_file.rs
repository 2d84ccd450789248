//! Files in the folder `supervisor` of a store: the notes of whoever supervises the workers.

use super::error::{During, Error, Result};
use super::folder::StoreFolder;
use super::hashing::entry_of;
use crate::error::Error as PathError;
use crate::name::{Name, RelPath};
use crate::store::is_temporary;
use crate::trace::swarmlet::SUPERVISOR as FOLDER;

/// Deepest path, in names. Readers go no deeper.
const DEPTH_MAX: usize = 60;
/// Longest name on Linux, in bytes.
const NAME_MAX: usize = 255;

/// Writes the file `path`, from the folder: a new one, or in place of an existing one. Returns the
/// parsed path.
pub(super) fn write(store: &StoreFolder, path: &[u8], content: &[u8]) -> Result<RelPath> {
    let written = parse(path).and_then(|path| {
        let put = || put(store, &path, content);
        put().during("write", &store.root.path().join(FOLDER), path.as_bytes())?;
        Ok(path)
    });
    let shown = format!("{FOLDER}/{}", String::from_utf8_lossy(path));
    store.log_in_store("note", None, vec![entry_of(&shown, content)], &written);
    written
}

fn put(store: &StoreFolder, path: &RelPath, content: &[u8]) -> Result<(), PathError> {
    let (root, folder) = (&store.root, Name::new(FOLDER)?);
    if root.kind(&RelPath::from(folder.clone()))?.is_none() {
        // Everyone who writes to the store may write notes.
        root.create_dir_alike(&folder)?;
    }
    let mut parent = root.enter(&RelPath::from(folder))?;
    for name in path.parent().names() {
        parent = parent.enter_or_create(&name)?;
    }
    let name = path.file_name().ok_or(PathError::InvalidName)?;
    let mut content = content;
    // Beside the workers, where `doctor` finds what a crash leaves behind.
    store.workers.write_temporary(&mut content)?.replace(&parent, &name)
}

/// Checks the path of a note.
fn parse(path: &[u8]) -> Result<RelPath> {
    let invalid = |reason: &str| Error::invalid(path, "the path of a note", reason);
    let parsed = RelPath::parse(path).map_err(|_| {
        invalid("a path is relative, without `..`, `.` or empty names, as strategy.md")
    })?;
    if parsed.is_root() {
        return Err(invalid("it is empty; try strategy.md"));
    }
    if parsed.depth() > DEPTH_MAX || parsed.names().any(|name| name.as_bytes().len() > NAME_MAX) {
        return Err(invalid("it has more than 60 names, or one of more than 255 bytes"));
    }
    if parsed.names().any(|name| is_temporary(&name)) {
        return Err(invalid("this beginning of a name marks files that are being written"));
    }
    Ok(parsed)
}
