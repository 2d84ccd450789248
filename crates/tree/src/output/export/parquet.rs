//! Workers as tables of Parquet, for questions over many: workers, messages and calls. A row is a
//! line of the export as JSON lines.

use std::io::{self, Write};
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use serde_json::Value;

use super::ExportedWorker;
use swarmletfs_base::text::parse_time;

/// Size of the values after which a group of rows is written, in bytes.
const GROUP_BYTES: usize = 64 << 20;

#[derive(Clone, Copy)]
enum ColumnKind {
    Text,
    /// A number of a field, or of a field in a field: `tokens_input`.
    Number,
    Double,
    Flag,
    Time,
}

use ColumnKind::{Double, Flag, Number, Text, Time};

type TableColumns = &'static [(&'static str, ColumnKind)];

/// The tables: the name of the file, the type of its lines, and its columns, to which later
/// versions only add.
const TABLES: [(&str, &str, TableColumns); 3] = [
    (
        "workers.parquet",
        "worker",
        &[
            ("id", Text),
            ("source", Text),
            ("parent", Text),
            ("run", Text),
            ("owner", Text),
            ("kind", Text),
            ("title", Text),
            ("task", Text),
            ("status", Text),
            ("outcome", Text),
            ("error", Text),
            ("model", Text),
            ("cwd", Text),
            ("branch", Text),
            ("started_at", Time),
            ("finished_at", Time),
            ("tokens_input", Number),
            ("tokens_output", Number),
            ("tokens_cache_read", Number),
            ("tokens_cache_creation", Number),
            ("cost_usd", Double),
            ("final_words", Text),
        ],
    ),
    (
        "messages.parquet",
        "message",
        &[
            ("worker", Text),
            ("role", Text),
            ("time", Time),
            ("model", Text),
            ("text", Text),
            ("thinking", Text),
        ],
    ),
    (
        "calls.parquet",
        "call",
        &[
            ("worker", Text),
            ("seq", Number),
            ("tool", Text),
            ("time", Time),
            ("arguments", Text),
            ("outcome", Text),
            ("exit_code", Number),
            ("duration_ms", Number),
            ("open", Flag),
            ("output", Text),
            ("output_is_cut", Flag),
        ],
    ),
];

/// Writes the tables, a group of rows at a time.
pub struct ParquetTables<W: Write + Send> {
    tables: Vec<ParquetTable<W>>,
}

struct ParquetTable<W: Write + Send> {
    /// The type of the lines that are its rows.
    line: &'static str,
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

impl<W: Write + Send> ParquetTables<W> {
    /// Begins the tables in the files that `create` makes by their names.
    ///
    /// # Errors
    ///
    /// Fails if a file cannot be made or written.
    pub fn new(create: impl Fn(&str) -> io::Result<W>) -> io::Result<ParquetTables<W>> {
        let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
        let properties = Arc::new(properties);
        let mut tables = Vec::new();
        for (file, line, columns) in TABLES {
            let schema = parse_message_type(&schema(line, columns)).map_err(io::Error::other)?;
            let writer =
                SerializedFileWriter::new(create(file)?, Arc::new(schema), properties.clone());
            tables.push(ParquetTable {
                line,
                columns: columns
                    .iter()
                    .map(|(name, kind)| ParquetColumn::new(name, *kind))
                    .collect(),
                bytes: 0,
                writer: writer.map_err(io::Error::other)?,
            });
        }
        Ok(ParquetTables { tables })
    }

    /// Adds the rows of a worker.
    ///
    /// # Errors
    ///
    /// Fails if a file cannot be written.
    pub fn add(&mut self, worker: &ExportedWorker) -> io::Result<()> {
        for line in worker.lines() {
            let kind = line.get("type").and_then(Value::as_str).unwrap_or_default();
            if let Some(table) = self.tables.iter_mut().find(|table| table.line == kind) {
                table.add(&line)?;
            }
        }
        Ok(())
    }

    /// Writes the rest.
    ///
    /// # Errors
    ///
    /// Fails if a file cannot be written.
    pub fn finish(self) -> io::Result<()> {
        for mut table in self.tables {
            table.write_group()?;
            table.writer.close().map_err(io::Error::other)?;
        }
        Ok(())
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

impl<W: Write + Send> ParquetTable<W> {
    fn add(&mut self, line: &Value) -> io::Result<()> {
        for column in &mut self.columns {
            self.bytes += column.add(line);
        }
        if self.bytes >= GROUP_BYTES {
            self.write_group()?;
        }
        Ok(())
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs::File;

    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::Field;
    use serde_json::json;

    use super::super::tests::worker;
    use super::*;
    use proptest::prelude::*;

    fn value(field: Field) -> Value {
        match field {
            Field::Str(text) => json!(text),
            Field::Long(number) => json!(number),
            Field::Double(number) => json!(number),
            _ => Value::Null,
        }
    }

    proptest! {
        #![proptest_config(crate::scale::cases(100))]

        /// Promise: Exported tables have a row for each worker, message and call.
        #[test]
        fn tables_hold_all_lines(worker in worker()) {
            let folder = tempfile::tempdir().unwrap();
            let mut tables =
                ParquetTables::new(|name| File::create(folder.path().join(name))).unwrap();
            tables.add(&worker).unwrap();
            tables.finish().unwrap();
            for (file, line, columns) in TABLES {
                let file = File::open(folder.path().join(file)).unwrap();
                let rows = SerializedFileReader::new(file).unwrap();
                let rows = rows.get_row_iter(None).unwrap().map(|row| row.unwrap());
                let rows: Vec<BTreeMap<String, Value>> = rows
                    .map(|row| row.into_columns().into_iter().map(|(name, field)| (name, value(field))).collect())
                    .collect();
                let mut lines = worker.lines();
                lines.retain(|own| own["type"] == line);
                prop_assert_eq!(rows.len(), lines.len());
                for (row, line) in rows.iter().zip(&lines) {
                    for (name, _) in columns.iter().filter(|(_, kind)| matches!(kind, Text)) {
                        let wanted = match &line[name] {
                            Value::Null => json!(null),
                            Value::String(text) => json!(text),
                            other => json!(other.to_string()),
                        };
                        prop_assert_eq!(&row[*name], &wanted);
                    }
                    if line["type"] == "worker" {
                        prop_assert_eq!(&row["tokens_input"], &line["tokens"]["input"]);
                        prop_assert_eq!(&row["cost_usd"], &line["cost_usd"]);
                    }
                }
            }
        }
    }
}
