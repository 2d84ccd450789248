//! Reads and writes files of rows for compactions.

use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;

use super::layout::{PARQUET, new_id};
use super::manifest::{FILE_MAX, RowFile};
use super::problem::CatalogError;
use super::reading::CatalogReader;
use crate::ObjectSettings;
use crate::failure::{FailureKind, RequestFailure};
use crate::writer::{BucketWriter, PutCondition, PutError};

/// Maximum number of rows in a file.
pub(super) const FILE_ROWS: usize = 10_000;
/// Size of the rows after which a file ends, in bytes.
const FILE_BYTES: usize = 48 << 20;

/// Number of files with fewer than half of [`FILE_ROWS`] rows from which on they are merged.
pub(super) const SMALL_FILES_MAX: usize = 8;
/// Longest time to read files of the catalog or objects, or to list workers.
pub(super) const READ_MAX: Duration = Duration::from_secs(60 * 60);

/// Returns a reader of the catalog at `writer`.
pub(super) fn reader(writer: &BucketWriter, settings: &ObjectSettings) -> CatalogReader {
    let (connection, url) = writer.shared_parts();
    CatalogReader {
        connection: connection.clone(),
        prefix: url.prefix.clone(),
        rows_max: settings.keys_max,
        cache: settings.cache.clone(),
    }
}

/// Collects rows, and writes each file when it is full.
pub(super) struct RowWriter<'a, R> {
    writer: &'a BucketWriter,
    /// Beginning of the keys.
    folder: String,
    encode: fn(&[R]) -> std::io::Result<Bytes>,
    rows: Vec<R>,
    /// Size of the rows in bytes.
    size: usize,
    written: Vec<RowFile>,
}

impl<R> RowWriter<'_, R> {
    /// Prepares files in `folder`, each of which is encoded by `encode`.
    pub(super) fn new<'a>(
        writer: &'a BucketWriter,
        folder: &str,
        now: Timestamp,
        encode: fn(&[R]) -> std::io::Result<Bytes>,
    ) -> RowWriter<'a, R> {
        let folder = format!("{folder}{}/", now.strftime("%Y-%m-%d"));
        RowWriter { writer, folder, encode, rows: Vec::new(), size: 0, written: Vec::new() }
    }

    /// Adds a row of about `size` bytes.
    ///
    /// # Errors
    ///
    /// A file cannot be written.
    pub(super) fn add(&mut self, row: R, size: usize) -> Result<(), CatalogError> {
        if self.rows.len() >= FILE_ROWS || self.size + size > FILE_BYTES {
            self.write()?;
        }
        self.size += size;
        self.rows.push(row);
        Ok(())
    }

    /// Writes the rest. Returns all files.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub(super) fn finish(mut self) -> Result<Vec<RowFile>, CatalogError> {
        self.write()?;
        Ok(self.written)
    }

    fn write(&mut self) -> Result<(), CatalogError> {
        let rows = std::mem::take(&mut self.rows);
        self.size = 0;
        if rows.is_empty() {
            return Ok(());
        }
        let bytes = (self.encode)(&rows).map_err(CatalogError::Encode)?;
        if bytes.len() as u64 > FILE_MAX {
            let reason = "the rows of a file are too large";
            return Err(RequestFailure::new(FailureKind::TooMany, reason).into());
        }
        let key = format!("{}{}{PARQUET}", self.folder, new_id());
        let stored = self.writer.put(&key, bytes.clone(), &PutCondition::IfAbsent);
        self.written.push(RowFile {
            key,
            rows: rows.len(),
            bytes: bytes.len() as u64,
            etag: stored.map_err(PutError::into_failure)?.etag,
            blake3: blake3::hash(&bytes).to_hex().to_string(),
        });
        Ok(())
    }
}
