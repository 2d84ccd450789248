//! Sizes and hashes of what is written, for the audit log.

use std::io::{self, Read};

use sha2::{Digest, Sha256};

use super::error::{Error, Result};

/// Reads from another reader, and counts and hashes what passes.
pub(super) struct HashingReader<R> {
    inner: R,
    hash: Sha256,
    bytes: u64,
    /// The reader's error, which is none of the store.
    error: Option<String>,
}

impl<R: Read> HashingReader<R> {
    pub(super) fn new(inner: R) -> HashingReader<R> {
        HashingReader { inner, hash: Sha256::new(), bytes: 0, error: None }
    }

    /// Returns `written`, or the error of the reader if that is what failed.
    pub(super) fn or_input_error<T>(&self, written: Result<T>, role: &'static str) -> Result<T> {
        match &self.error {
            Some(message) => Err(Error::Input { role, message: message.clone() }),
            None => written,
        }
    }

    /// Returns the number of bytes that were read, and their SHA-256.
    pub(super) fn finish(self) -> (u64, String) {
        (self.bytes, to_hex(self.hash))
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
pub(super) fn to_hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the SHA-256 of `bytes` as hexadecimal digits.
pub(super) fn sha256(bytes: &[u8]) -> String {
    to_hex(Sha256::new_with_prefix(bytes))
}
