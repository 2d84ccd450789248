//! Sizes and hashes of what is written, for the audit log.

use std::io::{self, Read};

use sha2::{Digest, Sha256};

use super::error::{Error, Result};
use crate::audit::AuditPath;
use crate::digest::to_hex;

/// Reads from another reader, and counts and hashes what passes.
pub(crate) struct HashingReader<R> {
    inner: R,
    hash: Sha256,
    bytes: u64,
    /// The reader's error, which is none of the store.
    error: Option<String>,
}

impl<R: Read> HashingReader<R> {
    pub(crate) fn new(inner: R) -> HashingReader<R> {
        HashingReader { inner, hash: Sha256::new(), bytes: 0, error: None }
    }

    /// Returns `written`, or the error of the reader if that is what failed.
    pub(super) fn or_input_error<T>(&self, written: Result<T>, role: &'static str) -> Result<T> {
        match &self.error {
            Some(message) => Err(Error::Input { role, message: message.clone() }),
            None => written,
        }
    }

    /// Returns the entry of the file `path`, into which everything that was read was written.
    pub(crate) fn into_entry(self, path: &str) -> AuditPath {
        let sha256 = Some(finish(self.hash));
        AuditPath { path: path.to_owned(), bytes: self.bytes, sha256 }
    }
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer).inspect_err(|error| {
            if error.kind() != io::ErrorKind::Interrupted {
                self.error = Some(error.to_string());
            }
        })?;
        let (filled, _) = buffer.split_at(n);
        self.hash.update(filled);
        self.bytes += n as u64;
        Ok(n)
    }
}

/// Returns a finished hash as hexadecimal digits.
pub(super) fn finish(hash: Sha256) -> String {
    to_hex(&hash.finalize())
}

/// Returns the entry of the file `path` that has the content `bytes`.
pub(super) fn entry_of(path: &str, bytes: &[u8]) -> AuditPath {
    let sha256 = Some(finish(Sha256::new_with_prefix(bytes)));
    AuditPath { path: path.to_owned(), bytes: bytes.len() as u64, sha256 }
}
