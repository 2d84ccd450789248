//! Reads databases of SQLite, version 3: the one door for formats that keep sessions in one.
//!
//! The file format is small, public and stable, and only rows of ordinary tables are needed. So
//! this reads pages itself: through a [`Store`](swarmletfs_base::store::Store), without a copy of
//! the database, and without a lock, a write or a file beside the original. A program that writes
//! its database at the same time is not disturbed. There is no SQL here, and no way to write.
//!
//! - [`DatabaseState`] is one state of a database: its pages, with the committed transactions of
//!   its write-ahead log on top. It is checked after use, because nothing keeps it from being
//!   overwritten.
//! - [`Query`] reads pages of a snapshot within bounds, and remembers which they were. A result
//!   stays valid as long as none of them changed.
//! - [`TableSchema`] is a table with the names of its columns, and [`DatabaseRow`] one of its rows.
//!
//! All numbers in a database are untrusted. A page is visited once in a walk, so that a cycle ends.

mod btree;
mod pages;
mod query;
mod record;
mod schema;
#[cfg(test)]
mod tests;
mod wal;

pub(crate) use self::pages::{DatabaseState, Stamp};
pub(crate) use self::query::{Query, Visited};
pub(crate) use self::record::{DatabaseRow, Value};
pub(crate) use self::schema::{Schema, TableSchema};

/// The beginning of a database.
pub(crate) const MAGIC: &[u8] = b"SQLite format 3\0";

/// Returns the big-endian number of two bytes at `at`.
fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Returns the big-endian number of four bytes at `at`.
fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}
