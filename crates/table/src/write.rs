//! Writes a table, a group of rows at a time.

use std::io::{self, Write};
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use serde_json::Value;
use swarmletfs_base::text::parse_time;

use crate::ColumnKind::{Double, Flag, Number, Text, Time};
use crate::{ColumnKind, TableColumns};

/// Size of the values after which a group of rows is written, in bytes.
const GROUP_BYTES: usize = 64 << 20;

/// A table that is being written.
pub struct ParquetTable<W: Write + Send> {
    columns: Vec<ParquetColumn>,
    bytes: usize,
    writer: SerializedFileWriter<W>,
}

struct ParquetColumn {
    name: &'static str,
    kind: ColumnKind,
    values: ColumnValues,
    /// 1 for each row with a value, 0 for one without.
    levels: Vec<i16>,
}

enum ColumnValues {
    Texts(Vec<ByteArray>),
    Numbers(Vec<i64>),
    Doubles(Vec<f64>),
    Flags(Vec<bool>),
}

impl<W: Write + Send> ParquetTable<W> {
    /// Begins the table `name` in `out`.
    ///
    /// # Errors
    ///
    /// Fails if `out` cannot be written.
    pub fn new(name: &str, columns: TableColumns, out: W) -> io::Result<ParquetTable<W>> {
        let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
        let schema = parse_message_type(&schema(name, columns)).map_err(io::Error::other)?;
        let writer = SerializedFileWriter::new(out, Arc::new(schema), Arc::new(properties));
        let columns = columns.iter().map(|(name, kind)| ParquetColumn::new(name, *kind));
        Ok(ParquetTable {
            columns: columns.collect(),
            bytes: 0,
            writer: writer.map_err(io::Error::other)?,
        })
    }

    /// Adds a row.
    ///
    /// # Errors
    ///
    /// Fails if the output cannot be written.
    pub fn add(&mut self, line: &Value) -> io::Result<()> {
        for column in &mut self.columns {
            self.bytes += column.add(line);
        }
        if self.bytes >= GROUP_BYTES {
            self.write_group()?;
        }
        Ok(())
    }

    /// Writes the rest, and returns the output.
    ///
    /// # Errors
    ///
    /// Fails if the output cannot be written.
    pub fn finish(mut self) -> io::Result<W> {
        self.write_group()?;
        self.writer.into_inner().map_err(io::Error::other)
    }

    fn write_group(&mut self) -> io::Result<()> {
        self.bytes = 0;
        let mut group = self.writer.next_row_group().map_err(io::Error::other)?;
        for column in &mut self.columns {
            column.write(&mut group).map_err(io::Error::other)?;
        }
        group.close().map(drop).map_err(io::Error::other)
    }
}

/// Returns the schema of a table. Each value may be absent.
fn schema(name: &str, columns: TableColumns) -> String {
    let fields = columns.iter().map(|(name, kind)| {
        let (physical, logical) = match kind {
            Text => ("BYTE_ARRAY", " (STRING)"),
            Number => ("INT64", ""),
            Double => ("DOUBLE", ""),
            Flag => ("BOOLEAN", ""),
            Time => ("INT64", " (TIMESTAMP(MICROS,true))"),
        };
        format!("OPTIONAL {physical} {name}{logical};")
    });
    format!("message {name} {{ {} }}", fields.collect::<Vec<_>>().join(" "))
}

impl ParquetColumn {
    fn new(name: &'static str, kind: ColumnKind) -> ParquetColumn {
        let values = match kind {
            Text => ColumnValues::Texts(Vec::new()),
            Number | Time => ColumnValues::Numbers(Vec::new()),
            Double => ColumnValues::Doubles(Vec::new()),
            Flag => ColumnValues::Flags(Vec::new()),
        };
        ParquetColumn { name, kind, values, levels: Vec::new() }
    }

    /// Adds the value in a line, and returns its approximate size in bytes.
    fn add(&mut self, line: &Value) -> usize {
        let inner =
            || self.name.split_once('_').and_then(|(outer, name)| line.get(outer)?.get(name));
        let value = line.get(self.name).or_else(inner).filter(|value| !value.is_null());
        let mut size = 10;
        let is_there = match &mut self.values {
            ColumnValues::Texts(texts) => {
                let text = value.map(|value| match value {
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                });
                size += text.as_ref().map_or(0, String::len);
                push(texts, text.map(|text| ByteArray::from(text.into_bytes())))
            }
            ColumnValues::Numbers(numbers) => {
                let number = value.and_then(|value| match self.kind {
                    Time => Some(parse_time(value.as_str()?)?.as_microsecond()),
                    _ => value.as_i64().or_else(|| value.as_u64().map(|_| i64::MAX)),
                });
                push(numbers, number)
            }
            ColumnValues::Doubles(doubles) => push(doubles, value.and_then(Value::as_f64)),
            ColumnValues::Flags(flags) => push(flags, value.and_then(Value::as_bool)),
        };
        self.levels.push(is_there.into());
        size
    }

    fn write<W: Write + Send>(
        &mut self,
        group: &mut SerializedRowGroupWriter<'_, W>,
    ) -> parquet::errors::Result<()> {
        let levels = std::mem::take(&mut self.levels);
        match &mut self.values {
            ColumnValues::Texts(texts) => write_column::<ByteArrayType, W>(group, texts, &levels),
            ColumnValues::Numbers(all) => write_column::<Int64Type, W>(group, all, &levels),
            ColumnValues::Doubles(all) => write_column::<DoubleType, W>(group, all, &levels),
            ColumnValues::Flags(all) => write_column::<BoolType, W>(group, all, &levels),
        }
    }
}

/// Adds a value, and returns true if there is one.
fn push<T>(values: &mut Vec<T>, value: Option<T>) -> bool {
    let before = values.len();
    values.extend(value);
    values.len() > before
}

/// Writes the next column of a group, and takes its values.
fn write_column<T: DataType, W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    values: &mut Vec<T::T>,
    levels: &[i16],
) -> parquet::errors::Result<()> {
    if let Some(mut column) = group.next_column()? {
        column.typed::<T>().write_batch(values, Some(levels), None)?;
        column.close()?;
    }
    values.clear();
    Ok(())
}
