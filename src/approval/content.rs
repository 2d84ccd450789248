//! Contents of files: where they are stored, and their hashes.

use std::io::{self, Read};

use rustix::io::Errno;
use sha2::{Digest, Sha256};

use crate::digest::to_hex;
use crate::error::{Error, Result};
use crate::model::EntryState;
use crate::name::RelPath;
use crate::write::{Dir, File};

/// Size of the buffer for reading, in bytes.
const BUFFER_SIZE: usize = 256 << 10;
/// Maximum size of a file that is merged, in bytes.
const MERGED_MAX: u64 = 64 << 20;

/// A directory of contents by the paths of a workspace, which may be missing.
#[derive(Debug)]
pub(super) struct StoredContents<'a> {
    parent: &'a Dir,
    folder: RelPath,
}

impl<'a> StoredContents<'a> {
    /// Returns the contents in the directory `name` of `parent`.
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

    /// Reads the content of `path`, which must be that of `state`. Returns `None` if it is another
    /// one, or too large to be merged.
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

/// Reads from another reader, and hashes what passes.
pub(super) struct Hashing<R> {
    inner: R,
    hash: Sha256,
    size: u64,
}

impl<R: Read> Hashing<R> {
    /// Returns a reader of `inner`.
    pub(super) fn new(inner: R) -> Hashing<R> {
        Hashing { inner, hash: Sha256::new(), size: 0 }
    }

    /// Returns true if what was read is the content of `state`.
    pub(super) fn matches(self, state: &EntryState) -> bool {
        self.size == state.size && to_hex(&self.hash.finalize()) == state.sha256
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        let (filled, _) = buffer.split_at(n);
        self.hash.update(filled);
        self.size += n as u64;
        Ok(n)
    }
}

/// Returns the SHA-256 of a file as hexadecimal digits.
pub(super) fn hash_file(mut file: File) -> Result<String> {
    let (mut hash, mut buffer) = (Sha256::new(), vec![0; BUFFER_SIZE]);
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(to_hex(&hash.finalize())),
            Ok(n) => hash.update(buffer.split_at(n).0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(from_io(error)),
        }
    }
}

/// Returns the SHA-256 of bytes as hexadecimal digits.
pub(super) fn hash_bytes(bytes: &[u8]) -> String {
    to_hex(&Sha256::digest(bytes))
}

fn from_io(error: io::Error) -> Error {
    Errno::from_io_error(&error).map_or(Error::Io(Errno::IO), Error::from)
}
