//! Contents of files: where they are stored, and their hashes.

use std::io::{self, Read};

use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::model::EntryState;
use swarmletfs_base::name::RelPath;
use swarmletfs_record::write::{Dir, File, HashingReader, from_io, hash_bytes};

/// Maximum size of a file that is merged, in bytes.
const MERGED_MAX: u64 = 64 << 20;

/// A directory of contents by the paths of a workspace, which may be missing.
#[derive(Debug)]
pub(super) struct StoredContents<'a> {
    parent: &'a Dir,
    folder: RelPath,
}

impl<'a> StoredContents<'a> {
    pub(super) fn new(parent: &'a Dir, name: &str) -> StoredContents<'a> {
        StoredContents { parent, folder: RelPath::constant(name) }
    }

    /// Opens the content of `path`.
    ///
    /// # Errors
    ///
    /// There is none, or a link is in its place.
    pub(super) fn open(&self, path: &RelPath) -> Result<File> {
        let path = self.folder.join_path(path);
        let name = path.file_name().ok_or(Error::InvalidName)?;
        self.parent.enter(&path.parent())?.open_to_read(&name)?.ok_or(Error::NotFound)
    }

    /// Reads the content of `path`. Returns `None` if it does not match `state`, or is too large to
    /// be merged.
    pub(super) fn read(&self, path: &RelPath, state: &EntryState) -> Result<Option<Vec<u8>>> {
        let bytes = read_limited(self.open(path)?)?;
        Ok(bytes.filter(|bytes| hash_bytes(bytes) == state.sha256))
    }
}

/// Reads a file. Returns `None` if it is too large to be merged.
pub(super) fn read_limited(file: File) -> Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    file.take(MERGED_MAX + 1).read_to_end(&mut bytes).map_err(from_io)?;
    Ok((bytes.len() as u64 <= MERGED_MAX).then_some(bytes))
}

/// Returns true if the bytes that were read are the content of `state`.
pub(super) fn is_content_of<R: Read>(read: HashingReader<R>, state: &EntryState) -> bool {
    read.into_hash() == (state.size, state.sha256.clone())
}

pub(super) fn hash_file(file: File) -> Result<String> {
    let mut reader = HashingReader::new(file);
    io::copy(&mut reader, &mut io::sink()).map_err(from_io)?;
    Ok(reader.into_hash().1)
}
