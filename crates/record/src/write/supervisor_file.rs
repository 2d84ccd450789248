//! Files in the directory `supervisor` of a store: the notes of the supervisor of the workers.
//!
//! A note is written whole, beside the workers, and then renamed. So a reader sees the old one or
//! the new one, also after a crash.

use std::io::Read;

use super::dir::Dir;
use super::error::{During, Error, Result};
use super::folder::StoreFolder;
use super::hashing::entry_of;
use swarmletfs_base::error::Error as PathError;
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{Kind, Time, is_temporary};
use swarmletfs_trace::swarmlet::SUPERVISOR as FOLDER;

/// Deepest path, in names. Readers go no deeper.
const DEPTH_MAX: usize = 60;
/// Longest name on Linux, in bytes.
const NAME_MAX: usize = 255;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotePlace {
    /// In place of an existing note.
    Whole,
    /// Behind the content of an existing note.
    End,
}

/// Writes the note `path`, from the directory: a new one, or as `place` says. Returns the parsed
/// path.
pub(super) fn write(
    store: &StoreFolder,
    path: &[u8],
    content: &[u8],
    place: NotePlace,
) -> Result<RelPath> {
    let written = parse(path).and_then(|path| {
        let put = || put(store, &path, content, place);
        put().during("write", &store.root.path().join(FOLDER), path.as_bytes())?;
        Ok(path)
    });
    let shown = format!("{FOLDER}/{}", String::from_utf8_lossy(path));
    store.log_in_store("note", None, vec![entry_of(&shown, content)], &written);
    written
}

#[derive(Debug, Clone)]
pub struct ListedFile {
    /// Path from the directory of the notes.
    pub path: RelPath,
    pub size: u64,
    pub mtime: Time,
}

/// Lists all notes, sorted by path. Links and special files are left out.
pub(super) fn list(store: &StoreFolder) -> Result<Vec<ListedFile>> {
    let list = || {
        let Some(top) = existing(store)? else { return Ok(Vec::new()) };
        let (mut listed, mut folders) = (Vec::new(), vec![RelPath::root()]);
        while let Some(folder) = folders.pop() {
            let opened = top.enter(&folder).and_then(|dir| Ok((dir.list()?, dir)));
            let (names, dir) = match opened {
                // It was removed or replaced meanwhile.
                Err(error) if error.is_not_found() => continue,
                opened => opened?,
            };
            for name in names.into_iter().filter(|name| !is_temporary(name)) {
                let Some(entry) = dir.entry(&RelPath::from(name.clone()))? else { continue };
                let path = folder.join(&name);
                if entry.kind == Kind::File {
                    let (secs, nanos) = entry.mtime;
                    let (size, mtime) = (entry.size, Time { secs, nanos });
                    listed.push(ListedFile { path, size, mtime });
                } else if entry.kind == Kind::Folder && path.depth() < DEPTH_MAX {
                    folders.push(path);
                }
            }
        }
        listed.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        Ok(listed)
    };
    list().during("list", store.root.path(), FOLDER.as_bytes())
}

fn existing(store: &StoreFolder) -> Result<Option<Dir>, PathError> {
    match store.root.enter(&RelPath::constant(FOLDER)) {
        Ok(folder) => Ok(Some(folder)),
        Err(PathError::NotFound) => Ok(None),
        Err(error) => Err(error),
    }
}

fn create(store: &StoreFolder) -> Result<Dir, PathError> {
    let (root, folder) = (&store.root, Name::new(FOLDER)?);
    if root.kind(&RelPath::from(folder.clone()))?.is_none() {
        // Everyone who writes to the store may write notes.
        root.create_dir_alike(&folder)?;
    }
    root.enter(&RelPath::from(folder))
}

fn put(
    store: &StoreFolder,
    path: &RelPath,
    content: &[u8],
    place: NotePlace,
) -> Result<(), PathError> {
    let mut parent = create(store)?;
    // Two writers that append wait for each other.
    let _lock = parent.lock()?;
    for name in path.parent().names() {
        parent = parent.enter_or_create(&name)?;
    }
    let name = path.file_name().ok_or(PathError::InvalidName)?;
    let old = match place {
        NotePlace::Whole => None,
        NotePlace::End => parent.open_to_read(&name)?,
    };
    let mut whole: Box<dyn Read> = match old {
        Some(old) => Box::new(old.chain(content)),
        None => Box::new(content),
    };
    // Beside the workers, where `doctor` finds the leftovers of a crash.
    store.workers.write_temporary(&mut *whole)?.replace(&parent, &name)
}

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
