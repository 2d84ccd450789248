//! Reads tables, also files that somebody else wrote: nothing in them is trusted.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use parquet::basic::Type as PhysicalType;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, DataType};
use parquet::file::reader::{FileReader, SerializedFileReader};
use serde_json::{Map, Value};
use thiserror::Error;

use crate::ColumnKind::{Double, Flag, Number, Text, Time};
use crate::{ColumnKind, TableColumns};

/// A file that is no table of Parquet, or a damaged one.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct TableError(String);

/// An open file of Parquet.
pub struct ParquetFile {
    reader: SerializedFileReader<Bytes>,
    rows: usize,
}

/// Calls `read`. A panic in the library, which a hostile file may cause, is an error.
fn guarded<T>(read: impl FnOnce() -> Result<T, TableError>) -> Result<T, TableError> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| Err(damaged("it is malformed")))
}

fn damaged(reason: impl ToString) -> TableError {
    TableError(reason.to_string())
}

impl ParquetFile {
    /// Opens the file with these bytes.
    ///
    /// # Errors
    ///
    /// It is no file of Parquet, or holds more than `rows_max` rows or `bytes_max` bytes when it is
    /// unpacked.
    pub fn new(bytes: Bytes, rows_max: usize, bytes_max: u64) -> Result<ParquetFile, TableError> {
        let reader = guarded(|| SerializedFileReader::new(bytes).map_err(damaged))?;
        let (mut rows, mut unpacked) = (0_usize, 0_u64);
        for group in reader.metadata().row_groups() {
            let count = usize::try_from(group.num_rows()).map_err(|_| damaged("rows < 0"))?;
            let size = u64::try_from(group.total_byte_size()).map_err(|_| damaged("size < 0"))?;
            (rows, unpacked) = (rows.saturating_add(count), unpacked.saturating_add(size));
        }
        if rows > rows_max || unpacked > bytes_max {
            return Err(damaged(format!("it has {rows} rows of {unpacked} bytes")));
        }
        Ok(ParquetFile { reader, rows })
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the texts of a column, `None` for each row without one.
    ///
    /// # Errors
    ///
    /// The file is damaged, or has no such column of texts.
    pub fn texts(&self, name: &str) -> Result<Vec<Option<ByteArray>>, TableError> {
        self.column(name, PhysicalType::BYTE_ARRAY, |reader| match reader {
            ColumnReader::ByteArrayColumnReader(reader) => Some(reader),
            _ => None,
        })
    }

    /// Returns the values of a column of true and false, `None` for each row without one.
    ///
    /// # Errors
    ///
    /// The file is damaged, or has no such column.
    pub fn flags(&self, name: &str) -> Result<Vec<Option<bool>>, TableError> {
        self.column(name, PhysicalType::BOOLEAN, |reader| match reader {
            ColumnReader::BoolColumnReader(reader) => Some(reader),
            _ => None,
        })
    }

    /// Returns the rows as JSON objects, as [`crate::ParquetTable::add`] takes them. Columns that
    /// the file lacks are left out.
    ///
    /// # Errors
    ///
    /// The file is damaged, or a column is of another kind.
    pub fn lines(&self, columns: TableColumns) -> Result<Vec<Map<String, Value>>, TableError> {
        let mut lines = vec![Map::new(); self.rows];
        let schema = self.reader.metadata().file_metadata().schema_descr_ptr();
        let known = |name: &str| schema.columns().iter().any(|column| column.name() == name);
        for (name, kind) in columns.iter().filter(|(name, _)| known(name)) {
            for (line, value) in lines.iter_mut().zip(self.values(name, *kind)?) {
                line.extend(value.map(|value| ((*name).to_owned(), value)));
            }
        }
        Ok(lines)
    }

    fn values(&self, name: &str, kind: ColumnKind) -> Result<Vec<Option<Value>>, TableError> {
        Ok(match kind {
            Text => values(self.texts(name)?, |text: ByteArray| {
                Some(String::from_utf8_lossy(text.data()).into())
            }),
            Flag => values(self.flags(name)?, |flag| Some(flag.into())),
            Double => {
                let doubles = self.column(name, PhysicalType::DOUBLE, |reader| match reader {
                    ColumnReader::DoubleColumnReader(reader) => Some(reader),
                    _ => None,
                })?;
                values(doubles, |number: f64| Some(number.into()))
            }
            Number | Time => {
                let numbers = self.column(name, PhysicalType::INT64, |reader| match reader {
                    ColumnReader::Int64ColumnReader(reader) => Some(reader),
                    _ => None,
                })?;
                values(numbers, |number: i64| match kind {
                    Time => {
                        Some(jiff::Timestamp::from_microsecond(number).ok()?.to_string().into())
                    }
                    _ => Some(number.into()),
                })
            }
        })
    }

    fn column<T: DataType>(
        &self,
        name: &str,
        kind: PhysicalType,
        typed: impl Fn(ColumnReader) -> Option<ColumnReaderImpl<T>>,
    ) -> Result<Vec<Option<T::T>>, TableError> {
        let schema = self.reader.metadata().file_metadata().schema_descr_ptr();
        let found = schema.columns().iter().position(|column| {
            column.path().string() == name
                && column.physical_type() == kind
                && column.max_rep_level() == 0
                && column.max_def_level() == 1
        });
        let index = found.ok_or_else(|| damaged(format!("it has no column {name}")))?;
        guarded(|| {
            let mut all = Vec::new();
            for number in 0..self.reader.num_row_groups() {
                let group = self.reader.get_row_group(number).map_err(damaged)?;
                let rows = usize::try_from(group.metadata().num_rows()).unwrap_or_default();
                let reader = group.get_column_reader(index).map_err(damaged)?;
                let mut reader = typed(reader).ok_or_else(|| damaged("a column is of no kind"))?;
                let (mut levels, mut read) = (Vec::new(), Vec::new());
                while levels.len() < rows {
                    let left = rows - levels.len();
                    let (records, ..) = reader
                        .read_records(left, Some(&mut levels), None, &mut read)
                        .map_err(damaged)?;
                    if records == 0 {
                        return Err(damaged(format!("rows are missing in its column {name}")));
                    }
                }
                let mut read = read.into_iter();
                all.extend(levels.iter().map(|level| if *level == 1 { read.next() } else { None }));
            }
            Ok(all)
        })
    }
}

fn values<T>(column: Vec<Option<T>>, value: impl Fn(T) -> Option<Value>) -> Vec<Option<Value>> {
    column.into_iter().map(|found| found.and_then(&value)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ParquetTable;

    const COLUMNS: TableColumns = &[
        ("name", Text),
        ("size", Number),
        ("part_share", Double),
        ("is_open", Flag),
        ("at", Time),
    ];

    fn table(lines: &[Value]) -> Bytes {
        let mut table = ParquetTable::new("test", COLUMNS, Vec::new()).unwrap();
        lines.iter().for_each(|line| table.add(line).unwrap());
        table.finish().unwrap().into()
    }

    #[test]
    fn rows_are_read_as_they_were_written() {
        let lines = [
            json!({"name": "ü", "size": -3, "part_share": 0.5, "is_open": true,
                "at": "2026-11-30T12:00:00Z"}),
            json!({}),
            json!({"name": "", "size": i64::MAX, "is_open": false}),
        ];
        let file = ParquetFile::new(table(&lines), 3, 1 << 20).unwrap();
        let read: Vec<Value> =
            file.lines(COLUMNS).unwrap().into_iter().map(Value::Object).collect();
        assert_eq!(read, lines);
        assert_eq!(file.rows(), 3);
        assert_eq!(file.lines(&[("other", Text)]).unwrap(), vec![Map::new(); 3]);
        assert!(file.texts("size").is_err() && file.texts("other").is_err());
    }

    #[test]
    fn a_table_beyond_its_bounds_is_refused() {
        let file = table(&[json!({"name": "a"}), json!({"name": "b"})]);
        assert!(ParquetFile::new(file.clone(), 1, 1 << 20).is_err());
        assert!(ParquetFile::new(file.clone(), 2, 10).is_err());
        for bytes in [Bytes::new(), file.slice(..file.len() / 2), Bytes::from_static(b"PAR1PAR1")] {
            assert!(ParquetFile::new(bytes, 2, 1 << 20).is_err());
        }
    }
}
