//! Sizes and hashes of what is written, for the audit log.

use std::io::{self, Read};

use sha2::{Digest, Sha256};

/// Reads from another reader, and counts and hashes what passes.
pub(super) struct HashingReader<R> {
    inner: R,
    hash: Sha256,
    bytes: u64,
}

impl<R: Read> HashingReader<R> {
    pub(super) fn new(inner: R) -> HashingReader<R> {
        HashingReader { inner, hash: Sha256::new(), bytes: 0 }
    }

    /// Returns the number of bytes that were read, and their SHA-256.
    pub(super) fn finish(self) -> (u64, String) {
        (self.bytes, to_hex(self.hash))
    }
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
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
