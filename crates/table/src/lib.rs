//! Tables of Parquet: JSON objects become rows, and rows JSON objects again.
//!
//! A column has a name and a kind, and each of its values may be absent. Its name is a field of the
//! objects, or a field in a field: `tokens_input` is `input` in `tokens`. Later versions of a table
//! only add columns. A reader takes the columns that it knows, so files of other versions remain
//! readable.

mod read;
mod write;

pub use read::{ParquetFile, TableError};
pub use write::ParquetTable;

/// Kind of the values of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnKind {
    /// Text; a value of another kind is written as JSON.
    Text,
    Number,
    Double,
    Flag,
    /// A time in microseconds since 1970; a text in JSON.
    Time,
}

/// The columns of a table, in order.
pub type TableColumns = &'static [(&'static str, ColumnKind)];
