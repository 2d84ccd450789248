//! Sizes and hashes of written files.

use std::io::{self, Read};

use sha2::{Digest, Sha256};

use super::error::{Error, Result};
use crate::audit::AuditPath;
use swarmletfs_base::digest::to_hex;

/// Counts and hashes the bytes that it reads from another reader.
pub struct HashingReader<R> {
    inner: R,
    hash: Sha256,
    bytes: u64,
    /// The error of the reader, as opposed to one of the store.
    error: Option<String>,
}

impl<R: Read> HashingReader<R> {
    pub fn new(inner: R) -> HashingReader<R> {
        HashingReader { inner, hash: Sha256::new(), bytes: 0, error: None }
    }

    /// Returns `written`, or the error of the reader if the reader failed.
    pub(super) fn or_input_error<T>(&self, written: Result<T>, role: &'static str) -> Result<T> {
        match &self.error {
            Some(message) => Err(Error::Input { role, message: message.clone() }),
            None => written,
        }
    }

    pub(super) fn into_entry(self, path: &str) -> AuditPath {
        let (bytes, sha256) = self.into_hash();
        AuditPath { path: path.to_owned(), bytes, sha256: Some(sha256) }
    }

    /// Returns the number of bytes that were read, and their SHA-256 as hexadecimal digits.
    pub fn into_hash(self) -> (u64, String) {
        (self.bytes, finish(self.hash))
    }
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer).inspect_err(|error| {
            if error.kind() != io::ErrorKind::Interrupted {
                self.error = Some(error.to_string());
            }
        })?;
        self.hash.update(buffer.get(..n).ok_or(io::ErrorKind::InvalidData)?);
        self.bytes += n as u64;
        Ok(n)
    }
}

pub(super) fn finish(hash: Sha256) -> String {
    to_hex(&hash.finalize())
}

pub(super) fn entry_of(path: &str, bytes: &[u8]) -> AuditPath {
    AuditPath { path: path.to_owned(), bytes: bytes.len() as u64, sha256: Some(hash_bytes(bytes)) }
}

/// Returns the SHA-256 of bytes as hexadecimal digits.
pub fn hash_bytes(bytes: &[u8]) -> String {
    finish(Sha256::new_with_prefix(bytes))
}
